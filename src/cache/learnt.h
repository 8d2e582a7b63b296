/* What the policy has learnt (cache/hazard.h), saved with the cache: how conversations come back, not which there were.
 * Inside the cache. Design in learnt.c. */
#ifndef HEARTH_CACHE_LEARNT_H
#define HEARTH_CACHE_LEARNT_H

#include "base/buf.h"
#include "base/table.h"
#include "cache/hazard.h"

struct hearth_cache;
struct hearth_backing_event;

/* The most that it takes, whatever the size of the cache; and never more than a hundredth of that. */
#define HEARTH_LEARNT_BYTES_MAX 32768

struct hearth_learnt {
    struct hearth_table awaited; /* names of the notes that are being read */
    struct hearth_digest note;   /* the last one read or put; zero: none */
    uint64_t turns;              /* that had taught what was read */
    uint32_t saved_turns;        /* the turns of this cache that are in the last one put */
    bool saved;                  /* one was put: what is found from now on is another server's */
};

void hearth_learnt_finish(struct hearth_learnt *learnt);

/* What `turns` have taught, as bytes. False: out of memory. */
bool hearth_learnt_print(const struct hearth_hazard *hazard, uint64_t turns, struct hearth_buf *out);
/* Reads it. NULL, or why it is of no use; then nothing is written. */
const char *hearth_learnt_parse(const void *bytes, size_t len, struct hearth_hazard *hazard, uint64_t *turns);

/* The base of the notes (tier/record.h). */
struct hearth_digest hearth_learnt_base(const struct hearth_cache *cache);
/* A turn has been learnt from: saves now and then. */
void hearth_learnt_turn(struct hearth_cache *cache);
/* An event of the backing tier that is about no item of the cache: true when it was about a note. */
bool hearth_learnt_take(struct hearth_cache *cache, struct hearth_backing_event *event);

#endif
