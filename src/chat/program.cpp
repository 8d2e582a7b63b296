/* Running a template: a request becomes Jinja values, the program's output becomes text.
 *
 * Design. Values are made from messages and JSON values directly. `common` goes through JSON text and a JSON library of
 * its own, which for a long history costs more than the template does.
 *
 * The Jinja engine keeps, for each piece of its output, whether it came from input. Only the contents of messages are
 * marked as such, so that marks are never found in the template's own text, in a role's name or in a tool's
 * description.
 *
 * Invariants. What is printed equals what common_chat_templates_apply() prints for the same messages. Every run has a
 * context of its own, and values that runs share are immutable: any number of threads can run one program. */
#include "chat/chat_internal.hpp"

#include <ctime>

namespace {

using jinja::mk_val;
using jinja::value;

/* ------------------------------------------------------------------------------------------------- values */

static value text_value(std::string_view text, bool input = false) {
    auto made = mk_val<jinja::value_string>();
    made->val_str.parts.push_back({input, std::string(text)});
    return made;
}

/* A key that is made once and shared by all values: keys are immutable. */
static value key(const char *name) {
    return text_value(name);
}

static value json_value(const json_t *source) {
    poll_cancel();
    switch (json_typeof(source)) {
    case JSON_NULL: return mk_val<jinja::value_none>();
    case JSON_TRUE:
    case JSON_FALSE: return mk_val<jinja::value_bool>(json_is_true(source));
    case JSON_INTEGER: return mk_val<jinja::value_int>(json_integer_value(source));
    case JSON_REAL: return mk_val<jinja::value_float>(json_real_value(source));
    case JSON_STRING: return text_value({json_string_value(source), json_string_length(source)});
    case JSON_ARRAY: {
        auto array = mk_val<jinja::value_array>();
        for (size_t i = 0; i < json_array_size(source); i++) {
            array->push_back(json_value(json_array_get(source, i)));
        }
        return array;
    }
    case JSON_OBJECT: break;
    }
    auto object = mk_val<jinja::value_object>();
    const char *name;
    json_t *member;
    json_object_foreach(const_cast<json_t *>(source), name, member) {
        object->insert(std::string(name), json_value(member));
    }
    return object;
}

/* Tools in the shape that templates are written for: every member there, nothing else. */
static value tools_value(const json_t *tools) {
    auto array = mk_val<jinja::value_array>();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *source = json_object_get(json_array_get(tools, i), "function");
        const json_t *name = json_object_get(source, "name");
        const json_t *description = json_object_get(source, "description");
        const json_t *parameters = json_object_get(source, "parameters");
        auto function = mk_val<jinja::value_object>();
        function->insert("name", json_is_string(name) ? json_value(name) : text_value(""));
        function->insert("description", json_is_string(description) ? json_value(description) : text_value(""));
        function->insert("parameters",
                         json_is_object(parameters) ? json_value(parameters) : value(mk_val<jinja::value_object>()));
        auto tool = mk_val<jinja::value_object>();
        tool->insert("type", text_value("function"));
        tool->insert("function", function);
        array->push_back(value(tool));
    }
    return array;
}

/* The names and constants that every message needs. */
struct message_keys {
    value role = key("role"), content = key("content"), reasoning = key("reasoning_content"), name = key("name"),
          tool_call_id = key("tool_call_id"), tool_calls = key("tool_calls"), type = key("type"), text = key("text"),
          function = key("function"), arguments = key("arguments"), id = key("id");
    std::vector<value> roles;

    message_keys() {
#define X(role_name, role_text) roles.push_back(key(role_text));
        HEARTH_ROLE_TABLE(X)
#undef X
    }
};

static const message_keys &the_keys() {
    static const message_keys made;
    return made;
}

/* Some templates walk over arguments as an object, the others print them as they are. What is no object, as in a call
 * that was cut short, is the only member of one then. */
static value arguments_value(const struct hearth_call &call, bool object) {
    if (!object) {
        return text_value(call.arguments);
    }
    if (json_is_object(call.parsed)) {
        return json_value(call.parsed);
    }
    auto made = mk_val<jinja::value_object>();
    if (call.arguments[0] != '\0') {
        made->insert("arguments", text_value(call.arguments));
    }
    return value(made);
}

static value calls_value(const turn_list &list, const turn &source, bool object_arguments) {
    const message_keys &w = the_keys();
    auto calls = mk_val<jinja::value_array>();
    for (size_t i = 0; i < source.call_count; i++) {
        const struct hearth_call &call = source.message->calls[source.first_call + i];
        auto function = mk_val<jinja::value_object>();
        function->insert(w.name, text_value(call.name));
        function->insert(w.arguments, arguments_value(call, object_arguments));
        auto made = mk_val<jinja::value_object>();
        made->insert(w.type, w.function);
        made->insert(w.function, function);
        const std::string id = call_id(list, call);
        if (!id.empty()) {
            made->insert(w.id, text_value(id));
        }
        calls->push_back(value(made));
    }
    return calls;
}

