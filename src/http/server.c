/* The loop, and which connections are accepted.
 *
 * One thread runs a libevent loop and owns all connections, so that nothing of libevent is shared between threads:
 * others reach the loop through an eventfd and the posted-work list, both guarded by one mutex.
 *
 * Stopping: `want_stop` makes the loop close its listener and every connection without an exchange; the loop ends when
 * the last connection has gone. `want_abort` closes those too. Work that is posted after the loop's end is run by
 * hearth_http_destroy(), so that what it holds is freed. */
#include "http/server.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/conn.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (64u * 1024)
/* Descriptors for everything but connections: state on disk, databases, the log. With fewer, those could not be opened
 * while all connections are open; with more, there would be fewer connections for nothing. */
#define FILES_OTHER 512u

void hearth_http_params_default(struct hearth_http_params *params) {
    *params = (struct hearth_http_params){
        .host = "127.0.0.1",
        .unix_mode = 0600,
        .port = 8080,
        .url_bytes = 8u * 1024,
        .header_bytes = 32u * 1024,
        .body_bytes = 64u * 1024 * 1024,
        .bodies_bytes = 512u * 1024 * 1024,
        .out_bytes = 16u * 1024 * 1024,
        .unread_bytes = 256u * 1024 * 1024,
        .connections = 4096,
        .rate = 1024,
        .idle_us = 120 * 1000000ll,
        .head_us = 30 * 1000000ll,
        .body_us = 300 * 1000000ll,
        .trickle_us = 20 * 1000000ll,
        .stall_us = 60 * 1000000ll,
    };
}

/* ---- accepting ---- */

static bool is_overfull(const struct hearth_http_server *server) {
    return server->stats.connections >= (uint64_t)server->params.connections + HEARTH_HTTP_CONNECTIONS_OVER;
}

/* Stops accepting for a moment. */
static void pause_accepting(struct hearth_http_server *server) {
    const struct timeval later = {.tv_usec = 200 * 1000};
    evconnlistener_disable(server->listener);
    event_add(server->accept_again, &later);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int len,
                      void *user) {
    struct hearth_http_server *server = user;
    (void)listener, (void)address, (void)len;
    struct hearth_http_conn *conn = hearth_http_conn_create(server, fd);
    const char *no_room = conn != NULL ? hearth_http_make_room(conn) : NULL;
    if (no_room != NULL && hearth_http_address_is_overfull(conn)) {
        server->stats.refused++;
        hearth_http_report_drop(conn, no_room);
        hearth_http_conn_destroy(conn);
    } else if (no_room != NULL) {
        conn->over_limit = true;
    }
    if (is_overfull(server)) {
        pause_accepting(server);
    }
}

/* accept() failed, most likely because there are no descriptors: trying again at once would spin. */
static void on_accept_error(struct evconnlistener *listener, void *user) {
    struct hearth_http_server *server = user;
    (void)listener;
    hearth_log(HEARTH_LOG_WARN, "http: cannot accept a connection: %s", strerror(errno));
    (void)hearth_http_evict(server, NULL);
    pause_accepting(server);
}

static void on_accept_again(evutil_socket_t fd, short what, void *user) {
    struct hearth_http_server *server = user;
    (void)fd, (void)what;
    if (server->listener == NULL) {
        return;
    }
    if (is_overfull(server) && !hearth_http_evict(server, NULL)) {
        pause_accepting(server);
    } else {
        evconnlistener_enable(server->listener);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    struct hearth_http_server *server = user;
    (void)fd, (void)what;
    hearth_http_report_tick(server);
    if (server->handler.tick != NULL) {
        server->handler.tick(server->handler.user);
    }
    hearth_http_end_if_done(server); /* in case there was no memory to do so before */
}

static void run_posted_work(struct hearth_http_server *server) {
    pthread_mutex_lock(&server->mutex);
    struct hearth_http_work *work = server->work_head;
    server->work_head = server->work_tail = NULL;
    pthread_mutex_unlock(&server->mutex);
    while (work != NULL) {
        struct hearth_http_work *next = work->next; /* run() may post the work again, or free it */
        work->run(work);
        work = next;
    }
}

static void stop_or_abort(struct hearth_http_server *server, bool stop, bool stop_all) {
    if (stop && !server->stopping) {
        server->stopping = true;
        hearth_http_unlisten(server); /* before others would be refused there */
        evconnlistener_free(server->listener);
        server->listener = NULL;
        event_del(server->accept_again);
        for (struct hearth_http_conn *conn = TAILQ_FIRST(&server->conns), *next; conn != NULL; conn = next) {
            next = TAILQ_NEXT(conn, in_conns);
            hearth_http_conn_stop(conn);
        }
    }
    while (stop_all && !TAILQ_EMPTY(&server->conns)) {
        hearth_http_conn_destroy(TAILQ_FIRST(&server->conns));
    }
    hearth_http_end_if_done(server);
}

static void on_wake(evutil_socket_t fd, short what, void *user) {
    struct hearth_http_server *server = user;
    uint64_t count;
    (void)what;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&server->mutex);
    bool stop = server->want_stop;
    bool stop_all = server->want_abort;
    pthread_mutex_unlock(&server->mutex);
    run_posted_work(server);
    stop_or_abort(server, stop, stop_all);
}

