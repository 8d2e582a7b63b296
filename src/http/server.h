/* An HTTP/1.1 server: connections, streams, limits. It knows no API: requests go to a handler, complete with their
 * body, and errors that it finds itself are put into words by the handler.
 *
 * What a client may not do, however many of them there are:
 *
 *     what                                                 limit                             the client sees
 *     ---------------------------------------------------  --------------------------------  -------------------------
 *     a request line or headers without end                url_bytes, header_bytes, 128      414, 431
 *     a body without end                                   body_bytes                        413
 *     chunks without content, extensions, trailers         header_bytes, and 8 a byte of it  400
 *     what is no HTTP/1.1, or could be read in two ways    head.c                            400, 501, 505
 *     bodies that are together more than memory holds      bodies_bytes                      503 and Retry-After
 *     a head that does not end (slowloris)                 head_us from its first byte       408
 *     a body that does not end                             body_us from the end of the head  408
 *     a body that trickles                                 rate, after the first trickle_us  408
 *     a connection that says nothing                       idle_us                           closed
 *     a reader that takes nothing, or a byte now and then  rate over each stall_us           closed, its request gone
 *     a reader that is too slow for what is written        out_bytes unread                  closed, its request gone
 *     many readers that are                                unread_bytes of all together      those with most are closed
 *     a peer that has vanished without a word              TCP keep-alive, about 2 minutes   closed, its request gone
 *     requests that are sent ahead of their answers        32 KiB; more is not read yet      nothing
 *     answers of those that wait to be read                64 KiB; no request is taken then  nothing
 *     more connections than there may be                   connections                       503 and Retry-After
 *     more connections of one address                      connections_per_address           503 and Retry-After
 *     a TLS handshake that does not end                    head_us                           closed
 *
 * `rate` is in bytes a second: of a body, (time since its head - trickle_us) * rate must have come at any time; while
 * output waits for a reader, stall_us * rate must be taken in each stall_us, unless all of it is. When as many
 * connections are open as may be, a new one takes the place of the one that has been idle, or has been sending its
 * head, for longest, or of the one that sends its body or takes its answer most slowly, if it has been at that for more
 * than a second: those that send nothing, half a request or a slow one keep no other out. What
 * is dropped, refused or cut off is counted and logged with its cause; of many such lines in a short time only the
 * first ones are written, and how many were not.
 *
 * One thread (the loop) owns every connection. Unless a declaration says otherwise, functions are for that thread and
 * callbacks come from it; hearth_http_post() brings work to it from anywhere.
 *
 * Keep-alive and pipelining are served (one request of a connection at a time), chunked request bodies, Expect:
 * 100-continue, HEAD (the handler answers as for GET; the body is left out) and OPTIONS (answered here, for CORS).
 * Every response carries X-Request-Id; requests of web pages that may not use the server get a 403 (http/origin.h).
 * Source: RFC 9110, RFC 9112; https://fetch.spec.whatwg.org/#http-cors-protocol */
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
    /* The head of a request has arrived, its body has not: method, path, query and headers are available. True: go on;
     * `request` follows, or `gone` if the client leaves before. False: hearth_http_respond() has answered, and the body
     * is not read: no 100 (Continue) is sent, and the connection is closed after the answer, unless the request has no
     * body. Not called for OPTIONS, which the server itself answers at the head. NULL: all requests go on. */
    bool (*head)(void *user, struct hearth_http_exchange *exchange);
    /* A complete request has arrived. It is answered now or later. */
    void (*request)(void *user, struct hearth_http_exchange *exchange);
    /* Appends the body (JSON) of an answer to an error that the server itself found, such as 413 or 431. `path` is the
     * request's, as sent and without its query, as far as it was read; "" if nothing was. `request_id` is also in the
     * response's headers X-Request-Id and request-id. */
    void (*error)(void *user, int status, const char *message, const char *path, const char *request_id,
                  struct hearth_buf *body);
    void (*tick)(void *user); /* called once a second; may be NULL */
    void *user;
};

