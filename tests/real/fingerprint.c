/* Fingerprints: whatever shapes state changes them, and nothing else does.
 *
 * First the parts alone, without a model; then files and engines, with a LoRA adapter that the test writes itself. */
#include "engine/fingerprint.h"

#include "models.h"

#include <gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"smollm2", "hybrid", "tiny"};

/* ---- parts ---- */

static struct hearth_gguf_info model_info(void) {
    return (struct hearth_gguf_info){
        .architecture = "llama", .file_bytes = 1000, .splits = 1, .metadata = {1, 2}, .sample = {3, 4}};
}

static struct hearth_fingerprint_parts parts_of(const struct hearth_gguf_info *model) {
    return (struct hearth_fingerprint_parts){.model = model, .memory_class = "pages", .engine_build = "llama.cpp 1"};
}

static void assert_differs(const struct hearth_fingerprint_parts *a, const struct hearth_fingerprint_parts *b) {
    assert_false(hearth_digest_equal(hearth_fingerprint(a), hearth_fingerprint(b)));
}

static void every_part_counts(void **state) {
    (void)state;
    struct hearth_gguf_info model = model_info(), other = model_info();
    const struct hearth_fingerprint_parts base = parts_of(&model);
    struct hearth_fingerprint_parts p = base;
    p.model = &other;
    assert_true(hearth_digest_equal(hearth_fingerprint(&base), hearth_fingerprint(&p)));
    other.file_bytes++;
    assert_differs(&base, &p);
    other = model_info();
    other.metadata.hi++;
    assert_differs(&base, &p);
    other = model_info();
    other.sample.lo++;
    assert_differs(&base, &p);
#define CHANGED(statement)         \
    do {                           \
        p = base;                  \
        statement;                 \
        assert_differs(&base, &p); \
    } while (0)
    other = model_info();
    CHANGED(p.lora = &other);
    CHANGED(p.rope_freq_base = 10000.0f);
    CHANGED(p.rope_freq_scale = 0.5f);
    CHANGED(p.rope_scaling = 2);
    CHANGED(p.type_k = 8);
    CHANGED(p.type_v = 8);
    CHANGED(p.flash_attn = 1);
    CHANGED(p.yarn[0] = 1.0f);
    CHANGED(p.yarn[3] = 1.0f);
    CHANGED(p.yarn_orig_ctx = 4096);
    static const char *const overrides[] = {"a=int:1", "b=int:1"};
    CHANGED(p.override_kv = overrides; p.override_kvs = 1);
    CHANGED(p.override_kv = overrides + 1; p.override_kvs = 1);
    CHANGED(p.memory_class = "opaque");
    CHANGED(p.engine_build = "llama.cpp 2");
#undef CHANGED
    /* K is not V. */
    struct hearth_fingerprint_parts k = base, v = base;
    k.type_k = 8;
    v.type_v = 8;
    assert_differs(&k, &v);
    /* The scale of an adapter counts; the scale of none does not. */
    p = base;
    p.lora_scale = 0.5f;
    assert_true(hearth_digest_equal(hearth_fingerprint(&base), hearth_fingerprint(&p)));
    struct hearth_fingerprint_parts scaled = base;
    p.lora = scaled.lora = &other;
    scaled.lora_scale = 0.25f;
    assert_differs(&p, &scaled);
}

/* ---- files ---- */

