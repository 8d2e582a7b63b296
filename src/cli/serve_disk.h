/* What a server stores on disk: the backing tier, and where its transcripts go. */
#ifndef HEARTH_CLI_SERVE_DISK_H
#define HEARTH_CLI_SERVE_DISK_H

#include "base/seal.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "tier/backing.h"

struct hearth_serve_disk {
    struct hearth_backing *backing; /* NULL: nothing is stored on disk */
    char *dir;                      /* NULL: likewise */
    char *transcripts;              /* path of the file */
    struct hearth_seal *seal;       /* for the transcripts; NULL: not encrypted */
};

/* Finds and makes the directory that the options name (`dir`). A default one that cannot be used is told, and the
 * server runs without it. Errors: IO (--kv-dir names one that cannot be used), NOMEM. */
int hearth_serve_disk_prepare(const struct hearth_options *options, struct hearth_serve_disk *disk,
                              struct hearth_errmsg *msg);
/* Opens it; then all is NULL, or only `seal` may be. Errors: as before, and a key file that is not good, because what
 * was to be encrypted must not be written otherwise. `model_name` is for people. */
int hearth_serve_disk_open(const struct hearth_options *options, const struct hearth_caps *caps, const char *model_name,
                           struct hearth_serve_disk *disk, struct hearth_errmsg *msg);
/* After the service is gone: writes what is queued. */
void hearth_serve_disk_close(struct hearth_serve_disk *disk);

#endif
