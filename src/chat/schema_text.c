/* Rewrites regular expressions for common's converter.
 *
 * Design. The pattern of a JSON schema may match anywhere in a string. common's converter wants it anchored, and
 * takes it as a grammar of the raw JSON text, in which a quote, a backslash or a control character is an escape. So
 * a pattern is parsed here and printed anew: each set of characters without those that JSON must escape, beside the
 * short escapes of those that belong to it. Where regular expression dialects differ (\w and \d beyond ASCII) the
 * smaller set is taken. What no grammar can express (look-around, back-references, word boundaries) is an error.
 *
 * Invariants. The result never matches more than the original. A text that memory is refused for is noted
 * (base/memory.h), and schema.c drops it. */
#include "chat/schema_internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- sets of characters */

struct code_range {
    uint32_t from, to;
};

/* Of a set of so many ranges, what is not in it has one more, and print_set() adds five to that. */
enum { SET_MAX = 128, SET_ROOM = SET_MAX + 8, LAST_CHAR = 0x10FFFF, PATTERN_BYTES_MAX = 65536 };

struct set {
    struct code_range r[SET_ROOM];
    size_t n;
    bool full; /* it could not take a range */
};

static void set_add(struct set *set, uint32_t from, uint32_t to) {
    if (set->n < SET_ROOM) {
        set->r[set->n++] = (struct code_range){from, to};
    } else {
        set->full = true;
    }
}

static void set_add_all(struct set *set, const struct set *other) {
    for (size_t i = 0; i < other->n; i++) {
        set_add(set, other->r[i].from, other->r[i].to);
    }
}

