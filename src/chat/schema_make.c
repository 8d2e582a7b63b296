/* Makes one schema that the converter can express from a list of schemas that must hold at once. See schema.c. */
#include "base/cancel.h"
#include "base/memory.h"
#include "chat/schema_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- references */

/* One step of a JSON pointer: "~1" is "/", "~0" is "~", "%xx" a byte. */
static void unescape(const char *part, size_t len, char *out, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < cap; i++) {
        char c = part[i];
        if (c == '~' && i + 1 < len) {
            c = part[++i] == '1' ? '/' : '~';
        } else if (c == '%' && i + 2 < len) {
            char digits[3] = {part[i + 1], part[i + 2], '\0'};
            c = (char)strtol(digits, NULL, 16);
            i += 2;
        }
        out[n++] = c;
    }
    out[n] = '\0';
}

static const json_t *resolve(struct schema_maker *m, const char *ref) {
    const json_t *at = m->root;
    const char *part = ref[0] == '#' ? ref + 1 : ref;
    if (ref[0] != '#' || (*part != '\0' && *part != '/')) {
        return hearth_schema_refuse(m, "$ref", "\"%.100s\" does not lead into this schema", ref);
    }
    while (at != NULL && *part == '/') {
        char name[256];
        size_t len = strcspn(++part, "/");
        unescape(part, len, name, sizeof name);
        at = json_is_array(at) && name[0] >= '0' && name[0] <= '9' ? json_array_get(at, strtoul(name, NULL, 10))
                                                                   : json_object_get(at, name);
        part += len;
    }
    return json_is_object(at) || json_is_boolean(at) ? at
                                                     : hearth_schema_refuse(m, "$ref", "\"%.100s\" leads nowhere", ref);
}

/* The definition that a reference in a stronger form leads to, or NULL. */
static const json_t *our_definition(struct schema_maker *m, const char *ref) {
    static const char prefix[] = "#/$defs/hearth-";
    return strncmp(ref, prefix, sizeof prefix - 1) == 0 ? json_object_get(m->defs, ref + strlen("#/$defs/")) : NULL;
}

/* A lone reference: the name of its definition, which is made on first use. */
static json_t *make_reference(struct schema_maker *m, const char *ref, size_t depth) {
    char name[48], pointer[64];
    const json_t *known = json_object_get(m->names, ref);
    if (our_definition(m, ref) != NULL) {
        return hearth_schema_own(m, json_pack("{s:s}", "$ref", ref));
    }
    if (known == NULL) {
        const json_t *target = resolve(m, ref);
        if (target == NULL) {
            return NULL;
        }
        snprintf(name, sizeof name, "hearth-%zu", json_object_size(m->defs));
        json_object_set_new(m->names, ref, json_string(name));
        json_object_set_new(m->defs, name, json_null());
        size_t back = m->path.len;
        hearth_schema_leave(m, 0);
        hearth_schema_enter(m, "%.60s", ref);
        json_t *made = hearth_schema_make(m, hearth_schema_own(m, json_pack("[O]", target)), depth + 1);
        hearth_schema_leave(m, back);
        if (made == NULL) {
            json_object_del(m->names, ref);
            return NULL;
        }
        json_object_set(m->defs, name, made);
        known = json_object_get(m->names, ref);
    }
    snprintf(pointer, sizeof pointer, "#/$defs/%s", known != NULL ? json_string_value(known) : "");
    return hearth_schema_own(m, json_pack("{s:s}", "$ref", pointer));
}

/* ------------------------------------------------------------------------------------------- flattening */

/* A list of schemas without references, allOf and choices, and those choices. */
struct flat {
    json_t *schemas;
    json_t *choices;                  /* schemas with nothing but one anyOf or oneOf, and its discriminator */
    size_t hops;                      /* references followed */
    const json_t *open[SCHEMA_DEPTH]; /* what they lead to, from the outermost that is being followed */
    size_t open_count;
};

