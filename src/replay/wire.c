/* A line, slot by slot.
 *
 * A full slot says how far one can skip from it, so that a transfer into a line that is busy for an hour does not look
 * at each slot of that hour. A transfer is as fast as what is left of its slots allows; inside a slot transfers do not
 * wait for each other, which is what the slots are short for.
 *
 * Invariant: no slot holds more than the line carries in its time. */
#include "replay/wire.h"

#include "base/buf.h"

#include <stdlib.h>

#define SLOTS ((int64_t)1 << 20) /* three hours ahead */

struct hearth_wire_slot {
    int64_t number; /* since time 0, and one: 0 is a place that was never used */
    double used;    /* bytes */
    int64_t skip;   /* a full slot: those before this one are full, too */
};

bool hearth_wire_init(struct hearth_wire *wire, double bytes_per_us) {
    *wire = (struct hearth_wire){.bytes_per_us = bytes_per_us, .slots = calloc(SLOTS, sizeof *wire->slots)};
    return wire->slots != NULL;
}

void hearth_wire_finish(struct hearth_wire *wire) {
    free(wire->slots);
    free(wire->minutes);
    *wire = (struct hearth_wire){0};
}

static struct hearth_wire_slot *slot_at(const struct hearth_wire *wire, int64_t number) {
    struct hearth_wire_slot *slot = &wire->slots[number & (SLOTS - 1)];
    if (slot->number != number + 1) {
        *slot = (struct hearth_wire_slot){.number = number + 1, .skip = number + 1};
    }
    return slot;
}

/* The first slot from `number` on that is not full. */
static int64_t next_free(const struct hearth_wire *wire, int64_t number, double full) {
    const int64_t first = number;
    while (slot_at(wire, number)->used >= full) {
        number = slot_at(wire, number)->skip;
    }
    for (int64_t at = first, next; at < number; at = next) { /* the next one skips all of them at once */
        next = slot_at(wire, at)->skip;
        slot_at(wire, at)->skip = number;
    }
    return number;
}

static bool count(struct hearth_wire *wire, int64_t number, double bytes) {
    const size_t minute = (size_t)(number / (HEARTH_WIRE_MINUTE_US / HEARTH_WIRE_SLOT_US));
    while (wire->minute_count <= minute) {
        if (!HEARTH_BUF_ROOM(wire->minutes, wire->minute_count, wire->minute_cap)) {
            return false;
        }
        wire->minutes[wire->minute_count++] = 0;
    }
    wire->minutes[minute] += bytes;
    return true;
}

int64_t hearth_wire_send(struct hearth_wire *wire, int64_t start_us, size_t bytes, double most_bytes_per_us) {
    const double full = wire->bytes_per_us * HEARTH_WIRE_SLOT_US * (1 - 1e-9);
    const double rate = most_bytes_per_us < wire->bytes_per_us ? most_bytes_per_us : wire->bytes_per_us;
    double left = (double)bytes, now_us = (double)start_us;
    int64_t number = start_us / HEARTH_WIRE_SLOT_US;
    while (left > 0) {
        number = next_free(wire, number, full);
        struct hearth_wire_slot *slot = slot_at(wire, number);
        const double begin_us = (double)number * HEARTH_WIRE_SLOT_US, end_us = begin_us + HEARTH_WIRE_SLOT_US;
        now_us = now_us > begin_us ? now_us : begin_us;
        double part = (end_us - now_us) * rate;
        const double free_bytes = wire->bytes_per_us * HEARTH_WIRE_SLOT_US - slot->used;
        const bool crowded = free_bytes < part;
        part = crowded ? free_bytes : part;
        part = left < part ? left : part;
        slot->used += part;
        left -= part;
        if (!count(wire, number, part)) {
            return INT64_MAX;
        }
        now_us = left > 0 ? end_us : now_us + part / rate;
        number++;
    }
    return (int64_t)now_us + 1;
}
