/* The store: its connections, its transactions and its life. See store.h.
 *
 * Two connections, each under a mutex of its own: a reader does not wait for a writer's disk (WAL). In memory
 * there is one for both. The writer's mutex is taken before the reader's.
 *
 * A connection is opened when it is needed and checked before each operation: a file that was moved away or removed
 * is opened anew. A result code that says the file is at fault fails the operation and is told by /health; the file
 * stays as it is, since most of it can be read, and what can not is never taken for what is not there.
 *
 * A rollback needs memory. A transaction that could not be taken back is tried again with the next operation, or its
 * connection is closed.
 *
 * What was read is noted in memory (touches) and written with the next transaction, so that reading never writes.
 *
 * Deleting: secure_delete overwrites rows, and after the transaction the log, which holds them still, is emptied into
 * the database. Where another process reads at that moment this is tried again with the next deletion or sweep. */
#include "session/db_file.h"
#include "session/db_pg.h"
#include "session/db_sqlite.h"
#include "session/store_internal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/folder.h"
#include "base/health.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUSY_MS 10000
#define TRUNCATE_BUSY_MS 200
#define TOUCH_US ((int64_t)3600 * 1000000)
#define TOOLS_BEGIN ((int64_t)1 << 62) /* bytes of the lock file from here on belong to tools, not servers */
#define LOCK_TEXT "h"
#define SECRET_BYTES sizeof((struct hearth_session_store *)NULL)->secret
#define END_AGE_US ((int64_t)60 * 1000000)
#define SILENT_US 2000000
#define SILENT_WRITER_US 5000000 /* a writer may wait for another box's transaction */
#define REST_US 5000000
#define SLICE_NS 100000000

static int random_bytes(void *out, size_t len) {
    ssize_t n;
    do {
        n = getrandom(out, len, 0);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)len ? HEARTH_OK : HEARTH_ERR_IO;
}

struct hearth_digest hearth_turn_new_id(void) {
    struct hearth_digest id = {0, 0};
    while (hearth_digest_is_zero(id)) {
        int err = random_bytes(&id, sizeof id); /* up to 256 bytes always come once the system has started */
        HEARTH_ASSERT(err == HEARTH_OK);
    }
    return id;
}

/* ---- opening ---- */

static const char *path_of(const struct hearth_session_store *store) {
    return store->name != NULL ? store->name : ":memory:";
}

/* Checks that the database was created with this key; a new database is marked with it. */
static int check_key(struct hearth_db *db, struct hearth_errmsg *reason) {
    const struct hearth_digest none = {0, 0}, ours = db->seal != NULL ? hearth_seal_mark(db->seal) : none;
    struct hearth_digest theirs = none;
    const int len = hearth_session_get_meta(db, "key", &theirs, sizeof theirs);
    if (len <= 0) {
        return len < 0 ? len : hearth_session_put_meta(db, "key", &ours, sizeof ours);
    }
    return hearth_digest_equal(theirs, ours)
               ? HEARTH_OK
               : hearth_fail(
                     reason, HEARTH_ERR_STATE, "%s",
                     hearth_digest_is_zero(ours) ? "it is encrypted, and no key is given"
                     : hearth_digest_is_zero(theirs)
                         ? "it is not encrypted, and a key is given (hearth sessions export and import carry it over)"
                         : "it is encrypted with another key");
}

static int make_secret(struct hearth_db *db, const struct store_about *about, struct hearth_buf *secret) {
    uint8_t bytes[SECRET_BYTES];
    struct hearth_buf blob = {0};
    secret->len = 0;
    int err = random_bytes(bytes, sizeof bytes);
    err = err == HEARTH_OK && !hearth_buf_append(secret, bytes, sizeof bytes) ? HEARTH_ERR_NOMEM : err;
    err = err == HEARTH_OK ? hearth_session_pack(db, about, secret, NULL, &blob) : err;
    err = err == HEARTH_OK ? hearth_session_put_meta(db, "secret", blob.data, blob.len) : err;
    hearth_buf_finish(&blob);
    return err;
}

