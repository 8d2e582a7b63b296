/* Replays of several boxes (src/replay): lines are never fuller than they are, a fleet that shares a store of any size
 * computes what one endless cache would, routers do what they are named after, and what is lost costs computation,
 * never a request. */
#include "replay/fleet.h"
#include "support/random.h"

#include "base/assert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TALKS = 24, TURNS = 12, SECOND_US = 1000000 };

/* ---- the line ---- */

static void transfers_share_a_line(void **state) {
    (void)state;
    struct hearth_wire wire;
    assert_true(hearth_wire_init(&wire, 100));
    const int64_t first_us = hearth_wire_send(&wire, 0, 50 * 1000000, 50);
    const int64_t second_us = hearth_wire_send(&wire, 0, 50 * 1000000, 50);
    assert_in_range(first_us, 999000, 1001000);
    assert_in_range(second_us, 999000, 1001000);
    assert_in_range(hearth_wire_send(&wire, 0, 100 * 1000000, 1000), 1999000, 2001000); /* there is no room before */
    assert_in_range(hearth_wire_send(&wire, 3000000, 100 * 10, 100), 3000000, 3000020);
    struct rng rng = {3};
    double bytes = 0;
    for (int i = 0; i < 2000; i++) {
        const size_t part = rng_below(&rng, 5000000);
        const int64_t start_us = (int64_t)rng_below(&rng, 60) * SECOND_US;
        const int64_t end_us = hearth_wire_send(&wire, start_us, part, 1 + rng_below(&rng, 200));
        assert_true(end_us > start_us && (double)(end_us - start_us) * 100 + 1000 >= (double)part);
        bytes += (double)part;
    }
    double counted = 0;
    for (size_t i = 0; i < wire.minute_count; i++) {
        assert_true(wire.minutes[i] <= 100.0 * HEARTH_WIRE_MINUTE_US);
        counted += wire.minutes[i];
    }
    assert_true(counted > bytes && counted < bytes + 300 * 1000000.0);
    hearth_wire_finish(&wire);
}

/* ---- fleets ---- */

/* Conversations that grow behind one head, turn by turn. */
static void make_trace(struct hearth_trace *trace) {
    *trace = (struct hearth_trace){.talks = TALKS};
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t talk = 0; talk < TALKS; talk++) {
            const int64_t at_us = ((int64_t)turn * TALKS + talk) * 2 * SECOND_US;
            struct hearth_trace_request *request = hearth_trace_add(trace, at_us, 1000 + talk, 0, 8 + 8 * turn);
            assert_non_null(request);
            request->talk = talk + 1;
            request->lasted_us = SECOND_US;
            request->calls = true;
        }
    }
}

static struct hearth_fleet_params fleet_of(uint32_t boxes, enum hearth_router_kind router, bool has_store) {
    return (struct hearth_fleet_params){.machine = {.token_bytes = 65536,
                                                    .ram_bytes = UINT64_C(1) << 40,
                                                    .prefill_tokens_per_s = 1000,
                                                    .import_bytes_per_s = 1e10,
                                                    .policy = &hearth_policy_returns},
                                        .boxes = boxes,
                                        .router = router,
                                        .has_store = has_store,
                                        .store = {.store_bytes_per_s = 1e10,
                                                  .network_bytes_per_s = 1e10,
                                                  .latency_us = 100,
                                                  .bytes = UINT64_C(1) << 50,
                                                  .queue_bytes = UINT64_C(1) << 40},
                                        .after_us = -1};
}

