/* The HTTP server's times, on a clock that the test moves. Every timer of the loop runs after a real millisecond, so
 * that the server looks at that clock again and again; what it had asked for is noted. */
#include "base/log.h"
#include "support/clock.h"
#include "support/http_stage.h"

#include <event2/event.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MS_US INT64_C(1000)
#define SECOND_US INT64_C(1000000)
#define HEAD " HTTP/1.1\r\nHost: localhost\r\n"

struct fixture {
    struct hearth_http_server *server;
    uint16_t port;
    atomic_int requests, gone, asked, ticks, lines, tells;
    struct hearth_http_stats stats;
    struct hearth_http_work ask_stats;
    char pem[32]; /* path of a certificate and its key; "": none */
};

static atomic_int timers;             /* how often one was set */
static atomic_int_fast64_t waits[64]; /* for how long, of the last ones */

int __real_event_add(struct event *ev, const struct timeval *tv);
int __wrap_event_add(struct event *ev, const struct timeval *tv);

int __wrap_event_add(struct event *ev, const struct timeval *tv) {
    const struct timeval soon = {.tv_usec = 1000};
    if (tv != NULL) {
        const int at = atomic_fetch_add(&timers, 1);
        atomic_store(&waits[at % 64], (int64_t)tv->tv_sec * SECOND_US + tv->tv_usec);
    }
    return __real_event_add(ev, tv != NULL ? &soon : NULL);
}

static void note_line(void *user, enum hearth_log_level level, const char *line) {
    struct fixture *f = user;
    (void)level;
    atomic_fetch_add(strstr(line, "were left out") != NULL ? &f->tells : &f->lines, 1);
}

static void on_gone(void *user) {
    struct fixture *f = user;
    atomic_fetch_add(&f->gone, 1);
}

/* /hold: no answer. /long: some megabytes. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    static char text[8 << 20];
    struct fixture *f = user;
    atomic_fetch_add(&f->requests, 1);
    hearth_http_on_gone(exchange, on_gone, f);
    if (strcmp(hearth_http_path(exchange), "/long") == 0) {
        hearth_http_respond(exchange, 200, "text/plain", text, sizeof text);
    } else if (strcmp(hearth_http_path(exchange), "/hold") != 0) {
        hearth_http_respond(exchange, 200, "text/plain", "here", 4);
    }
}

static void on_tick(void *user) {
    struct fixture *f = user;
    atomic_fetch_add(&f->ticks, 1);
}

static void run_ask_stats(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, ask_stats));
    hearth_http_stats(f->server, &f->stats);
    atomic_fetch_add(&f->asked, 1);
}

static const struct hearth_http_stats *stats(struct fixture *f) {
    const int before = atomic_load(&f->asked);
    hearth_http_post(f->server, &f->ask_stats);
    assert_true(reaches(&f->asked, before + 1));
    return &f->stats;
}

/* Writes a certificate, signed by itself, and its key into a file. */
static void make_certificate(char path[32]) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    assert_true(key != NULL && certificate != NULL);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(certificate), 0));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600));
    assert_int_equal(X509_set_pubkey(certificate, key), 1);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    strcpy(path, "/tmp/hearth-times-XXXXXX");
    FILE *out = fdopen(mkstemp(path), "w");
    assert_non_null(out);
    assert_int_equal(PEM_write_X509(out, certificate), 1);
    assert_int_equal(PEM_write_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(out);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static int start(void **state, bool tls) {
    struct fixture *f = calloc(1, sizeof *f);
    struct hearth_http_params params;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error, .tick = on_tick, .user = f};
    hearth_http_params_default(&params);
    params.port = 0;
    params.connections = 4;
    if (tls) {
        make_certificate(f->pem);
        params.tls_cert_path = params.tls_key_path = f->pem;
    }
    f->ask_stats.run = run_ask_stats;
    hearth_log_set(note_line, f, HEARTH_LOG_INFO);
    f->port = start_http(&params, &handler, &f->server);
    *state = f;
    return 0;
}

static int setup(void **state) {
    return start(state, false);
}

static int setup_tls(void **state) {
    return start(state, true);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    hearth_http_destroy(f->server);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    if (f->pem[0] != '\0') {
        assert_int_equal(unlink(f->pem), 0);
    }
    free(f);
    return 0;
}

static void open_and_send(struct client *client, const struct fixture *f, const char *text) {
    assert_true(client_open(client, f->port));
    assert_true(client_text(client, text));
}

/* Moves the clock. Whether the only connection is there after the server has looked at it. */
static bool is_there_after(struct fixture *f, int64_t us) {
    clock_advance_us(us);
    const int before = atomic_load(&timers);
    while (atomic_load(&timers) < before + 2 && stats(f)->connections > 0) {
        usleep(500);
    }
    return stats(f)->connections > 0;
}

/* A client that is refused in the middle of its body reads why. Then it has a few seconds to close its side, more while
 * it still sends, but not for ever. */
static void a_refused_client_has_time_to_read_why(void **state) {
    struct fixture *f = *state;
    struct client client;
    for (int sends = 0; sends < 2; sends++) {
        open_and_send(&client, f, "POST /x" HEAD "Transfer-Encoding: chunked\r\n\r\nno size\r\n");
        assert_true(client_wait_for(&client, "HTTP/1.1 400"));
        while (stats(f)->connections_closing == 0) {
            usleep(500);
        }
        for (int i = 0; i < 8 && sends; i++) { /* until 16 s */
            const uint64_t before = stats(f)->read_bytes;
            assert_true(is_there_after(f, 2 * SECOND_US));
            assert_true(client_text(&client, "more"));
            while (stats(f)->read_bytes == before) {
                usleep(500);
            }
        }
        assert_true(is_there_after(f, 2 * SECOND_US));
        for (int i = 0; i < 8 && sends && client_text(&client, "more"); i++) {
            (void)is_there_after(f, 4 * SECOND_US); /* until 50 s */
        }
        assert_false(is_there_after(f, sends ? 0 : 10 * SECOND_US));
        client_close(&client);
    }
}

