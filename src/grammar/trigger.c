/* The regular expressions of trigger.h: a parser that builds a tree, a compiler that turns it into a program, and a
 * machine that backtracks with a stack of its own.
 *
 * Invariants: programs have at most CODE_MAX instructions, trees at most NODES_MAX nodes, nesting at most DEPTH_MAX;
 * one search takes at most STEPS_MAX steps and STACK_MAX choices, so no pattern can hang or exhaust anything. */
#include "grammar/trigger.h"

#include "base/buf.h"
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 4096, CODE_MAX = 16384, DEPTH_MAX = 64, REPEAT_MAX = 1000, GROUPS_MAX = 16 };
enum { STEPS_MAX = 200000, STACK_MAX = 8192 };

#define NONE (-1)
#define NO_LIMIT INT32_MAX

enum node_kind { EMPTY, BYTE, CLASS, BEGIN, FINISH, GROUP, AHEAD, NOT_AHEAD, CONCAT, EITHER, REPEAT };

struct pattern_node {
    enum node_kind kind;
    int32_t a, b;        /* children; BYTE, CLASS, GROUP: the byte, class or group in b */
    int32_t least, most; /* REPEAT */
    bool lazy;
};

enum op { OP_BYTE, OP_CLASS, OP_BEGIN, OP_FINISH, OP_SPLIT, OP_JUMP, OP_OPEN, OP_CLOSE, OP_LOOK, OP_MATCH };

/* SPLIT tries `a`, then `b`. LOOK runs from the next instruction to its MATCH and goes on at `a`; b: negative. */
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
    const char *pattern, *at;
    struct pattern_node *nodes;
    int32_t node_count;
    size_t class_cap;
    int32_t groups, depth;
    const char *error;
};

/* ---- parsing ---- */

static int32_t parse_either(struct compiler *c);

static int32_t fail(struct compiler *c, const char *error) {
    if (c->error == NULL) {
        c->error = error;
    }
    return NONE;
}

