/* The archive: its tables, its queue and its thread. See archive.h.
 *
 * Two connections: `reader`, under its mutex, for all that is asked; `writer`, of the thread alone. In WAL mode neither
 * waits for the other.
 *
 * The thread takes the whole queue after a short wait and writes it in one transaction. When that fails the rows go
 * back to the queue's head and it is tried again later and later; the rest of the queue fills up and then drops. A
 * result code that says the file is at fault closes both connections, has the file moved away and opens a new one.
 *
 * Eviction: a leaf unused for longest goes, then what it hung on, upwards as long as nothing else hangs there and it
 * was not used later. An inner node is at least as much in use as what hangs on it, so only the times of leaves matter:
 * a reply touches its node.
 *
 * On a server the tables are in a schema of their own, under a writer's lock of their own; what boxes share is then
 * also how each of them sampled. A reader that gets no answer is closed, and all is a miss until the thread has a
 * connection.
 *
 * Invariants: `queued_bytes` is the sum over the queue and what the thread has taken. `put_count` and `done_count`
 * count rows; a row is done once it is on disk or dropped, in the order in which it was put. A body is a sealed row
 * (sealed_row.h) about kind, len, key, parent and other. */
#include "session/archive.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/table.h"
#include "session/db_file.h"
#include "session/db_pg.h"
#include "session/db_sqlite.h"
#include "session/sealed_row.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define APPLICATION 0x68727468 /* "hrth" */
#define QUEUE_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define GATHER_US 50000   /* how long a row waits for others */
#define BACKOFF_US 500000 /* after a failure; doubled each time */
#define BACKOFF_MAX_US 30000000
#define WRITER_BUSY_MS 10000
#define READER_BUSY_MS 1000
#define READER_WAIT_S 1

/* ---- tables ---- */

/* After the queries of hearth_archive_read(). */
enum archive_statement {
    BEFORE_STATEMENTS = HEARTH_ARCHIVE_QUERIES - 1,
#define X(name, sql) name,
#include "session/archive_statements.def"
#undef X
    STATEMENTS
};

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
    "DELETE FROM replies;",
    /* By which a prompt that parts from an earlier one of its conversation finds that one. */
    ("ALTER TABLE records ADD COLUMN past BLOB;"
     "CREATE INDEX records_past ON records (past) WHERE past IS NOT NULL;")};

/* Rows of a key, the newest first: by a row's number, which each kind of database names differently. */
#define NEWEST(columns, from, number) "SELECT key, " columns " FROM " from " ORDER BY " number " DESC LIMIT ?2"
/* `is` compares values that may be NULL (the parent of roots), by an index. */
#define NEWEST_STATEMENTS(number, is)                                                                       \
    [HEARTH_ARCHIVE_REPLIES] = NEWEST("parent, other, 0, body", "replies WHERE parent = ?1", number),       \
    [HEARTH_ARCHIVE_SAID] = NEWEST("parent, other, 0, NULL", "replies WHERE other = ?1", number),           \
    [HEARTH_ARCHIVE_CHILDREN] = NEWEST("parent, other, len, NULL", "nodes WHERE parent " is " ?1", number), \
    [HEARTH_ARCHIVE_PRINTS] =                                                                               \
        NEWEST("parent, other, len, NULL", "nodes WHERE parent = ?1 AND other IS NOT NULL", number),        \
    [HEARTH_ARCHIVE_PAST] = NEWEST("NULL, past, 0, NULL", "records WHERE past = ?1", number)

static const char *const statements[STATEMENTS] = {
    [HEARTH_ARCHIVE_GET_NODE] = "SELECT key, parent, other, len, body FROM nodes WHERE key = ?1 LIMIT ?2",
    [HEARTH_ARCHIVE_GET_RECORD] = "SELECT key, NULL, past, 0, body FROM records WHERE key = ?1 LIMIT ?2",
    NEWEST_STATEMENTS("rowid", "IS"),
#define X(name, sql) [name] = (sql),
#include "session/archive_statements.def"
#undef X
};

/* ---- on a server ---- */

/* Rows have a number, the newest the greatest. What takes space is counted, since a server gives back none by itself.
 */
