/* The store's tables, and all that is asked of them.
 *
 *     turns     one per turn; `parent`, `session`, `config`, `model` and `owner` are rows, so that a turn's own row is
 *               small beside its blob. `depth` and `total` count turns and tokens up to it. `path` is a digest of
 *               these tokens, by which equal ones of other conversations are found; NULL when they are not known
 *     sessions  `key` is a digest of owner and name, the name itself is in the blob
 *     uses      when a turn was last used: of every turn that nobody goes on from, and of others that were asked for.
 *               Those without a row live as long as what goes on from them
 *     configs   texts that many turns share
 *     forgets   tokens whose state nobody needs any more
 *     owners    who has something here, how many tokens, bytes of blobs and sessions; triggers count
 *
 * `used` of a session is the clock's time, to be shown; `aged`, and `used` in `uses`, are by the store's own time
 * (store_expire.c), to be deleted by.
 *
 * `writer` of a turn that is not finished is the process that works on it: a byte of the lock file that it holds.
 * Sessions' rows are never used again (AUTOINCREMENT), since turns may name one that is gone. */
#include "session/store_internal.h"

/* What an owner has in a table. */
#define COUNTED(table)                                                               \
    "CREATE TRIGGER " table "_in AFTER INSERT ON " table " BEGIN"                    \
    " UPDATE owners SET bytes = bytes + length(NEW.body) WHERE id = NEW.owner; END;" \
    "CREATE TRIGGER " table "_out AFTER DELETE ON " table " BEGIN"                   \
    " UPDATE owners SET bytes = bytes - length(OLD.body) WHERE id = OLD.owner; END;" \
    "CREATE TRIGGER " table "_set AFTER UPDATE OF body ON " table " BEGIN"           \
    " UPDATE owners SET bytes = bytes + length(NEW.body) - length(OLD.body) WHERE id = NEW.owner; END;"

/* A turn's own tokens; of one that no model has seen, about as many as its blob's size says. */
#define TOKENS(row) \
    "(CASE WHEN " row ".total > " row ".base THEN " row ".total - " row ".base ELSE length(" row ".body) / 2 END)"

static const char *const steps[] = {
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE owners (id INTEGER PRIMARY KEY, owner BLOB NOT NULL UNIQUE);"
    "CREATE TABLE models (id INTEGER PRIMARY KEY, model BLOB NOT NULL, salt BLOB NOT NULL, UNIQUE (model, salt));"
    "CREATE TABLE configs (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL);"
    "CREATE TABLE turns (id INTEGER PRIMARY KEY, key BLOB NOT NULL, owner INTEGER NOT NULL, parent INTEGER,"
    " session INTEGER, config INTEGER, model INTEGER, status INTEGER NOT NULL, hidden INTEGER NOT NULL,"
    " writer INTEGER, created INTEGER NOT NULL, base INTEGER NOT NULL, depth INTEGER NOT NULL,"
    " total INTEGER NOT NULL, path BLOB, body BLOB NOT NULL);"
    "CREATE UNIQUE INDEX turns_key ON turns (key);"
    "CREATE INDEX turns_parent ON turns (parent) WHERE parent IS NOT NULL;"
    "CREATE INDEX turns_session ON turns (session) WHERE session IS NOT NULL;"
    "CREATE INDEX turns_path ON turns (path) WHERE path IS NOT NULL;"
    "CREATE INDEX turns_config ON turns (config) WHERE config IS NOT NULL;"
    "CREATE INDEX turns_open ON turns (id) WHERE status <= 1;"
    "CREATE INDEX turns_hidden ON turns (hidden) WHERE hidden = 1;"
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, owner INTEGER NOT NULL,"
    " head INTEGER, created INTEGER NOT NULL, used INTEGER NOT NULL, body BLOB NOT NULL);"
    "CREATE INDEX sessions_owner ON sessions (owner, used);"
    "CREATE INDEX sessions_used ON sessions (used);"
    "CREATE INDEX sessions_head ON sessions (head) WHERE head IS NOT NULL;"
    "CREATE TABLE uses (turn INTEGER PRIMARY KEY, used INTEGER NOT NULL);"
    "CREATE INDEX uses_used ON uses (used);"
    "CREATE TABLE forgets (id INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, keep INTEGER NOT NULL,"
    " body BLOB NOT NULL);",
    "ALTER TABLE owners ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE owners ADD COLUMN sessions INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE configs ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE sessions ADD COLUMN aged INTEGER NOT NULL DEFAULT 0;"
    "UPDATE sessions SET aged = used;"
    "UPDATE configs SET owner = ifnull((SELECT owner FROM turns WHERE config = configs.id LIMIT 1), 0);"
    "UPDATE owners SET sessions = (SELECT count(*) FROM sessions WHERE owner = owners.id),"
    " bytes = (SELECT ifnull(sum(length(body)), 0) FROM turns WHERE owner = owners.id)"
    " + (SELECT ifnull(sum(length(body)), 0) FROM sessions WHERE owner = owners.id)"
    " + (SELECT ifnull(sum(length(body)), 0) FROM configs WHERE owner = owners.id);"
    "CREATE INDEX sessions_aged ON sessions (aged);" COUNTED("turns") COUNTED("configs")
        COUNTED("sessions") "CREATE TRIGGER sessions_more AFTER INSERT ON sessions BEGIN"
                            " UPDATE owners SET sessions = sessions + 1 WHERE id = NEW.owner; END;"
                            "CREATE TRIGGER sessions_less AFTER DELETE ON sessions BEGIN"
                            " UPDATE owners SET sessions = sessions - 1 WHERE id = OLD.owner; END;",
    "ALTER TABLE owners ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;"
    "UPDATE owners SET tokens = (SELECT ifnull(sum(" TOKENS(
        "turns") "), 0) FROM turns WHERE owner = owners.id);"
                 "CREATE TRIGGER turns_tokens_in AFTER INSERT ON turns BEGIN"
                 " UPDATE owners SET tokens = tokens + " TOKENS(
                     "NEW") " WHERE id = NEW.owner; END;"
                            "CREATE TRIGGER turns_tokens_out AFTER DELETE ON turns BEGIN"
                            " UPDATE owners SET tokens = tokens - " TOKENS(
                                "OLD") " WHERE id = OLD.owner; END;"
                                       "CREATE TRIGGER turns_tokens_set AFTER UPDATE OF base, total, body ON turns "
                                       "BEGIN"
                                       " UPDATE owners SET tokens = tokens + " TOKENS("NEW") " - " TOKENS(
                                           "OLD") " WHERE id = NEW.owner; END;"};

