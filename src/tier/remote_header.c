/* Headers of items, as a seek or a get finds them.
 *
 * The store is not trusted: what a header says counts only as far as hearth_format_read() accepts it, and only under
 * the name and the base that it was asked for by. What is not accepted is counted, and removed from the store. */
#include "tier/remote_engine.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

uint64_t hearth_remote_end(const struct hearth_record *record) {
    return (uint64_t)record->kind << 40 | (uint64_t)(record->p0 - record->base_pos) << 20 |
           (uint64_t)(record->p1 - record->base_pos);
}

bool hearth_remote_pad_header(const redisReply *reply, struct hearth_buf *padded) {
    const size_t len = (reply->len + HEARTH_FORMAT_BLOCK - 1) / HEARTH_FORMAT_BLOCK * HEARTH_FORMAT_BLOCK;
    if (!hearth_buf_reserve(padded, len + 1)) {
        return false;
    }
    memcpy(padded->data, reply->str, reply->len);
    memset(padded->data + reply->len, 0, len - reply->len);
    padded->len = len;
    return true;
}

enum hearth_format_verdict hearth_remote_read_header(const struct remote *remote, const redisReply *reply,
                                                     struct hearth_format_info *info) {
    enum hearth_format_verdict verdict = HEARTH_FORMAT_NOMEM;
    struct hearth_buf header = {0};
    if (reply->type != REDIS_REPLY_STRING || reply->len == 0 || reply->len > HEARTH_FORMAT_HEADER_MAX) {
        return HEARTH_FORMAT_DAMAGED;
    }
    if (hearth_remote_pad_header(reply, &header)) {
        verdict = hearth_format_read(header.data, header.len, remote->seal, info);
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

void hearth_remote_count_bad(struct remote *remote) {
    (void)pthread_mutex_lock(&remote->lock);
    const bool first = remote->stats.bad++ == 0;
    (void)pthread_mutex_unlock(&remote->lock);
    if (first) {
        hearth_log(HEARTH_LOG_WARN,
                   "remote: %s holds values that do not verify: they are not used (more of them are only counted)",
                   remote->address.label);
    }
}

bool hearth_remote_read_name(const redisReply *reply, struct hearth_digest *name) {
    return reply->type == REDIS_REPLY_STRING && reply->len == 32 && hearth_digest_parse(reply->str, name);
}

void hearth_remote_see(struct remote_op *op, struct hearth_digest base, const struct hearth_digest *name,
                       const redisReply *header) {
    struct remote *remote = op->link->remote;
    struct hearth_format_info info = {0};
    const enum hearth_format_verdict verdict = hearth_remote_read_header(remote, header, &info);
    if (verdict != HEARTH_FORMAT_GOOD || !name || !hearth_digest_equal(info.record.base, base) ||
        !hearth_digest_equal(info.record.name, *name)) {
        hearth_remote_count_bad(remote);
        hearth_format_info_finish(&info);
        if (name && verdict != HEARTH_FORMAT_NEWER && verdict != HEARTH_FORMAT_NOMEM) {
            hearth_remote_discard(remote, *name, base, 0);
        }
        return;
    }
    struct hearth_record *record = hearth_record_copy(&info.record);
    (void)pthread_mutex_lock(&remote->lock);
    struct remote_known *known =
        record ? hearth_remote_known_add(remote, record->name, base, info.payload_bytes) : NULL;
    const bool again = known && known->seen == op->answer.event.ticket;
    if (known) {
        known->seen = op->answer.event.ticket;
        known->payload_bytes = info.payload_bytes;
        known->end = hearth_remote_end(record);
        hearth_remote_note_page(remote, record, info.payload_bytes);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    hearth_format_info_finish(&info);
    if (!known || again ||
        !hearth_events_tell(&remote->events,
                            &(struct hearth_backing_event){
                                .type = HEARTH_BACKING_FOUND, .name = *name, .record = record, .remote = true})) {
        hearth_record_destroy(record);
    }
}
