/* Messages of Anthropic's form, made of content blocks, to the form that everything else knows.
 *
 * There a message of the user holds what the user said and the results of tools; here each result is a message, in the
 * order of the blocks. An assistant's message is one message here: thinking, text and calls. Messages of one role in a
 * row are one turn, as there. A text alone and a list of one text block are the same: clients mark the last messages
 * for caching, which needs a block, and send plain strings once the marks have moved on.
 *
 * Thinking counts when this server has signed it and the signature holds. Thinking with another server's signature is
 * left out, so that a conversation can move here; thinking that was changed is refused. Where a reply of this server is
 * known, its reasoning comes back anyway. What hosted tools have left in a history is left out: no template prints it.
 * Images and files become notes (content.c).
 *
 * Messages that say nothing are left out, as if they had not been sent: Claude Code has some that carry only another
 * effort. An assistant's is what a reply was that said nothing; it stays, but for one at the end, which would be
 * continued, and one of which every block was left out. */
#include "api/anthropic/anthropic.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct block_reader {
    struct hearth_anthropic_reading *reading;
    const struct hearth_job *job;
    struct hearth_history *history;
    struct hearth_api_draft open;       /* the message that is being put together; none between two */
    size_t open_index;                  /* the message of the body that added to it last */
    bool kept_empty;                    /* it is an empty reply, and is kept */
    const struct hearth_message *asked; /* the assistant's last message: results answer its calls */
    const struct hearth_message *noted; /* the message whose calls are in the set below */
    json_t *call_ids;
};

#define FAIL(...) hearth_anthropic_fail(reader->reading, __VA_ARGS__)

static bool append(struct hearth_buf *text, const char *between, const json_t *string) {
    const size_t len = json_string_length(string);
    return len == 0 || ((text->len == 0 || hearth_buf_append(text, between, strlen(between))) &&
                        hearth_buf_append(text, json_string_value(string), len));
}

/* ---- the message that is being put together ---- */

/* Moves the breakpoints of a message that says nothing to the message before it. */
static void move_breakpoints(struct block_reader *reader) {
    struct hearth_generation *generation = &reader->reading->out->generation;
    for (size_t i = 0; i < generation->breakpoint_count; i++) {
        struct hearth_breakpoint *point = &generation->breakpoints[i];
        if (point->message == reader->history->count) {
            point->message = reader->history->count > 0 ? reader->history->count - 1 : HEARTH_ANTHROPIC_FRONT;
            point->upto = SIZE_MAX;
        }
    }
}

/* Finishes the open message, if there is one. */
static bool close_message(struct block_reader *reader) {
    struct hearth_message *message = reader->open.message;
    const bool kept = reader->kept_empty;
    reader->kept_empty = false;
    if (message == NULL) {
        return true;
    }
    if (message->role != HEARTH_ROLE_TOOL && reader->open.content.len == 0 && reader->open.reasoning.len == 0 &&
        message->call_count == 0 && !kept) {
        reader->history->ends_empty |= message->role != HEARTH_ROLE_ASSISTANT;
        move_breakpoints(reader);
        hearth_api_draft_drop(&reader->open);
        return true;
    }
    message = hearth_api_draft_end(&reader->open, &reader->job->api->strip);
    if (message != NULL && message->role == HEARTH_ROLE_ASSISTANT) {
        reader->asked = message;
    }
    return hearth_history_add(reader->history, message);
}

/* Continues the open message where it has this role, or begins one. */
static bool open_message(struct block_reader *reader, enum hearth_role role, size_t index) {
    const struct hearth_message *open = reader->open.message;
    if (open != NULL && open->role == role && role != HEARTH_ROLE_TOOL) {
        if (reader->open_index != index && role != HEARTH_ROLE_ASSISTANT && reader->open.content.len > 0 &&
            !hearth_buf_append(&reader->open.content, "\n", 1)) { /* blocks are one newline apart, messages two */
            return false;
        }
        reader->open_index = index;
        return true;
    }
    reader->open_index = index;
    return close_message(reader) && hearth_api_draft_begin(&reader->open, role);
}

