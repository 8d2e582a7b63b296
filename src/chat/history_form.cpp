/* Histories in the form that a template takes.
 *
 * Design. Templates differ in what they refuse: a system message behind the first one, user messages in a row, a
 * user's words behind a tool's result, a result without its call. Others print such a history, but leave words out or
 * gather them at the head. What is done instead is a set of steps (enum hearth_chat_form), each with a few short
 * histories that show whether the template needs it: the step is taken if one of them is refused, loses words, or
 * changes what stands in front of it, and does not with the step. The set is found once, at creation.
 *
 * A system message that becomes user text stands in <system-reminder> tags, and behind a tool's result it is added to
 * the result: for many templates the last user message decides which replies keep their thoughts, and a reminder in the
 * middle of a tool loop is no new question. A user's words that are added to a result stand in <user-message> tags, a
 * result that becomes a user's message in <tool_response> tags.
 *
 * Invariants. As in turns.cpp: what a turn says depends on messages up to its last one only, and a later message that
 * joins it is added at its end. */
#include "chat/chat_internal.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace {

constexpr size_t k_none = std::string_view::npos;
constexpr std::string_view k_opening = "Begin.";
constexpr std::string_view k_gap = "\n\n";

struct tag {
    std::string_view begin, end;
};
constexpr tag k_reminder = {"<system-reminder>\n", "\n</system-reminder>"};
constexpr tag k_words = {"<user-message>\n", "\n</user-message>"};
constexpr tag k_result = {"<tool_response>\n", "\n</tool_response>"};

static bool is_blank(const turn &each) {
    return without_outer_space(each.content).empty();
}

/* ------------------------------------------------------------------------------------------------- steps */

/* Adds text to the end of a turn; what is marked in the text is marked in the turn. */
static void add_text(turn_list &list, turn &whole, const turn &next, std::string_view gap, tag around) {
    std::string text(whole.content);
    text += text.empty() ? std::string_view() : gap;
    text += around.begin;
    whole.first_at = whole.first_at != k_none ? whole.first_at : moved(next.first_at, text.size());
    whole.last_at = next.last_at != k_none ? next.last_at + text.size() : whole.last_at;
    text += next.content;
    text += around.end;
    whole.content = list.keep(std::move(text));
}

/* Puts the tag around a turn's text. */
static void surround(turn_list &list, turn &each, tag around) {
    turn whole{each.role, {}};
    add_text(list, whole, each, {}, around);
    each.content = whole.content;
    each.first_at = whole.first_at;
    each.last_at = whole.last_at;
}

static size_t leading_systems(const turn_list &list) {
    size_t n = 0;
    while (n < list.turns.size() && is_system_role(list.turns[n].role)) {
        n++;
    }
    return n;
}

static void join_leading_systems(turn_list &list) {
    const size_t count = leading_systems(list);
    for (size_t i = 1; i < count; i++) {
        add_text(list, list.turns[0], list.turns[i], k_gap, {});
    }
    if (count > 1) {
        list.turns.erase(list.turns.begin() + 1, list.turns.begin() + static_cast<std::ptrdiff_t>(count));
    }
}

/* System messages behind the leading ones. */
static void mark_systems(turn_list &list) {
    const size_t leading = leading_systems(list);
    std::vector<turn> turns(list.turns.begin(), list.turns.begin() + static_cast<std::ptrdiff_t>(leading));
    for (size_t i = leading; i < list.turns.size(); i++) {
        turn each = list.turns[i];
        if (!is_system_role(each.role)) {
            turns.push_back(each);
            continue;
        }
        if (is_blank(each)) {
            continue;
        }
        const bool marked =
            without_outer_space(each.content)
                .compare(0, k_reminder.begin.size() - 1, k_reminder.begin, 0, k_reminder.begin.size() - 1) == 0;
        const tag around = marked ? tag{} : k_reminder;
        if (!turns.empty() && turns.back().role == HEARTH_ROLE_TOOL) {
            add_text(list, turns.back(), each, k_gap, around);
            continue;
        }
        surround(list, each, around);
        each.role = HEARTH_ROLE_USER;
        each.message = nullptr;
        turns.push_back(each);
    }
    list.turns = std::move(turns);
}

/* Results of calls that are not known become text. */
static void quote_results(turn_list &list) {
    for (turn &each : list.turns) {
        if (each.role == HEARTH_ROLE_TOOL && each.answers == nullptr) {
            surround(list, each, k_result);
            each.role = HEARTH_ROLE_USER;
            each.message = nullptr;
        }
    }
}

