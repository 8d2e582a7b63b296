/* What is stored of a response beside its items, and how the response is made from it again.
 *
 * The record is as small as possible: usual values are left out; tools and instructions are the turn's config (which
 * equal requests share) if they are what the client wrote; and numbers that always come together form an array.
 *
 *     "response": {what of the echo is unusual, "instructions": true, "previous_response_id": true,
 *                  "tools": [2, {"tool": 0, "strict": true}, {a whole tool}, …], "names": {…},
 *                  "extras": [{"encrypted_content", "logprobs"}, …], "u": [usage], "t": [timings], "h": [receipt], …}
 *
 * In tools, a number stands for that tool of the config, an object with "tool" for that tool with more members.
 * Invariant: hearth_response_of_turn() undoes hearth_response_record() to the last digit. */
#include "api/responses/responses.h"

#include <string.h>

/* ---- numbers ---- */

struct row {
    const char *name, *member; /* in the record; in the response */
    const char *const *keys;   /* "a.b": a member of a member */
    size_t count;
};

static const char *const usage_keys[] = {"input_tokens",
                                         "output_tokens",
                                         "total_tokens",
                                         "input_tokens_details.cached_tokens",
                                         "input_tokens_details.cache_write_tokens",
                                         "output_tokens_details.reasoning_tokens"};
static const char *const timing_keys[] = {"cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms"};
static const char *const receipt_keys[] = {"reused.live", "reused.ram", "reused.disk", "computed",   "matched",
                                           "queue_ms",    "plan_ms",    "restore_ms",  "prefill_ms", "prepare_ms",
                                           "known",       "sampled",    "reason"};

#define KEYS(keys) (keys), sizeof(keys) / sizeof(keys)[0]
static const struct row rows[] = {
    {"u", "usage", KEYS(usage_keys)}, {"t", "timings", KEYS(timing_keys)}, {"h", "hearth", KEYS(receipt_keys)}};

/* Members that follow from tokens and milliseconds: the record leaves them out, and they are computed again. */
static const struct {
    const char *tokens, *ms, *per_token, *per_second;
} rates[] = {{"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"},
             {"predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}};

static void remove_rates(json_t *timings) {
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        json_object_del(timings, rates[i].per_token);
        json_object_del(timings, rates[i].per_second);
    }
}

static void add_rates(json_t *timings) {
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        const double tokens = json_number_value(json_object_get(timings, rates[i].tokens));
        const double ms = json_number_value(json_object_get(timings, rates[i].ms));
        json_object_set_new(timings, rates[i].per_token, hearth_api_json_real(ms / tokens));
        json_object_set_new(timings, rates[i].per_second, hearth_api_json_real(tokens * 1000.0 / ms));
    }
}

/* The object that holds the member named by a key's last part, and that part. */
static json_t *holder(json_t *object, const char *key, bool make, const char **last) {
    char first[64];
    const char *dot = strchr(key, '.');
    *last = dot != NULL ? dot + 1 : key;
    if (dot == NULL) {
        return object;
    }
    snprintf(first, sizeof first, "%.*s", (int)(dot - key), key);
    if (make && json_object_get(object, first) == NULL) {
        json_object_set_new(object, first, json_object());
    }
    return json_object_get(object, first);
}

/* Puts the values of a member into an array of the record; values without a place in the array stay beside it. */
static void pack_row(json_t *record, const struct row *row) {
    json_t *member = json_deep_copy(json_object_get(record, row->member)), *values = json_array();
    const char *last, *key;
    json_t *rest;
    void *next;
    for (size_t i = 0; i < row->count; i++) {
        json_t *at = holder(member, row->keys[i], false, &last), *value = json_object_get(at, last);
        json_array_append_new(values, value != NULL ? json_incref(value) : json_null());
        json_object_del(at, last);
    }
    remove_rates(member);
    json_object_foreach_safe(member, next, key, rest) {
        if (json_is_null(rest) || (json_is_object(rest) && json_object_size(rest) == 0) ||
            strcmp(key, "reason_text") == 0 || strcmp(key, "turn") == 0) {
            json_object_del(member, key);
        }
    }
    json_object_set_new(record, row->name, values);
    if (json_object_size(member) > 0) {
        json_object_set(record, row->member, member);
    } else {
        json_object_del(record, row->member);
    }
    json_decref(member);
}

static const char *reason_help(const char *reason) {
    static const struct {
        const char *text, *help;
    } reasons[] = {
#define X(name, text, help) {text, help},
        HEARTH_REASON_TABLE(X)
#undef X
    };
    for (size_t i = 0; reason != NULL && i < sizeof reasons / sizeof reasons[0]; i++) {
        if (strcmp(reasons[i].text, reason) == 0) {
            return reasons[i].help;
        }
    }
    return "";
}

