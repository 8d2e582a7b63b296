/* What every step of making a schema stronger uses: memory, the reason why no stronger form exists, the shape of
 * keywords.
 *
 * Invariants. A step that returns NULL or false has set the fate, and for REFUSED the message. See schema.c. */
#include "chat/schema_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- fate */

json_t *hearth_schema_own(struct schema_maker *m, json_t *value) {
    if (value == NULL || json_array_append_new(m->owned, value) != 0) {
        m->fate = SCHEMA_NOMEM;
        return NULL;
    }
    return value;
}

bool hearth_schema_append(struct schema_maker *m, json_t *list, const json_t *value) {
    if (json_array_append(list, (json_t *)(uintptr_t)value) != 0) {
        m->fate = SCHEMA_NOMEM;
        return false;
    }
    return true;
}

json_t *hearth_schema_empty(struct schema_maker *m) {
    m->fate = SCHEMA_EMPTY;
    return NULL;
}

json_t *hearth_schema_refuse(struct schema_maker *m, const char *keyword, const char *format, ...) {
    char why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const char *path = m->path.len > 0 ? (const char *)m->path.data : "";
    hearth_fail(&m->msg, HEARTH_ERR_INVALID, "%.200s%s%s%s%s", path, path[0] != '\0' && keyword != NULL ? "." : "",
                keyword != NULL ? keyword : "", path[0] != '\0' || keyword != NULL ? ": " : "", why);
    m->fate = SCHEMA_REFUSED;
    return NULL;
}

size_t hearth_schema_enter(struct schema_maker *m, const char *format, ...) {
    char part[96];
    va_list args;
    va_start(args, format);
    vsnprintf(part, sizeof part, format, args);
    va_end(args);
    size_t len = m->path.len;
    if (!hearth_buf_printf(&m->path, len > 0 ? ".%s" : "%s", part)) {
        m->fate = SCHEMA_NOMEM;
    }
    return len;
}

void hearth_schema_leave(struct schema_maker *m, size_t len) {
    m->path.len = len;
    if (m->path.data != NULL) {
        m->path.data[len] = '\0';
    }
}

/* ------------------------------------------------------------------------------------------- keywords */

/* What the value of a keyword must be for it to mean anything. */
#define KEYWORD_TABLE(X)               \
    X("$ref", STRING)                  \
    X("allOf", SCHEMAS)                \
    X("anyOf", SCHEMAS)                \
    X("oneOf", SCHEMAS)                \
    X("not", SCHEMA)                   \
    X("if", SCHEMA)                    \
    X("then", SCHEMA)                  \
    X("else", SCHEMA)                  \
    X("enum", LIST)                    \
    X("minimum", NUMBER)               \
    X("maximum", NUMBER)               \
    X("exclusiveMinimum", NUMBER)      \
    X("exclusiveMaximum", NUMBER)      \
    X("multipleOf", STEP)              \
    X("minLength", COUNT)              \
    X("maxLength", COUNT)              \
    X("pattern", STRING)               \
    X("format", STRING)                \
    X("prefixItems", SCHEMAS)          \
    X("items", ITEMS)                  \
    X("additionalItems", SCHEMA)       \
    X("unevaluatedItems", SCHEMA)      \
    X("contains", SCHEMA)              \
    X("minItems", COUNT)               \
    X("maxItems", COUNT)               \
    X("minContains", COUNT)            \
    X("maxContains", COUNT)            \
    X("uniqueItems", BOOLEAN)          \
    X("properties", MEMBERS)           \
    X("patternProperties", MEMBERS)    \
    X("additionalProperties", SCHEMA)  \
    X("unevaluatedProperties", SCHEMA) \
    X("propertyNames", SCHEMA)         \
    X("required", NAMES)               \
    X("minProperties", COUNT)          \
    X("maxProperties", COUNT)          \
    X("dependentRequired", OBJECT)     \
    X("dependentSchemas", OBJECT)      \
    X("dependencies", OBJECT)          \
    X("$defs", DEFINITIONS)            \
    X("definitions", DEFINITIONS)

enum form { STRING, SCHEMA, SCHEMAS, ITEMS, MEMBERS, LIST, NAMES, NUMBER, STEP, COUNT, BOOLEAN, OBJECT, DEFINITIONS };

static const struct {
    const char *name;
    enum form form;
} keywords[] = {
#define X(name, form) {name, form},
    KEYWORD_TABLE(X)
#undef X
};

static bool is_schema(const json_t *value) {
    return json_is_object(value) || json_is_boolean(value);
}

static bool all_schemas(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_schema(json_array_get(list, i))) {
            return false;
        }
    }
    return json_array_size(list) > 0;
}

static bool all_names(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!json_is_string(json_array_get(list, i))) {
            return false;
        }
    }
    return json_is_array(list);
}

static bool all_members(const json_t *members) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)members, name, value) {
        if (!is_schema(value) || name[0] == '\0') {
            return false;
        }
    }
    return json_is_object(members);
}

