/* A prompt that is too long, in a stream.
 *
 * The response fails with context_length_exceeded, as an event: Codex and others know a full context by it, and Codex
 * has a compaction that does not fit lose its oldest items until it does. A status would end their session.
 *
 * Codex does not compact by that event in the middle of its work, though: it compacts when a response that it could
 * take says of its usage that the context is nearly full, and where its configuration names no size it assumes
 * ASSUMED_TOKENS. So a turn of Codex whose history can be compacted is answered with a response that is complete but
 * empty, does not end the turn (`end_turn`, Codex' own member), and has so many tokens in all. Codex then compacts, and
 * goes on with what it was at. It counts its windows: one that was told so and is still here does not compact, and
 * fails, and so does one in which nothing is left to be compacted.
 * Source: openai/codex, codex-rs: codex-api/src/sse/responses.rs, core/src/session/turn.rs. */
#include "api/responses/responses.h"

#include "api/limits.h"

#include <string.h>

/* The context that Codex assumes of a model that it does not know. */
#define ASSUMED_TOKENS 272000

void hearth_overflow_read(struct hearth_response_asked *asked, const json_t *body) {
    const json_t *client = hearth_api_json_get(body, "client_metadata");
    const char *window = json_string_value(json_object_get(client, "x-codex-window-id"));
    const json_t *metadata = json_object_get(client, "x-codex-turn-metadata");
    const char *text = json_string_value(metadata);
    const size_t len = json_string_length(metadata);
    struct hearth_api_error ignored;
    const bool sane = text != NULL && hearth_limits_check(text, len, NULL, &ignored);
    json_t *turn = sane ? hearth_json_parse(text, len, 0, NULL) : NULL;
    const char *kind = json_string_value(json_object_get(turn, "request_kind"));
    if (window != NULL && kind != NULL && strcmp(kind, "turn") == 0) {
        asked->window = hearth_digest_bytes(window, strlen(window));
        asked->compacts = true;
    }
    json_decref(turn);
}

/* Whether this window is told for the first time; notes it. */
static bool tell(struct hearth_api *api, struct hearth_digest window) {
    const size_t room = sizeof api->compacting / sizeof api->compacting[0];
    for (size_t i = 0; i < room; i++) {
        if (hearth_digest_equal(api->compacting[i], window)) {
            return false;
        }
    }
    api->compacting[api->compacting_next] = window;
    api->compacting_next = (api->compacting_next + 1) % room;
    return true;
}

bool hearth_overflow_compacts(struct hearth_job *job) {
    bool replies = false;
    for (size_t i = 0; i < job->resolved->history.count; i++) {
        const enum hearth_role role = job->resolved->history.messages[i]->role;
        replies = replies || role == HEARTH_ROLE_ASSISTANT || role == HEARTH_ROLE_TOOL;
    }
    return hearth_response_asked(job)->compacts && replies && tell(job->api, hearth_response_asked(job)->window);
}

json_t *hearth_overflow_json(struct hearth_job *job) {
    const json_int_t input = (json_int_t)job->error.prompt_tokens;
    json_t *object = hearth_response_json(job, HEARTH_TURN_COMPLETED, false);
    json_object_set_new(object, "end_turn", json_false());
    json_object_set_new(object, "usage",
                        json_pack("{s:I, s:{s:i, s:i}, s:i, s:{s:i}, s:I}", "input_tokens", input,
                                  "input_tokens_details", "cached_tokens", 0, "cache_write_tokens", 0, "output_tokens",
                                  0, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                                  input > ASSUMED_TOKENS ? input : ASSUMED_TOKENS));
    return object;
}
