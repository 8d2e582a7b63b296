/* The HTTP server by itself, with a handler that echoes: framing, limits, slow and absent clients, the end. */
#include "base/clock.h"
#include "support/http_stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OUT_BYTES (1024 * 1024)
#define LARGE_BYTES (OUT_BYTES + OUT_BYTES / 2)
#define PIPELINED 150
#define PATIENT_US (60 * 1000000ll)

struct fixture {
    struct hearth_http_server *server;
    uint16_t port;
    atomic_int holds, gone, ticks;
    int answered;                      /* the loop's */
    struct hearth_http_exchange *held; /* the loop's: answered by posted work */
    struct hearth_http_work work;
};

static void on_gone(void *user) {
    struct fixture *f = user;
    f->held = NULL;
    atomic_fetch_add(&f->gone, 1);
}

/* /echo: method, path, query, body. /stream: three chunks. /hold: no answer until released. /flood: more than any
 * reader's share. /large: a share and a half at once. /count: how many others were answered since the count began. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct fixture *f = user;
    const char *path = hearth_http_path(exchange);
    if (strcmp(path, "/stream") == 0) {
        hearth_http_begin(exchange, 200, "text/plain");
        hearth_http_write(exchange, "one ", 4);
        hearth_http_write(exchange, "", 0);
        hearth_http_write(exchange, "two", 3);
        hearth_http_end(exchange);
    } else if (strcmp(path, "/hold") == 0) {
        f->held = exchange;
        hearth_http_on_gone(exchange, on_gone, f);
        atomic_fetch_add(&f->holds, 1);
    } else if (strcmp(path, "/large") == 0) {
        static char large[LARGE_BYTES];
        hearth_http_begin(exchange, 200, "text/plain");
        hearth_http_write(exchange, large, sizeof large);
        hearth_http_end(exchange);
    } else if (strcmp(path, "/flood") == 0) {
        static char block[65536];
        hearth_http_on_gone(exchange, on_gone, f);
        hearth_http_begin(exchange, 200, "text/plain");
        for (int i = 0; i < 1024; i++) { /* 64 MiB, of which the fixture allows 1 */
            hearth_http_write(exchange, block, sizeof block);
        }
        f->held = exchange;
    } else if (strcmp(path, "/count") == 0) {
        char count[16];
        snprintf(count, sizeof count, "%d", f->answered);
        hearth_http_respond(exchange, 200, "text/plain", count, strlen(count));
    } else {
        f->answered++;
        struct hearth_buf body = {0}, out = {0};
        hearth_http_take_body(exchange, &body);
        hearth_buf_printf(&out, "%s %s ?%s %.*s", hearth_http_method(exchange), path, hearth_http_query(exchange),
                          (int)body.len, body.len > 0 ? (const char *)body.data : "");
        hearth_http_respond(exchange, 200, "text/plain", out.data, out.len);
        hearth_http_body_freed(f->server, body.len);
        hearth_buf_finish(&body);
        hearth_buf_finish(&out);
    }
}

static void release(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, work));
    atomic_fetch_add(&f->ticks, 1);
    if (f->held != NULL) {
        hearth_http_respond(f->held, 200, "text/plain", "released", 8);
        f->held = NULL;
    }
}

static int setup_with(void **state, bool patient) {
    struct fixture *f = calloc(1, sizeof *f);
    struct hearth_http_params params;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error, .user = f};
    static const char *const pages[] = {"http://a.test"};
    hearth_http_params_default(&params);
    params.cors_origins = pages;
    params.cors_origin_count = 1;
    params.port = 0;
    params.header_bytes = 4096;
    params.body_bytes = 100000;
    params.out_bytes = OUT_BYTES;
    params.connections = 8;
    params.head_us = patient ? PATIENT_US : 300000;
    params.body_us = patient ? PATIENT_US : 500000;
    params.idle_us = patient ? PATIENT_US : 2000000;
    f->port = start_http(&params, &handler, &f->server);
    f->work.run = release;
    *state = f;
    return 0;
}

