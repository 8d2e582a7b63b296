/* Turns messages into prompt tokens, and replies into transcripts.
 *
 * A prompt is made in this order: replies of this server in the history are replaced by what was sampled; the template
 * renders the messages; the transcripts turn the text into tokens. The template may print a reply in other words than
 * were sampled. The parser (rereading.c) then decides whether both texts say the same; only then are the sampled tokens
 * used.
 *
 * With --keep-thinking the sampled tokens stay in the prompt although the template would leave a part of them out: the
 * prompt is the tokens up to the end of the last reply, and then the text that the template prints behind that reply.
 * To find that text, the reply is rendered once more with a mark in place of its content. */
#include "api/divergence.h"
#include "api/rereading.h"
#include "api/stored_turns.h"

#include "base/clock.h"
#include "base/log.h"
#include "sched/step.h"
#include "session/message_cache.h"
#include "session/first_values.h"
#include "session/toolsets.h"
#include "session/transcript.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- what lives as long as the API ---- */

bool hearth_history_init(struct hearth_api *api) {
    /* Of the memory, a quarter holds parsed messages beside their JSON, a sixteenth each the tools as they were first
     * printed and the tool sets of conversations, and the rest texts and tokens. */
    api->message_cache = hearth_message_cache_create(api->params.transcript_bytes / 4);
    api->first_values = hearth_first_values_create(api->params.transcript_bytes / 16);
    struct hearth_transcripts_params params = {.engine = api->engine,
                                               .budget_bytes = api->params.transcript_bytes / 8 * 5,
                                               .path = api->params.transcripts_path,
                                               .seal = api->params.transcripts_seal};
    api->toolsets = hearth_toolsets_create(api->params.transcript_bytes / 16);
    bool ok = api->message_cache != NULL && api->first_values != NULL && api->toolsets != NULL &&
              hearth_api_template_probe_run(api->chat, api->engine, &api->template_probe);
    params.turn_end = (const char *)api->template_probe.turn_end.data;
    params.template_text = hearth_chat_template(api->chat);
    return ok && hearth_transcripts_create(&params, &api->transcripts) == HEARTH_OK;
}

void hearth_history_shutdown(struct hearth_api *api) {
    hearth_transcripts_destroy(api->transcripts);
    hearth_first_values_destroy(api->first_values);
    hearth_message_cache_destroy(api->message_cache);
    hearth_toolsets_destroy(api->toolsets);
    hearth_api_template_probe_finish(&api->template_probe);
}

/* ---- resolve ---- */

/* The root of a request's transcripts. The switch for thinking is one of its arguments where the template prints it
 * among the messages. */
static struct hearth_transcript_root root_of(const struct hearth_job *job, const struct hearth_api_resolved *resolved) {
    const struct hearth_chat_request *request = &resolved->request;
    json_t *arguments = NULL;
    if (!request->thinking && job->api->template_probe.prints_thinking) {
        arguments = request->kwargs != NULL ? json_copy((json_t *)request->kwargs) : json_object();
        json_object_set_new(arguments, "enable_thinking", json_false());
    }
    const struct hearth_transcript_root root =
        hearth_transcript_root(request->tools, arguments != NULL ? arguments : request->kwargs, resolved->salt);
    json_decref(arguments);
    return root;
}

bool hearth_history_resolve(const struct hearth_job *job, struct hearth_api_resolved *out,
                            struct hearth_api_error *error) {
    const struct hearth_history *history = &out->history;
    const size_t bytes = history->count * sizeof(struct hearth_message *);
    struct hearth_message **sent = malloc(bytes);
    if (sent == NULL || (out->stored != NULL && !hearth_api_stored_fill_config(job, out, error))) {
        free(sent);
        return false;
    }
    memcpy(sent, history->messages, bytes);
    (void)hearth_transcripts_restore(job->api->transcripts, root_of(job, out), history->messages, history->count,
                                     job->api->template_probe.prints_ids);
    out->sampled_messages = history->count;
    while (out->sampled_messages > 0 &&
           history->messages[out->sampled_messages - 1] == sent[out->sampled_messages - 1]) {
        out->sampled_messages--; /* its message was not replaced by the sampled one */
    }
    free(sent);
    return true;
}

