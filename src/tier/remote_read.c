/* Seek and get.
 *
 *     SEEK   remote_seek.c asks; each header becomes a FOUND
 *     GET    HGET of the header and GET of each chunk, REMOTE_AHEAD_BYTES ahead of what came; what is whole and
 *            verifies becomes a READ
 *
 * What is read counts only as far as hearth_format_open() accepts it. */
#include "tier/remote_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESERVED_CHUNKS 64 /* room that is reserved at once, since a header may lie about the length */

/* ---- get ---- */

static size_t chunk_bytes(const struct remote_op *op, size_t chunk) {
    const uint64_t left = op->payload_bytes - (uint64_t)chunk * REMOTE_CHUNK;
    return left < REMOTE_CHUNK ? (size_t)left : REMOTE_CHUNK;
}

/* Asks for chunks in the order of the operations, a bounded number of bytes ahead of what has come. */
static void ask_on(struct remote_link *link) {
    for (struct remote_op *op = link->unsent; op; op = link->unsent = op->next) {
        for (; op->kind == REMOTE_GET && op->asked < op->chunks && !op->missing && !op->lost; op->asked++) {
            char key[REMOTE_KEY_BYTES];
            const size_t bytes = chunk_bytes(op, op->asked);
            if (link->ahead_bytes > 0 && link->ahead_bytes + bytes > REMOTE_AHEAD_BYTES) {
                return;
            }
            hearth_remote_key_chunk(link->remote, op->base, op->name, op->asked, key);
            const char *chunk[] = {"GET", key};
            link->ahead_bytes += hearth_remote_send(op, 2, chunk, NULL) ? bytes : 0;
        }
    }
}

static void get_begin(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    const struct remote_known *known = hearth_remote_known_find(remote, op->name);
    op->missing = !known && op->hops == 0; /* an operation that was passed on finds out by itself */
    if (known) {
        op->base = known->at.key;
        op->payload_bytes = known->payload_bytes;
    }
    if (!op->missing) {
        op->chunks = hearth_remote_chunks(op->payload_bytes);
        const size_t most = op->chunks < RESERVED_CHUNKS ? op->chunks * REMOTE_CHUNK : RESERVED_CHUNKS * REMOTE_CHUNK;
        const size_t bytes = op->payload_bytes < most ? (size_t)op->payload_bytes : most;
        (void)hearth_buf_reserve_large(&op->body, bytes + 2); /* a longer payload grows as it comes */
    }
    (void)pthread_mutex_unlock(&remote->lock);
    char key[REMOTE_KEY_BYTES], hex[33];
    if (op->missing) {
        return;
    }
    hearth_digest_hex(op->name, hex);
    hearth_remote_key_block(remote, REMOTE_INDEX, op->base, key);
    const char *header[] = {"HGET", key, hex};
    if (hearth_remote_send(op, 3, header, NULL) && !op->link->unsent) {
        op->link->unsent = op;
    }
}

static struct hearth_buf *get_into(struct remote_op *op, size_t bytes) {
    const bool fits = op->kind == REMOTE_GET && op->answered > 0 && !op->missing && bytes <= REMOTE_CHUNK &&
                      hearth_buf_reserve(&op->body, bytes + 2);
    op->placed = fits;
    return fits ? &op->body : NULL;
}

static void get_reply(struct remote_op *op, const redisReply *reply) {
    struct hearth_buf *to = op->answered == 1 ? &op->header : &op->body;
    if (op->answered > 1) {
        op->link->ahead_bytes -= chunk_bytes(op, op->answered - 2);
    }
    if (!reply || op->missing) {
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR) { /* the value may be there all the same */
        if (!hearth_remote_moved(op, reply->str) && !op->lost) {
            hearth_remote_refused(op->link->remote, REMOTE_GET, reply->str);
        }
        op->lost = true;
        return;
    }
    /* A value is at most as long as what was asked for: a store that says otherwise is not believed. */
    const size_t most = op->answered == 1 ? HEARTH_FORMAT_HEADER_MAX : REMOTE_CHUNK;
    if (reply->type != REDIS_REPLY_STRING || reply->len > most ||
        (!op->placed && !hearth_buf_append(to, reply->str, reply->len))) {
        op->missing = true;
    }
    op->placed = false;
}

