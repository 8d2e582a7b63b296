/* Parses the body of a chat, except for messages that an earlier body had already.
 *
 * A body of 600 kB takes 10 ms to parse, and all but its end came with the request before. So the pass that counts what
 * is in it (limits.c) also notes where each element of "messages" begins and ends. Elements whose bytes are known are
 * taken from the cache of parsed messages. The other elements are parsed, and so is the rest of the body, with an empty
 * array in place of the messages. The pass may be wrong about text that is not JSON: the parser sees every byte that is
 * new, and where it refuses a part the whole body is parsed, which gives the right error. */
#include "api/internal.h"

#include "session/message_cache.h"

#include <stdlib.h>
#include <string.h>

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
    struct hearth_buf rest = {0};
    json_t *value = NULL;
    if (body->end > 0 && parse_new(message_cache, salt, body) && hearth_buf_append(&rest, text, body->begin) &&
        hearth_buf_append(&rest, text + body->end, len - body->end)) {
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