#define SERVER_ROWS "n BIGINT GENERATED BY DEFAULT AS IDENTITY, key BYTEA PRIMARY KEY,"
#define SERVER_COUNTED(table)                                                          \
    "CREATE TRIGGER " table "_size AFTER INSERT OR DELETE OR UPDATE OF body ON " table \
    " FOR EACH ROW EXECUTE FUNCTION"                                                   \
    " count_size();"

static const char *const server_steps[] = {
    "CREATE TABLE nodes (" SERVER_ROWS " parent BYTEA, other BYTEA, len BIGINT NOT NULL, used BIGINT NOT NULL,"
    " body BYTEA NOT NULL);"
    "CREATE INDEX nodes_parent ON nodes (parent, n);"
    "CREATE INDEX nodes_used ON nodes (used);"
    "CREATE INDEX nodes_prints ON nodes (parent, n) WHERE other IS NOT NULL;"
    "CREATE TABLE replies (" SERVER_ROWS " parent BYTEA NOT NULL, other BYTEA NOT NULL, body BYTEA NOT NULL);"
    "CREATE INDEX replies_parent ON replies (parent, n);"
    "CREATE INDEX replies_said ON replies (other, n);"
    "CREATE TABLE records (" SERVER_ROWS " body BYTEA NOT NULL);"
    "ALTER TABLE nodes ALTER COLUMN body SET STORAGE EXTERNAL;"
    "ALTER TABLE replies ALTER COLUMN body SET STORAGE EXTERNAL;"
    "ALTER TABLE records ALTER COLUMN body SET STORAGE EXTERNAL;"
    "CREATE TABLE size (bytes BIGINT NOT NULL);"
    "INSERT INTO size VALUES (0);"
    "CREATE FUNCTION count_size() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN"
    " UPDATE size SET bytes = bytes + CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE length(NEW.body) + 200 END"
    " - CASE WHEN TG_OP = 'INSERT' THEN 0 ELSE length(OLD.body) + 200 END;"
    " RETURN NULL; END $$;" SERVER_COUNTED("nodes") SERVER_COUNTED("replies") SERVER_COUNTED("records"),
    "ALTER TABLE records ADD COLUMN past BYTEA;"
    "CREATE INDEX records_past ON records (past, n) WHERE past IS NOT NULL;"};

static const char *const server_statements[STATEMENTS] = {
    NEWEST_STATEMENTS("n", "="),
#define X(name, sql) [name] = (sql),
#include "session/archive_server.def"
#undef X
};

static const struct hearth_db_kind archive_db = {.label = "transcripts",
                                                 .application = APPLICATION,
                                                 .steps = steps,
                                                 .version = sizeof steps / sizeof steps[0],
                                                 .statements = statements,
                                                 .statement_count = STATEMENTS,
                                                 .schema = "hearth_transcripts",
                                                 .server_steps = server_steps,
                                                 .server_version = sizeof server_steps / sizeof server_steps[0],
                                                 .server_statements = server_statements,
                                                 .replaces_others = true};

/* ---- bodies ---- */

struct about {
    uint64_t kind, len;
    struct hearth_digest key, parent, other;
};

static struct about about_row(const struct hearth_archive_row *row) {
    return (struct about){(uint64_t)row->kind, row->len, row->key, row->parent, row->other};
}

static bool close_body(const struct hearth_seal *seal, struct hearth_archive_row *row) {
    const struct about about = about_row(row);
    const size_t len = row->body.len;
    if (hearth_sealed_row_close(seal, &about, sizeof about, &row->body) == HEARTH_OK) {
        return true;
    }
    row->body.len = len; /* the row is tried again */
    return false;
}

void hearth_archive_row_finish(struct hearth_archive_row *row) {
    hearth_buf_finish(&row->body);
}

/* ---- reading rows ---- */

static enum hearth_archive_kind kind_of(enum hearth_archive_query query) {
    switch (query) {
    case HEARTH_ARCHIVE_PAST:
    case HEARTH_ARCHIVE_GET_RECORD: return HEARTH_ARCHIVE_RECORD;
    case HEARTH_ARCHIVE_REPLIES:
    case HEARTH_ARCHIVE_SAID: return HEARTH_ARCHIVE_REPLY;
    default: return HEARTH_ARCHIVE_NODE;
    }
}