/* ---- prompts ---- */

static struct hearth_transcript_prompt transcript_prompt(const struct hearth_job *job,
                                                         struct hearth_rereading *rereading) {
    const struct hearth_chat_request *request = &job->resolved->request;
    const size_t unknown = job->resolved->unknown_messages;
    return (struct hearth_transcript_prompt){
        .root = root_of(job, job->resolved),
        .client = hearth_digest_bytes(job->client, strlen(job->client)),
        .names_previous = job->parsed->names_previous,
        .messages = request->messages,
        .message_count = request->message_count - (request->continues ? 1 : 0) - unknown,
        .reads = hearth_rereading_reads,
        .user = rereading,
    };
}

/* Marks closer than this many bytes are merged into the later one: the scheduler might take only the first, and more
 * prompts come back to the later. */
#define HEAD_GAP_BYTES (8 * HEARTH_MARK_MIN_GAP_TOKENS)

/* Adds marks where prompts of one client part that share only some of the system messages or tools. */
static void add_head(struct hearth_transcript_prompt *prompt, const struct hearth_chat_prompt *rendered, size_t from) {
    size_t next = rendered->system_end < rendered->text.len ? rendered->system_end : rendered->text.len;
    for (size_t i = rendered->head_count; i-- > 0;) {
        const size_t at = rendered->head[i];
        if (at >= from && at >= HEAD_GAP_BYTES && at + HEAD_GAP_BYTES <= next) {
            hearth_marks_add(prompt, at - from);
            next = at;
        }
    }
}

/* Where the prompt ends: at the end of its text, or a little before the text of a message that is not known yet; 0:
 * that place was not found. */
static size_t end_of_text(const struct hearth_job *job, const struct hearth_chat_prompt *rendered) {
    const size_t len = rendered->text.len, begins = rendered->last_input_start;
    if (job->resolved->unknown_messages == 0) {
        return len;
    }
    return begins <= len ? hearth_transcripts_cut(job->api->transcripts, (const char *)rendered->text.data, len, begins)
                         : 0;
}

static void set_text(const struct hearth_job *job, struct hearth_transcript_prompt *prompt,
                     const struct hearth_chat_prompt *rendered, size_t from, struct hearth_api_rendered *out) {
    const size_t marks[] = {rendered->system_end, rendered->last_input_start, rendered->generation_start};
    prompt->text = (const char *)rendered->text.data + from;
    prompt->len = end_of_text(job, rendered) - from;
    prompt->mark_count = 0;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (marks[i] >= from && marks[i] <= from + prompt->len) { /* NO_MARK is larger than any length */
            hearth_marks_add(prompt, marks[i] - from);
        }
    }
    add_head(prompt, rendered, from);
    hearth_breakpoints_mark(job, rendered, from, prompt, out);
}

/* Renders the request with a mark in the place of message `keep - 1`; returns where the text behind it begins, or 0. */
static size_t render_tail(const struct hearth_job *job, size_t keep, struct hearth_chat_prompt *rendered) {
    const struct hearth_chat_request *request = &job->resolved->request;
    char mark[48];
    struct hearth_errmsg msg;
    size_t from = 0;
    struct hearth_message **messages = calloc(request->message_count, sizeof(struct hearth_message *));
    snprintf(mark, sizeof mark, "hearth%016" PRIx64 "%016" PRIx64, job->api->mark_seed, ~job->api->mark_seed);
    struct hearth_message *marked = hearth_api_message_of(HEARTH_ROLE_ASSISTANT, mark, strlen(mark), NULL);
    if (messages != NULL && marked != NULL) {
        memcpy(messages, request->messages, request->message_count * sizeof(struct hearth_message *));
        messages[keep - 1] = marked;
        struct hearth_chat_request other = *request;
        other.messages = messages;
        if (hearth_chat_render(job->api->chat, &other, job->resolved->format, rendered, &msg) == HEARTH_OK) {
            const char *text = (const char *)rendered->text.data;
            const char *found = strstr(text, mark);
            size_t at = found != NULL ? (size_t)(found - text) + strlen(mark) : rendered->text.len;
            if (job->api->template_probe.turn_end.len > 1) { /* else nothing is printed behind every reply */
                at = hearth_specials_turn_end(hearth_transcripts_specials(job->api->transcripts), text,
                                              rendered->text.len, at);
            }
            from = at < rendered->text.len ? at : 0;
        }
    }
    hearth_message_unref(marked);
    free(messages);
    return from;
}

