/* What goes wrong: broken blobs, no free cells, files that are no models. Every failed import leaves the sequence empty
 * and the engine as useful as before; every file that cannot be served gives one clear line. */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT 100

static const char *const names[] = {"smollm2", "tiny",   "tiny-window", "tiny-hybrid",
                                    "mamba",   "opaque", "gemma3-270m", "hybrid"};

struct fixture {
    struct hearth_engine *engine;
    hearth_token prompt[PROMPT + 1];
    struct real_state state; /* of [0, PROMPT) */
    float *want;             /* logits behind it */
};

static void begin(struct fixture *f, const char *name) {
    memset(f, 0, sizeof *f);
    f->engine = real_open(name);
    real_prompt(f->engine, 20, f->prompt, PROMPT + 1);
    real_decode(f->engine, 0, f->prompt, 0, PROMPT);
    real_export(f->engine, 0, PROMPT, &f->state);
    f->want = real_logits(f->engine, 0, f->prompt[PROMPT], PROMPT);
    f->engine->ops->seq_clear(f->engine, 0);
}

static void end(struct fixture *f) {
    real_state_finish(&f->state);
    free(f->want);
    real_close(f->engine);
}

/* Sequence 0 must be empty: what is imported into it now gives the right logits. */
static void assert_usable(struct fixture *f) {
    real_import(f->engine, 0, &f->state, PROMPT, &f->state.snapshot);
    float *got = real_logits(f->engine, 0, f->prompt[PROMPT], PROMPT);
    assert_true(real_difference(f->engine, f->want, got) < 0.25f);
    assert_int_equal(real_best(f->engine, got), real_best(f->engine, f->want));
    free(got);
    f->engine->ops->seq_clear(f->engine, 0);
}

/* Imports the second page behind the first, from a blob and a claim that may be wrong. */
static int import_second_page(struct fixture *f, const void *blob, size_t len, int32_t page_p1) {
    const struct hearth_engine_ops *ops = f->engine->ops;
    assert_int_equal(ops->page_import(f->engine, 0, 0, REAL_PAGE_TOKENS, f->state.page[0].data, f->state.page[0].len, 0,
                                      REAL_PAGE_TOKENS),
                     HEARTH_OK);
    return ops->page_import(f->engine, 0, REAL_PAGE_TOKENS, page_p1, blob, len, REAL_PAGE_TOKENS, page_p1);
}

static void broken_pages(void **state) {
    struct fixture f;
    begin(&f, *state);
    const struct hearth_buf *page = &f.state.page[1];
    uint8_t *blob = malloc(page->len + 64);
    assert_non_null(blob);
    memset(blob, 0, page->len + 64);

    const size_t lengths[] = {0, 1, 7, 8, 12, 16, 100, page->len / 2, page->len - 1, page->len + 1, page->len + 64};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(blob, page->data, page->len);
        assert_int_equal(import_second_page(&f, blob, lengths[i], PROMPT), HEARTH_ERR_STATE);
        assert_usable(&f);
    }
    /* Another range than the blob's. */
    assert_int_equal(import_second_page(&f, page->data, page->len, PROMPT - 1), HEARTH_ERR_STATE);
    assert_usable(&f);
    assert_int_equal(import_second_page(&f, f.state.page[0].data, f.state.page[0].len, PROMPT), HEARTH_ERR_STATE);
    assert_usable(&f);
    /* Words of the header: magic, streams, cells. */
    const size_t words[] = {0, 8, 12};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        memcpy(blob, page->data, page->len);
        blob[words[i]] ^= 0x5a;
        assert_int_equal(import_second_page(&f, blob, page->len, PROMPT), HEARTH_ERR_STATE);
        assert_usable(&f);
    }
    free(blob);
    end(&f);
}

static void broken_snapshots(void **state) {
    struct fixture f;
    begin(&f, *state);
    const struct hearth_engine_ops *ops = f.engine->ops;
    const struct hearth_buf *snapshot = &f.state.snapshot;
    struct real_state pages = f.state;
    uint8_t *blob = malloc(snapshot->len + 64);
    assert_non_null(blob);
    memset(blob, 0, snapshot->len + 64);
    const size_t lengths[] = {0, 1, 8, 12, 16, 100, snapshot->len / 2, snapshot->len - 1, snapshot->len + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int32_t p0 = 0, n = 0; hearth_caps_has_pages(&f.engine->caps) && p0 < PROMPT;
             p0 += REAL_PAGE_TOKENS, n++) {
            int32_t p1 = p0 + REAL_PAGE_TOKENS < PROMPT ? p0 + REAL_PAGE_TOKENS : PROMPT;
            assert_int_equal(ops->page_import(f.engine, 0, p0, p1, pages.page[n].data, pages.page[n].len, p0, p1),
                             HEARTH_OK);
        }
        memcpy(blob, snapshot->data, snapshot->len);
        assert_int_equal(ops->snapshot_import(f.engine, 0, PROMPT, blob, lengths[i]), HEARTH_ERR_STATE);
        assert_usable(&f);
    }
    memcpy(blob, snapshot->data, snapshot->len);
    blob[0] ^= 1;
    assert_int_equal(ops->snapshot_import(f.engine, 0, PROMPT, blob, snapshot->len), HEARTH_ERR_STATE);
    assert_usable(&f);
    /* The right bytes for another position. */
    assert_int_equal(ops->snapshot_import(f.engine, 0, PROMPT + 1, snapshot->data, snapshot->len), HEARTH_ERR_STATE);
    assert_usable(&f);
    /* A recurrent cell count that would abort inside llama.cpp. */
    if (strcmp(*state, "hybrid") == 0 || strcmp(*state, "mamba") == 0) {
        memcpy(blob, snapshot->data, snapshot->len);
        blob[8] = 2;
        assert_int_equal(ops->snapshot_import(f.engine, 0, PROMPT, blob, snapshot->len), HEARTH_ERR_STATE);
        assert_usable(&f);
    }
    free(blob);
    end(&f);
}

