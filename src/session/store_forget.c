/* The store's deletions, and the forgets that they leave.
 *
 * A turn stays as long as a turn goes on from it or a session stands at it. What is deleted before that is hidden. When
 * a turn goes, those above it are checked: one that is hidden and was needed by it alone goes with it, and so on. A
 * chain that goes is one piece of the tree:
 *
 *     a ◄── b ◄── c ◄── d      d is deleted, b and c are hidden: the chain b, c, d goes, a stays
 *     ^
 *     └──── s
 *
 * The forget of a chain is the tokens up to its end, and how many of them are needed by what stays: those that they
 * have in common with a turn above the chain (a), with another one that hangs there (s), or with a turn of the chain
 * that has the path of another turn, anywhere in the store: two conversations that began with the same words share
 * their state, though no turn. That other one is searched when the chain is gone, so that it is one that stays. Where a
 * turn of the chain was not wholly a part of what came after it (a template that rewrites history, another model) it
 * has a forget of its own. All is in the transaction that deletes.
 */
#include "session/store_internal.h"

/* ---- forgets ---- */

void hearth_forget_finish(struct hearth_forget *forget) {
    hearth_tokens_finish(&forget->tokens);
    *forget = (struct hearth_forget){0};
}

static struct store_about about_forget(const struct hearth_forget *forget) {
    return (struct store_about){
        .kind = STORE_FORGET, .base = forget->keep_tokens, .model = forget->model, .salt = forget->salt};
}

static bool same_state(const struct hearth_turn *a, const struct hearth_turn *b) {
    return hearth_digest_equal(a->model, b->model) && hearth_digest_equal(a->salt, b->salt);
}

/* Finds which turns of a line are still there, or have equals, after those from `first` on have gone. */
static int find_what_stays(struct hearth_db *db, const struct store_walk *walk, size_t first) {
    int found = 0;
    for (size_t i = 0; i < walk->count && found >= 0; i++) {
        const struct hearth_digest *path = &walk->turns[i].path;
        int64_t twin;
        found = i >= first && !hearth_digest_is_zero(*path) ? hearth_db_query_number(db, TURN_OF_PATH, &twin, "d", path)
                                                            : i < first;
        walk->rows[i].stays = found > 0;
    }
    return found < 0 ? found : HEARTH_OK;
}

/* How many tokens of `path` it has in common with the turns of the line that stay. */
static size_t tokens_of_line(const struct store_walk *walk, const struct hearth_turn *about,
                             const struct hearth_tokens *path) {
    size_t covered = 0, n = 0, common = 0, most = 0;
    for (size_t i = 0; i < walk->count; i++) {
        const struct hearth_turn *turn = &walk->turns[i];
        if (!hearth_turn_is_exact(walk->turns, i, covered, n)) {
            continue;
        }
        if (common >= turn->base_tokens) { /* the turns up to here have at least so many */
            common = turn->base_tokens;
            common += hearth_tokens_common(turn->tokens.v, turn->tokens.n, path->v + common, path->n - common);
        }
        n = turn->base_tokens + turn->tokens.n;
        covered = i + 1;
        most = walk->rows[i].stays && same_state(turn, about) && common > most ? common : most;
    }
    return most;
}

/* How many tokens of `path` it has in common with what stays: turns of the line, and what else hangs on the last turn
 * before `first`. */
static int count_shared(struct hearth_db *db, const struct store_walk *walk, size_t first,
                        const struct hearth_turn *about, const struct hearth_tokens *path, size_t *shared) {
    struct hearth_tokens stays = {0};
    size_t covered = 0;
    *shared = tokens_of_line(walk, about, path);
    if (first == 0) {
        return HEARTH_OK;
    }
    int err = hearth_turn_exact_tokens(walk->turns, first, &stays, &covered);
    bool known = covered == first && same_state(&walk->turns[first - 1], about);
    const int64_t parent = walk->rows[first - 1].id, gone = walk->rows[first].id;
    int found = err == HEARTH_OK ? hearth_db_query(db, TURN_CHILDREN, "ii", parent, gone) : err;
    for (; found > 0 && err == HEARTH_OK; found = hearth_db_next(db, TURN_CHILDREN)) {
        struct store_row row;
        struct hearth_turn turn = {0};
        int64_t id = hearth_db_column_number(db, TURN_CHILDREN, 0);
        int loaded = hearth_turn_load(db, NULL, id, STORE_TOKENS, &row, &turn);
        size_t base = turn.base_tokens;
        bool starts = base == 0 || (known && base <= stays.n);
        if (loaded > 0 && same_state(&turn, about) && starts) {
            size_t n = hearth_tokens_common(stays.v, base, path->v, path->n);
            if (n == base) {
                n += hearth_tokens_common(turn.tokens.v, turn.tokens.n, path->v + n, path->n - n);
            }
            *shared = n > *shared ? n : *shared;
        }
        hearth_turn_finish(&turn);
        err = loaded < 0 && loaded != HEARTH_ERR_STATE ? loaded : HEARTH_OK;
    }
    hearth_db_reset(db, TURN_CHILDREN);
    hearth_tokens_finish(&stays);
    return found < 0 ? found : err;
}