/* Tokenises the rendered text if it can fit the context; a request that counts tokens gets any number. Errors:
 * TOO_LONG, and those of hearth_transcripts_tokenize(). */
static int tokenize(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                    struct hearth_transcript_result *result) {
    struct hearth_api_error error;
    if ((job->route->flags & HEARTH_ROUTE_REPLY) != 0 &&
        !hearth_api_prompt_check_text(job->api, prompt->len, job->parsed->generation.room_tokens, "messages", &error)) {
        return HEARTH_ERR_TOO_LONG;
    }
    return hearth_transcripts_tokenize(job->api->transcripts, prompt, result);
}

/* Makes the prompt from the exact tokens of a stored conversation and the text that the template prints behind its last
 * reply. The transcripts usually have the same path, and with it the place where the reply will be remembered; if they
 * have lost it, the stored tokens stand alone. False: the text behind the reply is unknown, so everything must be
 * rendered. */
static bool make_exact(const struct hearth_job *job, struct hearth_transcript_prompt *prompt,
                       struct hearth_chat_prompt *rendered, struct hearth_transcript_result *result,
                       struct hearth_api_rendered *out) {
    const struct hearth_tokens *known = &job->resolved->stored->line.tokens;
    const struct hearth_specials *specials = hearth_transcripts_specials(job->api->transcripts);
    const size_t keep = job->resolved->stored->exact_messages;
    const size_t from = render_tail(job, keep, rendered);
    if (from == 0) {
        return false;
    }
    prompt->prefix_messages = keep;
    set_text(job, prompt, rendered, from, out);
    int err = tokenize(job, prompt, result);
    if (err == HEARTH_OK) {
        if (result->tokens.n >= known->n && memcmp(result->tokens.v, known->v, known->n * sizeof *known->v) == 0) {
            return true;
        }
        hearth_transcript_release(job->api->transcripts, result->place);
        hearth_tokens_finish(&result->tokens);
        hearth_transcript_fork_finish(&result->fork);
    }
    *result = (struct hearth_transcript_result){.known_tokens = known->n, .sampled_tokens = 0};
    if (err != HEARTH_ERR_TOO_LONG && hearth_tokens_append(&result->tokens, known->v, known->n) &&
        hearth_specials_tokenize(specials, prompt->text, prompt->len, false, &result->tokens) >= 0) {
        result->marks[result->mark_count++] = (int32_t)known->n;
        return true;
    }
    hearth_tokens_finish(&result->tokens);
    return false;
}

/* Renders and tokenises. The caller finishes `rendered`. */
static int make_tokens(const struct hearth_job *job, struct hearth_transcript_prompt *prompt,
                       struct hearth_chat_prompt *rendered, struct hearth_transcript_result *result,
                       struct hearth_api_rendered *out, struct hearth_errmsg *msg) {
    const struct hearth_api_resolved *resolved = job->resolved;
    const struct hearth_chat_request *request = &resolved->request;
    if (resolved->stored != NULL && resolved->stored->same_config && !request->continues) {
        if (make_exact(job, prompt, rendered, result, out)) {
            return HEARTH_OK;
        }
        prompt->prefix_messages = 0;
        hearth_chat_prompt_finish(rendered);
    }
    size_t keep = job->api->params.keep_thinking && !request->continues ? resolved->sampled_messages : 0;
    if (keep > 0) {
        size_t from = render_tail(job, keep, rendered);
        if (from > 0) {
            prompt->prefix_messages = keep;
            set_text(job, prompt, rendered, from, out);
            if (tokenize(job, prompt, result) == HEARTH_OK) {
                return HEARTH_OK;
            }
            prompt->prefix_messages = 0;
        }
        hearth_chat_prompt_finish(rendered);
    }
    int err = hearth_chat_render(job->api->chat, request, resolved->format, rendered, msg);
    if (err == HEARTH_OK) {
        set_text(job, prompt, rendered, 0, out);
        err = prompt->len > 0 ? tokenize(job, prompt, result) : hearth_fail(msg, HEARTH_ERR_INVALID, "no prompt");
    }
    return err;
}

