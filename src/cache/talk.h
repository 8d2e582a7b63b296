/* Inside the cache: a turn of a conversation, as the policy sees it (cache/returns.h). */
#ifndef HEARTH_CACHE_TALK_H
#define HEARTH_CACHE_TALK_H

#include "cache/store.h"

/* A turn begins on a live sequence that was restored along the path: finds the talk that the turn belongs to. */
void hearth_talk_begin(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_cache_prompt *prompt,
                       const struct hearth_path *path);
/* What a page of the sequence is worth now (policy->worth); INFINITY if everything is kept at first. */
double hearth_talk_worth(const struct hearth_cache *cache, const struct hearth_live *live);
/* The turn was captured along the path, as far as possible: learns from it. */
void hearth_talk_end(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_path *path);

#endif
