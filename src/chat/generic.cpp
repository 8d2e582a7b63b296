/* Tools for models whose template knows none: written out as text, in the form that most small models have seen.
 *
 * Design. The tools of a request stand at the end of the system text, one JSON object a line; calls are JSON between
 * `<tool_call>` tags, their arguments exactly as the model wrote them; results come back in a user turn between
 * `<tool_response>` tags, those of one round in one turn. Parser and grammar are put together from `common`'s parts:
 * the template decides where reasoning stands and how a turn begins, this file the rest. A call that is required must
 * be the first thing that is said, or a small model never gets to it.
 *
 * Invariants. What is printed depends on tools and messages only, not on tool_choice or parallel calls: they may differ
 * from turn to turn, and the prompt must not. */
#include "chat/chat_internal.hpp"

#include <chat-peg-parser.h>
#include <json-schema-to-grammar.h>

#include <algorithm>

const char *const generic_call_begin = "<tool_call>";

namespace {

constexpr const char *k_call_end = "</tool_call>";
constexpr const char *k_before_tools = "These tools can be called. Each line describes one of them in JSON:\n<tools>\n";
constexpr const char *k_after_tools =
    "</tools>\n\nTo call a tool, write its name and its arguments as a JSON object between tags:\n"
    "<tool_call>\n{\"name\": \"the tool's name\", \"arguments\": {\"an argument\": \"its value\"}}\n</tool_call>\n"
    "Several calls can follow each other. Their results come back between <tool_response> and </tool_response>. "
    "When no tool is needed, answer in plain text.";

/* Of a tool, what every client means by one: not its `strict`, not its cache marks. */
static std::string tool_line(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *description = json_string_value(json_object_get(function, "description"));
    const json_t *parameters = json_object_get(function, "parameters");
    std::string line = "{\"type\": \"function\", \"function\": {\"name\": " + json_quoted(name != nullptr ? name : "");
    if (description != nullptr) {
        line += ", \"description\": " + json_quoted(description);
    }
    line += ", \"parameters\": " + (json_is_object(parameters) ? json_text(parameters, 0) : std::string("{}"));
    return line + "}}\n";
}

static std::string tools_text(const json_t *tools) {
    std::string text = k_before_tools;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        text += tool_line(json_array_get(tools, i));
    }
    return text + k_after_tools;
}

static std::string calls_text(const turn &assistant) {
    std::string text(assistant.content);
    for (size_t i = 0; i < assistant.message->call_count; i++) {
        const struct hearth_call &call = assistant.message->calls[i];
        text += text.empty() ? "" : "\n";
        text += "<tool_call>\n{\"name\": " + json_quoted(call.name) + ", \"arguments\": ";
        text += call.arguments[0] != '\0' ? call.arguments : "{}";
        text += "}\n</tool_call>";
    }
    return text;
}

/* The results [begin, end) as one user turn. */
static turn results_turn(turn_list &list, size_t begin, size_t end) {
    turn made = list.turns[begin];
    std::string text;
    for (size_t i = begin; i < end; i++) {
        text += i == begin ? "<tool_response>\n" : "\n<tool_response>\n";
        made.last_at = text.size();
        made.first_at = i == begin ? made.last_at : made.first_at;
        text += list.turns[i].content;
        text += "\n</tool_response>";
    }
    made.role = HEARTH_ROLE_USER;
    made.message = nullptr;
    made.content = list.keep(std::move(text));
    return made;
}

static void add_tools(turn_list &list, const json_t *tools) {
    std::string text = tools_text(tools);
    if (list.turns.empty() || list.turns[0].role != HEARTH_ROLE_SYSTEM) {
        list.turns.insert(list.turns.begin(), turn{HEARTH_ROLE_SYSTEM, list.keep(std::move(text))});
        return;
    }
    turn &system = list.turns[0];
    system.content = list.keep(std::string(system.content) + "\n\n" + text);
}

/* Where reasoning may stand in front of a reply; where it is not to be told apart it is content. */
static common_peg_parser reasoning_parser(common_chat_peg_builder &p, const autoparser::analyze_reasoning &reasoning,
                                          bool extract) {
    const std::string end(without_outer_space(reasoning.end));
    if (reasoning.mode == autoparser::reasoning_mode::NONE || end.empty()) {
        return p.eps();
    }
    const common_peg_parser text = p.until(end);
    if (extract) {
        return p.optional(p.optspace(reasoning.start) + p.reasoning(text) + p.optspace(reasoning.end) + p.space());
    }
    return p.optional(p.content(p.optspace(reasoning.start) + text + p.optspace(reasoning.end) + p.space()));
}

} // namespace

bool generic_applies(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    if (chat.abilities.tools) {
        return false;
    }
    if (json_array_size(request.tools) > 0) {
        return true;
    }
    return std::any_of(request.messages, request.messages + request.message_count,
                       [](const struct hearth_message *message) {
                           return message->role == HEARTH_ROLE_TOOL || message->call_count > 0;
                       });
}

void generic_rewrite(turn_list &list, const struct hearth_chat_request &request) {
    std::vector<turn> turns;
    turns.reserve(list.turns.size() + 1);
    for (size_t i = 0; i < list.turns.size();) {
        size_t end = i + 1;
        turn made = list.turns[i];
        if (made.role == HEARTH_ROLE_TOOL) {
            while (end < list.turns.size() && list.turns[end].role == HEARTH_ROLE_TOOL) {
                end++;
            }
            made = results_turn(list, i, end);
        } else if (made.call_count > 0) {
            made.content = list.keep(calls_text(made));
            made.call_count = 0;
        }
        turns.push_back(made);
        i = end;
    }
    list.turns = std::move(turns);
    list.generic = true;
    if (json_array_size(request.tools) > 0) {
        add_tools(list, request.tools);
    }
}

void generic_parser(common_chat_params &params, const autoparser::analyze_reasoning &reasoning,
                    const common_chat_templates_inputs &inputs, const std::string &turn_begin) {
    const bool continues = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    const bool required = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const bool extract = inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE;
    const common_json tools = common_chat_tools_to_json_oaicompat(inputs.tools);
    const common_peg_arena parser = build_chat_peg_parser([&](common_chat_peg_builder &p) {
        const common_peg_parser call = p.standard_json_tools(generic_call_begin, k_call_end, tools, false, true);
        const common_peg_parser calls =
            inputs.parallel_tool_calls ? p.trigger_rule("tool-calls", p.one_or_more(call + p.space())) : call;
        const common_peg_parser words = p.optional(p.content(p.until(generic_call_begin)));
        const common_peg_parser start = p.prefix(turn_begin, std::string(without_outer_space(reasoning.start)));
        const common_peg_parser thoughts = reasoning_parser(p, reasoning, extract);
        if (required) {
            return start << thoughts + (continues ? words + calls : calls) + p.end();
        }
        return start << thoughts + words + p.optional(calls) + p.end();
    });
    params.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
    params.parser = parser.save();
    params.grammar_lazy = !required;
    params.grammar = build_grammar(
        [&](const common_grammar_builder &builder) { parser.build_grammar(builder, params.grammar_lazy); });
    if (params.grammar_lazy) {
        params.grammar_triggers = {{COMMON_GRAMMAR_TRIGGER_TYPE_WORD, generic_call_begin}};
    }
    params.preserved_tokens.insert(params.preserved_tokens.end(), {generic_call_begin, k_call_end});
}