/* Moves the last mark, which stands where the generation prompt begins. The template may print tokens in front of it
 * only as long as no reply follows. The mark moves before these, to where the next turn's prompt leaves this one, and
 * one token further back, because the last token may depend on the text behind it. */
static void move_end_mark(const struct hearth_job *job, struct hearth_api_prompt *prompt) {
    const struct hearth_chat_request *request = &job->resolved->request;
    const struct hearth_api *api = job->api;
    const struct hearth_message *last = request->messages[request->message_count - 1];
    const struct hearth_tokens *rewritten =
        last->role == HEARTH_ROLE_TOOL ? &api->template_probe.result_rewritten : &api->template_probe.asked_rewritten;
    if (prompt->mark_count == 0 || rewritten->n == 0 || job->resolved->unknown_messages > 0) {
        return;
    }
    int32_t mark = prompt->marks[prompt->mark_count - 1], to = mark - (int32_t)rewritten->n - 1;
    if (to <= 0 || memcmp(prompt->tokens.v + to + 1, rewritten->v, rewritten->n * sizeof *rewritten->v) != 0) {
        return;
    }
    while (prompt->mark_count > 1 && prompt->marks[prompt->mark_count - 2] >= to) {
        prompt->mark_count--;
    }
    prompt->marks[prompt->mark_count - 1] = to;
}

/* Where tools and system text end, in tokens; 0: unknown. */
static int32_t head_tokens(const struct hearth_transcript_prompt *from, const struct hearth_chat_prompt *rendered,
                           const struct hearth_transcript_result *result) {
    for (size_t i = 0; i < from->mark_count && from->prefix_messages == 0; i++) {
        if (from->marks[i] == rendered->system_end) {
            return result->placed[i];
        }
    }
    return 0;
}

/* Takes over the result of tokenising. */
static void take_result(const struct hearth_job *job, const struct hearth_transcript_prompt *from,
                        const struct hearth_chat_prompt *rendered, struct hearth_transcript_result *result,
                        struct hearth_api_rendered *out) {
    const struct hearth_chat_request *request = &job->resolved->request;
    struct hearth_api_prompt *prompt = &out->prompts[0];
    out->chat = true;
    out->place = result->place;
    out->known_tokens = result->known_tokens;
    out->sampled_tokens = result->sampled_tokens;
    if (request->continues) {
        out->begun = hearth_message_ref(request->messages[request->message_count - 1]);
    }
    prompt->tokens = result->tokens;
    prompt->mark_count = 0;
    for (size_t i = 0; i < result->mark_count; i++) {
        if ((size_t)result->marks[i] < result->tokens.n) {
            prompt->marks[prompt->mark_count++] = result->marks[i];
        }
    }
    prompt->head_tokens = head_tokens(from, rendered, result);
    move_end_mark(job, prompt);
    hearth_breakpoints_pin(job, from, result, out);
}

bool hearth_history_prompt(const struct hearth_job *job, struct hearth_api_rendered *out,
                           struct hearth_api_error *error) {
    const struct hearth_chat_request *request = &job->resolved->request;
    const int32_t room = job->parsed->generation.room_tokens;
    struct hearth_chat_prompt rendered = {.text = {0}};
    struct hearth_transcript_result result = {0};
    struct hearth_errmsg msg = {{0}};
    struct hearth_rereading rereading;
    hearth_rereading_init(&rereading, job, request);
    struct hearth_transcript_prompt prompt = transcript_prompt(job, &rereading);
    int err = make_tokens(job, &prompt, &rendered, &result, out, &msg);
    const bool ok = err == HEARTH_OK;
    if (err == HEARTH_ERR_TOO_LONG) {
        (void)hearth_api_prompt_check_text(job->api, prompt.len, room, "messages", error);
    } else if (!ok) {
        hearth_api_fail_err(error, err, &msg);
    } else {
        take_result(job, &prompt, &rendered, &result, out);
        out->divergence = result.fork.known ? hearth_memory_calloc(1, sizeof *out->divergence) : NULL;
    }
    if (out->divergence != NULL) {
        hearth_divergence_find(job, &prompt, &rendered, &result.fork, out->divergence);
    }
    hearth_transcript_fork_finish(&result.fork);
    out->prepare_us = hearth_clock_us() - job->prepare_start_us;
    hearth_chat_prompt_finish(&rendered);
    hearth_rereading_finish(&rereading);
    return ok && hearth_api_prompt_check_length(job->api, &out->prompts[0], room, "messages", error);
}

