/* The store's sessions: names for turns.
 *
 * A session's row is found by a digest of its owner and name; the name itself and the metadata are in its blob
 * (name, NUL, metadata), so that with a key the file tells neither. Heads are rows of turns and move without the blob
 * being written again. */
#include "session/store_internal.h"

#include "base/log.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

void hearth_session_finish(struct hearth_session *session) {
    free(session->name);
    hearth_buf_finish(&session->metadata);
    *session = (struct hearth_session){0};
}

bool hearth_session_name_is_valid(const char *name) {
    const size_t len = strnlen(name, HEARTH_SESSION_NAME_MAX + 1);
    if (len == 0 || len > HEARTH_SESSION_NAME_MAX || !hearth_utf8_valid(name, len)) {
        return false;
    }
    for (const unsigned char *at = (const unsigned char *)name; *at != '\0'; at++) {
        if (*at < 0x20 || *at == 0x7F || (*at == 0xC2 && at[1] < 0xA0)) {
            return false;
        }
    }
    return true;
}

int hearth_session_check_name(const char *name, struct hearth_errmsg *msg) {
    return name != NULL && hearth_session_name_is_valid(name)
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_INVALID,
                             "a session's name is 1 to %d bytes of UTF-8 without control characters",
                             HEARTH_SESSION_NAME_MAX);
}

/* ---- rows ---- */

struct hearth_digest hearth_session_key(const struct hearth_db *db, struct hearth_digest owner, const char *name) {
    return hearth_session_digest(db, owner, name, strlen(name) + 1);
}

int hearth_session_find(struct hearth_db *db, struct hearth_digest owner, const char *name, int64_t *id) {
    const struct hearth_digest key = hearth_session_key(db, owner, name);
    int found = hearth_db_query_number(db, SESSION_BY_KEY, id, "d", &key);
    return found < 0 ? found : HEARTH_OK;
}

static int pack_session(struct hearth_db *db, const struct hearth_session *session, const struct hearth_digest *key,
                        struct hearth_buf *blob) {
    const struct store_about about = {
        .kind = STORE_SESSION, .created = session->created_us, .key = *key, .owner = session->owner};
    struct hearth_buf body = {0};
    int err = hearth_buf_append(&body, session->name, strlen(session->name) + 1) &&
                      hearth_buf_append(&body, session->metadata.data, session->metadata.len)
                  ? hearth_session_pack(db, &about, &body, NULL, blob)
                  : HEARTH_ERR_NOMEM;
    hearth_buf_finish(&body);
    return err;
}

int hearth_session_add(struct hearth_db *db, int64_t owner_id, const struct hearth_session *session, int64_t head,
                       int64_t *id) {
    const struct hearth_digest key = hearth_session_key(db, session->owner, session->name);
    const int64_t now = db->now_us;
    struct hearth_session made = *session;
    struct hearth_buf blob = {0};
    made.created_us = made.created_us != 0 ? made.created_us : now;
    int err = pack_session(db, &made, &key, &blob);
    const int added = err == HEARTH_OK ? hearth_db_query_number(db, SESSION_ADD, id, "diniiib", &key, owner_id, head,
                                                                made.created_us, now, db->age_us, &blob)
                                       : err;
    hearth_buf_finish(&blob);
    return added < 0 ? added : HEARTH_OK;
}

/* Reads the session of a statement's present row. */
static int take_session(struct hearth_db *db, int which, struct hearth_session *out) {
    struct store_about about = {.kind = STORE_SESSION};
    struct hearth_buf body = {0};
    *out = (struct hearth_session){0};
    about.key = hearth_db_column_digest(db, which, 1);
    out->owner = about.owner = hearth_db_column_digest(db, which, 2);
    out->head = hearth_db_column_digest(db, which, 4);
    out->created_us = about.created = hearth_db_column_number(db, which, 5);
    out->used_us = hearth_db_column_number(db, which, 6);
    out->turns = (uint32_t)hearth_db_column_number(db, which, 7);
    out->tokens = (uint32_t)hearth_db_column_number(db, which, 8);
    size_t blob_len;
    const void *blob = hearth_db_column_bytes(db, which, 9, &blob_len);
    const bool lost = !hearth_db_column_is_null(db, which, 3) && hearth_db_column_is_null(db, which, 4);
    if (lost) { /* its head is missing: it must not look like an empty session */
        return HEARTH_ERR_STATE;
    }
    int err = hearth_session_unpack(db, &about, blob, blob_len, &body, NULL);
    if (err == HEARTH_OK) {
        const size_t len = strnlen((const char *)body.data, body.len);
        err = len == body.len ? HEARTH_ERR_STATE : HEARTH_OK;
        out->name = err == HEARTH_OK ? strdup((const char *)body.data) : NULL;
        if (err == HEARTH_OK && (out->name == NULL || !hearth_buf_reserve(&out->metadata, body.len - len) ||
                                 !hearth_buf_append(&out->metadata, body.data + len + 1, body.len - len - 1))) {
            err = HEARTH_ERR_NOMEM;
        }
        if (err == HEARTH_OK) {
            out->metadata.data[out->metadata.len] = '\0'; /* there is room */
        }
    }
    hearth_buf_finish(&body);
    if (err != HEARTH_OK) {
        hearth_session_finish(out);
    }
    return err;
}

