/* The ring of reports. Design in ring.h.
 *
 * An entry holds two texts: the report as it is listed, and the divergence with its texts, which only the look at one
 * request shows. Texts are compact JSON: about a kilobyte each, a quarter of what the value takes in memory. */
#include "report/ring.h"

#include "base/assert.h"
#include "base/clock.h"
#include "report/waste.h"
#include "session/json_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct entry {
    char *listed, *divergence;                 /* NULL: the report has none, or texts are not kept */
    char *id, *session, *key, *client, *trace; /* NULL if there is none */
    size_t bytes;                              /* of the whole entry */
    struct hearth_losses losses;
    struct hearth_digest owner, turn;
    int64_t waited_us; /* how long the client waited for the first token */
    int64_t at_us;     /* its arrival, since 1970 */
    uint64_t number;   /* counts up */
    enum hearth_ring_stored stored;
};

struct hearth_ring {
    pthread_mutex_t mutex;
    pthread_cond_t added;
    struct entry *v;
    size_t cap, first, n, bytes;
    uint64_t number; /* of the newest entry */
    bool woken;
};

struct hearth_ring *hearth_ring_create(size_t entries) {
    struct hearth_ring *ring = calloc(1, sizeof *ring);
    HEARTH_ASSERT(entries > 0);
    if (ring != NULL) {
        hearth_clock_cond_init(&ring->added);
        pthread_mutex_init(&ring->mutex, NULL);
        ring->cap = entries;
        ring->v = calloc(entries, sizeof *ring->v);
    }
    if (ring != NULL && ring->v == NULL) {
        hearth_ring_destroy(ring);
        return NULL;
    }
    return ring;
}

static void entry_finish(struct entry *entry) {
    free(entry->listed);
    free(entry->divergence);
    free(entry->id);
    free(entry->session);
    free(entry->key);
    free(entry->client);
    free(entry->trace);
    *entry = (struct entry){0};
}

static void drop_oldest(struct hearth_ring *ring) {
    ring->bytes -= ring->v[ring->first].bytes;
    entry_finish(&ring->v[ring->first]);
    ring->first = (ring->first + 1) % ring->cap;
    ring->n--;
}

void hearth_ring_destroy(struct hearth_ring *ring) {
    if (ring != NULL) {
        while (ring->n > 0) {
            drop_oldest(ring);
        }
        free(ring->v);
        pthread_cond_destroy(&ring->added);
        pthread_mutex_destroy(&ring->mutex);
        free(ring);
    }
}

/* A copy of a name. False: out of memory. */
static bool copy_name(const char *name, char **out) {
    *out = name != NULL ? strdup(name) : NULL;
    return (*out != NULL) == (name != NULL);
}

static bool copy_member(const json_t *report, const char *name, char **out) {
    return copy_name(json_string_value(json_object_get(report, name)), out);
}

/* Fills in what an entry is found by, and what was lost. False: out of memory, or the report has no id. */
static bool read_report(const json_t *report, struct entry *entry) {
    hearth_losses_read(report, &entry->losses);
    return copy_member(report, "id", &entry->id) && entry->id != NULL &&
           copy_member(report, "session", &entry->session) && copy_member(report, "key", &entry->key) &&
           copy_member(report, "client", &entry->client) && copy_member(report, "trace", &entry->trace);
}

/* Fills the texts of an entry, and what it is found by. */
static bool print_entry(const struct hearth_report *report, bool texts, struct entry *entry) {
    static const char *const left_out[] = {"before", "after", "line", "lines"};
    json_t *whole = hearth_report_json(report, texts), *divergence = json_object_get(whole, "divergence");
    if (texts && json_is_object(divergence)) {
        entry->divergence = hearth_json_dumps(divergence, JSON_COMPACT);
        for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
            (void)json_object_del(divergence, left_out[i]);
        }
    }
    entry->listed = whole != NULL ? hearth_json_dumps(whole, JSON_COMPACT) : NULL;
    const bool ok = entry->listed != NULL && read_report(whole, entry);
    json_decref(whole);
    return ok;
}

/* Puts an entry into the ring, in the place of the oldest ones. */
static void push_locked(struct hearth_ring *ring, struct entry *entry) {
    entry->bytes = sizeof *entry + strlen(entry->listed) + (entry->divergence != NULL ? strlen(entry->divergence) : 0);
    entry->number = ++ring->number;
    while (ring->n > 0 && (ring->n == ring->cap || ring->bytes + entry->bytes > HEARTH_RING_BYTES)) {
        drop_oldest(ring);
    }
    ring->v[(ring->first + ring->n) % ring->cap] = *entry;
    ring->n++;
    ring->bytes += entry->bytes;
}

bool hearth_ring_add(struct hearth_ring *ring, const struct hearth_report *report, struct hearth_digest owner,
                     bool texts) {
    struct entry entry = {.owner = owner,
                          .turn = report->turn,
                          .at_us = report->at_ms * 1000,
                          .waited_us = report->ttft_us > 0 ? report->ttft_us : report->total_us};
    if (!print_entry(report, texts, &entry)) {
        entry_finish(&entry);
        return false;
    }
    pthread_mutex_lock(&ring->mutex);
    push_locked(ring, &entry);
    pthread_cond_signal(&ring->added);
    pthread_mutex_unlock(&ring->mutex);
    return true;
}

