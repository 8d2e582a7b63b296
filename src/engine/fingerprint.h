/* The fingerprint of a model in a configuration: two engines with equal fingerprints can exchange state.
 *
 * A state blob of llama.cpp names no model and carries no checksum: the state of another quantisation, LoRA or RoPE
 * setting loads without complaint and gives wrong answers. So everything that shapes state goes into one digest, and
 * stored state is only ever looked up under that digest. The context size is *not* part of it: a restart with another
 * -c finds its state again. */
#ifndef HEARTH_ENGINE_FINGERPRINT_H
#define HEARTH_ENGINE_FINGERPRINT_H

#include "base/digest.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define HEARTH_ARCHITECTURE_MAX 64

/* What a GGUF file says about itself. */
struct hearth_gguf_info {
    char architecture[HEARTH_ARCHITECTURE_MAX]; /* general.architecture, "" when there is none */
    uint64_t file_bytes;                        /* all splits together */
    uint32_t splits;                            /* 1 for a file that is not split */
    struct hearth_digest metadata;              /* every byte before the data section, of every split */
    struct hearth_digest sample;                /* blocks spread evenly over each file's data section */
};

/* Reads a GGUF file, or, given the first of several splits, all of them. At most 4 MiB of each file's data are read.
 * Errors: IO (not there, not readable), INVALID (a directory, not a GGUF, cut short, a split missing), NOMEM; `msg`
 * holds one clear line. */
int hearth_gguf_inspect(const char *path, struct hearth_gguf_info *info, struct hearth_errmsg *msg);

/* Everything that the fingerprint is made of. Strings may be NULL. Zero is a value like any other. */
struct hearth_fingerprint_parts {
    const struct hearth_gguf_info *model;
    const struct hearth_gguf_info *lora; /* NULL = none */
    float lora_scale;
    float rope_freq_base; /* 0 = the model's own, which its metadata covers; so below */
    float rope_freq_scale;
    int32_t rope_scaling; /* -1 = the model's own */
    int32_t type_k, type_v;
    int32_t flash_attn;
    float yarn[4];                  /* extrapolation, attention, slow and fast beta; -1 = the model's own */
    uint32_t yarn_orig_ctx;         /* 0 = the model's own */
    const char *const *override_kv; /* of the metadata */
    size_t override_kvs;
    const char *memory_class; /* each class stores other blobs */
    const char *engine_build; /* version and build of the engine */
};

struct hearth_digest hearth_fingerprint(const struct hearth_fingerprint_parts *parts);

#endif
