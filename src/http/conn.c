/* The life of a connection: its states, its deadlines, its end.
 *
 *   SHAKE (with TLS)
 *     |
 *     v       first byte         head read        body read             answered, keep-alive
 *     IDLE ---------------> HEAD ----------> BODY ----------> BUSY -------------------------> IDLE
 *                             \  error         \  error         \  answered, close
 *                              `----------------`----------------`-----> FLUSH -----> closed, or LINGER
 *
 * After an error the rest of the request is thrown away as it arrives, and the socket is closed only when the client
 * has closed its side (LINGER, until it is silent for a while): closing with unread bytes would reset the connection
 * and the client would never see the answer.
 *
 * One timer serves all deadlines: it is set to the next one, and looks at all of them when it runs. The reader's window
 * is looked at STALL_LOOKS times in stall_us while something waits for it: only a whole window in which it took too
 * little, and in which it never had everything, cuts it off.
 *
 * A client that closes its side may have gone, or may still wait for what it has asked for. With half a request, or
 * with nothing to wait for, it has gone. While its request is answered it is asked (peer.c); what it has sent before,
 * other requests among it, is answered in turn, and then the connection ends.
 *
 * Invariants: SHAKE, IDLE and HEAD connections, and no others, are in the server's quiet list, in the order in which
 * they entered the state. A connection is destroyed only from the loop (a callback of libevent, posted work), never
 * below a call that the handler makes: those set `doomed` and activate the timer. */
#include "http/conn.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#define LINGER_US (5 * 1000000ll) /* of silence */
#define LINGER_MOST_US (30 * 1000000ll)
#define STALL_LOOKS 4
#define TIMER_LEAST_US 1000
/* Bytes that may arrive ahead of their turn before no more are read. */
#define PIPELINED_BYTES (32u * 1024)
/* Bytes that the kernel takes before they can be sent: what a reader does not take stays here, where it is counted. */
#define KERNEL_UNSENT_BYTES (128 * 1024)

size_t hearth_http_conn_unsent(const struct hearth_http_conn *conn) {
    return evbuffer_get_length(bufferevent_get_output(conn->bev));
}

/* ---- the quiet list ---- */

static void leave_quiet(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    if (!conn->quiet) {
        return;
    }
    *(conn->quiet_prev != NULL ? &conn->quiet_prev->quiet_next : &server->quiet_head) = conn->quiet_next;
    *(conn->quiet_next != NULL ? &conn->quiet_next->quiet_prev : &server->quiet_tail) = conn->quiet_prev;
    conn->quiet_prev = conn->quiet_next = NULL;
    conn->quiet = false;
}

static void enter_quiet(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    conn->quiet_prev = server->quiet_tail;
    *(server->quiet_tail != NULL ? &server->quiet_tail->quiet_next : &server->quiet_head) = conn;
    server->quiet_tail = conn;
    conn->quiet = true;
}

/* ---- deadlines ---- */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* When the bytes of the body that are here will be too few. */
static int64_t trickle_due_us(const struct hearth_http_conn *conn) {
    const struct hearth_http_params *params = &conn->server->params;
    const int64_t paid_us = params->rate > 0 ? (int64_t)conn->body.len * 1000000 / params->rate : INT64_MAX / 2;
    return conn->since_us + params->trickle_us + paid_us;
}

