/* Records: names and copies. The numbers enter a digest as little-endian 32-bit words, so names are the same on every
 * machine that hearth runs on. */
#include "tier/record.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "names and files hold little-endian numbers");

struct hearth_digest hearth_record_root(struct hearth_digest fingerprint, struct hearth_digest key,
                                        struct hearth_digest salt) {
    struct hearth_digest keyed = hearth_digest_chain(fingerprint, &key, sizeof key);
    return hearth_digest_chain(keyed, &salt, sizeof salt);
}

struct hearth_digest hearth_record_next(struct hearth_digest base, const hearth_token *block, size_t page_tokens) {
    return hearth_digest_chain(base, block, page_tokens * sizeof *block);
}

struct hearth_digest hearth_record_name(const struct hearth_record *record) {
    HEARTH_ASSERT(record->base_pos <= record->p0 && record->p0 <= record->p1);
    int32_t where[4] = {(int32_t)record->kind, record->base_pos, record->p0, record->p1};
    struct hearth_digest placed = hearth_digest_chain(record->base, where, sizeof where);
    return hearth_digest_chain(placed, record->tokens, hearth_record_tokens(record) * sizeof *record->tokens);
}

struct hearth_record *hearth_record_copy(const struct hearth_record *record) {
    struct hearth_record *copy = malloc(sizeof *copy);
    size_t bytes = hearth_record_tokens(record) * sizeof *record->tokens;
    hearth_token *tokens = malloc(bytes > 0 ? bytes : 1);
    if (!copy || !tokens) {
        free(copy);
        free(tokens);
        return NULL;
    }
    *copy = *record;
    copy->tokens = memcpy(tokens, record->tokens, bytes);
    return copy;
}

void hearth_record_destroy(struct hearth_record *record) {
    if (!record) {
        return;
    }
    free(record->tokens);
    free(record);
}
