/* The state of a connection, its deadlines, and its output.
 *
 *   SHAKE (with TLS)
 *     |
 *     v       first byte         head read        body read             answered, keep-alive
 *     IDLE ---------------> HEAD ----------> BODY ----------> BUSY -------------------------> IDLE
 *                             \  error         \  error         \  answered, close
 *                              `----------------`----------------`-----> FLUSH -----> closed, or LINGER
 *
 * One timer serves all deadlines: it is set to the next one. While output waits for the reader, a window of stall_us
 * is one of them. The connection is cut off only after a whole window in which the reader took too little and never
 * had read everything.
 *
 * Memory. Output that the kernel has not taken yet is counted over all connections. While the sum is above
 * `unread_bytes`, the connection with the most of it is cut off before another byte is written. So one answer may be
 * large as long as it is read.
 *
 * Invariants: exactly the connections in SHAKE, IDLE and HEAD are in the server's quiet list, in the order in which
 * they entered the state. `unread_bytes` of the server is the sum over the connections that are not doomed. The
 * timer of a doomed connection runs next, closes it, and is not set again. */
#include "base/assert.h"
#include "base/clock.h"
#include "http/conn.h"

/* How long a client that was refused in the middle of its request may be silent, and go on sending, until the socket is
 * closed. A shorter time resets the connections of clients that would still read why; a longer one leaves a place to
 * clients that want none. */
#define LINGER_US (5 * 1000000ll)
#define LINGER_MOST_US (30 * 1000000ll)

size_t hearth_http_conn_unsent(const struct hearth_http_conn *conn) {
    return evbuffer_get_length(bufferevent_get_output(conn->bev));
}

/* ---- deadlines ---- */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* When the body will have arrived too slowly. */
static int64_t trickle_due_us(const struct hearth_http_conn *conn) {
    const struct hearth_http_params *params = &conn->server->params;
    const int64_t paid_us = params->rate > 0 ? (int64_t)conn->body.len * 1000000 / params->rate : INT64_MAX / 2;
    return conn->since_us + params->trickle_us + paid_us;
}

int64_t hearth_http_conn_due_us(const struct hearth_http_conn *conn) {
    const struct hearth_http_params *params = &conn->server->params;
    switch (conn->state) {
    case HEARTH_HTTP_CONN_IDLE: return hearth_http_conn_unsent(conn) > 0 ? INT64_MAX : conn->since_us + params->idle_us;
    case HEARTH_HTTP_CONN_SHAKE:
    case HEARTH_HTTP_CONN_HEAD: return conn->since_us + params->head_us;
    case HEARTH_HTTP_CONN_BODY: return least(conn->since_us + params->body_us, trickle_due_us(conn));
    case HEARTH_HTTP_CONN_LINGER: return least(conn->heard_us + LINGER_US, conn->since_us + LINGER_MOST_US);
    case HEARTH_HTTP_CONN_BUSY:
    case HEARTH_HTTP_CONN_FLUSH: break; /* the reader's window watches over these */
    }
    return INT64_MAX;
}

void hearth_http_conn_set_timer(struct hearth_http_conn *conn, int64_t now_us) {
    int64_t due_us = hearth_http_conn_due_us(conn);
    if (conn->state == HEARTH_HTTP_CONN_BUSY || hearth_http_conn_unsent(conn) > 0) {
        due_us = least(due_us, conn->window_us + conn->server->params.stall_us);
    }
    if (conn->state == HEARTH_HTTP_CONN_BUSY && conn->eof) {
        due_us = least(due_us, now_us + conn->look_us);
    }
    if (conn->doomed) {
        return; /* the timer is about to run; touching it would take that back */
    }
    if (due_us == INT64_MAX) {
        event_del(conn->timer);
        return;
    }
    const int64_t wait_us = due_us > now_us ? due_us - now_us : 0;
    const struct timeval tv = {.tv_sec = (time_t)(wait_us / 1000000), .tv_usec = (suseconds_t)(wait_us % 1000000)};
    event_add(conn->timer, &tv);
}

static void begin_window(struct hearth_http_conn *conn, int64_t now_us) {
    conn->window_us = now_us;
    conn->window_bytes = conn->written_bytes - hearth_http_conn_unsent(conn);
    conn->drained = false;
}

