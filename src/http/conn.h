/* Inside of the http room: the server, its connections and their exchanges. A file calls those below it:
 *
 *     server.c     the loop, and which connections are accepted
 *     listen.c     the listening socket
 *     conn.c       the callbacks of a connection
 *     peer.c       whether its client is there
 *     request.c    reads requests, and asks origin.c about them
 *     evict.c      which connection goes when there are too many
 *     exchange.c   writes responses
 *     close.c      the end of a request and of a connection
 *     state.c      states, deadlines, what is unread
 *     head.c       judges a request's head
 *     tls.c, address.c, report.c, origin.c */
#ifndef HEARTH_HTTP_CONN_H
#define HEARTH_HTTP_CONN_H

#include "http/origin.h"
#include "base/table.h"
#include "http/server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <llhttp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#define HEARTH_HTTP_HEADERS_MAX 128
/* Every answer begins like this, whatever its status. */
#define HEARTH_HTTP_VERSION "HTTP/1.1 "
#define HEARTH_HTTP_REQUEST_ID_BYTES 40
#define HEARTH_HTTP_PEER_BYTES 56
/* Headers of an answer that scripts of web pages may read, besides those that they always may. */
#define HEARTH_HTTP_EXPOSED                                                                                        \
    "X-Request-Id, request-id, Retry-After, Retry-After-Ms, X-Should-Retry, Warning, x-ratelimit-limit-requests, " \
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "                       \
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, anthropic-ratelimit-requests-limit, "                 \
    "anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, "                                 \
    "anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset"
/* Connections over the limit that wait for their 503; when there are so many, nothing is accepted. */
#define HEARTH_HTTP_CONNECTIONS_OVER 64u

struct sockaddr;
struct ssl_ctx_st;

struct hearth_http_conn;
TAILQ_HEAD(hearth_http_conns, hearth_http_conn);

/* How many log lines about clients were written lately. See report.c. */
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
    struct event *wake; /* wake_fd is readable: posted work */
    struct event *tick;
    struct event *accept_again; /* after accept() ran out of descriptors, or connections out of room */
    int wake_fd;
    uint16_t port;   /* 0: a path */
    char *unix_path; /* of the socket that is listened on; NULL: an address */
    dev_t unix_device;
    ino_t unix_inode;
    bool has_tls;
    pthread_t thread;
    bool started, joined;

    /* The loop's. */
    struct hearth_http_conns conns; /* all */
    struct hearth_http_conns quiet; /* connections in SHAKE, IDLE and HEAD, the longest first */
    struct hearth_table addresses;  /* of connections */
    size_t unread_bytes;            /* written, but not taken by the kernel yet */
    size_t bodies_bytes;            /* of bodies that are being read, or were taken and not freed yet */
    struct hearth_http_stats stats;
    struct hearth_http_report report;
    uint64_t request_id_seed, request_id_count;
    bool stopping;

    /* Shared. */
    atomic_bool closing; /* every answer is the last one of its connection */
    pthread_mutex_t mutex;
    pthread_cond_t loop_ended_cond;
    struct hearth_http_work *work_head, *work_tail;
    struct ssl_ctx_st *tls; /* for new connections; NULL: they use no TLS */
    bool want_stop, want_abort, loop_ended;
};

/* Priorities of the loop; without one of these, work has the middle priority. */
enum {
    HEARTH_HTTP_PIPELINED = 2, /* requests that are here already, behind others of their connection */
    HEARTH_HTTP_PRIORITIES = 3,
};

/* What a connection waits for. */
enum hearth_http_conn_state {
    HEARTH_HTTP_CONN_SHAKE,  /* the end of TLS's handshake */
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

/* An address with the number of its connections. */
struct hearth_http_address {
    struct hearth_link link; /* first */
    uint32_t connections;
    bool local; /* this machine */
};

/* A connection and the request that is being read on it, which is reset for the next one. Memory of the request is
 * freed in between, so an idle connection is only this struct and libevent's. */
struct hearth_http_conn {
    struct hearth_http_server *server;
    TAILQ_ENTRY(hearth_http_conn) in_conns, in_quiet;
    struct bufferevent *bev;
    struct event *timer;
    struct event *turn; /* handles the next request, which has already arrived */
    struct hearth_http_address *address;
    struct evbuffer_cb_entry *output_watch;
    size_t unread_bytes; /* in the output buffer */
    int64_t since_us;    /* in this state */
    int64_t heard_us;    /* when bytes last came, or when the state began */
    enum hearth_http_conn_state state;
    bool pumping;     /* inside the read loop: ending an exchange must not start another one */
    bool eof;         /* the client has closed its side; peer.c finds out whether it is gone */
    bool paused;      /* so much input waits for its turn that reading has stopped */
    bool linger;      /* close by way of LINGER */
    bool doomed;      /* to be closed by the timer's callback, from the loop */
    bool over_limit;  /* accepted although the limit was reached */
    bool quiet;       /* in the list `quiet` */
    bool head_read;   /* the parser stands at the end of a head */
    bool complete;    /* the parser stands at the end of a request */
    bool resumed;     /* parsing continues behind the head, even if no bytes follow */
    bool keep_alive;  /* of the request being read or answered */
    int error_status; /* set by a parser callback; answered when the parser has returned */
    const char *error_message;

