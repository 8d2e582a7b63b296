/* The chat shim: llama.cpp's `common` behind chat.h. The only C++ in hearth.
 *
 * Design. A template is parsed once, at creation, into a program that is never written again; every render makes a
 * context of its own, so that any number of threads can render at once. Rendering runs the program directly instead of
 * common_chat_templates_apply(), which renders several times over to derive a parser for tool calls from the
 * differences. Requests that need such a parser are refused before they get here.
 *
 * The Jinja engine keeps, for each piece of its output, whether it came from the messages or from the template
 * (`is_input`). The marks are looked up in the former only, so that a message that reads "assistant" is not found in
 * the template's own `<|im_start|>assistant`. Forwards for the end of the system text, backwards for the last input.
 *
 * Invariants. No exception leaves this file. Marks are NO_MARK or offsets into the text, at the first byte of the
 * content as it was printed. */
#include <chat.h> /* llama.cpp's, not this room's */
#include <llama.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

extern "C" {
#include "chat/chat.h"
}

namespace {

constexpr const char *k_chatml = "{%- for message in messages -%}"
                                 "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
                                 "{%- endfor -%}"
                                 "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/* StepFun's template leaves white space in that sends its model into loops; llama.cpp trims for it, so hearth does. */
constexpr const char *k_stepfun_phrase = "You have access to the following functions in JSONSchema format";

constexpr const char *k_space = " \t\r\n\f\v";

struct range {
    size_t begin, end;
};

/* A rendered prompt with the ranges of it that came from the messages. */
struct rendered {
    std::string text;
    std::vector<range> input;
};

/* The pieces of a message's content, in the order in which they are printed. */
struct message_texts {
    std::string role;
    std::vector<std::string> texts;
};

bool is_system(const std::string &role) {
    return role == "system" || role == "developer";
}

bool is_input_role(const std::string &role) {
    return role == "user" || role == "tool" || role == "function";
}

} // namespace

struct hearth_chat {
    std::string source;  /* Jinja text, or the name of a built-in format */
    std::string builtin; /* name of a built-in format that is code in llama.cpp; empty for Jinja */
    std::string bos;
    bool add_bos = false;
    bool native_developer = false; /* the template knows the developer role */
    bool trim_contents = false;    /* the model was trained without white space around contents */
    std::unique_ptr<common_chat_template> jinja;
};

namespace {

/* ------------------------------------------------------------------------------------------------- errors */

/* One line from what the Jinja engine says: its exceptions carry a drawing of the source. */
std::string one_line(const std::string &what) {
    std::string text = what;
    const size_t error = text.rfind("\nError: ");
    if (error != std::string::npos) {
        text.erase(0, error + 8);
    }
    const std::string raised = "Jinja Exception: ";
    if (text.compare(0, raised.size(), raised) == 0) {
        text.erase(0, raised.size());
    }
    std::string line;
    for (const char c : text) {
        const bool space = c == '\n' || c == '\r' || c == '\t' || c == ' ';
        if (!space) {
            line += c;
        } else if (!line.empty() && line.back() != ' ') {
            line += ' ';
        }
    }
    while (!line.empty() && (line.back() == ' ' || line.back() == '^')) {
        line.pop_back();
    }
    return line;
}

/* Called inside a catch block: the exception in flight becomes a code and a line. */
int fail_in_flight(struct hearth_errmsg *msg) {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory in the chat template");
    } catch (const std::exception &e) {
        return hearth_fail(msg, HEARTH_ERR_TEMPLATE, "%s", one_line(e.what()).c_str());
    } catch (...) {
        return hearth_fail(msg, HEARTH_ERR_TEMPLATE, "the chat template failed");
    }
}

/* ------------------------------------------------------------------------------------------------- templates */

std::vector<std::string> builtin_names() {
    const int32_t n = llama_chat_builtin_templates(nullptr, 0);
    std::vector<const char *> names(static_cast<size_t>(std::max(n, 0)));
    llama_chat_builtin_templates(names.data(), names.size());
    return std::vector<std::string>(names.begin(), names.end());
}

