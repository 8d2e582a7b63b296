/* Reports and verdicts: each cause is made by a report that has it and nothing else, and is named; what costs nothing
 * is not named; the ring keeps its bounds. */
#include "report/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A turn that went well: 1,000 tokens, 990 of them reused, 10 ms of prefill, 20 tokens in 200 ms. */
static struct hearth_report good(void) {
    return (struct hearth_report){.id = "req_1",
                                  .method = "POST",
                                  .path = "/v1/chat/completions",
                                  .client = "claude-cli/2.1",
                                  .key = "olga",
                                  .session = "review",
                                  .request_class = "interactive",
                                  .end = "stop",
                                  .at_ms = 1764032400123,
                                  .status = 200,
                                  .computes = true,
                                  .receipt.prompt_tokens = 1000,
                                  .receipt.reused_live_tokens = 990,
                                  .receipt.matched_tokens = 990,
                                  .receipt.computed_tokens = 10,
                                  .generated_tokens = 21,
                                  .receipt.prefill_us = 10000,
                                  .decode_us = 200000,
                                  .ttft_us = 15000,
                                  .total_us = 500000,
                                  .prefill_us_per_token = 1000,
                                  .token_bytes = 1 << 20,
                                  .receipt.reason = HEARTH_REASON_EXTENDED};
}

static struct hearth_report_divergence changed(enum hearth_cause cause, uint32_t saved) {
    return (struct hearth_report_divergence){.cause = cause,
                                             .token = 20,
                                             .message = 3,
                                             .field = "content",
                                             .before = "four files",
                                             .after = "five files",
                                             .own = true,
                                             .saved_tokens = saved};
}

/* A prompt of 1,000 tokens that was computed from token 20 on, in a second. */
static struct hearth_report missed(const struct hearth_report_divergence *divergence) {
    struct hearth_report report = good();
    report.receipt.reused_live_tokens = report.receipt.matched_tokens = 20;
    report.receipt.computed_tokens = 980;
    report.receipt.prefill_us = 980000;
    report.ttft_us = 1000000;
    report.total_us = 1300000;
    report.receipt.reason = HEARTH_REASON_DIVERGED;
    report.divergence = divergence;
    return report;
}

/* The report's costliest verdict is this one. */
static struct hearth_verdict first_is(const struct hearth_report *report, const char *cause) {
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    const size_t n = hearth_verdicts(report, verdicts);
    if (n == 0) {
        fail_msg("no verdict, wanted %s", cause);
    }
    assert_string_equal(hearth_verdict_name(verdicts[0].cause), cause);
    return verdicts[0];
}

static void a_good_turn_has_no_verdict(void **state) {
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    struct hearth_report report = good();
    (void)state;
    assert_int_equal(hearth_verdicts(&report, verdicts), 0);
    report.computes = false;
    report.total_us = 90000000;
    assert_int_equal(hearth_verdicts(&report, verdicts), 0);
}

static void a_volatile_line_is_told_with_its_pattern(void **state) {
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_VOLATILE, 950);
    struct hearth_report_line lines[2] = {
        {.then = "Today: 2026-11-24", .now = "Today: 2026-11-25", .pattern = "^Today:", .number = 3},
        {.then = "", .now = "Note: it rains", .pattern = "^Note:", .number = 7}};
    (void)state;
    divergence.lines = lines;
    divergence.line_count = 1;
    divergence.fixed_tokens = 900;
    struct hearth_report report = missed(&divergence);
    struct hearth_verdict verdict = first_is(&report, "volatile_line");
    assert_int_equal(verdict.tokens, 900);
    assert_in_range(verdict.lost_us, 890000, 910000);
    assert_string_equal(verdict.text,
                        "line 3 of the system text changed (`Today: 2026-11-25`), so 900 tokens were computed again");
    assert_string_equal(verdict.advice,
                        "`--strip-line '^Today:'` would have saved 900 ms (it takes the whole line out)");
    divergence.line_count = 2;
    verdict = first_is(&report, "volatile_line");
    assert_non_null(strstr(verdict.text, ", and 1 more behind it, so"));
    assert_non_null(strstr(verdict.advice, "`--strip-line '^Today:' --strip-line '^Note:'` would have saved 900 ms"));
    lines[1].pattern[0] = '\0'; /* then it saves what stands in front of that one */
    divergence.fixed_tokens = 400;
    verdict = first_is(&report, "volatile_line");
    assert_int_equal(verdict.tokens, 950);
    assert_non_null(strstr(verdict.advice, "`--strip-line '^Today:'` would have saved 400 tokens of them"));
    divergence.lines = &lines[1];
    divergence.line_count = 1;
    verdict = first_is(&report, "volatile_line");
    assert_non_null(strstr(verdict.text, "line 7 of the system text came in (`Note: it"));
    assert_non_null(strstr(verdict.advice, "have the client put what changes into its newest message"));
    lines[1].count = 3;
    assert_non_null(strstr(first_is(&report, "volatile_line").text, "lines 7 to 9 of the system text came in"));
}

