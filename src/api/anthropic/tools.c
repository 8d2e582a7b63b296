/* Tools of POST /v1/messages: those of the request, those that its messages define, and which of them is to be called.
 *
 * They are translated to the chat API's form and read there (api/tools.c), after a check here that names the place as
 * the client knows it. Tools without a schema, which a client or a host would run, are left out: no template knows how
 * to print them.
 *
 * Tools that a message defines (tool_addition) are put behind the request's as deferred ones before anything is read,
 * so that tool_choice and the grammar know them. Where they are described is the message's affair (blocks.c). */
#include "api/anthropic/anthropic.h"
#include "api/limits.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define FAIL(...) hearth_anthropic_fail(reading, __VA_ARGS__)

/* Whether a tool has a schema of its own; others are left out. */
static bool is_custom(const json_t *tool) {
    return !json_is_string(json_object_get(tool, "type")) || hearth_api_type_is(tool, "custom") ||
           hearth_api_json_get(tool, "input_schema") != NULL;
}

static bool check_tool(struct hearth_anthropic_reading *reading, const json_t *tool) {
    const json_t *name = hearth_api_json_get(tool, "name");
    const json_t *description = hearth_api_json_get(tool, "description");
    const json_t *schema = hearth_api_json_get(tool, "input_schema");
    const json_t *strict = hearth_api_json_get(tool, "strict");
    if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > 256) {
        return FAIL(name == NULL ? "custom.name: Field required"
                                 : "custom.name: String should have 1 to 256 characters");
    }
    if (description != NULL && !json_is_string(description)) {
        return FAIL("custom.description: Input should be a valid string");
    }
    if (!json_is_object(schema)) {
        return FAIL(schema == NULL ? "custom.input_schema: Field required"
                                   : "custom.input_schema: Input should be an object");
    }
    return strict == NULL || json_is_boolean(strict) || FAIL("custom.strict: Input should be a valid boolean");
}

/* The tool in the chat API's form. NULL: out of memory. */
static json_t *translate_tool(const json_t *tool) {
    json_t *function = json_pack("{s:O, s:O*, s:O, s:O*}", "name", json_object_get(tool, "name"), "description",
                                 hearth_api_json_get(tool, "description"), "parameters",
                                 json_object_get(tool, "input_schema"), "strict", hearth_api_json_get(tool, "strict"));
    return json_pack("{s:s, s:o, s:O*}", "type", "function", "function", function, "defer_loading",
                     hearth_api_json_get(tool, "defer_loading"));
}

/* Whether a tool searches for deferred tools on Anthropic's side. No such search runs here, so deferred tools are
 * described like the others. */
static bool searches(const json_t *tools) {
    static const char search[] = "tool_search_tool_";
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(hearth_api_json_get(tool, "type"));
        if (type != NULL && strncmp(type, search, sizeof search - 1) == 0) {
            return true;
        }
    }
    return false;
}

/* Translates tools; places[i] becomes the place of the i-th tool that was not left out. */
static bool translate_tools(struct hearth_anthropic_reading *reading, const json_t *tools, json_t *list,
                            size_t *places) {
    size_t i, count = 0;
    const json_t *tool;
    reading->out->chat.defers = !searches(tools);
    json_array_foreach(tools, i, tool) {
        snprintf(reading->place, sizeof reading->place, "tools.%zu", i);
        if (!json_is_object(tool)) {
            return FAIL("Input should be an object");
        }
        if (!hearth_anthropic_read_cache_control(reading, tool, HEARTH_ANTHROPIC_FRONT, SIZE_MAX)) {
            return false;
        }
        if (hearth_api_type_is(tool, "function")) {
            return FAIL("a tool of OpenAI's form; here a tool has a name, a description and an input_schema");
        }
        if (!is_custom(tool)) {
            hearth_log(HEARTH_LOG_DEBUG, "api: tools.%zu of type %.60s is left out: it has no schema", i,
                       json_string_value(json_object_get(tool, "type")));
            continue;
        }
        if (!check_tool(reading, tool)) {
            return false;
        }
        places[count++] = i;
        if (json_array_append_new(list, translate_tool(tool)) < 0) {
            return false;
        }
    }
    return true;
}

/* The tool that a block of a message defines ({"type": "tool_addition", "tool": {"type": "tool_definition",
 * "definition"}}), or NULL. */
static const json_t *definition_of(const json_t *block) {
    const json_t *tool = hearth_api_json_get(block, "tool");
    const bool defines = hearth_api_type_is(block, "tool_addition") && hearth_api_type_is(tool, "tool_definition");
    return defines ? hearth_api_json_get(tool, "definition") : NULL;
}

/* Adds a definition in a message to the deferred tools, in the place of an earlier one of its name. Each is looked for
 * among all, so their number is bounded here. */
static bool add_definition(struct hearth_anthropic_reading *reading, const json_t *definition, json_t *list) {
    if (!is_custom(definition)) {
        return true;
    }
    if (!check_tool(reading, definition)) {
        return false;
    }
    const size_t at = hearth_api_tool_index(list, json_string_value(json_object_get(definition, "name")));
    const json_t *other = json_array_get(list, at);
    if (other != NULL && !json_is_true(json_object_get(other, "defer_loading"))) {
        return true; /* the head describes a tool of this name */
    }
    if (other == NULL && json_array_size(list) >= hearth_limit_most(HEARTH_LIMIT_TOOLS)) {
        return hearth_limits_fail(HEARTH_LIMIT_TOOLS, json_array_size(list) + 1, "tools", reading->error);
    }
    json_t *translated = translate_tool(definition);
    json_object_set_new(translated, "defer_loading", json_true());
    return (other != NULL ? json_array_set_new(list, at, translated) : json_array_append_new(list, translated)) == 0;
}