/* Words beside calls, in front of them. */
static void split_words(turn_list &list) {
    std::vector<turn> turns;
    turns.reserve(list.turns.size());
    for (turn each : list.turns) {
        if (each.role == HEARTH_ROLE_ASSISTANT && each.call_count > 0 && !is_blank(each)) {
            turn words = each;
            words.call_count = 0;
            words.message = nullptr;
            turns.push_back(words);
            each.content = {};
        }
        turns.push_back(each);
    }
    list.turns = std::move(turns);
}

/* User messages behind results, and in the place of results. */
static void fold_users(turn_list &list) {
    std::vector<turn> turns;
    turns.reserve(list.turns.size());
    for (const turn &each : list.turns) {
        const turn *last = turns.empty() ? nullptr : &turns.back();
        if (each.role != HEARTH_ROLE_USER || last == nullptr ||
            !(last->role == HEARTH_ROLE_TOOL || last->call_count > 0)) {
            turns.push_back(each);
            continue;
        }
        if (last->role != HEARTH_ROLE_TOOL) {
            turn result{HEARTH_ROLE_TOOL, {}};
            result.answers = &last->message->calls[last->first_call + last->call_count - 1];
            turns.push_back(result);
        }
        add_text(list, turns.back(), each, k_gap, k_words);
    }
    list.turns = std::move(turns);
}

/* Two replies as one, with the calls of both. */
static turn joined_replies(turn_list &list, const turn &one, const turn &other) {
    turn whole = one;
    add_text(list, whole, other, is_blank(other) ? std::string_view() : k_gap, {});
    std::vector<struct hearth_call> calls;
    std::string reasoning;
    for (const turn *part : {&one, &other}) {
        for (size_t i = 0; i < part->call_count; i++) {
            calls.push_back(part->message->calls[part->first_call + i]);
        }
        const char *thoughts = part->message != nullptr && part->first_call == 0 ? part->message->reasoning : nullptr;
        if (thoughts != nullptr && thoughts[0] != '\0') {
            reasoning += reasoning.empty() ? "" : k_gap;
            reasoning += thoughts;
        }
    }
    struct hearth_message message = {};
    message.role = HEARTH_ROLE_ASSISTANT;
    message.calls = list.calls.emplace_back(std::move(calls)).data();
    message.call_count = list.calls.back().size();
    message.reasoning = reasoning.empty() ? nullptr : const_cast<char *>(list.keep(std::move(reasoning)).data());
    whole.message = &list.messages.emplace_back(message);
    whole.first_call = 0;
    whole.call_count = message.call_count;
    return whole;
}

/* Turns in a row of a role. Templates that want roles to alternate do not count replies with calls; what comes behind
 * one stays by itself. */
static void join_role(turn_list &list, enum hearth_role role) {
    std::vector<turn> turns;
    turns.reserve(list.turns.size());
    for (const turn &each : list.turns) {
        if (each.role != role || turns.empty() || turns.back().role != role || turns.back().call_count > 0) {
            turns.push_back(each);
        } else if (role == HEARTH_ROLE_ASSISTANT) {
            turns.back() = joined_replies(list, turns.back(), each);
        } else {
            add_text(list, turns.back(), each, k_gap, {});
        }
    }
    list.turns = std::move(turns);
}

/* System text goes in front of the first turn; it becomes that turn where that is not a user's. */
static void merge_system(turn_list &list) {
    if (leading_systems(list) == 0) {
        return;
    }
    turn first = list.turns[0];
    first.role = HEARTH_ROLE_USER;
    first.message = nullptr;
    if (list.turns.size() > 1 && list.turns[1].role == HEARTH_ROLE_USER) {
        add_text(list, first, list.turns[1], k_gap, {});
        list.turns.erase(list.turns.begin());
    }
    list.turns[0] = first;
}

static void open_with_user(turn_list &list) {
    const size_t at = leading_systems(list);
    if (at == list.turns.size() || list.turns[at].role != HEARTH_ROLE_USER) {
        list.turns.insert(list.turns.begin() + static_cast<std::ptrdiff_t>(at), turn{HEARTH_ROLE_USER, k_opening});
    }
}

/* ------------------------------------------------------------------------------------------------- trying it */

struct step {
    unsigned form;
    const char *histories[6]; /* up to the first null */
};

