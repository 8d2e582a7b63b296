/* Finds out whether a client that has closed its sending side still waits.
 *
 * The end of input looks the same whether the client has closed its socket (an SDK after a timeout, or its user has
 * left) or only the sending half of it (`nc -N`, which waits for its answer). An abandoned request must not keep a
 * lane; a request that is waited for must be answered. The difference shows when something is written: a closed
 * socket answers with a reset, of which the kernel then tells.
 *
 * So such a client gets something that it has to ignore, at once and every ASK_US. Before the answer begins that is
 * an interim response, 100 (Continue), which may precede any final one (RFC 9110, section 15.2); in a stream of
 * events it is a comment. HTTP/1.0 knows no interim responses, so such a client gets, byte by byte, the nine bytes
 * with which every answer begins; after these, TCP keep-alive goes on asking. In between, the socket is tested: LOOK_US
 * after it was asked, then after twice that time, and so on up to LOOK_MOST_US. Two kinds of clients cannot be asked
 * and count as gone: one that has read all that there is of an answer that goes on and is not a stream of events, and
 * one that has ended TLS, since no client closes only half of TLS. A socket of the file system reports a closed peer by
 * itself. Nothing is sent while other output waits, because that output has the same effect.
 *
 * Other servers choose one side: nginx and Go treat the end of input as a cancellation (499, a cancelled context),
 * Node as a half-closed connection. */
#include "base/clock.h"
#include "http/conn.h"

#include <poll.h>

/* A client that leaves after it has closed its side keeps its lane until it is asked again; each question is a packet.
 */
#define ASK_US (5 * 1000000ll)
/* An abandoned request keeps its lane for one look more than it takes the reset to arrive; each look is one poll(). */
#define LOOK_US (10 * 1000ll)
/* What a socket of the file system reports by itself, and TCP keep-alive finds out, is seen at the next look. */
#define LOOK_MOST_US (1000 * 1000ll)

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
    conn->look_us = LOOK_US;
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
    ask(conn);
    return true;
}

bool hearth_http_peer_is_there(struct hearth_http_conn *conn) {
    if (!can_ask(conn) || is_known_gone(conn)) {
        return false;
    }
    const int64_t since_us = hearth_clock_us() - conn->asked_us;
    conn->look_us = since_us < LOOK_US ? LOOK_US : since_us < LOOK_MOST_US ? since_us : LOOK_MOST_US;
    if (since_us >= ASK_US) {
        ask(conn);
    }
    return true;
}