/* Where a schema has no other schemas in its place, what is not evaluated is what is additional. Where it has, and all
 * of the list comes from it, it is what none of them declares. Elsewhere it cannot be told. */
static bool apply_unevaluated(struct schema_maker *m, const json_t *schema, json_t *rest, bool alone) {
    static const char *const others[] = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"};
    json_t *names = json_object_get(rest, "unevaluatedProperties"), *items = json_object_get(rest, "unevaluatedItems");
    bool by_itself = true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        by_itself = by_itself && json_object_get(schema, others[i]) == NULL;
    }
    if (!by_itself && (items != NULL || (names != NULL && !alone))) {
        return hearth_schema_refuse(m, items != NULL ? "unevaluatedItems" : "unevaluatedProperties",
                                    "not beside other schemas") != NULL;
    }
    if (names != NULL && json_object_get(rest, "additionalProperties") == NULL) {
        json_object_set(rest, by_itself ? "additionalProperties" : HEARTH_SCHEMA_REST, names);
    }
    const char *behind = json_is_array(json_object_get(rest, "items")) ? "additionalItems" : "items";
    if (items != NULL && json_object_get(rest, behind) == NULL) {
        json_object_set(rest, behind, items);
    }
    json_object_del(rest, "unevaluatedProperties");
    json_object_del(rest, "unevaluatedItems");
    return true;
}

static bool flatten(struct schema_maker *m, struct flat *flat, const json_t *schema, bool alone);

/* Flattens what a reference leads to. */
static bool follow(struct schema_maker *m, struct flat *flat, const char *ref) {
    const json_t *target = our_definition(m, ref) != NULL ? our_definition(m, ref) : resolve(m, ref);
    bool again = json_is_null(target);
    for (size_t i = 0; i < flat->open_count; i++) {
        again = again || flat->open[i] == target;
    }
    if (target == NULL || again) {
        return target == NULL ? false : hearth_schema_refuse(m, "$ref", "it leads to itself") != NULL;
    }
    if (++flat->hops > SCHEMA_DEPTH) {
        static const char large[] = "too large when written out: more than %d references stand for one schema";
        return hearth_schema_refuse(m, "$ref", large, SCHEMA_DEPTH) != NULL;
    }
    flat->open[flat->open_count++] = target;
    const bool ok = flatten(m, flat, target, false);
    flat->open_count--;
    return ok;
}

