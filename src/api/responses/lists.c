/* Lists of items: those of a turn, and the page of them that a query asks for (order, limit, after). An item's id names
 * its turn, so that a page costs what is on it, however long the conversation is.
 * Source: https://platform.openai.com/docs/api-reference/responses/input-items */
#include "api/responses/responses.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 20
#define PAGE_MAX 100

static void add_item(json_t *list, const json_t *item, const json_t *response, const json_t *extra,
                     struct hearth_digest turn, size_t index) {
    const bool summarises = json_is_string(json_object_get(json_object_get(response, "reasoning"), "summary"));
    if (json_is_object(item)) { /* not one that was deleted */
        json_array_append_new(
            list, hearth_response_item(item, json_object_get(response, "names"), summarises, extra, turn, index));
    }
}

void hearth_list_add_turn(json_t *list, const struct hearth_turn *turn, bool output) {
    json_t *body = hearth_api_json_read(&turn->body), *item;
    const json_t *response = json_object_get(body, "response"), *extras = json_object_get(response, "extras");
    const json_t *inputs = json_object_get(body, "input");
    size_t i;
    json_array_foreach(inputs, i, item) {
        add_item(list, item, NULL, NULL, turn->id, i);
    }
    json_array_foreach(output ? json_object_get(body, "output") : NULL, i, item) {
        add_item(list, item, response, json_array_get(extras, i), turn->id, json_array_size(inputs) + i);
    }
    json_decref(body);
}

static const char *id_of(const json_t *list, size_t index) {
    return json_string_value(json_object_get(json_array_get(list, index), "id"));
}

json_t *hearth_list_json(json_t *data, bool more) {
    const size_t count = json_array_size(data);
    return json_pack("{s:s, s:s?, s:s?, s:b, s:o}", "object", "list", "first_id", id_of(data, 0), "last_id",
                     id_of(data, count - 1), "has_more", more, "data", data);
}

bool hearth_list_read_limit(struct hearth_job *job, int usual, int most, size_t *limit) {
    char *text = hearth_api_query(job->query, "limit"), *end = text;
    const long count = text != NULL ? strtol(text, &end, 10) : usual;
    const bool ok = count >= 1 && count <= most && (text == NULL || (end != text && *end == '\0'));
    *limit = (size_t)count;
    free(text);
    return ok ||
           hearth_api_fail(&job->error, 400, "invalid_value", "limit", "limit must be a number from 1 to %d", most);
}

static bool read_order(struct hearth_job *job, bool *ascending) {
    char *order = hearth_api_query(job->query, "order");
    *ascending = order != NULL && strcmp(order, "asc") == 0;
    const bool ok = order == NULL || *ascending || strcmp(order, "desc") == 0;
    free(order);
    return ok || hearth_api_fail(&job->error, 400, "invalid_value", "order", "order must be asc or desc");
}

/* A page with this many bytes is complete, whatever its limit, since items may be as large as a body. */
#define PAGE_BYTES ((size_t)16 << 20)

/* A page that is being collected, over the turns from the one of `after` on. */
struct page {
    size_t bytes; /* of the printed items */
    json_t *items;
    const char *after; /* of the first turn; NULL: it was passed, or there is none */
    size_t limit;
    bool ascending, output, found, more;
};

/* Where this turn's items behind `after` begin, in the order of the page. */
static size_t begin_behind(struct page *page, const json_t *list) {
    const size_t count = json_array_size(list);
    const char *after = page->after;
    page->after = NULL;
    for (size_t i = 0; after != NULL && i < count; i++) {
        if (strcmp(id_of(list, page->ascending ? i : count - 1 - i), after) == 0) {
            page->found = true;
            return i + 1;
        }
    }
    return after != NULL ? count : 0;
}

static bool take_turn(void *user, struct hearth_turn *turn, bool last) {
    struct page *page = user;
    json_t *list = json_array();
    hearth_list_add_turn(list, turn, page->output || !last);
    const size_t count = json_array_size(list);
    const bool looked_for = page->after != NULL;
    for (size_t i = begin_behind(page, list); i < count && !page->more; i++) {
        page->more = json_array_size(page->items) == page->limit || page->bytes >= PAGE_BYTES;
        if (!page->more) {
            json_t *item = json_array_get(list, page->ascending ? i : count - 1 - i);
            json_array_append(page->items, item);
            page->bytes += json_dumpb(item, NULL, 0, JSON_COMPACT);
        }
    }
    json_decref(list);
    return !page->more && (!looked_for || page->found);
}

static bool collect(struct hearth_job *job, struct hearth_digest end, const char *after, struct page *page) {
    struct hearth_line_walk how = {.newest_first = !page->ascending, .take = take_turn, .user = page};
    int index = -1, err = HEARTH_OK;
    page->after = after;
    if (after != NULL && (!hearth_api_id_parse(after, &how.from, &index) || index < 0)) {
        err = HEARTH_ERR_INVALID;
    } else if (!hearth_digest_is_zero(end)) {
        err = hearth_line_read(job->api->store, job->owner, end, &how);
    }
    if (err == HEARTH_ERR_INVALID || (err == HEARTH_OK && after != NULL && !page->found)) {
        return hearth_api_fail(&job->error, 400, "invalid_value", "after",
                               "after: there is no item with the id '%.100s' in this list", after);
    }
    return err == HEARTH_OK || hearth_api_fail_err(&job->error, err, NULL);
}

bool hearth_list_respond(struct hearth_job *job, struct hearth_digest end, bool output) {
    struct page page = {.items = json_array(), .output = output};
    char *after = hearth_api_query(job->query, "after");
    const bool ok = read_order(job, &page.ascending) && hearth_list_read_limit(job, PAGE, PAGE_MAX, &page.limit) &&
                    collect(job, end, after != NULL && *after != '\0' ? after : NULL, &page);
    free(after);
    if (!ok) {
        json_decref(page.items);
        return false;
    }
    return hearth_job_respond(job, hearth_list_json(page.items, page.more));
}
