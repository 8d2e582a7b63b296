/* One request and its response: what the handler sees of it, and how the answer is written.
 *
 * A response is either whole (Content-Length) or streamed: chunked, or to an HTTP/1.0 client plain bytes until the
 * connection closes. Once `begun`, the head is in the output buffer and cannot change. */
#include "http/conn.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <linux/sockios.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>

/* Decodes percent escapes in place. False: a broken escape, or one of NUL. */
static bool percent_decode(char *text) {
    char *out = text;
    for (const char *in = text; *in != '\0'; in++) {
        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        const int hi = OPENSSL_hexchar2int((unsigned char)in[1]);
        const int lo = hi < 0 ? -1 : OPENSSL_hexchar2int((unsigned char)in[2]);
        if (lo < 0 || (hi == 0 && lo == 0)) {
            return false;
        }
        *out++ = (char)(hi * 16 + lo);
        in += 2;
    }
    *out = '\0';
    return true;
}

/* Copies a path in the form in which nginx reads it: several slashes count as one, and one at the end as none. Base
 * URLs may end with a slash, behind which clients put their paths. */
static char *copy_path(char *out, const char *path, size_t len) {
    const char *begin = out;
    for (size_t i = 0; i < len; i++) {
        if (path[i] != '/' || out == begin || out[-1] != '/') {
            *out++ = path[i];
        }
    }
    return out > begin + 1 && out[-1] == '/' ? out - 1 : out;
}

/* Copies path and query out of the request target. */
static int split_target(struct hearth_http_exchange *exchange, const struct hearth_buf *url) {
    struct hearth_http_target target;
    if (!hearth_http_target_split((const char *)url->data, url->len, &target)) {
        return 400;
    }
    char *copy = malloc(target.path_len + target.query_len + 3);
    if (copy == NULL) {
        return 503;
    }
    exchange->path = copy;
    if (target.path_len == 0) {
        *copy++ = '/';
    }
    copy = copy_path(copy, target.path, target.path_len);
    *copy++ = '\0';
    exchange->query = copy;
    copy = (char *)mempcpy(copy, target.query, target.query_len);
    *copy = '\0';
    return percent_decode(exchange->path) ? 0 : 400;
}

/* Makes a random id: a counter would tell each client how many requests the others make. */
static void make_request_id(struct hearth_http_server *server, char out[HEARTH_HTTP_REQUEST_ID_BYTES]) {
    uint64_t bits[2];
    if (getrandom(bits, sizeof bits, GRND_NONBLOCK) != (ssize_t)sizeof bits) {
        bits[0] = server->request_id_seed;
        bits[1] = ++server->request_id_count;
    }
    snprintf(out, HEARTH_HTTP_REQUEST_ID_BYTES, "req_%016" PRIx64 "%08" PRIx32, bits[0], (uint32_t)bits[1]);
}

struct hearth_http_exchange *hearth_http_exchange_create(struct hearth_http_conn *conn, int *status) {
    struct hearth_http_exchange *exchange = calloc(1, sizeof *exchange);
    *status = 503;
    if (exchange == NULL) {
        return NULL;
    }
    exchange->head_us = hearth_clock_us();
    exchange->conn = conn;
    exchange->head_only = conn->parser.method == HTTP_HEAD;
    exchange->method = llhttp_method_name(exchange->head_only ? HTTP_GET : (llhttp_method_t)conn->parser.method);
    make_request_id(conn->server, exchange->request_id);
    int rc = split_target(exchange, &conn->url);
    if (rc != 0) {
        *status = rc;
        hearth_http_exchange_destroy(exchange);
        return NULL;
    }
    return exchange;
}

const char *hearth_http_method(const struct hearth_http_exchange *exchange) {
    return exchange->method;
}

const char *hearth_http_path(const struct hearth_http_exchange *exchange) {
    return exchange->path;
}

const char *hearth_http_query(const struct hearth_http_exchange *exchange) {
    return exchange->query;
}

bool hearth_http_is_head(const struct hearth_http_exchange *exchange) {
    return exchange->head_only;
}

size_t hearth_http_unread(const struct hearth_http_exchange *exchange) {
    return evbuffer_get_length(bufferevent_get_output(exchange->conn->bev));
}

const char *hearth_http_request_id(const struct hearth_http_exchange *exchange) {
    return exchange->request_id;
}

