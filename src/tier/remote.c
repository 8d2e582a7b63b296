/* The remote tier: its threads, and the calls of the cache.
 *
 * A call puts an operation into the inbox of the reader or the writer and wakes it; the operation comes back as an
 * event. Seeks and gets are refused while the reader has no connection, so no prompt waits for a store that is gone.
 *
 * Invariant: what was accepted is answered, by hearth_remote_op_end(). */
#include "tier/remote_engine.h"

#include "base/clock.h"
#include "base/health.h"
#include "base/log.h"
#include "base/prefault.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define KNOWN_BYTES ((size_t)64 << 20) /* what is forgotten costs a question, or a put, once more */

static struct remote *remote_of(struct hearth_backing *backing) {
    return (struct remote *)backing;
}

/* ---- the threads ---- */

/* Moves the next operation that may begin from the inbox to what is under way; NULL: none. The writer has one under way
 * at a time. */
static struct remote_op *take(struct remote_link *link, bool *stop) {
    struct remote *remote = link->remote;
    (void)pthread_mutex_lock(&remote->lock);
    const bool busy = link == &remote->writer && !TAILQ_EMPTY(&link->ops);
    struct remote_op *op = busy ? NULL : TAILQ_FIRST(&link->inbox);
    if (op) {
        TAILQ_REMOVE(&link->inbox, op, list);
        TAILQ_INSERT_TAIL(&link->ops, op, list);
    }
    *stop = link->stop;
    (void)pthread_mutex_unlock(&remote->lock);
    return op;
}

static void go_on(struct remote_link *link) {
    if (link->task->go_on) {
        link->task->go_on(link);
    }
}

/* A writer with nothing to write makes memory ready for a page that will be read. */
static bool prefault(struct remote_link *link) {
    struct remote *remote = link->remote;
    if (link != &remote->writer || !TAILQ_EMPTY(&link->ops)) {
        return false;
    }
    (void)pthread_mutex_lock(&remote->lock);
    const size_t bytes = remote->page_bytes;
    (void)pthread_mutex_unlock(&remote->lock);
    return bytes > 0 && hearth_prefault_make(bytes + REMOTE_LINE_END);
}

static void *run(void *user) {
    struct remote_link *link = user;
    const bool reads = link == &link->remote->reader;
    int64_t end_us = 0;
    for (;;) {
        bool stop;
        for (struct remote_op *op; (op = take(link, &stop)) != NULL;) {
            link->task->begin(op);
        }
        go_on(link);
        const int64_t now_us = hearth_clock_us();
        end_us = stop && end_us == 0 ? now_us + (reads ? 0 : HEARTH_BACKING_END_US) : end_us;
        if (stop && (TAILQ_EMPTY(&link->ops) || now_us >= end_us)) {
            break;
        }
        hearth_remote_link_turn(link, stop ? end_us : prefault(link) ? now_us : INT64_MAX);
    }
    hearth_remote_link_close(link); /* what is under way fails */
    go_on(link);
    struct remote_op *op;
    for (bool stop; (op = take(link, &stop)) != NULL;) {
        op->lost = true;
        link->task->begin(op);
    }
    return NULL;
}

static void free_op(struct remote_op *op) {
    if (op) {
        hearth_record_destroy(op->record);
        hearth_remote_seek_destroy(op->seek);
        free(op->names);
        free(op);
    }
}

/* ---- the cache's calls ---- */

static bool remote_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                       const struct hearth_digest *replaces) {
    struct remote *remote = remote_of(backing);
    size_t len = 0;
    if (blob) {
        (void)hearth_blob_data(blob, &len);
    }
    (void)pthread_mutex_lock(&remote->lock);
    const bool takes = remote->writer.state == REMOTE_UP &&
                       remote->stats.queued_bytes + len <= remote->params.queue_bytes &&
                       (!remote->write_failing || hearth_clock_us() >= remote->write_retry_us);
    if (takes && remote->write_failing) {
        remote->write_backoff_us = hearth_backing_backoff_us(remote->write_backoff_us); /* this put tries it */
        remote->write_retry_us = hearth_clock_us() + remote->write_backoff_us;
    }
    remote->stats.queued_bytes += takes ? len : 0;
    (void)pthread_mutex_unlock(&remote->lock);
    struct remote_op *op = takes ? hearth_remote_op_make(REMOTE_PUT, HEARTH_BACKING_WRITTEN, record->name) : NULL;
    if (op) {
        op->base = record->base;
        op->record = hearth_record_copy(record);
        op->replaces = replaces != NULL;
        op->replaced = replaces ? *replaces : op->replaced;
    }
    if (!op || !op->record) {
        free_op(op);
        (void)pthread_mutex_lock(&remote->lock);
        remote->stats.queued_bytes -= takes ? len : 0;
        (void)pthread_mutex_unlock(&remote->lock);
        return false;
    }
    if (blob) {
        hearth_blob_ref(blob);
        op->blob = blob;
    }
    return hearth_remote_submit(&remote->writer, op, false);
}

