/* Cases of the cache that random games (tests/model) seldom meet, by hand. The backing tier here keeps what it is told,
 * and answers when the test says so. */
#include "base/assert.h"
#include "cache/store.h"
#include "engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 8, ITEMS_MAX = 32, HEAD_TOKENS = PAGE };

struct item {
    struct hearth_record *record;
    struct hearth_buf bytes;
};

/* Puts wait in `queued` for write_all(), removals in `removals` for remove_all(), reads in `reads` for read_one(). */
struct slow_tier {
    struct hearth_backing base;
    struct item items[ITEMS_MAX], queued[ITEMS_MAX];
    struct hearth_digest removals[ITEMS_MAX], reads[ITEMS_MAX];
    struct hearth_backing_event events[ITEMS_MAX];
    size_t item_count, queued_count, removal_count, read_count, event_count;
};

static struct hearth_backing_event *tell(struct slow_tier *tier, enum hearth_backing_event_type type,
                                         struct hearth_digest name) {
    assert_true(tier->event_count < ITEMS_MAX);
    struct hearth_backing_event *event = &tier->events[tier->event_count++];
    *event = (struct hearth_backing_event){.type = type, .name = name};
    return event;
}

static void finish_item(struct item *item) {
    hearth_record_destroy(item->record);
    hearth_buf_finish(&item->bytes);
}

static struct item *find(struct slow_tier *tier, struct hearth_digest name) {
    for (size_t i = 0; i < tier->item_count; i++) {
        if (hearth_digest_equal(tier->items[i].record->name, name)) {
            return &tier->items[i];
        }
    }
    return NULL;
}

static void lose(struct slow_tier *tier, struct hearth_digest name) {
    struct item *item = find(tier, name);
    if (item != NULL) {
        finish_item(item);
        *item = tier->items[--tier->item_count];
    }
}

static bool slow_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                     const struct hearth_digest *replaces) {
    struct slow_tier *tier = (struct slow_tier *)backing;
    struct item *item = &tier->queued[tier->queued_count++];
    size_t len = 0;
    const void *bytes = blob != NULL ? hearth_blob_data(blob, &len) : NULL;
    (void)replaces; /* it stays, as where a tier is slow */
    assert_true(tier->queued_count < ITEMS_MAX);
    *item = (struct item){.record = hearth_record_copy(record)};
    assert_true(item->record != NULL && hearth_buf_append(&item->bytes, bytes, len));
    return true;
}

static bool slow_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct slow_tier *tier = (struct slow_tier *)backing;
    tier->reads[tier->read_count++] = name;
    return true;
}

static void slow_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    (void)backing, (void)touches, (void)n;
}

/* What is still queued is dropped, as backing.h says. */
static bool slow_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    struct slow_tier *tier = (struct slow_tier *)backing;
    (void)kind;
    for (size_t i = tier->queued_count; i-- > 0;) {
        if (hearth_digest_equal(tier->queued[i].record->name, name)) {
            finish_item(&tier->queued[i]);
            tier->queued[i] = tier->queued[--tier->queued_count];
            tell(tier, HEARTH_BACKING_DROPPED, name);
        }
    }
    tier->removals[tier->removal_count++] = name;
    return true;
}

static bool slow_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    struct slow_tier *tier = (struct slow_tier *)backing;
    if (tier->event_count == 0) {
        return false;
    }
    *event = tier->events[0];
    memmove(tier->events, tier->events + 1, --tier->event_count * sizeof *tier->events);
    return true;
}

static const struct hearth_backing_ops OPS = {
    .put = slow_put, .get = slow_get, .touch = slow_touch, .remove = slow_remove, .poll = slow_poll};

static void write_all(struct slow_tier *tier) {
    for (size_t i = 0; i < tier->queued_count; i++) {
        assert_true(tier->item_count < ITEMS_MAX);
        tell(tier, HEARTH_BACKING_WRITTEN, tier->queued[i].record->name);
        if (find(tier, tier->queued[i].record->name) == NULL) {
            tier->items[tier->item_count++] = tier->queued[i];
        } else {
            finish_item(&tier->queued[i]);
        }
    }
    tier->queued_count = 0;
}

