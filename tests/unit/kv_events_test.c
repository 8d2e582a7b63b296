/* KV events: what the replay socket answers. The messages themselves are read by tests/client/test_kv_events.py. */
#include "publish/kv_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

enum { PAGE = 256, STORED = 2000 };

static void wait_published(struct hearth_kv_events *events, uint64_t messages) {
    struct hearth_kv_events_stats stats;
    for (hearth_kv_events_stats(events, &stats); stats.published < messages; hearth_kv_events_stats(events, &stats)) {
        usleep(50);
    }
}

/* A peer that asks for everything from message 0 on and holds one message in memory. */
static void *ask(void *context, const char *endpoint) {
    const int one = 1, patience_ms = 10000, none = 0;
    void *peer = zmq_socket(context, ZMQ_DEALER);
    assert_non_null(peer);
    assert_int_equal(zmq_setsockopt(peer, ZMQ_RCVHWM, &one, sizeof one), 0);
    assert_int_equal(zmq_setsockopt(peer, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms), 0);
    assert_int_equal(zmq_setsockopt(peer, ZMQ_LINGER, &none, sizeof none), 0);
    assert_int_equal(zmq_connect(peer, endpoint), 0);
    assert_int_equal(zmq_send(peer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(peer, "\0\0\0\0\0\0\0", 8, 0), 8);
    return peer;
}

/* The number of the next answer. */
static uint64_t next_number(void *peer) {
    unsigned char bytes[8];
    char part[1];
    uint64_t number = 0;
    assert_int_equal(zmq_recv(peer, part, sizeof part, 0), 0);
    assert_int_equal(zmq_recv(peer, bytes, sizeof bytes, 0), 8);
    assert_true(zmq_recv(peer, part, sizeof part, 0) >= 0);
    for (int i = 0; i < 8; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/* A peer that reads nothing before all answers were given gets all of them, and the end. */
static void a_slow_peer_gets_all(void **state) {
    char dir[] = "/tmp/hearth-kv-events-XXXXXX", publish[64], replay[64];
    hearth_token tokens[PAGE];
    struct hearth_kv_events *events = NULL;
    struct hearth_errmsg msg = {""};
    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(publish, sizeof publish, "ipc://%s/publish", dir);
    (void)snprintf(replay, sizeof replay, "ipc://%s/replay", dir);
    const struct hearth_kv_events_params params = {
        .endpoint = publish, .replay = replay, .topic = "", .page_tokens = PAGE};
    assert_int_equal(hearth_kv_events_create(&params, &events, &msg), HEARTH_OK);
    const struct hearth_cache_observer *observer = hearth_kv_events_observer(events);
    for (int i = 0; i < PAGE; i++) {
        tokens[i] = 1000000 + i;
    }
    wait_published(events, 1); /* that all blocks are cleared */
    for (uint64_t i = 1; i <= STORED; i++) {
        observer->stored(observer->user, (struct hearth_digest){.lo = i}, (struct hearth_digest){0}, true, tokens);
        wait_published(events, i + 1); /* each is a message */
    }
    void *context = zmq_ctx_new();
    void *peer = ask(context, replay);
    assert_int_equal(zmq_poll(&(zmq_pollitem_t){.socket = peer, .events = ZMQ_POLLIN}, 1, 10000), 1);
    observer->removed(observer->user, (struct hearth_digest){.lo = 1});
    wait_published(events, STORED + 2); /* behind the answers, of which the first has come */
    for (uint64_t number = 0; number <= STORED; number++) {
        assert_int_equal(next_number(peer), number);
    }
    assert_true(next_number(peer) == UINT64_MAX);
    (void)zmq_close(peer);
    (void)zmq_ctx_term(context);
    hearth_kv_events_destroy(events);
    (void)rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slow_peer_gets_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
