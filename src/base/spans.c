/* Spans: the ring, the thread, the file. See spans.h.
 *
 * The file begins with "[", each event is an object on a line of its own behind a comma, and "]" ends it. The format
 * lets the end be missing; whole lines are handed to write(), so that a process that is killed leaves whole events.
 * After an error of write() nothing more is written.
 *
 * Invariants: `n` events are in the ring from `first` on; only the thread takes them out; `json` belongs to the ring
 * until then. */
#include "base/spans.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING 16384
#define SLICE 1024
#define EVERY_US 100000

static struct {
    atomic_bool on;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    struct hearth_span *ring;
    size_t first, n;
    uint64_t dropped; /* since it was last said */
    bool stopping, told, failed;
    int fd;
    uint32_t lanes;
    uint64_t limit_bytes, written;
    struct hearth_buf text;
} spans = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

bool hearth_spans_on(void) {
    return atomic_load_explicit(&spans.on, memory_order_relaxed);
}

void hearth_span_put(const struct hearth_span *span) {
    bool taken = false;
    pthread_mutex_lock(&spans.mutex);
    if (spans.ring != NULL && !spans.stopping) {
        taken = spans.n < RING;
        if (taken) {
            spans.ring[(spans.first + spans.n++) % RING] = *span;
        } else {
            spans.dropped++;
        }
        if (spans.n == RING / 2) {
            pthread_cond_signal(&spans.wake);
        }
    }
    pthread_mutex_unlock(&spans.mutex);
    if (!taken) {
        free(span->json);
    }
}

/* ---- text ---- */

static bool print_args(const struct hearth_span *span, struct hearth_buf *out) {
    bool ok = hearth_buf_text(out, ",\"args\":{");
    const char *comma = "";
    for (size_t i = 0; i < HEARTH_SPAN_ARGS && span->args[i].name != NULL; i++) {
        ok = ok && hearth_buf_printf(out, "%s\"%s\":%" PRId64, comma, span->args[i].name, span->args[i].value);
        comma = ",";
    }
    if (span->json != NULL && span->json[0] != '\0') {
        ok = ok && hearth_buf_text(out, comma) && hearth_buf_text(out, span->json);
    }
    return ok && hearth_buf_text(out, "}");
}

/* One event: a whole span, or with an id one end of it. */
static bool print_event(const struct hearth_span *span, char phase, struct hearth_buf *out) {
    const bool end = phase == 'e';
    bool ok = hearth_buf_printf(out, ",\n{\"ph\":\"%c\",\"name\":\"%s\",\"pid\":1,\"tid\":%d,\"ts\":%" PRId64, phase,
                                span->name, span->track, end ? span->ended_us : span->begun_us);
    if (phase == 'X') {
        ok = ok && hearth_buf_printf(out, ",\"dur\":%" PRId64, span->ended_us - span->begun_us);
    } else if (phase != 'i') {
        ok = ok && hearth_buf_printf(out, ",\"cat\":\"%s\",\"id\":\"%s\"", span->category, span->id);
    }
    return ok && (end || print_args(span, out)) && hearth_buf_text(out, phase == 'i' ? ",\"s\":\"g\"}" : "}");
}

static bool print_span(const struct hearth_span *span, struct hearth_buf *out) {
    return span->id[0] == '\0' ? print_event(span, 'X', out)
                               : print_event(span, 'b', out) && print_event(span, 'e', out);
}

static bool print_name(int track, const char *name, int number, struct hearth_buf *out) {
    return hearth_buf_printf(out,
                             ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s",
                             track, name) &&
           (number < 0 || hearth_buf_printf(out, " %d", number)) && hearth_buf_text(out, "\"}}") &&
           hearth_buf_printf(
               out,
               ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":1,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
               track, track);
}

static bool print_head(uint32_t lanes, struct hearth_buf *out) {
    bool ok =
        hearth_buf_text(
            out, "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"hearth\"}}") &&
        print_name(HEARTH_TRACK_SERVICE, "service", -1, out) && print_name(HEARTH_TRACK_DISK, "disk writer", -1, out);
    for (uint32_t i = 0; ok && i < lanes; i++) {
        ok = print_name(HEARTH_TRACK_LANES + (int)i, "lane", (int)i, out);
    }
    return ok;
}

/* ---- the file ---- */

