/* Grammars as text: JSON schemas to GBNF, by llama.cpp's `common`; what a request came with, checked; and a schema's
 * joined with that of calls. A schema is strengthened before, and its number ranges are put in after; see schema.c. */
#include "chat/chat_internal.hpp"

#include <json-schema-to-grammar.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

extern "C" {
#include "grammar/gbnf.h"
}

json_ptr or_any_object(const json_t *schema) {
    const bool empty = json_is_object(schema) && json_object_size(schema) == 0;
    json_ptr out(empty ? json_pack("{s:s}", "type", "object") : json_incref(const_cast<json_t *>(schema)));
    return out != nullptr ? std::move(out) : throw std::bad_alloc();
}

json_ptr strengthened(const json_t *schema) {
    json_ptr strong =
        whole(json_ptr(json_object_size(schema) > 0 ? hearth_chat_schema_strengthen(schema, nullptr) : nullptr));
    check_cancel(); /* why there may be none */
    return strong != nullptr ? std::move(strong) : json_ptr(json_incref(const_cast<json_t *>(schema)));
}

static void check_schema(const json_t *schema, const std::string &where) {
    check_limits(schema, where);
    check_cancel();
    if (const auto fault = fault_of([&] { (void)schema_grammar(schema); })) {
        throw invalid_request(where + ": " + one_line(*fault));
    }
}

json_ptr buildable(const json_t *schema, const std::string &where) {
    try {
        check_schema(schema, where);
        return json_ptr(json_incref(const_cast<json_t *>(schema)));
    } catch (const invalid_request &) {
        const std::exception_ptr reason = std::current_exception();
        json_ptr strong = strengthened(schema);
        try {
            check_schema(strong.get(), where);
        } catch (const invalid_request &) {
            std::rethrow_exception(reason); /* what is wrong with the client's schema, not with the stronger one */
        }
        return strong;
    }
}

json_ptr strengthened_tools(const json_t *tools, const json_t *otherwise) {
    return changed_tools(tools, [otherwise](size_t i, const json_t *parameters) {
        json_ptr strong = json_is_object(parameters) ? strengthened(parameters) : nullptr;
        const json_t *other = json_object_get(json_object_get(json_array_get(otherwise, i), "function"), "parameters");
        return strong.get() != parameters ? std::move(strong) : json_ptr(json_incref(const_cast<json_t *>(other)));
    });
}

std::string schema_grammar(const json_t *schema) {
    return json_schema_to_grammar(common_json::parse(json_text(or_any_object(schema).get())), true);
}

/* A grammar may name tokens, which only a vocabulary knows: here every name will do. */
extern "C" hearth_token any_token(void *, const char *, size_t) {
    return 0;
}

void check_llama_grammar(const std::string &grammar, const char *name) {
    if (grammar.empty()) {
        return;
    }
    struct hearth_grammar_gbnf *parsed = nullptr;
    struct hearth_errmsg msg = {};
    const int err = hearth_grammar_gbnf_parse(grammar.c_str(), any_token, nullptr, &parsed, &msg);
    hearth_grammar_gbnf_destroy(parsed);
    if (err == HEARTH_ERR_NOMEM) {
        throw std::bad_alloc();
    }
    if (err != HEARTH_OK) {
        throw invalid_request(std::string(name) + ": " + msg.text);
    }
}

/* ---- a schema and calls ---- */

/* The end of what begins at `at` and ends with `closing`, backslashes escaping. */
static size_t past(const std::string &text, size_t at, char closing) {
    for (at++; at < text.size() && text[at] != closing; at++) {
        at += text[at] == '\\';
    }
    return std::min(at + 1, text.size());
}

static bool in_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

/* A grammar whose rules have other names. */
static std::string renamed(const std::string &grammar, const std::string &prefix) {
    static const std::pair<char, char> quotes[] = {{'"', '"'}, {'[', ']'}, {'{', '}'}, {'<', '>'}, {'#', '\n'}};
    std::string out;
    for (size_t at = 0, end; at < grammar.size(); at = end) {
        end = at + 1;
        for (const auto &[opening, closing] : quotes) {
            end = grammar[at] == opening ? past(grammar, at, closing) : end;
        }
        if (in_name(grammar[at])) {
            while (end < grammar.size() && in_name(grammar[end])) {
                end++;
            }
            out += prefix;
        }
        out.append(grammar, at, end - at);
    }
    return out;
}

static void drop(std::string &text, const std::string &word) {
    for (size_t at; (at = text.find(word)) != std::string::npos;) {
        text.replace(at, word.size(), "\"\"");
    }
}

std::string with_calls(std::string schema, const std::string &calls, const char *entry) {
    static const std::string reply = "\nresponse-format ::= ", root = "\nroot ::= ";
    drop(schema, "\"```json\""); /* as the calls' parser reads it, fences would be content */
    drop(schema, "\"```\"");
    schema = "\n" + schema + "\n";
    std::string prefix = "calls-";
    while (schema.find("\n" + prefix) != std::string::npos) { /* some rules are named by the client's properties */
        prefix += "s-";
    }
    const std::string &rule = schema.find(reply) != std::string::npos ? reply : root;
    const size_t at = schema.find(rule) + rule.size(), end = schema.find('\n', at);
    return schema.substr(1, at - 1) + "(" + schema.substr(at, end - at) + ") | " + prefix + entry + schema.substr(end) +
           renamed(calls, prefix);
}

std::string filled(const std::string &grammar) {
    struct hearth_buf text = {};
    const bool ok = hearth_chat_schema_fill(grammar.c_str(), &text);
    const std::unique_ptr<uint8_t, void (*)(void *)> owned(text.data, std::free);
    return ok ? reinterpret_cast<const char *>(text.data) : throw std::bad_alloc();
}

/* The grammar of the values of a schema: to the letter where hearth_chat_schema_check() says so, and else as far as the
 * builder keeps it. Throws where that refuses it. */
static std::string strong_grammar(const json_t *schema) {
    const json_ptr strong = whole(json_ptr(hearth_chat_schema_strengthen(schema, nullptr)));
    check_cancel(); /* why there may be none */
    std::string grammar;
    if (const auto fault = fault_of([&] { grammar = schema_grammar(strong != nullptr ? strong.get() : schema); })) {
        throw invalid_request("the schema cannot be turned into a grammar: " + *fault);
    }
    return filled(grammar);
}

extern "C" int hearth_chat_schema_loosen(const json_t *schema, json_t **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    return guarded(msg, [&]() -> int {
        try {
            *out = buildable(schema, "schema").release();
        } catch (const invalid_request &) {
            json_t *type = json_object_get(schema, "type");
            const json_ptr alone(json_pack("{s:O*}", "type", type));
            if (type != nullptr && !hearth_chat_schema_check(alone.get(), nullptr)) {
                throw; /* no type of JSON: this is no schema */
            }
            *out = type != nullptr ? json_incref(alone.get()) : json_pack("{s:s}", "type", "object");
        }
        return *out != nullptr ? HEARTH_OK : throw std::bad_alloc();
    });
}

extern "C" int hearth_chat_schema_grammar(const json_t *schema, struct hearth_buf *out, struct hearth_errmsg *msg) {
    return guarded(msg, [&]() -> int {
        return hearth_buf_text(out, strong_grammar(schema).c_str()) ? HEARTH_OK : throw std::bad_alloc();
    });
}
