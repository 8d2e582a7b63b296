/* The service on sim, one behaviour per test: scripts, reasoning budgets, greedy syntax, printed tokens, stop strings,
 * limits, and where snapshots are taken. That replies are right whatever the cache does is tested by
 * tests/model/service_model_test.c. */
#include "support/service_stage.h"

/* ---- scripts ---- */

static void a_script_is_said(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_of(&stage, "hello"), script = tokens_of(&stage, "<call>{\"a\": 1}</call>");
    struct hearth_request request = request_of(&prompt);
    request.script = script.v;
    request.script_count = script.n;
    request.sampling.logprobs = 3;
    struct reply reply;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "<call>{\"a\": 1}</call>");
    assert_int_equal(reply.tokens.n, script.n + 1);
    assert_memory_equal(reply.tokens.v, script.v, script.n * sizeof *script.v);
    assert_int_equal(reply.tokens.v[script.n], stage.engine->caps.end_token);
    assert_int_equal(reply.finish, HEARTH_FINISH_STOP);
    assert_int_equal(reply.first.n, 3);
    assert_true(reply.first.chosen < 0);
    reply_finish(&reply);
    /* Limits and stop strings hold for it too. */
    request.max_tokens = 3;
    run(&stage, &request, &reply);
    assert_int_equal(reply.tokens.n, 3);
    assert_int_equal(reply.finish, HEARTH_FINISH_LENGTH);
    reply_finish(&reply);
    const char *stops[] = {"\"a\""};
    request.max_tokens = -1;
    request.stops = stops;
    request.stop_count = 1;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "<call>{");
    assert_string_equal(reply.stop, "\"a\"");
    reply_finish(&reply);
    hearth_tokens_finish(&prompt);
    hearth_tokens_finish(&script);
    close_stage(&stage);
}

static void printed_tokens_are_seen(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_of(&stage, "hello"), mark = tokens_of(&stage, "<|im_start|>"),
                         script = tokens_of(&stage, "a<|im_start|>b");
    assert_int_equal(mark.n, 1);
    struct hearth_request request = request_of(&prompt);
    request.script = script.v;
    request.script_count = script.n;
    struct reply reply;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "ab");
    reply_finish(&reply);
    request.printed = mark.v;
    request.printed_count = 1;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "a<|im_start|>b");
    reply_finish(&reply);
    hearth_tokens_finish(&prompt);
    hearth_tokens_finish(&mark);
    hearth_tokens_finish(&script);
    close_stage(&stage);
}

static void tokens_are_checked(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_of(&stage, "hello");
    const hearth_token bad[] = {5, (hearth_token)stage.engine->caps.vocab_tokens};
    const hearth_token *const ends[] = {bad};
    const size_t two = 2;
    struct hearth_thinking thinking[4] = {{.start = bad, .start_count = 2},
                                          {.ends = ends, .end_counts = &two, .end_count = 1},
                                          {.prefill = bad, .prefill_count = 2},
                                          {.forced = bad, .forced_count = 2}};
    struct hearth_grammar grammar[2] = {{.text = "", .tokens = bad, .token_count = 2},
                                        {.text = "", .prefill = bad, .prefill_count = 2}};
    for (int i = 0; i < 8; i++) {
        struct hearth_request request = request_of(&prompt);
        struct hearth_errmsg msg = {""};
        request.script = request.printed = bad;
        request.script_count = i == 0 ? 2 : 0;
        request.printed_count = i == 1 ? 2 : 0;
        request.thinking = i >= 2 && i < 6 ? &thinking[i - 2] : NULL;
        request.sampling.grammar = i >= 6 ? &grammar[i - 6] : NULL;
        assert_int_equal(hearth_service_submit(stage.service, &request, &msg), HEARTH_ERR_INVALID);
        assert_true(strstr(msg.text, "vocabulary") != NULL);
    }
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
}

/* ---- reasoning ---- */

