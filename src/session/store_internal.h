/* Inside the store. Its files, each knowing those before it: store_db.c has the tables, store_blob.c packs, store_age.c
 * has the time, store.c opens and has the transactions, store_owner.c counts, store_rows.c reads rows of turns,
 * store_requests.c keeps what is told of requests, store_forget.c deletes turns, store_session.c names them,
 * store_lock.c locks them, store_boxes.c has the boxes of a server's database,
 * store_turn.c puts and gets them, store_expire.c deletes what is old. */
#ifndef HEARTH_SESSION_STORE_INTERNAL_H
#define HEARTH_SESSION_STORE_INTERNAL_H

#include "session/db.h"
#include "session/store.h"

#include <stdatomic.h>

/* The application_id ("hrts"). */
#define HEARTH_SESSION_APPLICATION 0x68727473

#define HEARTH_SESSION_TOUCHES_MAX 256
#define HEARTH_SESSION_READERS_MAX 2
#define HEARTH_SESSION_BOXES 2

enum store_statement {
#define X(name, sql) name,
#include "session/store_statements.def"
#undef X
    STORE_STATEMENTS
};

struct store_touch {
    struct hearth_digest key;
    bool session;
};

/* The store's own time (store_age.c). */
struct store_age {
    int64_t base_us, begun_us;   /* own time, and the monotonic clock at that moment; 0: unknown yet */
    int64_t wall_us, checked_us; /* both clocks at the last check */
    bool written;                /* by this process */
    int64_t written_us;          /* the own time that the database has */
    int64_t unsure_us;           /* the monotonic clock when the wall clock jumped; 0: it is trusted */
    uint64_t expired;            /* expired sessions that were reported */
};

/* The lock of a conversation that this process holds (store_lock.c). */
struct store_lock {
    struct store_lock *next;
    struct hearth_session_lock lock;
    bool released;
};

#define HEARTH_SESSION_SUSPECTS_MAX 64

/* A process with turns in progress and no sign of life. */
struct store_suspect {
    int64_t process, since_us;
};

struct hearth_session_store {
    char *path; /* NULL: in memory */
    char *name; /* how log lines name it */
    bool on_server;
    atomic_bool unreachable;        /* it was reported that the server does not answer */
    atomic_int outage;              /* the code of the last failed operation */
    atomic_int waiting_puts;        /* puts that wait to be tried again */
    _Atomic int64_t rests_until_us; /* a silent server is not asked before this time */
    int64_t ttl_us;
    int64_t grace_us;
    bool is_tool, is_fallback, waits;
    const struct hearth_session_clock *clock;
    struct store_age age; /* under the mutex */
    uint64_t scrub_page;  /* used by the sweep only */
    int lock_fd;          /* -1: in memory */
    int64_t process;      /* the byte of the lock file that this store holds */
    struct hearth_db writer, readers[HEARTH_SESSION_READERS_MAX];
    size_t reader_count; /* 0: in memory, where the writer reads, too */
    atomic_size_t next_reader;
    bool truncate_due;      /* under the writer's mutex: the log still holds deleted rows */
    int64_t changes;        /* under the writer's mutex: the number of changes when its transaction began */
    atomic_bool unwritable; /* the last transaction with changes could not be written */
    pthread_mutex_t mutex;  /* guards everything below */
    uint8_t secret[32];
    struct store_touch touches[HEARTH_SESSION_TOUCHES_MAX];
    size_t touch_count;
    struct store_lock *locks; /* store_lock.c's */
    uint64_t lock_tokens;
    /* store_boxes.c's, under the writer's mutex. */
    struct hearth_digest model, boxes[HEARTH_SESSION_BOXES]; /* the process, and what outlives it; zero: none */
    int64_t box_rows[HEARTH_SESSION_BOXES], beat_us;
    uint64_t life_generation; /* of the connection with the process's sign of life */
    /* hearth_turn_fail_orphans()'s */
    struct store_suspect suspects[HEARTH_SESSION_SUSPECTS_MAX];
    size_t suspect_count;
};

/* ---- store_db.c ---- */

extern const struct hearth_db_kind hearth_session_db_kind;

/* The digest of a text under an owner: equal texts give equal digests; with a key it tells nothing without that key. */
struct hearth_digest hearth_session_digest(const struct hearth_db *db, struct hearth_digest owner, const void *text,
                                           size_t len);
/* Copies at most `most` bytes of a value that belongs to the database. Returns how many it has, 0 (none) or an error.
 */
