/* Schemas of arrays and objects.
 *
 * Design. common's converter can express arrays of one kind of item with a least and a greatest number, tuples of
 * exactly as many items as are listed, objects of exactly the declared properties (required ones always, the others
 * optionally, in the order of the list), and objects of any names with one kind of value. Everything else in a
 * schema is made true by construction: declared properties become required, or go; objects with declared properties
 * are closed; tuples have the length that is allowed. Errors of the converter that are known and avoided: additional
 * properties beside declared ones (the grammar of their names lets broken escapes through), names that are required
 * but not declared (dropped), items beside prefixItems (the latter dropped), boolean schemas (refused).
 * Source: json-schema-to-grammar.cpp
 *
 * Invariants. See schema.c. */
#include "chat/schema_internal.h"

#include "base/memory.h"

#include <string.h>

enum { UNIQUE_MAX = 6, PROPERTIES_MAX = 256 };

/* ------------------------------------------------------------------------------------------- arrays */

/* What one schema says about the items: `prefix` those in front (or NULL), `rest` the others (or NULL). */
static void items_of(const json_t *schema, const json_t **prefix, const json_t **rest) {
    const json_t *items = json_object_get(schema, "items");
    *prefix = json_is_array(items) ? items : json_object_get(schema, "prefixItems");
    *rest = json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

/* All that is said about item number `at`; beyond every prefix with SCHEMA_MANY. */
static json_t *all_of_item(struct schema_maker *m, const json_t *flat, size_t at) {
    json_t *all = hearth_schema_own(m, json_array());
    size_t i;
    const json_t *schema, *prefix, *rest;
    json_array_foreach(flat, i, schema) {
        items_of(schema, &prefix, &rest);
        const json_t *said = at < json_array_size(prefix) ? json_array_get(prefix, at) : rest;
        if (said != NULL) {
            hearth_schema_append(all, said);
        }
    }
    return all;
}

static json_t *make_item(struct schema_maker *m, const json_t *flat, size_t at, size_t depth) {
    json_t *all = all_of_item(m, flat, at);
    size_t back = at == SCHEMA_MANY ? hearth_schema_enter(m, "items") : hearth_schema_enter(m, "items.%zu", at);
    json_t *out = hearth_schema_make(m, all, depth + 1);
    hearth_schema_leave(m, back);
    return out;
}

static json_t *tuple(struct schema_maker *m, const json_t *flat, size_t len, size_t min, size_t depth) {
    json_t *items = hearth_schema_own(m, json_array());
    for (size_t i = 0; i < len; i++) {
        json_t *item = make_item(m, flat, i, depth);
        if (item == NULL && m->fate == SCHEMA_EMPTY && i >= min) {
            m->fate = SCHEMA_FINE;
            break;
        }
        if (item == NULL) {
            return NULL;
        }
        hearth_schema_append(items, item);
    }
    return json_array_size(items) > 0
               ? hearth_schema_own(m, json_pack("{s:s, s:O}", "type", "array", "items", items))
               : hearth_schema_own(m, json_pack("{s:s, s:{}, s:i}", "type", "array", "items", "maxItems", 0));
}

/* Arrays without a value twice, for a few values: all of them, with the values in the order of the list. */
static json_t *subsets(struct schema_maker *m, const json_t *values, size_t min, size_t max) {
    size_t n = json_array_size(values);
    json_t *all = hearth_schema_own(m, json_array());
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (json_equal(json_array_get(values, i), json_array_get(values, k))) {
                return hearth_schema_refuse(m, "uniqueItems", "a value is listed twice");
            }
        }
    }
    if (n > UNIQUE_MAX) {
        return hearth_schema_refuse(m, "uniqueItems", "only for up to %d listed values", UNIQUE_MAX);
    }
    for (unsigned set = 0; set < 1U << n; set++) {
        json_t *some = hearth_schema_own(m, json_array());
        for (size_t i = 0; i < n; i++) {
            if ((set >> i & 1U) != 0) {
                hearth_schema_append(some, json_array_get(values, i));
            }
        }
        if (json_array_size(some) >= min && json_array_size(some) <= max) {
            hearth_schema_append(all, some);
        }
    }
    return json_array_size(all) == 0 ? hearth_schema_empty(m) : hearth_schema_own(m, json_pack("{s:O}", "enum", all));
}

