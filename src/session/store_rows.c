/* Rows of turns, and the way from one up to the first.
 *
 * A way is read by rows, one look-up per turn. `depth` must fall by one with each step and every blob vouches for its
 * parent's key, so a damaged link is found and never followed in a circle. */
#include "session/store_internal.h"

#include "base/assert.h"

#include <stdlib.h>

const char *hearth_turn_status_text(enum hearth_turn_status status) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_TURN_##name] = (text),
        HEARTH_TURN_STATUS_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)status < sizeof texts / sizeof texts[0]);
    return texts[status];
}

void hearth_turn_finish(struct hearth_turn *turn) {
    free(turn->session);
    hearth_buf_finish(&turn->config);
    hearth_buf_finish(&turn->body);
    hearth_tokens_finish(&turn->tokens);
    *turn = (struct hearth_turn){0};
}

struct store_about hearth_turn_about(const struct hearth_turn *turn) {
    const struct hearth_digest none = {0, 0}; /* the salt is in the model's row */
    return (struct store_about){.kind = STORE_TURN,
                                .created = turn->created_us,
                                .status = (int64_t)turn->status,
                                .base = turn->base_tokens,
                                .key = turn->id,
                                .owner = turn->owner,
                                .parent = turn->parent,
                                .config = turn->config_id,
                                .model = turn->model,
                                .salt = hearth_digest_is_zero(turn->model) ? none : turn->salt,
                                .path = turn->path};
}

/* ---- loading ---- */

static void take_columns(const struct hearth_db *db, int which, struct store_row *row, struct hearth_turn *turn) {
    *row = (struct store_row){.id = hearth_db_column_number(db, which, 0),
                              .owner = hearth_db_column_number(db, which, 2),
                              .parent = hearth_db_column_number(db, which, 4),
                              .session = hearth_db_column_number(db, which, 6),
                              .config = hearth_db_column_number(db, which, 7),
                              .model = hearth_db_column_number(db, which, 9),
                              .used = hearth_db_column_number(db, which, 18),
                              .depth = hearth_db_column_number(db, which, 16),
                              .total = hearth_db_column_number(db, which, 17),
                              .hidden = hearth_db_column_number(db, which, 13) != 0};
    if (turn == NULL) {
        return;
    }
    turn->id = hearth_db_column_digest(db, which, 1);
    turn->owner = hearth_db_column_digest(db, which, 3);
    turn->parent = hearth_db_column_digest(db, which, 5);
    turn->config_id = hearth_db_column_digest(db, which, 8);
    turn->model = hearth_db_column_digest(db, which, 10);
    turn->salt = hearth_db_column_digest(db, which, 11);
    turn->status = (enum hearth_turn_status)hearth_db_column_number(db, which, 12);
    turn->created_us = hearth_db_column_number(db, which, 14);
    turn->base_tokens = (uint32_t)hearth_db_column_number(db, which, 15);
    turn->path = hearth_db_column_digest(db, which, 19);
}

int hearth_turn_load(struct hearth_db *db, const struct hearth_digest *key, int64_t id, enum store_parts parts,
                     struct store_row *row, struct hearth_turn *turn) {
    const int which = id == 0 ? TURN_BY_KEY : TURN_BY_ID;
    int found = id == 0 ? hearth_db_query(db, which, "d", key) : hearth_db_query(db, which, "i", id);
    if (found <= 0) {
        return found;
    }
    take_columns(db, (int)which, row, turn);
    if (id == 0 && turn != NULL && !hearth_digest_equal(turn->id, *key)) { /* the index is wrong */
        hearth_db_reset(db, which);
        return HEARTH_ERR_STATE;
    }
    if (parts != STORE_COLUMNS) {
        size_t len;
        const void *blob = hearth_db_column_bytes(db, (int)which, 20, &len);
        const struct store_about about = hearth_turn_about(turn);
        const bool sane = (unsigned)turn->status <= HEARTH_TURN_CANCELLED;
        int err = blob == NULL && hearth_db_ran_out(db) ? HEARTH_ERR_NOMEM : sane ? HEARTH_OK : HEARTH_ERR_STATE;
        if (err == HEARTH_OK) {
            err = hearth_session_unpack(db, &about, blob, len, parts == STORE_ALL ? &turn->body : NULL, &turn->tokens);
        }
        found = err == HEARTH_OK ? 1 : err;
    }
    hearth_db_reset(db, which);
    return found;
}

