/* More conversations than cells, on sim: all are answered, and none is preempted again and again. */
#include "sched/step.h"
#include "support/load_stage.h"

#define CROWD 16

static void all_of_a_crowd_are_answered(void **state) {
    (void)state;
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        struct stage stage;
        const struct stage_options options = {
            .memory_class = (enum hearth_engine_class)memory_class, .ctx_tokens = 8192, .lanes = 4};
        open_load(&stage, &options);
        struct hearth_tokens prompts[CROWD];
        struct reply replies[CROWD];
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < CROWD; i++) {
                if (turn == 0) {
                    prompts[i] = tokens_like(i, 3000);
                }
                struct hearth_request request = request_for(&prompts[i], 20 + 7 * i);
                (void)launch(&stage, &request, &replies[i]);
            }
            for (int i = 0; i < CROWD; i++) {
                await(&replies[i]);
                assert_int_equal(replies[i].err, 0);
                assert_int_equal(replies[i].tokens.n, 20 + 7 * i);
                check_reply(&stage, &prompts[i], &replies[i]);
                if (turn == 1) { /* none has to be computed anew */
                    assert_true(replies[i].receipt.computed_tokens <= 2);
                }
                assert_true(hearth_tokens_append(&prompts[i], replies[i].tokens.v, replies[i].tokens.n));
                assert_true(hearth_tokens_push(&prompts[i], 7));
                reply_finish(&replies[i]);
            }
        }
        for (int i = 0; i < CROWD; i++) {
            hearth_tokens_finish(&prompts[i]);
        }
        close_stage(&stage);
    }
}

/* ---- a few that do not fit beside each other ---- */

/* A request of a better class comes so late that its start tag is larger. It lacks cells, and takes those of the other
 * one: once, and not again for every token of that one. */
static void two_who_do_not_fit_take_turns_once(void **state) {
    (void)state;
    static const enum hearth_engine_class classes[] = {HEARTH_ENGINE_PAGES, HEARTH_ENGINE_PAGES_SNAPSHOT,
                                                       HEARTH_ENGINE_OPAQUE}; /* the fourth needs no cells */
    struct hearth_tokens old = tokens_like(1, 1000), late = tokens_like(2, 1400);
    for (uint32_t i = 0; i < 6; i++) {
        struct stage stage;
        const struct stage_options options = {
            .memory_class = classes[i % 3], .ctx_tokens = 2048, .lanes = 2, .parked = i / 3, .decode_tokens_per_s = 2};
        open_load(&stage, &options);
        struct hearth_request first = request_for(&old, 60), second = request_for(&late, 5);
        struct gate gate;
        struct reply reply;
        first.priority = HEARTH_CLASS_BACKGROUND;
        first.speculate_off = second.speculate_off = true;
        (void)launch_gate(&stage, &first, &gate, 10);        /* its prompt and nine tokens */
        hearth_sim_advance_us(stage.engine, 15 * SECOND_US); /* more than the patience of its class */
        (void)launch(&stage, &second, &reply);
        open_gate(&gate, 0);
        await(&reply);
        await(&gate.reply);
        assert_int_equal(reply.err, 0);
        assert_int_equal(gate.reply.err, 0);
        assert_int_equal(gate.reply.tokens.n, 60);
        check_reply(&stage, &old, &gate.reply);
        check_reply(&stage, &late, &reply);
        struct hearth_service_stats stats = stats_of(&stage);
        assert_in_range(stats.preemptions + stats.yields, 1, 3);
        assert_true(reply.place < gate.reply.place);
        reply_finish(&reply);
        reply_finish(&gate.reply);
        close_stage(&stage);
    }
    hearth_tokens_finish(&old);
    hearth_tokens_finish(&late);
}

/* A lane is free, but not the cells: the request that has them generates for longer than a slice, and then the waiting
 * one has a right to them, although nothing else has changed. */
static void a_long_reply_gives_its_cells_up(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {.ctx_tokens = 2048, .lanes = 2, .decode_tokens_per_s = 2};
    open_load(&stage, &options);
    struct hearth_tokens old = tokens_like(1, 1000), late = tokens_like(2, 1400);
    struct hearth_request first = request_for(&old, 200), second = request_for(&late, 5);
    struct gate gate;
    struct reply reply;
    first.speculate_off = second.speculate_off = true;
    (void)launch_gate(&stage, &first, &gate, 2);
    (void)launch(&stage, &second, &reply);
    open_gate(&gate, 0);
    await(&reply);
    await(&gate.reply);
    assert_true(reply.place < gate.reply.place);
    check_reply(&stage, &old, &gate.reply);
    check_reply(&stage, &late, &reply);
    reply_finish(&reply);
    reply_finish(&gate.reply);
    hearth_tokens_finish(&old);
    hearth_tokens_finish(&late);
    close_stage(&stage);
}