static int load_secret(struct hearth_session_store *store, struct hearth_db *db) {
    const struct store_about about = {.kind = STORE_META};
    struct hearth_buf secret = {0};
    uint8_t blob[256];
    const int len = hearth_session_get_meta(db, "secret", blob, sizeof blob);
    int err = len > 0 && (size_t)len <= sizeof blob
                  ? hearth_session_unpack(db, &about, blob, (size_t)len, &secret, NULL)
                  : (len < 0 ? len : HEARTH_ERR_STATE);
    if (err == HEARTH_ERR_STATE || (err == HEARTH_OK && secret.len != SECRET_BYTES)) {
        if (len > 0) {
            hearth_log(HEARTH_LOG_WARN, "sessions: %s: the secret is damaged, a new one is made", path_of(store));
        }
        err = make_secret(db, &about, &secret);
    }
    if (err == HEARTH_OK) {
        pthread_mutex_lock(&store->mutex);
        memcpy(store->secret, secret.data, SECRET_BYTES);
        pthread_mutex_unlock(&store->mutex);
    }
    hearth_buf_finish(&secret);
    return err;
}

/* A database that is there was given all that follows when it was begun: nothing is written into it. */
static int prepare(struct hearth_session_store *store, struct hearth_db *db, struct hearth_errmsg *reason) {
    const int begun = hearth_session_get_meta(db, "secret", NULL, 0);
    int err = begun == 0 ? hearth_db_begin(db, true) : begun < 0 ? begun : HEARTH_OK;
    if (err != HEARTH_OK) {
        return err;
    }
    err = check_key(db, reason);
    err = err == HEARTH_OK ? load_secret(store, db) : err;
    return begun == 0 ? hearth_db_end(db, err) : err;
}

static int open_once(struct hearth_session_store *store, struct hearth_db *db, struct hearth_errmsg *reason) {
    const int code = hearth_db_open(db, reason);
    if (code == HEARTH_DB_ALIEN || code == HEARTH_DB_NEWER) {
        return HEARTH_ERR_INVALID;
    }
    int err = code == HEARTH_DB_OK ? prepare(store, db, reason) : hearth_db_fail(db, code);
    err = err == HEARTH_OK ? hearth_session_load_age(store, db) : err;
    if (err == HEARTH_OK && store->on_server && store->process != 0 && db == &store->writer) {
        err = hearth_session_enter_box(store);
    }
    if (err != HEARTH_OK) {
        if (err != HEARTH_ERR_STATE && hearth_db_is_open(db)) {
            (void)hearth_fail(reason, err, "%s", hearth_db_reason(db));
        }
        hearth_db_close(db);
    }
    return err;
}

/* Opens the connection if it is not open, or if the path now names another file. With its mutex. */
static int open_conn(struct hearth_session_store *store, struct hearth_db *db, struct hearth_errmsg *msg) {
    struct hearth_errmsg reason = {.text = ""};
    db->code = HEARTH_DB_OK;
    if (hearth_db_is_open(db) && hearth_db_has_moved(db)) {
        hearth_db_close(db);
    }
    if (hearth_db_is_open(db)) {
        return HEARTH_OK;
    }
    const int err = open_once(store, db, &reason);
    if (err != HEARTH_OK && hearth_db_is_damage(&hearth_session_db_kind, db->code)) {
        return hearth_fail(msg, HEARTH_ERR_STATE,
                           "%s is damaged (%s); it stays as it is: hearth sessions recover saves "
                           "what can be read",
                           path_of(store), reason.text);
    }
    if (err != HEARTH_OK && db->code == HEARTH_DB_ALIEN &&
        hearth_db_probe(&hearth_session_db_kind, path_of(store)) == HEARTH_DB_FILE_OURS) {
        return hearth_fail(msg, err,
                           "%s is hearth's, but the log beside it (its name and -wal) is another database's: "
                           "move that away, and the file with -shm",
                           path_of(store));
    }
    return err == HEARTH_OK              ? err
           : db->code == HEARTH_DB_ALIEN ? hearth_fail(msg, err, "%s is no database of hearth's", path_of(store))
                                         : hearth_fail(msg, err, "%s: %s", path_of(store), reason.text);
}

