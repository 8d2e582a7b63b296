/* Counts what is in a body before it is parsed.
 *
 * Design. One pass over the bytes knows strings, brackets and commas, and keeps a frame for each open array or object:
 * where in the request it is, by a table of places. After the pass the counts are compared with the table of limits, so
 * that an error can tell the number. The pass also adds up the memory that the values will need: a value of two bytes
 * becomes a hundred, and hundreds more inside the template's engine.
 *
 * The pass is not a parser. Names are compared with their escapes resolved, so that escapes hide nothing; text that is
 * not JSON is counted as far as possible, and the parser reports it.
 *
 * The costs are those of jansson 2.14 and glibc's malloc, rounded up; tests/client/test_limits.py measures the server.
 */
#include "api/limits.h"

#include "api/internal.h"

#include <openssl/crypto.h>
#include <stdint.h>
#include <string.h>

static const struct {
    const char *name;
    size_t most;
    const char *what;
} limits[] = {
#define X(constant, name, most, what) {#name, (most), (what)},
    HEARTH_LIMIT_TABLE(X)
#undef X
};

size_t hearth_limit_most(enum hearth_limit limit) {
    return limits[limit].most;
}

bool hearth_limits_fail(enum hearth_limit limit, size_t found, const char *param, struct hearth_api_error *error) {
    return hearth_api_fail(error, 400, "limit_exceeded", param,
                           "the request has %zu %s and at most %zu are allowed "
                           "(limit: %s)",
                           found, limits[limit].what, limits[limit].most, limits[limit].name);
}

/* ---- places ---- */

enum json_place {
    ELSEWHERE,
    BODY,
    MESSAGES,
    MESSAGE,
    CONTENT,
    CALLS,
    CALL,
    INPUT, /* of a call: an object is printed and parsed again */
    TOOLS,
    TOOL,
    SCHEMA,
    ENUM,
    TEMPLATE,
    TOKENS, /* ids that become text */
};

#define ELEMENT NULL

/* The place of a value: by the place of its parent and by its name, or as an element. Without a row it has its parent's
 * place if that `inherits`, else none. */
static const struct {
    enum json_place in;
    const char *name;
    enum json_place to;
} steps[] = {
    {BODY, "messages", MESSAGES},
    {BODY, "input", MESSAGES},
    {BODY, "items", MESSAGES},
    {BODY, "system", CONTENT},
    {BODY, "tokens", TOKENS},
    {BODY, "tools", TOOLS},
    {BODY, "functions", TOOLS},
    {BODY, "chat_template_kwargs", TEMPLATE},
    {BODY, "response_format", SCHEMA},
    {BODY, "json_schema", SCHEMA},
    {BODY, "structured_outputs", SCHEMA},
    {BODY, "guided_json", SCHEMA},
    {BODY, "text", SCHEMA},
    {BODY, "output_format", SCHEMA},
    {BODY, "output_config", SCHEMA},
    {MESSAGES, ELEMENT, MESSAGE},
    {MESSAGE, "content", CONTENT},
    {MESSAGE, "output", CONTENT},
    {MESSAGE, "summary", CONTENT},
    {MESSAGE, "tool_calls", CALLS},
    {MESSAGE, "function_call", CALL},
    {MESSAGE, "input", INPUT},
    {MESSAGE, "tools", TOOLS},
    {MESSAGE, "tool", TOOL}, /* that a block of a system message defines */
    {CONTENT, ELEMENT, MESSAGE},
    {CALLS, ELEMENT, CALL},
    {CALL, "function", CALL},
    {CALL, "arguments", INPUT},
    {TOOLS, ELEMENT, TOOL},
    {TOOL, "enum", ENUM},
    {SCHEMA, "enum", ENUM},
};

static bool inherits(enum json_place place) {
    return place == INPUT || place == TOOL || place == SCHEMA || place == ENUM || place == TEMPLATE || place == TOKENS;
}

/* ---- memory ---- */

