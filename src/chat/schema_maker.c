/* What every step of making a schema stronger uses: memory, the reason why no stronger form exists, the keywords.
 *
 * Invariants. A step that returns NULL or false has set the fate, and for REFUSED the message; or memory was refused,
 * which is noted. See schema.c. */
#include "chat/schema_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- fate */

json_t *hearth_schema_own(struct schema_maker *m, json_t *value) {
    return value != NULL && json_array_append_new(m->owned, value) == 0 ? value : NULL;
}

void hearth_schema_append(json_t *list, const json_t *value) {
    (void)json_array_append(list, (json_t *)(uintptr_t)value);
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
    hearth_buf_printf(&m->path, "%s%s", len > 0 ? "." : "", part);
    return len;
}

void hearth_schema_leave(struct schema_maker *m, size_t len) {
    m->path.len = len;
    if (m->path.data != NULL) {
        m->path.data[len] = '\0';
    }
}

/* ------------------------------------------------------------------------------------------- keywords */

/* A keyword, what its value must be, of which types it says something, and how a value is judged by it. */
#define KEYWORD_TABLE(X)                               \
    X("$ref", STRING, 0, OTHER)                        \
    X("allOf", SCHEMAS, 0, OTHER)                      \
    X("anyOf", SCHEMAS, 0, OTHER)                      \
    X("oneOf", SCHEMAS, 0, OTHER)                      \
    X("not", SCHEMA, 0, OTHER)                         \
    X("if", SCHEMA, 0, OTHER)                          \
    X("then", SCHEMA, 0, OTHER)                        \
    X("else", SCHEMA, 0, OTHER)                        \
    X("enum", LIST, 0, OTHER)                          \
    X("minimum", NUMBER, NUMBERS, LEAST)               \
    X("maximum", NUMBER, NUMBERS, MOST)                \
    X("exclusiveMinimum", NUMBER, NUMBERS, ABOVE)      \
    X("exclusiveMaximum", NUMBER, NUMBERS, BELOW)      \
    X("multipleOf", STEP, NUMBERS, MULTIPLE)           \
    X("minLength", COUNT, STRINGS, LEAST)              \
    X("maxLength", COUNT, STRINGS, MOST)               \
    X("pattern", STRING, STRINGS, OTHER)               \
    X("format", STRING, STRINGS, ANNOTATION)           \
    X("prefixItems", SCHEMAS, ARRAYS, OTHER)           \
    X("items", ITEMS, ARRAYS, OTHER)                   \
    X("additionalItems", SCHEMA, 0, OTHER)             \
    X("unevaluatedItems", SCHEMA, ARRAYS, OTHER)       \
    X("contains", SCHEMA, ARRAYS, OTHER)               \
    X("minItems", COUNT, ARRAYS, LEAST)                \
    X("maxItems", COUNT, ARRAYS, MOST)                 \
    X("minContains", COUNT, 0, OTHER)                  \
    X("maxContains", COUNT, 0, OTHER)                  \
    X("uniqueItems", BOOLEAN, ARRAYS, OTHER)           \
    X("properties", MEMBERS, OBJECTS, OTHER)           \
    X("patternProperties", MEMBERS, OBJECTS, OTHER)    \
    X("additionalProperties", SCHEMA, OBJECTS, OTHER)  \
    X("unevaluatedProperties", SCHEMA, OBJECTS, OTHER) \
    X("propertyNames", SCHEMA, OBJECTS, OTHER)         \
    X("required", NAMES, OBJECTS, OTHER)               \
    X("minProperties", COUNT, OBJECTS, LEAST)          \
    X("maxProperties", COUNT, OBJECTS, MOST)           \
    X("dependentRequired", OBJECT, OBJECTS, OTHER)     \
    X("dependentSchemas", OBJECT, OBJECTS, OTHER)      \
    X("dependencies", OBJECT, OBJECTS, OTHER)          \
    X("$defs", DEFINITIONS, 0, OTHER)                  \
    X("definitions", DEFINITIONS, 0, OTHER)

