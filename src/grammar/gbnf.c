/* The parser of gbnf.h: recursive descent, one pass.
 *
 * The symbols of rules under construction stand on one stack, `work`: a parenthesis begins a new rule on top of the
 * unfinished one, and what is finished moves to the grammar. So a repetition finds what it repeats at the top of the
 * stack, and nothing is lost when the text turns out to be wrong.
 *
 * Invariants: a rule's alternatives are contiguous; no input makes more than SYMBOLS_MAX symbols or nests deeper than
 * DEPTH_MAX. */
#include "grammar/gbnf.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 256, REPEAT_MAX = 100000, SYMBOLS_MAX = 2000000, CODE_POINT_MAX = 0x10FFFF };

#define UNDEFINED UINT32_MAX /* a rule's `first`, until it is defined */
#define NO_LIMIT UINT32_MAX

struct name {
    const char *text;
    size_t len;
    uint32_t rule;
};

struct parser {
    struct hearth_grammar_gbnf *gbnf;
    const char *text, *at;
    hearth_grammar_gbnf_token_fn *token;
    void *user;
    struct hearth_errmsg *msg;
    struct hearth_grammar_gbnf_symbol *work;
    uint32_t work_count;
    size_t work_cap, symbol_cap, range_cap, set_cap, rule_cap, alternative_cap;
    struct name *names; /* open addressing, a power of two */
    uint32_t name_count, name_cap;
    uint32_t depth;
};

/* ---- sets ---- */

static int by_lo(const void *a, const void *b) {
    const struct hearth_grammar_gbnf_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static uint32_t normalise(struct hearth_grammar_gbnf_range *ranges, uint32_t count) {
    if (count == 0) {
        return 0;
    }
    qsort(ranges, count, sizeof *ranges, by_lo);
    uint32_t kept = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (ranges[i].lo > ranges[kept].hi + 1) {
            ranges[++kept] = ranges[i];
        } else if (ranges[i].hi > ranges[kept].hi) {
            ranges[kept].hi = ranges[i].hi;
        }
    }
    return kept + 1;
}

/* ---- the empty text ---- */

/* A rule is nullable when an alternative is made of nullable rules only. Each alternative counts those it still waits
 * for; `users` lists, rule by rule, the alternatives that name it. So every name is looked at twice, whatever the order
 * of the rules. */
static bool find_nullable(struct hearth_grammar_gbnf *g) {
    uint32_t *waits = hearth_memory_calloc(g->alternative_count + 1u, sizeof *waits);
    uint32_t *owner = hearth_memory_malloc((g->alternative_count + 1u) * sizeof *owner);
    uint32_t *begin = hearth_memory_calloc(g->rule_count + 2u, sizeof *begin);
    uint32_t *users = hearth_memory_malloc((g->symbol_count + 1u) * sizeof *users);
    uint32_t *found = hearth_memory_malloc((g->rule_count + 1u) * sizeof *found), found_count = 0;
    bool ok = waits != NULL && owner != NULL && begin != NULL && users != NULL && found != NULL;
    for (int pass = 0; ok && pass < 2; pass++) {
        for (uint32_t r = 0; r < g->rule_count; r++) {
            for (uint32_t a = g->rules[r].first; a < g->rules[r].first + g->rules[r].count; a++) {
                owner[a] = r;
                for (uint32_t s = g->alternatives[a]; g->symbols[s].kind != HEARTH_GRAMMAR_GBNF_END; s++) {
                    if (g->symbols[s].kind != HEARTH_GRAMMAR_GBNF_RULE) {
                        waits[a] = UINT32_MAX / 2; /* for ever */
                    } else if (pass == 0) {
                        begin[g->symbols[s].value + 2]++;
                    } else {
                        users[begin[g->symbols[s].value + 1]++] = a;
                        waits[a]++;
                    }
                }
                if (pass == 1 && waits[a] == 0 && !g->rules[r].nullable) {
                    g->rules[r].nullable = true;
                    found[found_count++] = r;
                }
            }
        }
        for (uint32_t r = 0; pass == 0 && r < g->rule_count; r++) {
            begin[r + 2] += begin[r + 1];
        }
    }
    for (uint32_t i = 0; ok && i < found_count; i++) {
        for (uint32_t u = begin[found[i]]; u < begin[found[i] + 1]; u++) {
            uint32_t r = owner[users[u]];
            if (--waits[users[u]] == 0 && !g->rules[r].nullable) {
                g->rules[r].nullable = true;
                found[found_count++] = r;
            }
        }
    }
    free(waits);
    free(owner);
    free(begin);
    free(users);
    free(found);
    return ok;
}

