/* What `hearth serve` prints: log lines, loading progress, and what to try once it listens. */
#ifndef HEARTH_CLI_BANNER_H
#define HEARTH_CLI_BANNER_H

#include "base/log.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A log sink (base/log.h): time, level, line, on stderr. */
void hearth_banner_log(void *user, enum hearth_log_level level, const char *line);

/* Progress of loading, for hearth_llama_params.progress: percent on a terminal, dots elsewhere. `user` is a zeroed
 * struct hearth_progress; hearth_progress_end() finishes the line (also when loading failed). The main thread. */
struct hearth_progress {
    bool begun;
    int shown; /* percent */
};
void hearth_progress_show(void *user, float fraction);
void hearth_progress_end(struct hearth_progress *progress);

struct hearth_banner {
    const struct hearth_caps *caps;
    const char *model_name; /* as in the API */
    const char *host;
    uint16_t port; /* 0: host is unix:PATH */
    bool tls;
    const char *cert_path; /* with TLS */
    size_t cache_bytes;
    const char *disk_dir; /* NULL: nothing is written to disk */
    uint64_t disk_bytes;  /* what it may take there */
    bool is_local;        /* only this machine reaches it */
    bool needs_key;       /* clients must send an API key */
    bool hello;           /* print commands to try */
};

/* Appends what agents (Codex, Claude Code, Hermes) cannot do with a context of this size and what to type instead;
 * nothing where all of them can. False: out of memory. */
bool hearth_banner_fit(uint32_t ctx_tokens, uint32_t train_ctx_tokens, struct hearth_buf *out);

/* The lines after the start, on stdout; the first one ends in the URL that is listened on. */
void hearth_banner_print(const struct hearth_banner *banner);

#endif