/* ---- the database ---- */

void hearth_ring_load(struct hearth_ring *ring, const char *listed, const char *divergence, struct hearth_digest owner,
                      struct hearth_digest turn) {
    json_t *json = hearth_json_load(listed, strlen(listed), 0, NULL);
    json_t *quoted = divergence != NULL ? hearth_json_load(divergence, strlen(divergence), 0, NULL) : NULL;
    const json_t *ms = json_object_get(json, "ms");
    const double ttft = json_number_value(json_object_get(ms, "ttft"));
    const double waited_ms = ttft > 0 ? ttft : json_number_value(json_object_get(ms, "total"));
    struct entry entry = {.owner = owner,
                          .turn = turn,
                          .stored = HEARTH_RING_STORED,
                          .waited_us = waited_ms > 0 && waited_ms < 1e15 ? (int64_t)(1e3 * waited_ms) : 0};
    if (copy_name(listed, &entry.listed) && copy_name(quoted != NULL ? divergence : NULL, &entry.divergence) &&
        read_report(json, &entry)) {
        pthread_mutex_lock(&ring->mutex);
        push_locked(ring, &entry);
        pthread_mutex_unlock(&ring->mutex);
    } else {
        entry_finish(&entry);
    }
    json_decref(quoted);
    json_decref(json);
}

static struct entry *oldest(struct hearth_ring *ring, size_t i) {
    return &ring->v[(ring->first + i) % ring->cap];
}

static bool copy_fresh(const struct entry *entry, struct hearth_ring_fresh *out) {
    *out = (struct hearth_ring_fresh){
        .number = entry->number, .owner = entry->owner, .turn = entry->turn, .at_us = entry->at_us};
    if (copy_name(entry->id, &out->id) && copy_name(entry->session, &out->session) &&
        copy_name(entry->listed, &out->listed) && copy_name(entry->divergence, &out->divergence)) {
        return true;
    }
    hearth_ring_fresh_finish(out);
    return false;
}

void hearth_ring_fresh_finish(struct hearth_ring_fresh *fresh) {
    free(fresh->id);
    free(fresh->session);
    free(fresh->listed);
    free(fresh->divergence);
    *fresh = (struct hearth_ring_fresh){0};
}

size_t hearth_ring_take_fresh(struct hearth_ring *ring, struct hearth_ring_fresh *out, size_t most) {
    size_t n = 0;
    pthread_mutex_lock(&ring->mutex);
    for (size_t i = 0; i < ring->n && n < most; i++) {
        struct entry *entry = oldest(ring, i);
        if (entry->stored == HEARTH_RING_FRESH && copy_fresh(entry, &out[n])) {
            entry->stored = HEARTH_RING_TAKEN;
            n++;
        }
    }
    pthread_mutex_unlock(&ring->mutex);
    return n;
}

void hearth_ring_mark(struct hearth_ring *ring, uint64_t number, enum hearth_ring_stored stored) {
    pthread_mutex_lock(&ring->mutex);
    for (size_t i = 0; i < ring->n; i++) {
        struct entry *entry = oldest(ring, i);
        if (entry->number == number) {
            entry->stored = stored;
        }
    }
    pthread_mutex_unlock(&ring->mutex);
}

void hearth_ring_wait(struct hearth_ring *ring, bool for_fresh, int64_t timeout_us) {
    const int64_t until_us = hearth_clock_us() + timeout_us;
    pthread_mutex_lock(&ring->mutex);
    while (!ring->woken && !(for_fresh && ring->n > 0 && oldest(ring, ring->n - 1)->stored == HEARTH_RING_FRESH) &&
           hearth_clock_cond_wait(&ring->added, &ring->mutex, until_us)) {
    }
    pthread_mutex_unlock(&ring->mutex);
}

void hearth_ring_wake(struct hearth_ring *ring) {
    pthread_mutex_lock(&ring->mutex);
    ring->woken = true;
    pthread_cond_signal(&ring->added);
    pthread_mutex_unlock(&ring->mutex);
}

/* Drops the entries for which `goes` returns true. */
static void drop_some(struct hearth_ring *ring, bool (*goes)(const struct entry *entry, const void *user),
                      const void *user) {
    size_t kept = 0;
    pthread_mutex_lock(&ring->mutex);
    for (size_t i = 0; i < ring->n; i++) {
        struct entry *entry = oldest(ring, i);
        if (goes(entry, user)) {
            ring->bytes -= entry->bytes;
            entry_finish(entry);
        } else if (kept++ < i) {
            *oldest(ring, kept - 1) = *entry;
            *entry = (struct entry){0};
        }
    }
    ring->n = kept;
    pthread_mutex_unlock(&ring->mutex);
}

struct deleted {
    struct hearth_digest owner, turn;
    const char *session;
};

