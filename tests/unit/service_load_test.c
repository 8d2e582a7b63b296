/* The service under load, on sim: preemption, the bound on waiting requests, deadlines, progress, and what can be
 * seen of all that. */
#include "support/load_stage.h"

/* ---- preemption ---- */

/* A request has one lane, another comes: it ends before the first, nothing is computed twice, and both replies are as
 * they would have been. `first_events`: how far the first has come by then. With a parked sequence nothing is brought
 * back either: what the first has stays where it is. */
static void second_goes_first_with(uint32_t parked, enum hearth_engine_class memory_class, struct hearth_request *first,
                                   struct hearth_request *second, int first_events, double decode_tokens_per_s) {
    struct stage stage;
    const struct stage_options options = {.memory_class = memory_class,
                                          .ctx_tokens = 16384,
                                          .lanes = 1,
                                          .parked = parked,
                                          .decode_tokens_per_s = decode_tokens_per_s};
    open_load(&stage, &options);
    struct gate gate;
    struct reply reply;
    (void)launch_gate(&stage, first, &gate, first_events);
    (void)launch(&stage, second, &reply);
    open_gate(&gate, 0);
    await(&reply);
    await(&gate.reply);
    assert_int_equal(reply.err, 0);
    assert_int_equal(gate.reply.err, 0);
    assert_true(reply.place < gate.reply.place);
    const struct hearth_tokens prompts[2] = {{.v = (hearth_token *)first->prompt, .n = first->prompt_tokens},
                                             {.v = (hearth_token *)second->prompt, .n = second->prompt_tokens}};
    check_reply(&stage, &prompts[0], &gate.reply);
    check_reply(&stage, &prompts[1], &reply);
    assert_true(stats_of(&stage).yields >= 1);
    assert_int_equal(stats_of(&stage).preemptions, 0);
    struct hearth_sim_stats sim;
    hearth_sim_stats(stage.engine, &sim);
    size_t computed = first->prompt_tokens + second->prompt_tokens + gate.reply.tokens.n + reply.tokens.n - 2;
    assert_int_equal(sim.decoded_tokens, computed);
    assert_true((sim.page_imports + sim.snapshot_imports > 0) == (parked == 0));
    reply_finish(&reply);
    reply_finish(&gate.reply);
    close_stage(&stage);
}

static void second_goes_first(enum hearth_engine_class memory_class, struct hearth_request *first,
                              struct hearth_request *second, int first_events, double decode_tokens_per_s) {
    for (uint32_t parked = 0; parked < 2; parked++) {
        second_goes_first_with(parked, memory_class, first, second, first_events, decode_tokens_per_s);
    }
}

static void a_lane_is_given_to_who_needs_it_more(void **state) {
    (void)state;
    struct hearth_tokens longer = tokens_like(1, 9000), brief = tokens_like(2, 200);
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        enum hearth_engine_class of = (enum hearth_engine_class)memory_class;
        /* A shorter prompt: from the second batch of the long one on, when it is known how fast that goes. */
        struct hearth_request first = request_for(&longer, 5), second = request_for(&brief, 5);
        first.progress = true;
        second_goes_first(of, &first, &second, 3, 0);
        /* A better class, in the middle of the reply. */
        first = request_for(&brief, 100);
        first.priority = HEARTH_CLASS_BACKGROUND;
        second = request_for(&brief, 7);
        second.prompt = longer.v;
        second.prompt_tokens = 700;
        second_goes_first(of, &first, &second, 20, 0);
        /* A slice: the first has 20 s, at two tokens a second, when the second has waited for long. */
        first = request_for(&brief, 100);
        second = request_for(&brief, 3);
        second.prompt = longer.v;
        second.prompt_tokens = 300;
        second_goes_first(of, &first, &second, 4, 2);
    }
    hearth_tokens_finish(&longer);
    hearth_tokens_finish(&brief);
}

