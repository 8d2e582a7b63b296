/* Messages from JSON text, for tests: a list as a client writes it. Contents are strings, arguments JSON text. */
#ifndef HEARTH_TESTS_MESSAGES_H
#define HEARTH_TESTS_MESSAGES_H

#include "session/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_MOST = 64 };

struct messages {
    struct hearth_message *v[MESSAGES_MOST];
    size_t n;
};

static inline _Noreturn void messages_die(const char *text, const char *why) {
    fprintf(stderr, "messages: %s in %s\n", why, text);
    abort();
}

static inline char *messages_copy(const json_t *value) {
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

static inline struct hearth_message *messages_one(const json_t *source, const char *text) {
    enum hearth_role role;
    const char *role_text = json_string_value(json_object_get(source, "role"));
    if (role_text == NULL || !hearth_role_from_text(role_text, &role)) {
        messages_die(text, "no role");
    }
    struct hearth_message *message = hearth_message_create(role);
    const json_t *content = json_object_get(source, "content");
    const json_t *calls = json_object_get(source, "tool_calls");
    if (json_is_string(content)) {
        message->content_len = json_string_length(content);
        message->content = malloc(message->content_len + 1);
        memcpy(message->content, json_string_value(content), message->content_len + 1);
    }
    message->reasoning = messages_copy(json_object_get(source, "reasoning_content"));
    message->name = messages_copy(json_object_get(source, "name"));
    message->tool_call_id = messages_copy(json_object_get(source, "tool_call_id"));
    if (json_array_size(calls) > 0 && !hearth_message_alloc_calls(message, json_array_size(calls))) {
        messages_die(text, "no memory");
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *function = json_object_get(call, "function");
        message->calls[i].id = messages_copy(json_object_get(call, "id"));
        message->calls[i].name = messages_copy(json_object_get(function, "name"));
        message->calls[i].arguments = messages_copy(json_object_get(function, "arguments"));
    }
    if (!hearth_message_seal(message)) {
        messages_die(text, "no memory");
    }
    return message;
}

/* `text` is JSON in which ' stands for ", so that it reads well in C; \' stands for '. */
static inline json_t *messages_json(const char *text) {
    char *copy = strdup(text);
    char *out = copy;
    for (const char *c = text; *c; c++) {
        if (c[0] == '\\' && c[1] == '\'') {
            *out++ = *++c;
        } else {
            *out++ = *c == '\'' ? '"' : *c;
        }
    }
    *out = '\0';
    json_error_t error;
    json_t *value = json_loads(copy, JSON_ALLOW_NUL, &error);
    free(copy);
    if (value == NULL) {
        messages_die(text, error.text);
    }
    return value;
}

static inline struct messages messages_load(const char *text) {
    struct messages list = {.n = 0};
    json_t *array = messages_json(text);
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (list.n == MESSAGES_MOST) {
            messages_die(text, "too many messages");
        }
        list.v[list.n++] = messages_one(json_array_get(array, i), text);
    }
    json_decref(array);
    return list;
}

static inline void messages_finish(struct messages *list) {
    for (size_t i = 0; i < list->n; i++) {
        hearth_message_unref(list->v[i]);
    }
    list->n = 0;
}

#endif