/* ---- a server that is silent ----
 *
 * An operation may hold a thread for as long as a statement may take. So that a server which says nothing does not hold
 * all threads that prepare requests, one after the other, nothing waits behind a connection that has waited for an
 * answer for SILENT_US, nor joins it; and when the wait has ended without an answer the server is left alone for
 * REST_US. There are fewer connections than such threads. A server that is slow and answers is waited for. */

static bool is_silent(const struct hearth_db *db, int64_t most_us) {
    const int64_t asked_us = atomic_load(&db->asked_us);
    return asked_us != 0 && hearth_clock_us() - asked_us > most_us;
}

static bool is_resting(const struct hearth_session_store *store) {
    return store->on_server && hearth_clock_us() < atomic_load(&store->rests_until_us);
}

static void note_silence(struct hearth_session_store *store, int code) {
    if (store->on_server && code == HEARTH_DB_SLOW) {
        atomic_store(&store->rests_until_us, hearth_clock_us() + REST_US);
    }
}

static int wait_for_conn(struct hearth_session_store *store, struct hearth_db *db, int64_t most_us) {
    if (!store->on_server) {
        pthread_mutex_lock(&db->mutex);
        return HEARTH_OK;
    }
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += SLICE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (is_resting(store)) {
            return HEARTH_ERR_STORE;
        }
        if (pthread_mutex_clocklock(&db->mutex, CLOCK_MONOTONIC, &until) == 0) {
            return HEARTH_OK;
        }
        if (is_silent(db, most_us)) {
            return HEARTH_ERR_STORE;
        }
    }
}

/* Locks a connection. STORE: its server is silent, and waiting is not worth it. */
static int lock_conn(struct hearth_session_store *store, struct hearth_db *db, int64_t most_us) {
    const int64_t since_us = hearth_clock_us();
    const int err = wait_for_conn(store, db, most_us);
    hearth_db_note_wait(since_us);
    return err;
}

/* ---- transactions ---- */

/* Reports an operation's failure, with its code, if it concerns more than this operation. */
static int report_failure(struct hearth_session_store *store, const struct hearth_db *db, int err, int code) {
    if (store->path == NULL || err == HEARTH_OK) {
        return err;
    }
    note_silence(store, code);
    atomic_store(&store->outage, code);
    if (err == HEARTH_ERR_STORE && hearth_db_is_outage(code) && code != HEARTH_DB_CONFLICT && !store->is_tool) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                            "%s: %s: requests that need what is stored there get 503 until it answers, others are "
                            "served",
                            path_of(store), hearth_db_reason(db));
        atomic_store(&store->unreachable, true);
    }
    if (hearth_db_is_damage(&hearth_session_db_kind, code)) {
        if (!store->is_tool) {
            hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                                "%s is damaged (%s): what is there cannot be read; hearth sessions recover saves the "
                                "rest",
                                path_of(store), hearth_db_text(code));
        }
        return HEARTH_ERR_STATE;
    }
    return err;
}

/* Reports to /health whether writing works, after a transaction that changed something. */
static void report_write(struct hearth_session_store *store, int err, int code) {
    if (store->path == NULL || store->is_tool) {
        return;
    }
    if (err == HEARTH_OK) {
        atomic_store(&store->unwritable, false); /* the next check ends the condition */
    } else if ((err == HEARTH_ERR_IO || err == HEARTH_ERR_STORE) && hearth_db_is_unwritable(code)) {
        atomic_store(&store->unwritable, true);
        hearth_health_raise(HEARTH_HEALTH_SESSION_DISK, "%s cannot be written (%s); replies cannot be stored",
                            path_of(store), hearth_db_text(code));
    }
}