/* ---- texts ---- */

static bool fail_type(struct block_reader *reader, const json_t *block, const char *expected) {
    const json_t *type = json_object_get(block, "type");
    if (!json_is_object(block)) {
        return FAIL("Input should be an object");
    }
    if (!json_is_string(type)) {
        return FAIL("type: Field required");
    }
    return FAIL("Input tag '%.60s' found using 'type' does not match any of the expected tags: %s",
                json_string_value(type), expected);
}

static bool read_text_block(struct block_reader *reader, const json_t *block, struct hearth_buf *out,
                            const char *between) {
    const json_t *text = json_object_get(block, "text");
    return json_is_string(text) ? append(out, between, text) : FAIL("text.text: Input should be a valid string");
}

/* Appends the note for a block within another block that is not text. */
static bool read_inner_media(struct block_reader *reader, const json_t *block, struct hearth_buf *out) {
    if (reader->job->api->params.strict_content ||
        !hearth_content_is_known(json_string_value(json_object_get(block, "type")))) {
        return fail_type(reader, block, "'text'");
    }
    return (out->len == 0 || hearth_buf_text(out, "\n")) && hearth_content_note(block, out, &reader->open.unseen);
}

/* Reads a list of blocks within another block, most of them texts; `content` may also be a string. */
static bool read_texts(struct block_reader *reader, const json_t *content, struct hearth_buf *out) {
    size_t i;
    const json_t *block;
    if (json_is_string(content)) {
        return append(out, "\n", content);
    }
    json_array_foreach(content, i, block) {
        if (hearth_api_type_is(block, "text") ? !read_text_block(reader, block, out, "\n")
                                              : !read_inner_media(reader, block, out)) {
            return false;
        }
    }
    return content == NULL || json_is_array(content) || FAIL("content: Input should be a string or a list of blocks");
}

/* {"source": {"type": "text", "data"} or {"type": "content", "content"}, "title"?, "context"?} */
static bool read_document(struct block_reader *reader, const json_t *block, struct hearth_buf *out) {
    const json_t *source = hearth_api_json_get(block, "source");
    const char *type = json_string_value(json_object_get(source, "type"));
    const json_t *data = json_object_get(source, "data");
    if (!append(out, "\n", hearth_api_json_get(block, "title")) ||
        !append(out, "\n", hearth_api_json_get(block, "context"))) {
        return false;
    }
    if (strcmp(type, "text") == 0) {
        return json_is_string(data) ? append(out, "\n", data)
                                    : FAIL("document.source.text.data: Input should be a valid string");
    }
    return read_texts(reader, hearth_api_json_get(source, "content"), out);
}

/* {"source", "title", "content": [text]} */
static bool read_search_result(struct block_reader *reader, const json_t *block, struct hearth_buf *out) {
    return append(out, "\n", hearth_api_json_get(block, "title")) &&
           append(out, "\n", hearth_api_json_get(block, "source")) &&
           read_texts(reader, hearth_api_json_get(block, "content"), out);
}

/* Reads blocks that a user's message and a tool's result have in common. `*found`: this was one. */
static bool read_common(struct block_reader *reader, const json_t *block, struct hearth_buf *out, bool *found) {
    *found = true;
    if (hearth_api_type_is(block, "text")) {
        return read_text_block(reader, block, out, "\n");
    }
    if (hearth_api_type_is(block, "document") && hearth_anthropic_is_text(block)) {
        return read_document(reader, block, out);
    }
    if (hearth_api_type_is(block, "search_result")) {
        return read_search_result(reader, block, out);
    }
    *found = false;
    return true;
}

static bool read_cache_control(struct block_reader *reader, const json_t *block, size_t upto) {
    return hearth_anthropic_read_cache_control(reader->reading, block, reader->history->count, upto);
}

