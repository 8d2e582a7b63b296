/* Schemas of single values: numbers, strings, and the valid ones of a list of values.
 *
 * Design. common's converter can express an integer between two bounds, a string of a known format, of a greatest
 * length, or of a pattern, and lists of values. Everything else is turned into one of these, into a stronger one
 * where needed, or into GBNF with which hearth_chat_schema_fill() replaces a constant. Errors of the converter that
 * are known and avoided: bounds on one side only (105 as a minimum lets 15 through, and a negative maximum lets
 * "-05" through), lengths beside a pattern or a format, and escapes that count as two characters where one is meant.
 * Source: json-schema-to-grammar.cpp */
#include "chat/schema_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BOUND_MAX INT64_C(9000000000000000000)
#define BOUND_USUAL INT64_C(999999999999999)
#define BOUND_EXACT 9007199254740992.0
#define BOUND_BLUR INT64_C(4096)

enum { LISTED_MAX = 512 };

/* ------------------------------------------------------------------------------------------- one value */

/* JSON values are equal when they mean the same: 1 and 1.0 do. */
static bool equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    }
    return json_equal(a, b) != 0;
}

/* The strings of a list, as the names of an object, which is made when it is first asked for: lists are long, and each
 * value of one is looked for in all others. */
static const json_t *strings_of(struct schema_maker *m, const json_t *list) {
    char name[32];
    (void)snprintf(name, sizeof name, "%p", (const void *)list);
    m->lists = m->lists != NULL ? m->lists : hearth_schema_own(m, json_object());
    json_t *strings = json_object_get(m->lists, name);
    if (strings == NULL && json_object_set_new(m->lists, name, json_object()) == 0) {
        strings = json_object_get(m->lists, name);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *value = json_array_get(list, i);
            if (json_is_string(value)) {
                json_object_setn_new_nocheck(strings, json_string_value(value), json_string_length(value), json_true());
            }
        }
    }
    return strings;
}

/* `place`: where in the list it is, if it was taken from there. */
static bool is_in(struct schema_maker *m, const json_t *value, const json_t *list, size_t place) {
    if (json_array_get(list, place) == value) {
        return true;
    }
    const json_t *strings = json_is_string(value) ? strings_of(m, list) : NULL;
    if (strings != NULL) {
        return json_object_getn(strings, json_string_value(value), json_string_length(value)) != NULL;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (equal(value, json_array_get(list, i))) {
            return true;
        }
    }
    return false;
}

enum schema_verdict hearth_schema_holds(struct schema_maker *m, const json_t *value, size_t place,
                                        const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const");
    const json_t *absent = json_object_get(json_object_get(schema, "not"), "required"); /* of one name */
    if ((type != NULL && !hearth_schema_allows(value, type)) || (list != NULL && !is_in(m, value, list, place)) ||
        (constant != NULL && !equal(value, constant)) ||
        json_object_get(value, json_string_value(json_array_get(absent, 0))) != NULL) {
        return SCHEMA_NO;
    }
    return hearth_schema_judge(value, schema);
}

/* ------------------------------------------------------------------------------------------- numbers */

struct bounds {
    double low, high; /* infinite: none */
    bool open_low, open_high;
    double step; /* 0: none */
};

/* The tightest of all bounds, and the step. False: refused. */
static bool collect_bounds(struct schema_maker *m, const json_t *flat, struct bounds *out) {
    static const struct {
        const char *keyword;
        bool low, open;
    } keywords[] = {{"minimum", true, false},
                    {"exclusiveMinimum", true, true},
                    {"maximum", false, false},
                    {"exclusiveMaximum", false, true}};
    *out = (struct bounds){.low = -INFINITY, .high = INFINITY};
    size_t i;
    const json_t *schema;
    json_array_foreach(flat, i, schema) {
        for (size_t k = 0; k < sizeof keywords / sizeof keywords[0]; k++) {
            const bool low = keywords[k].low, open = keywords[k].open;
            const json_t *said = json_object_get(schema, keywords[k].keyword);
            const double value = json_number_value(said);
            double *limit = low ? &out->low : &out->high;
            if (said != NULL && ((low ? value > *limit : value < *limit) || (open && value == *limit))) {
                *limit = value;
                *(low ? &out->open_low : &out->open_high) = open;
            }
        }
        const json_t *step = json_object_get(schema, "multipleOf");
        if (step != NULL && out->step != 0 && out->step != json_number_value(step)) {
            return hearth_schema_refuse(m, "multipleOf", "two of them at once") != NULL;
        }
        out->step = step != NULL ? json_number_value(step) : out->step;
    }
    return true;
}

