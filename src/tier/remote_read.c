/* Seek and get.
 *
 *     SEEK   HGETALL of each block's index, in one go: each header becomes a FOUND; what was known at such a block and
 *            is not in its index any more, a LOST; then SOUGHT
 *     GET    HGET of the header and GET of each chunk, in one go; what is whole and verifies becomes a READ
 *
 * The store is not trusted: what a reply says counts only as far as hearth_format_read() and hearth_format_open()
 * accept it, and only under the name that it was asked for by. */
#include "tier/remote_engine.h"

#include "base/log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESERVED_CHUNKS 64 /* a header may lie about the length */

/* ---- seek ---- */

static void post_found(struct remote *remote, struct hearth_record *record) {
    struct hearth_events_entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        hearth_record_destroy(record);
        return;
    }
    entry->event = (struct hearth_backing_event){
        .type = HEARTH_BACKING_FOUND, .name = record->name, .record = record, .remote = true};
    hearth_events_post(&remote->events, entry);
}

static void post_lost(struct remote *remote, struct hearth_digest name) {
    struct hearth_events_entry *entry = calloc(1, sizeof *entry);
    if (entry) { /* else reading it will be a miss */
        entry->event = (struct hearth_backing_event){.type = HEARTH_BACKING_LOST, .name = name};
        hearth_events_post(&remote->events, entry);
    }
}

/* A header as it is stored, with its padding back. GOOD: it is one of ours. */
static enum hearth_format_verdict read_header(const struct remote *remote, const redisReply *reply,
                                              struct hearth_format_info *info) {
    enum hearth_format_verdict verdict = HEARTH_FORMAT_NOMEM;
    struct hearth_buf header = {0};
    if (reply->type != REDIS_REPLY_STRING || reply->len == 0 || reply->len > HEARTH_FORMAT_HEADER_MAX) {
        return HEARTH_FORMAT_DAMAGED;
    }
    const size_t len = (reply->len + HEARTH_FORMAT_BLOCK - 1) / HEARTH_FORMAT_BLOCK * HEARTH_FORMAT_BLOCK;
    if (hearth_buf_reserve(&header, len)) {
        memcpy(header.data, reply->str, reply->len);
        memset(header.data + reply->len, 0, len - reply->len);
        verdict = hearth_format_read(header.data, len, remote->seal, info);
        bool good = verdict == HEARTH_FORMAT_GOOD && info->readable &&
                    hearth_digest_equal(info->fingerprint, remote->params.fingerprint) &&
                    info->page_tokens == remote->params.page_tokens && info->encrypted == (remote->seal != NULL) &&
                    (remote->params.state_bytes == 0 || info->record.state_bytes <= remote->params.state_bytes);
        if (!good) {
            hearth_format_info_finish(info);
            verdict = verdict == HEARTH_FORMAT_GOOD ? HEARTH_FORMAT_DAMAGED : verdict;
        }
    }
    hearth_buf_finish(&header);
    return verdict;
}

static void count_bad(struct remote *remote) {
    (void)pthread_mutex_lock(&remote->lock);
    const bool first = remote->stats.bad++ == 0;
    (void)pthread_mutex_unlock(&remote->lock);
    if (first) {
        hearth_log(HEARTH_LOG_WARN,
                   "remote: %s holds values that do not verify: they are not used (more of them are only counted)",
                   remote->address.label);
    }
}

/* A name as it stands in an index. False: it is none. */
static bool read_name(const redisReply *reply, struct hearth_digest *name) {
    char hex[33];
    if (reply->type != REDIS_REPLY_STRING || reply->len != 32 ||
        sscanf(reply->str, "%16" SCNx64 "%16" SCNx64, &name->hi, &name->lo) != 2) {
        return false;
    }
    hearth_digest_hex(*name, hex);
    return memcmp(hex, reply->str, 32) == 0;
}

/* One item of a block's index. */
static void see(struct remote *remote, struct hearth_digest base, const redisReply *field, const redisReply *header,
                uint64_t ticket) {
    struct hearth_format_info info = {0};
    struct hearth_digest name;
    const enum hearth_format_verdict verdict = read_header(remote, header, &info);
    const bool named = read_name(field, &name);
    if (verdict != HEARTH_FORMAT_GOOD || !named || !hearth_digest_equal(info.record.base, base) ||
        !hearth_digest_equal(info.record.name, name)) {
        count_bad(remote);
        hearth_format_info_finish(&info);
        if (named && verdict != HEARTH_FORMAT_NEWER && verdict != HEARTH_FORMAT_NOMEM) {
            hearth_remote_discard(remote, name, base, 0);
        }
        return;
    }
    struct hearth_record *record = hearth_record_copy(&info.record);
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known =
        record ? hearth_remote_known_add(remote, record->name, base, info.payload_bytes) : NULL;
    if (known) {
        known->seen = ticket;
        known->payload_bytes = info.payload_bytes;
    }
    (void)pthread_mutex_unlock(&remote->lock);
    hearth_format_info_finish(&info);
    if (known) {
        post_found(remote, record);
    } else {
        hearth_record_destroy(record);
    }
}