/* ---- blocks of a user ---- */

/* Collects the ids of the calls that results have to answer. */
static bool note_asked(struct block_reader *reader) {
    if (reader->noted == reader->asked) {
        return true;
    }
    json_decref(reader->call_ids);
    reader->call_ids = NULL;
    reader->noted = reader->asked;
    return hearth_api_call_ids_add(&reader->call_ids, reader->asked);
}

static bool add_note(struct block_reader *reader, const json_t *block) {
    return (reader->open.content.len == 0 || hearth_buf_text(&reader->open.content, "\n")) &&
           hearth_content_note(block, &reader->open.content, &reader->open.unseen) &&
           append(&reader->open.content, "\n", hearth_api_json_get(block, "context"));
}

/* Adds a part of a tool's result that is not text, as a note, even if its type is unknown: refusing it would end the
 * conversation, since the client sends it again with every request. */
static bool add_brought(struct block_reader *reader, const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    const json_t *name = hearth_api_json_get(block, "tool_name");
    if (type == NULL) {
        return fail_type(reader, block, "'text', 'image', 'document', 'search_result', 'tool_reference'");
    }
    if (strcmp(type, "tool_reference") == 0 && json_is_string(name)) {
        return hearth_api_tools_load(&reader->reading->out->chat, json_string_value(name), &reader->open.content);
    }
    return add_note(reader, block);
}

static bool read_result_content(struct block_reader *reader, const json_t *content) {
    char *place = reader->reading->place;
    const size_t len = strlen(place);
    size_t i;
    const json_t *block;
    bool found;
    if (content == NULL || json_is_string(content)) {
        return append(&reader->open.content, "\n", content);
    }
    if (!json_is_array(content)) {
        return FAIL("tool_result.content: Input should be a string or a list of blocks");
    }
    json_array_foreach(content, i, block) {
        snprintf(place + len, sizeof reader->reading->place - len, ".tool_result.content.%zu", i);
        if (!read_common(reader, block, &reader->open.content, &found) || (!found && !add_brought(reader, block)) ||
            !read_cache_control(reader, block, SIZE_MAX)) {
            return false;
        }
    }
    place[len] = '\0';
    return true;
}

static bool read_tool_result(struct block_reader *reader, const json_t *block, size_t index) {
    const char *id = json_string_value(json_object_get(block, "tool_use_id"));
    if (id == NULL) {
        return FAIL("tool_result.tool_use_id: Field required");
    }
    if (!open_message(reader, HEARTH_ROLE_TOOL, index)) { /* completes the assistant's message before */
        return false;
    }
    /* The call that the result answers may be in the session and not in the request. */
    const bool elsewhere = reader->asked == NULL && reader->reading->session;
    char *asked = reader->open.message->tool_call_id = hearth_anthropic_id_read(id);
    if (asked == NULL || !note_asked(reader)) {
        return false;
    }
    if (!elsewhere && json_object_get(reader->call_ids, asked) == NULL) {
        return FAIL("unexpected `tool_use_id` found in `tool_result` blocks: %.100s. Each `tool_result` block must "
                    "have a corresponding `tool_use` block in the previous message.",
                    id);
    }
    return read_result_content(reader, hearth_api_json_get(block, "content")) &&
           read_cache_control(reader, block, SIZE_MAX);
}

/* Adds an image, a sound or a file in a message of any role. */
static bool read_media(struct block_reader *reader, const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    if (!hearth_content_is_known(type)) {
        return fail_type(reader, block, "'text', 'image', 'document', 'search_result', 'tool_result'");
    }
    if (reader->job->api->params.strict_content) {
        return strcmp(type, "image") == 0
                   ? FAIL("image: this model has no vision, it reads text only")
                   : FAIL("%s: this model reads no files; documents of type \"text\" are read", type);
    }
    return add_note(reader, block);
}

