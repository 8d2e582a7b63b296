/* Texts: without white space around them, as JSON, in one line. */
#include "chat/chat_internal.hpp"

#include <cstdlib>
#include <new>

std::string_view without_outer_space(std::string_view content) {
    static constexpr const char *k_space = " \t\r\n\f\v";
    const size_t first = content.find_first_not_of(k_space);
    if (first == std::string_view::npos) {
        return {};
    }
    return content.substr(first, content.find_last_not_of(k_space) - first + 1);
}

std::string json_text(const json_t *value, size_t flags) {
    const std::unique_ptr<char, void (*)(void *)> text(hearth_json_dumps(value, flags | JSON_ENCODE_ANY), free);
    if (text == nullptr) {
        throw std::bad_alloc();
    }
    return text.get();
}

std::string json_quoted(const char *text) {
    const json_ptr value(json_string(text));
    if (value == nullptr) {
        throw std::bad_alloc();
    }
    return json_text(value.get());
}

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
