/* Control tokens, found with a trie over their texts: one step for each byte that can begin one.
 *
 * A vocabulary that adds a token behind every text (EOS) cannot be cut at all; this is tried at creation. The
 * verdict on each control token is a byte in an array. Any thread may write it, since all threads write the same
 * value.
 *
 * Lines. A tokenizer that merges (SentencePiece, BPE) never joins two characters that are adjacent in no token. So
 * the whole vocabulary is searched for a token with something other than white space behind a line's end. The
 * splitting in front of a BPE, and a space that is put before a text, are not in the vocabulary: a few hundred pairs
 * of ends and beginnings are tokenised together and apart, and compared. */
#include "session/specials.h"

#include "base/trie.h"
#include "engine/engine.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWN, CUTS, DOES_NOT };
enum { TEXT_MAX = 256 }; /* bytes of a control token; a longer one is not treated as one */

struct hearth_specials {
    struct hearth_engine *engine;
    struct hearth_trie control, all; /* texts of control tokens; of these and of markup */
    struct hearth_trie tails; /* the same texts from their first letter or digit on, if brackets stand before that */
    size_t longest;           /* bytes of the longest text */
    char *turn_end;
    size_t turn_end_len;
    bool lines;                /* text is cut between lines, not at control tokens */
    _Atomic uint8_t *verdicts; /* by token */
};

static bool add(struct hearth_trie *trie, hearth_token token, const char *text, size_t len) {
    int32_t *place = hearth_trie_place(trie, text, len);
    if (place != NULL) {
        *place = token;
    }
    return place != NULL;
}

/* hearth_trie_match() at a place of a text; mostly no text begins there. */
static size_t match(const struct hearth_trie *trie, const char *text, size_t len, size_t at, hearth_token *token,
                    bool *open) {
    *open = false;
    return at < len && trie->first[(uint8_t)text[at]] != 0 ? hearth_trie_match(trie, text + at, len - at, token, open)
                                                           : 0;
}

/* Whether the tokenizer adds a token behind every text: a one-letter text has another last token with special tokens
 * around it. */
static bool adds_end(struct hearth_engine *engine) {
    struct hearth_tokens with = {0}, without = {0};
    bool adds = engine->ops->tokenize(engine, "a", 1, true, true, &with) < 0 ||
                engine->ops->tokenize(engine, "a", 1, false, true, &without) < 0 || with.n == 0 || without.n == 0 ||
                with.v[with.n - 1] != without.v[without.n - 1];
    hearth_tokens_finish(&with);
    hearth_tokens_finish(&without);
    return adds;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The position of the first letter or digit. */
static size_t first_word(const char *text, size_t len) {
    size_t at = 0;
    while (at < len && !is_letter(text[at]) && !(text[at] >= '0' && text[at] <= '9')) {
        at++;
    }
    return at;
}

/* Whether a user-defined token is markup: it occurs in the template and looks like it. Vocabularies also have blanks
 * and words as such tokens, which must not be touched. */
static bool is_markup(struct hearth_engine *engine, hearth_token token, const char *template_text) {
    static const char brackets[] = "<>[]{}|";
    char text[64];
    bool letter = false, bracket = false;
    if (template_text == NULL || !engine->ops->token_is_user_defined(engine, token)) {
        return false;
    }
    const size_t len = engine->ops->token_text(engine, token, true, text, sizeof text - 1);
    for (size_t i = 0; i < len && len < sizeof text; i++) {
        letter = letter || is_letter(text[i]);
        bracket = bracket || strchr(brackets, text[i]) != NULL;
    }
    return len > 2 && len < sizeof text && letter && bracket && !is_letter(text[0]) && memchr(text, ' ', len) == NULL &&
           memmem(template_text, strlen(template_text), text, len) != NULL;
}

/* Adds all control tokens (they have a text, but none when special tokens are not printed) and all markup. */
static bool add_all(struct hearth_specials *specials, const char *template_text) {
    struct hearth_engine *engine = specials->engine;
    char text[TEXT_MAX], plain[4];
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        hearth_token token = (hearth_token)i;
        const bool control = engine->ops->token_text(engine, token, false, plain, sizeof plain) == 0;
        if (!control && !is_markup(engine, token, template_text)) {
            continue;
        }
        const size_t len = engine->ops->token_text(engine, token, true, text, sizeof text);
        if (len < 2 || len > sizeof text) {
            continue;
        }
        const size_t first = first_word(text, len);
        specials->longest = len > specials->longest ? len : specials->longest;
        if (!add(&specials->all, token, text, len) || (control && !add(&specials->control, token, text, len)) ||
            (first > 0 && first < len && !add(&specials->tails, token, text + first, len - first))) {
            return false;
        }
    }
    return true;
}

