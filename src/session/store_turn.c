/* The store's turns: put, get, and the line of a conversation.
 *
 * A turn is put with all that belongs to it in one transaction: its owner's, model's and config's rows when they are
 * new, its own, its session's head, and when it was last used. The turn that it goes on from has no such time any more:
 * it lives as long as what goes on from it.
 *
 * A turn that is put again stays where it hangs, and moves no head that it has moved before: a conversation may have
 * gone on meanwhile.
 */
#include "session/store_internal.h"

#include "base/assert.h"
#include "base/clock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AGAIN_US 10000000
#define AGAIN_EVERY_NS 250000000
#define AGAIN_MAX 2

/* ---- loading ---- */

static int load_config(struct hearth_db *db, int64_t id, struct hearth_turn *turn) {
    const struct store_about about = {.kind = STORE_CONFIG, .key = turn->config_id};
    int found = id != 0 ? hearth_db_query(db, CONFIG_GET, "i", id) : 0;
    if (found <= 0) {
        return found == 0 && id != 0 ? HEARTH_ERR_STATE : found;
    }
    size_t len;
    const void *blob = hearth_db_column_bytes(db, CONFIG_GET, 0, &len);
    int err = hearth_session_unpack(db, &about, blob, len, &turn->config, NULL);
    hearth_db_reset(db, CONFIG_GET);
    return err;
}

/* Reads config and session of a turn. */
static int load_rest(struct hearth_db *db, const struct store_row *row, struct hearth_turn *turn) {
    int err = load_config(db, row->config, turn);
    return err == HEARTH_OK && row->session != 0 ? hearth_session_read_name(db, row->session, &turn->session) : err;
}

static int get_turn(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                    bool hidden_too, struct hearth_turn *out) {
    struct hearth_db *db;
    struct store_row row;
    *out = (struct hearth_turn){0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    int found = hearth_turn_load(db, &id, 0, STORE_COLUMNS, &row, out);
    err = found < 0 ? found : HEARTH_ERR_NOT_FOUND;
    if (found > 0 && (hidden_too || !row.hidden) && hearth_digest_equal(out->owner, owner)) {
        found = hearth_turn_load(db, NULL, row.id, STORE_ALL, &row, out);
        err = found > 0 ? load_rest(db, &row, out) : found == 0 ? HEARTH_ERR_NOT_FOUND : found;
    }
    err = hearth_session_end_read(store, db, err);
    if (err != HEARTH_OK) {
        hearth_turn_finish(out);
    } else {
        hearth_session_touch(store, &id, false, row.used);
    }
    return err;
}

int hearth_turn_get(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                    struct hearth_turn *out) {
    return get_turn(store, owner, id, false, out);
}

int hearth_turn_get_hidden(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                           struct hearth_turn *out) {
    return get_turn(store, owner, id, true, out);
}

/* ---- lines ---- */

void hearth_line_finish(struct hearth_line *line) {
    for (size_t i = 0; i < line->count; i++) {
        hearth_turn_finish(&line->turns[i]);
    }
    free(line->turns);
    hearth_tokens_finish(&line->tokens);
    *line = (struct hearth_line){0};
}

/* Reads the names of a line's sessions; mostly there is one, so the last one is remembered. */
static int name_sessions(struct hearth_db *db, const struct store_walk *walk) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < walk->count && err == HEARTH_OK; i++) {
        int64_t session = walk->rows[i].session;
        if (session != 0 && i > 0 && walk->rows[i - 1].session == session) {
            const char *name = walk->turns[i - 1].session;
            walk->turns[i].session = name != NULL ? strdup(name) : NULL;
            err = name != NULL && walk->turns[i].session == NULL ? HEARTH_ERR_NOMEM : HEARTH_OK;
        } else if (session != 0) {
            err = hearth_session_read_name(db, session, &walk->turns[i].session);
        }
    }
    return err;
}

/* Walks the line of a turn that a conversation can continue. In a transaction. */
static int walk_line(struct hearth_db *db, struct hearth_digest owner, struct hearth_digest id, enum store_parts parts,
                     struct store_row *row, struct store_walk *walk) {
    const int found = hearth_turn_find_end(db, owner, id, row);
    return found > 0 ? hearth_turn_walk(db, row, parts, false, walk) : found == 0 ? HEARTH_ERR_NOT_FOUND : found;
}

