/* Whether a client that has closed its side is still there.
 *
 * The end of what a client sends looks the same whether it closed its socket, as an SDK does after a timeout
 * or when its user has left, or only the sending half of it, as `nc -N` does, and waits for its answer. An
 * abandoned request must not keep a lane; one that is waited for must be answered. The difference shows when
 * something is written: a closed socket answers with a reset, which the kernel then tells of.
 *
 * So such a client is asked, at once and every ASK_US, with what a client has to ignore: before the answer begins an
 * interim response, 100 (Continue), which may come before any final one (RFC 9110, section 15.2); in a stream of
 * events a comment. A client of HTTP/1.0 knows no interim responses: it gets, byte by byte, the nine with which every
 * answer begins, whatever its status; after these the kernel goes on asking (TCP keep-alive). Between the questions the
 * socket is looked at, soon and then less often. What cannot be asked counts as gone: a client that has taken all of an
 * answer that has begun, is no stream of events and goes on, and one that has ended TLS, where no client leaves one
 * half open. A socket of the file system tells by itself. Nothing is asked while output waits: that asks, too.
 *
 * Others choose one side: nginx and Go take the end for a cancellation (499, a cancelled context), Node for a half. */
#include "base/clock.h"
#include "http/conn.h"

#include <poll.h>

#define ASK_US (5 * 1000000ll)
#define LOOK_FIRST_US (10 * 1000ll)
#define LOOK_LAST_US (1000 * 1000ll)

/* The kernel knows that nothing more can be sent. */
static bool is_known_gone(struct hearth_http_conn *conn) {
    struct pollfd at = {.fd = bufferevent_getfd(conn->bev)};
    return poll(&at, 1, 0) > 0 && (at.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static bool can_ask(const struct hearth_http_conn *conn) {
    const struct hearth_http_exchange *exchange = conn->exchange;
    if (conn->server->has_tls) {
        return false;
    }
    return !exchange->begun || exchange->events || hearth_http_conn_unsent(conn) > 0;
}

static void ask(struct hearth_http_conn *conn) {
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n", comment[] = ":\n\n";
    conn->asked_us = hearth_clock_us();
    if (hearth_http_conn_unsent(conn) > 0) {
        return;
    }
    if (conn->exchange->begun) {
        hearth_http_write(conn->exchange, comment, sizeof comment - 1);
    } else if (conn->parser.http_minor >= 1) {
        hearth_http_put(conn, interim, sizeof interim - 1);
    } else if (conn->head_put < sizeof HEARTH_HTTP_VERSION - 1) {
        hearth_http_put(conn, &HEARTH_HTTP_VERSION[conn->head_put++], 1);
    }
}

bool hearth_http_peer_closed(struct hearth_http_conn *conn) {
    if (!can_ask(conn) || is_known_gone(conn)) {
        return false;
    }
    conn->look_us = LOOK_FIRST_US;
    ask(conn);
    return true;
}

bool hearth_http_peer_is_there(struct hearth_http_conn *conn) {
    if (!can_ask(conn) || is_known_gone(conn)) {
        return false;
    }
    conn->look_us = conn->look_us * 2 < LOOK_LAST_US ? conn->look_us * 2 : LOOK_LAST_US;
    if (hearth_clock_us() - conn->asked_us >= ASK_US) {
        ask(conn);
    }
    return true;
}
