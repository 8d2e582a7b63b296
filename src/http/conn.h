/* Inside of the http room: the server, its connections and their exchanges. server.c has the loop and the listener,
 * conn.c the life of a connection, request.c reads requests, head.c judges their heads, exchange.c
 * writes responses, report.c counts and logs. */
#ifndef HEARTH_HTTP_CONN_H
#define HEARTH_HTTP_CONN_H

#include "http/origin.h"
#include "http/server.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <llhttp.h>
#include <pthread.h>
#include <stdatomic.h>

#define HEARTH_HTTP_HEADERS_MAX 128
#define HEARTH_HTTP_REQUEST_ID_BYTES 40
#define HEARTH_HTTP_PEER_BYTES 56
/* What scripts of web pages may read of an answer, besides what they always may. */
#define HEARTH_HTTP_EXPOSED                                                                                     \
    "X-Request-Id, request-id, Retry-After, Retry-After-Ms, X-Should-Retry, Warning, x-ratelimit-limit-requests, " \
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "                    \
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"

struct hearth_http_conn;

/* Of the lines about clients: how many were written lately. See report.c. */
struct hearth_http_report {
    int64_t since_us;
    uint32_t written;
    uint64_t left_out;
};

struct hearth_http_server {
    struct hearth_http_params params;
    struct hearth_http_handler handler;
    struct hearth_http_origins *origins;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake;         /* wake_fd is readable: posted work */
    struct event *tick;
    struct event *accept_again; /* after accept() ran out of descriptors, or connections out of room */
    int wake_fd;
    uint16_t port;
    pthread_t thread;
    bool started, joined;

    /* The loop's. */
    struct hearth_http_conn *conns;                   /* list of all */
    struct hearth_http_conn *quiet_head, *quiet_tail; /* IDLE and HEAD, the longest of them first */
    size_t bodies_bytes;                              /* of bodies that are read, or were taken and not freed yet */
    struct hearth_http_stats stats;                   /* without the connections by state */
    struct hearth_http_report report;
    uint64_t request_id_seed, request_id_count;
    bool stopping;

    /* Shared. */
    atomic_bool closing; /* every answer is the last one of its connection */
    pthread_mutex_t mutex;
    pthread_cond_t loop_ended_cond;
    struct hearth_http_work *work_head, *work_tail;
    bool want_stop, want_abort, loop_ended;
};

/* What a connection waits for. */
enum hearth_http_conn_state {
    HEARTH_HTTP_CONN_IDLE,   /* the first byte of a request */
    HEARTH_HTTP_CONN_HEAD,   /* the rest of its head */
    HEARTH_HTTP_CONN_BODY,   /* the rest of its body */
    HEARTH_HTTP_CONN_BUSY,   /* the handler */
    HEARTH_HTTP_CONN_FLUSH,  /* the last response to be taken; then close */
    HEARTH_HTTP_CONN_LINGER, /* the client to close, after an answer to a request that was not read to its end */
};

struct hearth_http_header_at {
    uint32_t name, value; /* offsets into conn->head */
};

/* A request as it is read; reset for the next one. What it needs memory for is freed in between: an idle connection is
 * this struct and libevent's. */
struct hearth_http_conn {
    struct hearth_http_server *server;
    struct hearth_http_conn *prev, *next;
    struct hearth_http_conn *quiet_prev, *quiet_next;
    struct bufferevent *bev;
    struct event *timer;
    int64_t since_us; /* in this state */
    int64_t heard_us; /* when bytes came last, or the state began */
    enum hearth_http_conn_state state;
    bool pumping;      /* inside the read loop: ending an exchange must not start another one */
    bool eof;          /* the client has closed its side */
    bool linger;       /* close by way of LINGER */
    bool doomed;       /* to be closed by the timer's callback, from the loop */
    bool surplus;      /* accepted when there were as many as may be */
    bool quiet;        /* in the list of those */
    bool head_read;    /* the parser stands at the end of a head */
    bool complete;     /* the parser stands at the end of a request */
    bool resumed;      /* it goes on from the end of a head, even if no bytes follow */
    bool keep_alive;   /* of the request being read or answered */
    int error_status;  /* found in a parser callback; answered when the parser has returned */
    const char *error_message;

    /* The reader: how much was written for it, and how much of that it had taken when the window began. */
    uint64_t written_bytes, window_bytes;
    int64_t window_us;
    bool drained; /* it has taken everything since that was last looked at */

