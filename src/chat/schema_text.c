/* Rewrites regular expressions for common's converter.
 *
 * Design. The pattern of a JSON schema may match anywhere in a string. common's converter wants it anchored, and
 * takes it as a grammar of the raw JSON text, in which a quote, a backslash or a control character is an escape. So
 * a pattern is parsed here and printed anew: each set of characters without those that JSON must escape, beside the
 * short escapes of those that belong to it. Where regular expression dialects differ (\w and \d beyond ASCII) the
 * smaller set is taken. What no grammar can express (look-around, back-references, word boundaries) is an error.
 *
 * Invariants. The result never matches more than the original. */
#include "chat/schema_internal.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- sets of characters */

struct code_range {
    uint32_t from, to;
};

enum { SET_MAX = 128, LAST_CHAR = 0x10FFFF, PATTERN_BYTES_MAX = 65536 };

struct set {
    struct code_range r[SET_MAX];
    size_t n;
};

static bool set_add(struct set *set, uint32_t from, uint32_t to) {
    if (set->n == SET_MAX || from > to) {
        return false;
    }
    set->r[set->n++] = (struct code_range){from, to};
    return true;
}

static int by_start(const void *a, const void *b) {
    const struct code_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* What is not in a set. */
static struct set complement(struct set set) {
    struct set out = {.n = 0};
    uint32_t next = 0;
    qsort(set.r, set.n, sizeof set.r[0], by_start);
    for (size_t i = 0; i < set.n; i++) {
        if (set.r[i].from > next) {
            set_add(&out, next, set.r[i].from - 1);
        }
        next = set.r[i].to >= next ? set.r[i].to + 1 : next;
    }
    if (next <= LAST_CHAR) {
        set_add(&out, next, LAST_CHAR);
    }
    return out;
}

static bool set_has(const struct set *set, uint32_t c) {
    for (size_t i = 0; i < set->n; i++) {
        if (c >= set->r[i].from && c <= set->r[i].to) {
            return true;
        }
    }
    return false;
}

/* Adds what \d, \w, \s stand for and, in capitals, what is surely not in them. */
static bool add_shorthand(struct set *set, char letter) {
    static const struct code_range spaces[] = {{9, 13},          {28, 32},         {0x85, 0x85},     {0xA0, 0xA0},
                                               {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                               {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    struct set spaced = {.n = 0};
    switch (letter) {
    case 'd': return set_add(set, '0', '9');
    case 'D': return set_add(set, 0, '0' - 1) && set_add(set, '9' + 1, 0x7F);
    case 'w':
        return set_add(set, '0', '9') && set_add(set, 'A', 'Z') && set_add(set, 'a', 'z') && set_add(set, '_', '_');
    case 'W':
        return set_add(set, 0, '0' - 1) && set_add(set, '9' + 1, 'A' - 1) && set_add(set, 'Z' + 1, '_' - 1) &&
               set_add(set, '`', '`') && set_add(set, 'z' + 1, 0x7F);
    case 's': return set_add(set, 9, 13) && set_add(set, ' ', ' ');
    default: /* 'S' */
        for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
            set_add(&spaced, spaces[i].from, spaces[i].to);
        }
        spaced = complement(spaced);
        for (size_t i = 0; i < spaced.n; i++) {
            if (!set_add(set, spaced.r[i].from, spaced.r[i].to)) {
                return false;
            }
        }
        return true;
    }
}

static bool print_char(struct hearth_buf *out, uint32_t c) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return plain ? hearth_buf_printf(out, "%c", (int)c) : hearth_buf_printf(out, "\\U%08X", c);
}

/* A set as it stands in JSON text: one group. Nothing is printed for a set of which no character can be written. */
static bool print_set(struct hearth_buf *out, const struct set *set, bool *none) {
    static const struct {
        uint32_t c;
        char letter;
    } escapes[] = {{'"', '"'}, {'\\', '\\'}, {8, 'b'}, {9, 't'}, {10, 'n'}, {12, 'f'}, {13, 'r'}};
    struct set outside = complement(*set);
    set_add(&outside, 0, 0x1F);
    set_add(&outside, '"', '"');
    set_add(&outside, '\\', '\\');
    set_add(&outside, 0x7F, 0x7F);
    set_add(&outside, 0xD800, 0xDFFF);
    struct set plain = complement(outside);
    bool ok = hearth_buf_text(out, "("), escape = false;
    if (plain.n > 0) {
        ok = ok && hearth_buf_text(out, "[");
        for (size_t i = 0; i < plain.n; i++) {
            ok = ok && print_char(out, plain.r[i].from);
            ok = ok &&
                 (plain.r[i].from == plain.r[i].to || (hearth_buf_text(out, "-") && print_char(out, plain.r[i].to)));
        }
        ok = ok && hearth_buf_text(out, "]");
    }
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (set_has(set, escapes[i].c)) {
            ok = ok && (escape || hearth_buf_text(out, plain.n > 0 ? "|\\\\[" : "\\\\["));
            ok = ok && print_char(out, (uint32_t)(unsigned char)escapes[i].letter);
            escape = true;
        }
    }
    *none = plain.n == 0 && !escape;
    return ok && hearth_buf_text(out, escape ? "])" : ")");
}

/* ------------------------------------------------------------------------------------------- regular expressions */

/* How many characters a part may match. */
struct span {
    size_t min, max;
};

struct regex {
    const char *at;
    struct hearth_buf *out;
    const char *error;
    int depth;
    /* The one part at the top whose number may be narrowed to keep the length of the whole, found in a first pass and
     * narrowed in a second. */
    const char *narrow_at;
    struct span narrow;
    size_t flexible; /* parts of no fixed length */
};

static const char no_memory[] = "out of memory";

static size_t plus(size_t a, size_t b) {
    return a + b > SCHEMA_MANY ? SCHEMA_MANY : a + b;
}

static size_t times(size_t a, size_t b) {
    return a == 0 || b == 0 ? 0 : (a > SCHEMA_MANY / b ? SCHEMA_MANY : a * b);
}

static void fail(struct regex *x, const char *why) {
    if (x->error == NULL) {
        x->error = why;
    }
}

static void print(struct regex *x, const char *text) {
    if (!hearth_buf_text(x->out, text)) {
        fail(x, no_memory);
    }
}

static void print_class(struct regex *x, const struct set *set) {
    bool none = false;
    if (!print_set(x->out, set, &none)) {
        fail(x, no_memory);
    } else if (none) {
        fail(x, "a set of characters of which none can be written");
    }
}

/* Decodes one character; texts of a JSON value are valid UTF-8. */
static uint32_t next_char(struct regex *x) {
    const unsigned char *s = (const unsigned char *)x->at;
    int more = s[0] < 0x80 ? 0 : s[0] < 0xE0 ? 1 : s[0] < 0xF0 ? 2 : 3;
    uint32_t c = more == 0 ? s[0] : s[0] & (0x3FU >> more);
    for (int i = 1; i <= more; i++) {
        c = c << 6 | (s[i] & 0x3FU);
    }
    x->at += 1 + more;
    return c;
}

static uint32_t hex(struct regex *x, int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        char c = *x->at;
        bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!letter && (c < '0' || c > '9')) {
            fail(x, "a broken hexadecimal escape");
            return 0;
        }
        value = value * 16 + (uint32_t)(letter ? (c | 0x20) - 'a' + 10 : c - '0');
        x->at++;
    }
    return value;
}

