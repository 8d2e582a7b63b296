/* Converts items of OpenAI's Responses API to messages and back.
 *
 * A message is one item or several: what an assistant thought, said and called are items of their own that stand in a
 * row. Read, such a row becomes one message again. A new one begins where something comes in an order in which no
 * reply has it (a text after calls, a second text), and where the ids say that two items are of different replies.
 *
 * Items of tools that run on OpenAI's side are left out: nothing here can have made them, and no template prints them.
 * So are items of types that are unknown here, which a response warns of, and results of calls that were left out.
 * Left out are messages that say nothing, too, but for an assistant's: a reply may have been empty. Parts that are no
 * text become notes (api/content.c).
 * Source: https://platform.openai.com/docs/api-reference/responses/create */
#include "api/responses/responses.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* The state of one reading. */
struct item_reader {
    const struct hearth_job *job;
    struct hearth_history *history;
    struct hearth_api_error *error;
    const char *param;
    json_t *unanswered; /* results whose calls are not among the items: [index, id]; NULL: they come from the store */
    size_t index;       /* index of the item */
    /* The message that is being put together; between two items only a reply. What notes say of items that were left
     * out goes to the next one. */
    struct hearth_api_draft open;
    bool said;                 /* the reply has a text, maybe an empty one */
    struct hearth_digest turn; /* turn of the reply's items; zero: unknown */
    json_t *call_ids;          /* ids of the calls in the first messages of the history */
    size_t noted;
    json_t *left_out; /* ids of calls that were left out; or NULL */
};

static bool fail_item(const struct item_reader *reader, const char *code, const char *member, const char *what) {
    char param[96];
    snprintf(param, sizeof param, "%s[%zu]%s", reader->param, reader->index, member);
    return hearth_api_fail(reader->error, 400, code, param, "%s: %s", param, what);
}

/* ---- the row of a reply ---- */

/* Ends the message that is open, if one is. An empty one is left out. */
static bool flush(struct item_reader *reader) {
    struct hearth_message *message = reader->open.message;
    const bool said = reader->said;
    reader->said = false;
    reader->turn = (struct hearth_digest){0, 0};
    if (message == NULL) {
        return true;
    }
    if (message->role == HEARTH_ROLE_ASSISTANT && !said && message->call_count == 0 &&
        reader->open.reasoning.len == 0) { /* reasoning that stands alone */
        hearth_message_unref(message);
        reader->open.message = NULL;
        return true;
    }
    return hearth_history_add_sent(reader->history, hearth_api_draft_end(&reader->open, &reader->job->api->strip));
}

static bool begin(struct item_reader *reader, enum hearth_role role) {
    return flush(reader) && hearth_api_draft_begin(&reader->open, role);
}

/* Makes sure that there is a reply for the item. `follows`: its kind may follow what the reply has. */
static bool need_reply(struct item_reader *reader, const json_t *item, bool follows) {
    const char *id = json_string_value(hearth_api_json_get(item, "id"));
    struct hearth_digest turn;
    int at;
    const bool known = id != NULL && hearth_api_id_parse(id, &turn, &at) && !hearth_digest_is_zero(turn);
    const bool other = known && !hearth_digest_is_zero(reader->turn) && !hearth_digest_equal(turn, reader->turn);
    if ((reader->open.message == NULL || !follows || other) && !begin(reader, HEARTH_ROLE_ASSISTANT)) {
        return false;
    }
    if (known) {
        reader->turn = turn;
    }
    return true;
}

/* ---- text ---- */

/* Types of parts that are text, and the member that holds it. */
static const char *const part_texts[][2] = {
    {"input_text", "text"},
    {"output_text", "text"},
    {"text", "text"},
    {"reasoning_text", "text"},
    {"summary_text", "text"},
    {"refusal", "refusal"},
    {"encrypted_content", "encrypted_content"},
};

