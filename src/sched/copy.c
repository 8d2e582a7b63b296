/* Copies a request and all that it points to. One walk runs twice: first to count the bytes, then to copy them.
 *
 * Invariant: the first walk (base NULL) writes nothing and returns every pointer unchanged. */
#include "sched/copy.h"

#include <stdlib.h>
#include <string.h>

/* The block into which the pointed-to structs are copied. */
struct copy_block {
    char *base;
    size_t used;
};

static void *put(struct copy_block *block, const void *bytes, size_t len) {
    size_t at = block->used;
    block->used += (len + 15) / 16 * 16;
    if (!block->base || len == 0) {
        return (void *)bytes;
    }
    return memcpy(block->base + at, bytes, len);
}

static const hearth_token *put_tokens(struct copy_block *block, const hearth_token *tokens, size_t count) {
    return put(block, tokens, count * sizeof *tokens);
}

static const char *put_text(struct copy_block *block, const char *text) {
    return text ? put(block, text, strlen(text) + 1) : NULL;
}

static const char *const *put_texts(struct copy_block *block, const char *const *texts, size_t count) {
    const char **copy = put(block, texts, count * sizeof *texts);
    for (size_t i = 0; i < count; i++) {
        const char *text = put_text(block, texts[i]);
        if (block->base) {
            copy[i] = text;
        }
    }
    return copy;
}

static const struct hearth_grammar *put_grammar(struct copy_block *block, const struct hearth_grammar *grammar) {
    if (!grammar) {
        return NULL;
    }
    struct hearth_grammar copy = *grammar;
    copy.text = put_text(block, grammar->text);
    copy.patterns = put_texts(block, grammar->patterns, grammar->pattern_count);
    copy.tokens = put_tokens(block, grammar->tokens, grammar->token_count);
    copy.prefill = put_tokens(block, grammar->prefill, grammar->prefill_count);
    struct hearth_grammar *put_copy = put(block, grammar, sizeof *grammar);
    if (block->base) {
        *put_copy = copy;
    }
    return put_copy;
}

static const struct hearth_thinking *put_thinking(struct copy_block *block, const struct hearth_thinking *thinking) {
    if (!thinking) {
        return NULL;
    }
    struct hearth_thinking copy = *thinking;
    copy.start = put_tokens(block, thinking->start, thinking->start_count);
    copy.prefill = put_tokens(block, thinking->prefill, thinking->prefill_count);
    copy.forced = put_tokens(block, thinking->forced, thinking->forced_count);
    copy.end_counts = put(block, thinking->end_counts, thinking->end_count * sizeof *thinking->end_counts);
    const hearth_token **ends = put(block, thinking->ends, thinking->end_count * sizeof *ends);
    for (size_t i = 0; i < thinking->end_count; i++) {
        const hearth_token *end = put_tokens(block, thinking->ends[i], thinking->end_counts[i]);
        if (block->base) {
            ends[i] = end;
        }
    }
    copy.ends = ends;
    struct hearth_thinking *put_copy = put(block, thinking, sizeof *thinking);
    if (block->base) {
        *put_copy = copy;
    }
    return put_copy;
}

static struct hearth_request walk(struct copy_block *block, const struct hearth_request *request) {
    struct hearth_request copy = *request;
    copy.prompt = NULL;
    copy.marks = NULL;
    copy.pins = NULL;
    copy.stops = NULL;
    copy.prompt_tokens = copy.mark_count = copy.stop_count = 0;
    copy.sampling.logit_bias =
        put(block, request->sampling.logit_bias, request->sampling.logit_biases * sizeof *request->sampling.logit_bias);
    copy.sampling.grammar = put_grammar(block, request->sampling.grammar);
    copy.printed = put_tokens(block, request->printed, request->printed_count);
    copy.script = put_tokens(block, request->script, request->script_count);
    copy.thinking = put_thinking(block, request->thinking);
    return copy;
}

void *hearth_request_copy(const struct hearth_request *request, struct hearth_request *copy) {
    struct copy_block block = {0};
    (void)walk(&block, request);
    block.base = malloc(block.used + 1);
    if (!block.base) {
        return NULL;
    }
    block.used = 0;
    *copy = walk(&block, request);
    return block.base;
}
