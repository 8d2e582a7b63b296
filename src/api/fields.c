/* Typed fields of a JSON object, read and printed by table, each refusal naming the field. */
#include "api/internal.h"

#include <math.h>
#include <string.h>

json_t *hearth_api_json_get(const json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool hearth_api_type_is(const json_t *object, const char *type) {
    const char *word = json_string_value(json_object_get(object, "type"));
    return word != NULL && strcmp(word, type) == 0;
}

bool hearth_api_json_integer(const json_t *value, int64_t *out) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_is_real(value) ? json_real_value(value) : NAN;
    if (real != floor(real) || fabs(real) >= 9007199254740992.0) { /* NaN is not equal to itself */
        return false;
    }
    *out = (int64_t)real;
    return true;
}

bool hearth_api_json_token(const struct hearth_api *api, const json_t *value, hearth_token *out) {
    int64_t id;
    if (!hearth_api_json_integer(value, &id) || id < 0 || id >= (int64_t)api->engine->caps.vocab_tokens) {
        return false;
    }
    *out = (hearth_token)id;
    return true;
}

bool hearth_field_get(const json_t *object, const char *name, enum hearth_field_kind kind, const json_t **out,
                      struct hearth_api_error *error) {
    static const char *const kinds[] = {"a string", "true or false", "an object", "a number"};
    const json_t *value = hearth_api_json_get(object, name);
    const bool is_kind[] = {json_is_string(value), json_is_boolean(value), json_is_object(value),
                            json_is_number(value)};
    *out = value;
    return value == NULL || is_kind[kind] ||
           hearth_api_fail(error, 400, "invalid_type", name, "%s must be %s", name, kinds[kind]);
}

bool hearth_field_bool(const json_t *object, const char *name, bool *out, struct hearth_api_error *error) {
    const json_t *value;
    const bool ok = hearth_field_get(object, name, HEARTH_FIELD_SWITCH, &value, error);
    *out = ok && value != NULL ? json_is_true(value) : *out;
    return ok;
}

static bool fail_range(const struct hearth_field *field, struct hearth_api_error *error) {
    return hearth_api_fail(error, 400, "invalid_value", field->name, "%s must be %s %g and at most %.12g", field->name,
                           field->above_min ? "above" : "at least", field->min, field->max);
}

static bool read_field(const json_t *value, const struct hearth_field *field, void *out,
                       struct hearth_api_error *error) {
    static const char *const names[] = {"a number", "an integer", "true or false"};
    int64_t integer = 0;
    const bool typed = field->type == HEARTH_FIELD_FLOAT ? json_is_number(value)
                       : field->type == HEARTH_FIELD_INT ? hearth_api_json_integer(value, &integer)
                                                         : json_is_boolean(value);
    const double number = field->type == HEARTH_FIELD_FLOAT ? json_number_value(value) : (double)integer;
    if (!typed) {
        return hearth_api_fail(error, 400, "invalid_type", field->name, "%s must be %s", field->name,
                               names[field->type]);
    }
    if (field->type != HEARTH_FIELD_BOOL &&
        (number < field->min || number > field->max || (field->above_min && number == field->min))) {
        return fail_range(field, error);
    }
    void *at = (char *)out + field->offset;
    switch (field->type) {
    case HEARTH_FIELD_FLOAT: *(float *)at = (float)number; break;
    case HEARTH_FIELD_INT: *(int32_t *)at = (int32_t)integer; break;
    case HEARTH_FIELD_BOOL: *(bool *)at = json_is_true(value); break;
    }
    return true;
}

json_t *hearth_fields_json(const struct hearth_field *fields, size_t count, const void *of) {
    json_t *json = json_object();
    for (size_t i = 0; i < count; i++) {
        const void *at = (const char *)of + fields[i].offset;
        json_t *value = NULL;
        switch (fields[i].type) {
        case HEARTH_FIELD_FLOAT: value = hearth_api_json_real((double)*(const float *)at); break;
        case HEARTH_FIELD_INT: value = json_integer(*(const int32_t *)at); break;
        case HEARTH_FIELD_BOOL: value = json_boolean(*(const bool *)at); break;
        }
        json_object_set_new(json, fields[i].name, value);
    }
    return json;
}

bool hearth_field_tokens(const json_t *value, const char *param, int32_t *out, struct hearth_api_error *error) {
    int64_t tokens;
    if (value == NULL) {
        return true;
    }
    if (!hearth_api_json_integer(value, &tokens)) {
        return hearth_api_fail(error, 400, "invalid_type", param, "%s must be an integer", param);
    }
    if (tokens < -1) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s must be at least 0, or -1 for no limit", param);
    }
    *out = tokens > INT32_MAX ? INT32_MAX : (int32_t)tokens;
    return true;
}

bool hearth_fields_read(const json_t *object, const struct hearth_field *fields, size_t count, void *out,
                        struct hearth_api_error *error) {
    for (size_t i = 0; i < count; i++) {
        const json_t *value = hearth_api_json_get(object, fields[i].name);
        if (value != NULL && !read_field(value, &fields[i], out, error)) {
            return false;
        }
    }
    return true;
}

bool hearth_metadata_check(const json_t *body, struct hearth_api_error *error) {
    const char *key;
    json_t *value;
    const json_t *metadata;
    if (!hearth_field_get(body, "metadata", HEARTH_FIELD_OBJECT, &metadata, error)) {
        return false;
    }
    if (json_object_size(metadata) > 16) {
        return hearth_api_fail(error, 400, "object_above_max_properties", "metadata",
                               "metadata may have at most 16 pairs, it has %zu", json_object_size(metadata));
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        if (strlen(key) > 64) {
            return hearth_api_fail(error, 400, "invalid_value", "metadata",
                                   "metadata: a key may have at most 64 characters: \"%.80s\"", key);
        }
        if (!json_is_string(value)) {
            return hearth_api_fail(error, 400, "invalid_type", "metadata",
                                   "metadata: the value of \"%s\" must be a "
                                   "string",
                                   key);
        }
        if (json_string_length(value) > 512) {
            return hearth_api_fail(error, 400, "string_above_max_length", "metadata",
                                   "metadata: the value of \"%s\" may have at most 512 characters", key);
        }
    }
    return true;
}

const char *hearth_fields_code(const json_t *value) {
    return value == NULL ? "missing_required_parameter" : "invalid_type";
}

bool hearth_metadata_read(const json_t *body, struct hearth_buf *out, struct hearth_api_error *error) {
    json_t *metadata = hearth_api_json_get(body, "metadata");
    out->len = 0;
    return hearth_metadata_check(body, error) &&
           (metadata == NULL || hearth_api_json_write(json_incref(metadata), out));
}

json_t *hearth_metadata_json(const struct hearth_buf *text) {
    return text->len > 0 ? hearth_api_json_read(text) : json_object();
}