static bool is_unique(const json_t *flat) {
    size_t i;
    const json_t *schema;
    json_array_foreach(flat, i, schema) {
        if (json_is_true(json_object_get(schema, "uniqueItems"))) {
            return true;
        }
    }
    return false;
}

static json_t *list_of(struct schema_maker *m, const json_t *flat, size_t min, size_t max, size_t depth) {
    json_t *item = make_item(m, flat, SCHEMA_MANY, depth);
    if (item == NULL && m->fate == SCHEMA_EMPTY && min == 0) {
        m->fate = SCHEMA_FINE;
        item = hearth_schema_own(m, json_object());
        max = 0;
    }
    if (item == NULL) {
        return NULL;
    }
    if (max > 1 && is_unique(flat)) {
        const json_t *type = json_object_get(item, "type");
        if (json_is_string(type) && strcmp(json_string_value(type), "boolean") == 0) {
            return subsets(m, hearth_schema_own(m, json_pack("[b, b]", 1, 0)), min, max);
        }
        const json_t *values = json_object_get(item, "enum");
        return values != NULL ? subsets(m, values, min, max)
                              : hearth_schema_refuse(m, "uniqueItems", "only for items from a list of values");
    }
    if (min > SCHEMA_REPEATS) {
        return hearth_schema_refuse(m, "minItems", "more than %d", SCHEMA_REPEATS);
    }
    json_t *out = hearth_schema_own(m, json_pack("{s:s, s:O}", "type", "array", "items", item));
    if (min > 0) {
        json_object_set_new(out, "minItems", json_integer((json_int_t)min));
    }
    if (max < SCHEMA_MANY) {
        const size_t most = max < SCHEMA_REPEATS ? max : SCHEMA_REPEATS;
        json_object_set_new(out, "maxItems", json_integer((json_int_t)most));
    }
    return out;
}

json_t *hearth_schema_array(struct schema_maker *m, const json_t *flat, size_t depth) {
    size_t min = 0, max = SCHEMA_MANY, len = 0, i;
    const json_t *schema, *prefix, *rest;
    if (!hearth_schema_count(m, flat, "minItems", false, &min) ||
        !hearth_schema_count(m, flat, "maxItems", true, &max)) {
        return NULL;
    }
    json_array_foreach(flat, i, schema) {
        const json_t *least = json_object_get(schema, "minContains");
        items_of(schema, &prefix, &rest);
        len = json_array_size(prefix) > len ? json_array_size(prefix) : len;
        if (json_object_get(schema, "contains") != NULL &&
            !(least != NULL && json_number_value(least) <= 0 && json_object_get(schema, "maxContains") == NULL)) {
            return hearth_schema_refuse(m, "contains", "cannot be kept");
        }
    }
    if (min > max) {
        return hearth_schema_empty(m);
    }
    if (len == 0) {
        return list_of(m, flat, min, max, depth);
    }
    len = len > max ? max : len < min ? min : len;
    if (len > SCHEMA_REPEATS) {
        return hearth_schema_refuse(m, "minItems", "more than %d", SCHEMA_REPEATS);
    }
    if (len > 1 && is_unique(flat)) {
        return hearth_schema_refuse(m, "uniqueItems", "not for a list of different items");
    }
    return tuple(m, flat, len, min, depth);
}

/* ------------------------------------------------------------------------------------------- objects */

/* An object being built: names, in order, and what becomes of them. */
struct object {
    json_t *names;    /* object: declared name → its stronger form, or null while it is not known */
    json_t *required; /* object: name → true */
    bool closed;      /* no other names are allowed; else only the stronger form allows none */
};