int hearth_line_get(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                    struct hearth_line *out) {
    struct hearth_db *db;
    struct store_row row;
    struct store_walk walk = {0};
    *out = (struct hearth_line){0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    err = walk_line(db, owner, id, STORE_ALL, &row, &walk);
    err = err == HEARTH_OK ? name_sessions(db, &walk) : err;
    if (err == HEARTH_OK) {
        err = load_config(db, row.config, &walk.turns[walk.count - 1]);
    }
    err = hearth_session_end_read(store, db, err);
    err = err == HEARTH_OK ? hearth_turn_exact_tokens(walk.turns, walk.count, &out->tokens, &out->tokens_turns) : err;
    if (err != HEARTH_OK) {
        hearth_turn_walk_finish(&walk);
        hearth_line_finish(out);
        return err;
    }
    out->turns = walk.turns;
    out->count = walk.count;
    out->model = out->tokens_turns > 0 ? walk.turns[out->tokens_turns - 1].model : (struct hearth_digest){0, 0};
    free(walk.rows);
    hearth_session_touch(store, &id, false, row.used);
    return HEARTH_OK;
}

/* Takes turns from turn `i` of a walk on, which has its columns. */
static int take_turns(struct hearth_db *db, const struct store_walk *walk, size_t i,
                      const struct hearth_line_walk *how) {
    for (bool goes_on = true; goes_on && i < walk->count;
         i += how->newest_first ? SIZE_MAX : 1) { /* also ends below 0 */
        struct store_row row;
        struct hearth_turn turn = {0};
        const int found = hearth_turn_load(db, NULL, walk->rows[i].id, STORE_ALL, &row, &turn);
        if (found > 0) {
            goes_on = how->take(how->user, &turn, i + 1 == walk->count);
        }
        hearth_turn_finish(&turn);
        if (found <= 0) {
            return found < 0 ? found : HEARTH_ERR_STATE;
        }
    }
    return HEARTH_OK;
}

int hearth_line_read(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id,
                     const struct hearth_line_walk *how) {
    struct hearth_db *db;
    struct store_row row;
    struct store_walk walk = {0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    err = walk_line(db, owner, id, STORE_COLUMNS, &row, &walk);
    size_t first = how->newest_first && walk.count > 0 ? walk.count - 1 : 0;
    if (err == HEARTH_OK && !hearth_digest_is_zero(how->from)) {
        for (first = 0; first < walk.count && !hearth_digest_equal(walk.turns[first].id, how->from);) {
            first++;
        }
        err = first < walk.count ? HEARTH_OK : HEARTH_ERR_INVALID;
    }
    err = err == HEARTH_OK ? take_turns(db, &walk, first, how) : err;
    hearth_turn_walk_finish(&walk);
    err = hearth_session_end_read(store, db, err);
    if (err == HEARTH_OK) {
        hearth_session_touch(store, &id, false, row.used);
    }
    return err;
}

/* ---- putting ---- */

/* The rows that a turn's row refers to. */
struct put {
    int64_t owner, model, config, session;
    struct store_row parent, there; /* ids are 0 if there is none */
    bool moves_head;
};

static int find_model(struct hearth_db *db, const struct hearth_turn *turn, int64_t *id) {
    int found = hearth_db_query_number(db, MODEL_ID, id, "dd", &turn->model, &turn->salt);
    if (found == 0) {
        found = hearth_db_query_number(db, MODEL_ADD, id, "dd", &turn->model, &turn->salt);
    }
    return found < 0 ? found : HEARTH_OK;
}

static int put_config(struct hearth_db *db, struct hearth_turn *turn, int64_t owner, int64_t *id) {
    *id = 0;
    turn->config_id = (struct hearth_digest){0, 0};
    if (turn->config.len == 0) {
        return HEARTH_OK;
    }
    turn->config_id = hearth_session_digest(db, turn->owner, turn->config.data, turn->config.len);
    int found = hearth_db_query_number(db, CONFIG_ID, id, "d", &turn->config_id);
    if (found != 0) {
        return found < 0 ? found : HEARTH_OK;
    }
    const struct store_about about = {.kind = STORE_CONFIG, .key = turn->config_id};
    struct hearth_buf blob = {0};
    int err = hearth_session_pack(db, &about, &turn->config, NULL, &blob);
    found = err == HEARTH_OK ? hearth_db_query_number(db, CONFIG_ADD, id, "dib", &turn->config_id, owner, &blob) : err;
    hearth_buf_finish(&blob);
    return found < 0 ? found : HEARTH_OK;
}

/* Finds the turn if it is there already, and its parent. */
static int find_place(struct hearth_db *db, struct hearth_turn *turn, struct put *put, struct hearth_errmsg *msg) {
    struct hearth_turn there = {0}, parent = {0};
    int found = hearth_turn_load(db, &turn->id, 0, STORE_COLUMNS, &put->there, &there);
    if (found < 0) {
        return found;
    }
    if (found == 0 && turn->again) {
        return hearth_fail(msg, HEARTH_ERR_NOT_FOUND, "it was deleted");
    }
    if (found > 0) {
        if (hearth_digest_is_zero(turn->parent)) {
            turn->parent = there.parent;
        }
        if (!hearth_digest_equal(there.owner, turn->owner) || !hearth_digest_equal(there.parent, turn->parent)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "the id belongs to another turn");
        }
        turn->created_us = turn->created_us != 0 ? turn->created_us : there.created_us;
    }
    if (hearth_digest_is_zero(turn->parent)) {
        return HEARTH_OK;
    }
    found = hearth_turn_load(db, &turn->parent, 0, STORE_COLUMNS, &put->parent, &parent);
    if (found >= 0 && (found == 0 || !hearth_digest_equal(parent.owner, turn->owner))) {
        return hearth_fail(msg, HEARTH_ERR_NOT_FOUND, "the turn that it goes on from is gone");
    }
    return found < 0 ? found : HEARTH_OK;
}

static int find_session(struct hearth_db *db, const struct hearth_turn *turn, struct put *put,
                        struct hearth_errmsg *msg) {
    put->session = put->there.session;
    if (turn->session == NULL) {
        return HEARTH_OK;
    }
    int err = hearth_session_check_name(turn->session, msg);
    err = err == HEARTH_OK ? hearth_session_find(db, turn->owner, turn->session, &put->session) : err;
    if (err == HEARTH_OK && put->session == 0 && turn->joins) {
        return hearth_fail(msg, HEARTH_ERR_NOT_FOUND, "the session was deleted");
    }
    if (err == HEARTH_OK && put->session == 0) {
        err = hearth_session_check_quota(db, turn->owner, &turn->quota, true, msg);
    }
    if (err == HEARTH_OK && put->session == 0) {
        const struct hearth_session session = {.name = turn->session, .owner = turn->owner};
        err = hearth_session_add(db, put->owner, &session, 0, &put->session);
    }
    put->moves_head = put->there.id == 0 || put->there.session != put->session;
    return err;
}

/* Tokens up to and including the turn; 0: unknown. */
static int64_t total_of(const struct hearth_turn *turn, const struct put *put) {
    bool follows =
        turn->base_tokens == 0 || (put->parent.total >= (int64_t)turn->base_tokens && put->parent.model == put->model);
    return put->model != 0 && follows ? (int64_t)turn->base_tokens + (int64_t)turn->tokens.n : 0;
}

static int write_row(struct hearth_session_store *store, struct hearth_turn *turn, struct put *put) {
    struct hearth_db *db = &store->writer;
    struct hearth_buf blob = {0};
    if (hearth_digest_is_zero(turn->model)) {
        turn->path = (struct hearth_digest){0, 0};
    }
    const struct store_about about = hearth_turn_about(turn);
    const int64_t status = (int64_t)turn->status, base = turn->base_tokens, total = total_of(turn, put);
    const int64_t writer = hearth_turn_is_open(turn->status) ? store->process : 0;
    int err = hearth_session_pack(db, &about, &turn->body, &turn->tokens, &blob);
    if (err == HEARTH_OK && put->there.id == 0) {
        const int added =
            hearth_db_query_number(db, TURN_ADD, &put->there.id, "dinnnniniiiizb", &turn->id, put->owner,
                                   put->parent.id, put->session, put->config, put->model, status, writer,
                                   turn->created_us, base, put->parent.depth + 1, total, &turn->path, &blob);
        err = added < 0 ? added : HEARTH_OK;
    } else if (err == HEARTH_OK) {
        err = hearth_db_run(db, TURN_SET, "innniniiizb", put->there.id, put->session, put->config, put->model, status,
                            writer, turn->created_us, base, total, &turn->path, &blob);
        if (err == HEARTH_OK && put->there.config != 0 && put->there.config != put->config) {
            err = hearth_db_run(db, CONFIG_DROP, "i", put->there.config);
        }
    }
    hearth_buf_finish(&blob);
    return err;
}

static int move_head(struct hearth_db *db, const struct put *put) {
    int64_t was;
    int err = hearth_session_read_head(db, put->session, &was);
    if (err == HEARTH_OK && (!put->moves_head || put->there.hidden)) {
        return hearth_db_run(db, SESSION_TOUCH, "iii", put->session, db->now_us, db->age_us);
    }
    err = err == HEARTH_OK
              ? hearth_db_run(db, SESSION_HEAD, "inii", put->session, put->there.id, db->now_us, db->age_us)
              : err;
    return err == HEARTH_OK ? hearth_turn_purge_unneeded(db, was) : err;
}

static int put_turn(struct hearth_session_store *store, struct hearth_turn *turn, struct hearth_errmsg *msg) {
    struct hearth_db *db = &store->writer;
    struct put put = {0};
    const int64_t now = db->age_us;
    int err = find_place(db, turn, &put, msg);
    turn->created_us = turn->created_us != 0 ? turn->created_us : db->now_us;
    if (err == HEARTH_OK && put.there.id == 0) {
        err = hearth_session_check_quota(db, turn->owner, &turn->quota, false, msg);
    }
    err = err == HEARTH_OK ? hearth_session_owner_row(db, turn->owner, &put.owner) : err;
    if (err == HEARTH_OK && !hearth_digest_is_zero(turn->model)) {
        err = find_model(db, turn, &put.model);
    }
    err = err == HEARTH_OK ? put_config(db, turn, put.owner, &put.config) : err;
    err = err == HEARTH_OK ? find_session(db, turn, &put, msg) : err;
    if (err == HEARTH_OK && put.there.id == 0) {
        err = hearth_session_keep_lock(store, &turn->lock, put.session, put.parent.id, msg);
    }
    const bool added = put.there.id == 0;
    err = err == HEARTH_OK ? write_row(store, turn, &put) : err;
    err = err == HEARTH_OK ? hearth_session_flush_touches(store) : err;
    if (err == HEARTH_OK && (added || put.there.used != 0)) {
        err = hearth_db_run(db, USE_PUT, "ii", put.there.id, now);
    }
    if (err == HEARTH_OK && added && put.parent.id != 0) {
        err = hearth_db_run(db, USE_DROP, "i", put.parent.id);
    }
    return err == HEARTH_OK && put.session != 0 && turn->session != NULL ? move_head(db, &put) : err;
}

static int put_once(struct hearth_session_store *store, struct hearth_turn *turn, struct hearth_errmsg *msg) {
    const int err = hearth_session_begin_write(store, msg);
    return err == HEARTH_OK ? hearth_session_end_write(store, put_turn(store, turn, msg), false, msg) : err;
}

/* Puts a turn again while a server restarts or fails over, because a computed reply is worth waiting for. If the answer
 * to a commit was lost, the turn is there or is put now. */
static int put_again(struct hearth_session_store *store, struct hearth_turn *turn, struct hearth_errmsg *msg) {
    const struct timespec pause = {.tv_nsec = AGAIN_EVERY_NS};
    const int64_t until_us = hearth_clock_us() + AGAIN_US;
    int err = HEARTH_ERR_STORE;
    if (atomic_fetch_add(&store->waiting_puts, 1) < AGAIN_MAX) { /* other requests need the threads */
        while (err == HEARTH_ERR_STORE && hearth_session_outage_may_pass(store) && hearth_clock_us() < until_us) {
            (void)nanosleep(&pause, NULL);
            err = put_once(store, turn, msg);
        }
    }
    (void)atomic_fetch_sub(&store->waiting_puts, 1);
    return err;
}

int hearth_turn_put(struct hearth_session_store *store, struct hearth_turn *turn, struct hearth_errmsg *msg) {
    HEARTH_ASSERT(!hearth_digest_is_zero(turn->id));
    int err = put_once(store, turn, msg);
    if (err == HEARTH_ERR_STORE && !hearth_turn_is_open(turn->status)) {
        err = put_again(store, turn, msg);
    }
    if (err == HEARTH_OK && turn->lock.token != 0 &&
        !hearth_turn_is_open(turn->status)) { /* at once, because its client goes on */
        pthread_mutex_lock(&store->writer.mutex);
        hearth_session_drop_lock(store, &turn->lock);
        pthread_mutex_unlock(&store->writer.mutex);
    }
    return err;
}

struct hearth_digest hearth_turn_path_id(const struct hearth_session_store *store, struct hearth_digest model,
                                         struct hearth_digest salt, const hearth_token *tokens, size_t count) {
    const struct hearth_digest of[] = {model, salt}, none = {0, 0};
    return count == 0 || hearth_digest_is_zero(model)
               ? none
               : hearth_digest_chain(hearth_session_digest(&store->writer, none, of, sizeof of), tokens,
                                     count * sizeof tokens[0]);
}

/* ---- after a crash ---- */

static bool is_alive(struct hearth_session_store *store, int64_t process) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)process, .l_len = 1};
    if (process == store->process) {
        return true;
    }
    if (store->on_server) { /* an error ends the transaction, and is noticed there */
        return hearth_session_is_locked(&store->writer, process) != 0;
    }
    return process > 0 && store->lock_fd >= 0 && fcntl(store->lock_fd, F_OFD_GETLK, &lock) == 0 &&
           lock.l_type != F_UNLCK;
}