int hearth_session_get_meta(struct hearth_db *db, const char *key, void *out, size_t most);
int hearth_session_put_meta(struct hearth_db *db, const char *key, const void *bytes, size_t len);

/* ---- store_blob.c ---- */

enum store_kind { STORE_META, STORE_TURN, STORE_SESSION, STORE_CONFIG, STORE_FORGET, STORE_REQUEST };

/* What a blob belongs to. It is part of the checksum or tag, so that no blob can take another's place. */
struct store_about {
    uint64_t kind;
    int64_t created, status, base;
    struct hearth_digest key, owner, parent, config, model, salt, path;
};

/* Packs body and tokens into a blob; either may be NULL. Errors: NOMEM, IO (no randomness). */
int hearth_session_pack(struct hearth_db *db, const struct store_about *about, const struct hearth_buf *body,
                        const struct hearth_tokens *tokens, struct hearth_buf *out);
/* Unpacks a blob, replacing what body and tokens hold; either may be NULL. The body is NUL-terminated. Errors: NOMEM,
 * STATE. */
int hearth_session_unpack(struct hearth_db *db, const struct store_about *about, const void *bytes, size_t len,
                          struct hearth_buf *body, struct hearth_tokens *tokens);

/* ---- store_age.c ---- */

/* Takes over the time that a database has, or begins one. In a transaction. */
int hearth_session_load_age(struct hearth_session_store *store, struct hearth_db *db);
/* The store's own time; 0 before it was loaded. */
int64_t hearth_session_age(struct hearth_session_store *store);
/* The wall clock's. */
int64_t hearth_session_wall_us(struct hearth_session_store *store);
/* Writes the time down if that is due, or `now`. In a transaction. */
int hearth_session_write_age(struct hearth_session_store *store, bool now);
/* Sessions used before this time are no longer listed; INT64_MIN: all are. */
int64_t hearth_session_expired_before(struct hearth_session_store *store);
/* Compares the clocks. True: they agree, and old sessions may be deleted. */
bool hearth_session_clock_is_steady(struct hearth_session_store *store);

/* ---- store.c ---- */

/* On OK the writer is locked and in a transaction; hearth_session_end_write() commits if `err` is OK, else rolls back.
 * `deleted`: space is given back, and deleted rows leave the log. Both return what the operation returns. */
int hearth_session_begin_write(struct hearth_session_store *store, struct hearth_errmsg *msg);
int hearth_session_end_write(struct hearth_session_store *store, int err, bool deleted, struct hearth_errmsg *msg);
/* The same for a reader, *out: everything read in between is from one moment. */
int hearth_session_begin_read(struct hearth_session_store *store, struct hearth_db **out);
int hearth_session_end_read(struct hearth_session_store *store, struct hearth_db *db, int err);

/* Whether the last failure passes by itself, for example when a server restarts, but not when it is full. */
bool hearth_session_outage_may_pass(const struct hearth_session_store *store);

/* Notes that something was read that was last used at `used_us`; it is written down later. */
void hearth_session_touch(struct hearth_session_store *store, const struct hearth_digest *key, bool session,
                          int64_t used_us);
/* Writes these notes down, in a transaction. */
int hearth_session_flush_touches(struct hearth_session_store *store);
/* Whether another process serves with the database. */
bool hearth_session_is_shared(const struct hearth_session_store *store);

/* Locks the writer's mutex. STORE: its server is silent. */
int hearth_session_lock_writer(struct hearth_session_store *store);
/* Opens the writer if it is not open, or was lost. With the writer's mutex. */
int hearth_session_open_writer(struct hearth_session_store *store);

/* ---- store_lock.c ---- */

/* 1: the process lives; 0; or an error. In a transaction of the writer. */
int hearth_session_is_locked(struct hearth_db *db, int64_t process);
/* Makes sure, in the transaction that puts a turn behind `parent`, that its lock is still held, or is held again. */
int hearth_session_keep_lock(struct hearth_session_store *store, struct hearth_session_lock *lock, int64_t session,
                             int64_t parent, struct hearth_errmsg *msg);
/* Releases a lock at once. With the writer's mutex. */
void hearth_session_drop_lock(struct hearth_session_store *store, const struct hearth_session_lock *lock);

/* ---- store_boxes.c ---- */