const char *hearth_http_header(const struct hearth_http_exchange *exchange, const char *name) {
    return hearth_http_conn_header(exchange->conn, name);
}

void hearth_http_take_body(struct hearth_http_exchange *exchange, struct hearth_buf *out) {
    struct hearth_http_conn *conn = exchange->conn;
    HEARTH_ASSERT(out->data == NULL);
    *out = conn->body;
    conn->body = (struct hearth_buf){0};
}

void hearth_http_body_freed(struct hearth_http_server *server, size_t bytes) {
    HEARTH_ASSERT(server->bodies_bytes >= bytes);
    server->bodies_bytes -= bytes;
}

void hearth_http_on_gone(struct hearth_http_exchange *exchange, void (*gone)(void *user), void *user) {
    exchange->gone = gone;
    exchange->gone_user = user;
}

void hearth_http_set_header(struct hearth_http_exchange *exchange, const char *name, const char *value) {
    HEARTH_ASSERT(!exchange->begun && strpbrk(name, "\r\n:") == NULL && strpbrk(value, "\r\n") == NULL);
    if (!hearth_buf_printf(&exchange->extra, "%s: %s\r\n", name, value)) {
        hearth_log(HEARTH_LOG_WARN, "http: no memory for the header %s", name);
    }
}

/* Over TLS libevent counts a part of its buffer as sent when the kernel has all of it. As one part, a long answer would
 * look as if its reader took nothing of it. */
#define PART_BYTES ((size_t)16 * 1024)

/* Appends output. False: out of memory. */
static bool append_output(struct bufferevent *bev, const char *bytes, size_t len) {
    bool ok = true;
    for (size_t n; len > 0 && ok; bytes += n, len -= n) {
        n = len < PART_BYTES ? len : PART_BYTES;
        ok = bufferevent_write(bev, bytes, n) == 0;
    }
    return ok;
}

/* Writes bytes. Out of memory the client would be left with half an answer, so the connection is closed. */
void hearth_http_put(struct hearth_http_conn *conn, const void *bytes, size_t len) {
    if (!conn->doomed && len > 0) {
        hearth_http_unread_bound(conn->server);
    }
    if (conn->doomed || len == 0) {
        return;
    }
    /* Enabled each time: libevent does not report when it found no memory for its write callback. */
    if (!append_output(conn->bev, bytes, len) || bufferevent_enable(conn->bev, EV_WRITE) < 0) {
        hearth_http_report_drop(conn, "there is no memory for its answer");
        hearth_http_conn_doom(conn);
        return;
    }
    hearth_http_conn_written(conn, len);
}

/* The reason phrase of RFC 9110, section 15, of RFC 6585 or of others' practice: the first *len bytes. */
static const char *status_text(int status, int *len) {
    static const char lines[] =
        "\n200 OK\n201 Created\n202 Accepted\n204 No Content\n206 Partial Content\n304 Not Modified\n"
        "400 Bad Request\n401 Unauthorized\n402 Payment Required\n403 Forbidden\n404 Not Found\n"
        "405 Method Not Allowed\n406 Not Acceptable\n408 Request Timeout\n409 Conflict\n410 Gone\n"
        "412 Precondition Failed\n413 Content Too Large\n414 URI Too Long\n415 Unsupported Media Type\n"
        "417 Expectation Failed\n421 Misdirected Request\n422 Unprocessable Content\n429 Too Many Requests\n"
        "431 Request Header Fields Too Large\n499 Client Closed Request\n500 Internal Server Error\n"
        "501 Not Implemented\n502 Bad Gateway\n503 Service Unavailable\n504 Gateway Timeout\n"
        "505 HTTP Version Not Supported\n507 Insufficient Storage\n529 Overloaded\n";
    static const char *const others[] = {"OK", "Bad Request", "Error"};
    char key[16];
    (void)snprintf(key, sizeof key, "\n%d ", status);
    const char *found = strstr(lines, key);
    found = found != NULL ? found + strlen(key) : others[status < 400 ? 0 : status < 500 ? 1 : 2];
    *len = (int)strcspn(found, "\n");
    return found;
}