/* Rolls back a transaction that an operation left open because its ROLLBACK was refused memory. If that fails again, a
 * file's connection is closed; in memory the rows would be lost with it, and false is returned. */
static bool end_left_open(struct hearth_session_store *store, struct hearth_db *db) {
    if (hearth_db_is_in_transaction(db)) {
        (void)hearth_db_end(db, HEARTH_ERR_CANCELLED);
    }
    if (!hearth_db_is_in_transaction(db)) {
        return true;
    }
    if (store->path != NULL) {
        hearth_db_close(db);
    }
    return store->path != NULL;
}

/* Fails with a message that a client may see: of a server only that it cannot be used, not where it is. */
static int fail(const struct hearth_session_store *store, const struct hearth_db *db, int err,
                struct hearth_errmsg *msg) {
    return store->on_server && err == HEARTH_ERR_STORE
               ? hearth_fail(msg, err, "%s", hearth_err_text(err))
               : hearth_fail(msg, err, "%s: %s", path_of(store),
                             db->code != HEARTH_DB_OK ? hearth_db_text(db->code) : hearth_err_text(err));
}

/* Begins a transaction; once more if the connection was lost before that was noticed, since nothing was done in it. */
static int begin_on(struct hearth_session_store *store, struct hearth_db *db, bool write, struct hearth_errmsg *msg) {
    int err = hearth_db_begin(db, write);
    if (err == HEARTH_ERR_STORE && db->code == HEARTH_DB_LOST) {
        err = open_conn(store, db, msg);
        err = err == HEARTH_OK ? hearth_db_begin(db, write) : err;
    }
    if (err == HEARTH_OK && atomic_exchange(&store->unreachable, false)) {
        hearth_health_clear(HEARTH_HEALTH_SESSION_DB);
    }
    return err == HEARTH_OK ? err : fail(store, db, err, msg);
}

/* Opens a connection while the server is running. A database that has become unusable since the start counts as an
 * outage: for example, a newer hearth has changed it. */
static int open_while_serving(struct hearth_session_store *store, struct hearth_db *db, struct hearth_errmsg *msg) {
    struct hearth_errmsg cause = {.text = ""};
    const int err = open_conn(store, db, &cause);
    if (store->on_server && !store->is_tool && (err == HEARTH_ERR_INVALID || err == HEARTH_ERR_STATE)) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB, "%s: requests that need what is stored there get 503",
                            cause.text);
        atomic_store(&store->unreachable, true);
        return hearth_fail(msg, HEARTH_ERR_STORE, "%s", hearth_err_text(HEARTH_ERR_STORE));
    }
    return err == HEARTH_OK ? err : hearth_fail(msg, err, "%s", cause.text);
}

/* Begins a transaction. With the connection's mutex, which is released on failure. */
static int begin(struct hearth_session_store *store, struct hearth_db *db, bool write, struct hearth_errmsg *msg) {
    const bool ended = end_left_open(store, db);
    int err = open_while_serving(store, db, msg);
    if (err == HEARTH_OK) {
        err = ended ? begin_on(store, db, write, msg) : fail(store, db, hearth_db_fail_nomem(db), msg);
    } else if (err == HEARTH_ERR_STORE) {
        err = fail(store, db, err, msg);
    }
    if (err != HEARTH_OK) {
        err = report_failure(store, db, err, db->code);
        pthread_mutex_unlock(&db->mutex);
        return err;
    }
    db->now_us = hearth_session_wall_us(store);
    db->age_us = hearth_session_age(store);
    return HEARTH_OK;
}

bool hearth_session_outage_may_pass(const struct hearth_session_store *store) {
    const int code = atomic_load(&store->outage);
    return code == HEARTH_DB_CONFLICT || (hearth_db_may_pass(code) && code != HEARTH_DB_NO_ROOM);
}

int hearth_session_lock_writer(struct hearth_session_store *store) {
    return lock_conn(store, &store->writer, SILENT_WRITER_US);
}