/* Takes over a row. False: out of memory, or its body does not verify. */
static bool take_row(const struct hearth_db *db, int which, struct hearth_archive_row *row, uint64_t *damaged) {
    row->key = hearth_db_column_digest(db, which, 0);
    row->parent = hearth_db_column_digest(db, which, 1);
    row->other = hearth_db_column_digest(db, which, 2);
    row->len = (uint64_t)hearth_db_column_number(db, which, 3);
    if (hearth_db_column_is_null(db, which, 4)) {
        return true;
    }
    size_t len;
    const void *bytes = hearth_db_column_bytes(db, which, 4, &len);
    if (!hearth_buf_append(&row->body, bytes, len)) {
        return false;
    }
    const struct about about = about_row(row);
    if (!hearth_sealed_row_open(db->seal, &about, sizeof about, row->body.data, &row->body.len)) {
        ++*damaged;
        hearth_archive_row_finish(row);
        return false;
    }
    return true;
}

/* Reads rows. Bodies that do not verify are left out and counted. */
static int read_rows(struct hearth_db *db, enum hearth_archive_query query, struct hearth_digest key,
                     struct hearth_archive_row *rows, size_t max, size_t *count, uint64_t *damaged) {
    int found = hearth_db_query(db, (int)query, "zi", &key, (int64_t)max);
    for (*count = 0; found > 0 && *count < max; found = hearth_db_next(db, (int)query)) {
        rows[*count] = (struct hearth_archive_row){.kind = kind_of(query)};
        *count += take_row(db, (int)query, &rows[*count], damaged);
    }
    hearth_db_reset(db, (int)query);
    return found < 0 ? found : HEARTH_OK;
}

/* ---- writing rows ---- */

/* Runs a statement about one key; *found: it had a row. */
static int run_key(struct hearth_db *db, enum archive_statement which, const struct hearth_digest *key, bool *found) {
    const int rows = hearth_db_query(db, (int)which, "z", key);
    hearth_db_reset(db, (int)which);
    *found = rows > 0;
    return rows < 0 ? rows : HEARTH_OK;
}

static int put_row(struct hearth_db *db, const struct hearth_archive_row *row) {
    const int64_t now = hearth_clock_unix();
    if (row->kind == HEARTH_ARCHIVE_NODE) {
        return hearth_db_run(db, PUT_NODE, "zzzbii", &row->key, &row->parent, &row->other, &row->body,
                             (int64_t)row->len, now);
    }
    if (row->kind == HEARTH_ARCHIVE_RECORD) {
        return hearth_db_run(db, PUT_RECORD, "zbz", &row->key, &row->body, &row->other);
    }
    int err = hearth_db_run(db, row->newest ? PUT_NEWEST_REPLY : PUT_REPLY, "zzzb", &row->key, &row->parent,
                            &row->other, &row->body);
    err = err == HEARTH_OK ? hearth_db_run(db, TOUCH_NODE, "zi", &row->parent, now) : err;
    return err == HEARTH_OK && row->newest ? hearth_db_run(db, TRIM_REPLIES, "z", &row->parent) : err;
}

static int delete_node(struct hearth_db *db, const struct hearth_digest *key) {
    int err = hearth_db_run(db, DELETE_REPLIES, "z", key);
    err = err == HEARTH_OK ? hearth_db_run(db, DELETE_RECORD, "z", key) : err;
    return err == HEARTH_OK ? hearth_db_run(db, DELETE_NODE, "z", key) : err;
}

static int delete_row(struct hearth_db *db, const struct hearth_archive_row *row) {
    bool has_child = false;
    if (row->kind == HEARTH_ARCHIVE_REPLY) {
        return hearth_db_run(db, DELETE_REPLY, "z", &row->key);
    }
    const int err = run_key(db, HAS_CHILD, &row->key, &has_child);
    return err == HEARTH_OK && !has_child ? delete_node(db, &row->key) : err;
}

/* Whether the node of a row's parent is there; `last` is the node that was written last. */
static int hangs(struct hearth_db *db, const struct hearth_archive_row *row, const struct hearth_digest *last,
                 bool *there) {
    const struct hearth_digest *on = row->kind == HEARTH_ARCHIVE_RECORD ? &row->key : &row->parent;
    *there = (row->kind == HEARTH_ARCHIVE_NODE && hearth_digest_is_zero(*on)) ||
             (last != NULL && hearth_digest_equal(*on, *last));
    return *there ? HEARTH_OK : run_key(db, HAS_NODE, on, there);
}

