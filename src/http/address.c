/* Counts connections by address and limits them: an address may have half of all connections. Addresses of this
 * machine have no limit unless one was set, because everything behind a proxy comes from there.
 *
 * Invariant: an address is in the table as long as it has connections. */
#include "base/assert.h"
#include "http/conn.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* What counts as one address: an IPv4 address, the first half of an IPv6 address, or the path of a socket. */
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

uint32_t hearth_http_address_most(const struct hearth_http_server *server, const struct hearth_http_address *address) {
    const struct hearth_http_params *params = &server->params;
    if (params->connections_per_address > 0) {
        return params->connections_per_address;
    }
    return address->local || params->connections == 1 ? params->connections : params->connections / 2;
}

bool hearth_http_address_is_overfull(const struct hearth_http_conn *conn) {
    return conn->address->connections >
           hearth_http_address_most(conn->server, conn->address) + HEARTH_HTTP_CONNECTIONS_OVER / 4;
}
