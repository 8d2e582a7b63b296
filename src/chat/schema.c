/* Turns a JSON schema into a stronger one that common's converter can express.
 *
 * common's converter makes a grammar of a schema, but drops what it cannot express (uniqueItems, number bounds, if,
 * what stands beside anyOf, …), so that a reply may be invalid; some of its rules are wrong. So a schema is first
 * turned into a stronger one (each of its values is valid by the original), written in the few forms that the
 * converter translates correctly. If no useful stronger schema exists, the schema is refused and the client is told
 * which keyword is at fault.
 *
 * Design. Schemas that must hold at once are one list (`all`): a schema beside its allOf, a reference and its
 * siblings, a property and what the additionalProperties of another schema say. hearth_schema_make() flattens such a
 * list: references and allOf are replaced by what they mean, each choice of anyOf and oneOf is made together with
 * all the rest. The result is a list of flat schemas, which schema_compound.c and schema_value.c make type by type.
 * A reference without siblings stays a reference, to a definition that is made here, so that schemas may be recursive.
 *
 * oneOf: a value must be valid by no other choice. To prove that two choices exclude each other, the list of both is
 * made, which must come out empty.
 *
 * Invariants. Each value of the result is valid by the original: every keyword is either kept, made true by
 * construction, known to be an annotation, or refused. The work is bounded by a number of visits. Everything that is
 * made on the way is in `owned`. What memory is refused for is missing there, and noted (base/memory.h): no step asks
 * for it, and in the end nothing is kept of such a work. */
#include "chat/schema_internal.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------- the whole */

/* Every reference leads to something, and none to itself by way of choices alone: such a grammar has no beginning.
 * `known`: names of definitions of which that has been seen, with the number of choices that they stand for, so that
 * none is followed twice. Adds those of the schema to `*choices`. */
static bool leads_on(struct schema_maker *m, const json_t *schema, json_t *known, size_t steps, size_t *choices) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const char *name = ref != NULL ? ref + strlen("#/$defs/") : NULL;
    const json_t *list = json_object_get(schema, "anyOf");
    const json_t *seen = name != NULL ? json_object_get(known, name) : NULL;
    size_t behind = (size_t)json_integer_value(seen);
    if (steps > json_object_size(m->defs) + SCHEMA_DEPTH) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!leads_on(m, json_array_get(list, i), known, steps + 1, choices)) {
            return false;
        }
    }
    if (name != NULL && seen == NULL &&
        !(leads_on(m, json_object_get(m->defs, name), known, steps + 1, &behind) &&
          json_object_set_new(known, name, json_integer((json_int_t)behind)) == 0)) {
        return false;
    }
    *choices += 1 + behind;
    *choices = *choices < SCHEMA_MANY ? *choices : SCHEMA_MANY;
    return true;
}

/* Whether a schema has a value that ends, given the definitions of which that is known (`ends`: name → true). */
static bool has_end(const json_t *schema, const json_t *ends) {
    const char *ref = json_string_value(json_object_get(schema, "$ref")), *name;
    const json_t *choices = json_object_get(schema, "anyOf"), *items = json_object_get(schema, "items");
    const json_t *required = json_object_get(schema, "required");
    if (ref != NULL) {
        return json_object_get(ends, ref + strlen("#/$defs/")) != NULL;
    }
    for (size_t i = 0; i < json_array_size(choices); i++) {
        if (has_end(json_array_get(choices, i), ends)) {
            return true;
        }
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        name = json_string_value(json_array_get(required, i));
        if (!has_end(json_object_get(json_object_get(schema, "properties"), name), ends)) {
            return false;
        }
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        if (!has_end(json_array_get(items, i), ends)) {
            return false;
        }
    }
    if (json_is_object(items) && json_integer_value(json_object_get(schema, "minItems")) > 0) {
        return has_end(items, ends);
    }
    return choices == NULL;
}

/* Takes away definitions that turned out to have no values, unless something still leads to them. */
static bool drop_empty(struct schema_maker *m, const json_t *made) {
    const char *name;
    json_t *definition;
    void *next;
    json_object_foreach_safe(m->defs, next, name, definition) {
        if (json_is_null(definition)) {
            json_t *all = hearth_schema_own(m, json_pack("[O, O]", m->defs, made));
            char *text = hearth_json_dumps(all, JSON_COMPACT), ref[64];
            snprintf(ref, sizeof ref, "#/$defs/%s\"", name);
            bool used = text != NULL && strstr(text, ref) != NULL;
            free(text);
            if (used) {
                return hearth_schema_refuse(m, "$ref", "it leads to a schema without values") != NULL;
            }
            json_object_del(m->defs, name);
        }
    }
    return true;
}

static bool check_whole(struct schema_maker *m, const json_t *made) {
    json_t *ends = hearth_schema_own(m, json_object()), *known = hearth_schema_own(m, json_object());
    const char *name;
    json_t *definition;
    json_object_foreach(m->defs, name, definition) {
        size_t choices = 0;
        if (!leads_on(m, definition, known, 0, &choices)) {
            return hearth_schema_refuse(m, "$ref", "it leads to itself") != NULL;
        }
        if (choices > SCHEMA_CHOICES) { /* parsers of calls look for types in all of them, over and over */
            return hearth_schema_refuse(m, "$ref", "it leads to too many choices") != NULL;
        }
    }
    for (size_t before = SIZE_MAX; before != json_object_size(ends);) {
        before = json_object_size(ends);
        json_object_foreach(m->defs, name, definition) {
            if (json_is_object(definition) && has_end(definition, ends)) {
                json_object_set_new(ends, name, json_true());
            }
        }
    }
    return has_end(made, ends) || hearth_schema_refuse(m, "$ref", "its values never end") != NULL;
}

