/* Which template arguments a template looks at: a request may bring any, and one that is not looked at changes nothing.
 *
 * Design. The program is not run: a branch that no trial takes may still read a name. Instead a name counts as read
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

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool has_word(const std::string &text, std::string_view word) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
            return true;
        }
    }
    return false;
}

} // namespace

extern "C" bool hearth_chat_reads(const struct hearth_chat *chat, const char *argument) {
    if (chat->jinja == nullptr || *argument == '\0') {
        return false;
    }
    return has_word(chat->source, argument) ||
           std::any_of(std::begin(k_handed_on), std::end(k_handed_on), [&](const auto &row) {
               return strcmp(row.argument, argument) == 0 && has_word(chat->source, row.variable);
           });
}