/* In this order: a history may need what stands before. */
constexpr step k_steps[] = {
    {HEARTH_CHAT_IDS_SHORT, {"ucr", "ucra"}},
    {HEARTH_CHAT_WORDS_SPLIT, {"uwr", "uwra"}},
    {HEARTH_CHAT_SYSTEM_MERGED, {"su", "sua"}},
    {HEARTH_CHAT_SYSTEM_JOINED, {"ssu", "sssu"}},
    {HEARTH_CHAT_USERS_JOINED, {"uu", "suau"}},
    {HEARTH_CHAT_REPLIES_JOINED, {"uaa", "suaau", "uacr"}},
    {HEARTH_CHAT_USER_FIRST, {"au", "sau", "s", "sa", "cr"}},
    {HEARTH_CHAT_USER_FOLDED, {"ucru", "ucrau", "sucru", "ucu"}},
    {HEARTH_CHAT_SYSTEM_MARKED, {"suasu", "suas", "sucrs", "uas", "susa"}},
    {HEARTH_CHAT_RESULTS_QUOTED, {"ux", "uxa", "uaxu", "ucrx", "x"}},
};

/* Properties of tools as clients send them, too. */
constexpr const char *k_odd_schemas[] = {"{}", "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}",
                                         "{\"type\":\"array\"}", "{\"enum\":[\"a\",\"b\"]}",
                                         "{\"type\":\"object\",\"properties\":{\"deep\":{\"description\":\"x\"}}}"};

static char *borrowed(const char *text) {
    return const_cast<char *>(text);
}

/* Whether a prompt has all words of a history, in their order; the leading system text may be anywhere. What stands
 * beside a call may be missing: some models are trained so. */
static bool has_words(const std::string &prompt, const history &tried) {
    size_t from = 0;
    bool leading = true;
    for (size_t i = 0; i < tried.count; i++) {
        const struct hearth_message &message = tried.messages[i];
        leading = leading && message.role == HEARTH_ROLE_SYSTEM;
        const bool call = message.call_count > 0;
        const size_t at = prompt.find(tried.said(i), leading || call ? 0 : from);
        if (at == std::string::npos) {
            return false;
        }
        from = call ? from : leading ? 0 : at;
    }
    return true;
}

/* Tries a template with histories. */
class form_probe {
  public:
    explicit form_probe(const render_fn &render) : render_(render), tools_(history_tools()) {
    }

    /* A prompt with a tool that has such a property; empty: refused. */
    std::string print_schema(const char *property, unsigned form) const {
        const json_ptr odd(json_deep_copy(tools_.get()));
        json_t *function = json_object_get(json_array_get(odd.get(), 0), "function");
        json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
        const history tried("u", false);
        if (properties == nullptr || json_object_set_new(properties, "odd", json_loads(property, 0, nullptr)) < 0) {
            throw std::bad_alloc();
        }
        return print(tried, 1, odd.get(), form);
    }

    /* Whether a history, with or without tools, is printed as it should be with these steps and not without them. */
    bool helps(const char *letters, unsigned form, unsigned with) const {
        const history tried(letters, false);
        for (const json_t *tools : {static_cast<const json_t *>(nullptr), static_cast<const json_t *>(tools_.get())}) {
            if (!fits(tried, tools, form) && fits(tried, tools, with)) {
                return true;
            }
        }
        return false;
    }

  private:
    std::string print(const history &tried, size_t count, const json_t *tools, unsigned form) const {
        struct hearth_chat_request request = {};
        request.messages = tried.list;
        request.message_count = count;
        request.tools = tools;
        request.thinking = true;
        return render_(request, form);
    }

    /* All words there, and a late system message has not changed what stands in front of it. */
    bool fits(const history &tried, const json_t *tools, unsigned form) const {
        const std::string whole = print(tried, tried.count, tools, form);
        if (!has_words(whole, tried)) {
            return false;
        }
        size_t n = tried.count - 1;
        while (n > 0 && tried.messages[n].role != HEARTH_ROLE_SYSTEM) {
            n--;
        }
        if (n == 0 || tried.messages[n - 1].role == HEARTH_ROLE_SYSTEM) {
            return true;
        }
        const std::string part = print(tried, n, tools, form);
        const size_t end = part.rfind(tried.messages[n - 1].content);
        return end != std::string::npos && whole.compare(0, end, part, 0, end) == 0;
    }

    const render_fn &render_;
    json_ptr tools_;
};

} // namespace

json_ptr history_tools() {
    json_ptr tools(json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s,s:s}},s:[s]}}}]", "type", "function", "function",
                             "name", "hearth_tool", "description", "hearth_description", "parameters", "type", "object",
                             "properties", "place", "type", "string", "description", "A place", "required", "place"));
    return tools != nullptr ? std::move(tools) : throw std::bad_alloc();
}