/* The line may be right in either conversation, so nothing is advised without an if. */
static void a_line_of_another_conversation_is_told_with_care(void **state) {
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_VOLATILE, 950);
    const struct hearth_report_line line = {
        .then = "Folder: /a", .now = "Folder: /b", .pattern = "^Folder:", .number = 3};
    (void)state;
    divergence.own = false;
    divergence.lines = &line;
    divergence.line_count = 1;
    divergence.fixed_tokens = 950;
    const struct hearth_report report = missed(&divergence);
    const struct hearth_verdict verdict = first_is(&report, "volatile_line");
    assert_string_equal(verdict.text, "line 3 of the system text is not that of an earlier prompt (`Folder: /b`), so "
                                      "950 tokens were computed");
    assert_non_null(strstr(verdict.advice, "where the model can do without it, `--strip-line '^Folder:'` would"));
}

/* As many options as there is room for, and a whole sentence around them. */
static void advice_with_many_long_patterns_is_whole(void **state) {
    static const size_t lengths[] = {127, 127, 127, 36};
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_VOLATILE, 950);
    struct hearth_report_line lines[4] = {{.number = 0}};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        memset(lines[i].pattern, 'a' + (int)i, lengths[i]);
        lines[i].paragraph = true;
    }
    divergence.own = false;
    divergence.lines = lines;
    divergence.fixed_tokens = 950;
    const struct hearth_report report = missed(&divergence);
    for (divergence.line_count = 1; divergence.line_count <= 4; divergence.line_count++) {
        const struct hearth_verdict verdict = first_is(&report, "volatile_line");
        const char *const end = divergence.line_count < 4 ? "up to the next empty line out)" : "nothing else";
        assert_string_equal(verdict.advice + strlen(verdict.advice) - strlen(end), end);
    }
}

static void each_divergence_has_its_cause(void **state) {
    static const struct {
        enum hearth_cause cause;
        const char *name;
    } rows[] = {{HEARTH_CAUSE_EDITED, "edited_message"},       {HEARTH_CAUSE_TRUNCATED, "template_rewrites"},
                {HEARTH_CAUSE_DROPPED, "messages_moved"},      {HEARTH_CAUSE_INSERTED, "messages_moved"},
                {HEARTH_CAUSE_MOVED, "messages_moved"},        {HEARTH_CAUSE_TOOLS, "tools_changed"},
                {HEARTH_CAUSE_ARGUMENTS, "arguments_changed"}, {HEARTH_CAUSE_RENDERED, "template_rewrites"},
                {HEARTH_CAUSE_REPRINTED, "calls_reprinted"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hearth_report_divergence divergence = changed(rows[i].cause, 800);
        const struct hearth_report report = missed(&divergence);
        assert_int_equal(first_is(&report, rows[i].name).tokens, 800);
    }
}

/* It costs all that was computed, whatever of it was known elsewhere. */
static void a_compaction_costs_its_prompt(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_COMPACTED, 100);
    const struct hearth_report report = missed(&divergence);
    (void)state;
    assert_int_equal(first_is(&report, "compacted").tokens, 980);
}

static void a_list_of_tools_is_told_by_what_became_of_it(void **state) {
    static const struct {
        enum hearth_report_tools tools;
        const char *text;
    } rows[] = {{HEARTH_REPORT_TOOL_OTHER, "`grep` stands where `find` stood, so"},
                {HEARTH_REPORT_TOOL_GONE, "the list of tools changed: `find` is gone, so"},
                {HEARTH_REPORT_TOOL_CAME, "`grep` has come in before `find`, so"},
                {HEARTH_REPORT_TOOLS_MOVED, "another order (`grep` stands where `find` stood), so"}};
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_TOOLS, 800);
    (void)state;
    divergence.tool = "grep";
    divergence.tool_then = "find";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        divergence.tools = rows[i].tools;
        const struct hearth_report report = missed(&divergence);
        assert_non_null(strstr(first_is(&report, "tools_changed").text, rows[i].text));
    }
}