/* A client that has closed its side is asked whether it is there, at once and every few seconds. Whether an answer has
 * come is looked at soon, and then less and less often, but every second. */
static void a_half_closed_client_is_asked(void **state) {
    static const char question[] = "HTTP/1.1 100";
    struct fixture *f = *state;
    struct client client;
    struct response response;
    open_and_send(&client, f, "GET /hold" HEAD "\r\n");
    assert_true(reaches(&f->requests, 1));
    assert_true(is_there_after(f, 0));
    shutdown(client.fd, SHUT_WR);
    assert_true(client_wait_for(&client, question));
    assert_true(client_response(&client, false, &response));
    response_finish(&response);
    assert_true(is_there_after(f, 0));
    int64_t first_us = INT64_MAX;
    for (int i = 0; i < 64; i++) {
        const int64_t wait_us = atomic_load(&waits[i]);
        first_us = wait_us > 0 && wait_us < first_us ? wait_us : first_us;
    }
    assert_in_range(first_us, 5 * MS_US, 20 * MS_US);
    assert_true(is_there_after(f, 3 * SECOND_US));
    assert_true(is_there_after(f, 0)); /* the waits from here on are of that time */
    assert_true(is_there_after(f, 0));
    const int before_last = atomic_load(&timers) - 2; /* of the last one the length may not be noted yet */
    assert_in_range(atomic_load(&waits[before_last % 64]), SECOND_US / 2, SECOND_US);
    assert_int_equal(recv(client.fd, &(char){0}, 1, MSG_DONTWAIT), -1); /* not asked again yet */
    assert_true(is_there_after(f, 7 * SECOND_US));
    assert_true(client_wait_for(&client, question));
    client_close(&client);
    clock_advance_us(10 * SECOND_US);
    assert_true(reaches(&f->gone, 1));
}

/* Over TLS, too, the server sees that a slow reader takes a long answer piece by piece. */
static void a_slow_reader_of_a_long_answer_gets_it(void **state) {
    static const char request[] = "GET /long" HEAD "\r\n";
    static char piece[1 << 20];
    struct fixture *f = *state;
    struct client client;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    assert_true(client_open(&client, f->port));
    assert_int_equal(SSL_set_fd(ssl, client.fd), 1);
    assert_int_equal(SSL_connect(ssl), 1);
    assert_int_equal(SSL_write(ssl, request, sizeof request - 1), sizeof request - 1);
    assert_true(reaches(&f->requests, 1));
    for (int i = 0; i < 2; i++) {
        assert_true(is_there_after(f, 70 * SECOND_US));
        for (int n, left = sizeof piece; left > 0; left -= n) {
            n = SSL_read(ssl, piece, left);
            assert_true(n > 0);
        }
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    client_close(&client);
    assert_int_equal(stats(f)->stalled, 0);
}

/* Clients that have just come are left alone; those that send nothing for a while make place. */
static void a_new_client_is_left_alone_for_a_moment(void **state) {
    struct fixture *f = *state;
    struct client quiet[4], late;
    for (int i = 0; i < 4; i++) {
        assert_true(client_open(&quiet[i], f->port));
    }
    while (stats(f)->connections_idle < 4) {
        usleep(500);
    }
    clock_advance_us(SECOND_US / 2);
    open_and_send(&late, f, "GET /late" HEAD "Connection: close\r\n\r\n");
    expect_answer(&late, 503, NULL);
    client_close(&late);
    while (stats(f)->connections > 4) {
        usleep(500);
    }
    clock_advance_us(3 * SECOND_US / 2);
    open_and_send(&late, f, "GET /late" HEAD "Connection: close\r\n\r\n");
    expect_answer(&late, 200, "here");
    client_close(&late);
    assert_int_equal(stats(f)->evicted, 1);
    for (int i = 0; i < 4; i++) {
        client_close(&quiet[i]);
    }
}

/* Each error is counted. Of many at once the first ones are written, and seconds later how many were not. */
static void a_burst_of_errors_is_a_few_lines(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 100; i++) {
        struct client client;
        open_and_send(&client, f, "GET /x" HEAD "B d: x\r\n\r\n");
        expect_answer(&client, 400, NULL);
        client_close(&client);
        while (stats(f)->connections > 0) {
            usleep(500);
        }
    }
    assert_int_equal(stats(f)->malformed, 100);
    assert_in_range(atomic_load(&f->lines), 10, 40);
    clock_advance_us(5 * SECOND_US);
    for (const int before = atomic_load(&f->ticks); atomic_load(&f->ticks) < before + 2;) {
        usleep(500);
    }
    assert_int_equal(atomic_load(&f->tells), 0);
    clock_advance_us(15 * SECOND_US);
    assert_true(reaches(&f->tells, 1));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_refused_client_has_time_to_read_why),
        TEST(a_half_closed_client_is_asked),
        cmocka_unit_test_setup_teardown(a_slow_reader_of_a_long_answer_gets_it, setup_tls, teardown),
        TEST(a_new_client_is_left_alone_for_a_moment),
        TEST(a_burst_of_errors_is_a_few_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
