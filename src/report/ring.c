/* The ring of reports. Design in ring.h.
 *
 * An entry holds two texts: the report as it is listed, and the divergence with its texts, which only the look at one
 * request shows. Texts are compact JSON: about a kilobyte each, a quarter of what the value takes in memory. */
#include "report/ring.h"

#include "base/assert.h"
#include "session/json_memory.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    char *listed, *divergence;            /* the second NULL: the report has none, or texts are not kept */
    char *session, *key, *client, *trace; /* as far as there are any */
    size_t bytes;                         /* of the first two */
    struct hearth_digest owner;
    int64_t waited_us; /* by its client, for the first token */
};

struct hearth_ring {
    struct entry *v;
    size_t cap, first, n, bytes;
};

struct hearth_ring *hearth_ring_create(size_t entries) {
    struct hearth_ring *ring = calloc(1, sizeof *ring);
    HEARTH_ASSERT(entries > 0);
    if (ring != NULL) {
        ring->cap = entries;
        ring->v = calloc(entries, sizeof *ring->v);
    }
    if (ring != NULL && ring->v == NULL) {
        free(ring);
        return NULL;
    }
    return ring;
}

static void entry_finish(struct entry *entry) {
    free(entry->listed);
    free(entry->divergence);
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
        free(ring);
    }
}

/* Fills the texts of an entry. */
static bool print_entry(const struct hearth_report *report, bool texts, struct entry *entry) {
    static const char *const left_out[] = {"before", "after", "line"};
    json_t *whole = hearth_report_json(report, texts), *divergence = json_object_get(whole, "divergence");
    if (texts && json_is_object(divergence)) {
        entry->divergence = hearth_json_dumps(divergence, JSON_COMPACT);
        for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
            (void)json_object_del(divergence, left_out[i]);
        }
    }
    entry->listed = whole != NULL ? hearth_json_dumps(whole, JSON_COMPACT) : NULL;
    json_decref(whole);
    if (entry->listed == NULL) {
        return false;
    }
    entry->bytes = sizeof *entry + strlen(entry->listed) + (entry->divergence != NULL ? strlen(entry->divergence) : 0);
    return true;
}

/* A copy of a name. False: out of memory. */
static bool copy_name(const char *name, char **out) {
    *out = name != NULL ? strdup(name) : NULL;
    return (*out != NULL) == (name != NULL);
}

bool hearth_ring_add(struct hearth_ring *ring, const struct hearth_report *report, struct hearth_digest owner,
                     bool texts) {
    struct entry entry = {.owner = owner, .waited_us = report->ttft_us > 0 ? report->ttft_us : report->total_us};
    if (!print_entry(report, texts, &entry) || !copy_name(report->session, &entry.session) ||
        !copy_name(report->key, &entry.key) || !copy_name(report->client, &entry.client) ||
        !copy_name(report->trace, &entry.trace)) {
        entry_finish(&entry);
        return false;
    }
    while (ring->n > 0 && (ring->n == ring->cap || ring->bytes + entry.bytes > HEARTH_RING_BYTES)) {
        drop_oldest(ring);
    }
    ring->v[(ring->first + ring->n) % ring->cap] = entry;
    ring->n++;
    ring->bytes += entry.bytes;
    return true;
}

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

bool hearth_ring_list(const struct hearth_ring *ring, const struct hearth_ring_filter *filter, struct hearth_buf *out) {
    size_t found = 0;
    bool ok = hearth_buf_text(out, "[");
    for (size_t i = 0; ok && i < ring->n && (filter->limit == 0 || found < filter->limit); i++) {
        const struct entry *entry = newest(ring, i);
        if (is_wanted(entry, filter)) {
            ok = hearth_buf_text(out, found++ > 0 ? "," : "") && hearth_buf_text(out, entry->listed);
        }
    }
    return ok && hearth_buf_text(out, "]");
}

bool hearth_ring_find(const struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out) {
    *out = NULL;
    for (size_t i = 0; i < ring->n; i++) {
        const struct entry *entry = newest(ring, i);
        json_t *report =
            is_owners(entry, owner) ? hearth_json_load(entry->listed, strlen(entry->listed), 0, NULL) : NULL;
        const char *found = json_string_value(json_object_get(report, "id"));
        if (found != NULL && strcmp(found, id) == 0) {
            json_t *divergence = entry->divergence != NULL
                                     ? hearth_json_load(entry->divergence, strlen(entry->divergence), 0, NULL)
                                     : NULL;
            if (entry->divergence != NULL && json_object_set_new(report, "divergence", divergence) < 0) {
                json_decref(report);
                return false;
            }
            *out = report;
            return true;
        }
        json_decref(report);
    }
    return true;
}
