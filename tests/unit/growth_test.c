/* What costs may grow with, proved by counting: a prompt is matched in a number of steps that its own length gives,
 * whatever else is stored; what is inserted or evicted is valued a few times, however much there is. And the structures
 * that this rests on, under growth: the table that moves its members bit by bit, and a page's children. */
#include "base/assert.h"
#include "base/table.h"
#include "cache/children.h"
#include "cache/store.h"
#include "engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PAGE = 16, PATH = 64, STEPS_AHEAD = 17 }; /* page size; pages of a conversation; guesses that may be in vain */

/* ---- a store ---- */

struct store {
    struct hearth_engine *engine;
    struct hearth_ram *ram;
    struct hearth_cache *cache;
    struct hearth_live live;
    uint32_t conversations;
};

static uint64_t valued; /* calls of the policy */

static double count_rank(const struct hearth_policy_item *item, const struct hearth_costs *costs, double x) {
    valued++;
    return hearth_policy_gdsf.rank(item, costs, x);
}

static const struct hearth_policy count_policy = {.name = "count", .rank = count_rank};

static void open_store(struct store *store) {
    struct hearth_sim_params sim;
    hearth_sim_params_default(&sim);
    sim.memory_class = HEARTH_ENGINE_PAGES;
    sim.ctx_tokens = 4 * PAGE * PATH;
    struct hearth_cache_params params = {.page_tokens = PAGE, .budget_bytes = (size_t)8 << 30, .policy = &count_policy};
    *store = (struct store){0};
    assert_int_equal(hearth_sim_create(&sim, &store->engine, NULL), HEARTH_OK);
    store->ram = hearth_ram_create();
    assert_non_null(store->ram);
    assert_int_equal(hearth_cache_create(store->engine, store->ram, &params, &store->cache, NULL), HEARTH_OK);
    hearth_live_init(&store->live, 0);
}

static void close_store(struct store *store) {
    hearth_live_finish(store->cache, &store->live);
    hearth_cache_destroy(store->cache);
    hearth_ram_destroy(store->ram);
    store->engine->ops->destroy(store->engine);
}

/* A conversation of n tokens: a quarter of a path is the same for all. */
static void tell(struct hearth_tokens *tokens, uint32_t conversation, int32_t n) {
    tokens->n = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t of = i < PAGE * PATH / 4 ? 0 : conversation + 1;
        assert_true(hearth_tokens_push(tokens, (hearth_token)((of * 7919u + (uint32_t)i * 31u) % 50000u)));
    }
}

/* Straight into the tree: what it takes to find things there does not depend on how they came. */
static void fill(struct store *store, size_t pages) {
    struct hearth_page *root = hearth_tree_end(&store->cache->tree, (struct hearth_digest){1, 1}, 0);
    struct hearth_tokens tokens = {0};
    struct hearth_path path = {0};
    if (!root) {
        root = hearth_tree_add_root(&store->cache->tree, (struct hearth_digest){1, 1});
    }
    assert_non_null(root);
    while (store->cache->tree.page_count < pages) {
        tell(&tokens, store->conversations++, PAGE * PATH);
        assert_true(hearth_tree_match(root, tokens.v, tokens.n, &path));
        while (path.matched < PAGE * PATH) {
            assert_non_null(hearth_tree_add(&store->cache->tree, &path, tokens.v, 0, path.matched + PAGE, NULL));
        }
    }
    hearth_tokens_finish(&tokens);
    hearth_path_finish(&path);
}

/* ---- matching ---- */

struct work {
    size_t visited, compared;
};

static struct work match_work(struct store *store, uint32_t conversation, int32_t known, int32_t n) {
    struct hearth_page *root = hearth_tree_end(&store->cache->tree, (struct hearth_digest){1, 1}, 0);
    struct hearth_tokens tokens = {0};
    struct hearth_path path = {0};
    tell(&tokens, conversation, known);
    while (tokens.n < (size_t)n) {
        assert_true(hearth_tokens_push(&tokens, 60000));
    }
    assert_true(hearth_tree_match(root, tokens.v, tokens.n, &path));
    assert_int_equal(path.matched, known);
    struct work work = {path.visited, path.compared};
    hearth_path_finish(&path);
    hearth_tokens_finish(&tokens);
    return work;
}

