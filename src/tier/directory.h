/* The state directory: where the files of items are, how they come and go. Shared by every process that uses it: the
 * disk tier of running servers and `hearth kv`.
 *
 *     DIR/                          0700, the user's own
 *       lock                        flock: one process at a time evicts
 *       servers                     a byte of it is locked by each server, so that they know of each other
 *       bad/                        what did not verify, quarantined; kept small
 *       <32 hex digits>/            one per engine fingerprint and page size ("model" below)
 *         about                     a line for people
 *         tmp/                      files being written; each locked (flock) by its writer, so that what a dead process
 *                                   left is known, and removed by the next process
 *         <2 hex digits>/<30 hex digits>.page | .snap
 *
 * The directory is the index: there is nothing else to repair or to go stale. A file is complete and synced before it
 * gets its name, and never changes after. Its modification time says when it was last used (see hearth_file_stamp), so
 * that any process can evict in a sensible order without reading files. How often it was used, and its owner,
 * are extended attributes ("user.hearth.hits", "user.hearth.owner"), where the file system has them.
 *
 * Threads: any; each call stands for itself. All system calls on state files are made here and in tier/disk_io.c. */
#ifndef HEARTH_TIER_DIRECTORY_H
#define HEARTH_TIER_DIRECTORY_H

#include "base/err.h"
#include "tier/record.h"

#include <time.h>

struct hearth_directory;

/* Opens a directory, and makes it with `create`. Refuses one that belongs to another user, or that others may use and
 * that was not hearth's before unless it is empty; else takes rights of others away. Errors: IO, NOT_FOUND (without
 * `create`), NOMEM; one clear line in `msg`. */
int hearth_directory_open(const char *path, bool create, struct hearth_directory **out, struct hearth_errmsg *msg);
void hearth_directory_close(struct hearth_directory *directory); /* NULL is allowed */
const char *hearth_directory_path(const struct hearth_directory *directory);

/* ---- models ---- */

struct hearth_model_id {
    char hex[33];
};
struct hearth_model_id hearth_model_id(struct hearth_digest fingerprint, int32_t page_tokens);
/* Makes a model's directory and its `about` file. Until the handle is closed a shared flock keeps every gc from
 * removing the directory. Errors: IO, NOMEM. */
int hearth_directory_add_model(struct hearth_directory *directory, struct hearth_model_id model, const char *about);
/* Copies the first line of `about`; "" if there is none. */
void hearth_directory_about(struct hearth_directory *directory, struct hearth_model_id model, char *out, size_t cap);
/* Calls `visit` for each model; stops when it returns false. */
int hearth_directory_models(struct hearth_directory *directory, bool (*visit)(void *user, struct hearth_model_id model),
                            void *user);

/* ---- files ---- */

struct hearth_file_id {
    struct hearth_model_id model;
    struct hearth_digest name;
    enum hearth_record_kind kind;
};

struct hearth_file {
    struct hearth_file_id id;
    uint64_t bytes;   /* on disk: the size, rounded up to 4096 */
    int64_t stamp_us; /* modification time, Unix microseconds */
};

/* All files of a model with names of items (whatever they turn out to be), in no order; stops when `visit`
 * returns false. `shard` 0 to 255: only that subdirectory; -1: all. A model or shard that is not there has no files.
 * Errors: IO, NOMEM. */
int hearth_directory_walk(struct hearth_directory *directory, struct hearth_model_id model, int shard,
                          bool (*visit)(void *user, const struct hearth_file *file), void *user);
/* The shard's modification time in nanoseconds, 0 if there is no shard. If it changes, files were added or removed. */
int64_t hearth_directory_shard_time(struct hearth_directory *directory, struct hearth_model_id model, int shard);

/* Opens for reading: a plain file of this user, not through a link, never blocking. Errors: NOT_FOUND; STATE (it is
 * something else: quarantine it); IO. The descriptor is the caller's. */
int hearth_file_open(struct hearth_directory *directory, const struct hearth_file_id *id, int *fd);
/* How often an open file was used. */
uint32_t hearth_file_hits(int fd);
/* The same as hearth_file_open(), with the result of fstat. */
int hearth_file_stat(struct hearth_directory *directory, const struct hearth_file_id *id, struct hearth_file *file,
                     uint32_t *hits);

/* A file that is being written. */
struct hearth_file_draft {
    int fd;
    char name[64]; /* in tmp/ */
    struct hearth_model_id model;
};
int hearth_file_create(struct hearth_directory *directory, struct hearth_model_id model,
                       struct hearth_file_draft *draft);