static void remove_all(struct slow_tier *tier) {
    for (size_t i = 0; i < tier->removal_count; i++) {
        lose(tier, tier->removals[i]);
        tell(tier, HEARTH_BACKING_REMOVED, tier->removals[i]);
    }
    tier->removal_count = 0;
}

static void find_all(struct slow_tier *tier) {
    for (size_t i = 0; i < tier->item_count; i++) {
        tell(tier, HEARTH_BACKING_FOUND, tier->items[i].record->name)->record =
            hearth_record_copy(tier->items[i].record);
    }
    tell(tier, HEARTH_BACKING_SCANNED, (struct hearth_digest){0});
}

static void read_one(struct slow_tier *tier, struct hearth_digest name) {
    struct item *item = find(tier, name);
    struct hearth_backing_event *event = tell(tier, HEARTH_BACKING_READ, name);
    if (item == NULL) {
        event->err = HEARTH_ERR_NOT_FOUND;
        return;
    }
    assert_true(hearth_buf_append(&event->bytes, item->bytes.data, item->bytes.len));
    event->checksum = hearth_checksum(event->bytes.data, event->bytes.len);
}

/* ---- a cache on it ---- */

struct stage {
    enum hearth_engine_class memory_class; /* 0: attention alone */
    size_t budget_bytes;                   /* 0: 1 MiB */
    struct slow_tier tier;
    struct hearth_engine *engine;
    struct hearth_ram *ram;
    struct hearth_cache *cache;
    struct hearth_live live;
};

static const hearth_token tokens[2 * PAGE] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const struct hearth_cache_prompt prompt = {.tokens = tokens, .n = 2 * PAGE};

static void start(struct stage *stage) {
    struct hearth_sim_params sim;
    const struct hearth_cache_params params = {.page_tokens = PAGE,
                                               .budget_bytes =
                                                   stage->budget_bytes > 0 ? stage->budget_bytes : (size_t)1 << 20,
                                               .backing = &stage->tier.base};
    hearth_sim_params_default(&sim);
    sim.memory_class = stage->memory_class;
    stage->tier.base.ops = &OPS;
    stage->tier.base.name = "slow";
    assert_int_equal(hearth_sim_create(&sim, &stage->engine, NULL), HEARTH_OK);
    assert_non_null(stage->ram = hearth_ram_create());
    assert_int_equal(hearth_cache_create(stage->engine, stage->ram, &params, &stage->cache, NULL), HEARTH_OK);
    hearth_live_init(&stage->live, 0);
}

static void stop(struct stage *stage) {
    hearth_live_finish(stage->cache, &stage->live);
    hearth_cache_destroy(stage->cache);
    hearth_ram_destroy(stage->ram);
    stage->engine->ops->destroy(stage->engine);
}

static void finish(struct stage *stage) {
    struct hearth_backing_event event;
    stop(stage);
    for (size_t i = 0; i < stage->tier.item_count; i++) {
        finish_item(&stage->tier.items[i]);
    }
    for (size_t i = 0; i < stage->tier.queued_count; i++) {
        finish_item(&stage->tier.queued[i]);
    }
    while (slow_poll(&stage->tier.base, &event)) {
        hearth_backing_event_finish(&event);
    }
}

/* Computes a prompt in an empty sequence, as when nothing was known of it when it began, and captures it. */
static void compute_prompt(struct stage *stage, const struct hearth_cache_prompt *of) {
    struct hearth_batch_item items[2 * PAGE];
    const int32_t n = (int32_t)of->n;
    hearth_live_clear(stage->cache, &stage->live);
    for (int32_t i = 0; i < n; i++) {
        items[i] = (struct hearth_batch_item){.token = of->tokens[i], .seq = stage->live.seq, .pos = i};
    }
    assert_int_equal(stage->engine->ops->decode(stage->engine, items, (size_t)n), HEARTH_OK);
    assert_true(hearth_live_append(&stage->live, of->tokens, (size_t)n));
    while (hearth_cache_capture(stage->cache, &stage->live, 8) != HEARTH_CAPTURE_DONE) {
    }
}