enum form { STRING, SCHEMA, SCHEMAS, ITEMS, MEMBERS, LIST, NAMES, NUMBER, STEP, COUNT, BOOLEAN, OBJECT, DEFINITIONS };
enum judged { LEAST, ABOVE, MOST, BELOW, MULTIPLE, ANNOTATION, OTHER };

static const struct keyword {
    const char *name;
    enum form form;
    unsigned types;
    enum judged judged;
} keywords[] = {
#define X(name, form, types, judged) {name, form, types, judged},
    KEYWORD_TABLE(X)
#undef X
};
#define EACH_KEYWORD(each) \
    for (const struct keyword *each = keywords; each < keywords + sizeof keywords / sizeof keywords[0]; each++)

static bool is_schema(const json_t *value) {
    return json_is_object(value) || json_is_boolean(value);
}

static bool is_name(const json_t *value) {
    return json_is_string(value);
}

static bool all_are(const json_t *list, bool (*is)(const json_t *value)) {
    size_t n = 0;
    while (n < json_array_size(list) && is(json_array_get(list, n))) {
        n++;
    }
    return json_is_array(list) && n == json_array_size(list);
}

static bool all_schemas(const json_t *list) {
    return json_array_size(list) > 0 && all_are(list, is_schema);
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
    case NAMES: return all_are(value, is_name) ? NULL : "must be a list of names";
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
    EACH_KEYWORD(each) {
        if (each->form != DEFINITIONS && strcmp(each->name, but) != 0 && json_object_get(schema, each->name) != NULL) {
            return true;
        }
    }
    return false;
}

unsigned hearth_schema_implied_types(const json_t *schema) {
    unsigned bits = json_object_get(schema, HEARTH_SCHEMA_REST) != NULL ? OBJECTS : 0;
    EACH_KEYWORD(each) {
        bits |= json_object_get(schema, each->name) != NULL ? each->types : 0;
    }
    return bits;
}

/* What the limits of a keyword are about: a number itself, or how much there is in another value. */
static double measure(const json_t *value) {
    size_t n = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    for (size_t i = 0; i < json_string_length(value); i++) {
        n += (json_string_value(value)[i] & 0xC0) != 0x80; /* characters */
    }
    return json_is_number(value) ? json_number_value(value) : (double)n;
}

enum schema_verdict hearth_schema_judge(const json_t *value, const json_t *schema) {
    enum schema_verdict verdict = SCHEMA_YES;
    const double n = measure(value);
    EACH_KEYWORD(each) {
        const json_t *said = json_object_get(schema, each->name);
        const double limit = json_number_value(said);
        if (said == NULL || (each->types & hearth_schema_type_of(value)) == 0) {
            continue;
        }
        switch (each->judged) {
        case LEAST: verdict = n >= limit ? verdict : SCHEMA_NO; break;
        case ABOVE: verdict = n > limit ? verdict : SCHEMA_NO; break;
        case MOST: verdict = n <= limit ? verdict : SCHEMA_NO; break;
        case BELOW: verdict = n < limit ? verdict : SCHEMA_NO; break;
        case MULTIPLE: verdict = limit == 0 || n / limit == floor(n / limit) ? verdict : SCHEMA_NO; break;
        case ANNOTATION: break;
        case OTHER: verdict = verdict == SCHEMA_NO ? SCHEMA_NO : SCHEMA_UNKNOWN; break;
        }
    }
    return verdict;
}

static unsigned name_type(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", NULLS},     {"boolean", BOOLEANS}, {"integer", WHOLES}, {"number", NUMBERS},
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
            return hearth_schema_refuse(m, keyword, "must not be negative") != NULL;
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
    EACH_KEYWORD(each) {
        const json_t *value = json_object_get(schema, each->name);
        const char *wrong = value != NULL ? wrong_form(value, each->form) : NULL;
        if (wrong != NULL) {
            return hearth_schema_refuse(m, each->name, "%s", wrong) != NULL;
        }
    }
    const json_t *type = json_object_get(schema, "type");
    if (json_object_get(schema, "$dynamicRef") != NULL || json_object_get(schema, "$recursiveRef") != NULL) {
        return hearth_schema_refuse(m, "$dynamicRef", "only $ref can be followed") != NULL;
    }
    return type == NULL || hearth_schema_types(m, type) != 0;
}
