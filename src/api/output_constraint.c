/* Translates the constraint of a reply from the chat format's texts to the tokens that the service takes.
 *
 * A trigger word that is one token of the vocabulary triggers as that token. Although it is a control token it is
 * printed, because the parser needs to see it. Any other trigger word becomes a pattern. Texts are tokenised as
 * llama-server does it: nothing is added in front, special tokens are recognised.
 *
 * A grammar is compiled once before the request is submitted, so that a bad one is refused with a status. The digests
 * of the last good grammars are kept, because an agent sends the same tools with every request. The digests include the
 * salt: otherwise the time of an answer would tell a tenant that another one has sent the same grammar. */
#include "api/job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct hearth_api_constraint {
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

/* ---- grammars known to be good ---- */

static bool is_known(struct hearth_api *api, struct hearth_digest digest) {
    bool found = false;
    pthread_mutex_lock(&api->grammars_mutex);
    for (size_t i = 0; i < sizeof api->grammars / sizeof api->grammars[0] && !found; i++) {
        found = hearth_digest_equal(api->grammars[i], digest);
    }
    pthread_mutex_unlock(&api->grammars_mutex);
    return found;
}

static void note_good(struct hearth_api *api, struct hearth_digest digest) {
    pthread_mutex_lock(&api->grammars_mutex);
    api->grammars[api->next_grammar++ % (sizeof api->grammars / sizeof api->grammars[0])] = digest;
    pthread_mutex_unlock(&api->grammars_mutex);
}

static bool check_grammar(const struct hearth_job *job, const char *text, struct hearth_api_error *error) {
    struct hearth_engine *engine = job->api->engine;
    struct hearth_digest digest = hearth_digest_chain(job->owner, text, strlen(text));
    struct hearth_errmsg reason = {{0}};
    if (engine->ops->grammar_check == NULL || is_known(job->api, digest)) {
        return true;
    }
    int rc = engine->ops->grammar_check(engine, text, &reason);
    if (rc == HEARTH_OK) {
        note_good(job->api, digest);
        return true;
    }
    if (rc == HEARTH_ERR_NOMEM) {
        return false;
    }
    const char *param = job->parsed->chat.grammar != NULL  ? "grammar"
                        : job->parsed->chat.schema != NULL ? "response_format"
                                                           : "tools";
    return hearth_api_fail(error, 400, "invalid_grammar", param, "%s: %s", param,
                           reason.text[0] != '\0' ? reason.text : "the grammar does not parse");
}

/* ---- texts to tokens ---- */

static bool tokenize(const struct hearth_job *job, const char *text, struct hearth_tokens *out,
                     struct hearth_api_error *error) {
    struct hearth_engine *engine = job->api->engine;
    int rc = engine->ops->tokenize(engine, text, strlen(text), false, true, out);
    return rc >= 0 || hearth_api_fail_err(error, rc, NULL);
}

/* The single token that a text consists of; -1: it is none or several. */
static bool single_token(const struct hearth_job *job, const char *text, hearth_token *out,
                         struct hearth_api_error *error) {
    struct hearth_tokens tokens = {0};
    bool ok = tokenize(job, text, &tokens, error);
    *out = ok && tokens.n == 1 ? tokens.v[0] : -1;
    hearth_tokens_finish(&tokens);
    return ok;
}

static bool add_once(struct hearth_tokens *tokens, hearth_token token) {
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->v[i] == token) {
            return true;
        }
    }
    return hearth_tokens_push(tokens, token);
}

/* A regular expression that matches exactly this text. NULL: out of memory. */
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

static bool add_triggers(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                         const struct hearth_chat_format_info *info, struct hearth_api_error *error) {
    constraint->patterns = calloc(info->trigger_count + 1, sizeof *constraint->patterns);
    if (constraint->patterns == NULL) {
        return false;
    }
    for (size_t i = 0; i < info->trigger_count; i++) {
        const struct hearth_chat_trigger *trigger = &info->triggers[i];
        hearth_token token = -1;
        if (trigger->token && !single_token(job, trigger->text, &token, error)) {
            return false;
        }
        if (token >= 0) {
            if (!add_once(&constraint->triggers, token) || !add_once(&constraint->printed, token)) {
                return false;
            }
            continue;
        }
        char *pattern = trigger->token ? escaped(trigger->text) : strdup(trigger->text);
        if (pattern == NULL) {
            return false;
        }
        constraint->patterns[constraint->pattern_count++] = pattern;
    }
    return true;
}

