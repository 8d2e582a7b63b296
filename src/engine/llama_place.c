/* Where the weights of a model go and how they are read: devices, buffers, overrides of metadata. Texts in
 * llama-server's form become the arrays to which llama_model_params points; they must live until the model is
 * loaded. */
#include "engine/llama_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parts of LLAMA's weights that are worth keeping on the CPU when a GPU is too small: experts, and dense
 * feed-forward layers. Source: common/common.h of llama.cpp. */
#define EXPERTS "\\.ffn_(up|down|gate|gate_up)_(ch|)exps"
#define FEED_FORWARD "\\.ffn_(up|down|gate)\\."

/* The next part of a list that commas separate, cut out of `*rest`; NULL at the end. Nothing behind a comma is no part.
 */
static char *next_part(char **rest) {
    char *part = strsep(rest, ",");
    return part != NULL && (*part != '\0' || *rest != NULL) ? part : NULL;
}

/* A copy that lives as long as the placement. */
static char *keep_text(struct hearth_llama_placement *place, const char *text) {
    char **texts = realloc(place->texts, (place->texts_n + 1) * sizeof *texts);
    if (texts == NULL) {
        return NULL;
    }
    place->texts = texts;
    char *copy = strdup(text);
    if (copy != NULL) {
        place->texts[place->texts_n++] = copy;
    }
    return copy;
}

static int out_of_memory(struct hearth_errmsg *msg) {
    return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

/* ---- devices ---- */

static int set_devices(struct hearth_llama_placement *place, const char *list, struct hearth_errmsg *msg) {
    char *rest = keep_text(place, list), *name;
    place->devices = calloc(strlen(list) + 2, sizeof *place->devices);
    if (rest == NULL || place->devices == NULL) {
        return out_of_memory(msg);
    }
    if (strcmp(list, "none") == 0) {
        return HEARTH_OK;
    }
    for (size_t n = 0; (name = next_part(&rest)) != NULL; n++) {
        place->devices[n] = ggml_backend_dev_by_name(name);
        if (place->devices[n] == NULL || ggml_backend_dev_type(place->devices[n]) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "--device: there is no device \"%s\" (hearth serve "
                               "--list-devices shows those there are)",
                               name);
        }
    }
    return HEARTH_OK;
}

static int set_split(struct hearth_llama_placement *place, const char *list, struct hearth_errmsg *msg) {
    char *rest = keep_text(place, list), *part, *end;
    const size_t most = llama_max_devices();
    place->split = calloc(most + 1, sizeof *place->split);
    if (rest == NULL || place->split == NULL) {
        return out_of_memory(msg);
    }
    for (size_t n = 0; (part = next_part(&rest)) != NULL; n++) {
        const float share = strtof(part, &end);
        if (end == part || *end != '\0' || !(share >= 0.0f) || n >= most) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "--tensor-split: \"%s\" is no list of at most %zu shares such "
                               "as 3,1",
                               list, most);
        }
        place->split[n] = share;
    }
    return HEARTH_OK;
}

/* ---- buffers ---- */

static ggml_backend_buffer_type_t find_buffer(const char *name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
        if (type != NULL && strcmp(ggml_backend_buft_name(type), name) == 0) {
            return type;
        }
    }
    return NULL;
}

/* Adds an override. `pattern` belongs to the placement; NULL: it could not be allocated. */
static int add_override(struct hearth_llama_placement *place, const char *pattern, ggml_backend_buffer_type_t type,
                        struct hearth_errmsg *msg) {
    struct llama_model_tensor_buft_override *overrides =
        realloc(place->overrides, (place->overrides_n + 2) * sizeof *overrides);
    if (overrides == NULL || pattern == NULL) {
        place->overrides = overrides != NULL ? overrides : place->overrides;
        return out_of_memory(msg);
    }
    place->overrides = overrides;
    overrides[place->overrides_n++] = (struct llama_model_tensor_buft_override){pattern, type};
    overrides[place->overrides_n] = (struct llama_model_tensor_buft_override){NULL, NULL};
    return HEARTH_OK;
}