static json_t *list_multiples(struct schema_maker *m, int64_t low, int64_t high, int64_t step) {
    int64_t first = low % step == 0 ? low : low + (low > 0 ? step : 0) - low % step;
    if (first > high) {
        return hearth_schema_empty(m);
    }
    if ((high - first) / step >= LISTED_MAX) {
        return hearth_schema_refuse(m, "multipleOf", "there are more than %d such numbers", LISTED_MAX);
    }
    json_t *values = json_array();
    for (int64_t value = first; value <= high; value += step) {
        json_array_append_new(values, json_integer(value));
    }
    return hearth_schema_own(m, json_pack("{s:o}", "enum", values));
}

static json_t *whole_numbers(struct schema_maker *m, const struct bounds *b) {
    double low = ceil(b->low), high = floor(b->high);
    low += b->open_low && low == b->low;
    high -= b->open_high && high == b->high;
    bool below = isinf(b->low), above = isinf(b->high), stepped = b->step != 0 && b->step != 1;
    if (!(low <= high)) {
        return hearth_schema_empty(m);
    }
    if (stepped && (b->step != floor(b->step) || b->step > (double)BOUND_USUAL)) {
        return hearth_schema_refuse(m, "multipleOf", "only whole numbers can be kept");
    }
    if (stepped && (below || above)) {
        return hearth_schema_refuse(m, "multipleOf", "without a minimum and a maximum");
    }
    if (below && above) {
        return hearth_schema_own(m, json_pack("{s:s}", "type", "integer"));
    }
    if ((!below && fabs(low) > (double)BOUND_MAX) || (!above && fabs(high) > (double)BOUND_MAX)) {
        return hearth_schema_refuse(m, below ? "maximum" : "minimum", "the bound is too large");
    }
    /* Beyond what a double tells apart, bounds are taken as tighter than they may be. */
    int64_t from = below ? 0 : (int64_t)low, to = above ? 0 : (int64_t)high;
    from += !below && fabs(low) > BOUND_EXACT ? BOUND_BLUR : 0;
    to -= !above && fabs(high) > BOUND_EXACT ? BOUND_BLUR : 0;
    from = below ? (to < -BOUND_USUAL ? -BOUND_MAX : -BOUND_USUAL) : from;
    to = above ? (from > BOUND_USUAL ? BOUND_MAX : BOUND_USUAL) : to;
    if (from > to) {
        return hearth_schema_refuse(m, "minimum", "the bounds are too large");
    }
    if (stepped) {
        return list_multiples(m, from, to, (int64_t)b->step);
    }
    return hearth_schema_own(
        m, json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)from, "maximum", (json_int_t)to));
}

json_t *hearth_schema_number(struct schema_maker *m, const json_t *flat, bool integers) {
    struct bounds b;
    if (!collect_bounds(m, flat, &b)) {
        return NULL;
    }
    bool whole_step = b.step != 0 && b.step == floor(b.step);
    if (integers || whole_step) {
        return whole_numbers(m, &b);
    }
    if (b.step != 0) {
        return hearth_schema_refuse(m, "multipleOf", "only whole numbers can be kept");
    }
    if (isinf(b.low) && isinf(b.high)) {
        return hearth_schema_own(m, json_pack("{s:s}", "type", "number"));
    }
    if (b.low > b.high || (b.low == b.high && (b.open_low || b.open_high))) {
        return hearth_schema_empty(m);
    }
    json_t *out = hearth_schema_own(m, json_pack("{s:s}", "type", "number"));
    if (!isinf(b.low)) {
        json_object_set_new(out, b.open_low ? "exclusiveMinimum" : "minimum", json_real(b.low));
    }
    if (!isinf(b.high)) {
        json_object_set_new(out, b.open_high ? "exclusiveMaximum" : "maximum", json_real(b.high));
    }
    return hearth_schema_stand_in(m, out) != NULL ? out : NULL;
}

