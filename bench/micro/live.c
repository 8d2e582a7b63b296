/* The part of a plan that looks at lanes: each holds a conversation, over one system prompt that all of them and the
 * prompt share. */
#include "world.h"

#include "micro.h"

#include "base/assert.h"

#define LANES_MAX 64
#define OWN_TOKENS 2000

static struct hearth_live lanes[LANES_MAX];

static void measure(struct micro *micro, struct world *world, int count, int32_t shared) {
    static struct micro_sample plan_ns, peek_ns;
    const struct hearth_live *lives[LANES_MAX];
    struct hearth_tokens prompt = {0};
    const struct conversation *c = world_pick(world, shared);
    HEARTH_ASSERT(c != NULL);
    for (int i = 0; i < count; i++) {
        hearth_live_init(&lanes[i], i);
        world_tokens(world, c, shared, OWN_TOKENS, &lanes[i].tokens);
        lanes[i].busy = i > 0;
        lives[i] = &lanes[i];
    }
    for (int i = 0; i < (micro->quick ? 3 : 101); i++) {
        static struct hearth_plan plan;
        world_tokens(world, c, shared, OWN_TOKENS, &prompt);
        const struct hearth_cache_prompt asked = {.tokens = prompt.v, .n = prompt.n};
        uint64_t start = micro_now_ns();
        HEARTH_ASSERT(hearth_cache_plan(world->cache, &asked, lives, (size_t)count, &plan));
        uint64_t end = micro_now_ns();
        micro_add(&plan_ns, (double)(end - start));
        HEARTH_ASSERT(plan.resume == shared);
        start = micro_now_ns();
        HEARTH_ASSERT(hearth_cache_peek(world->cache, &asked, lives, (size_t)count) == OWN_TOKENS);
        micro_add(&peek_ns, (double)(micro_now_ns() - start));
    }
    micro_report(micro, "plan with lanes", &plan_ns, "\"lanes\": %d, \"shared_tokens\": %d", count, shared);
    micro_report(micro, "peek with lanes", &peek_ns, "\"lanes\": %d, \"shared_tokens\": %d", count, shared);
    for (int i = 0; i < count; i++) {
        hearth_tokens_finish(&lanes[i].tokens);
    }
    hearth_tokens_finish(&prompt);
}

void micro_live(struct micro *micro) {
    struct world world;
    world_open(&world, &(struct world_params){.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256, .pages = 2000});
    for (int count = 1; count <= LANES_MAX; count *= 4) {
        measure(micro, &world, count, 0);
        measure(micro, &world, count, 8000);
        measure(micro, &world, count, 32000);
    }
    world_close(&world);
}