/* Queued rows that were put together. */
struct archive_batch {
    struct archive_batch *next;
    size_t count, bytes; /* rows; memory that they count for */
    struct hearth_archive_row rows[];
};

/* Writes rows. *lost counts those left out because the row that they hang on is missing; `last`: as in hangs(). */
static int write_rows(struct hearth_db *db, struct archive_batch *batch, const struct hearth_digest **last,
                      uint64_t *lost) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < batch->count && err == HEARTH_OK; i++) {
        struct hearth_archive_row *row = &batch->rows[i];
        bool there = false;
        if (row->gone) {
            err = delete_row(db, row);
            *last = NULL;
            continue;
        }
        err = hangs(db, row, *last, &there);
        if (err != HEARTH_OK || !there) {
            *lost += err == HEARTH_OK;
            continue;
        }
        row->closed = row->closed || close_body(db->seal, row);
        err = row->closed ? put_row(db, row) : hearth_db_fail_nomem(db);
        *last = row->kind == HEARTH_ARCHIVE_NODE ? &row->key : *last;
    }
    return err;
}

static int write_batches(struct hearth_db *db, struct archive_batch *batch, uint64_t *lost) {
    const struct hearth_digest *last = NULL;
    int err = HEARTH_OK;
    for (; batch != NULL && err == HEARTH_OK; batch = batch->next) {
        err = write_rows(db, batch, &last, lost);
    }
    return err;
}

/* ---- the limit ---- */

/* Bytes of pages in use. */
static int count_bytes(struct hearth_db *db, uint64_t *bytes) {
    int64_t number;
    const int found = hearth_db_query_number(db, PAGES_USED, &number, "");
    *bytes = (uint64_t)number;
    return found < 0 ? found : HEARTH_OK;
}

/* Deletes a leaf, and then upwards the nodes on which nothing else hangs and that were not used later than the leaf. */
static int delete_up(struct hearth_db *db, struct hearth_digest key, int64_t used, struct hearth_digest parent,
                     uint64_t *evicted) {
    for (;;) {
        bool has_child = true;
        int err = delete_node(db, &key);
        ++*evicted;
        if (err != HEARTH_OK || hearth_digest_is_zero(parent) ||
            (err = run_key(db, HAS_CHILD, &parent, &has_child)) != HEARTH_OK || has_child) {
            return err;
        }
        key = parent;
        const int found = hearth_db_query(db, USED_AND_PARENT, "z", &key);
        const bool goes = found > 0 && hearth_db_column_number(db, USED_AND_PARENT, 0) <= used;
        parent = goes ? hearth_db_column_digest(db, USED_AND_PARENT, 1) : parent;
        hearth_db_reset(db, USED_AND_PARENT);
        if (!goes) {
            return found < 0 ? found : HEARTH_OK;
        }
    }
}

/* Deletes the oldest leaf. 1; 0: nothing is left; or an error. */
static int delete_oldest(struct hearth_db *db, uint64_t *evicted) {
    const int found = hearth_db_query(db, OLDEST_LEAF, "");
    if (found <= 0) {
        return found;
    }
    const struct hearth_digest key = hearth_db_column_digest(db, OLDEST_LEAF, 0);
    const struct hearth_digest parent = hearth_db_column_digest(db, OLDEST_LEAF, 2);
    const int64_t used = hearth_db_column_number(db, OLDEST_LEAF, 1);
    hearth_db_reset(db, OLDEST_LEAF);
    const int err = delete_up(db, key, used, parent, evicted);
    return err == HEARTH_OK ? 1 : err;
}

/* Deletes what was unused for longest, leaves first, until no more than `most` bytes are in use. */
static int evict(struct hearth_db *db, uint64_t most, uint64_t *evicted) {
    enum { AT_ONCE = 64 }; /* leaves per transaction, since other processes want to write, too */
    uint64_t bytes = 0;
    int found = 1, err = count_bytes(db, &bytes);
    while (err == HEARTH_OK && found > 0 && bytes > most) {
        err = hearth_db_begin(db, true);
        if (err != HEARTH_OK) {
            break;
        }
        for (int i = 0; err == HEARTH_OK && found > 0 && bytes > most && i < AT_ONCE; i++) {
            found = delete_oldest(db, evicted);
            err = found < 0 ? found : count_bytes(db, &bytes);
        }
        err = hearth_db_end(db, err);
    }
    return err;
}

