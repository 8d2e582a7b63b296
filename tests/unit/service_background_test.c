/* What the service does between requests and beside them, on sim: classes of requests, prefetches above all; pins;
 * conversations that are expected back; and forgetting. */
#include "support/service_stage.h"

#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>

#define SECOND_US 1000000

/* ---- prompts ---- */

/* `n` tokens. Prompts with different values of `who` have the first `shared` in common, and no more. */
static struct hearth_tokens tokens_like(int who, size_t n, size_t shared) {
    struct hearth_tokens tokens = {0};
    for (size_t i = 0; i < n; i++) {
        size_t token = i < shared ? 33 + i % 7 : 40 + (i * i + 31 * (size_t)who) % 80;
        assert_true(hearth_tokens_push(&tokens, (hearth_token)token));
    }
    if (shared < n) {
        tokens.v[shared] = (hearth_token)(120 + who);
    }
    return tokens;
}

static struct hearth_request prefetch_request(const struct hearth_tokens *prompt) {
    struct hearth_request request = request_of(prompt);
    request.priority = HEARTH_CLASS_PREFETCH;
    request.max_tokens = 0;
    return request;
}

/* Runs a prompt and forgets what it said. */
static struct hearth_receipt ask(struct stage *stage, const struct hearth_tokens *prompt, int32_t max_tokens) {
    struct hearth_request request = request_of(prompt);
    struct reply reply;
    request.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    (void)run(stage, &request, &reply);
    reply_finish(&reply);
    return reply.receipt;
}

/* ---- classes ---- */

static void interactive_first_then_background_then_warm(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1};
    open_stage_with(&stage, &options);
    struct hearth_tokens prompts[6];
    for (int i = 0; i < 6; i++) {
        prompts[i] = tokens_like(i, 100, 0);
    }
    struct gate gate;
    struct hearth_request first = request_of(&prompts[0]);
    launch_gate(&stage, &first, &gate, 1);
    static const enum hearth_class classes[5] = {HEARTH_CLASS_PREFETCH, HEARTH_CLASS_BACKGROUND,
                                                 HEARTH_CLASS_INTERACTIVE, HEARTH_CLASS_BACKGROUND,
                                                 HEARTH_CLASS_INTERACTIVE};
    static const int order[5] = {4, 2, 0, 3, 1};
    struct reply replies[5];
    for (int i = 0; i < 5; i++) {
        struct hearth_request request = request_of(&prompts[i + 1]);
        request.priority = classes[i];
        request.max_tokens = classes[i] == HEARTH_CLASS_PREFETCH ? 0 : 2;
        (void)launch(&stage, &request, &replies[i]);
    }
    open_gate(&gate, 0);
    await(&gate.reply);
    for (int i = 0; i < 5; i++) {
        await(&replies[i]);
        assert_int_equal(replies[i].err, 0);
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(replies[i].place, gate.reply.place + 1 + order[i]);
        reply_finish(&replies[i]);
    }
    reply_finish(&gate.reply);
    for (int i = 0; i < 6; i++) {
        hearth_tokens_finish(&prompts[i]);
    }
    close_stage(&stage);
}

/* Each turn of a background request is preempted for a prompt that a client waits for, one at each `every` tokens of a
 * reply, and its state cannot be restored. Beside a reply a prompt seems to cost nothing, because batches take as long
 * without it. The turns get longer nevertheless, until one is long enough. */