/* The line is shown around what changed. */
static void an_edited_line_is_shown_where_it_changed(void **state) {
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 800);
    const struct hearth_report_line line = {
        .then = "All that is known of the state of this place on Monday is that it rains and that there is wind.",
        .now = "All that is known of the state of this place on Tuesday is that it rains and that there is wind.",
        .number = 12};
    (void)state;
    divergence.message = 3;
    divergence.role = "user";
    divergence.lines = &line;
    divergence.line_count = 1;
    const struct hearth_report report = missed(&divergence);
    assert_string_equal(
        first_is(&report, "edited_message").text,
        "line 12 of message 3 (user) changed (`…state of this place on Monday is that it…` became "
        "`…state of this place on Tuesday is that i…`), so 800 tokens from there on had to be computed");
}

/* Where nothing behind the difference was known, the text is new and the client has done nothing wrong. */
static void what_was_never_known_is_new(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 0);
    struct hearth_report report = missed(&divergence);
    (void)state;
    assert_int_equal(first_is(&report, "new_text").tokens, 980);
    report.divergence = NULL;
    report.receipt.reason = HEARTH_REASON_COLD;
    assert_int_equal(first_is(&report, "new_conversation").tokens, 980);
}

static void state_that_is_gone_is_told_with_its_size(void **state) {
    struct hearth_report report = missed(NULL);
    (void)state;
    report.receipt.matched_tokens = 900;
    report.receipt.reason = HEARTH_REASON_EVICTED;
    const struct hearth_verdict verdict = first_is(&report, "evicted");
    assert_int_equal(verdict.tokens, 880);
    assert_string_equal(verdict.text, "880 tokens were known, but their state (880 MiB) had been evicted");
    report.receipt.matched_tokens = 500; /* the tree has forgotten the rest, the transcripts have not */
    report.known_tokens = 900;
    assert_int_equal(first_is(&report, "evicted").tokens, 880);
    report.receipt.matched_tokens = 20;
    report.receipt.reason = HEARTH_REASON_EXTENDED; /* tokens that were only counted before */
    assert_int_equal(first_is(&report, "new_text").tokens, 980);
    report.receipt.matched_tokens = 900;
    report.receipt.reason = HEARTH_REASON_NO_SNAPSHOT;
    assert_int_equal(first_is(&report, "no_snapshot").tokens, 880);
    report.receipt.reason = HEARTH_REASON_RESTORE_FAILED;
    assert_int_equal(first_is(&report, "restore_failed").tokens, 880);
    report.receipt.missing.end = 500; /* of the prompt, state that a plan had */
    report.receipt.matched_tokens = 20;
    assert_int_equal(first_is(&report, "restore_failed").tokens, 480);
    report.receipt.reason = HEARTH_REASON_EVICTED;
    report.receipt.missing.store = true;
    assert_non_null(strstr(first_is(&report, "evicted").text, "had been evicted from the store that boxes share"));
    assert_non_null(strstr(first_is(&report, "evicted").advice, "--kv-remote-ttl"));
}

static void waits_are_told_by_what_was_waited_for(void **state) {
    static const char *const names[HEARTH_WAIT_COUNT] = {
        [HEARTH_WAIT_BATCH] = "shared",        [HEARTH_WAIT_LANE] = "queued",
        [HEARTH_WAIT_PREFIX] = "same_prefix",  [HEARTH_WAIT_CELLS] = "short_of_cells",
        [HEARTH_WAIT_DISK] = "slow_disk",      [HEARTH_WAIT_SCAN] = "scanning",
        [HEARTH_WAIT_PREEMPTED] = "preempted", [HEARTH_WAIT_STORE] = "slow_store",
        [HEARTH_WAIT_WORKER] = "workers"};
    (void)state;
    for (size_t i = 0; i < HEARTH_WAIT_COUNT; i++) {
        struct hearth_report report = good();
        report.receipt.wait_us[i] = 4000000;
        report.total_us += 4000000;
        report.receipt.behind = report.preemptions = 1;
        assert_int_equal(first_is(&report, names[i]).lost_us, 4000000);
    }
    struct hearth_report report = good();
    report.receipt.wait_us[HEARTH_WAIT_LANE] = 2500000;
    report.total_us += 2500000;
    report.receipt.behind = 7;
    report.ahead = "6 of codex/1.0 (session night), 1 of others";
    assert_string_equal(
        first_is(&report, "queued").text,
        "it waited 2.5 s for a lane, behind 7 other requests (when it came, running or waiting: 6 of codex/1.0 "
        "(session night), 1 of others)");
    report = good();
    report.receipt.wait_us[HEARTH_WAIT_CELLS] = 2500000;
    report.total_us += 2500000;
    report.receipt.cells_needed = 9000;
    report.ctx_tokens = 8192;
    assert_non_null(strstr(first_is(&report, "short_of_cells").advice, "`--ctx-size 12288` instead of 8192"));
}

