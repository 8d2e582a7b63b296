/* The plan as a table: what is stored, what is live, what the prompt is → what is reused, how and why. */
#include "base/assert.h"
#include "cache/planner.h"
#include "cache/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Sequences are written as text, one character a token; '*' in front of a live one says that it is busy. */
struct row {
    const char *name;
    enum hearth_engine_class memory_class;
    const char *stored[3];
    int32_t snapshots[3]; /* position in stored[0]; 0 = none */
    const char *live[3];
    const char *prompt;
    enum hearth_resume how;
    int target;
    int32_t resume, live_tokens, divergence;
    enum hearth_reason reason;
};

#define PAGES HEARTH_ENGINE_PAGES
#define HYBRID HEARTH_ENGINE_PAGES_SNAPSHOT
#define RECURRENT HEARTH_ENGINE_SNAPSHOT

static const struct row rows[] = {
    {"nothing known", PAGES, {0}, {0}, {"", ""}, "abcdef", HEARTH_RESUME_FRESH, 0, 0, 0, 0, HEARTH_REASON_COLD},
    {"live continued",
     PAGES,
     {0},
     {0},
     {"xyz", "abc"},
     "abcdef",
     HEARTH_RESUME_IN_PLACE,
     1,
     3,
     3,
     0,
     HEARTH_REASON_EXTENDED},
    {"live wins over stored",
     PAGES,
     {"abcd"},
     {0},
     {"abcd", ""},
     "abcdef",
     HEARTH_RESUME_IN_PLACE,
     0,
     4,
     4,
     0,
     HEARTH_REASON_EXTENDED},
    {"a branch leaves the other alive",
     PAGES,
     {0},
     {0},
     {"abcX", ""},
     "abcdef",
     HEARTH_RESUME_SHARE,
     1,
     3,
     3,
     0,
     HEARTH_REASON_DIVERGED},
    {"a branch leaves the other alive where little is lost for it",
     PAGES,
     {0},
     {0},
     {"pqrs", "abcX"},
     "abcdef",
     HEARTH_RESUME_SHARE,
     0,
     3,
     3,
     0,
     HEARTH_REASON_DIVERGED},
    {"a request again rewinds where it stands",
     PAGES,
     {0},
     {0},
     {"pqrstuvwxyz01234", "abcdef"},
     "abcdef",
     HEARTH_RESUME_IN_PLACE,
     1,
     5,
     5,
     0,
     HEARTH_REASON_NONE},
    {"a branch with one lane rewinds it",
     PAGES,
     {0},
     {0},
     {"abcX"},
     "abcdef",
     HEARTH_RESUME_IN_PLACE,
     0,
     3,
     3,
     0,
     HEARTH_REASON_DIVERGED},
    {"a busy sequence is shared from",
     PAGES,
     {0},
     {0},
     {"*abcd", ""},
     "abcdef",
     HEARTH_RESUME_SHARE,
     1,
     4,
     4,
     0,
     HEARTH_REASON_EXTENDED},
    {"stored behind live",
     PAGES,
     {"abcdef"},
     {0},
     {"*abX", ""},
     "abcdefgh",
     HEARTH_RESUME_STORED,
     1,
     6,
     2,
     0,
     HEARTH_REASON_EXTENDED},
    {"the last token is computed",
     PAGES,
     {"abcdef"},
     {0},
     {""},
     "abcdef",
     HEARTH_RESUME_STORED,
     0,
     5,
     0,
     0,
     HEARTH_REASON_NONE},
    {"half a page", PAGES, {"abcdef"}, {0}, {""}, "abcxyz", HEARTH_RESUME_STORED, 0, 3, 0, 0, HEARTH_REASON_DIVERGED},
    {"hybrid continues its end",
     HYBRID,
     {"abc"},
     {0},
     {"abc"},
     "abcdef",
     HEARTH_RESUME_IN_PLACE,
     0,
     3,
     3,
     0,
     HEARTH_REASON_EXTENDED},
    {"hybrid without a snapshot",
     HYBRID,
     {"abcdef"},
     {0},
     {""},
     "abcdxy",
     HEARTH_RESUME_FRESH,
     0,
     0,
     0,
     4,
     HEARTH_REASON_NO_SNAPSHOT},
    {"hybrid takes the latest snapshot",
     HYBRID,
     {"abcdef"},
     {2, 3, 6},
     {""},
     "abcdxy",
     HEARTH_RESUME_STORED,
     0,
     3,
     0,
     4,
     HEARTH_REASON_NO_SNAPSHOT},
    {"hybrid copies another's end",
     HYBRID,
     {0},
     {0},
     {"*abc", ""},
     "abcdef",
     HEARTH_RESUME_LIVE_END,
     1,
     3,
     3,
     0,
     HEARTH_REASON_EXTENDED},
    {"hybrid snapshot over shared pages",
     HYBRID,
     {"abcdef"},
     {3},
     {"*abcdX", ""},
     "abcdef",
     HEARTH_RESUME_STORED,
     1,
     3,
     3,
     5,
     HEARTH_REASON_NO_SNAPSHOT},
    {"recurrent needs the exact position",
     RECURRENT,
     {"abcdef"},
     {4},
     {""},
     "abcdef",
     HEARTH_RESUME_STORED,
     0,
     4,
     0,
     5,
     HEARTH_REASON_NO_SNAPSHOT},
};