/* Closes an open turn. A turn that does not verify keeps its blob: a new checksum would make it look right. */
static int close_turn(struct hearth_db *db, int64_t id) {
    struct store_row row;
    struct hearth_turn turn = {0};
    struct hearth_buf blob = {0};
    int err = hearth_turn_load(db, NULL, id, STORE_ALL, &row, &turn);
    bool whole = err > 0;
    turn.status = HEARTH_TURN_FAILED;
    if (whole) {
        const struct store_about about = hearth_turn_about(&turn);
        err = hearth_session_pack(db, &about, &turn.body, &turn.tokens, &blob);
    }
    if (err == HEARTH_OK || err == HEARTH_ERR_STATE) {
        int64_t failed = HEARTH_TURN_FAILED;
        err = whole ? hearth_db_run(db, TURN_CLOSE, "iib", id, failed, &blob)
                    : hearth_db_run(db, TURN_CLOSE_DAMAGED, "ii", id, failed);
    }
    hearth_turn_finish(&turn);
    hearth_buf_finish(&blob);
    return err;
}

/* Whether a process without a sign of life counts as dead. `before`: the suspects of the last call. */
static bool is_dead(struct hearth_session_store *store, const struct store_suspect *before, size_t count,
                    int64_t process, int64_t grace_us) {
    const int64_t now_us = hearth_clock_us();
    struct store_suspect suspect = {process, now_us};
    for (size_t i = 0; i < count; i++) {
        suspect.since_us = before[i].process == process ? before[i].since_us : suspect.since_us;
    }
    bool known = store->suspect_count == HEARTH_SESSION_SUSPECTS_MAX; /* a full list: it has to wait */
    for (size_t i = 0; i < store->suspect_count && !known; i++) {
        known = store->suspects[i].process == process;
    }
    if (!known) {
        store->suspects[store->suspect_count++] = suspect;
    }
    return !store->on_server || now_us - suspect.since_us >= grace_us;
}

