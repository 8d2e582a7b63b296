/* Text to prompt tokens: tokenised in one go, checked against the context: before by its bytes, so that far too much is
 * refused at once, and behind by its tokens. Chats go through history.c. */
#include "api/api_internal.h"

bool hearth_prompt_check_length(const struct hearth_api *api, const struct hearth_prompt *prompt, const char *param,
                                struct hearth_api_error *error) {
    size_t ctx = api->engine->caps.ctx_tokens;
    if (prompt->tokens.n == 0) {
        return hearth_api_fail(error, 400, "invalid_value", param, "the prompt is empty");
    }
    if (prompt->tokens.n >= ctx) {
        hearth_api_fail(error, 400, "context_length_exceeded", param,
                        "the prompt is too long: it has %zu tokens, and the context holds %zu, the reply included",
                        prompt->tokens.n, ctx);
        error->prompt_tokens = prompt->tokens.n;
        error->ctx_tokens = ctx;
        return false;
    }
    return true;
}

bool hearth_prompt_check_text(const struct hearth_api *api, size_t len, const char *param,
                              struct hearth_api_error *error) {
    const struct hearth_caps *caps = &api->engine->caps;
    const size_t least = caps->token_bytes > 0 ? len / caps->token_bytes : 0;
    if (least >= caps->ctx_tokens) {
        hearth_api_fail(error, 400, "context_length_exceeded", param,
                        "the prompt is too long: its %zu bytes are at least %zu tokens, and the context holds %u, the "
                        "reply included",
                        len, least, caps->ctx_tokens);
        error->prompt_tokens = least;
        error->ctx_tokens = caps->ctx_tokens;
        return false;
    }
    return true;
}

bool hearth_prompt_from_text(const struct hearth_api *api, const char *text, size_t len, const char *param,
                             struct hearth_prompt *prompt, struct hearth_api_error *error) {
    if (!hearth_prompt_check_text(api, len, param, error)) {
        return false;
    }
    int rc = api->engine->ops->tokenize(api->engine, text, len, true, true, &prompt->tokens);
    if (rc < 0) {
        return hearth_api_fail_err(error, rc, NULL);
    }
    return hearth_prompt_check_length(api, prompt, param, error);
}