static int32_t add(struct compiler *c, enum node_kind kind, int32_t a, int32_t b) {
    if (c->error != NULL || c->node_count == NODES_MAX) {
        return fail(c, "it is too large");
    }
    c->nodes[c->node_count] = (struct pattern_node){.kind = kind, .a = a, .b = b};
    return c->node_count++;
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

static int32_t add_class(struct compiler *c, const struct class *class) {
    struct hearth_grammar_trigger *t = c->trigger;
    if (!HEARTH_BUF_ROOM(t->classes, (size_t)t->class_count, c->class_cap)) {
        return fail(c, "out of memory");
    }
    t->classes[t->class_count] = *class;
    return add(c, CLASS, NONE, t->class_count++);
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

static int32_t parse_class(struct compiler *c) {
    struct class class = {{0}};
    bool negated = *c->at == '^';
    c->at += negated;
    while (*c->at != ']' && c->error == NULL) {
        uint8_t lo, hi;
        if (*c->at == '\0') {
            return fail(c, "\"]\" is missing");
        }
        if (!class_member(c, &class, &lo)) {
            continue;
        }
        hi = lo;
        if (c->at[0] == '-' && c->at[1] != ']' && c->at[1] != '\0') {
            c->at++;
            if (!class_member(c, &class, &hi)) {
                return fail(c, "a range has no end");
            }
        }
        for (unsigned b = lo; b <= hi; b++) {
            class_set(&class, (uint8_t)b);
        }
    }
    if (c->error != NULL) {
        return NONE;
    }
    c->at++;
    for (size_t i = 0; negated && i < sizeof class.bits; i++) {
        class.bits[i] = (uint8_t)~class.bits[i];
    }
    return add_class(c, &class);
}

static int32_t parse_group(struct compiler *c) {
    enum node_kind kind = GROUP;
    if (c->at[0] == '?') {
        char type = c->at[1];
        kind = type == ':' ? CONCAT : type == '=' ? AHEAD : NOT_AHEAD;
        if (type != ':' && type != '=' && type != '!') {
            return fail(c, "a group is of an unknown kind");
        }
        c->at += 2;
    }
    if (++c->depth > DEPTH_MAX) {
        return fail(c, "it is nested too deeply");
    }
    int32_t group = kind == GROUP && c->groups < GROUPS_MAX ? c->groups++ : NONE;
    int32_t inside = parse_either(c);
    c->depth--;
    if (*c->at != ')') {
        return fail(c, "\")\" is missing");
    }
    c->at++;
    return kind == CONCAT || (kind == GROUP && group == NONE) ? inside : add(c, kind, inside, group);
}

static int32_t parse_atom(struct compiler *c) {
    char ch = *c->at++;
    struct class class = {{0}};
    uint8_t byte = (uint8_t)ch;
    switch (ch) {
    case '(': return parse_group(c);
    case '[': return parse_class(c);
    case '^': return add(c, BEGIN, NONE, NONE);
    case '$': return add(c, FINISH, NONE, NONE);
    case '.':
        memset(class.bits, 0xFF, sizeof class.bits);
        class.bits['\n' / 8] &= (uint8_t)~(1u << '\n' % 8);
        class.bits['\r' / 8] &= (uint8_t)~(1u << '\r' % 8);
        return add_class(c, &class);
    case '\\':
        if (class_named(*c->at, &class)) {
            c->at++;
            return add_class(c, &class);
        }
        return escaped(c, &byte) ? add(c, BYTE, NONE, byte) : fail(c, "an escape is unknown");
    case '*':
    case '+':
    case '?':
    case '{': return fail(c, "there is nothing to repeat");
    default: return add(c, BYTE, NONE, byte);
    }
}

static int32_t number(struct compiler *c) {
    int32_t n = 0;
    if (*c->at < '0' || *c->at > '9') {
        return fail(c, "a number is missing");
    }
    for (; *c->at >= '0' && *c->at <= '9'; c->at++) {
        n = n * 10 + (*c->at - '0');
        if (n > REPEAT_MAX) {
            return fail(c, "a number is too large");
        }
    }
    return n;
}

static int32_t parse_repeat(struct compiler *c) {
    int32_t atom = parse_atom(c);
    while (c->error == NULL && *c->at != '\0' && strchr("*+?{", *c->at) != NULL) {
        char what = *c->at++;
        int32_t least = what == '+', most = what == '?' ? 1 : NO_LIMIT;
        if (what == '{') {
            least = most = number(c);
            if (*c->at == ',') {
                c->at++;
                most = *c->at == '}' ? NO_LIMIT : number(c);
            }
            if (*c->at != '}' || least > most) {
                return fail(c, "a repetition is not well formed");
            }
            c->at++;
        }
        atom = add(c, REPEAT, atom, NONE);
        if (atom == NONE) {
            return NONE;
        }
        c->nodes[atom].least = least;
        c->nodes[atom].most = most;
        if (*c->at == '?') {
            c->at++;
            c->nodes[atom].lazy = true;
        }
    }
    return atom;
}

static int32_t parse_sequence(struct compiler *c) {
    int32_t sequence = NONE;
    while (c->error == NULL && *c->at != '\0' && *c->at != '|' && *c->at != ')') {
        int32_t item = parse_repeat(c);
        sequence = sequence == NONE ? item : add(c, CONCAT, sequence, item);
    }
    return sequence == NONE ? add(c, EMPTY, NONE, NONE) : sequence;
}

static int32_t parse_either(struct compiler *c) {
    int32_t either = parse_sequence(c);
    while (c->error == NULL && *c->at == '|') {
        c->at++;
        either = add(c, EITHER, either, parse_sequence(c));
    }
    return either;
}

/* ---- compiling ---- */

static int32_t emit(struct compiler *c, enum op op, int32_t a, int32_t b) {
    struct hearth_grammar_trigger *t = c->trigger;
    if (c->error != NULL || t->code_count == CODE_MAX) {
        fail(c, "it is too large");
        return 0;
    }
    t->code[t->code_count] = (struct code){op, a, b};
    return t->code_count++;
}

static void compile(struct compiler *c, int32_t at);

/* `split` goes on behind itself or, the other way, here. */
static void patch(struct compiler *c, int32_t split, bool lazy) {
    struct code *code = &c->trigger->code[split];
    code->a = lazy ? c->trigger->code_count : split + 1;
    code->b = lazy ? split + 1 : c->trigger->code_count;
}

static void compile_repeat(struct compiler *c, const struct pattern_node *node) {
    for (int32_t i = 0; i < node->least && c->error == NULL; i++) {
        compile(c, node->a);
    }
    if (node->most == NO_LIMIT) {
        int32_t split = emit(c, OP_SPLIT, 0, 0);
        compile(c, node->a);
        emit(c, OP_JUMP, split, 0);
        patch(c, split, node->lazy);
        return;
    }
    int32_t optional = node->most - node->least, splits[REPEAT_MAX];
    for (int32_t i = 0; i < optional && c->error == NULL; i++) {
        splits[i] = emit(c, OP_SPLIT, 0, 0);
        compile(c, node->a);
    }
    for (int32_t i = 0; i < optional && c->error == NULL; i++) {
        patch(c, splits[i], node->lazy);
    }
}

static void compile(struct compiler *c, int32_t at) {
    if (c->error != NULL) {
        return;
    }
    const struct pattern_node *node = &c->nodes[at];
    int32_t first, second;
    switch (node->kind) {
    case EMPTY: break;
    case BYTE: emit(c, OP_BYTE, node->b, 0); break;
    case CLASS: emit(c, OP_CLASS, node->b, 0); break;
    case BEGIN: emit(c, OP_BEGIN, 0, 0); break;
    case FINISH: emit(c, OP_FINISH, 0, 0); break;
    case GROUP:
        emit(c, OP_OPEN, node->b, 0);
        compile(c, node->a);
        emit(c, OP_CLOSE, node->b, 0);
        break;
    case AHEAD:
    case NOT_AHEAD:
        first = emit(c, OP_LOOK, 0, node->kind == NOT_AHEAD);
        compile(c, node->a);
        emit(c, OP_MATCH, 0, 0);
        c->trigger->code[first].a = c->trigger->code_count;
        break;
    case CONCAT:
        compile(c, node->a);
        compile(c, node->b);
        break;
    case EITHER:
        first = emit(c, OP_SPLIT, 0, 0);
        compile(c, node->a);
        second = emit(c, OP_JUMP, 0, 0);
        patch(c, first, false);
        compile(c, node->b);
        c->trigger->code[second].a = c->trigger->code_count;
        break;
    case REPEAT: compile_repeat(c, node); break;
    }
}

int hearth_grammar_trigger_create(const char *pattern, struct hearth_grammar_trigger **out, struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_grammar_trigger *trigger = hearth_memory_calloc(1, sizeof *trigger);
    struct compiler c = {.trigger = trigger, .pattern = pattern, .at = pattern};
    c.nodes = hearth_memory_malloc(NODES_MAX * sizeof *c.nodes);
    if (trigger != NULL) {
        trigger->code = hearth_memory_malloc(CODE_MAX * sizeof *trigger->code);
    }
    if (trigger == NULL || c.nodes == NULL || trigger->code == NULL) {
        free(c.nodes);
        hearth_grammar_trigger_destroy(trigger);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a trigger");
    }
    int32_t root = parse_either(&c);
    if (*c.at != '\0') {
        fail(&c, "\")\" stands alone");
    }
    compile(&c, root);
    emit(&c, OP_MATCH, 0, 0);
    free(c.nodes);
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
                m->stack[m->depth++] = (struct way_back){code->b, NONE, pos};
            }
            break;
        case OP_JUMP: break;
        }
        pc = code->op == OP_SPLIT || code->op == OP_JUMP || code->op == OP_LOOK ? code->a : pc + 1;
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