/* Whether one schema of the list declares a name. */
static const json_t *declared(const json_t *schema, const char *name) {
    return json_object_get(json_object_get(schema, "properties"), name);
}

/* What a schema says about names that it does not declare; NULL: nothing. */
static const json_t *additional(const json_t *schema) {
    return json_object_get(schema, "additionalProperties");
}

static bool collect_names(struct schema_maker *m, const json_t *flat, struct object *o) {
    size_t i, k;
    const char *name;
    json_t *schema, *value;
    o->names = hearth_schema_own(m, json_object());
    o->required = hearth_schema_own(m, json_object());
    o->closed = false;
    json_array_foreach(flat, i, schema) {
        const json_t *names = json_object_get(json_object_get(schema, "propertyNames"), "enum");
        o->closed = o->closed || names != NULL || json_is_false(additional(schema)) ||
                    json_is_false(json_object_get(schema, HEARTH_SCHEMA_REST));
        json_object_foreach(json_object_get(schema, "properties"), name, value) {
            json_object_set_new(o->names, name, json_null());
        }
        json_array_foreach(json_object_get(schema, "required"), k, value) {
            json_object_set_new(o->required, json_string_value(value), json_true());
        }
        /* Names from a list are as good as declared. */
        json_array_foreach(names, k, value) {
            if (json_is_string(value)) {
                json_object_set_new(o->names, json_string_value(value), json_null());
            }
        }
        if (json_object_get(schema, "patternProperties") != NULL) {
            return hearth_schema_refuse(m, "patternProperties", "cannot be kept") != NULL;
        }
    }
    json_object_foreach(o->required, name, value) {
        if (json_object_get(o->names, name) == NULL) {
            json_object_set_new(o->names, name, json_null());
        }
    }
    return json_object_size(o->names) <= PROPERTIES_MAX ||
           hearth_schema_refuse(m, "properties", "more than %d", PROPERTIES_MAX) != NULL;
}

static bool name_is_allowed(struct schema_maker *m, const json_t *flat, const char *name, bool *allowed) {
    json_t *value = hearth_schema_own(m, json_string(name));
    size_t i;
    const json_t *schema;
    *allowed = true;
    json_array_foreach(flat, i, schema) {
        const json_t *names = json_object_get(schema, "propertyNames");
        if (names == NULL || json_is_true(names)) {
            continue;
        }
        static const char *const others[] = {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "$dynamicRef"};
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
            if (json_object_get(names, others[k]) != NULL) {
                return hearth_schema_refuse(m, "propertyNames", "cannot be kept") != NULL;
            }
        }
        enum schema_verdict verdict = json_is_false(names) ? SCHEMA_NO : hearth_schema_holds(m, value, 0, names);
        if (verdict == SCHEMA_UNKNOWN) {
            return hearth_schema_refuse(m, "propertyNames", "cannot be kept") != NULL;
        }
        *allowed = *allowed && verdict == SCHEMA_YES;
    }
    return true;
}