int hearth_session_open_writer(struct hearth_session_store *store) {
    const int err = open_while_serving(store, &store->writer, NULL);
    return err == HEARTH_OK ? err : report_failure(store, &store->writer, err, store->writer.code);
}

/* Gives pages back and empties the log. With the writer's mutex; a failure is made up for later. */
static void give_back(struct hearth_session_store *store) {
    if (store->on_server) {
        return; /* a server does that by itself */
    }
    hearth_db_give_back(&store->writer);
    if (store->path == NULL) {
        return;
    }
    pthread_mutex_lock(&store->readers[0].mutex); /* emptying the log would wait for it */
    store->truncate_due = !hearth_db_empty_log(&store->writer, TRUNCATE_BUSY_MS);
    pthread_mutex_unlock(&store->readers[0].mutex);
}

int hearth_session_begin_write(struct hearth_session_store *store, struct hearth_errmsg *msg) {
    int err = hearth_session_lock_writer(store);
    if (err != HEARTH_OK) {
        atomic_store(&store->outage, HEARTH_DB_SLOW);
        return hearth_fail(msg, err, "%s", hearth_err_text(err));
    }
    err = begin(store, &store->writer, true, msg);
    if (err == HEARTH_OK) {
        store->changes = hearth_db_changes(&store->writer);
    }
    return err;
}

int hearth_session_end_write(struct hearth_session_store *store, int err, bool deleted, struct hearth_errmsg *msg) {
    struct hearth_db *db = &store->writer;
    err = hearth_db_end(db, err);
    if (err == HEARTH_OK && deleted) {
        give_back(store);
    }
    const int code = db->code;
    const bool wrote = err != HEARTH_OK || hearth_db_changes(db) != store->changes;
    const bool failed = err == HEARTH_ERR_IO || err == HEARTH_ERR_NOMEM || err == HEARTH_ERR_STORE;
    (void)end_left_open(store, db);
    if (failed) {
        (void)fail(store, db, err, msg);
    }
    const int told = failed ? report_failure(store, db, err, code) : err;
    pthread_mutex_unlock(&db->mutex);
    if (wrote) {
        report_write(store, err, code);
    }
    return told;
}

/* Takes a free reader, else the next in turn. With its mutex. */
static int take_reader(struct hearth_session_store *store, struct hearth_db **out) {
    const size_t count = store->reader_count, first = count > 0 ? atomic_fetch_add(&store->next_reader, 1) % count : 0;
    for (size_t i = 0; i < count; i++) {
        if (store->on_server && (is_resting(store) || is_silent(&store->readers[i], SILENT_US))) {
            return HEARTH_ERR_STORE;
        }
    }
    for (size_t i = 0; i < count; i++) {
        *out = &store->readers[(first + i) % count];
        if (pthread_mutex_trylock(&(*out)->mutex) == 0) {
            return HEARTH_OK;
        }
    }
    *out = count > 0 ? &store->readers[first] : &store->writer;
    return lock_conn(store, *out, SILENT_US);
}

int hearth_session_begin_read(struct hearth_session_store *store, struct hearth_db **out) {
    const int err = take_reader(store, out);
    return err == HEARTH_OK ? begin(store, *out, false, NULL) : err;
}

int hearth_session_end_read(struct hearth_session_store *store, struct hearth_db *db, int err) {
    const int code = db->code;
    (void)hearth_db_end(db, HEARTH_ERR_CANCELLED); /* nothing was written */
    (void)end_left_open(store, db);
    err = err == HEARTH_ERR_IO || err == HEARTH_ERR_STORE ? report_failure(store, db, err, code) : err;
    pthread_mutex_unlock(&db->mutex);
    return err;
}

/* ---- touches ---- */

