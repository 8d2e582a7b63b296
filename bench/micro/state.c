/* State out of a real model and back in, page by page, beside copying as many bytes. */
#include "micro.h"

#include "base/assert.h"
#include "engine/llama.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 256
#define PAGES 4
#define TOKENS (PAGES * PAGE_TOKENS)

static void report(struct micro *micro, const char *name, const char *model, const char *memory_class, size_t bytes,
                   struct micro_sample *sample) {
    double ns = micro_median(sample), per_s = ns > 0 ? (double)bytes / ns : 0; /* bytes per ns are GB/s */
    micro_report(micro, name, sample, "\"model\": \"%s\", \"class\": \"%s\", \"bytes\": %zu, \"gb_per_s\": %.2f", model,
                 memory_class, bytes, per_s);
}

/* As many bytes from one place to another: both touched before, neither in a hurry to leave the caches. */
static void copy(struct micro *micro, const char *model, const char *memory_class, size_t bytes, int repetitions) {
    static struct micro_sample sample;
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    HEARTH_ASSERT(from != NULL && to != NULL);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int i = 0; i < repetitions; i++) {
        uint64_t start = micro_now_ns();
        memcpy(to, from, bytes);
        micro_add(&sample, (double)(micro_now_ns() - start));
        from[i % (int)bytes] = to[(i + 1) % (int)bytes]; /* so that no copy can be left out */
    }
    report(micro, "memcpy", model, memory_class, bytes, &sample);
    free(from);
    free(to);
}

static bool compute(struct hearth_engine *engine) {
    struct hearth_batch_item items[PAGE_TOKENS];
    for (int32_t at = 0; at < TOKENS; at += PAGE_TOKENS) {
        for (int32_t i = 0; i < PAGE_TOKENS; i++) {
            items[i] = (struct hearth_batch_item){.token = 100 + (at + i) * 7 % 2000, .pos = at + i};
        }
        if (engine->ops->decode(engine, items, PAGE_TOKENS) != HEARTH_OK) {
            return false;
        }
    }
    return true;
}

static void pages(struct micro *micro, struct hearth_engine *engine, const char *model, int repetitions) {
    static struct micro_sample out_ns, in_ns;
    const char *memory_class = hearth_engine_class_text(engine->caps.memory_class);
    struct hearth_buf page[PAGES] = {{0}};
    for (int i = 0; i < repetitions; i++) {
        engine->ops->seq_clear(engine, 1);
        for (int32_t k = 0; k < PAGES; k++) {
            int32_t p0 = k * PAGE_TOKENS, p1 = p0 + PAGE_TOKENS;
            page[k].len = 0;
            uint64_t start = micro_now_ns();
            HEARTH_ASSERT(engine->ops->page_export(engine, 0, p0, p1, &page[k]) == HEARTH_OK);
            uint64_t middle = micro_now_ns();
            HEARTH_ASSERT(engine->ops->page_import(engine, 1, p0, p1, page[k].data, page[k].len, p0, p1) == HEARTH_OK);
            if (i > 0) { /* the first time memory is fresh */
                micro_add(&out_ns, (double)(middle - start));
                micro_add(&in_ns, (double)(micro_now_ns() - middle));
            }
        }
    }
    engine->ops->seq_clear(engine, 1);
    report(micro, "export a page", model, memory_class, page[0].len, &out_ns);
    report(micro, "import a page", model, memory_class, page[0].len, &in_ns);
    copy(micro, model, memory_class, page[0].len, PAGES * repetitions);
    for (int k = 0; k < PAGES; k++) {
        hearth_buf_finish(&page[k]);
    }
}

/* The state goes back to where it came from: its addressable part is there. */
static void snapshots(struct micro *micro, struct hearth_engine *engine, const char *model, int repetitions) {
    static struct micro_sample out_ns, in_ns;
    const char *memory_class = hearth_engine_class_text(engine->caps.memory_class);
    struct hearth_buf state = {0};
    for (int i = 0; i < PAGES * repetitions; i++) {
        state.len = 0;
        uint64_t start = micro_now_ns();
        HEARTH_ASSERT(engine->ops->snapshot_export(engine, 0, TOKENS, &state) == HEARTH_OK);
        uint64_t middle = micro_now_ns();
        HEARTH_ASSERT(engine->ops->snapshot_import(engine, 0, TOKENS, state.data, state.len) == HEARTH_OK);
        if (i > 0) {
            micro_add(&out_ns, (double)(middle - start));
            micro_add(&in_ns, (double)(micro_now_ns() - middle));
        }
    }
    report(micro, "export a snapshot", model, memory_class, state.len, &out_ns);
    report(micro, "import a snapshot", model, memory_class, state.len, &in_ns);
    copy(micro, model, memory_class, state.len, PAGES * repetitions);
    hearth_buf_finish(&state);
}

static void measure(struct micro *micro, const char *dir, const char *file) {
    char path[4096];
    struct hearth_llama_params params;
    struct hearth_engine *engine;
    struct hearth_errmsg msg = {""};
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    hearth_llama_params_default(&params);
    params.model_path = path;
    params.ctx_tokens = 4096;
    params.lanes = 2;
    if (hearth_llama_create(&params, &engine, &msg) != HEARTH_OK) {
        fprintf(stderr, "%s is left out: %s\n", file, msg.text);
        return;
    }
    int repetitions = micro->quick ? 2 : 51;
    if (!engine->caps.cache_ok || !compute(engine)) {
        fprintf(stderr, "%s is left out: its state cannot be taken out\n", file);
    } else {
        if (hearth_caps_has_pages(&engine->caps)) {
            pages(micro, engine, file, repetitions);
        }
        if (hearth_caps_needs_snapshot(&engine->caps)) {
            snapshots(micro, engine, file, repetitions);
        }
    }
    engine->ops->destroy(engine);
}

static bool is_model(const char *name, bool tiny) {
    size_t len = strlen(name);
    return len > 5 && strcmp(name + len - 5, ".gguf") == 0 && (strncmp(name, "tiny", 4) == 0) == tiny;
}

static int is_real(const struct dirent *entry) {
    return is_model(entry->d_name, false);
}

static int is_tiny(const struct dirent *entry) {
    return is_model(entry->d_name, true);
}

/* Where it is enough to see that it works: on the tiny models, whose state is too small to be measured. */
void micro_state(struct micro *micro) {
    struct dirent **files = NULL;
    int n = micro->models ? scandir(micro->models, &files, micro->quick ? is_tiny : is_real, alphasort) : 0;
    if (n <= 0) {
        fputs("state: no models (--models DIR)\n", stderr);
    }
    for (int i = 0; i < n; i++) {
        measure(micro, micro->models, files[i]->d_name);
        free(files[i]);
    }
    free(files);
}