/* NULL: well formed; else what it must be. */
static const char *wrong_form(const json_t *value, enum form form) {
    double number = json_number_value(value);
    switch (form) {
    case STRING: return json_is_string(value) ? NULL : "must be a string";
    case SCHEMA: return is_schema(value) ? NULL : "must be a schema: an object, true or false";
    case SCHEMAS: return all_schemas(value) ? NULL : "must be a list of schemas, with at least one";
    case ITEMS:
        return is_schema(value) || (json_is_array(value) && (json_array_size(value) == 0 || all_schemas(value)))
                   ? NULL
                   : "must be a schema or a list of schemas";
    case MEMBERS: return all_members(value) ? NULL : "must be an object of schemas, none of them with an empty name";
    case LIST: return json_array_size(value) > 0 ? NULL : "must be a list of values, with at least one";
    case NAMES: return all_names(value) ? NULL : "must be a list of names";
    case NUMBER: return json_is_number(value) ? NULL : "must be a number";
    case STEP: return json_is_number(value) && number > 0 ? NULL : "must be a number above zero";
    case COUNT:
        return json_is_number(value) && number >= 0 && number == floor(number) ? NULL
                                                                               : "must be a whole number, not negative";
    case BOOLEAN: return json_is_boolean(value) ? NULL : "must be true or false";
    case OBJECT:
    case DEFINITIONS: return json_is_object(value) ? NULL : "must be an object";
    }
    return NULL;
}

bool hearth_schema_says(const json_t *schema, const char *but) {
    if (json_is_false(schema) || json_object_get(schema, "type") != NULL || json_object_get(schema, "const") != NULL ||
        json_object_get(schema, HEARTH_SCHEMA_REST) != NULL) {
        return true;
    }
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        if (keywords[i].form != DEFINITIONS && strcmp(keywords[i].name, but) != 0 &&
            json_object_get(schema, keywords[i].name) != NULL) {
            return true;
        }
    }
    return false;
}

static unsigned name_type(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", NULLS},     {"boolean", BOOLEANS}, {"integer", WHOLES}, {"number", WHOLES | FRACTIONS},
                 {"string", STRINGS}, {"array", ARRAYS},     {"object", OBJECTS}};
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, types[i].name) == 0) {
            return types[i].bits;
        }
    }
    return 0;
}

/* `*known`: every name of "type" is that of a type. */
static unsigned named_types(const json_t *type, bool *known) {
    unsigned bits = name_type(json_string_value(type));
    *known = bits != 0 || json_array_size(type) > 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        const unsigned one = name_type(json_string_value(json_array_get(type, i)));
        *known = *known && one != 0;
        bits |= one;
    }
    return bits;
}

unsigned hearth_schema_types(struct schema_maker *m, const json_t *type) {
    bool known;
    const unsigned bits = named_types(type, &known);
    if (!known) {
        char *text = hearth_json_dumps(type, JSON_COMPACT | JSON_ENCODE_ANY);
        hearth_schema_refuse(m, "type", "%.60s is no type of JSON", text != NULL ? text : "that");
        free(text);
    }
    return known ? bits : 0;
}

unsigned hearth_schema_type_of(const json_t *value) {
    static const unsigned bits[] = {
        [JSON_OBJECT] = OBJECTS, [JSON_ARRAY] = ARRAYS,  [JSON_STRING] = STRINGS, [JSON_INTEGER] = WHOLES,
        [JSON_REAL] = FRACTIONS, [JSON_TRUE] = BOOLEANS, [JSON_FALSE] = BOOLEANS, [JSON_NULL] = NULLS};
    const double number = json_number_value(value);
    return json_is_real(value) && number == floor(number) ? WHOLES : bits[json_typeof(value)];
}

bool hearth_schema_allows(const json_t *value, const json_t *type) {
    bool known;
    return (named_types(type, &known) & hearth_schema_type_of(value)) != 0;
}

bool hearth_schema_count(struct schema_maker *m, const json_t *flat, const char *keyword, bool least, size_t *count) {
    size_t i;
    const json_t *schema;
    json_array_foreach(flat, i, schema) {
        const json_t *value = json_object_get(schema, keyword);
        double n = json_number_value(value);
        if (value == NULL) {
            continue;
        }
        if (n < 0) {
            hearth_schema_refuse(m, keyword, "must not be negative");
            return false;
        }
        size_t limit = n > (double)SCHEMA_MANY ? SCHEMA_MANY : (size_t)n;
        if (least ? limit < *count : limit > *count) {
            *count = limit;
        }
    }
    return true;
}

/* Everything of one schema in its place is well formed. */
bool hearth_schema_check_form(struct schema_maker *m, const json_t *schema) {
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        const json_t *value = json_object_get(schema, keywords[i].name);
        const char *wrong = value != NULL ? wrong_form(value, keywords[i].form) : NULL;
        if (wrong != NULL) {
            hearth_schema_refuse(m, keywords[i].name, "%s", wrong);
            return false;
        }
    }
    const json_t *type = json_object_get(schema, "type");
    if (json_object_get(schema, "$dynamicRef") != NULL || json_object_get(schema, "$recursiveRef") != NULL) {
        hearth_schema_refuse(m, "$dynamicRef", "only $ref can be followed");
        return false;
    }
    return type == NULL || hearth_schema_types(m, type) != 0;
}
