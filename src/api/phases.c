/* The first four phases of a request, in order, and the release of what they have made. */
#include "api/stored_turns.h"

#include "session/toolsets.h"

#include <stdlib.h>

bool hearth_api_phases_run(struct hearth_job *job, const struct hearth_api_phases *phases, const json_t *body) {
    struct hearth_api_error *error = &job->error;
    if ((phases->lookup != NULL && !phases->lookup(job, body, &job->resolved, error)) ||
        !phases->parse(job, body, &job->parsed, error) ||
        (phases->resolve != NULL && !phases->resolve(job, &job->resolved, error))) {
        return false;
    }
    const bool rendered = phases->render == NULL || phases->render(job, &job->rendered, error);
    if (!rendered && (phases->answer == NULL || error->ctx_tokens == 0)) {
        return false;
    }
    if (job->rendered.prompt_count > 0) {
        job->rendered.first_tokens = (uint32_t)job->rendered.prompts[0].tokens.n;
    }
    json_decref(job->parsed.prompts); /* may be far more than the tokens */
    job->parsed.prompts = NULL;
    if (phases->answer == NULL) {
        job->dialect = phases->dialect;
        return true;
    }
    *error = (struct hearth_api_error){0};
    json_t *answer = phases->answer(job, error);
    return (answer == NULL && error->status != 0) ? false : hearth_job_respond(job, answer);
}

bool hearth_api_prompts_alloc(size_t count, struct hearth_api_rendered *out, struct hearth_api_error *error) {
    out->prompts = calloc(count, sizeof *out->prompts);
    out->prompt_count = out->prompts != NULL ? count : 0;
    return out->prompts != NULL || hearth_api_fail_nomem(error);
}

static void finish_parsed(struct hearth_api_parsed *parsed) {
    struct hearth_api_chat_options *chat = &parsed->chat;
    json_t *const values[] = {chat->tools,   chat->deferred, chat->loaded, chat->removed,
                              chat->offered, chat->schema,   chat->kwargs};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        json_decref(values[i]);
    }
    free(chat->grammar);
    free(chat->reasoning_budget_message);
    free(parsed->session);
    json_decref(parsed->prompts);
    hearth_history_finish(&parsed->history);
    hearth_generation_finish(&parsed->generation);
}

static void finish_rendered(struct hearth_api *api, struct hearth_api_rendered *rendered) {
    for (size_t i = 0; i < rendered->prompt_count; i++) {
        hearth_tokens_finish(&rendered->prompts[i].tokens);
        hearth_buf_finish(&rendered->prompts[i].text);
    }
    free(rendered->prompts);
    hearth_conversation_destroy(api, rendered->conversation);
    hearth_api_constraint_destroy(rendered->constraint);
    hearth_tokens_finish(&rendered->script);
}

void hearth_api_phases_finish(struct hearth_job *job) {
    struct hearth_api_resolved *resolved = &job->resolved;
    finish_rendered(job->api, &job->rendered);
    hearth_api_stored_destroy(&resolved->stored);
    hearth_history_finish(&resolved->history);
    hearth_chat_format_unref(resolved->format);
    hearth_toolset_unref(resolved->toolset);
    json_decref(resolved->tools);
    json_decref(resolved->offered);
    json_decref(resolved->known);
    finish_parsed(&job->parsed);
}
