/* Children. Design in children.h.
 *
 * Open addressing with linear probing; a removal moves back what was displaced, so there are no tombstones. At most
 * three quarters of the slots are taken; a table that has become an eighth full is made smaller.
 *
 * Invariants: child_count == 1 means children.one, anything above a table of 2^child_bits slots; between a key's slot
 * and where it lies no slot is empty; tail_count counts the children at offset len. */
#include "cache/children.h"

#include "base/assert.h"

#include <stdlib.h>

#define BITS_MIN 2
#define BITS_MAX 30

static uint32_t slots(const struct hearth_page *page) {
    return 1u << page->child_bits;
}

static uint32_t home(uint8_t bits, int32_t offset, hearth_token first) {
    uint64_t key = (uint64_t)(uint32_t)offset << 32 | (uint32_t)first;
    return (uint32_t)((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> (64 - bits));
}

/* The slot of the key, or the empty slot where it belongs. */
static uint32_t probe(const struct hearth_child *table, uint8_t bits, int32_t offset, hearth_token first) {
    uint32_t mask = (1u << bits) - 1, at = home(bits, offset, first);
    while (table[at].page && (table[at].offset != offset || table[at].first != first)) {
        at = (at + 1) & mask;
    }
    return at;
}

struct hearth_page *hearth_children_lookup(const struct hearth_page *page, int32_t offset, hearth_token first) {
    const struct hearth_child *table = page->children.many;
    return table[probe(table, page->child_bits, offset, first)].page;
}

/* ---- size ---- */

/* Makes a table with the children of another one. NULL: out of memory. */
static struct hearth_child *copy(const struct hearth_child *from, uint32_t count, uint8_t bits) {
    struct hearth_child *table = calloc((size_t)1 << bits, sizeof *table);
    for (uint32_t i = 0; table && i < count; i++) {
        if (from[i].page) {
            table[probe(table, bits, from[i].offset, from[i].first)] = from[i];
        }
    }
    return table;
}

static bool resize(struct hearth_page *page, uint8_t bits) {
    struct hearth_child *table = copy(page->children.many, slots(page), bits);
    if (!table) {
        return false;
    }
    free(page->children.many);
    page->children.many = table;
    page->child_bits = bits;
    return true;
}

static struct hearth_child slot_of(const struct hearth_page *page, struct hearth_page *child) {
    return (struct hearth_child){.offset = child->p0 - page->p0, .first = child->first, .page = child};
}

/* ---- adding and removing ---- */

bool hearth_children_add(struct hearth_page *page, struct hearth_page *child) {
    struct hearth_child slot = slot_of(page, child);
    if (page->child_count == 0) {
        page->children.one = child;
    } else {
        if (page->child_count == 1) {
            struct hearth_child one = slot_of(page, page->children.one), *table = copy(&one, 1, BITS_MIN);
            if (!table) {
                return false;
            }
            page->children.many = table;
            page->child_bits = BITS_MIN;
        } else if (page->child_count >= slots(page) / 4 * 3 &&
                   (page->child_bits >= BITS_MAX || !resize(page, (uint8_t)(page->child_bits + 1)))) {
            return false;
        }
        struct hearth_child *at =
            &page->children.many[probe(page->children.many, page->child_bits, slot.offset, slot.first)];
        HEARTH_ASSERT(!at->page);
        *at = slot;
    }
    page->child_count++;
    page->tail_count += slot.offset == page->len;
    return true;
}

/* Empties a slot and moves back the entries that probing would no longer find. */
static void vacate(struct hearth_child *table, uint8_t bits, uint32_t hole) {
    uint32_t mask = (1u << bits) - 1;
    for (uint32_t at = (hole + 1) & mask; table[at].page; at = (at + 1) & mask) {
        uint32_t from = home(bits, table[at].offset, table[at].first);
        if (((at - from) & mask) < ((at - hole) & mask)) {
            continue; /* the hole is not between its own slot and here */
        }
        table[hole] = table[at];
        hole = at;
    }
    table[hole].page = NULL;
}

void hearth_children_remove(struct hearth_page *page, const struct hearth_page *child) {
    int32_t offset = child->p0 - page->p0;
    HEARTH_ASSERT(hearth_children_find(page, offset, child->first) == child);
    page->tail_count -= offset == page->len;
    if (page->child_count-- == 1) {
        page->children.one = NULL;
        return;
    }
    struct hearth_child *table = page->children.many;
    vacate(table, page->child_bits, probe(table, page->child_bits, offset, child->first));
    if (page->child_count == 1) {
        uint32_t at = 0;
        while (!table[at].page) {
            at++;
        }
        page->children.one = table[at].page;
        page->child_bits = 0;
        free(table);
    } else if (page->child_bits > BITS_MIN && page->child_count < slots(page) / 8) {
        (void)resize(page, (uint8_t)(page->child_bits - 1)); /* out of memory: the table stays large */
    }
}

struct hearth_page *hearth_children_next(const struct hearth_page *page, const struct hearth_page *child) {
    if (page->child_count <= 1) {
        return child || page->child_count == 0 ? NULL : page->children.one;
    }
    const struct hearth_child *table = page->children.many;
    uint32_t at = child ? probe(table, page->child_bits, child->p0 - page->p0, child->first) + 1 : 0;
    while (at < slots(page) && !table[at].page) {
        at++;
    }
    return at < slots(page) ? table[at].page : NULL;
}

void hearth_children_finish(struct hearth_page *page) {
    if (page->child_count > 1) {
        free(page->children.many);
    }
    page->child_count = 0;
}
