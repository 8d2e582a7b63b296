/* Tools of a response, in the form of a chat's.
 *
 *     function    as it is, its members one level deeper
 *     custom      a function with one string, "input"; a call of it goes out as a custom tool's again
 *     namespace   its tools, with the namespace in front of their names, since several may have tools of one name (two
 *                 MCP servers that search)
 *     tools of an item (additional_tools, tool_search_output)   like those of the request, which win
 *     anything else (web search and the like)                     left out: it runs on OpenAI's side, and clients send
 *                                                                 it unasked
 *
 * Source: https://platform.openai.com/docs/api-reference/responses/create */
#include "api/responses/responses.h"

#include "base/log.h"
#include "base/memory.h"

#include <string.h>

char *hearth_response_tool_name(const char *space, const char *name) {
    const size_t len = strlen(space) + sizeof "__" + strlen(name);
    char *joined = hearth_memory_calloc(1, len);
    if (joined != NULL) {
        snprintf(joined, len, "%s%s%s", space, space[0] != '\0' ? "__" : "", name);
    }
    return joined;
}

static bool fail_tool(struct hearth_api_error *error, size_t index, const char *code, const char *what) {
    char param[48];
    snprintf(param, sizeof param, "tools[%zu]", index);
    return hearth_api_fail(error, 400, code, param, "%s: %s", param, what);
}