static void times_have_their_causes(void **state) {
    struct hearth_report report = good();
    (void)state;
    report.generated_tokens = 2001;
    report.decode_us = 20000000;
    report.total_us = 20100000;
    assert_string_equal(first_is(&report, "long_reply").text, "the reply has 2,001 tokens, which took 20.0 s");
    report.thinking_tokens = 1500;
    assert_non_null(strstr(first_is(&report, "long_reply").text, "2,001 tokens (1,500 of thinking), which"));
    report.generated_tokens = 20;
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    assert_int_equal(hearth_verdicts(&report, verdicts), 0); /* a slow model is no long reply */

    report = good();
    report.prepare_us = 3000000;
    report.total_us += 3000000;
    report.receipt.prompt_tokens = 1000;
    assert_non_null(strstr(first_is(&report, "preparing").text, "but only 0 ms of work: the machine was busy"));
    report.prepare_cpu_us = 2000000;
    report.known_tokens = 900;
    assert_non_null(strstr(first_is(&report, "preparing").text, "the text of 900 of its 1,000 tokens was known"));
    assert_non_null(strstr(first_is(&report, "preparing").advice, "fewer or smaller tools and schemas"));
    report.known_tokens = 0;
    assert_non_null(strstr(first_is(&report, "preparing").advice, "does the client change its beginning?"));
    report.prepare_db_us = 2000000;
    assert_non_null(strstr(first_is(&report, "preparing").text, "2.0 s of that reading what is kept"));
    report = good();
    report.read_us = 3000000;
    assert_int_equal(first_is(&report, "slow_upload").lost_us, 3000000);
    report = good();
    report.unread_us = 150000;
    assert_int_equal(first_is(&report, "slow_reader").lost_us, 150000);
}

/* A client with a short time limit is told of first, whatever it waited for; time in a wait counts there. */
static void a_client_that_left(void **state) {
    struct hearth_report report = good();
    (void)state;
    report.receipt.prompt_tokens = 8000;
    report.receipt.reused_live_tokens = 1000;
    report.receipt.computed_tokens = 500;
    report.receipt.prefill_us = 2000000;
    report.ttft_us = 0;
    report.total_us = 5000000;
    report.left_us = 4000000;
    const struct hearth_verdict left = first_is(&report, "client_left");
    assert_int_equal(left.lost_us, 4000000);
    assert_string_equal(left.text, "the client left after 4.0 s, before the first token: the state of 1,500 of its "
                                   "prompt's 8,000 tokens was ready");
    assert_non_null(strstr(left.advice, "this prompt takes about 28.0 s alone"));
    report.receipt.wait_us[HEARTH_WAIT_LANE] = 3900000;
    assert_int_equal(first_is(&report, "client_left").lost_us, 100000);
    report.left_us = 90000;
    (void)first_is(&report, "queued");
}

/* What others computed beside it is no part of what its own tokens cost. */
static void what_was_computed_beside_is_told_apart(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 900);
    struct hearth_report report = missed(&divergence);
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    (void)state;
    report.receipt.beside_us = 2000000;
    report.receipt.prefill_us += 2000000;
    report.ttft_us += 2000000;
    report.total_us += 2000000;
    (void)first_is(&report, "edited_message");
    assert_int_equal(hearth_verdicts(&report, verdicts), 2);
    assert_in_range(verdicts[0].lost_us, 890000, 910000);
    assert_int_equal(verdicts[1].cause, HEARTH_VERDICT_SHARED); /* last, however long that took */
    assert_int_equal(verdicts[1].lost_us, 2000000);
    report.total_us += 3000000; /* no longer most of its time */
    assert_int_equal(hearth_verdicts(&report, verdicts), 1);
    report = good();
    report.receipt.reply_beside_us = 150000;
    report.total_us = 250000;
    assert_non_null(strstr(first_is(&report, "shared").text, "150 ms of its reply's time"));
}