void load_template(struct hearth_chat &chat, const struct hearth_chat_params &params) {
    const std::string text = params.template_text != nullptr ? params.template_text : "";
    const std::string eos = params.eos_text != nullptr ? params.eos_text : "";
    chat.bos = params.bos_text != nullptr ? params.bos_text : "";
    chat.add_bos = params.add_bos;
    chat.source = text;
    if (text.empty() || text == "chatml") {
        chat.source = k_chatml;
    } else if (text.find('{') == std::string::npos) {
        const std::vector<std::string> names = builtin_names();
        if (std::find(names.begin(), names.end(), text) == names.end()) {
            throw std::invalid_argument("'" + text + "' is neither Jinja text nor the name of a built-in template");
        }
        chat.builtin = text;
        return;
    }
    chat.native_developer = chat.source.find("<|channel|>") != std::string::npos;
    chat.trim_contents = chat.source.find(k_stepfun_phrase) != std::string::npos;
    chat.jinja = std::make_unique<common_chat_template>(chat.source, chat.bos, eos);
}

/* ------------------------------------------------------------------------------------------------- messages */

/* Content without the white space that a template may have trimmed; empty: nothing to look for. */
std::string_view trimmed(const std::string &content) {
    const size_t first = content.find_first_not_of(k_space);
    if (first == std::string::npos) {
        return {};
    }
    return std::string_view(content).substr(first, content.find_last_not_of(k_space) - first + 1);
}

std::string content_of(const common_chat_msg &message) {
    return message.render_content("\n");
}

std::vector<message_texts> texts_of(const std::vector<common_chat_msg> &messages) {
    std::vector<message_texts> all;
    all.reserve(messages.size());
    for (const common_chat_msg &message : messages) {
        message_texts entry{message.role, {}};
        if (!message.content.empty()) {
            entry.texts.push_back(message.content);
        }
        for (const common_chat_msg_content_part &part : message.content_parts) {
            entry.texts.push_back(part.text);
        }
        all.push_back(std::move(entry));
    }
    return all;
}

/* For templates without a system role: its text goes in front of the first turn; alone, it becomes that turn. */
void merge_system(std::vector<common_chat_msg> &messages) {
    while (messages.size() > 1 && messages.front().role == "system") {
        common_chat_msg &next = messages[1];
        next.content = content_of(messages.front()) + "\n" + content_of(next);
        next.content_parts.clear();
        messages.erase(messages.begin());
    }
    if (!messages.empty() && messages.front().role == "system") {
        messages.front().role = "user";
    }
}

void trim_message(common_chat_msg &message) {
    message.content = std::string(trimmed(message.content));
    for (common_chat_msg_content_part &part : message.content_parts) {
        part.text = std::string(trimmed(part.text));
    }
}

/* Arguments of tool calls arrive as JSON text; some templates walk over them as objects. */
void parse_arguments(common_json &message) {
    if (!message.contains("tool_calls")) {
        return;
    }
    for (common_json &call : message["tool_calls"]) {
        common_json &arguments = call["function"]["arguments"];
        if (arguments.is_string()) {
            arguments = common_json::parse(arguments.get<std::string>());
        }
    }
}

/* The messages in the shape that the template can print. */
common_json messages_for(const struct hearth_chat &chat, std::vector<common_chat_msg> messages) {
    const jinja::caps &caps = chat.jinja->caps;
    for (common_chat_msg &message : messages) {
        if (message.role == "developer" && !chat.native_developer) {
            message.role = "system";
        }
        if (chat.trim_contents) {
            trim_message(message);
        }
    }
    if (!caps.supports_system_role) {
        merge_system(messages);
    }
    const bool only_text = caps.supports_string_content && !caps.supports_typed_content;
    const bool only_parts = !caps.supports_string_content && caps.supports_typed_content;
    common_json out = common_json::array();
    for (const common_chat_msg &message : messages) {
        common_json entry = message.to_json_oaicompat(only_text);
        if (only_parts && entry["content"].is_string()) {
            common_json part = common_json::object();
            part["type"] = "text";
            part["text"] = entry["content"].get<std::string>();
            entry["content"] = common_json::array({common_json_value(part)});
        }
        if (caps.supports_object_arguments) {
            parse_arguments(entry);
        }
        out.push_back(common_json_value(std::move(entry)));
    }
    return out;
}

/* ------------------------------------------------------------------------------------------------- rendering */

std::string format_date(const char *format) {
    const time_t now = time(nullptr);
    struct tm local = {};
    localtime_r(&now, &local);
    char text[64];
    return std::string(text, strftime(text, sizeof(text), format, &local));
}