enum {
    ARRAY_BYTES = 144, /* with its slot in what it stands in, as all of these: */
    OBJECT_BYTES = 240,
    STRING_BYTES = 96,
    NUMBER_BYTES = 48,
    CONSTANT_BYTES = 16,
    MEMBER_BYTES = 96,    /* the name's text comes on top */
    MESSAGE_BYTES = 2500, /* what else is made of a message, */
    PART_BYTES = 100,     /* of a part of one, */
    CALL_BYTES = 900,     /* of a call */
    VALUE_BYTES = 500,    /* and of a value that the template sees */
    TOKEN_BYTES = 40,     /* copies of the text of a token, which may be longer than its id */
    TEXT_TIMES = 6,       /* copies of a text that are there at the same time, from the body to the prompt */
};

/* How many copies of a value are in memory at the same time. */
static size_t copies_in(enum json_place place) {
    return place == INPUT || place == TOOL || place == SCHEMA || place == ENUM ? 2 : 1;
}

static size_t value_bytes_in(enum json_place place) {
    return place == TOKENS ? TOKEN_BYTES : inherits(place) ? VALUE_BYTES : 0;
}

/* ---- the pass ---- */

struct frame {
    bool object, named; /* named: the name of a member is known, its value comes */
    uint8_t place, member_place;
    size_t members;
};

struct pass {
    const char *text;
    size_t len, pos;
    size_t depth; /* frames that stand for more than LEVELS are not kept */
    size_t bytes;
    size_t found[HEARTH_LIMITS];
    bool arguments;           /* the member holds a call's arguments: a text that is JSON */
    struct hearth_body *body; /* where its "messages" stand; NULL: that is not wanted */
    bool messages;            /* the value that comes is the body's "messages" */
    unsigned named;           /* how many members "messages" the body has */
    size_t item;              /* where the element begins that is read now */
    struct frame frames[HEARTH_LIMIT_LEVELS_MOST];
};

/* The next byte of a string's text, with escapes resolved; a byte that is not ASCII becomes 0x80. `*at` moves on. */
static unsigned char next_byte(const char *text, size_t end, size_t *at) {
    static const char plain[] = "bfnrt", means[] = "\b\f\n\r\t";
    const char c = text[(*at)++];
    if (c != '\\' || *at >= end) {
        return (unsigned char)c;
    }
    const char escaped = text[(*at)++];
    const char *found = escaped != '\0' ? strchr(plain, escaped) : NULL;
    if (found != NULL) {
        return (unsigned char)means[found - plain];
    }
    if (escaped != 'u') {
        return (unsigned char)escaped;
    }
    int code = 0;
    for (int i = 0; i < 4 && *at < end && OPENSSL_hexchar2int((unsigned char)text[*at]) >= 0; i++) {
        code = 16 * code + OPENSSL_hexchar2int((unsigned char)text[(*at)++]);
    }
    return code < 0x80 ? (unsigned char)code : 0x80;
}

static bool names(const char *text, size_t begin, size_t end, const char *name) {
    size_t at = begin;
    while (at < end && *name != '\0' && next_byte(text, end, &at) == (unsigned char)*name) {
        name++;
    }
    return at == end && *name == '\0';
}

static enum json_place place_of(enum json_place in, const char *text, size_t begin, size_t end) {
    const bool element = text == NULL;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i].in == in && (steps[i].name == ELEMENT) == element &&
            (element || names(text, begin, end, steps[i].name))) {
            return steps[i].to;
        }
    }
    return inherits(in) ? in : ELSEWHERE;
}

static struct frame *top(struct pass *pass) {
    return pass->depth > 0 && pass->depth <= HEARTH_LIMIT_LEVELS_MOST ? &pass->frames[pass->depth - 1] : NULL;
}

/* Where a string ends that begins with the quote at `begin`: behind its last quote; 0: it does not. */
static size_t string_end(const char *text, size_t len, size_t begin) {
    size_t at = begin + 1;
    const char *quote;
    while (at < len && (quote = memchr(text + at, '"', len - at)) != NULL) {
        const size_t end = (size_t)(quote - text);
        size_t slashes = 0;
        while (text[end - 1 - slashes] == '\\') { /* ends at the opening quote at the latest */
            slashes++;
        }
        at = end + 1;
        if (slashes % 2 == 0) {
            return at;
        }
    }
    return 0;
}