/* ---- opening, and failures ---- */

struct hearth_archive {
    char *path;
    char *name; /* how log lines name it */
    bool on_server;
    atomic_bool away; /* the last read had no answer: everything is a miss until the thread has a connection */
    uint64_t limit_bytes;
    atomic_uint_fast64_t generation;
    atomic_uint_fast64_t damaged;
    struct hearth_db reader, writer;

    pthread_mutex_t mutex; /* guards everything below except `backoff_us`, which is the thread's */
    pthread_cond_t work, done;
    pthread_t thread;
    struct archive_batch *head, **tail;
    struct hearth_table going; /* names: the keys of queued rows that are to be deleted */
    uint64_t put_count, done_count;
    uint64_t failures; /* failed attempts since the start */
    bool stopping, flushing;
    bool reader_failed; /* the thread must open it again */
    int reader_code;
    struct hearth_archive_stats stats;

    int64_t backoff_us;
};

void hearth_archive_begin_generation(struct hearth_archive *archive) {
    atomic_fetch_add(&archive->generation, 1);
}

/* Opens the connections that are not open. Returns a code. */
static int open_all(struct hearth_archive *archive, struct hearth_errmsg *reason) {
    int code = !hearth_db_is_open(&archive->writer) ? hearth_db_open(&archive->writer, reason) : HEARTH_DB_OK;
    pthread_mutex_lock(&archive->reader.mutex);
    code =
        code == HEARTH_DB_OK && !hearth_db_is_open(&archive->reader) ? hearth_db_open(&archive->reader, reason) : code;
    atomic_store(&archive->away, code != HEARTH_DB_OK);
    pthread_mutex_unlock(&archive->reader.mutex);
    return code;
}

static void close_all(struct hearth_archive *archive) {
    pthread_mutex_lock(&archive->reader.mutex);
    hearth_db_close(&archive->reader);
    pthread_mutex_unlock(&archive->reader.mutex);
    hearth_db_close(&archive->writer);
}

/* Changes between failing and not failing, with one log line. */
static void set_failing(struct hearth_archive *archive, bool failing, const char *reason) {
    pthread_mutex_lock(&archive->mutex);
    bool changed = archive->stats.failing != failing;
    archive->stats.failing = failing;
    pthread_mutex_unlock(&archive->mutex);
    if (changed && failing) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: %s; they are in memory only until that works again",
                   archive->name, reason);
    } else if (changed) {
        hearth_log(HEARTH_LOG_INFO, "transcripts: %s works again", archive->name);
    }
    if (!failing) {
        archive->backoff_us = 0;
    }
}

/* Opens the database; one that is at fault is moved away before. */
static bool open_or_replace(struct hearth_archive *archive) {
    struct hearth_errmsg reason = {.text = ""};
    if (hearth_db_is_open(&archive->writer) && hearth_db_has_moved(&archive->writer)) {
        close_all(archive); /* removed, or moved away by another process */
        hearth_archive_begin_generation(archive);
    }
    int code = open_all(archive, &reason);
    if (!archive->on_server && hearth_db_is_damage(&archive_db, code)) {
        close_all(archive);
        hearth_archive_begin_generation(archive);
        code = hearth_db_quarantine(&archive_db, archive->path) ? open_all(archive, &reason) : code;
    }
    if (code != HEARTH_DB_OK) {
        close_all(archive);
        set_failing(archive, true, reason.text);
    }
    return code == HEARTH_DB_OK;
}

/* Handles the failure of an open connection, with its code. */
static void handle_failure(struct hearth_archive *archive, int code, const char *reason) {
    const bool damage = !archive->on_server && hearth_db_is_damage(&archive_db, code);
    close_all(archive); /* so that a replaced file is found */
    if (!damage || !hearth_db_quarantine(&archive_db, archive->path)) {
        set_failing(archive, true, reason);
    }
    if (damage) {
        hearth_archive_begin_generation(archive);
    }
}

/* ---- the thread ---- */

