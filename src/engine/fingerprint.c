/* Fingerprints: reading what identifies a GGUF, and folding it with the settings that shape state.
 *
 * Hashing a whole model would take longer than loading it, so the identity of a file is its metadata (which names
 * every tensor with its type, shape and offset), its size, and a sample of its data: 64 blocks of 64 KiB at even
 * distances, the last one ending with the data. Two quantisations differ in metadata; two finetunes with the same
 * shapes differ in nearly every block.
 *
 * The fold is a byte string in which every part stands behind its name and its length, so that no two different sets
 * of parts give the same string. */
#include "engine/fingerprint.h"

#include "base/buf.h"

#include <errno.h>
#include <gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLE_BLOCKS 64
#define SAMPLE_BLOCK_BYTES ((uint64_t)64 * 1024)

static bool read_at(FILE *file, uint64_t offset, void *out, size_t len) {
    return fseeko(file, (off_t)offset, SEEK_SET) == 0 && fread(out, 1, len, file) == len;
}

/* The end of the last tensor, as an offset into the file. */
static uint64_t data_end(const struct gguf_context *gguf) {
    uint64_t end = gguf_get_data_offset(gguf);
    int64_t n = gguf_get_n_tensors(gguf);
    for (int64_t i = 0; i < n; i++) {
        uint64_t tensor_end =
            gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i) + gguf_get_tensor_size(gguf, i);
        end = tensor_end > end ? tensor_end : end;
    }
    return end;
}

static int digest_metadata(FILE *file, uint64_t bytes, struct hearth_gguf_info *info) {
    uint8_t *buffer = malloc(bytes > 0 ? bytes : 1);
    int err = buffer == NULL ? HEARTH_ERR_NOMEM : read_at(file, 0, buffer, bytes) ? HEARTH_OK : HEARTH_ERR_IO;
    if (err == HEARTH_OK) {
        info->metadata = hearth_digest_chain(info->metadata, buffer, bytes);
    }
    free(buffer);
    return err;
}

static int digest_sample(FILE *file, uint64_t begin, uint64_t end, struct hearth_gguf_info *info) {
    uint8_t *block = malloc(SAMPLE_BLOCK_BYTES);
    if (block == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    int err = HEARTH_OK;
    uint64_t bytes = end > begin ? end - begin : 0;
    uint64_t len = bytes < SAMPLE_BLOCK_BYTES ? bytes : SAMPLE_BLOCK_BYTES;
    /* Overlapping blocks cover a small file wholly, without reading it 64 times. */
    uint64_t blocks = bytes / SAMPLE_BLOCK_BYTES + 1 < SAMPLE_BLOCKS ? bytes / SAMPLE_BLOCK_BYTES + 1 : SAMPLE_BLOCKS;
    for (uint64_t i = 0; i < blocks && len > 0 && err == HEARTH_OK; i++) {
        uint64_t offset = blocks == 1 ? 0 : (uint64_t)((double)(bytes - len) * ((double)i / (double)(blocks - 1)));
        err = read_at(file, begin + offset, block, (size_t)len) ? HEARTH_OK : HEARTH_ERR_IO;
        info->sample = hearth_digest_chain(info->sample, block, (size_t)len);
    }
    free(block);
    return err;
}

static int check_file(const char *path, FILE **out, uint64_t *bytes, struct hearth_errmsg *msg) {
    *out = NULL;
    *bytes = 0;
    struct stat st;
    if (stat(path, &st) != 0) {
        return errno == ENOENT ? hearth_fail(msg, HEARTH_ERR_IO, "no such model file: %s", path)
                               : hearth_fail(msg, HEARTH_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is a directory, not a GGUF file", path);
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    char magic[4];
    if (fread(magic, 1, sizeof magic, file) != sizeof magic || memcmp(magic, "GGUF", sizeof magic) != 0) {
        fclose(file);
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is not a GGUF file", path);
    }
    *out = file;
    *bytes = (uint64_t)st.st_size;
    return HEARTH_OK;
}

static uint32_t split_count(const struct gguf_context *gguf) {
    int64_t key = gguf_find_key(gguf, "split.count");
    if (key < 0 || gguf_get_kv_type(gguf, key) != GGUF_TYPE_UINT16) {
        return 1;
    }
    uint16_t n = gguf_get_val_u16(gguf, key);
    return n > 1 ? n : 1;
}

/* Adds the parts of one file to `info`. The first file also says how many splits there are. */
static int inspect_file(const char *path, bool first, struct hearth_gguf_info *info, struct hearth_errmsg *msg) {
    FILE *file;
    uint64_t bytes;
    int err = check_file(path, &file, &bytes, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    struct gguf_context *gguf = gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = true, .ctx = NULL});
    if (gguf == NULL) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s is a broken GGUF file: its metadata cannot be read", path);
        goto done;
    }
    uint64_t end = data_end(gguf);
    if (end > bytes) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s is cut short: %llu bytes of at least %llu", path,
                          (unsigned long long)bytes, (unsigned long long)end);
        goto done;
    }
    if (first) {
        info->splits = split_count(gguf);
        int64_t key = gguf_find_key(gguf, "general.architecture");
        if (key >= 0 && gguf_get_kv_type(gguf, key) == GGUF_TYPE_STRING) {
            snprintf(info->architecture, sizeof info->architecture, "%s", gguf_get_val_str(gguf, key));
        }
    }
    info->file_bytes += bytes;
    err = digest_metadata(file, gguf_get_data_offset(gguf) < bytes ? gguf_get_data_offset(gguf) : bytes, info);
    if (err == HEARTH_OK) {
        err = digest_sample(file, gguf_get_data_offset(gguf), end, info);
    }
    if (err != HEARTH_OK) {
        hearth_fail(msg, err, "cannot read %s: %s", path, hearth_err_text(err));
    }