struct fixture {
    struct hearth_tree tree;
    struct hearth_page *root;
    struct hearth_path path;
    struct hearth_live lives[3];
    const struct hearth_live *list[3];
    int32_t floors[3], commons[3];
    size_t live_count;
};

static size_t read_tokens(const char *text, hearth_token *tokens) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (unsigned char)text[i];
    }
    return n;
}

static void store(struct fixture *f, const char *text, const int32_t *snapshots) {
    hearth_token tokens[64];
    int32_t n = (int32_t)read_tokens(text, tokens);
    assert_true(hearth_tree_match(f->root, tokens, (size_t)n, &f->path));
    while (f->path.matched < n) {
        assert_non_null(
            hearth_tree_add(&f->tree, &f->path, tokens, 0, hearth_tree_page_end(&f->tree, f->path.matched, n), NULL));
    }
    for (int i = 0; snapshots && i < 3 && snapshots[i] > 0; i++) {
        assert_non_null(hearth_tree_add_snapshot(&f->tree, &f->path, snapshots[i], NULL, HEARTH_SNAPSHOT_MARK));
    }
    hearth_tree_check(&f->tree);
}

static void go_live(struct fixture *f, const char *text, bool rewinds) {
    struct hearth_live *live = &f->lives[f->live_count];
    live->busy = text[0] == '*';
    hearth_token tokens[64];
    size_t n = read_tokens(text + live->busy, tokens);
    assert_true(hearth_tokens_assign(&live->tokens, tokens, n));
    live->used_us = (int64_t)f->live_count;
    f->list[f->live_count] = live;
    f->floors[f->live_count] = rewinds ? 0 : (int32_t)n;
    f->live_count++;
}

/* What the live sequences have in common with a prompt. */
static const int32_t *commons(struct fixture *f, const hearth_token *prompt, size_t n, struct hearth_digest salt) {
    for (size_t i = 0; i < f->live_count; i++) {
        f->commons[i] = hearth_live_common(f->list[i], prompt, n, salt);
    }
    return f->commons;
}