/* ---- replies ---- */

/* Removes a stop string, and what was sampled behind it, from the tokens. A token in which the stop string begins is
 * replaced by tokens for its first part. False: out of memory. */
static bool cut_at_stop(const struct hearth_api *api, struct hearth_tokens *tokens, const char *stop) {
    struct hearth_buf text = {0};
    size_t kept = 0, kept_bytes = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < tokens->n; i++) {
        ok = hearth_engine_append_text(api->engine, tokens->v[i], true, &text);
    }
    const char *found = ok && text.len > 0 ? memmem(text.data, text.len, stop, strlen(stop)) : NULL;
    if (found != NULL) {
        size_t end = (size_t)((const uint8_t *)found - text.data);
        struct hearth_buf token = {0};
        for (; ok && kept < tokens->n; kept++) {
            token.len = 0;
            ok = hearth_engine_append_text(api->engine, tokens->v[kept], true, &token);
            if (kept_bytes + token.len > end) {
                break;
            }
            kept_bytes += token.len;
        }
        hearth_buf_finish(&token);
        tokens->n = kept;
        const char *rest = (const char *)text.data + kept_bytes;
        ok = ok && api->engine->ops->tokenize(api->engine, rest, end - kept_bytes, false, false, tokens) == HEARTH_OK;
    }
    hearth_buf_finish(&text);
    return ok;
}

void hearth_history_remember(struct hearth_choice *choice, struct hearth_message *message, const char *stop) {
    struct hearth_job *job = choice->job;
    struct hearth_engine *engine = job->api->engine;
    const struct hearth_api_rendered *rendered = job->rendered;
    struct hearth_message *whole =
        rendered->begun != NULL ? hearth_history_join(rendered->begun, message) : hearth_message_ref(message);
    size_t count = choice->sampled.n;
    if (whole != NULL) {
        hearth_api_tools_remember(job, whole);
    }
    if (count > 0 && engine->ops->token_is_end(engine, choice->sampled.v[count - 1])) {
        count--;
    }
    choice->sampled.n = count;
    if (whole != NULL && (stop == NULL || cut_at_stop(job->api, &choice->sampled, stop)) && rendered->place != NULL) {
        hearth_transcripts_remember(job->api->transcripts, rendered->place, whole, choice->sampled.v,
                                    choice->sampled.n);
    }
    hearth_message_unref(whole);
}

/* ---- the receipt's part ---- */

uint32_t hearth_history_replies(const struct hearth_chat_request *request) {
    uint32_t n = 0;
    for (size_t i = 0; i < request->message_count; i++) {
        n += request->messages[i]->role == HEARTH_ROLE_ASSISTANT;
    }
    return n;
}

#define WORTH_TOKENS 16 /* every two prompts of a template share this much, which costs nothing */

void hearth_history_refine_reason(const struct hearth_job *job, struct hearth_receipt *receipt) {
    const struct hearth_divergence *divergence = job->rendered->divergence;
    if (receipt->reason != HEARTH_REASON_DIVERGED) {
        return;
    }
    if (divergence == NULL) {
        receipt->reason = receipt->matched_tokens < WORTH_TOKENS ? HEARTH_REASON_COLD : HEARTH_REASON_DIVERGED;
    } else if (divergence->report.saved_tokens < WORTH_TOKENS) {
        const bool begins =
            divergence->diagnosis.cause == HEARTH_CAUSE_OTHER || hearth_history_replies(&job->resolved->request) == 0;
        receipt->reason = begins ? HEARTH_REASON_COLD : HEARTH_REASON_EXTENDED;
    }
}