static void wake(struct hearth_http_server *server) {
    const uint64_t one = 1;
    while (write(server->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void *loop_main(void *user) {
    struct hearth_http_server *server = user;
    event_base_loop(server->base, EVLOOP_NO_EXIT_ON_EMPTY);
    pthread_mutex_lock(&server->mutex);
    server->loop_ended = true;
    pthread_cond_broadcast(&server->loop_ended_cond);
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

static struct event_base *create_base(void) {
    struct event_base *base = event_base_new();
    if (base != NULL && event_base_priority_init(base, HEARTH_HTTP_PRIORITIES) != 0) {
        event_base_free(base);
        return NULL;
    }
    return base;
}

static int init_loop(struct hearth_http_server *server, int listen_fd) {
    server->base = create_base();
    if (server->base == NULL) {
        close(listen_fd);
        return HEARTH_ERR_NOMEM;
    }
    server->listener = evconnlistener_new(server->base, on_accept, server,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, listen_fd);
    if (server->listener == NULL) {
        close(listen_fd);
        return HEARTH_ERR_NOMEM;
    }
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake_fd < 0) {
        return HEARTH_ERR_IO;
    }
    server->wake = event_new(server->base, server->wake_fd, EV_READ | EV_PERSIST, on_wake, server);
    server->accept_again = event_new(server->base, -1, 0, on_accept_again, server);
    server->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
    if (server->wake == NULL || server->accept_again == NULL || server->tick == NULL ||
        event_add(server->wake, NULL) < 0 || event_add(server->tick, &(struct timeval){.tv_sec = 1}) < 0) {
        return HEARTH_ERR_NOMEM;
    }
    return HEARTH_OK;
}

int hearth_http_create(const struct hearth_http_params *params, const struct hearth_http_handler *handler,
                       struct hearth_http_server **out, struct hearth_errmsg *msg) {
    HEARTH_ASSERT(params->header_bytes <= HEADER_BYTES_MAX && params->connections > 0);
    HEARTH_ASSERT(params->bodies_bytes >= params->body_bytes && params->stall_us > 0);
    *out = NULL;
    struct hearth_http_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for the HTTP server");
    }
    server->params = *params;
    server->params.cors_origins = server->params.allow_hosts = NULL; /* the caller's */
    if (handler != NULL) {
        server->handler = *handler;
    }
    TAILQ_INIT(&server->conns);
    TAILQ_INIT(&server->quiet);
    atomic_init(&server->closing, false);
    server->wake_fd = -1;
    pthread_mutex_init(&server->mutex, NULL);
    hearth_clock_cond_init(&server->loop_ended_cond);
    if (getrandom(&server->request_id_seed, sizeof server->request_id_seed, GRND_NONBLOCK) < 0) {
        server->request_id_seed = (uint64_t)hearth_clock_us();
    }
    int listen_fd = -1;
    server->has_tls = params->tls_cert_path != NULL;
    int rc =
        server->has_tls ? hearth_http_load_tls(server, params->tls_cert_path, params->tls_key_path, msg) : HEARTH_OK;
    rc = rc == HEARTH_OK ? hearth_http_listen(server, &listen_fd, msg) : rc;
    server->params.host = server->params.tls_cert_path = server->params.tls_key_path = NULL; /* the caller's */
    server->origins = hearth_http_origins_create(params->host, params->cors_origins, params->cors_origin_count,
                                                 params->allow_hosts, params->allow_host_count);
    if (rc == HEARTH_OK && server->origins == NULL) {
        close(listen_fd);
        rc = hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for the HTTP server");
    } else if (rc == HEARTH_OK) {
        rc = init_loop(server, listen_fd);
        if (rc != HEARTH_OK) {
            hearth_fail(msg, rc, "cannot start the HTTP server: %s", hearth_err_text(rc));
        }
    }
    if (rc != HEARTH_OK) {
        hearth_http_destroy(server);
        return rc;
    }
    *out = server;
    return HEARTH_OK;
}

void hearth_http_set_keyed(struct hearth_http_server *server, bool keyed) {
    hearth_http_origins_set_keyed(server->origins, keyed);
}

uint16_t hearth_http_port(const struct hearth_http_server *server) {
    return server->port;
}

/* Raises the limit on descriptors for all connections, or else reduces the number of connections. */
static void raise_file_limit(struct hearth_http_server *server) {
    struct rlimit limit;
    const rlim_t others = HEARTH_HTTP_CONNECTIONS_OVER + FILES_OTHER;
    const rlim_t need = (rlim_t)server->params.connections + others;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need) {
        return;
    }
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > need ? need : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        limit.rlim_cur = before;
    }
    if (limit.rlim_cur < need) {
        const uint32_t fewer = (uint32_t)(limit.rlim_cur > 2 * others ? limit.rlim_cur - others : limit.rlim_cur / 2);
        if (fewer < server->params.connections) {
            hearth_log(HEARTH_LOG_WARN,
                       "http: at most %u connections instead of %u: this process may open %llu files only (ulimit -n)",
                       fewer, server->params.connections, (unsigned long long)limit.rlim_cur);
            server->params.connections = fewer;
        }
    }
}

