/* From the messages of a request to turns: what a template is to see.
 *
 * Design. A turn is a view: of the content of one message, or of a text made here and kept beside the list. The steps,
 * each on the list that the one before left: roles; tools written out (generic.cpp), or calls one by one where the
 * template prints one at most; system texts merged into the first turn where the template has no system role; user
 * turns in a row joined where it wants roles to alternate.
 *
 * Invariants. What a turn says depends on messages up to its last one only, and a later message that joins it is added
 * at its end: a longer history begins with the text of a shorter one. `first_at` is where in the content the text of
 * the first message that is not a system message begins, `last_at` that of the last user or tool message; npos: there
 * is none. */
#include "chat/chat_internal.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr const char *k_space = " \t\r\n\f\v";
constexpr size_t k_none = std::string_view::npos;

bool is_system(enum hearth_role role) {
    return role == HEARTH_ROLE_SYSTEM || role == HEARTH_ROLE_DEVELOPER;
}

turn turn_of(const struct hearth_chat &chat, const struct hearth_message &message) {
    turn made;
    made.role = message.role == HEARTH_ROLE_DEVELOPER && !chat.native_developer ? HEARTH_ROLE_SYSTEM : message.role;
    made.content = std::string_view(message.content, message.content_len);
    if (chat.trim_contents) {
        made.content = trimmed(made.content);
    }
    const bool input = message.role == HEARTH_ROLE_USER || message.role == HEARTH_ROLE_TOOL;
    made.first_at = is_system(message.role) ? k_none : 0;
    made.last_at = input ? 0 : k_none;
    made.message = &message;
    made.first_call = 0;
    made.call_count = message.call_count;
    return made;
}

size_t moved(size_t at, size_t by) {
    return at == k_none ? k_none : at + by;
}

/* System texts go in front of the first turn; alone, they become that turn. */
void merge_system(turn_list &list) {
    std::vector<turn> &turns = list.turns;
    size_t systems = 0;
    while (systems < turns.size() && turns[systems].role == HEARTH_ROLE_SYSTEM) {
        systems++;
    }
    if (systems == 0) {
        return;
    }
    std::string text;
    for (size_t i = 0; i < systems; i++) {
        text += turns[i].content;
        text += i + 1 < turns.size() ? "\n" : "";
    }
    if (systems == turns.size()) {
        turns.resize(1);
        turns[0] = {HEARTH_ROLE_USER, list.keep(std::move(text)), k_none, k_none, nullptr, 0, 0};
        return;
    }
    turn &first = turns[systems];
    first.first_at = moved(first.first_at, text.size());
    first.last_at = moved(first.last_at, text.size());
    text += first.content;
    first.content = list.keep(std::move(text));
    turns.erase(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(systems));
}

/* Where among the results [begin, end) that of call `i` is: by its id, else by its place; `end`: nowhere. */
size_t result_of(const std::vector<turn> &turns, size_t begin, size_t end, const struct hearth_message &caller,
                 size_t i) {
    const char *id = caller.calls[i].id;
    for (size_t at = begin; at < end; at++) {
        const char *of = turns[at].message->tool_call_id;
        if (id != nullptr && of != nullptr && strcmp(id, of) == 0) {
            return at;
        }
    }
    const bool placed = i < end - begin && (id == nullptr || turns[begin + i].message->tool_call_id == nullptr);
    return placed ? begin + i : end;
}

/* For templates that print one call in a turn: each call with its result, one after the other. */
void split_calls(turn_list &list) {
    std::vector<turn> split;
    split.reserve(list.turns.size());
    for (size_t i = 0; i < list.turns.size();) {
        const turn whole = list.turns[i++];
        split.push_back(whole);
        if (whole.call_count < 2) {
            continue;
        }
        size_t end = i;
        while (end < list.turns.size() && list.turns[end].role == HEARTH_ROLE_TOOL) {
            end++;
        }
        std::vector<bool> taken(end - i);
        split.pop_back();
        for (size_t call = 0; call < whole.call_count; call++) {
            turn one = whole;
            one.first_call = call;
            one.call_count = 1;
            one.content = call == 0 ? whole.content : std::string_view();
            split.push_back(one);
            const size_t at = result_of(list.turns, i, end, *whole.message, call);
            if (at < end && !taken[at - i]) {
                taken[at - i] = true;
                split.push_back(list.turns[at]);
            }
        }
        for (size_t at = i; at < end; at++) {
            if (!taken[at - i]) {
                split.push_back(list.turns[at]);
            }
        }
        i = end;
    }
    list.turns = std::move(split);
}

