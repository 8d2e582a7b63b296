/* llama-server's own endpoints: /health, /props, /tokenize, /detokenize (and /slots: slots.c). Names and shapes are
 * its, so that its clients find what they know.
 * Source: llama-server's README. */
#include "api/job.h"

#include "api/limits.h"
#include "base/cancel.h"
#include "base/health.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What is in memory at the same time: */
enum {
    ANSWER_COPIES = 2, /* of an answer, as it was made and as it is sent */
    TEXT_COPIES = 4,   /* of a text whose answer is longer than it is, */
    ID_BYTES = 48,     /* and of each id that it is made of */
};

/* Prints a backing tier by what an operator has to do: nothing (ok, off), wait (scanning), read `trouble` (failing). */
json_t *hearth_api_tier_json(struct hearth_backing *tier) {
    struct hearth_backing_stats stats;
    if (tier == NULL) {
        return json_pack("{s:s}", "state", "off");
    }
    tier->ops->stats(tier, &stats);
    const char *state = stats.failing ? "failing" : !stats.scanned ? "scanning" : "ok";
    json_t *trouble = hearth_api_json_text(*stats.trouble != '\0' ? stats.trouble : NULL);
    return json_pack("{s:s, s:o?, s:I, s:I, s:I, s:b}", "state", state, "trouble", trouble, "bytes",
                     (json_int_t)stats.bytes, "budget_bytes", (json_int_t)stats.budget_bytes, "files",
                     (json_int_t)stats.files, "shared", stats.shared);
}

/* Prints what does not work now although requests are answered. */
json_t *hearth_api_reasons_json(void) {
    json_t *reasons = json_array();
    for (size_t i = 0; i < HEARTH_HEALTH_CONDITIONS; i++) {
        const enum hearth_health_condition condition = (enum hearth_health_condition)i;
        char message[512];
        if (hearth_health_raised(condition, message, sizeof message)) {
            json_array_append_new(reasons, json_pack("{s:s, s:o}", "condition", hearth_health_name(condition),
                                                     "message", hearth_api_json_text(message)));
        }
    }
    return reasons;
}

/* Answers that a server is here: Claude Code opens its connection with a HEAD. */
json_t *hearth_hello_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                         const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)api, (void)exchange, (void)caller, (void)error;
    return json_pack("{s:s, s:s}", "message", "hello", "server", "hearth");
}

bool hearth_api_health_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                           const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)error;
    if (atomic_load(&api->stopping)) { /* a load balancer sends no more */
        hearth_http_set_header(exchange, "Retry-After", "2");
        hearth_api_json_respond(exchange, 503,
                                json_pack("{s:s, s:{s:i, s:s, s:s}}", "status", "draining", "error", "code", 503,
                                          "message", "the server is shutting down", "type", "unavailable_error"));
        return true;
    }
    json_t *reasons = hearth_api_reasons_json();
    const char *status = json_array_size(reasons) > 0 ? "degraded" : "ok";
    if (!hearth_caller_sees(caller, NULL)) {
        json_decref(reasons); /* they name paths */
        hearth_api_json_respond(exchange, 200, json_pack("{s:s}", "status", status));
        return true;
    }
    hearth_api_json_respond(exchange, 200,
                            json_pack("{s:s, s:o, s:o, s:o}", "status", status, "reasons", reasons, "disk",
                                      hearth_api_tier_json(api->params.disk), "remote",
                                      hearth_api_tier_json(api->params.remote)));
    return true;
}

/* Prints llama-server's names for a template's abilities. Tools work without the template's help, and a history that it
 * would refuse is printed in another form; both are said beside. */
static json_t *template_caps_json(const struct hearth_chat_abilities *abilities) {
    json_t *form = json_array();
    for (unsigned bit = 0; bit < HEARTH_CHAT_FORM_BITS; bit++) {
        if ((abilities->form >> bit & 1) != 0) {
            json_array_append_new(form, json_string(hearth_chat_form_name(bit)));
        }
    }
    return json_pack("{s:b, s:b, s:b, s:b, s:b, s:o}", "supports_tools", abilities->tools, "supports_tool_calls",
                     abilities->tools, "supports_parallel_tool_calls", abilities->parallel_calls, "thinking",
                     abilities->thinking, "generic_tools", !abilities->tools, "history_form", form);
}

json_t *hearth_props_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                         const struct hearth_caller *caller, struct hearth_api_error *error) {
    const struct hearth_caps *caps = &api->engine->caps;
    const char *template_text = hearth_chat_template(api->chat);
    (void)exchange, (void)error;
    json_t *settings = json_pack("{s:I, s:o}", "n_ctx", (json_int_t)caps->ctx_tokens, "params",
                                 hearth_api_sampling_json(&api->params.sampling, api->params.max_tokens));
    return json_pack(
        "{s:o, s:I, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:{s:b, s:b}, s:b, s:b}", "default_generation_settings",
        settings, "total_slots", (json_int_t)api->params.lanes, "model_alias", api->model_name, "model_path",
        hearth_caller_sees(caller, NULL) ? api->model_path : api->model_file, "chat_template",
        hearth_api_json_text(template_text != NULL ? template_text : ""), "chat_template_caps",
        template_caps_json(hearth_chat_abilities(api->chat)), "bos_token",
        hearth_api_json_text(caps->bos_text != NULL ? caps->bos_text : ""), "eos_token",
        hearth_api_json_text(caps->eos_text != NULL ? caps->eos_text : ""), "build_info", api->version, "modalities",
        "vision", 0, "audio", 0, "endpoint_slots", api->params.slots, "endpoint_metrics", api->params.metrics);
}