static void compute(struct stage *stage) {
    compute_prompt(stage, &prompt);
}

/* Forgets what is behind `keep`, and returns what is left. */
static int32_t forget_behind(struct stage *stage, const struct hearth_cache_prompt *of, int32_t keep) {
    struct hearth_live *lives[] = {&stage->live};
    int32_t stop_at;
    assert_int_equal(hearth_cache_forget(stage->cache, of, keep, lives, 1, &stop_at), HEARTH_OK);
    hearth_cache_check(stage->cache);
    return stop_at;
}

static int32_t forget_prompt(struct stage *stage, const struct hearth_cache_prompt *of) {
    return forget_behind(stage, of, 0);
}

static void forget(struct stage *stage) {
    assert_int_equal(forget_prompt(stage, &prompt), 0);
}

static void poll_all(struct stage *stage) {
    while (hearth_cache_poll(stage->cache, 1) > 0) {
    }
    hearth_cache_check(stage->cache);
}

static size_t copies(const struct stage *stage) {
    struct hearth_cache_stats stats;
    hearth_cache_stats(stage->cache, &stats);
    return stats.copies;
}

/* ---- tests ---- */

/* Pages are forgotten while they wait to be written, and captured again before the tier has answered. The answers to
 * both puts have the same names: it must not be taken for an answer to the second that the first was dropped, or what
 * is written is not known (and not removed when it is forgotten), or is removed and not known to be missing. */
static void captured_again_while_removed(void **state) {
    (void)state;
    for (int written_first = 0; written_first < 2; written_first++) {
        struct stage stage = {0};
        bool failed;
        start(&stage);
        compute(&stage);
        if (written_first) {
            write_all(&stage.tier);
        }
        forget(&stage);
        compute(&stage);
        write_all(&stage.tier);
        remove_all(&stage.tier);
        poll_all(&stage);
        assert_false(hearth_cache_removing(stage.cache, &failed));
        write_all(&stage.tier);
        poll_all(&stage);
        assert_int_equal(stage.tier.item_count, 2);
        assert_int_equal(copies(&stage), 2);
        forget(&stage);
        remove_all(&stage.tier);
        poll_all(&stage);
        assert_int_equal(stage.tier.item_count, 0);
        assert_int_equal(copies(&stage), 0);
        finish(&stage);
    }
}

/* What was captured again and is forgotten again before the first removal is answered stays forgotten. */
static void forgotten_again_while_removed(void **state) {
    (void)state;
    struct stage stage = {0};
    start(&stage);
    compute(&stage);
    forget(&stage);
    compute(&stage);
    forget(&stage);
    write_all(&stage.tier);
    remove_all(&stage.tier);
    poll_all(&stage);
    write_all(&stage.tier);
    poll_all(&stage);
    assert_int_equal(stage.tier.item_count, 0);
    assert_int_equal(copies(&stage), 0);
    finish(&stage);
}

/* A page stays whole for the sake of its beginning, and what was forgotten of it is computed again and captured:
 * another prompt that is forgotten does not take it away. */
static void said_again_in_a_page_that_stayed(void **state) {
    (void)state;
    const int32_t fork = PAGE + 3;
    struct stage stage = {0};
    hearth_token other[2 * PAGE];
    memcpy(other, tokens, sizeof other);
    other[fork] = 99;
    const struct hearth_cache_prompt beside = {.tokens = other, .n = 2 * PAGE},
                                     shorter = {.tokens = tokens, .n = 2 * PAGE - 2};
    start(&stage);
    compute(&stage);
    compute_prompt(&stage, &beside);
    assert_int_equal(forget_prompt(&stage, &prompt), fork);
    assert_int_equal(forget_prompt(&stage, &shorter), fork);
    compute(&stage);
    hearth_live_clear(stage.cache, &stage.live);
    assert_int_equal(forget_prompt(&stage, &shorter), shorter.n);
    finish(&stage);
}

