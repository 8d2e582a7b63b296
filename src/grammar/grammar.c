/* Grammars on tokens; see grammar.h.
 *
 * The mask goes through the vocabulary in the order of the texts' bytes, with the place in the grammar behind each
 * byte of the last text on a stack: a text begins where it leaves the last one, and where a byte is refused, all texts
 * that share it are leapt over.
 *
 * A waiting grammar keeps the end of the text, WINDOW_BYTES at least. A pattern is searched from LOOK_BACK_BYTES before
 * what is new, so waiting costs the same for every token.
 *
 * Why this and not XGrammar (0.2.8, the engine under vLLM and SGLang), which was tried in its place. One core, a
 * vocabulary of 262,144, thirteen schemas of the kind that agents send; the JSON-Schema-Test-Suite (docs/schemas.md):
 *
 *                                                 this, behind chat/schema.c      XGrammar
 *     schemas refused, of 368                     157                             24; 104 with its warnings as errors
 *     invalid instances that can be replies       0 of 255                        304 of 481; 205 of 379
 *     the same, each schema told its type         0 of 415                        226 of 631; 139 of 538
 *     a new grammar, with its schema              0.03 to 1.4 ms                  1 to 125 ms; 2.6 s with strings of
 *                                                                                 1 to 80, 13.5 s with 1 to 1000
 *     a mask between values                       5 to 40 us                      1 to 30 us; 660 with 60 properties
 *     a mask in a string                          7 to 15 ms                      10 to 120 us
 *     masks that 1,250 sampled tokens need        26 (greedy), 144 (top-k 40)     the same: it is the caller that asks
 *     what those cost, a token                    1 us, 9 us                      (decoding: 20,000 us)
 *     GBNF of llama.cpp's templates               as it is                        refused (`x ::= | "a"`); with that
 *                                                                                 rewritten 60 ms a mask in a string
 *     ([a-z]{1,500}){1,500}                       0.04 ms; 5 ms a mask            715 ms; 130 to 290 ms a mask
 *     [^"]{0,100000} in quotes                    2 ms; 12 ms a mask              6.7 s; 60 us a mask
 *     tokens in a grammar; triggers               `<[5]>`; patterns               `Token(5)`; plain texts
 *
 * So it would not do away with chat/schema.c, which is what keeps invalid replies out, nor with trigger.c; in front of
 * it, its matcher gives the same table. What is left of the gain is the mask in a string, which is hardly ever made:
 * likely tokens are asked for one by one first (llama_sample.c), and in a string they may come. */
#include "grammar/grammar.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/log.h"
#include "grammar/matcher.h"
#include "grammar/trigger.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW_BYTES = 8192, LOOK_BACK_BYTES = 1024, TEXT_MAX = 65535 };

/* ---- vocabulary ---- */

struct hearth_grammar_vocabulary {
    struct hearth_grammar_tokens tokens;
    uint32_t count;
    uint8_t *bytes;
    uint32_t *offsets;   /* count + 1 */
    hearth_token *order; /* by text */
    uint16_t *common;    /* bytes shared with the text before it in the order */
    uint32_t *leap;      /* the next text in the order that shares less than this one with the text before it */
    uint8_t *ends;       /* token ends generation */
    struct hearth_tokens end_tokens; /* those */
    size_t longest;
};

static size_t text_of(const struct hearth_grammar_vocabulary *v, hearth_token token, const uint8_t **text) {
    *text = v->bytes + v->offsets[token];
    return v->offsets[token + 1] - v->offsets[token];
}

static int by_text(const void *a, const void *b, void *user) {
    const uint8_t *x, *y;
    size_t nx = text_of(user, *(const hearth_token *)a, &x), ny = text_of(user, *(const hearth_token *)b, &y);
    int order = memcmp(x, y, nx < ny ? nx : ny);
    return order != 0 ? order : (nx > ny) - (nx < ny);
}

