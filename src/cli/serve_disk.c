/* Opens the disk tier and the transcripts.
 *
 * Design. The tier has a directory of its own for each model, below the one that the options name
 * (tier/directory.h); the transcripts of the same model are beside its files. State on disk is optional: if the
 * default directory cannot be used, that costs one log line and a condition of /health, not the server. If a
 * directory was named that cannot be used, the start fails. */
#include "cli/serve_internal.h"

#include "base/health.h"
#include "console/places.h"
#include "tier/directory.h"
#include "tier/disk.h"
#include "tier/layered.h"
#include "tier/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_BYTES (UINT64_C(256) << 10) /* more than a note about a shared head takes (cache/heads.h) */

/* What cannot be used was named, or it was not. */
static int give_up(const struct hearth_options *options, const char *cause, struct hearth_errmsg *msg) {
    if (options->kv_dir) {
        return hearth_fail(msg, HEARTH_ERR_IO, "--kv-dir: %s", cause);
    }
    hearth_health_raise(HEARTH_HEALTH_KV_DIR,
                        "disk: %s: nothing is kept on disk (--kv-dir names another directory, "
                        "none is silent)",
                        cause);
    return HEARTH_OK;
}

int hearth_serve_disk_prepare(const struct hearth_options *options, struct hearth_serve_disk *disk,
                              struct hearth_errmsg *msg) {
    struct hearth_directory *directory = NULL;
    struct hearth_errmsg cause = {""};
    *disk = (struct hearth_serve_disk){0};
    if (options->kv_disk == 0 || options->cache_ram == 0 || (options->kv_dir && strcmp(options->kv_dir, "none") == 0)) {
        return HEARTH_OK;
    }
    disk->dir = options->kv_dir ? strdup(options->kv_dir) : hearth_place_kv();
    if (!disk->dir) {
        return options->kv_dir ? hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory")
                               : give_up(options, "this user has no home", msg);
    }
    int err = hearth_directory_open(disk->dir, true, &directory, &cause);
    if (err == HEARTH_OK && hearth_directory_identify(directory, &disk->dir_name) != HEARTH_OK) {
        hearth_log(HEARTH_LOG_DEBUG, "disk: %s: it cannot be named: %s", disk->dir, strerror(errno));
    }
    hearth_directory_close(directory);
    if (err != HEARTH_OK) {
        err = err == HEARTH_ERR_NOMEM ? hearth_fail(msg, err, "%s", cause.text) : give_up(options, cause.text, msg);
        hearth_serve_disk_close(disk);
    }
    return err;
}

static size_t item_bytes(const struct hearth_caps *caps, size_t page_tokens) {
    const size_t page = hearth_caps_has_pages(caps) ? (size_t)caps->page_bytes_per_token * page_tokens : 0;
    const size_t snapshot = hearth_caps_needs_snapshot(caps) ? (size_t)caps->snapshot_bytes : 0;
    return page > snapshot ? page : snapshot;
}

/* What may wait to be written. It is held in RAM anyway: a prompt that takes more of it would not be written at once.
 */
static uint64_t queue_bytes(size_t cache_bytes) {
    const uint64_t least = UINT64_C(512) << 20;
    return cache_bytes / 4 > least ? cache_bytes / 4 : least;
}

static int create_backing(const struct hearth_options *options, const struct hearth_caps *caps, const char *model_name,
                          size_t cache_bytes, struct hearth_serve_disk *disk, struct hearth_errmsg *msg) {
    char about[256];
    struct hearth_errmsg cause = {""};
    (void)snprintf(about, sizeof(about), "%s (%s)", model_name, caps->description);
    const struct hearth_disk_params params = {
        .dir = disk->dir,
        .fingerprint = caps->fingerprint,
        .page_tokens = (int32_t)options->page_tokens,
        .about = about,
        .budget_bytes = options->kv_disk < 0 ? 0 : (uint64_t)options->kv_disk << 20,
        .share = (double)options->cache_share / 100,
        .item_bytes = item_bytes(caps, (size_t)options->page_tokens),
        .key_file = options->kv_key,
        .queue_bytes = queue_bytes(cache_bytes),
        .compress = strcmp(options->kv_compress, "zstd") == 0,
        .no_uring = strcmp(options->kv_io, "threads") == 0,
    };
    const int err = hearth_disk_create(&params, &disk->local, &cause);
    if (err == HEARTH_ERR_IO) {
        return give_up(options, cause.text, msg);
    }
    return err == HEARTH_OK ? err : hearth_fail(msg, err, "%s", cause.text);
}

