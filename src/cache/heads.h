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
#define HEARTH_HEAD_TOKENS_MAX 32768 /* of a longer one nothing is noted */

struct hearth_head {
    struct hearth_digest name; /* of root and tokens */
    struct hearth_digest root; /* of its salt */
    hearth_token *tokens;
    int32_t n;
    uint32_t talks;            /* conversations that began with it */
    uint32_t noted_talks;      /* of these, what the backing tier has been told; 0: nothing */
    struct hearth_digest note; /* the name of that */
    uint64_t ticket;           /* of the seek for its pages; 0: none */
    bool sought, prefetched;   /* prefetched: nothing is left to be read */
    uint32_t tries;
};

struct hearth_heads {
    struct hearth_head *v[HEARTH_HEADS_MAX];
    size_t n;
    uint64_t ticket; /* of the seek for notes */
    bool asked;
    struct hearth_table awaited; /* names of the notes that are being read */
    bool ended;                  /* the prefetch at the start */
    uint32_t prefetched_heads;
    uint64_t prefetched_tokens, prefetched_bytes;
};

void hearth_heads_finish(struct hearth_heads *heads);

/* Drops the heads of a forgotten prompt that end behind `stop`, and asks the backing tier to remove their notes. */
void hearth_heads_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t stop);

/* An event of the backing tier that is about no item of the cache: true when it was about a note. */
bool hearth_heads_take(struct hearth_cache *cache, struct hearth_backing_event *event);

#endif