static void a_cold_model_is_told_apart_from_long_prompts(void **state) {
    struct hearth_report report = missed(NULL);
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    (void)state;
    report.receipt.reason = HEARTH_REASON_COLD;
    report.receipt.prefill_us = 4980000; /* a millisecond a token, and four seconds of reading */
    report.ttft_us = 5000000;
    assert_int_equal(hearth_verdicts(&report, verdicts), 1); /* it is new: nothing was read */
    report.receipt.faults = 3000;
    assert_int_equal(first_is(&report, "cold_model").lost_us, 4000000);
    report.prefill_us_per_token = 0; /* the first request: its own fastest part tells */
    assert_int_equal(hearth_verdicts(&report, verdicts), 1);
    report.receipt.best_us = 1000000;
    assert_int_equal(first_is(&report, "cold_model").lost_us, 4000000);
    assert_int_equal(hearth_verdicts(&report, verdicts), 2);
    assert_int_equal(verdicts[0].lost_us + verdicts[1].lost_us, report.receipt.prefill_us);
}

static void the_costliest_comes_first(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 300);
    struct hearth_report report = missed(&divergence);
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    (void)state;
    report.receipt.wait_us[HEARTH_WAIT_LANE] = 5000000;
    report.total_us += 5000000;
    const size_t n = hearth_verdicts(&report, verdicts);
    assert_int_equal(n, 3); /* queued, new text, edited */
    for (size_t i = 1; i < n; i++) {
        assert_true(verdicts[i - 1].lost_us >= verdicts[i].lost_us);
    }
    assert_string_equal(hearth_verdict_name(verdicts[0].cause), "queued");
}

/* What nothing can be done about is second, unless the rest is next to nothing. */
static void what_can_be_helped_comes_first(void **state) {
    struct hearth_report report = good();
    (void)state;
    report.generated_tokens = 1000;
    report.preemptions = 1;
    report.receipt.wait_us[HEARTH_WAIT_PREEMPTED] = 3000000;
    report.decode_us = 23000000;
    report.total_us = 23100000;
    assert_int_equal(first_is(&report, "preempted").lost_us, 3000000);
    report.decode_us = 43000000;
    report.total_us = 43100000;
    assert_int_equal(first_is(&report, "long_reply").lost_us, 40000000);
}

/* ---- the ring ---- */

static const struct hearth_digest olga = {1, 1}, ivan = {2, 2};

static json_t *listed(struct hearth_ring *ring, const struct hearth_ring_filter *filter) {
    struct hearth_buf text = {0};
    assert_true(hearth_ring_list(ring, filter, &text));
    json_t *list = json_loadb((const char *)text.data, text.len, 0, NULL);
    hearth_buf_finish(&text);
    assert_non_null(list);
    return list;
}

static void the_ring_keeps_the_last(void **state) {
    struct hearth_ring *ring = hearth_ring_create(3);
    char id[16];
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct hearth_report report = good();
        (void)snprintf(id, sizeof id, "req_%d", i);
        report.id = id;
        assert_true(hearth_ring_add(ring, &report, i % 2 == 0 ? olga : ivan, true));
    }
    json_t *all = listed(ring, &(struct hearth_ring_filter){0});
    assert_int_equal(json_array_size(all), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(all, 0), "id")), "req_4");
    assert_string_equal(json_string_value(json_object_get(json_array_get(all, 2), "id")), "req_2");
    json_decref(all);
    json_t *own = listed(ring, &(struct hearth_ring_filter){.owner = &ivan});
    assert_int_equal(json_array_size(own), 1);
    json_decref(own);
    json_t *one = NULL;
    assert_true(hearth_ring_find(ring, "req_0", NULL, &one));
    assert_null(one);
    assert_true(hearth_ring_find(ring, "req_3", &olga, &one)); /* another owner's */
    assert_null(one);
    assert_true(hearth_ring_find(ring, "req_3", &ivan, &one));
    assert_non_null(one);
    json_decref(one);
    hearth_ring_destroy(ring);
}