/* The stronger form of a property. NULL with the fate EMPTY: it cannot stand there. */
static json_t *make_property(struct schema_maker *m, const json_t *flat, const char *name, size_t depth) {
    json_t *all = hearth_schema_own(m, json_array());
    bool allowed, known = false;
    const size_t len = strlen(name);
    size_t i;
    const json_t *schema, *rest = NULL;
    if (len > SCHEMA_NAME) {
        return hearth_schema_refuse(m, "properties", "a name of more than %d bytes", SCHEMA_NAME);
    }
    if (!name_is_allowed(m, flat, name, &allowed)) {
        return NULL;
    }
    json_array_foreach(flat, i, schema) {
        const json_t *said = declared(schema, name) != NULL ? declared(schema, name) : additional(schema);
        known = known || declared(schema, name) != NULL;
        rest = rest != NULL ? rest : json_object_get(schema, HEARTH_SCHEMA_REST);
        if (said != NULL) {
            hearth_schema_append(all, said);
        }
        /* {"not": {"required": [name]}}: it must not be there. */
        const json_t *absent = json_object_get(json_object_get(schema, "not"), "required");
        allowed = allowed &&
                  !(json_array_size(absent) == 1 && strcmp(json_string_value(json_array_get(absent, 0)), name) == 0);
    }
    if (!allowed) {
        return hearth_schema_empty(m);
    }
    if (rest != NULL && !known) {
        hearth_schema_append(all, rest);
    }
    size_t back = hearth_schema_enter(m, "properties.%s", name);
    m->way_bytes += len;
    json_t *out = hearth_schema_make(m, all, depth + 1);
    m->way_bytes -= len;
    hearth_schema_leave(m, back);
    return out;
}

/* Takes a name away. False: it is required. */
static bool drop(struct schema_maker *m, struct object *o, const char *name) {
    if (json_object_get(o->required, name) != NULL) {
        return hearth_schema_empty(m) != NULL;
    }
    json_object_del(o->names, name);
    return true;
}

static const char *const dependencies[] = {"dependentRequired", "dependentSchemas", "dependencies", NULL};

/* What one property asks for of others, where it may stand. Those that cannot be there take it with them; then those
 * that can become required. `*again`: something has changed. */
static bool depend(struct schema_maker *m, const json_t *rules, struct object *o, const char *keyword, bool require,
                   bool *again) {
    const char *name;
    json_t *wanted, *value;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)rules, name, wanted) {
        if (json_object_get(o->names, name) == NULL) {
            continue;
        }
        if (!json_is_array(wanted)) {
            return hearth_schema_refuse(m, keyword, "schemas cannot be kept") != NULL;
        }
        json_array_foreach(wanted, i, value) {
            const char *other = json_string_value(value);
            bool possible = json_object_get(o->names, other) != NULL;
            if (!possible || (require && json_object_get(o->required, other) == NULL)) {
                *again = true;
                if (!possible && !o->closed && json_object_get(o->required, name) != NULL) {
                    return hearth_schema_refuse(m, keyword, "\"%.60s\" is not declared", other) != NULL;
                }
                if (!possible) {
                    return drop(m, o, name);
                }
                json_object_set_new(o->required, other, json_true());
            }
        }
    }
    return true;
}