static void matching_is_linear_in_the_prompt(void **state) {
    (void)state;
    static const size_t sizes[] = {1000, 10000, 100000};
    struct store store;
    open_store(&store);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill(&store, sizes[i]);
        assert_true(store.cache->tree.page_count >= sizes[i]);
        for (int32_t pages = 1; pages <= PATH; pages *= 2) {
            int32_t known = pages * PAGE - (pages > 1);
            struct work work = match_work(&store, store.conversations / 2, known, PAGE * PATH);
            assert_in_range(work.compared, (size_t)(pages * PAGE), (size_t)(pages * PAGE));
            assert_in_range(work.visited, (size_t)pages, (size_t)pages + 2 * STEPS_AHEAD);
        }
    }
    hearth_tree_check(&store.cache->tree);
    close_store(&store);
}

/* A prompt that leaves a page after each token, into a chain as long as can be: guesses in vain at every step. */
static void branches_stay_linear(void **state) {
    (void)state;
    struct store store;
    struct hearth_tokens tokens = {0};
    struct hearth_path path = {0};
    open_store(&store);
    struct hearth_tree *tree = &store.cache->tree;
    struct hearth_page *root = hearth_tree_add_root(tree, (struct hearth_digest){1, 1});
    assert_non_null(root);
    int32_t n = 4 * PAGE * PATH;
    for (int32_t fork = 0; fork < PAGE * PATH; fork++) {
        /* 1 up to the fork, then 0: so each path goes on for long behind what a later one leaves. */
        tokens.n = 0;
        for (int32_t i = 0; i < n; i++) {
            assert_true(hearth_tokens_push(&tokens, i < fork));
        }
        assert_true(hearth_tree_match(root, tokens.v, (size_t)(fork + 3 * PAGE), &path));
        while (path.matched < fork + 3 * PAGE) {
            assert_non_null(hearth_tree_add(tree, &path, tokens.v, 0,
                                            hearth_tree_page_end(tree, path.matched, fork + 3 * PAGE), NULL));
        }
    }
    for (int32_t i = 0; i < n; i++) {
        tokens.v[i] = i < PAGE * PATH - 1;
    }
    assert_true(hearth_tree_match(root, tokens.v, (size_t)n, &path));
    assert_int_equal(path.matched, PAGE * PATH - 1 + 3 * PAGE);
    assert_true(path.n > PAGE * PATH / 2); /* it did leave pages early */
    assert_in_range(path.visited, path.n, 3 * path.n + 2 * STEPS_AHEAD);
    hearth_tree_check(tree);
    hearth_path_finish(&path);
    hearth_tokens_finish(&tokens);
    close_store(&store);
}

/* ---- inserting and evicting ---- */

static void capture(struct store *store, uint32_t conversation, int32_t n) {
    struct hearth_batch_item item;
    struct hearth_tokens tokens = {0};
    tell(&tokens, conversation, n);
    for (int32_t i = 0; i < n; i++) {
        item = (struct hearth_batch_item){.token = tokens.v[i] % 256, .seq = 0, .pos = i};
        tokens.v[i] %= 256;
        assert_int_equal(store->engine->ops->decode(store->engine, &item, 1), HEARTH_OK);
    }
    assert_true(hearth_live_append(&store->live, tokens.v, tokens.n));
    while (hearth_cache_capture(store->cache, &store->live, 1000) == HEARTH_CAPTURE_MORE) {
    }
    hearth_live_clear(store->cache, &store->live);
    hearth_tokens_finish(&tokens);
}