common_json variables_for(const struct hearth_chat &chat, const std::vector<common_chat_msg> &messages,
                          const char *kwargs_json, bool add_generation_prompt) {
    common_json vars = common_json::object();
    vars["messages"] = messages_for(chat, messages);
    vars["bos_token"] = chat.jinja->bos_token();
    vars["eos_token"] = chat.jinja->eos_token();
    vars["enable_thinking"] = true;
    vars["datetime"] = format_date("%b %d %Y");
    vars["date_string"] = format_date("%d %b %Y");
    if (kwargs_json != nullptr) {
        const common_json kwargs = common_json::parse(kwargs_json);
        if (!kwargs.is_object()) {
            throw std::invalid_argument("template arguments must be an object");
        }
        for (const auto &entry : kwargs.items()) {
            vars[entry.key()] = entry.value();
        }
    }
    if (add_generation_prompt) {
        vars["add_generation_prompt"] = true;
    }
    return vars;
}

rendered render_jinja(const struct hearth_chat &chat, const common_json &vars) {
    jinja::context context(chat.source);
    if (vars.contains("preserve_reasoning") && vars["preserve_reasoning"].is_boolean()) {
        jinja::caps_apply_preserve_reasoning(context, vars["preserve_reasoning"].get<bool>());
    }
    if (vars.contains("reasoning_effort") && vars["reasoning_effort"].is_string()) {
        jinja::caps_apply_reasoning_effort(context, vars["reasoning_effort"].get<std::string>());
    }
    jinja::global_from_json(context, vars, true);
    jinja::runtime runtime(context);
    const jinja::value result = runtime.execute(chat.jinja->prog);
    const jinja::value_string parts = jinja::runtime::gather_string_parts(result);
    rendered out;
    for (const jinja::string_part &part : parts->val_str.parts) {
        const size_t begin = out.text.size();
        out.text += part.val;
        if (part.is_input) {
            out.input.push_back({begin, out.text.size()});
        }
    }
    return out;
}

/* The formats that are code in llama.cpp: nothing says which bytes are input, so all of them may be. */
rendered render_builtin(const struct hearth_chat &chat, const std::vector<common_chat_msg> &messages,
                        bool add_generation_prompt) {
    std::vector<std::string> contents;
    std::vector<llama_chat_message> list;
    contents.reserve(messages.size());
    size_t bytes = 256;
    for (const common_chat_msg &message : messages) {
        contents.push_back(content_of(message));
        list.push_back({message.role == "developer" ? "system" : message.role.c_str(), contents.back().c_str()});
        bytes += contents.back().size() + 64;
    }
    rendered out;
    out.text.resize(bytes);
    for (int attempt = 0; attempt < 2; attempt++) {
        const int32_t len =
            llama_chat_apply_template(chat.builtin.c_str(), list.data(), list.size(), add_generation_prompt,
                                      out.text.data(), static_cast<int32_t>(out.text.size()));
        if (len < 0) {
            throw std::runtime_error("the built-in template '" + chat.builtin + "' refused the messages");
        }
        const bool fits = static_cast<size_t>(len) <= out.text.size();
        out.text.resize(static_cast<size_t>(len));
        if (fits) {
            break;
        }
    }
    out.input.push_back({0, out.text.size()});
    return out;
}

/* The tokenizer adds BOS itself. */
void drop_bos(const struct hearth_chat &chat, rendered &prompt) {
    const size_t n = chat.bos.size();
    if (!chat.add_bos || n == 0 || prompt.text.compare(0, n, chat.bos) != 0) {
        return;
    }
    prompt.text.erase(0, n);
    for (range &r : prompt.input) {
        r.begin = r.begin > n ? r.begin - n : 0;
        r.end = r.end > n ? r.end - n : 0;
    }
}

/* ------------------------------------------------------------------------------------------------- marks */

/* First occurrence at or behind `from`, or last occurrence that ends at or before `to`. */
size_t find_forward(const rendered &prompt, std::string_view what, size_t from) {
    for (const range &r : prompt.input) {
        const size_t begin = std::max(r.begin, from);
        if (begin + what.size() > r.end) {
            continue;
        }
        const size_t at = std::string_view(prompt.text).substr(begin, r.end - begin).find(what);
        if (at != std::string_view::npos) {
            return begin + at;
        }
    }
    return HEARTH_CHAT_NO_MARK;
}

