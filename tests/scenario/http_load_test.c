/* The HTTP server under load, by itself: many connections, clients that are slow on purpose, and requests that are
 * refused by their head. */
#include "base/log.h"
#include "support/http_stage.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct hearth_http_server *server;
    struct hearth_http_params params;
    bool with_head;
    uint16_t port;
    atomic_int gone, heads, requests, asked;
    struct hearth_http_stats stats;
    struct hearth_http_work ask_stats, more;
    struct hearth_http_exchange *stream; /* the loop's */
};

static atomic_int lines;
static char last_line[512]; /* read when its writer is known to be done */

static void count_line(void *user, enum hearth_log_level level, const char *line) {
    (void)user, (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
    atomic_fetch_add(&lines, 1);
}

static void on_gone(void *user) {
    struct fixture *f = user;
    f->stream = NULL;
    atomic_fetch_add(&f->gone, 1);
}

/* /refuse…: answered by its head. Others are asked to tell when they have gone. */
static bool on_head(void *user, struct hearth_http_exchange *exchange) {
    struct fixture *f = user;
    atomic_fetch_add(&f->heads, 1);
    if (strncmp(hearth_http_path(exchange), "/refuse", 7) == 0) {
        hearth_http_set_header(exchange, "WWW-Authenticate", "Bearer");
        hearth_http_respond(exchange, 401, "text/plain", "who?", 4);
        return false;
    }
    hearth_http_on_gone(exchange, on_gone, f);
    return true;
}

/* /hold: no answer. /flood: a stream of 512 KiB and no end. /drip: a stream that post_more() goes on with. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    static char block[65536];
    struct fixture *f = user;
    const char *path = hearth_http_path(exchange);
    struct hearth_buf body = {0}, out = {0};
    atomic_fetch_add(&f->requests, 1);
    hearth_http_on_gone(exchange, on_gone, f);
    if (strcmp(path, "/hold") == 0) {
        return;
    }
    if (strcmp(path, "/flood") == 0 || strcmp(path, "/drip") == 0) {
        hearth_http_begin(exchange, 200, "text/plain");
        for (int i = 0; i < 8 && path[1] == 'f'; i++) {
            hearth_http_write(exchange, block, sizeof block);
        }
        f->stream = exchange;
        return;
    }
    hearth_http_take_body(exchange, &body);
    hearth_buf_printf(&out, "%zu", body.len);
    if (strcmp(path, "/kept") != 0) {
        hearth_http_body_freed(f->server, body.len);
    }
    hearth_http_respond(exchange, 200, "text/plain", out.data, out.len);
    hearth_buf_finish(&body);
    hearth_buf_finish(&out);
}

static void run_ask_stats(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, ask_stats));
    hearth_http_stats(f->server, &f->stats);
    atomic_fetch_add(&f->asked, 1);
}

static void run_more(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, more));
    if (f->stream != NULL) {
        hearth_http_write(f->stream, "more", 4);
    }
    atomic_fetch_add(&f->asked, 1);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    hearth_http_params_default(&f->params);
    f->params.port = 0;
    f->params.connections = 8;
    f->params.body_bytes = 1 << 20;
    f->ask_stats.run = run_ask_stats;
    f->more.run = run_more;
    atomic_store(&lines, 0);
    hearth_log_set(count_line, NULL, HEARTH_LOG_INFO);
    *state = f;
    return 0;
}

static void start(struct fixture *f) {
    const struct hearth_http_handler handler = {
        .head = f->with_head ? on_head : NULL, .request = on_request, .error = fill_error, .user = f};
    f->port = start_http(&f->params, &handler, &f->server);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    hearth_http_destroy(f->server);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    free(f);
    return 0;
}

static void post(struct fixture *f, struct hearth_http_work *work) {
    const int before = atomic_load(&f->asked);
    hearth_http_post(f->server, work);
    assert_true(reaches(&f->asked, before + 1));
}

static const struct hearth_http_stats *stats(struct fixture *f) {
    post(f, &f->ask_stats);
    return &f->stats;
}

static void open_and_send(struct client *client, const struct fixture *f, const char *text) {
    assert_true(client_open(client, f->port));
    assert_true(client_text(client, text));
}

static int64_t rss_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &total, &resident), 2);
    fclose(file);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

/* ---- refused by the head ---- */

/* No 100 is sent, and the body, which never comes, is not waited for. */
static void refuses_before_the_body(void **state) {
    struct fixture *f = *state;
    struct client client;
    const char *const requests[] = {
        "POST /refuse HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 500000\r\n\r\n",
        "POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n",
        "POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
        "POST /refuse HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    };
    f->with_head = true;
    start(f);
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        struct response response;
        char value[32];
        open_and_send(&client, f, requests[i]);
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, 401);
        assert_true(response_header(&response, "Connection", value, sizeof value));
        assert_string_equal(value, "close");
        assert_true(response_header(&response, "WWW-Authenticate", value, sizeof value));
        response_finish(&response);
        assert_true(client_at_end(&client));
        client_close(&client);
    }
    assert_int_equal(atomic_load(&f->requests), 0);
    assert_int_equal(atomic_load(&f->heads), 4);
    assert_int_equal(atomic_load(&f->gone), 0);
}