static bool add_printed(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                        const struct hearth_chat_format_info *info, struct hearth_api_error *error) {
    for (size_t i = 0; i < info->preserved_count; i++) {
        hearth_token token;
        if (!single_token(job, info->preserved[i], &token, error) ||
            (token >= 0 && !add_once(&constraint->printed, token))) {
            return false;
        }
    }
    return true;
}

/* The tokens of the generation prompt. Some vocabularies put a space in front of what they tokenise: a first token of
 * white space that is not in the text is left out. */
static bool add_prefill(const struct hearth_job *job, struct hearth_api_constraint *constraint, const char *text,
                        struct hearth_api_error *error) {
    struct hearth_tokens *prefill = &constraint->prefill;
    struct hearth_buf first = {0};
    if (text == NULL || *text == '\0') {
        return true;
    }
    if (!tokenize(job, text, prefill, error)) {
        return false;
    }
    if (prefill->n > 0 && !hearth_engine_append_text(job->api->engine, prefill->v[0], true, &first)) {
        return false;
    }
    if (first.len > 0 && isspace(first.data[0]) && !isspace((unsigned char)*text)) {
        memmove(prefill->v, prefill->v + 1, --prefill->n * sizeof *prefill->v);
    }
    hearth_buf_finish(&first);
    return true;
}

static bool add_grammar(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                        const struct hearth_chat_format_info *info, struct hearth_api_error *error) {
    if (info->grammar == NULL || *info->grammar == '\0') {
        return true;
    }
    if (!add_triggers(job, constraint, info, error) || !check_grammar(job, info->grammar, error)) {
        return false;
    }
    constraint->grammar = (struct hearth_grammar){
        .text = info->grammar, /* of the format, which outlives this */
        .lazy = info->grammar_lazy,
        .patterns = (const char *const *)constraint->patterns,
        .pattern_count = constraint->pattern_count,
        .tokens = constraint->triggers.v,
        .token_count = constraint->triggers.n,
    };
    if (info->grammar_prefill && !info->grammar_lazy) {
        constraint->grammar.prefill = constraint->prefill.v;
        constraint->grammar.prefill_count = constraint->prefill.n;
    }
    return true;
}

/* Adds the tokens that are forced when the budget of thinking is used up: a message, then the first of the ends. */
static bool add_forced(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                       struct hearth_api_error *error) {
    const char *message = job->parsed->chat.reasoning_budget_message;
    if (message != NULL && *message != '\0' && !tokenize(job, message, &constraint->forced, error)) {
        return false;
    }
    return hearth_tokens_append(&constraint->forced, constraint->ends[0].v, constraint->ends[0].n);
}

static bool add_thinking(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                         const struct hearth_chat_format_info *info, struct hearth_api_error *error) {
    size_t count = info->thinking_end_count;
    if (info->thinking_start == NULL || *info->thinking_start == '\0' || count == 0) {
        return true;
    }
    constraint->ends = calloc(count, sizeof *constraint->ends);
    constraint->end_tokens = calloc(count, sizeof *constraint->end_tokens);
    constraint->end_lens = calloc(count, sizeof *constraint->end_lens);
    if (constraint->ends == NULL || constraint->end_tokens == NULL || constraint->end_lens == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct hearth_tokens *end = &constraint->ends[constraint->end_count++];
        if (!tokenize(job, info->thinking_ends[i], end, error)) {
            return false;
        }
        constraint->end_tokens[i] = end->v;
        constraint->end_lens[i] = end->n;
    }
    if (!tokenize(job, info->thinking_start, &constraint->think_start, error) || !add_forced(job, constraint, error)) {
        return false;
    }
    constraint->thinks = constraint->think_start.n > 0 && constraint->ends[0].n > 0;
    constraint->thinking = (struct hearth_thinking){
        .start = constraint->think_start.v,
        .start_count = constraint->think_start.n,
        .ends = constraint->end_tokens,
        .end_counts = constraint->end_lens,
        .end_count = count,
        .prefill = constraint->prefill.v,
        .prefill_count = constraint->prefill.n,
        .budget_tokens = job->parsed->chat.reasoning_budget,
        .forced = constraint->forced.v,
        .forced_count = constraint->forced.n,
    };
    return true;
}

static bool add_stops(const struct hearth_job *job, struct hearth_api_constraint *constraint,
                      const struct hearth_chat_format_info *info) {
    const struct hearth_generation *generation = &job->parsed->generation;
    constraint->stops = calloc(generation->stop_count + info->stop_count + 1, sizeof *constraint->stops);
    if (constraint->stops == NULL) {
        return false;
    }
    for (size_t i = 0; i < generation->stop_count; i++) {
        constraint->stops[constraint->stop_count++] = generation->stops[i];
    }
    constraint->client_stops = constraint->stop_count;
    for (size_t i = 0; i < info->stop_count; i++) {
        if (info->stops[i][0] != '\0') {
            constraint->stops[constraint->stop_count++] = info->stops[i];
        }
    }
    return true;
}

