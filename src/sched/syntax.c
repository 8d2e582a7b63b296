/* The automaton of syntax.h.
 *
 * Invariants: `depth` is 0 outside of JSON; the state depends on the bytes alone, not on how they were cut. */
#include "sched/syntax.h"

#include <string.h>

/* So much syntax without any value is no call. */
#define SYNTAX_MAX_BYTES 2048

static bool is_word(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_space(uint8_t c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool tagged(const struct hearth_syntax *s) {
    return s->calls->value_prefix && s->calls->value_prefix[0] != '\0';
}

static bool ends_with(const struct hearth_syntax *s, const char *text) {
    size_t len = text ? strlen(text) : 0;
    if (len > HEARTH_SYNTAX_TAIL) {
        text += len - HEARTH_SYNTAX_TAIL;
        len = HEARTH_SYNTAX_TAIL;
    }
    return len > 0 && len <= s->tail_len && memcmp(s->tail + s->tail_len - len, text, len) == 0;
}

/* ---- JSON ---- */

/* Keys of an object that wraps the arguments; `arguments`: the value of this one is the arguments. */
static bool wraps(const char *key, bool *arguments) {
    static const struct {
        const char *key;
        bool arguments;
    } keys[] = {{"arguments", true},     {"parameters", true}, {"args", true},      {"input", true},
                {"name", false},         {"type", false},      {"function", false}, {"id", false},
                {"index", false},        {"tool", false},      {"tool_name", false}, {"tool_call", false},
                {"tool_call_id", false}, {"tool_calls", false}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].key, key) == 0) {
            *arguments = keys[i].arguments;
            return true;
        }
    return false;
}

static void key_ended(struct hearth_syntax *s) {
    s->key[s->key_len] = '\0';
    s->expect = HEARTH_SYNTAX_COLON;
    if (s->values_from > 0)
        return;
    bool arguments = false, known = wraps(s->key, &arguments);
    if (s->depth == 1 && !s->keyed && !known)
        s->values_from = 1;
    s->keyed = true;
    s->arguments = known && arguments;
}

static void item_ended(struct hearth_syntax *s) {
    s->expect = HEARTH_SYNTAX_NEXT;
    s->arguments = false;
    if (s->values_from > s->depth)
        s->values_from = 0;
}

static void opened(struct hearth_syntax *s, bool object) {
    s->depth++;
    if (s->depth <= HEARTH_SYNTAX_DEPTH)
        s->object[s->depth] = object;
    if (s->values_from == 0 && (s->arguments || (s->depth == 1 && s->named)))
        s->values_from = s->depth;
    s->expect = object ? HEARTH_SYNTAX_KEY : HEARTH_SYNTAX_ITEM;
}

static void closed(struct hearth_syntax *s) {
    s->depth -= s->depth > 0;
    item_ended(s);
    if (s->depth == 0) {
        s->place = HEARTH_SYNTAX_AFTER;
        s->in_tag = false;
    }
}

static bool in_object(const struct hearth_syntax *s) {
    return s->depth <= HEARTH_SYNTAX_DEPTH && s->object[s->depth];
}

static void string_byte(struct hearth_syntax *s, uint8_t c) {
    if (s->escaped) {
        s->escaped = false;
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->in_string = false;
        if (s->in_key)
            key_ended(s);
        else
            item_ended(s);
        s->in_key = false;
        return;
    }
    if (s->in_key && s->key_len < sizeof s->key - 1)
        s->key[s->key_len++] = (char)c;
}

static void json_byte(struct hearth_syntax *s, uint8_t c) {
    if (s->in_string) {
        string_byte(s, c);
        return;
    }
    if (s->in_scalar && !is_space(c) && c != ',' && c != '}' && c != ']')
        return;
    if (s->in_scalar) {
        s->in_scalar = false;
        item_ended(s);
    }
    switch (c) {
    case '{':
    case '[': opened(s, c == '{'); break;
    case '}':
    case ']': closed(s); break;
    case ':': s->expect = HEARTH_SYNTAX_ITEM; break;
    case ',': s->expect = in_object(s) ? HEARTH_SYNTAX_KEY : HEARTH_SYNTAX_ITEM; break;
    case '"':
        s->in_string = true;
        s->in_key = s->expect == HEARTH_SYNTAX_KEY;
        s->key_len = 0;
        break;
    default: s->in_scalar = !is_space(c) && s->expect == HEARTH_SYNTAX_ITEM;
    }
}

static void json_begin(struct hearth_syntax *s) {
    s->place = HEARTH_SYNTAX_JSON;
    s->depth = s->values_from = 0;
    s->in_string = s->in_key = s->in_scalar = s->escaped = s->keyed = s->arguments = false;
    s->expect = HEARTH_SYNTAX_ITEM;
}

/* ---- places ---- */

static void call_begin(struct hearth_syntax *s, const char *begin) {
    s->place = tagged(s) ? HEARTH_SYNTAX_TAGS : HEARTH_SYNTAX_BEFORE;
    s->named = false;
    s->bytes = 0;
    /* What begins a call may hold the beginning of its object. */
    const char *object = s->place == HEARTH_SYNTAX_BEFORE ? strchr(begin, '{') : NULL;
    if (object)
        json_begin(s);
    for (; object && *object != '\0' && s->place == HEARTH_SYNTAX_JSON; object++)
        json_byte(s, (uint8_t)*object);
}

