/* Where messages stand in a rendered prompt.
 *
 * Design. The text of a turn is looked for in what the template printed from contents, without the white space around
 * it, which many templates trim: forwards for the end of the system text, backwards for the last input. Where inside
 * the turn a message begins is known (turns.cpp).
 *
 * Invariants. Marks are NO_MARK or offsets into the text, at the first byte of the message as it was printed. */
#include "chat/chat_internal.hpp"

#include <algorithm>

extern "C" {
#include "base/utf8.h"
}

namespace {

constexpr size_t k_none = std::string_view::npos;

/* First occurrence at or behind `from`. */
static size_t find_forward(const rendered &prompt, std::string_view what, size_t from) {
    for (const text_range &r : prompt.input) {
        const size_t begin = std::max(r.begin, from);
        if (begin + what.size() > r.end) {
            continue;
        }
        const size_t at = std::string_view(prompt.text).substr(begin, r.end - begin).find(what);
        if (at != k_none) {
            return begin + at;
        }
    }
    return k_none;
}

/* Last occurrence that ends at or before `to`. */
static size_t find_backward(const rendered &prompt, std::string_view what, size_t to) {
    for (auto r = prompt.input.rbegin(); r != prompt.input.rend(); ++r) {
        const size_t end = std::min(r->end, to);
        if (r->begin + what.size() > end) {
            continue;
        }
        const size_t at = std::string_view(prompt.text).substr(r->begin, end - r->begin).rfind(what);
        if (at != k_none) {
            return r->begin + at;
        }
    }
    return k_none;
}

/* Some templates print results as JSON: then not input, and with escapes. A beginning is enough. */
static size_t find_as_json(const rendered &prompt, std::string_view what) {
    constexpr size_t k_enough = 400;
    const std::string_view beginning =
        what.substr(0, hearth_utf8_complete(what.data(), std::min(what.size(), k_enough)));
    const json_ptr value(json_stringn(beginning.data(), beginning.size()));
    if (value == nullptr) {
        return k_none;
    }
    std::string escaped = json_text(value.get());
    escaped.pop_back(); /* the closing quote */
    const size_t at = prompt.text.rfind(escaped);
    return at == k_none ? k_none : at + 1;
}

/* Offset `at` of a turn's content, when the content without its white space was found at `found`. White space in front
 * belongs to the content when it was printed. */
static size_t inside(const rendered &prompt, std::string_view content, size_t found, size_t at) {
    const size_t lead = content.find(without_outer_space(content));
    const bool printed = found >= lead && prompt.text.compare(found - lead, lead, content.substr(0, lead)) == 0;
    return printed ? found - lead + at : found + (at > lead ? at - lead : 0);
}

/* Where the print of a tool begins, at or behind `from`: at the line that its name is in, or at the name. It is found
 * by its description, which says more than a name that a system text may mention, too. `from` moves behind it. */
static size_t find_tool(const rendered &prompt, const json_t *tool, size_t &from) {
    constexpr size_t k_enough = 48, k_before = 256; /* bytes of a description; between a tool's beginning and that */
    const json_t *function = json_object_get(tool, "function");
    const json_t *description = json_object_get(function, "description");
    const char *name = json_string_value(json_object_get(function, "name"));
    if (name == nullptr || json_string_length(description) == 0) {
        return k_none;
    }
    std::string what = json_text(description).substr(1, k_enough);
    what.erase(std::min(what.size() - 1, what.find('\\'))); /* as far as it is the same with and without escapes */
    const size_t said = what.empty() ? k_none : prompt.text.find(what, from);
    if (said == k_none) {
        return k_none;
    }
    const size_t least = std::max(from, said > k_before ? said - k_before : 0);
    const size_t named = prompt.text.rfind(name, said);
    const size_t at = named != k_none && named >= least ? named : said;
    const size_t line = prompt.text.rfind('\n', at);
    from = said + what.size();
    return line != k_none && line >= least ? line : at;
}

static void add_head(struct hearth_chat_prompt &out, size_t at) {
    if (out.head_count < HEARTH_CHAT_HEAD_MAX) {
        out.head[out.head_count++] = at;
    }
}

/* A request with some of the tools only, as sub-agents make them, parts from this one where one is missing. Of many
 * tools, marks are at an eighth of their text each. In front of the first one stands the end of a system text. */
static void find_tools(const rendered &prompt, const struct hearth_chat_request &request,
                       struct hearth_chat_prompt &out) {
    constexpr size_t k_parts = 8, k_least = 512; /* bytes: less is computed as soon as brought back */
    std::vector<size_t> begins;
    size_t cursor = 0;
    for (size_t i = 0; i < json_array_size(request.tools); i++) {
        const size_t at = find_tool(prompt, json_array_get(request.tools, i), cursor);
        if (at == k_none) {
            break; /* printed otherwise: to look on would be slow */
        }
        begins.push_back(at);
    }
    if (begins.empty()) {
        return;
    }
    const size_t part = std::max((begins.back() - begins.front()) / k_parts, k_least);
    size_t next = begins.front() + part;
    for (const size_t at : begins) {
        if (at >= next) {
            add_head(out, at - 1);
            next = at + part;
        }
    }
}

} // namespace