void hearth_specials_destroy(struct hearth_specials *specials) {
    if (specials != NULL) {
        hearth_trie_finish(&specials->control);
        hearth_trie_finish(&specials->all);
        hearth_trie_finish(&specials->tails);
        free(specials->turn_end);
        free((void *)specials->verdicts);
        free(specials);
    }
}

/* Whether a text has the same tokens in one piece and in two. */
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

/* Whether the text may be cut at `at` because a control token begins there. */
static bool control_at(struct hearth_specials *specials, const char *text, size_t len, size_t at) {
    hearth_token token = -1;
    bool open;
    const size_t matched = match(&specials->control, text, len, at, &token, &open);
    return matched > 0 && may_cut(specials, token, text + at, matched);
}

/* ---- lines ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

/* Whether a line ends before `at` and something other than white space follows. */
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

/* Whether a text that contains a user-defined token can be tokenised in two pieces without changing: a space that the
 * tokenizer puts in front of a piece would change it. */
static bool can_be_severed(struct hearth_engine *engine) {
    struct hearth_tokens tokens = {0};
    struct hearth_buf text = {0};
    bool ok = engine->ops->tokenize(engine, "<", 1, false, false, &tokens) == HEARTH_OK &&
              engine->ops->tokenize(engine, "b>", 2, false, false, &tokens) == HEARTH_OK;
    for (size_t i = 0; i < tokens.n && ok; i++) {
        ok = hearth_engine_append_text(engine, tokens.v[i], true, &text);
    }
    ok = ok && text.len == 3 && memcmp(text.data, "<b>", 3) == 0;
    hearth_tokens_finish(&tokens);
    hearth_buf_finish(&text);
    return ok;
}

struct hearth_specials *hearth_specials_create(struct hearth_engine *engine, const char *turn_end,
                                               const char *template_text) {
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
        ok = never || add_all(specials, can_be_severed(engine) ? template_text : NULL);
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

size_t hearth_specials_last(struct hearth_specials *specials, const char *text, size_t len, size_t end) {
    size_t at = end < len ? end : len;
    while (at > 0) {
        at--;
        if (specials->lines ? line_at(text, len, at) : control_at(specials, text, len, at)) {
            break;
        }
    }
    return at;
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

/* ---- guards ---- */

size_t hearth_guards_count(const char *text, size_t len) {
    size_t count = 0;
    for (const char *at = text; (at = memchr(at, HEARTH_GUARD, len - (size_t)(at - text))) != NULL; at++) {
        count++;
    }
    return count;
}

size_t hearth_guards_strip(char *text, size_t len) {
    const char *first = len > 0 ? memchr(text, HEARTH_GUARD, len) : NULL;
    if (first == NULL) {
        return len;
    }
    size_t n = (size_t)(first - text);
    for (size_t i = n; i < len; i++) {
        if ((uint8_t)text[i] != HEARTH_GUARD) {
            text[n++] = text[i];
        }
    }
    return n;
}

static uint8_t other_case(uint8_t byte) {
    return is_letter((char)byte) ? byte ^ 0x20 : byte;
}

/* Like match(), but ignoring case, from a node to which the text before `end` has led: where the longest text ends, or
 * 0. A template may print a client's text in capitals, and so make a token of it. */
static size_t match_letters(const struct hearth_trie *trie, uint32_t node, const char *text, size_t len, size_t end,
                            bool *open) {
    size_t best = trie->nodes[node].value >= 0 ? end : 0;
    *open = *open || (end == len && trie->nodes[node].child != 0);
    for (uint32_t at = end < len ? trie->nodes[node].child : 0; at != 0; at = trie->nodes[at].sibling) {
        const uint8_t byte = trie->nodes[at].byte;
        if (byte == (uint8_t)text[end] || byte == other_case((uint8_t)text[end])) {
            const size_t ends = match_letters(trie, at, text, len, end + 1, open);
            best = ends > best ? ends : best;
        }
    }
    return best;
}

/* The length of what matches at `at`, ignoring case. */
static size_t match_any_case(const struct hearth_trie *trie, const char *text, size_t len, size_t at, bool *open) {
    const uint8_t first = (uint8_t)text[at];
    const uint32_t roots[] = {trie->first[first], trie->first[other_case(first)]};
    size_t best = 0;
    *open = false;
    for (size_t i = 0; i < (roots[0] == roots[1] ? 1 : 2); i++) {
        const size_t ends = roots[i] != 0 ? match_letters(trie, roots[i], text, len, at + 1, open) : 0;
        best = ends > at + best ? ends - at : best;
    }
    return best;
}

size_t hearth_specials_find(const struct hearth_specials *specials, bool markup, bool any, const char *text, size_t len,
                            size_t from, size_t *matched) {
    const struct hearth_trie *trie = markup ? &specials->all : &specials->control;
    for (size_t at = from; at < len; at++) {
        bool open;
        if (trie->first[(uint8_t)text[at]] == 0 && trie->first[other_case((uint8_t)text[at])] == 0) {
            continue;
        }
        *matched = match_any_case(trie, text, len, at, &open);
        if (*matched > 0 || open || any) {
            return at;
        }
    }
    return len;
}

bool hearth_specials_continues(const struct hearth_specials *specials, bool name, const char *text, size_t len) {
    const size_t first = first_word(text, len < TEXT_MAX ? len : TEXT_MAX);
    bool open = false;
    const size_t matched = first < len ? match_any_case(&specials->tails, text, len, first, &open) : 0;
    return matched > 0 || (open && (name || first > 0));
}

/* Whether a text of the trie lies across `at`; `user`: only those of user-defined tokens. */
static bool spans(const struct hearth_specials *specials, const char *text, size_t len, size_t at, bool user_defined) {
    struct hearth_engine *engine = specials->engine;
    for (size_t from = at > specials->longest ? at - specials->longest : 0; from < at; from++) {
        hearth_token token = -1;
        bool open;
        if (match(&specials->all, text, len, from, &token, &open) > at - from &&
            (!user_defined || engine->ops->token_is_user_defined(engine, token))) {
            return true;
        }
    }
    return false;
}

bool hearth_specials_spans(const struct hearth_specials *specials, const char *text, size_t len, size_t at) {
    return spans(specials, text, len, at, false);
}

/* A text without its guards, and their positions: ascending, with the text's end behind the last one. */
struct plain {
    char *text;
    size_t len;
    size_t *guards;
    bool add_special; /* nothing was tokenised yet, so special tokens belong in front */
};

static bool plain_init(struct plain *plain, const char *text, size_t len) {
    plain->text = malloc(len + 1);
    plain->guards = malloc((hearth_guards_count(text, len) + 1) * sizeof *plain->guards);
    plain->len = 0;
    if (plain->text == NULL || plain->guards == NULL) {
        return false;
    }
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)text[i] == HEARTH_GUARD) {
            plain->guards[count++] = plain->len;
        } else {
            plain->text[plain->len++] = text[i];
        }
    }
    plain->guards[count] = plain->len;
    return true;
}

