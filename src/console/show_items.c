/* See items.h. A missing member is left out, and an item of unknown type is shown by its type's name: a later hearth
 * may have written the database, and an imported file may come from anywhere.
 * Source: https://platform.openai.com/docs/api-reference/responses/object (output items) */
#include "console/show_items.h"

#include "base/buf.h"
#include "console/show.h"

#include <string.h>

#define INDENT "  "

static const char *text_of(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

/* Text, or parts that have some. What is none (an image) stands there by its type. */
static bool append_content(const json_t *content, struct hearth_buf *out) {
    bool ok = true;
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        return hearth_buf_text(out, json_string_value(content));
    }
    json_array_foreach(content, i, part) {
        const char *type = text_of(part, "type"), *text = text_of(part, "text");
        text = text ? text : text_of(part, "refusal");
        ok = ok && (out->len == 0 || hearth_buf_text(out, "\n")) &&
             (text ? hearth_buf_text(out, text) : hearth_buf_printf(out, "[%s]", type ? type : "?"));
    }
    return ok;
}

static void print_block(FILE *out, const char *head, const char *of, const char *text) {
    bool fresh = true;
    (void)fputs(head, out);
    (void)hearth_show_text(out, of, 200);
    (void)fputc('\n', out);
    if (text && *text) {
        hearth_show_lines(out, text, INDENT, &fresh);
        (void)fputs(fresh ? "" : "\n", out);
    }
    (void)fputc('\n', out);
}

static void print_content(FILE *out, const char *head, const char *of, const json_t *content) {
    struct hearth_buf text = {0};
    const bool ok = append_content(content, &text) && hearth_buf_text(&text, "");
    print_block(out, head, of, ok ? (const char *)text.data : NULL);
    hearth_buf_finish(&text);
}

static void print_call(struct hearth_show_items *print, const char *id, const char *name, const char *arguments) {
    if (!print->calls) {
        print->calls = json_object();
    }
    if (id && name) {
        (void)json_object_set_new(print->calls, id, json_string(name));
    }
    print_block(print->out, "assistant calls ", name ? name : "?", arguments);
}

static void print_result(struct hearth_show_items *print, const char *id, const json_t *output) {
    const char *name = id ? text_of(print->calls, id) : NULL;
    print_content(print->out, "result of ", name ? name : id ? id : "?", output);
}

/* Reasoning has a summary, or all of its text, or both. */
static void print_reasoning(FILE *out, const json_t *item) {
    const json_t *content = json_object_get(item, "content");
    print_content(out, "assistant thinks", "",
                  json_array_size(content) > 0 || json_is_string(content) ? content : json_object_get(item, "summary"));
}

/* A message of chat completions may hold calls and reasoning, and be the result of a call. */
static void print_message(struct hearth_show_items *print, const json_t *item) {
    const char *role = text_of(item, "role"), *thoughts = text_of(item, "reasoning_content");
    const json_t *content = json_object_get(item, "content"), *calls = json_object_get(item, "tool_calls"), *call;
    size_t i;
    if (role && strcmp(role, "tool") == 0) {
        print_result(print, text_of(item, "tool_call_id"), content);
        return;
    }
    if (thoughts) {
        print_block(print->out, "assistant thinks", "", thoughts);
    }
    if (json_array_size(calls) == 0 || json_string_length(content) > 0 || json_array_size(content) > 0) {
        print_content(print->out, "", role ? role : "?", content);
    }
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        print_call(print, text_of(call, "id"), text_of(function, "name"), text_of(function, "arguments"));
    }
}

void hearth_show_items(struct hearth_show_items *print, const json_t *items) {
    const json_t *item;
    size_t i;
    json_array_foreach(items, i, item) {
        const char *type = text_of(item, "type");
        if (!type || strcmp(type, "message") == 0) {
            print_message(print, item);
        } else if (strcmp(type, "function_call") == 0) {
            print_call(print, text_of(item, "call_id"), text_of(item, "name"), text_of(item, "arguments"));
        } else if (strcmp(type, "function_call_output") == 0) {
            print_result(print, text_of(item, "call_id"), json_object_get(item, "output"));
        } else if (strcmp(type, "reasoning") == 0) {
            print_reasoning(print->out, item);
        } else {
            print_content(print->out, "", type, json_object_get(item, "content"));
        }
    }
}

void hearth_show_items_finish(struct hearth_show_items *print) {
    json_decref(print->calls);
    print->calls = NULL;
}

char *hearth_show_last_text(const json_t *items, const char *role) {
    for (size_t i = json_array_size(items); i-- > 0;) {
        const json_t *item = json_array_get(items, i);
        const char *type = text_of(item, "type"), *owner = text_of(item, "role");
        struct hearth_buf text = {0};
        if ((!type || strcmp(type, "message") == 0) && owner && strcmp(owner, role) == 0 &&
            append_content(json_object_get(item, "content"), &text) && hearth_buf_text(&text, "") && text.len > 0) {
            return (char *)text.data;
        }
        hearth_buf_finish(&text);
    }
    return NULL;
}
