/* Reads items that come in: follows references, and writes out short forms.
 *
 * Stored items have one form, whatever a client has written: messages have a type, a status and parts, nothing is null,
 * and there are no ids but those of replies of this server, which tell one reply from the next. An item's own id is not
 * stored: it is its turn's and its place there (hearth_api_id_print), with a prefix that tells its type. Parts that are
 * no text are stored as the notes that the model was given (api/content.c). */
#include "api/responses/responses.h"

#include <string.h>

/* Bytes of items that one request may refer to: a short body must not stand for more than a long one could hold. */
#define REFERRED_MAX ((size_t)64 << 20)

/* ---- references ---- */

static bool is_reference(const json_t *item) {
    return json_is_string(json_object_get(item, "type"))
               ? hearth_api_type_is(item, "item_reference")
               : hearth_api_json_get(item, "role") == NULL && json_is_string(hearth_api_json_get(item, "id"));
}

/* The item in a turn's body; `index` counts the items that came in first. Returns a new reference, or NULL. */
static json_t *item_of(const struct hearth_turn *turn, int index) {
    json_t *body = hearth_api_json_read(&turn->body);
    const json_t *input = json_object_get(body, "input"), *output = json_object_get(body, "output");
    const size_t at = (size_t)index, inputs = json_array_size(input);
    json_t *item = at < inputs ? json_array_get(input, at) : json_array_get(output, at - inputs);
    item = json_is_object(item) ? json_incref(item) : NULL;
    json_decref(body);
    return item;
}

/* Fails: the item that a reference stands for is not there, or cannot be read. */
static void fail_reference(const struct hearth_job *job, int err, const char *place, const char *id,
                           struct hearth_api_error *error) {
    if (err != HEARTH_OK && err != HEARTH_ERR_NOT_FOUND) {
        (void)hearth_api_fail_err(error, err, NULL);
    } else if (!hearth_api_stored_fail_away(job, err, "item", place, id, error)) {
        (void)hearth_api_fail(error, 404, "not_found", place,
                              "Item with id '%.100s' not found. Items are not persisted when `store` is set to false.",
                              id);
    }
}

/* The item that a reference stands for; its length is added to `bytes`. */
static json_t *follow(const struct hearth_job *job, const json_t *reference, const char *param, size_t index,
                      size_t *bytes, struct hearth_api_error *error) {
    const char *id = json_string_value(hearth_api_json_get(reference, "id"));
    struct hearth_digest digest;
    struct hearth_turn turn = {0};
    char place[64];
    int at = -1;
    snprintf(place, sizeof place, "%s[%zu].id", param, index);
    if (id == NULL) {
        hearth_api_fail(error, 400, "missing_required_parameter", place, "%s: an item reference needs an id", place);
        return NULL;
    }
    const bool known = hearth_api_id_parse(id, &digest, &at) && at >= 0;
    const int err = known ? hearth_turn_get(job->api->store, job->owner, digest, &turn) : HEARTH_ERR_NOT_FOUND;
    json_t *item = err == HEARTH_OK ? item_of(&turn, at) : NULL;
    hearth_turn_finish(&turn);
    if (item == NULL) {
        fail_reference(job, err, place, id, error);
        return NULL;
    }
    *bytes += json_dumpb(item, NULL, 0, HEARTH_JSON_DUMP);
    if (*bytes > REFERRED_MAX) {
        hearth_api_fail(error, 400, "invalid_value", param,
                        "%s: the items that are referred to have more than %zu bytes", param, REFERRED_MAX);
        json_decref(item);
        return NULL;
    }
    return item;
}

json_t *hearth_inputs_get(const struct hearth_job *job, const json_t *value, const char *param,
                          struct hearth_api_error *error) {
    if (json_is_string(value)) {
        return json_pack("[o]",
                         hearth_api_item_text(HEARTH_ROLE_USER, json_string_value(value), json_string_length(value)));
    }
    if (value != NULL && !json_is_array(value)) {
        hearth_api_fail(error, 400, "invalid_type", param, "%s must be a string or an array of items", param);
        return NULL;
    }
    json_t *items = json_array();
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *item = json_array_get(value, i);
        json_t *meant = is_reference(item) ? follow(job, item, param, i, &bytes, error) : json_incref(item);
        if (json_array_append_new(items, meant) < 0) {
            json_decref(items);
            return NULL;
        }
    }
    return items;
}

/* ---- the form that is stored ---- */