static void a_thought_that_is_too_long_is_ended(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompt = tokens_of(&stage, "hello"), start = tokens_of(&stage, "[T]"),
                         end = tokens_of(&stage, "[/T]"), forced = tokens_of(&stage, " enough[/T]"),
                         script = tokens_of(&stage, "[T]a\xC3\xA9rest");
    const hearth_token *const ends[] = {end.v};
    struct hearth_thinking thinking = {.start = start.v,
                                       .start_count = start.n,
                                       .ends = ends,
                                       .end_counts = &end.n,
                                       .end_count = 1,
                                       .budget_tokens = 2,
                                       .forced = forced.v,
                                       .forced_count = forced.n};
    struct hearth_request request = request_of(&prompt);
    request.thinking = &thinking;
    request.script = script.v;
    request.script_count = script.n;
    struct reply reply;
    run(&stage, &request, &reply);
    /* sim has no token for a character of two bytes: the second token of the budget leaves it unfinished. */
    assert_string_equal((const char *)reply.text.data, "[T]a\xC3\xA9 enough[/T]rest");
    assert_int_equal(reply.tokens.n, script.n + forced.n + 1);
    reply_finish(&reply);
    thinking.budget_tokens = 0;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "[T] enough[/T]a\xC3\xA9rest");
    reply_finish(&reply);
    thinking.budget_tokens = -1;
    run(&stage, &request, &reply);
    assert_string_equal((const char *)reply.text.data, "[T]a\xC3\xA9rest");
    reply_finish(&reply);
    /* The prompt may have begun it. */
    thinking.budget_tokens = 1;
    thinking.prefill = start.v;
    thinking.prefill_count = start.n;
    struct hearth_tokens rest = tokens_of(&stage, "xyz");
    request.script = rest.v;
    request.script_count = rest.n;
    run(&stage, &request, &reply);
    assert_true(strstr((const char *)reply.text.data, " enough[/T]") != NULL);
    reply_finish(&reply);
    hearth_tokens_finish(&prompt);
    hearth_tokens_finish(&start);
    hearth_tokens_finish(&end);
    hearth_tokens_finish(&forced);
    hearth_tokens_finish(&script);
    hearth_tokens_finish(&rest);
    close_stage(&stage);
}

/* ---- preemption ---- */

/* A reply whose beginning lets another request come. */
struct opener {
    struct reply reply; /* the first: deliver()'s user */
    struct stage *stage;
    struct hearth_request next;
    struct reply *next_reply;
    bool opened;
};

static void deliver_and_open(void *user, struct hearth_event *event) {
    struct opener *opener = user;
    if (!opener->opened) {
        opener->opened = true;
        launch(opener->stage, &opener->next, opener->next_reply);
    }
    deliver(&opener->reply, event);
}

/* Two requests that do not fit together: one is preempted in the middle of its script and of its thought, and goes on
 * where it was. */
static void preemption_keeps_everything(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES_SNAPSHOT, 256);
    struct hearth_tokens prompts[2] = {{0}, {0}}, script = {0};
    for (int i = 0; i < 100; i++) {
        assert_true(hearth_tokens_push(&prompts[0], 'a') && hearth_tokens_push(&prompts[1], 'b'));
        assert_true(hearth_tokens_push(&script, 'a' + i % 26));
    }
    hearth_token start[] = {'a', 'b', 'c'}, end[] = {'<'}, forced[] = {'.', '<'};
    const hearth_token *const ends[] = {end};
    const size_t one = 1;
    struct hearth_thinking thinking = {.start = start,
                                       .start_count = 3,
                                       .ends = ends,
                                       .end_counts = &one,
                                       .end_count = 1,
                                       .budget_tokens = 60,
                                       .forced = forced,
                                       .forced_count = 2};
    struct hearth_request request = request_of(&prompts[0]);
    request.script = script.v;
    request.script_count = script.n;
    request.thinking = &thinking;
    request.max_tokens = -1;
    struct reply second;
    struct opener first = {.stage = &stage, .next = request, .next_reply = &second};
    struct reply *const replies[] = {&first.reply, &second};
    first.next.prompt = prompts[1].v;
    request.deliver = deliver_and_open;
    launch(&stage, &request, &first.reply);
    char wanted[110];
    for (int i = 0, n = 0; i < 100; i++) {
        if (i == 63) {
            memcpy(wanted + n, ".<", 2);
            n += 2;
        }
        wanted[n++] = (char)('a' + i % 26);
        wanted[n] = '\0';
    }
    for (int i = 0; i < 2; i++) {
        await(replies[i]);
        assert_int_equal(replies[i]->err, 0);
    }
    struct hearth_service_stats stats;
    hearth_service_drain(stage.service, 1000000);
    hearth_service_stats(stage.service, &stats);
    assert_true(stats.preemptions > 0);
    /* A new start ("abc", 26 letters on) begins a new thought, which is not over when the script is. */
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(replies[i]->text.data, wanted, 78);
        reply_finish(replies[i]);
        hearth_tokens_finish(&prompts[i]);
    }
    hearth_tokens_finish(&script);
    close_stage(&stage);
}

