/* The callbacks of a connection: timer, socket, start. state.c has the states.
 *
 * After an error the rest of the request is read and dropped, and the socket is closed only when the client has
 * closed its side or has been silent for a while (LINGER). Closing with unread bytes would reset the connection, and
 * the client would never see the answer.
 *
 * A client that closes its sending side may have gone, or may still wait for its answer. It has gone if only half a
 * request has arrived, or if it waits for nothing. While its request is being answered, peer.c finds out. Requests
 * that it had sent before are answered in turn, and then the connection ends. */
#include "http/conn.h"

#include "base/clock.h"
#include "base/log.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Bytes that the kernel takes before they can be sent: what a reader does not take stays here, where it is counted. */
#define KERNEL_UNSENT_BYTES (128 * 1024)

/* ---- the timer ---- */

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
    } else if (hearth_http_conn_is_stalled(conn, now_us)) {
        conn->server->stats.stalled++;
        hearth_http_report_drop(conn, "it reads too slowly, or not at all");
        hearth_http_conn_destroy(conn);
    } else if (now_us >= hearth_http_conn_due_us(conn)) {
        time_out(conn);
    } else if (conn->state == HEARTH_HTTP_CONN_BUSY && conn->eof && !hearth_http_peer_is_there(conn)) {
        log_gone(conn);
        hearth_http_conn_destroy(conn);
    } else {
        hearth_http_conn_set_timer(conn, now_us);
    }
}

/* ---- events of the socket ---- */

/* Stops reading while more input waits for its turn than a head may have. */
static void pause_or_go_on(struct hearth_http_conn *conn) {
    const bool much = evbuffer_get_length(bufferevent_get_input(conn->bev)) > conn->server->params.header_bytes;
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

/* Ends the connection when nothing more will come and all that came is used. */
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

/* Handles the input that has arrived. */
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

/* The kernel has taken the output buffer. Over TLS libevent says so a moment later, when there may be new output. */
static void on_written(struct bufferevent *bev, void *user) {
    struct hearth_http_conn *conn = user;
    conn->drained = true;
    if (hearth_http_conn_unsent(conn) > 0) {
        return; /* it says so again */
    }
    if (conn->state == HEARTH_HTTP_CONN_IDLE) {
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_IDLE); /* it is from now on */
    }
    if (conn->state != HEARTH_HTTP_CONN_FLUSH && evbuffer_get_length(bufferevent_get_input(bev)) > 0) {
        event_active(conn->turn, EV_READ, 0); /* the next request may have waited for the output */
    } else if (conn->state != HEARTH_HTTP_CONN_FLUSH) {
        pump(conn);
    } else if (conn->linger && !conn->eof) {
        if (conn->server->has_tls) {
            hearth_http_tls_close_notify(bev);
        }
        shutdown(bufferevent_getfd(bev), SHUT_WR);
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_LINGER);
    } else {
        hearth_http_conn_destroy(conn);
    }
}

/* The client has closed its side. Returns whether it still waits for answers; false: it has gone. */
static bool waits_for_answers(struct hearth_http_conn *conn) {
    conn->eof = true;
    if (conn->server->has_tls && hearth_http_conn_unsent(conn) > 0) {
        return false; /* as peer.c has it; and libevent writes nothing more */
    }
    switch (conn->state) {
    case HEARTH_HTTP_CONN_BUSY:
        if (!hearth_http_peer_closed(conn)) {
            return false;
        }
        hearth_http_conn_set_timer(conn, hearth_clock_us());
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
    const char *cause = conn->server->has_tls ? hearth_http_tls_error(bev) : NULL;
    if (cause != NULL && conn->state == HEARTH_HTTP_CONN_SHAKE) {
        conn->server->stats.malformed++;
        hearth_http_report_drop(conn, cause);
    }
    log_gone(conn);
    hearth_http_conn_destroy(conn);
}

/* ---- beginning and end ---- */

/* Sets what the kernel does: send each token at once, keep little unsent output, and find peers that have vanished (a
 * minute of silence, then four probes). All of it may fail for a socket that is not TCP. */
static void set_socket_options(evutil_socket_t fd) {
    const int on = 1, idle_s = 60, interval_s = 15, probes = 4, unsent_bytes = KERNEL_UNSENT_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Makes the parts of a connection: the client's address, and what reads and writes. False: out of memory. */
static bool make_parts(struct hearth_http_conn *conn, evutil_socket_t fd) {
    struct hearth_http_server *server = conn->server;
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof from;
    (void)getpeername(fd, (struct sockaddr *)&from, &len); /* a client that has left again has no address */
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
            hearth_http_conn_free(conn);
        }
        return NULL;
    }
    TAILQ_INSERT_HEAD(&server->conns, conn, in_conns);
    server->stats.connections++;
    server->stats.accepted++;
    hearth_http_request_init(conn);
    bufferevent_setcb(conn->bev, on_readable, on_written, on_event, conn);
    hearth_http_conn_enter(conn, server->has_tls ? HEARTH_HTTP_CONN_SHAKE : HEARTH_HTTP_CONN_IDLE);
    if (bufferevent_enable(conn->bev, EV_READ | EV_WRITE) < 0) {
        hearth_http_conn_destroy(conn);
        return NULL;
    }
    return conn;
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
