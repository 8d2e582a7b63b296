/* Whose conversations they are, and how much an owner keeps.
 *
 * Conversations are found by a digest: zero where there are no keys, that of the key, or that of a name. What an owner
 * has under another digest than its own is written down (in meta) the first time that it is asked for, in both
 * directions: "owner WHO" is the digest, and "owned DIGEST" who has it. So the first key that is alone takes what there
 * was without keys, and a name what its key had; nobody else gets at it later, whatever keys come and go. An entry
 * counts when both directions agree: a name takes the place of its key. */
#include "session/store_internal.h"

#include <stdio.h>
#include <string.h>

#define KEY_BYTES 64

static struct hearth_buf meta_key(char out[KEY_BYTES], const char *kind, struct hearth_digest digest) {
    char hex[33];
    hearth_digest_hex(digest, hex);
    const int len = snprintf(out, KEY_BYTES, "%s %s", kind, hex);
    return (struct hearth_buf){.data = (uint8_t *)out, .len = (size_t)len};
}

/* 1 and the digest, 0 or an error. */
static int get(struct hearth_db *db, const char *kind, struct hearth_digest of, struct hearth_digest *out) {
    char text[KEY_BYTES];
    const struct hearth_buf key = meta_key(text, kind, of);
    int found = hearth_db_query(db, META_GET, "b", &key);
    if (found > 0) {
        const int len = sqlite3_column_bytes(db->statements[META_GET], 0);
        const void *bytes = sqlite3_column_blob(db->statements[META_GET], 0);
        found = len == (int)sizeof *out ? 1 : 0;
        if (found > 0) {
            memcpy(out, bytes, sizeof *out);
        }
        hearth_db_reset(db, META_GET);
    }
    return found;
}

static int put(struct hearth_db *db, const char *kind, struct hearth_digest of, struct hearth_digest value) {
    char text[KEY_BYTES];
    const struct hearth_buf key = meta_key(text, kind, of);
    const struct hearth_buf bytes = {.data = (uint8_t *)&value, .len = sizeof value};
    return hearth_db_run(db, META_PUT, "bb", &key, &bytes);
}

static const struct hearth_digest without_keys = {0, 0};

/* 1 and what is written down for `who`, 0 or an error. */
static int get_claim(struct hearth_db *db, struct hearth_digest who, struct hearth_digest *out) {
    struct hearth_digest digest, by;
    int found = get(db, "owner", who, &digest);
    found = found > 0 ? get(db, "owned", digest, &by) : found;
    if (found > 0 && !hearth_digest_equal(by, who)) {
        return 0;
    }
    *out = found > 0 ? digest : *out;
    return found;
}

/* 1 when nobody but `who` has it, 0 or an error. */
static int is_free(struct hearth_db *db, struct hearth_digest digest, struct hearth_digest who) {
    struct hearth_digest by;
    const int found = get(db, "owned", digest, &by);
    return found < 0 ? found : found == 0 || hearth_digest_equal(by, who);
}

/* 1 and what may be written down for `who`, 0 when it is its own digest, or an error. */
static int find_claim(struct hearth_db *db, struct hearth_digest who, struct hearth_digest key, bool alone,
                      struct hearth_digest *out) {
    int64_t row;
    int found = get_claim(db, key, out);
    if (found != 0) {
        return found;
    }
    found = hearth_db_query_number(db, OWNER_ID, &row, "d", &key);
    found = found > 0 ? is_free(db, key, who) : found;
    if (found != 0) {
        *out = found > 0 ? key : *out;
        return found;
    }
    found = alone ? is_free(db, without_keys, who) : 0;
    *out = found > 0 ? without_keys : *out;
    return found;
}

static int write_claim(struct hearth_db *db, struct hearth_digest who, struct hearth_digest key, bool alone,
                       struct hearth_digest *out) {
    int found = get_claim(db, who, out);
    if (found != 0) {
        return found < 0 ? found : HEARTH_OK;
    }
    found = find_claim(db, who, key, alone, out);
    int err = found < 0 ? found : put(db, "owner", who, *out);
    return err == HEARTH_OK ? put(db, "owned", *out, who) : err;
}

int hearth_session_owner(struct hearth_session_store *store, struct hearth_digest who, struct hearth_digest key,
                         bool alone, struct hearth_digest *out) {
    *out = who;
    int err = hearth_session_begin_read(store);
    if (err != HEARTH_OK) {
        return err;
    }
    const int written = get_claim(store->reader, who, out);
    const int found = written == 0 ? find_claim(store->reader, who, key, alone, out) : written;
    err = hearth_session_end_read(store, found < 0 ? found : HEARTH_OK);
    const bool itself = hearth_digest_equal(who, key) && hearth_digest_equal(*out, key); /* nothing to be written */
    if (err != HEARTH_OK || written > 0 || itself) {
        return err;
    }
    err = hearth_session_begin_write(store, NULL);
    return err == HEARTH_OK
               ? hearth_session_end_write(store, write_claim(&store->writer, who, key, alone, out), false, NULL)
               : err;
}

/* ---- what an owner keeps ---- */

/* In a transaction. */
static int read_usage(struct hearth_db *db, struct hearth_digest owner, struct hearth_session_quota *out) {
    *out = (struct hearth_session_quota){0};
    const int found = hearth_db_query(db, OWNER_USAGE, "d", &owner);
    if (found > 0) {
        sqlite3_stmt *statement = db->statements[OWNER_USAGE];
        out->tokens = (uint64_t)sqlite3_column_int64(statement, 0);
        out->bytes = (uint64_t)sqlite3_column_int64(statement, 1);
        out->sessions = (uint64_t)sqlite3_column_int64(statement, 2);
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
    const int err = hearth_session_begin_read(store);
    return err == HEARTH_OK
               ? hearth_session_end_read(store, hearth_session_check_quota(store->reader, owner, quota, session, msg))
               : err;
}

int hearth_session_owner_usage(struct hearth_session_store *store, struct hearth_digest owner,
                               struct hearth_session_quota *out) {
    *out = (struct hearth_session_quota){0};
    const int err = hearth_session_begin_read(store);
    return err == HEARTH_OK ? hearth_session_end_read(store, read_usage(store->reader, owner, out)) : err;
}
