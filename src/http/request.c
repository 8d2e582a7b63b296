/* Reads requests: from bytes to an exchange for the handler.
 *
 * llhttp is paused twice in a request. It is paused at the end of the head, so that the handler can refuse the
 * request before its body is read; inside of the parser's callbacks an answer could not be sent. It is paused at the
 * end of the request, so that a pipelined request stays in the input buffer until the response before it is written
 * and other connections have had their turn. If a request has no body, the handler sees the head at the end of the
 * request: nothing is lost when it is refused, and the connection stays open.
 *
 * While a request is being answered the connection goes on reading, only to notice at once that the client has
 * closed its side.
 *
 * Invariants: `exchange` is set in BUSY, and in BODY. `body` is counted in the server's `bodies_bytes`. */
#include "http/conn.h"

#include "base/assert.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

/* Sizes, extensions and trailers of a chunked body: header_bytes, and so many more for each byte of the content. */
#define FRAMING_PER_BYTE 8u
#define NOT_SPOKEN "only HTTP/1.1 and HTTP/1.0 are spoken here"

static struct hearth_http_conn *conn_of(llhttp_t *parser) {
    return parser->data;
}

/* ---- the parser's callbacks: what they find wrong is answered when the parser has returned ---- */

static int parser_fail(struct hearth_http_conn *conn, int status, const char *message) {
    conn->error_status = status;
    conn->error_message = message;
    return -1;
}

static int count_head(struct hearth_http_conn *conn, size_t bytes) {
    conn->head_bytes += bytes;
    if (conn->head_bytes > conn->server->params.header_bytes) {
        return parser_fail(conn, 431, "the request's headers are too large");
    }
    return 0;
}

static int append_head(struct hearth_http_conn *conn, const char *at, size_t len) {
    if (!hearth_buf_append(&conn->head, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return count_head(conn, len);
}

static int on_message_begin(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->state == HEARTH_HTTP_CONN_IDLE) {
        hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_HEAD);
    }
    return 0;
}

/* Takes a part of a word of the request line. Exactly one space may stand between two words (RFC 9112, section 3); the
 * parser would accept any number. */
static int take_word(struct hearth_http_conn *conn, bool first, const char *at, size_t len) {
    const uint64_t from = conn->piece_at + (uint64_t)(at - conn->piece);
    if (first && from != conn->word_end + 1) {
        return parser_fail(conn, 400, "more than one space is between two words of the request line");
    }
    conn->word_end = from + len;
    return 0;
}

static int on_method(llhttp_t *parser, const char *at, size_t len) {
    return take_word(conn_of(parser), false, at, len);
}

static int on_url(llhttp_t *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    const struct hearth_http_params *params = &conn->server->params;
    if (take_word(conn, conn->url.len == 0, at, len) != 0) {
        return -1;
    }
    if (conn->url.len + len > params->url_bytes || conn->url.len + len > params->header_bytes) {
        return parser_fail(conn, 414, "the request's URL is too long");
    }
    if (!hearth_buf_append(&conn->url, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return count_head(conn, len);
}

/* llhttp knows protocols that are like HTTP, too. */
static int on_protocol(llhttp_t *parser, const char *at, size_t len) {
    static const char http[] = "HTTP";
    struct hearth_http_conn *conn = conn_of(parser);
    if (take_word(conn, conn->protocol_len == 0, at, len) != 0) {
        return -1;
    }
    for (size_t i = 0; i < len; i++) {
        if (conn->protocol_len == sizeof http - 1 || at[i] != http[conn->protocol_len]) {
            return parser_fail(conn, 400, "the request is none of HTTP");
        }
        conn->protocol_len++;
    }
    return 0;
}

/* A request line without a version is HTTP/0.9, which has no headers. */
static int on_url_complete(llhttp_t *parser) {
    const bool unversioned = parser->http_major == 0 && parser->http_minor == 9;
    return unversioned ? parser_fail(conn_of(parser), 505, NOT_SPOKEN) : 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->head_done) {
        return 0; /* a trailer: part of the body's framing, which is bounded; it is not read */
    }
    if (!conn->in_name) { /* the first piece of a name */
        if (conn->header_count == HEARTH_HTTP_HEADERS_MAX) {
            return parser_fail(conn, 431, "the request has too many headers");
        }
        if (!HEARTH_BUF_ROOM(conn->headers, conn->header_count, conn->header_room)) {
            return parser_fail(conn, 503, "out of memory");
        }
        conn->in_name = true;
        conn->headers[conn->header_count++] = (struct hearth_http_header_at){.name = (uint32_t)conn->head.len};
    }
    return append_head(conn, at, len);
}

static int on_header_field_complete(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->head_done) {
        return 0;
    }
    const int rc = append_head(conn, "", 1);
    conn->in_name = false;
    conn->headers[conn->header_count - 1].value = (uint32_t)conn->head.len;
    return rc;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    return conn->head_done ? 0 : append_head(conn, at, len);
}

