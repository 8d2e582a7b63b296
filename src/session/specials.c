/* Control tokens are found with a trie over their texts: one look at each byte that can begin one.
 *
 * A vocabulary that puts a token behind every text (EOS) cannot be cut at all; that is tried at creation. The verdict
 * on each control token is a byte in an array that any thread may write: all would write the same.
 *
 * Lines. A tokenizer that merges (SentencePiece, BPE) never joins two characters that stand in no token side by side.
 * So the whole vocabulary is searched for a line's end with something else than white space behind it. What the
 * splitting in front of a BPE, or a space that is put before a text, does is not in the vocabulary: a few hundred pairs
 * of ends and beginnings are tried, in one go and in two. */
#include "session/specials.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWN, CUTS, DOES_NOT };

struct node {
    uint32_t child, sibling; /* 0: none */
    hearth_token token;      /* the control token that ends here, or -1 */
    uint8_t byte;
};

struct hearth_specials {
    struct hearth_engine *engine;
    struct node *nodes; /* [0] is nobody */
    uint32_t count, cap;
    uint32_t roots[256];
    char *turn_end;
    size_t turn_end_len;
    bool lines; /* cut between lines, not at control tokens */
    _Atomic uint8_t *verdicts; /* by token */
};

static uint32_t node_new(struct hearth_specials *specials, uint8_t byte, uint32_t sibling) {
    if (specials->count == specials->cap) {
        uint32_t cap = specials->cap > 0 ? 2 * specials->cap : 1024;
        struct node *nodes = realloc(specials->nodes, cap * sizeof *nodes);
        if (nodes == NULL) {
            return 0;
        }
        specials->nodes = nodes;
        specials->cap = cap;
    }
    specials->nodes[specials->count] = (struct node){.sibling = sibling, .token = -1, .byte = byte};
    return specials->count++;
}

static uint32_t child_of(const struct hearth_specials *specials, uint32_t node, uint8_t byte) {
    uint32_t at = specials->nodes[node].child;
    while (at != 0 && specials->nodes[at].byte != byte) {
        at = specials->nodes[at].sibling;
    }
    return at;
}

static bool add(struct hearth_specials *specials, hearth_token token, const uint8_t *text, size_t len) {
    uint32_t at = specials->roots[text[0]];
    if (at == 0) {
        at = specials->roots[text[0]] = node_new(specials, text[0], 0);
    }
    for (size_t i = 1; i < len && at != 0; i++) {
        uint32_t next = child_of(specials, at, text[i]);
        if (next == 0) {
            next = node_new(specials, text[i], specials->nodes[at].child);
            specials->nodes[at].child = next;
        }
        at = next;
    }
    if (at != 0) {
        specials->nodes[at].token = token;
    }
    return at != 0;
}

/* A text of one letter has the same last token with and without special tokens around it. */
static bool adds_end(struct hearth_engine *engine) {
    struct hearth_tokens with = {0}, without = {0};
    bool adds = engine->ops->tokenize(engine, "a", 1, true, true, &with) < 0 ||
                engine->ops->tokenize(engine, "a", 1, false, true, &without) < 0 || with.n == 0 || without.n == 0 ||
                with.v[with.n - 1] != without.v[without.n - 1];
    hearth_tokens_finish(&with);
    hearth_tokens_finish(&without);
    return adds;
}

/* Control tokens have a text, but none when special tokens are not printed. */
static bool add_all(struct hearth_specials *specials) {
    struct hearth_engine *engine = specials->engine;
    char text[256], plain[4];
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        hearth_token token = (hearth_token)i;
        size_t len = engine->ops->token_text(engine, token, false, plain, sizeof plain);
        if (len > 0) {
            continue;
        }
        len = engine->ops->token_text(engine, token, true, text, sizeof text);
        if (len > 1 && len <= sizeof text && !add(specials, token, (const uint8_t *)text, len)) {
            return false;
        }
    }
    return true;
}

void hearth_specials_destroy(struct hearth_specials *specials) {
    if (specials != NULL) {
        free(specials->nodes);
        free(specials->turn_end);
        free((void *)specials->verdicts);
        free(specials);
    }
}

/* Tokenises a text in one go and in two pieces: equal? */
static bool same_in_two(struct hearth_engine *engine, const char *text, size_t len, size_t at) {
    struct hearth_tokens whole = {0}, pieces = {0};
    bool same = engine->ops->tokenize(engine, text, len, false, true, &whole) == HEARTH_OK &&
                engine->ops->tokenize(engine, text, at, false, true, &pieces) == HEARTH_OK &&
                engine->ops->tokenize(engine, text + at, len - at, false, true, &pieces) == HEARTH_OK &&
                whole.n == pieces.n && memcmp(whole.v, pieces.v, whole.n * sizeof *whole.v) == 0;
    hearth_tokens_finish(&whole);
    hearth_tokens_finish(&pieces);
    return same;
}

static bool cuts(struct hearth_specials *specials, const char *special, size_t len) {
    char text[300];
    if (len + 6 > sizeof text) {
        return false;
    }
    memcpy(text, "x \n", 3);
    memcpy(text + 3, special, len);
    memcpy(text + 3 + len, "\n x", 3);
    return same_in_two(specials->engine, text, len + 6, 3);
}