int hearth_http_start(struct hearth_http_server *server) {
    HEARTH_ASSERT(!server->started && server->handler.request != NULL && server->handler.error != NULL);
    raise_file_limit(server);
    /* Signals are for the program's own threads; SIGPIPE, blocked, leaves EPIPE to be seen here. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&server->thread, NULL, loop_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return HEARTH_ERR_NOMEM;
    }
    server->started = true;
    return HEARTH_OK;
}

void hearth_http_close_after_answers(struct hearth_http_server *server) {
    atomic_store(&server->closing, true);
}

void hearth_http_stop(struct hearth_http_server *server) {
    pthread_mutex_lock(&server->mutex);
    server->want_stop = true;
    pthread_mutex_unlock(&server->mutex);
    wake(server);
}

void hearth_http_join(struct hearth_http_server *server, int64_t wait_us) {
    if (!server->started || server->joined) {
        return;
    }
    hearth_http_stop(server);
    const int64_t until_us = hearth_clock_us() + wait_us;
    pthread_mutex_lock(&server->mutex);
    while (!server->loop_ended && hearth_clock_cond_wait(&server->loop_ended_cond, &server->mutex, until_us)) {
    }
    server->want_abort = true;
    pthread_mutex_unlock(&server->mutex);
    wake(server);
    pthread_join(server->thread, NULL);
    server->joined = true;
}

void hearth_http_destroy(struct hearth_http_server *server) {
    if (server == NULL) {
        return;
    }
    hearth_http_join(server, 0);
    HEARTH_ASSERT(TAILQ_EMPTY(&server->conns));
    while (server->work_head != NULL) {
        run_posted_work(server);
    }
    hearth_http_unlisten(server);
    if (server->listener != NULL) {
        evconnlistener_free(server->listener);
    }
    if (server->wake != NULL) {
        event_free(server->wake);
    }
    if (server->tick != NULL) {
        event_free(server->tick);
    }
    if (server->accept_again != NULL) {
        event_free(server->accept_again);
    }
    if (server->wake_fd >= 0) {
        close(server->wake_fd);
    }
    if (server->base != NULL) {
        event_base_free(server->base);
    }
    hearth_table_finish(&server->addresses);
    hearth_http_tls_destroy(server->tls);
    pthread_cond_destroy(&server->loop_ended_cond);
    pthread_mutex_destroy(&server->mutex);
    hearth_http_origins_destroy(server->origins);
    free(server);
}

void hearth_http_post(struct hearth_http_server *server, struct hearth_http_work *work) {
    work->next = NULL;
    pthread_mutex_lock(&server->mutex);
    bool first = server->work_head == NULL;
    if (first) {
        server->work_head = work;
    } else {
        server->work_tail->next = work;
    }
    server->work_tail = work;
    pthread_mutex_unlock(&server->mutex);
    if (first) { /* otherwise the post of the first has woken the loop */
        wake(server);
    }
}

void hearth_http_stats(const struct hearth_http_server *server, struct hearth_http_stats *stats) {
    *stats = server->stats;
    stats->unread_bytes = server->unread_bytes;
}