/* Zero fields do not mean defaults: start from hearth_http_params_default(). */
struct hearth_http_params {
    const char *const *cors_origins; /* pages that may use the server, see http/origin.h; default none */
    size_t cors_origin_count;
    const char *const *allow_hosts; /* other names of the server, likewise */
    size_t allow_host_count;
    const char *host;                 /* a name, an address, or unix:PATH; default "127.0.0.1" */
    uint32_t unix_mode;               /* of that path; default 0600 */
    const char *tls_cert_path;        /* a chain of certificates, PEM; default NULL: no TLS */
    const char *tls_key_path;         /* the key of the first, PEM */
    uint16_t port;                    /* 0: any free one, see hearth_http_port(); default 8080 */
    size_t url_bytes;                 /* most bytes of a request's target; default 8 KiB; else 414 */
    size_t header_bytes;              /* most bytes of a request's head, at most 64 KiB; default 32 KiB; else 431 */
    size_t body_bytes;                /* most bytes of a request's body; default 64 MiB; else 413 */
    size_t bodies_bytes;              /* most bytes of all bodies in memory; default 512 MiB; else 503 */
    size_t out_bytes;                 /* most bytes of a stream that a slow reader may leave unread; default 16 MiB */
    size_t unread_bytes;              /* most unread bytes of all answers together; default 256 MiB */
    uint32_t connections_per_address; /* default 0: half of all, and for this machine's own no limit */
    uint32_t connections;             /* most connections; default 4096; see hearth_http_start() */
    uint32_t rate;                    /* least bytes a second of bodies and readers; default 1024 */
    int64_t idle_us;                  /* a kept connection without a request is closed; default 120 s */
    int64_t head_us;    /* from the first byte of a request to the end of its head; default 30 s; else 408 */
    int64_t body_us;    /* from the end of the head to the end of the body; default 300 s; else 408 */
    int64_t trickle_us; /* from the end of the head until `rate` counts; default 20 s */
    int64_t stall_us;   /* the time over which a reader's `rate` is measured; default 60 s */
};

void hearth_http_params_default(struct hearth_http_params *params);

/* Binds and listens; nothing is accepted before hearth_http_start(). The handler is copied; NULL: the server is never
 * started, and only tells whether it could be. Errors: IO (the address is in use or unusable, or the certificate or its
 * key is; `msg` has one clear line), NOMEM. */
int hearth_http_create(const struct hearth_http_params *params, const struct hearth_http_handler *handler,
                       struct hearth_http_server **out, struct hearth_errmsg *msg);

/* Says whether the handler answers no request without a key: then keys decide, whatever page asks. Initially false. Any
 * thread. */
void hearth_http_set_keyed(struct hearth_http_server *server, bool keyed);

/* The port on which the server listens; 0 if it listens on a path. Any thread. */
uint16_t hearth_http_port(const struct hearth_http_server *server);
/* Whether a host names a socket in the file system. */
bool hearth_http_host_is_unix(const char *host);
/* Replaces the TLS certificate for connections that are accepted from now on. Any thread. Errors: IO (`msg` says which
 * file and why), NOMEM; nothing has changed then. */
int hearth_http_load_tls(struct hearth_http_server *server, const char *cert_path, const char *key_path,
                         struct hearth_errmsg *msg);

/* Starts the loop's thread, after raising the process's soft limit on open files as far as `connections` need. If the
 * hard limit is lower, there are fewer connections, which is logged. Errors: NOMEM. On the creator's thread, once. */
int hearth_http_start(struct hearth_http_server *server);

/* From now on every answer says "Connection: close", and its connection is closed behind it, so that clients learn at
 * once to connect again instead of using a connection that hearth_http_stop() is about to close. Requests are taken as
 * before; an answer that has begun stays as it is. Any thread. */
void hearth_http_close_after_answers(struct hearth_http_server *server);

/* Takes no new connections and requests; running requests finish. The loop ends when no connection is left. Any thread.
 */
void hearth_http_stop(struct hearth_http_server *server);

/* Stops, waits at most `wait_us` for the loop's end, and then closes what is left. Any thread but the loop's; does
 * nothing if the loop was never started. */
void hearth_http_join(struct hearth_http_server *server, int64_t wait_us);

/* Joins, runs work that is still posted (on the calling thread), and frees. NULL is allowed. */
void hearth_http_destroy(struct hearth_http_server *server);

/* Work for the loop, in a struct of the caller's, so posting needs no memory and cannot fail. `run` is called once for
 * each post, in the order of posting, and may post `work` again or free it. Any thread, until hearth_http_destroy(). */
struct hearth_http_work {
    struct hearth_http_work *next;
    void (*run)(struct hearth_http_work *work);
};
void hearth_http_post(struct hearth_http_server *server, struct hearth_http_work *work);