static bool leave_out(const struct block_reader *reader, const char *type) {
    hearth_log(HEARTH_LOG_DEBUG, "api: %s: a block of type %.60s is left out", reader->reading->place, type);
    return true;
}

/* Reads a block of a user's message, or of a system message between others. */
static bool read_said_block(struct block_reader *reader, const json_t *block, enum hearth_role role, size_t index) {
    const char *type = json_string_value(json_object_get(block, "type"));
    bool found;
    if (type != NULL && hearth_anthropic_is_left_out(type)) {
        return leave_out(reader, type);
    }
    return open_message(reader, role, index) && read_common(reader, block, &reader->open.content, &found) &&
           (found || read_media(reader, block)) &&
           read_cache_control(reader, block, role == HEARTH_ROLE_USER ? reader->open.content.len : SIZE_MAX);
}

static bool read_user_block(struct block_reader *reader, const json_t *block, size_t index) {
    if (hearth_api_type_is(block, "tool_result")) {
        return read_tool_result(reader, block, index);
    }
    return read_said_block(reader, block, HEARTH_ROLE_USER, index);
}

/* ---- blocks of an assistant ---- */

static bool read_thinking(struct block_reader *reader, const json_t *block) {
    const json_t *thinking = json_object_get(block, "thinking");
    const char *signature = json_string_value(hearth_api_json_get(block, "signature"));
    const char *text = json_string_value(thinking);
    if (text == NULL) {
        return FAIL("thinking.thinking: Field required");
    }
    const size_t len = json_string_length(thinking);
    switch (signature != NULL ? hearth_signature_check(reader->job->api, text, len, signature)
                              : HEARTH_SIGNATURE_FOREIGN) {
    case HEARTH_SIGNATURE_VALID: return append(&reader->open.reasoning, "\n", thinking);
    case HEARTH_SIGNATURE_WRONG: return FAIL("Invalid `signature` in `thinking` block");
    case HEARTH_SIGNATURE_FOREIGN: break;
    }
    hearth_log(HEARTH_LOG_DEBUG, "api: %s: thinking that was signed elsewhere is left out", reader->reading->place);
    return true;
}

static bool read_tool_use(struct block_reader *reader, const json_t *block) {
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    const json_t *input = hearth_api_json_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name)) {
        return FAIL("tool_use.%s: Field required", json_is_string(id) ? "name" : "id");
    }
    if (input != NULL && !json_is_object(input)) {
        return FAIL("tool_use.input: Input should be an object");
    }
    char *own = hearth_anthropic_id_read(json_string_value(id));
    const bool ok = own != NULL && hearth_api_draft_call(&reader->open, own, json_string_value(name), input);
    free(own);
    return ok && read_cache_control(reader, block, SIZE_MAX);
}

static bool read_assistant_block(struct block_reader *reader, const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    if (type == NULL) {
        return fail_type(reader, block, "");
    }
    if (strcmp(type, "text") == 0) {
        return read_text_block(reader, block, &reader->open.content, "") && read_cache_control(reader, block, SIZE_MAX);
    }
    if (strcmp(type, "thinking") == 0) {
        return read_thinking(reader, block);
    }
    if (strcmp(type, "tool_use") == 0) {
        return read_tool_use(reader, block);
    }
    if (strcmp(type, "compaction") == 0) {
        return append(&reader->open.content, "\n", hearth_api_json_get(block, "content"));
    }
    if (hearth_content_is_known(type) && !reader->job->api->params.strict_content) {
        return add_note(reader, block);
    }
    if (strcmp(type, "tool_result") == 0 ||
        (!hearth_anthropic_is_left_out(type) && reader->job->api->params.strict_content)) {
        return fail_type(reader, block, "'text', 'thinking', 'redacted_thinking', 'tool_use'");
    }
    return leave_out(reader, type); /* of another service, whether its type is known or not */
}

/* ---- blocks of a system message ---- */

