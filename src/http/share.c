/* What connections share, and who has to go when there is not enough of it.
 *
 * Places. As many connections are open as may be: a new one takes the place of the one that has been idle, or at its
 * handshake or head, for longest; if there is none, of the one that is slowest at sending its body or at taking the end
 * of its answer. Only those that have been at it for a second are looked at. A request that is being answered is left
 * alone. The same holds among the connections of one address, when it has as many as one may have; for those of this
 * machine that is no limit unless it was given, for everything behind a proxy comes from there.
 *
 * Memory. What was written and is not with the kernel yet is counted over all connections. When it is more than
 * `unread_bytes`, the connection that has most of it is cut off before another byte is written, and so on: one answer
 * may be large, as long as it is read.
 *
 * Invariants: `unread_bytes` of the server is the sum of the connections' that are not doomed. An address is in the
 * table as long as it has connections. */
#include "base/assert.h"
#include "base/clock.h"
#include "http/conn.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* A connection that has been at it for less is left alone: its request is likely on its way. */
#define SLOW_LEAST_US (1000 * 1000ll)

/* ---- addresses ---- */

/* What counts as one: an IPv4 address, the first half of an IPv6 address, all of a socket's path. */
static struct hearth_digest digest_of(const struct sockaddr *from, bool *local) {
    uint8_t bytes[8] = {0};
    *local = false;
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)from;
        memcpy(bytes, &in->sin_addr, 4);
        *local = bytes[0] == 127;
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)from;
        const bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
        memcpy(bytes, in->sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 8);
        *local = IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) || (mapped && bytes[0] == 127);
    } else {
        *local = true;
    }
    const uint8_t family = (uint8_t)from->sa_family;
    return hearth_digest_chain(hearth_digest_bytes(&family, 1), bytes, sizeof bytes);
}

struct hearth_http_address *hearth_http_address_ref(struct hearth_http_server *server, const struct sockaddr *from) {
    bool local;
    const struct hearth_digest key = digest_of(from, &local);
    struct hearth_link *link = hearth_table_find(&server->addresses, key);
    struct hearth_http_address *address = (struct hearth_http_address *)(void *)link;
    if (address == NULL) {
        address = calloc(1, sizeof *address);
        if (address == NULL) {
            return NULL;
        }
        address->link.key = key;
        address->local = local;
        if (!hearth_table_add(&server->addresses, &address->link)) {
            free(address);
            return NULL;
        }
    }
    address->connections++;
    return address;
}

void hearth_http_address_unref(struct hearth_http_server *server, struct hearth_http_address *address) {
    HEARTH_ASSERT(address->connections > 0);
    if (--address->connections == 0) {
        hearth_table_remove(&server->addresses, &address->link);
        free(address);
    }
}

/* The most connections of an address. */
static uint32_t most_of(const struct hearth_http_server *server, const struct hearth_http_address *address) {
    const struct hearth_http_params *params = &server->params;
    if (params->connections_per_address > 0) {
        return params->connections_per_address;
    }
    return address->local || params->connections == 1 ? params->connections : params->connections / 2;
}

/* ---- places ---- */

/* Bytes a second that have moved since this began, of a body or of the end of an answer; negative: it is at neither,
 * or has only begun. */
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
    for (struct hearth_http_conn *conn = server->quiet_head; conn != NULL; conn = conn->quiet_next) {
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
    struct hearth_http_conn *slowest = NULL;
    double least = 0;
    for (struct hearth_http_conn *conn = server->conns; conn != NULL; conn = conn->next) {
        const double moves = may_go(conn, of) ? speed(conn, now_us) : -1;
        if (moves >= 0 && (slowest == NULL || moves < least)) {
            slowest = conn;
            least = moves;
        }
    }
    return slowest;
}

/* Closes a connection, of one address or of all, that others may take the place of. False: there is none. */
static bool evict(struct hearth_http_server *server, const struct hearth_http_address *of) {
    const int64_t now_us = hearth_clock_us();
    const char *why = "others need its place, and it has long been without a request";
    struct hearth_http_conn *conn = find_quiet(server, of, now_us);
    if (conn == NULL) {
        why = "others need its place, and it is the slowest";
        conn = find_slowest(server, of, now_us);
    }
    if (conn == NULL) {
        return false;
    }
    server->stats.evicted++;
    hearth_http_report_drop(conn, why);
    hearth_http_conn_destroy(conn);
    return true;
}

bool hearth_http_evict(struct hearth_http_server *server) {
    return evict(server, NULL);
}

const char *hearth_http_surplus(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    if (conn->address->connections > most_of(server, conn->address) && !evict(server, conn->address)) {
        return "as many connections of this address are open as may be";
    }
    if (server->stats.connections > server->params.connections && !evict(server, NULL)) {
        return "as many connections are open as may be";
    }
    return NULL;
}

bool hearth_http_is_crammed(const struct hearth_http_conn *conn) {
    return conn->address->connections > most_of(conn->server, conn->address) + HEARTH_HTTP_CONNECTIONS_OVER / 4;
}

/* ---- memory ---- */

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
        struct hearth_http_conn *most = NULL;
        for (struct hearth_http_conn *conn = server->conns; conn != NULL; conn = conn->next) {
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