static void lose_turns(size_t prompt_tokens, int32_t max_tokens, int every) {
    struct stage stage;
    const struct stage_options options = {
        .ctx_tokens = 16384, .lanes = 2, .prefill_tokens_per_s = 1e6, .decode_tokens_per_s = 0.5};
    open_stage_with(&stage, &options);
    hearth_sim_fault(stage.engine, HEARTH_SIM_FAULT_PAGE_IMPORT, 1, true);
    struct hearth_tokens talk = tokens_like(0, 20, 0), paper = tokens_like(1, prompt_tokens, 0),
                         other = tokens_like(2, 40, 0);
    struct hearth_request speaks = request_of(&talk), reads = request_of(&paper);
    struct gate gate;
    struct reply read, replies[30];
    const int asked = sizeof replies / sizeof *replies;
    speaks.max_tokens = 1000;
    speaks.sampling.ignore_eos = true;
    launch_gate(&stage, &speaks, &gate, 4);
    reads.priority = HEARTH_CLASS_BACKGROUND;
    reads.max_tokens = max_tokens;
    reads.sampling.ignore_eos = true;
    (void)launch(&stage, &reads, &read);
    for (int i = 0; i < asked; i++) {
        open_gate(&gate, every);
        await_gate(&gate);
        struct hearth_request asks = request_of(&other);
        other.v[0] = 40 + i;
        asks.max_tokens = 1;
        (void)launch(&stage, &asks, &replies[i]);
    }
    open_gate(&gate, 0);
    await(&gate.reply);
    await(&read);
    assert_int_equal(read.err, 0);
    assert_true(stats_of(&stage).yields > 2);
    int before = 0;
    for (int i = 0; i < asked; i++) {
        await(&replies[i]);
        before += replies[i].place < read.place;
        reply_finish(&replies[i]);
    }
    assert_in_range(before, 2, asked / 2);
    reply_finish(&read);
    reply_finish(&gate.reply);
    hearth_tokens_finish(&talk);
    hearth_tokens_finish(&paper);
    hearth_tokens_finish(&other);
    close_stage(&stage);
}

static void prefills_that_are_lost_get_longer(void **state) {
    (void)state;
    lose_turns(5000, 1, 3);
}

static void replies_whose_prefill_is_lost_get_longer(void **state) {
    (void)state;
    lose_turns(400, 20, 2);
}

static void bad_classes_and_pins_are_refused(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_like(0, 20, 0);
    const struct hearth_pin pins[][2] = {
        {{0, 1}, {5, 1}}, {{5, 1}, {5, 1}}, {{6, 1}, {5, 1}}, {{5, 0}, {6, 1}}, {{5, 1}, {21, 1}}};
    struct hearth_errmsg msg;
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        struct hearth_request request = request_of(&prompt);
        request.pins = pins[i];
        request.pin_count = 2;
        assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
        assert_non_null(strstr(msg.text, "pins"));
    }
    struct hearth_pin many[HEARTH_PINS_MAX + 1];
    for (int32_t i = 0; i <= HEARTH_PINS_MAX; i++) {
        many[i] = (struct hearth_pin){i + 1, 1};
    }
    struct hearth_request request = request_of(&prompt);
    request.pins = many;
    request.pin_count = HEARTH_PINS_MAX + 1;
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
    request = prefetch_request(&prompt);
    request.max_tokens = 1;
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
    request.priority = HEARTH_CLASS_PREFETCH + 1;
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* ---- warm requests ---- */

static void a_warm_request_gives_its_lane_up(enum hearth_engine_class memory_class) {
    struct stage stage;
    const struct stage_options options = {.memory_class = memory_class, .ctx_tokens = 16384, .lanes = 2};
    open_stage_with(&stage, &options);
    struct hearth_tokens talk = tokens_like(0, 50, 0), head = tokens_like(1, 4000, 0), other = tokens_like(2, 300, 0);
    struct hearth_request warm = prefetch_request(&head), request = request_of(&talk);
    struct reply prefetched, reply;
    struct gate gate;
    request.max_tokens = 40;
    request.sampling.ignore_eos = true;
    launch_gate(&stage, &request, &gate, 2);
    (void)launch(&stage, &warm, &prefetched);
    open_gate(&gate, 10);
    await_gate(&gate);
    request = request_of(&other);
    request.max_tokens = 3;
    (void)launch(&stage, &request, &reply);
    open_gate(&gate, 0);
    await(&reply);
    await(&gate.reply);
    await(&prefetched);
    assert_int_equal(reply.err + gate.reply.err + prefetched.err, 0);
    assert_true(reply.place < prefetched.place && gate.reply.place < prefetched.place);
    assert_true(prefetched.prefilled && prefetched.tokens.n == 0);
    assert_int_equal(stats_of(&stage).yields, 1);
    assert_int_equal(stats_of(&stage).preemptions, 0);
    reply_finish(&reply);
    reply_finish(&gate.reply);
    reply_finish(&prefetched);
    /* Nothing was computed twice, and whoever begins with it goes on from there: twice at a time, too. */
    struct hearth_sim_stats sim;
    hearth_sim_stats(stage.engine, &sim);
    assert_int_equal(sim.decoded_tokens, 4000 + 50 + 39 + 300 + 2);
    for (int i = 0; i < 20; i++) {
        assert_true(hearth_tokens_push(&head, 7));
    }
    assert_int_equal(ask(&stage, &head, 2).computed_tokens, 20);
    head.v[4000] = 8;
    assert_int_equal(ask(&stage, &head, 2).computed_tokens, 20);
    hearth_tokens_finish(&talk);
    hearth_tokens_finish(&head);
    hearth_tokens_finish(&other);
    close_stage(&stage);
}