static void eviction_values_few(void **state) {
    (void)state;
    struct store store;
    uint64_t per_insert[2], per_evict[2];
    open_store(&store);
    for (int size = 0; size < 2; size++) {
        for (uint32_t i = 0; i < (size ? 300u : 10u); i++) {
            capture(&store, store.conversations++, PAGE * PATH / 2);
        }
        valued = 0;
        capture(&store, store.conversations++, PAGE * PATH / 2);
        per_insert[size] = valued;
        valued = 0;
        struct hearth_cache_stats before, after;
        hearth_cache_stats(store.cache, &before);
        hearth_cache_set_budget(store.cache, before.page_bytes - 1, 0);
        hearth_cache_stats(store.cache, &after);
        assert_in_range(after.evicted_pages - before.evicted_pages, 1, 2);
        per_evict[size] = valued;
        hearth_cache_set_budget(store.cache, (size_t)8 << 30, 0);
    }
    assert_in_range(per_insert[0], 1, 6 * PATH);
    assert_in_range(per_insert[1], 1, per_insert[0]);
    assert_in_range(per_evict[1], 1, 8);
    assert_in_range(per_evict[0], 1, 8);
    hearth_cache_check(store.cache);
    close_store(&store);
}

/* ---- structures ---- */

static void children_under_growth(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    struct hearth_page parent = {.p0 = 10, .len = 100};
    struct hearth_page *child = calloc(COUNT, sizeof *child);
    assert_non_null(child);
    for (int i = 0; i < COUNT; i++) {
        child[i] = (struct hearth_page){.p0 = 10 + (i % 7 == 0 ? 100 : i % 100), .first = i};
        assert_null(hearth_children_find(&parent, child[i].p0 - 10, i));
        assert_true(hearth_children_add(&parent, &child[i]));
        assert_ptr_equal(hearth_children_find(&parent, child[i].p0 - 10, i), &child[i]);
        assert_null(hearth_children_find(&parent, child[i].p0 - 9, i));
    }
    assert_int_equal(parent.tail_count, (COUNT + 6) / 7);
    for (int round = 0; round < 2; round++) { /* first the odd ones go, then the others, so that the table shrinks */
        for (int i = 1 - round; i < COUNT; i += 2) {
            hearth_children_remove(&parent, &child[i]);
            assert_null(hearth_children_find(&parent, child[i].p0 - 10, i));
            uint32_t seen = 0;
            for (struct hearth_page *at = NULL; i % 97 == 0 && (at = hearth_children_next(&parent, at)) != NULL;
                 seen++) {
                assert_ptr_equal(hearth_children_find(&parent, at->p0 - 10, at->first), at);
            }
            assert_true(i % 97 != 0 || seen == parent.child_count);
        }
    }
    assert_int_equal(parent.child_count, 0);
    assert_int_equal(parent.tail_count, 0);
    hearth_children_finish(&parent);
    free(child);
}

static void table_under_growth(void **state) {
    (void)state;
    enum { COUNT = 20000, KEYS = 5000 };
    struct hearth_table table = {0};
    struct hearth_link *links = calloc(COUNT, sizeof *links);
    assert_non_null(links);
    for (size_t i = 0; i < COUNT; i++) {
        links[i].key = hearth_digest_bytes(&(uint64_t){i % KEYS}, sizeof(uint64_t));
        assert_true(hearth_table_add(&table, &links[i]));
        size_t newest = i;
        for (struct hearth_link *at = hearth_table_find(&table, links[i].key); at; at = hearth_table_next(at)) {
            assert_ptr_equal(at, &links[newest]); /* newest first, while they move */
            newest -= KEYS;
        }
        assert_int_equal(newest, i % KEYS - KEYS);
    }
    for (size_t i = 0; i < COUNT; i += 3) {
        hearth_table_remove(&table, &links[i]);
    }
    size_t left = 0;
    for (size_t at = 0; hearth_table_pop(&table, &at) != NULL;) {
        left++;
    }
    assert_int_equal(left, COUNT - (COUNT + 2) / 3);
    assert_int_equal(table.count, 0);
    hearth_table_finish(&table);
    free(links);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching_is_linear_in_the_prompt),
        cmocka_unit_test(branches_stay_linear),
        cmocka_unit_test(eviction_values_few),
        cmocka_unit_test(children_under_growth),
        cmocka_unit_test(table_under_growth),
    };
    return cmocka_run_group_tests_name("growth", tests, NULL, NULL);
}