static bool keep_dependencies(struct schema_maker *m, const json_t *flat, struct object *o) {
    bool require = false;
    for (bool again = true; (again || !require) && !hearth_memory_refused();) {
        require = require || !again;
        again = false;
        size_t i;
        const json_t *schema;
        json_array_foreach(flat, i, schema) {
            for (const char *const *rule = dependencies; *rule != NULL; rule++) {
                if (!depend(m, json_object_get(schema, *rule), o, *rule, require, &again)) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* Makes properties required, or takes them away, until their number is allowed. */
static bool keep_number(struct schema_maker *m, const json_t *flat, struct object *o) {
    size_t min = 0, max = SCHEMA_MANY;
    const char *name;
    json_t *value;
    void *next;
    if (!hearth_schema_count(m, flat, "minProperties", false, &min) ||
        !hearth_schema_count(m, flat, "maxProperties", true, &max)) {
        return false;
    }
    if (json_object_size(o->names) < min && !o->closed) {
        return hearth_schema_refuse(m, "minProperties", "more than are declared") != NULL;
    }
    if (json_object_size(o->required) > max || json_object_size(o->names) < min) {
        return hearth_schema_empty(m) != NULL;
    }
    json_object_foreach_safe(o->names, next, name, value) {
        if (json_object_get(o->required, name) != NULL) {
            continue;
        }
        if (json_object_size(o->required) < min) {
            json_object_set_new(o->required, name, json_true());
        } else if (json_object_size(o->names) > max) {
            json_object_del(o->names, name);
        }
    }
    return true;
}

/* An object whose names are free: values of one kind. */
static json_t *map(struct schema_maker *m, const json_t *flat, size_t depth) {
    size_t min = 0, max = SCHEMA_MANY, i;
    bool nameless = false;
    const json_t *schema;
    json_t *all = hearth_schema_own(m, json_array());
    json_array_foreach(flat, i, schema) {
        const json_t *names = json_object_get(schema, "propertyNames"), *said = additional(schema);
        nameless = nameless || json_is_false(names);
        for (const char *const *rule = dependencies; *rule != NULL; rule++) {
            if (json_object_size(json_object_get(schema, *rule)) > 0) {
                return hearth_schema_refuse(m, *rule, "not for free names");
            }
        }
        if (json_object_get(json_object_get(schema, "not"), "required") != NULL) {
            return hearth_schema_refuse(m, "not", "not for free names");
        }
        if (names != NULL && !json_is_true(names) &&
            !json_equal(names, hearth_schema_own(m, json_pack("{s:s}", "type", "string"))) &&
            json_object_size(names) > 0) {
            return hearth_schema_refuse(m, "propertyNames", "only a list of names can be kept");
        }
        const json_t *rest = json_object_get(schema, HEARTH_SCHEMA_REST);
        if (said != NULL) {
            hearth_schema_append(all, said);
        }
        if (rest != NULL) {
            hearth_schema_append(all, rest);
        }
    }
    if (!hearth_schema_count(m, flat, "minProperties", false, &min) ||
        !hearth_schema_count(m, flat, "maxProperties", true, &max)) {
        return NULL;
    }
    max = nameless ? 0 : max;
    size_t back = hearth_schema_enter(m, "additionalProperties");
    json_t *value = max > 0 ? hearth_schema_make(m, all, depth + 1) : hearth_schema_empty(m);
    hearth_schema_leave(m, back);
    if (value == NULL && m->fate == SCHEMA_EMPTY && min == 0) {
        m->fate = SCHEMA_FINE;
        return hearth_schema_own(m, json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 0));
    }
    if (value != NULL && (min > 0 || max != SCHEMA_MANY)) {
        return hearth_schema_refuse(m, min > 0 ? "minProperties" : "maxProperties", "not for free names");
    }
    return value == NULL ? NULL
           : json_object_size(value) == 0
               ? hearth_schema_own(m, json_pack("{s:s}", "type", "object"))
               : hearth_schema_own(m, json_pack("{s:s, s:O}", "type", "object", "additionalProperties", value));
}

json_t *hearth_schema_object(struct schema_maker *m, const json_t *flat, size_t depth) {
    struct object o;
    const char *name;
    json_t *value;
    void *next;
    if (!collect_names(m, flat, &o)) {
        return NULL;
    }
    if (json_object_size(o.names) == 0) {
        return map(m, flat, depth);
    }
    json_object_foreach_safe(o.names, next, name, value) {
        json_t *property = make_property(m, flat, name, depth);
        if (property != NULL) {
            json_object_set(o.names, name, property);
        } else if (m->fate != SCHEMA_EMPTY) {
            return NULL;
        } else if (m->fate = SCHEMA_FINE, !drop(m, &o, name)) {
            return NULL;
        }
    }
    if (!keep_dependencies(m, flat, &o) || !keep_number(m, flat, &o)) {
        return NULL;
    }
    json_t *required = hearth_schema_own(m, json_array());
    json_object_foreach(o.required, name, value) {
        json_array_append_new(required, json_string(name));
    }
    json_t *out = hearth_schema_own(m, json_pack("{s:s, s:O, s:O, s:b}", "type", "object", "properties", o.names,
                                                 "required", required, "additionalProperties", 0));
    if (out != NULL && json_array_size(required) == 0) {
        json_object_del(out, "required");
    }
    return out;
}
