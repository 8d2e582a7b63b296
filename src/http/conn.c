/* One connection: bytes in, requests out.
 *
 * http_parser is paused at the end of each request, so that the bytes of a pipelined one stay in the input buffer until
 * the response before it is written. While a request is being answered the connection goes on reading, for one reason:
 * to see at once that the client has closed its side. Such a client counts as gone.
 *
 *             first byte         head read        body read             answered, keep-alive
 *     IDLE ---------------> HEAD ----------> BODY ----------> BUSY -------------------------> IDLE
 *                             \  error         \  error         \  answered, close
 *                              `----------------`----------------`-----> FLUSH -----> closed, or LINGER
 *
 * After an error the rest of the request is thrown away as it arrives, and the socket is closed only when the client
 * has closed its side (LINGER, for a while): closing with unread bytes would reset the connection and the client would
 * never see the answer.
 *
 * Invariants: `exchange` is set exactly in BUSY. A connection is destroyed only from the loop (a callback of libevent,
 * posted work), never below a call that the handler makes: those set `doomed` and activate the timer. */
#include "http/conn.h"

#include "base/assert.h"
#include "base/log.h"

#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define LINGER_US (5 * 1000000ll)

static void pump(struct hearth_http_conn *conn);

static struct hearth_http_conn *conn_of(http_parser *parser) {
    return parser->data;
}

static void set_state(struct hearth_http_conn *conn, enum hearth_http_conn_state state) {
    const struct hearth_http_params *params = &conn->server->params;
    int64_t us = 0;
    conn->state = state;
    if (conn->doomed) {
        return; /* the timer is about to run; touching it would take that back */
    }
    switch (state) {
    case HEARTH_HTTP_CONN_IDLE: us = params->idle_us; break;
    case HEARTH_HTTP_CONN_HEAD: us = params->head_us; break;
    case HEARTH_HTTP_CONN_BODY: us = params->body_us; break;
    case HEARTH_HTTP_CONN_LINGER: us = LINGER_US; break;
    case HEARTH_HTTP_CONN_BUSY:
    case HEARTH_HTTP_CONN_FLUSH: break; /* the write timeout watches over these */
    }
    if (us > 0) {
        const struct timeval tv = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
        event_add(conn->timer, &tv);
    } else {
        event_del(conn->timer);
    }
}

static void reset_request(struct hearth_http_conn *conn) {
    conn->url.len = conn->head.len = 0;
    hearth_buf_finish(&conn->body); /* may be large; not kept for the next request */
    conn->header_count = conn->head_bytes = 0;
    conn->in_value = conn->head_done = conn->complete = false;
    conn->error_status = 0;
}

/* Answers an error found here. The rest of the request is not read. */
static void fail(struct hearth_http_conn *conn, int status, const char *message) {
    HEARTH_ASSERT(conn->exchange == NULL);
    conn->keep_alive = false;
    conn->linger = true;
    set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    hearth_http_write_error(conn, status, message);
}

/* For parser callbacks: the error is answered when the parser has returned. */
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

static int on_message_begin(http_parser *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->state == HEARTH_HTTP_CONN_IDLE) {
        set_state(conn, HEARTH_HTTP_CONN_HEAD);
    }
    return 0;
}