/* A request is parked, and another one after it; the first is cancelled meanwhile or goes on. Nothing is lost. */
static void the_parked_sequence_is_given_on(void **state) {
    (void)state;
    struct hearth_tokens prompts[3] = {tokens_like(1, 15000), tokens_like(2, 3000), tokens_like(3, 200)};
    for (int memory_class = 0; memory_class < 8; memory_class++) {
        struct stage stage;
        bool cancel = memory_class >= 4;
        const struct stage_options options = {
            .memory_class = (enum hearth_engine_class)(memory_class % 4), .ctx_tokens = 32768, .lanes = 1, .parked = 1};
        open_load(&stage, &options);
        struct gate gates[2];
        struct hearth_request requests[3];
        struct reply last, again;
        for (int i = 0; i < 3; i++) {
            requests[i] = request_for(&prompts[i], 4);
            requests[i].progress = i < 2;
        }
        int64_t first = launch_gate(&stage, &requests[0], &gates[0], 3);
        gates[1] = (struct gate){.events_left = 3};
        requests[1].deliver = deliver_through;
        requests[1].user = &gates[1];
        assert_true(hearth_service_submit(stage.service, &requests[1], NULL) > 0);
        open_gate(&gates[0], 0);
        await_gate(&gates[1]);
        (void)launch(&stage, &requests[2], &last);
        if (cancel) {
            hearth_service_cancel(stage.service, first);
        }
        open_gate(&gates[1], 0);
        await(&last);
        await(&gates[1].reply);
        await(&gates[0].reply);
        assert_int_equal(last.err, 0);
        assert_int_equal(gates[1].reply.err, 0);
        assert_int_equal(gates[0].reply.err, cancel ? HEARTH_ERR_CANCELLED : 0);
        assert_true(stats_of(&stage).yields >= 2);
        for (int i = 0; i < 2; i++) {
            check_reply(&stage, &prompts[i], &gates[i].reply);
        }
        check_reply(&stage, &prompts[2], &last);
        /* What the first had computed is there for its next turn, or when its client asks again. */
        struct hearth_tokens next = {0};
        assert_true(hearth_tokens_assign(&next, prompts[0].v, prompts[0].n));
        assert_true(hearth_tokens_append(&next, gates[0].reply.tokens.v, gates[0].reply.tokens.n));
        assert_true(hearth_tokens_push(&next, 7));
        struct hearth_request request = request_for(&next, 1);
        (void)launch(&stage, &request, &again);
        await(&again);
        assert_true(again.receipt.computed_tokens <= (cancel ? prompts[0].n - 1000 : 2));
        hearth_tokens_finish(&next);
        reply_finish(&again);
        reply_finish(&last);
        reply_finish(&gates[0].reply);
        reply_finish(&gates[1].reply);
        close_stage(&stage);
    }
    for (int i = 0; i < 3; i++) {
        hearth_tokens_finish(&prompts[i]);
    }
}

/* While a preempted request waits, others fill RAM several times over, and some of them come back: its state stays. */
static void what_was_preempted_is_kept(void **state) {
    (void)state;
    enum { OTHERS = 60 };
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        struct stage stage;
        const struct stage_options options = {.memory_class = (enum hearth_engine_class)memory_class,
                                              .ctx_tokens = 2048,
                                              .lanes = 1,
                                              .cache_bytes = 400000};
        open_load(&stage, &options);
        struct hearth_tokens prompt = tokens_like(0, 650), others[OTHERS / 2];
        struct hearth_request request = request_for(&prompt, 50);
        struct reply replies[OTHERS];
        struct gate gate;
        request.priority = HEARTH_CLASS_BACKGROUND;
        request.speculate_off = true;
        (void)launch_gate(&stage, &request, &gate, 10);
        for (int i = 0; i < OTHERS; i++) {
            if (i % 2 == 0) {
                others[i / 2] = tokens_like(i + 1, 500);
            }
            struct hearth_request other = request_for(&others[i / 2], 2);
            other.speculate_off = true;
            (void)launch(&stage, &other, &replies[i]);
        }
        open_gate(&gate, 0);
        await(&gate.reply);
        size_t computed = prompt.n + gate.reply.tokens.n - 1;
        for (int i = 0; i < OTHERS; i++) {
            await(&replies[i]);
            assert_true(replies[i].place < gate.reply.place);
            computed += replies[i].receipt.computed_tokens + replies[i].tokens.n - 1;
            reply_finish(&replies[i]);
            if (i % 2 == 0) {
                hearth_tokens_finish(&others[i / 2]);
            }
        }
        struct hearth_sim_stats sim;
        struct hearth_service_stats stats = stats_of(&stage);
        hearth_sim_stats(stage.engine, &sim);
        assert_true(stats.evicted_pages + stats.evicted_snapshots > 0);
        assert_int_equal(sim.decoded_tokens, computed);
        check_reply(&stage, &prompt, &gate.reply);
        reply_finish(&gate.reply);
        hearth_tokens_finish(&prompt);
        close_stage(&stage);
    }
}

