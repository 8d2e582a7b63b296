/* An HTTP/1.1 server: connections, streams, limits. It knows no API: requests go to a handler, complete with their
 * body, and errors that it finds itself are put into words by the handler.
 *
 * One thread (the loop) owns every connection. Unless a declaration says otherwise, functions are for that thread and
 * callbacks come from it; hearth_http_post() brings work to it from anywhere.
 *
 * Keep-alive and pipelining are served (one request of a connection at a time), chunked request bodies, Expect:
 * 100-continue, HEAD (the handler answers as for GET; the body is left out) and OPTIONS (answered here, for CORS).
 * Every response carries Access-Control-Allow-Origin and X-Request-Id. Source: RFC 9110, RFC 9112. */
#ifndef HEARTH_HTTP_SERVER_H
#define HEARTH_HTTP_SERVER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_http_server;

/* One request and its response. It is alive from the handler's `request` call until the handler ends the response
 * (hearth_http_respond or hearth_http_end) or is told that the client has gone, whichever comes first; afterwards the
 * pointer must not be used. */
struct hearth_http_exchange;

struct hearth_http_handler {
    /* A complete request. It is answered now or later. */
    void (*request)(void *user, struct hearth_http_exchange *exchange);
    /* Appends the body (JSON) of a response to an error found by the server itself, such as 413 or 431. */
    void (*error)(void *user, int status, const char *message, struct hearth_buf *body);
    void (*tick)(void *user); /* once a second; NULL: not */
    void *user;
};

/* Zero fields do not mean defaults: start from hearth_http_params_default(). */
struct hearth_http_params {
    const char *host;              /* a name or an address; default "127.0.0.1" */
    uint16_t port;                 /* 0: any free one, see hearth_http_port(); default 8080 */
    size_t header_bytes;           /* most bytes of a request's head, at most 64 KiB; default 32 KiB; else 431 */
    size_t body_bytes;             /* most bytes of a request's body; default 64 MiB; else 413 */
    size_t out_bytes;              /* most bytes of a stream that a slow reader may leave unread; default 16 MiB */
    uint32_t connections;          /* most connections; more get a 503; default 512 */
    int64_t idle_us;               /* a kept connection without a request is closed; default 120 s */
    int64_t head_us;               /* from the first byte of a request to the end of its head; default 30 s; else 408 */
    int64_t body_us;               /* from there to the end of its body; default 300 s; else 408 */
    int64_t stall_us;              /* a reader that takes nothing for this long is dropped; default 60 s */
};

void hearth_http_params_default(struct hearth_http_params *params);

/* Binds and listens; nothing is accepted before hearth_http_start(). The handler is copied.
 * Errors: IO (the address is in use or cannot be had; `msg` holds one clear line), NOMEM. */
int hearth_http_create(const struct hearth_http_params *params, const struct hearth_http_handler *handler,
                       struct hearth_http_server **out, struct hearth_errmsg *msg);

/* The port that is listened on. Any thread. */
uint16_t hearth_http_port(const struct hearth_http_server *server);

/* Starts the loop's thread. Errors: NOMEM. The creator's thread, once. */
int hearth_http_start(struct hearth_http_server *server);

/* No new connections or requests; running ones finish. The loop ends when no connection is left. Any thread. */
void hearth_http_stop(struct hearth_http_server *server);

/* Stops, waits for the loop's end for at most `wait_us`, and then closes what is left. Any thread but the loop's;
 * does nothing when the loop was never started. */
void hearth_http_join(struct hearth_http_server *server, int64_t wait_us);

/* Joins, runs work that is still posted (on the calling thread), and frees. NULL is allowed. */
void hearth_http_destroy(struct hearth_http_server *server);

/* Work for the loop, in a struct of the caller's: posting needs no memory and cannot fail. `run` is called once per
 * post, in order of posting, and may post `work` again or free it. Any thread, until hearth_http_destroy(). */
struct hearth_http_work {
    struct hearth_http_work *next;
    void (*run)(struct hearth_http_work *work);
};
void hearth_http_post(struct hearth_http_server *server, struct hearth_http_work *work);

/* The request. Strings live as long as the exchange. */
const char *hearth_http_method(const struct hearth_http_exchange *exchange); /* "HEAD" reads as "GET" */
const char *hearth_http_path(const struct hearth_http_exchange *exchange);   /* percent-decoded */
const char *hearth_http_query(const struct hearth_http_exchange *exchange);  /* as sent, without '?'; may be "" */
/* A header by name, in any case; NULL when it was not sent. Of several the first. */
const char *hearth_http_header(const struct hearth_http_exchange *exchange, const char *name);
/* Moves the body into `out`, which must be empty. */
void hearth_http_take_body(struct hearth_http_exchange *exchange, struct hearth_buf *out);
/* Value of the response's X-Request-Id. */
const char *hearth_http_request_id(const struct hearth_http_exchange *exchange);

/* Called when the client goes away (or is dropped, being too slow) before the response has ended: at once, also while
 * nothing is written. The exchange is dead by then. Never called from within a function of this header that is given
 * the exchange. */
void hearth_http_on_gone(struct hearth_http_exchange *exchange, void (*gone)(void *user), void *user);

/* Adds a header to the response, before it begins. `name` and `value` must hold no line breaks; they are copied. */
void hearth_http_set_header(struct hearth_http_exchange *exchange, const char *name, const char *value);

/* A whole response; the exchange has ended. A response to HEAD leaves the body out. */
void hearth_http_respond(struct hearth_http_exchange *exchange, int status, const char *content_type, const void *body,
                         size_t len);

/* A streamed response: begin, any number of writes, end. What is written is sent at once; `out_bytes` bounds what a
 * slow reader leaves unsent, and one who exceeds it is dropped (gone is called from the loop a moment later). */
void hearth_http_begin(struct hearth_http_exchange *exchange, int status, const char *content_type);
void hearth_http_write(struct hearth_http_exchange *exchange, const void *bytes, size_t len);
void hearth_http_end(struct hearth_http_exchange *exchange);

/* Numbers for /metrics. */
struct hearth_http_stats {
    uint64_t connections;       /* open now */
    uint64_t connections_total;
    uint64_t requests_total;
    uint64_t dropped_total;     /* clients that left before their response had ended */
};
void hearth_http_stats(const struct hearth_http_server *server, struct hearth_http_stats *stats);

#endif
