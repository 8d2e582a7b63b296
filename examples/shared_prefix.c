/* Two prompts with one system prompt: the second computes only what is its own.
 *
 *     cc shared_prefix.c -o shared_prefix $(pkg-config --cflags --libs hearth) && ./shared_prefix
 *
 * The simulated engine needs no model; hearth_llama_create() opens one. */
#include <hearth.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM "You are a helpful assistant. You answer in one sentence, and you never make anything up."

static void must(bool ok, const char *step) {
    if (!ok) {
        fprintf(stderr, "cannot %s\n", step);
        exit(1);
    }
}

static void run(struct hearth_engine *engine, struct hearth_cache *cache, struct hearth_live *live, const char *text) {
    struct hearth_tokens tokens = {0};
    struct hearth_plan plan = {0};
    struct hearth_restore done;
    struct hearth_batch_item items[512];
    must(engine->ops->tokenize(engine, text, strlen(text), true, true, &tokens) == HEARTH_OK, "tokenize");
    const struct hearth_cache_prompt prompt = {.tokens = tokens.v, .n = tokens.n};
    must(hearth_cache_plan(cache, &prompt, (const struct hearth_live *const *)&live, 1, &plan), "plan");
    hearth_cache_restore(cache, &plan, &prompt, &live, &done);
    must(!done.failed && !done.no_cells, "restore");
    const size_t reused = (size_t)done.resumed, n = tokens.n - reused; /* n are left to compute */
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct hearth_batch_item){.token = tokens.v[reused + i], .pos = (int32_t)(reused + i)};
    }
    must(engine->ops->decode(engine, items, n) == 0 && hearth_live_append(live, tokens.v + reused, n), "decode");
    while (hearth_cache_capture(cache, live, 8) == HEARTH_CAPTURE_MORE) {
    }
    hearth_live_clear(cache, live); /* the state is stored: the sequence is free for anything else */
    printf("%zu tokens: %zu reused, %zu computed (%s)\n", tokens.n, reused, n, hearth_reason_text(plan.reason));
    hearth_plan_finish(&plan);
    hearth_tokens_finish(&tokens);
}

int main(void) {
    struct hearth_sim_params sim;
    struct hearth_engine *engine;
    struct hearth_cache *cache;
    struct hearth_live live;
    hearth_sim_params_default(&sim);
    must(hearth_sim_create(&sim, &engine, NULL) == HEARTH_OK, "make an engine");
    struct hearth_ram *ram = hearth_ram_create();
    const struct hearth_cache_params params = {.page_tokens = 16, .budget_bytes = 1 << 20};
    must(hearth_cache_create(engine, ram, &params, &cache, NULL) == HEARTH_OK, "make a cache");
    hearth_live_init(&live, 0);
    run(engine, cache, &live, SYSTEM " Who wrote Faust?");
    run(engine, cache, &live, SYSTEM " How high is the Brocken?");
    hearth_live_finish(cache, &live);
    hearth_cache_destroy(cache);
    hearth_ram_destroy(ram);
    engine->ops->destroy(engine);
}