/* Adds members of a receipt that the store knows anyway. */
static void complete_receipt(json_t *receipt, const struct hearth_turn *turn) {
    char id[64];
    const char *reason = json_string_value(json_object_get(receipt, "reason"));
    hearth_api_id_print(id, sizeof id, "turn_", turn->id, -1);
    json_object_set_new(receipt, "turn", json_string(id));
    json_object_set_new(receipt, "reason_text", json_string(reason_help(reason)));
    if (json_object_get(receipt, "divergence") == NULL) {
        json_object_set_new(receipt, "divergence", json_null());
    }
}

static void unpack_row(json_t *object, const struct row *row, const struct hearth_turn *turn) {
    json_t *values = json_incref(json_object_get(object, row->name)), *member = json_object_get(object, row->member);
    const char *last;
    if (values == NULL) {
        return;
    }
    json_object_del(object, row->name);
    if (member == NULL) {
        member = json_object();
        json_object_set_new(object, row->member, member);
    }
    for (size_t i = 0; i < row->count && i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i), *at = holder(member, row->keys[i], true, &last);
        if (!json_is_null(value)) {
            json_object_set(at, last, value);
        }
    }
    json_decref(values);
    if (strcmp(row->member, "hearth") == 0) {
        complete_receipt(member, turn);
    } else if (strcmp(row->member, "timings") == 0) {
        add_rates(member);
    }
}

/* ---- tools ---- */

/* Members of a tool that the config has unchanged. */
static const char *const tool_members[] = {"name", "description", "parameters"};

/* The stored form of a tool (see above). `chats`: the config's tools; `at`: its place among them. */
static json_t *packed_tool(json_t *tool, const json_t *chats, size_t at) {
    const json_t *function = json_object_get(json_array_get(chats, at), "function");
    if (!hearth_api_type_is(tool, "function") || function == NULL) {
        return json_incref(tool);
    }
    json_t *rest = json_copy(tool);
    json_object_del(rest, "type");
    for (size_t i = 0; i < sizeof tool_members / sizeof tool_members[0]; i++) {
        const json_t *value = json_object_get(function, tool_members[i]);
        if (value != NULL && json_equal(json_object_get(tool, tool_members[i]), value) != 1) {
            json_decref(rest);
            return json_incref(tool);
        }
        if (value != NULL) {
            json_object_del(rest, tool_members[i]);
        }
    }
    if (json_object_size(rest) == 0) {
        json_decref(rest);
        return json_integer((json_int_t)at);
    }
    json_object_set_new(rest, "tool", json_integer((json_int_t)at));
    return rest;
}

/* How many functions of the chat a tool became; they stand there in this order. */
static size_t chat_tools_of(const json_t *tool) {
    if (hearth_api_type_is(tool, "namespace")) {
        return json_array_size(json_object_get(tool, "tools"));
    }
    return hearth_api_type_is(tool, "function") || hearth_api_type_is(tool, "custom");
}

static json_t *packed_tools(const json_t *tools, const json_t *chats) {
    json_t *packed = json_array(), *tool;
    size_t i, at = 0;
    json_array_foreach(tools, i, tool) {
        json_array_append_new(packed, packed_tool(tool, chats, at));
        at += chat_tools_of(tool);
    }
    return packed;
}

static json_t *unpacked_tool(json_t *packed, const json_t *chats) {
    const json_t *place = json_is_integer(packed) ? packed : json_object_get(packed, "tool");
    if (!json_is_integer(place)) {
        return json_incref(packed);
    }
    const json_t *chat = json_array_get(chats, (size_t)json_integer_value(place));
    json_t *tool = json_pack("{s:s}", "type", "function");
    json_object_update(tool, json_object_get(chat, "function"));
    if (json_is_object(packed)) {
        json_object_update(tool, packed);
        json_object_del(tool, "tool");
    }
    return tool;
}

/* ---- the record ---- */

/* The usual values of a response's members. */
static json_t *usual(void) {
    json_t *usual = json_pack("{s:s, s:b, s:[], s:{}, s:{s:{s:s}}, s:{s:n, s:n}, s:s, s:s, s:b, s:b}", "tool_choice",
                              "auto", "parallel_tool_calls", 1, "tools", "metadata", "text", "format", "type", "text",
                              "reasoning", "effort", "summary", "service_tier", "default", "truncation", "disabled",
                              "background", 0, "store", 1);
    for (size_t i = 0; i < HEARTH_RESPONSE_ECHOED; i++) {
        json_object_set_new(usual, hearth_response_echoed[i], json_null());
    }
    return usual;
}

static void leave_out_usual(json_t *record) {
    json_t *most = usual(), *value;
    const char *key;
    json_object_foreach(most, key, value) {
        if (json_equal(json_object_get(record, key), value) == 1) {
            json_object_del(record, key);
        }
    }
    json_decref(most);
}

/* Whether the response's id is that of the turn's parent. */
static bool is_parent(const json_t *id, struct hearth_digest parent) {
    char text[64];
    hearth_api_id_print(text, sizeof text, "resp_", parent, -1);
    return json_is_string(id) && strcmp(json_string_value(id), text) == 0;
}

