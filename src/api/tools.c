/* Tools of a chat request: tools, tool_choice, parallel_tool_calls, and their older names (functions, function_call).
 *
 * Tools are checked and copied. A copy has only the members that templates know: members that clients add (null
 * members, cache_control, strict) then do not change a prompt. A named function, a list of allowed ones and "required"
 * concern only the reply: the prompt describes all tools, because otherwise it would change with the choice. Deferred
 * tools are described where a message refers to them (loading.c).
 * Source: https://platform.openai.com/docs/api-reference/chat/create */
#include "api/job.h"
#include "api/limits.h"

#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 256u

/* The place of a tool, or of a function, in the body, for errors. */
struct tool_place {
    const char *list; /* "tools" or "functions" */
    size_t index;
    const char *inner; /* ".function", or "" */
};

static bool fail_tool(struct hearth_api_error *error, const char *code, struct tool_place place, const char *member,
                      const char *what) {
    char param[96];
    snprintf(param, sizeof param, "%s[%zu]%s%s", place.list, place.index, place.inner, member);
    return hearth_api_fail(error, 400, code, param, "%s: %s", param, what);
}

static bool is_name(const json_t *value) {
    const char *name = json_string_value(value);
    size_t len = json_string_length(value);
    if (name == NULL || len == 0 || len > NAME_MAX_BYTES) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)name[i] < ' ') {
            return false;
        }
    }
    return true;
}

static bool append(json_t **list, json_t *tool) {
    if (*list == NULL) {
        *list = json_array();
    }
    return json_array_append_new(*list, tool) == 0;
}

/* Checks a function, and adds its copy to the tools or to the deferred ones. */
static bool add_function(const json_t *function, struct tool_place place, bool deferred,
                         struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    json_t *name = hearth_api_json_get(function, "name");
    json_t *description = hearth_api_json_get(function, "description");
    json_t *parameters = hearth_api_json_get(function, "parameters");
    const json_t *strict = hearth_api_json_get(function, "strict");
    struct hearth_errmsg reason;
    if (!is_name(name)) {
        return fail_tool(error, json_is_string(name) ? "invalid_value" : hearth_fields_code(name), place, ".name",
                         "a name of 1 to 256 bytes is needed");
    }
    if (hearth_api_tool_find(options->tools, json_string_value(name)) != NULL ||
        hearth_api_tool_find(options->deferred, json_string_value(name)) != NULL) {
        return fail_tool(error, "invalid_value", place, ".name", "another tool has this name already");
    }
    if (description != NULL && !json_is_string(description)) {
        return fail_tool(error, "invalid_type", place, ".description", "a description must be a string");
    }
    if (parameters != NULL && !json_is_object(parameters)) {
        return fail_tool(error, "invalid_type", place, ".parameters", "parameters must be a JSON schema, an object");
    }
    if (strict != NULL && !json_is_boolean(strict)) {
        return fail_tool(error, "invalid_type", place, ".strict", "strict must be true or false");
    }
    if (json_is_true(strict) && parameters != NULL && !hearth_chat_schema_check(parameters, &reason)) {
        return fail_tool(error, "unsupported_schema", place, ".parameters", reason.text);
    }
    json_t *copy = json_pack("{s:O, s:O*, s:O*}", "name", name, "description", description, "parameters", parameters);
    return append(deferred ? &options->deferred : &options->tools,
                  json_pack("{s:s, s:o}", "type", "function", "function", copy));
}

