/* Runs the first four phases of a request in order, and frees what they have made. */
#include "api/stored_turns.h"

#include "base/log.h"
#include "session/toolsets.h"
#include "session/transcript.h"

#include <stdlib.h>

/* All of it, in one piece: only this file can write what the phases have made. */
struct hearth_api_made {
    struct hearth_api_parsed parsed;
    struct hearth_api_resolved resolved;
    struct hearth_api_rendered rendered;
};

static void show(struct hearth_job *job, const struct hearth_api_made *made) {
    job->parsed = &made->parsed;
    job->resolved = &made->resolved;
    job->rendered = &made->rendered;
}

void hearth_api_phases_begin(struct hearth_job *job) {
    static const struct hearth_api_made nothing;
    show(job, &nothing);
}

void hearth_api_chat_options_finish(struct hearth_api_chat_options *chat) {
    json_t *const values[] = {chat->tools,   chat->deferred, chat->loaded, chat->removed,
                              chat->offered, chat->schema,   chat->kwargs};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        json_decref(values[i]);
    }
    free(chat->grammar);
    free(chat->reasoning_budget_message);
}

static void finish_parsed(struct hearth_api_parsed *parsed) {
    hearth_api_chat_options_finish(&parsed->chat);
    free(parsed->session);
    json_decref(parsed->prompts);
    json_decref(parsed->items);
    if (parsed->own != NULL) {
        parsed->own_destroy(parsed->own);
    }
    hearth_history_finish(&parsed->history);
    hearth_generation_finish(&parsed->generation);
}

static void finish_rendered(struct hearth_api *api, struct hearth_api_rendered *rendered) {
    for (size_t i = 0; i < rendered->prompt_count; i++) {
        hearth_tokens_finish(&rendered->prompts[i].tokens);
        hearth_buf_finish(&rendered->prompts[i].text);
    }
    free(rendered->prompts);
    hearth_transcript_release(api->transcripts, rendered->place);
    hearth_message_unref(rendered->begun);
    free(rendered->divergence);
    hearth_api_constraint_destroy(rendered->constraint);
    hearth_tokens_finish(&rendered->script);
    *rendered = (struct hearth_api_rendered){0};
}

static void finish_resolved(struct hearth_api_resolved *resolved) {
    hearth_api_stored_destroy(&resolved->stored);
    hearth_history_finish(&resolved->history);
    hearth_chat_format_unref(resolved->format);
    hearth_toolset_unref(resolved->toolset);
    json_decref(resolved->tools);
    json_decref(resolved->offered);
    json_decref(resolved->kwargs);
    json_decref(resolved->known);
    json_decref(resolved->items);
    hearth_conversation_lock_destroy(resolved->lock);
    *resolved = (struct hearth_api_resolved){0};
}

/* Resolve and render, again and again with less of the conversation while the prompt is too long and less may be
 * left. */
static bool make_prompt(struct hearth_job *job, const struct hearth_api_phases *phases) {
    struct hearth_api_made *made = job->made;
    struct hearth_api_error *error = &job->error;
    struct hearth_api_cut cut = {0};
    bool ok;
    for (;;) {
        made->resolved.salt = made->parsed.generation.salt;
        ok = (phases->resolve == NULL || phases->resolve(job, &made->resolved, error)) &&
             (phases->render == NULL || phases->render(job, &made->rendered, error));
        if (ok || error->ctx_tokens == 0 || phases->shorten == NULL || !phases->shorten(job, &cut)) {
            break;
        }
        struct hearth_conversation_lock *lock = made->resolved.lock;
        made->resolved.lock = NULL;
        finish_rendered(job->api, &made->rendered);
        finish_resolved(&made->resolved);
        made->resolved = (struct hearth_api_resolved){.left_out = cut.messages, .lock = lock};
        (void)hearth_api_fail_nomem(error);
    }
    if (cut.messages > 0) {
        hearth_log(HEARTH_LOG_INFO, "api: %zu messages are left out of a prompt that is longer than the context",
                   cut.messages);
    }
    if (made->rendered.prompt_count > 0) {
        made->rendered.first_tokens = (uint32_t)made->rendered.prompts[0].tokens.n;
    }
    return ok;
}

bool hearth_api_phases_run(struct hearth_job *job, const struct hearth_api_phases *phases, const json_t *body) {
    struct hearth_api_error *error = &job->error;
    struct hearth_api_made *made = job->made != NULL ? job->made : calloc(1, sizeof *made);
    if (made == NULL) {
        return false;
    }
    if (job->made == NULL) {
        made->parsed.generation.salt = job->owner;
        job->made = made;
        show(job, made);
    }
    if ((phases->lookup != NULL && !phases->lookup(job, body, &made->resolved, error)) ||
        (phases->parse != NULL && !phases->parse(job, body, &made->parsed, error))) {
        return false;
    }
    const bool made_prompt = make_prompt(job, phases);
    if (!made_prompt && (phases->answer == NULL || error->ctx_tokens == 0)) {
        return false;
    }
    json_decref(made->parsed.prompts); /* may be far more than the tokens */
    json_decref(made->parsed.items);
    json_decref(made->resolved.items);
    made->parsed.prompts = made->parsed.items = made->resolved.items = NULL;
    if (phases->answer == NULL) {
        job->dialect = phases->dialect;
        return true;
    }
    (void)hearth_api_fail_nomem(error);
    return hearth_job_respond(job, phases->answer(job, error));
}

void hearth_api_phases_go_on(struct hearth_job *job, struct hearth_job *over) {
    job->made = over->made;
    over->made = NULL;
    hearth_api_phases_begin(over);
    finish_rendered(job->api, &job->made->rendered);
    finish_resolved(&job->made->resolved);
    show(job, job->made);
}

void hearth_api_phases_drop_tokens(struct hearth_job *job) {
    for (size_t i = 0; i < job->made->rendered.prompt_count; i++) {
        hearth_tokens_finish(&job->made->rendered.prompts[i].tokens);
    }
}

void hearth_api_phases_finish(struct hearth_job *job) {
    struct hearth_api_made *made = job->made;
    hearth_api_phases_begin(job);
    if (made != NULL) {
        finish_rendered(job->api, &made->rendered);
        finish_resolved(&made->resolved);
        finish_parsed(&made->parsed);
        free(made);
    }
}

bool hearth_api_prompts_alloc(size_t count, struct hearth_api_rendered *out) {
    out->prompts = calloc(count, sizeof *out->prompts);
    out->prompt_count = out->prompts != NULL ? count : 0;
    return out->prompts != NULL;
}