/* ---- arrays ---- */

static int fail(struct parser *p, const char *what) {
    unsigned line = 1;
    for (const char *c = p->text; c < p->at; c++) {
        line += *c == '\n';
    }
    size_t len = strcspn(p->at, "\r\n");
    return hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar, line %u: %s at \"%.*s\"", line, what,
                       (int)(len < 40 ? len : 40), p->at);
}

static int fail_memory(struct parser *p) {
    return hearth_fail(p->msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
}

static int push(struct parser *p, uint32_t kind, uint32_t value) {
    if (p->work_count + p->gbnf->symbol_count >= SYMBOLS_MAX) {
        return fail(p, "the grammar is too large");
    }
    if (!HEARTH_BUF_ROOM(p->work, p->work_count, p->work_cap)) {
        return fail_memory(p);
    }
    p->work[p->work_count++] = (struct hearth_grammar_gbnf_symbol){kind, value};
    return HEARTH_OK;
}

static int add_rule(struct parser *p, uint32_t *rule) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    if (!HEARTH_BUF_ROOM(g->rules, g->rule_count, p->rule_cap)) {
        return fail_memory(p);
    }
    *rule = g->rule_count;
    g->rules[g->rule_count++] = (struct hearth_grammar_gbnf_rule){.first = UNDEFINED};
    return HEARTH_OK;
}

/* The symbols of `work` from `begin` on, alternatives divided and ended by END, become the rule. */
static int define(struct parser *p, uint32_t rule, uint32_t begin) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    uint32_t first = g->alternative_count;
    bool starts = true;
    for (uint32_t i = begin; i < p->work_count; i++) {
        if (starts) {
            if (!HEARTH_BUF_ROOM(g->alternatives, g->alternative_count, p->alternative_cap)) {
                return fail_memory(p);
            }
            g->alternatives[g->alternative_count++] = g->symbol_count;
        }
        if (!HEARTH_BUF_ROOM(g->symbols, g->symbol_count, p->symbol_cap)) {
            return fail_memory(p);
        }
        g->symbols[g->symbol_count++] = p->work[i];
        starts = p->work[i].kind == HEARTH_GRAMMAR_GBNF_END;
    }
    p->work_count = begin;
    g->rules[rule].first = first;
    g->rules[rule].count = g->alternative_count - first;
    return HEARTH_OK;
}

/* ---- names ---- */

static uint32_t name_hash(const char *text, size_t len) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (uint8_t)text[i]) * 16777619u;
    }
    return h;
}

static struct name *name_slot(struct name *names, uint32_t cap, const char *text, size_t len) {
    uint32_t i = name_hash(text, len) & (cap - 1);
    while (names[i].text != NULL && (names[i].len != len || memcmp(names[i].text, text, len) != 0)) {
        i = (i + 1) & (cap - 1);
    }
    return &names[i];
}

static bool names_grow(struct parser *p) {
    uint32_t cap = p->name_cap > 0 ? p->name_cap * 2 : 64;
    struct name *names = hearth_memory_calloc(cap, sizeof *names);
    if (names == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < p->name_cap; i++) {
        if (p->names[i].text != NULL) {
            *name_slot(names, cap, p->names[i].text, p->names[i].len) = p->names[i];
        }
    }
    free(p->names);
    p->names = names;
    p->name_cap = cap;
    return true;
}

static int rule_named(struct parser *p, const char *text, size_t len, uint32_t *rule) {
    if (p->name_count * 2 >= p->name_cap && !names_grow(p)) {
        return fail_memory(p);
    }
    struct name *name = name_slot(p->names, p->name_cap, text, len);
    if (name->text == NULL) {
        int err = add_rule(p, rule);
        if (err != HEARTH_OK) {
            return err;
        }
        *name = (struct name){.text = text, .len = len, .rule = *rule};
        p->name_count++;
    }
    *rule = name->rule;
    return HEARTH_OK;
}

/* ---- words ---- */

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Spaces and comments; line ends too where they do not end the rule. */
static void skip_space(struct parser *p, bool lines) {
    for (;; p->at++) {
        if (*p->at == '#') {
            p->at += strcspn(p->at, "\r\n");
        }
        if (*p->at != ' ' && *p->at != '\t' && !(lines && (*p->at == '\r' || *p->at == '\n'))) {
            return;
        }
    }
}

