/* Shared heads: the beginnings (tools and system prompt) that conversations have in common, and bringing the most
 * shared of them back to RAM after a start. Inside the cache. Design in heads.c. */
#ifndef HEARTH_CACHE_HEADS_H
#define HEARTH_CACHE_HEADS_H

#include "base/table.h"
#include "cache/path.h"
#include "tier/record.h"

struct hearth_cache;
struct hearth_cache_prompt;
struct hearth_backing_event;

#define HEARTH_HEADS_MAX 32
#define HEARTH_HEAD_TOKENS_MAX 32768 /* a longer head is not noted */

struct hearth_head {
    struct hearth_digest name; /* of root and tokens */
    struct hearth_digest root; /* of its salt */
    hearth_token *tokens;
    int32_t n;
    uint32_t talks;            /* conversations that began with it */
    uint32_t noted_talks;      /* the number of them in the note; 0: there is no note */
    struct hearth_digest note; /* the note's name */
    uint64_t ticket;           /* of the seek for its pages; 0: none */
    bool sought, prefetched;   /* prefetched: nothing is left to read */
    uint32_t tries;
};

struct hearth_heads {
    struct hearth_head *v[HEARTH_HEADS_MAX];
    size_t n;
    uint64_t ticket; /* of the seek for notes */
    bool asked;
    struct hearth_table awaited; /* names of the notes that are being read */
    bool ended;                  /* the reading at the start has ended */
    uint32_t prefetched_heads;
    uint64_t prefetched_tokens, prefetched_bytes;
};

void hearth_heads_finish(struct hearth_heads *heads);

/* Drops the heads of a forgotten prompt that end behind `stop`, and asks the backing tier to remove their notes. */
void hearth_heads_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t stop);

/* Takes an event of the backing tier that is about no item of the cache. True: it was about a head's note. */
bool hearth_heads_take(struct hearth_cache *cache, struct hearth_backing_event *event);

#endif
