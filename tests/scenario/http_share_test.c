/* What connections share: places, of all and of one address, and memory for answers that wait to be read; with TLS, the
 * end of a handshake that does not come. And a few hundred clients of every kind at once: each short request among them
 * is answered, and memory stays within its bounds. */
#include "base/log.h"
#include "support/http_stage.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct fixture {
    struct hearth_http_server *server;
    struct hearth_http_params params;
    uint16_t port;
    atomic_int requests, gone, asked;
    struct hearth_http_stats stats;
    struct hearth_http_work ask_stats;
};

#define LARGE_BYTES (512 * 1024)
static char large[LARGE_BYTES];

static void on_gone(void *user) {
    struct fixture *f = user;
    atomic_fetch_add(&f->gone, 1);
}

/* /hold: no answer. /large: LARGE_BYTES, more than the kernel keeps for a client that asks twice and does not read.
 * Else the number of the body's bytes. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct fixture *f = user;
    struct hearth_buf body = {0}, out = {0};
    atomic_fetch_add(&f->requests, 1);
    if (strcmp(hearth_http_path(exchange), "/hold") == 0) {
        hearth_http_on_gone(exchange, on_gone, f);
        return;
    }
    if (strcmp(hearth_http_path(exchange), "/large") == 0) {
        hearth_http_respond(exchange, 200, "text/plain", large, sizeof large);
        return;
    }
    hearth_http_take_body(exchange, &body);
    hearth_buf_printf(&out, "%zu", body.len);
    hearth_http_body_freed(f->server, body.len);
    hearth_http_respond(exchange, 200, "text/plain", out.data, out.len);
    hearth_buf_finish(&body);
    hearth_buf_finish(&out);
}

static void run_ask_stats(struct hearth_http_work *work) {
    struct fixture *f = (struct fixture *)(void *)((char *)work - offsetof(struct fixture, ask_stats));
    hearth_http_stats(f->server, &f->stats);
    atomic_fetch_add(&f->asked, 1);
}

static void no_log(void *user, enum hearth_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    hearth_http_params_default(&f->params);
    f->params.port = 0;
    f->params.connections = 8;
    f->ask_stats.run = run_ask_stats;
    hearth_log_set(no_log, NULL, HEARTH_LOG_INFO);
    *state = f;
    return 0;
}

static void start(struct fixture *f) {
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error, .user = f};
    f->port = start_http(&f->params, &handler, &f->server);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    hearth_http_destroy(f->server);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    free(f);
    return 0;
}

static const struct hearth_http_stats *stats(struct fixture *f) {
    const int before = atomic_load(&f->asked);
    hearth_http_post(f->server, &f->ask_stats);
    assert_true(reaches(&f->asked, before + 1));
    return &f->stats;
}

static bool stats_reach(struct fixture *f, size_t offset, uint64_t value) {
    for (int i = 0; i < 4000; i++) {
        stats(f);
        if (*(const uint64_t *)(const void *)((const char *)&f->stats + offset) >= value) {
            return true;
        }
        usleep(5000);
    }
    return false;
}

#define REACHES(f, field, value) stats_reach(f, offsetof(struct hearth_http_stats, field), value)

static void open_and_send(struct fixture *f, struct client *client, const char *text) {
    assert_true(client_open(client, f->port));
    assert_true(client_text(client, text));
}

#define HEAD " HTTP/1.1\r\nHost: localhost\r\n"
#define LAST "GET /" HEAD "Connection: close\r\n\r\n"

/* Every place is taken by a body that does not end. A new client gets one, and who sends faster keeps his. */
static void slow_bodies_make_place(void **state) {
    struct fixture *f = *state;
    static char block[65536];
    struct client slow[7], fast, late;
    start(f);
    for (int i = 0; i < 7; i++) {
        open_and_send(f, &slow[i], "POST /slow" HEAD "Content-Length: 1000000\r\n\r\nabc");
    }
    open_and_send(f, &fast, "POST /fast" HEAD "Content-Length: 131072\r\n\r\n");
    assert_true(client_send(&fast, block, sizeof block));
    assert_true(REACHES(f, connections_reading, 8));
    usleep(1300 * 1000); /* they are left alone for the first second */
    for (int i = 0; i < 7; i++) {
        open_and_send(f, &late, LAST);
        expect_answer(&late, 200, "0");
        client_close(&late);
    }
    assert_true(client_send(&fast, block, sizeof block));
    expect_answer(&fast, 200, "131072");
    assert_true(stats(f)->evicted >= 1);
    assert_int_equal(stats(f)->refused, 0);
    client_close(&fast);
    for (int i = 0; i < 7; i++) {
        client_close(&slow[i]);
    }
}