/* Writes the head. `framing` is the header line that tells where the body ends, "" for none. */
static void put_head(struct hearth_http_conn *conn, int status, const char *request_id, const char *content_type,
                     const char *framing, const struct hearth_buf *extra) {
    struct hearth_buf head = {0};
    int len;
    const char *reason = status_text(status, &len);
    const bool last = conn->eof && evbuffer_get_length(bufferevent_get_input(conn->bev)) == 0;
    conn->keep_alive = conn->keep_alive && !last && !atomic_load(&conn->server->closing);
    bool ok = hearth_buf_printf(&head,
                                HEARTH_HTTP_VERSION
                                "%d %.*s\r\nServer: hearth\r\nVary: Origin\r\n"
                                "Cross-Origin-Resource-Policy: same-origin\r\nX-Content-Type-Options: nosniff\r\n"
                                "X-Request-Id: %s\r\n",
                                status, len, reason, request_id);
    if (content_type != NULL) {
        ok = ok && hearth_buf_printf(&head, "Content-Type: %s\r\n", content_type);
    }
    if (extra != NULL && extra->len > 0) {
        ok = ok && hearth_buf_append(&head, extra->data, extra->len);
    }
    /* A header that found no memory is left out; this one must not be. */
    const char *own = extra != NULL && extra->len > 0 ? (const char *)extra->data : "";
    if (status == 503 && strstr(own, "Retry-After: ") == NULL) {
        ok = ok && hearth_buf_text(&head, "Retry-After: 1\r\n");
    }
    ok = ok && hearth_buf_printf(&head, "%sConnection: %s\r\n\r\n", framing, conn->keep_alive ? "keep-alive" : "close");
    if (ok) {
        hearth_http_put(conn, head.data + conn->head_put, head.len - conn->head_put);
        conn->head_put = 0;
    } else {
        hearth_http_conn_doom(conn);
    }
    hearth_buf_finish(&head);
}

/* The response was written: flush it, then the next request or the end. */
static void answered(struct hearth_http_conn *conn) {
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    const bool whole = conn->state == HEARTH_HTTP_CONN_BUSY; /* otherwise its body is still to come */
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

void hearth_http_respond(struct hearth_http_exchange *exchange, int status, const char *content_type, const void *body,
                         size_t len) {
    struct hearth_http_conn *conn = exchange->conn;
    char framing[64];
    HEARTH_ASSERT(!exchange->begun);
    exchange->begun = true;
    snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", len);
    put_head(conn, status, exchange->request_id, content_type, status == 204 ? "" : framing, &exchange->extra);
    if (!exchange->head_only) {
        hearth_http_put(conn, body, len);
    }
    answered(conn);
}

void hearth_http_begin(struct hearth_http_exchange *exchange, int status, const char *content_type) {
    static const char event_stream[] = "text/event-stream";
    struct hearth_http_conn *conn = exchange->conn;
    HEARTH_ASSERT(!exchange->begun);
    exchange->begun = true;
    exchange->chunked = conn->parser.http_minor >= 1;
    exchange->events = content_type != NULL && strncmp(content_type, event_stream, sizeof event_stream - 1) == 0;
    if (!exchange->chunked) {
        conn->keep_alive = false;
    }
    put_head(conn, status, exchange->request_id, content_type,
             exchange->chunked ? "Transfer-Encoding: chunked\r\n" : "", &exchange->extra);
}

int64_t hearth_http_head_us(const struct hearth_http_exchange *exchange) {
    return exchange->head_us;
}

bool hearth_http_is_behind(const struct hearth_http_exchange *exchange) {
    int waiting = 0;
    const int fd = bufferevent_getfd(exchange->conn->bev);
    if (evbuffer_get_length(bufferevent_get_output(exchange->conn->bev)) > 0) {
        return true;
    }
    /* For TCP, what the window does not let out; for a socket in the file system, what was not read. */
    return fd >= 0 && (ioctl(fd, SIOCOUTQNSD, &waiting) == 0 || ioctl(fd, SIOCOUTQ, &waiting) == 0) && waiting > 0;
}

void hearth_http_write(struct hearth_http_exchange *exchange, const void *bytes, size_t len) {
    struct hearth_http_conn *conn = exchange->conn;
    HEARTH_ASSERT(exchange->begun);
    if (len == 0 || exchange->head_only || conn->doomed) {
        return;
    }
    /* Output of this call does not count: it may be large, and its reader fast. */
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) > conn->server->params.out_bytes) {
        conn->server->stats.stalled++;
        hearth_http_report_drop(conn, "it has left more unread than may wait for it");
        hearth_http_conn_doom(conn);
        return;
    }
    char size[24];
    if (exchange->chunked) {
        hearth_http_put(conn, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", len));
    }
    hearth_http_put(conn, bytes, len);
    if (exchange->chunked) {
        hearth_http_put(conn, "\r\n", 2);
    }
}