done:
    gguf_free(gguf);
    fclose(file);
    return err;
}

int hearth_gguf_inspect(const char *path, struct hearth_gguf_info *info, struct hearth_errmsg *msg) {
    *info = (struct hearth_gguf_info){0};
    int err = inspect_file(path, true, info, msg);
    if (err != HEARTH_OK || info->splits == 1) {
        return err;
    }
    /* "<prefix>-00001-of-00003.gguf" */
    char suffix[64], split[4096];
    snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", 1u, info->splits);
    size_t len = strlen(path), suffix_len = strlen(suffix);
    if (len <= suffix_len || len >= sizeof split || strcmp(path + len - suffix_len, suffix) != 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is one of %u splits: name the first one (…%s)", path,
                           info->splits, suffix);
    }
    for (uint32_t i = 1; i < info->splits && err == HEARTH_OK; i++) {
        snprintf(split, sizeof split, "%.*s-%05u-of-%05u.gguf", (int)(len - suffix_len), path, i + 1, info->splits);
        err = inspect_file(split, false, info, msg);
    }
    return err;
}

static void fold(struct hearth_digest *digest, const char *name, const void *bytes, size_t len) {
    uint64_t lengths[2] = {strlen(name), len};
    *digest = hearth_digest_chain(*digest, lengths, sizeof lengths);
    *digest = hearth_digest_chain(*digest, name, strlen(name));
    *digest = hearth_digest_chain(*digest, bytes, len);
}

static void fold_text(struct hearth_digest *digest, const char *name, const char *text) {
    fold(digest, name, text != NULL ? text : "", text != NULL ? strlen(text) : 0);
}

static void fold_gguf(struct hearth_digest *digest, const char *name, const struct hearth_gguf_info *info) {
    if (info == NULL) {
        fold(digest, name, "", 0);
        return;
    }
    uint64_t words[5] = {info->file_bytes, info->metadata.lo, info->metadata.hi, info->sample.lo, info->sample.hi};
    fold(digest, name, words, sizeof words);
    fold_text(digest, "architecture", info->architecture);
}

/* A rarely used setting is part of the fingerprint only where it is set: state stored before these settings existed
 * stays valid. */
static void fold_rare(struct hearth_digest *digest, const struct hearth_fingerprint_parts *parts) {
    static const float own[4] = {-1.0f, -1.0f, -1.0f, -1.0f};
    if (memcmp(parts->yarn, own, sizeof own) != 0 || parts->yarn_orig_ctx != 0) {
        fold(digest, "yarn", parts->yarn, sizeof parts->yarn);
        fold(digest, "yarn_orig_ctx", &parts->yarn_orig_ctx, sizeof parts->yarn_orig_ctx);
    }
    for (size_t i = 0; i < parts->override_kvs; i++) {
        fold_text(digest, "override_kv", parts->override_kv[i]);
    }
}

struct hearth_digest hearth_fingerprint(const struct hearth_fingerprint_parts *parts) {
    struct hearth_digest digest = {0};
    fold_gguf(&digest, "model", parts->model);
    fold_gguf(&digest, "lora", parts->lora);
    /* Without an adapter its scale changes nothing. */
    float lora_scale = parts->lora != NULL ? parts->lora_scale : 0.0f;
    fold(&digest, "lora_scale", &lora_scale, sizeof lora_scale);
    fold(&digest, "rope_freq_base", &parts->rope_freq_base, sizeof parts->rope_freq_base);
    fold(&digest, "rope_freq_scale", &parts->rope_freq_scale, sizeof parts->rope_freq_scale);
    fold(&digest, "rope_scaling", &parts->rope_scaling, sizeof parts->rope_scaling);
    fold(&digest, "type_k", &parts->type_k, sizeof parts->type_k);
    fold(&digest, "type_v", &parts->type_v, sizeof parts->type_v);
    fold(&digest, "flash_attn", &parts->flash_attn, sizeof parts->flash_attn);
    fold_rare(&digest, parts);
    fold_text(&digest, "memory_class", parts->memory_class);
    fold_text(&digest, "engine_build", parts->engine_build);
    return digest;
}
