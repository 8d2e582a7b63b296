/* Put, remove, touch.
 *
 *     PUT      0. HEXISTS of the header, SISMEMBER of its end, EXISTS of all chunks: what another box has written is
 *                 not sent again
 *              1. SET of each chunk
 *              2. SADD of the end, HSET of the cover, HSET of the header, and what the item replaces goes
 *     REMOVE   HDEL of header and cover, UNLINK of the chunks
 *     TOUCH    EXPIRE of what a block has and of the chunks, when much of their time has passed
 *
 * A store that refuses to write (full, a read-only replica, a disk of its own that failed) goes on being read: writing
 * is suspended and tried again with the next put after a while.
 *
 * In a cluster an operation goes to the node that has the slot, but a PUT while the slot is on its way there: a key
 * that the old node still has, written at the new one, would be in the way of the move. Each command has one key, since
 * what names several is refused while a slot moves. */
#include "tier/remote_engine.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An item is touched again when one part in so many of its time to live has passed. With more parts, most uses would
 * cost commands; with fewer, what is used now and then would be gone. How much has passed of what another box has
 * written is not known here: its first use touches it. */
#define TOUCH_SHARE 8

/* ---- commands ---- */

static bool send_expire_key(struct remote_op *op, const char *key) {
    char ttl[24];
    const char *argv[] = {"EXPIRE", key, ttl};
    (void)snprintf(ttl, sizeof ttl, "%lld", (long long)op->link->remote->params.ttl_s);
    return op->link->remote->params.ttl_s == 0 || hearth_remote_send(op, 3, argv, NULL);
}

/* Expires all values of a block except chunks. */
static bool send_expire_block(struct remote_op *op) {
    static const enum remote_key KINDS[] = {REMOTE_INDEX, REMOTE_ENDS, REMOTE_COVERS};
    bool sent = true;
    for (size_t i = 0; sent && i < sizeof KINDS / sizeof *KINDS; i++) {
        char key[REMOTE_KEY_BYTES];
        hearth_remote_key_block(&op->link->remote->model, KINDS[i], op->base, key);
        sent = send_expire_key(op, key);
    }
    return sent;
}

/* A command on each of an item's chunks. */
static void send_chunk_keys(struct remote_op *op, const char *command, struct hearth_digest name, size_t chunks) {
    for (size_t i = 0; i < chunks; i++) {
        char key[REMOTE_KEY_BYTES];
        const char *argv[] = {command, key};
        hearth_remote_key_chunk(&op->link->remote->model, op->base, name, i, key);
        (void)hearth_remote_send(op, 2, argv, NULL);
    }
}

/* A command on the item's field of a hash of its block. */
static bool send_field(struct remote_op *op, const char *command, enum remote_key kind, struct hearth_digest name) {
    char key[REMOTE_KEY_BYTES], hex[33];
    const char *argv[] = {command, key, hex};
    hearth_remote_key_block(&op->link->remote->model, kind, op->base, key);
    hearth_digest_hex(name, hex);
    return hearth_remote_send(op, 3, argv, NULL);
}

/* A command on the item's end. */
static bool send_end(struct remote_op *op, const char *command) {
    char key[REMOTE_KEY_BYTES], end[24];
    const char *argv[] = {command, key, end};
    hearth_remote_key_block(&op->link->remote->model, REMOTE_ENDS, op->base, key);
    (void)snprintf(end, sizeof end, "%" PRIu64, hearth_remote_end(op->record));
    return hearth_remote_send(op, 3, argv, NULL);
}

/* ---- put ---- */

static const void *payload(const struct remote_op *op, size_t *len) {
    if (op->body.len > 0 || !op->blob) {
        *len = op->body.len;
        return op->body.data;
    }
    return hearth_blob_data(op->blob, len);
}

static bool encode(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    size_t len = 0;
    const void *state = op->blob ? hearth_blob_data(op->blob, &len) : NULL;
    const struct hearth_format_params params = {.fingerprint = remote->params.fingerprint,
                                                .page_tokens = remote->params.page_tokens,
                                                .seal = remote->seal,
                                                .compress = remote->params.compress};
    if ((op->blob && !hearth_blob_verifies(op->blob)) ||
        hearth_format_write(&params, op->record, state, len, &op->header, &op->body) != HEARTH_OK) {
        return false;
    }
    while (op->header.len > 0 && op->header.data[op->header.len - 1] == 0) {
        op->header.len--; /* the padding */
    }
    (void)payload(op, &len);
    op->chunks = hearth_remote_chunks(len);
    return true;
}

