/* Clients that close their side of a connection: those that wait for their answer get it, those that have gone are
 * noticed although nothing is written to them. Over TCP, and over a socket in the file system. */
#include "support/http_stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct fixture {
    struct hearth_http_server *server;
    uint16_t port;
    char dir[32], path[64]; /* of the socket; "": none */
    atomic_int held, gone;
    struct hearth_http_exchange *exchange; /* the loop's: answered by posted work */
    struct hearth_http_work work;
};

static void on_gone(void *user) {
    struct fixture *f = user;
    f->exchange = NULL;
    atomic_fetch_add(&f->gone, 1);
}

/* /hold: no answer until released. /events: a stream that has begun, and goes on when released; /events-1 has sent an
 * event before. Else at once, with whether the client is local. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct fixture *f = user;
    const char *path = hearth_http_path(exchange);
    if (strcmp(path, "/hold") == 0 || strncmp(path, "/events", 7) == 0) {
        hearth_http_on_gone(exchange, on_gone, f);
        f->exchange = exchange;
        if (path[1] == 'e') {
            hearth_http_begin(exchange, 200, "text/event-stream; charset=utf-8");
            hearth_http_write(exchange, "data: 1\n\n", path[7] != '\0' ? 9 : 0);
        }
        atomic_fetch_add(&f->held, 1);
        return;
    }
    hearth_http_respond(exchange, 200, "text/plain", "here", 4);
}

static void release(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, work));
    assert_non_null(f->exchange);
    if (strncmp(hearth_http_path(f->exchange), "/events", 7) == 0) {
        hearth_http_write(f->exchange, "data: 2\n\n", 9);
        hearth_http_end(f->exchange);
    } else {
        hearth_http_respond(f->exchange, 200, "text/plain", "released", 8);
    }
    f->exchange = NULL;
}

static int start(void **state, bool over_path) {
    struct fixture *f = calloc(1, sizeof *f);
    struct hearth_http_params params;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error, .user = f};
    char host[80];
    hearth_http_params_default(&params);
    params.port = 0;
    if (over_path) {
        strcpy(f->dir, "/tmp/hearth-peer-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        snprintf(f->path, sizeof f->path, "%s/socket", f->dir);
        snprintf(host, sizeof host, "unix:%s", f->path);
        params.host = host;
    }
    f->port = start_http(&params, &handler, &f->server);
    f->work.run = release;
    *state = f;
    return 0;
}

static int setup(void **state) {
    return start(state, false);
}

static int setup_path(void **state) {
    return start(state, true);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    hearth_http_destroy(f->server);
    if (f->dir[0] != '\0') {
        assert_int_equal(rmdir(f->dir), 0); /* the socket has gone */
    }
    free(f);
    return 0;
}

static void open_client(struct fixture *f, struct client *client) {
    if (f->path[0] == '\0') {
        assert_true(client_open(client, f->port));
        return;
    }
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, f->path);
    *client = (struct client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(connect(client->fd, (struct sockaddr *)&at, sizeof at), 0);
}

static void expect(struct client *client, const char *body) {
    struct response response;
    do { /* what the server asks with before the answer */
        assert_true(client_response(client, false, &response));
        assert_true(response.complete);
        if (response.status == 100) {
            response_finish(&response);
        }
    } while (response.head == NULL);
    assert_int_equal(response.status, 200);
    char plain[256] = "";
    for (char *line = strtok((char *)response.body.data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (line[0] != ':') { /* a comment of a stream */
            snprintf(plain + strlen(plain), sizeof plain - strlen(plain), "%s|", line);
        }
    }
    assert_string_equal(plain, body);
    response_finish(&response);
}

#define HEAD " HTTP/1.1\r\nHost: localhost\r\n"

/* Asked for, half-closed, then answered: whole, as a stream that has not begun, that has, in the middle of it. */
static void half_closed_requests_are_answered(void **state) {
    static const struct {
        const char *request, *body;
    } cases[] = {
        {"GET /hold" HEAD "\r\n", "released|"},
        {"POST /hold" HEAD "Content-Length: 3\r\n\r\nabc", "released|"},
        {"GET /events" HEAD "\r\n", "data: 2|"},
        {"GET /events-1" HEAD "\r\n", "data: 1|data: 2|"},
        {"GET /hold HTTP/1.0\r\n\r\n", "released|"},
        {"POST /hold HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "released|"},
        {"GET /events HTTP/1.0\r\n\r\n", "data: 2|"},
        {"GET /events-1 HTTP/1.0\r\n\r\n", "data: 1|data: 2|"},
    };
    struct fixture *f = *state;
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        struct client client;
        open_client(f, &client);
        assert_true(client_text(&client, cases[i].request));
        shutdown(client.fd, SHUT_WR);
        assert_true(reaches(&f->held, i + 1));
        usleep(100000); /* for the server to look whether it has gone */
        assert_int_equal(atomic_load(&f->gone), 0);
        hearth_http_post(f->server, &f->work);
        expect(&client, cases[i].body);
        assert_true(client_at_end(&client));
        client_close(&client);
    }
}

/* What was sent before the end is answered, the last half request is not. */
static void pipelined_requests_before_the_end_are_answered(void **state) {
    struct fixture *f = *state;
    struct client client;
    open_client(f, &client);
    assert_true(client_text(&client, "GET /1" HEAD "\r\nGET /hold" HEAD "\r\nGET /2" HEAD "\r\nGET /half HTTP"));
    shutdown(client.fd, SHUT_WR);
    const char *where = "here|";
    expect(&client, where);
    assert_true(reaches(&f->held, 1));
    hearth_http_post(f->server, &f->work);
    expect(&client, "released|");
    expect(&client, where);
    assert_true(client_at_end(&client));
    client_close(&client);
}

/* The body comes with the head that expects 100 (Continue), and the end behind them, in one read. */
static void a_body_that_does_not_wait_to_be_asked_for_is_answered(void **state) {
    struct fixture *f = *state;
    struct client client;
    open_client(f, &client);
    assert_true(client_text(&client, "POST /x" HEAD "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok"));
    shutdown(client.fd, SHUT_WR);
    expect(&client, "here|");
    assert_true(client_at_end(&client));
    client_close(&client);
}

/* Closed on both sides, at once or after a half: nothing is written, and yet it is noticed. */
static void those_that_have_gone_are_noticed(void **state) {
    static const char *const requests[] = {
        "GET /hold" HEAD "\r\n",      "GET /events" HEAD "\r\n",
        "GET /events-1" HEAD "\r\n",  "GET /hold" HEAD "\r\nGET /2" HEAD "\r\n",
        "GET /hold HTTP/1.0\r\n\r\n", "GET /events HTTP/1.0\r\n\r\n",
    };
    struct fixture *f = *state;
    int count = 0;
    for (size_t i = 0; i < 2 * (sizeof requests / sizeof requests[0]); i++) {
        struct client client;
        open_client(f, &client);
        assert_true(client_text(&client, requests[i / 2]));
        assert_true(reaches(&f->held, ++count));
        if (i % 2 == 1) {
            shutdown(client.fd, SHUT_WR);
            usleep(30000);
        }
        client_close(&client);
        assert_true(reaches(&f->gone, count));
    }
}

/* Half a request is none: nobody can answer it. */
static void half_requests_are_dropped(void **state) {
    static const char *const requests[] = {"", "GET /x HT", "GET /x" HEAD,
                                           "POST /x" HEAD "Content-Length: 3\r\n\r\nab"};
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        struct client client;
        open_client(f, &client);
        assert_true(client_text(&client, requests[i]));
        shutdown(client.fd, SHUT_WR);
        assert_true(client_at_end(&client));
        client_close(&client);
    }
}