static bool begins(struct hearth_syntax *s) {
    for (size_t i = 0; i < s->calls->begin_count; i++)
        if (ends_with(s, s->calls->begin[i])) {
            call_begin(s, s->calls->begin[i]);
            return true;
        }
    return false;
}

static void before_byte(struct hearth_syntax *s, uint8_t c) {
    if (c == '{') {
        json_begin(s);
        json_byte(s, c);
    } else if (!begins(s)) {
        s->named = s->named || is_word(c);
        if (++s->bytes > SYNTAX_MAX_BYTES)
            s->place = HEARTH_SYNTAX_TEXT;
    }
}

/* A prefix such as ">" is the end of any tag: the one that begins the call and closing tags have no value behind. */
static bool value_begins(const struct hearth_syntax *s) {
    const char *prefix = s->calls->value_prefix;
    if (!ends_with(s, prefix))
        return false;
    size_t at = s->tail_len - (strlen(prefix) < s->tail_len ? strlen(prefix) : s->tail_len);
    while (prefix[0] == '>' && at > 0)
        if (s->tail[--at] == '<') {
            for (size_t i = 0; i < s->calls->begin_count; i++) {
                size_t len = strlen(s->calls->begin[i]);
                if (len <= s->tail_len - at && memcmp(s->tail + at, s->calls->begin[i], len) == 0)
                    return false;
            }
            return s->tail[at + 1] != '/';
        }
    return true;
}

static void tags_byte(struct hearth_syntax *s) {
    if (value_begins(s))
        s->place = HEARTH_SYNTAX_VALUE;
    else if (++s->bytes > SYNTAX_MAX_BYTES)
        s->place = HEARTH_SYNTAX_TEXT;
}

static void value_byte(struct hearth_syntax *s) {
    if (ends_with(s, s->calls->value_suffix)) {
        s->place = HEARTH_SYNTAX_TAGS;
        s->bytes = 0;
    }
}

static void after_byte(struct hearth_syntax *s, uint8_t c) {
    if (begins(s))
        return;
    if (c == '{' && !s->in_tag) {
        s->named = false;
        json_begin(s);
        json_byte(s, c);
    } else if (s->in_tag) {
        s->in_tag = c != '>';
    } else if (c == '<') {
        s->in_tag = true;
    } else if (!is_space(c) && !strchr(",[]`;)", c)) {
        s->place = HEARTH_SYNTAX_TEXT;
    }
}

/* A tagged call that began with <name is over behind </name>. */
static bool closing_tag(const struct hearth_syntax *s) {
    for (size_t i = 0; i < s->calls->begin_count; i++) {
        const char *begin = s->calls->begin[i];
        size_t len = 0;
        if (begin[0] != '<')
            continue;
        while (is_word((uint8_t)begin[1 + len]) || begin[1 + len] == '_')
            len++;
        if (len > 0 && len + 3 <= s->tail_len) {
            const uint8_t *tag = s->tail + s->tail_len - len - 3;
            if (tag[0] == '<' && tag[1] == '/' && memcmp(tag + 2, begin + 1, len) == 0 && tag[2 + len] == '>')
                return true;
        }
    }
    return false;
}

static void remember(struct hearth_syntax *s, uint8_t c) {
    if (s->tail_len == HEARTH_SYNTAX_TAIL) {
        memmove(s->tail, s->tail + 1, HEARTH_SYNTAX_TAIL - 1);
        s->tail_len--;
    }
    s->tail[s->tail_len++] = c;
}

/* ---- the outside ---- */

void hearth_syntax_init(struct hearth_syntax *s, const struct hearth_call_syntax *calls) {
    *s = (struct hearth_syntax){.calls = calls};
    if (calls && calls->begin_count == 0)
        call_begin(s, "");
}

bool hearth_syntax_next(const struct hearth_syntax *s) {
    if (!s->calls || s->place == HEARTH_SYNTAX_TEXT || s->place == HEARTH_SYNTAX_VALUE)
        return false;
    if (s->place != HEARTH_SYNTAX_JSON)
        return true;
    bool value = s->values_from > 0 || s->arguments;
    if (s->in_string || s->in_scalar)
        return s->in_key || !value;
    return s->expect != HEARTH_SYNTAX_ITEM || s->values_from == 0;
}

void hearth_syntax_feed(struct hearth_syntax *s, const char *text, size_t len) {
    for (size_t i = 0; s->calls && i < len; i++) {
        uint8_t c = (uint8_t)text[i];
        remember(s, c);
        switch (s->place) {
        case HEARTH_SYNTAX_TEXT: (void)begins(s); break;
        case HEARTH_SYNTAX_BEFORE: before_byte(s, c); break;
        case HEARTH_SYNTAX_JSON: json_byte(s, c); break;
        case HEARTH_SYNTAX_TAGS:
            if (closing_tag(s)) {
                s->place = HEARTH_SYNTAX_AFTER;
                s->in_tag = false;
            } else {
                tags_byte(s);
            }
            break;
        case HEARTH_SYNTAX_VALUE: value_byte(s); break;
        case HEARTH_SYNTAX_AFTER: after_byte(s, c); break;
        }
    }
}