/* What was taken out for the database and loaded again is what it was. */
static void the_ring_is_stored_and_loaded(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 300);
    const struct hearth_report report = missed(&divergence);
    struct hearth_ring *ring = hearth_ring_create(3), *next = hearth_ring_create(3);
    struct hearth_ring_fresh fresh[2];
    (void)state;
    assert_true(hearth_ring_add(ring, &report, olga, true));
    assert_int_equal(hearth_ring_take_fresh(ring, fresh, 2), 1);
    assert_int_equal(hearth_ring_take_fresh(ring, fresh + 1, 1), 0); /* it is on its way */
    assert_string_equal(fresh[0].id, "req_1");
    assert_string_equal(fresh[0].session, "review");
    hearth_ring_load(next, "no JSON", NULL, olga, olga);
    hearth_ring_load(next, fresh[0].listed, fresh[0].divergence, fresh[0].owner, fresh[0].turn);
    hearth_ring_mark(ring, fresh[0].number, HEARTH_RING_FRESH);
    hearth_ring_fresh_finish(&fresh[0]);
    assert_int_equal(hearth_ring_take_fresh(ring, fresh, 2), 1); /* tried again */
    hearth_ring_fresh_finish(&fresh[0]);
    const struct hearth_ring_filter filter = {
        .owner = &olga, .session = "review", .key = "olga", .client = "claude-cli", .slow_us = 1000000};
    json_t *was = listed(ring, &filter), *is = listed(next, &filter), *one = NULL;
    assert_int_equal(json_array_size(is), 1);
    assert_true(json_equal(was, is));
    json_t *was_lost = hearth_ring_waste(ring, &filter, 3), *is_lost = hearth_ring_waste(next, &filter, 3);
    assert_int_equal(json_integer_value(json_object_get(is_lost, "again_tokens")), 300);
    assert_true(json_equal(was_lost, is_lost));
    json_decref(was_lost);
    json_decref(is_lost);
    assert_true(hearth_ring_find(next, "req_1", &olga, &one));
    assert_string_equal(json_string_value(json_object_get(json_object_get(one, "divergence"), "before")), "four files");
    json_decref(one);
    json_decref(was);
    json_decref(is);
    hearth_ring_destroy(ring);
    hearth_ring_destroy(next);
}

static bool is_second(const void *user, const char *id) {
    (void)user;
    return strcmp(id, "req_2") == 0;
}

static void what_is_deleted_goes(void **state) {
    static const char *const ids[] = {"req_1", "req_2", "req_3", "req_4"};
    struct hearth_ring *ring = hearth_ring_create(4);
    struct hearth_ring_fresh fresh[4];
    json_t *left;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct hearth_report report = good();
        report.id = ids[i];
        report.session = i == 3 ? "other" : "review";
        report.turn = i == 3 ? ivan : (struct hearth_digest){0, 0};
        assert_true(hearth_ring_add(ring, &report, i == 0 ? ivan : olga, true));
    }
    const size_t n = hearth_ring_take_fresh(ring, fresh, 3);
    for (size_t i = 0; i < n; i++) {
        hearth_ring_mark(ring, fresh[i].number, HEARTH_RING_STORED);
        hearth_ring_fresh_finish(&fresh[i]);
    }
    hearth_ring_drop_deleted(ring, is_second, NULL); /* of those that were stored */
    left = listed(ring, &(struct hearth_ring_filter){0});
    assert_int_equal(json_array_size(left), 2);
    json_decref(left);
    hearth_ring_forget(ring, ivan, "review", (struct hearth_digest){0, 0}); /* another owner's */
    hearth_ring_forget(ring, olga, "review", (struct hearth_digest){0, 0});
    left = listed(ring, &(struct hearth_ring_filter){0});
    assert_int_equal(json_array_size(left), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(left, 0), "id")), "req_4");
    json_decref(left);
    hearth_ring_forget(ring, olga, NULL, ivan);
    left = listed(ring, &(struct hearth_ring_filter){0});
    assert_int_equal(json_array_size(left), 0);
    json_decref(left);
    hearth_ring_destroy(ring);
}

static void texts_are_in_the_look_at_one(void **state) {
    const struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_EDITED, 300);
    const struct hearth_report report = missed(&divergence);
    (void)state;
    for (int texts = 0; texts < 2; texts++) {
        struct hearth_ring *ring = hearth_ring_create(3);
        json_t *one = NULL;
        assert_true(hearth_ring_add(ring, &report, olga, texts));
        json_t *all = listed(ring, &(struct hearth_ring_filter){.client = "claude-cli"});
        const json_t *left = json_object_get(json_array_get(all, 0), "divergence");
        assert_int_equal(json_integer_value(json_object_get(left, "saved_tokens")), 300);
        assert_null(json_object_get(left, "before"));
        json_decref(all);
        assert_true(hearth_ring_find(ring, "req_1", &olga, &one));
        const char *before = json_string_value(json_object_get(json_object_get(one, "divergence"), "before"));
        assert_true(texts ? before != NULL && strcmp(before, "four files") == 0 : before == NULL);
        json_decref(one);
        hearth_ring_destroy(ring);
    }
}

/* What a client calls itself need not be UTF-8; the request is kept all the same. */
static void names_that_are_no_text_are_repaired(void **state) {
    struct hearth_ring *ring = hearth_ring_create(3);
    struct hearth_report report = good();
    (void)state;
    report.client = "caf\xE9/1.0";
    report.error = "\xC3";
    assert_true(hearth_ring_add(ring, &report, olga, true));
    json_t *all = listed(ring, &(struct hearth_ring_filter){0});
    const char *client = json_string_value(json_object_get(json_array_get(all, 0), "client"));
    assert_string_equal(client, "caf\xEF\xBF\xBD/1.0");
    json_decref(all);
    hearth_ring_destroy(ring);
}