/* "REGEX=BUFFER,…" */
static int add_overrides(struct hearth_llama_placement *place, const char *list, struct hearth_errmsg *msg) {
    char *rest = keep_text(place, list), *part;
    int err = rest != NULL ? HEARTH_OK : out_of_memory(msg);
    while (err == HEARTH_OK && (part = next_part(&rest)) != NULL) {
        char *equals = strrchr(part, '=');
        ggml_backend_buffer_type_t type = equals != NULL ? find_buffer(equals + 1) : NULL;
        if (type == NULL) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "--override-tensor: \"%s\" does not end in the name of a "
                               "buffer, as REGEX=CPU does",
                               part);
        }
        *equals = '\0';
        err = add_override(place, part, type, msg);
    }
    return err;
}

static int keep_layers(struct hearth_llama_placement *place, int32_t layers, const char *weights,
                       struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (int32_t i = 0; i < layers && err == HEARTH_OK; i++) {
        char pattern[80];
        (void)snprintf(pattern, sizeof pattern, "blk\\.%d%s", (int)i, weights);
        err = add_override(place, keep_text(place, pattern), ggml_backend_cpu_buffer_type(), msg);
    }
    return err;
}

static int set_buffers(struct hearth_llama_placement *place, const struct hearth_llama_params *params,
                       struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < params->override_tensors && err == HEARTH_OK; i++) {
        err = add_overrides(place, params->override_tensor[i], msg);
    }
    if (err == HEARTH_OK && params->cpu_moe) {
        err = add_override(place, EXPERTS, ggml_backend_cpu_buffer_type(), msg);
    }
    err = err == HEARTH_OK ? keep_layers(place, params->cpu_moe_layers, EXPERTS, msg) : err;
    return err == HEARTH_OK ? keep_layers(place, params->cpu_ffn_layers, FEED_FORWARD, msg) : err;
}

/* ---- metadata ---- */

/* "TYPE:VALUE" */
static bool read_value(const char *text, struct llama_model_kv_override *out) {
    const char *value = strchr(text, ':');
    char *end = NULL;
    if (value == NULL || *++value == '\0') {
        return false;
    }
    errno = 0;
    if (strncmp(text, "int:", 4) == 0) {
        out->tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        out->val_i64 = strtoll(value, &end, 10);
        return *end == '\0' && errno == 0;
    }
    if (strncmp(text, "float:", 6) == 0) {
        out->tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
        out->val_f64 = strtod(value, &end);
        return *end == '\0' && errno == 0;
    }
    if (strncmp(text, "bool:", 5) == 0) {
        out->tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
        out->val_bool = strcmp(value, "true") == 0;
        return out->val_bool || strcmp(value, "false") == 0;
    }
    out->tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    return strncmp(text, "str:", 4) == 0 &&
           (size_t)snprintf(out->val_str, sizeof out->val_str, "%s", value) < sizeof out->val_str;
}

/* "KEY=TYPE:VALUE,…" */
static int add_metadata(struct hearth_llama_placement *place, const char *list, struct hearth_errmsg *msg) {
    char *rest = keep_text(place, list), *part;
    if (rest == NULL) {
        return out_of_memory(msg);
    }
    while ((part = next_part(&rest)) != NULL) {
        struct llama_model_kv_override *kv = realloc(place->metadata, (place->metadata_n + 2) * sizeof *kv);
        if (kv == NULL) {
            return out_of_memory(msg);
        }
        place->metadata = kv;
        kv += place->metadata_n;
        memset(kv, 0, 2 * sizeof *kv);
        const size_t len = strcspn(part, "=");
        if (len == 0 || len >= sizeof kv->key || part[len] == '\0' || !read_value(part + len + 1, kv)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "--override-kv: \"%s\" is not KEY=TYPE:VALUE, TYPE being int, "
                               "float, bool or str",
                               part);
        }
        memcpy(kv->key, part, len);
        place->metadata_n++;
    }
    return HEARTH_OK;
}