static void prefetches_are_preempted(void **state) {
    (void)state;
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        a_warm_request_gives_its_lane_up((enum hearth_engine_class)memory_class);
    }
}

/* A prompt that begins with what is just being prefetched takes the work over where it is. */
static void a_prompt_takes_a_warm_lane_over(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {
        .memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT, .ctx_tokens = 16384, .lanes = 3};
    open_stage_with(&stage, &options);
    struct hearth_tokens talk = tokens_like(0, 50, 0), head = tokens_like(1, 4000, 0), longer = tokens_like(1, 4000, 0);
    assert_true(hearth_tokens_push(&longer, 9));
    struct hearth_request warm = prefetch_request(&head), request = request_of(&talk);
    struct reply prefetched, reply;
    struct gate gate;
    request.max_tokens = 40;
    request.sampling.ignore_eos = true;
    launch_gate(&stage, &request, &gate, 2);
    (void)launch(&stage, &warm, &prefetched);
    open_gate(&gate, 10);
    await_gate(&gate);
    request = request_of(&longer);
    request.max_tokens = 3;
    (void)launch(&stage, &request, &reply);
    open_gate(&gate, 0);
    await(&reply);
    await(&gate.reply);
    await(&prefetched);
    assert_true(reply.receipt.reused_live_tokens > 0 && reply.receipt.computed_tokens < 4001);
    assert_int_equal(stats_of(&stage).yields, 1);
    reply_finish(&reply);
    reply_finish(&gate.reply);
    reply_finish(&prefetched);
    hearth_tokens_finish(&talk);
    hearth_tokens_finish(&head);
    hearth_tokens_finish(&longer);
    close_stage(&stage);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* What is on disk is read into RAM, without a lane, also when nothing has to be computed. */
static void a_warm_request_reads_ahead(void **state) {
    (void)state;
    char dir[] = "/tmp/hearth-keep-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        struct stage stage;
        const struct stage_options options = {
            .memory_class = (enum hearth_engine_class)memory_class, .ctx_tokens = 8192, .lanes = 1, .dir = dir};
        struct hearth_tokens prompt = tokens_like(memory_class, 700, 0);
        open_stage_with(&stage, &options);
        struct hearth_request warm = prefetch_request(&prompt);
        struct reply reply;
        (void)run(&stage, &warm, &reply);
        assert_true(reply.prefilled && reply.receipt.computed_tokens == 700);
        reply_finish(&reply);
        (void)run(&stage, &warm, &reply); /* it is there */
        assert_true(!reply.prefilled && reply.receipt.computed_tokens == 0);
        reply_finish(&reply);
        close_stage(&stage);

        open_stage_with(&stage, &options);
        (void)run(&stage, &warm, &reply);
        assert_false(reply.prefilled);
        assert_int_equal(reply.receipt.computed_tokens, 0);
        assert_int_equal(reply.receipt.reused_disk_tokens, 700);
        reply_finish(&reply);
        struct hearth_lane_info lane;
        assert_int_equal(hearth_service_lanes(stage.service, &lane, 1), 1);
        assert_int_equal(lane.live_tokens, 0);
        assert_true(hearth_tokens_push(&prompt, 9));
        struct hearth_receipt receipt = ask(&stage, &prompt, 2);
        assert_int_equal(receipt.computed_tokens, 1);
        close_stage(&stage);
        hearth_tokens_finish(&prompt);
    }
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A disk tier whose events do not come before they are let through. */
static const struct hearth_backing_ops *disk_ops;
static struct hearth_backing_ops held_ops;
static atomic_bool let_through;

static void (*wake_service)(void *user);
static void *woken;

static bool held_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    return atomic_load(&let_through) && disk_ops->poll(backing, event);
}

static void noted_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    wake_service = wake;
    woken = user;
    disk_ops->set_wake(backing, wake, user);
}