/* The memory that JSON inside a string will need. */
static size_t arguments_bytes(const char *text, size_t begin, size_t end) {
    size_t bytes = 0;
    bool string = false;
    for (size_t at = begin; at < end;) {
        const unsigned char c = next_byte(text, end, &at);
        if (string && c == '\\') {
            (void)(at < end && next_byte(text, end, &at));
        } else if (c == '"') {
            bytes += string ? 0 : STRING_BYTES + VALUE_BYTES;
            string = !string;
        } else if (!string) {
            bytes += c == '['   ? ARRAY_BYTES + VALUE_BYTES
                     : c == '{' ? OBJECT_BYTES + VALUE_BYTES
                     : c == ',' ? NUMBER_BYTES + VALUE_BYTES
                     : c == ':' ? MEMBER_BYTES
                                : 0;
        }
    }
    return bytes;
}

/* Counts a value that begins in the innermost frame, and returns its place. */
static enum json_place enter(struct pass *pass) {
    static const struct {
        enum json_place in;
        enum hearth_limit limit;
        size_t bytes;
    } elements[] = {{MESSAGES, HEARTH_LIMIT_MESSAGES, MESSAGE_BYTES},
                    {CONTENT, HEARTH_LIMIT_PARTS, PART_BYTES},
                    {CALLS, HEARTH_LIMIT_CALLS, CALL_BYTES},
                    {ENUM, HEARTH_LIMIT_ENUM_VALUES, 0}};
    struct frame *frame = top(pass);
    if (frame == NULL) {
        return pass->depth == 0 ? BODY : ELSEWHERE;
    }
    const enum json_place place = frame->object ? frame->member_place : place_of(frame->place, NULL, 0, 0);
    for (size_t i = 0; i < sizeof elements / sizeof elements[0] && !frame->object; i++) {
        if (elements[i].in == frame->place) {
            pass->found[elements[i].limit]++;
            pass->bytes += elements[i].bytes;
        }
    }
    pass->found[HEARTH_LIMIT_SCHEMA_VALUES] += place == TOOL || place == SCHEMA || place == ENUM;
    pass->found[HEARTH_LIMIT_TEMPLATE_VALUES] += place == TEMPLATE;
    pass->bytes += value_bytes_in(place);
    frame->named = false;
    return place;
}

/* Notes that an element of the body's "messages" ends here, if one is open. */
static void end_item(struct pass *pass) {
    struct hearth_body *body = pass->body;
    size_t from = pass->item;
    if (from == 0 || pass->depth != 2) {
        return;
    }
    while (from < pass->pos && memchr(" \t\r\n", pass->text[from], 4) != NULL) {
        from++;
    }
    /* Commas alone count towards no limit: what is noted has its own. */
    if (body->count < limits[HEARTH_LIMIT_MESSAGES].most && HEARTH_BUF_ROOM(body->items, body->count, body->cap)) {
        body->items[body->count++] = (struct hearth_body_item){.bytes = pass->text + from, .len = pass->pos - from};
    } else {
        pass->named += 2; /* one is missing */
    }
    pass->item = pass->pos + 1;
}

static void open_frame(struct pass *pass, bool object) {
    const enum json_place place = enter(pass);
    pass->bytes += copies_in(place) * (object ? OBJECT_BYTES : ARRAY_BYTES);
    if (pass->depth++ == 1 && pass->messages && !object) {
        pass->item = pass->body->begin = pass->pos + 1;
    }
    if (pass->depth > pass->found[HEARTH_LIMIT_LEVELS]) {
        pass->found[HEARTH_LIMIT_LEVELS] = pass->depth;
    }
    struct frame *frame = top(pass);
    if (frame != NULL) {
        *frame = (struct frame){.object = object, .place = (uint8_t)place};
    }
}

static void close_frame(struct pass *pass) {
    end_item(pass);
    pass->depth -= pass->depth > 0;
    if (pass->item > 0 && pass->depth == 1) {
        pass->body->end = pass->pos;
        pass->item = 0;
    }
}

