/* The llama engine: llama.cpp behind the vtable of engine.h. */
#ifndef HEARTH_ENGINE_LLAMA_H
#define HEARTH_ENGINE_LLAMA_H

#include "engine/engine.h"

/* Parameters that shape a context. Zero means the default unless a comment says otherwise; start from
 * hearth_llama_params_default(). Parentheses or comments name llama-server's flags. */
struct hearth_llama_params {
    const char *model_path;      /* -m */
    uint32_t ctx_tokens;         /* -c; 0 = the model's training context */
    uint32_t lanes;              /* -np */
    uint32_t parked_seqs;        /* caps.seqs - caps.lanes; default 1, and 0 means none; without pages there are none */
    uint32_t batch_tokens;       /* -b; default 2048 */
    uint32_t ubatch_tokens;      /* -ub; default 512 */
    int32_t threads;             /* -t; 0 = the number of cores */
    int32_t threads_batch;       /* -tb; 0 = threads */
    int32_t gpu_layers;          /* -ngl; -1 = all, 0 = none */
    const char *type_k, *type_v; /* -ctk, -ctv; "f16", "q8_0", …; NULL = f16 */
    const char *lora_path;       /* --lora; NULL = none */
    float lora_scale;            /* 1; 0 is an adapter without effect, not the default */
    float rope_freq_base;        /* --rope-freq-base; 0 = from the model */
    float rope_freq_scale;       /* --rope-freq-scale; 0 = from the model */
    const char *rope_scaling;    /* --rope-scaling none|linear|yarn; NULL = from the model */
    uint32_t yarn_orig_ctx;      /* --yarn-orig-ctx; 0 = from the model */
    /* --yarn-ext-factor and so on; -1, the default, = from the model. */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_slow, yarn_beta_fast;
    bool flash_attn_off;            /* -fa off */
    bool no_mmap;                   /* --no-mmap */
    bool mlock;                     /* --mlock */
    const char *load_mode;          /* --load-mode; NULL and "auto" = by no_mmap and mlock */
    const char *lazy_mode;          /* --lazy-mode on|off|auto */
    bool check_tensors;             /* --check-tensors */
    const char *const *override_kv; /* --override-kv "KEY=TYPE:VALUE,…" */
    size_t override_kvs;
    /* Where things are computed. None of this is part of the fingerprint: state fits wherever it was computed. */
    const char *device;                 /* --device "CUDA0,CUDA1"; "none" = the CPU; NULL = all */
    const char *split_mode;             /* --split-mode none|layer|row; NULL = layer */
    const char *tensor_split;           /* --tensor-split "3,1"; NULL = by free memory */
    int32_t main_gpu;                   /* --main-gpu */
    const char *const *override_tensor; /* --override-tensor "REGEX=BUFFER,…" */
    size_t override_tensors;
    bool cpu_moe;           /* --cpu-moe */
    int32_t cpu_moe_layers; /* --n-cpu-moe */
    int32_t cpu_ffn_layers; /* --n-cpu-ffn */
    bool no_kv_offload;     /* --no-kv-offload */
    bool no_op_offload;     /* --no-op-offload */
    bool no_repack;         /* --no-repack */
    const char *numa;       /* --numa distribute|isolate|numactl; NULL and "none" = no matter. Of the process. */
    const char *cpu_mask;   /* --cpu-mask, hexadecimal; with */
    const char *cpu_range;  /* --cpu-range "0-3" the CPUs that threads run on; both NULL = all */
    bool cpu_strict;        /* --cpu-strict 1 */
    int32_t priority;       /* --prio -1 … 3 */
    bool deterministic; /* --deterministic: each token's numbers depend on the tokens before it alone; an error if the
                           engine cannot do that */
    bool force_opaque;  /* tests: use the opaque class whatever the model can do */
    /* Called with 0 … 1 while the weights are loaded, from a thread that hearth_llama_create() waits for; may be
     * NULL. */
    void (*progress)(void *user, float fraction);
    void *progress_user;
};

void hearth_llama_params_default(struct hearth_llama_params *params);

/* Loads a model and makes a context for it: class chosen by capability (and by general.architecture for models that
 * would abort the process), fingerprint computed, self-test run. A failed self-test leaves caps.cache_ok false and
 * one loud log line.
 * Errors: IO (no such file), INVALID (not a GGUF, unknown option value), UNSUPPORTED (a model that does not generate
 * text from left to right), NOMEM, ENGINE; `msg` holds one clear line. */
int hearth_llama_create(const struct hearth_llama_params *params, struct hearth_engine **out,
                        struct hearth_errmsg *msg);

/* Sets the sampling fields that the model's file recommends (general.sampling.temp and others), and leaves the other
 * fields. Values that no request could ask for are left out. `engine` must be of hearth_llama_create(). */
void hearth_llama_recommended(const struct hearth_engine *engine, struct hearth_sampling *sampling);

/* Lists the devices that hearth_llama_params.device can name, one per line. False: out of memory. */
bool hearth_llama_devices(struct hearth_buf *out);

/* How many GPUs this build can use on this machine. */
unsigned hearth_llama_gpus(void);

/* The llama.cpp that hearth was built with, for example "0.5.0". Any thread. */
const char *hearth_llama_version(void);

#endif