static bool refused_get(struct hearth_backing *backing, struct hearth_digest name) {
    (void)backing, (void)name;
    return false;
}

static void refuse_reads(struct hearth_backing *backing) {
    disk_ops = backing->ops;
    held_ops = *disk_ops;
    held_ops.get = refused_get;
    backing->ops = &held_ops;
}

static void hold_events(struct hearth_backing *backing) {
    disk_ops = backing->ops;
    held_ops = *disk_ops;
    held_ops.poll = held_poll;
    held_ops.set_wake = noted_wake;
    backing->ops = &held_ops;
    atomic_store(&let_through, false);
}

static int64_t awaited_us; /* for how long the disk was first awaited */

static bool wait_and_let_through(struct hearth_backing *backing, int64_t timeout_us) {
    awaited_us = awaited_us > 0 ? awaited_us : timeout_us;
    atomic_store(&let_through, true);
    struct hearth_backing_stats stats;
    for (disk_ops->stats(backing, &stats); stats.queued_bytes > 0; disk_ops->stats(backing, &stats)) {
        usleep(1000); /* however slow the disk is */
    }
    return disk_ops->wait(backing, timeout_us);
}

static void hold_writes(struct hearth_backing *backing) {
    hold_events(backing);
    held_ops.wait = wait_and_let_through;
    awaited_us = 0;
}

/* RAM is full of state that is not written yet when a lane is needed: its state is lost unless that waits, but not for
 * long, as other lanes stand still meanwhile. */
