/* One table: an option, when it is without effect, and why. Defaults of requests are not in it: a request that sets
 * what they depend on makes them count. */
#include "cli/options_moot.h"

#include "cli/options_internal.h"

#include <stddef.h>
#include <string.h>

#define OPTIONS const struct hearth_options *o
#define FACTS const struct hearth_option_facts *f

static bool is(const char *text, const char *word) {
    return text && strcmp(text, word) == 0;
}

static bool simulated(OPTIONS, FACTS) {
    (void)o;
    return !f->computes;
}

static bool no_gpu(OPTIONS, FACTS) {
    return f->computes && f->gpus == 0 && o->gpu_layers > 0;
}

static bool few_gpus(OPTIONS, FACTS) {
    (void)o;
    return f->computes && f->gpus < 2;
}

static bool load_mode(OPTIONS, FACTS) {
    (void)f;
    return !is(o->load_mode, "auto");
}

static bool no_lora(OPTIONS, FACTS) {
    (void)f;
    return !o->lora;
}

static bool no_guesses(OPTIONS, FACTS) {
    (void)f;
    return is(o->speculate, "off");
}

static bool no_snapshots(OPTIONS, FACTS) {
    (void)o;
    return !f->snapshots;
}

static bool no_pages(OPTIONS, FACTS) {
    (void)o;
    return !f->pages;
}

static bool no_cache(OPTIONS, FACTS) {
    (void)f;
    return o->cache_ram == 0;
}

static bool no_room(OPTIONS, FACTS) {
    (void)f;
    return o->kv_disk == 0 || o->cache_ram == 0;
}

static bool no_disk(OPTIONS, FACTS) {
    (void)o;
    return !f->disk;
}

static bool nothing_written(OPTIONS, FACTS) {
    (void)o;
    return !f->disk && !f->sessions;
}

static bool no_sessions(OPTIONS, FACTS) {
    (void)o;
    return !f->sessions;
}

static bool template_file(OPTIONS, FACTS) {
    (void)f;
    return o->chat_template_file != NULL;
}

static bool no_reasoning_budget(OPTIONS, FACTS) {
    (void)f;
    return o->reasoning_budget < 0;
}

static bool rope_scale(OPTIONS, FACTS) {
    (void)f;
    return o->rope_scale > 0;
}

static bool no_yarn(OPTIONS, FACTS) {
    (void)f;
    return is(o->rope_scaling, "none") || is(o->rope_scaling, "linear");
}

static bool no_socket(OPTIONS, FACTS) {
    (void)f;
    return strncmp(o->host, "unix:", 5) != 0;
}

static bool no_port(OPTIONS, FACTS) {
    return !no_socket(o, f);
}

static bool any_key(OPTIONS, FACTS) {
    (void)f;
    return o->api_key != NULL || o->api_key_file != NULL;
}

#define ROW(field, when, why) {offsetof(struct hearth_options, field), (when), (why)}

static const struct {
    size_t offset;
    bool (*when)(OPTIONS, FACTS);
    const char *why;
} rows[] = {
    ROW(gpu_layers, no_gpu, "there is no GPU that this build can use, all layers are on the CPU"),
    ROW(gpu_layers, simulated, "the simulated engine computes nothing"),
    ROW(threads, simulated, "the simulated engine computes nothing"),
    ROW(threads_batch, simulated, "the simulated engine computes nothing"),
    ROW(deterministic, simulated, "the simulated engine always is"),
    ROW(main_gpu, few_gpus, "there are not several GPUs"),
    ROW(split_mode, few_gpus, "there are not several GPUs"),
    ROW(tensor_split, few_gpus, "there are not several GPUs"),
    ROW(mmap, load_mode, "--load-mode says how the model is read"),
    ROW(mlock, load_mode, "--load-mode says how the model is read"),
    ROW(lora_scale, no_lora, "there is no --lora"),
    ROW(rope_freq_scale, rope_scale, "--rope-scale is given"),
    ROW(yarn_orig_ctx, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_ext_factor, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_attn_factor, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_beta_slow, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_beta_fast, no_yarn, "--rope-scaling is not yarn"),
    ROW(draft_tokens, no_guesses, "--speculate is off"),
    ROW(cache_ram_snapshots, no_snapshots, "this model's state needs no snapshots"),
    ROW(snapshot_interval, no_snapshots, "this model's state needs no snapshots"),
    ROW(page_tokens, no_pages, "this model's state has no pages"),
    ROW(kv_dir, no_room, "--kv-disk or --cache-ram is 0"),
    ROW(kv_disk, no_cache, "--cache-ram is 0"),
    ROW(kv_disk, no_disk, "nothing is kept on disk"),
    ROW(kv_min_tokens, no_disk, "nothing is kept on disk"),
    ROW(kv_interval_tokens, no_disk, "nothing is kept on disk"),
    ROW(kv_compress, no_disk, "nothing is kept on disk"),
    ROW(kv_io, no_disk, "nothing is kept on disk"),
    ROW(kv_key, nothing_written, "nothing is kept on disk"),
    ROW(session_ttl, no_sessions, "sessions are kept in memory"),
    ROW(chat_template, template_file, "--chat-template-file is given"),
    ROW(reasoning_budget_message, no_reasoning_budget, "there is no --reasoning-budget"),
    ROW(host_mode, no_socket, "--host is no unix:PATH"),
    ROW(port, no_port, "--host is a socket in a file"),
    ROW(insecure, any_key, "there is a key"),
    ROW(allow_host, any_key, "there is a key, and requests with one may call the server what they like"),
};

/* What is there to turn something off has that effect. */
static bool turns_off(const struct hearth_options *options, size_t offset) {
    return (offset == offsetof(struct hearth_options, kv_dir) && is(options->kv_dir, "none")) ||
           (offset == offsetof(struct hearth_options, kv_disk) && options->kv_disk == 0);
}

bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out) {
    bool ok = true;
    size_t told = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && ok; i++) {
        const struct hearth_option_row *row = hearth_option_at(rows[i].offset);
        const bool given = options->sources[row - hearth_option_rows] != HEARTH_OPTION_DEFAULT;
        if (given && !turns_off(options, row->offset) && told != row->offset && rows[i].when(options, facts)) {
            told = row->offset; /* one reason is enough */
            ok = hearth_buf_printf(out, "%s has no effect: %s\n", row->long_name, rows[i].why);
        }
    }
    return ok;
}