static int parse_number(struct parser *p, uint32_t most, uint32_t *number) {
    if (!is_digit(*p->at)) {
        return fail(p, "a number is missing");
    }
    uint64_t n = 0;
    const char *begin = p->at;
    for (; is_digit(*p->at); p->at++) {
        n = n * 10 + (uint64_t)(*p->at - '0');
        if (n > most) {
            p->at = begin;
            return fail(p, "the number is too large");
        }
    }
    *number = (uint32_t)n;
    return HEARTH_OK;
}

static int parse_hex(struct parser *p, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = *p->at;
        uint32_t value = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;
        if (value == 16) {
            return fail(p, "a hexadecimal digit is missing");
        }
        *code = *code << 4 | value;
    }
    return *code <= CODE_POINT_MAX ? HEARTH_OK : fail(p, "no such code point");
}

static int parse_utf8(struct parser *p, uint32_t *code) {
    uint8_t lead = (uint8_t)*p->at;
    int more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : 3;
    if (lead > 0xF4 || (lead >= 0x80 && lead < 0xC2)) {
        return fail(p, "the text is not UTF-8");
    }
    *code = more == 0 ? lead : lead & (0x3Fu >> more);
    p->at++;
    for (; more > 0; more--, p->at++) {
        if (((uint8_t)*p->at & 0xC0) != 0x80) {
            return fail(p, "the text is not UTF-8");
        }
        *code = *code << 6 | ((uint8_t)*p->at & 0x3Fu);
    }
    return HEARTH_OK;
}

static int parse_char(struct parser *p, uint32_t *code) {
    if (*p->at != '\\') {
        return *p->at != '\0' ? parse_utf8(p, code) : fail(p, "unexpected end");
    }
    static const char plain[] = "trn\\\"[]-", meaning[] = "\t\r\n\\\"[]-";
    char c = p->at[1];
    const char *escape = c != '\0' ? strchr(plain, c) : NULL;
    if (escape != NULL) {
        *code = (uint8_t)meaning[escape - plain];
        p->at += 2;
        return HEARTH_OK;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
        return fail(p, "unknown escape");
    }
    p->at += 2;
    return parse_hex(p, digits, code);
}

/* ---- items ---- */

static int parse_literal(struct parser *p) {
    p->at++;
    while (*p->at != '"') {
        uint32_t code;
        int err = parse_char(p, &code);
        if (err == HEARTH_OK) {
            err = push(p, HEARTH_GRAMMAR_GBNF_CHAR, code);
        }
        if (err != HEARTH_OK) {
            return err;
        }
    }
    p->at++;
    return HEARTH_OK;
}

static int parse_set(struct parser *p) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    uint32_t first = g->range_count;
    bool negated = p->at[1] == '^';
    p->at += negated ? 2 : 1;
    const char *begin = p->at;
    while (*p->at != ']') {
        struct hearth_grammar_gbnf_range range;
        int err = parse_char(p, &range.lo);
        range.hi = range.lo;
        if (err == HEARTH_OK && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            err = parse_char(p, &range.hi);
        }
        if (err != HEARTH_OK) {
            return err;
        }
        if (range.lo > range.hi) {
            continue; /* the empty range */
        }
        if (!HEARTH_BUF_ROOM(g->ranges, g->range_count, p->range_cap)) {
            return fail_memory(p);
        }
        g->ranges[g->range_count++] = range;
    }
    if (p->at == begin) {
        return fail(p, "a character class is empty");
    }
    p->at++;
    if (g->range_count > first) { /* else there may be no array yet */
        g->range_count = first + normalise(g->ranges + first, g->range_count - first);
    }
    if (!HEARTH_BUF_ROOM(g->sets, g->set_count, p->set_cap)) {
        return fail_memory(p);
    }
    g->sets[g->set_count] = (struct hearth_grammar_gbnf_set){first, g->range_count - first};
    return push(p, negated ? HEARTH_GRAMMAR_GBNF_NOT_SET : HEARTH_GRAMMAR_GBNF_SET, g->set_count++);
}

/* <name>, <[number]>, and either with ! before it. */
static int parse_token(struct parser *p) {
    bool negated = *p->at == '!';
    p->at += negated;
    const char *begin = p->at;
    uint32_t number;
    if (*p->at != '<') {
        return fail(p, "a token is missing");
    }
    if (p->at[1] == '[') {
        p->at += 2;
        int err = parse_number(p, INT32_MAX, &number);
        if (err != HEARTH_OK) {
            return err;
        }
        if (p->at[0] != ']' || p->at[1] != '>') {
            return fail(p, "\"]>\" is missing");
        }
        p->at += 2;
    } else {
        const char *end = strchr(p->at, '>');
        if (end == NULL) {
            return fail(p, "\">\" is missing");
        }
        hearth_token token = p->token != NULL ? p->token(p->user, begin, (size_t)(end + 1 - begin)) : -1;
        if (token < 0) {
            return fail(p, "this is not one token of the vocabulary");
        }
        number = (uint32_t)token;
        p->at = end + 1;
    }
    return push(p, negated ? HEARTH_GRAMMAR_GBNF_NOT_TOKEN : HEARTH_GRAMMAR_GBNF_TOKEN, number);
}