/* A request is not preempted if RAM could not hold its state. */
static void who_cannot_be_kept_stays(void **state) {
    (void)state;
    struct hearth_tokens longer = tokens_like(1, 9000), brief = tokens_like(2, 200);
    for (int how = 0; how < 2; how++) {
        struct stage stage;
        const struct stage_options options = {.ctx_tokens = 16384, .lanes = 1, .cache_bytes = how == 0 ? 20000 : 0};
        open_load(&stage, &options);
        struct hearth_request first = request_for(&longer, 5), second = request_for(&brief, 5);
        struct gate gate;
        struct reply reply;
        first.progress = true;
        first.cache_off = how == 1;
        (void)launch_gate(&stage, &first, &gate, 8);
        (void)launch(&stage, &second, &reply);
        open_gate(&gate, 0);
        await(&gate.reply);
        await(&reply);
        assert_true(gate.reply.place < reply.place);
        assert_int_equal(stats_of(&stage).yields, 0);
        reply_finish(&reply);
        reply_finish(&gate.reply);
        close_stage(&stage);
    }
    hearth_tokens_finish(&longer);
    hearth_tokens_finish(&brief);
}

/* ---- how many may wait ---- */

/* While requests are being read they count as waiting, for their own key before others; and they keep their slots. */
static void who_is_announced_has_a_seat(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1, .queue = 1};
    const struct hearth_tenant many = {.id = 7}, few = {.id = 8};
    open_load(&stage, &options);
    struct hearth_tokens prompt = tokens_like(1, 100);
    struct hearth_request request = request_for(&prompt, 5);
    struct reply reply;
    struct hearth_errmsg msg;
    uint32_t retry_after_s = 0;
    request.tenant = many;
    hearth_service_reserve(stage.service, &many);
    assert_false(hearth_service_overloaded(stage.service, &many, &retry_after_s)); /* a lane is free */
    hearth_service_reserve(stage.service, &many);
    assert_true(hearth_service_overloaded(stage.service, &many, &retry_after_s));
    assert_false(hearth_service_overloaded(stage.service, &few, &retry_after_s));
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_OVERLOADED);
    request.reserved = true; /* one of those that are announced */
    (void)run(&stage, &request, &reply);
    assert_int_equal(reply.err, 0);
    reply_finish(&reply);
    assert_false(hearth_service_overloaded(stage.service, &many, &retry_after_s)); /* the slot went with the request */
    hearth_service_reserve(stage.service, &many);
    assert_true(hearth_service_overloaded(stage.service, &many, &retry_after_s));
    request.prompt_tokens = 0;
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
    hearth_service_unreserve(stage.service, &many); /* that of a refused one is the caller's */
    request = request_for(&prompt, 0);
    request.tenant = many;
    request.priority = HEARTH_CLASS_PREFETCH;
    request.reserved = true;
    (void)run(&stage, &request, &reply); /* a warm one needs none */
    assert_int_equal(reply.err, 0);
    reply_finish(&reply);
    hearth_service_reserve(stage.service, &many); /* and one of two is taken now */
    assert_false(hearth_service_overloaded(stage.service, &many, &retry_after_s));
    hearth_service_unreserve(stage.service, &many);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* A batch of short prompts waits a moment for a request that is announced: both are computed at once. */