void find_head_end(const rendered &prompt, const struct hearth_chat_request &request, struct hearth_chat_prompt &out) {
    constexpr size_t k_system_messages = 3;
    size_t cursor = 0;
    out.head_count = 0;
    for (size_t i = 0; i < request.message_count && i < k_system_messages; i++) {
        const struct hearth_message &message = *request.messages[i];
        if (message.role != HEARTH_ROLE_SYSTEM && message.role != HEARTH_ROLE_DEVELOPER) {
            break;
        }
        const std::string_view what = without_outer_space({message.content, message.content_len});
        const size_t at = what.empty() ? k_none : find_forward(prompt, what, cursor);
        if (at != k_none) {
            cursor = at + what.size();
            add_head(out, at);
            add_head(out, cursor - 1);
        }
    }
    find_tools(prompt, request, out);
    std::sort(out.head, out.head + out.head_count);
}

size_t find_system_end(const rendered &prompt, const turn_list &list) {
    size_t cursor = 0;
    for (const turn &each : list.turns) {
        const std::string_view what = without_outer_space(each.content);
        const bool first = each.first_at != k_none;
        size_t at = what.empty() ? k_none : find_forward(prompt, what, cursor);
        if (first && at == k_none && !what.empty()) {
            at = find_forward(prompt, what, 0); /* some templates print the system text later */
        }
        if (first) {
            return at == k_none ? HEARTH_CHAT_NO_MARK : inside(prompt, each.content, at, each.first_at);
        }
        cursor = at == k_none ? cursor : at + what.size();
    }
    return HEARTH_CHAT_NO_MARK;
}

size_t find_last_input(const rendered &prompt, const turn_list &list) {
    size_t limit = prompt.text.size();
    for (auto each = list.turns.rbegin(); each != list.turns.rend(); ++each) {
        const std::string_view what = without_outer_space(each->content);
        const size_t at = what.empty() ? k_none : find_backward(prompt, what, limit);
        if (each->last_at != k_none && at != k_none) {
            return inside(prompt, each->content, at, each->last_at);
        }
        if (each->last_at != k_none) {
            const std::string_view said = without_outer_space(each->content.substr(each->last_at));
            const size_t quoted = said.empty() ? k_none : find_as_json(prompt, said);
            return quoted == k_none ? HEARTH_CHAT_NO_MARK : quoted;
        }
        limit = at == k_none ? limit : at;
    }
    return HEARTH_CHAT_NO_MARK;
}

/* A message follows the one before it closely: behind what the template prints between them and what was not found. To
 * look no further keeps the whole search linear. The first ones may have a system text or tools before them. */
static void locate(const struct hearth_chat_request *request, std::string_view text, size_t *offsets) {
    constexpr size_t k_between = 4096;
    size_t cursor = 0, window = text.size();
    for (size_t i = 0; i < request->message_count; i++) {
        const struct hearth_message &message = *request->messages[i];
        std::string_view what = without_outer_space({message.content, message.content_len});
        if (what.empty() && message.call_count > 0) {
            what = message.calls[0].name;
        }
        const std::string_view near = text.substr(cursor, window);
        const size_t at = what.empty() ? k_none : near.find(what);
        const bool spoken = message.role != HEARTH_ROLE_SYSTEM && message.role != HEARTH_ROLE_DEVELOPER;
        offsets[i] = at == k_none ? HEARTH_CHAT_NO_MARK : cursor + at;
        if (at != k_none) {
            cursor += at + what.size();
            window = spoken ? k_between : window;
        }
        window = std::min(text.size(), window) + 2 * message.bytes;
    }
}

extern "C" void hearth_chat_locate(const struct hearth_chat_request *request, const struct hearth_chat_prompt *prompt,
                                   size_t *offsets) {
    const std::string_view guarded(reinterpret_cast<const char *>(prompt->text.data), prompt->text.len);
    if (guarded.find(static_cast<char>(HEARTH_GUARD)) == guarded.npos) {
        locate(request, guarded, offsets);
        return;
    }
    std::string text(guarded);
    text.resize(hearth_guards_strip(text.data(), text.size()));
    locate(request, text, offsets);
    for (size_t i = 0, at = 0, plain = 0; i < request->message_count; i++) {
        if (offsets[i] == HEARTH_CHAT_NO_MARK) {
            continue;
        }
        for (; plain < offsets[i]; at++) { /* they ascend */
            plain += static_cast<unsigned char>(guarded[at]) != HEARTH_GUARD ? 1 : 0;
        }
        offsets[i] = at;
    }
}