static int create_remote(const struct hearth_options *options, const struct hearth_caps *caps, size_t cache_bytes,
                         struct hearth_serve_disk *disk, struct hearth_errmsg *msg) {
    const uint64_t item = 2 * item_bytes(caps, (size_t)options->page_tokens); /* with headers of the engine's own */
    const struct hearth_remote_params params = {
        .url = options->kv_remote,
        .fingerprint = caps->fingerprint,
        .page_tokens = (int32_t)options->page_tokens,
        .key_file = options->kv_key,
        .ca_file = options->kv_remote_ca,
        .compress = strcmp(options->kv_compress, "zstd") == 0,
        .ttl_s = options->kv_remote_ttl,
        .timeout_us = options->kv_remote_timeout * 1000,
        .state_bytes = item > NOTE_BYTES ? item : NOTE_BYTES,
        .queue_bytes = queue_bytes(cache_bytes),
    };
    if (!options->kv_key) {
        hearth_log(HEARTH_LOG_WARN, "remote: without --kv-key, what can write to the store of --kv-remote can choose "
                                    "what the models here have read");
    }
    return hearth_fail_of(msg,
                          hearth_remote_cluster_at(&params) ? hearth_remote_cluster_create(&params, &disk->remote, msg)
                                                            : hearth_remote_create(&params, &disk->remote, msg),
                          "--kv-remote");
}

/* The tier that the cache sees. */
static int join(struct hearth_serve_disk *disk, struct hearth_errmsg *msg) {
    disk->backing = disk->local ? disk->local : disk->remote;
    if (!disk->local || !disk->remote) {
        return HEARTH_OK;
    }
    return hearth_fail(msg, hearth_layered_create(disk->local, disk->remote, &disk->backing), "out of memory");
}

int hearth_serve_disk_open(const struct hearth_options *options, const struct hearth_caps *caps, const char *model_name,
                           size_t cache_bytes, struct hearth_serve_disk *disk, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    if (!caps->cache_ok) {
        hearth_serve_disk_close(disk);
    }
    if (disk->dir && options->kv_key) {
        err = hearth_fail_of(msg, hearth_seal_create(options->kv_key, &disk->seal, msg), "--kv-key");
    }
    if (err == HEARTH_OK && disk->dir) {
        err = create_backing(options, caps, model_name, cache_bytes, disk, msg);
    }
    if (err == HEARTH_OK && options->kv_remote && caps->cache_ok && options->cache_ram != 0) {
        err = create_remote(options, caps, cache_bytes, disk, msg);
    }
    if (err == HEARTH_OK) {
        err = join(disk, msg);
    }
    if (err == HEARTH_OK && disk->local) {
        const struct hearth_model_id model = hearth_model_id(caps->fingerprint, (int32_t)options->page_tokens);
        if (asprintf(&disk->transcripts, "%s/%s/transcripts.db", disk->dir, model.hex) < 0) {
            disk->transcripts = NULL;
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
        }
    }
    if (err != HEARTH_OK || !disk->backing) {
        hearth_serve_disk_close(disk);
    }
    return err;
}

void hearth_serve_disk_close(struct hearth_serve_disk *disk) {
    struct hearth_backing *owned[] = {disk->backing, disk->backing ? NULL : disk->local,
                                      disk->backing ? NULL : disk->remote};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        if (owned[i]) {
            owned[i]->ops->destroy(owned[i]);
        }
    }
    hearth_seal_destroy(disk->seal);
    free(disk->dir);
    free(disk->transcripts);
    *disk = (struct hearth_serve_disk){0};
}