/* Adds a part; `first` becomes false when something was added. */
static bool add_part(struct item_reader *reader, const json_t *part, const char *member, bool *first,
                     struct hearth_buf *text) {
    const char *type = json_string_value(json_object_get(part, "type"));
    /* Appends a part of a tool's result. A note stands for an unknown one: to refuse it would end the session. */
    const bool result = strcmp(member, ".output") == 0, known = hearth_content_is_known(type);
    const char *between = *first ? "" : "\n";
    char what[160];
    if (type == NULL) {
        return fail_item(reader, "invalid_type", member, "a content part must be an object with a type");
    }
    for (size_t i = 0; i < sizeof part_texts / sizeof part_texts[0]; i++) {
        if (strcmp(type, part_texts[i][0]) == 0) {
            const json_t *value = json_object_get(part, part_texts[i][1]);
            if (!json_is_string(value)) {
                return fail_item(reader, hearth_fields_code(value), member, "a text part needs a string \"text\"");
            }
            *first = false;
            return hearth_buf_text(text, between) &&
                   hearth_buf_append(text, json_string_value(value), json_string_length(value));
        }
    }
    if (result || (known && !reader->job->api->params.strict_content)) {
        *first = false;
        return hearth_buf_text(text, between) && hearth_content_note(part, text, &reader->open.unseen);
    }
    if (!known && reader->open.message->role == HEARTH_ROLE_ASSISTANT &&
        !reader->job->api->params.strict_content) { /* from a reply of another server */
        return true;
    }
    snprintf(what, sizeof what, "content parts of type \"%.60s\" are not supported, only text", type);
    return fail_item(reader, "unsupported_value", member, what);
}

/* Appends a string or an array of text parts, joined by newlines as those of a chat are. */
static bool add_text(struct item_reader *reader, const json_t *value, const char *member, struct hearth_buf *text) {
    if (json_is_string(value)) {
        return hearth_buf_append(text, json_string_value(value), json_string_length(value));
    }
    bool first = true;
    if (value != NULL && !json_is_array(value)) {
        return fail_item(reader, hearth_fields_code(value), member, "a string or an array of text parts is needed");
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!add_part(reader, json_array_get(value, i), member, &first, text)) {
            return false;
        }
    }
    return true;
}

/* Copies a string member that may be missing. */
static bool copy_text(const struct item_reader *reader, const json_t *item, const char *name, char **out) {
    const json_t *value = hearth_api_json_get(item, name);
    char member[32];
    if (value == NULL) {
        return true;
    }
    if (!json_is_string(value)) {
        snprintf(member, sizeof member, ".%s", name);
        return fail_item(reader, "invalid_type", member, "a string is needed");
    }
    *out = hearth_memory_strdup(json_string_value(value));
    return *out != NULL;
}

/* ---- items ---- */

/* Ends a message that is not an assistant's. */
static bool end(struct item_reader *reader, const json_t *item) {
    return copy_text(reader, item, "name", &reader->open.message->name) && flush(reader);
}

static bool has_no_calls(const struct item_reader *reader) {
    return reader->open.message != NULL && reader->open.message->call_count == 0;
}

static bool read_message(struct item_reader *reader, const json_t *item) {
    const json_t *given = hearth_api_json_get(item, "role"), *content = hearth_api_json_get(item, "content");
    enum hearth_role role;
    if (!json_is_string(given)) {
        return fail_item(reader, hearth_fields_code(given), ".role", "a message needs a role, a string");
    }
    if (!hearth_role_from_text(json_string_value(given), &role) || role == HEARTH_ROLE_TOOL) {
        return fail_item(reader, "invalid_value", ".role", "the role must be user, assistant, system or developer");
    }
    if (role == HEARTH_ROLE_ASSISTANT) {
        if (!need_reply(reader, item, !reader->said && has_no_calls(reader)) ||
            !add_text(reader, content, ".content", &reader->open.content)) {
            return false;
        }
        reader->said = true;
        char **own = &reader->open.message->name;
        return *own != NULL || copy_text(reader, item, "name", own);
    }
    return begin(reader, role) && add_text(reader, content, ".content", &reader->open.content) && end(reader, item);
}

static bool read_reasoning(struct item_reader *reader, const json_t *item) {
    const json_t *content = hearth_api_json_get(item, "content"), *summary = hearth_api_json_get(item, "summary");
    const json_t *sealed = hearth_api_json_get(item, "encrypted_content");
    struct hearth_buf text = {0};
    if (!need_reply(reader, item, !reader->said && has_no_calls(reader))) {
        return false;
    }
    bool ok = true;
    char *opened = json_is_string(sealed)
                       ? hearth_api_sealed_open(reader->job->api, HEARTH_SEALED_REASONING, json_string_value(sealed))
                       : NULL;
    if (opened != NULL) {
        ok = hearth_buf_text(&text, opened);
    } else if (json_array_size(content) > 0) {
        ok = add_text(reader, content, ".content", &text);
    } else if (json_array_size(summary) > 0) {
        ok = add_text(reader, summary, ".summary", &text);
    } else if (json_is_string(sealed)) {
        hearth_log(HEARTH_LOG_DEBUG, "api: %s[%zu]: encrypted reasoning that is not ours is left out", reader->param,
                   reader->index);
    }
    free(opened);
    if (ok && text.len > 0) {
        ok = (reader->open.reasoning.len == 0 || hearth_buf_append(&reader->open.reasoning, "\n", 1)) &&
             hearth_buf_append(&reader->open.reasoning, text.data, text.len);
    }
    hearth_buf_finish(&text);
    return ok;
}