static void the_list_is_filtered(void **state) {
    struct hearth_ring *ring = hearth_ring_create(10);
    struct hearth_report report = good();
    (void)state;
    assert_true(hearth_ring_add(ring, &report, olga, true));
    report.session = "other";
    report.client = "codex/1.0";
    report.ttft_us = 5000000;
    assert_true(hearth_ring_add(ring, &report, olga, true));
    const struct {
        struct hearth_ring_filter filter;
        size_t found;
    } rows[] = {{{0}, 2},
                {{.limit = 1}, 1},
                {{.session = "other"}, 1},
                {{.session = "oth"}, 0},
                {{.key = "olga"}, 2},
                {{.client = "codex"}, 1},
                {{.slow_us = 1000000}, 1},
                {{.slow_us = 9000000}, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *list = listed(ring, &rows[i].filter);
        assert_int_equal(json_array_size(list), rows[i].found);
        json_decref(list);
    }
    hearth_ring_destroy(ring);
}

static void the_ring_keeps_its_bytes(void **state) {
    struct hearth_ring *ring = hearth_ring_create(100000);
    char *long_text = malloc(1 << 20);
    (void)state;
    memset(long_text, 'x', (1 << 20) - 1);
    long_text[(1 << 20) - 1] = '\0';
    struct hearth_report report = good();
    report.session = long_text;
    for (int i = 0; i < 20; i++) {
        assert_true(hearth_ring_add(ring, &report, olga, true));
    }
    json_t *all = listed(ring, &(struct hearth_ring_filter){0});
    assert_int_equal(json_array_size(all), HEARTH_RING_BYTES / (1 << 20) - 1);
    json_decref(all);
    hearth_ring_destroy(ring);
    free(long_text);
}

/* ---- what clients lost ---- */

static const json_t *client_at(const json_t *waste, size_t i) {
    return json_array_get(json_object_get(waste, "data"), i);
}

static const json_t *cause_at(const json_t *client, size_t i) {
    return json_array_get(json_object_get(client, "causes"), i);
}

static void is_text(const json_t *json, const char *name, const char *text) {
    const char *found = json_string_value(json_object_get(json, name));
    assert_non_null(found);
    assert_string_equal(found, text);
}

static void is_number(const json_t *json, const char *name, double least, double most) {
    const double found = json_number_value(json_object_get(json, name));
    if (found < least || found > most) {
        fail_msg("%s is %g, not %g to %g", name, found, least, most);
    }
}

/* All clients of a busy server wait, so a wait is the main cause only where it took fifty times as long. */
static void a_wait_is_the_main_cause_when_it_is_long(void **state) {
    static const struct {
        int64_t wait_us;
        const char *main, *other;
    } rows[] = {{40000000, "volatile_line", "queued"}, {50000000, "queued", "volatile_line"}};
    struct hearth_report_divergence divergence = changed(HEARTH_CAUSE_VOLATILE, 900);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hearth_ring *ring = hearth_ring_create(10);
        struct hearth_report report = missed(&divergence); /* 900 ms are lost */
        assert_true(hearth_ring_add(ring, &report, olga, true));
        report = good();
        report.receipt.wait_us[HEARTH_WAIT_LANE] = rows[i].wait_us;
        report.ttft_us = report.total_us = rows[i].wait_us + 1000000;
        assert_true(hearth_ring_add(ring, &report, olga, true));
        json_t *waste = hearth_ring_waste(ring, &(struct hearth_ring_filter){0}, 10);
        is_text(cause_at(client_at(waste, 0), 0), "cause", rows[i].main);
        is_text(cause_at(client_at(waste, 0), 1), "cause", rows[i].other);
        is_number(client_at(waste, 0), "lost_ms", 880, 920);
        is_number(client_at(waste, 0), "waited_ms", (double)rows[i].wait_us / 1e3, (double)rows[i].wait_us / 1e3);
        json_decref(waste);
        hearth_ring_destroy(ring);
    }
}