/* The end of a page was forgotten, and then a path that leaves the page there: its snapshots before go as well. */
static void snapshots_before_what_was_forgotten(void **state) {
    (void)state;
    const int32_t fork = PAGE + 5;
    struct stage stage = {.memory_class = HEARTH_ENGINE_SNAPSHOT};
    hearth_token other[2 * PAGE], near[2 * PAGE];
    memcpy(other, tokens, sizeof other);
    memcpy(near, tokens, sizeof near);
    other[fork] = near[fork + 1] = 99;
    const struct hearth_cache_prompt beside = {.tokens = other, .n = 2 * PAGE},
                                     leaves = {.tokens = near, .n = 2 * PAGE},
                                     shorter = {.tokens = tokens, .n = PAGE + 3};
    start(&stage);
    compute_prompt(&stage, &shorter);
    write_all(&stage.tier);
    poll_all(&stage);
    compute(&stage);
    compute_prompt(&stage, &beside);
    hearth_live_clear(stage.cache, &stage.live);
    assert_int_equal(forget_prompt(&stage, &prompt), fork);
    assert_int_equal(forget_behind(&stage, &beside, fork), fork);
    assert_int_equal(forget_behind(&stage, &leaves, PAGE + 1), PAGE + 1);
    write_all(&stage.tier);
    remove_all(&stage.tier);
    for (size_t i = 0; i < stage.tier.item_count; i++) {
        assert_int_equal(stage.tier.items[i].record->kind, HEARTH_RECORD_PAGE);
    }
    finish(&stage);
}

/* Another cache over what the tier has. */
static void start_again(struct stage *stage) {
    stop(stage);
    stage->tier.event_count = 0;
    start(stage);
    find_all(&stage->tier);
    poll_all(stage);
}

/* After a start a page is read while the note of a head is, and goes: its answer is no note's. */
static void a_vanished_page_is_no_note(void **state) {
    (void)state;
    struct stage stage = {0};
    struct hearth_plan plan = {0};
    start(&stage);
    compute(&stage);
    hearth_cache_head(stage.cache, &prompt, HEAD_TOKENS);
    hearth_cache_head(stage.cache, &prompt, HEAD_TOKENS);
    write_all(&stage.tier);
    assert_int_equal(stage.tier.item_count, 3);
    start_again(&stage);
    assert_int_equal(stage.tier.read_count, 1);
    const struct hearth_digest note = stage.tier.reads[0];
    const struct hearth_live *lives[] = {&stage.live};
    assert_true(hearth_cache_plan(stage.cache, &prompt, lives, 1, &plan));
    assert_true(hearth_cache_fetch(stage.cache, &plan));
    hearth_plan_finish(&plan);
    assert_int_equal(stage.tier.read_count, 3);
    const struct hearth_digest page = stage.tier.reads[2];
    lose(&stage.tier, page);
    tell(&stage.tier, HEARTH_BACKING_LOST, page);
    read_one(&stage.tier, page);
    poll_all(&stage);
    assert_true(hearth_cache_scanning(stage.cache)); /* the note has not come */
    read_one(&stage.tier, note);
    poll_all(&stage);
    assert_false(hearth_cache_scanning(stage.cache));
    assert_int_equal(stage.cache->heads.n, 1);
    finish(&stage);
}

static int32_t resumes_at(struct stage *stage, const struct hearth_cache_prompt *of) {
    const struct hearth_live *lives[] = {&stage->live};
    struct hearth_plan plan = {0};
    hearth_live_clear(stage->cache, &stage->live);
    assert_true(hearth_cache_plan(stage->cache, of, lives, 1, &plan));
    const int32_t resume = plan.resume;
    hearth_plan_finish(&plan);
    return resume;
}

