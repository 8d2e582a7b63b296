/* Reads the messages of a chat request from JSON into one normal form.
 *
 * Roles, types and required members are checked. Where clients write the same thing in several ways, one remains:
 * content parts become one string (joined by newlines, as llama.cpp does for templates that know only strings), null
 * is like an absent member, arguments may be an object or its text, reasoning has two names, calls and their results
 * have an older form. Everything else in a message (annotations, audio, cache_control, …) is dropped, because no
 * template prints it. Empty messages are dropped, too: clients leave them in a history, and templates would print an
 * empty turn. Parts that are not text become notes (content.c).
 * Source: https://platform.openai.com/docs/api-reference/chat/create */
#include "api/job.h"

#include "base/cancel.h"
#include "session/message_cache.h"

#include <stdlib.h>
#include <string.h>

static bool fail_message(struct hearth_api_error *error, const char *code, size_t index, const char *what) {
    char param[48];
    snprintf(param, sizeof param, "messages[%zu]", index);
    return hearth_api_fail(error, 400, code, param, "%s: %s", param, what);
}

/* ---- a message that is being put together ---- */

static char *take(struct hearth_buf *text) {
    return text->len > 0 && hearth_buf_text(text, "") ? (char *)hearth_buf_take(text) : NULL;
}

bool hearth_api_draft_begin(struct hearth_api_draft *draft, enum hearth_role role) {
    draft->message = hearth_message_create(role);
    return draft->message != NULL;
}

/* Arguments are JSON text; clients that send the object itself get it printed. */
static char *arguments_text(const json_t *arguments) {
    return arguments == NULL           ? hearth_memory_strdup("{}")
           : json_is_string(arguments) ? hearth_memory_strdup(json_string_value(arguments))
                                       : hearth_json_dumps(arguments, JSON_COMPACT);
}

bool hearth_api_draft_call(struct hearth_api_draft *draft, const char *id, const char *name, const json_t *arguments) {
    struct hearth_message *message = draft->message;
    struct hearth_call *calls = hearth_memory_realloc(message->calls, (message->call_count + 1) * sizeof *calls);
    if (calls == NULL) {
        return false;
    }
    message->calls = calls;
    calls[message->call_count++] = (struct hearth_call){.id = id != NULL ? hearth_memory_strdup(id) : NULL,
                                                        .name = hearth_memory_strdup(name),
                                                        .arguments = arguments_text(arguments)};
    return !hearth_memory_refused();
}

struct hearth_message *hearth_api_draft_end(struct hearth_api_draft *draft, const struct hearth_strip *strip) {
    struct hearth_message *message = draft->message;
    draft->message = NULL;
    message->content_len = draft->content.len;
    message->content = take(&draft->content);
    message->unseen = take(&draft->unseen);
    if (draft->reasoning.len > 0) {
        message->reasoning = take(&draft->reasoning);
    }
    if (strip != NULL && message->content != NULL && hearth_role_is_system(message->role)) {
        hearth_strip_text(strip, message->content, &message->content_len);
    }
    if (hearth_memory_refused() || !hearth_message_seal(message)) {
        hearth_message_unref(message);
        return NULL;
    }
    return message;
}

void hearth_api_draft_drop(struct hearth_api_draft *draft) {
    hearth_message_unref(draft->message);
    hearth_buf_finish(&draft->content);
    hearth_buf_finish(&draft->reasoning);
    hearth_buf_finish(&draft->unseen);
    draft->message = NULL;
}

struct hearth_message *hearth_api_message_of(enum hearth_role role, const char *text, size_t len,
                                             const struct hearth_strip *strip) {
    struct hearth_api_draft draft = {0};
    const bool ok = hearth_api_draft_begin(&draft, role) && hearth_buf_append(&draft.content, text, len);
    struct hearth_message *message = ok ? hearth_api_draft_end(&draft, strip) : NULL;
    hearth_api_draft_drop(&draft);
    return message;
}

/* ---- content ---- */

/* Types of parts that are text, and the member that holds it. */
static const char *const part_texts[][2] = {
    {"text", "text"},
    {"input_text", "text"},
    {"output_text", "text"},
    {"refusal", "refusal"},
};

/* The message whose content is read. */
struct content {
    struct hearth_api_draft *draft;
    bool strict, begun; /* begun: there is a part */
    size_t index;
};

/* Parts are a newline apart, even empty ones. */
static bool begin_part(struct content *content) {
    const bool first = !content->begun;
    content->begun = true;
    return first || hearth_buf_text(&content->draft->content, "\n");
}

/* Reads a part that is no text. An unknown type is left out of an assistant's message, which another server may have
 * written, gets a note in a tool's result, and is refused in a user's message. */
static bool add_other(const json_t *part, const char *type, struct content *content, struct hearth_api_error *error) {
    const bool known = hearth_content_is_known(type);
    const enum hearth_role role = content->draft->message->role;
    if (content->strict || (!known && role != HEARTH_ROLE_ASSISTANT && role != HEARTH_ROLE_TOOL)) {
        return fail_message(error, "unsupported_value", content->index,
                            "only content parts of type \"text\" are supported");
    }
    if (!known && role == HEARTH_ROLE_ASSISTANT) {
        return true;
    }
    return begin_part(content) && hearth_content_note(part, &content->draft->content, &content->draft->unseen);
}

