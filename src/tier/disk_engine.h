/* What the files of the disk tier share (tier/disk.h).
 *
 * From the bottom up; a file uses those above it in this list, and none calls back:
 *
 *     disk_state.c      lock, directory, events, the table of files
 *     disk_health.c     what /health says
 *     disk_queue.c      what waits to be written: put, dropping
 *     disk_remove.c     what is to be forgotten
 *     disk_budget.c     room for what is written: eviction
 *     disk_scan.c       directories walked, headers read
 *     disk_read.c       reader threads: get
 *     disk_write.c      the writer thread, failure and recovery
 *     disk_maintain.c   the maintenance thread: rescans, touches
 *     disk.c            life, events for the cache
 *
 * One lock guards everything below that is not said to be a thread's own. It is never held over a system call on a
 * file. */
#ifndef HEARTH_TIER_DISK_ENGINE_H
#define HEARTH_TIER_DISK_ENGINE_H

#include "base/seal.h"
#include "base/table.h"
#include "tier/directory.h"
#include "tier/disk.h"
#include "tier/disk_io.h"
#include "tier/events.h"
#include "tier/format.h"

#include <pthread.h>

#define DISK_SHARDS 256
#define DISK_READERS 2
#define DISK_GROUPS 64
#define DISK_EVENTS_WAITING 4096              /* the scan pauses beyond */
#define DISK_READ_BYTES ((uint64_t)256 << 20) /* of results that are not polled yet; reading pauses beyond */
#define DISK_MAINTAIN_NICE 10
#define DISK_WRITER_NICE 5 /* its pace bounds its cost; at nice 19 a turn would wait a second for a busy processor */

/* A file of this model, as far as this process knows. */
struct disk_file {
    struct hearth_link link;     /* disk->files */
    TAILQ_ENTRY(disk_file) list; /* its shard's */
    enum hearth_record_kind kind;
    uint64_t bytes;              /* rounded up to blocks */
    uint64_t born, seen;         /* ticks of rescans */
    int64_t used_us, touched_us; /* Unix time of the last use, and of the last use that the file itself tells */
    int32_t pos;
    uint32_t hits;             /* uses since touched_us */
    bool superseded, touching; /* touching: its name is in disk->touched */
    bool unreadable;           /* reading it has failed: a put writes it again */
};

struct disk_shard {
    TAILQ_HEAD(, disk_file) files;
    int64_t time; /* the last change; the maintenance thread's own */
    bool again;   /* `time` is too recent to be sure; the maintenance thread's own */
};

struct disk_read {
    struct hearth_events_entry ev; /* first */
    STAILQ_ENTRY(disk_read) next;
    bool done;
    struct hearth_file_id id;
    uint64_t known_bytes; /* size in the table; 0: not there */
    /* the reader's own */
    int fd;
    int64_t begun_us; /* hearth_clock_us() when a thread took it */
    uint64_t size;
    bool direct;   /* it bypasses the page cache */
    uint8_t *head; /* the first head_len bytes */
    size_t head_len;
    struct hearth_buf body; /* the rest */
    struct hearth_io_op op;
};

enum disk_fate { DISK_OPEN, DISK_THERE, DISK_WRITTEN, DISK_FAILED, DISK_REFUSED };

struct disk_job {
    struct hearth_events_entry ev; /* first */
    struct hearth_link link;       /* disk->jobs, until it is answered */
    TAILQ_ENTRY(disk_job) list;    /* disk->queue */
    int group;
    struct hearth_record *record;
    struct hearth_blob *blob; /* NULL: no state */
    uint64_t bytes;           /* the bytes it counts for in the queue */
    bool replaces;
    struct hearth_digest replaced;
    /* the writer's own */
    struct hearth_file_id id;
    enum disk_fate fate;
    int error; /* errno */
    struct hearth_file_draft draft;
    struct hearth_buf header, payload;
    const void *state; /* the bytes behind the header */
    size_t state_len;
    uint64_t file_bytes;
    bool direct;
    struct hearth_io_op op;
};

/* Jobs that seem to belong to one conversation: each item hangs on the one before. */
struct disk_group {
    uint64_t last_put; /* 0: never used */
    size_t queued;
    struct hearth_digest base, end; /* of the last item: of the blocks before it; and with it, if it fills its block */
    struct hearth_tokens tokens;    /* of the last item */
};

