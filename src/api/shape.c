/* What a reply must look like, as the service wants to be told: texts of the chat format become tokens here.
 *
 * A trigger word that is one token of the vocabulary triggers as that token, and is printed though it is a control
 * token, because the parser needs to see it; any other word becomes a pattern. Texts are tokenised as llama-server does
 * it: nothing is added in front, special tokens are recognised.
 *
 * A grammar is tried before the request is submitted, so that a bad one is refused with a status. The digests of the
 * last good ones are kept: an agent sends the same tools with every request. They begin with the salt, so that no
 * tenant is answered sooner because another one has sent the same grammar. */
#include "api/job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define GOOD_GRAMMARS 64

struct hearth_shape {
    struct hearth_grammar grammar; /* text is NULL when there is none */
    struct hearth_buf grammar_text;
    char **patterns;
    size_t pattern_count;
    struct hearth_tokens triggers, printed, prefill;
    bool thinks;
    struct hearth_thinking thinking;
    struct hearth_tokens think_start, forced;
    struct hearth_tokens *ends; /* end_count of them, and the same as two arrays */
    const hearth_token **end_tokens;
    size_t *end_lens;
    size_t end_count;
    const char **stops; /* the client's, then the format's */
    size_t stop_count, client_stops;
};

/* ---- grammars known to be good: to each owner those that it has sent ---- */

struct hearth_grammars {
    pthread_mutex_t mutex;
    struct hearth_digest good[GOOD_GRAMMARS];
    size_t next;
};

struct hearth_grammars *hearth_grammars_create(void) {
    struct hearth_grammars *grammars = calloc(1, sizeof *grammars);
    if (grammars != NULL) {
        pthread_mutex_init(&grammars->mutex, NULL);
    }
    return grammars;
}

void hearth_grammars_destroy(struct hearth_grammars *grammars) {
    if (grammars != NULL) {
        pthread_mutex_destroy(&grammars->mutex);
        free(grammars);
    }
}

static bool is_known(struct hearth_grammars *grammars, struct hearth_digest digest) {
    bool found = false;
    pthread_mutex_lock(&grammars->mutex);
    for (size_t i = 0; i < GOOD_GRAMMARS && !found; i++) {
        found = hearth_digest_equal(grammars->good[i], digest);
    }
    pthread_mutex_unlock(&grammars->mutex);
    return found;
}

static void keep(struct hearth_grammars *grammars, struct hearth_digest digest) {
    pthread_mutex_lock(&grammars->mutex);
    grammars->good[grammars->next++ % GOOD_GRAMMARS] = digest;
    pthread_mutex_unlock(&grammars->mutex);
}

static bool check_grammar(struct hearth_job *job, const char *text) {
    struct hearth_engine *engine = job->api->engine;
    struct hearth_digest digest = hearth_digest_chain(job->owner, text, strlen(text));
    struct hearth_errmsg why = {{0}};
    if (engine->ops->grammar_check == NULL || is_known(job->api->grammars, digest)) {
        return true;
    }
    int rc = engine->ops->grammar_check(engine, text, &why);
    if (rc == HEARTH_OK) {
        keep(job->api->grammars, digest);
        return true;
    }
    if (rc == HEARTH_ERR_NOMEM) {
        return hearth_api_fail_nomem(&job->error);
    }
    const char *param = job->chat.grammar != NULL ? "grammar" : job->chat.schema != NULL ? "response_format" : "tools";
    return hearth_api_fail(&job->error, 400, "invalid_grammar", param, "%s: %s", param,
                           why.text[0] != '\0' ? why.text : "the grammar does not parse");
}

/* ---- texts to tokens ---- */

static bool tokenize(struct hearth_job *job, const char *text, struct hearth_tokens *out) {
    struct hearth_engine *engine = job->api->engine;
    int rc = engine->ops->tokenize(engine, text, strlen(text), false, true, out);
    return rc >= 0 || hearth_api_fail_err(&job->error, rc, NULL);
}

/* The token that a text is, or -1 when it is none or several. */
static bool single_token(struct hearth_job *job, const char *text, hearth_token *out) {
    struct hearth_tokens tokens = {0};
    bool ok = tokenize(job, text, &tokens);
    *out = ok && tokens.n == 1 ? tokens.v[0] : -1;
    hearth_tokens_finish(&tokens);
    return ok;
}

static bool add_once(struct hearth_job *job, struct hearth_tokens *tokens, hearth_token token) {
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->v[i] == token) {
            return true;
        }
    }
    return hearth_tokens_push(tokens, token) || hearth_api_fail_nomem(&job->error);
}

/* A regular expression that matches a text and nothing else. NULL: out of memory. */
static char *escaped(const char *text) {
    struct hearth_buf out = {0};
    bool ok = true;
    for (; *text != '\0' && ok; text++) {
        ok = (strchr(".^$|()*+?[]{}\\", *text) == NULL || hearth_buf_append(&out, "\\", 1)) &&
             hearth_buf_append(&out, text, 1);
    }
    if (!ok || !hearth_buf_append(&out, "", 1)) {
        hearth_buf_finish(&out);
        return NULL;
    }
    return (char *)hearth_buf_take(&out);
}