#define TURN                                                                                                       \
    "SELECT t.id, t.key, t.owner, o.owner, t.parent, p.key, t.session, t.config, c.key, t.model, m.model, m.salt," \
    " t.status, t.hidden, t.created, t.base, t.depth, t.total, u.used, t.path, t.body FROM turns AS t"             \
    " JOIN owners AS o ON o.id = t.owner LEFT JOIN turns AS p ON p.id = t.parent"                                  \
    " LEFT JOIN configs AS c ON c.id = t.config LEFT JOIN models AS m ON m.id = t.model"                           \
    " LEFT JOIN uses AS u ON u.turn = t.id WHERE "

#define SESSION                                                                                       \
    "SELECT s.id, s.key, o.owner, s.head, t.key, s.created, s.used, t.depth, t.total, s.body, s.aged" \
    " FROM sessions AS s"                                                                             \
    " JOIN owners AS o ON o.id = s.owner LEFT JOIN turns AS t ON t.id = s.head WHERE "

static const char *const statements[STORE_STATEMENTS] = {
    [META_GET] = "SELECT value FROM meta WHERE key = CAST(?1 AS TEXT)",
    [META_PUT] = "INSERT OR REPLACE INTO meta (key, value) VALUES (CAST(?1 AS TEXT), ?2)",
    [OWNER_ID] = "SELECT id FROM owners WHERE owner = ?1",
    [OWNER_ADD] = "INSERT INTO owners (owner) VALUES (?1)",
    [OWNER_USAGE] = "SELECT tokens, bytes, sessions FROM owners WHERE owner = ?1",
    [MODEL_ID] = "SELECT id FROM models WHERE model = ?1 AND salt = ?2",
    [MODEL_ADD] = "INSERT INTO models (model, salt) VALUES (?1, ?2)",
    [CONFIG_ID] = "SELECT id FROM configs WHERE key = ?1",
    [CONFIG_ADD] = "INSERT INTO configs (key, owner, body) VALUES (?1, ?2, ?3)",
    [CONFIG_GET] = "SELECT body FROM configs WHERE id = ?1",
    [CONFIG_DROP] = "DELETE FROM configs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM turns WHERE config = ?1)",
    [TURN_BY_KEY] = TURN "t.key = ?1",
    [TURN_BY_ID] = TURN "t.id = ?1",
    [TURN_ADD] = "INSERT INTO turns (key, owner, parent, session, config, model, status, hidden, writer, created, base,"
                 " depth, total, path, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    [TURN_SET] = "UPDATE turns SET session = ?2, config = ?3, model = ?4, status = ?5, writer = ?6, created = ?7,"
                 " base = ?8, total = ?9, path = ?10, body = ?11 WHERE id = ?1",
    [TURN_CLOSE] = "UPDATE turns SET status = ?2, writer = NULL, body = ifnull(?3, body) WHERE id = ?1",
    [TURN_HIDE] = "UPDATE turns SET hidden = 1 WHERE id = ?1",
    [TURNS_HIDE] = "UPDATE turns SET hidden = 1 WHERE session = ?1 AND hidden = 0",
    [TURN_DELETE] = "DELETE FROM turns WHERE id = ?1",
    [TURN_CHILD] = "SELECT id FROM turns WHERE parent = ?1 AND id <> ?2 LIMIT 1",
    [TURN_CHILDREN] = "SELECT id FROM turns WHERE parent = ?1 AND id <> ?2 ORDER BY id",
    [TURN_OF_PATH] = "SELECT id FROM turns WHERE path = ?1 LIMIT 1",
    [TURNS_OF_SESSION] = "SELECT id FROM turns WHERE session = ?1 AND id < ?2 ORDER BY id DESC LIMIT 1",
    [TURNS_OPEN] = "SELECT id, writer FROM turns INDEXED BY turns_open WHERE status <= 1 AND id > ?1 ORDER BY id"
                   " LIMIT 1",
    [HEAD_HELD] = "SELECT used FROM sessions WHERE head = ?1 LIMIT 1",
    [SESSION_BY_KEY] = SESSION "s.key = ?1",
    [SESSION_BY_ID] = SESSION "s.id = ?1",
    [SESSIONS_OF_OWNER] = SESSION "s.owner = (SELECT id FROM owners WHERE owner = ?1) AND (s.used, s.id) < (?2, ?3)"
                                  " AND +s.aged BETWEEN ?4 AND ?5 ORDER BY s.used DESC, s.id DESC LIMIT ?6",
    [SESSIONS_ALL] = SESSION "(s.used, s.id) < (?2, ?3) AND +s.aged BETWEEN ?4 AND ?5"
                             " ORDER BY s.used DESC, s.id DESC LIMIT ?6",
    [SESSION_ADD] = "INSERT INTO sessions (key, owner, head, created, used, aged, body)"
                    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    [SESSION_SET] = "UPDATE sessions SET head = ?2, used = ?3, aged = max(aged, ?4), body = ?5 WHERE id = ?1",
    [SESSION_HEAD] = "UPDATE sessions SET head = ?2, used = max(used, ?3), aged = max(aged, ?4) WHERE id = ?1",
    [SESSION_TOUCH] = "UPDATE sessions SET used = max(used, ?2), aged = max(aged, ?3) WHERE id = ?1",
    [SESSIONS_RESTORE] = "UPDATE sessions SET aged = ?1 WHERE aged < ?2",
    [SESSION_DELETE] = "DELETE FROM sessions WHERE id = ?1",
    [SESSION_EXPIRED] = "SELECT s.id, s.head, u.used FROM sessions AS s LEFT JOIN uses AS u ON u.turn = s.head"
                        " WHERE s.aged < ?1 ORDER BY s.aged LIMIT 1",
    [SESSIONS_EXPIRED] = "SELECT count(*) FROM sessions WHERE aged < ?1",
    [USE_PUT] = "INSERT INTO uses (turn, used) VALUES (?1, ?2) ON CONFLICT (turn) DO UPDATE SET used = max(used, ?2)",
    [USE_KEEP] = "INSERT OR IGNORE INTO uses (turn, used) VALUES (?1, ?2)",
    [USE_DROP] = "DELETE FROM uses WHERE turn = ?1",
    [USE_OLDEST] = "SELECT turn FROM uses WHERE used < ?1 ORDER BY used LIMIT 1",
    [TOUCH_TURN] = "INSERT INTO uses (turn, used) SELECT id, ?2 FROM turns WHERE key = ?1"
                   " ON CONFLICT (turn) DO UPDATE SET used = max(used, ?2)",
    [USES_RESTORE] = "UPDATE uses SET used = ?1 WHERE used < ?2",
    [TOUCH_SESSION] = "UPDATE sessions SET used = max(used, ?2), aged = max(aged, ?3) WHERE key = ?1",
    [FORGET_ADD] = "INSERT INTO forgets (model, keep, body) VALUES (?1, ?2, ?3)",
    [FORGET_NEXT] = "SELECT f.id, m.model, m.salt, f.keep, f.body FROM forgets AS f JOIN models AS m ON m.id = f.model"
                    " WHERE f.id > ?2 AND f.model IN (SELECT id FROM models WHERE model = ?1) ORDER BY f.id LIMIT 1",
    [FORGET_DONE] = "DELETE FROM forgets WHERE id = ?1",
    [COUNT_TURNS] = "SELECT count(*) FROM turns",
    [COUNT_HIDDEN] = "SELECT count(*) FROM turns WHERE hidden = 1",
    [COUNT_SESSIONS] = "SELECT count(*) FROM sessions",
    [COUNT_USES] = "SELECT count(*) FROM uses",
    [LAST_USE] = "SELECT max(ifnull((SELECT max(used) FROM uses), 0), ifnull((SELECT max(aged) FROM sessions), 0))",
    [COUNT_FORGETS] = "SELECT count(*) FROM forgets",
    [PAGES_USED] = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count,"
                   " pragma_page_size",
};

const struct hearth_db_kind hearth_session_db_kind = {.label = "sessions",
                                                      .application = HEARTH_SESSION_APPLICATION,
                                                      .steps = steps,
                                                      .version = sizeof steps / sizeof steps[0],

                                                      .statements = statements,
                                                      .statement_count = STORE_STATEMENTS,
                                                      .has_sums = true};

struct hearth_digest hearth_session_digest(const struct hearth_db *db, struct hearth_digest owner, const void *text,
                                           size_t len) {
    const struct hearth_digest root = db->seal != NULL ? hearth_seal_id(db->seal) : (struct hearth_digest){0, 0};
    return hearth_digest_chain(hearth_digest_chain(root, &owner, sizeof owner), text, len);
}
