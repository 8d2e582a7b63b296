/* Fuzzes the HTTP server: the input is what a client sends over one connection, in pieces cut at each 0xFF byte (which
 * no valid request holds), each piece arriving by itself. What comes back must be responses; nothing may stay open. */
#include "fuzz.h"

#include "http/conn.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

static int heads; /* that were let pass, and are neither answered nor gone */

static void on_gone(void *user) {
    (void)user;
    heads--;
}

/* Answers at once: whole, streamed when the path is long, or with what was sent. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct hearth_buf body = {0};
    struct hearth_http_server *server = exchange->conn->server;
    (void)user;
    heads--;
    hearth_http_on_gone(exchange, NULL, NULL);
    HEARTH_ASSERT(hearth_http_path(exchange)[0] != '\0' && hearth_http_query(exchange) != NULL);
    hearth_http_header(exchange, "authorization");
    hearth_http_take_body(exchange, &body);
    if (strlen(hearth_http_path(exchange)) > 8) {
        hearth_http_begin(exchange, 200, "text/event-stream");
        hearth_http_write(exchange, body.data, body.len);
        hearth_http_end(exchange);
    } else {
        hearth_http_respond(exchange, 200, "text/plain", body.data, body.len);
    }
    hearth_http_body_freed(server, body.len);
    hearth_buf_finish(&body);
}

/* Some requests are refused by their head; others ask to be told when they have gone. */
static bool on_head(void *user, struct hearth_http_exchange *exchange) {
    (void)user;
    if (hearth_http_header(exchange, "x-refuse") != NULL || strstr(hearth_http_query(exchange), "no") != NULL) {
        hearth_http_respond(exchange, 401, "text/plain", "no", 2);
        return false;
    }
    heads++;
    hearth_http_on_gone(exchange, on_gone, NULL);
    return true;
}

static void on_error(void *user, int status, const char *message, const char *path, const char *request_id,
                     struct hearth_buf *body) {
    (void)user, (void)request_id;
    HEARTH_ASSERT(path[0] == '\0' || memchr(path, '?', strlen(path)) == NULL);
    HEARTH_ASSERT(status >= 400 && status <= 599 && message[0] != '\0');
    hearth_buf_text(body, "{}");
}

static struct hearth_http_server *make_server(void) {
    struct hearth_http_server *server;
    struct hearth_http_params params;
    struct hearth_errmsg msg;
    const struct hearth_http_handler handler = {.head = on_head, .request = on_request, .error = on_error};
    hearth_http_params_default(&params);
    params.port = 0;
    params.body_bytes = 4096;
    params.header_bytes = 1024;
    HEARTH_ASSERT(hearth_http_create(&params, &handler, &server, &msg) == HEARTH_OK);
    return server; /* never started: the loop is turned here */
}

static void turn(struct hearth_http_server *server, int fd, bool *first) {
    char bytes[4096];
    ssize_t n;
    for (int i = 0; i < 4; i++) {
        event_base_loop(server->base, EVLOOP_NONBLOCK);
    }
    while ((n = read(fd, bytes, sizeof bytes)) > 0) {
        HEARTH_ASSERT(!*first || n < 9 || memcmp(bytes, "HTTP/1.1 ", 9) == 0);
        *first = false;
    }
}

FUZZ_TARGET(http) {
    static struct hearth_http_server *server;
    int fds[2];
    bool first = true;
    if (server == NULL) {
        server = make_server();
    }
    hearth_http_set_keyed(server, memmem(data, size, "rigin:", 6) == NULL); /* else the name in Host is looked at */
    HEARTH_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    HEARTH_ASSERT(hearth_http_conn_create(server, fds[0]) != NULL);
    while (size > 0) {
        const uint8_t *cut = memchr(data, 0xFF, size);
        size_t len = cut != NULL ? (size_t)(cut - data) : size;
        if (send(fds[1], data, len, MSG_NOSIGNAL) < 0) {
            break;
        }
        turn(server, fds[1], &first);
        len += cut != NULL;
        data += len;
        size -= len;
    }
    turn(server, fds[1], &first);
    close(fds[1]);
    for (int i = 0; i < 8; i++) {
        event_base_loop(server->base, EVLOOP_NONBLOCK);
    }
    HEARTH_ASSERT(TAILQ_EMPTY(&server->conns) && server->stats.connections == 0 && TAILQ_EMPTY(&server->quiet));
    HEARTH_ASSERT(server->bodies_bytes == 0 && heads == 0);
}