/* The tree is matched against `text`, which becomes `prompt` (64 tokens); with a salt nothing of it is. */
static struct hearth_plan_input input_of(struct fixture *f, const char *text, hearth_token *prompt,
                                         struct hearth_digest salt, const struct hearth_caps *caps,
                                         const struct hearth_costs *costs) {
    const size_t n = read_tokens(text, prompt);
    const bool same = hearth_digest_is_zero(salt);
    assert_true(hearth_tree_match(same ? f->root : NULL, prompt, n, &f->path));
    const size_t matched = (size_t)f->path.matched;
    return (struct hearth_plan_input){
        .prompt = prompt,
        .n = n,
        .path = &f->path,
        .usable = f->path.matched,
        .edge = same && matched < n ? hearth_tree_edge(&f->path, prompt + matched, n - matched) : HEARTH_EDGE_END,
        .lives = f->list,
        .rewind_floors = f->floors,
        .commons = commons(f, prompt, n, salt),
        .live_count = f->live_count,
        .caps = caps,
        .costs = costs,
    };
}

static void init(struct fixture *f) {
    assert_true(hearth_tree_init(&f->tree, 4));
    f->root = hearth_tree_add_root(&f->tree, (struct hearth_digest){0});
    assert_non_null(f->root);
}

static void check_row(const struct row *row) {
    struct fixture f = {.live_count = 0};
    init(&f);
    for (int i = 0; i < 3 && row->stored[i]; i++) {
        store(&f, row->stored[i], i == 0 ? row->snapshots : NULL);
    }
    for (int i = 0; i < 3 && row->live[i]; i++) {
        go_live(&f, row->live[i], row->memory_class == PAGES);
    }
    struct hearth_caps caps = {.memory_class = row->memory_class, .cache_ok = true, .page_bytes_per_token = 10};
    struct hearth_costs costs;
    hearth_costs_init(&costs);
    costs.import_us = 1;
    hearth_token prompt[64];
    struct hearth_plan_input input = input_of(&f, row->prompt, prompt, (struct hearth_digest){0}, &caps, &costs);
    struct hearth_plan plan = {0};
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(hearth_plan_resume(&input), plan.resume);
    if (plan.how != row->how || plan.target != row->target || plan.resume != row->resume ||
        plan.live_tokens != row->live_tokens || plan.divergence != row->divergence || plan.reason != row->reason) {
        fail_msg("%s: how %d target %d resume %d live %d divergence %d reason %s", row->name, plan.how, plan.target,
                 plan.resume, plan.live_tokens, plan.divergence, hearth_reason_text(plan.reason));
    }
    for (size_t i = 0; i < f.live_count; i++) {
        hearth_tokens_finish(&f.lives[i].tokens);
    }
    hearth_path_finish(&f.path);
    hearth_tree_finish(&f.tree, NULL, NULL);
}

static void test_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i]);
    }
}

/* With a slow tier and a fast engine, computing wins and the reason says so. */
static void test_compute_cheaper(void **state) {
    (void)state;
    struct fixture f = {.live_count = 0};
    init(&f);
    store(&f, "abcdef", NULL);
    go_live(&f, "", true);
    struct hearth_caps caps = {.memory_class = PAGES, .cache_ok = true, .page_bytes_per_token = 1000};
    struct hearth_costs costs = {.prefill_us_per_token = 1, .import_us_per_byte = 1, .import_us = 1};
    hearth_token prompt[64];
    struct hearth_plan_input input = input_of(&f, "abcdefg", prompt, (struct hearth_digest){0}, &caps, &costs);
    struct hearth_plan plan = {0};
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 0);
    assert_int_equal(plan.reason, HEARTH_REASON_COMPUTE_CHEAPER);
    input.cache_off = true;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.reason, HEARTH_REASON_CACHE_OFF);
    f.lives[0].busy = true;
    assert_false(hearth_plan_make(&input, &plan));
    hearth_path_finish(&f.path);
    hearth_tree_finish(&f.tree, NULL, NULL);
}

/* What is only in the backing tier is read as far as that is faster than computing; a page without state ends what can
 * be used. */
