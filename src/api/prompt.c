/* Text to prompt tokens, and byte offsets of a rendered prompt to token positions.
 *
 * Tokens do not print the text exactly: a BOS that the tokenizer added is not in it, nor is the space that some
 * vocabularies put in front. Both stand at the start, so the first mark (near the start) is found by adding up lengths
 * from the front, with the BOS taken off, and the second (near the end) from the back. A mark is the last token
 * boundary at or before its offset; being a hint about where prompts part, a token less costs that token only. */
#include "api/api_internal.h"

#include <string.h>

bool hearth_token_append(const struct hearth_api *api, hearth_token token, bool special, struct hearth_buf *out) {
    struct hearth_engine *engine = api->engine;
    char text[256];
    size_t len = engine->ops->token_text(engine, token, special, text, sizeof text);
    if (len <= sizeof text) {
        return hearth_buf_append(out, text, len);
    }
    if (!hearth_buf_reserve(out, len)) {
        return false;
    }
    out->len += engine->ops->token_text(engine, token, special, (char *)out->data + out->len, len);
    return true;
}

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

bool hearth_prompt_from_text(const struct hearth_api *api, const char *text, size_t len, const char *param,
                             struct hearth_prompt *prompt, struct hearth_api_error *error) {
    int rc = api->engine->ops->tokenize(api->engine, text, len, true, true, &prompt->tokens);
    if (rc < 0) {
        return hearth_api_fail_err(error, rc, NULL);
    }
    return hearth_prompt_check_length(api, prompt, param, error);
}

static size_t token_len(const struct hearth_api *api, hearth_token token) {
    char text[256];
    return api->engine->ops->token_text(api->engine, token, true, text, sizeof text);
}

/* Bytes in front of the text that a BOS token takes: the one that the tokenizer added. */
static size_t added_bos_len(const struct hearth_api *api, const struct hearth_chat_prompt *rendered,
                            const struct hearth_tokens *tokens) {
    const char *bos = api->engine->caps.bos_text;
    size_t len = bos != NULL ? strlen(bos) : 0;
    char text[256];
    if (len == 0 || len > sizeof text || tokens->n == 0 ||
        api->engine->ops->token_text(api->engine, tokens->v[0], true, text, sizeof text) != len ||
        memcmp(text, bos, len) != 0) {
        return 0;
    }
    bool printed = rendered->text.len >= len && memcmp(rendered->text.data, bos, len) == 0;
    return printed ? 0 : len;
}

/* Number of tokens that end at or before `offset`, counted from the front. */
static size_t tokens_before(const struct hearth_api *api, const struct hearth_tokens *tokens, size_t skip,
                            size_t offset) {
    size_t end = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        end += token_len(api, tokens->v[i]);
        if (end > offset + skip) {
            return i;
        }
    }
    return tokens->n;
}

/* The same, counted from the back: the tokens whose text covers the last `text_len - offset` bytes are left out. */
static size_t tokens_before_from_back(const struct hearth_api *api, const struct hearth_tokens *tokens, size_t text_len,
                                      size_t offset) {
    size_t behind = 0;
    size_t n = tokens->n;
    while (n > 0 && behind < text_len - offset) {
        behind += token_len(api, tokens->v[--n]);
    }
    return n;
}

void hearth_prompt_set_marks(const struct hearth_api *api, const struct hearth_chat_prompt *rendered,
                             struct hearth_prompt *prompt) {
    const struct hearth_tokens *tokens = &prompt->tokens;
    size_t marks[2];
    size_t count = 0;
    prompt->mark_count = 0;
    if (rendered->system_end <= rendered->text.len) { /* NO_MARK is more than any length */
        marks[count++] = tokens_before(api, tokens, added_bos_len(api, rendered, tokens), rendered->system_end);
    }
    if (rendered->last_input_start <= rendered->text.len) {
        marks[count++] = tokens_before_from_back(api, tokens, rendered->text.len, rendered->last_input_start);
    }
    for (size_t i = 0; i < count; i++) {
        size_t last = prompt->mark_count > 0 ? (size_t)prompt->marks[prompt->mark_count - 1] : 0;
        if (marks[i] > last && marks[i] < tokens->n) {
            prompt->marks[prompt->mark_count++] = (int32_t)marks[i];
        }
    }
}