static int tokenize_part(const struct hearth_specials *specials, struct plain *plain, size_t from, size_t to,
                         bool parse, struct hearth_tokens *out) {
    if (from == to) {
        return HEARTH_OK;
    }
    const bool add_special = plain->add_special;
    plain->add_special = false;
    return specials->engine->ops->tokenize(specials->engine, plain->text + from, to - from, add_special, parse, out);
}

/* Tokenises, as plain text, what stands between two special tokens and has guards. The tokenizer finds user-defined
 * tokens in plain text, too, unless a piece ends inside their text. */
static int tokenize_guarded(const struct hearth_specials *specials, struct plain *plain, size_t from, size_t to,
                            const size_t *guard, struct hearth_tokens *out) {
    int err = HEARTH_OK;
    for (; *guard < to && err == HEARTH_OK; guard++) {
        if (*guard > from && spans(specials, plain->text, to, *guard, true)) {
            err = tokenize_part(specials, plain, from, *guard, false, out);
            from = *guard;
        }
    }
    return err == HEARTH_OK ? tokenize_part(specials, plain, from, to, false, out) : err;
}

static int tokenize_plain(const struct hearth_specials *specials, struct plain *plain, struct hearth_tokens *out) {
    const size_t *guard = plain->guards, *first = guard; /* the next guard; the first one behind `text` */
    size_t run = 0, text = 0, at = 0; /* begin of what is not tokenised yet; of what follows the last special token */
    int err = HEARTH_OK;
    while (err == HEARTH_OK) {
        hearth_token token;
        bool open;
        while (*guard <= at && *guard < plain->len) {
            guard++;
        }
        const size_t matched = match(&specials->all, plain->text, *guard, at, &token, &open);
        if (matched == 0 && at < plain->len) {
            at++;
            continue;
        }
        if (*first < at) {
            err = tokenize_part(specials, plain, run, text, true, out);
            err = err == HEARTH_OK ? tokenize_guarded(specials, plain, text, at, first, out) : err;
            run = at;
        }
        if (at >= plain->len) {
            break;
        }
        text = at += matched;
        first = guard;
    }
    return err == HEARTH_OK ? tokenize_part(specials, plain, run, plain->len, true, out) : err;
}

int hearth_specials_tokenize(const struct hearth_specials *specials, const char *text, size_t len, bool add_special,
                             struct hearth_tokens *out) {
    if (len == 0 || memchr(text, HEARTH_GUARD, len) == NULL) {
        return specials->engine->ops->tokenize(specials->engine, text, len, add_special, true, out);
    }
    const size_t before = out->n;
    struct plain plain = {.add_special = add_special};
    const int err = plain_init(&plain, text, len) ? tokenize_plain(specials, &plain, out) : HEARTH_ERR_NOMEM;
    free(plain.text);
    free(plain.guards);
    out->n = err == HEARTH_OK ? out->n : before;
    return err;
}
