/* jansson's allocator, and parsing under it.
 *
 * jansson's lexer gathers the bytes of a token in a buffer and does not look whether a byte found room there: a token
 * loses bytes, silently or up to an assertion. So a parse is left by longjmp() out of the allocator at the first
 * refusal, before the lexer can go on. What the parse has allocated until then is in a set of its own, and is freed
 * from there; jansson holds nothing else while it parses.
 *
 * The set is an open-addressing table of pointers, at most half full; it begins on the stack, so that a short text
 * costs no allocation. Removal closes the gap by moving later entries back (Knuth, volume 3, 6.4, algorithm R). */
#include "session/json_memory.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 128 /* a power of two, as every size of the set */

struct parse {
    jmp_buf out;
    void **slots;
    size_t cap, count;
    void *first[FIRST_SLOTS];
};

static _Thread_local struct parse *parsing;

/* ---- the set ---- */

static size_t home_of(const struct parse *parse, const void *block) {
    const uint64_t mixed = (uint64_t)(uintptr_t)block * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 32) & (parse->cap - 1);
}

static void put(struct parse *parse, void *block) {
    size_t at = home_of(parse, block);
    while (parse->slots[at] != NULL) {
        at = (at + 1) & (parse->cap - 1);
    }
    parse->slots[at] = block;
}

static bool add(struct parse *parse, void *block) {
    if (2 * (parse->count + 1) > parse->cap) {
        void **old = parse->slots;
        const size_t old_cap = parse->cap;
        void **slots = calloc(2 * old_cap, sizeof *slots);
        if (slots == NULL) {
            return false;
        }
        parse->slots = slots;
        parse->cap = 2 * old_cap;
        for (size_t i = 0; i < old_cap; i++) {
            if (old[i] != NULL) {
                put(parse, old[i]);
            }
        }
        if (old != parse->first) {
            free(old);
        }
    }
    put(parse, block);
    parse->count++;
    return true;
}

static void take_out(struct parse *parse, const void *block) {
    const size_t mask = parse->cap - 1;
    size_t hole = home_of(parse, block);
    while (parse->slots[hole] != block) {
        if (parse->slots[hole] == NULL) {
            return; /* made before this parse */
        }
        hole = (hole + 1) & mask;
    }
    for (size_t at = (hole + 1) & mask; parse->slots[at] != NULL; at = (at + 1) & mask) {
        const size_t home = home_of(parse, parse->slots[at]);
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* its home is not behind the hole */
            parse->slots[hole] = parse->slots[at];
            hole = at;
        }
    }
    parse->slots[hole] = NULL;
    parse->count--;
}

static void free_all(struct parse *parse) {
    for (size_t i = 0; i < parse->cap; i++) {
        free(parse->slots[i]);
    }
}

/* ---- the allocator ---- */

static void *json_malloc(size_t size) {
    struct parse *parse = parsing;
    void *block = malloc(size);
    if (block != NULL && (parse == NULL || add(parse, block))) {
        return block;
    }
    free(block);
    hearth_memory_note();
    if (parse != NULL) {
        longjmp(parse->out, 1);
    }
    return NULL;
}

static void json_free(void *block) {
    if (parsing != NULL && block != NULL) {
        take_out(parsing, block);
    }
    free(block);
}

void hearth_json_watch_memory(void) {
    json_set_alloc_funcs(json_malloc, json_free);
}

/* ---- parsing ---- */

void hearth_json_fill_nomem(json_error_t *error) {
    static const char text[] = "out of memory";
    if (error != NULL) {
        memset(error, 0, sizeof *error);
        memcpy(error->text, text, sizeof text);
        error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory; /* where json_error_code() looks */
    }
}

json_t *hearth_json_load(const char *text, size_t len, size_t flags, json_error_t *error) {
    struct parse parse;
    json_t *value = NULL;
    memset(parse.first, 0, sizeof parse.first);
    parse.slots = parse.first;
    parse.cap = FIRST_SLOTS;
    parse.count = 0;
    parsing = &parse;
    if (_setjmp(parse.out) == 0) {
        value = json_loadb(text, len, flags, error);
        parsing = NULL;
    } else {
        parsing = NULL;
        free_all(&parse);
        hearth_json_fill_nomem(error);
        value = NULL;
    }
    if (parse.slots != parse.first) {
        free(parse.slots);
    }
    return value;
}

/* ---- printing ---- */

struct print {
    struct hearth_buf *out;
    bool failed;
};

static int append(const char *text, size_t len, void *user) {
    struct print *print = user;
    print->failed = print->failed || !hearth_buf_append(print->out, text, len);
    return print->failed ? -1 : 0;
}

bool hearth_json_print(const json_t *value, size_t flags, struct hearth_buf *out) {
    struct print print = {.out = out};
    const size_t before = out->len;
    if (json_dump_callback(value, append, &print, flags) == 0 && !print.failed) {
        return true;
    }
    out->len = before;
    return false;
}

char *hearth_json_dumps(const json_t *value, size_t flags) {
    struct hearth_buf text = {0};
    if (!hearth_json_print(value, flags, &text) || !hearth_buf_append(&text, "", 1)) {
        hearth_buf_finish(&text);
        return NULL;
    }
    return (char *)hearth_buf_take(&text);
}

json_t *hearth_json_text(const char *text, size_t len) {
    json_t *value = json_stringn(len > 0 ? text : "", len);
    if (value != NULL || hearth_utf8_valid(text, len)) {
        return value;
    }
    struct hearth_buf repaired = {0};
    if (hearth_utf8_append(&repaired, text, len)) {
        value = json_stringn((const char *)repaired.data, repaired.len);
    }
    hearth_buf_finish(&repaired);
    return value;
}