/* Joins user turns that follow each other. */
void join_users(turn_list &list) {
    std::vector<turn> joined;
    joined.reserve(list.turns.size());
    for (size_t i = 0; i < list.turns.size();) {
        size_t end = i + 1;
        while (end < list.turns.size() && list.turns[i].role == HEARTH_ROLE_USER &&
               list.turns[end].role == HEARTH_ROLE_USER) {
            end++;
        }
        joined.push_back(list.turns[i]);
        if (end > i + 1) {
            turn &whole = joined.back();
            std::string text(whole.content);
            for (size_t k = i + 1; k < end; k++) {
                const turn &next = list.turns[k];
                text += "\n\n";
                whole.first_at = whole.first_at != k_none ? whole.first_at : moved(next.first_at, text.size());
                whole.last_at = next.last_at != k_none ? next.last_at + text.size() : whole.last_at;
                text += next.content;
            }
            whole.content = list.keep(std::move(text));
        }
        i = end;
    }
    list.turns = std::move(joined);
}

/* Arguments of a call as JSON that parses. */
std::string arguments_text(const struct hearth_call &call) {
    if (call.parsed != nullptr) {
        return call.arguments;
    }
    if (call.arguments[0] == '\0') {
        return "{}";
    }
    json_t *text = json_string(call.arguments);
    if (text == nullptr) {
        throw std::bad_alloc();
    }
    const std::unique_ptr<json_t, void (*)(json_t *)> owned(text, [](json_t *value) { json_decref(value); });
    return json_text(text);
}

} // namespace

std::string_view trimmed(std::string_view content) {
    const size_t first = content.find_first_not_of(k_space);
    if (first == std::string_view::npos) {
        return {};
    }
    return content.substr(first, content.find_last_not_of(k_space) - first + 1);
}

std::string json_text(const json_t *value) {
    const std::unique_ptr<char, void (*)(void *)> text(json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY), free);
    if (text == nullptr) {
        throw std::bad_alloc();
    }
    return text.get();
}

turn_list turns_of(const struct hearth_chat &chat, const struct hearth_chat_request &request, size_t count) {
    turn_list list;
    list.turns.reserve(count + 1);
    for (size_t i = 0; i < count; i++) {
        list.turns.push_back(turn_of(chat, *request.messages[i]));
    }
    if (generic_applies(chat, request)) {
        generic_rewrite(list, request);
    }
    if (!chat.abilities.parallel_calls) {
        split_calls(list);
    }
    if (chat.jinja != nullptr && !chat.jinja->caps.supports_system_role) {
        merge_system(list);
    }
    if (chat.abilities.alternates) {
        join_users(list);
    }
    return list;
}

std::vector<common_chat_msg> common_messages(const turn_list &list) {
    std::vector<common_chat_msg> messages;
    messages.reserve(list.turns.size());
    for (const turn &each : list.turns) {
        common_chat_msg message;
        message.role = hearth_role_text(each.role);
        message.content = each.content;
        const struct hearth_message *source = each.message;
        if (source != nullptr) {
            const bool first = each.first_call == 0;
            message.reasoning_content = first && source->reasoning != nullptr ? source->reasoning : "";
            message.tool_name = source->name != nullptr ? source->name : "";
            message.tool_call_id = source->tool_call_id != nullptr ? source->tool_call_id : "";
            for (size_t i = 0; i < each.call_count; i++) {
                const struct hearth_call &call = source->calls[each.first_call + i];
                message.tool_calls.push_back({call.name, arguments_text(call), call.id != nullptr ? call.id : ""});
            }
        }
        messages.push_back(std::move(message));
    }
    return messages;
}

std::vector<common_chat_tool> common_tools(const json_t *tools) {
    std::vector<common_chat_tool> out;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *description = json_string_value(json_object_get(function, "description"));
        const json_t *parameters = json_object_get(function, "parameters");
        out.push_back({name != nullptr ? name : "", description != nullptr ? description : "",
                       json_is_object(parameters) ? json_text(parameters) : "{}"});
    }
    return out;
}