static void short_prompts_gather(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 3};
    open_load(&stage, &options);
    struct hearth_tokens prompts[2] = {tokens_like(1, 100), tokens_like(2, 120)};
    uint64_t steps = 0;
    for (int attempt = 0; attempt < 100 && steps != 1; attempt++) { /* the machine may be slower than the moment is */
        struct hearth_request first = request_for(&prompts[0], 1), second = request_for(&prompts[1], 1);
        struct reply replies[2];
        uint64_t before = stats_of(&stage).steps;
        first.cache_off = second.cache_off = true;
        hearth_service_reserve(stage.service, &second.tenant);
        second.reserved = true;
        (void)launch(&stage, &first, &replies[0]);
        (void)launch(&stage, &second, &replies[1]);
        for (int i = 0; i < 2; i++) {
            await(&replies[i]);
            assert_int_equal(replies[i].err, 0);
            reply_finish(&replies[i]);
        }
        steps = stats_of(&stage).steps - before;
    }
    assert_int_equal(steps, 1);
    /* One that never comes holds nothing up for long. */
    struct hearth_request request = request_for(&prompts[0], 1);
    struct reply reply;
    hearth_service_reserve(stage.service, &request.tenant);
    (void)run(&stage, &request, &reply);
    assert_int_equal(reply.err, 0);
    reply_finish(&reply);
    hearth_service_unreserve(stage.service, &request.tenant);
    for (int i = 0; i < 2; i++) {
        hearth_tokens_finish(&prompts[i]);
    }
    close_stage(&stage);
}

static void no_more_wait_than_may(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1, .queue = 2};
    open_load(&stage, &options);
    struct hearth_tokens prompt = tokens_like(1, 100);
    struct hearth_request request = request_for(&prompt, 5), warm = request_for(&prompt, 0);
    struct gate gate;
    struct reply replies[4], prefetched, joined;
    uint32_t retry_after_s = 0;
    struct hearth_errmsg msg;
    assert_false(hearth_service_overloaded(stage.service, &request.tenant, &retry_after_s));
    (void)launch_gate(&stage, &request, &gate, 2);
    request.deliver = deliver;
    (void)launch(&stage, &request, &replies[0]);
    assert_false(hearth_service_overloaded(stage.service, &request.tenant, &retry_after_s));
    (void)launch(&stage, &request, &replies[1]);
    assert_true(hearth_service_overloaded(stage.service, &request.tenant, &retry_after_s));
    assert_in_range(retry_after_s, 1, 60);
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_OVERLOADED);
    assert_non_null(strstr(msg.text, "2 requests"));
    warm.priority = HEARTH_CLASS_PREFETCH; /* a prefetch is not counted */
    (void)launch(&stage, &warm, &prefetched);
    request.joins = true; /* one more choice of what waits already */
    (void)launch(&stage, &request, &joined);
    request.joins = false;
    hearth_service_tune(stage.service, 1, 0); /* and those are counted among themselves */
    assert_int_equal(hearth_service_submit(stage.service, &warm, &msg), HEARTH_ERR_OVERLOADED);
    hearth_service_tune(stage.service, 4, 0);
    (void)launch(&stage, &request, &replies[2]);
    assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_OVERLOADED);
    hearth_service_tune(stage.service, 0, 0);
    (void)launch(&stage, &request, &replies[3]);
    assert_int_equal(stats_of(&stage).requests_refused, 3);
    open_gate(&gate, 0);
    await(&gate.reply);
    await(&prefetched);
    await(&joined);
    assert_int_equal(joined.err, 0);
    for (int i = 0; i < 4; i++) {
        await(&replies[i]);
        assert_int_equal(replies[i].err, 0);
        reply_finish(&replies[i]);
    }
    reply_finish(&gate.reply);
    reply_finish(&prefetched);
    reply_finish(&joined);
    /* All have ended: places are free again. */
    hearth_service_tune(stage.service, 1, 0);
    assert_false(hearth_service_overloaded(stage.service, &request.tenant, &retry_after_s));
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

static void preempted_requests_wait_like_others(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1, .parked = 1, .queue = 1};
    open_load(&stage, &options);
    struct hearth_tokens prompt = tokens_like(1, 100);
    struct hearth_request first = request_for(&prompt, 50), second = request_for(&prompt, 5);
    struct gate gate, later = {.events_left = 3};
    uint32_t retry_after_s;
    first.priority = HEARTH_CLASS_BACKGROUND;
    (void)launch_gate(&stage, &first, &gate, 5);
    second.deliver = deliver_through;
    second.user = &later;
    assert_true(hearth_service_submit(stage.service, &second, NULL) > 0);
    open_gate(&gate, 0);
    await_gate(&later); /* the second has the lane, the first waits */
    assert_true(hearth_service_overloaded(stage.service, &first.tenant, &retry_after_s));
    open_gate(&later, 0);
    await(&gate.reply);
    await(&later.reply);
    assert_false(hearth_service_overloaded(stage.service, &first.tenant, &retry_after_s));
    assert_int_equal(gate.reply.err, 0);
    reply_finish(&gate.reply);
    reply_finish(&later.reply);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* ---- deadlines ---- */

