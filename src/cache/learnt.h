/* What the policy has learnt (cache/hazard.h), saved with the cache: how conversations come back, not which there were.
 * Inside the cache. Design in learnt.c. */
#ifndef HEARTH_CACHE_LEARNT_H
#define HEARTH_CACHE_LEARNT_H

#include "base/buf.h"
#include "base/table.h"
#include "cache/hazard.h"

struct hearth_cache;
struct hearth_backing_event;

/* The most bytes of a note, whatever the size of the cache; also at most a hundredth of the cache. */
#define HEARTH_LEARNT_BYTES_MAX 32768

struct hearth_learnt {
    struct hearth_table awaited; /* names of the notes that are being read */
    struct hearth_digest note;   /* the last one read or put; zero: none */
    uint64_t turns;              /* turns that taught what was read */
    uint32_t saved_turns;        /* turns of this cache that the last put note contains */
    bool saved;                  /* a note was put: one that is found from now on is another server's */
};

void hearth_learnt_finish(struct hearth_learnt *learnt);

/* Prints what `turns` turns have taught, as bytes. False: out of memory. */
bool hearth_learnt_print(const struct hearth_hazard *hazard, uint64_t turns, struct hearth_buf *out);
/* Reads these bytes. Returns NULL, or why they are useless; then nothing is written. */
const char *hearth_learnt_parse(const void *bytes, size_t len, struct hearth_hazard *hazard, uint64_t *turns);

/* The base of the notes (tier/record.h). */
struct hearth_digest hearth_learnt_base(const struct hearth_cache *cache);
/* A turn was learnt from: saves now and then. */
void hearth_learnt_turn(struct hearth_cache *cache);
/* Takes an event of the backing tier that is about no item of the cache. True: it was about a note of this file. */
bool hearth_learnt_take(struct hearth_cache *cache, struct hearth_backing_event *event);

#endif