static void clients_are_summed_up(void **state) {
    struct hearth_report_divergence edited = changed(HEARTH_CAUSE_EDITED, 900);
    struct hearth_report_divergence dated = changed(HEARTH_CAUSE_VOLATILE, 900);
    const struct hearth_report_line line = {.then = "Today: 1", .now = "Today: 2", .pattern = "^Today:", .number = 2};
    struct hearth_ring *ring = hearth_ring_create(10);
    (void)state;
    struct hearth_report report = good();
    report.client = "steady/1.0";
    report.generated_tokens = 200; /* a long reply is no loss */
    report.decode_us = report.total_us = 9000000;
    assert_true(hearth_ring_add(ring, &report, olga, true));
    report = missed(&dated);
    dated.lines = &line;
    dated.line_count = 1;
    dated.fixed_tokens = 900;
    report.id = "req_dated";
    report.session = "busy";
    assert_true(hearth_ring_add(ring, &report, olga, true));
    dated.line_count = 0; /* and a newer one, for which nothing can be typed */
    report.id = "req_later";
    report.session = "quiet";
    report.receipt.prefill_us = 490000;
    assert_true(hearth_ring_add(ring, &report, olga, true));
    report = missed(&edited);
    report.key = "ivan";
    assert_true(hearth_ring_add(ring, &report, ivan, true));
    report.computes = false; /* it asked for no turn */
    assert_true(hearth_ring_add(ring, &report, ivan, true));
    json_t *waste = hearth_ring_waste(ring, &(struct hearth_ring_filter){0}, 10);
    is_number(waste, "requests", 4, 4);
    is_number(waste, "clients", 3, 3);
    is_number(waste, "again_tokens", 2700, 2700);
    is_number(waste, "computed_tokens", 2950, 2950);
    is_text(waste, "since", "2025-11-25T01:00:00.123Z");
    const json_t *worst = client_at(waste, 0);
    is_text(worst, "key", "olga");
    is_number(worst, "requests", 2, 2);
    is_number(worst, "sessions", 2, 2);
    is_text(worst, "session", "busy");
    is_number(cause_at(worst, 0), "times", 2, 2);
    is_text(cause_at(worst, 0), "request", "req_dated");
    assert_non_null(strstr(json_string_value(json_object_get(cause_at(worst, 0), "advice")), "--strip-line '^Today:'"));
    is_text(client_at(waste, 1), "key", "ivan");
    is_text(cause_at(client_at(waste, 1), 0), "cause", "edited_message");
    is_text(client_at(waste, 2), "client", "steady/1.0");
    is_text(cause_at(client_at(waste, 2), 0), "kind", "no_loss");
    json_decref(waste);
    waste = hearth_ring_waste(ring, &(struct hearth_ring_filter){.owner = &ivan}, 10);
    is_number(waste, "requests", 1, 1);
    json_decref(waste);
    waste = hearth_ring_waste(ring, &(struct hearth_ring_filter){0}, 1);
    is_number(waste, "clients", 3, 3);
    assert_int_equal(json_array_size(json_object_get(waste, "data")), 1);
    json_decref(waste);
    hearth_ring_destroy(ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_turn_has_no_verdict),
        cmocka_unit_test(a_volatile_line_is_told_with_its_pattern),
        cmocka_unit_test(a_line_of_another_conversation_is_told_with_care),
        cmocka_unit_test(advice_with_many_long_patterns_is_whole),
        cmocka_unit_test(each_divergence_has_its_cause),
        cmocka_unit_test(a_compaction_costs_its_prompt),
        cmocka_unit_test(a_list_of_tools_is_told_by_what_became_of_it),
        cmocka_unit_test(an_edited_line_is_shown_where_it_changed),
        cmocka_unit_test(what_was_never_known_is_new),
        cmocka_unit_test(state_that_is_gone_is_told_with_its_size),
        cmocka_unit_test(waits_are_told_by_what_was_waited_for),
        cmocka_unit_test(times_have_their_causes),
        cmocka_unit_test(a_client_that_left),
        cmocka_unit_test(what_was_computed_beside_is_told_apart),
        cmocka_unit_test(a_cold_model_is_told_apart_from_long_prompts),
        cmocka_unit_test(the_costliest_comes_first),
        cmocka_unit_test(what_can_be_helped_comes_first),
        cmocka_unit_test(the_ring_keeps_the_last),
        cmocka_unit_test(the_ring_is_stored_and_loaded),
        cmocka_unit_test(what_is_deleted_goes),
        cmocka_unit_test(texts_are_in_the_look_at_one),
        cmocka_unit_test(names_that_are_no_text_are_repaired),
        cmocka_unit_test(the_list_is_filtered),
        cmocka_unit_test(the_ring_keeps_its_bytes),
        cmocka_unit_test(a_wait_is_the_main_cause_when_it_is_long),
        cmocka_unit_test(clients_are_summed_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