bool hearth_api_constraint_of_chat(const struct hearth_job *job, struct hearth_api_rendered *out,
                                   struct hearth_api_error *error) {
    const struct hearth_chat_format_info *info = hearth_chat_format_info(job->resolved->format);
    struct hearth_api_constraint *constraint = calloc(1, sizeof *constraint);
    out->constraint = constraint;
    return constraint != NULL && add_prefill(job, constraint, info->generation_prompt, error) &&
           add_printed(job, constraint, info, error) && add_grammar(job, constraint, info, error) &&
           add_thinking(job, constraint, info, error) && add_stops(job, constraint, info);
}

bool hearth_api_constraint_of_text(const struct hearth_job *job, struct hearth_api_rendered *out,
                                   struct hearth_api_error *error) {
    const struct hearth_api_chat_options *options = &job->parsed->chat;
    static const struct hearth_chat_format_info none = {0};
    struct hearth_errmsg reason = {{0}};
    if (options->schema == NULL && options->grammar == NULL) {
        return true;
    }
    struct hearth_api_constraint *constraint = calloc(1, sizeof *constraint);
    out->constraint = constraint;
    if (constraint == NULL) {
        return false;
    }
    const char *text = options->grammar;
    if (text == NULL) {
        int rc = hearth_chat_schema_grammar(options->schema, &constraint->grammar_text, &reason);
        if (rc != HEARTH_OK) {
            hearth_api_fail_err(error, rc, &reason);
            snprintf(error->param, sizeof error->param, "response_format");
            return false;
        }
        text = (const char *)constraint->grammar_text.data;
    }
    constraint->grammar.text = text;
    return check_grammar(job, text, error) && add_stops(job, constraint, &none);
}

void hearth_api_constraint_destroy(struct hearth_api_constraint *constraint) {
    if (constraint == NULL) {
        return;
    }
    for (size_t i = 0; i < constraint->pattern_count; i++) {
        free(constraint->patterns[i]);
    }
    for (size_t i = 0; i < constraint->end_count; i++) {
        hearth_tokens_finish(&constraint->ends[i]);
    }
    hearth_buf_finish(&constraint->grammar_text);
    hearth_tokens_finish(&constraint->triggers);
    hearth_tokens_finish(&constraint->printed);
    hearth_tokens_finish(&constraint->prefill);
    hearth_tokens_finish(&constraint->think_start);
    hearth_tokens_finish(&constraint->forced);
    free(constraint->patterns);
    free(constraint->ends);
    free(constraint->end_tokens);
    free(constraint->end_lens);
    free(constraint->stops);
    free(constraint);
}

/* ---- on the loop ---- */

void hearth_api_constraint_fill_request(const struct hearth_job *job, struct hearth_request *request) {
    const struct hearth_api_constraint *constraint = job->rendered->constraint;
    if (constraint != NULL) {
        request->stops = constraint->stops;
        request->stop_count = constraint->stop_count;
        request->printed = constraint->printed.v;
        request->printed_count = constraint->printed.n;
    }
    if (job->rendered->scripted) { /* as it was written, whatever grammar and budget would say */
        request->script = job->rendered->script.v;
        request->script_count = job->rendered->script.n;
    } else if (constraint != NULL) {
        request->sampling.grammar = constraint->grammar.text != NULL ? &constraint->grammar : NULL;
        request->thinking = constraint->thinks ? &constraint->thinking : NULL;
    }
}

bool hearth_api_constraint_is_end(const struct hearth_api_constraint *constraint, const char *stop) {
    for (size_t i = constraint->client_stops; i < constraint->stop_count; i++) {
        if (strcmp(constraint->stops[i], stop) == 0) {
            return true;
        }
    }
    return false;
}

size_t hearth_api_constraint_reasoning_tokens(const struct hearth_api_constraint *constraint,
                                              const struct hearth_tokens *sampled) {
    if (!constraint->thinks) {
        return 0;
    }
    for (size_t at = 0; at < sampled->n; at++) {
        for (size_t i = 0; i < constraint->end_count; i++) {
            size_t len = constraint->end_lens[i];
            if (len > 0 && len <= sampled->n - at &&
                memcmp(sampled->v + at, constraint->end_tokens[i], len * sizeof *sampled->v) == 0) {
                return at + len;
            }
        }
    }
    return sampled->n; /* the reply was cut while it was thinking */
}