static bool remote_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct remote *remote = remote_of(backing);
    return hearth_remote_submit(&remote->reader, hearth_remote_op_make(REMOTE_GET, HEARTH_BACKING_READ, name), false);
}

static uint64_t remote_seek(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n) {
    struct remote *remote = remote_of(backing);
    struct remote_op *op = hearth_remote_op_make(REMOTE_SEEK, HEARTH_BACKING_SOUGHT, (struct hearth_digest){0});
    if (op && (op->seek = hearth_remote_seek_make(places, n)) != NULL) {
        const uint64_t ticket = op->answer.event.ticket = ++remote->ticket;
        if (hearth_remote_submit(&remote->reader, op, true)) {
            return ticket;
        }
    }
    free_op(op);
    return 0;
}

static void remote_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct remote *remote = remote_of(backing);
    if (remote->params.ttl_s == 0 || n == 0) {
        return;
    }
    struct remote_op *op = hearth_remote_op_make(REMOTE_TOUCH, HEARTH_BACKING_WRITTEN, (struct hearth_digest){0});
    if (op) {
        op->names = malloc(n * sizeof *op->names);
        op->n = op->names ? n : 0;
        for (size_t i = 0; i < op->n; i++) {
            op->names[i] = touches[i].name;
        }
    }
    if (!hearth_remote_submit(&remote->writer, op, true)) {
        free_op(op); /* out of memory: its next use touches it */
    }
}

static bool remote_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    (void)kind;
    struct remote *remote = remote_of(backing);
    return hearth_remote_submit(&remote->writer, hearth_remote_op_make(REMOTE_REMOVE, HEARTH_BACKING_REMOVED, name),
                                false);
}

static void remote_reject(struct hearth_backing *backing, struct hearth_digest name, const char *why) {
    struct remote *remote = remote_of(backing);
    (void)pthread_mutex_lock(&remote->lock);
    remote->stats.bad++;
    (void)pthread_mutex_unlock(&remote->lock);
    hearth_log(HEARTH_LOG_WARN, "remote: a value of %s is removed: %s", remote->address.label, why);
    struct remote_op *op = hearth_remote_op_make(REMOTE_DISCARD, HEARTH_BACKING_REMOVED, name);
    if (!hearth_remote_submit(&remote->writer, op, true)) {
        free_op(op);
    }
}

void hearth_remote_take_over(struct hearth_backing *backing, struct remote_op *op) {
    struct remote *remote = remote_of(backing), *from = op->link->remote;
    if (op->kind == REMOTE_PUT) {
        size_t len = 0;
        if (op->blob) {
            (void)hearth_blob_data(op->blob, &len);
        }
        (void)pthread_mutex_lock(&from->lock);
        from->stats.queued_bytes -= len;
        (void)hearth_remote_known_add(from, op->name, op->base, len); /* a removal of it goes to the same node */
        (void)pthread_mutex_unlock(&from->lock);
        (void)pthread_mutex_lock(&remote->lock);
        remote->stats.queued_bytes += len;
        (void)pthread_mutex_unlock(&remote->lock);
    }
    hearth_remote_op_drop(op);
    op->hops++;
    op->step = 0;
    op->asked = op->sent = op->answered = 0;
    op->placed = op->lost = op->missing = op->bad = op->moved = op->asks = false;
    (void)hearth_remote_submit(op->kind == REMOTE_GET ? &remote->reader : &remote->writer, op, false);
}

static bool remote_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    return hearth_events_poll(&remote_of(backing)->events, event);
}

static bool remote_wait(struct hearth_backing *backing, int64_t timeout_us) {
    return hearth_news_wait(&remote_of(backing)->events.news, timeout_us);
}

static void remote_set_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    hearth_news_set_wake(&remote_of(backing)->events.news, wake, user);
}

static void remote_stats(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    struct remote *remote = remote_of(backing);
    (void)pthread_mutex_lock(&remote->lock);
    *stats = remote->stats;
    stats->files = remote->known.table.count;
    (void)pthread_mutex_unlock(&remote->lock);
}

/* ---- life ---- */

static void stop(struct remote_link *link) {
    if (!link->has_thread) {
        return;
    }
    (void)pthread_mutex_lock(&link->remote->lock);
    link->stop = true;
    (void)pthread_mutex_unlock(&link->remote->lock);
    (void)eventfd_write(link->wake_fd, 1);
    (void)pthread_join(link->thread, NULL);
}

/* When no thread is left that could wake the other one. */
static void close_wake(struct remote_link *link) {
    if (link->has_thread) {
        (void)close(link->wake_fd);
    }
}