static bool add_tool(const json_t *tool, struct tool_place place, struct hearth_api_chat_options *options,
                     struct hearth_api_error *error) {
    const json_t *type = hearth_api_json_get(tool, "type");
    const json_t *function = hearth_api_json_get(tool, "function");
    if (!json_is_object(tool)) {
        return fail_tool(error, "invalid_type", place, "", "a tool must be an object");
    }
    if (!json_is_string(type)) {
        return fail_tool(error, hearth_fields_code(type), place, ".type", "a tool needs a type, a string");
    }
    if (strcmp(json_string_value(type), "function") != 0) {
        char what[128];
        snprintf(what, sizeof what, "tools of type \"%.60s\" are not supported, only \"function\"",
                 json_string_value(type));
        return fail_tool(error, "unsupported_value", place, ".type", what);
    }
    const bool flat = function == NULL && json_object_get(tool, "name") != NULL; /* as the Responses API has it */
    if (!flat && !json_is_object(function)) {
        return fail_tool(error, hearth_fields_code(function), place, ".function", "a tool needs a function, an object");
    }
    place.inner = flat ? "" : ".function";
    return add_function(flat ? tool : function, place,
                        options->defers && json_is_true(hearth_api_json_get(tool, "defer_loading")), options, error);
}

static bool read_list(const json_t *list, const char *name, struct hearth_api_chat_options *options,
                      struct hearth_api_error *error) {
    bool functions = strcmp(name, "functions") == 0;
    size_t count = json_array_size(list);
    if (!json_is_array(list)) {
        return hearth_api_fail(error, 400, "invalid_type", name, "%s must be an array", name);
    }
    if (count > hearth_limit_most(HEARTH_LIMIT_TOOLS)) {
        return hearth_limits_fail(HEARTH_LIMIT_TOOLS, count, name, error);
    }
    for (size_t i = 0; i < count; i++) {
        const struct tool_place place = {name, i, ""};
        const json_t *item = json_array_get(list, i);
        if (functions && !json_is_object(item)) {
            return fail_tool(error, "invalid_type", place, "", "a function must be an object");
        }
        if (!(functions ? add_function(item, place, false, options, error) : add_tool(item, place, options, error))) {
            return false;
        }
    }
    return true;
}

/* Adds the tool that an object names to those that are offered. */
static bool offer(const json_t *named, const char *param, struct hearth_api_chat_options *options,
                  struct hearth_api_error *error) {
    const json_t *name = hearth_api_json_get(named, "name");
    if (!json_is_string(name)) {
        return hearth_api_fail(error, 400, hearth_fields_code(name), param, "%s must name a function", param);
    }
    json_t *tool = hearth_api_tool_find(options->tools, json_string_value(name));
    if (tool == NULL) {
        tool = hearth_api_tool_find(options->deferred, json_string_value(name));
    }
    if (tool == NULL) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s names \"%.200s\", which is not among the tools",
                               param, json_string_value(name));
    }
    if (options->offered == NULL) {
        options->offered = json_array();
    }
    return hearth_api_tool_find(options->offered, json_string_value(name)) != NULL ||
           json_array_append(options->offered, tool) == 0;
}

static bool choose_word(const char *word, const char *param, struct hearth_api_chat_options *options,
                        struct hearth_api_error *error) {
    static const struct {
        const char *word;
        enum hearth_chat_tool_choice choice;
    } words[] = {{"none", HEARTH_TOOLS_NONE}, {"auto", HEARTH_TOOLS_AUTO}, {"required", HEARTH_TOOLS_REQUIRED}};
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i].word) == 0) {
            options->request.tool_choice = words[i].choice;
            return true;
        }
    }
    return hearth_api_fail(error, 400, "invalid_value", param, "%s must be none, auto, required or name a function",
                           param);
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [{"type", "function"}, …]}} */
static bool choose_allowed(const json_t *choice, struct hearth_api_chat_options *options,
                           struct hearth_api_error *error) {
    static const char param[] = "tool_choice.allowed_tools";
    const json_t *allowed = hearth_api_json_get(choice, "allowed_tools");
    const json_t *tools = hearth_api_json_get(allowed, "tools");
    const char *mode = json_string_value(hearth_api_json_get(allowed, "mode"));
    size_t i;
    const json_t *tool;
    if (!json_is_array(tools) || json_array_size(tools) == 0) {
        return hearth_api_fail(error, 400, hearth_fields_code(tools), param, "%s must hold an array of tools", param);
    }
    if (json_array_size(tools) > hearth_limit_most(HEARTH_LIMIT_TOOLS)) {
        return hearth_limits_fail(HEARTH_LIMIT_TOOLS, json_array_size(tools), param, error);
    }
    if (mode == NULL || strcmp(mode, "none") == 0 || !choose_word(mode, param, options, error)) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s: the mode must be auto or required", param);
    }
    json_array_foreach(tools, i, tool) {
        const json_t *function = hearth_api_json_get(tool, "function");
        if (!offer(function != NULL ? function : tool, param, options, error)) {
            return false;
        }
    }
    return true;
}

