/* The disk tier: a backing tier over a directory of content-addressed files. Format: docs/disk-format.md. */
#ifndef HEARTH_TIER_DISK_H
#define HEARTH_TIER_DISK_H

#include "tier/backing.h"

struct hearth_disk_params {
    const char *dir;                  /* made if it is not there (0700) */
    struct hearth_digest fingerprint; /* of the engine: names the directory below `dir` */
    int32_t page_tokens;              /* likewise: pages of another size are another directory */
    const char *about;                /* a line for people: the model's name and description */
    uint64_t budget_bytes;            /* of `dir` as a whole, all models and processes; 0: a fifth of what is free and
                                         of what hearth has there */
    uint64_t item_bytes;              /* what a whole page or a snapshot takes, for a warning; 0: not known */
    double share;                     /* of that, one owner of state may hold while others want room (tier/share.h);
                                         0 or 1: any */
    uint64_t queue_bytes;             /* most that waits to be written; 0: 512 MiB */
    const char *key_file;             /* NULL: not encrypted */
    bool compress;                    /* zstd */
    bool no_uring;                    /* plain threads, also where io_uring is there */
    int64_t rescan_us;                /* how often other processes' files are looked for; 0: 2 s */
};

/* Opens the directory and starts the threads; the scan runs beside. Strings are copied. Errors: IO (the directory
 * cannot be made or written, or belongs to another user), INVALID (the key file), NOMEM; one clear line in `msg`. */
int hearth_disk_create(const struct hearth_disk_params *params, struct hearth_backing **out, struct hearth_errmsg *msg);

#endif