static void a_deadline_ends_what_has_begun_and_fails_what_has_not(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1};
    open_load(&stage, &options);
    struct hearth_tokens prompt = tokens_like(1, 1000), other = tokens_like(2, 1000);
    struct hearth_request request = request_for(&prompt, 1000);
    struct reply replies[3];
    /* A second for the prompt, then 50 tokens in another. */
    request.deadline_us = 2 * SECOND_US;
    (void)run(&stage, &request, &replies[0]);
    assert_int_equal(replies[0].finish, HEARTH_FINISH_LENGTH);
    assert_true(replies[0].late);
    assert_in_range(replies[0].tokens.n, 45, 52);
    assert_int_equal(replies[0].receipt.end_tokens, 1000 + replies[0].tokens.n - 1); /* the last one is not computed */
    assert_true(replies[0].receipt.ended_us > replies[0].receipt.began_us);
    reply_finish(&replies[0]);
    /* In the queue, in the prefill, and never. */
    struct gate gate;
    request = request_for(&other, 100);
    (void)launch_gate(&stage, &request, &gate, 1);
    request = request_for(&prompt, 5);
    request.deadline_us = SECOND_US / 2;
    (void)launch(&stage, &request, &replies[0]);
    request.deadline_us = (int64_t)3600 * SECOND_US;
    (void)launch(&stage, &request, &replies[1]);
    open_gate(&gate, 0);
    await(&gate.reply);
    await(&replies[0]);
    await(&replies[1]);
    assert_int_equal(replies[0].err, HEARTH_ERR_DEADLINE);
    assert_true(replies[0].place < gate.reply.place);
    assert_int_equal(replies[1].err, 0);
    assert_false(replies[1].late);
    struct hearth_tokens fresh = tokens_like(3, 3000);
    request = request_for(&fresh, 5);
    request.deadline_us = SECOND_US;
    (void)launch(&stage, &request, &replies[2]);
    await(&replies[2]);
    assert_int_equal(replies[2].err, HEARTH_ERR_DEADLINE);
    assert_false(replies[2].prefilled);
    while (stats_of(&stage).requests_late < 3) { /* told a moment later */
        usleep(1000);
    }
    for (int i = 0; i < 3; i++) {
        reply_finish(&replies[i]);
    }
    reply_finish(&gate.reply);
    hearth_tokens_finish(&prompt);
    hearth_tokens_finish(&other);
    hearth_tokens_finish(&fresh);
    close_stage(&stage);
}

/* ---- progress ---- */

static uint32_t told[32];
static size_t told_count;

static void note_progress(void *user, struct hearth_event *event) {
    pthread_mutex_lock(&mutex);
    if (event->type == HEARTH_EVENT_PROGRESS) {
        assert_false(((struct reply *)user)->prefilled);
        assert_true(told_count < 32);
        told[told_count++] = event->prefilled_tokens;
    }
    pthread_mutex_unlock(&mutex);
    deliver(user, event);
}

/* A stage on which half of the prompt's 1,200 tokens are known, and a request for all of it that asks for progress. */
static struct hearth_request open_half_known(struct stage *stage, struct hearth_tokens *prompt) {
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1};
    open_load(stage, &options);
    *prompt = tokens_like(1, 1200);
    struct hearth_request request = request_for(prompt, 2);
    struct reply reply;
    request.deliver = note_progress;
    told_count = 0;
    (void)run(stage, &request, &reply); /* not asked for */
    reply_finish(&reply);
    assert_int_equal(told_count, 0);
    for (size_t i = 600; i < 1200; i++) {
        prompt->v[i] = 5;
    }
    request.progress = true;
    return request;
}