/* ---- marks ---- */

/* So many snapshots are stored once everything is. */
static void settles_at(struct stage *stage, uint64_t snapshots) {
    struct hearth_service_stats stats = {0};
    for (int i = 0; i < 1000 && stats.snapshots < snapshots; i++) {
        usleep(10000);
        hearth_service_stats(stage->service, &stats);
    }
    usleep(100000); /* for one too many */
    hearth_service_stats(stage->service, &stats);
    assert_int_equal(stats.snapshots, snapshots);
}

/* How many tokens a request computes that leaves the one before it at `fork`, where that one left so many snapshots. */
static uint32_t computed_after(const int32_t *marks, size_t mark_count, size_t prompt_tokens, size_t fork,
                               uint64_t snapshots) {
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES_SNAPSHOT, 8192);
    struct hearth_tokens prompt = {0};
    for (size_t i = 0; i < prompt_tokens; i++) {
        assert_true(hearth_tokens_push(&prompt, (hearth_token)(97 + i * i % 26)));
    }
    struct hearth_request request = request_of(&prompt);
    request.marks = marks;
    request.mark_count = mark_count;
    request.max_tokens = 3;
    request.sampling.ignore_eos = true;
    struct reply reply;
    run(&stage, &request, &reply);
    reply_finish(&reply);
    settles_at(&stage, snapshots);
    for (size_t i = fork; i < prompt_tokens; i++) {
        prompt.v[i] = 'A';
    }
    request.mark_count = 0;
    run(&stage, &request, &reply);
    uint32_t computed = reply.receipt.computed_tokens;
    reply_finish(&reply);
    hearth_tokens_finish(&prompt);
    close_stage(&stage);
    return computed;
}

static void a_mark_near_the_end_stands_for_it(void **state) {
    (void)state;
    /* Without a mark there are the ends of prompt and reply, and the fork is before both. */
    assert_int_equal(computed_after(NULL, 0, 500, 496, 2), 500);
    /* The mark is instead of the prompt's end, not beside it. */
    const int32_t end[] = {496};
    assert_int_equal(computed_after(end, 1, 500, 496, 2), 4);
    /* A mark that is farther away is one more. */
    const int32_t far[] = {400};
    assert_int_equal(computed_after(far, 1, 500, 400, 3), 100);
    /* One that is close to it stays: a short question behind a long system text. Of others, the first. */
    const int32_t both[] = {300, 480, 496};
    assert_int_equal(computed_after(both, 3, 500, 496, 4), 4);
    assert_int_equal(computed_after(both, 3, 500, 490, 4), 20);
    const int32_t pair[] = {300, 310};
    assert_int_equal(computed_after(pair, 2, 500, 320, 3), 200);
    /* A short prompt, too. */
    const int32_t tiny[] = {9};
    assert_int_equal(computed_after(tiny, 1, 12, 9, 2), 3);
}

/* What goes on with the reply as soon as it has ended: from the service's thread, so that nothing comes between. */
struct next_turn {
    struct stage *stage;
    struct hearth_request request;
    struct reply reply;
};

static void deliver_and_go_on(void *user, struct hearth_event *event) {
    struct next_turn *next = user;
    bool done = event->type == HEARTH_EVENT_DONE;
    hearth_event_destroy(event);
    if (done) {
        struct hearth_errmsg msg = {""};
        HEARTH_ASSERT(hearth_service_submit(next->stage->service, &next->request, &msg) > 0);
    }
}

static void a_replys_end_is_kept_when_the_next_turn_comes_at_once(void **state) {
    (void)state;
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES_SNAPSHOT, 8192);
    struct hearth_tokens script = tokens_of(&stage, "a reply of some length, so that it is worth a snapshot"),
                         first = {0}, second = {0}, third = {0};
    for (hearth_token i = 0; i < 200; i++) {
        assert_true(hearth_tokens_push(&first, 5 + i % 50));
    }
    assert_true(hearth_tokens_append(&second, first.v, first.n) && hearth_tokens_append(&second, script.v, script.n));
    assert_true(hearth_tokens_append(&third, second.v, second.n));
    size_t end = second.n;
    for (hearth_token i = 0; i < 100; i++) {
        assert_true(hearth_tokens_push(&second, 60 + i % 7) && hearth_tokens_push(&third, 70 + i % 7));
    }
    struct next_turn next = {.stage = &stage, .request = request_of(&second)};
    next.request.max_tokens = 2;
    next.request.user = &next.reply;
    struct hearth_request request = request_of(&first);
    struct hearth_errmsg msg = {""};
    request.script = script.v;
    request.script_count = script.n;
    request.deliver = deliver_and_go_on;
    request.user = &next;
    assert_true(hearth_service_submit(stage.service, &request, &msg) > 0);
    await(&next.reply);
    assert_int_equal(next.reply.receipt.computed_tokens, second.n - end);
    /* Back to where the first reply ended. */
    struct reply reply;
    request = request_of(&third);
    request.max_tokens = 2;
    run(&stage, &request, &reply);
    assert_int_equal(reply.receipt.computed_tokens, third.n - end);
    reply_finish(&reply);
    reply_finish(&next.reply);
    hearth_tokens_finish(&first);
    hearth_tokens_finish(&second);
    hearth_tokens_finish(&third);
    hearth_tokens_finish(&script);
    close_stage(&stage);
}