/* What OPTIONS is answered does not depend on a body: none is waited for, or kept. */
static void options_need_no_body(void **state) {
    struct fixture *f = *state;
    struct client client;
    f->with_head = true;
    start(f);
    open_and_send(&client, f, "OPTIONS /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    expect_answer(&client, 204, "");
    client_close(&client);
    assert_int_equal(atomic_load(&f->heads), 0);
    assert_int_equal(atomic_load(&f->requests), 0);
}

/* The client sends all of a large body before it reads: it must find the answer. */
static void refuses_while_the_body_comes(void **state) {
    struct fixture *f = *state;
    static char block[1 << 20];
    struct client client;
    f->with_head = true;
    f->params.body_bytes = 64 << 20;
    start(f);
    open_and_send(&client, f, "POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n");
    for (int i = 0; i < 16; i++) {
        assert_true(client_send(&client, block, sizeof block));
    }
    expect_answer(&client, 401, "who?");
    client_close(&client);
    assert_int_equal(atomic_load(&f->requests), 0);
}

/* Without a body nothing is left unread: the connection lives on. */
static void refuses_and_keeps_the_connection(void **state) {
    struct fixture *f = *state;
    struct client client;
    f->with_head = true;
    start(f);
    open_and_send(&client, f,
                  "GET /refuse HTTP/1.1\r\nHost: localhost\r\n\r\n"
                  "POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
                  "POST /ok HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    expect_answer(&client, 401, "who?");
    expect_answer(&client, 401, "who?");
    expect_answer(&client, 100, NULL);
    assert_true(client_text(&client, "abcOPTIONS /refuse HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    expect_answer(&client, 200, "3");
    expect_answer(&client, 204, "");
    client_close(&client);
    assert_int_equal(atomic_load(&f->heads), 3);
    assert_int_equal(atomic_load(&f->requests), 1);
}

/* Whoever has let a head pass is told when the rest does not come. */
static void tells_when_the_body_does_not_come(void **state) {
    struct fixture *f = *state;
    struct client client;
    f->with_head = true;
    f->params.body_us = 300000;
    start(f);
    open_and_send(&client, f, "POST /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    assert_true(reaches(&f->heads, 1));
    client_close(&client);
    assert_true(reaches(&f->gone, 1));
    open_and_send(&client, f, "POST /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    expect_answer(&client, 408, "408 /ok: the request's body did not arrive in time");
    assert_true(reaches(&f->gone, 2));
    client_close(&client);
    open_and_send(&client, f,
                  "POST /ok HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
    expect_answer(&client, 400, NULL);
    assert_true(reaches(&f->gone, 3));
    client_close(&client);
    assert_int_equal(atomic_load(&f->requests), 0);
    assert_int_equal(stats(f)->dropped, 0);
}

static void names_the_path_in_errors(void **state) {
    struct fixture *f = *state;
    struct client client;
    const struct {
        const char *request, *body;
    } cases[] = {
        {"POST /v1/messages?x=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
         "413 /v1/messages: the request's body is too large"},
        {"POST http://host:1/v1/x?y HTTP/1.1\r\nHost: host:1\r\nContent-Length: 99999999\r\n\r\n",
         "413 /v1/x: the request's body is too large"},
        {"GET /v1/x HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n", "400 /v1/x: Invalid header token"},
        {"GET http://host HTTP/1.1\r\nHost: host\r\nExpect: much\r\n\r\n", "417 : this expectation cannot be met"},
        {"FROB", "501 : unknown request method"},
    };
    start(f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        open_and_send(&client, f, cases[i].request);
        snprintf(text, sizeof text, "%.3s", cases[i].body);
        expect_answer(&client, atoi(text), cases[i].body);
        client_close(&client);
    }
    assert_int_equal(stats(f)->malformed, 5);
}

/* ---- more than there may be ---- */

/* Idle connections and half requests make place for new ones; what is being answered does not. */
static void quiet_connections_make_place(void **state) {
    struct fixture *f = *state;
    struct client clients[8], late;
    start(f);
    for (int i = 0; i < 8; i++) {
        assert_true(client_open(&clients[i], f->port));
        if (i == 0) {
            assert_true(client_text(&clients[i], "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        } else if (i == 1) {
            assert_true(client_text(&clients[i], "GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            expect_answer(&clients[i], 200, "0");
        } else if (i < 5) {
            assert_true(client_text(&clients[i], "GET /half HTTP/1.1\r\nHost: localhost\r\nA:"));
        }
    }
    assert_true(reaches(&f->requests, 2));
    usleep(1300 * 1000); /* they are left alone for the first second */
    for (int i = 0; i < 20; i++) {
        open_and_send(&late, f, "GET /late HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        expect_answer(&late, 200, "0");
        client_close(&late);
    }
    assert_int_equal(atomic_load(&f->gone), 0);
    assert_true(stats(f)->evicted >= 1);
    assert_int_equal(stats(f)->refused, 0);
    assert_int_equal(stats(f)->connections_busy, 1);
    for (int i = 0; i < 8; i++) {
        client_close(&clients[i]);
    }
}

/* One body alone may be as large as that; two at a time may not. */
static void bounds_all_bodies_together(void **state) {
    struct fixture *f = *state;
    static char half[600000];
    struct client first, second;
    struct response response;
    char value[16];
    f->params.bodies_bytes = 1 << 20;
    start(f);
    open_and_send(&first, f, "POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
    assert_true(client_send(&first, half, sizeof half));
    do {
        usleep(5000);
    } while (stats(f)->read_bytes < sizeof half);
    open_and_send(&second, f, "POST /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
    assert_true(client_send(&second, half, sizeof half));
    assert_true(client_response(&second, false, &response));
    assert_int_equal(response.status, 503);
    assert_true(response_header(&response, "Retry-After", value, sizeof value));
    response_finish(&response);
    client_close(&second);
    assert_true(client_send(&first, half, 400000));
    expect_answer(&first, 200, "1000000");
    open_and_send(&second, f, "POST /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n");
    assert_true(client_send(&second, half, sizeof half)); /* there is room again */
    expect_answer(&second, 200, "600000");
    client_close(&second);
    /* One that the handler has taken, and has not freed yet, counts like one that is being read. */
    open_and_send(&second, f, "POST /kept HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n");
    assert_true(client_send(&second, half, sizeof half));
    expect_answer(&second, 200, "600000");
    client_close(&second);
    open_and_send(&second, f, "POST /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n");
    assert_true(client_send(&second, half, sizeof half));
    assert_true(client_response(&second, false, &response));
    assert_int_equal(response.status, 503);
    response_finish(&response);
    client_close(&first);
    client_close(&second);
}

/* ---- slow on purpose ---- */

static void cuts_off_a_body_that_trickles(void **state) {
    struct fixture *f = *state;
    struct client client;
    f->params.rate = 100000;
    f->params.trickle_us = 200000;
    start(f);
    open_and_send(&client, f, "POST /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
    while (client_send(&client, "x", 1)) { /* until the server has closed */
        usleep(10000);
        if (stats(f)->timeouts > 0) {
            break;
        }
    }
    expect_answer(&client, 408, "408 /ok: the request's body arrives too slowly");
    client_close(&client);
}

/* Opens a connection whose kernel keeps little of what is not read. */
static void open_narrow(struct client *client, uint16_t port) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int bytes = 4096;
    *client = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    assert_int_equal(connect(client->fd, (const struct sockaddr *)&to, sizeof to), 0);
}

/* A byte now and then is not reading. */
static void cuts_off_a_reader_of_single_bytes(void **state) {
    struct fixture *f = *state;
    struct client client;
    char byte;
    f->params.stall_us = 400000;
    f->params.rate = 1 << 20;
    start(f);
    open_narrow(&client, f->port);
    assert_true(client_text(&client, "GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    while (atomic_load(&f->gone) == 0) {
        assert_true(recv(client.fd, &byte, 1, 0) <= 1);
        usleep(5000);
    }
    assert_int_equal(stats(f)->stalled, 1);
    assert_non_null(strstr(last_line, "it reads too slowly"));
    client_close(&client);
}

/* Neither is a stream with nothing to read for many windows, nor an idle connection, a slow reader. */
static void leaves_readers_that_keep_up(void **state) {
    struct fixture *f = *state;
    struct client client;
    f->params.stall_us = 50000;
    f->params.rate = 1 << 30;
    start(f);
    open_and_send(&client, f, "GET /drip HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        usleep(150000);
        post(f, &f->more);
    }
    assert_true(client_wait_for(&client, "more\r\n4\r\nmore\r\n4\r\nmore\r\n4\r\nmore\r\n4\r\nmore\r\n"));
    assert_int_equal(atomic_load(&f->gone), 0);
    assert_int_equal(stats(f)->stalled, 0);
    client_close(&client);
    assert_true(reaches(&f->gone, 1));
}

/* ---- what they cost ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

enum { MANY = 1000 };

/* Resident memory of a thousand that have sent nothing, and of a thousand that wait after a large head. */
static void idle_connections_are_cheap(void **state) {
    struct fixture *f = *state;
    static struct client clients[MANY];
    static char large[20000];
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < 3 * MANY) {
        skip();
    }
    f->params.connections = 2 * MANY;
    f->params.header_bytes = 32 * 1024;
    start(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur > 2 * MANY); /* raised by the start */
    memset(large, 'h', sizeof large - 1);
    const int64_t before = rss_bytes();
    for (int i = 0; i < MANY; i++) {
        assert_true(client_open(&clients[i], f->port));
    }
    do {
        usleep(5000);
    } while (stats(f)->connections_idle < MANY);
    const int64_t silent = rss_bytes();
    for (int i = 0; i < MANY; i++) {
        assert_true(client_text(&clients[i], "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\nA: ") &&
                    client_text(&clients[i], large) && client_text(&clients[i], "\r\n\r\n") &&
                    client_send(&clients[i], large, 20000));
        expect_answer(&clients[i], 200, "20000");
        hearth_buf_finish(&clients[i].in); /* the test's own */
    }
    const int64_t after = rss_bytes();
    print_message("each: %lld bytes silent, %lld after a request\n", (long long)(silent - before) / MANY,
                  (long long)(after - before) / MANY);
    if (!SANITIZED) {
        assert_true(silent - before < MANY * 50 * 1024);
        assert_true(after - before < MANY * 50 * 1024);
    }
    for (int i = 0; i < MANY; i++) {
        client_close(&clients[i]);
    }
}

/* With few descriptors there are fewer connections, most of them all the same, and a line says so. In a process of its
 * own: limits do not rise. */
static void says_when_files_are_few(void **state) {
    struct fixture *f = *state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit few = {.rlim_cur = 100, .rlim_max = 2000};
        unsigned most = 0;
        struct rlimit limit;
        bool ok = setrlimit(RLIMIT_NOFILE, &few) == 0;
        f->params.connections = 5000;
        start(f);
        ok = ok && getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 2000 && atomic_load(&lines) == 1 &&
             sscanf(last_line, "http: at most %u connections instead of 5000", &most) == 1 && most > 1200 &&
             most < 1800 && strstr(last_line, "2000 files") != NULL;
        _exit(ok ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Each error is counted; of many only the first ones are written. */
static void logs_causes_without_filling_the_disk(void **state) {
    struct fixture *f = *state;
    struct client client;
    start(f);
    for (int i = 0; i < 200; i++) {
        open_and_send(&client, f, "GET /odd\x7f\x1b[2Jpath HTTP/1.1\r\nHost: localhost\r\nB d: x\r\n\r\n");
        expect_answer(&client, 400, NULL);
        client_close(&client);
        if (i == 0) {
            assert_non_null(strstr(last_line, ": 127.0.0.1 answered with 400: "));
            assert_null(strchr(last_line, 0x1b));
        }
    }
    assert_int_equal(stats(f)->malformed, 200);
    assert_true(atomic_load(&lines) >= 20 && atomic_load(&lines) < 200);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(says_when_files_are_few), /* first: while there is no thread */
        TEST(refuses_before_the_body),
        TEST(options_need_no_body),
        TEST(refuses_while_the_body_comes),
        TEST(refuses_and_keeps_the_connection),
        TEST(tells_when_the_body_does_not_come),
        TEST(names_the_path_in_errors),
        TEST(quiet_connections_make_place),
        TEST(bounds_all_bodies_together),
        TEST(cuts_off_a_body_that_trickles),
        TEST(cuts_off_a_reader_of_single_bytes),
        TEST(leaves_readers_that_keep_up),
        TEST(idle_connections_are_cheap),
        TEST(logs_causes_without_filling_the_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
