/* The ring of reports. Design in ring.h.
 *
 * An entry holds two texts: the report as it is listed, and the divergence with its texts, which only the look at one
 * request shows. Texts are compact JSON: about a kilobyte each, a quarter of what the value takes in memory. */
#include "report/ring.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    char *listed, *divergence; /* NULL: the report has none, or texts are not kept */
    size_t bytes;
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

static void drop_oldest(struct hearth_ring *ring) {
    struct entry *entry = &ring->v[ring->first];
    ring->bytes -= entry->bytes;
    free(entry->listed);
    free(entry->divergence);
    *entry = (struct entry){0};
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
    json_t *listed = hearth_report_json(report, false);
    json_t *whole = texts && report->divergence != NULL ? hearth_report_json(report, true) : NULL;
    const bool has_texts = whole != NULL;
    entry->listed = listed != NULL ? json_dumps(listed, JSON_COMPACT) : NULL;
    entry->divergence = has_texts ? json_dumps(json_object_get(whole, "divergence"), JSON_COMPACT) : NULL;
    json_decref(listed);
    json_decref(whole);
    if (entry->listed == NULL) {
        free(entry->divergence);
        return false;
    }
    entry->bytes = sizeof *entry + strlen(entry->listed) + (entry->divergence != NULL ? strlen(entry->divergence) : 0);
    return true;
}

bool hearth_ring_add(struct hearth_ring *ring, const struct hearth_report *report, struct hearth_digest owner,
                     bool texts) {
    struct entry entry = {.owner = owner, .waited_us = report->ttft_us > 0 ? report->ttft_us : report->total_us};
    if (!print_entry(report, texts, &entry)) {
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

/* Whether a member is this text, or begins with it and a '/' (a client's name without its version). */
static bool member_is(const json_t *report, const char *name, const char *wanted) {
    const char *value = json_string_value(json_object_get(report, name));
    const size_t len = wanted != NULL ? strlen(wanted) : 0;
    return wanted == NULL ||
           (value != NULL && strncmp(value, wanted, len) == 0 && (value[len] == '\0' || value[len] == '/'));
}

static const struct entry *newest(const struct hearth_ring *ring, size_t i) {
    return &ring->v[(ring->first + ring->n - 1 - i) % ring->cap];
}

json_t *hearth_ring_list(const struct hearth_ring *ring, const struct hearth_ring_filter *filter) {
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < ring->n; i++) {
        const struct entry *entry = newest(ring, i);
        if (filter->limit > 0 && json_array_size(list) == filter->limit) {
            break;
        }
        if (!is_owners(entry, filter->owner) || entry->waited_us < filter->slow_us) {
            continue;
        }
        json_t *report = json_loads(entry->listed, 0, NULL);
        if (member_is(report, "session", filter->session) && member_is(report, "key", filter->key) &&
            member_is(report, "client", filter->client)) {
            if (json_array_append(list, report) < 0) {
                json_decref(list);
                list = NULL;
            }
        }
        json_decref(report);
    }
    return list;
}

bool hearth_ring_find(const struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out) {
    *out = NULL;
    for (size_t i = 0; i < ring->n; i++) {
        const struct entry *entry = newest(ring, i);
        json_t *report = is_owners(entry, owner) ? json_loads(entry->listed, 0, NULL) : NULL;
        const char *found = json_string_value(json_object_get(report, "id"));
        if (found != NULL && strcmp(found, id) == 0) {
            json_t *divergence = entry->divergence != NULL ? json_loads(entry->divergence, 0, NULL) : NULL;
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