static int enforce_limit(struct hearth_archive *archive) {
    struct hearth_db *db = &archive->writer;
    uint64_t bytes = 0, evicted = 0;
    int err = count_bytes(db, &bytes);
    if (err == HEARTH_OK && bytes > archive->limit_bytes) {
        err = evict(db, archive->limit_bytes - archive->limit_bytes / 8, &evicted);
        if (err == HEARTH_OK && !archive->on_server) {
            hearth_db_give_back(db);
        }
        if (evicted > 0) {
            hearth_archive_begin_generation(archive);
        }
        err = err == HEARTH_OK ? count_bytes(db, &bytes) : err;
    }
    pthread_mutex_lock(&archive->mutex);
    archive->stats.bytes = bytes;
    archive->stats.evicted += evicted;
    pthread_mutex_unlock(&archive->mutex);
    return err;
}

/* Writes rows. False: nothing was written; try again later. */
static bool write_items(struct hearth_archive *archive, struct archive_batch *items, uint64_t *lost) {
    struct hearth_db *db = &archive->writer;
    if (!open_or_replace(archive)) {
        return false;
    }
    int err = items != NULL ? hearth_db_begin(db, true) : HEARTH_OK;
    err = err == HEARTH_OK && items != NULL ? hearth_db_end(db, write_batches(db, items, lost)) : err;
    const bool written = err == HEARTH_OK;
    if (*lost > 0) {
        hearth_archive_begin_generation(archive);
    }
    err = written ? enforce_limit(archive) : err;
    if (err != HEARTH_OK) {
        handle_failure(archive, db->code, hearth_db_reason(db));
    } else {
        set_failing(archive, false, NULL);
    }
    return written;
}

/* Frees rows and returns how many there were. With the mutex. */
static uint64_t free_items(struct hearth_archive *archive, struct archive_batch *items) {
    uint64_t count = 0;
    for (struct archive_batch *next; items != NULL; items = next) {
        next = items->next;
        count += items->count;
        archive->stats.queued_bytes -= items->bytes;
        for (size_t i = 0; i < items->count; i++) {
            if (items->rows[i].gone) {
                (void)hearth_table_take_name(&archive->going, items->rows[i].key);
            }
            hearth_archive_row_finish(&items->rows[i]);
        }
        free(items);
    }
    return count;
}

/* Waits until there is something to do. With the mutex. */
static void wait_for_work(struct hearth_archive *archive, int64_t not_before_us) {
    while (!archive->stopping && archive->head == NULL && !archive->reader_failed && !archive->stats.failing) {
        pthread_cond_wait(&archive->work, &archive->mutex);
    }
    int64_t until_us = hearth_clock_us() + GATHER_US;
    until_us = not_before_us > until_us ? not_before_us : until_us;
    bool failing = archive->stats.failing;
    while (!archive->stopping && (failing || !archive->flushing) && hearth_clock_us() < until_us) {
        (void)hearth_clock_cond_wait(&archive->work, &archive->mutex, until_us);
    }
}

/* Takes the queue and writes it, or puts it back. With the mutex, which is released while it writes. */
static bool write_queue(struct hearth_archive *archive) {
    struct archive_batch *items = archive->head, **end = archive->tail;
    bool reader_failed = archive->reader_failed;
    int reader_code = archive->reader_code;
    archive->head = NULL;
    archive->tail = &archive->head;
    archive->reader_failed = false;
    pthread_mutex_unlock(&archive->mutex);

    if (reader_failed) {
        handle_failure(archive, reader_code, hearth_db_text(reader_code));
    }
    uint64_t lost = 0;
    bool ok = write_items(archive, items, &lost);

    pthread_mutex_lock(&archive->reader.mutex); /* what was read before this was read without what is deleted now */
    pthread_mutex_lock(&archive->mutex);
    pthread_mutex_unlock(&archive->reader.mutex);
    if (ok) {
        uint64_t count = free_items(archive, items);
        archive->stats.written += count - lost;
        archive->stats.dropped += lost;
        archive->done_count += count;
    } else {
        archive->failures++;
        if (items != NULL) { /* in front of rows that came meanwhile */
            *end = archive->head;
            archive->tail = archive->head != NULL ? archive->tail : end;
            archive->head = items;
        }
    }
    pthread_cond_broadcast(&archive->done);
    return ok;
}