struct disk_removal {
    struct hearth_events_entry ev; /* first */
    STAILQ_ENTRY(disk_removal) next;
    struct hearth_file_id id;
    int tries;
};

struct disk_retired {
    struct disk_retired *next;
    struct hearth_directory *directory;
};

struct disk {
    struct hearth_backing base;
    struct hearth_disk_params params; /* strings are copies */
    struct hearth_model_id model;
    struct hearth_seal *seal;
    pthread_mutex_t lock;

    struct hearth_directory *directory; /* replaced after it was removed; hearth_disk_directory() */
    struct disk_retired *retired;       /* old handles that other threads may still use */

    struct hearth_events events;
    pthread_cond_t room_cond; /* there is room for events again */

    /* files */
    struct hearth_table files;
    struct disk_shard shards[DISK_SHARDS];
    uint64_t tick;
    struct hearth_digest *touched; /* names with touches to tell */
    size_t touched_n, touched_cap;

    /* reading */
    STAILQ_HEAD(, disk_read) reads; /* all that is not delivered, in order */
    struct disk_read *read_next;    /* the first not taken */
    uint64_t read_bytes;            /* in flight or not polled */
    size_t head_guess;              /* header_bytes of the last file read */
    size_t page_bytes;              /* state of a whole page; 0: none was seen yet */
    pthread_cond_t read_cond;

    /* writing */
    TAILQ_HEAD(disk_queue, disk_job) queue;
    struct hearth_table jobs;
    struct disk_group groups[DISK_GROUPS];
    uint64_t puts;
    bool writing;                /* a batch is being written */
    int64_t allowance, paced_us; /* bytes that may be written now (negative: wait); when that was computed */
    int64_t backoff_us, retry_at_us, probe_bytes;
    int failed_error; /* errno of what made it fail, and of what was last reported */
    char failed_trouble[sizeof((struct hearth_backing_stats *)0)->trouble];
    pthread_cond_t write_cond;

    /* removing */
    STAILQ_HEAD(disk_removals, disk_removal) removals;
    bool removals_due; /* some removals may be carried out now */
    bool removing;     /* the maintenance thread has some off the list */

    /* the budget */
    bool counted;       /* stats.files and .bytes are known, the budget is kept */
    uint64_t published; /* bytes that this process has written since the last count */
    bool gc_wanted, gc_busy;
    bool gc_tight;                         /* make room although the budget is kept, because the file system is full */
    uint64_t gc_need, gc_left_bytes;       /* to be freed; stats.bytes at the end of the last eviction */
    pthread_cond_t maintain_cond, gc_cond; /* something to do; an eviction has ended */

    struct hearth_backing_stats stats; /* all but `bad` */
    bool stop;                         /* readers and maintenance thread end */
    bool stop_writer;
    int64_t deadline_us; /* of stop_writer */
    pthread_t readers[DISK_READERS], writer, maintainer;
    unsigned reader_count;
    bool has_writer, has_maintainer;
};

/* ---- disk_state.c ---- */

void hearth_disk_lock(struct disk *disk);
void hearth_disk_unlock(struct disk *disk);
struct hearth_directory *hearth_disk_directory(struct disk *disk);
/* Opens the directory again after it was removed. False: it cannot be made (errno). */
bool hearth_disk_reopen(struct disk *disk);
/* Whether readers and maintenance thread must end. */
bool hearth_disk_stopped(struct disk *disk);
/* Posts an event that answers no request; out of memory, reading or the next rescan finds out. */
void hearth_disk_tell_locked(struct disk *disk, enum hearth_backing_event_type type, struct hearth_digest name);
struct disk_file *hearth_disk_find_locked(struct disk *disk, struct hearth_digest name);
/* The id of a file that is in the table. False: it is not there. */
bool hearth_disk_known(struct disk *disk, struct hearth_digest name, struct hearth_file_id *id);
/* Adds a file to the table. `touched_us`: Unix time of the last use that the file tells, 0: unknown. False: out of
 * memory. */