/* Pages that are only in the backing tier go there, the beginning of a path before its end: nothing of it is left. */
static void what_is_lost_leaves_no_page(void **state) {
    (void)state;
    struct stage stage = {0};
    start(&stage);
    compute(&stage);
    write_all(&stage.tier);
    start_again(&stage);
    assert_int_equal(resumes_at(&stage, &prompt), 2 * PAGE - 1);
    assert_int_equal(stage.cache->tree.page_count, 2);
    for (int32_t p0 = 0; p0 < 2 * PAGE; p0 += PAGE) {
        for (size_t i = 0; i < stage.tier.item_count; i++) {
            if (stage.tier.items[i].record->p0 == p0) {
                tell(&stage.tier, HEARTH_BACKING_LOST, stage.tier.items[i].record->name);
            }
        }
    }
    poll_all(&stage);
    hearth_cache_check(stage.cache);
    assert_int_equal(stage.cache->tree.page_count, 0);
    finish(&stage);
}

/* A page that two prompts begin with, one of them with a part of it, has lost its state while others hang on it. The
 * prompt that has a part of it fills that part: what hangs there can be used again, and what is behind the rest when
 * the rest comes back. */
static void a_part_of_a_page_is_filled(void **state) {
    (void)state;
    static const hearth_token forked[2 * PAGE] = {1, 2, 3, 4, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36};
    static const struct hearth_cache_prompt fork = {.tokens = forked, .n = 2 * PAGE};
    for (int known = 0; known < 2; known++) {
        struct stage stage = {0};
        start(&stage);
        compute(&stage);
        if (known) {
            compute_prompt(&stage, &fork);
        }
        write_all(&stage.tier);
        start_again(&stage);
        assert_int_equal(resumes_at(&stage, &prompt), 2 * PAGE - 1);
        for (size_t i = 0; i < stage.tier.item_count; i++) {
            const struct hearth_record *record = stage.tier.items[i].record;
            if (record->p0 == 0) {
                tell(&stage.tier, HEARTH_BACKING_LOST, record->name);
            }
        }
        poll_all(&stage);
        assert_int_equal(resumes_at(&stage, &fork), 0);
        compute_prompt(&stage, &fork);
        hearth_cache_check(stage.cache);
        assert_int_equal(resumes_at(&stage, &fork), 2 * PAGE - 1);
        assert_int_equal(resumes_at(&stage, &prompt), 4);
        compute(&stage);
        hearth_cache_check(stage.cache);
        assert_int_equal(resumes_at(&stage, &prompt), 2 * PAGE - 1);
        assert_int_equal(resumes_at(&stage, &fork), 2 * PAGE - 1);
        write_all(&stage.tier);
        find_all(&stage.tier);
        poll_all(&stage);
        finish(&stage);
    }
}

/* A tier that was slow is not read, and taken for as slow for a minute; then each minute for half as slow. */
static void a_slow_tier_is_doubted_after_a_minute(void **state) {
    (void)state;
    const double slow = 1e9; /* a byte takes 1,000 s */
    const int64_t second = 1000000;
    struct stage stage = {0};
    start(&stage);
    compute(&stage);
    write_all(&stage.tier);
    start_again(&stage);
    stage.cache->costs.backing_us_per_byte = slow;
    stage.cache->learnt_us[0] = stage.engine->ops->now_us(stage.engine);
    hearth_sim_advance_us(stage.engine, 50 * second);
    assert_int_equal(resumes_at(&stage, &prompt), 0);
    assert_true(stage.cache->costs.backing_us_per_byte == slow);
    hearth_sim_advance_us(stage.engine, 20 * second);
    for (int asked = 0; asked < 2; asked++) {
        assert_int_equal(resumes_at(&stage, &prompt), 0);
        assert_true(stage.cache->costs.backing_us_per_byte == slow / 2);
    }
    finish(&stage);
}

/* An owner wants its state kept for ten minutes after a request: it counts among those that divide the budget, and what
 * it holds below its share is not taken. */
