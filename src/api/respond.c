/* The answers that end an exchange: a value, or an error in the form of its API. Errors without a job are reported to
 * the access log here. When memory is short, the answer is a constant text of this file. */
#include "api/job.h"

#include <stdio.h>
#include <string.h>

#define NOMEM_RETRY "1" /* memory comes back as soon as another request ends */

static bool is_native_path(const char *path) {
    return strcmp(path, "/completion") == 0 || strcmp(path, "/completions") == 0 || strcmp(path, "/infill") == 0;
}

static bool print_error(const struct hearth_api_error *error, const char *path, bool anthropic, const char *request_id,
                        struct hearth_buf *out) {
    return hearth_api_json_write(is_native_path(path) ? hearth_api_error_json_native(error)
                                 : anthropic          ? hearth_api_error_json_anthropic(error, request_id)
                                                      : hearth_api_error_json(error),
                                 out);
}

void hearth_api_respond_error(struct hearth_http_exchange *exchange, const struct hearth_api_error *error) {
    hearth_access_log_error(exchange, error);
    if (hearth_api_is_anthropic(exchange)) { /* set by jobs before now */
        hearth_http_set_header(exchange, "request-id", hearth_http_request_id(exchange));
    }
    hearth_api_write_error(exchange, error);
}

/* Each error object as a text, since there may be no memory to print it. */
static const char *nomem_text(bool native, bool anthropic) {
    if (native) {
        return "{\"error\":{\"code\":503,\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    }
    return anthropic
               ? "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"out of memory\"}}"
               : "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
}

static void respond_nomem(struct hearth_http_exchange *exchange) {
    const char *text = nomem_text(is_native_path(hearth_api_path(exchange)), hearth_api_is_anthropic(exchange));
    hearth_http_set_header(exchange, "Retry-After", NOMEM_RETRY);
    hearth_http_respond(exchange, 503, HEARTH_CONTENT_JSON, text, strlen(text));
}

void hearth_api_write_error(struct hearth_http_exchange *exchange, const struct hearth_api_error *error) {
    char seconds[16];
    struct hearth_buf text = {0};
    hearth_memory_begin();
    if (!print_error(error, hearth_api_path(exchange), hearth_api_is_anthropic(exchange),
                     hearth_http_request_id(exchange), &text)) {
        hearth_buf_finish(&text);
        respond_nomem(exchange);
        return;
    }
    if (error->retry_after_s > 0) {
        snprintf(seconds, sizeof seconds, "%u", error->retry_after_s);
        hearth_http_set_header(exchange, "Retry-After", seconds);
    }
    if (error->retry_after_ms > 0) {
        snprintf(seconds, sizeof seconds, "%u", error->retry_after_ms);
        hearth_http_set_header(exchange, "Retry-After-Ms", seconds);
    }
    const bool full = error->code != NULL && strcmp(error->code, "storage_limit_exceeded") == 0;
    if (error->status == 504 || error->status == 501 || full) { /* trying again does not help */
        hearth_http_set_header(exchange, "X-Should-Retry", "false");
    }
    hearth_http_respond(exchange, error->status, HEARTH_CONTENT_JSON, text.data, text.len);
    hearth_buf_finish(&text);
}

void hearth_api_http_error(void *user, int status, const char *message, const char *path, const char *request_id,
                           struct hearth_buf *body) {
    struct hearth_api_error error;
    (void)user;
    hearth_memory_begin();
    hearth_api_fail(&error, status,
                    status == 413   ? "request_too_large"
                    : status == 403 ? "origin_not_allowed"
                                    : NULL,
                    NULL, "%s", message);
    if (!print_error(&error, path, hearth_api_is_anthropic_path(path), request_id, body)) {
        body->len = 0;
        (void)hearth_buf_text(body, nomem_text(is_native_path(path), hearth_api_is_anthropic_path(path)));
    }
}

void hearth_api_json_respond(struct hearth_http_exchange *exchange, int status, json_t *value) {
    struct hearth_buf text = {0};
    if (hearth_api_json_write(value, &text)) {
        hearth_http_respond(exchange, status, HEARTH_CONTENT_JSON, text.data, text.len);
    } else {
        respond_nomem(exchange);
    }
    hearth_buf_finish(&text);
}

bool hearth_job_respond(struct hearth_job *job, json_t *value) {
    return hearth_api_json_write(value, &job->response);
}