static void *run(void *user) {
    struct hearth_archive *archive = user;
    int64_t not_before_us = 0;
    pthread_mutex_lock(&archive->mutex);
    for (;;) {
        wait_for_work(archive, not_before_us);
        bool last = archive->stopping;
        if (archive->head == NULL && last) {
            break;
        }
        bool ok = write_queue(archive);
        if (last && !ok) {
            break;
        }
        not_before_us = 0;
        if (archive->stats.failing) {
            archive->backoff_us = archive->backoff_us > 0 ? archive->backoff_us * 2 : BACKOFF_US;
            archive->backoff_us = archive->backoff_us < BACKOFF_MAX_US ? archive->backoff_us : BACKOFF_MAX_US;
            not_before_us = hearth_clock_us() + archive->backoff_us;
        }
    }
    pthread_mutex_unlock(&archive->mutex);
    return NULL;
}

/* ---- life ---- */

static bool init_conds(struct hearth_archive *archive) {
    hearth_clock_cond_init(&archive->work);
    hearth_clock_cond_init(&archive->done);
    return pthread_create(&archive->thread, NULL, run, archive) == 0;
}

/* Closes the reader first: the last connection empties the log. */
static void finish(struct hearth_archive *archive) {
    hearth_db_finish(&archive->reader);
    hearth_db_finish(&archive->writer);
    pthread_mutex_destroy(&archive->mutex);
    hearth_memory_wipe(archive->path); /* a URL may hold a password */
    free(archive->name);
    free(archive);
}

int hearth_archive_create(const struct hearth_archive_params *params, struct hearth_archive **out) {
    struct hearth_archive *archive = calloc(1, sizeof *archive);
    *out = NULL;
    if (archive == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    archive->path = strdup(params->path);
    archive->on_server = hearth_db_is_pg(params->path);
    archive->name = archive->on_server ? hearth_db_pg_name(params->path) : strdup(params->path);
    archive->limit_bytes = params->limit_bytes;
    archive->tail = &archive->head;
    atomic_init(&archive->generation, 1);
    atomic_init(&archive->damaged, 0);
    atomic_init(&archive->away, false);
    pthread_mutex_init(&archive->mutex, NULL);
    const struct hearth_db_driver *driver = archive->on_server ? &hearth_db_pg : &hearth_db_sqlite;
    hearth_db_init(&archive->writer, driver, &archive_db, archive->path, WRITER_BUSY_MS, params->seal);
    hearth_db_init(&archive->reader, driver, &archive_db, archive->path, READER_BUSY_MS, params->seal);
    const bool named = archive->path != NULL && archive->name != NULL;
    if (named) {
        (void)open_or_replace(archive); /* if that fails, the thread tries again */
    }
    if (!named || !init_conds(archive)) {
        finish(archive);
        return HEARTH_ERR_NOMEM;
    }
    *out = archive;
    return HEARTH_OK;
}

void hearth_archive_destroy(struct hearth_archive *archive) {
    if (archive == NULL) {
        return;
    }
    pthread_mutex_lock(&archive->mutex);
    archive->stopping = true;
    pthread_cond_signal(&archive->work);
    pthread_mutex_unlock(&archive->mutex);
    pthread_join(archive->thread, NULL);
    if (archive->head != NULL) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: what was said last could not be written", archive->name);
    }
    (void)free_items(archive, archive->head);
    hearth_table_finish_names(&archive->going);
    pthread_cond_destroy(&archive->work);
    pthread_cond_destroy(&archive->done);
    finish(archive);
}

bool hearth_archive_is(const char *path) {
    return hearth_db_probe(&archive_db, path) == HEARTH_DB_FILE_OURS;
}

/* ---- asking ---- */