int hearth_session_read_name(struct hearth_db *db, int64_t id, char **name) {
    struct hearth_session session;
    *name = NULL;
    int found = hearth_db_query(db, SESSION_BY_ID, "i", id);
    if (found <= 0) {
        return found;
    }
    int err = take_session(db, SESSION_BY_ID, &session);
    hearth_db_reset(db, SESSION_BY_ID);
    if (err == HEARTH_OK) {
        *name = session.name;
        session.name = NULL;
        hearth_session_finish(&session);
    }
    return err;
}

/* A session's columns. */
struct session_row {
    int64_t id, head, created, used;
};

/* The row of a session; *key is its key. Errors: NOT_FOUND. */
static int find_row(struct hearth_db *db, struct hearth_digest owner, const char *name, struct hearth_digest *key,
                    struct session_row *row) {
    *key = hearth_session_key(db, owner, name);
    const int found = hearth_db_query(db, SESSION_BY_KEY, "d", key);
    if (found <= 0) {
        return found < 0 ? found : HEARTH_ERR_NOT_FOUND;
    }
    *row = (struct session_row){.id = hearth_db_column_number(db, SESSION_BY_KEY, 0),
                                .head = hearth_db_column_number(db, SESSION_BY_KEY, 3),
                                .created = hearth_db_column_number(db, SESSION_BY_KEY, 5),
                                .used = hearth_db_column_number(db, SESSION_BY_KEY, 6)};
    hearth_db_reset(db, SESSION_BY_KEY);
    return HEARTH_OK;
}

/* ---- put ---- */

/* The row of a head. */
static int find_head(struct hearth_db *db, const struct hearth_session *session, int64_t *head,
                     struct hearth_errmsg *msg) {
    struct store_row row;
    *head = 0;
    if (hearth_digest_is_zero(session->head)) {
        return HEARTH_OK;
    }
    int found = hearth_turn_find_end(db, session->owner, session->head, &row);
    if (found == 0) {
        return hearth_fail(msg, HEARTH_ERR_NOT_FOUND, "there is no such turn");
    }
    *head = found > 0 ? row.id : 0;
    return found < 0 ? found : HEARTH_OK;
}

static int replace_session(struct hearth_db *db, const struct hearth_session *session, struct hearth_errmsg *msg) {
    struct hearth_session made = *session;
    struct hearth_buf blob = {0};
    struct hearth_digest key;
    struct session_row row;
    int64_t head = 0;
    int err = find_row(db, session->owner, session->name, &key, &row);
    if (err != HEARTH_OK) {
        return err == HEARTH_ERR_NOT_FOUND ? hearth_fail(msg, err, "there is no such session") : err;
    }
    made.created_us = row.created;
    err = find_head(db, session, &head, msg);
    head = head != 0 ? head : row.head;
    err = err == HEARTH_OK ? pack_session(db, &made, &key, &blob) : err;
    err = err == HEARTH_OK ? hearth_db_run(db, SESSION_SET, "iniib", row.id, head, db->now_us, db->age_us, &blob) : err;
    hearth_buf_finish(&blob);
    return err == HEARTH_OK && row.head != head ? hearth_turn_purge_unneeded(db, row.head) : err;
}

static int add_session(struct hearth_db *db, const struct hearth_session *session, struct hearth_errmsg *msg) {
    int64_t id, head = 0, owner;
    int err = hearth_session_find(db, session->owner, session->name, &id);
    if (err == HEARTH_OK && id != 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "there is a session of this name");
    }
    err = err == HEARTH_OK ? find_head(db, session, &head, msg) : err;
    err = err == HEARTH_OK ? hearth_session_check_quota(db, session->owner, &session->quota, true, msg) : err;
    err = err == HEARTH_OK ? hearth_session_owner_row(db, session->owner, &owner) : err;
    return err == HEARTH_OK ? hearth_session_add(db, owner, session, head, &id) : err;
}

int hearth_session_put(struct hearth_session_store *store, const struct hearth_session *session, bool replace,
                       struct hearth_errmsg *msg) {
    int err = hearth_session_check_name(session->name, msg);
    err = err == HEARTH_OK ? hearth_session_begin_write(store, msg) : err;
    if (err != HEARTH_OK) {
        return err;
    }
    err = replace ? replace_session(&store->writer, session, msg) : add_session(&store->writer, session, msg);
    return hearth_session_end_write(store, err, false, msg);
}

/* ---- get, list ---- */