static void remove_nulls(json_t *object) {
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_null(value)) {
            json_object_del(object, key);
        }
    }
}

/* The note that stands for a part that is not text; NULL: the part is text. */
static json_t *note_of(const json_t *part, const char *text_type) {
    const char *type = json_string_value(json_object_get(part, "type"));
    struct hearth_buf note = {0};
    json_t *text = NULL;
    if (hearth_content_is_known(type) && hearth_content_note(part, &note, NULL)) {
        text = json_pack("{s:s, s:o}", "type", text_type, "text", hearth_json_text((const char *)note.data, note.len));
    }
    hearth_buf_finish(&note);
    return text;
}

/* The result of a tool: text, or a list of parts. */
static json_t *output_of(json_t *output) {
    json_t *parts = json_is_array(output) ? json_array() : json_incref(output);
    for (size_t i = 0; i < json_array_size(output); i++) {
        json_t *part = json_array_get(output, i), *note = note_of(part, "input_text");
        json_array_append_new(parts, note != NULL ? note : json_incref(part));
    }
    return parts;
}

/* A message's content as parts. */
static json_t *parts_of(const json_t *content, bool reply) {
    json_t *parts = json_array();
    if (json_is_string(content)) {
        json_t *text = hearth_json_text(json_string_value(content), json_string_length(content));
        json_array_append_new(parts, reply ? json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text,
                                                       "annotations", "logprobs")
                                           : json_pack("{s:s, s:o}", "type", "input_text", "text", text));
        return parts;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *note = note_of(json_array_get(content, i), reply ? "output_text" : "input_text");
        json_t *part = note != NULL ? note : json_copy(json_array_get(content, i));
        remove_nulls(part);
        if (hearth_api_type_is(part, "text")) {
            json_object_set_new(part, "type", json_string(reply ? "output_text" : "input_text"));
        }
        if (reply && json_object_get(part, "annotations") == NULL && json_object_get(part, "text") != NULL) {
            json_object_set_new(part, "annotations", json_array());
        }
        json_array_append_new(parts, part);
    }
    return parts;
}

static json_t *clean_item(const json_t *item) {
    json_t *copy = json_copy((json_t *)(uintptr_t)item);
    const char *role = json_string_value(json_object_get(copy, "role"));
    const char *id = json_string_value(json_object_get(copy, "id"));
    struct hearth_digest turn;
    int index;
    remove_nulls(copy);
    if (json_object_get(copy, "type") == NULL) {
        json_object_set_new(copy, "type", json_string("message"));
    }
    const bool message = hearth_api_type_is(copy, "message");
    const bool reply = role != NULL && strcmp(role, "assistant") == 0;
    if (id != NULL && (!hearth_api_id_parse(id, &turn, &index) || index < 0 || (message && !reply))) {
        json_object_del(copy, "id");
    }
    if (message) {
        json_object_set_new(copy, "content", parts_of(json_object_get(item, "content"), reply));
    }
    if (json_object_get(copy, "output") != NULL) {
        json_object_set_new(copy, "output", output_of(json_object_get(item, "output")));
    }
    if (json_object_get(copy, "status") == NULL) {
        json_object_set_new(copy, "status", json_string("completed"));
    }
    return copy;
}

json_t *hearth_inputs_clean(const json_t *items) {
    json_t *clean = json_array();
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_array_append_new(clean, clean_item(json_array_get(items, i)));
    }
    return clean;
}

/* ---- ids ---- */

static const char *prefix_of(const json_t *item) {
    static const char *const prefixes[][2] = {
        {"message", "msg_"},          {"reasoning", "rs_"},
        {"function_call", "fc_"},     {"function_call_output", "fco_"},
        {"custom_tool_call", "ctc_"}, {"custom_tool_call_output", "ctco_"},
        {"compaction", "cmp_"},
    };
    const char *type = json_string_value(json_object_get(item, "type"));
    for (size_t i = 0; type != NULL && i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strcmp(type, prefixes[i][0]) == 0) {
            return prefixes[i][1];
        }
    }
    return "item_";
}

json_t *hearth_api_item_printed(const json_t *item, struct hearth_digest turn, size_t index) {
    char id[64];
    json_t *copy = json_copy((json_t *)(uintptr_t)item);
    hearth_api_id_print(id, sizeof id, prefix_of(item), turn, (int)index);
    json_object_set_new(copy, "id", json_string(id));
    return copy;
}
