/* Opening what is read, on a thread of its own: a value is decrypted and summed chunk by chunk while the reader takes
 * the next ones from the line.
 *
 * The reader tells of each chunk, and gives the operation away when its last reply has come. A value of one chunk is
 * opened by the reader: handing it over would take longer than opening it. Of several operations the one whose first
 * chunk came first is opened first.
 *
 * Invariants: an operation is in the list from its first chunk until it ends, or is taken back. Its body is the
 * opener's from `opened_bytes` to `arrived_bytes`, and the reader's behind; it moves only while the opener has nothing
 * to do with it (hearth_remote_open_wait()). What comes of an operation counts only as far as hearth_format_open_end()
 * accepts it. */
#include "tier/remote_engine.h"

/* ---- the end of a GET ---- */

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
static int take_state(struct remote_op *op) {
    struct hearth_backing_event *event = &op->answer.event;
    if (op->opened_bytes < op->body.len) { /* of one chunk */
        hearth_format_open_part(op->opening, op->body.data, op->body.len);
    }
    const enum hearth_format_verdict verdict =
        hearth_format_open_end(op->opening, &op->info, &op->body, &event->bytes, &event->checksum);
    op->opening = NULL;
    return verdict == HEARTH_FORMAT_GOOD    ? HEARTH_OK
           : verdict == HEARTH_FORMAT_NOMEM ? HEARTH_ERR_NOMEM
                                            : HEARTH_ERR_STATE;
}

static void end(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    struct hearth_backing_event *event = &op->answer.event;
    const size_t bytes = op->header_len + op->body.len;
    event->err = op->lost ? HEARTH_ERR_IO : op->bad ? HEARTH_ERR_STATE : HEARTH_ERR_NOT_FOUND;
    if (!op->lost && !op->missing) {
        event->err = take_state(op);
    }
    if (event->err == HEARTH_ERR_STATE) {
        hearth_remote_count_bad(remote);
        hearth_remote_discard(remote, op->name, op->base, op->chunks);
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
    }
    hearth_remote_op_end(op);
}

/* ---- the reader's calls ---- */

void hearth_remote_open_tell(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    op->arrived_bytes = op->body.len;
    if (!op->opens) {
        op->opens = true;
        TAILQ_INSERT_TAIL(&remote->opening, op, opening_list);
    }
    (void)pthread_cond_signal(&remote->opening_cond);
    (void)pthread_mutex_unlock(&remote->lock);
}

static void wait_locked(struct remote *remote, const struct remote_op *op) {
    while (op->opened_bytes < op->arrived_bytes) {
        (void)pthread_cond_wait(&remote->opened_cond, &remote->lock);
    }
}

void hearth_remote_open_wait(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    wait_locked(remote, op);
    (void)pthread_mutex_unlock(&remote->lock);
}

static void unlink_locked(struct remote *remote, struct remote_op *op) {
    TAILQ_REMOVE(&remote->opening, op, opening_list);
    op->opens = false;
}

void hearth_remote_open_take_back(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    if (op->opens) {
        wait_locked(remote, op);
        unlink_locked(remote, op);
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

void hearth_remote_open_give(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    const bool opens = op->opens;
    op->came = true;
    (void)pthread_cond_signal(&remote->opening_cond);
    (void)pthread_mutex_unlock(&remote->lock);
    if (!opens) {
        end(op);
    }
}

/* ---- the thread ---- */

/* The oldest operation that there is something to do for. */
static struct remote_op *next_locked(const struct remote *remote) {
    struct remote_op *op = TAILQ_FIRST(&remote->opening);
    while (op && op->opened_bytes == op->arrived_bytes && !op->came) {
        op = TAILQ_NEXT(op, opening_list);
    }
    return op;
}

/* Opens what has arrived, and ends what is whole; the lock is let go of meanwhile. */
static void open_locked(struct remote *remote, struct remote_op *op) {
    const size_t from = op->opened_bytes, to = op->arrived_bytes;
    uint8_t *bytes = op->body.data;
    const bool ends = from == to; /* and it has come */
    if (ends) {
        unlink_locked(remote, op);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    if (ends) {
        end(op);
    } else {
        hearth_format_open_part(op->opening, bytes + from, to - from);
    }
    (void)pthread_mutex_lock(&remote->lock);
    if (!ends) {
        op->opened_bytes = to;
        (void)pthread_cond_signal(&remote->opened_cond);
    }
}

static void *run(void *user) {
    struct remote *remote = user;
    (void)pthread_mutex_lock(&remote->lock);
    for (struct remote_op *op; (op = next_locked(remote)) != NULL || !remote->opening_stop;) {
        if (op) {
            open_locked(remote, op);
        } else {
            (void)pthread_cond_wait(&remote->opening_cond, &remote->lock);
        }
    }
    (void)pthread_mutex_unlock(&remote->lock);
    return NULL;
}

bool hearth_remote_open_start(struct remote *remote) {
    TAILQ_INIT(&remote->opening);
    remote->has_opener = pthread_create(&remote->opener, NULL, run, remote) == 0;
    return remote->has_opener;
}

void hearth_remote_open_stop(struct remote *remote) {
    if (remote->has_opener) {
        (void)pthread_mutex_lock(&remote->lock);
        remote->opening_stop = true;
        (void)pthread_cond_signal(&remote->opening_cond);
        (void)pthread_mutex_unlock(&remote->lock);
        (void)pthread_join(remote->opener, NULL);
    }
}
