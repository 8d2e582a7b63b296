/* What a running server takes over on SIGHUP: keys, the certificate, the log level, and the bounds of its load. */
#ifndef HEARTH_CLI_SERVE_LIVE_H
#define HEARTH_CLI_SERVE_LIVE_H

#include "api/api.h"
#include "base/log.h"
#include "cli/options.h"
#include "sched/service.h"

struct hearth_serve_live {
    int argc;
    char *const *argv; /* the command line, read again each time */
    struct hearth_api *api;
    struct hearth_service *service;
    size_t key_count;                     /* that are in force; 0: clients need none */
    const struct hearth_options *options; /* those that hold now: the first ones, or `taken` */
    struct hearth_options taken;
};

/* Reads the file of --config, the keys and the certificate again and takes over what can be; what has changed besides
 * is told. When something is wrong with any of it that is told, and nothing changes. The main thread. */
void hearth_serve_live_reload(struct hearth_serve_live *live);
void hearth_serve_live_finish(struct hearth_serve_live *live);

/* A word of --log-level. */
enum hearth_log_level hearth_serve_log_level(const char *name);

#endif
