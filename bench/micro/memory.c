/* Bytes that a stored page takes beyond its state: what the allocator has handed out, before and after a store is
 * filled. The rest of the process, and what the benchmark itself keeps, is the same before and after. */
#include "world.h"

#include "micro.h"

#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

static size_t allocated(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static size_t resident(void) {
    size_t total = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%zu %zu", &total, &pages) != 2) {
        pages = 0;
    }
    if (file) {
        (void)fclose(file);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void measure(struct micro *micro, const struct world_params *params) {
    struct world world;
    (void)malloc_trim(0);
    size_t before = allocated(), rss_before = resident();
    world_open(&world, params);
    hearth_tokens_finish(&world.live.tokens);
    size_t bytes = allocated() - before - world.cap * sizeof *world.conversations, rss = resident() - rss_before;
    size_t tokens = 0, pages = world.cache->tree.page_count, snapshots = world.cache->tree.snapshot_count;
    for (uint32_t i = 0; i < world.cache->tree.root_count; i++) {
        for (const struct hearth_page *page = world.cache->tree.roots[i]; page; page = hearth_tree_next(page)) {
            tokens += (size_t)page->len;
        }
    }
#define PARAMS "\"class\": \"%s\", \"page_tokens\": %d, \"pages\": %zu, \"snapshots\": %zu, \"state\": \"%s\""
#define VALUES                                                                             \
    hearth_engine_class_text(params->memory_class), params->page_tokens, pages, snapshots, \
        world_backing_names[params->backing]
    double nodes = (double)bytes - (double)(tokens * sizeof(hearth_token));
    micro_value(micro, "node", "bytes/page", nodes / (double)pages, PARAMS, VALUES);
    micro_value(micro, "node+tokens", "bytes/page", (double)bytes / (double)pages, PARAMS, VALUES);
    micro_value(micro, "resident", "bytes/page", (double)rss / (double)pages, PARAMS, VALUES);
    world_close(&world);
}

void micro_memory(struct micro *micro) {
    static const struct world_params kinds[] = {
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256, .backing = WORLD_COPIED},
        {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT, .page_tokens = 256},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 16},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t pages = micro->quick ? 1000 : 100000; pages <= micro->pages_max; pages *= 10) {
            struct world_params params = kinds[i];
            params.pages = pages;
            measure(micro, &params);
        }
    }
}
