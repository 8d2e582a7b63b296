/* Holds back unfinished characters and possible stop strings. Design in reply.h.
 *
 * Invariant: `held` is no longer than the longest stop string and an unfinished character, so the search after each
 * piece is short. */
#include "sched/reply.h"

#include "base/utf8.h"

#include <string.h>

void hearth_reply_finish(struct hearth_reply *reply) {
    hearth_buf_finish(&reply->held);
    *reply = (struct hearth_reply){0};
}

/* The offset of the first stop string in the held text; its length if there is none. */
static size_t find_stop(const struct hearth_reply *reply, const char **stop) {
    size_t first = reply->held.len;
    *stop = NULL;
    for (size_t i = 0; i < reply->stop_count; i++) {
        size_t len = strlen(reply->stops[i]);
        const uint8_t *at = memmem(reply->held.data, reply->held.len, reply->stops[i], len);
        if (at && (size_t)(at - reply->held.data) < first) {
            first = (size_t)(at - reply->held.data);
            *stop = reply->stops[i];
        }
    }
    return first;
}

/* The length of the longest end of the held text with which a stop string begins. */
static size_t possible_stop(const struct hearth_reply *reply) {
    size_t longest = 0;
    for (size_t i = 0; i < reply->stop_count; i++) {
        size_t len = strlen(reply->stops[i]) - 1;
        if (len > reply->held.len) {
            len = reply->held.len;
        }
        for (; len > longest; len--) {
            if (memcmp(reply->held.data + reply->held.len - len, reply->stops[i], len) == 0) {
                longest = len;
                break;
            }
        }
    }
    return longest;
}

static bool release(struct hearth_reply *reply, size_t len, struct hearth_buf *out) {
    if (len == 0) {
        return true;
    }
    if (!hearth_utf8_append(out, (const char *)reply->held.data, len)) {
        return false;
    }
    memmove(reply->held.data, reply->held.data + len, reply->held.len - len);
    reply->held.len -= len;
    return true;
}

bool hearth_reply_feed(struct hearth_reply *reply, const char *piece, size_t len, struct hearth_buf *out,
                       const char **stop) {
    *stop = NULL;
    if (!hearth_buf_append(&reply->held, piece, len)) {
        return false;
    }
    if (reply->held.len == 0) {
        return true;
    }
    size_t end = find_stop(reply, stop);
    if (*stop) {
        bool ok = release(reply, end, out);
        reply->held.len = 0;
        return ok;
    }
    end -= possible_stop(reply);
    return release(reply, hearth_utf8_complete((const char *)reply->held.data, end), out);
}

bool hearth_reply_flush(struct hearth_reply *reply, struct hearth_buf *out) {
    return release(reply, reply->held.len, out);
}