/* A call; that of a custom tool has its text in `input`, which is the one argument of the function that stands for
 * it. */
static bool read_call(struct item_reader *reader, const json_t *item, bool custom) {
    const json_t *name = hearth_api_json_get(item, "name"), *call_id = hearth_api_json_get(item, "call_id");
    json_t *arguments = hearth_api_json_get(item, custom ? "input" : "arguments");
    const char *space = json_string_value(hearth_api_json_get(item, "namespace"));
    if (!json_is_string(name)) {
        return fail_item(reader, hearth_fields_code(name), ".name", "a call needs the name of its function");
    }
    if (!json_is_string(call_id)) {
        return fail_item(reader, hearth_fields_code(call_id), ".call_id", "a call needs a call_id, a string");
    }
    if (arguments != NULL && !json_is_string(arguments) && (custom || !json_is_object(arguments))) {
        return fail_item(reader, "invalid_type", custom ? ".input" : ".arguments", "a string is needed");
    }
    if (!need_reply(reader, item, true)) {
        return false;
    }
    const char *id = json_string_value(call_id);
    char *known = hearth_response_tool_name(space != NULL ? space : "", json_string_value(name));
    json_t *wrapped = custom ? json_pack("{s:O?}", "input", arguments) : json_incref(arguments);
    const bool ok = known != NULL && hearth_api_draft_call(&reader->open, *id != '\0' ? id : NULL, known, wrapped);
    free(known);
    json_decref(wrapped);
    return ok;
}

/* Whether a call of this id stands in front of the item. */
static bool is_called(struct item_reader *reader, const char *id) {
    const struct hearth_history *history = reader->history;
    for (; reader->noted < history->count; reader->noted++) {
        (void)hearth_api_call_ids_add(&reader->call_ids, history->messages[reader->noted]);
    }
    return json_object_get(reader->call_ids, id) != NULL;
}

static bool leave_out(struct item_reader *reader, const json_t *item) {
    const char *call_id = json_string_value(hearth_api_json_get(item, "call_id"));
    hearth_log(HEARTH_LOG_DEBUG, "api: %s[%zu]: an item of type \"%.60s\" is left out", reader->param, reader->index,
               json_string_value(hearth_api_json_get(item, "type")));
    if (call_id == NULL) {
        return true;
    }
    reader->left_out = reader->left_out != NULL ? reader->left_out : json_object();
    return json_object_set_new(reader->left_out, call_id, json_null()) == 0;
}

static bool read_result(struct item_reader *reader, const json_t *item) {
    const json_t *call_id = hearth_api_json_get(item, "call_id"), *output = hearth_api_json_get(item, "output");
    const char *id = json_string_value(call_id);
    if (!flush(reader)) {
        return false;
    }
    if (id == NULL) {
        return fail_item(reader, hearth_fields_code(call_id), ".call_id",
                         "a function call output needs the call_id of its call");
    }
    if (json_object_get(reader->left_out, id) != NULL) {
        return leave_out(reader, item);
    }
    if (reader->unanswered != NULL && !is_called(reader, id)) {
        json_array_append_new(reader->unanswered, json_pack("[I, O]", (json_int_t)reader->index, call_id));
    }
    if (!begin(reader, HEARTH_ROLE_TOOL) || !add_text(reader, output, ".output", &reader->open.content)) {
        return false;
    }
    reader->open.message->tool_call_id = *id != '\0' ? hearth_memory_strdup(id) : NULL;
    return end(reader, item);
}

/* A summary comes back as a message of the user. Where it cannot be opened (another server made it, or the secret was
 * lost since), the model is told that there was one, so that the conversation can go on. */
