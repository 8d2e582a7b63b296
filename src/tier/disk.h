/* The disk tier: a backing tier over a directory of content-addressed files. Format: docs/disk-format.md. */
#ifndef HEARTH_TIER_DISK_H
#define HEARTH_TIER_DISK_H

#include "tier/backing.h"

struct hearth_disk_params {
    const char *dir;                  /* made if it is not there (0700) */
    struct hearth_digest fingerprint; /* of the engine; it names the directory below `dir` */
    int32_t page_tokens;              /* part of that name, too: pages of another size have another directory */
    const char *about;     /* a line for people who look into the directory: the model's name and description */
    uint64_t budget_bytes; /* for all of `dir`, all models and processes; 0: a fifth of the free space and of what
                              hearth has there */
    uint64_t item_bytes;   /* size of a whole page or snapshot, for a warning; 0: unknown */
    double share; /* the part that one owner of state may hold while others want room (tier/share.h); 0 or 1: any */
    uint64_t queue_bytes; /* most bytes that wait to be written; 0: 512 MiB */
    const char *key_file; /* NULL: not encrypted */
    bool compress;        /* zstd */
    bool no_uring;        /* use plain threads even where io_uring works */
    int64_t rescan_us;    /* how often to look for files of other processes; 0: 2 s */
};

/* Opens the directory and starts the threads; the first scan runs on them. Strings are copied. The tier is destroyed
 * through its vtable. Errors: IO (the directory cannot be made or written, or belongs to another user), INVALID (the
 * key file), NOMEM; one clear line in `msg`. */
int hearth_disk_create(const struct hearth_disk_params *params, struct hearth_backing **out, struct hearth_errmsg *msg);

#endif