/* Likewise by answers that nobody takes: more than the kernel keeps of them. */
static void unread_ends_make_place(void **state) {
    struct fixture *f = *state;
    struct client unread[8], late;
    start(f);
    for (int i = 0; i < 8; i++) {
        assert_true(client_open(&unread[i], f->port));
        for (int k = 0; k < 20; k++) {
            assert_true(client_text(&unread[i], "GET /large" HEAD "\r\n"));
        }
    }
    assert_true(REACHES(f, connections, 8) && REACHES(f, unread_bytes, 8 * 65536));
    usleep(1300 * 1000);
    open_and_send(f, &late, LAST);
    expect_answer(&late, 200, "0");
    assert_int_equal(stats(f)->refused, 0);
    client_close(&late);
    for (int i = 0; i < 8; i++) {
        client_close(&unread[i]);
    }
}

/* An address that has all it may have waits for none but itself. */
static void addresses_have_a_share(void **state) {
    struct fixture *f = *state;
    struct client busy[3], more;
    f->params.connections_per_address = 3;
    start(f);
    for (int i = 0; i < 3; i++) {
        open_and_send(f, &busy[i], "GET /hold" HEAD "\r\n");
    }
    assert_true(reaches(&f->requests, 3));
    open_and_send(f, &more, LAST);
    expect_answer(&more, 503, "503 /: as many connections of this address are open as may be");
    client_close(&more);
    client_close(&busy[0]);
    assert_true(reaches(&f->gone, 1));
    open_and_send(f, &more, LAST);
    expect_answer(&more, 200, "0");
    client_close(&more);
    /* Those that are to be refused are bounded, too: beyond 16 that say nothing they are closed without a word. */
    struct client silent[40];
    for (int i = 0; i < 40; i++) {
        assert_true(client_open(&silent[i], f->port));
    }
    assert_true(REACHES(f, accepted, 3 + 2 + 40));
    assert_true(stats(f)->connections <= 3 + 16);
    assert_true(stats(f)->refused >= 40 - 16 - 1);
    for (int i = 0; i < 40; i++) {
        client_close(&silent[i]);
    }
    client_close(&busy[1]);
    client_close(&busy[2]);
}

/* Answers that nobody reads stay within their budget; those that are read are not touched. */
static void unread_answers_are_bounded(void **state) {
    struct fixture *f = *state;
    struct client unread[30], reads;
    f->params.connections = 64;
    f->params.unread_bytes = 4 * LARGE_BYTES;
    start(f);
    for (int i = 0; i < 30; i++) {
        assert_true(client_open(&unread[i], f->port));
        for (int k = 0; k < 20; k++) {
            (void)client_text(&unread[i], "GET /large" HEAD "\r\n");
        }
        /* an answer may be over the budget, until the next is written */
        assert_true(stats(f)->unread_bytes <= f->params.unread_bytes + LARGE_BYTES + 1024);
    }
    assert_true(REACHES(f, stalled, 10));
    assert_true(stats(f)->unread_bytes <= f->params.unread_bytes + LARGE_BYTES + 1024);
    for (int i = 0; i < 3; i++) {
        struct response response;
        open_and_send(f, &reads, LAST);
        expect_answer(&reads, 200, "0");
        client_close(&reads);
        response = http_call(f->port, "GET", "/large", NULL, NULL);
        assert_int_equal(response.body.len, LARGE_BYTES);
        response_finish(&response);
    }
    for (int i = 0; i < 30; i++) {
        client_close(&unread[i]);
    }
    for (int i = 0; i < 2000 && stats(f)->connections > 0; i++) {
        usleep(5000);
    }
    assert_int_equal(stats(f)->connections, 0);
    assert_int_equal(stats(f)->unread_bytes, 0);
}

/* ---- TLS ---- */