static bool read_compaction(struct item_reader *reader, const json_t *item) {
    const json_t *sealed = hearth_api_json_get(item, "encrypted_content");
    struct hearth_api_draft *open = &reader->open;
    if (!json_is_string(sealed)) {
        return fail_item(reader, hearth_fields_code(sealed), ".encrypted_content", "a compaction item needs a string");
    }
    char *summary = hearth_api_sealed_open(reader->job->api, HEARTH_SEALED_SUMMARY, json_string_value(sealed));
    if (summary == NULL && reader->job->api->params.strict_content) {
        return fail_item(reader, "invalid_value", ".encrypted_content",
                         "this compaction was not made by this server, or has been changed");
    }
    const bool ok =
        begin(reader, HEARTH_ROLE_USER) && hearth_buf_text(&open->content, HEARTH_SUMMARY_HEAD) &&
        hearth_buf_text(&open->content, summary != NULL ? summary : "[a summary; this model cannot read it]") &&
        (summary != NULL || hearth_buf_text(&open->unseen, "a summary that another server has encrypted")) &&
        end(reader, item);
    free(summary);
    return ok;
}

/* Reads a message from one agent of a client to another, as a message of the user. Its text is an argument of the call
 * that sent it: encrypted by OpenAI, plain here, as the model wrote it. */
static bool read_agent_message(struct item_reader *reader, const json_t *item) {
    return begin(reader, HEARTH_ROLE_USER) &&
           add_text(reader, hearth_api_json_get(item, "content"), ".content", &reader->open.content) &&
           end(reader, item);
}

static bool read_function_call(struct item_reader *reader, const json_t *item) {
    return read_call(reader, item, false);
}

static bool read_custom_call(struct item_reader *reader, const json_t *item) {
    return read_call(reader, item, true);
}

/* Leaves out an item of an unknown type (a newer one, or another service's), so that it does not end the session. */
static bool leave_out_unknown(struct item_reader *reader, const json_t *item, const char *type) {
    if (reader->job->api->params.strict_content) {
        char what[96];
        snprintf(what, sizeof what, "items of type \"%.60s\" are not supported", type);
        return fail_item(reader, "unsupported_value", ".type", what);
    }
    const bool stored = reader->unanswered == NULL; /* stored items: their request was warned */
    return (stored || hearth_content_leave_out(type, &reader->open.unseen)) && leave_out(reader, item);
}

/* Adds warnings about items behind the last message to that message. */
static bool warn_at_the_end(struct item_reader *reader) {
    const struct hearth_history *history = reader->history;
    struct hearth_message *last = history->count > 0 ? history->messages[history->count - 1] : NULL;
    struct hearth_buf *unseen = &reader->open.unseen;
    if (unseen->len == 0 || last == NULL) {
        return true;
    }
    const char *before = last->unseen;
    const bool ok = hearth_buf_printf(unseen, "%s%s", before != NULL ? "\n" : "", before != NULL ? before : "");
    free(last->unseen);
    last->unseen = (char *)hearth_buf_take(unseen);
    return ok;
}

static const struct {
    const char *type;
    bool (*read)(struct item_reader *reader, const json_t *item);
} types[] = {
    {"message", read_message},
    {"agent_message", read_agent_message},
    {"function_call", read_function_call},
    {"function_call_output", read_result},
    {"reasoning", read_reasoning},
    {"custom_tool_call", read_custom_call},
    {"custom_tool_call_output", read_result},
    {"compaction", read_compaction},
    {"context_compaction", read_compaction},
    {"compaction_summary", read_compaction},
    {"compaction_trigger", leave_out},
    {"web_search_call", leave_out},
    {"file_search_call", leave_out},
    {"computer_call", leave_out},
    {"computer_call_output", leave_out},
    {"code_interpreter_call", leave_out},
    {"image_generation_call", leave_out},
    {"local_shell_call", leave_out},
    {"local_shell_call_output", leave_out},
    {"shell_call", leave_out},
    {"shell_call_output", leave_out},
    {"apply_patch_call", leave_out},
    {"apply_patch_call_output", leave_out},
    {"tool_search_call", leave_out},
    {"tool_search_output", leave_out},
    {"additional_tools", leave_out},
    {"configuration_update", leave_out},
    {"mcp_list_tools", leave_out},
    {"mcp_approval_request", leave_out},
    {"mcp_approval_response", leave_out},
    {"mcp_call", leave_out},
    {"program", leave_out},
    {"program_output", leave_out},
};

static bool read_item(struct item_reader *reader, const json_t *item) {
    const json_t *type = hearth_api_json_get(item, "type");
    const char *word = json_string_value(type);
    if (json_is_null(item) && reader->unanswered == NULL) {
        return true; /* it was deleted */
    }
    if (!json_is_object(item)) {
        return fail_item(reader, "invalid_type", "", "an item must be an object");
    }
    if (type == NULL) {
        return read_message(reader, item); /* the short form */
    }
    for (size_t i = 0; word != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(word, types[i].type) == 0) {
            return types[i].read(reader, item);
        }
    }
    if (word == NULL) {
        return fail_item(reader, "invalid_type", ".type", "the type must be a string");
    }
    return leave_out_unknown(reader, item, word);
}