/* The request. Strings live as long as the exchange. */
const char *hearth_http_method(const struct hearth_http_exchange *exchange); /* "HEAD" reads as "GET" */
const char *hearth_http_path(const struct hearth_http_exchange *exchange);   /* percent-decoded, slashes merged */
const char *hearth_http_query(const struct hearth_http_exchange *exchange);  /* as sent, without '?'; may be "" */
/* A header by name, in any case; NULL: not sent. Of several the first. */
const char *hearth_http_header(const struct hearth_http_exchange *exchange, const char *name);
/* Moves the body into `out`, which must be empty. Its bytes count in bodies_bytes until hearth_http_body_freed(). */
void hearth_http_take_body(struct hearth_http_exchange *exchange, struct hearth_buf *out);
/* Says that `bytes` of taken bodies were freed. */
void hearth_http_body_freed(struct hearth_http_server *server, size_t bytes);
/* Whether the answer's body is left out. */
bool hearth_http_is_head(const struct hearth_http_exchange *exchange);
/* Bytes of the answer that its reader has not taken. */
size_t hearth_http_unread(const struct hearth_http_exchange *exchange);
/* When the request's head was complete, by hearth_clock_us(); its body came between then and `request`. */
int64_t hearth_http_head_us(const struct hearth_http_exchange *exchange);
/* Whether output still waits for the client or the network. */
bool hearth_http_is_behind(const struct hearth_http_exchange *exchange);
/* Value of the response's X-Request-Id. */
const char *hearth_http_request_id(const struct hearth_http_exchange *exchange);

/* Sets a callback for when the client goes away (or is dropped because it is too slow) before the response has ended.
 * It is called soon, even if nothing is written. A client that only closed its sending side is still there (peer.c).
 * The exchange is no longer valid then. Never called from within a function of this header that is given the exchange.
 */
void hearth_http_on_gone(struct hearth_http_exchange *exchange, void (*gone)(void *user), void *user);

/* Adds a header to the response, before it begins. `name` and `value` must hold no line breaks; they are copied. */
void hearth_http_set_header(struct hearth_http_exchange *exchange, const char *name, const char *value);

/* A whole response; the exchange has ended. A response to HEAD leaves the body out. */
void hearth_http_respond(struct hearth_http_exchange *exchange, int status, const char *content_type, const void *body,
                         size_t len);

/* A streamed response: begin, any number of writes, end. A write to a text/event-stream must hold whole events, since
 * comments may be put between writes. Output is sent at once. A reader that has left more than `out_bytes` unread by
 * the next write is dropped (gone is called from the loop a moment later). */
void hearth_http_begin(struct hearth_http_exchange *exchange, int status, const char *content_type);
void hearth_http_write(struct hearth_http_exchange *exchange, const void *bytes, size_t len);
void hearth_http_end(struct hearth_http_exchange *exchange);
/* Ends a stream that cannot be completed: the connection closes without the last chunk, so that the client sees that
 * something is missing. */
void hearth_http_break(struct hearth_http_exchange *exchange);

/* Whether a line about a client's mistake may be logged now; otherwise it is counted as left out, which is logged
 * later. For lines that a client could cause a thousand times a second. */
bool hearth_http_may_report(const struct hearth_http_exchange *exchange);

/* Numbers for /metrics: name, kind, help. */
#define HEARTH_HTTP_STATS_TABLE(X)                                                            \
    X(connections, gauge, "Connections open")                                                 \
    X(connections_idle, gauge, "Of these, waiting for a request")                             \
    X(connections_reading, gauge, "Of these, reading a request")                              \
    X(connections_busy, gauge, "Of these, with a request that is being answered")             \
    X(connections_closing, gauge, "Of these, being closed")                                   \
    X(accepted, counter, "Connections accepted")                                              \
    X(requests, counter, "HTTP requests, each with its body")                                 \
    X(dropped, counter, "Clients gone before the end of their response, or cut off")          \
    X(refused, counter, "Requests refused because there were too many connections or bodies") \
    X(evicted, counter, "Idle and slow connections closed in favour of new ones")             \
    X(timeouts, counter, "Requests that did not arrive in time")                              \
    X(forbidden, counter, "Requests of web pages that may not use the server")                \
    X(malformed, counter, "Requests that are no HTTP or exceed a limit")                      \
    X(stalled, counter, "Clients cut off because they read too slowly")                       \
    X(unread_bytes, gauge, "Bytes of answers that wait for their readers")                    \
    X(read_bytes, counter, "Bytes received")                                                  \
    X(written_bytes, counter, "Bytes sent, or waiting to be")

struct hearth_http_stats {
#define X(name, kind, help) uint64_t name;
    HEARTH_HTTP_STATS_TABLE(X)
#undef X
};

/* Fills the figures. On the loop's thread. */
void hearth_http_stats(const struct hearth_http_server *server, struct hearth_http_stats *stats);

#endif