static void an_owner_is_remembered_for_ten_minutes(void **state) {
    (void)state;
    const int64_t minute = 60000000;
    struct hearth_shares shares;
    assert_true(hearth_shares_init(&shares, 0.6, HEARTH_SHARE_RAM_US));
    const uint16_t quiet = hearth_share_find(&shares, 1), asks = hearth_share_find(&shares, 2);
    hearth_share_count(&shares, quiet, 0, 100);
    hearth_share_ask(&shares, quiet, 1000, minute);
    shares.asks = asks;
    hearth_share_ask(&shares, asks, 1000, 10 * minute);
    assert_int_equal(shares.share_bytes, 500);
    assert_false(hearth_share_may_take(&shares, quiet, 10));
    hearth_share_ask(&shares, asks, 1000, 12 * minute);
    assert_int_equal(shares.share_bytes, 600);
    assert_true(hearth_share_may_take(&shares, quiet, 10));
    hearth_shares_finish(&shares);
}

/* Dividing a page takes room for one more: where there is none, the page stays whole. */
static void a_part_of_a_page_needs_room(void **state) {
    (void)state;
    static const hearth_token forked[2 * PAGE] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 33, 34, 35, 36};
    static const struct hearth_cache_prompt fork = {.tokens = forked, .n = 2 * PAGE};
    struct stage stage = {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT};
    start(&stage);
    compute(&stage);
    write_all(&stage.tier);
    stop(&stage);
    stage.tier.event_count = 0;
    start(&stage);
    find_all(&stage.tier);
    poll_all(&stage);
    assert_int_equal(resumes_at(&stage, &fork), 0);
    for (size_t i = 0; i < stage.tier.item_count; i++) {
        const struct hearth_record *record = stage.tier.items[i].record;
        if (record->kind == HEARTH_RECORD_PAGE && record->p0 == PAGE) {
            tell(&stage.tier, HEARTH_BACKING_LOST, record->name);
        }
    }
    poll_all(&stage);
    hearth_cache_set_budget(stage.cache, stage.cache->pages.used_bytes + 1, 1);
    assert_int_equal(stage.cache->pages.used_bytes, stage.cache->pages.budget_bytes);
    compute_prompt(&stage, &fork);
    hearth_cache_check(stage.cache);
    finish(&stage);
}

/* While LRU decides, talks stand in its order. So what pages were worth before is not known any more when what was
 * learnt decides again, also if nothing was evicted meanwhile. */
static void pages_are_valued_again_behind_lru(void **state) {
    (void)state;
    struct stage stage = {0};
    start(&stage);
    struct hearth_rivals *rivals = &stage.cache->returns->rivals;
    rivals->v[HEARTH_RIVAL_RECENT].lost_tokens = 1e9; /* what was learnt decides */
    stage.cache->pages.valued = true;
    compute(&stage);
    assert_true(stage.cache->pages.valued);
    rivals->v[HEARTH_RIVAL_LEARNT].lost_tokens = 2e9; /* LRU does */
    compute(&stage);
    assert_false(stage.cache->pages.valued);
    finish(&stage);
}

/* ---- what was learnt ---- */

enum { SAVED_TURNS = 64, LEARNT_BUDGET = 4 << 20 }; /* a hundredth of it is enough */

/* The note of what was learnt, among items; `count` of them. */
static struct hearth_digest learnt_note(const struct stage *stage, size_t *count) {
    struct hearth_digest name = {0};
    *count = 0;
    for (size_t i = 0; i < stage->tier.item_count; i++) {
        if (stage->tier.items[i].record->label == HEARTH_RECORD_NOTE) {
            name = stage->tier.items[i].record->name;
            ++*count;
        }
    }
    return name;
}

static size_t learnt_notes(const struct stage *stage) {
    size_t count;
    (void)learnt_note(stage, &count);
    return count;
}

static void take_turns(struct stage *stage, int turns) {
    for (int i = 0; i < turns; i++) {
        compute(stage);
    }
    write_all(&stage->tier);
    poll_all(stage);
}