/* Appends a function; takes it. A tool of an item may be there already, since a search finds deferred tools. */
static bool add(struct hearth_api_error *error, json_t *function, size_t from, struct hearth_offers *offers) {
    const char *name = json_string_value(json_object_get(function, "name"));
    if (offers->of_items && name != NULL && hearth_api_tool_find(offers->tools, name) != NULL) {
        json_decref(function);
        return true;
    }
    if (offers->count == HEARTH_OFFERS_MAX) {
        json_decref(function);
        return hearth_api_fail(error, 400, "invalid_value", "tools", "tools: at most %u are allowed",
                               HEARTH_OFFERS_MAX);
    }
    offers->from[offers->count++] = from;
    json_array_append_new(offers->tools, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return true;
}

/* The members that a chat's tool has one level deeper; missing ones are left out. */
static json_t *function_of(const json_t *tool) {
    return json_pack("{s:O*, s:O*, s:O*, s:O*}", "name", json_object_get(tool, "name"), "description",
                     json_object_get(tool, "description"), "parameters", json_object_get(tool, "parameters"), "strict",
                     json_object_get(tool, "strict"));
}

/* A tool that takes text; the model is told what the text must look like. */
static json_t *custom_of(const json_t *tool) {
    const json_t *format = hearth_api_json_get(tool, "format");
    const char *description = json_string_value(hearth_api_json_get(tool, "description"));
    const char *syntax = json_string_value(hearth_api_json_get(format, "syntax"));
    const char *definition = json_string_value(hearth_api_json_get(format, "definition"));
    struct hearth_buf text = {0};
    (void)hearth_buf_text(&text, description != NULL ? description : "");
    if (definition != NULL) {
        (void)hearth_buf_printf(&text, "\n\nThe input follows this %s grammar:\n%s", syntax != NULL ? syntax : "",
                                definition);
    }
    json_t *function = json_pack("{s:O*, s:o, s:{s:s, s:{s:{s:s}}, s:[s]}}", "name", json_object_get(tool, "name"),
                                 "description", hearth_json_text((const char *)text.data, text.len), "parameters",
                                 "type", "object", "properties", "input", "type", "string", "required", "input");
    hearth_buf_finish(&text);
    return function;
}

/* Notes what a tool's name stands for; one that is no string is an error that the chat's reader finds. */
static void note(json_t *names, const json_t *tool, json_t *what) {
    json_object_set_new(names, json_string_value(hearth_api_json_get(tool, "name")), what);
}

static bool add_namespace(struct hearth_api_error *error, const json_t *space, size_t index,
                          struct hearth_offers *offers, json_t *names) {
    const json_t *name = hearth_api_json_get(space, "name"), *tools = hearth_api_json_get(space, "tools");
    size_t i;
    json_t *tool;
    if (!json_is_string(name) || !json_is_array(tools)) {
        return fail_tool(error, index, "invalid_type", "a namespace needs a name and an array of tools");
    }
    json_array_foreach(tools, i, tool) {
        const bool custom = hearth_api_type_is(tool, "custom");
        const json_t *own = hearth_api_json_get(tool, "name");
        json_t *function = custom ? custom_of(tool) : function_of(tool);
        if (json_is_string(own)) { /* the chat's reader refuses any other */
            char *joined = hearth_response_tool_name(json_string_value(name), json_string_value(own));
            json_object_set_new(function, "name", json_string(joined));
            note(names, function,
                 json_pack("{s:O, s:O, s:o*}", "namespace", name, "name", own, "custom", custom ? json_true() : NULL));
            free(joined);
        }
        if (!add(error, function, index, offers)) {
            return false;
        }
    }
    return true;
}

static bool add_tool(struct hearth_api_error *error, const json_t *tool, size_t index, struct hearth_offers *offers,
                     json_t *names) {
    const json_t *given = hearth_api_json_get(tool, "type");
    const char *type = json_string_value(given);
    if (!json_is_object(tool)) {
        return fail_tool(error, index, "invalid_type", "a tool must be an object");
    }
    if (type == NULL) {
        return fail_tool(error, index, given == NULL ? "missing_required_parameter" : "invalid_type",
                         "a tool needs a type, a string");
    }
    if (strcmp(type, "function") == 0) {
        return add(error, function_of(tool), index, offers);
    }
    if (strcmp(type, "custom") == 0) {
        note(names, tool, json_pack("{s:b}", "custom", 1));
        return add(error, custom_of(tool), index, offers);
    }
    if (strcmp(type, "namespace") == 0) {
        return add_namespace(error, tool, index, offers, names);
    }
    hearth_log(HEARTH_LOG_DEBUG, "api: tools[%zu]: a tool of type \"%.60s\" is left out: it does not run here", index,
               type);
    return true;
}

static bool add_tools(struct hearth_api_error *error, const json_t *tools, struct hearth_offers *offers,
                      json_t *names) {
    if (tools != NULL && !json_is_array(tools)) {
        return hearth_api_fail(error, 400, "invalid_type", "tools", "tools must be an array");
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        if (!add_tool(error, json_array_get(tools, i), i, offers, names)) {
            return false;
        }
    }
    return true;
}

/* The name by which the model knows a chosen tool, as a new reference; one of a namespace may be named without it. */
static json_t *chosen_name(const json_t *chosen, const struct hearth_offers *offers, json_t *names) {
    json_t *name = json_object_get(chosen, "name"), *space = json_object_get(chosen, "namespace"), *what;
    const char *joined;
    if (name == NULL || (space == NULL && json_is_string(name) &&
                         hearth_api_tool_find(offers->tools, json_string_value(name)) != NULL)) {
        return json_incref(name);
    }
    json_object_foreach(names, joined, what) {
        if (json_equal(json_object_get(what, "name"), name) == 1 &&
            (space == NULL || json_equal(json_object_get(what, "namespace"), space) == 1)) {
            return json_string(joined);
        }
    }
    return json_incref(name);
}

/* The allowed tools that exist here. Tools that run elsewhere have no name. */
static json_t *allowed_of(json_t *choice, const struct hearth_offers *offers, json_t *names) {
    json_t *allowed = json_object_get(choice, "tools"), *here = json_array(), *mode = json_object_get(choice, "mode");
    size_t i;
    json_t *tool;
    json_array_foreach(allowed, i, tool) {
        if (json_object_get(tool, "name") != NULL) {
            json_t *known = json_copy(tool);
            json_object_set_new(known, "name", chosen_name(tool, offers, names));
            json_array_append_new(here, known);
        }
    }
    if (json_array_size(here) == 0 && json_array_size(allowed) > 0 && json_is_string(mode) &&
        strcmp(json_string_value(mode), "auto") == 0) {
        json_decref(here);
        return json_string("none");
    }
    return json_pack("{s:s, s:{s:O*, s:o}}", "type", "allowed_tools", "allowed_tools", "mode", mode, "tools", here);
}

/* The choice in the chat's form, as a new reference. NULL: out of memory. */
static json_t *choice_of(json_t *choice, const struct hearth_offers *offers, json_t *names) {
    if (hearth_api_type_is(choice, "allowed_tools")) {
        return allowed_of(choice, offers, names);
    }
    if (json_object_get(choice, "name") != NULL &&
        (hearth_api_type_is(choice, "custom") || hearth_api_type_is(choice, "function"))) {
        return json_pack("{s:s, s:o}", "type", "function", "name", chosen_name(choice, offers, names));
    }
    return json_incref(choice);
}

bool hearth_offers_read(struct hearth_api_error *error, const json_t *body, const json_t *items,
                        struct hearth_offers *offers, json_t *names, json_t *chat) {
    json_t *choice = hearth_api_json_get(body, "tool_choice");
    size_t i;
    json_t *item;
    if (!add_tools(error, hearth_api_json_get(body, "tools"), offers, names)) {
        return false;
    }
    offers->of_items = true;
    json_array_foreach(items, i, item) {
        if ((hearth_api_type_is(item, "additional_tools") || hearth_api_type_is(item, "tool_search_output")) &&
            !add_tools(error, hearth_api_json_get(item, "tools"), offers, names)) {
            return false;
        }
    }
    if (offers->count > 0) {
        json_object_set(chat, "tools", offers->tools);
    }
    if (choice != NULL) {
        json_object_set_new(chat, "tool_choice", choice_of(choice, offers, names));
    }
    return true;
}
