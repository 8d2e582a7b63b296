/* Owners of conversations, and how much each has.
 *
 * Conversations are found by a digest: zero where there are no keys, that of the key, or that of a name. What an owner
 * has under another digest than its own is written down (in meta) the first time that it is asked for, in both
 * directions: "owner IDENTITY" is the digest, and "owned DIGEST" the identity that has it. So the first key that is
 * alone takes what there was without keys, and a name what its key had; no other owner gets at it later, whatever keys
 * come and go. An entry counts when both directions agree: a name takes the place of its key. */
#include "session/store_internal.h"

#include <stdio.h>

#define KEY_BYTES 64

static void name_key(char out[KEY_BYTES], const char *kind, struct hearth_digest digest) {
    char hex[33];
    hearth_digest_hex(digest, hex);
    (void)snprintf(out, KEY_BYTES, "%s %s", kind, hex);
}

/* Reads an entry: 1 and the digest, 0 or an error. */
static int get(struct hearth_db *db, const char *kind, struct hearth_digest of, struct hearth_digest *out) {
    char key[KEY_BYTES];
    struct hearth_digest value;
    name_key(key, kind, of);
    const int len = hearth_session_get_meta(db, key, &value, sizeof value);
    *out = len == (int)sizeof value ? value : *out;
    return len < 0 ? len : len == (int)sizeof value;
}

static int put(struct hearth_db *db, const char *kind, struct hearth_digest of, struct hearth_digest value) {
    char key[KEY_BYTES];
    name_key(key, kind, of);
    return hearth_session_put_meta(db, key, &value, sizeof value);
}

static const struct hearth_digest without_keys = {0, 0};

/* 1 and what is written down for `identity`, 0 or an error. */
static int get_claim(struct hearth_db *db, struct hearth_digest identity, struct hearth_digest *out) {
    struct hearth_digest digest, by;
    int found = get(db, "owner", identity, &digest);
    found = found > 0 ? get(db, "owned", digest, &by) : found;
    if (found > 0 && !hearth_digest_equal(by, identity)) {
        return 0;
    }
    *out = found > 0 ? digest : *out;
    return found;
}

/* 1 if no other identity has the digest, 0 or an error. */
static int is_free(struct hearth_db *db, struct hearth_digest digest, struct hearth_digest identity) {
    struct hearth_digest by;
    const int found = get(db, "owned", digest, &by);
    return found < 0 ? found : found == 0 || hearth_digest_equal(by, identity);
}

/* 1 and what may be written down for `identity`, 0 if that is its own digest, or an error. */
static int find_claim(struct hearth_db *db, struct hearth_digest identity, struct hearth_digest key, bool alone,
                      struct hearth_digest *out) {
    int64_t row;
    int found = get_claim(db, key, out);
    if (found != 0) {
        return found;
    }
    found = hearth_db_query_number(db, OWNER_ID, &row, "d", &key);
    found = found > 0 ? is_free(db, key, identity) : found;
    if (found != 0) {
        *out = found > 0 ? key : *out;
        return found;
    }
    found = alone ? is_free(db, without_keys, identity) : 0;
    *out = found > 0 ? without_keys : *out;
    return found;
}

static int write_claim(struct hearth_db *db, struct hearth_digest identity, struct hearth_digest key, bool alone,
                       struct hearth_digest *out) {
    int found = get_claim(db, identity, out);
    if (found != 0) {
        return found < 0 ? found : HEARTH_OK;
    }
    found = find_claim(db, identity, key, alone, out);
    int err = found < 0 ? found : put(db, "owner", identity, *out);
    return err == HEARTH_OK ? put(db, "owned", *out, identity) : err;
}

int hearth_session_owner(struct hearth_session_store *store, struct hearth_digest identity, struct hearth_digest key,
                         bool alone, struct hearth_digest *out) {
    struct hearth_db *db;
    *out = identity;
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    const int written = get_claim(db, identity, out);
    const int found = written == 0 ? find_claim(db, identity, key, alone, out) : written;
    err = hearth_session_end_read(store, db, found < 0 ? found : HEARTH_OK);
    const bool itself =
        hearth_digest_equal(identity, key) && hearth_digest_equal(*out, key); /* nothing has to be written */
    if (err != HEARTH_OK || written > 0 || itself) {
        return err;
    }
    err = hearth_session_begin_write(store, NULL);
    return err == HEARTH_OK
               ? hearth_session_end_write(store, write_claim(&store->writer, identity, key, alone, out), false, NULL)
               : err;
}

int hearth_session_owner_row(struct hearth_db *db, struct hearth_digest owner, int64_t *id) {
    int found = hearth_db_query_number(db, OWNER_ID, id, "d", &owner);
    if (found == 0) {
        found = hearth_db_query_number(db, OWNER_ADD, id, "d", &owner);
    }
    return found < 0 ? found : HEARTH_OK;
}

/* ---- quotas ---- */

/* In a transaction. */
static int read_usage(struct hearth_db *db, struct hearth_digest owner, struct hearth_session_quota *out) {
    *out = (struct hearth_session_quota){0};
    const int found = hearth_db_query(db, OWNER_USAGE, "d", &owner);
    if (found > 0) {
        out->tokens = (uint64_t)hearth_db_column_number(db, OWNER_USAGE, 0);
        out->bytes = (uint64_t)hearth_db_column_number(db, OWNER_USAGE, 1);
        out->sessions = (uint64_t)hearth_db_column_number(db, OWNER_USAGE, 2);
        hearth_db_reset(db, OWNER_USAGE);
    }
    return found < 0 ? found : HEARTH_OK;
}

static int compare(uint64_t has, uint64_t most, const char *what, struct hearth_errmsg *msg) {
    return most == 0 || has < most
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_QUOTA,
                             "this key keeps %llu %s and may keep %llu: delete some, or send \"store\": false",
                             (unsigned long long)has, what, (unsigned long long)most);
}

int hearth_session_check_quota(struct hearth_db *db, struct hearth_digest owner,
                               const struct hearth_session_quota *quota, bool session, struct hearth_errmsg *msg) {
    struct hearth_session_quota has;
    if (quota->tokens == 0 && quota->bytes == 0 && quota->sessions == 0) {
        return HEARTH_OK;
    }
    int err = read_usage(db, owner, &has);
    err = err == HEARTH_OK ? compare(has.tokens, quota->tokens, "tokens in conversations", msg) : err;
    err = err == HEARTH_OK ? compare(has.bytes, quota->bytes, "bytes of conversations", msg) : err;
    return err == HEARTH_OK && session ? compare(has.sessions, quota->sessions, "conversations", msg) : err;
}

int hearth_session_owner_check(struct hearth_session_store *store, struct hearth_digest owner,
                               const struct hearth_session_quota *quota, bool session, struct hearth_errmsg *msg) {
    struct hearth_db *db;
    const int err = hearth_session_begin_read(store, &db);
    return err == HEARTH_OK
               ? hearth_session_end_read(store, db, hearth_session_check_quota(db, owner, quota, session, msg))
               : err;
}

int hearth_session_owner_usage(struct hearth_session_store *store, struct hearth_digest owner,
                               struct hearth_session_quota *out) {
    struct hearth_db *db;
    *out = (struct hearth_session_quota){0};
    const int err = hearth_session_begin_read(store, &db);
    return err == HEARTH_OK ? hearth_session_end_read(store, db, read_usage(db, owner, out)) : err;
}