static bool place_ranges(struct schema_maker *m, json_t *form);

/* The same in one form, or a list of them. */
static bool place_ranges_in(struct schema_maker *m, json_t *forms) {
    size_t i;
    json_t *form;
    json_array_foreach(forms, i, form) {
        if (!place_ranges(m, form)) {
            return false;
        }
    }
    return !json_is_object(forms) || place_ranges(m, forms);
}

/* Puts a constant in the place of every range of numbers, in a form that is finished. */
static bool place_ranges(struct schema_maker *m, json_t *form) {
    const char *name;
    json_t *value;
    if (json_object_get(form, "minimum") != NULL || json_object_get(form, "maximum") != NULL ||
        json_object_get(form, "exclusiveMinimum") != NULL || json_object_get(form, "exclusiveMaximum") != NULL) {
        json_t *stand_in = hearth_schema_stand_in(m, form);
        return stand_in != NULL && json_object_clear(form) == 0 && json_object_update(form, stand_in) == 0;
    }
    json_object_foreach(json_object_get(form, "properties"), name, value) {
        if (!place_ranges(m, value)) {
            return false;
        }
    }
    return place_ranges_in(m, json_object_get(form, "anyOf")) && place_ranges_in(m, json_object_get(form, "items")) &&
           place_ranges_in(m, json_object_get(form, "additionalProperties"));
}

static json_t *strengthen(struct schema_maker *m, const json_t *schema) {
    json_t *made = hearth_schema_make(m, hearth_schema_own(m, json_pack("[O]", schema)), 0);
    const char *name;
    json_t *definition;
    bool ok = made != NULL && drop_empty(m, made) && check_whole(m, made) && place_ranges(m, made);
    json_object_foreach(m->defs, name, definition) {
        ok = ok && place_ranges(m, definition);
    }
    if (!ok) {
        return NULL;
    }
    json_t *out = json_object_size(made) > 0 ? json_copy(made) : json_pack("{s:s}", "type", "object");
    if (json_object_size(m->defs) > 0) {
        json_object_set(out, "$defs", m->defs);
    }
    return out;
}

json_t *hearth_chat_schema_strengthen(const json_t *schema, struct hearth_errmsg *msg) {
    struct schema_maker m = {.root = schema, .owned = json_array(), .defs = json_object(), .names = json_object()};
    json_t *out =
        json_is_object(schema) ? strengthen(&m, schema) : hearth_schema_refuse(&m, NULL, "a schema must be an object");
    if (hearth_memory_refused()) {
        json_decref(out);
        out = NULL;
        hearth_fail(msg, HEARTH_ERR_INVALID, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
    } else if (out == NULL && m.fate == SCHEMA_EMPTY) {
        hearth_fail(msg, HEARTH_ERR_INVALID, "no value is valid by this schema");
    } else if (out == NULL) { /* names from the schema may have been cut inside of a character */
        struct hearth_buf why = {0};
        hearth_utf8_append(&why, m.msg.text, strlen(m.msg.text));
        hearth_fail(msg, HEARTH_ERR_INVALID, "%.480s", why.data != NULL ? (char *)why.data : m.msg.text);
        hearth_buf_finish(&why);
    }
    hearth_buf_finish(&m.path);
    json_decref(m.names);
    json_decref(m.defs);
    json_decref(m.owned);
    return out;
}

bool hearth_chat_schema_check(const json_t *schema, struct hearth_errmsg *msg) {
    json_t *stronger = hearth_chat_schema_strengthen(schema, msg);
    json_decref(stronger);
    return stronger != NULL;
}

/* ------------------------------------------------------------------------------------------- filling in */

/* Undoes one layer of escapes up to a closing quote; returns where it stands, or NULL. */
static const char *unquote(const char *text, struct hearth_buf *out) {
    for (; *text != '\0' && *text != '"'; text++) {
        char c = *text;
        if (c == '\\') {
            text++;
            c = *text == 'n' ? '\n' : *text == 'r' ? '\r' : *text;
        }
        if (c == '\0' || !hearth_buf_append(out, &c, 1)) {
            return NULL;
        }
    }
    return *text == '"' && hearth_buf_append(out, "", 1) ? text : NULL;
}

bool hearth_chat_schema_fill(const char *grammar, struct hearth_buf *out) {
    /* {"hearth:gbnf":"…"} as a literal of GBNF. */
    static const char mark[] = "\"{\\\"" HEARTH_SCHEMA_GBNF "\\\":";
    bool ok = true;
    for (const char *at; ok && (at = strstr(grammar, mark)) != NULL;) {
        struct hearth_buf json = {0}, gbnf = {0};
        const char *end = unquote(at + 1, &json);
        const char *value = end != NULL ? strchr((char *)json.data, ':') : NULL; /* the one in the name */
        value = value != NULL ? strstr(value + 1, ":\"") : NULL;
        ok = value != NULL && unquote(value + 2, &gbnf) != NULL &&
             hearth_buf_append(out, grammar, (size_t)(at - grammar)) && hearth_buf_text(out, (char *)gbnf.data);
        grammar = ok ? end + 1 : grammar;
        hearth_buf_finish(&json);
        hearth_buf_finish(&gbnf);
    }
    return ok && hearth_buf_text(out, grammar);
}
