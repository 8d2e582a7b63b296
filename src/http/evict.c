/* Chooses the connection to evict when there are too many.
 *
 * At the limit a new connection takes the place of the one that has been longest in IDLE, SHAKE or HEAD. If there is
 * none, it takes the place of the one that is slowest at sending its body or at reading the end of its answer; only
 * connections that have done so for a second are candidates. A request that is being answered is never evicted. The
 * same rules hold within one address that has reached its own limit. */
#include "base/clock.h"
#include "http/conn.h"

/* A connection is left alone for this long: its request is probably on its way. With less, a client far away would lose
 * its place before its first bytes are here; with more, clients that hold places and send nothing would keep new ones
 * out. */
#define SLOW_LEAST_US (1000 * 1000ll)

/* Bytes a second, of a body or of the end of an answer; negative: the connection does neither, or has only begun. */
static double speed(const struct hearth_http_conn *conn, int64_t now_us) {
    const size_t unsent = hearth_http_conn_unsent(conn);
    int64_t since_us = conn->since_us;
    uint64_t bytes = 0;
    switch (conn->state) {
    case HEARTH_HTTP_CONN_BODY: bytes = conn->body.len; break;
    case HEARTH_HTTP_CONN_IDLE:
    case HEARTH_HTTP_CONN_HEAD:
    case HEARTH_HTTP_CONN_FLUSH:
    case HEARTH_HTTP_CONN_LINGER:
        since_us = unsent > 0 ? conn->window_us : since_us;
        bytes = conn->written_bytes - unsent - conn->window_bytes;
        break;
    case HEARTH_HTTP_CONN_SHAKE:
    case HEARTH_HTTP_CONN_BUSY: return -1;
    }
    return now_us - since_us < SLOW_LEAST_US ? -1 : (double)bytes * 1e6 / (double)(now_us - since_us);
}

static bool may_go(const struct hearth_http_conn *conn, const struct hearth_http_address *of) {
    return !conn->pumping && !conn->doomed && (of == NULL || conn->address == of);
}

/* The connection that has been quiet for longest. */
static struct hearth_http_conn *find_quiet(struct hearth_http_server *server, const struct hearth_http_address *of,
                                           int64_t now_us) {
    struct hearth_http_conn *conn;
    TAILQ_FOREACH(conn, &server->quiet, in_quiet) {
        if (now_us - conn->since_us < SLOW_LEAST_US) {
            return NULL; /* and so have those behind it */
        }
        if (may_go(conn, of) && hearth_http_conn_unsent(conn) == 0) {
            return conn;
        }
    }
    return NULL;
}

static struct hearth_http_conn *find_slowest(struct hearth_http_server *server, const struct hearth_http_address *of,
                                             int64_t now_us) {
    struct hearth_http_conn *conn, *slowest = NULL;
    double least = 0;
    TAILQ_FOREACH(conn, &server->conns, in_conns) {
        const double moves = may_go(conn, of) ? speed(conn, now_us) : -1;
        if (moves >= 0 && (slowest == NULL || moves < least)) {
            slowest = conn;
            least = moves;
        }
    }
    return slowest;
}

bool hearth_http_evict(struct hearth_http_server *server, const struct hearth_http_address *of) {
    const int64_t now_us = hearth_clock_us();
    const char *cause = "others need its place, and it has long been without a request";
    struct hearth_http_conn *conn = find_quiet(server, of, now_us);
    if (conn == NULL) {
        cause = "others need its place, and it is the slowest";
        conn = find_slowest(server, of, now_us);
    }
    if (conn == NULL) {
        return false;
    }
    server->stats.evicted++;
    hearth_http_report_drop(conn, cause);
    hearth_http_conn_destroy(conn);
    return true;
}

const char *hearth_http_make_room(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    if (conn->address->connections > hearth_http_address_most(server, conn->address) &&
        !hearth_http_evict(server, conn->address)) {
        return "as many connections of this address are open as may be";
    }
    if (server->stats.connections > server->params.connections && !hearth_http_evict(server, NULL)) {
        return "as many connections are open as may be";
    }
    return NULL;
}