static int on_header_value_complete(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->head_done) {
        return 0;
    }
    /* The parser leaves the white space behind a value to its user. */
    const uint32_t from = conn->headers[conn->header_count - 1].value;
    while (conn->head.len > from &&
           (conn->head.data[conn->head.len - 1] == ' ' || conn->head.data[conn->head.len - 1] == '\t')) {
        conn->head.len--;
    }
    return append_head(conn, "", 1);
}

static int on_headers_complete(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    conn->head_done = conn->head_read = true;
    parser->upgrade = 0; /* an offered upgrade is declined by ignoring it */
    return HPE_PAUSED;
}

/* The size of a chunk was read, the chunk was not. */
static int on_chunk_header(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    return parser->content_length > conn->server->params.body_bytes - conn->body.len
               ? parser_fail(conn, 413, "the request's body is too large")
               : 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    struct hearth_http_server *server = conn->server;
    if (conn->body.len + len > server->params.body_bytes) {
        return parser_fail(conn, 413, "the request's body is too large");
    }
    if (server->bodies_bytes + len > server->params.bodies_bytes) {
        return parser_fail(conn, 503, "too many large requests are being read");
    }
    if (!hearth_buf_append(&conn->body, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    server->bodies_bytes += len;
    return 0;
}

static int on_message_complete(llhttp_t *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    conn->complete = true;
    conn->keep_alive = llhttp_should_keep_alive(parser) && !conn->server->stopping;
    return HPE_PAUSED;
}

static const llhttp_settings_t parser_settings = {
    .on_message_begin = on_message_begin,
    .on_method = on_method,
    .on_url = on_url,
    .on_url_complete = on_url_complete,
    .on_protocol = on_protocol,
    .on_header_field = on_header_field,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_chunk_header = on_chunk_header,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void hearth_http_request_init(struct hearth_http_conn *conn) {
    llhttp_init(&conn->parser, HTTP_REQUEST, &parser_settings);
    conn->parser.data = conn;
}

/* ---- what has been read ---- */

static void fail_parse(struct hearth_http_conn *conn, llhttp_errno_t error) {
    const bool unspoken = conn->parser.http_major != 1 || conn->parser.http_minor > 1;
    if (error == HPE_INVALID_METHOD) {
        hearth_http_conn_fail(conn, 501, "unknown request method");
    } else if (error == HPE_PAUSED_H2_UPGRADE || (error == HPE_INVALID_VERSION && unspoken)) {
        hearth_http_conn_fail(conn, 505, NOT_SPOKEN);
    } else {
        hearth_http_conn_fail(conn, 400,
                              error == HPE_INVALID_VERSION ? "the request line does not end behind its version"
                                                           : llhttp_get_error_reason(&conn->parser));
    }
}

/* ---- the page that asks ---- */

/* The host of a request: the one in its target wins over the header (RFC 9112, section 3.2.2). */
static const char *host_of(const struct hearth_http_conn *conn, char target[HEARTH_HTTP_HOST_BYTES]) {
    struct hearth_http_target split;
    (void)hearth_http_target_split((const char *)conn->url.data, conn->url.len, &split); /* its head was checked */
    if (split.authority_len == 0) {
        return hearth_http_conn_header(conn, "host");
    }
    snprintf(target, HEARTH_HTTP_HOST_BYTES, "%.*s", (int)split.authority_len, split.authority);
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

/* Checks a new exchange by the page that asks (origin.h). True: it goes on, and its answer has the headers that the
 * page needs. False: it was answered with 403. */
static bool admit(struct hearth_http_exchange *exchange) {
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

/* ---- what is done with it ---- */

/* Opens the exchange and shows it to the handler. False: the request has been answered. */
static bool open_exchange(struct hearth_http_conn *conn) {
    const struct hearth_http_handler *handler = &conn->server->handler;
    int status = 0;
    conn->exchange = hearth_http_exchange_create(conn, &status);
    if (conn->exchange == NULL) {
        return hearth_http_conn_fail(conn, status, status == 400 ? "the request's URL is malformed" : "out of memory");
    }
    if (!admit(conn->exchange)) {
        return false;
    }
    if (conn->parser.method == HTTP_OPTIONS) {
        hearth_http_respond_options(conn->exchange);
        return false;
    }
    if (handler->head == NULL) {
        return true;
    }
    const bool goes_on = handler->head(handler->user, conn->exchange);
    HEARTH_ASSERT(goes_on == (conn->exchange != NULL));
    return goes_on;
}

/* Decides by the head, and by the load, whether a request is taken. False: it was answered. */
static bool check_head(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    struct hearth_http_refusal refusal;
    if (!hearth_http_head_check(conn, &refusal)) {
        return hearth_http_conn_fail(conn, refusal.status, refusal.message);
    }
    const char *no_room = conn->over_limit ? hearth_http_make_room(conn) : NULL;
    if (no_room != NULL) {
        return hearth_http_conn_fail(conn, 503, no_room);
    }
    conn->over_limit = false;
    if ((conn->parser.flags & F_CONTENT_LENGTH) != 0 && conn->parser.content_length > server->params.body_bytes) {
        return hearth_http_conn_fail(conn, 413, "the request's body is too large");
    }
    return true;
}

static void take_head(struct hearth_http_conn *conn) {
    static const char proceed[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const llhttp_t *parser = &conn->parser;
    const bool sized = (parser->flags & F_CONTENT_LENGTH) != 0 && parser->content_length > 0;
    const bool has_body = sized || (parser->flags & F_CHUNKED) != 0;
    conn->head_read = false;
    if (!check_head(conn)) {
        return;
    }
    hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_BODY);
    conn->keep_alive = false; /* unless the body is read */
    if (has_body && !open_exchange(conn)) {
        return;
    }
    if (has_body && parser->http_minor >= 1 && hearth_http_conn_header(conn, "expect") != NULL) {
        hearth_http_put(conn, proceed, sizeof proceed - 1);
    }
    llhttp_resume(&conn->parser);
    conn->resumed = true;
}

static void take_request(struct hearth_http_conn *conn) {
    const struct hearth_http_handler *handler = &conn->server->handler;
    hearth_http_conn_set_state(conn, HEARTH_HTTP_CONN_BUSY);
    conn->server->stats.requests++;
    if (conn->exchange != NULL || open_exchange(conn)) {
        handler->request(handler->user, conn->exchange);
    }
}

/* Whether the input is one empty line. One may stand before a request, because old clients send it behind a body (RFC
 * 9112, section 2.2); the parser would accept any number, with any line ends. False: there is more. */
static bool is_empty_line(struct hearth_http_conn *conn, const char *data, size_t len) {
    static const char line[] = "\r\n";
    uint64_t at = conn->piece_at;
    size_t i = 0;
    while (i < len && at < sizeof line - 1 && data[i] == line[at]) {
        i++, at++;
    }
    return i == len || (at != 1 && data[i] != '\r' && data[i] != '\n');
}

/* Gives `len` bytes of the input to the parser, and removes those that it has used. */
static llhttp_errno_t execute(struct hearth_http_conn *conn, struct evbuffer *input, size_t len) {
    const char *data = len > 0 ? (const char *)evbuffer_pullup(input, (ev_ssize_t)len) : "";
    const size_t body_before = conn->body.len;
    conn->resumed = false;
    conn->piece = data;
    if (conn->word_end == 0 && !is_empty_line(conn, data, len)) {
        parser_fail(conn, 400, "more than an empty line is before the request");
        return HPE_USER;
    }
    const llhttp_errno_t error = llhttp_execute(&conn->parser, data, len);
    const char *stopped_at = error != HPE_OK ? llhttp_get_error_pos(&conn->parser) : NULL;
    const size_t taken =
        stopped_at != NULL && stopped_at >= data && stopped_at <= data + len ? (size_t)(stopped_at - data) : len;
    evbuffer_drain(input, taken);
    conn->server->stats.read_bytes += taken;
    conn->piece_at += taken;
    if (conn->state == HEARTH_HTTP_CONN_BODY && conn->error_status == 0) {
        conn->framing_bytes += taken - (conn->body.len - body_before);
        const size_t most = conn->server->params.header_bytes + FRAMING_PER_BYTE * conn->body.len;
        if (conn->framing_bytes > most) {
            parser_fail(conn, 400, "the body's chunks bring too much besides their content");
        }
    }
    return error;
}

/* Whether a client reads its answers; one that pipelines without reading has to wait. */
static bool reads_answers(const struct hearth_http_conn *conn) {
    return hearth_http_conn_unsent(conn) == 0;
}

/* Handles one piece of the input. False: nothing more can be done in this turn, which ends with a request. */
static bool parse_piece(struct hearth_http_conn *conn) {
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    if (conn->state == HEARTH_HTTP_CONN_FLUSH || conn->state == HEARTH_HTTP_CONN_LINGER) {
        conn->server->stats.read_bytes += evbuffer_get_length(input);
        evbuffer_drain(input, evbuffer_get_length(input));
        return false;
    }
    /* A body goes on: what is unsent is the 100 (Continue) that asks for it. */
    const bool waits = conn->state != HEARTH_HTTP_CONN_BODY && !reads_answers(conn);
    if (conn->doomed || conn->state == HEARTH_HTTP_CONN_BUSY || waits) {
        return false;
    }
    const size_t len = evbuffer_get_contiguous_space(input);
    if (len == 0 && !conn->resumed) {
        return false;
    }
    const llhttp_errno_t error = execute(conn, input, len);
    if (conn->error_status != 0) {
        hearth_http_conn_fail(conn, conn->error_status, conn->error_message);
    } else if (conn->head_read) {
        take_head(conn);
    } else if (conn->complete) {
        take_request(conn);
        return conn->state != HEARTH_HTTP_CONN_IDLE;
    } else if (error != HPE_OK && error != HPE_PAUSED) {
        fail_parse(conn, error);
    }
    return true;
}

void hearth_http_request_pump(struct hearth_http_conn *conn) {
    if (conn->pumping) {
        return;
    }
    conn->pumping = true;
    while (parse_piece(conn)) {
    }
    conn->pumping = false;
    const bool more = evbuffer_get_length(bufferevent_get_input(conn->bev)) > 0;
    if (more && conn->state == HEARTH_HTTP_CONN_IDLE && reads_answers(conn)) {
        event_active(conn->turn, EV_READ, 0);
    }
}
