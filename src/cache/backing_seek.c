/* Asking a backing tier that does not tell by itself what it has. A prompt's blocks are named by the digests of all
 * tokens before them, which are chained here; the answer comes as FOUND, each of which gets its place, and then SOUGHT.
 */
#include "cache/backing.h"

#include <stdlib.h>

/* Asks what the tier has of the tokens' blocks, from block `first` on. */
static uint64_t seek_blocks(struct hearth_cache *cache, struct hearth_digest base, const hearth_token *tokens,
                            size_t count, size_t first) {
    struct hearth_backing *backing = cache->backing;
    const size_t page = (size_t)cache->tree.page_tokens;
    if (!backing || !backing->ops->seek) {
        return 0;
    }
    struct hearth_backing_place *places = malloc((count / page + 1) * sizeof *places);
    size_t n = 0;
    for (size_t k = 0; places && k * page < count; k++) {
        const size_t left = count - k * page;
        if (k >= first) {
            places[n++] = (struct hearth_backing_place){.base = base,
                                                        .base_pos = (int32_t)(k * page),
                                                        .tokens = tokens + k * page,
                                                        .n = left < page ? left : page};
        }
        if (left >= page) {
            base = hearth_record_next(base, tokens + k * page, page);
        }
    }
    uint64_t ticket = places ? backing->ops->seek(backing, places, n) : 0;
    free(places);
    return ticket;
}

uint64_t hearth_cache_seek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from) {
    return prompt->cache_off ? 0
                             : seek_blocks(cache, hearth_cache_root_digest(cache, prompt->salt), prompt->tokens,
                                           prompt->n, (size_t)from / (size_t)cache->tree.page_tokens);
}

uint64_t hearth_cache_seek_from(struct hearth_cache *cache, struct hearth_digest root, const hearth_token *tokens,
                                size_t n) {
    return seek_blocks(cache, root, tokens, n, 0);
}

bool hearth_cache_must_seek(const struct hearth_cache *cache) {
    return cache->backing && cache->backing->ops->seek;
}

bool hearth_cache_sought(const struct hearth_cache *cache, uint64_t ticket) {
    return ticket <= cache->sought;
}