static bool is_deleted(const struct entry *entry, const void *user) {
    const struct deleted *deleted = user;
    const bool same = deleted->session != NULL ? entry->session != NULL && strcmp(entry->session, deleted->session) == 0
                                               : hearth_digest_equal(entry->turn, deleted->turn);
    return same && hearth_digest_equal(entry->owner, deleted->owner);
}

void hearth_ring_forget(struct hearth_ring *ring, struct hearth_digest owner, const char *session,
                        struct hearth_digest turn) {
    const struct deleted deleted = {owner, turn, session};
    if (ring != NULL) {
        drop_some(ring, is_deleted, &deleted);
    }
}

struct there {
    bool (*is_there)(const void *user, const char *id);
    const void *user;
};

static bool is_away(const struct entry *entry, const void *user) {
    const struct there *there = user;
    return entry->stored == HEARTH_RING_STORED && !there->is_there(there->user, entry->id);
}

void hearth_ring_drop_deleted(struct hearth_ring *ring, bool (*is_there)(const void *user, const char *id),
                              const void *user) {
    const struct there there = {is_there, user};
    drop_some(ring, is_away, &there);
}

/* ---- asking ---- */

static bool is_owners(const struct entry *entry, const struct hearth_digest *owner) {
    return owner == NULL || hearth_digest_equal(entry->owner, *owner);
}

/* Whether a name is the wanted one, or begins with it and a '/' (a client's name without its version). */
static bool name_is(const char *name, const char *wanted) {
    const size_t len = wanted != NULL ? strlen(wanted) : 0;
    return wanted == NULL ||
           (name != NULL && strncmp(name, wanted, len) == 0 && (name[len] == '\0' || name[len] == '/'));
}

static bool is_wanted(const struct entry *entry, const struct hearth_ring_filter *filter) {
    return is_owners(entry, filter->owner) && entry->waited_us >= filter->slow_us &&
           name_is(entry->session, filter->session) && name_is(entry->key, filter->key) &&
           name_is(entry->client, filter->client) && name_is(entry->trace, filter->trace);
}

static const struct entry *newest(const struct hearth_ring *ring, size_t i) {
    return &ring->v[(ring->first + ring->n - 1 - i) % ring->cap];
}

uint64_t hearth_ring_added(struct hearth_ring *ring) {
    pthread_mutex_lock(&ring->mutex);
    const uint64_t number = ring->number;
    pthread_mutex_unlock(&ring->mutex);
    return number;
}

bool hearth_ring_list(struct hearth_ring *ring, const struct hearth_ring_filter *filter, struct hearth_buf *out) {
    size_t found = 0;
    bool ok = hearth_buf_text(out, "[");
    pthread_mutex_lock(&ring->mutex);
    for (size_t i = 0; ok && i < ring->n && (filter->limit == 0 || found < filter->limit); i++) {
        const struct entry *entry = newest(ring, i);
        if (entry->number <= filter->after) {
            break; /* all entries before it are older */
        }
        if (is_wanted(entry, filter)) {
            ok = hearth_buf_text(out, found++ > 0 ? "," : "") && hearth_buf_text(out, entry->listed);
        }
    }
    pthread_mutex_unlock(&ring->mutex);
    return ok && hearth_buf_text(out, "]");
}

json_t *hearth_ring_waste(struct hearth_ring *ring, const struct hearth_ring_filter *filter, size_t clients) {
    size_t n = 0;
    json_t *json = NULL;
    pthread_mutex_lock(&ring->mutex);
    struct hearth_waste_request *requests = calloc(ring->n + 1, sizeof *requests);
    for (size_t i = 0; requests != NULL && i < ring->n; i++) {
        const struct entry *entry = newest(ring, i);
        if (entry->losses.computes && is_wanted(entry, filter)) {
            requests[n++] = (struct hearth_waste_request){.client = entry->client,
                                                          .key = entry->key,
                                                          .session = entry->session,
                                                          .listed = entry->listed,
                                                          .losses = &entry->losses,
                                                          .age = i};
        }
    }
    json = requests != NULL ? hearth_waste_json(requests, n, clients) : NULL;
    pthread_mutex_unlock(&ring->mutex);
    free(requests);
    return json;
}

/* The report of an entry, with its texts. NULL: out of memory. */
static json_t *whole_report(const struct entry *entry) {
    json_t *report = hearth_json_load(entry->listed, strlen(entry->listed), 0, NULL);
    if (report != NULL && entry->divergence != NULL &&
        json_object_set_new(report, "divergence",
                            hearth_json_load(entry->divergence, strlen(entry->divergence), 0, NULL)) < 0) {
        json_decref(report);
        report = NULL;
    }
    return report;
}

bool hearth_ring_find(struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out) {
    bool found = false;
    *out = NULL;
    pthread_mutex_lock(&ring->mutex);
    for (size_t i = 0; i < ring->n && !found; i++) {
        const struct entry *entry = newest(ring, i);
        found = is_owners(entry, owner) && strcmp(entry->id, id) == 0;
        *out = found ? whole_report(entry) : NULL;
    }
    pthread_mutex_unlock(&ring->mutex);
    return !found || *out != NULL;
}