/* Writes the forget of the turn at `at`; turns from `first` on are gone. Writes none if its tokens are unknown. */
static int add_forget(struct hearth_db *db, const struct store_walk *walk, size_t first, size_t at) {
    const struct hearth_turn *turn = &walk->turns[at];
    struct hearth_forget forget = {.model = turn->model, .salt = turn->salt};
    struct hearth_buf blob = {0};
    size_t covered = 0, shared = 0;
    int err = hearth_turn_exact_tokens(walk->turns, at + 1, &forget.tokens, &covered);
    if (err == HEARTH_OK && covered == at + 1) {
        err = count_shared(db, walk, first, turn, &forget.tokens, &shared);
        forget.keep_tokens = (uint32_t)shared;
        if (err == HEARTH_OK && shared < forget.tokens.n) {
            const struct store_about about = about_forget(&forget);
            err = hearth_session_pack(db, &about, NULL, &forget.tokens, &blob);
            err = err == HEARTH_OK ? hearth_db_run(db, FORGET_ADD, "iib", walk->rows[at].model, (int64_t)shared, &blob)
                                   : err;
        }
    }
    hearth_buf_finish(&blob);
    hearth_forget_finish(&forget);
    return err;
}

static int add_forgets(struct hearth_db *db, const struct store_walk *walk, size_t first) {
    int err = find_what_stays(db, walk, first);
    for (size_t at = walk->count; at-- > first && err == HEARTH_OK;) {
        const struct hearth_turn *turn = &walk->turns[at], *next = turn + 1;
        bool last = at + 1 == walk->count;
        if (!last && !hearth_digest_is_zero(next->model) && same_state(turn, next) && walk->rows[at].total > 0 &&
            (int64_t)next->base_tokens == walk->rows[at].total) {
            continue; /* it is the beginning of the turn after it */
        }
        err = add_forget(db, walk, first, at);
    }
    return err;
}

/* The next forget behind `after_id`; on a server, of this box, and so of its model. Returns as hearth_db_query(). */
static int find_forget(const struct hearth_session_store *store, struct hearth_db *db, struct hearth_digest of,
                       int64_t after_id) {
    if (!store->on_server) {
        return hearth_db_query(db, FORGET_NEXT, "di", &of, after_id);
    }
    return hearth_digest_equal(of, store->model)
               ? hearth_db_query(db, FORGET_NEXT, "iii", after_id, store->box_rows[0], store->box_rows[1])
               : 0;
}

