/* GET and POST /lora-adapters, and the field `lora` of a request: the adapter that was loaded with the model.
 *
 * State depends on the model, its adapter and the adapter's scale, and all three are part of the fingerprint. So the
 * scale cannot change while the server runs: a request for the same scale is granted, one for another scale is
 * refused.
 * Source: llama-server's README. */
#include "api/job.h"

#include <string.h>

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
