/* Errors as the APIs print them. The type follows from the status, by the table below; the message is the one
 * that was found where the error happened.
 * Source: https://platform.openai.com/docs/guides/error-codes, https://docs.anthropic.com/en/api/errors */
#include "api/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The type of an error is that of the first row whose status is at least the error's. */
static const struct {
    int up_to;
    const char *type;
} types[] = {
    {400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
    {404, "not_found_error"},       {428, "invalid_request_error"}, {429, "rate_limit_error"},
    {499, "invalid_request_error"}, {500, "server_error"},          {501, "not_supported_error"},
    {503, "server_error"},          {504, "timeout_error"},         {599, "server_error"},
};

/* What is told of an error of enum hearth_err besides its status: a code, and when to try again. */
static const struct {
    int err;
    const char *code;
    uint32_t retry_after_s;
} told[] = {
    {HEARTH_ERR_TOO_LONG, "context_length_exceeded", 0},
    {HEARTH_ERR_OVERLOADED, "rate_limit_exceeded", 0},
    {HEARTH_ERR_DEADLINE, "deadline_exceeded", 0},
    {HEARTH_ERR_QUOTA, "storage_limit_exceeded", 0},
    {HEARTH_ERR_EFFORT, "preparation_timeout", 0},
    {HEARTH_ERR_BUSY, NULL, 2},  /* a server that stops is replaced soon */
    {HEARTH_ERR_NOMEM, NULL, 1}, /* memory comes back as soon as another request ends */
    {HEARTH_ERR_STORE, NULL, 2}, /* a database server that restarts is back about then */
};

static const char *type_of(int status) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (status <= types[i].up_to) {
            return types[i].type;
        }
    }
    return "server_error";
}

static void fill(struct hearth_api_error *error, int status, const char *code, const char *param) {
    *error = (struct hearth_api_error){.status = status, .code = code};
    if (param != NULL) {
        snprintf(error->param, sizeof error->param, "%s", param);
    }
}

bool hearth_api_fail(struct hearth_api_error *error, int status, const char *code, const char *param,
                     const char *format, ...) {
    va_list args;
    fill(error, status, code, param);
    va_start(args, format);
    vsnprintf(error->message.text, sizeof error->message.text, format, args);
    va_end(args);
    return false;
}

bool hearth_api_fail_err(struct hearth_api_error *error, int err, const struct hearth_errmsg *msg) {
    if (err == HEARTH_ERR_CANCELLED) {
        /* A client that cancels gets no answer; this request met the end of the grace period. */
        return hearth_api_fail_err(error, HEARTH_ERR_BUSY, NULL);
    }
    fill(error, hearth_err_http(err), NULL, NULL);
    error->err = err;
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        if (told[i].err == err) {
            error->code = told[i].code;
            error->retry_after_s = told[i].retry_after_s;
        }
    }
    if (msg != NULL && msg->text[0] != '\0') {
        error->message = *msg;
    } else {
        snprintf(error->message.text, sizeof error->message.text, "%s", hearth_err_text(err));
    }
    return false;
}

bool hearth_api_fail_submit(struct hearth_api *api, struct hearth_api_error *error, int err,
                            const struct hearth_errmsg *msg) {
    hearth_api_fail_err(error, err, msg);
    if (err == HEARTH_ERR_OVERLOADED) {
        (void)hearth_service_overloaded(api->service, NULL, &error->retry_after_s);
        error->retry_after_s = error->retry_after_s > 0 ? error->retry_after_s : 1;
    }
    return false;
}

bool hearth_api_fail_nomem(struct hearth_api_error *error) {
    return hearth_api_fail_err(error, HEARTH_ERR_NOMEM, NULL);
}

/* What clients that compact read of a full context, beside the words; NULL: it is not full. */
static json_t *sizes_of(const struct hearth_api_error *error) {
    return error->ctx_tokens > 0 ? json_pack("{s:I, s:I}", "n_prompt_tokens", (json_int_t)error->prompt_tokens, "n_ctx",
                                             (json_int_t)error->ctx_tokens)
                                 : json_object();
}

json_t *hearth_api_error_json(const struct hearth_api_error *error) {
    json_t *body = json_pack("{s:o, s:s, s:o?, s:s?}", "message", hearth_api_json_text(error->message.text), "type",
                             type_of(error->status), "param",
                             hearth_api_json_text(error->param[0] != '\0' ? error->param : NULL), "code", error->code);
    json_object_update_new(body, sizes_of(error));
    return json_pack("{s:o}", "error", body);
}

json_t *hearth_api_error_json_anthropic(const struct hearth_api_error *error, const char *request_id) {
    static const struct {
        int status;
        const char *type;
    } words[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"},
                 {504, "timeout_error"}};
    const char *type = error->status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        type = words[i].status == error->status ? words[i].type : type;
    }
    /* Clients recover from some errors of threads, which they recognise by this code. */
    json_t *details = error->code != NULL && strncmp(error->code, "thread_", 7) == 0
                          ? json_pack("{s:s}", "error_code", error->code)
                          : NULL;
    return json_pack("{s:s, s:{s:s, s:o, s:o*}, s:s?}", "type", "error", "error", "type", type, "message",
                     hearth_api_json_text(error->message.text), "details", details, "request_id", request_id);
}

json_t *hearth_api_error_json_native(const struct hearth_api_error *error) {
    const bool full = error->ctx_tokens > 0;
    json_t *message = full ? json_sprintf("the request (%zu tokens) exceeds the available context size (%zu tokens)",
                                          error->prompt_tokens, error->ctx_tokens)
                           : hearth_api_json_text(error->message.text);
    json_t *body = json_pack("{s:i, s:o, s:s, s:o*}", "code", error->status, "message", message, "type",
                             full ? "exceed_context_size_error" : type_of(error->status), "param",
                             hearth_api_json_text(error->param[0] != '\0' ? error->param : NULL));
    json_object_update_new(body, sizes_of(error));
    return json_pack("{s:o}", "error", body);
}

const char *hearth_api_path(const struct hearth_http_exchange *exchange) {
    static const char twice[] = "/v1/v1/";
    const char *path = hearth_http_path(exchange);
    return strncmp(path, twice, strlen(twice)) == 0 ? path + strlen("/v1") : path;
}

bool hearth_api_is_anthropic_path(const char *path) {
    return strncmp(path, "/v1/messages", 12) == 0 || strncmp(path, "/anthropic/", 11) == 0;
}

bool hearth_api_is_anthropic(const struct hearth_http_exchange *exchange) {
    return hearth_api_is_anthropic_path(hearth_api_path(exchange)) ||
           hearth_http_header(exchange, "anthropic-version") != NULL;
}