/* A new process: it finds everything, and reads the notes. */
static void restart(struct stage *stage) {
    stop(stage);
    stage->tier.read_count = 0;
    start(stage);
    find_all(&stage->tier);
    poll_all(stage);
    for (size_t i = 0; i < stage->tier.read_count; i++) {
        read_one(&stage->tier, stage->tier.reads[i]);
    }
    poll_all(stage);
    remove_all(&stage->tier);
    poll_all(stage);
}

static bool knows_nothing(const struct stage *stage) {
    static const struct hearth_hazard nothing;
    return memcmp(&stage->cache->returns->hazard, &nothing, sizeof nothing) == 0;
}

static void what_was_learnt_is_known_after_a_start(void **state) {
    (void)state;
    struct stage stage = {.budget_bytes = LEARNT_BUDGET};
    start(&stage);
    take_turns(&stage, SAVED_TURNS - 1);
    assert_int_equal(learnt_notes(&stage), 0);
    take_turns(&stage, 1);
    assert_int_equal(learnt_notes(&stage), 1);
    assert_false(knows_nothing(&stage));
    const struct hearth_hazard before = stage.cache->returns->hazard;
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_UNKNOWN};
    struct hearth_hazard_rates rates, after;
    hearth_hazard_rates(&before, &of, &rates);
    restart(&stage);
    assert_memory_equal(&stage.cache->returns->hazard, &before, sizeof before);
    hearth_hazard_rates(&stage.cache->returns->hazard, &of, &after);
    assert_memory_equal(&after, &rates, sizeof rates);
    take_turns(&stage, SAVED_TURNS);
    assert_int_equal(stage.cache->learnt.turns + stage.cache->learnt.saved_turns, 2 * SAVED_TURNS);
    finish(&stage);
}

/* At the end there are turns that were not saved; saving again has nothing to add. */
static void an_end_saves_what_was_learnt_since(void **state) {
    (void)state;
    struct stage stage = {.budget_bytes = LEARNT_BUDGET};
    start(&stage);
    take_turns(&stage, 3);
    hearth_cache_save(stage.cache);
    const size_t queued = stage.tier.queued_count;
    hearth_cache_save(stage.cache);
    assert_int_equal(stage.tier.queued_count, queued);
    write_all(&stage.tier);
    restart(&stage);
    assert_int_equal(stage.cache->learnt.turns, 3);
    finish(&stage);
}

static void a_small_cache_saves_nothing(void **state) {
    (void)state;
    struct stage stage = {0};
    start(&stage);
    take_turns(&stage, SAVED_TURNS);
    assert_int_equal(learnt_notes(&stage), 0);
    finish(&stage);
}

/* The server begins as if there were none. */
static void a_note_that_is_of_no_use_is_ignored(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        size_t count;
        struct stage stage = {.budget_bytes = LEARNT_BUDGET};
        start(&stage);
        take_turns(&stage, SAVED_TURNS);
        struct item *note = find(&stage.tier, learnt_note(&stage, &count));
        switch (kind) {
        case 0: hearth_buf_finish(&note->bytes); break;                         /* cut short */
        case 1: note->bytes.data[0] ^= 1; break;                                /* another version's */
        case 2: memset(note->bytes.data + note->bytes.len - 4, 0xff, 4); break; /* no number */
        }
        restart(&stage);
        assert_true(knows_nothing(&stage));
        take_turns(&stage, SAVED_TURNS); /* and goes on to learn */
        assert_false(knows_nothing(&stage));
        finish(&stage);
    }
}

/* Two servers have used the directory, or one has died before it removed the older note. */
static void of_several_notes_the_one_that_knows_most_is_taken(void **state) {
    (void)state;
    struct stage stage = {.budget_bytes = LEARNT_BUDGET};
    start(&stage);
    take_turns(&stage, SAVED_TURNS);
    take_turns(&stage, SAVED_TURNS); /* the tier here keeps what is replaced */
    assert_int_equal(learnt_notes(&stage), 2);
    const struct hearth_hazard before = stage.cache->returns->hazard;
    for (int reversed = 0; reversed < 2; reversed++) {
        restart(&stage);
        assert_int_equal(stage.cache->learnt.turns, 2 * SAVED_TURNS);
        assert_memory_equal(&stage.cache->returns->hazard, &before, sizeof before);
        assert_int_equal(learnt_notes(&stage), 1);
    }
    finish(&stage);
}

