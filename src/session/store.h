/* The store: conversations that live in the server, in an SQLite database.
 *
 * A turn is what one request added to a conversation: the items that came in, the items that went out, and the tokens
 * that all of it was for the model. A turn names the one that it went on from, so a conversation is a path in a tree
 * and a fork is a second child; nothing is ever copied. A session is a name for the turn at which a conversation
 * stands now (its head). OpenAI's responses are turns and its conversations are sessions; so are Anthropic messages
 * and chat completions that are told a session.
 *
 *     session "work" ─────────────────────────┐
 *     session "work-2" ───────┐               v
 *     turn ◄── turn ◄── turn ◄┴── turn ◄── turn
 *                         ^
 *                         └───── turn            (a review that forked off)
 *
 * What is put is on disk when the call returns, in one transaction: a turn exists whole or not at all. Unlike the
 * archive (session/archive.h), which may forget, nothing leaves the store but by deletion or by its time to live.
 *
 * Deleting a turn hides it as long as other turns continue it, or a session other than its own stands at it: it is not
 * found any more, but stays as a part of these conversations until the last of them goes. If its own session stands at
 * it, that session goes back to the nearest turn that can be found. What is deleted leaves a forget in the same
 * transaction: the tokens whose state is no longer needed. State is shared by tokens across conversations: turns of
 * another conversation that begins with the same tokens are found by their paths. The server carries forgets out when
 * it can (hearth_forget_next), also those that another process or an earlier one left. Where boxes share a server's
 * database, each of them carries out all forgets of its model (store_boxes.c).
 *
 * Bodies are compressed, and with a key encrypted; rows carry a check. A turn's body is JSON text that the store does
 * not read. Configs (instructions, tools) are long and rarely change: equal ones are stored once.
 *
 * Owners: nothing of one owner is found under another. Threads: any. Several processes may use one database. */
#ifndef HEARTH_SESSION_STORE_H
#define HEARTH_SESSION_STORE_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/seal.h"

#include <stdbool.h>

struct hearth_session_store;

/* Time, for tests; the system's has the wall clock and CLOCK_BOOTTIME. Units: microseconds. */
struct hearth_session_clock {
    int64_t (*unix_us)(void);
    int64_t (*elapsed_us)(void); /* monotonic, also while the machine sleeps */
};

struct hearth_session_store_params {
    const char *path;                         /* its directory is made (0700); NULL: in memory, gone with the process */
    const struct hearth_seal *seal;           /* borrowed; NULL: bodies are not encrypted */
    int64_t ttl_us;                           /* sessions that were unused for so long are no longer listed; 0: never */
    int64_t grace_us;                         /* and are deleted after being unused for so much longer */
    const struct hearth_session_clock *clock; /* NULL: the system's */
    /* For a box that shares a server's database: deletions of all boxes leave forgets for it (hearth_forget_next).
     * Zero: none. */
    struct hearth_digest model; /* the state that it has is this model's */
    struct hearth_digest place; /* of state that outlives the process: hearth_directory_identify(); zero: none does */
    bool is_fallback; /* in memory, in place of a database that cannot be used: what is not found may be in that one */
    bool waits;       /* a server's database that cannot be reached is no error: each use tries again */
    bool is_tool;     /* reading does not count as use */
};

/* Opens or creates the database, and brings an older schema up to date; a copy of the older one stays beside it. An
 * existing database is never moved or overwritten: damage is an error of opening, or of the operation that finds it.
 * Errors: IO, INVALID (a newer hearth's, or no database of hearth's), STATE (damaged, or created with another key or
 * without one), NOMEM; one clear line in `msg`. */
int hearth_session_store_create(const struct hearth_session_store_params *params, struct hearth_session_store **out,
                                struct hearth_errmsg *msg);
void hearth_session_store_destroy(struct hearth_session_store *store); /* NULL is allowed */

/* 32 random bytes that are created with the database, for signatures that must verify after a restart. Until a server's
 * database was reached for the first time they are the process's own. */
void hearth_session_store_secret(struct hearth_session_store *store, uint8_t out[32]);

/* ---- owners (store_owner.c) ---- */

/* The digest under which the conversations of `identity` (the digest of a name, or of a key without one) are stored.
 * The first call decides it and writes it down: the digest that its `key` had; else, if the key is `alone` and no other
 * owner has it, the digest from the time without keys (zero); else `identity` itself. Errors: IO, NOMEM; *out is then
 * decided from what could be read, and a later call may decide otherwise. */
