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

json_ptr strengthened_tools(const json_t *tools) {
    json_ptr copy(json_array());
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *function = json_object_get(tool, "function");
        const json_t *parameters = json_object_get(function, "parameters");
        json_ptr other(json_copy(const_cast<json_t *>(tool)));
        json_ptr changed(json_copy(const_cast<json_t *>(function)));
        if (json_is_object(parameters)) {
            json_object_set(changed.get(), "parameters", strengthened(parameters).get());
        }
        json_object_set(other.get(), "function", changed.get());
        if (json_array_append(copy.get(), other.get()) < 0) {
            throw std::bad_alloc();
        }
    }
    return copy;
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
