/* Seek and get.
 *
 *     SEEK   remote_seek.c asks; each header becomes a FOUND
 *     GET    HGET of the header and GET of each chunk, REMOTE_AHEAD_BYTES ahead of what came; remote_open.c
 *            opens each while the next ones are on their way; what is whole and verifies becomes a READ */
#include "tier/remote_engine.h"

#include "base/prefault.h"

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
    for (struct remote_op *op = link->unsent; op; op = link->unsent = TAILQ_NEXT(op, list)) {
        for (; op->kind == REMOTE_GET && op->asked < op->chunks && !op->missing && !op->lost; op->asked++) {
            char key[REMOTE_KEY_BYTES];
            const size_t bytes = chunk_bytes(op, op->asked);
            if (link->ahead_bytes > 0 && link->ahead_bytes + bytes > REMOTE_AHEAD_BYTES) {
                return;
            }
            hearth_remote_key_chunk(&link->remote->model, op->base, op->name, op->asked, key);
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
    (void)pthread_mutex_unlock(&remote->lock);
    char key[REMOTE_KEY_BYTES], hex[33];
    if (op->missing) {
        return;
    }
    op->chunks = hearth_remote_chunks(op->payload_bytes);
    hearth_digest_hex(op->name, hex);
    hearth_remote_key_block(&remote->model, REMOTE_INDEX, op->base, key);
    const char *header[] = {"HGET", key, hex};
    if (hearth_remote_send(op, 3, header, NULL) && !op->link->unsent) {
        op->link->unsent = op;
    }
}

/* Room for a chunk, behind what is being opened. The body's address is the opener's to read, and changes only while it
 * has nothing to open. False: out of memory. */
static bool make_room(struct remote_op *op, size_t bytes) {
    if (op->body.cap - op->body.len >= bytes + REMOTE_LINE_END) {
        return true;
    }
    hearth_remote_open_wait(op);
    return hearth_buf_reserve(&op->body, bytes + REMOTE_LINE_END);
}

static struct hearth_buf *get_into(struct remote_op *op, size_t bytes) {
    const bool fits =
        op->kind == REMOTE_GET && op->opening && !op->missing && bytes <= REMOTE_CHUNK && make_room(op, bytes);
    op->placed = fits;
    return fits ? &op->body : NULL;
}

/* With the header the payload can be verified and opened as it comes. */
static void take_header(struct remote_op *op, const redisReply *header) {
    const struct remote *remote = op->link->remote;
    struct hearth_format_info *info = &op->info;
    op->header_len = header->len;
    op->bad = hearth_remote_read_header(remote, header, info) != HEARTH_FORMAT_GOOD ||
              !hearth_digest_equal(info->record.name, op->name);
    const bool as_known = !op->bad && info->payload_bytes == op->payload_bytes; /* else it was written anew */
    op->opening = as_known ? hearth_format_open_begin(info, remote->seal) : NULL;
    op->missing = !op->opening;
    const uint64_t most = RESERVED_CHUNKS * REMOTE_CHUNK;
    const size_t room = (size_t)(op->payload_bytes < most ? op->payload_bytes : most) + REMOTE_LINE_END;
    uint8_t *body = op->opening ? hearth_prefault_take(room) : NULL;
    op->body = (struct hearth_buf){.data = body, .cap = body ? room : 0}; /* a longer payload grows as it comes */
}

static void take_chunk(struct remote_op *op, const redisReply *chunk) {
    op->missing = !op->placed && !make_room(op, chunk->len);
    if (!op->missing && !op->placed) {
        memcpy(op->body.data + op->body.len, chunk->str, chunk->len);
        op->body.len += chunk->len;
    }
    op->placed = false;
    if (!op->missing && op->chunks > 1) {
        hearth_remote_open_tell(op);
    }
}

static void get_reply(struct remote_op *op, const redisReply *reply) {
    const bool is_header = op->answered == 1;
    if (!is_header) {
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
    const size_t most = is_header ? HEARTH_FORMAT_HEADER_MAX : REMOTE_CHUNK;
    op->missing = reply->type != REDIS_REPLY_STRING || reply->len > most || (!is_header && !op->opening);
    if (is_header && !op->missing) {
        take_header(op, reply);
    } else if (!op->missing) {
        take_chunk(op, reply);
    }
}

/* ---- entry ---- */

/* Ends an operation when its replies have come, or will not come. That the store can be read is noted here, on the
 * thread that hears of refusals, in the order of the replies. */
static void end(struct remote_op *op) {
    const bool gets = op->kind == REMOTE_GET;
    hearth_remote_op_leave(op);
    if (gets && op->moved) {
        hearth_remote_open_take_back(op);
    }
    if (gets && hearth_remote_pass(op)) {
        return;
    }
    if (!op->lost && !(gets ? op->missing : op->answer.event.elsewhere)) {
        hearth_remote_works(op->link->remote, op->kind);
    }
    if (gets) {
        hearth_remote_open_give(op);
        return;
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
    for (struct remote_op *op = TAILQ_FIRST(&link->ops), *next; op; op = next) {
        next = TAILQ_NEXT(op, list);
        op->lost = true;
        if (ended(op)) {
            end(op);
        }
    }
}

const struct remote_task hearth_remote_reading = {
    .begin = begin, .replied = take_reply, .into = get_into, .go_on = go_on};