/* Forgets the item, which is not used again. */
static void forget(struct remote *remote, struct hearth_digest name) {
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known = hearth_remote_known_find(remote, name);
    if (known) {
        hearth_remote_known_remove(remote, known);
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

/* Verifies and opens what came. */
static int open_item(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    struct hearth_backing_event *event = &op->answer.event;
    struct hearth_format_info info = {0};
    const redisReply header = {.type = REDIS_REPLY_STRING, .len = op->header.len, .str = (char *)op->header.data};
    if (hearth_remote_read_header(remote, &header, &info) != HEARTH_FORMAT_GOOD) {
        return HEARTH_ERR_STATE;
    }
    int err = HEARTH_ERR_STATE;
    if (hearth_digest_equal(info.record.name, op->name) && info.payload_bytes == op->body.len) {
        const enum hearth_format_verdict verdict = hearth_format_open(&info, remote->seal, &op->body, &event->bytes);
        err = verdict == HEARTH_FORMAT_GOOD    ? HEARTH_OK
              : verdict == HEARTH_FORMAT_NOMEM ? HEARTH_ERR_NOMEM
                                               : HEARTH_ERR_STATE;
    }
    const bool plain = !info.encrypted && !info.compressed; /* then the payload is the state, and was just verified */
    event->checksum = err != HEARTH_OK ? 0
                      : plain          ? info.payload_checksum
                                       : hearth_checksum(event->bytes.data, event->bytes.len);
    hearth_format_info_finish(&info);
    return err;
}

static void get_end(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    struct hearth_backing_event *event = &op->answer.event;
    const size_t bytes = op->header.len + op->body.len;
    event->err = op->lost ? HEARTH_ERR_IO : HEARTH_ERR_NOT_FOUND;
    if (!op->lost && !op->missing) {
        event->err = open_item(op);
        if (event->err == HEARTH_ERR_STATE) {
            hearth_remote_count_bad(remote);
            hearth_remote_discard(remote, op->name, op->base, op->chunks);
        }
    }
    if (event->err == HEARTH_ERR_NOT_FOUND || event->err == HEARTH_ERR_STATE) {
        forget(remote, op->name);
    }
    if (event->err == HEARTH_OK) {
        (void)pthread_mutex_lock(&remote->lock);
        if (op->hops > 0) {
            (void)hearth_remote_known_add(remote, op->name, op->base, op->payload_bytes);
        }
        remote->stats.read++;
        remote->stats.read_bytes += bytes;
        (void)pthread_mutex_unlock(&remote->lock);
        hearth_remote_works(remote, REMOTE_GET);
    }
}

/* ---- entry ---- */

/* Ends an operation when its replies have come, or will not come. */
static void end(struct remote_op *op) {
    hearth_remote_op_leave(op);
    if (op->kind == REMOTE_GET && hearth_remote_pass(op)) {
        return;
    }
    if (op->kind == REMOTE_GET) {
        get_end(op);
    } else if (!op->lost && !op->answer.event.elsewhere) {
        hearth_remote_works(op->link->remote, REMOTE_SEEK);
    }
    hearth_remote_seek_destroy(op->seek);
    op->seek = NULL;
    hearth_remote_op_end(op);
}

static bool ended(const struct remote_op *op) {
    return op->sent == op->answered && (op->lost || op->missing || op->asked == op->chunks);
}

static void begin(struct remote_op *op) {
    if (op->kind == REMOTE_SEEK) {
        hearth_remote_seek_begin(op);
    } else {
        get_begin(op);
    }
    if (ended(op)) {
        end(op);
    }
}

static void take_reply(struct remote_op *op, const redisReply *reply) {
    if (op->kind == REMOTE_SEEK) {
        hearth_remote_seek_reply(op, reply);
    } else {
        get_reply(op, reply);
    }
    if (ended(op)) {
        end(op);
    }
}

/* Ends the operations that wait without having asked for anything, when there is no connection. */
static void go_on(struct remote_link *link) {
    if (link->state == REMOTE_UP) {
        ask_on(link);
        return;
    }
    for (struct remote_op *op = link->ops, *next; op; op = next) {
        next = op->next;
        op->lost = true;
        if (ended(op)) {
            end(op);
        }
    }
}

const struct remote_task hearth_remote_reading = {
    .begin = begin, .replied = take_reply, .into = get_into, .go_on = go_on};