/* ---- all of it ---- */

static enum llama_load_mode load_mode(const struct hearth_llama_params *params) {
    if (params->load_mode != NULL && strcmp(params->load_mode, "auto") != 0) {
        return llama_load_mode_from_str(params->load_mode);
    }
    if (params->no_mmap) {
        return params->mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE;
    }
    return params->mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : llama_model_default_params().load_mode;
}

bool hearth_llama_wants_lock(const struct hearth_llama_params *params) {
    const enum llama_load_mode mode = load_mode(params);
    return mode == LLAMA_LOAD_MODE_MLOCK || mode == LLAMA_LOAD_MODE_MMAP_MLOCK;
}

static void set_modes(const struct hearth_llama_params *params, struct llama_model_params *out) {
    static const struct {
        const char *name;
        enum llama_split_mode mode;
    } splits[] = {{"none", LLAMA_SPLIT_MODE_NONE}, {"layer", LLAMA_SPLIT_MODE_LAYER}, {"row", LLAMA_SPLIT_MODE_ROW}};
    static const struct {
        const char *name;
        enum llama_lazy_mode mode;
    } lazy[] = {{"off", LLAMA_LAZY_MODE_OFF}, {"auto", LLAMA_LAZY_MODE_AUTO}, {"on", LLAMA_LAZY_MODE_ON}};
    for (size_t i = 0; i < 3; i++) {
        if (params->split_mode != NULL && strcmp(params->split_mode, splits[i].name) == 0) {
            out->split_mode = splits[i].mode;
        }
        if (params->lazy_mode != NULL && strcmp(params->lazy_mode, lazy[i].name) == 0) {
            out->lazy_mode = lazy[i].mode;
        }
    }
    out->load_mode = load_mode(params);
}

int hearth_llama_place(const struct hearth_llama_params *params, struct hearth_llama_placement *place,
                       struct llama_model_params *out, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    *place = (struct hearth_llama_placement){0};
    *out = llama_model_default_params();
    out->n_gpu_layers = params->gpu_layers;
    out->main_gpu = params->main_gpu;
    out->check_tensors = params->check_tensors;
    out->use_extra_bufts = !params->no_repack;
    set_modes(params, out);
    if (params->device != NULL) {
        err = set_devices(place, params->device, msg);
    }
    if (err == HEARTH_OK && params->tensor_split != NULL) {
        err = set_split(place, params->tensor_split, msg);
    }
    err = err == HEARTH_OK ? set_buffers(place, params, msg) : err;
    for (size_t i = 0; i < params->override_kvs && err == HEARTH_OK; i++) {
        err = add_metadata(place, params->override_kv[i], msg);
    }
    out->devices = place->devices;
    out->tensor_split = place->split;
    out->tensor_buft_overrides = place->overrides;
    out->kv_overrides = place->metadata;
    return err;
}

void hearth_llama_place_finish(struct hearth_llama_placement *place) {
    for (size_t i = 0; i < place->texts_n; i++) {
        free(place->texts[i]);
    }
    free(place->texts);
    free(place->devices);
    free(place->split);
    free(place->overrides);
    free(place->metadata);
}

unsigned hearth_llama_gpus(void) {
    unsigned n = 0;
    ggml_backend_load_all();
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        n += type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
    }
    return n;
}

bool hearth_llama_devices(struct hearth_buf *out) {
    bool ok = true, any = false;
    ggml_backend_load_all();
    for (size_t i = 0; i < ggml_backend_dev_count() && ok; i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        size_t free_bytes = 0, all_bytes = 0;
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        any = true;
        ggml_backend_dev_memory(device, &free_bytes, &all_bytes);
        ok = hearth_buf_printf(out, "%s: %s, %zu MiB, %zu MiB free\n", ggml_backend_dev_name(device),
                               ggml_backend_dev_description(device), all_bytes >> 20, free_bytes >> 20);
    }
    return ok && (any || hearth_buf_text(out, "no devices but the CPU\n"));
}