bool hearth_http_conn_is_stalled(struct hearth_http_conn *conn, int64_t now_us) {
    const struct hearth_http_params *params = &conn->server->params;
    const size_t unsent = hearth_http_conn_unsent(conn);
    if (unsent == 0 || conn->drained) {
        begin_window(conn, now_us);
        return false;
    }
    if (now_us - conn->window_us < params->stall_us) {
        return false;
    }
    const uint64_t taken = conn->written_bytes - unsent - conn->window_bytes;
    const bool stalled = (double)taken * 1e6 < (double)params->rate * (double)params->stall_us || taken == 0;
    begin_window(conn, now_us);
    return stalled;
}

/* ---- states ---- */

/* The counter of connections in such a state. */
static uint64_t *count_of(struct hearth_http_server *server, enum hearth_http_conn_state state) {
    switch (state) {
    case HEARTH_HTTP_CONN_IDLE: return &server->stats.connections_idle;
    case HEARTH_HTTP_CONN_SHAKE:
    case HEARTH_HTTP_CONN_HEAD:
    case HEARTH_HTTP_CONN_BODY: return &server->stats.connections_reading;
    case HEARTH_HTTP_CONN_BUSY: return &server->stats.connections_busy;
    case HEARTH_HTTP_CONN_FLUSH:
    case HEARTH_HTTP_CONN_LINGER: break;
    }
    return &server->stats.connections_closing;
}

void hearth_http_conn_enter(struct hearth_http_conn *conn, enum hearth_http_conn_state state) {
    const int64_t now_us = hearth_clock_us();
    ++*count_of(conn->server, state);
    conn->state = state;
    conn->since_us = conn->heard_us = now_us;
    conn->quiet = state == HEARTH_HTTP_CONN_SHAKE || state == HEARTH_HTTP_CONN_IDLE || state == HEARTH_HTTP_CONN_HEAD;
    if (conn->quiet) {
        TAILQ_INSERT_TAIL(&conn->server->quiet, conn, in_quiet);
    }
    if (hearth_http_conn_unsent(conn) == 0) {
        begin_window(conn, now_us);
    }
    hearth_http_conn_set_timer(conn, now_us);
}

void hearth_http_conn_leave(struct hearth_http_conn *conn) {
    if (conn->quiet) {
        TAILQ_REMOVE(&conn->server->quiet, conn, in_quiet);
        conn->quiet = false;
    }
    --*count_of(conn->server, conn->state);
}

void hearth_http_conn_set_state(struct hearth_http_conn *conn, enum hearth_http_conn_state state) {
    hearth_http_conn_leave(conn);
    hearth_http_conn_enter(conn, state);
}

void hearth_http_conn_doom(struct hearth_http_conn *conn) {
    if (!conn->doomed) {
        hearth_http_unread_forget(conn);
        conn->doomed = true;
    }
    event_active(conn->timer, EV_TIMEOUT, 0);
}

/* ---- what is written ---- */

void hearth_http_conn_written(struct hearth_http_conn *conn, size_t len) {
    conn->written_bytes += len;
    conn->server->stats.written_bytes += len;
    if (hearth_http_conn_unsent(conn) == len) { /* nothing waited before */
        begin_window(conn, hearth_clock_us());
    }
}

static void on_output(struct evbuffer *output, const struct evbuffer_cb_info *info, void *user) {
    struct hearth_http_conn *conn = user;
    (void)output;
    conn->unread_bytes += info->n_added - info->n_deleted;
    if (!conn->doomed) {
        conn->server->unread_bytes += info->n_added - info->n_deleted;
    }
}

bool hearth_http_unread_watch(struct hearth_http_conn *conn) {
    conn->output_watch = evbuffer_add_cb(bufferevent_get_output(conn->bev), on_output, conn);
    return conn->output_watch != NULL;
}

void hearth_http_unread_forget(struct hearth_http_conn *conn) {
    HEARTH_ASSERT(conn->server->unread_bytes >= conn->unread_bytes);
    conn->server->unread_bytes -= conn->unread_bytes;
}

void hearth_http_unread_bound(struct hearth_http_server *server) {
    while (server->unread_bytes > server->params.unread_bytes) {
        struct hearth_http_conn *conn, *most = NULL;
        TAILQ_FOREACH(conn, &server->conns, in_conns) {
            if (!conn->doomed && (most == NULL || conn->unread_bytes > most->unread_bytes)) {
                most = conn;
            }
        }
        HEARTH_ASSERT(most != NULL);
        server->stats.stalled++;
        hearth_http_report_drop(most, "unread answers take more memory than they may, and it has most of them");
        hearth_http_conn_doom(most);
    }
}