static value content_value(const turn &source, bool parts) {
    const value text = text_value(source.content, true);
    if (!parts) {
        return text;
    }
    auto part = mk_val<jinja::value_object>();
    part->insert(the_keys().type, the_keys().text);
    part->insert(the_keys().text, text);
    auto array = mk_val<jinja::value_array>();
    array->push_back(value(part));
    return array;
}

static value message_value(const turn_list &list, const turn &source, const jinja::caps &caps) {
    poll_cancel();
    const message_keys &w = the_keys();
    auto made = mk_val<jinja::value_object>();
    made->insert(w.role, w.roles[source.role]);
    made->insert(w.content, content_value(source, !caps.supports_string_content && caps.supports_typed_content));
    const auto insert = [&](const value &name, const char *text) {
        if (text != nullptr && text[0] != '\0') {
            made->insert(name, text_value(text));
        }
    };
    const bool first = source.message != nullptr && source.first_call == 0;
    insert(w.reasoning, first ? source.message->reasoning : nullptr);
    insert(w.name, result_name(source));
    insert(w.tool_call_id, result_id(list, source).c_str());
    if (source.call_count > 0) {
        made->insert(w.tool_calls, calls_value(list, source, caps.supports_object_arguments));
    }
    return made;
}

/* ------------------------------------------------------------------------------------------------- a run */

static std::string format_date(const char *format) {
    const time_t now = time(nullptr);
    struct tm local = {};
    localtime_r(&now, &local);
    char text[64];
    return std::string(text, strftime(text, sizeof(text), format, &local));
}

static void set_variables(jinja::context &context, const struct hearth_chat &chat, const turn_list &list,
                          const struct hearth_chat_request &request, bool generation_prompt) {
    auto messages = mk_val<jinja::value_array>();
    messages->val_arr.reserve(list.turns.size());
    for (const turn &each : list.turns) {
        messages->push_back(message_value(list, each, chat.jinja->caps));
    }
    const json_t *effort = json_object_get(request.kwargs, "reasoning_effort");
    const json_t *preserve = json_object_get(request.kwargs, "preserve_reasoning");
    if (json_is_boolean(preserve)) {
        jinja::caps_apply_preserve_reasoning(context, json_is_true(preserve));
    }
    if (json_is_string(effort)) {
        jinja::caps_apply_reasoning_effort(context, json_string_value(effort));
    }
    context.set_val("messages", messages);
    context.set_val("bos_token", text_value(chat.jinja->bos_token()));
    context.set_val("eos_token", text_value(chat.jinja->eos_token()));
    context.set_val("enable_thinking", mk_val<jinja::value_bool>(request.thinking));
    if (!list.generic && json_array_size(request.tools) > 0) {
        const json_ptr filled = list.filled ? filled_tools(request.tools) : nullptr;
        context.set_val("tools", tools_value(filled != nullptr ? filled.get() : request.tools));
    }
    context.set_val("datetime", text_value(format_date("%b %d %Y")));
    context.set_val("date_string", text_value(format_date("%d %b %Y")));
    const char *name;
    json_t *argument;
    json_object_foreach(const_cast<json_t *>(request.kwargs), name, argument) {
        context.set_val(std::string(name), json_value(argument));
    }
    if (generation_prompt) {
        context.set_val("add_generation_prompt", mk_val<jinja::value_bool>(true));
    }
}

static void append_text(rendered &out, const std::string &text, bool input) {
    const size_t begin = out.text.size();
    out.text += text;
    if (!input || text.empty()) {
        return;
    }
    if (!out.input.empty() && out.input.back().end == begin) {
        out.input.back().end = out.text.size();
    } else {
        out.input.push_back({begin, out.text.size()});
    }
}

/* What a value prints: texts and numbers, nothing for the rest. */
static void append_value(rendered &out, const value &printed) {
    if (jinja::is_val<jinja::value_string>(printed)) {
        for (const jinja::string_part &part : printed->val_str.parts) {
            append_text(out, part.val, part.is_input);
        }
    } else if (jinja::is_val<jinja::value_int>(printed) || jinja::is_val<jinja::value_float>(printed) ||
               jinja::is_val<jinja::value_bool>(printed)) {
        append_text(out, printed->as_string().str(), false);
    } else if (jinja::is_val<jinja::value_array>(printed)) {
        for (const value &item : printed->as_array()) {
            append_value(out, item);
        }
    }
}

} // namespace

rendered program_run(const struct hearth_chat &chat, const turn_list &list, const struct hearth_chat_request &request,
                     bool generation_prompt) {
    jinja::context context(chat.source);
    set_variables(context, chat, list, request, generation_prompt);
    rendered out;
    size_t bytes = 256;
    for (const turn &each : list.turns) {
        bytes += each.content.size() + 64;
    }
    out.text.reserve(bytes);
    for (const jinja::statement_ptr &statement : chat.jinja->prog.body) {
        append_value(out, statement->execute(context));
    }
    return out;
}
