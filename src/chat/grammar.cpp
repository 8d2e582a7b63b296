/* JSON schemas to GBNF, by llama.cpp's `common`: for replies that no template has a say in. The schema is strengthened
 * before, and its number ranges are put in after; see schema.c. */
#include "chat/chat_internal.hpp"

#include <json-schema-to-grammar.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>


json_ptr strengthened(const json_t *schema) {
    struct hearth_errmsg msg = {};
    json_t *strong = json_object_size(schema) > 0 ? hearth_chat_schema_strengthen(schema, &msg) : nullptr;
    return json_ptr(strong != nullptr ? strong : json_incref(const_cast<json_t *>(schema)));
}

static void check_schema(const json_t *schema, const std::string &where) {
    check_limits(schema, where);
    try {
        json_schema_to_grammar(common_json::parse(json_text(schema)), true);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &e) {
        throw invalid_request(where + ": " + one_line(e.what()));
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
            std::rethrow_exception(reason); /* what is wrong with the client's words, not with ours */
        }
        return strong;
    }
}

json_ptr with_parameters(const json_t *tool, json_t *parameters) {
    json_ptr copy(json_copy(const_cast<json_t *>(tool)));
    json_ptr function(json_copy(json_object_get(tool, "function")));
    if (copy == nullptr || function == nullptr ||
        (parameters != nullptr && json_object_set(function.get(), "parameters", parameters) < 0) ||
        json_object_set(copy.get(), "function", function.get()) < 0) {
        throw std::bad_alloc();
    }
    return copy;
}

json_ptr strengthened_tools(const json_t *tools, const json_t *otherwise) {
    json_ptr strong(json_array());
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
        json_ptr stronger = json_is_object(parameters) ? strengthened(parameters) : nullptr;
        json_ptr changed = stronger.get() != parameters
                               ? with_parameters(tool, stronger.get())
                               : with_parameters(json_array_get(otherwise, i), nullptr);
        if (json_array_append(strong.get(), changed.get()) < 0) {
            throw std::bad_alloc();
        }
    }
    return strong;
}

extern "C" int hearth_chat_schema_grammar(const json_t *schema, struct hearth_buf *out, struct hearth_errmsg *msg) {
    json_t *strong = hearth_chat_schema_strengthen(schema, msg);
    if (strong == nullptr) {
        return HEARTH_ERR_INVALID;
    }
    char *text = json_dumps(strong, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(strong);
    if (text == nullptr) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for a schema");
    }
    int rc = HEARTH_OK;
    try {
        const std::string grammar = json_schema_to_grammar(common_json::parse(text), true);
        if (!hearth_chat_schema_fill(grammar.c_str(), out)) {
            rc = hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for a grammar");
        }
    } catch (const std::bad_alloc &) {
        rc = hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for a grammar");
    } catch (const std::exception &error) {
        rc = hearth_fail(msg, HEARTH_ERR_INVALID, "the schema cannot be turned into a grammar: %s", error.what());
    }
    std::free(text);
    return rc;
}