static void make_path(char *path) {
    strcpy(path, "/tmp/hearth-fingerprint-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

#define DATA_BYTES (1 << 20)

/* A GGUF with one tensor of DATA_BYTES, all zero but one byte. */
static void write_gguf(const char *path, const char *name, size_t odd) {
    struct gguf_context *gguf = gguf_init_empty();
    uint8_t *data = calloc(DATA_BYTES, 1);
    assert_non_null(data);
    data[odd] = 1;
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_str(gguf, "general.name", name);
    struct ggml_tensor tensor = {
        .type = GGML_TYPE_I8, .ne = {DATA_BYTES, 1, 1, 1}, .nb = {1, DATA_BYTES, DATA_BYTES, DATA_BYTES}};
    strcpy(tensor.name, "weights");
    tensor.data = data;
    gguf_add_tensor(gguf, &tensor);
    assert_true(gguf_write_to_file(gguf, path, false));
    gguf_free(gguf);
    free(data);
}

static struct hearth_digest digest_of(const char *path) {
    struct hearth_gguf_info info;
    struct hearth_errmsg msg = {""};
    if (hearth_gguf_inspect(path, &info, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    assert_string_equal(info.architecture, "llama");
    assert_int_equal(info.splits, 1);
    struct hearth_fingerprint_parts parts = parts_of(&info);
    return hearth_fingerprint(&parts);
}

static void files_are_told_apart(void **state) {
    (void)state;
    char a[64], b[64];
    make_path(a);
    make_path(b);
    write_gguf(a, "one", 0);
    write_gguf(b, "one", 0);
    assert_true(hearth_digest_equal(digest_of(a), digest_of(b)));
    write_gguf(b, "two", 0); /* metadata */
    assert_false(hearth_digest_equal(digest_of(a), digest_of(b)));
    /* A file of this size is read whole: any byte counts. */
    const size_t odd[] = {1, DATA_BYTES / 3, DATA_BYTES / 2, DATA_BYTES - 1};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        write_gguf(b, "one", odd[i]);
        assert_false(hearth_digest_equal(digest_of(a), digest_of(b)));
    }
    unlink(a);
    unlink(b);
}

static void splits_belong_together(void **state) {
    (void)state;
    char base[64], first[128], second[128];
    make_path(base);
    snprintf(first, sizeof first, "%s-00001-of-00002.gguf", base);
    snprintf(second, sizeof second, "%s-00002-of-00002.gguf", base);
    for (int i = 0; i < 2; i++) {
        struct gguf_context *gguf = gguf_init_empty();
        gguf_set_val_str(gguf, "general.architecture", "llama");
        gguf_set_val_u16(gguf, "split.no", (uint16_t)i);
        gguf_set_val_u16(gguf, "split.count", 2);
        assert_true(gguf_write_to_file(gguf, i == 0 ? first : second, false));
        gguf_free(gguf);
    }
    struct hearth_gguf_info before, after;
    struct hearth_errmsg msg = {""};
    assert_int_equal(hearth_gguf_inspect(first, &before, &msg), HEARTH_OK);
    assert_int_equal(before.splits, 2);
    write_gguf(second, "other", 5); /* the second file counts too */
    assert_int_equal(hearth_gguf_inspect(first, &after, &msg), HEARTH_OK);
    assert_false(hearth_digest_equal(before.metadata, after.metadata));
    unlink(second);
    assert_int_equal(hearth_gguf_inspect(first, &after, &msg), HEARTH_ERR_IO);
    assert_int_equal(rename(first, second), 0);
    assert_int_equal(hearth_gguf_inspect(second, &after, &msg), HEARTH_ERR_INVALID);
    assert_non_null(strstr(msg.text, "-00001-of-00002.gguf"));
    unlink(second);
    unlink(base);
}

/* ---- engines ---- */

static struct hearth_digest engine_digest(const struct hearth_llama_params *params) {
    struct hearth_engine *engine = real_open_with(params);
    struct hearth_digest digest = engine->caps.fingerprint;
    real_close(engine);
    return digest;
}

static void settings_of_an_engine(void **state) {
    struct hearth_llama_params base, p;
    real_params(&base, *state);
    struct hearth_digest digest = engine_digest(&base);
    p = base;
    p.ctx_tokens = 512;
    p.lanes = 3;
    p.threads = 2;
    p.batch_tokens = 256;
    assert_true(hearth_digest_equal(engine_digest(&p), digest));
    /* Where it is computed, and how the file is read. */
    static const char *const places[] = {"attn_q=CPU,ffn_up=CPU", "ffn_down=CPU"};
    p = base;
    p.device = "none";
    p.override_tensor = places;
    p.override_tensors = 2;
    p.cpu_moe = p.no_kv_offload = p.no_op_offload = p.no_mmap = p.mlock = p.check_tensors = true;
    p.cpu_moe_layers = p.cpu_ffn_layers = 2;
    p.numa = "distribute";
    p.cpu_mask = "1";
    p.priority = 0;
    assert_true(hearth_digest_equal(engine_digest(&p), digest));
#define CHANGED(statement)                                            \
    do {                                                              \
        p = base;                                                     \
        statement;                                                    \
        assert_false(hearth_digest_equal(engine_digest(&p), digest)); \
    } while (0)
    CHANGED(p.type_k = "q8_0");
    CHANGED(p.type_v = "q8_0");
    CHANGED(p.rope_freq_base = 12345.0f);
    CHANGED(p.rope_freq_scale = 0.5f);
    CHANGED(p.rope_scaling = "yarn");
    CHANGED(p.flash_attn_off = true);
    CHANGED(p.yarn_ext_factor = 0.5f);
    static const char *const metadata[] = {"llama.rope.freq_base=float:20000"};
    CHANGED(p.override_kv = metadata; p.override_kvs = 1);
    CHANGED(p.force_opaque = true);
#undef CHANGED
    struct hearth_llama_params other;
    real_params(&other, "hybrid");
    assert_false(hearth_digest_equal(engine_digest(&other), digest));
}

/* A LoRA adapter for the first query projection of the tiny model (64 x 32), of rank 4. */
static void write_lora(const char *path, float size) {
    enum { WIDTH = 64, OUT = 32, RANK = 4 };
    static float a[WIDTH * RANK], b[RANK * OUT];
    for (int i = 0; i < WIDTH * RANK; i++) {
        a[i] = size * (float)(i % 7 - 3);
    }
    for (int i = 0; i < OUT * RANK; i++) {
        b[i] = size * (float)(i % 5 - 2);
    }
    struct gguf_context *gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.type", "adapter");
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_str(gguf, "adapter.type", "lora");
    gguf_set_val_f32(gguf, "adapter.lora.alpha", RANK);
    struct ggml_tensor tensor = {.type = GGML_TYPE_F32, .ne = {WIDTH, RANK, 1, 1}, .data = a};
    tensor.nb[0] = sizeof(float);
    tensor.nb[1] = tensor.nb[0] * WIDTH;
    tensor.nb[2] = tensor.nb[3] = sizeof a;
    strcpy(tensor.name, "blk.0.attn_q.weight.lora_a");
    gguf_add_tensor(gguf, &tensor);
    tensor.ne[0] = RANK;
    tensor.ne[1] = OUT;
    tensor.nb[1] = tensor.nb[0] * RANK;
    tensor.nb[2] = tensor.nb[3] = sizeof b;
    tensor.data = b;
    strcpy(tensor.name, "blk.0.attn_q.weight.lora_b");
    gguf_add_tensor(gguf, &tensor);
    assert_true(gguf_write_to_file(gguf, path, false));
    gguf_free(gguf);
}

static float *first_logits(const struct hearth_llama_params *params, struct hearth_digest *digest) {
    struct hearth_engine *engine = real_open_with(params);
    hearth_token prompt[41];
    real_prompt(engine, 30, prompt, 41);
    real_decode(engine, 0, prompt, 0, 40);
    float *row = real_logits(engine, 0, prompt[40], 40);
    *digest = engine->caps.fingerprint;
    real_close(engine);
    return row;
}

static void adapters_count(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    char path[64];
    make_path(path);
    struct hearth_digest digest[4];
    float *row[4];
    row[0] = first_logits(&params, &digest[0]);
    write_lora(path, 0.02f);
    params.lora_path = path;
    row[1] = first_logits(&params, &digest[1]);
    params.lora_scale = 0.5f;
    row[2] = first_logits(&params, &digest[2]);
    write_lora(path, 0.03f);
    row[3] = first_logits(&params, &digest[3]);
    unlink(path);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++) {
            assert_false(hearth_digest_equal(digest[i], digest[j]));
            assert_int_not_equal(memcmp(row[i], row[j], 1000 * sizeof(float)), 0); /* it is really applied */
        }
    }
    for (int i = 0; i < 4; i++) {
        free(row[i]);
    }
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}

/* With "long": those that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_counts),
        cmocka_unit_test(files_are_told_apart),
        cmocka_unit_test(splits_belong_together),
        ON(settings_of_an_engine, "tiny"),
        ON(adapters_count, "tiny"),
    };
    const struct CMUnitTest longer[] = {
        ON(settings_of_an_engine, "smollm2"),
    };
    const int failed = whole ? cmocka_run_group_tests(longer, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    return real_exit(failed, names, sizeof names / sizeof names[0]);
}
