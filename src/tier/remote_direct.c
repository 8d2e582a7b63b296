/* Long values go from the socket to where they belong, without a copy.
 *
 * hiredis hands a string over when all of it is in its own buffer, and copies it. This is the function that it reads
 * with: where it has read the length of a string that the next operation wants to have in memory of its own, the rest
 * is read right into that memory, over as many calls as it takes, and hiredis is told that the string is empty:
 *
 *     from the store     $1048576\r\n first bytes | the other bytes \r\n
 *     hiredis reads      $1048576\r\n first bytes                        which are skipped, and then 0\r\n\r\n
 *
 * Invariant: while `left` is not 0, hiredis waits for the rest of one string, and every byte of the socket is of it. */
#include "tier/remote_engine.h"

#include <string.h>

#define LENGTH_MAX 16 /* digits and the line's end */

/* The length of the string for which hiredis waits, if it has read that far; -1: it has not, or waits for something
 * else. `skip`: bytes of the line with the length. */
static long long awaited(const redisReader *reader, size_t *skip) {
    const size_t there = reader->len - reader->pos;
    const char *text = reader->buf + reader->pos;
    const char *end = there > 0 ? memchr(text, '\n', there < LENGTH_MAX ? there : LENGTH_MAX) : NULL;
    long long bytes = 0;
    if (reader->ridx != 0 || reader->task[0]->type != REDIS_REPLY_STRING || !end || end - text < 2) {
        return -1;
    }
    for (; text < end - 1; text++) {
        if (*text < '0' || *text > '9') {
            return -1;
        }
        bytes = bytes * 10 + (*text - '0');
    }
    *skip = (size_t)(end + 1 - (reader->buf + reader->pos));
    return bytes;
}

/* Whether the next bytes are read by this file. */
static bool begin(struct remote_link *link) {
    redisReader *reader = link->context->c.reader;
    const redisCallback *next = link->context->replies.head;
    struct remote_direct *direct = &link->direct;
    size_t skip;
    const long long bytes = awaited(reader, &skip);
    struct hearth_buf *to = bytes > 0 && next && next->fn == link->on_reply && link->task->into
                                ? link->task->into(next->privdata, (size_t)bytes)
                                : NULL;
    const size_t there = to ? reader->len - reader->pos - skip : 0;
    if (!to || there >= (size_t)bytes + 2) {
        return false;
    }
    *direct = (struct remote_direct){.to = to, .bytes = (size_t)bytes, .left = (size_t)bytes + 2 - there};
    memcpy(to->data + to->len, reader->buf + reader->pos + skip, there);
    reader->pos = reader->len;
    return true;
}

static ssize_t raw_read(struct remote_link *link, redisContext *context, char *bytes, size_t size) {
    const ssize_t n = link->read(context, bytes, size);
    link->more = n > 0 && link->remote->ssl;
    return n;
}

ssize_t hearth_remote_direct_read(redisContext *context, char *bytes, size_t size) {
    static const char EMPTY[] = "0\r\n\r\n";
    struct remote_link *link = ((redisAsyncContext *)context)->data; /* whose first member the context is */
    struct remote_direct *direct = &link->direct;
    if (direct->left == 0 && (link->context == NULL || !begin(link))) {
        const ssize_t n = raw_read(link, context, bytes, size);
        link->reply_bytes += n > 0 ? (size_t)n : 0;
        return n;
    }
    struct hearth_buf *to = direct->to;
    const ssize_t n =
        raw_read(link, context, (char *)to->data + to->len + direct->bytes + 2 - direct->left, direct->left);
    if (n <= 0) {
        return n;
    }
    direct->left -= (size_t)n;
    if (direct->left > 0) {
        return 0;
    }
    to->len += direct->bytes;
    memcpy(bytes, EMPTY, sizeof EMPTY - 1);
    return sizeof EMPTY - 1;
}
