/* Fuzzes what the API makes of a request's body: the first byte chooses the endpoint, the rest is the body. Whatever it
 * is, either an error object comes out, or prompts that the service may be given. */
#include "api/api_internal.h"
#include "base/assert.h"
#include "engine/sim.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool (*const prepares[])(struct hearth_job *job, const json_t *body) = {
    hearth_chat_completions_prepare, hearth_completions_prepare,  hearth_apply_template_prepare,
    hearth_tokenize_prepare,         hearth_detokenize_prepare,
};

static void init_api(struct hearth_api *api) {
    struct hearth_sim_params sim;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&sim);
    sim.ctx_tokens = 512;
    HEARTH_ASSERT(hearth_sim_create(&sim, &api->engine, &msg) == HEARTH_OK);
    const struct hearth_chat_params chat = {.bos_text = "", .eos_text = ""};
    HEARTH_ASSERT(hearth_chat_create(&chat, &api->chat, &msg) == HEARTH_OK);
    hearth_sampling_default(&api->sampling);
    api->max_tokens = -1;
}

static void check_error(const struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    HEARTH_ASSERT(error->status >= 400 && error->status <= 599 && error->message.text[0] != '\0');
    HEARTH_ASSERT(hearth_json_write(hearth_api_error_json(error), &text));
    hearth_buf_finish(&text);
}

static void check_generation(const struct hearth_api *api, const struct hearth_generation *generation) {
    HEARTH_ASSERT(generation->prompt_count > 0 && generation->n >= 1 && generation->max_tokens >= -1);
    HEARTH_ASSERT(generation->prompt_count * (size_t)generation->n <= HEARTH_CHOICES_MAX);
    for (size_t i = 0; i < generation->prompt_count; i++) {
        const struct hearth_prompt *prompt = &generation->prompts[i];
        HEARTH_ASSERT(prompt->tokens.n > 0 && prompt->tokens.n < api->engine->caps.ctx_tokens);
        for (size_t k = 0; k < prompt->mark_count; k++) {
            HEARTH_ASSERT(prompt->marks[k] > (k > 0 ? prompt->marks[k - 1] : 0));
            HEARTH_ASSERT((size_t)prompt->marks[k] < prompt->tokens.n);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct hearth_api api;
    if (api.engine == NULL) {
        init_api(&api);
    }
    if (size == 0) {
        return 0;
    }
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    if (json_is_object(body)) {
        struct hearth_job job = {.api = &api};
        bool ok = prepares[data[0] % (sizeof prepares / sizeof prepares[0])](&job, body);
        if (!ok) {
            check_error(&job.error);
        } else if (job.dialect != NULL) {
            check_generation(&api, &job.generation);
        } else {
            HEARTH_ASSERT(job.response.len > 0);
        }
        hearth_generation_finish(&job.generation);
        hearth_buf_finish(&job.response);
    }
    json_decref(body);
    return 0;
}