static bool write_all(int fd, const struct hearth_buf *text) {
    for (size_t at = 0; at < text->len;) {
        const ssize_t n = write(fd, text->data + at, text->len - at);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* A file at its limit is emptied: what happened last is what is looked for. */
static void begin_again(void) {
    struct hearth_buf head = {0};
    if (spans.failed || spans.written + spans.text.len <= spans.limit_bytes || ftruncate(spans.fd, 0) != 0 ||
        lseek(spans.fd, 0, SEEK_SET) != 0) {
        return;
    }
    hearth_log(HEARTH_LOG_INFO, "trace: the file had %" PRIu64 " bytes and is begun again", spans.written);
    spans.failed = !print_head(spans.lanes, &head) || !write_all(spans.fd, &head);
    spans.written = head.len;
    hearth_buf_finish(&head);
}

static void flush_text(void) {
    begin_again();
    if (!spans.failed && !write_all(spans.fd, &spans.text)) {
        spans.failed = true;
        hearth_log(HEARTH_LOG_WARN, "trace: the file cannot be written (%s): nothing more is", strerror(errno));
    }
    spans.written += spans.text.len;
    spans.text.len = 0;
}

static void say_dropped(uint64_t dropped) {
    const int64_t now_us = hearth_clock_us();
    const struct hearth_span said = {.track = HEARTH_TRACK_SERVICE,
                                     .name = "dropped spans",
                                     .begun_us = now_us,
                                     .ended_us = now_us,
                                     .args = {{"spans", (int64_t)dropped}}};
    if (dropped > 0) {
        (void)print_event(&said, 'i', &spans.text);
    }
    if (dropped > 0 && !spans.told) {
        hearth_log(HEARTH_LOG_WARN, "trace: more happens than can be written: spans are missing");
        spans.told = true;
    }
}

/* Takes at most a slice out of the ring. */
static size_t take(struct hearth_span *out, uint64_t *dropped) {
    size_t n = 0;
    pthread_mutex_lock(&spans.mutex);
    if (spans.n == 0 && !spans.stopping) {
        (void)hearth_clock_cond_wait(&spans.wake, &spans.mutex, hearth_clock_us() + EVERY_US);
    }
    for (; n < SLICE && spans.n > 0; n++, spans.n--) {
        out[n] = spans.ring[spans.first];
        spans.first = (spans.first + 1) % RING;
    }
    *dropped = spans.dropped;
    spans.dropped = 0;
    pthread_mutex_unlock(&spans.mutex);
    return n;
}

static void *run(void *user) {
    struct hearth_span *slice = user;
    uint64_t dropped;
    for (bool more = true; more;) {
        const size_t n = take(slice, &dropped);
        for (size_t i = 0; i < n; i++) {
            const size_t whole = spans.text.len;
            spans.text.len = print_span(&slice[i], &spans.text) ? spans.text.len : whole; /* no half of an event */
            free(slice[i].json);
        }
        say_dropped(dropped);
        flush_text();
        pthread_mutex_lock(&spans.mutex);
        more = !spans.stopping || spans.n > 0;
        pthread_mutex_unlock(&spans.mutex);
    }
    (void)hearth_buf_text(&spans.text, "\n]\n");
    flush_text();
    free(slice);
    return NULL;
}

int hearth_spans_start(int fd, uint32_t lanes, uint64_t limit_bytes, struct hearth_errmsg *msg) {
    struct hearth_span *slice = calloc(SLICE, sizeof *slice);
    spans.ring = calloc(RING, sizeof *spans.ring);
    spans.fd = fd;
    spans.lanes = lanes;
    spans.limit_bytes = limit_bytes;
    hearth_clock_cond_init(&spans.wake);
    int err = slice == NULL || spans.ring == NULL || !print_head(lanes, &spans.text) ? HEARTH_ERR_NOMEM : HEARTH_OK;
    const bool written = err == HEARTH_OK && write_all(fd, &spans.text);
    spans.text.len = 0; /* the thread's, once it runs */
    if (err == HEARTH_OK && !written) {
        err = hearth_fail(msg, HEARTH_ERR_IO, "--trace: the file cannot be written: %s", strerror(errno));
    } else if (err != HEARTH_OK || pthread_create(&spans.thread, NULL, run, slice) != 0) {
        err = hearth_fail(msg, HEARTH_ERR_NOMEM, "--trace: %s", hearth_err_text(HEARTH_ERR_NOMEM));
    }
    if (err != HEARTH_OK) {
        free(slice);
        free(spans.ring);
        spans.ring = NULL;
        hearth_buf_finish(&spans.text);
        (void)close(fd);
        return err;
    }
    atomic_store(&spans.on, true);
    return HEARTH_OK;
}

void hearth_spans_stop(void) {
    if (!atomic_exchange(&spans.on, false)) {
        return;
    }
    pthread_mutex_lock(&spans.mutex);
    spans.stopping = true;
    pthread_cond_signal(&spans.wake);
    pthread_mutex_unlock(&spans.mutex);
    (void)pthread_join(spans.thread, NULL);
    (void)close(spans.fd);
    hearth_buf_finish(&spans.text);
    pthread_mutex_lock(&spans.mutex); /* a thread of another room may still put one */
    free(spans.ring);
    spans.ring = NULL;
    pthread_mutex_unlock(&spans.mutex);
}