static bool add_text(const json_t *text, struct content *content) {
    return begin_part(content) &&
           hearth_buf_append(&content->draft->content, json_string_value(text), json_string_length(text));
}

static bool add_part(const json_t *part, struct content *content, struct hearth_api_error *error) {
    if (json_is_string(part)) { /* LangChain's */
        return add_text(part, content);
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *value = NULL;
    if (type == NULL) {
        return fail_message(error, "invalid_type", content->index, "a content part must be an object with a type");
    }
    bool known = false;
    for (size_t i = 0; i < sizeof part_texts / sizeof part_texts[0] && !known; i++) {
        known = strcmp(type, part_texts[i][0]) == 0;
        value = json_object_get(part, part_texts[i][1]);
    }
    if (!known) {
        return add_other(part, type, content, error);
    }
    if (!json_is_string(value)) {
        return fail_message(error, "invalid_type", content->index, "a text part needs a string \"text\"");
    }
    return add_text(value, content);
}

static bool read_content(const struct hearth_api *api, const json_t *object, size_t index,
                         struct hearth_api_draft *draft, struct hearth_api_error *error) {
    const json_t *content = hearth_api_json_get(object, "content");
    struct content read = {.draft = draft, .strict = api->params.strict_content, .index = index};
    if (content != NULL && !json_is_string(content) && !json_is_array(content)) {
        return fail_message(error, "invalid_type", index, "content must be a string or an array of text parts");
    }
    bool ok = !json_is_string(content) || add_text(content, &read);
    for (size_t i = 0; ok && i < json_array_size(content); i++) { /* 0 when it is no array */
        ok = add_part(json_array_get(content, i), &read, error);
    }
    return ok;
}

/* ---- calls ---- */

static bool read_call(const json_t *id, const json_t *function, size_t index, struct hearth_api_draft *draft,
                      struct hearth_api_error *error) {
    const json_t *name = json_object_get(function, "name");
    const json_t *arguments = hearth_api_json_get(function, "arguments");
    if (!json_is_string(name) || (arguments != NULL && !json_is_string(arguments) && !json_is_object(arguments)) ||
        (id != NULL && !json_is_string(id))) {
        return fail_message(error, "invalid_type", index, "a tool call needs a function with a name and arguments");
    }
    return hearth_api_draft_call(draft, json_string_value(id), json_string_value(name), arguments);
}

static bool read_calls(const json_t *object, size_t index, struct hearth_api_draft *draft,
                       struct hearth_api_error *error) {
    const json_t *calls = hearth_api_json_get(object, "tool_calls");
    const json_t *old = hearth_api_json_get(object, "function_call");
    size_t count = calls != NULL ? json_array_size(calls) : old != NULL;
    if (calls != NULL && !json_is_array(calls)) {
        return fail_message(error, "invalid_type", index, "tool_calls must be an array");
    }
    if (count == 0) {
        return true;
    }
    if (draft->message->role != HEARTH_ROLE_ASSISTANT) {
        return fail_message(error, "invalid_value", index, "tool_calls belong in an assistant message");
    }
    if (calls == NULL) {
        return read_call(NULL, old, index, draft, error);
    }
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        const json_t *call = json_array_get(calls, i);
        ok = read_call(hearth_api_json_get(call, "id"), json_object_get(call, "function"), index, draft, error);
    }
    return ok;
}

/* ---- messages ---- */

/* A string member under any of two names. */
static bool read_text(const json_t *object, const char *name, bool strict, size_t index, char **out,
                      struct hearth_api_error *error) {
    const json_t *value = hearth_api_json_get(object, name);
    if (value == NULL || *out != NULL || (!json_is_string(value) && !strict)) {
        return true;
    }
    if (!json_is_string(value)) {
        char what[64];
        snprintf(what, sizeof what, "%s must be a string", name);
        return fail_message(error, "invalid_type", index, what);
    }
    *out = strdup(json_string_value(value));
    return *out != NULL;
}

static bool read_role(const json_t *object, size_t index, enum hearth_role *role, struct hearth_api_error *error) {
    const json_t *given = hearth_api_json_get(object, "role");
    const char *text = json_string_value(given);
    if (!json_is_object(object)) {
        return fail_message(error, "invalid_type", index, "a message must be an object");
    }
    if (given == NULL) {
        return fail_message(error, "missing_required_parameter", index, "role is missing");
    }
    if (text == NULL) {
        return fail_message(error, "invalid_type", index, "role must be a string");
    }
    if (strcmp(text, "function") == 0) { /* the older name */
        *role = HEARTH_ROLE_TOOL;
        return true;
    }
    return hearth_role_from_text(text, role) ||
           fail_message(error, "invalid_value", index, "role must be system, developer, user, assistant or tool");
}

