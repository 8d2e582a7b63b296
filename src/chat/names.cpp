/* What a template's text tells without running it: which arguments it looks at, for a request may bring any, and one
 * that is not looked at changes nothing; which members it asks for; and what it takes out of texts.
 *
 * Design. The program is not run: a branch that no run takes may still read a name. Instead a name counts as read
 * when it stands anywhere in the template's text, as a word. That errs on one side only, where an argument is kept
 * that nothing depends on. */
#include "chat/chat_internal.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace {

/* Arguments that `common` hands on under other names as well. */
constexpr struct {
    const char *argument, *variable;
} k_handed_on[] = {
    {"reasoning_effort", "reasoning_strength"}, {"preserve_reasoning", "preserve_thinking"},
    {"preserve_reasoning", "clear_thinking"},   {"preserve_reasoning", "truncate_history_thinking"},
    {"preserve_reasoning", "drop_thinking"},
};

static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

static bool has_word(const std::string &text, std::string_view word) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
            return true;
        }
    }
    return false;
}

static void make_set(std::vector<std::string> &words) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
}

/* The quoted texts among the arguments of the call that begins at `at`. */
static void add_quoted(const std::string &text, size_t at, std::vector<std::string> &out) {
    size_t depth = 0;
    for (; at < text.size(); at++) {
        if (text[at] == '\'' || text[at] == '"') {
            const size_t end = text.find(text[at], at + 1);
            if (end == std::string::npos) {
                return;
            }
            if (end > at + 1) {
                out.push_back(text.substr(at + 1, end - at - 1));
            }
            at = end;
        } else if (text[at] == '(') {
            depth++;
        } else if (text[at] == ')' && --depth == 0) {
            return;
        }
    }
}

} // namespace

/* Escapes such as '\n' stay as they are written: no token has a line's end in it. */
std::vector<std::string> cut_words_of(const std::string &source) {
    std::vector<std::string> words;
    for (const std::string_view filter : {"replace", "split"}) {
        for (size_t at = source.find(filter); at != std::string::npos; at = source.find(filter, at + 1)) {
            const size_t call = source.find_first_not_of(' ', at + filter.size());
            if (call != std::string::npos && source[call] == '(') {
                add_quoted(source, call, words);
            }
        }
    }
    make_set(words);
    return words;
}

/* Whatever stands in quotes or behind a dot. */
std::vector<std::string> members_of(const std::string &source) {
    std::vector<std::string> members;
    for (size_t at = 0, end; at < source.size(); at = end) {
        for (end = at; end < source.size() && is_word(source[end]);) {
            end++;
        }
        const char before = at > 0 ? source[at - 1] : ' ', behind = end < source.size() ? source[end] : ' ';
        if (end > at && (before == '.' || ((before == '\'' || before == '"') && behind == before))) {
            members.push_back(source.substr(at, end - at));
        }
        end = std::max(end, at + 1);
    }
    make_set(members);
    return members;
}

extern "C" bool hearth_chat_reads(const struct hearth_chat *chat, const char *argument) {
    if (chat->jinja == nullptr || *argument == '\0') {
        return false;
    }
    return has_word(chat->source, argument) ||
           std::any_of(std::begin(k_handed_on), std::end(k_handed_on), [&](const auto &row) {
               return strcmp(row.argument, argument) == 0 && has_word(chat->source, row.variable);
           });
}