    llhttp_t parser;
    struct hearth_buf url;
    struct hearth_buf head; /* names and values, each with a NUL */
    struct hearth_http_header_at *headers;
    uint32_t header_count, header_room;
    size_t head_bytes;
    size_t framing_bytes; /* of a chunked body: what is not its content */
    size_t protocol_len;  /* how much of its name in the request line was read */
    bool in_name;
    bool head_done;
    struct hearth_buf body; /* counted in server->bodies_bytes, also when it has been taken */

    struct hearth_http_exchange *exchange;
};

struct hearth_http_exchange {
    struct hearth_http_conn *conn;
    const char *method;
    char *path; /* one allocation with the query */
    char *query;
    char request_id[HEARTH_HTTP_REQUEST_ID_BYTES];
    bool head_only;  /* HEAD */
    bool begun;
    bool chunked;
    struct hearth_buf extra; /* header lines set by the handler */
    void (*gone)(void *user);
    void *gone_user;
};

/* server.c: `conn` has left the list. */
void hearth_http_server_conn_closed(struct hearth_http_server *server);
/* Closes the connection that has been idle, or sending its head, for longest, if that is long. False: none was. */
bool hearth_http_server_evict(struct hearth_http_server *server);

/* conn.c */
/* NULL: out of memory; the socket is closed. */
struct hearth_http_conn *hearth_http_conn_create(struct hearth_http_server *server, evutil_socket_t fd);
void hearth_http_conn_set_state(struct hearth_http_conn *conn, enum hearth_http_conn_state state);
/* Bytes written that are not with the kernel yet. */
size_t hearth_http_conn_unsent(const struct hearth_http_conn *conn);
/* Counts what has been put into the output buffer. */
void hearth_http_conn_written(struct hearth_http_conn *conn, size_t len);
/* Closes at once; an open exchange is told. */
void hearth_http_conn_destroy(struct hearth_http_conn *conn);
/* Answers an error found here, and ends the connection. An open exchange is told that it is gone. */
void hearth_http_conn_fail(struct hearth_http_conn *conn, int status, const char *message);
/* The exchange's response is written: flush, then the next request or the end. */
void hearth_http_conn_answered(struct hearth_http_conn *conn);
/* Closes the connection from the loop, soon: for callers that its exchange must outlive. */
void hearth_http_conn_doom(struct hearth_http_conn *conn);
/* Called when the server stops: connections without a request in work are closed. */
void hearth_http_conn_stop(struct hearth_http_conn *conn);

/* request.c */
void hearth_http_request_init(struct hearth_http_conn *conn);
/* Forgets the request that was read, and frees it. */
void hearth_http_request_reset(struct hearth_http_conn *conn);
/* Takes what has arrived, request by request. */
void hearth_http_request_pump(struct hearth_http_conn *conn);
/* A header of the request that has been read, by name in any case; NULL when it was not sent. */
const char *hearth_http_conn_header(const struct hearth_http_conn *conn, const char *name);

/* head.c */
/* What a request's head is answered with when it is refused. */
struct hearth_http_refusal {
    int status;
    const char *message;
};
/* False: `out` says what is wrong with the head that has been read. */
bool hearth_http_head_check(const struct hearth_http_conn *conn, struct hearth_http_refusal *out);
/* The parts of a request target, as offsets into it: "/path?query", "http://authority/path?query", or "*". */
struct hearth_http_target {
    const char *authority, *path, *query;
    size_t authority_len, path_len, query_len;
};
/* False: it is none of these. */
bool hearth_http_target_split(const char *text, size_t len, struct hearth_http_target *out);

/* exchange.c */
/* An exchange for the request that `conn` has read; NULL: out of memory or a path that is not one (then *status). */
struct hearth_http_exchange *hearth_http_exchange_create(struct hearth_http_conn *conn, int *status);
void hearth_http_exchange_destroy(struct hearth_http_exchange *exchange);
/* Writes raw bytes; without memory for them the connection is doomed. */
void hearth_http_put(struct hearth_http_conn *conn, const void *bytes, size_t len);
/* Writes, and logs, the response to an error found by the server, outside of an exchange. */
void hearth_http_write_error(struct hearth_http_conn *conn, int status, const char *message);
/* The answer to OPTIONS. */
void hearth_http_respond_options(struct hearth_http_exchange *exchange);

/* report.c */
/* Counts an error and logs it. */
void hearth_http_report_error(struct hearth_http_conn *conn, int status, const char *message, const char *request_id);
/* Logs that a connection is cut off, and why. */
void hearth_http_report_drop(struct hearth_http_conn *conn, const char *why);
/* Logs how many lines were left out, when that is due. */
void hearth_http_report_tick(struct hearth_http_server *server);

#endif