static bool append_ids(struct hearth_job *job, const json_t *part, bool special, bool parse,
                       struct hearth_tokens *out) {
    hearth_token token;
    if (json_is_string(part)) {
        int rc = job->api->engine->ops->tokenize(job->api->engine, json_string_value(part), json_string_length(part),
                                                 special, parse, out);
        return rc >= 0 || hearth_api_fail_err(&job->error, rc, NULL);
    }
    if (!hearth_api_json_token(job->api, part, &token)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "content",
                               "content must be a string, or an array of strings and token ids");
    }
    return hearth_tokens_push(out, token);
}

/* Appends {"id", "piece"}: the piece is a string, or an array of bytes when it is not UTF-8 by itself. */
static bool append_piece(const struct hearth_api *api, hearth_token token, struct hearth_buf *out) {
    struct hearth_buf text = {0};
    bool ok = hearth_engine_append_text(api->engine, token, true, &text) &&
              hearth_buf_printf(out, "{\"id\":%" PRId32 ",\"piece\":", token);
    if (ok && hearth_utf8_valid((const char *)text.data, text.len)) {
        ok = hearth_api_json_write(hearth_json_text((const char *)text.data, text.len), out);
    } else if (ok) {
        for (size_t i = 0; ok && i < text.len; i++) {
            ok = hearth_buf_printf(out, "%s%u", i == 0 ? "[" : ",", text.data[i]);
        }
        ok = ok && hearth_buf_text(out, "]");
    }
    hearth_buf_finish(&text);
    return ok && hearth_buf_text(out, "}");
}

/* Prints the list piece by piece, since JSON values of millions of tokens would take a hundred times the memory. */
static bool respond_list(struct hearth_job *job, const struct hearth_tokens *tokens, bool pieces) {
    const struct hearth_api *api = job->api;
    struct hearth_buf *out = &job->response;
    bool ok = hearth_buf_text(out, "{\"tokens\":[");
    for (size_t i = 0; ok && i < tokens->n; i++) {
        if (!hearth_limits_answer(job->body_bytes, ANSWER_COPIES * out->len, &job->error)) {
            return false;
        }
        ok = hearth_cancel_poll() == HEARTH_OK && (i == 0 || hearth_buf_text(out, ",")) &&
             (pieces ? append_piece(api, tokens->v[i], out) : hearth_buf_printf(out, "%" PRId32, tokens->v[i]));
    }
    return ok && hearth_buf_text(out, "]}");
}

bool hearth_tokenize_prepare(struct hearth_job *job, const json_t *body) {
    const json_t *content = hearth_api_json_get(body, "content");
    struct hearth_tokens tokens = {0};
    bool special = false, parse = true, pieces = false;
    bool ok = hearth_field_bool(body, "add_special", &special, &job->error) &&
              hearth_field_bool(body, "parse_special", &parse, &job->error) &&
              hearth_field_bool(body, "with_pieces", &pieces, &job->error);
    if (ok && content == NULL) {
        ok = hearth_api_fail(&job->error, 400, "missing_required_parameter", "content", "content is missing");
    }
    const bool list = json_is_array(content);
    for (size_t i = 0; ok && i < (list ? json_array_size(content) : 1); i++) {
        ok = append_ids(job, list ? json_array_get(content, i) : content, special && i == 0, parse, &tokens);
    }
    ok = ok && respond_list(job, &tokens, pieces);
    hearth_tokens_finish(&tokens);
    return ok;
}

bool hearth_detokenize_prepare(struct hearth_job *job, const json_t *body) {
    const json_t *tokens = hearth_api_json_get(body, "tokens");
    struct hearth_buf text = {0};
    if (!json_is_array(tokens)) {
        return hearth_api_fail(&job->error, 400, tokens == NULL ? "missing_required_parameter" : "invalid_type",
                               "tokens", "tokens must be an array of token ids");
    }
    const size_t ids_bytes = json_array_size(tokens) * ID_BYTES;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(tokens); i++) {
        hearth_token token;
        ok = hearth_api_json_token(job->api, json_array_get(tokens, i), &token) ||
             hearth_api_fail(&job->error, 400, "invalid_value", "tokens", "tokens[%zu] is no id of the vocabulary", i);
        ok = ok && hearth_cancel_poll() == HEARTH_OK &&
             hearth_engine_append_text(job->api->engine, token, true, &text) &&
             hearth_limits_answer(job->body_bytes, ids_bytes + TEXT_COPIES * text.len, &job->error);
    }
    if (ok) {
        json_t *content = hearth_json_text((const char *)text.data, text.len);
        ok = hearth_api_json_write(json_pack("{s:o}", "content", content), &job->response);
    }
    hearth_buf_finish(&text);
    return ok;
}