/* Behind a backslash: one character, or a shorthand that is added to `set` (true). */
static bool read_escape(struct regex *x, struct set *set, uint32_t *c) {
    static const char names[] = "tnrfv", values[] = "\t\n\r\f\v";
    char letter = *x->at;
    const char *name = letter != '\0' ? strchr(names, letter) : NULL;
    if (letter != '\0' && strchr("dDwWsS", letter) != NULL) {
        x->at++;
        if (!add_shorthand(set, letter)) {
            fail(x, "too large a set of characters");
        }
        return true;
    }
    if (name != NULL) {
        *c = (unsigned char)values[name - names];
        x->at++;
    } else if (letter == 'x' || letter == 'u') {
        x->at++;
        *c = hex(x, letter == 'x' ? 2 : 4);
    } else if (letter == '\0' || (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
               (letter >= 'A' && letter <= 'Z')) {
        fail(x, "an escape that a grammar cannot follow");
    } else {
        *c = next_char(x);
    }
    return false;
}

static void read_class(struct regex *x) {
    struct set set = {.n = 0};
    bool negated = *x->at == '^';
    char seen[6]; /* the shorthands in it */
    size_t kinds = 0;
    x->at += negated;
    while (x->error == NULL && *x->at != ']') {
        uint32_t from = 0, to;
        if (*x->at == '\0') {
            fail(x, "a set of characters that does not end");
            return;
        }
        if (*x->at == '\\') {
            x->at++;
            char letter = *x->at;
            if (read_escape(x, &set, &from)) {
                /* With its opposite it is everything. */
                if (memchr(seen, letter ^ 0x20, kinds) != NULL && !set_add(&set, 0, LAST_CHAR)) {
                    fail(x, "too large a set of characters");
                }
                if (kinds < sizeof seen && memchr(seen, letter, kinds) == NULL) {
                    seen[kinds++] = letter;
                }
                continue;
            }
        } else {
            from = next_char(x);
        }
        to = from;
        if (x->at[0] == '-' && x->at[1] != ']' && x->at[1] != '\0') {
            struct set unused = {.n = 0};
            x->at++;
            if (*x->at != '\\') {
                to = next_char(x);
            } else if (x->at++, read_escape(x, &unused, &to)) {
                fail(x, "a range that ends in a set");
            }
        }
        if (!set_add(&set, from, to)) {
            fail(x, "a range that is empty, or too many of them");
        }
    }
    if (x->error != NULL) {
        return;
    }
    x->at++;
    if (negated) {
        /* What is surely in the opposite is not in the shorthand; all else may be. */
        for (size_t i = 0; i < kinds; i++) {
            struct set surely = {.n = 0};
            add_shorthand(&surely, (char)(seen[i] ^ 0x20));
            surely = complement(surely);
            for (size_t k = 0; k < surely.n && x->error == NULL; k++) {
                if (!set_add(&set, surely.r[k].from, surely.r[k].to)) {
                    fail(x, "too large a set of characters");
                }
            }
        }
        set = complement(set);
    }
    print_class(x, &set);
}

static struct span read_choice(struct regex *x);

static struct span read_group(struct regex *x) {
    struct span span = {0, 0};
    if (x->at[0] == '?') {
        const char *name_end = x->at[1] == '<' || (x->at[1] == 'P' && x->at[2] == '<') ? strchr(x->at, '>') : NULL;
        if (x->at[1] == ':') {
            x->at += 2;
        } else if (name_end != NULL && x->at[2] != '=' && x->at[2] != '!') {
            x->at = name_end + 1;
        } else {
            fail(x, "a group that looks around, or sets flags");
            return span;
        }
    }
    if (++x->depth > 50) {
        fail(x, "groups nested too deeply");
        return span;
    }
    print(x, "(");
    span = read_choice(x);
    print(x, ")");
    x->depth--;
    if (*x->at != ')') {
        fail(x, "a group that does not end");
    } else {
        x->at++;
    }
    return span;
}

/* One character, set or group, printed as a group. */
static struct span read_atom(struct regex *x) {
    const struct span one = {1, 1};
    struct set set = {.n = 0};
    uint32_t c = 0;
    char first = *x->at;
    if (first == '(') {
        x->at++;
        return read_group(x);
    }
    if (first == '[') {
        x->at++;
        read_class(x);
        return one;
    }
    if (strchr("*+?{^$", first) != NULL) {
        fail(x, first == '^' || first == '$' ? "an anchor inside" : "nothing to repeat");
        return one;
    }
    if (first == '.') {
        x->at++;
        set_add(&set, 10, 10);
        set_add(&set, 13, 13);
        set_add(&set, 0x85, 0x85);
        set_add(&set, 0x2028, 0x2029);
        set = complement(set);
    } else if (first == '\\') {
        x->at++;
        if (!read_escape(x, &set, &c)) {
            set_add(&set, c, c);
        }
    } else {
        c = next_char(x);
        set_add(&set, c, c);
    }
    if (x->error == NULL) {
        print_class(x, &set);
    }
    return one;
}

static bool read_number(struct regex *x, size_t *value) {
    bool any = false;
    for (*value = 0; *x->at >= '0' && *x->at <= '9'; x->at++) {
        *value = plus(times(*value, 10), (size_t)(*x->at - '0'));
        any = true;
    }
    return any;
}

/* {m}, {m,}, {m,n}, *, +, ? and nothing. */
static struct span read_count(struct regex *x) {
    struct span count = {1, 1};
    char c = *x->at;
    if (c == '*' || c == '+' || c == '?') {
        x->at++;
        count = (struct span){c == '+', c == '?' ? 1 : SCHEMA_MANY};
    } else if (c == '{') {
        x->at++;
        bool ok = read_number(x, &count.min);
        count.max = count.min;
        if (ok && *x->at == ',') {
            x->at++;
            if (!read_number(x, &count.max)) {
                count.max = SCHEMA_MANY;
            }
        }
        if (!ok || *x->at != '}' || count.min > count.max) {
            fail(x, "a broken number of repetitions");
            return count;
        }
        x->at++;
    } else {
        return count;
    }
    x->at += *x->at == '?'; /* lazy: the same texts */
    if (*x->at == '+' || *x->at == '*') {
        fail(x, "a repetition of a repetition");
    }
    return count;
}

static void print_count(struct regex *x, size_t from, struct span count) {
    if (count.max == 0) {
        x->out->len = from;
        return;
    }
    if (count.min > SCHEMA_REPEATS || (count.max > SCHEMA_REPEATS && count.max < SCHEMA_MANY)) {
        fail(x, "too many repetitions");
        return;
    }
    size_t len = x->out->len - from;
    if (x->out->len > PATTERN_BYTES_MAX) { /* each {m,} says what it repeats twice: that doubles with each level */
        fail(x, "too long a pattern");
        return;
    }
    if (count.max == SCHEMA_MANY && count.min > 1) {
        /* {m,} is not understood by everyone: {m} and * instead. */
        char *copy = malloc(len + 1);
        if (copy == NULL) {
            fail(x, no_memory);
            return;
        }
        memcpy(copy, x->out->data + from, len);
        copy[len] = '\0';
        bool ok = hearth_buf_printf(x->out, "{%zu}%s*", count.min, copy);
        free(copy);
        if (!ok) {
            fail(x, no_memory);
        }
    } else if (count.max == SCHEMA_MANY) {
        print(x, count.min == 0 ? "*" : "+");
    } else if (count.min != 1 || count.max != 1) {
        bool ok = count.min == count.max ? hearth_buf_printf(x->out, "{%zu}", count.min)
                                         : hearth_buf_printf(x->out, "{%zu,%zu}", count.min, count.max);
        if (!ok) {
            fail(x, no_memory);
        }
    }
}

static struct span read_sequence(struct regex *x) {
    struct span all = {0, 0};
    while (x->error == NULL && *x->at != '\0' && *x->at != '|' && *x->at != ')') {
        if (x->depth == 0 && x->at[0] == '$' && (x->at[1] == '\0' || x->at[1] == '|')) {
            break;
        }
        size_t from = x->out->len;
        const char *start = x->at;
        struct span atom = read_atom(x);
        struct span count = read_count(x);
        if (x->depth == 0 && start == x->narrow_at) {
            count = x->narrow;
        } else if (x->depth == 0 && x->narrow_at == NULL && atom.min == 1 && atom.max == 1 && count.min != count.max) {
            x->narrow_at = start;
            x->narrow = count;
        }
        x->flexible += x->depth == 0 && times(atom.min, count.min) != times(atom.max, count.max);
        if (x->error == NULL) {
            print_count(x, from, count);
        }
        all.min = plus(all.min, times(atom.min, count.min));
        all.max = plus(all.max, times(atom.max, count.max));
    }
    return all;
}

static struct span read_choice(struct regex *x) {
    struct span all = {SCHEMA_MANY, 0};
    for (;;) {
        struct span one = read_sequence(x);
        all.min = one.min < all.min ? one.min : all.min;
        all.max = one.max > all.max ? one.max : all.max;
        if (x->error != NULL || *x->at != '|') {
            return all;
        }
        x->at++;
        print(x, "|");
    }
}

/* The whole: `anywhere` is whether a side that is not anchored may have more text on it. */
static struct span read_all(struct regex *x, bool anywhere) {
    const struct set none = {.n = 0};
    const struct set any = complement(none);
    struct span all = {SCHEMA_MANY, 0};
    print(x, "^(");
    for (;;) {
        bool from_start = *x->at == '^';
        x->at += from_start;
        if (!from_start && anywhere) {
            print_class(x, &any);
            print(x, "*");
        }
        struct span one = read_sequence(x);
        bool to_end = *x->at == '$';
        x->at += to_end;
        if (!to_end && anywhere) {
            print_class(x, &any);
            print(x, "*");
        }
        if (anywhere && !(from_start && to_end)) {
            one.max = SCHEMA_MANY;
        }
        all.min = one.min < all.min ? one.min : all.min;
        all.max = one.max > all.max ? one.max : all.max;
        if (x->error != NULL || *x->at == '\0') {
            break;
        }
        if (*x->at != '|') {
            fail(x, "unbalanced parentheses");
            break;
        }
        x->flexible += 2; /* several choices are not narrowed */
        x->at++;
        print(x, "|");
    }
    print(x, ")$");
    return all;
}

const char *hearth_schema_pattern(const char *pattern, size_t min, size_t max, struct hearth_buf *out) {
    for (int anywhere = 1; anywhere >= 0; anywhere--) {
        struct regex x = {.at = pattern, .out = out};
        out->len = 0;
        struct span all = read_all(&x, anywhere != 0);
        if (x.error != NULL) {
            return x.error;
        }
        if (all.min >= min && all.max <= max) {
            return NULL;
        }
        if (anywhere == 0 && x.flexible == 1 && x.narrow_at != NULL) {
            /* One part can grow: by as much as the length leaves to it. */
            const size_t fixed = all.min - x.narrow.min;
            struct span narrow = x.narrow;
            narrow.min = min > fixed && min - fixed > narrow.min ? min - fixed : narrow.min;
            narrow.max = max <= fixed ? 0 : max - fixed < narrow.max ? max - fixed : narrow.max;
            if (fixed <= max && narrow.min <= narrow.max) {
                x = (struct regex){.at = pattern, .out = out, .narrow_at = x.narrow_at, .narrow = narrow};
                out->len = 0;
                read_all(&x, false);
                return x.error;
            }
        }
    }
    return "it does not go with the length that is asked for";
}

bool hearth_schema_any_text(size_t min, size_t max, struct hearth_buf *out) {
    const struct set none = {.n = 0};
    const struct set any = complement(none);
    bool unused;
    struct hearth_buf one = {0};
    bool ok = print_set(&one, &any, &unused);
    const char *text = (const char *)one.data;
    if (!ok) {
        hearth_buf_finish(&one);
        return false;
    }
    out->len = 0;
    if (max == SCHEMA_MANY) {
        ok = hearth_buf_printf(out, "^%s{%zu}%s*$", text, min, text);
    } else if (max <= 2 * SCHEMA_REPEATS) {
        ok = hearth_buf_printf(out, "^%s{%zu,%zu}$", text, min, max);
    } else {
        /* In steps, up to the step below: a little less than what is allowed. */
        size_t steps = (max - min - (SCHEMA_REPEATS - 1)) / SCHEMA_REPEATS;
        steps = steps < SCHEMA_REPEATS ? steps : SCHEMA_REPEATS;
        ok = hearth_buf_text(out, "^") && (min == 0 || hearth_buf_printf(out, "%s{%zu}", text, min)) &&
             hearth_buf_printf(out, "(%s{%d}){0,%zu}%s{0,%d}$", text, SCHEMA_REPEATS, steps, text, SCHEMA_REPEATS - 1);
    }
    hearth_buf_finish(&one);
    return ok;
}
