/* What went wrong, as an error code and one line of text.
 *
 * Where a chat template does not compile, or fails: the template library says what it expected, with an excerpt of the
 * text, or only what it found; `common` passes on neither. So what it refused is compiled again here. An excerpt is
 * looked for in the text. Without one, the template is cut behind its statements, one fewer each time: the last that
 * goes before the fault does is the one at fault. */
#include "chat/chat_internal.hpp"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/utils.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {

/* What is wrong with these tokens; empty: nothing. */
static std::string parse_fault(const jinja::lexer_result &tokens) {
    return fault_of([&] { (void)jinja::parse_from_tokens(tokens); }).value_or("");
}

constexpr size_t k_nowhere = static_cast<size_t>(-1);

/* The place with the excerpt that a fault ends with. */
static size_t find_excerpt(const std::string &source, const std::string &fault) {
    for (size_t pos = 0; pos <= source.size(); pos++) {
        const std::string excerpt = jinja::peak_source(source, pos);
        const size_t n = excerpt.size();
        if (fault.size() > n && fault.compare(fault.size() - n, n, excerpt) == 0) {
            return pos;
        }
    }
    return k_nowhere;
}

/* The place of the statement that a fault without an excerpt is in: from it on, every cut has the fault. */
static size_t find_statement(const jinja::lexer_result &all, const std::string &fault) {
    size_t found = k_nowhere;
    jinja::lexer_result cut = all;
    while (!cut.tokens.empty() && parse_fault(cut) == fault) {
        do {
            cut.tokens.pop_back();
        } while (!cut.tokens.empty() && cut.tokens.back().t != jinja::token::close_statement &&
                 cut.tokens.back().t != jinja::token::close_expression);
        const bool words = all.tokens[cut.tokens.size()].t == jinja::token::text; /* before the statement */
        found = all.tokens[std::min(cut.tokens.size() + words, all.tokens.size() - 1)].pos;
    }
    return found;
}

/* The fault without its excerpt, and without the names of the library's parts. */
static std::string plain(const std::string &fault) {
    std::string what = fault.substr(0, fault.find('\n'));
    for (const char *part : {"lexer: ", "parser: ", "Parser Error: "}) {
        what.erase(0, what.compare(0, strlen(part), part) == 0 ? strlen(part) : 0);
    }
    return what == "Unexpected token type" ? "a block has no end" : what; /* what it finds where the text ends */
}

} // namespace

std::string template_fault(const std::string &source) {
    jinja::lexer_result tokens;
    std::string fault = fault_of([&] { tokens = jinja::lexer().tokenize(source); }).value_or("");
    const std::string text = fault.empty() ? tokens.source : source;
    if (fault.empty()) {
        fault = parse_fault(tokens);
    }
    if (fault.empty()) {
        return {};
    }
    size_t pos = find_excerpt(text, fault);
    const std::string what = plain(fault);
    if (pos == k_nowhere) {
        pos = find_statement(tokens, fault);
    }
    if (pos == k_nowhere) {
        return what;
    }
    const auto until = text.begin() + static_cast<std::ptrdiff_t>(std::min(pos, text.size()));
    return "line " + std::to_string(1 + std::count(text.begin(), until, '\n')) + ": " + what;
}

/* The library says "While executing … at line 3, column 5 in source:". */
std::string template_failure(const std::string &what) {
    static const char at[] = " at line ";
    const size_t executing = what.find("While executing ");
    const size_t found = executing != std::string::npos ? what.find(at, executing) : std::string::npos;
    const int line = found != std::string::npos ? atoi(what.c_str() + found + sizeof at - 1) : 0;
    return (line > 0 ? "line " + std::to_string(line) + ": " : "") + one_line(what);
}

/* What was refused memory may have come here as something else: `common` catches and throws again. */
int fail_in_flight(struct hearth_errmsg *msg, const struct hearth_chat *guarded) {
    const auto line = [guarded](const std::exception &e) {
        std::string text = one_line(e.what());
        text.resize(guarded != nullptr ? drop_seams(*guarded, text.data(), text.size()) : text.size());
        return text;
    };
    if (hearth_memory_refused()) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory in the chat template");
    }
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory in the chat template");
    } catch (const interrupted &e) {
        return hearth_fail(msg, e.err, "%s", hearth_err_text(e.err));
    } catch (const invalid_request &e) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s", line(e).c_str());
    } catch (const std::exception &e) {
        return hearth_fail(msg, HEARTH_ERR_TEMPLATE, "%s", line(e).c_str());
    } catch (...) {
        return hearth_fail(msg, HEARTH_ERR_TEMPLATE, "the chat template failed");
    }
}
