/* Turns text into prompt tokens and checks that they fit the context: by the number of bytes before tokenising, so that
 * far too much text is refused at once, and by the number of tokens after it. Chats go through history.c.
 *
 * Clients of OpenAI's API (LiteLLM, aider, OpenHands, Hermes) recognise a full context by the words of the error,
 * compact their history and go on, so the error uses these words. Hermes reads the size from it. */
#include "api/internal.h"

#include <stdio.h>

/* At most this part (one in so many) of the context is reserved for a reply. */
#define ROOM_SHARE 16

int32_t hearth_api_prompt_room(const struct hearth_api *api, int32_t max_tokens) {
    const int32_t share = (int32_t)(api->engine->caps.ctx_tokens / ROOM_SHARE);
    return max_tokens >= 0 && max_tokens < share ? max_tokens : share;
}

static bool fail_too_long(const struct hearth_api *api, size_t tokens, size_t room, bool least, const char *param,
                          struct hearth_api_error *error) {
    const size_t ctx = api->engine->caps.ctx_tokens;
    char kept[64] = "the reply included";
    if (room > 1) {
        snprintf(kept, sizeof kept, "%zu of them for the reply", room);
    }
    hearth_api_fail(error, 400, "context_length_exceeded", param,
                    "This model's maximum context length is %zu tokens, %s, but the prompt has %s%zu tokens. The input "
                    "exceeds the context window: please reduce the length of the %s.",
                    ctx, kept, least ? "at least " : "", tokens, param);
    error->prompt_tokens = tokens;
    error->ctx_tokens = ctx;
    error->room_tokens = room;
    return false;
}

bool hearth_api_prompt_check_length(const struct hearth_api *api, const struct hearth_api_prompt *prompt,
                                    int32_t room_tokens, const char *param, struct hearth_api_error *error) {
    const size_t room = room_tokens > 1 ? (size_t)room_tokens : 1;
    if (prompt->tokens.n == 0) {
        return hearth_api_fail(error, 400, "invalid_value", param, "the prompt is empty");
    }
    return prompt->tokens.n + room <= api->engine->caps.ctx_tokens ||
           fail_too_long(api, prompt->tokens.n, room, false, param, error);
}

bool hearth_api_prompt_check_text(const struct hearth_api *api, size_t len, int32_t room_tokens, const char *param,
                                  struct hearth_api_error *error) {
    const struct hearth_caps *caps = &api->engine->caps;
    const size_t least = caps->token_bytes > 0 ? len / caps->token_bytes : 0;
    const size_t room = room_tokens > 1 ? (size_t)room_tokens : 1;
    return least + room <= caps->ctx_tokens || fail_too_long(api, least, room, true, param, error);
}
