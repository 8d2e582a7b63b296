/* Asks origin.c about a request, and answers one that is refused. */
#include "http/conn.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

/* The host of a request: the one in its target wins over the header (RFC 9112, section 3.2.2). */
static const char *host_of(const struct hearth_http_conn *conn, char target[HEARTH_HTTP_HOST_BYTES]) {
    const char *url = (const char *)conn->url.data;
    const char *at = conn->url.len > 0 && *url != '/' ? memmem(url, conn->url.len, "://", 3) : NULL;
    if (at == NULL) {
        return hearth_http_conn_header(conn, "host");
    }
    at += 3;
    size_t len = 0;
    while (at + len < url + conn->url.len && strchr("/?#", at[len]) == NULL && len < HEARTH_HTTP_HOST_BYTES - 1) {
        len++;
    }
    memcpy(target, at, len);
    target[len] = '\0';
    return target;
}

static void local_address(const struct hearth_http_conn *conn, char out[HEARTH_HTTP_PEER_BYTES]) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    const bool known = getsockname(bufferevent_getfd(conn->bev), (struct sockaddr *)&address, &len) == 0;
    if (known && address.ss_family == AF_UNIX) {
        *out = '\0';
    } else if (!known || getnameinfo((const struct sockaddr *)&address, len, out, HEARTH_HTTP_PEER_BYTES, NULL, 0,
                                     NI_NUMERICHOST) != 0) {
        snprintf(out, HEARTH_HTTP_PEER_BYTES, "?");
    } else {
        out[strcspn(out, "%")] = '\0'; /* the interface of a link-local one */
    }
}

static void refuse(struct hearth_http_exchange *exchange, const char *message) {
    struct hearth_http_conn *conn = exchange->conn;
    const struct hearth_http_handler *handler = &conn->server->handler;
    struct hearth_buf body = {0};
    hearth_http_report_error(conn, 403, message, exchange->request_id);
    handler->error(handler->user, 403, message, exchange->path, exchange->request_id, &body);
    hearth_http_set_header(exchange, "request-id", exchange->request_id);
    hearth_http_respond(exchange, 403, "application/json; charset=utf-8", body.data, body.len);
    hearth_buf_finish(&body);
}

bool hearth_http_admit(struct hearth_http_exchange *exchange) {
    const struct hearth_http_conn *conn = exchange->conn;
    const struct hearth_http_origins *origins = conn->server->origins;
    char target[HEARTH_HTTP_HOST_BYTES], local[HEARTH_HTTP_PEER_BYTES], message[512];
    local_address(conn, local);
    const struct hearth_http_asker asker = {
        .host = host_of(conn, target),
        .origin = hearth_http_conn_header(conn, "origin"),
        .site = hearth_http_conn_header(conn, "sec-fetch-site"),
        .local = local,
        .preflight = conn->parser.method == HTTP_OPTIONS,
    };
    const enum hearth_http_verdict verdict = hearth_http_origins_judge(origins, &asker);
    if (verdict != HEARTH_HTTP_ADMITTED) {
        hearth_http_origin_explain(verdict, &asker, message, sizeof message);
        refuse(exchange, message);
        return false;
    }
    const char *grant = asker.origin != NULL ? hearth_http_origins_grant(origins, asker.origin) : NULL;
    if (grant != NULL) {
        hearth_http_set_header(exchange, "Access-Control-Allow-Origin", grant);
        hearth_http_set_header(exchange, "Access-Control-Expose-Headers", HEARTH_HTTP_EXPOSED);
    }
    return true;
}
