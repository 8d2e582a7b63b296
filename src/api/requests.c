/* GET /requests and GET /requests/{id}: the last requests, and why they were slow.
 *
 * The answer is made of the reports that access.c has put into the ring. Query: limit (default 50), session, key,
 * client, trace, and slow (at least so many milliseconds until the first token). A key sees the requests of its owner;
 * one with the scope admin sees all. */
#include "api/job.h"
#include "report/ring.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_DEFAULT 50

/* The owner that a caller is confined to; NULL: it sees all. */
static const struct hearth_digest *owner_of(const struct hearth_caller *caller) {
    return hearth_caller_sees(caller, NULL) ? NULL : &caller->salt;
}

/* A whole number of the query. False: the error is filled. */
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

/* Appends the answer. False: the error is filled. */
static bool list(struct hearth_api *api, const struct hearth_http_exchange *exchange,
                 const struct hearth_caller *caller, struct hearth_buf *out, struct hearth_api_error *error) {
    const char *query = hearth_http_query(exchange);
    char *session = hearth_api_query(query, "session"), *key = hearth_api_query(query, "key");
    char *client = hearth_api_query(query, "client"), *slow = hearth_api_query(query, "slow");
    char *limit = hearth_api_query(query, "limit"), *trace = hearth_api_query(query, "trace");
    long most = LIMIT_DEFAULT, slow_ms = 0;
    bool ok = read_number(limit, "limit", 1, &most, error) && read_number(slow, "slow", 0, &slow_ms, error);
    if (ok) {
        const struct hearth_ring_filter filter = {.owner = owner_of(caller),
                                                  .session = session,
                                                  .key = key,
                                                  .client = client,
                                                  .trace = trace,
                                                  .slow_us = (int64_t)slow_ms * 1000,
                                                  .limit = (size_t)most};
        ok = (hearth_buf_text(out, "{\"object\":\"list\",\"data\":") && hearth_ring_list(api->ring, &filter, out) &&
              hearth_buf_text(out, "}")) ||
             hearth_api_fail_nomem(error);
    }
    free(session);
    free(key);
    free(client);
    free(slow);
    free(limit);
    free(trace);
    return ok;
}

void hearth_requests_list(struct hearth_api *api, struct hearth_http_exchange *exchange) {
    struct hearth_api_error error;
    struct hearth_caller caller;
    struct hearth_buf out = {0};
    (void)hearth_api_authorize(api, exchange, &caller);
    if (!is_off(api, &error) && list(api, exchange, &caller, &out, &error)) {
        hearth_http_respond(exchange, 200, HEARTH_CONTENT_JSON, out.data, out.len);
    } else {
        hearth_api_respond_error(exchange, &error);
    }
    hearth_buf_finish(&out);
}

void hearth_requests_get(struct hearth_api *api, struct hearth_http_exchange *exchange) {
    struct hearth_api_error error;
    struct hearth_caller caller;
    json_t *json = NULL;
    const char *id = hearth_http_path(exchange) + strlen("/requests/");
    (void)hearth_api_authorize(api, exchange, &caller);
    const bool off = is_off(api, &error);
    if (!off && !hearth_ring_find(api->ring, id, owner_of(&caller), &json)) {
        hearth_api_fail_nomem(&error);
    } else if (!off && json == NULL) {
        hearth_api_fail(&error, 404, "not_found", NULL,
                        "there is no such request among the last ones (--keep-requests says how many are kept)");
    }
    if (json == NULL) {
        hearth_api_respond_error(exchange, &error);
        return;
    }
    hearth_api_json_respond(exchange, 200, json);
}