static bool choose(const json_t *choice, struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    const char *param = options->functions ? "function_call" : "tool_choice";
    if (json_is_string(choice)) {
        return choose_word(json_string_value(choice), param, options, error);
    }
    if (!json_is_object(choice)) {
        return hearth_api_fail(error, 400, "invalid_type", param, "%s must be a string or an object", param);
    }
    if (!options->functions && hearth_api_type_is(choice, "allowed_tools")) {
        return choose_allowed(choice, options, error);
    }
    if (!options->functions && !hearth_api_type_is(choice, "function")) {
        const bool typed = json_is_string(json_object_get(choice, "type"));
        return hearth_api_fail(error, 400, typed ? "unsupported_value" : "invalid_type", "tool_choice",
                               "tool_choice: the type must be \"function\" or \"allowed_tools\"");
    }
    const json_t *function = hearth_api_json_get(choice, "function");
    options->request.tool_choice = HEARTH_TOOLS_REQUIRED;
    return offer(function != NULL ? function : choice, param, options, error);
}

/* Whether a reply has at most one call, whatever else the request says: with a named function, or "function_call". A
 * model that was never taught to call tools does not know when to stop once it has to begin, so it gets one call, too,
 * unless the request wants several. */
static bool is_single(const struct hearth_api *api, const json_t *body, const struct hearth_api_chat_options *options) {
    bool named = hearth_api_type_is(hearth_api_json_get(body, "tool_choice"), "function");
    bool asked = json_is_true(hearth_api_json_get(body, "parallel_tool_calls"));
    return options->functions || named ||
           (!asked && options->request.tool_choice == HEARTH_TOOLS_REQUIRED &&
            !hearth_chat_abilities(api->chat)->tools);
}

bool hearth_api_tools_read(const struct hearth_api *api, const json_t *body, struct hearth_api_chat_options *options,
                           struct hearth_api_error *error) {
    const json_t *tools = hearth_api_json_get(body, "tools");
    const json_t *functions = hearth_api_json_get(body, "functions");
    struct hearth_chat_request *request = &options->request;
    request->tool_choice = HEARTH_TOOLS_AUTO;
    request->parallel_calls = hearth_chat_abilities(api->chat)->parallel_calls;
    if (!hearth_field_bool(body, "parallel_tool_calls", &request->parallel_calls, error) ||
        (tools != NULL && !read_list(tools, "tools", options, error))) {
        return false;
    }
    if (json_array_size(functions) > 0 && (options->tools != NULL || options->deferred != NULL)) {
        return hearth_api_fail(error, 400, "invalid_value", "functions", "functions is the old name of tools: use one");
    }
    if (functions != NULL && !read_list(functions, "functions", options, error)) {
        return false;
    }
    options->functions = options->tools != NULL && json_array_size(functions) > 0;
    const char *param = options->functions ? "function_call" : "tool_choice";
    const json_t *choice = hearth_api_json_get(body, param);
    if (choice != NULL && options->tools == NULL && options->deferred == NULL) {
        const char *word = json_string_value(choice);
        return (word != NULL && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0)) ||
               hearth_api_fail(error, 400, word != NULL || json_is_object(choice) ? "invalid_value" : "invalid_type",
                               param, "%s: there are no tools to choose from", param);
    }
    if (choice != NULL && !choose(choice, options, error)) {
        return false;
    }
    if (is_single(api, body, options)) {
        request->parallel_calls = false;
    }
    request->tools = options->tools;
    return true;
}