static void send_chunks(struct remote_op *op) {
    size_t len;
    const char *bytes = payload(op, &len);
    char key[REMOTE_KEY_BYTES], ttl[24];
    (void)snprintf(ttl, sizeof ttl, "%lld", (long long)op->link->remote->params.ttl_s);
    for (size_t i = 0; i < op->chunks; i++) {
        const size_t at = i * REMOTE_CHUNK, n = len - at < REMOTE_CHUNK ? len - at : REMOTE_CHUNK;
        hearth_remote_key_chunk(&op->link->remote->model, op->base, op->name, i, key);
        const char *argv[] = {"SET", key, bytes + at, "EX", ttl};
        const size_t lens[] = {3, strlen(key), n, 2, strlen(ttl)};
        if (!hearth_remote_send(op, op->link->remote->params.ttl_s > 0 ? 5 : 3, argv, lens)) {
            return;
        }
    }
}

static bool send_cover(struct remote_op *op, const char *command, const char *field, struct hearth_digest name) {
    char key[REMOTE_KEY_BYTES], hex[33];
    const char *argv[] = {command, key, field, hex};
    hearth_remote_key_block(&op->link->remote->model, REMOTE_COVERS, op->base, key);
    hearth_digest_hex(name, hex);
    return hearth_remote_send(op, 4, argv, NULL);
}

static bool send_covers(struct remote_op *op, const char name[33]) {
    const struct hearth_record *record = op->record;
    char old[33];
    hearth_digest_hex(op->replaced, old);
    const bool first = record->kind == HEARTH_RECORD_PAGE && record->p0 == record->base_pos;
    return (hearth_digest_is_zero(record->cover) || send_cover(op, "HSET", name, record->cover)) &&
           (!first || send_cover(op, "HSETNX", REMOTE_FIRST, op->name)) &&
           (!op->replaces || send_cover(op, "HSET", old, op->name));
}

