/* Tools as a template prints them, and as its prints are read.
 *
 * Design. Schemas may leave out their type, or the items of an array. Some templates cannot print that: there they are
 * printed, and calls read, with a type that fits (HEARTH_CHAT_SCHEMAS_FILLED). Where a template prints the values of
 * arguments between tags, it may print them otherwise than the schema's parser wants them: a format in which all of
 * them are texts reads such a print. */
#include "chat/chat_internal.hpp"

#include <cstring>
#include <new>

namespace {

/* The type that a schema means, where it says none. */
static const char *meant_type(const json_t *schema) {
    for (const char *name : {"anyOf", "oneOf", "allOf"}) {
        const json_t *choices = json_object_get(schema, name);
        for (size_t i = 0; i < json_array_size(choices); i++) {
            const char *type = json_string_value(json_object_get(json_array_get(choices, i), "type"));
            if (type != nullptr && strcmp(type, "null") != 0) {
                return type;
            }
        }
    }
    const json_t *values = json_object_get(schema, "enum");
    const json_t *value = json_array_size(values) > 0 ? json_array_get(values, 0) : json_object_get(schema, "const");
    return json_is_integer(value)                             ? "integer"
           : json_is_number(value)                            ? "number"
           : json_is_boolean(value)                           ? "boolean"
           : json_is_array(value)                             ? "array"
           : json_is_object(value)                            ? "object"
           : json_object_get(schema, "properties") != nullptr ? "object"
           : json_object_get(schema, "items") != nullptr      ? "array"
                                                              : "string";
}

constexpr int k_schema_depth = 32;

static void fill_schema(json_t *schema, int depth) {
    if (!json_is_object(schema) || depth > k_schema_depth) {
        return;
    }
    bool ok = json_object_get(schema, "type") != nullptr ||
              json_object_set_new(schema, "type", json_string(meant_type(schema))) == 0;
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (ok && type != nullptr && strcmp(type, "array") == 0 && !json_is_object(json_object_get(schema, "items"))) {
        ok = json_object_set_new(schema, "items", json_pack("{s:s}", "type", "string")) == 0;
    }
    if (!ok) {
        throw std::bad_alloc();
    }
    const char *name;
    json_t *member;
    json_object_foreach(json_object_get(schema, "properties"), name, member) {
        fill_schema(member, depth + 1);
    }
    fill_schema(json_object_get(schema, "items"), depth + 1);
}

/* A copy of a tool with other parameters; null: with its own. */
static json_ptr with_parameters(const json_t *tool, json_t *parameters) {
    json_ptr copy(json_copy(const_cast<json_t *>(tool)));
    json_ptr function(json_copy(json_object_get(tool, "function")));
    if (copy == nullptr || function == nullptr ||
        (parameters != nullptr && json_object_set(function.get(), "parameters", parameters) < 0) ||
        json_object_set(copy.get(), "function", function.get()) < 0) {
        throw std::bad_alloc();
    }
    return copy;
}

} // namespace

json_ptr changed_tools(const json_t *tools, const change_fn &change) {
    json_ptr out(json_array());
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_ptr parameters = change(i, json_object_get(json_object_get(tool, "function"), "parameters"));
        if (json_array_append(out.get(), with_parameters(tool, parameters.get()).get()) < 0) {
            throw std::bad_alloc();
        }
    }
    return out;
}

json_ptr filled_tools(const json_t *tools) {
    json_ptr filled(tools != nullptr ? json_deep_copy(tools) : json_array());
    if (filled == nullptr) {
        throw std::bad_alloc();
    }
    for (size_t i = 0; i < json_array_size(filled.get()); i++) {
        json_t *function = json_object_get(json_array_get(filled.get(), i), "function");
        fill_schema(json_object_get(function, "parameters"), 0);
    }
    return filled;
}

json_ptr text_tools(const json_t *tools) {
    return changed_tools(tools, [](size_t, const json_t *parameters) {
        json_ptr texts(json_object());
        const char *name;
        json_t *member;
        json_object_foreach(json_object_get(parameters, "properties"), name, member) {
            if (json_object_set_new(texts.get(), name, json_pack("{s:s}", "type", "string")) < 0) {
                throw std::bad_alloc();
            }
        }
        json_ptr made(json_pack("{s:s, s:O}", "type", "object", "properties", texts.get()));
        return made != nullptr ? std::move(made) : throw std::bad_alloc();
    });
}

json_ptr printable_tools(const struct hearth_chat &chat, json_ptr tools) {
    const bool fill = (chat.abilities.form & HEARTH_CHAT_SCHEMAS_FILLED) != 0 && tools != nullptr;
    return fill ? filled_tools(tools.get()) : std::move(tools);
}