bool hearth_api_items_read(const struct hearth_job *job, const json_t *items, const char *param, json_t *unanswered,
                           struct hearth_history *history, struct hearth_api_error *error) {
    struct item_reader reader = {
        .job = job, .history = history, .error = error, .param = param, .unanswered = unanswered};
    const size_t count = json_array_size(items);
    bool ok = true;
    history->ends_empty = false;
    for (; ok && reader.index < count; reader.index++) {
        ok = read_item(&reader, json_array_get(items, reader.index));
    }
    ok = ok && flush(&reader) && warn_at_the_end(&reader);
    hearth_api_draft_drop(&reader.open);
    json_decref(reader.call_ids);
    json_decref(reader.left_out);
    return ok;
}

bool hearth_api_items_check(const json_t *unanswered, const struct hearth_history *past, const char *param,
                            struct hearth_api_error *error) {
    json_t *ids = NULL;
    bool ok = true;
    size_t i;
    const json_t *result;
    for (i = 0; i < past->count && json_array_size(unanswered) > 0; i++) {
        (void)hearth_api_call_ids_add(&ids, past->messages[i]);
    }
    json_array_foreach(unanswered, i, result) {
        const char *id = json_string_value(json_array_get(result, 1));
        if (ok && json_object_get(ids, id) == NULL) {
            char place[64];
            snprintf(place, sizeof place, "%s[%zu].call_id", param,
                     (size_t)json_integer_value(json_array_get(result, 0)));
            ok = hearth_api_fail(error, 400, "invalid_value", place,
                                 "No tool call found for function call output with call_id %.200s.", id);
        }
    }
    json_decref(ids);
    return ok;
}

/* ---- the way back ---- */

json_t *hearth_api_item_text(enum hearth_role role, const char *text, size_t len) {
    if (role == HEARTH_ROLE_ASSISTANT) {
        return json_pack("{s:s, s:s, s:s, s:[{s:s, s:o, s:[], s:[]}]}", "type", "message", "role", "assistant",
                         "status", "completed", "content", "type", "output_text", "text", hearth_json_text(text, len),
                         "annotations", "logprobs");
    }
    return json_pack("{s:s, s:s, s:s, s:[{s:s, s:o}]}", "type", "message", "role", hearth_role_text(role), "status",
                     "completed", "content", "type", "input_text", "text", hearth_json_text(text, len));
}

json_t *hearth_api_item_reasoning(const char *text, size_t len) {
    return json_pack("{s:s, s:[], s:[{s:s, s:o}], s:s}", "type", "reasoning", "summary", "content", "type",
                     "reasoning_text", "text", hearth_json_text(text, len), "status", "completed");
}

json_t *hearth_api_item_call(const char *id, const char *name, const char *arguments, size_t len) {
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "type", "function_call", "status", "completed", "call_id",
                     hearth_api_json_text(id != NULL ? id : ""), "name", hearth_api_json_text(name), "arguments",
                     hearth_json_text(arguments, len));
}

json_t *hearth_api_items_of_message(const struct hearth_message *message) {
    const bool reply = message->role == HEARTH_ROLE_ASSISTANT,
               apart = message->reasoning != NULL || message->call_count > 0;
    json_t *items = json_array(), *item = NULL;
    if (message->role == HEARTH_ROLE_TOOL) {
        item = json_pack("{s:s, s:s, s:o, s:o}", "type", "function_call_output", "status", "completed", "call_id",
                         hearth_api_json_text(message->tool_call_id != NULL ? message->tool_call_id : ""), "output",
                         hearth_json_text(message->content, message->content_len));
    } else if (!reply || message->content_len > 0 || !apart) {
        item = hearth_api_item_text(message->role, message->content, message->content_len);
    }
    if (reply && message->reasoning != NULL) {
        json_array_append_new(items, hearth_api_item_reasoning(message->reasoning, strlen(message->reasoning)));
    }
    if (item != NULL && message->name != NULL) {
        json_object_set_new(item, "name", hearth_api_json_text(message->name));
    }
    json_array_append_new(items, item);
    for (size_t i = 0; reply && i < message->call_count; i++) {
        const struct hearth_call *call = &message->calls[i];
        json_array_append_new(items,
                              hearth_api_item_call(call->id, call->name, call->arguments, strlen(call->arguments)));
    }
    return items;
}