/* Three prompts that share a few tokens: the second, which leaves the known path there, leaves a snapshot behind. */
static uint32_t computed_at_fork(size_t shared) {
    struct stage stage;
    uint32_t computed = 0;
    open_stage(&stage, HEARTH_ENGINE_PAGES_SNAPSHOT, 8192);
    for (hearth_token k = 0; k < 3; k++) {
        struct hearth_tokens prompt = {0};
        for (size_t i = 0; i < 200; i++) {
            assert_true(hearth_tokens_push(&prompt, i < shared ? 5 + (hearth_token)i : 100 + k));
        }
        struct hearth_request request = request_of(&prompt);
        struct reply reply;
        request.max_tokens = 2;
        run(&stage, &request, &reply);
        computed = reply.receipt.computed_tokens;
        reply_finish(&reply);
        hearth_tokens_finish(&prompt);
    }
    close_stage(&stage);
    return computed;
}

static void forks_of_few_tokens_are_kept(void **state) {
    (void)state;
    assert_int_equal(computed_at_fork(40), 160);
    assert_int_equal(computed_at_fork(20), 180);
    assert_int_equal(computed_at_fork(12), 200); /* not worth a batch of its own */
}

/* Whether the second of two prompts that come at once, and share so many tokens, is held until the first has computed
 * them. */
static bool second_is_held(size_t shared) {
    struct stage stage;
    open_stage(&stage, HEARTH_ENGINE_PAGES, 8192);
    struct hearth_tokens prompts[3] = {{0}};
    struct hearth_request requests[3];
    struct reply replies[2];
    struct gate gate;
    for (hearth_token k = 0; k < 3; k++) {
        for (size_t i = 0; i < 200; i++) {
            assert_true(hearth_tokens_push(&prompts[k], k < 2 && i < shared ? 5 + (hearth_token)i : 200 + k));
        }
        requests[k] = request_of(&prompts[k]);
        requests[k].max_tokens = 3;
        requests[k].sampling.ignore_eos = true;
    }
    (void)launch_gate(&stage, &requests[2], &gate, 2);
    (void)launch(&stage, &requests[0], &replies[0]);
    (void)launch(&stage, &requests[1], &replies[1]);
    open_gate(&gate, 0);
    for (int i = 0; i < 2; i++) {
        await(&replies[i]);
        assert_int_equal(replies[i].err, 0);
        reply_finish(&replies[i]);
    }
    await(&gate.reply);
    reply_finish(&gate.reply);
    const bool held = replies[1].receipt.wait_us[HEARTH_WAIT_PREFIX] > 0;
    assert_int_equal(replies[1].receipt.computed_tokens, held ? 200 - shared : 200);
    for (int k = 0; k < 3; k++) {
        hearth_tokens_finish(&prompts[k]);
    }
    close_stage(&stage);
    return held;
}

/* Prompts of one template share the tokens that it begins with: no reason to wait. */
static void prompts_wait_for_what_they_share(void **state) {
    (void)state;
    assert_false(second_is_held(20));
    assert_true(second_is_held(100));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_script_is_said),
        cmocka_unit_test(printed_tokens_are_seen),
        cmocka_unit_test(tokens_are_checked),
        cmocka_unit_test(a_thought_that_is_too_long_is_ended),
        cmocka_unit_test(preemption_keeps_everything),
        cmocka_unit_test(a_mark_near_the_end_stands_for_it),
        cmocka_unit_test(a_replys_end_is_kept_when_the_next_turn_comes_at_once),
        cmocka_unit_test(forks_of_few_tokens_are_kept),
        cmocka_unit_test(prompts_wait_for_what_they_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
