/* The regular expressions of trigger.h: a parser that writes a program as it reads, and a machine that backtracks with
 * a stack of its own. Jumps are relative, so that code can be moved and repeated.
 *
 * Invariants: programs have at most CODE_MAX instructions, nesting is at most DEPTH_MAX; one search takes at most
 * STEPS_MAX steps and STACK_MAX choices, so no pattern can hang or exhaust anything. */
#include "grammar/trigger.h"

#include "base/buf.h"
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_MAX = 16384, DEPTH_MAX = 64, REPEAT_MAX = 1000, GROUPS_MAX = 16 };
enum { STEPS_MAX = 200000, STACK_MAX = 8192 };

#define NONE (-1)
#define NO_LIMIT INT32_MAX

enum op { OP_BYTE, OP_CLASS, OP_BEGIN, OP_FINISH, OP_SPLIT, OP_JUMP, OP_OPEN, OP_CLOSE, OP_LOOK, OP_MATCH };

/* SPLIT tries the instruction at the distance `a`, then that at `b`. LOOK runs from the next instruction to its MATCH
 * and goes on at `a`; b: negative. */
struct code {
    enum op op;
    int32_t a, b;
};

struct class {
    uint8_t bits[32];
};

struct hearth_grammar_trigger {
    struct code *code;
    int32_t code_count;
    struct class *classes;
    int32_t class_count;
};

struct compiler {
    struct hearth_grammar_trigger *trigger;
    const char *at;
    struct code *block; /* what is being repeated; room for CODE_MAX */
    size_t class_cap;
    int32_t groups, depth;
    const char *error;
};

/* ---- compiling ---- */

static void parse_either(struct compiler *c);

static void fail(struct compiler *c, const char *error) {
    c->error = c->error != NULL ? c->error : error;
}

static int32_t here(const struct compiler *c) {
    return c->trigger->code_count;
}

/* Adds an instruction; returns its place. */
static int32_t emit(struct compiler *c, enum op op, int32_t a, int32_t b) {
    struct hearth_grammar_trigger *t = c->trigger;
    if (c->error != NULL || t->code_count == CODE_MAX) {
        fail(c, "it is too large");
        return 0;
    }
    t->code[t->code_count] = (struct code){op, a, b};
    return t->code_count++;
}

/* The instruction goes on behind all code so far. */
static void to_here(struct compiler *c, int32_t at) {
    c->trigger->code[at].a = here(c) - at;
}

static void class_set(struct class *class, uint8_t byte) {
    class->bits[byte / 8] |= (uint8_t)(1u << byte % 8);
}

static bool class_has(const struct class *class, uint8_t byte) {
    return (class->bits[byte / 8] >> byte % 8 & 1) != 0;
}