static void a_lane_waits_for_room_in_ram(void **state) {
    (void)state;
    char dir[] = "/tmp/hearth-keep-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct stage stage;
    const struct stage_options options = {
        .ctx_tokens = 8192, .lanes = 1, .cache_bytes = 40000, .dir = dir, .backing_made = hold_writes};
    struct hearth_tokens first = tokens_like(0, 1000, 0), second = tokens_like(1, 100, 0);
    open_stage_with(&stage, &options);
    atomic_store(&let_through, true);
    (void)ask(&stage, &second, 2); /* what is on disk is known now */
    atomic_store(&let_through, false);
    (void)ask(&stage, &first, 2);
    (void)ask(&stage, &second, 2);
    assert_in_range(awaited_us, 250000, 1000000);
    assert_true(hearth_tokens_push(&first, 9));
    assert_in_range(ask(&stage, &first, 2).computed_tokens, 1, 40);
    close_stage(&stage);
    hearth_tokens_finish(&first);
    hearth_tokens_finish(&second);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* After a start it is not known for a while what is on disk: a prompt waits for that, at most as long as computing it
 * would take. That is 50 ms for the first one, by the first guess; after it, it is known that computing is slow. */
static void a_prompt_waits_for_the_scan(void **state) {
    (void)state;
    char dir[] = "/tmp/hearth-keep-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct stage stage;
    struct stage_options options = {.ctx_tokens = 8192, .lanes = 1, .dir = dir};
    struct hearth_tokens prompt = tokens_like(0, 1000, 0), brief = tokens_like(1, 100, 0);
    open_stage_with(&stage, &options);
    (void)ask(&stage, &prompt, 2);
    close_stage(&stage);

    options.backing_made = hold_events;
    options.prefill_tokens_per_s = 1;
    open_stage_with(&stage, &options);
    assert_int_equal(ask(&stage, &brief, 2).computed_tokens, 100);
    struct hearth_request request = request_of(&prompt);
    struct hearth_waiting_info waiting = {0};
    struct reply reply;
    (void)launch(&stage, &request, &reply);
    while (hearth_service_waiting(stage.service, &waiting, 1) == 0 || waiting.wait != HEARTH_WAIT_SCAN) {
        usleep(1000);
    }
    atomic_store(&let_through, true);
    wake_service(woken);
    await(&reply);
    assert_int_equal(reply.err, 0);
    assert_int_equal(reply.receipt.computed_tokens, 1);
    reply_finish(&reply);
    close_stage(&stage);
    hearth_tokens_finish(&brief);
    hearth_tokens_finish(&prompt);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* What is known to be there and cannot be had, again and again, is not asked for for ever. */
static void what_cannot_be_restored_is_computed(void **state) {
    (void)state;
    char dir[] = "/tmp/hearth-keep-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct stage stage;
    struct stage_options options = {.ctx_tokens = 8192, .lanes = 1, .dir = dir};
    struct hearth_tokens prompt = tokens_like(0, 1000, 0);
    open_stage_with(&stage, &options);
    (void)ask(&stage, &prompt, 2);
    close_stage(&stage);

    options.backing_made = refuse_reads;
    open_stage_with(&stage, &options);
    const struct hearth_receipt receipt = ask(&stage, &prompt, 2);
    assert_int_equal(receipt.computed_tokens, 1000);
    assert_int_equal(receipt.reason, HEARTH_REASON_RESTORE_FAILED);
    assert_int_equal(stats_of(&stage).restore_failures, 2);
    close_stage(&stage);
    hearth_tokens_finish(&prompt);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void a_drain_does_not_wait_for_warm_requests(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1};
    open_stage_with(&stage, &options);
    struct hearth_tokens talk = tokens_like(0, 50, 0), head = tokens_like(1, 4000, 0);
    struct hearth_request request = request_of(&talk), warm = prefetch_request(&head);
    struct gate gate;
    struct reply prefetched;
    request.max_tokens = 20;
    request.sampling.ignore_eos = true;
    launch_gate(&stage, &request, &gate, 3);
    (void)launch(&stage, &warm, &prefetched);
    open_gate(&gate, 0);
    hearth_service_drain(stage.service, (int64_t)600 * SECOND_US);
    await(&gate.reply);
    await(&prefetched);
    assert_int_equal(gate.reply.err, 0);
    assert_true(prefetched.err == 0 || prefetched.err == HEARTH_ERR_CANCELLED);
    reply_finish(&gate.reply);
    reply_finish(&prefetched);
    hearth_tokens_finish(&talk);
    hearth_tokens_finish(&head);
    close_stage(&stage);
}

/* ---- pins ---- */

/* How many tokens of a prompt are computed that was asked before many others; pinned at 600 for so long, or not (0). */
static uint32_t computed_after_others(enum hearth_engine_class memory_class, int64_t ttl_us) {
    struct stage stage;
    const struct stage_options options = {
        .memory_class = memory_class, .ctx_tokens = 2048, .lanes = 1, .cache_bytes = 400000};
    open_stage_with(&stage, &options);
    struct hearth_tokens prompt = tokens_like(0, 650, 0);
    const struct hearth_pin pin = {.position = 600, .ttl_us = ttl_us};
    struct hearth_request request = request_of(&prompt);
    request.pins = &pin;
    request.pin_count = ttl_us > 0;
    request.max_tokens = 2;
    struct reply reply;
    (void)run(&stage, &request, &reply);
    reply_finish(&reply);
    for (int who = 1; who <= 30; who++) {
        struct hearth_tokens other = tokens_like(who, 500, 0);
        (void)ask(&stage, &other, 2);
        (void)ask(&stage, &other, 2); /* what is used again is worth more */
        hearth_tokens_finish(&other);
    }
    struct hearth_service_stats stats = stats_of(&stage);
    assert_true(stats.evicted_pages + stats.evicted_snapshots > 0);
    assert_true(stats.page_bytes + stats.snapshot_bytes <= options.cache_bytes);
    assert_true(stats.pinned_bytes <= options.cache_bytes / 2);
    prompt.v[600] = 5; /* and goes another way behind the pin */
    uint32_t computed = ask(&stage, &prompt, 2).computed_tokens;
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
    return computed;
}

static void what_is_pinned_stays(void **state) {
    (void)state;
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        const enum hearth_engine_class of = (enum hearth_engine_class)memory_class;
        assert_int_equal(computed_after_others(of, (int64_t)3600 * SECOND_US), 50);
        assert_true(computed_after_others(of, 0) > 50);
        assert_true(computed_after_others(of, 1) > 50); /* it has lapsed long ago */
    }
}

/* ---- expected back ---- */

/* Two conversations in two lanes, then a third: whether the first, which was unused for longest, keeps its lane. */
static bool keeps_its_lane(int64_t within_us) {
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 2};
    open_stage_with(&stage, &options);
    struct hearth_tokens first = tokens_like(0, 300, 0), second = tokens_like(1, 300, 0);
    struct hearth_tokens third = tokens_like(2, 300, 0);
    struct hearth_request request = request_of(&first);
    struct reply reply;
    request.max_tokens = 5;
    request.sampling.ignore_eos = true;
    int64_t id = run(&stage, &request, &reply);
    hearth_service_expect(stage.service, id + 1000, SECOND_US); /* nobody */
    if (within_us > 0) {
        hearth_service_expect(stage.service, id, within_us);
    }
    (void)ask(&stage, &second, 5);
    (void)ask(&stage, &third, 5);
    assert_true(hearth_tokens_append(&first, reply.tokens.v, reply.tokens.n) && hearth_tokens_push(&first, 3));
    struct hearth_receipt receipt = ask(&stage, &first, 5);
    assert_true(receipt.computed_tokens <= 2);
    reply_finish(&reply);
    hearth_tokens_finish(&first);
    hearth_tokens_finish(&second);
    hearth_tokens_finish(&third);
    close_stage(&stage);
    return receipt.reused_live_tokens > 300;
}

