/* Prompts that are too long, and truncation: "auto".
 *
 * The oldest turns go, up to a user's message: what is left begins like a conversation. System messages stay. How much
 * goes is rounded up to a step of a quarter of the context, by the messages' bytes, which do not depend on what follows
 * them: successive requests of a conversation that grows leave out the same, and so share their prefix, until the next
 * step. A prompt that is still too long loses another step. */
#include "api/responses/responses.h"

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

/* The first message of a user, behind the system messages, with at least `bytes` in front of it; 0: there is none. */
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

/* Where the history is cut so that `bytes` go at the least, or as much as can go; 0: nothing can. */
static size_t choose_cut(const struct hearth_history *history, size_t system, size_t bytes) {
    size_t cut = find_cut(history, system, bytes);
    if (cut == 0) {
        cut = find_cut(history, system, 1);
        for (size_t next; cut != 0 && (next = find_cut(history, cut, 1)) != 0;) {
            cut = next; /* only the last question can stay */
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

bool hearth_truncate_shorten(const struct hearth_job *job, struct hearth_api_cut *cut) {
    const struct hearth_history *history = &job->resolved->history; /* without what has gone so far */
    const size_t ctx = job->api->engine->caps.ctx_tokens, step = ctx / 4 * TOKEN_BYTES;
    const size_t system = hearth_history_system_count(history);
    /* Text that is far too long is not tokenised; the error says how many tokens it has at the least. */
    const size_t counted = job->rendered->prompts[0].tokens.n, most = ctx - job->error.room_tokens;
    const size_t tokens = counted > 0 ? counted : job->error.prompt_tokens;
    if (!cut->guessed && tokens > most) { /* from then on step by step */
        const size_t bytes = bytes_of(history, 0, history->count);
        cut->target_bytes = cut->bytes + (size_t)((double)bytes * (double)(tokens - most) / (double)tokens);
        cut->target_bytes = (cut->target_bytes + step - 1) / step * step;
        cut->guessed = counted > 0;
    } else {
        cut->target_bytes += step;
    }
    const size_t more = cut->target_bytes > cut->bytes ? cut->target_bytes - cut->bytes : 1;
    const size_t end = hearth_response_asked(job)->truncates ? choose_cut(history, system, more) : 0;
    if (end == 0) {
        return false;
    }
    cut->bytes += bytes_of(history, system, end);
    cut->messages += end - system;
    return true;
}

bool hearth_truncate_resolve(const struct hearth_job *job, struct hearth_api_resolved *out,
                             struct hearth_api_error *error) {
    struct hearth_history *history = &out->history;
    const size_t system = hearth_history_system_count(history), first = system + out->left_out;
    if (out->left_out == 0) {
        return true;
    }
    for (size_t i = system; i < first; i++) {
        hearth_message_unref(history->messages[i]);
    }
    memmove(&history->messages[system], &history->messages[first],
            (history->count - first) * sizeof *history->messages);
    history->count -= out->left_out;
    out->request.message_count = history->count;
    if (out->stored != NULL) {
        out->stored->same_config = false; /* the stored tokens are those of the whole */
    }
    return hearth_history_resolve(job, out, error);
}
