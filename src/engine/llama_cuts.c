/* Finds where a long text can be cut for the tokenizer without changing a token: in front of a text that is a token
 * of its own in the vocabulary (control tokens, and tokens that a user has defined).
 *
 * llama.cpp separates these tokens first and tokenises the text between them piece by piece. It keeps the pieces in
 * a list and walks this list from its beginning for each piece: 80,000 control tokens in one text take half a
 * minute. So llama.cpp gets a long text in parts.
 *
 * A cut is clean where such a token begins and no token that begins earlier reaches over this place (longer tokens
 * are taken first). Tokens that also take the white space in front of them are no place for a cut.
 *
 * The texts are sorted. A match is found by narrowing the range of texts with the same beginning, byte by byte. */
#include "engine/llama_engine.h"

#include <stdlib.h>
#include <string.h>

struct special {
    const char *text;
    size_t len;
    bool cut;    /* a text may be cut in front of it */
    bool always; /* it is recognised even where control tokens are not */
};

struct hearth_llama_cuts {
    struct special *specials; /* sorted by text */
    size_t count, cap, longest;
    bool first[256]; /* first bytes of their texts */
};

static int compare(const void *a, const void *b) {
    const struct special *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static bool add(struct hearth_llama_cuts *cuts, const struct special *special) {
    if (!HEARTH_BUF_ROOM(cuts->specials, cuts->count, cuts->cap)) {
        return false;
    }
    cuts->specials[cuts->count++] = *special;
    cuts->longest = special->len > cuts->longest ? special->len : cuts->longest;
    cuts->first[(unsigned char)special->text[0]] = true;
    return true;
}

struct hearth_llama_cuts *hearth_llama_cuts_create(const struct llama_vocab *vocab) {
    const enum llama_token_attr special =
        LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;
    struct hearth_llama_cuts *cuts = calloc(1, sizeof *cuts);
    bool ok = cuts != NULL;
    for (llama_token token = 0; ok && token < llama_vocab_n_tokens(vocab); token++) {
        const enum llama_token_attr attr = llama_vocab_get_attr(vocab, token);
        const char *text = (attr & special) != 0 ? llama_vocab_get_text(vocab, token) : NULL;
        if (text != NULL && *text != '\0') {
            ok = add(cuts, &(struct special){text, strlen(text), (attr & LLAMA_TOKEN_ATTR_LSTRIP) == 0,
                                             (attr & LLAMA_TOKEN_ATTR_USER_DEFINED) != 0});
        }
    }
    if (!ok) {
        hearth_llama_cuts_destroy(cuts);
        return NULL;
    }
    if (cuts->count > 0) {
        qsort(cuts->specials, cuts->count, sizeof *cuts->specials, compare);
    }
    return cuts;
}

void hearth_llama_cuts_destroy(struct hearth_llama_cuts *cuts) {
    if (cuts != NULL) {
        free(cuts->specials);
        free(cuts);
    }
}

/* Of specials [lo, hi), which are equal before byte `at`, the first one with a byte `at` of at least `c`. */
static size_t bound(const struct hearth_llama_cuts *cuts, size_t lo, size_t hi, size_t at, int c) {
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const struct special *special = &cuts->specials[mid];
        const int there = at < special->len ? (unsigned char)special->text[at] : -1;
        if (there < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest special with which the text begins, or NULL; `*may_cut`: all specials with which it begins allow a cut.
 */
static const struct special *match(const struct hearth_llama_cuts *cuts, const char *text, size_t len,
                                   bool parse_special, bool *may_cut) {
    const struct special *best = NULL;
    size_t lo = 0, hi = cuts->count;
    *may_cut = true;
    for (size_t at = 0; at < len && lo < hi; at++) {
        const int c = (unsigned char)text[at];
        lo = bound(cuts, lo, hi, at, c);
        hi = bound(cuts, lo, hi, at, c + 1);
        if (lo < hi && cuts->specials[lo].len == at + 1 && /* the shortest stands first */
            (parse_special || cuts->specials[lo].always)) {
            best = &cuts->specials[lo];
            *may_cut = *may_cut && best->cut;
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
        const struct special *found =
            cuts->first[(unsigned char)text[at]] ? match(cuts, text + at, len - at, parse_special, &may_cut) : NULL;
        if (found != NULL && at >= from && at >= reach && at > 0 && may_cut) {
            return at;
        }
        reach = found != NULL && at + found->len > reach ? at + found->len : reach;
    }
    return len;
}