int hearth_session_owner(struct hearth_session_store *store, struct hearth_digest identity, struct hearth_digest key,
                         bool alone, struct hearth_digest *out);
/* What an owner may store; 0: any number. An owner that has reached it can add nothing. Deleted turns count as long as
 * other turns continue them. */
struct hearth_session_quota {
    uint64_t tokens;   /* estimated from the size of turns that no model has seen */
    uint64_t bytes;    /* as they are stored */
    uint64_t sessions; /* conversations with a name */
};

/* What an owner has stored. The database counts at each write, so asking is quick. Errors: IO, NOMEM. */
int hearth_session_owner_usage(struct hearth_session_store *store, struct hearth_digest owner,
                               struct hearth_session_quota *out);
/* Checks an owner's quota; `session`: one more session is to be made. Errors: QUOTA with a clear line, and as above. */
int hearth_session_owner_check(struct hearth_session_store *store, struct hearth_digest owner,
                               const struct hearth_session_quota *quota, bool session, struct hearth_errmsg *msg);

/* Whether what is not found may be in a database that could not be opened. */
bool hearth_session_store_is_fallback(const struct hearth_session_store *store);

/* ---- locks (store_lock.c) ---- */

/* The lock on a conversation that one box continues. It ends with the process at the latest. */
struct hearth_session_lock {
    int64_t key;
    uint64_t token; /* 0: nothing is held */
    uint64_t generation;
};

/* Locks a conversation among the boxes that share the database. 1: locked; 0: another box has it; or an error. Within a
 * process the caller prevents a second lock. */
int hearth_session_lock(struct hearth_session_store *store, struct hearth_digest owner, const char *name,
                        struct hearth_session_lock *out);
/* Releases the lock; other boxes can have it after the next flush. Never waits. */
void hearth_session_unlock(struct hearth_session_store *store, const struct hearth_session_lock *lock);
void hearth_session_flush_locks(struct hearth_session_store *store);

/* ---- turns ---- */

#define HEARTH_TURN_STATUS_TABLE(X) \
    X(QUEUED, "queued")             \
    X(IN_PROGRESS, "in_progress")   \
    X(COMPLETED, "completed")       \
    X(INCOMPLETE, "incomplete")     \
    X(FAILED, "failed")             \
    X(CANCELLED, "cancelled")

enum hearth_turn_status {
#define X(name, text) HEARTH_TURN_##name,
    HEARTH_TURN_STATUS_TABLE(X)
#undef X
};

const char *hearth_turn_status_text(enum hearth_turn_status status);
/* Whether a process still works on the turn. */
static inline bool hearth_turn_is_open(enum hearth_turn_status status) {
    return status == HEARTH_TURN_QUEUED || status == HEARTH_TURN_IN_PROGRESS;
}

struct hearth_turn {
    struct hearth_digest id; /* random (hearth_turn_new_id); never zero */
    struct hearth_digest owner;
    struct hearth_digest parent; /* zero: the conversation begins here */
    enum hearth_turn_status status;
    int64_t created_us; /* Unix; 0 when put: now */
    char *session; /* put: this session's head becomes the turn (the session is created if necessary); NULL: none. get:
                      the session with which it was put, or NULL */
    struct hearth_session_quota quota; /* put */
    struct hearth_session_lock lock;   /* put: of its session; an error unless it was held all the time. Other boxes can
                                          have it once a turn that has ended was put */
    bool again, joins;        /* put: NOT_FOUND unless the turn (again), or the session (joins), exists. get: false */
    struct hearth_buf config; /* JSON text, stored once per text; may be empty */
    struct hearth_digest config_id; /* of that text, under this owner and key; filled by put and get */
    struct hearth_buf body;         /* JSON text */
    /* The frontier of its state: the conversation up to and with this turn is, for `model`, the first `base_tokens`
     * tokens of its parent's and then `tokens`. None: nothing was computed for it, or it is unknown. */
    struct hearth_digest model; /* zero: unknown */
    struct hearth_digest salt;  /* under which the state is kept */
    uint32_t base_tokens;
    struct hearth_tokens tokens;
    struct hearth_digest path; /* hearth_turn_path_id() of all tokens up to and including the turn; zero: unknown. Turns
                                  of any conversation with the same path share their state. Dropped without a model */
};

