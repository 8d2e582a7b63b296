/* GET /v1/models and /v1/models/{id}: the one model that is served, in the form of the client's API. Clients look for
 * the context size under several names, which are all there; Hermes refuses to start without one of the first two.
 *
 * GET and POST /lora-adapters, and the field `lora` of a request: the adapter that was loaded with the model. State
 * depends on the model, its adapter and the adapter's scale, and all three are part of the fingerprint. So the scale
 * cannot change while the server runs: a request for the same scale is granted, one for another scale is refused.
 * Source: llama-server's README. */
#include "api/job.h"

#include <string.h>
#include <time.h>

/* Adds the context size. */
static json_t *with_sizes(const struct hearth_api *api, json_t *model) {
    static const char *const names[] = {"max_model_len", "context_length", "context_window", "max_context_length",
                                        "max_input_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_object_set_new(model, names[i], json_integer((json_int_t)api->engine->caps.ctx_tokens));
    }
    return model;
}

static json_t *model_json(const struct hearth_api *api) {
    const struct hearth_caps *caps = &api->engine->caps;
    json_int_t ctx = caps->ctx_tokens;
    json_t *meta = json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:s}", "n_vocab", (json_int_t)caps->vocab_tokens, "n_ctx",
                             ctx, "n_ctx_train", (json_int_t)caps->train_ctx_tokens, "n_params",
                             (json_int_t)caps->model_params, "size", (json_int_t)caps->model_bytes, "description",
                             hearth_api_json_text(caps->description != NULL ? caps->description : ""), "memory_class",
                             hearth_engine_class_text(caps->memory_class));
    return with_sizes(api, json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", api->model_name, "object", "model", "created",
                                     (json_int_t)api->created_unix, "owned_by", "hearth", "meta", meta));
}

/* Source: https://docs.anthropic.com/en/api/models-list */
static json_t *anthropic_model_json(const struct hearth_api *api) {
    const json_int_t ctx = api->engine->caps.ctx_tokens;
    const time_t created = (time_t)api->created_unix;
    char text[32] = "";
    struct tm utc;
    if (gmtime_r(&created, &utc) != NULL) {
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    return with_sizes(api, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "type", "model", "id", api->model_name,
                                     "display_name", api->model_name, "created_at", text, "lifecycle", "active",
                                     "max_tokens", ctx));
}

json_t *hearth_models_list(struct hearth_api *api, struct hearth_http_exchange *exchange,
                           const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)caller, (void)error;
    return hearth_api_is_anthropic(exchange)
               ? json_pack("{s:[o], s:b, s:s, s:s}", "data", anthropic_model_json(api), "has_more", 0, "first_id",
                           api->model_name, "last_id", api->model_name)
               : json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(api));
}

json_t *hearth_models_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                          const struct hearth_caller *caller, struct hearth_api_error *error) {
    const char *id = strstr(hearth_http_path(exchange), "/models/") + strlen("/models/");
    (void)caller;
    if (strcmp(id, api->model_name) == 0 || strcmp(id, api->model_file) == 0) {
        return hearth_api_is_anthropic(exchange) ? anthropic_model_json(api) : model_json(api);
    }
    hearth_api_fail(error, 404, "model_not_found", "model", "there is no model \"%s\" here; this one is \"%s\"", id,
                    api->model_name);
    return NULL;
}

/* ---- its adapter ---- */

json_t *hearth_lora_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                        const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)exchange, (void)error;
    if (api->lora_path == NULL) {
        return json_array();
    }
    const char *slash = hearth_caller_sees(caller, NULL) ? NULL : strrchr(api->lora_path, '/'); /* as in /props */
    return json_pack("[{s:i, s:s, s:o}]", "id", 0, "path", slash != NULL ? slash + 1 : api->lora_path, "scale",
                     hearth_api_json_real(api->params.lora_scale));
}

bool hearth_lora_check(const struct hearth_api *api, const json_t *wanted, struct hearth_api_error *error) {
    const double loaded = api->lora_path != NULL ? api->params.lora_scale : 0;
    double scale = 0; /* of what is not in the list */
    size_t i;
    json_t *entry;
    if (wanted != NULL && !json_is_array(wanted)) {
        return hearth_api_fail(error, 400, "invalid_type", "lora", "lora must be an array of {\"id\", \"scale\"}");
    }
    json_array_foreach(wanted, i, entry) {
        int64_t id;
        if (!hearth_api_json_integer(json_object_get(entry, "id"), &id) ||
            !json_is_number(json_object_get(entry, "scale"))) {
            return hearth_api_fail(error, 400, "invalid_type", "lora", "lora[%zu] must be {\"id\", \"scale\"}", i);
        }
        if (id != 0 || api->lora_path == NULL) {
            return hearth_api_fail(error, 400, "invalid_value", "lora", "lora[%zu]: there is no adapter %lld here", i,
                                   (long long)id);
        }
        scale = json_number_value(json_object_get(entry, "scale"));
    }
    if (wanted != NULL && scale != loaded) {
        return hearth_api_fail(error, 400, "unsupported_value", "lora",
                               "the adapter has the scale %g for as long as the server runs: start it with "
                               "--lora-scale %g",
                               loaded, scale);
    }
    return true;
}

bool hearth_lora_set_prepare(struct hearth_job *job, const json_t *body) {
    return hearth_lora_check(job->api, body, &job->error) && hearth_job_respond(job, json_pack("{s:b}", "success", 1));
}