static bool may_cut(struct hearth_specials *specials, hearth_token token, const char *text, size_t len) {
    uint8_t verdict = atomic_load_explicit(&specials->verdicts[token], memory_order_relaxed);
    if (verdict == UNKNOWN) {
        verdict = cuts(specials, text, len) ? CUTS : DOES_NOT;
        atomic_store_explicit(&specials->verdicts[token], verdict, memory_order_relaxed);
    }
    return verdict == CUTS;
}

/* A control token begins at `at` that the text may be cut at. */
static bool control_at(struct hearth_specials *specials, const char *text, size_t len, size_t at) {
    hearth_token best = -1;
    size_t best_len = 0;
    uint32_t node = at < len ? specials->roots[(uint8_t)text[at]] : 0;
    for (size_t end = at + 1; node != 0; end++) {
        if (specials->nodes[node].token >= 0) {
            best = specials->nodes[node].token;
            best_len = end - at;
        }
        node = end < len ? child_of(specials, node, (uint8_t)text[end]) : 0;
    }
    return best >= 0 && may_cut(specials, best, text + at, best_len);
}

/* ---- lines ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

/* A line has ended before `at`, and what follows is no white space. */
static bool line_at(const char *text, size_t len, size_t at) {
    return at > 0 && at < len && text[at - 1] == '\n' && !is_space(text[at]);
}

static bool tokens_stay_in_lines(struct hearth_engine *engine) {
    char text[256];
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        size_t len = engine->ops->token_text(engine, (hearth_token)i, true, text, sizeof text);
        for (size_t at = 1; at < len && len <= sizeof text; at++) {
            if (line_at(text, len, at)) {
                return false;
            }
        }
    }
    return true;
}

static bool lines_can_be_cut(struct hearth_engine *engine) {
    static const char *const ends[] = {"word\n",         ".\n",  "\n\n",     " \n", "}\n",
                                       "|>\n",           "9\n",  "\t\n\n\n", "'\n", "\xC3\xA9\n",
                                       "\xE6\x96\x87\n", ":\r\n"};
    static const char *const begins[] = {
        "word", "The ", "<|",  "{\"a\"",          "9", "#", "- x", "\"", "'s", "\xC3\xA9", "\xE6\x96\x87",
        "/",    "_a",   "1.5", "\xF0\x9F\x98\x80"};
    if (!tokens_stay_in_lines(engine)) {
        return false;
    }
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        for (size_t k = 0; k < sizeof begins / sizeof begins[0]; k++) {
            char text[64];
            int len = snprintf(text, sizeof text, "some%s%s more", ends[i], begins[k]);
            if (!same_in_two(engine, text, (size_t)len, 4 + strlen(ends[i]))) {
                return false;
            }
        }
    }
    return true;
}

/* ---- creation ---- */

struct hearth_specials *hearth_specials_create(struct hearth_engine *engine, const char *turn_end) {
    struct hearth_specials *specials = calloc(1, sizeof *specials);
    if (specials == NULL) {
        return NULL;
    }
    specials->engine = engine;
    specials->turn_end_len = strlen(turn_end);
    specials->turn_end = strdup(turn_end);
    specials->verdicts = calloc(engine->caps.vocab_tokens + 1, sizeof *specials->verdicts);
    bool ok = specials->verdicts != NULL && specials->turn_end != NULL;
    if (ok) {
        bool never = adds_end(engine);
        (void)node_new(specials, 0, 0);
        ok = specials->count == 1 && (never || add_all(specials));
        if (ok && !never && specials->turn_end_len > 0 && !control_at(specials, turn_end, specials->turn_end_len, 0)) {
            specials->lines = lines_can_be_cut(engine);
        }
    }
    if (!ok) {
        hearth_specials_destroy(specials);
        return NULL;
    }
    return specials;
}

/* ---- places ---- */

size_t hearth_specials_next(struct hearth_specials *specials, const char *text, size_t len, size_t from) {
    enum { PIECE_BYTES = 512 }; /* lines are many: a node for each would cost more than it saves */
    size_t at = from + (specials->lines ? PIECE_BYTES : 0);
    while (at < len && !(specials->lines ? line_at(text, len, at) : control_at(specials, text, len, at))) {
        at++;
    }
    return at < len ? at : len;
}

bool hearth_specials_ends(struct hearth_specials *specials, const char *text, size_t len, size_t at) {
    return at == len || control_at(specials, text, len, at) ||
           (specials->turn_end_len > 0 && len - at >= specials->turn_end_len &&
            memcmp(text + at, specials->turn_end, specials->turn_end_len) == 0);
}

size_t hearth_specials_end(struct hearth_specials *specials, const char *text, size_t len, size_t from) {
    size_t at = from < len ? from : len;
    while (!hearth_specials_ends(specials, text, len, at)) {
        at++;
    }
    return at;
}

size_t hearth_specials_turn_end(const struct hearth_specials *specials, const char *text, size_t len, size_t from) {
    const char *found = from < len && specials->turn_end_len > 0
                            ? memmem(text + from, len - from, specials->turn_end, specials->turn_end_len)
                            : NULL;
    return found != NULL ? (size_t)(found - text) : len;
}