/* All lanes are busy, and one that is given to a better class does not bring it the cells it needs: those come from
 * another. To bring its state back takes so long that each lane might be taken again when that is done. */
static void lanes_are_not_taken_again_and_again_for_want_of_cells(void **state) {
    (void)state;
    enum { BRIEF = 3 };
    struct stage stage;
    const struct stage_options options = {
        .ctx_tokens = 1772, .lanes = BRIEF, .prefill_tokens_per_s = 100, .import_bytes_per_s = 54400};
    open_load(&stage, &options);
    struct hearth_tokens whole = tokens_like(9, 1740), known = {.v = whole.v, .n = 1700}, brief[BRIEF];
    struct hearth_request request = request_for(&known, 1), late = request_for(&whole, 5);
    struct reply replies[BRIEF - 1], reply;
    struct gate gate;
    (void)run(&stage, &request, &reply); /* it is stored */
    reply_finish(&reply);
    for (int i = 0; i < BRIEF; i++) {
        brief[i] = tokens_like(i, 20);
        request = request_for(&brief[i], 300);
        request.priority = HEARTH_CLASS_BACKGROUND;
        request.speculate_off = true;
        if (i == 0) {
            (void)launch_gate(&stage, &request, &gate, 1);
        } else {
            (void)launch(&stage, &request, &replies[i - 1]);
        }
    }
    open_gate(&gate, 6); /* all generate */
    await_gate(&gate);
    hearth_sim_advance_us(stage.engine, 11 * SECOND_US);
    late.speculate_off = true;
    int64_t id = launch(&stage, &late, &reply);
    open_gate(&gate, 0);
    for (bool done = false; !done;) {
        usleep(1000);
        if (stats_of(&stage).yields > 20) {
            hearth_service_cancel(stage.service, id); /* it would not end */
        }
        pthread_mutex_lock(&mutex);
        done = reply.done;
        pthread_mutex_unlock(&mutex);
    }
    assert_int_equal(reply.err, 0);
    assert_in_range(stats_of(&stage).yields + stats_of(&stage).preemptions, 1, 4 * BRIEF);
    check_reply(&stage, &whole, &reply);
    await(&gate.reply);
    check_reply(&stage, &brief[0], &gate.reply);
    for (int i = 0; i < BRIEF - 1; i++) {
        await(&replies[i]);
        check_reply(&stage, &brief[i + 1], &replies[i]);
        reply_finish(&replies[i]);
    }
    reply_finish(&reply);
    reply_finish(&gate.reply);
    for (int i = 0; i < BRIEF; i++) {
        hearth_tokens_finish(&brief[i]);
    }
    hearth_tokens_finish(&whole);
    close_stage(&stage);
}

/* A request that lacked cells and is now held for something else could do nothing with a victim's cells. */
static void only_who_is_held_for_cells_could_use_them(void **state) {
    (void)state;
    const struct hearth_step_params params = {.lanes = 1, .batch_tokens = 512, .chunk_tokens = 512};
    const struct hearth_step_request runs = {.id = 1, .priority = HEARTH_CLASS_BACKGROUND};
    const struct hearth_step_request waits = {.id = 2, .priority = HEARTH_CLASS_INTERACTIVE};
    struct hearth_step *step = hearth_step_create(&params);
    bool victim;
    assert_true(hearth_step_submit(step, &runs) && hearth_step_submit(step, &waits));
    hearth_step_assign(step, runs.id, 0, 0, 1000, NULL, 0, 0, 0);
    hearth_step_hold(step, waits.id, true, 2);
    assert_true(hearth_step_lacks_cells(step, 2, &victim) && victim);
    hearth_step_changed(step);
    assert_true(hearth_step_lacks_cells(step, 2, &victim) && !victim);
    hearth_step_hold(step, waits.id, false, 2);
    assert_true(hearth_step_lacks_cells(step, 2, &victim) && !victim);
    hearth_step_hold(step, waits.id, true, 2);
    assert_true(hearth_step_lacks_cells(step, 2, &victim) && victim);
    hearth_step_destroy(step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_a_crowd_are_answered),
        cmocka_unit_test(two_who_do_not_fit_take_turns_once),
        cmocka_unit_test(a_long_reply_gives_its_cells_up),
        cmocka_unit_test(lanes_are_not_taken_again_and_again_for_want_of_cells),
        cmocka_unit_test(only_who_is_held_for_cells_could_use_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