static void no_free_cells(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.ctx_tokens = 256;
    struct hearth_engine *engine = real_open_with(&params);
    hearth_token prompt[257];
    real_prompt(engine, 21, prompt, 257);
    struct hearth_buf page = {0};
    real_decode(engine, 0, prompt, 0, 200);
    assert_int_equal(engine->ops->page_export(engine, 0, 0, 100, &page), HEARTH_OK);
    assert_int_equal(engine->ops->page_import(engine, 1, 0, 100, page.data, page.len, 0, 100), HEARTH_ERR_NO_CELLS);
    /* Nothing of a batch that does not fit is kept, and a smaller one fits. */
    struct hearth_batch_item items[100];
    for (int32_t i = 0; i < 100; i++) {
        items[i] = (struct hearth_batch_item){prompt[i], 1, i, false};
    }
    assert_int_equal(engine->ops->decode(engine, items, 100), HEARTH_ERR_NO_CELLS);
    assert_int_equal(engine->ops->decode(engine, items, 50), HEARTH_OK);
    real_decode(engine, 0, prompt, 200, 206);
    assert_int_equal(engine->ops->decode(engine, items + 50, 1), HEARTH_ERR_NO_CELLS);
    engine->ops->seq_clear(engine, 0);
    assert_int_equal(engine->ops->decode(engine, items + 50, 1), HEARTH_OK);
    engine->ops->seq_clear(engine, 1);
    assert_int_equal(engine->ops->page_import(engine, 1, 0, 100, page.data, page.len, 0, 100), HEARTH_OK);
    hearth_buf_finish(&page);
    real_close(engine);
}

/* ---- files ---- */

static void assert_refused(const struct hearth_llama_params *params, int err, const char *part) {
    struct hearth_engine *engine = (void *)1;
    struct hearth_errmsg msg = {""};
    assert_int_equal(hearth_llama_create(params, &engine, &msg), err);
    assert_null(engine);
    if (strstr(msg.text, part) == NULL || strchr(msg.text, '\n') != NULL) {
        fail_msg("the message is \"%s\"", msg.text);
    }
}

static void write_file(const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
}

static void files_that_are_no_models(void **state) {
    (void)state;
    struct hearth_llama_params params;
    hearth_llama_params_default(&params);
    assert_refused(&params, HEARTH_ERR_INVALID, "-m");
    params.model_path = "/nonexistent/model.gguf";
    assert_refused(&params, HEARTH_ERR_IO, "no such model file");
    params.model_path = "/tmp";
    assert_refused(&params, HEARTH_ERR_INVALID, "directory");
    char path[] = "/tmp/hearth-faults-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    params.model_path = path;
    assert_refused(&params, HEARTH_ERR_INVALID, "not a GGUF");
    write_file(path, "This is no model.", 17);
    assert_refused(&params, HEARTH_ERR_INVALID, "not a GGUF");
    write_file(path, "GGUF", 4);
    assert_refused(&params, HEARTH_ERR_INVALID, "broken GGUF");
    write_file(path, "GGUF\3\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\1\0\0\0\0\0\0\0", 24);
    assert_refused(&params, HEARTH_ERR_INVALID, "broken GGUF");
    unlink(path);
}

static void files_cut_short(void **state) {
    const char *source = real_path(*state);
    if (source == NULL) {
        skip();
    }
    FILE *file = fopen(source, "rb");
    assert_non_null(file);
    const size_t room = 24u << 20;
    uint8_t *bytes = malloc(room);
    assert_non_null(bytes);
    size_t len = fread(bytes, 1, room, file);
    fclose(file);
    char path[] = "/tmp/hearth-faults-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct hearth_llama_params params;
    hearth_llama_params_default(&params);
    params.model_path = path;
    const size_t lengths[] = {100, 5000, 1u << 20, 8u << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_file(path, bytes, lengths[i] < len ? lengths[i] : len);
        assert_refused(&params, HEARTH_ERR_INVALID, lengths[i] < (1u << 20) ? "broken GGUF" : "");
    }
    write_file(path, bytes, len);
    assert_refused(&params, HEARTH_ERR_INVALID, "cut short");
    unlink(path);
    free(bytes);
}