static bool read_texts(struct hearth_grammar_vocabulary *v) {
    struct hearth_buf texts = {0};
    bool ok = true;
    for (uint32_t t = 0; t < v->count && ok; t++) {
        v->offsets[t] = (uint32_t)texts.len;
        v->order[t] = (hearth_token)t;
        v->ends[t] = v->tokens.ends(v->tokens.user, (hearth_token)t);
        ok = !v->ends[t] || hearth_tokens_push(&v->end_tokens, (hearth_token)t);
        size_t room = 64, len;
        do {
            room *= 2;
            if (!hearth_buf_reserve(&texts, room)) {
                hearth_buf_finish(&texts);
                return false;
            }
            len = v->tokens.text(v->tokens.user, (hearth_token)t, (char *)texts.data + texts.len, room);
        } while (len > room);
        len = len < TEXT_MAX ? len : TEXT_MAX;
        v->longest = len > v->longest ? len : v->longest;
        texts.len += len;
    }
    v->offsets[v->count] = (uint32_t)texts.len;
    v->bytes = hearth_buf_take(&texts);
    return ok && v->bytes != NULL;
}

struct hearth_grammar_vocabulary *hearth_grammar_vocabulary_create(const struct hearth_grammar_tokens *tokens) {
    struct hearth_grammar_vocabulary *v = hearth_memory_calloc(1, sizeof *v);
    if (v == NULL) {
        return NULL;
    }
    v->tokens = *tokens;
    v->count = tokens->count;
    v->offsets = hearth_memory_malloc((v->count + 1u) * sizeof *v->offsets);
    v->order = hearth_memory_malloc(v->count * sizeof *v->order);
    v->common = hearth_memory_malloc(v->count * sizeof *v->common);
    v->leap = hearth_memory_malloc(v->count * sizeof *v->leap);
    v->ends = hearth_memory_malloc(v->count);
    if (v->offsets == NULL || v->order == NULL || v->common == NULL || v->leap == NULL || v->ends == NULL ||
        !read_texts(v)) {
        hearth_grammar_vocabulary_destroy(v);
        return NULL;
    }
    qsort_r(v->order, v->count, sizeof *v->order, by_text, v);
    const uint8_t *before = NULL, *text;
    size_t before_len = 0;
    for (uint32_t i = 0; i < v->count; i++) {
        size_t len = text_of(v, v->order[i], &text), common = 0;
        while (common < len && common < before_len && text[common] == before[common]) {
            common++;
        }
        v->common[i] = (uint16_t)common;
        before = text;
        before_len = len;
    }
    for (uint32_t i = v->count; i-- > 0;) {
        uint32_t next = i + 1;
        while (next < v->count && v->common[next] >= v->common[i]) {
            next = v->leap[next];
        }
        v->leap[i] = next;
    }
    return v;
}

void hearth_grammar_vocabulary_destroy(struct hearth_grammar_vocabulary *v) {
    if (v != NULL) {
        free(v->bytes);
        free(v->offsets);
        free(v->order);
        free(v->common);
        free(v->leap);
        free(v->ends);
        hearth_tokens_finish(&v->end_tokens);
        free(v);
    }
}

/* ---- creation ---- */

struct hearth_grammar_constraint {
    const struct hearth_grammar_vocabulary *vocabulary;
    struct hearth_grammar_matcher *matcher;
    struct hearth_grammar_matcher_point point;
    enum { WAITING, ACTIVE, OFF } phase;
    struct hearth_grammar_matcher_point *places; /* the mask's stack: behind each byte of a text */
    struct hearth_grammar_trigger **patterns;
    size_t pattern_count;
    struct hearth_tokens tokens; /* triggers */
    /* While waiting: the end of the text, its tokens, and where each begins. */
    struct hearth_buf text;
    struct hearth_tokens seen;
    size_t *begins;
    size_t begins_cap;
    bool whole; /* nothing was cut off at the front of `text` */
};