static int parse_alternatives(struct parser *p, uint32_t rule, bool nested);

static int parse_group(struct parser *p) {
    if (++p->depth > DEPTH_MAX) {
        return fail(p, "parentheses are nested too deeply");
    }
    p->at++;
    skip_space(p, true);
    uint32_t rule = 0;
    int err = add_rule(p, &rule);
    if (err == HEARTH_OK) {
        err = parse_alternatives(p, rule, true);
    }
    if (err != HEARTH_OK) {
        return err;
    }
    if (*p->at != ')') {
        return fail(p, "\")\" is missing");
    }
    p->at++;
    p->depth--;
    return push(p, HEARTH_GRAMMAR_GBNF_RULE, rule);
}

/* ---- repetitions ---- */

/* A rule of what is repeated, an optional rule behind it, or nothing. */
static int optional_rule(struct parser *p, struct hearth_grammar_gbnf_symbol item, uint32_t rule, uint32_t behind) {
    uint32_t begin = p->work_count;
    int err = push(p, item.kind, item.value);
    if (err == HEARTH_OK && behind != UNDEFINED) {
        err = push(p, HEARTH_GRAMMAR_GBNF_RULE, behind);
    }
    if (err == HEARTH_OK) {
        err = push(p, HEARTH_GRAMMAR_GBNF_END, 0);
    }
    if (err == HEARTH_OK) {
        err = push(p, HEARTH_GRAMMAR_GBNF_END, 0);
    }
    return err == HEARTH_OK ? define(p, rule, begin) : err;
}

/* The symbols of `work` from `item` on, as often as it says. */
static int repeat(struct parser *p, uint32_t item, uint32_t least, uint32_t most) {
    int err = HEARTH_OK;
    uint32_t rule = 0;
    if (p->work_count == item) {
        return fail(p, "there is nothing to repeat");
    }
    if (least > most) {
        return fail(p, "a repetition has its limits in the wrong order");
    }
    if (p->work_count - item > 1) { /* a text: make it one symbol */
        if ((err = push(p, HEARTH_GRAMMAR_GBNF_END, 0)) != HEARTH_OK || (err = add_rule(p, &rule)) != HEARTH_OK ||
            (err = define(p, rule, item)) != HEARTH_OK ||
            (err = push(p, HEARTH_GRAMMAR_GBNF_RULE, rule)) != HEARTH_OK) {
            return err;
        }
    }
    struct hearth_grammar_gbnf_symbol symbol = p->work[item];
    p->work_count = item;
    for (uint32_t i = 0; i < least && err == HEARTH_OK; i++) {
        err = push(p, symbol.kind, symbol.value);
    }
    uint32_t behind = UNDEFINED;
    for (uint32_t i = least; i < (most == NO_LIMIT ? least + 1 : most) && err == HEARTH_OK; i++) {
        err = add_rule(p, &rule);
        if (err == HEARTH_OK) {
            err = optional_rule(p, symbol, rule, most == NO_LIMIT ? rule : behind);
        }
        behind = rule;
    }
    return err == HEARTH_OK && behind != UNDEFINED ? push(p, HEARTH_GRAMMAR_GBNF_RULE, behind) : err;
}

static int parse_repeat(struct parser *p, uint32_t item) {
    char c = *p->at;
    p->at++;
    if (c != '{') {
        return repeat(p, item, c == '+' ? 1 : 0, c == '?' ? 1 : NO_LIMIT);
    }
    uint32_t least = 0, most = 0;
    skip_space(p, true);
    int err = parse_number(p, REPEAT_MAX, &least);
    if (err != HEARTH_OK) {
        return err;
    }
    most = least;
    skip_space(p, true);
    if (*p->at == ',') {
        p->at++;
        skip_space(p, true);
        most = NO_LIMIT;
        if (*p->at != '}' && (err = parse_number(p, REPEAT_MAX, &most)) != HEARTH_OK) {
            return err;
        }
        skip_space(p, true);
    }
    if (*p->at != '}') {
        return fail(p, "\"}\" is missing");
    }
    p->at++;
    return repeat(p, item, least, most);
}

/* ---- rules ---- */

