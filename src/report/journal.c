/* The journal. See journal.h.
 *
 * The ring is the queue: the thread takes what is fresh in it, a slice at a time, and writes each slice in one
 * transaction, a moment after the first of it came, so that a burst costs one sync. What could not be written is fresh
 * again and is tried later; one line of the log says so at the beginning and one at the end. A row is the two texts of
 * an entry, a line feed between them.
 *
 * Now and then the rows are counted: when there are fewer than were left, something was deleted, maybe by another
 * process or because its time was over, and the ring drops it, too. Where boxes share the rows their number tells less,
 * and a deletion is told (hearth_journal_deleted). */
#include "report/journal.h"

#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SLICE 64
#define GATHER_US 200000
#define EVERY_US 5000000

struct hearth_journal {
    struct hearth_session_store *store;
    struct hearth_ring *ring;
    size_t keep;
    bool texts, failing;
    int64_t count; /* rows at the last count */
    pthread_t thread;
    atomic_bool stopping, deleted;
};

/* ---- reading ---- */

static bool load_row(void *user, const struct hearth_session_request *row) {
    struct hearth_journal *journal = user;
    char *listed = row->body.len > 0 ? strndup((const char *)row->body.data, row->body.len) : NULL;
    char *divergence = listed != NULL ? strchr(listed, '\n') : NULL;
    if (divergence != NULL) {
        *divergence++ = '\0';
    }
    if (listed != NULL && (journal->texts || divergence == NULL)) { /* its verdicts would quote texts, too */
        hearth_ring_load(journal->ring, listed, divergence, row->owner, row->turn);
    }
    free(listed);
    return true;
}

/* ---- writing ---- */

static bool fill_row(const struct hearth_ring_fresh *fresh, struct hearth_session_request *row) {
    *row = (struct hearth_session_request){.id = fresh->id,
                                           .owner = fresh->owner,
                                           .turn = fresh->turn,
                                           .session = fresh->session,
                                           .created_us = fresh->at_us};
    return hearth_buf_text(&row->body, fresh->listed) &&
           (fresh->divergence == NULL ||
            (hearth_buf_text(&row->body, "\n") && hearth_buf_text(&row->body, fresh->divergence)));
}

static void tell(struct hearth_journal *journal, int err) {
    if ((err != HEARTH_OK) != journal->failing) {
        hearth_log(err != HEARTH_OK ? HEARTH_LOG_WARN : HEARTH_LOG_INFO, "requests: %s",
                   err != HEARTH_OK ? "the session database cannot be written; the last requests are in memory only"
                                    : "the last requests are stored again");
    }
    journal->failing = err != HEARTH_OK;
}

/* Stores a slice of fresh entries. False: that failed, or there were none. */
static bool store_slice(struct hearth_journal *journal) {
    struct hearth_ring_fresh fresh[SLICE];
    struct hearth_session_request rows[SLICE];
    const size_t n = hearth_ring_take_fresh(journal->ring, fresh, SLICE);
    int err = HEARTH_OK;
    for (size_t i = 0; i < n; i++) {
        err = fill_row(&fresh[i], &rows[i]) ? err : HEARTH_ERR_NOMEM;
    }
    if (n > 0 && err == HEARTH_OK) {
        err = hearth_session_requests_put(journal->store, rows, n, journal->keep, HEARTH_RING_BYTES);
    }
    for (size_t i = 0; i < n; i++) {
        hearth_ring_mark(journal->ring, fresh[i].number,
                         err != HEARTH_OK  ? HEARTH_RING_FRESH
                         : rows[i].written ? HEARTH_RING_STORED
                                           : HEARTH_RING_LOOSE);
        hearth_buf_finish(&rows[i].body);
        hearth_ring_fresh_finish(&fresh[i]);
    }
    if (n > 0) {
        tell(journal, err);
        journal->count = hearth_session_requests_count(journal->store);
    }
    return n > 0 && err == HEARTH_OK;
}

/* ---- what was deleted ---- */

struct ids {
    char **v;
    size_t n, room;
    bool ok;
};

static bool take_id(void *user, const struct hearth_session_request *row) {
    struct ids *ids = user;
    ids->ok = HEARTH_BUF_ROOM(ids->v, ids->n, ids->room) && (ids->v[ids->n] = strdup(row->id)) != NULL;
    ids->n += ids->ok;
    return ids->ok;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_there(const void *user, const char *id) {
    const struct ids *ids = user;
    return bsearch((const void *)&id, (const void *)ids->v, ids->n, sizeof *ids->v, by_text) != NULL;
}

static void follow_deletions(struct hearth_journal *journal) {
    struct ids ids = {.ok = true};
    const int64_t count = hearth_session_requests_count(journal->store);
    if (count >= 0 && (atomic_exchange(&journal->deleted, false) || count < journal->count)) {
        if (hearth_session_requests_each(journal->store, false, take_id, &ids) == HEARTH_OK && ids.ok) {
            if (ids.n > 0) {
                qsort((void *)ids.v, ids.n, sizeof *ids.v, by_text);
            }
            hearth_ring_drop_deleted(journal->ring, is_there, &ids);
        }
        for (size_t i = 0; i < ids.n; i++) {
            free(ids.v[i]);
        }
        free((void *)ids.v);
    }
    journal->count = count >= 0 ? count : journal->count;
}

/* ---- life ---- */

static void *run(void *user) {
    struct hearth_journal *journal = user;
    while (!atomic_load(&journal->stopping)) {
        follow_deletions(journal);
        hearth_ring_wait(journal->ring, !journal->failing, EVERY_US);
        hearth_ring_wait(journal->ring, false, GATHER_US);
        while (store_slice(journal)) {
        }
    }
    while (store_slice(journal)) {
    }
    return NULL;
}

struct hearth_journal *hearth_journal_create(struct hearth_session_store *store, struct hearth_ring *ring, size_t keep,
                                             bool texts) {
    struct hearth_journal *journal = calloc(1, sizeof *journal);
    if (journal == NULL) {
        return NULL;
    }
    *journal = (struct hearth_journal){.store = store, .ring = ring, .keep = keep, .texts = texts};
    atomic_init(&journal->stopping, false);
    atomic_init(&journal->deleted, false);
    if (hearth_session_requests_each(store, true, load_row, journal) != HEARTH_OK) {
        hearth_log(HEARTH_LOG_WARN, "requests: those that are stored cannot be read");
    }
    journal->count = hearth_session_requests_count(store);
    if (pthread_create(&journal->thread, NULL, run, journal) != 0) {
        free(journal);
        return NULL;
    }
    return journal;
}

void hearth_journal_deleted(struct hearth_journal *journal) {
    if (journal != NULL) {
        atomic_store(&journal->deleted, true);
    }
}

void hearth_journal_destroy(struct hearth_journal *journal) {
    if (journal != NULL) {
        atomic_store(&journal->stopping, true);
        hearth_ring_wake(journal->ring);
        pthread_join(journal->thread, NULL);
        free(journal);
    }
}