void hearth_session_touch(struct hearth_session_store *store, const struct hearth_digest *key, bool session,
                          int64_t used_us) {
    int64_t often_us = store->ttl_us > 0 && store->ttl_us / 16 < TOUCH_US ? store->ttl_us / 16 : TOUCH_US;
    if (store->is_tool || hearth_session_age(store) - used_us < often_us) {
        return;
    }
    pthread_mutex_lock(&store->mutex);
    bool known = store->touch_count == HEARTH_SESSION_TOUCHES_MAX;
    for (size_t i = 0; i < store->touch_count && !known; i++) {
        known = hearth_digest_equal(store->touches[i].key, *key);
    }
    if (!known) {
        store->touches[store->touch_count++] = (struct store_touch){.key = *key, .session = session};
    }
    pthread_mutex_unlock(&store->mutex);
}

int hearth_session_flush_touches(struct hearth_session_store *store) {
    struct store_touch touches[HEARTH_SESSION_TOUCHES_MAX];
    pthread_mutex_lock(&store->mutex);
    size_t count = store->touch_count;
    memcpy(touches, store->touches, count * sizeof touches[0]);
    store->touch_count = 0;
    pthread_mutex_unlock(&store->mutex);
    int err = HEARTH_OK;
    struct hearth_db *db = &store->writer;
    for (size_t i = 0; i < count && err == HEARTH_OK; i++) {
        err = touches[i].session ? hearth_db_run(db, TOUCH_SESSION, "dii", &touches[i].key, db->now_us, db->age_us)
                                 : hearth_db_run(db, TOUCH_TURN, "di", &touches[i].key, db->age_us);
    }
    return err;
}

/* ---- life ---- */

/* Whether a file is a lock file: it is empty or holds the one byte that open_store() writes. */
static bool is_lock_file(int fd) {
    struct stat st;
    char byte;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           (st.st_size == 0 || (st.st_size == 1 && pread(fd, &byte, 1, 0) == 1 && byte == LOCK_TEXT[0]));
}

/* Locks a byte of the lock file as a sign of life, which ends with the process however it ends. Errors: INVALID (the
 * file is another program's), NOMEM, IO with errno. */
static int hold_lock_byte(struct hearth_session_store *store) {
    struct hearth_buf name = {0};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    if (!hearth_buf_printf(&name, "%s.lock", store->path)) {
        return HEARTH_ERR_NOMEM;
    }
    int rc = -1;
    store->lock_fd = open((const char *)name.data, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    hearth_buf_finish(&name);
    if (store->lock_fd >= 0 && !is_lock_file(store->lock_fd)) {
        return HEARTH_ERR_INVALID;
    }
    while (store->lock_fd >= 0 && rc != 0) {
        const struct hearth_digest id = hearth_turn_new_id();
        store->process = (int64_t)(id.lo >> 2) + 1 + (store->is_tool ? TOOLS_BEGIN : 0);
        lock.l_start = (off_t)store->process;
        rc = fcntl(store->lock_fd, F_OFD_SETLK, &lock);
        if (rc != 0 && errno != EAGAIN && errno != EACCES && errno != EINTR) {
            break;
        }
    }
    return rc == 0 ? HEARTH_OK : HEARTH_ERR_IO;
}

bool hearth_session_is_shared(const struct hearth_session_store *store) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = (off_t)TOOLS_BEGIN};
    return store->lock_fd >= 0 && fcntl(store->lock_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Whether an empty file was a database before: the lock file has a byte then. Otherwise a first start may have left it.
 */
static bool was_emptied(const struct hearth_session_store *store) {
    struct stat file, lock;
    return stat(store->path, &file) == 0 && file.st_size == 0 && fstat(store->lock_fd, &lock) == 0 && lock.st_size > 0;
}

/* Checks whether the file may be used, and takes the lock that tells other servers of this one. */
static int prepare_file(struct hearth_session_store *store, struct hearth_errmsg *msg) {
    struct hearth_errmsg reason = {.text = ""};
    if (hearth_folder_make_parent(store->path) != HEARTH_OK) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", store->path, strerror(errno));
    }
    const int code = hearth_db_check_file(&hearth_session_db_kind, store->path, &reason);
    if (code == HEARTH_DB_ALIEN) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is no database of hearth's", store->path);
    }
    if (code != HEARTH_DB_OK) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", store->path, reason.text);
    }
    if (hearth_db_log_is_damaged(store->path)) {
        return hearth_fail(msg, HEARTH_ERR_STATE,
                           "%s-wal, the log with what was written last, is damaged; it stays as it is: hearth sessions "
                           "recover saves what can be read",
                           store->path);
    }
    const int err = hold_lock_byte(store);
    if (err == HEARTH_ERR_INVALID) {
        return hearth_fail(msg, err,
                           "%s.lock, which would be written, is no file of hearth's: move it away, or give "
                           "the database another name",
                           store->path);
    }
    if (err != HEARTH_OK) {
        return hearth_fail(msg, err, "%s.lock: %s", store->path, strerror(errno));
    }
    return was_emptied(store) ? hearth_fail(msg, HEARTH_ERR_STATE,
                                            "%s is empty, and it was not; remove %s.lock, too, "
                                            "to begin anew",
                                            store->path, store->path)
                              : HEARTH_OK;
}

