/* What waits to be written, and what of it goes when there is too much.
 *
 *   1. Items that hang together are a group: an item joins the group with a last item in the same block and tokens that
 *      agree, or with a last item that filled the block before. The tier knows no conversations; this finds them.
 *   2. A group is as new as its last put.
 *   3. A queue that is too long drops the deepest item of its oldest group. What is less deep stays useful without it.
 *   4. An item alone may be as large as it likes.
 *
 * Example: pages 1 to 4 of conversation A wait, then pages of B come and the queue is too long: A's page 4 goes first.
 *
 * Invariants: a job is in `jobs` from put() to its answer, and in the queue until the writer takes it;
 * stats.queued_bytes counts both; a group's `queued` counts the latter. */
#include "tier/disk_engine.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdlib.h>

/* ---- answers ---- */

void hearth_disk_answer_locked(struct disk *disk, struct disk_job *job, enum hearth_backing_event_type type) {
    hearth_table_remove(&disk->jobs, &job->link);
    disk->stats.queued_bytes -= job->bytes;
    if (type == HEARTH_BACKING_DROPPED) {
        disk->stats.dropped++;
    }
    hearth_record_destroy(job->record);
    if (job->blob) {
        hearth_blob_unref(job->blob);
    }
    hearth_buf_finish(&job->header);
    hearth_buf_finish(&job->payload);
    job->ev.event = (struct hearth_backing_event){.type = type, .name = job->link.key};
    hearth_events_post(&disk->events, &job->ev);
    if (disk->removing || !STAILQ_EMPTY(&disk->removals)) { /* a removal may have waited for this job */
        disk->removals_due = true;
        (void)pthread_cond_signal(&disk->maintain_cond);
    }
}

void hearth_disk_unqueue_locked(struct disk *disk, struct disk_job *job) {
    TAILQ_REMOVE(&disk->queue, job, list);
    disk->groups[job->group].queued--;
}

static void drop_locked(struct disk *disk, struct disk_job *job) {
    hearth_disk_unqueue_locked(disk, job);
    hearth_disk_answer_locked(disk, job, HEARTH_BACKING_DROPPED);
}

void hearth_disk_drop_jobs_locked(struct disk *disk, struct hearth_digest name) {
    if (!hearth_table_find(&disk->jobs, name)) {
        return;
    }
    for (struct disk_job *job = TAILQ_FIRST(&disk->queue), *next; job; job = next) {
        next = TAILQ_NEXT(job, list);
        if (hearth_digest_equal(job->link.key, name)) {
            drop_locked(disk, job);
        }
    }
}

bool hearth_disk_writes_locked(struct disk *disk, struct hearth_digest name) {
    size_t jobs = 0;
    for (struct hearth_link *link = hearth_table_find(&disk->jobs, name); link; link = hearth_table_next(link)) {
        jobs++;
    }
    struct disk_job *job;
    TAILQ_FOREACH(job, &disk->queue, list) {
        jobs -= hearth_digest_equal(job->link.key, name);
    }
    return jobs > 0;
}

void hearth_disk_drop_queue_locked(struct disk *disk) {
    while (!TAILQ_EMPTY(&disk->queue)) {
        drop_locked(disk, TAILQ_FIRST(&disk->queue));
    }
}

/* ---- groups ---- */

/* Whether the tokens of a record agree with those of the group's last item, as far as both go. */
static bool agrees(const struct disk_group *group, const struct hearth_record *record) {
    const size_t n = hearth_record_tokens(record), m = group->tokens.n;
    return hearth_tokens_common(group->tokens.v, m, record->tokens, n) == (n < m ? n : m);
}

static bool continues(const struct disk_group *group, const struct hearth_record *record) {
    if (group->last_put == 0) {
        return false;
    }
    return hearth_digest_equal(group->base, record->base) ? agrees(group, record)
                                                          : hearth_digest_equal(group->end, record->base);
}

/* The group of a record, which becomes the newest. If there is none, the group that was quiet for longest is replaced,
 * preferably one without jobs. */