static bool add_definitions(struct hearth_anthropic_reading *reading, const json_t *messages, json_t *list) {
    size_t i, k;
    const json_t *message, *block;
    json_array_foreach(messages, i, message) {
        json_array_foreach(hearth_api_json_get(message, "content"), k, block) {
            const json_t *definition = definition_of(block);
            snprintf(reading->place, sizeof reading->place, "messages.%zu.content.%zu.tool.definition", i, k);
            if (definition != NULL && !add_definition(reading, definition, list)) {
                return false;
            }
        }
    }
    return true;
}

static bool translate_choice(struct hearth_anthropic_reading *reading, const json_t *choice, json_t *out) {
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *tools = json_object_get(out, "tools");
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(hearth_api_json_get(choice, "name"));
    const json_t *single = hearth_api_json_get(choice, "disable_parallel_tool_use");
    json_t *value = NULL;
    if (type == NULL) {
        return hearth_anthropic_fail_at(reading, "tool_choice",
                                        json_is_object(choice) ? "type: Field required" : "Input should be an object");
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(type, words[i][0]) == 0) {
            value = json_string(words[i][1]);
        }
    }
    if (strcmp(type, "tool") == 0) {
        if (name == NULL) {
            return hearth_anthropic_fail_at(reading, "tool_choice.tool.name", "Field required");
        }
        if (hearth_api_tool_find(tools, name) == NULL) {
            snprintf(reading->place, sizeof reading->place, "tool_choice");
            return FAIL("Tool '%.200s' not found in provided tools", name);
        }
        value = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
    } else if (value == NULL) {
        return hearth_anthropic_fail_at(reading, "tool_choice.type", "Input should be 'auto', 'any', 'tool' or 'none'");
    }
    if (json_array_size(tools) == 0) {
        json_decref(value);
        return strcmp(type, "any") != 0 ||
               hearth_anthropic_fail_at(reading, "tool_choice", "may only be specified while providing tools");
    }
    return json_object_set_new(out, "tool_choice", value) == 0 &&
           (!json_is_true(single) || json_object_set_new(out, "parallel_tool_calls", json_false()) == 0);
}

/* Renames "tools[2].function.parameters: …" and the like in an error to the client's words. */
static bool fail_tools(struct hearth_anthropic_reading *reading, const size_t *places, size_t count) {
    struct hearth_api_error *error = reading->error;
    const char *rest = strchr(error->message.text, ':');
    size_t index;
    if (sscanf(error->param, "tools[%zu]", &index) != 1 || index >= count || rest == NULL) {
        return false;
    }
    const bool schema = strstr(error->param, "parameters") != NULL;
    struct hearth_errmsg what;
    snprintf(what.text, sizeof what.text, "custom.%s%s", schema ? "input_schema" : "name", rest);
    snprintf(reading->place, sizeof reading->place, "tools.%zu", places[index]);
    return FAIL("%s", what.text);
}

/* Reads the tools. Those of a thread were translated when it was created. */
static bool take_tools(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral, size_t *places) {
    const json_t *tools = hearth_api_json_get(body, "tools");
    json_t *list = json_array();
    if (json_object_set_new(neutral, "tools", list) < 0) {
        return false;
    }
    reading->out->chat.defers = true;
    return (reading->thread == NULL ? translate_tools(reading, tools, list, places)
                                    : hearth_api_stored_add_tools(&reading->out->chat, reading->thread, list)) &&
           add_definitions(reading, hearth_api_json_get(body, "messages"), list);
}

bool hearth_anthropic_read_tools(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *tools = hearth_api_json_get(body, "tools");
    const json_t *choice = hearth_api_json_get(body, "tool_choice");
    size_t *places = calloc(json_array_size(tools) + 1, sizeof *places);
    if (places == NULL) {
        return false;
    }
    bool ok =
        tools == NULL || json_is_array(tools) || hearth_anthropic_fail_at(reading, "tools", "Input should be a list");
    ok = ok && take_tools(reading, body, neutral, places) &&
         (choice == NULL || translate_choice(reading, choice, neutral));
    if (ok && !hearth_api_tools_read(reading->job->api, neutral, &reading->out->chat, reading->error)) {
        ok = reading->thread == NULL && fail_tools(reading, places, json_array_size(json_object_get(neutral, "tools")));
    }
    free(places);
    return ok;
}

bool hearth_anthropic_read_tool_change(struct hearth_anthropic_reading *reading, const json_t *block, bool removal,
                                       struct hearth_buf *text) {
    struct hearth_api_chat_options *options = &reading->out->chat;
    const json_t *definition = definition_of(block);
    const char *name = json_string_value(hearth_api_json_get(hearth_api_json_get(block, "tool"), "name"));
    bool ok;
    if (definition != NULL && !is_custom(definition)) {
        hearth_log(HEARTH_LOG_DEBUG, "api: %s: a tool without a schema is left out", reading->place);
        return true;
    }
    if (definition != NULL) {
        json_t *tool = translate_tool(definition);
        ok = tool != NULL && hearth_api_tools_add(options, tool, text);
        json_decref(tool);
    } else if (name != NULL) {
        ok = (removal ? hearth_api_tools_remove : hearth_api_tools_load)(options, name, text);
    } else {
        return FAIL("%s.tool: Input should be a tool_reference with a name%s",
                    removal ? "tool_removal" : "tool_addition", removal ? "" : ", or a tool_definition");
    }
    return ok;
}