size_t find_backward(const rendered &prompt, std::string_view what, size_t to) {
    for (auto r = prompt.input.rbegin(); r != prompt.input.rend(); ++r) {
        const size_t end = std::min(r->end, to);
        if (r->begin + what.size() > end) {
            continue;
        }
        const size_t at = std::string_view(prompt.text).substr(r->begin, end - r->begin).rfind(what);
        if (at != std::string_view::npos) {
            return r->begin + at;
        }
    }
    return HEARTH_CHAT_NO_MARK;
}

/* The white space in front of a match belongs to the content when it was printed. */
size_t with_leading_space(const rendered &prompt, const std::string &content, size_t at) {
    const size_t lead = content.find_first_not_of(k_space);
    return at >= lead && prompt.text.compare(at - lead, lead, content, 0, lead) == 0 ? at - lead : at;
}

/* Where the first message that is not a system message begins: behind the system text, or anywhere when a template
 * prints the system text later (Mistral's stands in the last turn). */
size_t find_system_end(const rendered &prompt, const std::vector<message_texts> &messages) {
    size_t cursor = 0;
    for (const message_texts &message : messages) {
        for (const std::string &text : message.texts) {
            const std::string_view what = trimmed(text);
            if (what.empty()) {
                continue;
            }
            size_t at = find_forward(prompt, what, cursor);
            if (!is_system(message.role)) {
                at = at == HEARTH_CHAT_NO_MARK ? find_forward(prompt, what, 0) : at;
                return at == HEARTH_CHAT_NO_MARK ? at : with_leading_space(prompt, text, at);
            }
            cursor = at == HEARTH_CHAT_NO_MARK ? cursor : at + what.size();
        }
        if (!is_system(message.role)) {
            break;
        }
    }
    return HEARTH_CHAT_NO_MARK;
}

/* Where the last user or tool message begins: backwards over what follows it and over its own parts. */
size_t find_last_input(const rendered &prompt, const std::vector<message_texts> &messages) {
    size_t limit = prompt.text.size();
    for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
        size_t begin = HEARTH_CHAT_NO_MARK;
        for (auto text = message->texts.rbegin(); text != message->texts.rend(); ++text) {
            const std::string_view what = trimmed(*text);
            if (what.empty()) {
                continue;
            }
            const size_t at = find_backward(prompt, what, limit);
            begin = at == HEARTH_CHAT_NO_MARK ? at : with_leading_space(prompt, *text, at);
            limit = at == HEARTH_CHAT_NO_MARK ? limit : at;
        }
        if (is_input_role(message->role)) {
            return begin;
        }
    }
    return HEARTH_CHAT_NO_MARK;
}

} // namespace

/* ------------------------------------------------------------------------------------------------- chat.h */

extern "C" {

int hearth_chat_create(const struct hearth_chat_params *params, struct hearth_chat **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    try {
        auto chat = std::make_unique<hearth_chat>();
        load_template(*chat, *params);
        *out = chat.release();
        return HEARTH_OK;
    } catch (...) {
        return fail_in_flight(msg);
    }
}

void hearth_chat_destroy(struct hearth_chat *chat) {
    delete chat;
}

const char *hearth_chat_template(const struct hearth_chat *chat) {
    return chat->source.c_str();
}

void hearth_chat_prompt_finish(struct hearth_chat_prompt *prompt) {
    hearth_buf_finish(&prompt->text);
}

int hearth_chat_render(struct hearth_chat *chat, const char *messages_json, const char *kwargs_json,
                       bool add_generation_prompt, struct hearth_chat_prompt *out, struct hearth_errmsg *msg) {
    *out = hearth_chat_prompt{{}, HEARTH_CHAT_NO_MARK, HEARTH_CHAT_NO_MARK};
    try {
        const auto messages = common_chat_msgs_parse_oaicompat(common_json::parse(messages_json));
        rendered prompt = chat->jinja == nullptr
                              ? render_builtin(*chat, messages, add_generation_prompt)
                              : render_jinja(*chat, variables_for(*chat, messages, kwargs_json, add_generation_prompt));
        drop_bos(*chat, prompt);
        if (!hearth_buf_append(&out->text, prompt.text.c_str(), prompt.text.size() + 1)) {
            throw std::bad_alloc();
        }
        out->text.len--; /* the NUL stays behind the text */
        const std::vector<message_texts> texts = texts_of(messages);
        out->system_end = find_system_end(prompt, texts);
        out->last_input_start = find_last_input(prompt, texts);
        return HEARTH_OK;
    } catch (...) {
        return fail_in_flight(msg);
    }
}

} /* extern "C" */