static void parameters_that_cannot_be(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.type_k = "q9_9";
    assert_refused(&params, HEARTH_ERR_INVALID, "-ctk");
    real_params(&params, *state);
    params.rope_scaling = "elastic";
    assert_refused(&params, HEARTH_ERR_INVALID, "--rope-scaling");
    real_params(&params, *state);
    params.type_v = "q8_0";
    params.flash_attn_off = true;
    assert_refused(&params, HEARTH_ERR_INVALID, "flash attention");
    real_params(&params, *state);
    params.lanes = 1000;
    assert_refused(&params, HEARTH_ERR_INVALID, "-np");
    real_params(&params, *state);
    params.lora_path = "/nonexistent/lora.gguf";
    assert_refused(&params, HEARTH_ERR_IO, "no such");
    real_params(&params, *state);
    params.lora_path = real_path(*state);
    assert_refused(&params, HEARTH_ERR_INVALID, "LoRA");
    /* 2^31 tokens of 23 KB. */
    real_params(&params, *state);
    params.ctx_tokens = 2000000000;
    assert_refused(&params, HEARTH_ERR_NOMEM, "not enough memory");
}

/* Pages of half a gigabyte, and a mask of 34 terabytes. */
static void a_mask_that_does_not_fit(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.ctx_tokens = params.batch_tokens = params.ubatch_tokens = 1 << 22;
    assert_refused(&params, HEARTH_ERR_NOMEM, "at most -c");
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}

/* Texts that say where a model goes: a mistake is told in the words of the option, before anything is loaded. */
static void placement_mistakes(void **state) {
    static const char *const tensors[] = {"attn_q", "attn_q=TPU", "=", NULL};
    static const char *const metadata[] = {"a", "a=int:x", "=int:1", "a=bool:maybe", "a=float:", "a=text:b", NULL};
    struct hearth_llama_params params;
    for (const char *const *text = tensors; *text != NULL; text++) {
        real_params(&params, *state);
        params.override_tensor = text;
        params.override_tensors = 1;
        assert_refused(&params, HEARTH_ERR_INVALID, "--override-tensor");
    }
    for (const char *const *text = metadata; *text != NULL; text++) {
        real_params(&params, *state);
        params.override_kv = text;
        params.override_kvs = 1;
        assert_refused(&params, HEARTH_ERR_INVALID, "--override-kv");
    }
#define REFUSED(flag, statement)                           \
    do {                                                   \
        real_params(&params, *state);                      \
        statement;                                         \
        assert_refused(&params, HEARTH_ERR_INVALID, flag); \
    } while (0)
    REFUSED("--device", params.device = "CUDA99");
    REFUSED("--device", params.device = "CPU");
    REFUSED("--tensor-split", params.tensor_split = "3,x");
    REFUSED("--tensor-split", params.tensor_split = "-1");
    REFUSED("--cpu-mask", params.cpu_mask = "xyz");
    REFUSED("--cpu-mask", params.cpu_mask = "0");
    REFUSED("--cpu-range", params.cpu_range = "3-1");
    REFUSED("--cpu-range", params.cpu_range = "1");
    REFUSED("--cpu-range", params.cpu_range = "0-99999");
#undef REFUSED
}

/* With "long": those that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_are_no_models),
        ON(files_cut_short, "smollm2"),
        ON(a_mask_that_does_not_fit, "tiny"),
        ON(parameters_that_cannot_be, "tiny"),
        ON(placement_mistakes, "tiny"),
        ON(broken_pages, "tiny"),
        ON(no_free_cells, "tiny"),
        ON(broken_pages, "tiny-window"),
        ON(broken_snapshots, "tiny-window"),
        ON(no_free_cells, "tiny-window"),
        ON(broken_pages, "tiny-hybrid"),
        ON(broken_snapshots, "tiny-hybrid"),
        ON(no_free_cells, "tiny-hybrid"),
        ON(broken_snapshots, "mamba"),
        ON(broken_snapshots, "opaque"),
    };
    const struct CMUnitTest longer[] = {
        ON(broken_pages, "smollm2"),         ON(no_free_cells, "smollm2"),     ON(broken_pages, "gemma3-270m"),
        ON(broken_snapshots, "gemma3-270m"), ON(no_free_cells, "gemma3-270m"), ON(broken_pages, "hybrid"),
        ON(broken_snapshots, "hybrid"),      ON(no_free_cells, "hybrid"),
    };
    const int failed = whole ? cmocka_run_group_tests(longer, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    return real_exit(failed, names, sizeof names / sizeof names[0]);
}