/* What was known of a block, and was not in its index. */
static void lose_unseen(struct remote *remote, struct hearth_digest base, uint64_t ticket) {
    (void)pthread_mutex_lock(&remote->lock);
    for (struct hearth_link *link = hearth_table_find(&remote->known_at, base), *next; link; link = next) {
        struct remote_known *known = (struct remote_known *)(void *)((char *)link - offsetof(struct remote_known, at));
        next = hearth_table_next(link);
        if (known->seen != ticket) {
            const struct hearth_digest name = known->entry.link.key;
            hearth_remote_known_remove(remote, known);
            post_lost(remote, name);
        }
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

static void seek_begin(struct remote_op *op) {
    for (size_t i = 0; i < op->n; i++) {
        char key[REMOTE_KEY_BYTES];
        hearth_remote_key_index(op->link->remote, op->bases[i], key);
        const char *argv[] = {"HGETALL", key};
        if (!hearth_remote_send(op, 2, argv, NULL)) {
            return;
        }
    }
}

static void seek_reply(struct remote_op *op, const redisReply *reply) {
    struct remote *remote = op->link->remote;
    const struct hearth_digest base = op->bases[op->answered - 1];
    if (!reply || reply->type != REDIS_REPLY_ARRAY) {
        return;
    }
    const uint64_t ticket = op->answer.event.ticket;
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        see(remote, base, reply->element[i], reply->element[i + 1], ticket);
    }
    lose_unseen(remote, base, ticket);
}

/* ---- get ---- */

static void get_begin(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    const struct remote_known *known = hearth_remote_known_find(remote, op->name);
    op->missing = !known;
    if (known) {
        op->base = known->at.key;
        op->chunks = hearth_remote_chunks(known->payload_bytes);
        const size_t most = op->chunks < RESERVED_CHUNKS ? op->chunks : RESERVED_CHUNKS;
        (void)hearth_buf_reserve(&op->body, most * REMOTE_CHUNK); /* what is longer grows as it comes */
    }
    (void)pthread_mutex_unlock(&remote->lock);
    char key[REMOTE_KEY_BYTES], hex[33];
    if (op->missing) {
        return;
    }
    hearth_digest_hex(op->name, hex);
    hearth_remote_key_index(remote, op->base, key);
    const char *header[] = {"HGET", key, hex};
    bool sent = hearth_remote_send(op, 3, header, NULL);
    for (size_t i = 0; sent && i < op->chunks; i++) {
        hearth_remote_key_chunk(remote, op->name, i, key);
        const char *chunk[] = {"GET", key};
        sent = hearth_remote_send(op, 2, chunk, NULL);
    }
}

static void get_reply(struct remote_op *op, const redisReply *reply) {
    struct hearth_buf *to = op->answered == 1 ? &op->header : &op->body;
    if (!reply || op->missing) {
        return;
    }
    /* What came of one value is bounded by what was asked for: a store that says more is not believed. */
    const size_t most = op->answered == 1 ? HEARTH_FORMAT_HEADER_MAX : REMOTE_CHUNK;
    if (reply->type != REDIS_REPLY_STRING || reply->len > most || !hearth_buf_append(to, reply->str, reply->len)) {
        op->missing = true;
    }
}

/* The item is not used again from here. */
static void forget(struct remote *remote, struct hearth_digest name) {
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known = hearth_remote_known_find(remote, name);
    if (known) {
        hearth_remote_known_remove(remote, known);
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

/* Verifies what came and opens it. */
static int open_item(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    struct hearth_backing_event *event = &op->answer.event;
    struct hearth_format_info info = {0};
    const redisReply header = {.type = REDIS_REPLY_STRING, .len = op->header.len, .str = (char *)op->header.data};
    if (read_header(remote, &header, &info) != HEARTH_FORMAT_GOOD) {
        return HEARTH_ERR_NOT_FOUND;
    }
    int err = HEARTH_ERR_NOT_FOUND;
    if (hearth_digest_equal(info.record.name, op->name) && info.payload_bytes == op->body.len) {
        const enum hearth_format_verdict verdict = hearth_format_open(&info, remote->seal, &op->body, &event->bytes);
        err = verdict == HEARTH_FORMAT_GOOD    ? HEARTH_OK
              : verdict == HEARTH_FORMAT_NOMEM ? HEARTH_ERR_NOMEM
                                               : HEARTH_ERR_NOT_FOUND;
    }
    event->checksum = err == HEARTH_OK ? hearth_checksum(event->bytes.data, event->bytes.len) : 0;
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
        if (event->err == HEARTH_ERR_NOT_FOUND) {
            count_bad(remote);
            hearth_remote_discard(remote, op->name, op->base, op->chunks);
        }
    }
    if (event->err == HEARTH_ERR_NOT_FOUND) {
        forget(remote, op->name);
    }
    if (event->err == HEARTH_OK) {
        (void)pthread_mutex_lock(&remote->lock);
        remote->stats.read++;
        remote->stats.read_bytes += bytes;
        (void)pthread_mutex_unlock(&remote->lock);
    }
}

/* ---- entry ---- */

/* Every reply has come, or will not. */
static void end(struct remote_op *op) {
    if (op->kind == REMOTE_GET) {
        get_end(op);
    }
    hearth_remote_op_leave(op);
    hearth_remote_op_end(op);
}

static void begin(struct remote_op *op) {
    if (op->kind == REMOTE_SEEK) {
        seek_begin(op);
    } else {
        get_begin(op);
    }
    if (op->sent == op->answered) {
        end(op);
    }
}

static void take_reply(struct remote_op *op, const redisReply *reply) {
    if (op->kind == REMOTE_SEEK) {
        seek_reply(op, reply);
    } else {
        get_reply(op, reply);
    }
    if (op->sent == op->answered) {
        end(op);
    }
}

const struct remote_task hearth_remote_reading = {.begin = begin, .replied = take_reply};
