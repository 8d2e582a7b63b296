/* From the messages of a request to turns: what a template is to see.
 *
 * Design. A turn is a view: of the content of one message, or of a text made here and kept beside the list. The steps,
 * each on the list that the one before left: roles; results find their calls; tools written out (generic.cpp), or calls
 * one by one where the template prints one at most; and around these the form that the template asks for
 * (history_form.cpp).
 *
 * Invariants. What a turn says depends on messages up to its last one only, and a later message that joins it is added
 * at its end: a longer history begins with the text of a shorter one. `first_at` is where in the content the text of
 * the first message that is not a system message begins, `last_at` that of the last user or tool message; npos: there
 * is none. */
#include "chat/chat_internal.hpp"

#include <algorithm>
#include <unordered_map>

namespace {

constexpr size_t k_none = std::string_view::npos;

static turn turn_of(const struct hearth_chat &chat, const struct hearth_message &message) {
    const bool input = message.role == HEARTH_ROLE_USER || message.role == HEARTH_ROLE_TOOL;
    const std::string_view content(message.content, message.content_len);
    turn made;
    made.role = message.role == HEARTH_ROLE_DEVELOPER && !chat.native_developer ? HEARTH_ROLE_SYSTEM : message.role;
    made.content = chat.trim_contents ? without_outer_space(content) : content;
    made.first_at = is_system_role(message.role) ? k_none : 0;
    made.last_at = input ? 0 : k_none;
    made.message = &message;
    made.call_count = message.call_count;
    return made;
}

/* Each result's call among those of the messages that the results follow: by its id, else by its place. */
static void match_results(turn_list &list) {
    std::vector<const struct hearth_call *> calls;
    std::unordered_map<std::string_view, const struct hearth_call *> named; /* of several with one id, the first */
    size_t place = 0;
    bool results = false;
    for (turn &each : list.turns) {
        if (each.role != HEARTH_ROLE_TOOL) {
            if (results || each.role != HEARTH_ROLE_ASSISTANT) {
                calls.clear();
                named.clear();
            }
            for (size_t i = 0; i < each.call_count; i++) {
                const struct hearth_call *call = &each.message->calls[i];
                calls.push_back(call);
                if (call->id != nullptr) {
                    named.emplace(call->id, call);
                }
            }
            results = false;
            place = 0;
            continue;
        }
        const char *id = each.message->tool_call_id;
        const auto found = id != nullptr ? named.find(id) : named.end();
        if (found != named.end()) {
            each.answers = found->second;
        } else if (place < calls.size() && (id == nullptr || calls[place]->id == nullptr)) {
            each.answers = calls[place];
        }
        results = true;
        place++;
    }
}

/* For templates that print one call in a turn: each call with its result, one after the other. */
static void split_calls(turn_list &list) {
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
        std::unordered_map<const struct hearth_call *, size_t> results; /* the first of each call */
        for (size_t at = i; at < end; at++) {
            results.emplace(list.turns[at].answers, at);
        }
        split.pop_back();
        for (size_t call = 0; call < whole.call_count; call++) {
            turn one = whole;
            one.first_call = call;
            one.call_count = 1;
            one.content = call == 0 ? whole.content : std::string_view();
            split.push_back(one);
            const auto found = results.find(&whole.message->calls[call]);
            if (found != results.end() && !taken[found->second - i]) {
                taken[found->second - i] = true;
                split.push_back(list.turns[found->second]);
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

constexpr size_t k_short_id = 9;

static std::string printed_id(const turn_list &list, const std::string &sent) {
    static constexpr char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (!list.short_ids) {
        return sent;
    }
    std::string id = sent;
    id.resize(drop_seams(*list.chat, id.data(), id.size()));
    if (id.size() == k_short_id && id.find_first_not_of(letters) == std::string::npos) {
        return id;
    }
    const struct hearth_digest digest = hearth_digest_bytes(id.data(), id.size());
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&digest);
    std::string made;
    for (size_t i = 0; i < k_short_id; i++) {
        made += letters[bytes[i] % (sizeof letters - 1)];
    }
    return made;
}

/* Arguments of a call as JSON that parses. */
static std::string arguments_text(const struct hearth_call &call) {
    if (call.parsed != nullptr) {
        return call.arguments;
    }
    return call.arguments[0] != '\0' ? json_quoted(call.arguments) : "{}";
}

/* gpt-oss says what it is about to do in front of a call in the commentary channel. Its template has no place for that
 * beside thoughts, and llama.cpp leaves it out; behind the thoughts' own end it is printed as the model writes it. */
static std::string thoughts_of(const turn_list &list, const turn &each) {
    static constexpr const char *preamble = "<|end|><|start|>assistant<|channel|>commentary<|message|>";
    if (each.first_call > 0 || each.message->reasoning == nullptr) {
        return {};
    }
    std::string thoughts = each.message->reasoning;
    if (list.preambles && !thoughts.empty() && each.call_count > 0 && !each.content.empty()) {
        thoughts += preamble;
        thoughts += each.content;
    }
    return thoughts;
}

} // namespace

/* An id of nine letters and digits stays; of any other one comes a digest, so that it is the same in every turn. */
std::string call_id(const turn_list &list, const struct hearth_call &call) {
    return printed_id(list, call.id != nullptr ? call.id : "");
}

std::string result_id(const turn_list &list, const turn &result) {
    if (result.answers != nullptr) {
        return call_id(list, *result.answers);
    }
    const char *id = result.message != nullptr ? result.message->tool_call_id : nullptr;
    return id != nullptr ? printed_id(list, id) : std::string();
}

const char *result_name(const turn &result) {
    const char *own = result.message != nullptr ? result.message->name : nullptr;
    return result.answers != nullptr ? result.answers->name : own;
}

turn_list turns_of(const struct hearth_chat &chat, const struct hearth_chat_request &request, size_t count,
                   unsigned form) {
    turn_list list;
    list.turns.reserve(count + 1);
    list.short_ids = (form & HEARTH_CHAT_IDS_SHORT) != 0;
    list.preambles = chat.preambles;
    list.chat = &chat;
    list.filled = (form & HEARTH_CHAT_SCHEMAS_FILLED) != 0;
    for (size_t i = 0; i < count; i++) {
        list.turns.push_back(turn_of(chat, *request.messages[i]));
    }
    match_results(list);
    const bool generic = generic_applies(chat, request);
    form_before(list, generic ? form & ~static_cast<unsigned>(HEARTH_CHAT_RESULTS_QUOTED) : form);
    if (generic) {
        generic_rewrite(list, request);
    }
    if (!chat.abilities.parallel_calls) {
        split_calls(list);
    }
    form_behind(list, form);
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
        const char *name = result_name(each);
        message.tool_name = name != nullptr ? name : "";
        message.tool_call_id = result_id(list, each);
        if (source != nullptr) {
            message.reasoning_content = thoughts_of(list, each);
            for (size_t i = 0; i < each.call_count; i++) {
                const struct hearth_call &call = source->calls[each.first_call + i];
                message.tool_calls.push_back({call.name, arguments_text(call), call_id(list, call)});
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
