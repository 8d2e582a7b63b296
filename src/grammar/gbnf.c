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
#include "base/utf8.h"

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
    int err;
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

/* ---- failing ---- */

/* The first error stays. What is parsed after it does not matter; no loop goes on. */
static void fail(struct parser *p, const char *what) {
    unsigned line = 1;
    for (const char *c = p->text; c < p->at; c++) {
        line += *c == '\n';
    }
    size_t len = strcspn(p->at, "\r\n");
    if (p->err == HEARTH_OK) {
        p->err = hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar, line %u: %s at \"%.*s\"", line, what,
                             (int)(len < 40 ? len : 40), p->at);
    }
}

static void fail_memory(struct parser *p) {
    if (p->err == HEARTH_OK) {
        p->err = hearth_fail(p->msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
}

/* Passes `sign`; fails when something else stands there. */
static void expect(struct parser *p, const char *sign, const char *otherwise) {
    if (strncmp(p->at, sign, strlen(sign)) == 0) {
        p->at += strlen(sign);
    } else {
        fail(p, otherwise);
    }
}

/* ---- arrays ---- */

static void push(struct parser *p, uint32_t kind, uint32_t value) {
    if (p->work_count + p->gbnf->symbol_count >= SYMBOLS_MAX) {
        fail(p, "the grammar is too large");
    } else if (!HEARTH_BUF_ROOM(p->work, p->work_count, p->work_cap)) {
        fail_memory(p);
    } else {
        p->work[p->work_count++] = (struct hearth_grammar_gbnf_symbol){kind, value};
    }
}

static uint32_t add_rule(struct parser *p) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    if (!HEARTH_BUF_ROOM(g->rules, g->rule_count, p->rule_cap)) {
        fail_memory(p);
        return 0;
    }
    g->rules[g->rule_count] = (struct hearth_grammar_gbnf_rule){.first = UNDEFINED};
    return g->rule_count++;
}

/* The symbols of `work` from `begin` on, alternatives divided and ended by END, become the rule. */
static void define(struct parser *p, uint32_t rule, uint32_t begin) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    uint32_t first = g->alternative_count;
    bool starts = true;
    for (uint32_t i = begin; i < p->work_count && p->err == HEARTH_OK; i++) {
        if ((starts && !HEARTH_BUF_ROOM(g->alternatives, g->alternative_count, p->alternative_cap)) ||
            !HEARTH_BUF_ROOM(g->symbols, g->symbol_count, p->symbol_cap)) {
            fail_memory(p);
            return;
        }
        if (starts) {
            g->alternatives[g->alternative_count++] = g->symbol_count;
        }
        g->symbols[g->symbol_count++] = p->work[i];
        starts = p->work[i].kind == HEARTH_GRAMMAR_GBNF_END;
    }
    if (p->err == HEARTH_OK) {
        p->work_count = begin;
        g->rules[rule].first = first;
        g->rules[rule].count = g->alternative_count - first;
    }
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

static uint32_t rule_named(struct parser *p, const char *text, size_t len) {
    if (p->name_count * 2 >= p->name_cap && !names_grow(p)) {
        fail_memory(p);
        return 0;
    }
    struct name *name = name_slot(p->names, p->name_cap, text, len);
    if (name->text == NULL) {
        *name = (struct name){.text = text, .len = len, .rule = add_rule(p)};
        p->name_count++;
    }
    return name->rule;
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

/* Passes a word, and gives its length. */
static size_t pass_word(struct parser *p) {
    const char *begin = p->at;
    while (is_word(*p->at)) {
        p->at++;
    }
    return (size_t)(p->at - begin);
}

static uint32_t parse_number(struct parser *p, uint32_t most) {
    uint64_t n = 0;
    const char *begin = p->at;
    for (; is_digit(*p->at) && n <= most; p->at++) {
        n = n * 10 + (uint64_t)(*p->at - '0');
    }
    if (p->at == begin) {
        fail(p, "a number is missing");
    } else if (n > most) {
        p->at = begin;
        fail(p, "the number is too large");
    }
    return (uint32_t)n;
}

static uint32_t parse_hex(struct parser *p, int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = *p->at;
        uint32_t value = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;
        if (value == 16) {
            fail(p, "a hexadecimal digit is missing");
            return 0;
        }
        code = code << 4 | value;
    }
    if (code > CODE_POINT_MAX) {
        fail(p, "no such code point");
    }
    return code;
}

static uint32_t parse_char(struct parser *p) {
    static const char plain[] = "trn\\\"[]-", meaning[] = "\t\r\n\\\"[]-";
    if (*p->at != '\\') {
        uint32_t code = (uint8_t)*p->at;
        const size_t len = code == 0 ? 0 : code < 0x80 ? 1 : hearth_utf8_decode(p->at, strnlen(p->at, 4), &code);
        if (len == 0) {
            fail(p, *p->at == '\0' ? "unexpected end" : "the text is not UTF-8");
        }
        p->at += len;
        return code;
    }
    char c = p->at[1];
    const char *escape = c != '\0' ? strchr(plain, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (escape == NULL && digits == 0) {
        fail(p, "unknown escape");
        return 0;
    }
    p->at += 2;
    return escape != NULL ? (uint8_t)meaning[escape - plain] : parse_hex(p, digits);
}

/* ---- items ---- */

static void parse_literal(struct parser *p) {
    p->at++;
    while (*p->at != '"' && p->err == HEARTH_OK) {
        push(p, HEARTH_GRAMMAR_GBNF_CHAR, parse_char(p));
    }
    expect(p, "\"", "unexpected end");
}

static void parse_set(struct parser *p) {
    struct hearth_grammar_gbnf *g = p->gbnf;
    uint32_t first = g->range_count;
    bool negated = p->at[1] == '^';
    p->at += negated ? 2 : 1;
    const char *begin = p->at;
    while (*p->at != ']' && p->err == HEARTH_OK) {
        struct hearth_grammar_gbnf_range range;
        range.lo = range.hi = parse_char(p);
        if (p->err == HEARTH_OK && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            range.hi = parse_char(p);
        }
        if (range.lo > range.hi) {
            continue; /* the empty range */
        }
        if (!HEARTH_BUF_ROOM(g->ranges, g->range_count, p->range_cap)) {
            fail_memory(p);
            return;
        }
        g->ranges[g->range_count++] = range;
    }
    if (p->at == begin) {
        fail(p, "a character class is empty");
    }
    expect(p, "]", "unexpected end");
    if (g->range_count > first) { /* else there may be no array yet */
        g->range_count = first + normalise(g->ranges + first, g->range_count - first);
    }
    if (!HEARTH_BUF_ROOM(g->sets, g->set_count, p->set_cap)) {
        fail_memory(p);
        return;
    }
    g->sets[g->set_count] = (struct hearth_grammar_gbnf_set){first, g->range_count - first};
    push(p, negated ? HEARTH_GRAMMAR_GBNF_NOT_SET : HEARTH_GRAMMAR_GBNF_SET, g->set_count++);
}

/* <name>, <[number]>, and either with ! before it. */
static void parse_token(struct parser *p) {
    bool negated = *p->at == '!';
    p->at += negated;
    const char *begin = p->at, *end = strchr(begin, '>');
    uint32_t number = 0;
    expect(p, "<", "a token is missing");
    if (p->err == HEARTH_OK && *p->at == '[') {
        p->at++;
        number = parse_number(p, INT32_MAX);
        expect(p, "]>", "\"]>\" is missing");
    } else if (p->err == HEARTH_OK) {
        p->at = begin;
        hearth_token token = end != NULL && p->token != NULL ? p->token(p->user, begin, (size_t)(end + 1 - begin)) : -1;
        if (token < 0) {
            fail(p, end == NULL ? "\">\" is missing" : "this is not one token of the vocabulary");
            return;
        }
        number = (uint32_t)token;
        p->at = end + 1;
    }
    push(p, negated ? HEARTH_GRAMMAR_GBNF_NOT_TOKEN : HEARTH_GRAMMAR_GBNF_TOKEN, number);
}

static void parse_alternatives(struct parser *p, uint32_t rule, bool nested);

static void parse_group(struct parser *p) {
    if (++p->depth > DEPTH_MAX) {
        fail(p, "parentheses are nested too deeply");
        return;
    }
    p->at++;
    skip_space(p, true);
    uint32_t rule = add_rule(p);
    parse_alternatives(p, rule, true);
    expect(p, ")", "\")\" is missing");
    p->depth--;
    push(p, HEARTH_GRAMMAR_GBNF_RULE, rule);
}

/* ---- repetitions ---- */

/* A rule of what is repeated, an optional rule behind it, or nothing. */
static void optional_rule(struct parser *p, struct hearth_grammar_gbnf_symbol item, uint32_t rule, uint32_t behind) {
    uint32_t begin = p->work_count;
    push(p, item.kind, item.value);
    if (behind != UNDEFINED) {
        push(p, HEARTH_GRAMMAR_GBNF_RULE, behind);
    }
    push(p, HEARTH_GRAMMAR_GBNF_END, 0);
    push(p, HEARTH_GRAMMAR_GBNF_END, 0);
    define(p, rule, begin);
}

/* The symbols of `work` from `item` on, as often as it says. */
static void repeat(struct parser *p, uint32_t item, uint32_t least, uint32_t most) {
    if (p->work_count == item) {
        fail(p, "there is nothing to repeat");
    } else if (least > most) {
        fail(p, "a repetition has its limits in the wrong order");
    } else if (p->work_count - item > 1) { /* a text: make it one symbol */
        push(p, HEARTH_GRAMMAR_GBNF_END, 0);
        uint32_t rule = add_rule(p);
        define(p, rule, item);
        push(p, HEARTH_GRAMMAR_GBNF_RULE, rule);
    }
    if (p->err != HEARTH_OK) {
        return;
    }
    struct hearth_grammar_gbnf_symbol symbol = p->work[item];
    p->work_count = item;
    for (uint32_t i = 0; i < least && p->err == HEARTH_OK; i++) {
        push(p, symbol.kind, symbol.value);
    }
    uint32_t behind = UNDEFINED;
    for (uint32_t i = least; i < (most == NO_LIMIT ? least + 1 : most) && p->err == HEARTH_OK; i++) {
        uint32_t rule = add_rule(p);
        optional_rule(p, symbol, rule, most == NO_LIMIT ? rule : behind);
        behind = rule;
    }
    if (behind != UNDEFINED) {
        push(p, HEARTH_GRAMMAR_GBNF_RULE, behind);
    }
}

static void parse_repeat(struct parser *p, uint32_t item) {
    char c = *p->at;
    p->at++;
    if (c != '{') {
        repeat(p, item, c == '+' ? 1 : 0, c == '?' ? 1 : NO_LIMIT);
        return;
    }
    skip_space(p, true);
    uint32_t least = parse_number(p, REPEAT_MAX), most = least;
    skip_space(p, true);
    if (*p->at == ',') {
        p->at++;
        skip_space(p, true);
        most = *p->at != '}' ? parse_number(p, REPEAT_MAX) : NO_LIMIT;
        skip_space(p, true);
    }
    expect(p, "}", "\"}\" is missing");
    if (p->err == HEARTH_OK) {
        repeat(p, item, least, most);
    }
}

/* ---- rules ---- */

static void parse_sequence(struct parser *p, bool nested) {
    uint32_t item = p->work_count;
    for (; p->err == HEARTH_OK; skip_space(p, nested)) {
        char c = *p->at;
        if (c == '*' || c == '+' || c == '?' || c == '{') {
            parse_repeat(p, item);
            continue;
        }
        item = p->work_count;
        if (c == '"') {
            parse_literal(p);
        } else if (c == '[') {
            parse_set(p);
        } else if (c == '<' || c == '!') {
            parse_token(p);
        } else if (c == '(') {
            parse_group(p);
        } else if (c == '.') {
            p->at++;
            push(p, HEARTH_GRAMMAR_GBNF_ANY, 0);
        } else if (is_word(c)) {
            const char *begin = p->at;
            push(p, HEARTH_GRAMMAR_GBNF_RULE, rule_named(p, begin, pass_word(p)));
        } else {
            push(p, HEARTH_GRAMMAR_GBNF_END, 0);
            return;
        }
    }
}

static void parse_alternatives(struct parser *p, uint32_t rule, bool nested) {
    uint32_t begin = p->work_count;
    parse_sequence(p, nested);
    while (*p->at == '|' && p->err == HEARTH_OK) {
        p->at++;
        skip_space(p, true);
        parse_sequence(p, nested);
    }
    define(p, rule, begin);
}

static void parse_rule(struct parser *p) {
    const char *name = p->at;
    size_t len = pass_word(p);
    if (len == 0) {
        fail(p, "the name of a rule is missing");
    }
    skip_space(p, false);
    expect(p, "::=", "\"::=\" is missing");
    if (p->err != HEARTH_OK) {
        return;
    }
    skip_space(p, true);
    parse_alternatives(p, rule_named(p, name, len), false);
    if (*p->at != '\0' && *p->at != '\r' && *p->at != '\n') {
        fail(p, "the end of the line is missing");
    }
    skip_space(p, true);
}

static void check_defined(struct parser *p) {
    for (uint32_t i = 0; i < p->name_cap && p->err == HEARTH_OK; i++) {
        const struct name *name = &p->names[i];
        if (name->text != NULL && p->gbnf->rules[name->rule].first == UNDEFINED) {
            p->err = hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar uses a rule \"%.*s\" that it does not define",
                                 (int)(name->len < 100 ? name->len : 100), name->text);
        }
    }
    const struct name *root = p->name_cap > 0 ? name_slot(p->names, p->name_cap, "root", 4) : NULL;
    if (root != NULL && root->text != NULL) {
        p->gbnf->root = root->rule;
    } else if (p->err == HEARTH_OK) {
        p->err = hearth_fail(p->msg, HEARTH_ERR_INVALID, "the grammar has no rule \"root\"");
    }
}

/* ---- the whole ---- */

int hearth_grammar_gbnf_parse(const char *text, hearth_grammar_gbnf_token_fn *token, void *user,
                              struct hearth_grammar_gbnf **out, struct hearth_errmsg *msg) {
    struct parser p = {.text = text, .at = text, .token = token, .user = user, .msg = msg};
    *out = p.gbnf = hearth_memory_calloc(1, sizeof *p.gbnf);
    if (p.gbnf == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    skip_space(&p, true);
    while (*p.at != '\0' && p.err == HEARTH_OK) {
        parse_rule(&p);
    }
    if (p.err == HEARTH_OK) {
        check_defined(&p);
    }
    if (p.err == HEARTH_OK && !find_nullable(p.gbnf)) {
        fail_memory(&p);
    }
    free(p.work);
    free(p.names);
    if (p.err != HEARTH_OK) {
        hearth_grammar_gbnf_destroy(p.gbnf);
        *out = NULL;
    }
    return p.err;
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