static struct hearth_fleet_result run(const struct hearth_trace *trace, const struct hearth_fleet_params *params) {
    struct hearth_fleet_result result;
    struct hearth_errmsg msg = {""};
    if (hearth_fleet_run(trace, params, &result, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    assert_int_equal(result.all.requests, trace->count);
    return result;
}

static uint64_t new_tokens_of(const struct hearth_trace *trace) {
    struct hearth_oracle oracle;
    assert_int_equal(hearth_oracle_make(trace, &oracle, NULL), HEARTH_OK);
    const uint64_t tokens = oracle.new_tokens;
    hearth_oracle_finish(&oracle);
    return tokens;
}

static void a_store_makes_one_cache_of_many(void **state) {
    (void)state;
    struct hearth_trace trace;
    make_trace(&trace);
    const uint64_t fresh = new_tokens_of(&trace);
    for (int router = 0; router < HEARTH_ROUTERS; router++) {
        struct hearth_fleet_params params = fleet_of(5, (enum hearth_router_kind)router, true);
        const struct hearth_fleet_result shared = run(&trace, &params), again = run(&trace, &params);
        assert_int_equal(shared.computed_tokens, fresh);
        assert_memory_equal(&shared.store, &again.store, sizeof again.store);
        params.has_store = false;
        const struct hearth_fleet_result alone = run(&trace, &params);
        const bool stays = router == HEARTH_ROUTER_AFFINITY || router == HEARTH_ROUTER_PREFIX;
        assert_true(stays ? alone.computed_tokens == fresh : alone.computed_tokens > 2 * fresh);
        assert_true(stays ? shared.store.read_bytes == 0 : shared.store.read_bytes > shared.store.written_bytes);
        params = fleet_of(1, (enum hearth_router_kind)router, false);
        assert_int_equal(run(&trace, &params).computed_tokens, fresh);
    }
    hearth_trace_finish(&trace);
}

/* A store that is too slow is not waited for: computing is faster, and no request takes much longer than without. */
static void a_slow_store_is_left_alone(void **state) {
    (void)state;
    struct hearth_trace trace;
    make_trace(&trace);
    struct hearth_fleet_params params = fleet_of(4, HEARTH_ROUTER_RANDOM, true);
    params.store.store_bytes_per_s = 2e6; /* 30 tokens a second; the box computes 1000 */
    const struct hearth_fleet_result slow = run(&trace, &params);
    params.has_store = false;
    const struct hearth_fleet_result none = run(&trace, &params);
    assert_true(slow.computed_tokens > none.computed_tokens / 2);
    assert_true(slow.all.p50_s < 2 * none.all.p50_s + 1);
    hearth_trace_finish(&trace);
}

/* A store that many boxes have choked is read again when there is room. */
static void a_store_that_was_slow_is_tried_again(void **state) {
    (void)state;
    struct hearth_trace trace = {.talks = TALKS};
    for (uint32_t turn = 0; turn < 40; turn++) {
        for (uint32_t talk = 0; talk < TALKS; talk++) {
            const int64_t at_us = (int64_t)turn * 120 * SECOND_US + (turn > 5) * (int64_t)talk * 5 * SECOND_US;
            struct hearth_trace_request *request = hearth_trace_add(&trace, at_us, 1000 + talk, 0, 64 + turn);
            assert_non_null(request);
            request->talk = talk + 1;
        }
    }
    hearth_trace_sort(&trace);
    struct hearth_fleet_params params = fleet_of(4, HEARTH_ROUTER_RANDOM, true);
    params.store.store_bytes_per_s = 2e8; /* 3000 tokens a second, of which a box in use has all or a twentieth */
    params.store.network_bytes_per_s = 2e8;
    const struct hearth_fleet_result result = run(&trace, &params);
    assert_true(result.computed_tokens < new_tokens_of(&trace) * 2);
    hearth_trace_finish(&trace);
}

/* A long prompt whose end was computed elsewhere takes longer to import from RAM than its end takes to be read: that
 * does not make the store look slow to the prompt that needs all of it. */
static void what_ram_takes_is_not_the_stores(void **state) {
    (void)state;
    struct hearth_trace trace = {.talks = 2};
    for (uint32_t turn = 0; turn < 18; turn++) {
        const bool other = turn >= 16;
        struct hearth_trace_request *request =
            hearth_trace_add(&trace, (int64_t)turn * 200 * SECOND_US, 1000 + other, 0, 2000 + 8 * turn);
        assert_non_null(request);
        request->talk = 1 + other;
        request->lasted_us = SECOND_US;
    }
    struct hearth_fleet_params params = fleet_of(2, HEARTH_ROUTER_LEAST_LOADED, true);
    params.store.network_bytes_per_s = 1e9;
    const struct hearth_fleet_result result = run(&trace, &params);
    assert_int_equal(result.computed_tokens, new_tokens_of(&trace));
    hearth_trace_finish(&trace);
}

/* Prompts that come to a box at once are read one after the other: that the second one waits for the first does not
 * make the store look slow. */
static void what_waits_for_another_is_not_the_stores(void **state) {
    (void)state;
    struct hearth_trace trace = {.talks = TALKS};
    for (uint32_t turn = 0; turn < 6; turn++) {
        for (uint32_t talk = 0; talk < TALKS; talk++) {
            const int64_t at_us = turn * 4000 * (int64_t)SECOND_US + (turn == 0) * talk * 100 * (int64_t)SECOND_US;
            struct hearth_trace_request *request =
                hearth_trace_add(&trace, at_us, 1000 + talk, 0, 400 + 8 * (turn + (talk + turn) % TALKS));
            assert_non_null(request);
            request->talk = talk + 1;
        }
    }
    hearth_trace_sort(&trace);
    struct hearth_fleet_params params = fleet_of(2, HEARTH_ROUTER_RANDOM, true);
    params.store.store_bytes_per_s = params.store.network_bytes_per_s = 2e8; /* three times as fast as computing */
    const struct hearth_fleet_result result = run(&trace, &params);
    assert_true(result.computed_tokens < new_tokens_of(&trace) * 11 / 10);
    hearth_trace_finish(&trace);
}

static void what_is_lost_costs_no_request(void **state) {
    (void)state;
    struct hearth_trace trace;
    make_trace(&trace);
    const uint64_t fresh = new_tokens_of(&trace);
    const int64_t half_us = trace.requests[trace.count / 2].at_us + SECOND_US / 2;
    struct hearth_fleet_params params = fleet_of(3, HEARTH_ROUTER_AFFINITY, true);
    params.after_us = half_us;
    params.losses[0] = (struct hearth_fleet_loss){.box = 1, .at_us = half_us, .lasts_us = 60 * SECOND_US};
    params.loss_count = 1;
    const struct hearth_fleet_result one = run(&trace, &params);
    assert_true(one.computed_tokens >= fresh && one.computed_tokens < fresh + fresh / 20);
    assert_true(one.store.read_bytes > 0 && one.after.requests > 0);
    params.has_store = false;
    assert_true(run(&trace, &params).computed_tokens > fresh + fresh / 20);

    params = fleet_of(3, HEARTH_ROUTER_RANDOM, true);
    params.losses[0] =
        (struct hearth_fleet_loss){.box = HEARTH_FLEET_STORE, .at_us = half_us, .lasts_us = 60 * SECOND_US};
    params.loss_count = 1;
    const struct hearth_fleet_result bare = run(&trace, &params);
    assert_true(bare.computed_tokens > fresh);
    params.loss_count = 0;
    assert_int_equal(run(&trace, &params).computed_tokens, fresh);

    struct hearth_fleet_result result;
    struct hearth_errmsg msg = {""};
    params = fleet_of(1, HEARTH_ROUTER_RANDOM, false);
    params.losses[0] = (struct hearth_fleet_loss){.box = 0, .at_us = half_us};
    params.loss_count = 1;
    assert_int_equal(hearth_fleet_run(&trace, &params, &result, &msg), HEARTH_ERR_INVALID);
    hearth_trace_finish(&trace);
}

/* A store that holds a tenth keeps what was read or written last; nothing is taken for there that is not. */
static void a_small_store_forgets(void **state) {
    (void)state;
    struct hearth_trace trace;
    make_trace(&trace);
    struct hearth_fleet_params params = fleet_of(4, HEARTH_ROUTER_RANDOM, true);
    const uint64_t fresh = new_tokens_of(&trace);
    params.store.bytes = fresh * params.machine.token_bytes / 10;
    const struct hearth_fleet_result small = run(&trace, &params);
    assert_true(small.store.evicted > 0 && small.computed_tokens > fresh);
    params.has_store = false;
    assert_true(small.computed_tokens < run(&trace, &params).computed_tokens);
    hearth_trace_finish(&trace);
}

/* ---- what a box knows ---- */

enum { STORED = 64, PAGE = 4 };

/* The page of a conversation: all of them hang on one base. */
static struct hearth_record record_of(uint32_t talk, hearth_token tokens[PAGE]) {
    for (int i = 0; i < PAGE; i++) {
        tokens[i] = (hearth_token)(talk * PAGE) + i;
    }
    struct hearth_record record = {
        .kind = HEARTH_RECORD_PAGE, .base = {1, 2}, .p1 = PAGE, .tokens = tokens, .state_bytes = 1000};
    record.name = hearth_record_name(&record);
    return record;
}

/* Takes all events of a tier up to an hour ahead. Returns how many there were of a kind. */
static size_t take_events(struct hearth_backing *tier, int64_t *now_us, enum hearth_backing_event_type type) {
    struct hearth_backing_event event;
    size_t n = 0;
    *now_us += 3600 * (int64_t)SECOND_US;
    while (tier->ops->poll(tier, &event)) {
        n += event.type == type;
        hearth_backing_event_finish(&event);
    }
    return n;
}

static size_t found(struct hearth_backing *tier, int64_t *now_us, uint32_t talk) {
    hearth_token tokens[PAGE];
    const struct hearth_record record = record_of(talk, tokens);
    const struct hearth_backing_place place = {.base = record.base, .tokens = tokens, .n = PAGE};
    assert_true(tier->ops->seek(tier, &place, 1) > 0);
    return take_events(tier, now_us, HEARTH_BACKING_FOUND);
}

/* Of a block that many conversations go on from, a box is told what its prompt can use; and of what it knows it forgets
 * what it has not used for longest, and finds it again. */
static void a_box_knows_what_it_needs(void **state) {
    (void)state;
    const struct hearth_sim_store_params params = {.store_bytes_per_s = 1e9,
                                                   .network_bytes_per_s = 1e9,
                                                   .latency_us = 100,
                                                   .bytes = UINT64_C(1) << 40,
                                                   .queue_bytes = UINT64_C(1) << 40,
                                                   .known = STORED / 2};
    struct hearth_sim_store *store = hearth_sim_store_create(&params, 2);
    assert_non_null(store);
    int64_t now_us[2] = {0, 0};
    struct hearth_backing *const tiers[] = {hearth_sim_store_tier(store, 0, &now_us[0]),
                                            hearth_sim_store_tier(store, 1, &now_us[1])};
    hearth_token tokens[PAGE];
    for (uint32_t talk = 0; talk < STORED; talk++) {
        const struct hearth_record record = record_of(talk, tokens);
        assert_true(tiers[0]->ops->put(tiers[0], &record, NULL, NULL));
    }
    assert_int_equal(take_events(tiers[0], &now_us[0], HEARTH_BACKING_LOST), STORED / 2);
    (void)take_events(tiers[1], &now_us[1], HEARTH_BACKING_SCANNED);
    for (uint32_t talk = 0; talk < STORED; talk++) {
        assert_int_equal(found(tiers[1], &now_us[1], talk), 1);
        assert_int_equal(found(tiers[0], &now_us[0], talk), 1);
    }
    hearth_sim_store_destroy(store);
}

/* What a box uses from its RAM it goes on knowing of, however much that is new stands on it. */
static void a_box_knows_what_it_uses(void **state) {
    (void)state;
    const struct hearth_sim_store_params params = {.store_bytes_per_s = 1e9,
                                                   .network_bytes_per_s = 1e9,
                                                   .bytes = UINT64_C(1) << 40,
                                                   .queue_bytes = UINT64_C(1) << 40,
                                                   .known = STORED / 2};
    struct hearth_sim_store *store = hearth_sim_store_create(&params, 1);
    assert_non_null(store);
    int64_t now_us = 0;
    struct hearth_backing *tier = hearth_sim_store_tier(store, 0, &now_us);
    struct hearth_backing_touch path[2] = {0};
    hearth_token tokens[PAGE];
    for (uint32_t talk = 0; talk < STORED; talk++) {
        const struct hearth_record record = record_of(talk, tokens);
        assert_true(tier->ops->put(tier, &record, NULL, NULL));
        path[talk > 0].name = record.name;
        tier->ops->touch(tier, path, 1 + (talk > 0));
    }
    struct hearth_backing_event event;
    size_t lost = 0;
    for (now_us += 3600 * (int64_t)SECOND_US; tier->ops->poll(tier, &event); hearth_backing_event_finish(&event)) {
        lost += event.type == HEARTH_BACKING_LOST;
        assert_false(event.type == HEARTH_BACKING_LOST && hearth_digest_equal(event.name, path[0].name));
    }
    assert_int_equal(lost, STORED / 2);
    hearth_sim_store_destroy(store);
}

/* ---- routers ---- */

static void a_hot_box_passes_on(void **state) {
    (void)state;
    struct hearth_router router;
    struct hearth_tokens none = {0};
    struct hearth_trace_request request = {.talk = 7};
    hearth_router_init(&router, HEARTH_ROUTER_AFFINITY, 4, 4);
    const uint32_t home = hearth_router_choose(&router, &request, &none);
    for (uint32_t i = 0; i < 4; i++) {
        router.box[i].running = 10;
    }
    router.box[home].running = 14;
    assert_int_equal(hearth_router_choose(&router, &request, &none), home);
    router.box[home].running = 25;
    const uint32_t next = hearth_router_choose(&router, &request, &none);
    assert_int_not_equal(next, home);
    router.box[home] = (struct hearth_router_box){.down = true};
    assert_int_equal(hearth_router_choose(&router, &request, &none), next);
    for (uint32_t i = 0; i < 4; i++) {
        router.box[i].down = true;
    }
    assert_int_equal(hearth_router_choose(&router, &request, &none), UINT32_MAX);
    hearth_router_finish(&router);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_share_a_line),
        cmocka_unit_test(a_store_makes_one_cache_of_many),
        cmocka_unit_test(a_store_that_was_slow_is_tried_again),
        cmocka_unit_test(a_slow_store_is_left_alone),
        cmocka_unit_test(what_ram_takes_is_not_the_stores),
        cmocka_unit_test(what_waits_for_another_is_not_the_stores),
        cmocka_unit_test(what_is_lost_costs_no_request),
        cmocka_unit_test(a_small_store_forgets),
        cmocka_unit_test(a_box_knows_what_it_needs),
        cmocka_unit_test(a_box_knows_what_it_uses),
        cmocka_unit_test(a_hot_box_passes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