int hearth_session_get(struct hearth_session_store *store, struct hearth_digest owner, const char *name,
                       struct hearth_session *out) {
    struct hearth_db *db;
    *out = (struct hearth_session){0};
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    const struct hearth_digest key = hearth_session_key(db, owner, name);
    int found = hearth_db_query(db, SESSION_BY_KEY, "d", &key);
    err = found < 0 ? found : HEARTH_ERR_NOT_FOUND;
    int64_t aged = 0;
    if (found > 0) {
        err = take_session(db, SESSION_BY_KEY, out);
        aged = hearth_db_column_number(db, SESSION_BY_KEY, 10);
        if (err == HEARTH_OK && (strcmp(out->name, name) != 0 || !hearth_digest_equal(out->owner, owner))) {
            hearth_session_finish(out);
            err = HEARTH_ERR_STATE; /* the index is wrong */
        }
        hearth_db_reset(db, SESSION_BY_KEY);
    }
    err = hearth_session_end_read(store, db, err);
    if (err == HEARTH_OK) {
        out->expired = aged < hearth_session_expired_before(store);
        hearth_session_touch(store, &key, true, aged);
    }
    return err;
}

/* Where a page begins: behind a session, or at the start. */
static int find_page(struct hearth_db *db, const struct hearth_session_query *query, int64_t *used, int64_t *id) {
    struct session_row row = {.id = INT64_MAX, .used = INT64_MAX};
    struct hearth_digest key;
    const int err = query->after != NULL ? find_row(db, query->owner, query->after, &key, &row) : HEARTH_OK;
    *used = row.used;
    *id = row.id;
    return err;
}

static int read_page(struct hearth_db *db, const struct hearth_session_query *query, int64_t expired_before,
                     struct hearth_session **out, size_t *count) {
    const int which = query->all_owners ? SESSIONS_ALL : SESSIONS_OF_OWNER;
    const int64_t limit = query->limit != 0 && query->limit < INT64_MAX ? (int64_t)query->limit + 1 : INT64_MAX;
    const int64_t from = query->expired ? INT64_MIN : expired_before;
    int64_t used, id;
    size_t room = 0, damaged = 0, bytes = 0;
    bool more = false;
    int err = find_page(db, query, &used, &id);
    int found = err == HEARTH_OK ? hearth_db_query(db, which, "diiii", &query->owner, used, id, from, limit) : err;
    while (found > 0 && err == HEARTH_OK) {
        more = (query->limit != 0 && *count == query->limit) || (query->bytes_max != 0 && bytes >= query->bytes_max);
        if (more) {
            break;
        }
        err = HEARTH_BUF_ROOM(*out, *count, room) ? take_session(db, which, &(*out)[*count]) : HEARTH_ERR_NOMEM;
        if (err == HEARTH_OK) {
            (*out)[*count].expired = hearth_db_column_number(db, which, 10) < expired_before;
            bytes += (*out)[(*count)++].metadata.len;
        }
        damaged += err == HEARTH_ERR_STATE;
        err = err == HEARTH_ERR_STATE ? HEARTH_OK : err;
        found = err == HEARTH_OK ? hearth_db_next(db, which) : 0;
    }
    hearth_db_reset(db, which);
    if (query->more != NULL) {
        *query->more = more;
    }
    if (damaged > 0) {
        hearth_log(HEARTH_LOG_WARN, "sessions: %zu do not match their checksum; they are left out", damaged);
    }
    return found < 0 ? found : err;
}

int hearth_session_list(struct hearth_session_store *store, const struct hearth_session_query *query,
                        struct hearth_session **out, size_t *count) {
    struct hearth_db *db;
    *out = NULL;
    *count = 0;
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    err = read_page(db, query, hearth_session_expired_before(store), out, count);
    err = hearth_session_end_read(store, db, err);
    if (err != HEARTH_OK) {
        for (size_t i = 0; i < *count; i++) {
            hearth_session_finish(&(*out)[i]);
        }
        free(*out);
        *out = NULL;
        *count = 0;
    }
    return err;
}

/* ---- delete ---- */

/* Hides the turns that were put with a session, and deletes those that nothing else needs, the newest first. */
static int delete_turns(struct hearth_db *db, int64_t session) {
    int err = hearth_db_run(db, TURNS_HIDE, "i", session);
    for (int64_t id = INT64_MAX, before = INT64_MAX; err == HEARTH_OK; before = id) {
        int found = hearth_db_query_number(db, TURNS_OF_SESSION, &id, "ii", session, before);
        if (found <= 0 || id >= before) { /* with a damaged index this would not end */
            return found <= 0 ? found : HEARTH_ERR_STATE;
        }
        err = hearth_turn_purge_unneeded(db, id);
    }
    return err;
}

static int delete_session(struct hearth_db *db, struct hearth_digest owner, const char *name) {
    struct hearth_digest key;
    struct session_row row;
    int err = find_row(db, owner, name, &key, &row);
    err = err == HEARTH_OK ? hearth_db_run(db, SESSION_DELETE, "i", row.id) : err;
    err = err == HEARTH_OK ? delete_turns(db, row.id) : err;
    return err == HEARTH_OK ? hearth_turn_purge_unneeded(db, row.head) : err;
}

int hearth_session_delete(struct hearth_session_store *store, struct hearth_digest owner, const char *name) {
    int err = hearth_session_begin_write(store, NULL);
    return err == HEARTH_OK ? hearth_session_end_write(store, delete_session(&store->writer, owner, name), true, NULL)
                            : err;
}