static void write_certificate(const char *cert_path, const char *key_path) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    FILE *cert_file = fopen(cert_path, "w"), *key_file = fopen(key_path, "w");
    assert_true(key != NULL && cert != NULL && cert_file != NULL && key_file != NULL);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_true(PEM_write_X509(cert_file, cert) == 1);
    assert_true(PEM_write_PrivateKey(key_file, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(cert_file);
    fclose(key_file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

/* Silence, half a handshake, and plain HTTP where TLS is spoken: each is cut off, and counted. */
static void handshakes_end(void **state) {
    static const char *const texts[] = {"", "\x16\x03\x01\x02", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"};
    struct fixture *f = *state;
    char dir[] = "/tmp/hearth-share-XXXXXX", cert[64], key[64];
    assert_non_null(mkdtemp(dir));
    snprintf(cert, sizeof cert, "%s/cert", dir);
    snprintf(key, sizeof key, "%s/key", dir);
    write_certificate(cert, key);
    f->params.tls_cert_path = cert;
    f->params.tls_key_path = key;
    f->params.head_us = 200000;
    f->params.idle_us = 3600 * 1000000ll;
    start(f);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct client client;
        char byte;
        open_and_send(f, &client, texts[i]);
        struct pollfd at = {.fd = client.fd, .events = POLLIN};
        assert_int_equal(poll(&at, 1, CLIENT_WAIT_MS), 1);
        while (recv(client.fd, &byte, 1, 0) > 0) { /* an alert, at most */
            assert_true(byte != 'H');
        }
        client_close(&client);
    }
    assert_int_equal(stats(f)->timeouts, 2);
    assert_int_equal(stats(f)->malformed, 1);
    assert_int_equal(stats(f)->requests, 0);
    unlink(cert);
    unlink(key);
    rmdir(dir);
}

/* ---- many of every kind ---- */

enum { IDLE, SLOW_HEAD, SLOW_BODY, HALF_CLOSED, RESET, PIPELINES, NEVER_READS, KINDS };
enum { EACH = 60 };

static void misbehave(struct fixture *f, struct client *client, int kind) {
    const struct linger reset = {.l_onoff = 1};
    if (!client_open(client, f->port)) {
        return;
    }
    switch (kind) {
    case SLOW_HEAD: (void)client_text(client, "POST /x HTTP/1.1\r\nHost: localhost\r\nA: "); break;
    case SLOW_BODY: (void)client_text(client, "POST /x" HEAD "Content-Length: 1000000\r\n\r\nabc"); break;
    case HALF_CLOSED:
        (void)client_text(client, "GET /hold" HEAD "\r\n");
        shutdown(client->fd, SHUT_WR);
        break;
    case RESET:
        (void)client_text(client, "GET /hold" HEAD "\r\n");
        setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        client_close(client);
        break;
    case PIPELINES:
        for (int i = 0; i < 100; i++) {
            (void)client_text(client, "GET /p" HEAD "\r\n");
        }
        break;
    case NEVER_READS:
        for (int i = 0; i < 20; i++) {
            (void)client_text(client, "GET /large" HEAD "\r\n");
        }
        break;
    default: break;
    }
}

static void a_crowd_keeps_nobody_out(void **state) {
    struct fixture *f = *state;
    static struct client crowd[KINDS * EACH];
    f->params.connections = KINDS * EACH / 2; /* half of them are too many */
    f->params.unread_bytes = 8 * LARGE_BYTES;
    start(f);
    for (int i = 0; i < KINDS * EACH; i++) {
        misbehave(f, &crowd[i], i % KINDS);
        if (i == KINDS * EACH / 2) {
            usleep(1300 * 1000); /* those that are there are slow by now */
        }
        if (i % 10 == 0) {
            /* As a client does that is told to come again. */
            struct response response = {0};
            for (int k = 0; k < 100 && response.status != 200; k++) {
                response_finish(&response);
                response = http_call(f->port, "GET", "/", NULL, NULL);
                usleep(response.status == 200 ? 0 : 50000);
            }
            assert_int_equal(response.status, 200);
            response_finish(&response);
            assert_true(stats(f)->unread_bytes <= f->params.unread_bytes + LARGE_BYTES + 1024);
            assert_true(stats(f)->connections <= f->params.connections + 64);
        }
    }
    for (int i = 0; i < KINDS * EACH; i++) {
        client_close(&crowd[i]);
    }
    for (int i = 0; i < 4000 && stats(f)->connections > 0; i++) {
        usleep(5000);
    }
    assert_int_equal(stats(f)->connections, 0);
    assert_int_equal(stats(f)->unread_bytes, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(slow_bodies_make_place),     TEST(unread_ends_make_place), TEST(addresses_have_a_share),
        TEST(unread_answers_are_bounded), TEST(handshakes_end),         TEST(a_crowd_keeps_nobody_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