static bool read_system_block(struct block_reader *reader, const json_t *block, size_t index) {
    const bool removal = hearth_api_type_is(block, "tool_removal");
    if (removal || hearth_api_type_is(block, "tool_addition")) {
        return open_message(reader, HEARTH_ROLE_SYSTEM, index) &&
               hearth_anthropic_read_tool_change(reader->reading, block, removal, &reader->open.content) &&
               read_cache_control(reader, block, SIZE_MAX);
    }
    return read_said_block(reader, block, HEARTH_ROLE_SYSTEM, index);
}

/* ---- messages ---- */

/* Leaves a message out. Its breakpoints belong to the message before it. */
static bool skip_message(struct block_reader *reader, const json_t *content) {
    const size_t count = reader->history->count;
    const size_t before = reader->open.message != NULL ? count : count > 0 ? count - 1 : HEARTH_ANTHROPIC_FRONT;
    size_t i;
    const json_t *block;
    json_array_foreach(content, i, block) {
        if (!hearth_anthropic_read_cache_control(reader->reading, block, before, SIZE_MAX)) {
            return false;
        }
    }
    return true;
}

static bool read_role(struct block_reader *reader, const json_t *message, enum hearth_role *role) {
    const char *text = json_string_value(json_object_get(message, "role"));
    if (!json_is_object(message)) {
        return FAIL("Input should be an object");
    }
    if (text == NULL) {
        return FAIL("role: Field required");
    }
    if (strcmp(text, "user") != 0 && strcmp(text, "assistant") != 0 && strcmp(text, "system") != 0) {
        return FAIL("Unexpected role \"%.60s\". Allowed roles are \"user\", \"assistant\" and \"system\"", text);
    }
    return hearth_role_from_text(text, role);
}

static bool read_blocks(struct block_reader *reader, const json_t *content, enum hearth_role role, size_t index) {
    char *place = reader->reading->place;
    const size_t len = strlen(place);
    size_t i;
    const json_t *block;
    json_array_foreach(content, i, block) {
        snprintf(place + len, sizeof reader->reading->place - len, ".content.%zu", i);
        const bool ok = role == HEARTH_ROLE_USER ? read_user_block(reader, block, index)
                        : role == HEARTH_ROLE_SYSTEM
                            ? read_system_block(reader, block, index)
                            : open_message(reader, role, index) && read_assistant_block(reader, block);
        if (!ok) {
            return false;
        }
    }
    place[len] = '\0';
    return true;
}

static bool read_message(struct block_reader *reader, const json_t *message, size_t index, bool last) {
    const json_t *content = hearth_api_json_get(message, "content");
    enum hearth_role role;
    snprintf(reader->reading->place, sizeof reader->reading->place, "messages.%zu", index);
    if (!read_role(reader, message, &role)) {
        return false;
    }
    if (content != NULL && !json_is_string(content) && !json_is_array(content)) {
        return FAIL("content: Input should be a string or a list of blocks");
    }
    bool ok = true;
    if (!hearth_anthropic_is_empty(content)) {
        ok = json_is_array(content)
                 ? read_blocks(reader, content, role, index)
                 : open_message(reader, role, index) &&
                       append(&reader->open.content, role == HEARTH_ROLE_ASSISTANT ? "" : "\n", content);
    } else if (role == HEARTH_ROLE_ASSISTANT && !last) {
        ok = open_message(reader, role, index);
        reader->kept_empty = true;
    } else {
        ok = skip_message(reader, content);
    }
    /* The history ends with the assistant's words only if no message of another role stood behind them, even an empty
     * one. */
    const struct hearth_message *open = reader->open.message;
    const bool ended = open == NULL || open->role == HEARTH_ROLE_ASSISTANT;
    reader->history->ends_empty = ended && (role != HEARTH_ROLE_ASSISTANT || (last && reader->history->ends_empty));
    return ok;
}