history::history(const char *letters, bool known)
    : arguments{json_ptr(json_pack("{s:s}", "place", "hearth_first")),
                json_ptr(json_pack("{s:s}", "place", "hearth_second"))},
      count(strlen(letters)) {
    HEARTH_ASSERT(count <= most);
    if (arguments[0] == nullptr || arguments[1] == nullptr) {
        throw std::bad_alloc();
    }
    calls[0] = {borrowed(known ? "call00001" : "call_0123456789abcdefghijklmn"), borrowed("hearth_tool"),
                borrowed("{\"place\":\"hearth_first\"}"), arguments[0].get()};
    calls[1] = {borrowed("call00002"), borrowed("hearth_tool"), borrowed("{\"place\":\"hearth_second\"}"),
                arguments[1].get()};
    for (size_t i = 0; i < count; i++) {
        fill(i, letters[i], known);
    }
}

void history::fill(size_t i, char letter, bool known) {
    struct hearth_message &message = messages[i];
    list[i] = &message;
    message.role = letter == 's'                      ? HEARTH_ROLE_SYSTEM
                   : letter == 'u'                    ? HEARTH_ROLE_USER
                   : strchr("r2x", letter) != nullptr ? HEARTH_ROLE_TOOL
                                                      : HEARTH_ROLE_ASSISTANT;
    if (letter != 'c' && letter != 'd') {
        snprintf(texts[i], sizeof texts[i], "hearth_%c%zu", letter, i);
    }
    message.content = texts[i];
    message.content_len = strlen(texts[i]);
    message.calls = strchr("cwdD", letter) != nullptr ? calls : nullptr;
    message.call_count = message.calls == nullptr ? 0 : letter == 'd' || letter == 'D' ? 2 : 1;
    message.tool_call_id = letter == 'r'   ? calls[0].id
                           : letter == '2' ? calls[1].id
                           : letter == 'x' ? borrowed("call_other")
                                           : nullptr;
    message.reasoning = known && message.role == HEARTH_ROLE_ASSISTANT ? borrowed("hearth_thoughts") : nullptr;
}

turn_list history::turns() const {
    turn_list made;
    for (size_t i = 0; i < count; i++) {
        const struct hearth_message &message = messages[i];
        made.turns.push_back(
            {message.role, {message.content, message.content_len}, 0, 0, &message, 0, message.call_count, nullptr});
    }
    return made;
}

void form_before(turn_list &list, unsigned form) {
    if ((form & (HEARTH_CHAT_SYSTEM_JOINED | HEARTH_CHAT_SYSTEM_MARKED | HEARTH_CHAT_SYSTEM_MERGED)) != 0) {
        join_leading_systems(list);
    }
    if ((form & HEARTH_CHAT_RESULTS_QUOTED) != 0) {
        quote_results(list);
    }
}

void form_behind(turn_list &list, unsigned form) {
    if ((form & HEARTH_CHAT_WORDS_SPLIT) != 0) {
        split_words(list);
    }
    if ((form & (HEARTH_CHAT_SYSTEM_MARKED | HEARTH_CHAT_SYSTEM_MERGED)) != 0) {
        mark_systems(list);
    }
    if ((form & HEARTH_CHAT_REPLIES_JOINED) != 0) {
        join_role(list, HEARTH_ROLE_ASSISTANT);
    }
    if ((form & HEARTH_CHAT_USER_FOLDED) != 0) {
        fold_users(list);
    }
    if ((form & HEARTH_CHAT_SYSTEM_MERGED) != 0) {
        merge_system(list);
    }
    if ((form & HEARTH_CHAT_USERS_JOINED) != 0) {
        join_role(list, HEARTH_ROLE_USER);
    }
    if ((form & HEARTH_CHAT_USER_FIRST) != 0) {
        open_with_user(list);
    }
}

unsigned find_form(const render_fn &render, bool *prints_schemas) {
    const form_probe probe(render);
    unsigned form = 0;
    for (const step &each : k_steps) {
        for (const char *const *letters = each.histories; (form & each.form) == 0 && *letters != nullptr; letters++) {
            form |= probe.helps(*letters, form, form | each.form) ? each.form : 0;
        }
    }
    *prints_schemas = true;
    for (const char *property : k_odd_schemas) {
        if (probe.print_schema(property, form).empty()) {
            form |= HEARTH_CHAT_SCHEMAS_FILLED;
            *prints_schemas = *prints_schemas && !probe.print_schema(property, form).empty();
        }
    }
    return form;
}

extern "C" {

const char *hearth_chat_form_name(enum hearth_chat_form_bit bit) {
    static const char *const names[] = {
#define X(name, text, help) text,
        HEARTH_CHAT_FORM_TABLE(X)
#undef X
    };
    return names[bit];
}

const char *hearth_chat_form_help(enum hearth_chat_form_bit bit) {
    static const char *const helps[] = {
#define X(name, text, help) help,
        HEARTH_CHAT_FORM_TABLE(X)
#undef X
    };
    return helps[bit];
}

} /* extern "C" */