/* When the state must have ended; INT64_MAX: it may last. */
static int64_t state_due_us(const struct hearth_http_conn *conn) {
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

static void set_timer(struct hearth_http_conn *conn, int64_t now_us) {
    int64_t due_us = state_due_us(conn);
    if (conn->state == HEARTH_HTTP_CONN_BUSY || hearth_http_conn_unsent(conn) > 0) {
        due_us = least(due_us, now_us + conn->server->params.stall_us / STALL_LOOKS);
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
    const int64_t wait_us = due_us - now_us > TIMER_LEAST_US ? due_us - now_us : TIMER_LEAST_US;
    const struct timeval tv = {.tv_sec = (time_t)(wait_us / 1000000), .tv_usec = (suseconds_t)(wait_us % 1000000)};
    event_add(conn->timer, &tv);
}

static void begin_window(struct hearth_http_conn *conn, int64_t now_us) {
    conn->window_us = now_us;
    conn->window_bytes = conn->written_bytes - hearth_http_conn_unsent(conn);
    conn->drained = false;
}

void hearth_http_conn_written(struct hearth_http_conn *conn, size_t len) {
    conn->written_bytes += len;
    conn->server->stats.written_bytes += len;
    if (hearth_http_conn_unsent(conn) == len) { /* nothing waited before */
        begin_window(conn, hearth_clock_us());
    }
}

/* The number of connections that are told to be in such a state. */
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

void hearth_http_conn_set_state(struct hearth_http_conn *conn, enum hearth_http_conn_state state) {
    const int64_t now_us = hearth_clock_us();
    leave_quiet(conn);
    --*count_of(conn->server, conn->state);
    ++*count_of(conn->server, state);
    conn->state = state;
    conn->since_us = conn->heard_us = now_us;
    if (state == HEARTH_HTTP_CONN_SHAKE || state == HEARTH_HTTP_CONN_IDLE || state == HEARTH_HTTP_CONN_HEAD) {
        enter_quiet(conn);
    }
    if (hearth_http_conn_unsent(conn) == 0) {
        begin_window(conn, now_us);
    }
    set_timer(conn, now_us);
}

/* True when a window has ended in which the reader took too little of what waited for it. */
static bool is_stalled(struct hearth_http_conn *conn, int64_t now_us) {
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

static void time_out(struct hearth_http_conn *conn) {
    if (conn->state == HEARTH_HTTP_CONN_SHAKE) {
        conn->server->stats.timeouts++;
        hearth_http_report_drop(conn, "its TLS handshake did not end in time");
        hearth_http_conn_destroy(conn);
    } else if (conn->state == HEARTH_HTTP_CONN_HEAD) {
        hearth_http_conn_fail(conn, 408, "the request's head did not arrive in time");
    } else if (conn->state == HEARTH_HTTP_CONN_BODY) {
        const bool total = hearth_clock_us() - conn->since_us >= conn->server->params.body_us;
        hearth_http_conn_fail(
            conn, 408, total ? "the request's body did not arrive in time" : "the request's body arrives too slowly");
    } else {
        hearth_http_conn_destroy(conn);
    }
}

static void log_gone(const struct hearth_http_conn *conn) {
    if (conn->exchange != NULL) {
        hearth_log(HEARTH_LOG_DEBUG, "http: %s: the client has left before %s", conn->exchange->request_id,
                   conn->state == HEARTH_HTTP_CONN_BUSY ? "the end of its answer" : "the end of its request");
    }
}

static void on_timer(evutil_socket_t fd, short what, void *user) {
    struct hearth_http_conn *conn = user;
    const int64_t now_us = hearth_clock_us();
    (void)fd, (void)what;
    if (conn->doomed) {
        hearth_http_conn_destroy(conn);
    } else if (is_stalled(conn, now_us)) {
        conn->server->stats.stalled++;
        hearth_http_report_drop(conn, "it reads too slowly, or not at all");
        hearth_http_conn_destroy(conn);
    } else if (now_us >= state_due_us(conn)) {
        time_out(conn);
    } else if (conn->state == HEARTH_HTTP_CONN_BUSY && conn->eof && !hearth_http_peer_is_there(conn)) {
        log_gone(conn);
        hearth_http_conn_destroy(conn);
    } else {
        set_timer(conn, now_us);
    }
}

/* ---- events of the socket ---- */

/* No more is read while much waits for its turn. */
static void pause_or_go_on(struct hearth_http_conn *conn) {
    const bool much = evbuffer_get_length(bufferevent_get_input(conn->bev)) > PIPELINED_BYTES;
    if (much == conn->paused || conn->eof) {
        return;
    }
    conn->paused = much;
    if (much) {
        bufferevent_disable(conn->bev, EV_READ);
    } else if (bufferevent_enable(conn->bev, EV_READ) < 0) {
        hearth_http_report_drop(conn, "there is no memory to read more from it");
        hearth_http_conn_doom(conn);
    }
}

/* Nothing more comes, and what came is used up as far as it goes. */
static void end_after_eof(struct hearth_http_conn *conn) {
    const bool more = evbuffer_get_length(bufferevent_get_input(conn->bev)) > 0; /* when it is its turn again */
    if (conn->doomed || more || conn->state == HEARTH_HTTP_CONN_BUSY || conn->state == HEARTH_HTTP_CONN_FLUSH) {
        return;
    }
    if (conn->exchange == NULL && hearth_http_conn_unsent(conn) > 0) {
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    } else {
        hearth_http_conn_doom(conn);
    }
}

/* Takes what has arrived. */
static void pump(struct hearth_http_conn *conn) {
    hearth_http_request_pump(conn);
    pause_or_go_on(conn);
    if (conn->eof) {
        end_after_eof(conn);
    }
}

static void on_readable(struct bufferevent *bev, void *user) {
    struct hearth_http_conn *conn = user;
    (void)bev;
    conn->heard_us = hearth_clock_us();
    pump(conn);
}

static void on_turn(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    pump(user);
}

/* The output buffer has been taken by the kernel. */
static void on_written(struct bufferevent *bev, void *user) {
    struct hearth_http_conn *conn = user;
    conn->drained = true;
    if (conn->state == HEARTH_HTTP_CONN_IDLE) {
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_IDLE); /* it is from now on */
    }
    if (conn->state != HEARTH_HTTP_CONN_FLUSH && evbuffer_get_length(bufferevent_get_input(bev)) > 0) {
        event_active(conn->turn, EV_READ, 0); /* the next request may have waited for the output */
    } else if (conn->state != HEARTH_HTTP_CONN_FLUSH) {
        pump(conn);
    } else if (conn->linger && !conn->eof) {
        if (conn->server->has_tls) {
            hearth_http_tls_say_goodbye(bev);
        }
        shutdown(bufferevent_getfd(bev), SHUT_WR);
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_LINGER);
    } else {
        hearth_http_conn_destroy(conn);
    }
}

/* The client has closed its side. False: it has gone. */
static bool waits_for_answers(struct hearth_http_conn *conn) {
    conn->eof = true;
    switch (conn->state) {
    case HEARTH_HTTP_CONN_BUSY:
        if (!hearth_http_peer_closed(conn)) {
            return false;
        }
        set_timer(conn, hearth_clock_us());
        return true;
    case HEARTH_HTTP_CONN_IDLE:
    case HEARTH_HTTP_CONN_HEAD:
    case HEARTH_HTTP_CONN_FLUSH: end_after_eof(conn); return true;
    case HEARTH_HTTP_CONN_SHAKE:
    case HEARTH_HTTP_CONN_BODY:
    case HEARTH_HTTP_CONN_LINGER: break;
    }
    return false;
}

static void on_event(struct bufferevent *bev, short what, void *user) {
    struct hearth_http_conn *conn = user;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_IDLE);
        return;
    }
    if ((what & BEV_EVENT_EOF) != 0 && waits_for_answers(conn)) {
        return;
    }
    const char *why = conn->server->has_tls ? hearth_http_tls_error(bev) : NULL;
    if (why != NULL && conn->state == HEARTH_HTTP_CONN_SHAKE) {
        conn->server->stats.malformed++;
        hearth_http_report_drop(conn, why);
    }
    log_gone(conn);
    hearth_http_conn_destroy(conn);
}

