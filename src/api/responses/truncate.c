/* Prompts that are too long, and truncation: "auto".
 *
 * The oldest turns go, up to a user's message: what is left begins like a conversation. System messages stay. How much
 * goes is rounded up to a step of a quarter of the context, by the messages' bytes, which do not depend on what follows
 * them: successive requests of a conversation that grows leave out the same, and so share their prefix, until the next
 * step. A prompt that is still too long loses another step. */
#include "api/responses/responses.h"

#include "base/log.h"

#include <string.h>

/* Bytes of a token, about: for steps only. */
#define TOKEN_BYTES 4u

static size_t message_bytes(const struct hearth_message *message) {
    size_t bytes = message->content_len + 16;
    for (size_t i = 0; i < message->call_count; i++) {
        bytes += strlen(message->calls[i].name) + strlen(message->calls[i].arguments) + 32;
    }
    return bytes + (message->reasoning != NULL ? strlen(message->reasoning) : 0);
}

/* The first user's message that has at least `bytes` in front of it, behind the system messages; 0: there is none. */
static size_t find_cut(const struct hearth_history *history, size_t system, size_t bytes) {
    size_t gone = 0;
    for (size_t i = system; i < history->count; i++) {
        if (gone >= bytes && i > system && history->messages[i]->role == HEARTH_ROLE_USER) {
            return i;
        }
        gone += message_bytes(history->messages[i]);
    }
    return 0;
}

/* Takes messages [system, cut) out of the history. */
static void leave_out(struct hearth_job *job, size_t system, size_t cut) {
    struct hearth_history *history = &job->resolved.history;
    for (size_t i = system; i < cut; i++) {
        hearth_message_unref(history->messages[i]);
    }
    memmove(&history->messages[system], &history->messages[cut], (history->count - cut) * sizeof *history->messages);
    history->count -= cut - system;
    job->resolved.request.messages = history->messages;
    job->resolved.request.message_count = history->count;
    if (job->resolved.stored != NULL) {
        job->resolved.stored->dropped_messages += cut - system;
        job->resolved.stored->same_config = false; /* the stored tokens are those of the whole */
    }
}

/* Forgets the prompt that was made. */
static void unmake(struct hearth_job *job) {
    struct hearth_api_prompt *prompt = &job->rendered.prompts[0];
    hearth_conversation_destroy(job->api, job->rendered.conversation);
    job->rendered.conversation = NULL;
    hearth_tokens_finish(&prompt->tokens);
    prompt->mark_count = 0;
    job->rendered.pin_count = 0; /* they stand in its tokens */
}

/* Where the history is cut so that `bytes` go at the least, or as much as can go; 0: nothing can. */
static size_t choose_cut(const struct hearth_history *history, size_t system, size_t bytes) {
    size_t cut = find_cut(history, system, bytes);
    if (cut == 0) {
        cut = find_cut(history, system, 1);
        for (size_t next; cut != 0 && (next = find_cut(history, cut, 1)) != 0;) {
            cut = next; /* the last question is all that can stay */
        }
    }
    return cut;
}

static size_t bytes_of(const struct hearth_history *history, size_t first, size_t end) {
    size_t bytes = 0;
    for (size_t i = first; i < end; i++) {
        bytes += message_bytes(history->messages[i]);
    }
    return bytes;
}

bool hearth_truncate_prompt(struct hearth_job *job) {
    struct hearth_history *history = &job->resolved.history;
    const size_t ctx = job->api->engine->caps.ctx_tokens, step = ctx / 4 * TOKEN_BYTES;
    size_t target = 0, gone_bytes = 0, gone = 0;
    bool guessed = false, made = false;
    const size_t system = hearth_history_system_count(history);
    while (!made && job->error.ctx_tokens > 0) {
        /* Text that is far too long is not tokenised; the error says how many tokens it has at the least. */
        const size_t counted = job->rendered.prompts[0].tokens.n, most = ctx - job->error.room_tokens;
        const size_t tokens = counted > 0 ? counted : job->error.prompt_tokens;
        if (!guessed && tokens > most) { /* from then on step by step */
            const size_t bytes = bytes_of(history, 0, history->count);
            target = gone_bytes + (size_t)((double)bytes * (double)(tokens - most) / (double)tokens);
            target = (target + step - 1) / step * step;
            guessed = counted > 0;
        } else {
            target += step;
        }
        const size_t cut = choose_cut(history, system, target > gone_bytes ? target - gone_bytes : 1);
        if (cut == 0) {
            break;
        }
        gone_bytes += bytes_of(history, system, cut);
        gone += cut - system;
        unmake(job);
        leave_out(job, system, cut);
        made = hearth_history_resolve(job, &job->resolved, &job->error) &&
               hearth_history_prompt(job, &job->rendered, &job->error);
    }
    if (gone > 0) {
        hearth_log(HEARTH_LOG_INFO, "api: %zu messages are left out of a prompt that is longer than the context", gone);
    }
    return made && hearth_script_render(job, &job->rendered, &job->error);
}
