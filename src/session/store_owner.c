/* Whose conversations they are: owners with a name, and how much an owner keeps.
 *
 * A named owner stays the same whatever its key is. What it owns is found by a digest, which is written down (in meta)
 * the first time that the name is asked for: the digest that its conversations had before it was known by name, if
 * there are any and no other name has them, else one made of the name. */
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
static int get(struct store_conn *conn, const char *kind, struct hearth_digest of, struct hearth_digest *out) {
    char text[KEY_BYTES];
    const struct hearth_buf key = meta_key(text, kind, of);
    int found = hearth_store_query(conn, META_GET, "b", &key);
    if (found > 0) {
        const int len = sqlite3_column_bytes(conn->statements[META_GET], 0);
        const void *bytes = sqlite3_column_blob(conn->statements[META_GET], 0);
        found = len == (int)sizeof *out ? 1 : 0;
        if (found > 0) {
            memcpy(out, bytes, sizeof *out);
        }
        hearth_store_reset(conn, META_GET);
    }
    return found;
}

static int put(struct store_conn *conn, const char *kind, struct hearth_digest of, struct hearth_digest value) {
    char text[KEY_BYTES];
    const struct hearth_buf key = meta_key(text, kind, of);
    const struct hearth_buf bytes = {.data = (uint8_t *)&value, .len = sizeof value};
    return hearth_store_run(conn, META_PUT, "bb", &key, &bytes);
}

/* Whether `earlier` may become the name's: no other name has it, and (unless it is its own by right) it owns something.
 */
static int is_free(struct store_conn *conn, struct hearth_digest earlier, bool by_right) {
    struct hearth_digest other;
    int64_t row;
    int found = get(conn, "owned", earlier, &other);
    if (found != 0) {
        return found < 0 ? found : 0;
    }
    return by_right ? 1 : hearth_store_number(conn, OWNER_ID, &row, "d", &earlier);
}

static int settle_owner(struct store_conn *conn, struct hearth_digest name, struct hearth_digest earlier, bool by_right,
                        struct hearth_digest *out) {
    int found = is_free(conn, earlier, by_right);
    *out = found > 0 ? earlier : name;
    int err = found < 0 ? found : put(conn, "owner", name, *out);
    return err == HEARTH_OK ? put(conn, "owned", *out, name) : err;
}

int hearth_store_owner(struct hearth_store *store, struct hearth_digest name, struct hearth_digest earlier,
                       bool by_right, struct hearth_digest *out) {
    *out = name;
    int err = hearth_store_begin_read(store);
    if (err != HEARTH_OK) {
        return err;
    }
    int found = get(store->reader, "owner", name, out);
    err = hearth_store_end_read(store, found < 0 ? found : HEARTH_OK);
    if (err != HEARTH_OK || found > 0) {
        return err;
    }
    err = hearth_store_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    found = get(&store->writer, "owner", name, out);
    err = found != 0 ? found : settle_owner(&store->writer, name, earlier, by_right, out);
    return hearth_store_end_write(store, err > 0 ? HEARTH_OK : err, false, NULL);
}

/* ---- what an owner keeps ---- */

/* In a transaction. */
static int read_usage(struct store_conn *conn, struct hearth_digest owner, struct hearth_store_quota *out) {
    *out = (struct hearth_store_quota){0};
    const int found = hearth_store_query(conn, OWNER_USAGE, "d", &owner);
    if (found > 0) {
        sqlite3_stmt *statement = conn->statements[OWNER_USAGE];
        out->tokens = (uint64_t)sqlite3_column_int64(statement, 0);
        out->bytes = (uint64_t)sqlite3_column_int64(statement, 1);
        out->sessions = (uint64_t)sqlite3_column_int64(statement, 2);
        hearth_store_reset(conn, OWNER_USAGE);
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

int hearth_store_check_quota(struct store_conn *conn, struct hearth_digest owner,
                             const struct hearth_store_quota *quota, bool session, struct hearth_errmsg *msg) {
    struct hearth_store_quota has;
    if (quota->tokens == 0 && quota->bytes == 0 && quota->sessions == 0) {
        return HEARTH_OK;
    }
    int err = read_usage(conn, owner, &has);
    err = err == HEARTH_OK ? compare(has.tokens, quota->tokens, "tokens in conversations", msg) : err;
    err = err == HEARTH_OK ? compare(has.bytes, quota->bytes, "bytes of conversations", msg) : err;
    return err == HEARTH_OK && session ? compare(has.sessions, quota->sessions, "conversations", msg) : err;
}

int hearth_store_owner_check(struct hearth_store *store, struct hearth_digest owner,
                             const struct hearth_store_quota *quota, bool session, struct hearth_errmsg *msg) {
    const int err = hearth_store_begin_read(store);
    return err == HEARTH_OK
               ? hearth_store_end_read(store, hearth_store_check_quota(store->reader, owner, quota, session, msg))
               : err;
}

int hearth_store_owner_usage(struct hearth_store *store, struct hearth_digest owner, struct hearth_store_quota *out) {
    *out = (struct hearth_store_quota){0};
    const int err = hearth_store_begin_read(store);
    return err == HEARTH_OK ? hearth_store_end_read(store, read_usage(store->reader, owner, out)) : err;
}
