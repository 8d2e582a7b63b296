/* Inside of the http room: the server, its connections and their exchanges. server.c has the loop and the listener,
 * conn.c reads requests, exchange.c writes responses. */
#ifndef HEARTH_HTTP_CONN_H
#define HEARTH_HTTP_CONN_H

#include "http/server.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <http_parser.h>
#include <pthread.h>

#define HEARTH_HTTP_HEADERS_MAX 128
#define HEARTH_HTTP_REQUEST_ID_BYTES 40

struct hearth_http_conn;

struct hearth_http_server {
    struct hearth_http_params params;
    struct hearth_http_handler handler;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake;         /* wake_fd is readable: posted work */
    struct event *tick;
    struct event *accept_again; /* after accept() ran out of descriptors */
    int wake_fd;
    uint16_t port;
    pthread_t thread;
    bool started, joined;

    /* The loop's. */
    struct hearth_http_conn *conns; /* list of all */
    struct hearth_http_stats stats;
    uint64_t request_id_seed, request_id_count;
    bool stopping;

    /* Shared. */
    pthread_mutex_t mutex;
    pthread_cond_t loop_ended_cond;
    struct hearth_http_work *work_head, *work_tail;
    bool want_stop, want_abort, loop_ended;
};

/* What a connection waits for. The deadline of conn->timer belongs to the state. */
enum hearth_http_conn_state {
    HEARTH_HTTP_CONN_IDLE,   /* the first byte of a request */
    HEARTH_HTTP_CONN_HEAD,   /* the rest of its head */
    HEARTH_HTTP_CONN_BODY,   /* the rest of its body */
    HEARTH_HTTP_CONN_BUSY,   /* the handler (an exchange is open) */
    HEARTH_HTTP_CONN_FLUSH,  /* the last response to be taken; then close */
    HEARTH_HTTP_CONN_LINGER, /* the client to close, after an answer to a request that was not read to its end */
};

struct hearth_http_header_at {
    size_t name, value; /* offsets into conn->head */
};

/* A request as it is read; reset for the next one. */
struct hearth_http_conn {
    struct hearth_http_server *server;
    struct hearth_http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer;
    enum hearth_http_conn_state state;
    bool pumping;      /* inside the read loop: ending an exchange must not start another one */
    bool eof;          /* the client has closed its side */
    bool linger;       /* close by way of LINGER */
    bool doomed;       /* to be closed by the timer's callback, from the loop */
    bool complete;     /* the parser stands at the end of a request */
    bool keep_alive;   /* of the request being read or answered */
    int error_status;  /* found in a parser callback; answered when the parser has returned */
    const char *error_message;

    http_parser parser;
    struct hearth_buf url;
    struct hearth_buf head; /* names and values, each with a NUL */
    struct hearth_http_header_at headers[HEARTH_HTTP_HEADERS_MAX];
    size_t header_count;
    size_t head_bytes;
    bool in_value;
    bool head_done;
    struct hearth_buf body;

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

/* conn.c */
void hearth_http_conn_create(struct hearth_http_server *server, evutil_socket_t fd);
/* A header of the request that has been read, by name in any case; NULL when it was not sent. */
const char *hearth_http_conn_header(const struct hearth_http_conn *conn, const char *name);
/* Closes at once; an open exchange is told. */
void hearth_http_conn_destroy(struct hearth_http_conn *conn);
/* The exchange's response is written: flush, then the next request or the end. */
void hearth_http_conn_answered(struct hearth_http_conn *conn);
/* Closes the connection from the loop, soon: for callers that its exchange must outlive. */
void hearth_http_conn_doom(struct hearth_http_conn *conn);
/* Called when the server stops: connections without an exchange are closed. */
void hearth_http_conn_stop(struct hearth_http_conn *conn);

/* exchange.c */
/* An exchange for the request that `conn` has read; NULL: out of memory or a path that is not one (then *status). */
struct hearth_http_exchange *hearth_http_exchange_create(struct hearth_http_conn *conn, int *status);
void hearth_http_exchange_destroy(struct hearth_http_exchange *exchange);
/* Writes the response to an error found by the server, outside of an exchange. */
void hearth_http_write_error(struct hearth_http_conn *conn, int status, const char *message);
/* The answer to OPTIONS. */
void hearth_http_respond_options(struct hearth_http_exchange *exchange);

#endif