json_t *hearth_schema_stand_in(struct schema_maker *m, const json_t *form) {
    const json_t *all = hearth_schema_own(m, json_pack("[O]", form));
    const char *type = json_string_value(json_object_get(form, "type"));
    struct hearth_buf text = {0};
    struct bounds b;
    json_t *out = NULL;
    if (type == NULL || !collect_bounds(m, all, &b)) {
        return NULL;
    }
    bool some = true;
    if (strcmp(type, "integer") == 0) {
        hearth_schema_whole_range(json_integer_value(json_object_get(form, "minimum")),
                                  json_integer_value(json_object_get(form, "maximum")), &text);
    } else {
        some = hearth_schema_range(b.low, b.open_low, b.high, b.open_high, &text);
    }
    if (some) {
        out = hearth_schema_own(m, json_pack("{s:{s:s}}", "const", HEARTH_SCHEMA_GBNF, (const char *)text.data));
    } else {
        hearth_schema_refuse(m, isinf(b.low) ? "maximum" : "minimum", "no number of six decimals is in the range");
    }
    hearth_buf_finish(&text);
    return out;
}

/* ------------------------------------------------------------------------------------------- strings */

/* Formats that the converter knows, and how many characters they have. */
static const struct {
    const char *name;
    size_t min, max;
} formats[] = {{"date", 10, 10},  {"time", 9, 18},   {"date-time", 20, 29}, {"uuid", 36, 36}, {"uuid1", 36, 36},
               {"uuid2", 36, 36}, {"uuid3", 36, 36}, {"uuid4", 36, 36},     {"uuid5", 36, 36}};

/* The one text of a keyword over all schemas; NULL: none. False: there are two. */
static bool one_text(struct schema_maker *m, const json_t *flat, const char *keyword, const char **out) {
    size_t i;
    const json_t *schema;
    *out = NULL;
    json_array_foreach(flat, i, schema) {
        const char *text = json_string_value(json_object_get(schema, keyword));
        if (text != NULL && text[0] != '\0' && *out != NULL && strcmp(*out, text) != 0) {
            return hearth_schema_refuse(m, keyword, "two of them at once") != NULL;
        }
        *out = text != NULL && text[0] != '\0' ? text : *out;
    }
    return true;
}

static json_t *pattern_of(struct schema_maker *m, const char *regex, size_t min, size_t max) {
    struct hearth_buf text = {0};
    json_t *out = NULL;
    const char *error = NULL;
    if (regex != NULL) {
        error = hearth_schema_pattern(regex, min, max, &text);
    } else {
        hearth_schema_any_text(min, max, &text);
    }
    if (error != NULL) {
        hearth_schema_refuse(m, "pattern", "%s", error);
    } else {
        out = hearth_schema_own(m, json_pack("{s:s, s:s}", "type", "string", "pattern", (const char *)text.data));
    }
    hearth_buf_finish(&text);
    return out;
}

json_t *hearth_schema_string(struct schema_maker *m, const json_t *flat) {
    const char *regex, *format = NULL;
    size_t min = 0, max = SCHEMA_MANY, i;
    const json_t *schema;
    if (!hearth_schema_count(m, flat, "minLength", false, &min) ||
        !hearth_schema_count(m, flat, "maxLength", true, &max) || !one_text(m, flat, "pattern", &regex)) {
        return NULL;
    }
    json_array_foreach(flat, i, schema) {
        const char *name = json_string_value(json_object_get(schema, "format"));
        format = name != NULL ? name : format;
    }
    if (min > max) {
        return hearth_schema_empty(m);
    }
    if (min > SCHEMA_REPEATS) {
        return hearth_schema_refuse(m, "minLength", "more than %d", SCHEMA_REPEATS);
    }
    if (regex != NULL) {
        return pattern_of(m, regex, min, max);
    }
    /* A format is an annotation by the standard: kept where the converter knows it and its length fits. */
    for (i = 0; format != NULL && i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(format, formats[i].name) == 0 && formats[i].min >= min && formats[i].max <= max) {
            return hearth_schema_own(m, json_pack("{s:s, s:s}", "type", "string", "format", format));
        }
    }
    if (min > 0 || (max != SCHEMA_MANY && max > SCHEMA_REPEATS)) {
        return pattern_of(m, NULL, min, max);
    }
    return hearth_schema_own(m, max == SCHEMA_MANY
                                    ? json_pack("{s:s}", "type", "string")
                                    : json_pack("{s:s, s:I}", "type", "string", "maxLength", (json_int_t)max));
}