static int open_store(struct hearth_session_store *store, struct hearth_errmsg *msg) {
    const bool in_file = store->path != NULL && !store->on_server;
    int err = in_file ? prepare_file(store, msg) : HEARTH_OK;
    err = err == HEARTH_OK ? open_conn(store, &store->writer, msg) : err;
    if (err == HEARTH_ERR_STORE && store->waits && hearth_db_may_pass(store->writer.code)) {
        (void)report_failure(store, &store->writer, err, store->writer.code);
        err = HEARTH_OK;
    }
    if (err == HEARTH_OK && in_file) { /* connections to a server are opened when they are needed */
        err = open_conn(store, &store->readers[0], msg);
    }
    if (err == HEARTH_OK && store->lock_fd >= 0) {
        (void)pwrite(store->lock_fd, LOCK_TEXT, 1, 0); /* says that the database was created */
    }
    return err;
}

static int take_params(struct hearth_session_store *store, const struct hearth_session_store_params *params,
                       struct hearth_errmsg *msg) {
    store->ttl_us = params->ttl_us;
    store->grace_us = params->grace_us;
    store->clock = params->clock;
    store->is_tool = params->is_tool;
    store->is_fallback = params->is_fallback;
    store->waits = params->waits;
    store->lock_fd = -1;
    store->on_server = hearth_db_is_pg(params->path);
    store->path = params->path != NULL ? strdup(params->path) : NULL;
    if (store->on_server && !store->is_tool) {
        const struct hearth_digest own = hearth_turn_new_id();
        store->process = (int64_t)(own.lo >> 2) + 1;
        store->model = params->model;
        store->boxes[0] = own;
        store->boxes[1] = params->place;
    }
    store->name = store->on_server       ? hearth_db_pg_name(params->path)
                  : params->path != NULL ? strdup(params->path)
                                         : NULL;
    store->reader_count = params->path == NULL ? 0 : store->on_server ? HEARTH_SESSION_READERS_MAX : 1;
    const struct hearth_db_driver *driver = store->on_server ? &hearth_db_pg : &hearth_db_sqlite;
    pthread_mutex_init(&store->mutex, NULL);
    hearth_db_init(&store->writer, driver, &hearth_session_db_kind, store->path, BUSY_MS, params->seal);
    for (size_t i = 0; i < store->reader_count; i++) {
        hearth_db_init(&store->readers[i], driver, &hearth_session_db_kind, store->path, BUSY_MS, params->seal);
    }
    if (store->on_server && store->name == NULL) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "this is no URL of PostgreSQL: postgresql://USER@HOST:PORT/DATABASE");
    }
    return params->path == NULL || (store->path != NULL && store->name != NULL)
               ? random_bytes(store->secret, sizeof store->secret) /* until the database's own is known */
               : hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
}