/* Appends a block of system text. Lines are stripped block by block, so that marks stay at their text. */
static bool append_system(struct block_reader *reader, const json_t *text) {
    struct hearth_buf lines = {0};
    size_t len = json_string_length(text);
    bool ok = hearth_buf_append(&lines, json_string_value(text), len) && hearth_buf_append(&lines, "", 1);
    if (ok) {
        hearth_strip_text(&reader->job->api->strip, (char *)lines.data, &len);
        ok = len == 0 || ((reader->open.content.len == 0 || hearth_buf_text(&reader->open.content, "\n")) &&
                          hearth_buf_append(&reader->open.content, lines.data, len));
    }
    hearth_buf_finish(&lines);
    return ok;
}

static bool read_system(struct block_reader *reader, const json_t *system) {
    size_t i;
    const json_t *block;
    if (system == NULL) {
        return true;
    }
    snprintf(reader->reading->place, sizeof reader->reading->place, "system");
    if (!json_is_string(system) && !json_is_array(system)) {
        return FAIL("Input should be a string or a list of blocks");
    }
    if (!open_message(reader, HEARTH_ROLE_SYSTEM, 0) || (json_is_string(system) && !append_system(reader, system))) {
        return false;
    }
    json_array_foreach(system, i, block) {
        snprintf(reader->reading->place, sizeof reader->reading->place, "system.%zu", i);
        if (!hearth_api_type_is(block, "text")) {
            return fail_type(reader, block, "'text'");
        }
        const json_t *text = json_object_get(block, "text");
        if (!(json_is_string(text) ? append_system(reader, text) : FAIL("text.text: Input should be a valid string")) ||
            !hearth_anthropic_read_cache_control(reader->reading, block, HEARTH_ANTHROPIC_FRONT,
                                                 i + 1 < json_array_size(system) ? reader->open.content.len
                                                                                 : SIZE_MAX)) {
            return false;
        }
    }
    return close_message(reader);
}

/* Checks how the history ends: the reply continues a last message of the assistant, which is not possible after a call.
 */
static bool check_end(struct block_reader *reader, size_t before) {
    const struct hearth_history *history = reader->history;
    const struct hearth_message *last = history->count > 0 ? history->messages[history->count - 1] : NULL;
    snprintf(reader->reading->place, sizeof reader->reading->place, "messages");
    if (history->count == before || (last->role == HEARTH_ROLE_SYSTEM && history->count == 1)) {
        return FAIL("at least one message with content is required");
    }
    if (last->role == HEARTH_ROLE_ASSISTANT && last->call_count > 0) {
        return FAIL(
            "`tool_use` blocks were found without `tool_result` blocks immediately after. Each `tool_use` block "
            "must have a corresponding `tool_result` block in the next message.");
    }
    return true;
}

bool hearth_anthropic_read_messages(struct hearth_anthropic_reading *reading, const json_t *body) {
    const json_t *messages = hearth_api_json_get(body, "messages");
    const struct hearth_history *past = &reading->job->resolved->history;
    struct hearth_history *history = &reading->out->history;
    struct block_reader state = {.reading = reading, .job = reading->job, .history = history}, *reader = &state;
    const size_t count = json_array_size(messages);
    snprintf(reading->place, sizeof reading->place, "messages");
    if (count == 0) {
        return FAIL("%s", messages == NULL          ? "Field required"
                          : json_is_array(messages) ? "at least one message is required"
                                                    : "Input should be a list");
    }
    for (size_t i = 0; i < past->count; i++) { /* calls of a thread's earlier messages */
        if (past->messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            reader->asked = past->messages[i];
        }
    }
    bool ok = read_system(reader, hearth_api_json_get(body, "system"));
    const size_t before = history->count;
    for (size_t i = 0; ok && i < count; i++) {
        ok = read_message(reader, json_array_get(messages, i), i, i + 1 == count);
    }
    ok = ok && close_message(reader) && check_end(reader, before);
    json_decref(reader->call_ids);
    hearth_api_draft_drop(&reader->open);
    return ok;
}