static void read_string(struct pass *pass) {
    const size_t begin = pass->pos + 1, found = string_end(pass->text, pass->len, pass->pos);
    const size_t end = found > 0 ? found : pass->len;
    const size_t close = end > begin ? end - 1 : begin;
    struct frame *frame = top(pass);
    pass->pos = end;
    if (frame == NULL || !frame->object || frame->named) {
        const bool arguments = pass->arguments && frame != NULL && frame->object;
        const enum json_place place = enter(pass);
        pass->bytes += copies_in(place) * STRING_BYTES + TEXT_TIMES * (end - begin);
        pass->bytes += arguments ? arguments_bytes(pass->text, begin, close) : 0;
        return;
    }
    frame->named = true;
    frame->member_place = (uint8_t)place_of(frame->place, pass->text, begin, close);
    frame->members++;
    pass->arguments = names(pass->text, begin, close, "arguments");
    if (pass->depth == 1 && pass->body != NULL) {
        pass->messages = names(pass->text, begin, close, "messages");
        pass->named += pass->messages;
    }
    pass->bytes += copies_in(frame->place) * (MEMBER_BYTES + (end - begin));
    if (value_bytes_in(frame->place) > 0) {
        pass->bytes += VALUE_BYTES; /* names are values there */
        if (frame->place != INPUT && frame->members > pass->found[HEARTH_LIMIT_MEMBERS]) {
            pass->found[HEARTH_LIMIT_MEMBERS] = frame->members;
        }
    }
}

/* A number or a constant. */
static void read_scalar(struct pass *pass) {
    const char c = pass->text[pass->pos];
    const enum json_place place = enter(pass);
    pass->bytes += copies_in(place) * (c == 't' || c == 'f' || c == 'n' ? CONSTANT_BYTES : NUMBER_BYTES);
    do {
        pass->pos++;
    } while (pass->pos < pass->len && memchr(" \t\r\n,:[]{}\"", pass->text[pass->pos], 11) == NULL);
}

static void run(struct pass *pass) {
    while (pass->pos < pass->len) {
        const char c = pass->text[pass->pos];
        switch (c) {
        case ' ':
        case '\t':
        case '\r':
        case '\n':
        case ':': pass->pos++; break;
        case ',':
            end_item(pass);
            pass->pos++;
            break;
        case '{':
        case '[':
            open_frame(pass, c == '{');
            pass->pos++;
            break;
        case '}':
        case ']':
            close_frame(pass);
            pass->pos++;
            break;
        case '"': read_string(pass); break;
        default: read_scalar(pass);
        }
    }
}

/* The first limit, in the order of the table, that is exceeded; HEARTH_LIMITS: none. */
static enum hearth_limit passed(const size_t *found) {
    size_t i = 0;
    while (i < HEARTH_LIMITS && found[i] <= limits[i].most) {
        i++;
    }
    return (enum hearth_limit)i;
}

static size_t memory_most(size_t body_bytes) {
    return HEARTH_LIMIT_MEMORY_TIMES * body_bytes + HEARTH_LIMIT_MEMORY_EXTRA;
}

size_t hearth_limits_estimate(const char *text, size_t len) {
    struct pass pass = {.text = text, .len = len, .bytes = len};
    run(&pass);
    return pass.bytes;
}

bool hearth_limits_check(const char *text, size_t len, struct hearth_body *body, struct hearth_api_error *error) {
    struct pass pass = {.text = text, .len = len, .bytes = len, .body = body};
    run(&pass);
    if (pass.named > 1) { /* of several the parser takes the last */
        body->end = 0;
    }
    const enum hearth_limit limit = passed(pass.found);
    if (limit < HEARTH_LIMITS) {
        return hearth_limits_fail(limit, pass.found[limit], NULL, error);
    }
    return pass.bytes <= memory_most(len) ||
           hearth_api_fail(error, 413, "request_too_large", NULL,
                           "the body has %zu bytes, but what it says would take %zu in memory: the limit is %d times "
                           "the body and %zu more (limit: memory)",
                           len, pass.bytes, HEARTH_LIMIT_MEMORY_TIMES, HEARTH_LIMIT_MEMORY_EXTRA);
}

bool hearth_limits_answer(size_t body_bytes, size_t made, struct hearth_api_error *error) {
    return made <= memory_most(body_bytes) ||
           hearth_api_fail(error, 413, "request_too_large", NULL,
                           "the body has %zu bytes, but its answer would take more memory than %d times the body and "
                           "%zu more (limit: memory)",
                           body_bytes, HEARTH_LIMIT_MEMORY_TIMES, HEARTH_LIMIT_MEMORY_EXTRA);
}
