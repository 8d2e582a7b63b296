/* Tools that appear or disappear in the middle of a conversation: deferred tools that a search has found
 * (tool_reference), tools that a message adds (tool_addition) or removes (tool_removal).
 *
 * The head of a prompt describes the tools that are there from the beginning. A tool that appears later is described in
 * the message that brings it, so that loading it costs its own description and changes nothing before it. The
 * description has the form that Claude Code's search tool announces to the model: one JSON object a line, <function>
 * around each and <functions> around all.
 *
 * A reply may call the tools of the head and those that the history has loaded, except those that it has removed. A
 * deferred tool to which nothing refers is neither described nor offered, unless tool_choice names it.
 *
 * Invariants. A description depends on the tool's value and on the messages before it, never on which tools the request
 * may call. `loaded` and `removed` are the state behind the last message that was read; no name is in both. */
#include "api/phases.h"

#include <stdlib.h>
#include <string.h>

#define GROUP_BEGIN "<functions>\n"
#define GROUP_END "\n</functions>"

const char *hearth_api_tool_name(const json_t *tool) {
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

size_t hearth_api_tool_index(const json_t *tools, const char *name) {
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool) {
        const char *other = hearth_api_tool_name(tool);
        if (other != NULL && strcmp(other, name) == 0) {
            break;
        }
    }
    return i;
}

json_t *hearth_api_tool_find(const json_t *tools, const char *name) {
    return json_array_get(tools, hearth_api_tool_index(tools, name));
}

static bool ends_with_group(const struct hearth_buf *text) {
    const size_t end = sizeof GROUP_END - 1;
    return text->len >= end && memcmp(text->data + text->len - end, GROUP_END, end) == 0;
}

/* Continues the group of definitions that a text ends with, or begins one. */
static bool open_group(struct hearth_buf *text) {
    if (ends_with_group(text)) {
        text->len -= sizeof GROUP_END - 1;
        return hearth_buf_text(text, "\n");
    }
    return (text->len == 0 || hearth_buf_text(text, "\n")) && hearth_buf_text(text, GROUP_BEGIN);
}

bool hearth_api_tools_announce(struct hearth_buf *text) {
    return ends_with_group(text) || ((text->len == 0 || hearth_buf_text(text, "\n\n")) &&
                                     hearth_buf_text(text, "These tools can be called from now on:"));
}

bool hearth_api_tool_describe(const json_t *tool, struct hearth_buf *text) {
    const json_t *given = json_object_get(tool, "function");
    json_t *known = json_pack("{s:O*, s:O*, s:O*}", "description", json_object_get(given, "description"), "name",
                              json_object_get(given, "name"), "parameters", json_object_get(given, "parameters"));
    char *function = known != NULL ? hearth_json_canonical(known) : NULL;
    const bool ok = function != NULL && open_group(text) && hearth_buf_text(text, "<function>") &&
                    hearth_buf_text(text, function) && hearth_buf_text(text, "</function>" GROUP_END);
    free(function);
    json_decref(known);
    return ok;
}

static bool take_in(struct hearth_api_chat_options *options, json_t *tool) {
    const char *name = hearth_api_tool_name(tool);
    if (options->loaded == NULL) {
        options->loaded = json_array();
    }
    json_object_del(options->removed, name);
    const size_t at = hearth_api_tool_index(options->loaded, name);
    return (at < json_array_size(options->loaded) ? json_array_set(options->loaded, at, tool)
                                                  : json_array_append(options->loaded, tool)) == 0;
}

bool hearth_api_tools_add(struct hearth_api_chat_options *options, json_t *tool, struct hearth_buf *text) {
    return hearth_api_tool_describe(tool, text) && take_in(options, tool);
}

bool hearth_api_tools_load(struct hearth_api_chat_options *options, const char *name, struct hearth_buf *text) {
    json_t *tool = hearth_api_tool_find(options->deferred, name);
    if (tool != NULL && hearth_api_tool_find(options->loaded, name) == NULL) {
        return hearth_api_tools_add(options, tool, text);
    }
    json_object_del(options->removed, name);
    return (text->len == 0 || hearth_buf_text(text, "\n")) && hearth_buf_text(text, name);
}

bool hearth_api_tools_remove(struct hearth_api_chat_options *options, const char *name, struct hearth_buf *text) {
    json_array_remove(options->loaded, hearth_api_tool_index(options->loaded, name));
    if (options->removed == NULL) {
        options->removed = json_object();
    }
    return json_object_set_new(options->removed, name, json_true()) == 0 &&
           (text->len == 0 || hearth_buf_text(text, "\n")) &&
           hearth_buf_printf(text, "The tool %s can no longer be called.", name);
}

/* Appends those tools of a list that have new names. */
static bool join(json_t *list, const json_t *more, const json_t *but) {
    size_t i;
    json_t *tool;
    json_array_foreach(more, i, tool) {
        const char *name = hearth_api_tool_name(tool);
        if (hearth_api_tool_find(list, name) == NULL && json_object_get(but, name) == NULL &&
            json_array_append(list, tool) < 0) {
            return false;
        }
    }
    return true;
}

/* Replaces a tool that is defined anew by its last definition. */
static bool fill_offered(const struct hearth_api_chat_options *sent, struct hearth_api_resolved *out) {
    const bool all = json_array_size(sent->loaded) == 0 && json_object_size(sent->removed) == 0 &&
                     (out->tools == NULL || out->request.tools == out->tools);
    if (out->offered != NULL || all) {
        return true;
    }
    out->offered = json_array();
    return out->offered != NULL && join(out->offered, sent->loaded, NULL) &&
           join(out->offered, out->tools, sent->removed);
}

bool hearth_api_tools_fill_offered(const struct hearth_api_chat_options *sent, struct hearth_api_resolved *out) {
    const bool all = sent->deferred == NULL && sent->removed == NULL && out->request.tools == out->tools;
    if (!fill_offered(sent, out)) {
        return false;
    }
    if (all) {
        return true;
    }
    out->known = json_array();
    return out->known != NULL && join(out->known, out->request.tools, NULL) && join(out->known, out->tools, NULL) &&
           join(out->known, sent->deferred, NULL);
}