/* \s \d \w and their opposites; false: not one of them. */
static bool class_named(char name, struct class *class) {
    struct class these = {{0}};
    char lower = (char)(name | 0x20);
    if (lower != 's' && lower != 'd' && lower != 'w') {
        return false;
    }
    for (int b = 0; b < 256; b++) {
        bool digit = b >= '0' && b <= '9';
        bool letter = (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || b == '_';
        bool space = b == ' ' || (b >= '\t' && b <= '\r');
        if (lower == 's' ? space : lower == 'd' ? digit : digit || letter) {
            class_set(&these, (uint8_t)b);
        }
    }
    for (size_t i = 0; i < sizeof these.bits; i++) {
        class->bits[i] |= name == lower ? these.bits[i] : (uint8_t)~these.bits[i];
    }
    return true;
}

static void add_class(struct compiler *c, const struct class *class) {
    struct hearth_grammar_trigger *t = c->trigger;
    if (!HEARTH_BUF_ROOM(t->classes, (size_t)t->class_count, c->class_cap)) {
        fail(c, "out of memory");
        return;
    }
    t->classes[t->class_count] = *class;
    emit(c, OP_CLASS, t->class_count++, 0);
}

static int hex(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *digit = c != '\0' ? strchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
    return digit != NULL ? (int)(digit - digits) : -1;
}

/* The byte behind a backslash; moves past it. */
static bool escaped(struct compiler *c, uint8_t *byte) {
    static const char names[] = "nrtfv0", bytes[] = "\n\r\t\f\v";
    char e = *c->at;
    if (e == '\0') {
        return false;
    }
    c->at++;
    const char *known = strchr(names, e);
    if (known != NULL) {
        *byte = (uint8_t)bytes[known - names];
        return true;
    }
    if (e == 'x') {
        int high = hex(c->at[0]), low = high < 0 ? -1 : hex(c->at[1]);
        *byte = (uint8_t)(high << 4 | low);
        c->at += low < 0 ? 0 : 2;
        return low >= 0;
    }
    *byte = (uint8_t)e;
    return !((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '1' && e <= '9'));
}

/* One member of a class, or false when it was a named class. */
static bool class_member(struct compiler *c, struct class *class, uint8_t *byte) {
    if (*c->at != '\\') {
        *byte = (uint8_t)*c->at++;
        return true;
    }
    c->at++;
    if (class_named(*c->at, class)) {
        c->at++;
        return false;
    }
    if (!escaped(c, byte)) {
        fail(c, "an escape is unknown");
    }
    return true;
}

static void parse_class(struct compiler *c) {
    struct class class = {{0}};
    bool negated = *c->at == '^';
    c->at += negated;
    while (*c->at != ']' && c->error == NULL) {
        uint8_t lo, hi;
        if (*c->at == '\0') {
            fail(c, "\"]\" is missing");
            return;
        }
        if (!class_member(c, &class, &lo)) {
            continue;
        }
        hi = lo;
        if (c->at[0] == '-' && c->at[1] != ']' && c->at[1] != '\0') {
            c->at++;
            if (!class_member(c, &class, &hi)) {
                fail(c, "a range has no end");
            }
        }
        for (unsigned b = lo; b <= hi; b++) {
            class_set(&class, (uint8_t)b);
        }
    }
    if (c->error != NULL) {
        return;
    }
    c->at++;
    for (size_t i = 0; negated && i < sizeof class.bits; i++) {
        class.bits[i] = (uint8_t)~class.bits[i];
    }
    add_class(c, &class);
}

static void parse_group(struct compiler *c) {
    const char type = c->at[0] == '?' ? c->at[1] : '(';
    if (strchr("(:=!", type) == NULL || type == '\0') {
        fail(c, "a group is of an unknown kind");
    } else if (++c->depth > DEPTH_MAX) {
        fail(c, "it is nested too deeply");
    }
    if (c->error != NULL) {
        return;
    }
    c->at += type == '(' ? 0 : 2;
    const bool looks = type == '=' || type == '!';
    const int32_t group = type == '(' && c->groups < GROUPS_MAX ? c->groups++ : NONE;
    const int32_t begin = looks           ? emit(c, OP_LOOK, 0, type == '!')
                          : group != NONE ? emit(c, OP_OPEN, group, 0)
                                          : here(c);
    parse_either(c);
    if (looks) {
        emit(c, OP_MATCH, 0, 0);
        to_here(c, begin);
    } else if (group != NONE) {
        emit(c, OP_CLOSE, group, 0);
    }
    c->depth--;
    if (*c->at != ')') {
        fail(c, "\")\" is missing");
    } else {
        c->at++;
    }
}

static void parse_atom(struct compiler *c) {
    const char ch = *c->at++;
    struct class class = {{0}};
    uint8_t byte = (uint8_t)ch;
    switch (ch) {
    case '(': parse_group(c); return;
    case '[': parse_class(c); return;
    case '^': emit(c, OP_BEGIN, 0, 0); return;
    case '$': emit(c, OP_FINISH, 0, 0); return;
    case '.':
        memset(class.bits, 0xFF, sizeof class.bits);
        class.bits['\n' / 8] &= (uint8_t)~(1u << '\n' % 8);
        class.bits['\r' / 8] &= (uint8_t)~(1u << '\r' % 8);
        add_class(c, &class);
        return;
    case '\\':
        if (class_named(*c->at, &class)) {
            c->at++;
            add_class(c, &class);
            return;
        }
        if (!escaped(c, &byte)) {
            fail(c, "an escape is unknown");
        }
        break;
    case '*':
    case '+':
    case '?':
    case '{': fail(c, "there is nothing to repeat"); break;
    }
    emit(c, OP_BYTE, byte, 0);
}

static int32_t number(struct compiler *c) {
    int32_t n = 0;
    if (*c->at < '0' || *c->at > '9') {
        fail(c, "a number is missing");
    }
    for (; *c->at >= '0' && *c->at <= '9' && c->error == NULL; c->at++) {
        n = n * 10 + (*c->at - '0');
        if (n > REPEAT_MAX) {
            fail(c, "a number is too large");
        }
    }
    return n;
}

static void emit_split(struct compiler *c, int32_t behind, bool lazy) {
    emit(c, OP_SPLIT, lazy ? behind : 1, lazy ? 1 : behind);
}

static void emit_block(struct compiler *c, int32_t len) {
    for (int32_t i = 0; i < len && c->error == NULL; i++) {
        emit(c, c->block[i].op, c->block[i].a, c->block[i].b);
    }
}

/* Repeats the code from `begin` on. */
static void repeat(struct compiler *c, int32_t begin, int32_t least, int32_t most, bool lazy) {
    const int32_t len = here(c) - begin;
    memcpy(c->block, c->trigger->code + begin, (size_t)len * sizeof *c->block);
    c->trigger->code_count = begin;
    for (int32_t i = 0; i < least && c->error == NULL; i++) {
        emit_block(c, len);
    }
    if (most == NO_LIMIT) {
        emit_split(c, len + 2, lazy);
        emit_block(c, len);
        emit(c, OP_JUMP, -len - 1, 0);
        return;
    }
    for (int32_t left = most - least; left > 0 && c->error == NULL; left--) {
        emit_split(c, left * (len + 1), lazy);
        emit_block(c, len);
    }
}

static void parse_repeat(struct compiler *c) {
    const int32_t begin = here(c);
    parse_atom(c);
    while (c->error == NULL && *c->at != '\0' && strchr("*+?{", *c->at) != NULL) {
        const char what = *c->at++;
        int32_t least = what == '+', most = what == '?' ? 1 : NO_LIMIT;
        if (what == '{') {
            least = most = number(c);
            if (*c->at == ',') {
                c->at++;
                most = *c->at == '}' ? NO_LIMIT : number(c);
            }
            if (*c->at != '}' || least > most) {
                fail(c, "a repetition is not well formed");
                return;
            }
            c->at++;
        }
        const bool lazy = *c->at == '?';
        c->at += lazy;
        repeat(c, begin, least, most, lazy);
    }
}

static void parse_either(struct compiler *c) {
    const int32_t begin = here(c);
    while (c->error == NULL && *c->at != '\0' && *c->at != '|' && *c->at != ')') {
        parse_repeat(c);
    }
    if (c->error != NULL || *c->at != '|') {
        return;
    }
    const int32_t len = here(c) - begin;
    struct code *code = c->trigger->code + begin;
    c->at++;
    emit(c, OP_SPLIT, 0, 0); /* room in front of the first choice */
    if (c->error != NULL) {
        return;
    }
    memmove(code + 1, code, (size_t)len * sizeof *code);
    code[0] = (struct code){OP_SPLIT, 1, len + 2};
    const int32_t jump = emit(c, OP_JUMP, 0, 0);
    parse_either(c);
    to_here(c, jump);
}

int hearth_grammar_trigger_create(const char *pattern, struct hearth_grammar_trigger **out, struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_grammar_trigger *trigger = hearth_memory_calloc(1, sizeof *trigger);
    struct compiler c = {.trigger = trigger, .at = pattern};
    c.block = hearth_memory_malloc(CODE_MAX * sizeof *c.block);
    if (trigger != NULL) {
        trigger->code = hearth_memory_malloc(CODE_MAX * sizeof *trigger->code);
    }
    if (trigger == NULL || c.block == NULL || trigger->code == NULL) {
        free(c.block);
        hearth_grammar_trigger_destroy(trigger);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a trigger");
    }
    parse_either(&c);
    if (*c.at != '\0') {
        fail(&c, "\")\" stands alone");
    }
    emit(&c, OP_MATCH, 0, 0);
    free(c.block);
    if (c.error != NULL) {
        hearth_grammar_trigger_destroy(trigger);
        return hearth_fail(msg, HEARTH_ERR_INVALID, "the trigger pattern \"%.200s\" cannot be used: %s", pattern,
                           c.error);
    }
    struct code *code = hearth_memory_realloc(trigger->code, (size_t)trigger->code_count * sizeof *code);
    trigger->code = code != NULL ? code : trigger->code;
    *out = trigger;
    return HEARTH_OK;
}

void hearth_grammar_trigger_destroy(struct hearth_grammar_trigger *trigger) {
    if (trigger != NULL) {
        free(trigger->code);
        free(trigger->classes);
        free(trigger);
    }
}

/* ---- the machine ---- */

/* What to go back to: another way (slot NONE), or what a group's bound was. */
struct way_back {
    int32_t pc, slot;
    size_t pos;
};

struct machine {
    const struct hearth_grammar_trigger *trigger;
    const char *text;
    size_t len;
    bool whole;
    size_t bounds[2 * GROUPS_MAX];
    struct way_back stack[STACK_MAX];
    int32_t depth;
    int32_t steps;
};

static bool bound(struct machine *m, int32_t slot, size_t pos) {
    if (m->depth == STACK_MAX) {
        return false;
    }
    m->stack[m->depth++] = (struct way_back){0, slot, m->bounds[slot]};
    m->bounds[slot] = pos;
    return true;
}

/* Runs from (pc, pos) to a MATCH. Choices below the ones made here are left alone. */
static bool run(struct machine *m, int32_t pc, size_t pos, int looks) {
    int32_t base = m->depth;
    for (; m->steps < STEPS_MAX; m->steps++) {
        const struct code *code = &m->trigger->code[pc];
        bool ok = true;
        switch (code->op) {
        case OP_MATCH: m->depth = base; return true;
        case OP_BYTE: ok = pos < m->len && (uint8_t)m->text[pos++] == code->a; break;
        case OP_CLASS: ok = pos < m->len && class_has(&m->trigger->classes[code->a], (uint8_t)m->text[pos++]); break;
        case OP_BEGIN: ok = pos == 0 && m->whole; break;
        case OP_FINISH: ok = pos == m->len; break;
        case OP_OPEN: ok = bound(m, 2 * code->a, pos); break;
        case OP_CLOSE: ok = bound(m, 2 * code->a + 1, pos); break;
        case OP_LOOK: ok = looks < DEPTH_MAX && run(m, pc + 1, pos, looks + 1) == (code->b == 0); break;
        case OP_SPLIT:
            ok = m->depth < STACK_MAX;
            if (ok) {
                m->stack[m->depth++] = (struct way_back){pc + code->b, NONE, pos};
            }
            break;
        case OP_JUMP: break;
        }
        pc += code->op == OP_SPLIT || code->op == OP_JUMP || code->op == OP_LOOK ? code->a : 1;
        while (!ok) {
            if (m->depth == base) {
                return false;
            }
            struct way_back choice = m->stack[--m->depth];
            if (choice.slot != NONE) {
                m->bounds[choice.slot] = choice.pos;
            } else {
                pc = choice.pc;
                pos = choice.pos;
                ok = true;
            }
        }
    }
    m->depth = base;
    return false;
}

bool hearth_grammar_trigger_find(const struct hearth_grammar_trigger *trigger, const char *text, size_t len,
                                 size_t from, bool whole, size_t *start) {
    struct machine *m = hearth_memory_malloc(sizeof *m);
    if (m == NULL) {
        return false;
    }
    m->trigger = trigger;
    m->text = text;
    m->len = len;
    m->whole = whole;
    m->depth = m->steps = 0;
    const struct code *first = &trigger->code[0];
    bool found = false;
    for (size_t at = from; at <= len && m->steps < STEPS_MAX && !found; at++) {
        if (first->op == OP_BYTE) {
            const char *next = at < len ? memchr(text + at, first->a, len - at) : NULL;
            if (next == NULL) {
                break;
            }
            at = (size_t)(next - text);
        }
        memset(m->bounds, 0, sizeof m->bounds);
        found = run(m, 0, at, 0);
        if (found) {
            *start = at;
            for (int g = 0; g < GROUPS_MAX; g++) {
                if (m->bounds[2 * g + 1] > m->bounds[2 * g]) {
                    *start = m->bounds[2 * g];
                    break;
                }
            }
        } else if (first->op == OP_BEGIN) {
            break;
        }
    }
    free(m);
    return found;
}