static int parse_sequence(struct parser *p, bool nested) {
    uint32_t item = p->work_count;
    for (;; skip_space(p, nested)) {
        int err;
        char c = *p->at;
        if (c == '*' || c == '+' || c == '?' || c == '{') {
            err = parse_repeat(p, item);
            if (err != HEARTH_OK) {
                return err;
            }
            continue;
        }
        item = p->work_count;
        if (c == '"') {
            err = parse_literal(p);
        } else if (c == '[') {
            err = parse_set(p);
        } else if (c == '<' || c == '!') {
            err = parse_token(p);
        } else if (c == '(') {
            err = parse_group(p);
        } else if (c == '.') {
            p->at++;
            err = push(p, HEARTH_GRAMMAR_GBNF_ANY, 0);
        } else if (is_word(c)) {
            const char *begin = p->at;
            while (is_word(*p->at)) {
                p->at++;
            }
            uint32_t rule;
            err = rule_named(p, begin, (size_t)(p->at - begin), &rule);
            if (err == HEARTH_OK) {
                err = push(p, HEARTH_GRAMMAR_GBNF_RULE, rule);
            }
        } else {
            return push(p, HEARTH_GRAMMAR_GBNF_END, 0);
        }
        if (err != HEARTH_OK) {
            return err;
        }
    }
}

static int parse_alternatives(struct parser *p, uint32_t rule, bool nested) {
    uint32_t begin = p->work_count;
    int err = parse_sequence(p, nested);
    while (err == HEARTH_OK && *p->at == '|') {
        p->at++;
        skip_space(p, true);
        err = parse_sequence(p, nested);
    }
    return err == HEARTH_OK ? define(p, rule, begin) : err;
}

static int parse_rule(struct parser *p) {
    const char *begin = p->at;
    while (is_word(*p->at)) {
        p->at++;
    }
    size_t len = (size_t)(p->at - begin);
    if (len == 0) {
        return fail(p, "the name of a rule is missing");
    }
    skip_space(p, false);
    if (strncmp(p->at, "::=", 3) != 0) {
        return fail(p, "\"::=\" is missing");
    }
    p->at += 3;
    skip_space(p, true);
    uint32_t rule = 0;
    int err = rule_named(p, begin, len, &rule);
    if (err == HEARTH_OK) {
        err = parse_alternatives(p, rule, false);
    }
    if (err != HEARTH_OK) {
        return err;
    }
    if (*p->at != '\0' && *p->at != '\r' && *p->at != '\n') {
        return fail(p, "the end of the line is missing");
    }
    skip_space(p, true);
    return HEARTH_OK;
}

static int check_defined(struct parser *p) {
    for (uint32_t i = 0; i < p->name_cap; i++) {
        const struct name *name = &p->names[i];
        if (name->text != NULL && p->gbnf->rules[name->rule].first == UNDEFINED) {
            return hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar uses a rule \"%.*s\" that it does not define",
                               (int)(name->len < 100 ? name->len : 100), name->text);
        }
    }
    const struct name *root = p->name_cap > 0 ? name_slot(p->names, p->name_cap, "root", 4) : NULL;
    if (root == NULL || root->text == NULL) {
        return hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar has no rule \"root\"");
    }
    p->gbnf->root = root->rule;
    return HEARTH_OK;
}

/* ---- the whole ---- */

int hearth_grammar_gbnf_parse(const char *text, hearth_grammar_gbnf_token_fn *token, void *user,
                              struct hearth_grammar_gbnf **out, struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_grammar_gbnf *gbnf = hearth_memory_calloc(1, sizeof *gbnf);
    if (gbnf == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    struct parser p = {.gbnf = gbnf, .text = text, .at = text, .token = token, .user = user, .msg = msg};
    int err = HEARTH_OK;
    skip_space(&p, true);
    while (*p.at != '\0' && err == HEARTH_OK) {
        err = parse_rule(&p);
    }
    if (err == HEARTH_OK) {
        err = check_defined(&p);
    }
    if (err == HEARTH_OK && !find_nullable(gbnf)) {
        err = fail_memory(&p);
    }
    free(p.work);
    free(p.names);
    if (err != HEARTH_OK) {
        hearth_grammar_gbnf_destroy(gbnf);
        return err;
    }
    *out = gbnf;
    return HEARTH_OK;
}

/* ---- the end ---- */

void hearth_grammar_gbnf_destroy(struct hearth_grammar_gbnf *gbnf) {
    if (gbnf == NULL) {
        return;
    }
    free(gbnf->symbols);
    free(gbnf->ranges);
    free(gbnf->sets);
    free(gbnf->rules);
    free(gbnf->alternatives);
    free(gbnf);
}