static int by_start(const void *a, const void *b) {
    const struct code_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* What is not in a set. */
static struct set complement(struct set set) {
    struct set out = {.full = set.full};
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

/* What \d, \w, \s stand for and, for capitals, what is surely not in them. */
static const struct shorthand {
    char letter;
    struct code_range ranges[13]; /* up to the first that ends at 0 */
} shorthands[] = {
    {'d', {{'0', '9'}}},
    {'D', {{0, '0' - 1}, {'9' + 1, 0x7F}}},
    {'w', {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}},
    {'W', {{0, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'}, {'z' + 1, 0x7F}}},
    {'s', {{9, 13}, {' ', ' '}}},
    {'S',
     {{0, 8},
      {14, 27},
      {33, 0x84},
      {0x86, 0x9F},
      {0xA1, 0x167F},
      {0x1681, 0x1FFF},
      {0x200B, 0x2027},
      {0x202A, 0x202E},
      {0x2030, 0x205E},
      {0x2060, 0x2FFF},
      {0x3001, 0xFEFE},
      {0xFF00, LAST_CHAR}}},
};

static void add_shorthand(struct set *set, char letter) {
    const struct shorthand *named = shorthands;
    while (named->letter != letter) {
        named++;
    }
    for (const struct code_range *range = named->ranges; range->to > 0; range++) {
        set_add(set, range->from, range->to);
    }
}

static void print_char(struct hearth_buf *out, uint32_t c) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    (void)(plain ? hearth_buf_printf(out, "%c", (int)c) : hearth_buf_printf(out, "\\U%08X", c));
}

/* A set as it stands in JSON text: one group. False: no character of the set can be written. */
static bool print_set(struct hearth_buf *out, const struct set *set) {
    static const struct {
        uint32_t c, letter;
    } escapes[] = {{'"', '"'}, {'\\', '\\'}, {8, 'b'}, {9, 't'}, {10, 'n'}, {12, 'f'}, {13, 'r'}};
    struct set outside = complement(*set);
    set_add(&outside, 0, 0x1F);
    set_add(&outside, '"', '"');
    set_add(&outside, '\\', '\\');
    set_add(&outside, 0x7F, 0x7F);
    set_add(&outside, 0xD800, 0xDFFF);
    struct set plain = complement(outside);
    bool escape = false;
    hearth_buf_text(out, plain.n > 0 ? "([" : "(");
    for (size_t i = 0; i < plain.n; i++) {
        print_char(out, plain.r[i].from);
        if (plain.r[i].from != plain.r[i].to) {
            hearth_buf_text(out, "-");
            print_char(out, plain.r[i].to);
        }
    }
    hearth_buf_text(out, plain.n > 0 ? "]" : "");
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (set_has(set, escapes[i].c)) {
            hearth_buf_text(out, escape ? "" : plain.n > 0 ? "|\\\\[" : "\\\\[");
            print_char(out, escapes[i].letter);
            escape = true;
        }
    }
    hearth_buf_text(out, escape ? "])" : ")");
    return plain.n > 0 || escape;
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
    bool anywhere; /* a side that is not anchored may have more text on it */
    /* The one part at the top whose number may be narrowed to keep the length of the whole, found in a first pass and
     * narrowed in a second. */
    const char *narrow_at;
    struct span narrow;
    size_t flexible; /* parts of no fixed length */
};

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

static void print_class(struct regex *x, const struct set *set) {
    if (set->full || set->n > SET_MAX) {
        fail(x, "too large a set of characters");
    } else if (!print_set(x->out, set)) {
        fail(x, "a set of characters of which none can be written");
    }
}

static uint32_t next_char(struct regex *x) {
    uint32_t c = 0;
    const size_t len = hearth_utf8_decode(x->at, strnlen(x->at, 4), &c);
    if (len == 0) {
        fail(x, "a text that is not UTF-8");
    }
    x->at += len;
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
        add_shorthand(set, letter);
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
                if (memchr(seen, letter ^ 0x20, kinds) != NULL) { /* with its opposite it is everything */
                    set_add(&set, 0, LAST_CHAR);
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
        if (from > to) {
            fail(x, "a range that is empty");
        }
        set_add(&set, from, to);
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
            set_add_all(&set, &surely);
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
    hearth_buf_text(x->out, "(");
    span = read_choice(x);
    hearth_buf_text(x->out, ")");
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
    const size_t len = x->out->len - from;
    if (x->out->len > PATTERN_BYTES_MAX) { /* each {m,} says what it repeats twice: that doubles with each level */
        fail(x, "too long a pattern");
    } else if (count.max == SCHEMA_MANY && count.min > 1) {
        /* {m,} is not understood by everyone: {m} and * instead. */
        if (hearth_buf_reserve(x->out, len + 64)) { /* so that what is repeated stays where it is */
            hearth_buf_printf(x->out, "{%zu}%.*s*", count.min, (int)len, (char *)x->out->data + from);
        }
    } else if (count.max == SCHEMA_MANY) {
        hearth_buf_text(x->out, count.min == 0 ? "*" : "+");
    } else if (count.min != count.max) {
        hearth_buf_printf(x->out, "{%zu,%zu}", count.min, count.max);
    } else if (count.min != 1) {
        hearth_buf_printf(x->out, "{%zu}", count.min);
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

static void print_any_text(const struct regex *x) {
    const struct set none = {.n = 0}, any = complement(none);
    print_set(x->out, &any);
    hearth_buf_text(x->out, "*");
}

/* Only the choices of the whole have anchors. */
static struct span read_choice(struct regex *x) {
    struct span all = {SCHEMA_MANY, 0};
    const bool top = x->depth == 0;
    for (;;) {
        const bool from_start = top && *x->at == '^';
        x->at += from_start;
        if (top && x->anywhere && !from_start) {
            print_any_text(x);
        }
        struct span one = read_sequence(x);
        const bool to_end = top && *x->at == '$';
        x->at += to_end;
        if (top && x->anywhere && !to_end) {
            print_any_text(x);
        }
        if (top && x->anywhere && !(from_start && to_end)) {
            one.max = SCHEMA_MANY;
        }
        all.min = one.min < all.min ? one.min : all.min;
        all.max = one.max > all.max ? one.max : all.max;
        if (x->error != NULL || *x->at != '|') {
            return all;
        }
        x->flexible += top ? 2 : 0; /* several choices are not narrowed */
        x->at++;
        hearth_buf_text(x->out, "|");
    }
}

static struct span read_all(struct regex *x) {
    x->out->len = 0;
    hearth_buf_text(x->out, "^(");
    const struct span all = read_choice(x);
    hearth_buf_text(x->out, ")$");
    if (*x->at != '\0') {
        fail(x, "unbalanced parentheses");
    }
    return all;
}

const char *hearth_schema_pattern(const char *pattern, size_t min, size_t max, struct hearth_buf *out) {
    for (bool anywhere = true;; anywhere = false) {
        struct regex x = {.at = pattern, .out = out, .anywhere = anywhere};
        struct span all = read_all(&x);
        if (x.error != NULL) {
            return x.error;
        }
        if (all.min >= min && all.max <= max) {
            return NULL;
        }
        if (!anywhere && x.flexible == 1 && x.narrow_at != NULL) {
            /* One part can grow: by as much as the length leaves to it. */
            const size_t fixed = all.min - x.narrow.min;
            struct span narrow = x.narrow;
            narrow.min = min > fixed && min - fixed > narrow.min ? min - fixed : narrow.min;
            narrow.max = max <= fixed ? 0 : max - fixed < narrow.max ? max - fixed : narrow.max;
            if (fixed <= max && narrow.min <= narrow.max) {
                x = (struct regex){.at = pattern, .out = out, .narrow_at = x.narrow_at, .narrow = narrow};
                read_all(&x);
                return x.error;
            }
        }
        if (!anywhere) {
            return "it does not go with the length that is asked for";
        }
    }
}

void hearth_schema_any_text(size_t min, size_t max, struct hearth_buf *out) {
    const struct set none = {.n = 0}, any = complement(none);
    struct hearth_buf one = {0};
    print_set(&one, &any);
    const char *text = one.data != NULL ? (const char *)one.data : "";
    if (max == SCHEMA_MANY) {
        hearth_buf_printf(out, "^%s{%zu}%s*$", text, min, text);
    } else if (max <= 2 * SCHEMA_REPEATS) {
        hearth_buf_printf(out, "^%s{%zu,%zu}$", text, min, max);
    } else {
        /* In steps, up to the step below: a little less than what is allowed. */
        size_t steps = (max - min - (SCHEMA_REPEATS - 1)) / SCHEMA_REPEATS;
        steps = steps < SCHEMA_REPEATS ? steps : SCHEMA_REPEATS;
        hearth_buf_text(out, "^");
        if (min > 0) {
            hearth_buf_printf(out, "%s{%zu}", text, min);
        }
        hearth_buf_printf(out, "(%s{%d}){0,%zu}%s{0,%d}$", text, SCHEMA_REPEATS, steps, text, SCHEMA_REPEATS - 1);
    }
    hearth_buf_finish(&one);
}