static void progress_is_told(void **state) {
    (void)state;
    struct stage stage;
    struct hearth_tokens prompt;
    struct hearth_request request = open_half_known(&stage, &prompt);
    struct reply reply;
    (void)run(&stage, &request, &reply);
    reply_finish(&reply);
    assert_int_equal(told_count, 2);
    assert_int_equal(told[0], 600);
    assert_int_equal(told[1], 600 + 512);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* ---- what can be seen ---- */

static void a_lane_tells_what_it_computed(void **state) {
    (void)state;
    struct stage stage;
    struct hearth_tokens prompt;
    struct hearth_request request = open_half_known(&stage, &prompt);
    struct gate gate;
    (void)launch_gate(&stage, &request, &gate, 3); /* two of progress, and PREFILLED; the state is that before */
    struct hearth_lane_info lane;
    assert_int_equal(hearth_service_lanes(stage.service, &lane, 1), 1);
    assert_int_equal(lane.state, HEARTH_LANE_PREFILL);
    assert_int_equal(lane.prompt_tokens, 1200);
    assert_int_equal(lane.reused_tokens, 600);
    assert_int_equal(lane.computed_tokens, 512);
    open_gate(&gate, 0);
    await(&gate.reply);
    reply_finish(&gate.reply);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

static void lanes_and_queue_can_be_seen(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 8192, .lanes = 1};
    open_load(&stage, &options);
    struct hearth_tokens prompt = tokens_like(1, 100), head = tokens_like(2, 50);
    struct hearth_request request = request_for(&prompt, 3);
    struct reply replies[4];
    (void)run(&stage, &request, &replies[0]);
    reply_finish(&replies[0]);
    request = request_for(&prompt, 12);
    request.tenant.id = 42;
    struct gate gate;
    /* PREFILLED and five tokens; the state is that after the fourth. */
    int64_t running = launch_gate(&stage, &request, &gate, 6), ids[4];
    static const enum hearth_class classes[4] = {HEARTH_CLASS_PREFETCH, HEARTH_CLASS_BACKGROUND, HEARTH_CLASS_SIDE,
                                                 HEARTH_CLASS_INTERACTIVE};
    for (int i = 0; i < 4; i++) {
        struct hearth_request waiting = request_for(&head, classes[i] == HEARTH_CLASS_PREFETCH ? 0 : 2);
        waiting.priority = classes[i];
        waiting.tenant.id = (uint64_t)i;
        ids[i] = launch(&stage, &waiting, &replies[i]);
    }
    struct hearth_lane_info lane;
    struct hearth_waiting_info waiting[8];
    assert_int_equal(hearth_service_lanes(stage.service, &lane, 1), 1);
    assert_int_equal(lane.state, HEARTH_LANE_DECODE);
    assert_int_equal(lane.request_id, running);
    assert_int_equal(lane.tenant, 42);
    assert_int_equal(lane.reused_tokens, 99);
    assert_int_equal(lane.generated_tokens, 4);
    assert_true(lane.prefill_us > 0 && lane.decode_us >= 3 * 20000 && lane.queue_us >= 0);
    assert_int_equal(hearth_service_waiting(stage.service, waiting, 8), 0); /* they are in the inbox */
    open_gate(&gate, 3);
    await_gate(&gate);
    assert_int_equal(hearth_service_waiting(stage.service, waiting, 8), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waiting[i].request_id, ids[3 - i]);
        assert_int_equal(waiting[i].priority, classes[3 - i]);
        assert_int_equal(waiting[i].tenant, 3 - i);
        assert_int_equal(waiting[i].prompt_tokens, 50);
        assert_false(waiting[i].held);
        assert_true(waiting[i].waited_us > 0 && waiting[i].waited_us < SECOND_US);
    }
    open_gate(&gate, 0);
    await(&gate.reply);
    for (int i = 0; i < 4; i++) {
        await(&replies[i]);
        assert_int_equal(replies[i].err, 0);
        reply_finish(&replies[i]);
    }
    reply_finish(&gate.reply);
    hearth_tokens_finish(&prompt);
    hearth_tokens_finish(&head);
    close_stage(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lane_is_given_to_who_needs_it_more),
        cmocka_unit_test(the_parked_sequence_is_given_on),
        cmocka_unit_test(what_was_preempted_is_kept),
        cmocka_unit_test(who_cannot_be_kept_stays),
        cmocka_unit_test(no_more_wait_than_may),
        cmocka_unit_test(who_is_announced_has_a_seat),
        cmocka_unit_test(short_prompts_gather),
        cmocka_unit_test(preempted_requests_wait_like_others),
        cmocka_unit_test(a_deadline_ends_what_has_begun_and_fails_what_has_not),
        cmocka_unit_test(progress_is_told),
        cmocka_unit_test(a_lane_tells_what_it_computed),
        cmocka_unit_test(lanes_and_queue_can_be_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