void hearth_http_end(struct hearth_http_exchange *exchange) {
    HEARTH_ASSERT(exchange->begun);
    if (exchange->chunked && !exchange->head_only) {
        hearth_http_put(exchange->conn, "0\r\n\r\n", 5);
    }
    answered(exchange->conn);
}

void hearth_http_break(struct hearth_http_exchange *exchange) {
    HEARTH_ASSERT(exchange->begun);
    exchange->conn->keep_alive = false;
    answered(exchange->conn);
}

/* The request's path as it was sent, as far as it was read: without its query, and without the address that a proxy is
 * sent. False: out of memory. */
static bool raw_path(const struct hearth_buf *url, struct hearth_buf *out) {
    const char *text = (const char *)url->data;
    size_t from = 0, len = 0;
    while (len < url->len && text[len] != '?' && text[len] != '#') {
        len++;
    }
    if (len > 0 && text[0] != '/') {
        const char *slashes = memmem(text, len, "//", 2);
        const char *path = slashes != NULL ? memchr(slashes + 2, '/', (size_t)(text + len - slashes - 2)) : NULL;
        from = path != NULL ? (size_t)(path - text) : slashes != NULL ? len : 0;
    }
    return (len == from || hearth_buf_append(out, text + from, len - from)) && hearth_buf_append(out, "", 1);
}

/* Writes, and logs, the response to an error found by the server, outside of an exchange. */
static void write_error(struct hearth_http_conn *conn, int status, const char *message) {
    const struct hearth_http_handler *handler = &conn->server->handler;
    struct hearth_buf body = {0}, path = {0}, extra = {0};
    char framing[64];
    char request_id[HEARTH_HTTP_REQUEST_ID_BYTES];
    make_request_id(conn->server, request_id);
    hearth_http_report_error(conn, status, message, request_id);
    handler->error(handler->user, status, message, raw_path(&conn->url, &path) ? (const char *)path.data : "",
                   request_id, &body);
    snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", body.len);
    if (!hearth_buf_printf(&extra, "request-id: %s\r\n%s", request_id, status == 503 ? "Retry-After: 1\r\n" : "")) {
        extra.len = 0; /* the answer matters more */
    }
    put_head(conn, status, request_id, "application/json; charset=utf-8", framing, &extra);
    hearth_http_put(conn, body.data, body.len);
    hearth_buf_finish(&body);
    hearth_buf_finish(&path);
    hearth_buf_finish(&extra);
}

bool hearth_http_conn_fail(struct hearth_http_conn *conn, int status, const char *message) {
    if (conn->exchange != NULL) {
        hearth_http_exchange_drop(conn);
    }
    conn->keep_alive = false;
    conn->linger = true;
    hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    write_error(conn, status, message);
    hearth_http_request_reset(conn);
    hearth_http_conn_set_timer(conn, hearth_clock_us()); /* output now waits for the reader */
    return false;
}

void hearth_http_respond_options(struct hearth_http_exchange *exchange) {
    const char *origin = hearth_http_header(exchange, "origin");
    const char *wanted = hearth_http_header(exchange, "access-control-request-headers");
    hearth_http_set_header(exchange, "Allow", "GET, HEAD, POST, DELETE, OPTIONS");
    if (origin != NULL && hearth_http_origins_grant(exchange->conn->server->origins, origin) != NULL) {
        hearth_http_set_header(exchange, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        /* "*" alone would leave out Authorization. */
        hearth_http_set_header(exchange, "Access-Control-Allow-Headers",
                               wanted != NULL && *wanted != '\0' ? wanted : "*");
        hearth_http_set_header(exchange, "Access-Control-Max-Age", "86400");
        if (hearth_http_header(exchange, "access-control-request-private-network") != NULL) {
            hearth_http_set_header(exchange, "Access-Control-Allow-Private-Network", "true");
        }
    }
    hearth_http_respond(exchange, 204, NULL, NULL, 0);
}
