/* Lists of items: those of a turn, and the page of them that a query asks for (order, limit, after).
 * Source: https://platform.openai.com/docs/api-reference/responses/input-items */
#include "api/responses/responses.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 20
#define PAGE_MAX 100

static bool add_item(json_t *list, const json_t *item, const json_t *response, const json_t *extra,
                     struct hearth_digest turn, size_t index) {
    const bool summarises = json_is_string(json_object_get(json_object_get(response, "reasoning"), "summary"));
    return !json_is_object(item) || /* one that was deleted */
           json_array_append_new(list, hearth_response_item(item, json_object_get(response, "names"), summarises, extra,
                                                            turn, index)) == 0;
}

bool hearth_list_add_turn(json_t *list, const struct hearth_turn *turn, bool output) {
    json_t *body = hearth_json_load((const char *)turn->body.data, turn->body.len, JSON_ALLOW_NUL, NULL), *item;
    const json_t *response = json_object_get(body, "response"), *extras = json_object_get(response, "extras");
    const json_t *inputs = json_object_get(body, "input");
    bool ok = true;
    size_t i;
    json_array_foreach(inputs, i, item) {
        ok = ok && add_item(list, item, NULL, NULL, turn->id, i);
    }
    json_array_foreach(output ? json_object_get(body, "output") : NULL, i, item) {
        ok = ok && add_item(list, item, response, json_array_get(extras, i), turn->id, json_array_size(inputs) + i);
    }
    json_decref(body);
    return ok;
}

static const char *id_of(const json_t *list, size_t index) {
    return json_string_value(json_object_get(json_array_get(list, index), "id"));
}

/* The place of an id in a list, or its size. */
static size_t find(const json_t *list, const char *id) {
    size_t at = 0;
    while (at < json_array_size(list) && strcmp(id_of(list, at), id) != 0) {
        at++;
    }
    return at;
}

static bool read_query(struct hearth_job *job, bool *ascending, size_t *limit) {
    char *order = hearth_job_query(job, "order"), *most = hearth_job_query(job, "limit");
    char *end = most;
    const long count = most != NULL ? strtol(most, &end, 10) : PAGE;
    bool ok = order == NULL || strcmp(order, "asc") == 0 || strcmp(order, "desc") == 0 ||
              hearth_api_fail(&job->error, 400, "invalid_value", "order", "order must be asc or desc");
    *ascending = order != NULL && strcmp(order, "asc") == 0;
    if (ok && (count < 1 || count > PAGE_MAX || (most != NULL && (end == most || *end != '\0')))) {
        ok = hearth_api_fail(&job->error, 400, "invalid_value", "limit", "limit must be a number from 1 to %d",
                             PAGE_MAX);
    }
    *limit = (size_t)count;
    free(order);
    free(most);
    return ok;
}

bool hearth_list_respond(struct hearth_job *job, json_t *list) {
    const size_t count = json_array_size(list);
    bool ascending;
    size_t limit, at = 0;
    char *after = hearth_job_query(job, "after");
    bool ok = read_query(job, &ascending, &limit);
    if (ok && after != NULL && *after != '\0') {
        const size_t place = find(list, after);
        at = (ascending ? place : count - 1 - place) + 1;
        ok = place < count || hearth_api_fail(&job->error, 400, "invalid_value", "after",
                                              "after: there is no item with the id '%.100s' in this list", after);
    }
    free(after);
    if (!ok) {
        json_decref(list);
        return false;
    }
    json_t *page = json_array();
    for (size_t i = at; i < count && i - at < limit; i++) {
        json_array_append(page, json_array_get(list, ascending ? i : count - 1 - i));
    }
    const size_t shown = json_array_size(page);
    json_t *value = json_pack("{s:s, s:O, s:s?, s:s?, s:b}", "object", "list", "data", page, "first_id",
                              shown > 0 ? id_of(page, 0) : NULL, "last_id", shown > 0 ? id_of(page, shown - 1) : NULL,
                              "has_more", at + shown < count);
    json_decref(page);
    json_decref(list);
    return hearth_job_respond(job, value);
}