/* Locks the reader. False: the server is silent, and a miss costs less than waiting for it. */
static bool lock_reader(struct hearth_archive *archive) {
    struct timespec until;
    const int64_t since_us = hearth_clock_us();
    if (!archive->on_server) {
        hearth_db_lock(&archive->reader.mutex);
        return true;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += READER_WAIT_S;
    const bool locked =
        !atomic_load(&archive->away) && pthread_mutex_clocklock(&archive->reader.mutex, CLOCK_MONOTONIC, &until) == 0;
    atomic_store(&archive->away, !locked);
    hearth_db_note_wait(since_us);
    return locked;
}

/* Leaves out rows that are queued to be deleted. With the reader's mutex. */
static size_t leave_out_going(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count) {
    size_t kept = 0;
    pthread_mutex_lock(&archive->mutex);
    for (size_t i = 0; i < count; i++) {
        if (hearth_table_find(&archive->going, rows[i].key) != NULL) {
            hearth_archive_row_finish(&rows[i]);
        } else {
            rows[kept++] = rows[i];
        }
    }
    pthread_mutex_unlock(&archive->mutex);
    return kept;
}

size_t hearth_archive_read(struct hearth_archive *archive, enum hearth_archive_query query, struct hearth_digest key,
                           struct hearth_archive_row *rows, size_t max) {
    size_t count = 0;
    uint64_t damaged = 0;
    int code = HEARTH_DB_OK;
    if (archive == NULL || !lock_reader(archive)) {
        return 0;
    }
    struct hearth_db *db = &archive->reader;
    if (hearth_db_is_open(db) && read_rows(db, query, key, rows, max, &count, &damaged) != HEARTH_OK &&
        (archive->on_server || !hearth_db_is_busy(db->code)) && !hearth_db_is_nomem(db->code)) {
        code = db->code;
        hearth_db_close(db);
    }
    count = leave_out_going(archive, rows, count);
    pthread_mutex_unlock(&db->mutex);
    if (damaged > 0 && atomic_fetch_add(&archive->damaged, damaged) == 0) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: a row does not match its checksum; such rows are left out",
                   archive->name);
    }
    atomic_store(&archive->away, code != HEARTH_DB_OK);
    if (code != HEARTH_DB_OK) {
        pthread_mutex_lock(&archive->mutex);
        archive->reader_failed = true;
        archive->reader_code = code;
        pthread_cond_signal(&archive->work);
        pthread_mutex_unlock(&archive->mutex);
    }
    return count;
}

/* ---- putting ---- */

bool hearth_archive_has_room(struct hearth_archive *archive) {
    pthread_mutex_lock(&archive->mutex);
    bool room = archive->stats.queued_bytes < QUEUE_BYTES_MAX;
    pthread_mutex_unlock(&archive->mutex);
    return room;
}

uint64_t hearth_archive_generation(struct hearth_archive *archive) {
    return atomic_load(&archive->generation);
}

bool hearth_archive_put(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count) {
    const size_t bytes = sizeof(struct archive_batch) + count * sizeof *rows;
    struct archive_batch *batch = hearth_archive_has_room(archive) ? malloc(bytes) : NULL;
    if (batch == NULL) {
        for (size_t i = 0; i < count; i++) {
            hearth_archive_row_finish(&rows[i]);
        }
        pthread_mutex_lock(&archive->mutex);
        archive->stats.dropped += count;
        pthread_mutex_unlock(&archive->mutex);
        hearth_archive_begin_generation(archive);
        return false;
    }
    *batch = (struct archive_batch){.count = count, .bytes = bytes};
    pthread_mutex_lock(&archive->mutex);
    for (size_t i = 0; i < count; i++) {
        batch->rows[i] = rows[i];
        batch->bytes += rows[i].body.cap;
        if (rows[i].gone) { /* out of memory: it is found until it is deleted */
            (void)hearth_table_add_name(&archive->going, rows[i].key);
        }
    }
    *archive->tail = batch;
    archive->tail = &batch->next;
    archive->stats.queued_bytes += batch->bytes;
    archive->put_count += count;
    pthread_cond_signal(&archive->work);
    pthread_mutex_unlock(&archive->mutex);
    return true;
}

bool hearth_archive_flush(struct hearth_archive *archive, int64_t timeout_us) {
    int64_t until_us = hearth_clock_us() + timeout_us;
    pthread_mutex_lock(&archive->mutex);
    uint64_t wanted = archive->put_count, failures = archive->failures;
    while (archive->done_count < wanted && archive->failures == failures && hearth_clock_us() < until_us) {
        archive->flushing = true;
        pthread_cond_signal(&archive->work);
        (void)hearth_clock_cond_wait(&archive->done, &archive->mutex, until_us);
    }
    archive->flushing = false;
    bool done = archive->done_count >= wanted;
    pthread_mutex_unlock(&archive->mutex);
    return done;
}

void hearth_archive_stats(struct hearth_archive *archive, struct hearth_archive_stats *stats) {
    pthread_mutex_lock(&archive->mutex);
    *stats = archive->stats;
    pthread_mutex_unlock(&archive->mutex);
    stats->damaged = atomic_load(&archive->damaged);
}