static void test_backing(void **state) {
    (void)state;
    struct fixture f = {.live_count = 0};
    init(&f);
    store(&f, "abcdefghijkl", NULL);
    go_live(&f, "", true);
    struct hearth_caps caps = {.memory_class = PAGES, .cache_ok = true, .page_bytes_per_token = 1};
    struct hearth_costs costs = {.prefill_us_per_token = 10, .backing_us = 100, .backing_us_per_byte = 1};
    hearth_token prompt[64];
    struct hearth_plan_input input = input_of(&f, "abcdefghijklm", prompt, (struct hearth_digest){0}, &caps, &costs);
    assert_int_equal(f.path.n, 3);
    f.path.pages[1]->item.copy = (struct hearth_copy){.state = HEARTH_COPY_THERE, .p0 = 4};
    struct hearth_plan plan = {0};
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 4); /* reading 4 tokens takes longer than computing 8 */
    assert_int_equal(plan.reason, HEARTH_REASON_COMPUTE_CHEAPER);
    costs.backing_us = 50;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 12);        /* what is behind is in RAM */
    f.path.pages[1]->item.copy.remote = true; /* each tier has its own speed */
    costs.remote_us_per_byte = 100;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 4);
    costs.remote_us_per_byte = 1;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 12);
    input.usable = 8;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 4);
    costs.backing_us = 10;
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 8);
    assert_int_equal(plan.reason, HEARTH_REASON_EVICTED);
    f.path.pages[1]->item.copy = (struct hearth_copy){.state = HEARTH_COPY_NONE};
    hearth_path_finish(&f.path);
    hearth_tree_finish(&f.tree, NULL, NULL);
}

/* A small read that took long says little of a large one; many of them say as much as one of their bytes together. */
static void test_small_reads_say_little(void **state) {
    (void)state;
    enum { SMALL = 26 << 10, READS = 40, LARGE = 1 << 20 };
    struct hearth_costs costs, once;
    hearth_costs_init(&costs);
    once = costs;
    hearth_costs_learn_bytes(&costs.backing_us_per_byte, 40000, SMALL);
    assert_true(hearth_costs_backing_us(&costs, false, 300 << 10, 1) < 10000);
    for (int i = 1; i < READS; i++) {
        hearth_costs_learn_bytes(&costs.backing_us_per_byte, 40000, SMALL);
    }
    hearth_costs_learn_bytes(&once.backing_us_per_byte, 40000 * READS, READS * SMALL);
    assert_true(costs.backing_us_per_byte > once.backing_us_per_byte / 2);
    assert_true(costs.backing_us_per_byte < once.backing_us_per_byte * 1.5);
    once.backing_us_per_byte = costs.backing_us_per_byte;
    hearth_costs_learn_bytes(&costs.backing_us_per_byte, 1000, LARGE);
    hearth_costs_learn_bytes(&once.backing_us_per_byte, 16000, 16 * LARGE);
    assert_true(costs.backing_us_per_byte == once.backing_us_per_byte);
}

/* A live sequence of another salt has nothing in common with the prompt. */
static void test_salt(void **state) {
    (void)state;
    struct fixture f = {.live_count = 0};
    init(&f);
    go_live(&f, "abcd", true);
    struct hearth_caps caps = {.memory_class = PAGES, .cache_ok = true, .page_bytes_per_token = 1};
    struct hearth_costs costs;
    hearth_costs_init(&costs);
    hearth_token prompt[64];
    const struct hearth_digest salt = {1, 2};
    struct hearth_plan_input input = input_of(&f, "abcdef", prompt, salt, &caps, &costs);
    struct hearth_plan plan = {0};
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 0);
    assert_int_equal(plan.reason, HEARTH_REASON_COLD);
    f.lives[0].salt = salt;
    (void)commons(&f, prompt, input.n, salt);
    assert_true(hearth_plan_make(&input, &plan));
    assert_int_equal(plan.resume, 4);
    hearth_tokens_finish(&f.lives[0].tokens);
    hearth_path_finish(&f.path);
    hearth_tree_finish(&f.tree, NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),   cmocka_unit_test(test_compute_cheaper),
        cmocka_unit_test(test_backing), cmocka_unit_test(test_small_reads_say_little),
        cmocka_unit_test(test_salt),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
