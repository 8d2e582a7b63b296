/* GET /requests and GET /requests/{id}: the last requests, and why they were slow; GET /requests/clients: what each
 * client lost with them.
 *
 * The answer is made of the reports that access.c has put into the ring. Query: limit (default 50: of requests, or of
 * clients), session, key, client, trace, and slow (at least so many milliseconds until the first token). A key sees the
 * requests of its owner; one with the scope admin sees all. */
#include "api/job.h"
#include "report/ring.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_DEFAULT 50

/* The owner whose requests a caller sees; NULL: all. */
static const struct hearth_digest *owner_of(const struct hearth_caller *caller) {
    return hearth_caller_sees(caller, NULL) ? NULL : &caller->salt;
}

/* Reads a whole number of the query. False: the error is filled. */
static bool read_number(const char *text, const char *name, long least, long *out, struct hearth_api_error *error) {
    char *end = NULL;
    if (text == NULL) {
        return true;
    }
    *out = strtol(text, &end, 10);
    return (*text != '\0' && *end == '\0' && *out >= least && *out <= 1000000000) ||
           hearth_api_fail(error, 400, "invalid_value", name, "%s must be a whole number of at least %ld", name, least);
}

static bool is_off(const struct hearth_api *api, struct hearth_api_error *error) {
    return api->ring == NULL && !hearth_api_fail(error, 501, NULL, NULL,
                                                 "requests are not kept; start the server without --keep-requests 0");
}

/* Reads what the query asks for; the caller finishes the filter. False: the error is filled. */
static bool read_query(const struct hearth_http_exchange *exchange, const struct hearth_caller *caller,
                       struct hearth_ring_filter *out, struct hearth_api_error *error) {
    const char *query = hearth_http_query(exchange);
    char *slow = hearth_api_query(query, "slow"), *most = hearth_api_query(query, "limit");
    long slow_ms = 0, limit = LIMIT_DEFAULT;
    const bool ok = read_number(most, "limit", 1, &limit, error) && read_number(slow, "slow", 0, &slow_ms, error);
    *out = (struct hearth_ring_filter){.owner = owner_of(caller),
                                       .session = hearth_api_query(query, "session"),
                                       .key = hearth_api_query(query, "key"),
                                       .client = hearth_api_query(query, "client"),
                                       .trace = hearth_api_query(query, "trace"),
                                       .slow_us = (int64_t)slow_ms * 1000,
                                       .limit = (size_t)limit};
    free(slow);
    free(most);
    return ok;
}

static void filter_finish(const struct hearth_ring_filter *filter) {
    free((char *)filter->session);
    free((char *)filter->key);
    free((char *)filter->client);
    free((char *)filter->trace);
}

bool hearth_requests_list(struct hearth_api *api, struct hearth_http_exchange *exchange,
                          const struct hearth_caller *caller, struct hearth_api_error *error) {
    struct hearth_buf out = {0};
    struct hearth_ring_filter filter = {0};
    const bool ok = !is_off(api, error) && read_query(exchange, caller, &filter, error) &&
                    hearth_buf_text(&out, "{\"object\":\"list\",\"data\":") &&
                    hearth_ring_list(api->ring, &filter, &out) && hearth_buf_text(&out, "}");
    if (ok) {
        hearth_http_respond(exchange, 200, HEARTH_CONTENT_JSON, out.data, out.len);
    }
    filter_finish(&filter);
    hearth_buf_finish(&out);
    return ok;
}

json_t *hearth_requests_clients(struct hearth_api *api, struct hearth_http_exchange *exchange,
                                const struct hearth_caller *caller, struct hearth_api_error *error) {
    struct hearth_ring_filter filter = {0};
    json_t *json = NULL;
    if (!is_off(api, error) && read_query(exchange, caller, &filter, error)) {
        json = hearth_ring_waste(api->ring, &filter, filter.limit);
    }
    filter_finish(&filter);
    return json;
}

json_t *hearth_requests_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                            const struct hearth_caller *caller, struct hearth_api_error *error) {
    json_t *json = NULL;
    const char *id = hearth_http_path(exchange) + strlen("/requests/");
    if (!is_off(api, error) && hearth_ring_find(api->ring, id, owner_of(caller), &json) && json == NULL) {
        hearth_api_fail(error, 404, "not_found", NULL,
                        "there is no such request among the last ones (--keep-requests says how many are kept)");
    }
    return json;
}