static int group_of(struct disk *disk, const struct hearth_record *record) {
    int best = -1, victim = 0;
    for (int i = 0; i < DISK_GROUPS; i++) {
        const struct disk_group *group = &disk->groups[i], *than = &disk->groups[victim];
        if (continues(group, record) && (best < 0 || group->last_put > disk->groups[best].last_put)) {
            best = i;
        }
        if ((group->queued > 0) < (than->queued > 0) ||
            ((group->queued > 0) == (than->queued > 0) && group->last_put < than->last_put)) {
            victim = i;
        }
    }
    struct disk_group *group = &disk->groups[best >= 0 ? best : victim];
    const size_t n = hearth_record_tokens(record);
    group->last_put = ++disk->puts;
    group->base = group->end = record->base;
    if (n == (size_t)disk->params.page_tokens) {
        group->end = hearth_record_next(record->base, record->tokens, n);
    }
    (void)hearth_tokens_assign(&group->tokens, record->tokens, n); /* out of memory: the group is found less often */
    return (int)(group - disk->groups);
}

/* Drops jobs until the queue fits, perhaps the newest one, too. */
static void shed_locked(struct disk *disk) {
    while (disk->stats.queued_bytes > disk->params.queue_bytes && !TAILQ_EMPTY(&disk->queue)) {
        int oldest = -1;
        for (int i = 0; i < DISK_GROUPS; i++) {
            if (disk->groups[i].queued > 0 &&
                (oldest < 0 || disk->groups[i].last_put < disk->groups[oldest].last_put)) {
                oldest = i;
            }
        }
        HEARTH_ASSERT(oldest >= 0);
        struct disk_job *deepest = NULL, *job;
        TAILQ_FOREACH(job, &disk->queue, list) {
            if (job->group == oldest && (!deepest || job->record->p1 >= deepest->record->p1)) {
                deepest = job;
            }
        }
        HEARTH_ASSERT(deepest != NULL);
        if (TAILQ_FIRST(&disk->queue) == TAILQ_LAST(&disk->queue, disk_queue) && !disk->writing) {
            break; /* a single item may have any size */
        }
        drop_locked(disk, deepest);
    }
}

/* ---- put ---- */

static struct disk_job *make_job(const struct hearth_record *record, struct hearth_blob *blob,
                                 const struct hearth_digest *replaces) {
    struct disk_job *job = calloc(1, sizeof *job);
    struct hearth_record *copy = job ? hearth_record_copy(record) : NULL;
    if (!copy) {
        free(job);
        return NULL;
    }
    job->record = copy;
    job->draft.fd = -1;
    job->link.key = record->name;
    job->bytes = sizeof *job + hearth_record_tokens(record) * sizeof(hearth_token);
    if (blob) {
        job->bytes += hearth_blob_bytes(blob);
    }
    if (replaces && !hearth_digest_equal(*replaces, record->name)) {
        job->replaces = true;
        job->replaced = *replaces;
    }
    return job;
}

static bool accepts_locked(const struct disk *disk, const struct disk_job *job) {
    if (disk->stop_writer || job->bytes > disk->stats.budget_bytes) {
        return false;
    }
    return !disk->stats.failing || hearth_clock_us() >= disk->retry_at_us;
}

bool hearth_disk_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                     const struct hearth_digest *replaces) {
    struct disk *disk = (struct disk *)backing;
    struct disk_job *job = make_job(record, blob, replaces);
    if (!job) {
        return false;
    }
    hearth_disk_lock(disk);
    const bool accepted = accepts_locked(disk, job) && hearth_table_add(&disk->jobs, &job->link);
    if (accepted) {
        if (blob) {
            hearth_blob_ref(blob);
            job->blob = blob;
        }
        job->group = group_of(disk, record);
        hearth_disk_note_size_locked(disk, record);
        disk->groups[job->group].queued++;
        disk->stats.queued_bytes += job->bytes;
        TAILQ_INSERT_TAIL(&disk->queue, job, list);
        shed_locked(disk);
        (void)pthread_cond_signal(&disk->write_cond);
    }
    hearth_disk_unlock(disk);
    if (!accepted) {
        hearth_record_destroy(job->record);
        free(job);
    }
    return accepted;
}