static int setup(void **state) {
    return setup_with(state, true);
}

static int setup_impatient(void **state) {
    return setup_with(state, false);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    hearth_http_destroy(f->server);
    free(f);
    return 0;
}

static void expect_error(struct client *client, int status) {
    struct response response;
    char value[64];
    assert_true(client_response(client, false, &response));
    assert_int_equal(response.status, status);
    assert_true(response.complete);
    assert_int_equal(strtol((const char *)response.body.data, NULL, 10), status);
    assert_true(response_header(&response, "Connection", value, sizeof value));
    assert_string_equal(value, "close");
    response_finish(&response);
    assert_true(client_at_end(client));
}

static void keeps_alive_and_pipelines(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_request(&client, "GET", "/a%20b?x=%20y", NULL, NULL));
    expect_answer(&client, 200, "GET /a b ?x=%20y ");
    assert_true(client_text(&client, "POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
                                     "GET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                     "POST /3 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                                     "3\r\nfoo\r\n3;x=y\r\nbar\r\n"
                                     "0\r\nTrailer: t\r\n\r\nGET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                     "GET /5 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    expect_answer(&client, 200, "POST /1 ? abc");
    expect_answer(&client, 200, "GET /2 ? ");
    expect_answer(&client, 200, "POST /3 ? foobar");
    expect_answer(&client, 200, "one two");
    expect_answer(&client, 200, "GET /5 ? ");
    client_close(&client);
}

/* Far more of them than may be answered before the client reads. */
static void a_thousand_are_pipelined(void **state) {
    struct fixture *f = *state;
    struct client client;
    struct hearth_buf all = {0};
    assert_true(client_open(&client, f->port));
    for (int i = 0; i < 1000; i++) {
        assert_true(hearth_buf_printf(&all, "GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i));
    }
    assert_true(client_send(&client, all.data, all.len));
    for (int i = 0; i < 1000; i++) {
        char body[32];
        snprintf(body, sizeof body, "GET /%d ? ", i);
        expect_answer(&client, 200, body);
    }
    client_close(&client);
    hearth_buf_finish(&all);
}

/* Only what a reader leaves unread is held against it, not how much there is to read. */
static void large_writes_are_no_flood(void **state) {
    struct fixture *f = *state;
    struct client client;
    struct response response;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_true(client_response(&client, false, &response));
    assert_true(response.complete);
    assert_int_equal(response.body.len, LARGE_BYTES);
    response_finish(&response);
    client_close(&client);
}

/* A request that is waiting behind another one is answered after it, though it arrived before. */
static void pipelines_behind_a_held_request(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(
        &client, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\nGET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_true(reaches(&f->holds, 1));
    hearth_http_post(f->server, &f->work);
    expect_answer(&client, 200, "released");
    expect_answer(&client, 200, "GET /next ? ");
    client_close(&client);
}

/* Holds the loop up until requests of two clients are there. */
static void wait_until_sent(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, work));
    f->answered = 0;
    atomic_fetch_add(&f->ticks, 1);
    (void)reaches(&f->ticks, 2);
}

/* Of many requests that are here already one is answered in a turn: another client's need not wait for them all. */
static void those_that_pipeline_give_way(void **state) {
    struct fixture *f = *state;
    struct client clients[2];
    struct hearth_buf all = {0};
    struct response response;
    for (int i = 0; i < 2; i++) {
        assert_true(client_open(&clients[i], f->port));
        assert_true(client_request(&clients[i], "GET", "/here", NULL, NULL));
        expect_answer(&clients[i], 200, "GET /here ? ");
    }
    for (int i = 0; i < PIPELINED; i++) {
        assert_true(hearth_buf_text(&all, "GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }
    f->work.run = wait_until_sent;
    hearth_http_post(f->server, &f->work);
    assert_true(reaches(&f->ticks, 1));
    assert_true(client_send(&clients[0], all.data, all.len));
    assert_true(client_request(&clients[1], "GET", "/count", NULL, NULL));
    atomic_fetch_add(&f->ticks, 1);
    assert_true(client_response(&clients[1], false, &response));
    assert_int_equal(response.status, 200);
    assert_in_range(strtol((const char *)response.body.data, NULL, 10), 0, PIPELINED / 2);
    response_finish(&response);
    for (int i = 0; i < PIPELINED; i++) {
        expect_answer(&clients[0], 200, "GET /1 ? ");
    }
    client_close(&clients[0]);
    client_close(&clients[1]);
    hearth_buf_finish(&all);
}

static void takes_requests_byte_by_byte(void **state) {
    struct fixture *f = *state;
    struct client client;
    const char *text = "POST /slow?q HTTP/1.1\r\nHost: localhost\r\nA: b\r\nEmpty:\r\nContent-Length: 4\r\n\r\nbody";
    assert_true(client_open(&client, f->port));
    for (const char *c = text; *c != '\0'; c++) {
        assert_true(client_send(&client, c, 1));
        usleep(500);
    }
    expect_answer(&client, 200, "POST /slow ?q body");
    client_close(&client);
}

static void answers_head_and_options(void **state) {
    struct fixture *f = *state;
    struct client client;
    struct response response;
    char value[64];
    assert_true(client_open(&client, f->port));
    assert_true(client_request(&client, "HEAD", "/x", NULL, NULL));
    assert_true(client_response(&client, true, &response));
    assert_int_equal(response.status, 200);
    assert_true(response_header(&response, "Content-Length", value, sizeof value));
    assert_string_equal(value, "9"); /* of "GET /x ? " */
    response_finish(&response);
    assert_true(client_request(&client, "HEAD", "/stream", NULL, NULL));
    assert_true(client_response(&client, true, &response));
    response_finish(&response);
    assert_true(client_request(&client, "OPTIONS", "/x", NULL, NULL));
    assert_true(client_response(&client, false, &response));
    assert_int_equal(response.status, 204);
    assert_false(response_header(&response, "Access-Control-Allow-Methods", value, sizeof value));
    assert_true(response_header(&response, "Allow", value, sizeof value));
    assert_string_equal(value, "GET, HEAD, POST, DELETE, OPTIONS");
    assert_true(response_header(&response, "X-Request-Id", value, sizeof value));
    response_finish(&response);
    client_close(&client);
}

/* Pages of one origin may use the server; preflights and requests of all others get a 403 that says what to set. */
static void answers_the_pages_that_it_was_told_of(void **state) {
    static const char *const refused[][2] = {{"GET", "Origin: http://b.test\r\n"},
                                             {"POST", "Origin: null\r\n"},
                                             {"GET", "Sec-Fetch-Site: cross-site\r\n"},
                                             {"OPTIONS", "Origin: http://b.test\r\n"}};
    static const char *const told[] = {"Retry-After", "x-ratelimit-remaining-requests",
                                       "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-tokens-reset"};
    struct fixture *f = *state;
    struct client client;
    struct response response;
    char value[64];
    assert_true(client_open(&client, f->port));
    assert_true(client_request(&client, "OPTIONS", "/x",
                               "Origin: http://a.test\r\nAccess-Control-Request-Headers: authorization\r\n"
                               "Access-Control-Request-Private-Network: true\r\n",
                               NULL));
    assert_true(client_response(&client, false, &response));
    assert_int_equal(response.status, 204);
    assert_true(response_header(&response, "Access-Control-Allow-Origin", value, sizeof value));
    assert_string_equal(value, "http://a.test");
    assert_true(response_header(&response, "Access-Control-Allow-Headers", value, sizeof value));
    assert_string_equal(value, "authorization");
    assert_true(response_header(&response, "Access-Control-Allow-Methods", value, sizeof value));
    assert_string_equal(value, "GET, POST, DELETE, OPTIONS");
    assert_true(response_header(&response, "Access-Control-Allow-Private-Network", value, sizeof value));
    response_finish(&response);
    assert_true(client_request(&client, "GET", "/x", "Origin: http://a.test\r\n", NULL));
    assert_true(client_response(&client, false, &response));
    assert_int_equal(response.status, 200);
    assert_true(response_header(&response, "Access-Control-Allow-Origin", value, sizeof value));
    assert_true(response_header(&response, "Vary", value, sizeof value));
    assert_string_equal(value, "Origin");
    char exposed[1024];
    assert_true(response_header(&response, "Access-Control-Expose-Headers", exposed, sizeof exposed));
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        assert_non_null(strstr(exposed, told[i]));
    }
    response_finish(&response);
    client_close(&client);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_true(client_open(&client, f->port));
        assert_true(client_request(&client, refused[i][0], "/x", refused[i][1], NULL));
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, 403);
        assert_false(response_header(&response, "Access-Control-Allow-Origin", value, sizeof value));
        assert_non_null(strstr((const char *)response.body.data, "--cors-origin"));
        response_finish(&response);
        client_close(&client);
    }
}

/* The name in an absolute target counts like that of Host, and may not differ from it. */
static void looks_at_the_host_of_the_target(void **state) {
    static const struct {
        const char *head;
        int status;
    } cases[] = {
        {"GET http://evil.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403},
        {"GET http://evil.test/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET http://localhost/x HTTP/1.1\r\nHost: evil.test\r\n\r\n", 400},
        {"GET http://localhost/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
        {"GET /x HTTP/1.1\r\nHost: evil.test\r\nX-Forwarded-Host: localhost\r\n\r\n", 403},
        {"GET /http://localhost/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403},
        {"OPTIONS * HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client client;
        struct response response;
        assert_true(client_open(&client, f->port));
        assert_true(client_text(&client, cases[i].head));
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, cases[i].status);
        response_finish(&response);
        client_close(&client);
    }
}

static void closes_for_http_1_0(void **state) {
    struct fixture *f = *state;
    struct client client;
    struct response response;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /stream HTTP/1.0\r\n\r\n"));
    assert_true(client_response(&client, false, &response));
    assert_false(response.chunked);
    assert_string_equal((const char *)response.body.data, "one two");
    response_finish(&response);
    client_close(&client);
}

static void continues_when_asked(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "POST /c HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                                     "Content-Length: 2\r\n\r\n"));
    expect_answer(&client, 100, "");
    assert_true(client_text(&client, "ok"));
    expect_answer(&client, 200, "POST /c ? ok");
    assert_true(client_text(&client, "POST /c HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                                     "Content-Length: 100001\r\n\r\n"));
    expect_error(&client, 413);
    client_close(&client);
}

static void refuses_what_it_cannot_take(void **state) {
    struct fixture *f = *state;
    static char long_header[6000], long_url[6000], many[8000];
    memset(long_header, 'h', sizeof long_header - 1);
    memset(long_url, 'u', sizeof long_url - 1);
    for (int i = 0; i < 200; i++) {
        strcat(many, "A: b\r\n");
    }
    const struct {
        int status;
        const char *before, *middle, *after;
    } cases[] = {
        {413, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n", "", ""},
        {413, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999999999\r\n\r\n", "", ""},
        {414, "GET /", long_url, " HTTP/1.1\r\nHost: localhost\r\n\r\n"},
        {417, "POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: miracles\r\n\r\n", "", ""},
        {431, "GET /x HTTP/1.1\r\nHost: localhost\r\nA: ", long_header, "\r\n\r\n"},
        {431, "GET /x HTTP/1.1\r\nHost: localhost\r\n", many, "\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client client;
        assert_true(client_open(&client, f->port));
        assert_true(client_text(&client, cases[i].before) && client_text(&client, cases[i].middle) &&
                    client_text(&client, cases[i].after));
        expect_error(&client, cases[i].status);
        client_close(&client);
    }
    struct client client; /* half as many headers are no cause, as a browser behind several proxies has them */
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /x HTTP/1.1\r\nHost: localhost\r\n") &&
                client_text(&client, many + strlen(many) / 2) && client_text(&client, "\r\n"));
    expect_answer(&client, 200, NULL);
    client_close(&client);
}

/* The client is still sending when the answer comes: it must be able to read it. */
static void answers_in_the_middle_of_a_large_body(void **state) {
    struct fixture *f = *state;
    static char block[1 << 20];
    struct client client;
    memset(block, 'x', sizeof block);
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n"));
    for (int i = 0; i < 8; i++) {
        assert_true(client_send(&client, block, sizeof block));
    }
    expect_error(&client, 413);
    client_close(&client);
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 3; i++) { /* 50,000 bytes each: over the limit in the third */
        assert_true(client_text(&client, "C350\r\n") && client_send(&client, block, 50000) &&
                    client_text(&client, "\r\n"));
    }
    expect_error(&client, 413);
    client_close(&client);
}

static void times_out(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /x HTTP/1.1\r\nHost: localhost\r\nA:"));
    expect_error(&client, 408);
    client_close(&client);
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"));
    expect_error(&client, 408);
    client_close(&client);
    assert_true(client_open(&client, f->port)); /* idle: closed without a word */
    assert_true(client_at_end(&client));
    client_close(&client);
}

static void sees_that_the_client_has_gone(void **state) {
    struct fixture *f = *state;
    for (int i = 1; i <= 3; i++) {
        struct client client;
        assert_true(client_open(&client, f->port));
        assert_true(client_text(&client, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        if (i == 2) {
            assert_true(client_text(&client, "GET /pipelined HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        }
        assert_true(reaches(&f->holds, i));
        if (i == 3) { /* by a reset */
            const struct linger reset = {.l_onoff = 1};
            setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        client_close(&client);
        assert_true(reaches(&f->gone, i));
    }
}

static void drops_a_reader_that_does_not_read(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_true(reaches(&f->gone, 1));
    client_close(&client);
    struct response response = http_call(f->port, "GET", "/after", NULL, NULL);
    assert_int_equal(response.status, 200);
    response_finish(&response);
}

/* All are busy: none can be closed in favour of a new one. */
static void bounds_connections(void **state) {
    struct fixture *f = *state;
    struct client clients[9];
    for (int i = 0; i < 9; i++) {
        assert_true(client_open(&clients[i], f->port));
        assert_true(client_request(&clients[i], "GET", i < 8 ? "/hold" : "/x", NULL, NULL));
    }
    expect_error(&clients[8], 503);
    client_close(&clients[8]);
    client_close(&clients[0]);
    assert_true(reaches(&f->gone, 1));
    struct response response = http_call(f->port, "GET", "/x", NULL, NULL);
    assert_int_equal(response.status, 200);
    response_finish(&response);
    for (int i = 1; i < 8; i++) {
        client_close(&clients[i]);
    }
}

static void names_a_port_in_use(void **state) {
    struct fixture *f = *state;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error};
    struct hearth_http_server *server;
    struct hearth_http_params params;
    struct hearth_errmsg msg;
    char want[64];
    hearth_http_params_default(&params);
    params.port = f->port;
    assert_int_equal(hearth_http_create(&params, &handler, &server, &msg), HEARTH_ERR_IO);
    assert_null(server);
    snprintf(want, sizeof want, "port %u on 127.0.0.1 is in use", (unsigned)f->port);
    assert_non_null(strstr(msg.text, want));
    params.host = "no.such.host.invalid";
    assert_int_equal(hearth_http_create(&params, &handler, &server, &msg), HEARTH_ERR_IO);
}

/* The answer says whether there may be another one on its connection. */
static void expect_connection(struct client *client, const char *want) {
    struct response response;
    char value[64];
    assert_true(client_response(client, false, &response));
    assert_int_equal(response.status, 200);
    assert_true(response.complete && response_header(&response, "Connection", value, sizeof value));
    assert_string_equal(value, want);
    response_finish(&response);
}

/* Before it stops, a server can let its clients go one by one, and serve them meanwhile. */
static void closes_after_answers(void **state) {
    struct fixture *f = *state;
    struct client kept, streams, busy, fresh;
    assert_true(client_open(&kept, f->port) && client_open(&streams, f->port) && client_open(&busy, f->port));
    assert_true(client_request(&kept, "GET", "/x", NULL, NULL));
    expect_connection(&kept, "keep-alive");
    assert_true(client_request(&busy, "GET", "/hold", NULL, NULL));
    assert_true(client_request(&busy, "GET", "/never", NULL, NULL));
    assert_true(reaches(&f->holds, 1));
    hearth_http_close_after_answers(f->server);
    assert_true(client_request(&kept, "GET", "/x", NULL, NULL));
    assert_true(client_request(&streams, "GET", "/stream", NULL, NULL));
    assert_true(client_open(&fresh, f->port) && client_request(&fresh, "GET", "/x", NULL, NULL));
    hearth_http_post(f->server, &f->work);
    struct client *const all[] = {&kept, &streams, &busy, &fresh};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        expect_connection(all[i], "close");
        assert_true(client_at_end(all[i])); /* a request behind it is not answered */
        client_close(all[i]);
    }
}

/* Stopping closes idle connections, refuses new ones, and lets a running request end. */
static void stops_gracefully(void **state) {
    struct fixture *f = *state;
    struct client idle, busy, late;
    assert_true(client_open(&idle, f->port) && client_open(&busy, f->port));
    assert_true(client_request(&idle, "GET", "/x", NULL, NULL));
    expect_answer(&idle, 200, "GET /x ? ");
    assert_true(client_text(&busy, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_true(reaches(&f->holds, 1));
    hearth_http_stop(f->server);
    assert_true(client_at_end(&idle));
    assert_false(client_open(&late, f->port));
    hearth_http_post(f->server, &f->work);
    expect_answer(&busy, 200, "released");
    assert_true(client_at_end(&busy));
    int64_t since = hearth_clock_us();
    hearth_http_join(f->server, 10 * 1000000ll);
    assert_true(hearth_clock_us() - since < 5 * 1000000ll);
    client_close(&idle);
    client_close(&busy);
    hearth_http_post(f->server, &f->work); /* run by destroy */
}

static void join_closes_what_is_left(void **state) {
    struct fixture *f = *state;
    struct client client;
    assert_true(client_open(&client, f->port));
    assert_true(client_text(&client, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_true(reaches(&f->holds, 1));
    hearth_http_join(f->server, 100000);
    assert_int_equal(atomic_load(&f->gone), 1);
    assert_true(client_at_end(&client));
    client_close(&client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(keeps_alive_and_pipelines),
        TEST(a_thousand_are_pipelined),
        TEST(large_writes_are_no_flood),
        TEST(pipelines_behind_a_held_request),
        TEST(those_that_pipeline_give_way),
        TEST(takes_requests_byte_by_byte),
        TEST(answers_head_and_options),
        TEST(answers_the_pages_that_it_was_told_of),
        TEST(looks_at_the_host_of_the_target),
        TEST(closes_for_http_1_0),
        TEST(continues_when_asked),
        TEST(refuses_what_it_cannot_take),
        TEST(answers_in_the_middle_of_a_large_body),
        cmocka_unit_test_setup_teardown(times_out, setup_impatient, teardown),
        TEST(sees_that_the_client_has_gone),
        TEST(drops_a_reader_that_does_not_read),
        TEST(bounds_connections),
        TEST(names_a_port_in_use),
        TEST(closes_after_answers),
        TEST(stops_gracefully),
        TEST(join_closes_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