void hearth_turn_finish(struct hearth_turn *turn);

/* The path of all tokens of a conversation, under this store's key; zero if there are none, or no model. */
struct hearth_digest hearth_turn_path_id(const struct hearth_session_store *store, struct hearth_digest model,
                                         struct hearth_digest salt, const hearth_token *tokens, size_t count);

/* A new id: random, never zero. */
struct hearth_digest hearth_turn_new_id(void);

/* The config_id of a text. */
struct hearth_digest hearth_turn_config_id(const struct hearth_session_store *store, struct hearth_digest owner,
                                           const void *text, size_t len);

/* Writes a turn as a whole; an existing turn of the same id is replaced. It is durable on return. The parent must exist
 * (it may be hidden). A turn that is put again keeps its parent and, without a session, its session; it does not move a
 * head a second time. A write that may race with a deletion says so (`again`, `joins`), because it would otherwise
 * bring back what was deleted. Fills `created_us` and `config_id`. Errors: NOT_FOUND (the parent, or what must exist,
 * is gone), INVALID (the session's name; the id is another owner's or hangs elsewhere), IO, NOMEM. */
int hearth_turn_put(struct hearth_session_store *store, struct hearth_turn *turn, struct hearth_errmsg *msg);

/* Reads a turn; counts as use. Errors: NOT_FOUND (also hidden, or another owner's), IO, NOMEM, STATE (it does not
 * verify). */
int hearth_turn_get(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                    struct hearth_turn *out);
/* The same for a turn of a line, which may be hidden. */
int hearth_turn_get_hidden(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                           struct hearth_turn *out);

/* Deletes a turn. Errors: NOT_FOUND, IO. */
int hearth_turn_delete(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id);

/* A conversation up to and including a turn, oldest turn first; hidden turns are among them. */
struct hearth_line {
    struct hearth_turn *turns; /* only the last one has its config's text; bodies are NUL-terminated */
    size_t count;
    struct hearth_tokens tokens; /* exact ones up to and including turns[tokens_turns - 1], of `model` under `salt` */
    size_t tokens_turns;         /* how many turns `tokens` cover; 0: none are known */
    struct hearth_digest model;
};

void hearth_line_finish(struct hearth_line *line);
/* Reads a line, also of a hidden turn as long as a session stands at it. Errors: as get. Costs grow with the
 * conversation only. */
int hearth_line_get(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                    struct hearth_line *out);

/* A walk over the turns of a conversation up to and including one; it reads only turns that it takes. */
struct hearth_line_walk {
    bool newest_first;
    struct hearth_digest from; /* the first turn to take; zero: the last of the conversation, or its first */
    bool (*take)(void *user, struct hearth_turn *turn, bool last); /* `last`: of the conversation. False: stop */
    void *user;
};
/* Walks. Errors: as get; INVALID: `from` is not a turn of the conversation. */
int hearth_line_read(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                     const struct hearth_line_walk *how);

/* Marks turns as FAILED that a process left queued or in progress when it ended. In a server's database a process
 * counts as ended after `grace_us` of these calls without a sign of life, since it may be reconnecting. One thread at a
 * time. Returns how many, or an error. */
int hearth_turn_fail_orphans(struct hearth_session_store *store, int64_t grace_us);

/* ---- sessions ---- */

#define HEARTH_SESSION_NAME_MAX 256

struct hearth_session {
    char *name; /* UTF-8 without control characters, at most HEARTH_SESSION_NAME_MAX bytes */
    struct hearth_digest owner;
    struct hearth_digest head;  /* zero: no turn yet */
    struct hearth_buf metadata; /* JSON text; may be empty */
    int64_t created_us, used_us;
    uint32_t turns;                    /* of the head's line; filled by get and list */
    uint32_t tokens;                   /* likewise; 0: unknown */
    bool expired;                      /* of get and list: it has expired, and is deleted soon unless it is used */
    struct hearth_session_quota quota; /* put */
};

void hearth_session_finish(struct hearth_session *session);

/* Whether a session may have this name. */
bool hearth_session_name_is_valid(const char *name);

/* Adds a session; or, with `replace`, replaces metadata and head of an existing one (without a head, the head stays
 * where it is by now). Errors: NOT_FOUND (the head, or with `replace` the session), INVALID (the name, or it is taken),
 * IO, NOMEM. */
int hearth_session_put(struct hearth_session_store *store, const struct hearth_session *session, bool replace,
                       struct hearth_errmsg *msg);