static void who_is_expected_keeps_its_lane(void **state) {
    (void)state;
    assert_false(keeps_its_lane(0));
    assert_true(keeps_its_lane((int64_t)3600 * SECOND_US));
    assert_false(keeps_its_lane(1)); /* it has lapsed */
}

/* ---- forgetting ---- */

struct forgotten {
    bool done;
    int err;
};

static void on_forgotten(void *user, int err) {
    struct forgotten *forgotten = user;
    pthread_mutex_lock(&mutex);
    assert_false(forgotten->done);
    *forgotten = (struct forgotten){.done = true, .err = err};
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
}

static void forget(struct stage *stage, const struct hearth_tokens *tokens, size_t keep) {
    struct forgotten forgotten = {0};
    const struct hearth_service_forget_request request = {
        .tokens = tokens->v, .count = tokens->n, .keep_tokens = keep, .done = on_forgotten, .user = &forgotten};
    assert_int_equal(hearth_service_forget(stage->service, &request), HEARTH_OK);
    pthread_mutex_lock(&mutex);
    while (!forgotten.done) {
        pthread_cond_wait(&ended, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    assert_int_equal(forgotten.err, HEARTH_OK);
}

/* Asks, and returns the whole conversation. */
static struct hearth_tokens talk(struct stage *stage, const struct hearth_tokens *prompt) {
    struct hearth_request request = request_of(prompt);
    struct hearth_tokens all = {0};
    struct reply reply;
    request.max_tokens = 5;
    request.sampling.ignore_eos = true;
    (void)run(stage, &request, &reply);
    assert_true(hearth_tokens_append(&all, prompt->v, prompt->n) &&
                hearth_tokens_append(&all, reply.tokens.v, reply.tokens.n));
    reply_finish(&reply);
    return all;
}

static int files_left;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)at;
    const char *end = strrchr(path, '.');
    files_left += type == FTW_F && end != NULL && (strcmp(end, ".page") == 0 || strcmp(end, ".snap") == 0);
    return 0;
}

static int files_in(const char *dir) {
    files_left = 0;
    assert_int_equal(nftw(dir, count_one, 16, FTW_PHYS), 0);
    return files_left;
}

