/* Counts the text that two prompts share behind a difference.
 *
 * A window of 48 bytes at every 16th byte of the earlier text goes into a table. The later text is read from its
 * beginning. Where a window of it is in the table, the equal run around this window is measured and counted, and
 * reading goes on behind the run. So text counts as shared when a line has changed, messages were dropped or
 * inserted, or tools have another order. The text that a template prints between two messages is shorter than a
 * window. */
#include "session/shared_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW ((size_t)48)
#define STRIDE ((size_t)16)
#define PROBES 32 /* most table entries that are tried for one window */
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

struct table {
    uint32_t *at; /* position / STRIDE + 1; 0: free */
    size_t mask;
};

/* A rolling hash: a polynomial of the window's bytes. */
static uint64_t hash_window(const char *text) {
    uint64_t hash = 0;
    for (size_t i = 0; i < WINDOW; i++) {
        hash = hash * FACTOR + (unsigned char)text[i];
    }
    return hash;
}

/* FACTOR to the power of WINDOW. */
static uint64_t outgoing_factor(void) {
    uint64_t factor = 1;
    for (size_t i = 0; i < WINDOW; i++) {
        factor *= FACTOR;
    }
    return factor;
}

static size_t slot_of(const struct table *table, uint64_t hash, size_t probe) {
    return ((size_t)(hash * FACTOR >> 32) + probe) & table->mask;
}

static bool fill_table(struct table *table, const char *text, size_t len) {
    const size_t windows = len / STRIDE;
    size_t slots = 64;
    while (slots < 2 * windows) {
        slots *= 2;
    }
    *table = (struct table){.at = calloc(slots, sizeof *table->at), .mask = slots - 1};
    for (size_t i = 0; table->at != NULL && i * STRIDE + WINDOW <= len; i++) {
        const uint64_t hash = hash_window(text + i * STRIDE);
        for (size_t probe = 0; probe < PROBES; probe++) {
            uint32_t *slot = &table->at[slot_of(table, hash, probe)];
            if (*slot == 0) {
                *slot = (uint32_t)i + 1;
                break;
            }
        }
    }
    return table->at != NULL;
}

/* A position of the window in the earlier text; SIZE_MAX: none. */
static size_t find(const struct table *table, uint64_t hash, const char *window, const char *text) {
    for (size_t probe = 0; probe < PROBES; probe++) {
        const uint32_t slot = table->at[slot_of(table, hash, probe)];
        if (slot == 0) {
            break;
        }
        const size_t at = (size_t)(slot - 1) * STRIDE;
        if (memcmp(text + at, window, WINDOW) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

double hearth_shared_text_weighed(const char *then, size_t then_len, const char *now, size_t now_len,
                                  double (*weigh)(void *user, size_t offset), void *user) {
    struct table table;
    const uint64_t outgoing = outgoing_factor();
    double shared = 0;
    size_t behind = 0; /* end of the last run */
    if (then_len < WINDOW || now_len < WINDOW || then_len / STRIDE >= UINT32_MAX ||
        !fill_table(&table, then, then_len)) {
        return 0;
    }
    size_t at = 0;
    uint64_t hash = hash_window(now);
    while (at + WINDOW <= now_len) {
        size_t from = find(&table, hash, now + at, then);
        if (from == SIZE_MAX) {
            hash = at + WINDOW < now_len
                       ? hash * FACTOR + (unsigned char)now[at + WINDOW] - outgoing * (unsigned char)now[at]
                       : hash;
            at++;
            continue;
        }
        size_t begin = at, end = at + WINDOW;
        while (begin > behind && from > 0 && now[begin - 1] == then[from - 1]) {
            begin--, from--;
        }
        while (end < now_len && from + (end - begin) < then_len && now[end] == then[from + (end - begin)]) {
            end++;
        }
        shared += weigh(user, end) - weigh(user, begin);
        at = behind = end;
        hash = at + WINDOW <= now_len ? hash_window(now + at) : 0;
    }
    free(table.at);
    return shared;
}
