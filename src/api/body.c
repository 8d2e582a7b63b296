/* Parses the body of a chat, except for messages that an earlier body had already.
 *
 * A body of 600 kB takes 10 ms to parse, and all but its end came with the request before. So a scan that knows only
 * strings and brackets first finds where each element of "messages" begins and ends. Elements whose bytes are known are
 * taken from the cache of parsed messages. The other elements are parsed, and so is the rest of the body, with an empty
 * array in place of the messages. The scan may be wrong about text that is not JSON: the parser sees every byte that is
 * new, and where the scan finds something unexpected the whole body is parsed, which gives the right error. */
#include "api/internal.h"
#include "api/limits.h"

#include "session/message_cache.h"

#include <stdlib.h>
#include <string.h>

struct body_scan {
    const char *text;
    size_t len, pos;
};

static void skip_space(struct body_scan *scan) {
    while (scan->pos < scan->len && strchr(" \t\r\n", scan->text[scan->pos]) != NULL && scan->text[scan->pos] != '\0') {
        scan->pos++;
    }
}

static bool take(struct body_scan *scan, char c) {
    skip_space(scan);
    if (scan->pos == scan->len || scan->text[scan->pos] != c) {
        return false;
    }
    scan->pos++;
    return true;
}

/* Skips a string that begins here. */
static bool skip_string(struct body_scan *scan) {
    const size_t end = hearth_limits_string_end(scan->text, scan->len, scan->pos);
    scan->pos = end > 0 ? end : scan->pos;
    return end > 0;
}

/* Skips a value that begins here. */
static bool skip_value(struct body_scan *scan) {
    int depth = 0;
    while (scan->pos < scan->len) {
        char c = scan->text[scan->pos];
        if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            return true;
        }
        if (c == '"') {
            if (!skip_string(scan)) {
                return false;
            }
            continue;
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        scan->pos++;
    }
    return false;
}

static bool add_item(struct hearth_body *body, const char *bytes, size_t len) {
    if (!HEARTH_BUF_ROOM(body->items, body->count, body->cap)) {
        return false;
    }
    body->items[body->count++] = (struct hearth_body_item){.bytes = bytes, .len = len};
    return true;
}

/* Finds the elements of the array that begins here (its '[' is already read). */
static bool split_elements(struct body_scan *scan, struct hearth_body *body) {
    skip_space(scan);
    if (take(scan, ']')) {
        return true;
    }
    do {
        skip_space(scan);
        size_t begin = scan->pos;
        if (!skip_value(scan) || !add_item(body, scan->text + begin, scan->pos - begin)) {
            return false;
        }
    } while (take(scan, ','));
    return take(scan, ']');
}

/* Finds the body's "messages": [*begin, *end) is the text between the array's brackets. */
static bool split(struct body_scan *scan, struct hearth_body *body, size_t *begin, size_t *end) {
    static const char name[] = "\"messages\"";
    bool found = false;
    if (!take(scan, '{')) {
        return false;
    }
    do {
        skip_space(scan);
        size_t key = scan->pos;
        if (scan->pos == scan->len || scan->text[scan->pos] != '"' || !skip_string(scan)) {
            return false;
        }
        if (memmem(scan->text + key, scan->pos - key, "\\u", 2) != NULL) { /* may be another spelling of it */
            return false;
        }
        bool messages = scan->pos - key == sizeof name - 1 && memcmp(scan->text + key, name, sizeof name - 1) == 0;
        if (!take(scan, ':')) {
            return false;
        }
        skip_space(scan);
        if (!messages) {
            if (!skip_value(scan)) {
                return false;
            }
            continue;
        }
        if (found || !take(scan, '[')) {
            return false;
        }
        found = true;
        *begin = scan->pos;
        if (!split_elements(scan, body)) {
            return false;
        }
        *end = scan->pos - 1;
    } while (take(scan, ','));
    return found && take(scan, '}');
}

/* Parses the new part; false: parse the whole body. */
static bool parse_new(struct hearth_message_cache *message_cache, struct hearth_digest salt, struct hearth_body *body) {
    for (size_t i = 0; i < body->count; i++) {
        struct hearth_body_item *item = &body->items[i];
        item->known = hearth_message_cache_get(message_cache, salt, item->bytes, item->len);
        if (item->known == NULL) {
            item->value = hearth_json_parse(item->bytes, item->len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
        }
        if (item->known == NULL && item->value == NULL) {
            return false;
        }
    }
    return true;
}

json_t *hearth_body_parse_new(struct hearth_message_cache *message_cache, struct hearth_digest salt, const char *text,
                              size_t len, struct hearth_body *body) {
    struct body_scan scan = {text, len, 0};
    struct hearth_buf rest = {0};
    size_t begin = 0, end = 0;
    json_t *value = NULL;
    if (split(&scan, body, &begin, &end) && parse_new(message_cache, salt, body) &&
        hearth_buf_append(&rest, text, begin) && hearth_buf_append(&rest, text + end, len - end)) {
        value = hearth_json_load((const char *)rest.data, rest.len, JSON_ALLOW_NUL, NULL);
    }
    hearth_buf_finish(&rest);
    if (value == NULL) {
        hearth_body_finish(body);
    }
    return value;
}

void hearth_body_finish(struct hearth_body *body) {
    for (size_t i = 0; i < body->count; i++) {
        hearth_message_unref(body->items[i].known);
        json_decref(body->items[i].value);
    }
    free(body->items);
    *body = (struct hearth_body){0};
}