/* ---- a chat's format ---- */

static bool add_triggers(struct hearth_job *job, struct hearth_shape *shape,
                         const struct hearth_chat_format_info *info) {
    shape->patterns = calloc(info->trigger_count + 1, sizeof *shape->patterns);
    if (shape->patterns == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    for (size_t i = 0; i < info->trigger_count; i++) {
        const struct hearth_chat_trigger *trigger = &info->triggers[i];
        hearth_token token = -1;
        if (trigger->token && !single_token(job, trigger->text, &token)) {
            return false;
        }
        if (token >= 0) {
            if (!add_once(job, &shape->triggers, token) || !add_once(job, &shape->printed, token)) {
                return false;
            }
            continue;
        }
        char *pattern = trigger->token ? escaped(trigger->text) : strdup(trigger->text);
        if (pattern == NULL) {
            return hearth_api_fail_nomem(&job->error);
        }
        shape->patterns[shape->pattern_count++] = pattern;
    }
    return true;
}

static bool add_printed(struct hearth_job *job, struct hearth_shape *shape,
                        const struct hearth_chat_format_info *info) {
    for (size_t i = 0; i < info->preserved_count; i++) {
        hearth_token token;
        if (!single_token(job, info->preserved[i], &token) || (token >= 0 && !add_once(job, &shape->printed, token))) {
            return false;
        }
    }
    return true;
}

/* The tokens of the generation prompt. Some vocabularies put a space in front of what they tokenise: a first token of
 * white space that is not in the text is left out. */
static bool add_prefill(struct hearth_job *job, struct hearth_shape *shape, const char *text) {
    struct hearth_tokens *prefill = &shape->prefill;
    struct hearth_buf first = {0};
    if (text == NULL || *text == '\0') {
        return true;
    }
    if (!tokenize(job, text, prefill)) {
        return false;
    }
    if (prefill->n > 0 && !hearth_engine_append_text(job->api->engine, prefill->v[0], true, &first)) {
        return hearth_api_fail_nomem(&job->error);
    }
    if (first.len > 0 && isspace(first.data[0]) && !isspace((unsigned char)*text)) {
        memmove(prefill->v, prefill->v + 1, --prefill->n * sizeof *prefill->v);
    }
    hearth_buf_finish(&first);
    return true;
}

static bool add_grammar(struct hearth_job *job, struct hearth_shape *shape,
                        const struct hearth_chat_format_info *info) {
    if (info->grammar == NULL || *info->grammar == '\0') {
        return true;
    }
    if (!add_triggers(job, shape, info) || !check_grammar(job, info->grammar)) {
        return false;
    }
    shape->grammar = (struct hearth_grammar){
        .text = info->grammar, /* of the format, which outlives this */
        .lazy = info->grammar_lazy,
        .patterns = (const char *const *)shape->patterns,
        .pattern_count = shape->pattern_count,
        .tokens = shape->triggers.v,
        .token_count = shape->triggers.n,
    };
    if (info->grammar_prefill && !info->grammar_lazy) {
        shape->grammar.prefill = shape->prefill.v;
        shape->grammar.prefill_count = shape->prefill.n;
    }
    return true;
}

/* The tokens that are put in when the budget is used up: a message, then the first end. */
static bool add_forced(struct hearth_job *job, struct hearth_shape *shape) {
    const char *message = job->chat.reasoning_budget_message;
    if (message != NULL && *message != '\0' && !tokenize(job, message, &shape->forced)) {
        return false;
    }
    return hearth_tokens_append(&shape->forced, shape->ends[0].v, shape->ends[0].n) ||
           hearth_api_fail_nomem(&job->error);
}

static bool add_thinking(struct hearth_job *job, struct hearth_shape *shape,
                         const struct hearth_chat_format_info *info) {
    size_t count = info->thinking_end_count;
    if (info->thinking_start == NULL || *info->thinking_start == '\0' || count == 0) {
        return true;
    }
    shape->ends = calloc(count, sizeof *shape->ends);
    shape->end_tokens = calloc(count, sizeof *shape->end_tokens);
    shape->end_lens = calloc(count, sizeof *shape->end_lens);
    if (shape->ends == NULL || shape->end_tokens == NULL || shape->end_lens == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    for (size_t i = 0; i < count; i++) {
        struct hearth_tokens *end = &shape->ends[shape->end_count++];
        if (!tokenize(job, info->thinking_ends[i], end)) {
            return false;
        }
        shape->end_tokens[i] = end->v;
        shape->end_lens[i] = end->n;
    }
    if (!tokenize(job, info->thinking_start, &shape->think_start) || !add_forced(job, shape)) {
        return false;
    }
    shape->thinks = shape->think_start.n > 0 && shape->ends[0].n > 0;
    shape->thinking = (struct hearth_thinking){
        .start = shape->think_start.v,
        .start_count = shape->think_start.n,
        .ends = shape->end_tokens,
        .end_counts = shape->end_lens,
        .end_count = count,
        .prefill = shape->prefill.v,
        .prefill_count = shape->prefill.n,
        .budget_tokens = job->chat.reasoning_budget,
        .forced = shape->forced.v,
        .forced_count = shape->forced.n,
    };
    return true;
}

static bool add_stops(struct hearth_job *job, struct hearth_shape *shape, const struct hearth_chat_format_info *info) {
    const struct hearth_generation *generation = &job->generation;
    shape->stops = calloc(generation->stop_count + info->stop_count + 1, sizeof *shape->stops);
    if (shape->stops == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    for (size_t i = 0; i < generation->stop_count; i++) {
        shape->stops[shape->stop_count++] = generation->stops[i];
    }
    shape->client_stops = shape->stop_count;
    for (size_t i = 0; i < info->stop_count; i++) {
        if (info->stops[i][0] != '\0') {
            shape->stops[shape->stop_count++] = info->stops[i];
        }
    }
    return true;
}

bool hearth_shape_chat(struct hearth_job *job) {
    const struct hearth_chat_format_info *info = hearth_chat_format_info(job->chat.format);
    struct hearth_shape *shape = calloc(1, sizeof *shape);
    job->shape = shape;
    if (shape == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    return add_prefill(job, shape, info->generation_prompt) && add_printed(job, shape, info) &&
           add_grammar(job, shape, info) && add_thinking(job, shape, info) && add_stops(job, shape, info);
}

bool hearth_shape_text(struct hearth_job *job) {
    const struct hearth_chat_options *options = &job->chat;
    static const struct hearth_chat_format_info none = {0};
    struct hearth_errmsg why = {{0}};
    if (options->schema == NULL && options->grammar == NULL) {
        return true;
    }
    struct hearth_shape *shape = calloc(1, sizeof *shape);
    job->shape = shape;
    if (shape == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    const char *text = options->grammar;
    if (text == NULL) {
        int rc = hearth_chat_schema_grammar(options->schema, &shape->grammar_text, &why);
        if (rc != HEARTH_OK) {
            hearth_api_fail_err(&job->error, rc, &why);
            snprintf(job->error.param, sizeof job->error.param, "response_format");
            return false;
        }
        text = (const char *)shape->grammar_text.data;
    }
    shape->grammar.text = text;
    return check_grammar(job, text) && add_stops(job, shape, &none);
}

void hearth_shape_destroy(struct hearth_shape *shape) {
    if (shape == NULL) {
        return;
    }
    for (size_t i = 0; i < shape->pattern_count; i++) {
        free(shape->patterns[i]);
    }
    for (size_t i = 0; i < shape->end_count; i++) {
        hearth_tokens_finish(&shape->ends[i]);
    }
    hearth_buf_finish(&shape->grammar_text);
    hearth_tokens_finish(&shape->triggers);
    hearth_tokens_finish(&shape->printed);
    hearth_tokens_finish(&shape->prefill);
    hearth_tokens_finish(&shape->think_start);
    hearth_tokens_finish(&shape->forced);
    free(shape->patterns);
    free(shape->ends);
    free(shape->end_tokens);
    free(shape->end_lens);
    free(shape->stops);
    free(shape);
}

/* ---- on the loop ---- */

void hearth_choice_fill_request(struct hearth_choice *choice, struct hearth_request *request) {
    const struct hearth_job *job = choice->job;
    const struct hearth_shape *shape = job->shape;
    if (shape != NULL) {
        request->stops = shape->stops;
        request->stop_count = shape->stop_count;
        request->printed = shape->printed.v;
        request->printed_count = shape->printed.n;
    }
    if (job->scripted) { /* as it was written, whatever grammar and budget would say */
        request->script = job->script.v;
        request->script_count = job->script.n;
    } else if (shape != NULL) {
        request->sampling.grammar = shape->grammar.text != NULL ? &shape->grammar : NULL;
        request->thinking = shape->thinks ? &shape->thinking : NULL;
    }
}

bool hearth_shape_is_end(const struct hearth_shape *shape, const char *stop) {
    for (size_t i = shape->client_stops; i < shape->stop_count; i++) {
        if (strcmp(shape->stops[i], stop) == 0) {
            return true;
        }
    }
    return false;
}

size_t hearth_shape_reasoning_tokens(const struct hearth_shape *shape, const struct hearth_tokens *sampled) {
    if (!shape->thinks) {
        return 0;
    }
    for (size_t at = 0; at < sampled->n; at++) {
        for (size_t i = 0; i < shape->end_count; i++) {
            size_t len = shape->end_lens[i];
            if (len > 0 && len <= sampled->n - at &&
                memcmp(sampled->v + at, shape->end_tokens[i], len * sizeof *sampled->v) == 0) {
                return at + len;
            }
        }
    }
    return sampled->n; /* cut while it thought */
}