/* ---- sockets in the file system ---- */

static int create_at(const char *host, uint32_t mode, struct hearth_http_server **out, struct hearth_errmsg *msg) {
    struct hearth_http_params params;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error};
    hearth_http_params_default(&params);
    params.host = host;
    params.unix_mode = mode;
    return hearth_http_create(&params, &handler, out, msg);
}

static void paths_have_their_mode(void **state) {
    static const uint32_t modes[] = {0600, 0660, 0666};
    struct fixture *f = *state;
    char host[96];
    snprintf(host, sizeof host, "unix:%s/other", f->dir);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct hearth_http_server *server;
        struct hearth_errmsg msg;
        struct stat found;
        const mode_t before = umask(077);
        assert_int_equal(create_at(host, modes[i], &server, &msg), HEARTH_OK);
        umask(before);
        assert_int_equal(stat(host + 5, &found), 0);
        assert_int_equal(found.st_mode & 07777, modes[i]);
        hearth_http_destroy(server);
        assert_int_equal(access(host + 5, F_OK), -1);
    }
}

/* A server that died left its socket; one that lives, and what is no socket, stays. */
static void only_stale_sockets_are_replaced(void **state) {
    struct fixture *f = *state;
    struct hearth_http_server *server;
    struct hearth_errmsg msg;
    char host[160], path[96];
    snprintf(host, sizeof host, "unix:%s", f->path);
    assert_int_equal(create_at(host, 0600, &server, &msg), HEARTH_ERR_IO);
    assert_non_null(strstr(msg.text, "is in use by another program"));
    snprintf(path, sizeof path, "%s/other", f->dir);
    snprintf(host, sizeof host, "unix:%s", path);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
    assert_int_equal(create_at(host, 0600, &server, &msg), HEARTH_OK);
    unlink(path); /* somebody else takes the place: it is left to them */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    hearth_http_destroy(server);
    assert_int_equal(create_at(host, 0600, &server, &msg), HEARTH_ERR_IO);
    assert_non_null(strstr(msg.text, "a file that is no socket"));
    assert_int_equal(unlink(path), 0);
    char name[121];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(host, sizeof host, "unix:/tmp/%s", name);
    assert_int_equal(create_at(host, 0600, &server, &msg), HEARTH_ERR_IO);
    assert_non_null(strstr(msg.text, "has 1 to 107 bytes"));
    assert_int_equal(create_at("unix:", 0600, &server, &msg), HEARTH_ERR_IO);
}

#define TCP(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define PATH(name) {#name " over a path", name, setup_path, teardown, NULL}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP(half_closed_requests_are_answered),
        PATH(half_closed_requests_are_answered),
        TCP(pipelined_requests_before_the_end_are_answered),
        PATH(pipelined_requests_before_the_end_are_answered),
        TCP(a_body_that_does_not_wait_to_be_asked_for_is_answered),
        PATH(a_body_that_does_not_wait_to_be_asked_for_is_answered),
        TCP(those_that_have_gone_are_noticed),
        PATH(those_that_have_gone_are_noticed),
        TCP(half_requests_are_dropped),
        PATH(half_requests_are_dropped),
        PATH(paths_have_their_mode),
        PATH(only_stale_sockets_are_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