int hearth_forget_next(struct hearth_session_store *store, struct hearth_digest model, int64_t after_id,
                       struct hearth_forget *out) {
    struct hearth_db *db;
    bool damaged = true;
    *out = (struct hearth_forget){0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    while (err == HEARTH_OK && damaged) {
        int found = find_forget(store, db, model, after_id);
        if (found <= 0) {
            err = found < 0 ? found : HEARTH_ERR_NOT_FOUND;
            break;
        }
        out->id = hearth_db_column_number(db, FORGET_NEXT, 0);
        out->model = hearth_db_column_digest(db, FORGET_NEXT, 1);
        out->salt = hearth_db_column_digest(db, FORGET_NEXT, 2);
        out->keep_tokens = (uint32_t)hearth_db_column_number(db, FORGET_NEXT, 3);
        const struct store_about about = about_forget(out);
        size_t len;
        const void *blob = hearth_db_column_bytes(db, FORGET_NEXT, 4, &len);
        err = hearth_session_unpack(db, &about, blob, len, NULL, &out->tokens);
        hearth_db_reset(db, FORGET_NEXT);
        const bool forward = out->id > after_id; /* otherwise the index is damaged, and this would not end */
        damaged = err == HEARTH_ERR_STATE;       /* a damaged forget names nothing, and is left out */
        err = !forward ? HEARTH_ERR_STATE : damaged ? HEARTH_OK : err;
        after_id = out->id;
    }
    err = hearth_session_end_read(store, db, err);
    if (err != HEARTH_OK) {
        hearth_forget_finish(out);
    }
    return err;
}

int hearth_forget_done(struct hearth_session_store *store, int64_t id) {
    int err = hearth_session_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    const int done = store->on_server
                         ? hearth_db_run(&store->writer, FORGET_DONE, "iii", id, store->box_rows[0], store->box_rows[1])
                         : hearth_db_run(&store->writer, FORGET_DONE, "i", id);
    return hearth_session_end_write(store, done, false, NULL);
}

/* ---- what goes ---- */

/* Whether anything but the turn `except` needs a turn. */
static int is_needed(struct hearth_db *db, int64_t id, int64_t except, bool *needed) {
    int64_t ignored;
    int found = hearth_db_query_number(db, TURN_CHILD, &ignored, "ii", id, except);
    if (found == 0) {
        found = hearth_db_query_number(db, HEAD_HELD, &ignored, "i", id);
    }
    *needed = found > 0;
    return found < 0 ? found : HEARTH_OK;
}

/* Deletes the turns from `first` on, the last one first. */
static int delete_chain(struct hearth_db *db, const struct store_walk *walk, size_t first) {
    int err = HEARTH_OK;
    for (size_t at = walk->count; at-- > first && err == HEARTH_OK;) {
        const struct store_row *row = &walk->rows[at];
        err = hearth_db_run(db, TURN_DELETE, "i", row->id);
        err = err == HEARTH_OK ? hearth_db_run(db, USE_DROP, "i", row->id) : err;
        if (err == HEARTH_OK && row->config != 0 && (at == first || walk->rows[at - 1].config != row->config)) {
            err = hearth_db_run(db, CONFIG_DROP, "i", row->config);
        }
    }
    return err;
}

int hearth_turn_purge(struct hearth_db *db, int64_t id, int64_t before_us, size_t limit, size_t *count) {
    struct store_row row;
    struct store_walk walk;
    int found = hearth_turn_load(db, NULL, id, STORE_COLUMNS, &row, NULL);
    int err = found > 0 ? hearth_turn_walk(db, &row, STORE_TOKENS, true, &walk) : found;
    if (found > 0 && err == HEARTH_ERR_STATE) { /* its line is broken: it goes, and nothing is known of the rest */
        walk = (struct store_walk){.rows = &row, .count = 1};
        ++*count;
        return delete_chain(db, &walk, 0);
    }
    if (found <= 0 || err != HEARTH_OK) {
        return err;
    }
    size_t first = walk.count - 1;
    bool needed = false;
    while (err == HEARTH_OK && !needed && first > 0 && walk.count - first < limit &&
           (walk.rows[first - 1].hidden || walk.rows[first - 1].used < before_us)) {
        err = is_needed(db, walk.rows[first - 1].id, walk.rows[first].id, &needed);
        first -= err == HEARTH_OK && !needed;
    }
    err = err == HEARTH_OK ? delete_chain(db, &walk, first) : err;
    err = err == HEARTH_OK ? add_forgets(db, &walk, first) : err;
    if (err == HEARTH_OK && first > 0) { /* a turn without children has a time of its own again */
        const int64_t stays = walk.rows[first - 1].id;
        int64_t child;
        found = hearth_db_query_number(db, TURN_CHILD, &child, "ii", stays, (int64_t)0);
        int64_t used = before_us > 0 ? row.used : db->age_us;
        err = found == 0 ? hearth_db_run(db, USE_KEEP, "ii", stays, used) : found < 0 ? found : HEARTH_OK;
    }
    *count += walk.count - first;
    hearth_turn_walk_finish(&walk);
    return err;
}

int hearth_turn_purge_unneeded(struct hearth_db *db, int64_t id) {
    struct store_row row;
    bool needed = false;
    size_t count = 0;
    int found = id != 0 ? hearth_turn_load(db, NULL, id, STORE_COLUMNS, &row, NULL) : 0;
    if (found <= 0 || !row.hidden) {
        return found < 0 ? found : HEARTH_OK;
    }
    int err = is_needed(db, id, 0, &needed);
    return err == HEARTH_OK && !needed ? hearth_turn_purge(db, id, 0, SIZE_MAX, &count) : err;
}

/* ---- deleting one ---- */

/* Moves the session with which a turn was put, if it stands at a deleted turn, back to one that can be found. */
static int move_own_head(struct hearth_db *db, const struct store_row *row) {
    int64_t head = 0, to = row->parent;
    const int err = row->session != 0 ? hearth_session_read_head(db, row->session, &head) : HEARTH_OK;
    if (err != HEARTH_OK || head != row->id) {
        return err;
    }
    for (struct store_row above = {.hidden = true}; to != 0 && above.hidden;) {
        const int found = hearth_turn_load(db, NULL, to, STORE_COLUMNS, &above, NULL);
        if (found <= 0 || above.parent >= to) { /* a parent must be older */
            return found < 0 ? found : HEARTH_ERR_STATE;
        }
        to = above.hidden ? above.parent : to;
    }
    return hearth_db_run(db, SESSION_HEAD, "inii", row->session, to, db->now_us, db->age_us);
}

static int delete_turn(struct hearth_db *db, struct hearth_digest owner, const struct hearth_digest *id) {
    struct store_row row;
    struct hearth_turn turn = {0};
    int found = hearth_turn_load(db, id, 0, STORE_COLUMNS, &row, &turn);
    if (found <= 0 || row.hidden || !hearth_digest_equal(turn.owner, owner)) {
        return found < 0 ? found : HEARTH_ERR_NOT_FOUND;
    }
    int err = move_own_head(db, &row);
    err = err == HEARTH_OK ? hearth_db_run(db, TURN_HIDE, "i", row.id) : err;
    return err == HEARTH_OK ? hearth_turn_purge_unneeded(db, row.id) : err;
}

int hearth_turn_delete(struct hearth_session_store *store, struct hearth_digest owner, struct hearth_digest id) {
    int err = hearth_session_begin_write(store, NULL);
    return err == HEARTH_OK ? hearth_session_end_write(store, delete_turn(&store->writer, owner, &id), true, NULL)
                            : err;
}