static int make_matcher(const struct hearth_grammar_tokens *tokens, const char *text,
                        struct hearth_grammar_matcher **out, struct hearth_errmsg *msg) {
    struct hearth_grammar_gbnf *gbnf;
    *out = NULL;
    int err = hearth_grammar_gbnf_parse(text, tokens->named, tokens->user, &gbnf, msg);
    return err == HEARTH_OK ? hearth_grammar_matcher_create(gbnf, out, msg) : err;
}

int hearth_grammar_check(const struct hearth_grammar_tokens *tokens, const char *text, struct hearth_errmsg *msg) {
    struct hearth_grammar_matcher *matcher;
    int err = make_matcher(tokens, text, &matcher, msg);
    hearth_grammar_matcher_destroy(matcher);
    return err;
}

static int copy_triggers(struct hearth_grammar_constraint *c, const struct hearth_grammar *grammar,
                         struct hearth_errmsg *msg) {
    if (grammar->pattern_count + grammar->token_count == 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a lazy grammar has no trigger");
    }
    c->patterns = hearth_memory_calloc(grammar->pattern_count + 1, sizeof(struct hearth_grammar_trigger *));
    if (c->patterns == NULL || !hearth_tokens_assign(&c->tokens, grammar->tokens, grammar->token_count)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    int err = HEARTH_OK;
    for (; c->pattern_count < grammar->pattern_count && err == HEARTH_OK; c->pattern_count++) {
        err = hearth_grammar_trigger_create(grammar->patterns[c->pattern_count], &c->patterns[c->pattern_count], msg);
    }
    return err;
}

int hearth_grammar_constraint_create(const struct hearth_grammar_vocabulary *vocabulary,
                                     const struct hearth_grammar *grammar, struct hearth_grammar_constraint **out,
                                     struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_grammar_constraint *c = hearth_memory_calloc(1, sizeof *c);
    if (c == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    c->vocabulary = vocabulary;
    c->whole = true;
    c->phase = grammar->lazy ? WAITING : ACTIVE;
    int err = make_matcher(&vocabulary->tokens, grammar->text, &c->matcher, msg);
    if (err == HEARTH_OK && grammar->lazy) {
        err = copy_triggers(c, grammar, msg);
    }
    if (err == HEARTH_OK) {
        c->point = hearth_grammar_matcher_start(c->matcher);
        c->places = hearth_memory_malloc((vocabulary->longest + 1) * sizeof *c->places);
        err = c->places != NULL ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    for (size_t i = 0; err == HEARTH_OK && i < grammar->prefill_count; i++) {
        hearth_grammar_constraint_accept(c, grammar->prefill[i]);
        if (c->phase == OFF) {
            err = hearth_fail(msg, HEARTH_ERR_INVALID, "the grammar does not begin as the prompt ends");
        }
    }
    if (err != HEARTH_OK) {
        hearth_grammar_constraint_destroy(c);
        return err;
    }
    *out = c;
    return HEARTH_OK;
}

void hearth_grammar_constraint_destroy(struct hearth_grammar_constraint *c) {
    if (c == NULL) {
        return;
    }
    hearth_grammar_matcher_destroy(c->matcher);
    for (size_t i = 0; i < c->pattern_count; i++) {
        hearth_grammar_trigger_destroy(c->patterns[i]);
    }
    free(c->patterns);
    free(c->places);
    free(c->begins);
    hearth_tokens_finish(&c->tokens);
    hearth_tokens_finish(&c->seen);
    hearth_buf_finish(&c->text);
    free(c);
}

/* ---- what may come ---- */

bool hearth_grammar_constraint_active(const struct hearth_grammar_constraint *c) {
    return c->phase == ACTIVE;
}

/* The place behind a token whose text is (or ends with) `text`; false: there is none. */
static bool advance(struct hearth_grammar_constraint *c, hearth_token token, const uint8_t *text, size_t len,
                    struct hearth_grammar_matcher_point *point) {
    if (len == 0 || text[0] == 0) {
        return false;
    }
    uint32_t named = point->left == 0 && hearth_grammar_matcher_names_tokens(c->matcher, point->state)
                         ? hearth_grammar_matcher_token(c->matcher, point->state, token)
                         : HEARTH_GRAMMAR_MATCHER_DEAD;
    bool ok = true;
    for (size_t i = 0; i < len && ok; i++) {
        ok = hearth_grammar_matcher_byte(c->matcher, point, text[i]);
    }
    if (named != HEARTH_GRAMMAR_MATCHER_DEAD && (!ok || point->left == 0)) {
        *point = (struct hearth_grammar_matcher_point){
            .state = hearth_grammar_matcher_union(c->matcher, point->state, named)};
    }
    return point->state != HEARTH_GRAMMAR_MATCHER_DEAD;
}

bool hearth_grammar_constraint_allows(struct hearth_grammar_constraint *c, hearth_token token) {
    HEARTH_ASSERT(c->phase == ACTIVE && token >= 0 && (uint32_t)token < c->vocabulary->count);
    if (c->vocabulary->ends[token]) {
        return hearth_grammar_matcher_complete(c->matcher, &c->point);
    }
    const uint8_t *text;
    size_t len = text_of(c->vocabulary, token, &text);
    struct hearth_grammar_matcher_point point = c->point;
    return advance(c, token, text, len, &point);
}

/* Tokens that do not come by their texts: those that end the reply, and those that the grammar names. */
static size_t mask_others(struct hearth_grammar_constraint *c, uint8_t *allowed) {
    const struct hearth_grammar_vocabulary *v = c->vocabulary;
    size_t count = 0;
    if (hearth_grammar_matcher_complete(c->matcher, &c->point)) {
        for (; count < v->end_tokens.n; count++) {
            allowed[v->end_tokens.v[count]] = 1;
        }
    }
    if (c->point.left > 0 || !hearth_grammar_matcher_names_tokens(c->matcher, c->point.state)) {
        return count;
    }
    for (uint32_t t = 0; t < v->count; t++) {
        const uint8_t *text;
        if (!allowed[t] && !v->ends[t] && text_of(v, (hearth_token)t, &text) > 0 && text[0] != 0) {
            allowed[t] = hearth_grammar_matcher_token(c->matcher, c->point.state, (hearth_token)t) !=
                         HEARTH_GRAMMAR_MATCHER_DEAD;
            count += allowed[t];
        }
    }
    return count;
}

size_t hearth_grammar_constraint_mask(struct hearth_grammar_constraint *c, uint8_t *allowed) {
    HEARTH_ASSERT(c->phase == ACTIVE);
    const struct hearth_grammar_vocabulary *v = c->vocabulary;
    hearth_grammar_matcher_compact(c->matcher, &c->point);
    size_t count = 0;
    memset(allowed, 0, v->count);
    c->places[0] = c->point;
    for (uint32_t i = 0; i < v->count;) {
        hearth_token token = v->order[i];
        const uint8_t *text;
        size_t len = text_of(v, token, &text), reached = v->common[i];
        while (reached < len) {
            c->places[reached + 1] = c->places[reached];
            if (!hearth_grammar_matcher_byte(c->matcher, &c->places[reached + 1], text[reached])) {
                break;
            }
            reached++;
        }
        bool ok = reached == len && len > 0 && text[0] != 0 && !v->ends[token];
        allowed[token] = ok;
        count += ok;
        for (i++; i < v->count && v->common[i] > reached;) { /* they go on with the byte that was refused */
            i = v->leap[i];
        }
    }
    return count + mask_others(c, allowed);
}

/* ---- what came ---- */

static void turn_off(struct hearth_grammar_constraint *c, hearth_token token) {
    hearth_log(HEARTH_LOG_DEBUG, "token %d does not follow the grammar%s: the rest of the reply is free", (int)token,
               hearth_grammar_matcher_overflowed(c->matcher) ? " (too much work to tell)" : "");
    c->phase = OFF;
}

/* The text follows the grammar from `start` on; so do tokens that begin before it and reach beyond. */
static void trigger(struct hearth_grammar_constraint *c, size_t start) {
    c->phase = ACTIVE;
    for (size_t i = 0; i < c->seen.n && c->phase == ACTIVE; i++) {
        size_t begin = c->begins[i] > start ? c->begins[i] : start;
        size_t end = i + 1 < c->seen.n ? c->begins[i + 1] : c->text.len;
        if (end > begin && !advance(c, c->seen.v[i], c->text.data + begin, end - begin, &c->point)) {
            turn_off(c, c->seen.v[i]);
        }
    }
    hearth_grammar_matcher_compact(c->matcher, &c->point);
    hearth_buf_finish(&c->text);
    hearth_tokens_finish(&c->seen);
}

/* Keeps the end of a long text, from the beginning of a token on. */
static void forget(struct hearth_grammar_constraint *c) {
    size_t first = 0;
    if (c->text.len < 2 * WINDOW_BYTES) {
        return;
    }
    while (first < c->seen.n && c->begins[first] < c->text.len - WINDOW_BYTES) {
        first++;
    }
    size_t cut = first < c->seen.n ? c->begins[first] : c->text.len;
    memmove(c->text.data, c->text.data + cut, c->text.len - cut);
    c->text.len -= cut;
    c->seen.n -= first;
    memmove(c->seen.v, c->seen.v + first, c->seen.n * sizeof *c->seen.v);
    for (size_t i = 0; i < c->seen.n; i++) {
        c->begins[i] = c->begins[i + first] - cut;
    }
    c->whole = false;
}

static bool remember(struct hearth_grammar_constraint *c, hearth_token token, const uint8_t *text, size_t len) {
    if (!HEARTH_BUF_ROOM(c->begins, c->seen.n, c->begins_cap)) {
        return false;
    }
    size_t begin = c->text.len;
    if (!hearth_buf_append(&c->text, text, len) || !hearth_tokens_push(&c->seen, token)) {
        c->text.len = begin;
        return false;
    }
    c->begins[c->seen.n - 1] = begin;
    return true;
}

static void wait_for_trigger(struct hearth_grammar_constraint *c, hearth_token token, const uint8_t *text, size_t len) {
    bool named = false;
    for (size_t i = 0; i < c->tokens.n; i++) {
        named = named || c->tokens.v[i] == token;
    }
    forget(c);
    size_t begin = c->text.len;
    if (!remember(c, token, text, len)) {
        return; /* out of memory: this token triggers nothing */
    }
    if (named) {
        trigger(c, begin);
        return;
    }
    size_t from = begin > LOOK_BACK_BYTES ? begin - LOOK_BACK_BYTES : 0;
    for (size_t i = 0; i < c->pattern_count; i++) {
        size_t start;
        if (hearth_grammar_trigger_find(c->patterns[i], (const char *)c->text.data, c->text.len, from, c->whole,
                                        &start)) {
            trigger(c, start);
            return;
        }
    }
}

void hearth_grammar_constraint_accept(struct hearth_grammar_constraint *c, hearth_token token) {
    HEARTH_ASSERT(token >= 0 && (uint32_t)token < c->vocabulary->count);
    const uint8_t *text;
    size_t len = text_of(c->vocabulary, token, &text);
    if (c->phase == WAITING) {
        wait_for_trigger(c, token, text, len);
    } else if (c->phase == ACTIVE && !c->vocabulary->ends[token]) {
        hearth_grammar_matcher_compact(c->matcher, &c->point);
        if (!advance(c, token, text, len, &c->point)) {
            turn_off(c, token);
        }
        hearth_grammar_matcher_compact(c->matcher, &c->point);
    }
}