/* ---- beginning and end ---- */

/* What the kernel is to do: send each token at once, keep little of what is not taken, and find out about peers that
 * have vanished (a minute of silence, then four questions). All of this may fail, for a socket that is not TCP. */
static void set_socket_options(evutil_socket_t fd) {
    const int on = 1, idle_s = 60, interval_s = 15, probes = 4, unsent_bytes = KERNEL_UNSENT_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Frees what a connection is made of; the socket is closed. */
static void free_parts(struct hearth_http_conn *conn) {
    if (conn->output_watch != NULL) {
        evbuffer_remove_cb_entry(bufferevent_get_output(conn->bev), conn->output_watch);
    }
    if (conn->bev != NULL) {
        bufferevent_free(conn->bev);
    }
    if (conn->timer != NULL) {
        event_free(conn->timer);
    }
    if (conn->turn != NULL) {
        event_free(conn->turn);
    }
    if (conn->address != NULL) {
        hearth_http_address_unref(conn->server, conn->address);
    }
    free(conn);
}

/* Whom the connection is with, and what it is read and written by. False: out of memory. */
static bool make_parts(struct hearth_http_conn *conn, evutil_socket_t fd) {
    struct hearth_http_server *server = conn->server;
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof from;
    (void)getpeername(fd, (struct sockaddr *)&from, &len); /* one that has left again counts as nobody */
    conn->bev = server->has_tls ? hearth_http_tls_accept(server, fd)
                                : bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (conn->bev == NULL) {
        evutil_closesocket(fd);
        return false;
    }
    conn->timer = event_new(server->base, -1, 0, on_timer, conn);
    conn->turn = event_new(server->base, -1, 0, on_turn, conn);
    conn->address = hearth_http_address_ref(server, (const struct sockaddr *)&from);
    return conn->timer != NULL && conn->turn != NULL && conn->address != NULL &&
           event_priority_set(conn->turn, HEARTH_HTTP_PIPELINED) == 0 && hearth_http_unread_watch(conn);
}

struct hearth_http_conn *hearth_http_conn_create(struct hearth_http_server *server, evutil_socket_t fd) {
    struct hearth_http_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        evutil_closesocket(fd);
    } else {
        conn->server = server;
        set_socket_options(fd);
    }
    if (conn == NULL || !make_parts(conn, fd)) {
        hearth_log(HEARTH_LOG_WARN, "http: no memory for a connection");
        if (conn != NULL) {
            free_parts(conn);
        }
        return NULL;
    }
    conn->next = server->conns;
    if (conn->next != NULL) {
        conn->next->prev = conn;
    }
    server->conns = conn;
    server->stats.connections++;
    server->stats.accepted++;
    ++*count_of(server, conn->state);
    hearth_http_request_init(conn);
    bufferevent_setcb(conn->bev, on_readable, on_written, on_event, conn);
    hearth_http_conn_set_state(conn, server->has_tls ? HEARTH_HTTP_CONN_SHAKE : HEARTH_HTTP_CONN_IDLE);
    if (bufferevent_enable(conn->bev, EV_READ | EV_WRITE) < 0) {
        hearth_http_conn_destroy(conn);
        return NULL;
    }
    return conn;
}