static void remote_destroy(struct hearth_backing *backing) {
    struct remote *remote = remote_of(backing);
    hearth_news_set_wake(&remote->events.news, NULL, NULL);
    stop(&remote->writer);
    stop(&remote->reader);
    hearth_remote_open_stop(remote);
    close_wake(&remote->writer);
    close_wake(&remote->reader);
    if (!remote->params.cluster) {
        hearth_health_clear(HEARTH_HEALTH_KV_REMOTE);
    }
    hearth_events_finish(&remote->events);
    hearth_remote_known_finish(remote);
    hearth_remote_address_finish(&remote->address);
    hearth_seal_destroy(remote->seal);
    if (remote->ssl) {
        redisFreeSSLContext(remote->ssl);
    }
    (void)pthread_cond_destroy(&remote->tried_cond);
    (void)pthread_cond_destroy(&remote->opening_cond);
    (void)pthread_cond_destroy(&remote->opened_cond);
    (void)pthread_mutex_destroy(&remote->lock);
    free(remote);
}

static const struct hearth_backing_ops OPS = {
    .destroy = remote_destroy,
    .put = remote_put,
    .get = remote_get,
    .seek = remote_seek,
    .touch = remote_touch,
    .reject = remote_reject,
    .remove = remote_remove,
    .poll = remote_poll,
    .wait = remote_wait,
    .stats = remote_stats,
    .set_wake = remote_set_wake,
};

static int start(struct remote *remote, struct remote_link *link, const struct remote_task *task) {
    link->remote = remote;
    link->task = task;
    TAILQ_INIT(&link->inbox);
    TAILQ_INIT(&link->ops);
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->has_thread = link->wake_fd >= 0 && pthread_create(&link->thread, NULL, run, link) == 0;
    if (!link->has_thread && link->wake_fd >= 0) {
        (void)close(link->wake_fd);
    }
    return link->has_thread ? HEARTH_OK : HEARTH_ERR_NOMEM;
}

/* Waits for the first connection, so that the first prompt can use the store; a store that works answers within the
 * timeout. */
static void wait_tried(struct remote *remote) {
    const int64_t until_us = hearth_clock_us() + remote->params.timeout_us;
    (void)pthread_mutex_lock(&remote->lock);
    while (!(remote->reader.tried && remote->writer.tried) &&
           hearth_clock_cond_wait(&remote->tried_cond, &remote->lock, until_us)) {
        continue;
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

static int open_keys(struct remote *remote, struct hearth_errmsg *msg) {
    int err = remote->address.tls ? hearth_remote_tls(&remote->address, remote->params.ca_file, &remote->ssl, msg)
                                  : HEARTH_OK;
    if (err != HEARTH_OK || !remote->params.key_file) {
        return err;
    }
    err = hearth_seal_create(remote->params.key_file, &remote->seal, msg);
    if (err == HEARTH_OK) {
        remote->backing.key = hearth_seal_id(remote->seal);
    }
    return err;
}

int hearth_remote_create(const struct hearth_remote_params *params, struct hearth_backing **out,
                         struct hearth_errmsg *msg) {
    struct remote *remote = calloc(1, sizeof *remote);
    if (!remote) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    remote->backing = (struct hearth_backing){.ops = &OPS, .name = "remote"};
    remote->params = *params;
    remote->params.queue_bytes = params->queue_bytes ? params->queue_bytes : HEARTH_BACKING_QUEUE_BYTES;
    remote->model = hearth_model_id(params->fingerprint, params->page_tokens);
    remote->known.budget_bytes = params->known_bytes ? params->known_bytes : KNOWN_BYTES;
    remote->stats.scanned = true;
    hearth_events_init(&remote->events);
    (void)pthread_mutex_init(&remote->lock, NULL);
    hearth_clock_cond_init(&remote->tried_cond);
    (void)pthread_cond_init(&remote->opening_cond, NULL);
    (void)pthread_cond_init(&remote->opened_cond, NULL);
    int err = hearth_events_tell(&remote->events, &(struct hearth_backing_event){.type = HEARTH_BACKING_SCANNED})
                  ? hearth_remote_address_parse(params->url, &remote->address, msg)
                  : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    err = err == HEARTH_OK ? open_keys(remote, msg) : err;
    if (err == HEARTH_OK &&
        (!hearth_remote_open_start(remote) || start(remote, &remote->reader, &hearth_remote_reading) != HEARTH_OK ||
         start(remote, &remote->writer, &hearth_remote_writing) != HEARTH_OK)) {
        err = hearth_fail(msg, HEARTH_ERR_NOMEM, "no thread can be started");
    }
    remote->params.url = remote->params.key_file = remote->params.ca_file = NULL; /* the caller's */
    if (err != HEARTH_OK) {
        remote_destroy(&remote->backing);
        return err;
    }
    wait_tried(remote);
    *out = &remote->backing;
    return HEARTH_OK;
}
