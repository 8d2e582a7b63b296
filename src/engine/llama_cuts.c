/* Finds where a long text can be cut for the tokenizer without changing a token: in front of a text that is a token
 * of its own in the vocabulary (control tokens, and tokens that a user has defined).
 *
 * llama.cpp separates these tokens first and tokenises the text between them piece by piece. It keeps the pieces in
 * a list and walks this list from its beginning for each piece: 80,000 control tokens in one text take half a
 * minute. So llama.cpp gets a long text in parts.
 *
 * A cut is clean where such a token begins and no token that begins earlier reaches over this place (longer tokens
 * are taken first). Tokens that also take the white space in front of them are no place for a cut. */
#include "engine/llama_engine.h"

#include "base/trie.h"

#include <stdlib.h>
#include <string.h>

/* The number of a text, as bits. */
enum {
    CUT = 1,    /* a text may be cut in front of it */
    ALWAYS = 2, /* it is recognised even where control tokens are not */
};

struct hearth_llama_cuts {
    struct hearth_trie specials;
    size_t longest;
};

struct hearth_llama_cuts *hearth_llama_cuts_create(const struct llama_vocab *vocab) {
    const enum llama_token_attr special =
        LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;
    struct hearth_llama_cuts *cuts = calloc(1, sizeof *cuts);
    bool ok = cuts != NULL;
    for (llama_token token = 0; ok && token < llama_vocab_n_tokens(vocab); token++) {
        const enum llama_token_attr attr = llama_vocab_get_attr(vocab, token);
        const char *text = (attr & special) != 0 ? llama_vocab_get_text(vocab, token) : NULL;
        if (text == NULL || *text == '\0') {
            continue;
        }
        const size_t len = strlen(text);
        int32_t *place = hearth_trie_place(&cuts->specials, text, len);
        ok = place != NULL;
        if (ok) {
            *place = ((attr & LLAMA_TOKEN_ATTR_LSTRIP) == 0 ? CUT : 0) |
                     ((attr & LLAMA_TOKEN_ATTR_USER_DEFINED) != 0 ? ALWAYS : 0);
            cuts->longest = len > cuts->longest ? len : cuts->longest;
        }
    }
    if (!ok) {
        hearth_llama_cuts_destroy(cuts);
        return NULL;
    }
    return cuts;
}

void hearth_llama_cuts_destroy(struct hearth_llama_cuts *cuts) {
    if (cuts != NULL) {
        hearth_trie_finish(&cuts->specials);
        free(cuts);
    }
}

/* The length of the longest special with which the text begins, or 0; `*may_cut`: all specials with which it begins
 * allow a cut. */
static size_t match(const struct hearth_trie *specials, const char *text, size_t len, bool parse_special,
                    bool *may_cut) {
    size_t best = 0;
    uint32_t node = 0;
    *may_cut = true;
    for (size_t at = 0; at < len && (node = hearth_trie_next(specials, node, (uint8_t)text[at])) != 0; at++) {
        const int32_t bits = specials->nodes[node].value;
        if (bits >= 0 && (parse_special || (bits & ALWAYS) != 0)) {
            best = at + 1;
            *may_cut = *may_cut && (bits & CUT) != 0;
        }
    }
    return best;
}

size_t hearth_llama_cuts_next(const struct hearth_llama_cuts *cuts, const char *text, size_t len, size_t from,
                              bool parse_special) {
    size_t reach = 0; /* the end of the longest special that began before */
    bool may_cut;
    size_t at = from > cuts->longest ? from - cuts->longest : 0;
    for (; at < len; at++) {
        const size_t found = match(&cuts->specials, text + at, len - at, parse_special, &may_cut);
        if (found > 0 && at >= from && at >= reach && at > 0 && may_cut) {
            return at;
        }
        reach = found > 0 && at + found > reach ? at + found : reach;
    }
    return len;
}