int hearth_session_get(struct hearth_session_store *store, struct hearth_digest owner, const char *name,
                       struct hearth_session *out);
/* Deletes a session with the turns that were put with it. Turns that other sessions or turns continue are hidden, and
 * go with the last of these. */
int hearth_session_delete(struct hearth_session_store *store, struct hearth_digest owner, const char *name);

/* Which sessions to list, most recently used first. */
struct hearth_session_query {
    struct hearth_digest owner;
    bool all_owners;   /* for the command line */
    const char *after; /* continue behind this session of the owner; NULL: the first page */
    size_t limit;      /* 0: all */
    size_t bytes_max;  /* of metadata; the page ends once it has so many. 0: no limit */
    bool expired;      /* expired sessions, too */
    bool *more;        /* whether more sessions follow; may be NULL */
};
/* Lists sessions. `out` is an array of `count`, which the caller finishes and frees. Errors: NOT_FOUND (`after`), IO,
 * NOMEM. */
int hearth_session_list(struct hearth_session_store *store, const struct hearth_session_query *query,
                        struct hearth_session **out, size_t *count);

/* ---- requests that have ended (store_requests.c) ---- */

/* The stored report on a request. */
struct hearth_session_request {
    const char *id;
    struct hearth_digest owner, turn; /* `turn` zero: it stored none */
    const char *session;              /* name; NULL: none. Only put */
    int64_t created_us;
    struct hearth_buf body; /* text */
    bool written;           /* put: it was written; not so if its session or turn is gone */
};

/* Adds rows, and deletes the oldest until at most `keep` rows of `keep_bytes` are left. Errors: IO, NOMEM. */
int hearth_session_requests_put(struct hearth_session_store *store, struct hearth_session_request *rows, size_t count,
                                size_t keep, uint64_t keep_bytes);
/* Calls `take` for every row, the oldest first, with or without its body. `take` borrows the row, and returns false to
 * stop. Errors: IO, NOMEM. */
int hearth_session_requests_each(struct hearth_session_store *store, bool bodies,
                                 bool (*take)(void *user, const struct hearth_session_request *row), void *user);
/* How many there are, or an error. */
int64_t hearth_session_requests_count(struct hearth_session_store *store);
/* Whether the store survives a restart: it is not in memory. */
bool hearth_session_store_lasts(const struct hearth_session_store *store);

/* ---- what is to be forgotten ---- */

struct hearth_forget {
    int64_t id;
    struct hearth_digest model, salt;
    struct hearth_tokens tokens;
    uint32_t keep_tokens; /* so many first tokens were still needed by what was stored then: by its own line, or by a
                             turn of any owner with the path of one of its turns */
};

void hearth_forget_finish(struct hearth_forget *forget);
/* The oldest forget of a model behind `after_id`; it stays until it is marked as done. Errors: NOT_FOUND (none), IO,
 * NOMEM. */
int hearth_forget_next(struct hearth_session_store *store, struct hearth_digest model, int64_t after_id,
                       struct hearth_forget *out);
int hearth_forget_done(struct hearth_session_store *store, int64_t id);

/* Deletes what has expired, turns without children first: at most `limit` turns and as many sessions, and at most a
 * tenth of all in a day (or 100). Deletes nothing while the clock is not trusted (HEARTH_HEALTH_CLOCK). Returns how
 * many of both, or an error. Call it every few seconds: it also writes down what was read, checks the file for damage
 * and its disk for room, and reports what is wrong (base/health.h). */
int hearth_session_store_sweep(struct hearth_session_store *store, size_t limit);

/* Undoes an expiry: the session counts as used now. NULL: all sessions of all owners. Returns how many, or an error
 * (NOT_FOUND). */
int hearth_session_restore(struct hearth_session_store *store, struct hearth_digest owner, const char *name);

/* Writes a copy of the database while it is in use; there must be no file at `path`. Errors: IO, INVALID (the store is
 * in memory). */
int hearth_session_store_backup(struct hearth_session_store *store, const char *path, struct hearth_errmsg *msg);

struct hearth_session_store_stats {
    uint64_t turns, hidden, sessions, bytes, forgets;
};
/* Counts rows, in a few milliseconds for each hundred thousand. `turns`: those that can be found. */
int hearth_session_store_stats(struct hearth_session_store *store, struct hearth_session_store_stats *stats);

#endif
