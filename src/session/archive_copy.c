/* Copies a whole archive into another one, for a server that moves from a file to a database that boxes share.
 *
 * The tree is walked from its roots, a node at a time with all that it has, so that each row is put after those it
 * hangs on, and memory holds no more than the queue does. What does not verify is left out, with all that hangs on it.
 */
#include "session/archive.h"

#include <stdlib.h>

#define ROWS_AT_ONCE 64
#define FLUSH_US 20000000

struct copying {
    struct hearth_archive *from, *to;
    struct hearth_digest *keys; /* nodes whose children are to be copied */
    size_t n, cap;
    uint64_t count;
};

/* All rows of a query, without bodies, newest first; the caller frees them. NULL: none, or out of memory (*err). */
static struct hearth_archive_row *read_all(struct copying *copying, struct hearth_digest key, size_t *n, int *err) {
    struct hearth_archive_row *rows = NULL;
    for (size_t most = ROWS_AT_ONCE;; most *= 4) {
        struct hearth_archive_row *more = realloc(rows, most * sizeof *rows);
        if (!more) {
            free(rows);
            *err = HEARTH_ERR_NOMEM;
            return NULL;
        }
        rows = more;
        *n = hearth_archive_read(copying->from, HEARTH_ARCHIVE_CHILDREN, key, rows, most);
        if (*n < most) {
            return rows;
        }
    }
}

static int put(struct copying *copying, struct hearth_archive_row *rows, size_t n) {
    while (!hearth_archive_has_room(copying->to)) {
        if (!hearth_archive_flush(copying->to, FLUSH_US)) {
            for (size_t i = 0; i < n; i++) {
                hearth_archive_row_finish(&rows[i]);
            }
            return HEARTH_ERR_IO;
        }
    }
    copying->count += n;
    return hearth_archive_put(copying->to, rows, n) ? HEARTH_OK : HEARTH_ERR_NOMEM;
}

/* Copies a node with its replies, the oldest first, and its record. */
static int copy_node(struct copying *copying, struct hearth_digest key) {
    struct hearth_archive_row rows[HEARTH_ARCHIVE_REPLIES_MAX + 2], replies[HEARTH_ARCHIVE_REPLIES_MAX];
    if (hearth_archive_read(copying->from, HEARTH_ARCHIVE_GET_NODE, key, rows, 1) == 0) {
        return HEARTH_OK;
    }
    if (!HEARTH_BUF_ROOM(copying->keys, copying->n, copying->cap)) {
        hearth_archive_row_finish(&rows[0]);
        return HEARTH_ERR_NOMEM;
    }
    copying->keys[copying->n++] = key;
    const size_t n =
        hearth_archive_read(copying->from, HEARTH_ARCHIVE_REPLIES, key, replies, HEARTH_ARCHIVE_REPLIES_MAX);
    for (size_t i = 0; i < n; i++) {
        rows[n - i] = replies[i];
        rows[n - i].newest = true;
    }
    const size_t records = hearth_archive_read(copying->from, HEARTH_ARCHIVE_GET_RECORD, key, &rows[n + 1], 1);
    return put(copying, rows, n + 1 + records);
}

static int copy_children(struct copying *copying, struct hearth_digest key) {
    int err = HEARTH_OK;
    size_t n = 0;
    struct hearth_archive_row *rows = read_all(copying, key, &n, &err);
    for (size_t i = n; i-- > 0 && err == HEARTH_OK;) {
        err = copy_node(copying, rows[i].key);
    }
    free(rows);
    return err;
}

int hearth_archive_copy(struct hearth_archive *from, struct hearth_archive *to, uint64_t *count) {
    struct copying copying = {.from = from, .to = to};
    int err = copy_children(&copying, (struct hearth_digest){0, 0});
    while (err == HEARTH_OK && copying.n > 0) {
        err = copy_children(&copying, copying.keys[--copying.n]);
    }
    struct hearth_archive_stats stats;
    hearth_archive_stats(to, &stats);
    while (err == HEARTH_OK && stats.queued_bytes > 0) {
        err = hearth_archive_flush(to, FLUSH_US) ? HEARTH_OK : HEARTH_ERR_IO;
        hearth_archive_stats(to, &stats);
    }
    free(copying.keys);
    *count = copying.count - stats.dropped;
    return err;
}