/* Replaces values that the turn has anyway by true. */
static void refer(struct hearth_job *job, json_t *record) {
    const json_t *text = json_object_get(record, "instructions");
    const struct hearth_message *first = job->resolved->history.count > 0 ? job->resolved->history.messages[0] : NULL;
    const struct hearth_line *line = &job->resolved->stored->line;
    if (json_is_string(text) && first != NULL && first->role == HEARTH_ROLE_SYSTEM &&
        strcmp(first->content, json_string_value(text)) == 0) {
        json_object_set_new(record, "instructions", json_true());
    }
    if (line->count > 0 &&
        is_parent(json_object_get(record, "previous_response_id"), line->turns[line->count - 1].id)) {
        json_object_set_new(record, "previous_response_id", json_true());
    }
    json_object_set_new(record, "tools", packed_tools(json_object_get(record, "tools"), job->resolved->request.tools));
}

static bool has_extras(const json_t *extras) {
    size_t i;
    json_t *extra;
    json_array_foreach(extras, i, extra) {
        if (!json_is_null(extra)) {
            return true;
        }
    }
    return false;
}

json_t *hearth_response_record(struct hearth_job *job, enum hearth_turn_status status) {
    const struct hearth_response *response = job->dialect_state;
    json_t *record = json_copy(hearth_response_asked(job)->echo), *names = hearth_response_asked(job)->names;
    refer(job, record);
    leave_out_usual(record);
    if (!job->failed && (status == HEARTH_TURN_COMPLETED || status == HEARTH_TURN_INCOMPLETE)) {
        hearth_response_fill_output(job);
        hearth_response_add_cost(job, record);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            pack_row(record, &rows[i]);
        }
    } else if (status == HEARTH_TURN_FAILED) {
        json_object_set_new(record, "error", hearth_response_error(&job->error));
    }
    if (status == HEARTH_TURN_COMPLETED) {
        json_object_set_new(record, "completed_at", json_integer(response->completed_unix));
    }
    if (has_extras(response->extras)) {
        json_object_set(record, "extras", response->extras);
    }
    if (json_object_size(names) > 0) {
        json_object_set(record, "names", names);
    }
    return record;
}

/* ---- and back ---- */

/* Puts tools, instructions and the previous response back, as the client wrote them. */
static void unrefer(json_t *object, const struct hearth_turn *turn) {
    json_t *config = hearth_api_stored_config_json(turn), *tools = json_array(), *tool;
    char id[64];
    size_t i;
    json_array_foreach(json_object_get(object, "tools"), i, tool) {
        json_array_append_new(tools, unpacked_tool(tool, json_object_get(config, "tools")));
    }
    json_object_set_new(object, "tools", tools);
    if (json_is_true(json_object_get(object, "instructions"))) {
        json_t *text = json_object_get(json_array_get(json_object_get(config, "system"), 0), "content");
        json_object_set_new(object, "instructions", text != NULL ? json_incref(text) : json_null());
    }
    if (json_is_true(json_object_get(object, "previous_response_id"))) {
        hearth_api_id_print(id, sizeof id, "resp_", turn->parent, -1);
        json_object_set_new(object, "previous_response_id", json_string(id));
    }
    json_decref(config);
}

/* The items that went out. */
static json_t *output_of(const json_t *body, const json_t *object, struct hearth_digest turn) {
    const json_t *names = json_object_get(object, "names"), *extras = json_object_get(object, "extras");
    const bool summarises = json_is_string(json_object_get(json_object_get(object, "reasoning"), "summary"));
    const size_t first = json_array_size(json_object_get(body, "input"));
    json_t *output = json_array(), *item;
    size_t i;
    json_array_foreach(json_object_get(body, "output"), i, item) {
        if (json_is_object(item)) { /* not one that was deleted */
            json_array_append_new(
                output, hearth_response_item(item, names, summarises, json_array_get(extras, i), turn, first + i));
        }
    }
    return output;
}

json_t *hearth_response_of_turn(const struct hearth_turn *turn, const char *model) {
    json_t *body = hearth_api_json_read(&turn->body);
    json_t *object = json_copy(json_object_get(body, "response")), *most = usual();
    object = object != NULL ? object : json_object();
    if (turn->status == HEARTH_TURN_FAILED && json_object_get(object, "error") == NULL) {
        json_object_set_new(object, "error",
                            json_pack("{s:s, s:s}", "code", "server_error", "message",
                                      "the server ended while the response was running"));
    }
    unrefer(object, turn);
    json_object_set_new(most, "model", json_string(model));
    json_object_update_missing(object, most);
    json_t *output = output_of(body, object, turn->id);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unpack_row(object, &rows[i], turn);
    }
    json_object_del(object, "names");
    json_object_del(object, "extras");
    json_decref(most);
    json_decref(body);
    return hearth_response_finished(object, turn->id, turn->created_us / 1000000, turn->status, output);
}