static int on_url(http_parser *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->url.len + len > conn->server->params.header_bytes) {
        return parser_fail(conn, 414, "the request's URL is too long");
    }
    if (!hearth_buf_append(&conn->url, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return count_head(conn, len);
}

static int on_header_field(http_parser *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->head_done) {
        return 0; /* a trailer: http_parser bounds them, nobody reads them */
    }
    if (conn->in_value || conn->header_count == 0) { /* the first piece of a name */
        if (conn->header_count == HEARTH_HTTP_HEADERS_MAX) {
            return parser_fail(conn, 431, "the request has too many headers");
        }
        if (conn->in_value && !hearth_buf_append(&conn->head, "", 1)) {
            return parser_fail(conn, 503, "out of memory");
        }
        conn->in_value = false;
        conn->headers[conn->header_count++] = (struct hearth_http_header_at){.name = conn->head.len};
    }
    if (memchr(at, ' ', len) != NULL) { /* http_parser lets it pass when it is built to be lenient, as Debian's is */
        return parser_fail(conn, 400, "a header's name holds a space");
    }
    if (!hearth_buf_append(&conn->head, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return count_head(conn, len + 2);
}

static int on_header_value(http_parser *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->head_done) {
        return 0;
    }
    if (!conn->in_value) { /* the first piece of a value */
        if (!hearth_buf_append(&conn->head, "", 1)) {
            return parser_fail(conn, 503, "out of memory");
        }
        conn->headers[conn->header_count - 1].value = conn->head.len;
        conn->in_value = true;
    }
    if (!hearth_buf_append(&conn->head, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return count_head(conn, len + 2);
}

const char *hearth_http_conn_header(const struct hearth_http_conn *conn, const char *name) {
    for (size_t i = 0; i < conn->header_count; i++) {
        if (strcasecmp((const char *)conn->head.data + conn->headers[i].name, name) == 0) {
            return (const char *)conn->head.data + conn->headers[i].value;
        }
    }
    return NULL;
}

static int on_headers_complete(http_parser *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    const struct hearth_http_params *params = &conn->server->params;
    if (conn->in_value && !hearth_buf_append(&conn->head, "", 1)) {
        return parser_fail(conn, 503, "out of memory");
    }
    conn->head_done = true;
    parser->upgrade = 0; /* an offered upgrade is declined by ignoring it */
    if (parser->http_major != 1) {
        return parser_fail(conn, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    }
    if (conn->server->stats.connections > params->connections) {
        return parser_fail(conn, 503, "too many connections");
    }
    bool sized = (parser->flags & F_CONTENTLENGTH) != 0;
    if (sized && parser->content_length > params->body_bytes) {
        return parser_fail(conn, 413, "the request's body is too large");
    }
    const char *expect = hearth_http_conn_header(conn, "expect");
    if (expect != NULL && parser->http_minor >= 1) {
        if (strcasecmp(expect, "100-continue") != 0) {
            return parser_fail(conn, 417, "this expectation cannot be met");
        }
        static const char proceed[] = "HTTP/1.1 100 Continue\r\n\r\n";
        bufferevent_write(conn->bev, proceed, sizeof proceed - 1);
    }
    set_state(conn, HEARTH_HTTP_CONN_BODY);
    return 0;
}

static int on_body(http_parser *parser, const char *at, size_t len) {
    struct hearth_http_conn *conn = conn_of(parser);
    if (conn->body.len + len > conn->server->params.body_bytes) {
        return parser_fail(conn, 413, "the request's body is too large");
    }
    if (!hearth_buf_append(&conn->body, at, len)) {
        return parser_fail(conn, 503, "out of memory");
    }
    return 0;
}

static int on_message_complete(http_parser *parser) {
    struct hearth_http_conn *conn = conn_of(parser);
    conn->complete = true;
    conn->keep_alive = http_should_keep_alive(parser) && !conn->server->stopping;
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings parser_settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void fail_parse(struct hearth_http_conn *conn, enum http_errno error) {
    switch (error) {
    case HPE_INVALID_METHOD: fail(conn, 501, "unknown request method"); break;
    case HPE_HEADER_OVERFLOW: fail(conn, 431, "the request's headers are too large"); break;
    case HPE_INVALID_VERSION: fail(conn, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here"); break;
    default: fail(conn, 400, http_errno_description(error)); break;
    }
}

static void start_exchange(struct hearth_http_conn *conn) {
    int status = 0;
    conn->exchange = hearth_http_exchange_create(conn, &status);
    if (conn->exchange == NULL) {
        fail(conn, status, status == 400 ? "the request's URL is malformed" : "out of memory");
        return;
    }
    set_state(conn, HEARTH_HTTP_CONN_BUSY);
    conn->server->stats.requests_total++;
    if (conn->parser.method == HTTP_OPTIONS) {
        hearth_http_respond_options(conn->exchange);
    } else {
        conn->server->handler.request(conn->server->handler.user, conn->exchange);
    }
}

/* Takes one piece of the input. False: there is nothing (more) to do. */
static bool parse_piece(struct hearth_http_conn *conn) {
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    const struct hearth_http_params *params = &conn->server->params;
    if (conn->state == HEARTH_HTTP_CONN_FLUSH || conn->state == HEARTH_HTTP_CONN_LINGER) {
        evbuffer_drain(input, evbuffer_get_length(input));
        return false;
    }
    if (conn->doomed) {
        return false;
    }
    if (conn->exchange != NULL) {
        if (evbuffer_get_length(input) > params->body_bytes + params->header_bytes) {
            hearth_http_conn_doom(conn); /* pipelining without end */
        }
        return false;
    }
    /* A client that pipelines without reading the answers waits until it has read. */
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) > params->out_bytes) {
        return false;
    }
    size_t len = evbuffer_get_contiguous_space(input);
    if (len == 0) {
        return false;
    }
    const char *data = (const char *)evbuffer_pullup(input, (ev_ssize_t)len);
    size_t taken = http_parser_execute(&conn->parser, &parser_settings, data, len);
    evbuffer_drain(input, taken);
    enum http_errno error = HTTP_PARSER_ERRNO(&conn->parser);
    if (conn->error_status != 0) {
        fail(conn, conn->error_status, conn->error_message);
    } else if (conn->complete) {
        start_exchange(conn);
    } else if (error != HPE_OK) {
        fail_parse(conn, error);
    }
    return true;
}

static void pump(struct hearth_http_conn *conn) {
    if (conn->pumping) {
        return;
    }
    conn->pumping = true;
    while (parse_piece(conn)) {
    }
    conn->pumping = false;
}

static void on_readable(struct bufferevent *bev, void *user) {
    (void)bev;
    pump(user);
}

/* The output buffer has been taken by the kernel. */
static void on_written(struct bufferevent *bev, void *user) {
    struct hearth_http_conn *conn = user;
    if (conn->state != HEARTH_HTTP_CONN_FLUSH) {
        pump(conn); /* it may have waited for the output */
    } else if (conn->linger && !conn->eof) {
        shutdown(bufferevent_getfd(bev), SHUT_WR);
        set_state(conn, HEARTH_HTTP_CONN_LINGER);
    } else {
        hearth_http_conn_destroy(conn);
    }
}

static void on_event(struct bufferevent *bev, short what, void *user) {
    struct hearth_http_conn *conn = user;
    bool unsent = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
    if ((what & BEV_EVENT_EOF) != 0 && conn->exchange == NULL && conn->state != HEARTH_HTTP_CONN_LINGER && unsent) {
        /* It asked, closed its side, and may still read the answer. */
        conn->eof = true;
        set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    } else {
        hearth_http_conn_destroy(conn);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *user) {
    struct hearth_http_conn *conn = user;
    (void)fd, (void)what;
    if (!conn->doomed && (conn->state == HEARTH_HTTP_CONN_HEAD || conn->state == HEARTH_HTTP_CONN_BODY)) {
        fail(conn, 408, "the request did not arrive in time");
    } else {
        hearth_http_conn_destroy(conn);
    }
}

void hearth_http_conn_create(struct hearth_http_server *server, evutil_socket_t fd) {
    const int on = 1;
    struct hearth_http_conn *conn = calloc(1, sizeof *conn);
    if (conn != NULL) {
        conn->bev = bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
        conn->timer = event_new(server->base, -1, 0, on_timer, conn);
    }
    if (conn == NULL || conn->bev == NULL || conn->timer == NULL) {
        hearth_log(HEARTH_LOG_WARN, "http: no memory for a connection");
        if (conn != NULL && conn->bev != NULL) {
            bufferevent_free(conn->bev);
        } else {
            evutil_closesocket(fd);
        }
        if (conn != NULL && conn->timer != NULL) {
            event_free(conn->timer);
        }
        free(conn);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a token is worth a packet */
    conn->server = server;
    conn->next = server->conns;
    if (conn->next != NULL) {
        conn->next->prev = conn;
    }
    server->conns = conn;
    server->stats.connections++;
    server->stats.connections_total++;
    http_parser_init(&conn->parser, HTTP_REQUEST);
    conn->parser.data = conn;
    const struct timeval stall = {.tv_sec = (time_t)(server->params.stall_us / 1000000),
                                  .tv_usec = (suseconds_t)(server->params.stall_us % 1000000)};
    bufferevent_setcb(conn->bev, on_readable, on_written, on_event, conn);
    bufferevent_set_timeouts(conn->bev, NULL, &stall);
    set_state(conn, HEARTH_HTTP_CONN_IDLE);
    bufferevent_enable(conn->bev, EV_READ | EV_WRITE);
}

void hearth_http_conn_destroy(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    HEARTH_ASSERT(!conn->pumping);
    if (conn->exchange != NULL) {
        void (*gone)(void *) = conn->exchange->gone;
        void *gone_user = conn->exchange->gone_user;
        server->stats.dropped_total++;
        hearth_http_exchange_destroy(conn->exchange);
        conn->exchange = NULL;
        if (gone != NULL) {
            gone(gone_user);
        }
    }
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        server->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    server->stats.connections--;
    event_free(conn->timer);
    bufferevent_free(conn->bev);
    hearth_buf_finish(&conn->url);
    hearth_buf_finish(&conn->head);
    hearth_buf_finish(&conn->body);
    free(conn);
    hearth_http_server_conn_closed(server);
}

void hearth_http_conn_doom(struct hearth_http_conn *conn) {
    conn->doomed = true;
    event_active(conn->timer, EV_TIMEOUT, 0);
}

void hearth_http_conn_answered(struct hearth_http_conn *conn) {
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    hearth_http_exchange_destroy(conn->exchange);
    conn->exchange = NULL;
    reset_request(conn);
    if (conn->keep_alive && !conn->server->stopping) {
        http_parser_pause(&conn->parser, 0);
        set_state(conn, HEARTH_HTTP_CONN_IDLE);
        if (!conn->pumping && evbuffer_get_length(input) > 0) {
            bufferevent_trigger(conn->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
        }
        return;
    }
    conn->linger = conn->linger || evbuffer_get_length(input) > 0;
    set_state(conn, HEARTH_HTTP_CONN_FLUSH);
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) == 0) {
        hearth_http_conn_doom(conn);
    }
}

void hearth_http_conn_stop(struct hearth_http_conn *conn) {
    conn->keep_alive = false;
    if (conn->exchange == NULL && conn->state != HEARTH_HTTP_CONN_LINGER) {
        if (evbuffer_get_length(bufferevent_get_output(conn->bev)) > 0) {
            set_state(conn, HEARTH_HTTP_CONN_FLUSH);
        } else {
            hearth_http_conn_destroy(conn);
        }
    }
}