    /* For a client that has closed its side: when it was last asked, and the time until the next check. */
    int64_t asked_us, look_us;
    size_t head_put; /* bytes of HEARTH_HTTP_VERSION that it was asked with */

    /* The reader: how much was written for it, and how much of that it had taken when the window began. */
    uint64_t written_bytes, window_bytes;
    int64_t window_us;
    bool drained; /* it has taken all output since the last check */

    llhttp_t parser;
    struct hearth_buf url;
    struct hearth_buf head; /* names and values, each with a NUL */
    struct hearth_http_header_at *headers;
    uint32_t header_count;
    size_t header_room;
    size_t head_bytes;
    size_t framing_bytes; /* of a chunked body: bytes that are not content */
    size_t protocol_len;  /* how much of its name in the request line was read */
    const char *piece;    /* the input that the parser sees, from byte piece_at of the request on */
    uint64_t piece_at;
    uint64_t word_end; /* of the request line: position behind the last word that was read */
    bool in_name;
    bool head_done;
    struct hearth_buf body; /* counted in server->bodies_bytes, also after it was taken */

    struct hearth_http_exchange *exchange;
};

struct hearth_http_exchange {
    struct hearth_http_conn *conn;
    const char *method;
    char *path; /* one allocation with the query */
    char *query;
    char request_id[HEARTH_HTTP_REQUEST_ID_BYTES];
    int64_t head_us; /* when the request's head was complete */
    bool head_only;  /* HEAD */
    bool begun;
    bool chunked;
    bool events;             /* a stream of server-sent events */
    struct hearth_buf extra; /* header lines set by the handler */
    void (*gone)(void *user);
    void *gone_user;
};

/* listen.c */
/* Binds params.host and listens. Errors: IO (`msg` holds one clear line), NOMEM. */
int hearth_http_listen(struct hearth_http_server *server, int *out_fd, struct hearth_errmsg *msg);
/* Removes the socket's file; the listener is closed elsewhere. */
void hearth_http_unlisten(struct hearth_http_server *server);

/* tls.c */
void hearth_http_tls_destroy(struct ssl_ctx_st *ctx);
/* Wraps a socket for TLS, before the handshake. NULL: out of memory; the socket stays open. */
struct bufferevent *hearth_http_tls_accept(struct hearth_http_server *server, evutil_socket_t fd);
/* The error of its TLS; NULL: OpenSSL knows of none. */
const char *hearth_http_tls_error(struct bufferevent *bev);
/* Sends TLS's close_notify. */
void hearth_http_tls_close_notify(struct bufferevent *bev);

/* address.c */
/* Counts one more connection of the address. NULL: out of memory. */
struct hearth_http_address *hearth_http_address_ref(struct hearth_http_server *server, const struct sockaddr *from);
void hearth_http_address_unref(struct hearth_http_server *server, struct hearth_http_address *address);
/* The most connections that an address may have. */
uint32_t hearth_http_address_most(const struct hearth_http_server *server, const struct hearth_http_address *address);
/* Whether so many connections of its address already wait to be refused that this one is closed without an answer. */
bool hearth_http_address_is_overfull(const struct hearth_http_conn *conn);

/* evict.c */
/* Closes the connection (of one address; NULL: of all) that is first in line, to make room for others. False: there is
 * none. */
bool hearth_http_evict(struct hearth_http_server *server, const struct hearth_http_address *of);
/* Evicts another connection if this one is one too many. NULL: there is room; else the message for its client. */
const char *hearth_http_make_room(struct hearth_http_conn *conn);

/* state.c */
/* Enters the first state; leaves the last one; changes from one to another. */
void hearth_http_conn_enter(struct hearth_http_conn *conn, enum hearth_http_conn_state state);
void hearth_http_conn_leave(struct hearth_http_conn *conn);
void hearth_http_conn_set_state(struct hearth_http_conn *conn, enum hearth_http_conn_state state);
/* When the state has to end; INT64_MAX: no limit. */
int64_t hearth_http_conn_due_us(const struct hearth_http_conn *conn);
/* Sets the timer to the next deadline. */
void hearth_http_conn_set_timer(struct hearth_http_conn *conn, int64_t now_us);
/* Whether, in the window that has ended, the reader took too little of the output that waited. */
bool hearth_http_conn_is_stalled(struct hearth_http_conn *conn, int64_t now_us);
/* Bytes written that are not with the kernel yet. */
size_t hearth_http_conn_unsent(const struct hearth_http_conn *conn);
/* Counts output that was put into the buffer. */
void hearth_http_conn_written(struct hearth_http_conn *conn, size_t len);
/* Closes the connection from the loop a moment later, for callers that still need its exchange. */
void hearth_http_conn_doom(struct hearth_http_conn *conn);
/* Begins to count output. False: out of memory. */
bool hearth_http_unread_watch(struct hearth_http_conn *conn);
/* Takes the connection's output out of the counts. */
void hearth_http_unread_forget(struct hearth_http_conn *conn);
/* Cuts off the connections with most unread output until the sum is within the limit. */
void hearth_http_unread_bound(struct hearth_http_server *server);

/* close.c */
void hearth_http_exchange_destroy(struct hearth_http_exchange *exchange);
/* Ends the open exchange because the client no longer waits, and tells the handler. */
void hearth_http_exchange_drop(struct hearth_http_conn *conn);
/* Forgets the request that was read, and frees it. */
void hearth_http_request_reset(struct hearth_http_conn *conn);
/* Frees what a connection is made of; the socket is closed. */
void hearth_http_conn_free(struct hearth_http_conn *conn);
/* Closes the connection at once; the handler of an open exchange is told. */
void hearth_http_conn_destroy(struct hearth_http_conn *conn);
/* Ends the loop of a server that stops and has no connections left. */
void hearth_http_end_if_done(struct hearth_http_server *server);

/* peer.c */
/* The client of an open exchange has closed its side. False: it has gone. Otherwise call hearth_http_peer_is_there()
 * after conn->look_us. */
bool hearth_http_peer_closed(struct hearth_http_conn *conn);
bool hearth_http_peer_is_there(struct hearth_http_conn *conn);

/* conn.c */
/* Makes a connection. NULL: out of memory; the socket is closed. */
struct hearth_http_conn *hearth_http_conn_create(struct hearth_http_server *server, evutil_socket_t fd);
/* Called when the server stops: connections without a request in work are closed. */
void hearth_http_conn_stop(struct hearth_http_conn *conn);

/* request.c */
void hearth_http_request_init(struct hearth_http_conn *conn);
/* Handles the input that has arrived, request by request. */
void hearth_http_request_pump(struct hearth_http_conn *conn);

/* head.c */
/* A header of the request that has been read, by name in any case; NULL when it was not sent. */
const char *hearth_http_conn_header(const struct hearth_http_conn *conn, const char *name);
/* The answer to a refused head. */
struct hearth_http_refusal {
    int status;
    const char *message;
};
/* Checks a head. False: `out` says what is wrong. */
bool hearth_http_head_check(const struct hearth_http_conn *conn, struct hearth_http_refusal *out);
/* The parts of a request target, as offsets into it: "/path?query", "http://authority/path?query", or "*". */
struct hearth_http_target {
    const char *authority, *path, *query;
    size_t authority_len, path_len, query_len;
};
/* Splits a request target. False: it has none of the known forms. */
bool hearth_http_target_split(const char *text, size_t len, struct hearth_http_target *out);

/* exchange.c */
/* An exchange for the request that `conn` has read; NULL: out of memory or a path that is not one (then *status). */
struct hearth_http_exchange *hearth_http_exchange_create(struct hearth_http_conn *conn, int *status);
/* Writes raw bytes; out of memory, the connection is doomed. */
void hearth_http_put(struct hearth_http_conn *conn, const void *bytes, size_t len);
/* Answers an error found by the server, and ends the connection. An open exchange is told that it is gone. Returns
 * false. */
bool hearth_http_conn_fail(struct hearth_http_conn *conn, int status, const char *message);
/* The answer to OPTIONS. */
void hearth_http_respond_options(struct hearth_http_exchange *exchange);

/* report.c */
/* Counts an error and logs it. */
void hearth_http_report_error(struct hearth_http_conn *conn, int status, const char *message, const char *request_id);
/* Logs that a connection is cut off, and why. */
void hearth_http_report_drop(struct hearth_http_conn *conn, const char *cause);
/* Logs how many lines were left out, when that is due. */
void hearth_http_report_tick(struct hearth_http_server *server);

#endif