static bool flatten(struct schema_maker *m, struct flat *flat, const json_t *schema, bool alone) {
    static const char *const resolved[] = {"$ref", "allOf", "anyOf", "oneOf", "$defs", "definitions"};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *all = json_object_get(schema, "allOf");
    if (json_is_true(schema)) {
        return true;
    }
    if (json_is_false(schema)) {
        return hearth_schema_empty(m) != NULL;
    }
    if (!hearth_schema_check_form(m, schema) || ++m->visits > SCHEMA_VISITS) {
        return m->fate == SCHEMA_REFUSED ? false : hearth_schema_refuse(m, NULL, "the schema is too large") != NULL;
    }
    if (ref != NULL && !follow(m, flat, ref)) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(all); i++) {
        if (!flatten(m, flat, json_array_get(all, i), false)) {
            return false;
        }
    }
    json_t *rest = hearth_schema_own(m, json_copy((json_t *)(uintptr_t)schema));
    for (size_t i = 0; i < sizeof resolved / sizeof resolved[0]; i++) {
        const json_t *value = json_object_get(schema, resolved[i]);
        if (value != NULL && (i == 2 || i == 3)) {
            hearth_schema_append(flat->choices,
                                 hearth_schema_own(m, json_pack("{s:O, s:O*}", resolved[i], value, "discriminator",
                                                                json_object_get(schema, "discriminator"))));
        }
        json_object_del(rest, resolved[i]);
    }
    if (!apply_unevaluated(m, schema, rest, alone)) {
        return false;
    }
    if (hearth_schema_says(rest, "")) {
        hearth_schema_append(flat->schemas, rest);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------- types */

/* "not", as far as it can be kept: of types, and of one required name (schema_compound.c). */
static bool apply_not(struct schema_maker *m, const json_t *schema, unsigned *types) {
    const json_t *not = json_object_get(schema, "not");
    const json_t *type = json_object_get(not, "type"), *required = json_object_get(not, "required");
    if (not== NULL || json_is_false(not)) {
        return true;
    }
    if (json_is_true(not) || json_object_size(not) == 0) {
        return hearth_schema_empty(m) != NULL;
    }
    if (json_object_size(not) == 1 && type != NULL) {
        unsigned without = hearth_schema_types(m, type);
        *types &= ~without;
        return without != 0;
    }
    if (json_object_size(not) == 1 && json_array_size(required) == 1 && json_is_string(json_array_get(required, 0))) {
        *types &= OBJECTS; /* the others have what is required: all that is said of objects */
        return true;
    }
    return hearth_schema_refuse(m, "not", "cannot be kept") != NULL;
}

/* `types`: those that are allowed. `meant`: those of them that are worth having. */
static bool collect_types(struct schema_maker *m, const json_t *flat, unsigned *types, unsigned *meant) {
    unsigned explicit_types = ANYTHING, implied = 0;
    size_t i;
    const json_t *schema;
    *types = ANYTHING;
    json_array_foreach(flat, i, schema) {
        const json_t *type = json_object_get(schema, "type");
        unsigned bits = type != NULL ? hearth_schema_types(m, type) : ANYTHING;
        if (bits == 0 || !apply_not(m, schema, types)) {
            return false;
        }
        if (json_object_get(schema, "if") != NULL &&
            (json_object_get(schema, "then") != NULL || json_object_get(schema, "else") != NULL)) {
            return hearth_schema_refuse(m, "if", "cannot be kept") != NULL;
        }
        explicit_types &= bits;
        implied |= hearth_schema_implied_types(schema);
    }
    *types &= explicit_types;
    /* Keywords without a type are meant for their own. */
    *meant = *types & (explicit_types == ANYTHING ? implied : 0);
    *meant = *meant != 0 ? *meant : *types;
    return *meant != 0 || hearth_schema_empty(m) != NULL;
}

/* The values of enum and const that all the schemas allow; NULL with the fate FINE: there is no list. */
static json_t *collect_values(struct schema_maker *m, const json_t *flat, unsigned types) {
    const json_t *schema, *list = NULL;
    size_t i, k;
    json_array_foreach(flat, i, schema) {
        const json_t *constant = json_object_get(schema, "const");
        list = constant != NULL ? hearth_schema_own(m, json_pack("[O]", constant)) : list;
        list = list == NULL ? json_object_get(schema, "enum") : list;
    }
    json_t *values = list != NULL ? hearth_schema_own(m, json_array()) : NULL;
    for (k = 0; k < json_array_size(list); k++) {
        const json_t *value = json_array_get(list, k);
        enum schema_verdict verdict = (hearth_schema_type_of(value) & types) != 0 ? SCHEMA_YES : SCHEMA_NO;
        json_array_foreach(flat, i, schema) {
            enum schema_verdict one = verdict != SCHEMA_NO ? hearth_schema_holds(m, value, k, schema) : SCHEMA_NO;
            verdict = one == SCHEMA_YES ? verdict : one;
        }
        if (json_object_get(value, HEARTH_SCHEMA_GBNF) != NULL) {
            return hearth_schema_refuse(m, "enum", "\"%s\" is a reserved name", HEARTH_SCHEMA_GBNF);
        }
        if (verdict == SCHEMA_UNKNOWN) {
            return hearth_schema_refuse(m, "enum", "not beside other keywords for the same values");
        }
        if (verdict != SCHEMA_NO) {
            hearth_schema_append(values, value);
        }
    }
    return values == NULL || json_array_size(values) > 0 ? values : hearth_schema_empty(m);
}

/* ------------------------------------------------------------------------------------------- making */

/* One form for several. */
static json_t *any_of(struct schema_maker *m, json_t *forms) {
    return json_array_size(forms) == 1 ? json_array_get(forms, 0)
                                       : hearth_schema_own(m, json_pack("{s:O}", "anyOf", forms));
}

/* One form for each type. */
static json_t *make_types(struct schema_maker *m, const json_t *flat, unsigned types, size_t depth) {
    json_t *forms = hearth_schema_own(m, json_array());
    for (unsigned bit = OBJECTS; bit > 0; bit >>= 1) {
        json_t *form = NULL;
        if ((types & bit) == 0 || (bit == WHOLES && (types & FRACTIONS) != 0)) {
            continue;
        }
        if (bit == FRACTIONS && (types & WHOLES) == 0) {
            return hearth_schema_refuse(m, "not", "numbers that are not whole cannot be kept apart");
        }
        form = bit == OBJECTS   ? hearth_schema_object(m, flat, depth)
               : bit == ARRAYS  ? hearth_schema_array(m, flat, depth)
               : bit == STRINGS ? hearth_schema_string(m, flat)
               : bit == FRACTIONS || bit == WHOLES
                   ? hearth_schema_number(m, flat, bit == WHOLES)
                   : hearth_schema_own(m, json_pack("{s:s}", "type", bit == BOOLEANS ? "boolean" : "null"));
        if (form == NULL && m->fate == SCHEMA_EMPTY) {
            m->fate = SCHEMA_FINE; /* the other types remain */
        } else if (form == NULL) {
            return NULL;
        }
        hearth_schema_append(forms, form);
    }
    return json_array_size(forms) > 0 ? any_of(m, forms) : hearth_schema_empty(m);
}

/* For schemas without choices. */
static json_t *make_flat(struct schema_maker *m, const json_t *flat, size_t depth) {
    unsigned allowed = 0, meant = 0;
    if (!collect_types(m, flat, &allowed, &meant)) {
        return NULL;
    }
    json_t *values = collect_values(m, flat, allowed);
    if (values != NULL || m->fate != SCHEMA_FINE) {
        return values != NULL ? hearth_schema_own(m, json_pack("{s:O}", "enum", values)) : NULL;
    }
    if (meant == ANYTHING) {
        return hearth_schema_own(m, json_object());
    }
    json_t *made = make_types(m, flat, meant, depth);
    if (made == NULL && m->fate == SCHEMA_EMPTY && meant != allowed) {
        m->fate = SCHEMA_FINE;
        made = make_types(m, flat, allowed & ~meant, depth);
    }
    return made;
}

/* Whether no value is valid by both. */
static bool exclude(struct schema_maker *m, const json_t *a, const json_t *b, size_t depth) {
    struct hearth_errmsg msg = m->msg;
    json_t *made = hearth_schema_make(m, hearth_schema_own(m, json_pack("[O, O]", a, b)), depth + 1);
    bool empty = made == NULL && m->fate == SCHEMA_EMPTY;
    m->fate = SCHEMA_FINE;
    m->msg = msg;
    return empty;
}

/* Whether a branch's values are valid by no other branch; if not, `*other` is one that may take them, too. */
static bool stands_alone(struct schema_maker *m, const json_t *form, const json_t *branches, size_t branch,
                         size_t depth, size_t *other) {
    for (size_t k = 0; k < json_array_size(branches); k++) {
        if (k != branch && !exclude(m, form, json_array_get(branches, k), depth)) {
            *other = k;
            return false;
        }
    }
    return true;
}

/* Whether a form, or what it refers to, is an object that must have a property. */
static bool must_have(struct schema_maker *m, const json_t *form, const json_t *name) {
    const char *ref = json_string_value(json_object_get(form, "$ref"));
    const json_t *names = json_object_get(ref != NULL ? our_definition(m, ref) : form, "required");
    const json_t *each;
    size_t i;
    json_array_foreach(names, i, each) {
        if (json_equal(each, name)) {
            return true;
        }
    }
    return false;
}

/* One branch of a oneOf. Objects that a discriminator tells apart must have its property, also where it has a default:
 * clients look there for the branch. */
static json_t *make_one_of(struct schema_maker *m, const json_t *choice, size_t branch, json_t *all, size_t depth) {
    const json_t *tag = json_object_get(json_object_get(choice, "discriminator"), "propertyName");
    json_t *form = hearth_schema_make(m, all, depth + 1);
    size_t other = 0;
    if (form != NULL && json_is_string(tag) && !must_have(m, form, tag)) {
        hearth_schema_append(all, hearth_schema_own(m, json_pack("{s:[O]}", "required", tag)));
        form = hearth_schema_make(m, all, depth + 1);
    }
    if (form == NULL || stands_alone(m, form, json_object_get(choice, "oneOf"), branch, depth, &other)) {
        return form;
    }
    return hearth_schema_refuse(m, NULL, "a value may be valid by number %zu too", other);
}

/* Each branch of the first choice, with all the rest. */
static json_t *make_choice(struct schema_maker *m, const struct flat *flat, size_t depth) {
    const json_t *choice = json_array_get(flat->choices, 0);
    const bool one_of = json_object_get(choice, "oneOf") != NULL;
    const char *keyword = one_of ? "oneOf" : "anyOf";
    const json_t *branches = json_object_get(choice, keyword);
    json_t *forms = hearth_schema_own(m, json_array());
    for (size_t i = 0; i < json_array_size(branches); i++) {
        json_t *all = hearth_schema_own(m, json_copy(flat->schemas));
        for (size_t k = 1; k < json_array_size(flat->choices); k++) {
            hearth_schema_append(all, json_array_get(flat->choices, k));
        }
        hearth_schema_append(all, json_array_get(branches, i));
        size_t back = hearth_schema_enter(m, "%s.%zu", keyword, i);
        json_t *form = one_of ? make_one_of(m, choice, i, all, depth) : hearth_schema_make(m, all, depth + 1);
        hearth_schema_leave(m, back);
        if (form == NULL && m->fate == SCHEMA_EMPTY) {
            m->fate = SCHEMA_FINE; /* the other branches remain */
        } else if (form == NULL) {
            return NULL;
        }
        hearth_schema_append(forms, form);
    }
    return json_array_size(forms) > 0 ? any_of(m, forms) : hearth_schema_empty(m);
}

/* The reference that is all that a list says, or NULL. */
static const char *lone_reference(const json_t *all) {
    const char *found = NULL;
    size_t i;
    const json_t *schema;
    json_array_foreach(all, i, schema) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (hearth_schema_says(schema, "$ref") || (ref != NULL && found != NULL)) {
            return NULL;
        }
        found = ref != NULL ? ref : found;
    }
    return found;
}