/* Notes the owner of the state that the file will hold; 0: it is not known. */
void hearth_file_own(const struct hearth_file_draft *draft, uint64_t owner);
/* The owner that was noted; 0: none, or it cannot be read. */
uint64_t hearth_file_owner(struct hearth_directory *directory, const struct hearth_file_id *id);
/* Stamps the file, gives it its name and closes it; the caller has written and synced it. hearth_file_sync_shard()
 * makes the name outlast a power cut. On failure the draft is gone. Errors: IO. */
int hearth_file_publish(struct hearth_directory *directory, struct hearth_file_draft *draft,
                        const struct hearth_file_id *id, const struct timespec *stamp);
void hearth_file_discard(struct hearth_directory *directory, struct hearth_file_draft *draft);
/* Syncs the directory that the file is in. */
int hearth_file_sync_shard(struct hearth_directory *directory, const struct hearth_file_id *id);

int hearth_file_remove(struct hearth_directory *directory, const struct hearth_file_id *id);
/* Moves whatever has this name to bad/, logs one line with the count so far, and keeps bad/ small (64 items). */
void hearth_file_quarantine(struct hearth_directory *directory, const struct hearth_file_id *id, const char *why);
/* How many files were quarantined through this handle. */
uint64_t hearth_directory_bad(const struct hearth_directory *directory);

/* ---- use ---- */

/* The modification time for a file that was used at `used_us` (Unix) with state that ends at `pos`. It is one
 * microsecond older per position, so that children are older than their parents and are removed first, and a day older
 * for a superseded snapshot. */
struct timespec hearth_file_stamp(int64_t used_us, int32_t pos, bool superseded);
/* Sets the stamp and adds to the hits. */
int hearth_file_touch(struct hearth_directory *directory, const struct hearth_file_id *id, const struct timespec *stamp,
                      uint32_t hits);

/* ---- the budget ---- */

struct hearth_gc {
    uint64_t budget_bytes, need_bytes; /* at most budget - need bytes are left afterwards */
    double share; /* the part that one owner may hold while others want room (tier/share.h); 0: any */
    /* Called for each file that is removed; may be NULL. */
    void (*removed)(void *user, const struct hearth_file *file);
    /* Called now and then: files seen, files in all (0: not known yet); may be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    uint64_t files, bytes;                 /* out: what is left */
    uint64_t removed_files, removed_bytes; /* out */
};
/* Removes the files that were unused for longest, of all models and as far as shares allow, until the budget is kept;
 * also drafts of dead processes and empty directories of models. One process does so at a time; others wait for its
 * lock, which ends with the process. Errors: IO (with errno), NOMEM. */
int hearth_directory_gc(struct hearth_directory *directory, struct hearth_gc *gc);
/* Removes the drafts of a model whose processes have ended. */
void hearth_directory_clean_drafts(struct hearth_directory *directory, struct hearth_model_id model);
/* Removes a model with everything in its directory (transcripts, too), unless a server uses it. Errors: BUSY, INVALID
 * (no server has made this directory; nothing is removed), NOT_FOUND, IO (something is left; errno). */
int hearth_directory_remove_model(struct hearth_directory *directory, struct hearth_model_id model);

/* What the directory holds besides the files of items. */
struct hearth_directory_rest {
    uint64_t bad_files, bad_bytes;     /* quarantined */
    uint64_t draft_files, draft_bytes; /* in tmp/ of all models: being written, or left by dead processes */
    uint64_t other_bytes;              /* in directories of models: transcripts, and files that are not hearth's */
};
void hearth_directory_rest(struct hearth_directory *directory, struct hearth_directory_rest *rest);
/* Removes what was quarantined. Returns how many files. */
uint64_t hearth_directory_empty_bad(struct hearth_directory *directory);

/* Free bytes of the file system, for this user. */
uint64_t hearth_directory_free_bytes(const struct hearth_directory *directory);

/* ---- its users ---- */

/* Shows other processes, until the handle is closed, that a server uses the directory. */
void hearth_directory_enter(struct hearth_directory *directory);
void hearth_directory_leave(struct hearth_directory *directory);
/* Whether another handle, of any process, has entered the directory; false before this one has. */
bool hearth_directory_is_shared(struct hearth_directory *directory);

/* The directory's own random name, kept as long as its state, in the file `box`; made if there is none. Errors: IO (it
 * cannot be written or read), NOMEM. */
int hearth_directory_identify(struct hearth_directory *directory, struct hearth_digest *out);

#endif
