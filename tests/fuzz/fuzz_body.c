/* Fuzzes how bodies of chats are read as far as they are new (api/body.c): what is told apart is the same as parsing
 * everything, also when its messages have been seen before. An input is bodies, one after the other, that share what is
 * remembered. */
#include "fuzz.h"

#include "api/job.h"
#include "api/limits.h"
#include "session/message_cache.h"

#include <stdio.h>

static const struct hearth_digest salt = {1, 2};

static bool is_same(const json_t *a, const json_t *b) {
    char *one = hearth_json_canonical(a), *other = hearth_json_canonical(b);
    const bool same = one != NULL && other != NULL && strcmp(one, other) == 0;
    free(one);
    free(other);
    return same;
}

/* The value of a message that stands in `known`: here it is remembered under its number. */
static void check_body(struct hearth_message_cache *message_cache, const char *text, size_t len, json_t *seen) {
    struct hearth_body body = {0};
    struct hearth_api_error error;
    if (!hearth_limits_check(text, len, &body, &error)) {
        hearth_body_finish(&body);
        return;
    }
    json_t *rest = hearth_body_parse_new(message_cache, salt, text, len, &body);
    json_t *whole = hearth_json_parse(text, len, JSON_ALLOW_NUL, NULL);
    HEARTH_ASSERT(rest != NULL || body.count == 0);
    if (rest != NULL) {
        HEARTH_ASSERT(whole != NULL);
        json_t *messages = json_array();
        for (size_t i = 0; i < body.count; i++) {
            struct hearth_body_item *item = &body.items[i];
            json_t *value = item->value;
            HEARTH_ASSERT(item->bytes >= text && item->bytes + item->len <= text + len);
            HEARTH_ASSERT((item->known != NULL) != (value != NULL));
            if (item->known != NULL) {
                value = json_array_get(seen, (size_t)atol(item->known->content));
            } else {
                struct hearth_message *message = hearth_message_create(HEARTH_ROLE_USER);
                char number[24];
                (void)snprintf(number, sizeof number, "%zu", json_array_size(seen));
                HEARTH_ASSERT(message != NULL && (message->content = strdup(number)) != NULL);
                message->content_len = strlen(number);
                HEARTH_ASSERT(hearth_message_seal(message) && json_array_append(seen, value) == 0);
                hearth_message_cache_put(message_cache, salt, item->bytes, item->len, message);
                hearth_message_unref(message);
            }
            HEARTH_ASSERT(json_array_append(messages, value) == 0);
        }
        HEARTH_ASSERT(json_object_set_new(rest, "messages", messages) == 0);
        HEARTH_ASSERT(is_same(rest, whole));
    }
    json_decref(rest);
    json_decref(whole);
    hearth_body_finish(&body);
}

FUZZ_TARGET(body) {
    struct fuzz_input input = {data, size};
    struct hearth_message_cache *message_cache = hearth_message_cache_create(1 << 20);
    json_t *seen = json_array();
    HEARTH_ASSERT(message_cache != NULL && seen != NULL);
    for (int i = 0; i < 4 && (i == 0 || input.left > 0); i++) {
        size_t len;
        char *text = fuzz_part(&input, &len);
        check_body(message_cache, text, len, seen);
        free(text);
    }
    json_decref(seen);
    hearth_message_cache_destroy(message_cache);
}