/* Shows that the process lives, and makes the box known. With the writer's mutex and a connection. */
int hearth_session_enter_box(struct hearth_session_store *store);
/* Says once a minute that the box is still there. In a transaction of the sweep. */
int hearth_session_beat(struct hearth_session_store *store);
/* Says that the state in the process's RAM is gone. In a transaction. */
int hearth_session_leave_box(struct hearth_session_store *store);

/* ---- store_owner.c ---- */

/* The row of an owner, which is created if necessary. */
int hearth_session_owner_row(struct hearth_db *db, struct hearth_digest owner, int64_t *id);
/* QUOTA if the owner has reached its quota; `session`: one more session is to be made. In a transaction. */
int hearth_session_check_quota(struct hearth_db *db, struct hearth_digest owner,
                               const struct hearth_session_quota *quota, bool session, struct hearth_errmsg *msg);

/* ---- store_rows.c ---- */

/* A turn's columns; rows are named by number, 0 for none. */
struct store_row {
    int64_t id, owner, parent, session, config, model;
    int64_t used;  /* 0: not written down, because the turns that continue it are in use */
    int64_t depth; /* turns up to and including it */
    int64_t total; /* tokens up to and including it; 0: unknown */
    bool hidden;
    bool stays; /* while a chain is deleted: this turn, or one with the same path, will still be there */
};

/* What a turn's blob belongs to. */
struct store_about hearth_turn_about(const struct hearth_turn *turn);

/* Reads a turn by key (`id` 0) or by row. 1, 0 (none) or an error. `turn`, if not NULL, gets its columns, and with
 * `parts` tokens, or body and tokens: STATE if they do not verify. */
enum store_parts { STORE_COLUMNS, STORE_TOKENS, STORE_ALL };
int hearth_turn_load(struct hearth_db *db, const struct hearth_digest *key, int64_t id, enum store_parts parts,
                     struct store_row *row, struct hearth_turn *turn);

/* The row of a turn that a conversation can continue by name or id, also of a hidden turn as long as a session stands
 * at it. 1, 0 (that owner has none) or an error. */
int hearth_turn_find_end(struct hearth_db *db, struct hearth_digest owner, struct hearth_digest id,
                         struct store_row *row);

/* The row of the turn at which a session stands; 0: none, or the session is gone. */
int hearth_session_read_head(struct hearth_db *db, int64_t id, int64_t *head);

/* The turns from the first one to a row. `damaged_too`: a turn that does not verify comes without tokens. */
struct store_walk {
    struct store_row *rows;
    struct hearth_turn *turns;
    size_t count;
};
int hearth_turn_walk(struct hearth_db *db, const struct store_row *last, enum store_parts parts, bool damaged_too,
                     struct store_walk *out);
void hearth_turn_walk_finish(struct store_walk *walk);
/* Whether the exact tokens up to turns[i] are known, if `n` tokens are known up to the `covered`th turn before it. */
bool hearth_turn_is_exact(const struct hearth_turn *turns, size_t i, size_t covered, size_t n);
/* The exact tokens up to the last of `count` turns for which they are known; *covered is the number of these turns. */
int hearth_turn_exact_tokens(const struct hearth_turn *turns, size_t count, struct hearth_tokens *path,
                             size_t *covered);

/* ---- store_forget.c ---- */

/* Deletes a turn that nothing needs, and then upwards turns that only it needed and that are hidden or were last used
 * before `before_us` (0: hidden ones only). At most `limit` turns, which are added to *count. */
int hearth_turn_purge(struct hearth_db *db, int64_t id, int64_t before_us, size_t limit, size_t *count);
/* Deletes a turn that may have lost what needed it, if it is hidden and nothing needs it. An id of 0 is allowed. */
int hearth_turn_purge_unneeded(struct hearth_db *db, int64_t id);

/* ---- store_session.c ---- */

/* The key of a session's row. */
struct hearth_digest hearth_session_key(const struct hearth_db *db, struct hearth_digest owner, const char *name);
/* INVALID unless a session may have this name. */
int hearth_session_check_name(const char *name, struct hearth_errmsg *msg);
/* The row of a session; 0 when there is none. */
int hearth_session_find(struct hearth_db *db, struct hearth_digest owner, const char *name, int64_t *id);
/* Adds a session. `head` may be 0. */
int hearth_session_add(struct hearth_db *db, int64_t owner_id, const struct hearth_session *session, int64_t head,
                       int64_t *id);
/* The name of a row; NULL when it is gone. */
int hearth_session_read_name(struct hearth_db *db, int64_t id, char **name);

#endif