/* One that is found after this server has saved its own is of another one, which is still there. */
static void what_another_server_saves_later_is_left_alone(void **state) {
    (void)state;
    struct stage stage = {.budget_bytes = LEARNT_BUDGET};
    start(&stage);
    take_turns(&stage, SAVED_TURNS);
    const struct hearth_hazard before = stage.cache->returns->hazard;
    stage.tier.read_count = 0;
    find_all(&stage.tier);
    poll_all(&stage);
    assert_int_equal(stage.tier.read_count, 0);
    assert_int_equal(stage.tier.removal_count, 0);
    assert_memory_equal(&stage.cache->returns->hazard, &before, sizeof before);
    finish(&stage);
}

/* One conversation shares its head with none; after that each doubling is noted. */
static void a_head_is_noted_when_it_is_shared(void **state) {
    (void)state;
    static const size_t notes[] = {0, 0, 1, 1, 2, 2, 2, 2, 3};
    struct stage stage = {0};
    start(&stage);
    for (size_t talks = 1; talks <= 8; talks++) {
        hearth_cache_head(stage.cache, &prompt, HEAD_TOKENS);
        assert_int_equal(stage.tier.queued_count, notes[talks]);
    }
    finish(&stage);
}

/* Snapshots on the way of a long prompt take a small part of what its pages take, and stand no further apart than that
 * needs. */
static void snapshots_are_few_beside_pages(void **state) {
    (void)state;
    static const struct {
        size_t page_bytes_per_token, snapshot_bytes;
    } models[] = {{3 << 10, 5 << 19}, {64 << 10, 100 << 20}, {24 << 10, 50 << 20}, {128 << 10, 1 << 20}};
    const int32_t least = 8192;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const struct hearth_caps caps = {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT,
                                         .page_bytes_per_token = models[i].page_bytes_per_token,
                                         .snapshot_bytes = models[i].snapshot_bytes};
        const int32_t apart = hearth_cache_snapshot_interval(&caps, least);
        const double share =
            (double)models[i].snapshot_bytes / ((double)apart * (double)models[i].page_bytes_per_token);
        const double nearer = apart > least ? share * apart / (apart - least) : 1;
        assert_int_equal(apart % least, 0);
        assert_true(share <= 0.04 && nearer > 0.02);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_again_while_removed),
        cmocka_unit_test(forgotten_again_while_removed),
        cmocka_unit_test(said_again_in_a_page_that_stayed),
        cmocka_unit_test(snapshots_before_what_was_forgotten),
        cmocka_unit_test(a_vanished_page_is_no_note),
        cmocka_unit_test(a_head_is_noted_when_it_is_shared),
        cmocka_unit_test(snapshots_are_few_beside_pages),
        cmocka_unit_test(what_is_lost_leaves_no_page),
        cmocka_unit_test(a_part_of_a_page_is_filled),
        cmocka_unit_test(a_part_of_a_page_needs_room),
        cmocka_unit_test(a_slow_tier_is_doubted_after_a_minute),
        cmocka_unit_test(an_owner_is_remembered_for_ten_minutes),
        cmocka_unit_test(pages_are_valued_again_behind_lru),
        cmocka_unit_test(what_was_learnt_is_known_after_a_start),
        cmocka_unit_test(an_end_saves_what_was_learnt_since),
        cmocka_unit_test(a_small_cache_saves_nothing),
        cmocka_unit_test(a_note_that_is_of_no_use_is_ignored),
        cmocka_unit_test(of_several_notes_the_one_that_knows_most_is_taken),
        cmocka_unit_test(what_another_server_saves_later_is_left_alone),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
