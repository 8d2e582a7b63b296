/* The archive's database: its tables and its statements. What opening means stands in session/db.c. */
#include "session/archive_internal.h"

#include "session/db.h"

#define LEAF "NOT EXISTS (SELECT 1 FROM nodes AS c WHERE c.parent = n.key)"

static const char *const steps[] = {
    "CREATE TABLE nodes (key BLOB PRIMARY KEY, parent BLOB, other BLOB, len INTEGER NOT NULL, used INTEGER NOT NULL,"
    " body BLOB NOT NULL);"
    "CREATE INDEX nodes_parent ON nodes (parent);"
    "CREATE INDEX nodes_used ON nodes (used);"
    "CREATE INDEX nodes_prints ON nodes (parent) WHERE other IS NOT NULL;"
    "CREATE TABLE replies (key BLOB PRIMARY KEY, parent BLOB NOT NULL, other BLOB NOT NULL, body BLOB NOT NULL);"
    "CREATE INDEX replies_parent ON replies (parent);"
    "CREATE INDEX replies_said ON replies (other);"
    "CREATE TABLE records (key BLOB PRIMARY KEY, body BLOB NOT NULL);",
    /* Chains are over messages alone, and a reply says what tools and arguments it was given under. */
    "DELETE FROM replies;"};

static const char *const statements[STATEMENTS] = {
    [HEARTH_ARCHIVE_GET_NODE] = "SELECT key, parent, other, len, body FROM nodes WHERE key = ?1 LIMIT ?2",
    [HEARTH_ARCHIVE_GET_RECORD] = "SELECT key, NULL, NULL, 0, body FROM records WHERE key = ?1 LIMIT ?2",
    [HEARTH_ARCHIVE_REPLIES] =
        "SELECT key, parent, other, 0, body FROM replies WHERE parent = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_SAID] =
        "SELECT key, parent, other, 0, NULL FROM replies WHERE other = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_CHILDREN] =
        "SELECT key, parent, other, len, NULL FROM nodes WHERE parent = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_PRINTS] = "SELECT key, parent, other, len, NULL FROM nodes WHERE parent = ?1 AND other IS NOT NULL"
                              " ORDER BY rowid DESC LIMIT ?2",
    [PUT_NODE] = "INSERT INTO nodes (key, parent, other, body, len, used) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
                 " ON CONFLICT (key) DO UPDATE SET other = ?3, body = ?4, len = ?5, used = ?6",
    [PUT_REPLY] = "INSERT INTO replies (key, parent, other, body) VALUES (?1, ?2, ?3, ?4)"
                  " ON CONFLICT (key) DO UPDATE SET body = ?4",
    [PUT_NEWEST_REPLY] = "INSERT OR REPLACE INTO replies (key, parent, other, body) VALUES (?1, ?2, ?3, ?4)",
    [PUT_RECORD] = "INSERT OR REPLACE INTO records (key, body) VALUES (?1, ?4)",
    [TRIM_REPLIES] = "DELETE FROM replies WHERE parent = ?1 AND rowid NOT IN (SELECT rowid FROM replies WHERE "
                     "parent = ?1 ORDER BY rowid DESC LIMIT " HEARTH_DB_TEXT(HEARTH_ARCHIVE_REPLIES_MAX) ")",
    [TOUCH_NODE] = "UPDATE nodes SET used = ?2 WHERE key = ?1 AND used < ?2",
    [HAS_NODE] = "SELECT 1 FROM nodes WHERE key = ?1",
    [HAS_CHILD] = "SELECT 1 FROM nodes WHERE parent = ?1 LIMIT 1",
    [USED_AND_PARENT] = "SELECT used, parent FROM nodes WHERE key = ?1",
    [OLDEST_LEAF] = "SELECT key, used, parent FROM nodes AS n WHERE " LEAF " ORDER BY used LIMIT 1",
    [DELETE_NODE] = "DELETE FROM nodes WHERE key = ?1",
    [DELETE_REPLY] = "DELETE FROM replies WHERE key = ?1",
    [DELETE_REPLIES] = "DELETE FROM replies WHERE parent = ?1",
    [DELETE_RECORD] = "DELETE FROM records WHERE key = ?1",
    [PAGES_USED] = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count,"
                   " pragma_page_size",
};

static const struct hearth_db_kind kind = {.label = "transcripts",
                                           .application = HEARTH_ARCHIVE_APPLICATION,
                                           .steps = steps,
                                           .version = sizeof steps / sizeof steps[0],
                                           .pragmas = "PRAGMA secure_delete = ON",
                                           .statements = statements,
                                           .statement_count = STATEMENTS,
                                           .replaces_others = true};

int hearth_archive_db_open(const char *path, int busy_ms, struct archive_db *db, struct hearth_errmsg *why) {
    return hearth_db_open(&kind, path, busy_ms, &db->handle, db->statements, why);
}

void hearth_archive_db_close(struct archive_db *db) {
    hearth_db_close(&kind, &db->handle, db->statements);
}

bool hearth_archive_db_has_moved(const struct archive_db *db) {
    return hearth_db_has_moved(db->handle);
}

bool hearth_archive_db_is_bad(int rc) {
    return hearth_db_is_damage(&kind, rc);
}

bool hearth_archive_db_quarantine(const char *path) {
    return hearth_db_quarantine(&kind, path);
}