int hearth_turn_fail_orphans(struct hearth_session_store *store, int64_t grace_us) {
    struct hearth_db *db = &store->writer;
    struct store_suspect before[HEARTH_SESSION_SUSPECTS_MAX];
    const size_t before_count = store->suspect_count;
    int err = hearth_session_begin_write(store, NULL), count = 0;
    memcpy(before, store->suspects, sizeof before);
    if (err != HEARTH_OK) {
        return err;
    }
    int found = 1;
    store->suspect_count = 0;
    for (int64_t id = 0, last = 0; found > 0 && err == HEARTH_OK; last = id) {
        found = hearth_db_query(db, TURNS_OPEN, "i", last);
        if (found > 0) {
            id = hearth_db_column_number(db, TURNS_OPEN, 0);
            int64_t process = hearth_db_column_number(db, TURNS_OPEN, 1);
            hearth_db_reset(db, TURNS_OPEN);
            if (id <= last) { /* with a damaged index this would not end */
                err = HEARTH_ERR_STATE;
            } else if (!is_alive(store, process) && is_dead(store, before, before_count, process, grace_us)) {
                err = close_turn(db, id);
                count++;
            }
        }
    }
    err = hearth_session_end_write(store, found < 0 ? found : err, false, NULL);
    return err == HEARTH_OK ? count : err;
}

struct hearth_digest hearth_turn_config_id(const struct hearth_session_store *store, struct hearth_digest owner,
                                           const void *text, size_t len) {
    return hearth_session_digest(&store->writer, owner, text, len);
}