json_t *hearth_schema_make(struct schema_maker *m, const json_t *all, size_t depth) {
    const char *ref = lone_reference(all);
    struct flat flat = {.schemas = hearth_schema_own(m, json_array()), .choices = hearth_schema_own(m, json_array())};
    size_t i;
    const json_t *schema;
    if (hearth_cancel_poll() != HEARTH_OK || hearth_memory_refused()) { /* the caller finds the reason */
        return hearth_schema_refuse(m, NULL, "it takes too long");
    }
    if (depth > SCHEMA_DEPTH || ++m->visits > SCHEMA_VISITS) {
        return hearth_schema_refuse(m, NULL, depth > SCHEMA_DEPTH ? "nested too deeply" : "the schema is too large");
    }
    m->ways_bytes += m->way_bytes;
    if (m->ways_bytes > SCHEMA_NAMES) {
        return hearth_schema_refuse(m, NULL, "the names of its properties are too long");
    }
    if (ref != NULL) {
        return make_reference(m, ref, depth);
    }
    json_array_foreach(all, i, schema) {
        if (!flatten(m, &flat, schema, json_array_size(all) == 1)) {
            return NULL;
        }
    }
    return json_array_size(flat.choices) > 0 ? make_choice(m, &flat, depth) : make_flat(m, flat.schemas, depth);
}