bool hearth_disk_add_locked(struct disk *disk, const struct hearth_file_id *id, uint64_t bytes, int64_t touched_us);
/* Drops a file from the table; `counts`: its bytes leave the total. */
void hearth_disk_forget_locked(struct disk *disk, struct disk_file *file, bool counts);
/* Quarantines a file and drops it from the table. */
void hearth_disk_quarantine(struct disk *disk, const struct hearth_file_id *id, const char *why);
/* Learns how large the state of a whole page is. */
void hearth_disk_note_size_locked(struct disk *disk, const struct hearth_record *record);
struct hearth_file_id hearth_disk_id(const struct disk *disk, struct hearth_digest name, enum hearth_record_kind kind);
static inline unsigned hearth_disk_shard(struct hearth_digest name) {
    return (unsigned)(name.hi >> 56);
}
static inline uint64_t hearth_disk_blocks(uint64_t bytes) {
    return (bytes + HEARTH_FORMAT_BLOCK - 1) / HEARTH_FORMAT_BLOCK * HEARTH_FORMAT_BLOCK;
}

struct disk_files { /* a list of what a walk has seen */
    struct hearth_file *v;
    size_t n, cap;
};
/* A visitor for hearth_directory_walk() that adds to the struct disk_files `list`. False: out of memory. */
bool hearth_disk_files_add(void *list, const struct hearth_file *file);

/* ---- disk_read.c ---- */

void *hearth_disk_reader(void *disk);
bool hearth_disk_get(struct hearth_backing *backing, struct hearth_digest name);
void hearth_disk_drop_reads(struct disk *disk);

/* ---- disk_queue.c ---- */

bool hearth_disk_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                     const struct hearth_digest *replaces);
/* Answers a job, and frees it with the event. */
void hearth_disk_answer_locked(struct disk *disk, struct disk_job *job, enum hearth_backing_event_type type);
/* Answers the queued jobs of this name with DROPPED. */
void hearth_disk_drop_jobs_locked(struct disk *disk, struct hearth_digest name);
/* Whether a job of this name is being written. */
bool hearth_disk_writes_locked(struct disk *disk, struct hearth_digest name);
/* Takes a job from the queue. */
void hearth_disk_unqueue_locked(struct disk *disk, struct disk_job *job);
/* Answers all queued jobs with DROPPED. */
void hearth_disk_drop_queue_locked(struct disk *disk);

/* ---- disk_write.c ---- */

void *hearth_disk_writer(void *disk);

/* ---- disk_maintain.c ---- */

void *hearth_disk_maintainer(void *disk);

/* ---- disk_budget.c ---- */

/* Asks for room for `need` bytes and waits for it, at most HEARTH_BACKING_WAIT_US, and not beyond the deadline at the
 * end. `tight`: even if the budget is kept. False: the budget has no room. */
bool hearth_disk_make_room(struct disk *disk, uint64_t need, bool tight);
/* Carries out removals and evictions that are due, also during a long task of the maintenance thread. */
void hearth_disk_evict_and_remove(struct disk *disk);
/* Counts bytes that were written, and asks for an eviction when one is due. */
void hearth_disk_published_locked(struct disk *disk, uint64_t bytes);

/* ---- disk_health.c ---- */

/* Raises or clears the conditions of the disk. Not under the lock. */
void hearth_disk_health(struct disk *disk);

/* ---- disk_remove.c ---- */

bool hearth_disk_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind);
/* Carries out the removals that can be carried out now. On the maintenance thread. */
void hearth_disk_removals(struct disk *disk);
void hearth_disk_drop_removals(struct disk *disk);

/* ---- disk_scan.c ---- */

enum disk_verdict { DISK_GOOD, DISK_GONE, DISK_ALIEN, DISK_BAD, DISK_UNREADABLE };
/* Reads a file's header. GOOD: the file is in the table, and with `tell` reported as FOUND. BAD: it was quarantined. */
enum disk_verdict hearth_disk_examine(struct disk *disk, const struct hearth_file_id *id, bool tell);
/* Examines many files on several threads while the maintenance thread does its chores. `also` (or NULL) runs on the
 * maintenance thread before. */
void hearth_disk_examine_all(struct disk *disk, const struct disk_files *files, void (*also)(struct disk *disk));
/* The scan at the start. */
void hearth_disk_scan(struct disk *disk);

#endif