static struct hearth_message *read_message(const struct hearth_api *api, const json_t *object, size_t index,
                                           struct hearth_api_error *error) {
    enum hearth_role role;
    if (!read_role(object, index, &role, error)) {
        return NULL;
    }
    struct hearth_api_draft draft = {0};
    struct hearth_message *message = hearth_api_draft_begin(&draft, role) ? draft.message : NULL;
    const bool ok = message != NULL && read_content(api, object, index, &draft, error) &&
                    read_calls(object, index, &draft, error) &&
                    read_text(object, "name", true, index, &message->name, error) &&
                    read_text(object, "tool_call_id", true, index, &message->tool_call_id, error) &&
                    read_text(object, "reasoning_content", true, index, &message->reasoning, error) &&
                    read_text(object, "reasoning", false, index, &message->reasoning, error);
    message = ok ? hearth_api_draft_end(&draft, &api->strip) : NULL;
    hearth_api_draft_drop(&draft);
    return message;
}

/* The message of one element: from the cache, or parsed and put into the cache. */
static struct hearth_message *message_of(const struct hearth_job *job, struct hearth_body_item *item, size_t index,
                                         struct hearth_api_error *error) {
    if (item->known != NULL) {
        return hearth_message_ref(item->known);
    }
    struct hearth_message *message = read_message(job->api, item->value, index, error);
    if (message != NULL) {
        hearth_message_cache_put(job->api->message_cache, job->owner, item->bytes, item->len, message);
    }
    return message;
}

bool hearth_api_call_ids_add(json_t **ids, const struct hearth_message *message) {
    bool ok = *ids != NULL || (*ids = json_object()) != NULL;
    for (size_t i = 0; ok && i < message->call_count; i++) {
        const char *id = message->calls[i].id;
        ok = id == NULL || json_object_set_new_nocheck(*ids, id, json_true()) == 0;
    }
    return ok;
}

bool hearth_history_read(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                         struct hearth_api_error *error) {
    struct hearth_history *history = &out->history;
    const json_t *messages = hearth_api_json_get(body, "messages");
    if (!json_is_array(messages)) {
        return hearth_api_fail(error, 400, messages == NULL ? "missing_required_parameter" : "invalid_type", "messages",
                               "messages must be an array");
    }
    size_t count = job->parts.count > 0 ? job->parts.count : json_array_size(messages);
    if (count == 0) {
        return hearth_api_fail(error, 400, "invalid_value", "messages", "messages must not be empty");
    }
    for (size_t i = 0; i < count; i++) {
        if (hearth_cancel_poll() != HEARTH_OK) {
            return hearth_api_fail_err(error, hearth_cancel_check(), NULL);
        }
        struct hearth_message *message = job->parts.count > 0
                                             ? message_of(job, &job->parts.items[i], i, error)
                                             : read_message(job->api, json_array_get(messages, i), i, error);
        if (!hearth_history_add_sent(history, message)) {
            return false; /* hearth_history_finish() frees what was read */
        }
    }
    return history->count > 0 ||
           hearth_api_fail(error, 400, "invalid_value", "messages", "messages: none of them has any content");
}

bool hearth_history_add_sent(struct hearth_history *history, struct hearth_message *message) {
    history->ends_empty = message != NULL && hearth_message_is_empty(message);
    if (history->ends_empty) {
        hearth_message_unref(message);
        return true;
    }
    return hearth_history_add(history, message);
}

bool hearth_history_add(struct hearth_history *history, struct hearth_message *message) {
    if (message == NULL || !HEARTH_BUF_ROOM(history->messages, history->count, history->cap)) {
        hearth_message_unref(message);
        return false;
    }
    history->messages[history->count++] = message;
    return true;
}

void hearth_history_finish(struct hearth_history *history) {
    for (size_t i = 0; i < history->count; i++) {
        hearth_message_unref(history->messages[i]);
    }
    free(history->messages);
    *history = (struct hearth_history){0};
}

/* Joins a begun message and the reply that continues it, as the history will hold them. */
struct hearth_message *hearth_history_join(const struct hearth_message *begun, const struct hearth_message *message) {
    struct hearth_api_draft draft = {0};
    struct hearth_message *whole = NULL;
    if (message->call_count == 0 && hearth_api_draft_begin(&draft, HEARTH_ROLE_ASSISTANT) &&
        hearth_buf_append(&draft.content, begun->content, begun->content_len) &&
        hearth_buf_append(&draft.content, message->content, message->content_len)) {
        const char *reasoning = message->reasoning != NULL ? message->reasoning : begun->reasoning;
        draft.message->reasoning = reasoning != NULL ? hearth_memory_strdup(reasoning) : NULL;
        whole = hearth_api_draft_end(&draft, NULL);
    }
    hearth_api_draft_drop(&draft);
    return whole;
}

bool hearth_history_append(struct hearth_history *to, const struct hearth_history *from, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        if (!hearth_history_add(to, hearth_message_ref(from->messages[i]))) {
            return false;
        }
    }
    return true;
}