static void send_header(struct remote_op *op) {
    char key[REMOTE_KEY_BYTES], hex[33];
    hearth_remote_key_block(&op->link->remote->model, REMOTE_INDEX, op->base, key);
    hearth_digest_hex(op->name, hex);
    const char *argv[] = {"HSET", key, hex, (const char *)op->header.data};
    const size_t lens[] = {4, strlen(key), 32, op->header.len};
    if (!send_end(op, "SADD") || !send_covers(op, hex) || !hearth_remote_send(op, 4, argv, lens) ||
        !send_expire_block(op) || !op->replaces) {
        return;
    }
    struct remote *remote = op->link->remote;
    size_t chunks = 0;
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *old = hearth_remote_known_find(remote, op->replaced);
    if (old) {
        chunks = hearth_remote_chunks(old->payload_bytes);
        hearth_remote_known_remove(remote, old);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    if (send_field(op, "HDEL", REMOTE_INDEX, op->replaced)) {
        send_chunk_keys(op, "UNLINK", op->replaced, chunks);
    }
}

static void note_written(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    size_t len;
    (void)payload(op, &len);
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known = hearth_remote_known_add(remote, op->name, op->base, len);
    if (known) {
        known->end = hearth_remote_end(op->record);
        known->touched_us = op->missing ? hearth_clock_us() : known->touched_us;
        hearth_remote_note_page(remote, op->record, len);
    }
    if (!op->missing) {
        remote->stats.deduplicated++;
    } else {
        remote->stats.written++;
        remote->stats.written_bytes += len + op->header.len;
    }
    (void)pthread_mutex_unlock(&remote->lock);
    if (op->missing) { /* what was there already says nothing of writing */
        hearth_remote_works(remote, REMOTE_PUT);
    }
}

/* Sends the next commands of a put when all replies have come. True: the operation goes on. */
static bool put_next(struct remote_op *op) {
    if (op->lost || (op->step == 0 && !op->missing) || op->step == 2) {
        return false;
    }
    op->step++;
    if (op->step == 1) {
        send_chunks(op);
        op->step += op->chunks == 0;
    }
    if (op->step == 2) {
        send_header(op);
    }
    return op->sent > op->answered;
}

/* ---- touch ---- */

static void touch_begin(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    const int64_t now_us = hearth_clock_us(), ttl_us = remote->params.ttl_s * 1000000;
    for (size_t i = 0; i < op->n; i++) {
        char key[REMOTE_KEY_BYTES];
        size_t chunks = 0;
        (void)pthread_mutex_lock(&remote->lock);
        struct remote_known *known = hearth_remote_known_find(remote, op->names[i]);
        const bool due = known && (known->touched_us == 0 || now_us - known->touched_us >= ttl_us / TOUCH_SHARE);
        if (due) {
            known->touched_us = now_us;
            op->base = known->at.key;
            chunks = hearth_remote_chunks(known->payload_bytes);
        }
        (void)pthread_mutex_unlock(&remote->lock);
        bool sent = due && send_expire_block(op);
        for (size_t k = 0; sent && k < chunks; k++) {
            hearth_remote_key_chunk(&remote->model, op->base, op->names[i], k, key);
            sent = send_expire_key(op, key);
        }
    }
}

/* ---- remove ---- */

static void remove_begin(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known = hearth_remote_known_find(remote, op->name);
    const bool there = known != NULL || !hearth_digest_is_zero(op->base);
    if (known) {
        op->base = known->at.key;
        op->chunks = hearth_remote_chunks(known->payload_bytes);
        hearth_remote_known_remove(remote, known);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    if (there && send_field(op, "HDEL", REMOTE_COVERS, op->name) && send_field(op, "HDEL", REMOTE_INDEX, op->name)) {
        send_chunk_keys(op, "UNLINK", op->name, op->chunks);
    }
}

/* ---- entry ---- */

static void end(struct remote_op *op) {
    struct hearth_backing_event *event = &op->answer.event;
    struct remote *remote = op->link->remote;
    hearth_remote_op_leave(op);
    if (op->kind != REMOTE_TOUCH && !(op->kind == REMOTE_PUT && op->asks) && hearth_remote_pass(op)) {
        return;
    }
    if (op->kind == REMOTE_PUT) {
        event->type = op->lost ? HEARTH_BACKING_DROPPED : HEARTH_BACKING_WRITTEN;
        size_t len = 0;
        if (op->blob) {
            (void)hearth_blob_data(op->blob, &len);
        }
        if (!op->lost) {
            note_written(op);
        }
        (void)pthread_mutex_lock(&remote->lock);
        remote->stats.queued_bytes -= len;
        remote->stats.dropped += op->lost;
        (void)pthread_mutex_unlock(&remote->lock);
    } else {
        event->err = op->lost ? HEARTH_ERR_IO : HEARTH_OK;
    }
    hearth_remote_op_end(op);
}

static void go_on(struct remote_op *op) {
    if (op->sent == op->answered && !(op->kind == REMOTE_PUT && put_next(op))) {
        end(op);
    }
}

static void begin(struct remote_op *op) {
    switch (op->kind) {
    case REMOTE_PUT:
        op->lost = op->link->state != REMOTE_UP || !encode(op);
        if (!op->lost && send_field(op, "HEXISTS", REMOTE_INDEX, op->name) && send_end(op, "SISMEMBER")) {
            send_chunk_keys(op, "EXISTS", op->name, op->chunks);
        }
        break;
    case REMOTE_TOUCH: touch_begin(op); break;
    default: remove_begin(op); break;
    }
    go_on(op);
}

static void take_reply(struct remote_op *op, const redisReply *reply) {
    if (reply && reply->type == REDIS_REPLY_ERROR) {
        if (!hearth_remote_moved(op, reply->str) && !op->lost) {
            hearth_remote_refused(op->link->remote, op->kind, reply->str);
        }
        op->lost = true;
    } else if (reply && op->kind == REMOTE_PUT && op->step == 0) {
        op->missing = op->missing || reply->type != REDIS_REPLY_INTEGER || reply->integer != 1;
    }
    go_on(op);
}

const struct remote_task hearth_remote_writing = {.begin = begin, .replied = take_reply};