/* ---- the way up ---- */

void hearth_turn_walk_finish(struct store_walk *walk) {
    for (size_t i = 0; i < walk->count; i++) {
        hearth_turn_finish(&walk->turns[i]);
    }
    free(walk->rows);
    free(walk->turns);
    *walk = (struct store_walk){0};
}

int hearth_turn_walk(struct hearth_db *db, const struct store_row *last, enum store_parts parts, bool damaged_too,
                     struct store_walk *out) {
    *out = (struct store_walk){0};
    if (last->depth < 1 || last->depth > INT32_MAX || last->depth > last->id) { /* a parent must be older */
        return HEARTH_ERR_STATE;
    }
    const size_t count = (size_t)last->depth;
    out->rows = calloc(count, sizeof out->rows[0]);
    out->turns = calloc(count, sizeof out->turns[0]);
    int err = out->rows == NULL || out->turns == NULL ? HEARTH_ERR_NOMEM : HEARTH_OK;
    out->count = err == HEARTH_OK ? count : 0;
    int64_t id = last->id;
    for (size_t i = count; i-- > 0 && err == HEARTH_OK;) {
        struct hearth_turn *turn = &out->turns[i];
        int found = hearth_turn_load(db, NULL, id, parts, &out->rows[i], turn);
        if (found == HEARTH_ERR_STATE && damaged_too) {
            turn->model = (struct hearth_digest){0, 0};
            turn->tokens.n = 0;
            found = 1;
        }
        const int64_t parent = out->rows[i].parent;
        bool sane = found > 0 && out->rows[i].depth == (int64_t)i + 1 && (parent == 0) == (i == 0) && parent < id;
        id = parent;
        err = found < 0 ? found : sane ? HEARTH_OK : HEARTH_ERR_STATE;
    }
    if (err != HEARTH_OK) {
        hearth_turn_walk_finish(out);
    }
    return err;
}

bool hearth_turn_is_exact(const struct hearth_turn *turns, size_t i, size_t covered, size_t n) {
    const struct hearth_turn *turn = &turns[i], *before = i > 0 ? turn - 1 : NULL;
    const bool follows = before != NULL && covered == i && turn->base_tokens <= n &&
                         hearth_digest_equal(turn->model, before->model) &&
                         hearth_digest_equal(turn->salt, before->salt);
    return !hearth_digest_is_zero(turn->model) && (turn->base_tokens == 0 || follows) &&
           turn->base_tokens + turn->tokens.n > 0;
}

int hearth_turn_exact_tokens(const struct hearth_turn *turns, size_t count, struct hearth_tokens *path,
                             size_t *covered) {
    *covered = 0;
    path->n = 0;
    for (size_t i = 0; i < count; i++) {
        if (!hearth_turn_is_exact(turns, i, *covered, path->n)) {
            continue;
        }
        path->n = turns[i].base_tokens;
        if (!hearth_tokens_append(path, turns[i].tokens.v, turns[i].tokens.n)) {
            return HEARTH_ERR_NOMEM;
        }
        *covered = i + 1;
    }
    return HEARTH_OK;
}

int hearth_turn_find_end(struct hearth_db *db, struct hearth_digest owner, struct hearth_digest id,
                         struct store_row *row) {
    struct hearth_turn turn = {0};
    int64_t used;
    int found = hearth_turn_load(db, &id, 0, STORE_COLUMNS, row, &turn);
    if (found > 0 && !hearth_digest_equal(turn.owner, owner)) {
        return 0;
    }
    return found > 0 && row->hidden ? hearth_db_query_number(db, HEAD_HELD, &used, "i", row->id) : found;
}

int hearth_session_read_head(struct hearth_db *db, int64_t id, int64_t *head) {
    const int found = hearth_db_query(db, SESSION_BY_ID, "i", id);
    *head = 0;
    if (found > 0) {
        *head = hearth_db_column_number(db, SESSION_BY_ID, 3);
        hearth_db_reset(db, SESSION_BY_ID);
    }
    return found < 0 ? found : HEARTH_OK;
}
