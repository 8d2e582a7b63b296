/* JSON schemas to GBNF, by llama.cpp's `common`: for replies that no template has a say in. The schema is strengthened
 * before, and its number ranges are put in after; see schema.c. */
#include <json-schema-to-grammar.h>
#include <json.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* functions with the names of structs: C has two name spaces */
extern "C" {
#include "chat/chat.h"
}
#pragma GCC diagnostic pop

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