int hearth_session_store_create(const struct hearth_session_store_params *params, struct hearth_session_store **out,
                                struct hearth_errmsg *msg) {
    struct hearth_session_store *store = calloc(1, sizeof *store);
    *out = NULL;
    if (store == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
    }
    int err = take_params(store, params, msg);
    err = err == HEARTH_OK ? open_store(store, msg) : err;
    if (err != HEARTH_OK) {
        hearth_session_store_destroy(store);
        return err;
    }
    *out = store;
    return HEARTH_OK;
}

void hearth_session_store_destroy(struct hearth_session_store *store) {
    if (store == NULL) {
        return;
    }
    const bool aged = !store->is_tool && hearth_session_age(store) - store->age.written_us > END_AGE_US;
    if ((store->touch_count > 0 || aged || store->box_rows[0] != 0) && hearth_db_is_open(&store->writer) &&
        hearth_session_begin_write(store, NULL) == HEARTH_OK) {
        int err = hearth_session_flush_touches(store);
        err = err == HEARTH_OK ? hearth_session_leave_box(store) : err;
        (void)hearth_session_end_write(store, err == HEARTH_OK ? hearth_session_write_age(store, true) : err, false,
                                       NULL);
    }
    for (size_t i = 0; i < store->reader_count; i++) {
        hearth_db_finish(&store->readers[i]);
    }
    hearth_db_finish(&store->writer); /* the last connection empties a file's log */
    if (store->lock_fd >= 0) {
        close(store->lock_fd);
    }
    while (store->locks != NULL) {
        struct store_lock *next = store->locks->next;
        free(store->locks);
        store->locks = next;
    }
    pthread_mutex_destroy(&store->mutex);
    explicit_bzero(store->secret, sizeof store->secret);
    hearth_memory_wipe(store->path); /* a URL may hold a password */
    free(store->name);
    free(store);
}

/* ---- the rest ---- */

bool hearth_session_store_is_fallback(const struct hearth_session_store *store) {
    return store->is_fallback;
}

bool hearth_session_store_lasts(const struct hearth_session_store *store) {
    return store->path != NULL;
}

int hearth_session_store_backup(struct hearth_session_store *store, const char *path, struct hearth_errmsg *msg) {
    struct hearth_db *db = &store->readers[0];
    if (store->path == NULL || store->on_server) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s",
                           store->on_server ? "it is on a server: pg_dump copies it, and hearth sessions export"
                                            : "it is in memory");
    }
    pthread_mutex_lock(&db->mutex);
    int err = open_conn(store, db, msg);
    if (err == HEARTH_OK) {
        db->code = hearth_db_copy(db->handle, path, false, msg);
        err = db->code == HEARTH_DB_OK ? HEARTH_OK : hearth_db_fail(db, db->code);
    }
    pthread_mutex_unlock(&db->mutex);
    return err;
}

void hearth_session_store_secret(struct hearth_session_store *store, uint8_t out[32]) {
    pthread_mutex_lock(&store->mutex);
    memcpy(out, store->secret, sizeof store->secret);
    pthread_mutex_unlock(&store->mutex);
}

int hearth_session_store_stats(struct hearth_session_store *store, struct hearth_session_store_stats *stats) {
    struct hearth_db *db;
    *stats = (struct hearth_session_store_stats){0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    const struct {
        int which; /* of enum store_statement */
        uint64_t *to;
    } counts[] = {{COUNT_TURNS, &stats->turns},
                  {COUNT_HIDDEN, &stats->hidden},
                  {COUNT_SESSIONS, &stats->sessions},
                  {COUNT_FORGETS, &stats->forgets},
                  {PAGES_USED, &stats->bytes}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && err == HEARTH_OK; i++) {
        int64_t number;
        int found = hearth_db_query_number(db, counts[i].which, &number, "");
        *counts[i].to = (uint64_t)number;
        err = found < 0 ? found : HEARTH_OK;
    }
    stats->turns -= stats->hidden;
    return hearth_session_end_read(store, db, err);
}
