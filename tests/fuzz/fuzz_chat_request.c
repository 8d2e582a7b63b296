/* Fuzzes what the API makes of a request's body: the first byte chooses the endpoint, the rest is the body. Whatever it
 * is, either an error object comes out that blames the request, or prompts that the service may be given.
 *
 * The store has one conversation, under a name and ids that inputs can say: session "s", turn 1. It is made anew now
 * and then, so that what requests put there does not pile up. */
#include "api/anthropic/anthropic.h"
#include "api/responses/responses.h"
#include "base/assert.h"
#include "engine/sim.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool (*const prepares[])(struct hearth_job *job, const json_t *body) = {
    hearth_chat_completions_prepare, hearth_completions_prepare,        hearth_apply_template_prepare,
    hearth_tokenize_prepare,         hearth_detokenize_prepare,         hearth_responses_prepare,
    hearth_responses_tokens_prepare, hearth_responses_compact_prepare,  hearth_conversations_create_prepare,
    hearth_sessions_create_prepare,  hearth_anthropic_messages_prepare, hearth_anthropic_count_prepare,
};

/* So many inputs share a store. */
#define STORE_INPUTS 2000

static const char past[] =
    "{\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"}]}],"
    "\"output\":[{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
    "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},null],"
    "\"response\":{\"names\":{\"f\":{\"custom\":true}}}}";
static const char config[] = "{\"system\":[{\"role\":\"system\",\"content\":\"be\"}],\"template\":\"\","
                             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]}";

static void open_store(struct hearth_api *api) {
    const struct hearth_store_params memory = {.path = NULL};
    struct hearth_errmsg msg;
    char name[] = "s";
    struct hearth_turn turn = {.id = {0, 1}, .status = HEARTH_TURN_COMPLETED, .session = name};
    hearth_store_destroy(api->own_store);
    HEARTH_ASSERT(hearth_store_create(&memory, &api->own_store, &msg) == HEARTH_OK);
    api->store = api->own_store;
    HEARTH_ASSERT(hearth_store_secret(api->store, api->secret) == HEARTH_OK);
    HEARTH_ASSERT(hearth_buf_text(&turn.body, past) && hearth_buf_text(&turn.config, config));
    HEARTH_ASSERT(hearth_store_put(api->store, &turn, &msg) == HEARTH_OK);
    turn.session = NULL;
    hearth_turn_finish(&turn);
}

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
    api->reasoning_budget = -1;
    api->tool_syntax_greedy = true;
    api->model_name = strdup("sim");
    api->transcript_bytes = 1024 * 1024;
    api->grammars = hearth_grammars_create();
    HEARTH_ASSERT(api->grammars != NULL && hearth_history_init(api));
}

static void check_error(const struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    HEARTH_ASSERT(error->status >= 400 && error->status < 500 && error->message.text[0] != '\0');
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

/* What the service would be given. */
static void check_submission(struct hearth_job *job) {
    struct hearth_choice choice = {.job = job};
    struct hearth_request request = {0};
    hearth_choice_fill_request(&choice, &request);
    const struct hearth_grammar *grammar = request.sampling.grammar;
    HEARTH_ASSERT(grammar == NULL || (grammar->text != NULL && grammar->text[0] != '\0'));
    HEARTH_ASSERT(grammar == NULL || !grammar->lazy || grammar->pattern_count + grammar->token_count > 0);
    const struct hearth_thinking *thinking = request.thinking;
    HEARTH_ASSERT(thinking == NULL || (thinking->start_count > 0 && thinking->forced_count > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct hearth_api api;
    if (api.engine == NULL) {
        init_api(&api);
    }
    if (size == 0) {
        return 0;
    }
    static unsigned inputs;
    if (inputs++ % STORE_INPUTS == 0) {
        open_store(&api);
    }
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    if (json_is_object(body)) {
        struct hearth_job job = {.api = &api, .id_bits = hearth_store_id()};
        bool ok = prepares[data[0] % (sizeof prepares / sizeof prepares[0])](&job, body);
        if (!ok) {
            check_error(&job.error);
        } else if (job.dialect != NULL) {
            check_generation(&api, &job.generation);
            check_submission(&job);
        } else {
            HEARTH_ASSERT(job.response.len > 0);
        }
        if (job.dialect_state != NULL) {
            job.dialect->destroy(job.dialect_state);
        }
        hearth_kept_destroy(&job);
        hearth_job_finish_chat(&job);
        hearth_conversation_destroy(&job);
        hearth_generation_finish(&job.generation);
        hearth_buf_finish(&job.response);
    }
    json_decref(body);
    return 0;
}