/* Two conversations over one beginning. What one of them alone has goes, in RAM and on disk, then all of it. */
static void forget_two(enum hearth_engine_class memory_class, bool restart) {
    char dir[] = "/tmp/hearth-keep-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct stage stage;
    const struct stage_options options = {.memory_class = memory_class, .ctx_tokens = 8192, .lanes = 2, .dir = dir};
    open_stage_with(&stage, &options);
    struct hearth_tokens prompts[2] = {tokens_like(0, 500, 320), tokens_like(1, 700, 320)}, all[2];
    const int32_t mark = 320;
    for (int i = 0; i < 2; i++) {
        struct hearth_tokens head = {.v = prompts[i].v, .n = 320};
        struct hearth_request warm = prefetch_request(&head);
        struct reply reply;
        warm.marks = &mark;
        (void)run(&stage, &warm, &reply);
        reply_finish(&reply);
        while (memory_class != HEARTH_ENGINE_PAGES && stats_of(&stage).snapshots == 0) {
            usleep(1000); /* the head is stored behind the reply */
        }
        all[i] = talk(&stage, &prompts[i]);
    }
    if (restart) {
        close_stage(&stage);
        assert_true(files_in(dir) > 0);
        open_stage_with(&stage, &options);
    }
    forget(&stage, &all[0], 0);
    assert_int_equal(ask(&stage, &prompts[1], 0).computed_tokens <= 1, memory_class == HEARTH_ENGINE_PAGES);
    struct hearth_receipt receipt = ask(&stage, &prompts[0], 0);
    assert_int_equal(receipt.computed_tokens, 180);
    assert_int_equal(receipt.reused_live_tokens + receipt.reused_ram_tokens + receipt.reused_disk_tokens, 320);
    forget(&stage, &prompts[0], 0); /* what was just computed */
    forget(&stage, &all[1], 320);
    assert_int_equal(ask(&stage, &prompts[1], 0).computed_tokens, 380);
    forget(&stage, &prompts[1], 0);
    forget(&stage, &all[0], 0);
    while (stats_of(&stage).forgets < 5) { /* told a moment later */
        usleep(1000);
    }
    struct hearth_lane_info lanes[2];
    assert_int_equal(hearth_service_lanes(stage.service, lanes, 2), 2);
    assert_int_equal(lanes[0].live_tokens + lanes[1].live_tokens, 0);
    close_stage(&stage);
    assert_in_range(files_in(dir), 0, 1); /* what the policy has learnt, which tells of no prompt */
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    for (int i = 0; i < 2; i++) {
        hearth_tokens_finish(&prompts[i]);
        hearth_tokens_finish(&all[i]);
    }
}

static void what_is_forgotten_is_gone(void **state) {
    (void)state;
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        forget_two((enum hearth_engine_class)memory_class, false);
        forget_two((enum hearth_engine_class)memory_class, true);
    }
}

static void what_is_in_use_is_not_forgotten(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_like(0, 400, 0);
    struct hearth_request request = request_of(&prompt);
    struct gate gate;
    request.max_tokens = 20;
    request.sampling.ignore_eos = true;
    launch_gate(&stage, &request, &gate, 3);
    struct forgotten forgotten = {0};
    const struct hearth_service_forget_request what = {
        .tokens = prompt.v, .count = prompt.n, .done = on_forgotten, .user = &forgotten};
    assert_int_equal(hearth_service_forget(stage.service, &what), HEARTH_OK);
    open_gate(&gate, 0);
    await(&gate.reply);
    assert_true(forgotten.done && forgotten.err == HEARTH_OK);
    reply_finish(&gate.reply);
    assert_int_equal(ask(&stage, &prompt, 0).computed_tokens, 1);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* A forget that comes too late to be carried out is told so. */
static void a_forget_at_the_end_is_answered(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_like(0, 400, 0);
    struct forgotten forgotten[20] = {{0}};
    for (int i = 0; i < 20; i++) {
        const struct hearth_service_forget_request what = {
            .tokens = prompt.v, .count = prompt.n, .done = on_forgotten, .user = &forgotten[i]};
        assert_int_equal(hearth_service_forget(stage.service, &what), HEARTH_OK);
    }
    hearth_service_destroy(stage.service);
    for (int i = 0; i < 20; i++) {
        assert_true(forgotten[i].done && (forgotten[i].err == HEARTH_OK || forgotten[i].err == HEARTH_ERR_CANCELLED));
    }
    stage.engine->ops->destroy(stage.engine);
    hearth_tokens_finish(&prompt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interactive_first_then_background_then_warm),
        cmocka_unit_test(prefills_that_are_lost_get_longer),
        cmocka_unit_test(replies_whose_prefill_is_lost_get_longer),
        cmocka_unit_test(bad_classes_and_pins_are_refused),
        cmocka_unit_test(prefetches_are_preempted),
        cmocka_unit_test(a_prompt_takes_a_warm_lane_over),
        cmocka_unit_test(a_warm_request_reads_ahead),
        cmocka_unit_test(what_cannot_be_restored_is_computed),
        cmocka_unit_test(a_lane_waits_for_room_in_ram),
        cmocka_unit_test(a_prompt_waits_for_the_scan),
        cmocka_unit_test(a_drain_does_not_wait_for_warm_requests),
        cmocka_unit_test(what_is_pinned_stays),
        cmocka_unit_test(who_is_expected_keeps_its_lane),
        cmocka_unit_test(what_is_forgotten_is_gone),
        cmocka_unit_test(what_is_in_use_is_not_forgotten),
        cmocka_unit_test(a_forget_at_the_end_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