/* Ends an exchange that the client does not wait for any more. */
static void drop_exchange(struct hearth_http_conn *conn) {
    void (*gone)(void *) = conn->exchange->gone;
    void *gone_user = conn->exchange->gone_user;
    conn->server->stats.dropped += conn->state == HEARTH_HTTP_CONN_BUSY;
    hearth_http_exchange_destroy(conn->exchange);
    conn->exchange = NULL;
    if (gone != NULL) {
        gone(gone_user);
    }
}

void hearth_http_conn_destroy(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    HEARTH_ASSERT(!conn->pumping);
    if (conn->exchange != NULL) {
        drop_exchange(conn);
    }
    leave_quiet(conn);
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        server->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    server->stats.connections--;
    --*count_of(server, conn->state);
    if (!conn->doomed) {
        hearth_http_unread_forget(conn);
    }
    if (server->has_tls && (conn->state == HEARTH_HTTP_CONN_FLUSH || conn->state == HEARTH_HTTP_CONN_IDLE)) {
        hearth_http_tls_say_goodbye(conn->bev);
    }
    hearth_http_request_reset(conn);
    free_parts(conn);
    hearth_http_server_conn_closed(server);
}

void hearth_http_conn_doom(struct hearth_http_conn *conn) {
    if (!conn->doomed) {
        hearth_http_unread_forget(conn);
        conn->doomed = true;
    }
    event_active(conn->timer, EV_TIMEOUT, 0);
}

void hearth_http_conn_fail(struct hearth_http_conn *conn, int status, const char *message) {
    if (conn->exchange != NULL) {
        drop_exchange(conn);
    }
    conn->keep_alive = false;
    conn->linger = true;
    hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    hearth_http_write_error(conn, status, message);
    hearth_http_request_reset(conn);
    set_timer(conn, hearth_clock_us()); /* something waits for the reader now */
}

void hearth_http_conn_answered(struct hearth_http_conn *conn) {
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    const bool whole = conn->state == HEARTH_HTTP_CONN_BUSY; /* else its body is still to come */
    hearth_http_exchange_destroy(conn->exchange);
    conn->exchange = NULL;
    hearth_http_request_reset(conn);
    const bool more = !conn->eof || evbuffer_get_length(input) > 0;
    if (whole && conn->keep_alive && more && !conn->server->stopping) {
        llhttp_resume(&conn->parser);
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_IDLE);
        if (!conn->pumping && evbuffer_get_length(input) > 0) {
            event_active(conn->turn, EV_READ, 0);
        }
        return;
    }
    conn->linger = conn->linger || !whole || evbuffer_get_length(input) > 0;
    hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    if (hearth_http_conn_unsent(conn) == 0) {
        hearth_http_conn_doom(conn);
    }
}

void hearth_http_conn_stop(struct hearth_http_conn *conn) {
    conn->keep_alive = false;
    if (conn->state != HEARTH_HTTP_CONN_BUSY && conn->state != HEARTH_HTTP_CONN_LINGER) {
        if (conn->exchange == NULL && hearth_http_conn_unsent(conn) > 0) {
            hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_FLUSH);
        } else {
            hearth_http_conn_destroy(conn);
        }
    }
}
