/* Finds the format in which an earlier reply is to be parsed again.
 *
 * The form of a reply depends on the request that it answered: on the tools that it could call, on thinking, on a
 * schema. The request that brings the reply back as history may differ in all of these, so its own format does not fit.
 * Earlier replies are therefore parsed like replies to a request with all tools and a free choice, without schema or
 * grammar.
 *
 * Three things depend on the reply itself. First, whether it has thinking and whether it follows a tool result, where
 * some templates begin a reply differently: the end of its prompt tells, and the format whose generation prompt is this
 * end is taken. Second, a reply that continued a message is parsed together with the beginning of that message. Third,
 * where the reasoning is part of the content, it stays there.
 *
 * The request's own format is tried last: a forced reply may look like nothing that a free choice gives. */
#include "api/rereading.h"

#include "base/assert.h"

#include <string.h>

/* One bit each; then the place of the reasoning times four; behind all of these the same with values as texts. */
enum { NO_THINKING = 1, BEHIND_RESULT = 2, PLACE = 4, AS_TEXTS = 12 };
enum reasoning_place { APART, IN_CONTENT, IN_BOTH };

/* All tools that an earlier reply may have called. */
static const json_t *known_tools(const struct hearth_rereading *rereading) {
    const json_t *known = rereading->job->resolved->known;
    return known != NULL ? known : rereading->request->tools;
}

static struct hearth_chat_format *make(const struct hearth_rereading *rereading, size_t which) {
    static const enum hearth_chat_reasoning_format places[] = {[APART] = HEARTH_REASONING_AUTO,
                                                               [IN_CONTENT] = HEARTH_REASONING_NONE,
                                                               [IN_BOTH] = HEARTH_REASONING_DEEPSEEK_LEGACY};
    struct hearth_chat *chat = rereading->job->api->chat;
    struct hearth_message last = {.role = (which & BEHIND_RESULT) != 0 ? HEARTH_ROLE_TOOL : HEARTH_ROLE_USER};
    struct hearth_message *messages[] = {&last};
    const struct hearth_chat_request request = {.messages = messages,
                                                .message_count = 1,
                                                .tools = known_tools(rereading),
                                                .tool_choice = HEARTH_TOOLS_AUTO,
                                                .parallel_calls = hearth_chat_abilities(chat)->parallel_calls,
                                                .reasoning_format = places[which % AS_TEXTS / PLACE],
                                                .thinking = (which & NO_THINKING) == 0,
                                                .kwargs = rereading->request->kwargs,
                                                .salt = rereading->job->owner};
    struct hearth_chat_format *format = NULL;
    struct hearth_errmsg msg;
    /* NULL: replies are taken as they are printed. */
    (void)(which < AS_TEXTS ? hearth_chat_format_get : hearth_chat_format_get_texts)(chat, &request, &format, &msg);
    return format;
}

static struct hearth_chat_format *format_of(struct hearth_rereading *rereading, size_t which) {
    if (!rereading->tried[which]) {
        rereading->formats[which] = make(rereading, which);
        rereading->tried[which] = true;
    }
    return rereading->formats[which];
}

/* The request's own format. */
static size_t usual(const struct hearth_chat_request *request) {
    const struct hearth_message *last = request->messages[request->message_count - 1];
    return (request->thinking ? 0U : NO_THINKING) | (last->role == HEARTH_ROLE_TOOL ? BEHIND_RESULT : 0U);
}

static bool is_free(const struct hearth_job *job, const struct hearth_chat_request *request) {
    return request->tool_choice == HEARTH_TOOLS_AUTO && job->resolved->offered == NULL &&
           job->resolved->known == NULL && request->json_schema == NULL && request->grammar == NULL &&
           !request->continues && request->parallel_calls == hearth_chat_abilities(job->api->chat)->parallel_calls &&
           (request->reasoning_format == HEARTH_REASONING_AUTO ||
            request->reasoning_format == HEARTH_REASONING_DEEPSEEK);
}

void hearth_rereading_init(struct hearth_rereading *rereading, const struct hearth_job *job,
                           const struct hearth_chat_request *request) {
    *rereading = (struct hearth_rereading){.job = job, .request = request};
    const size_t which = usual(request);
    if (is_free(job, request)) { /* the same as its own */
        rereading->formats[which] = hearth_chat_format_ref(job->resolved->format);
        rereading->tried[which] = true;
        return;
    }
    for (size_t i = 0; i < request->message_count; i++) {
        if (request->messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            (void)format_of(rereading, which);
            return;
        }
    }
}

void hearth_rereading_finish(struct hearth_rereading *rereading) {
    for (size_t i = 0; i < HEARTH_REREADING_FORMATS; i++) {
        hearth_chat_format_unref(rereading->formats[i]);
    }
}

/* ---- one reply ---- */

static enum reasoning_place place_of(const struct hearth_chat_format *format, const struct hearth_message *message) {
    const char *start = hearth_chat_format_info(format)->thinking_start;
    if (start[0] == '\0' || strstr(message->content, start) == NULL) {
        return APART;
    }
    return message->reasoning == NULL ? IN_CONTENT : IN_BOTH;
}

/* The part of a prompt's ending behind the last generation prompt of a format; NULL: the ending has none. */
static const char *behind(const struct hearth_chat_format *format, const struct hearth_transcript_print *print) {
    const char *begin = hearth_chat_format_info(format)->generation_prompt;
    const size_t len = strlen(begin);
    for (size_t at = print->head_len + 1; at-- > len;) {
        if (memcmp(print->head + at - len, begin, len) == 0) {
            return print->head + at;
        }
    }
    return NULL;
}

/* The format that fits the prompt's ending best, and what of the ending stands behind its generation prompt (NULL: no
 * format fits). */
static size_t fitting(struct hearth_rereading *rereading, const struct hearth_transcript_print *print,
                      const struct hearth_message *message, const char **rest) {
    const char *end = print->head + print->head_len;
    size_t best = 0;
    *rest = NULL;
    for (size_t i = 0; i < PLACE && *rest != end; i++) {
        size_t which = usual(rereading->request) ^ i;
        struct hearth_chat_format *format = format_of(rereading, which);
        which += format != NULL ? place_of(format, message) * PLACE : 0;
        format = format_of(rereading, which);
        const char *left = format != NULL ? behind(format, print) : NULL;
        if (left != NULL && (*rest == NULL || left > *rest)) {
            best = which;
            *rest = left;
        }
    }
    return best;
}

static bool reads_in(const struct hearth_chat_format *format, const char *text, size_t len,
                     const struct hearth_message *message) {
    struct hearth_message *read = NULL;
    struct hearth_errmsg msg;
    const bool same =
        hearth_chat_parse(format, text, len, &read, &msg) == HEARTH_OK && hearth_message_is_print(read, message);
    hearth_message_unref(read);
    return same;
}

static bool reads_behind(const struct hearth_chat_format *format, const struct hearth_transcript_print *print,
                         const char *rest, const struct hearth_message *message) {
    const size_t more = (size_t)(print->head + print->head_len - rest);
    struct hearth_buf whole = {0};
    if (more == 0) {
        return reads_in(format, print->text, print->len, message);
    }
    const bool same = hearth_buf_append(&whole, rest, more) && hearth_buf_append(&whole, print->text, print->len) &&
                      reads_in(format, (const char *)whole.data, whole.len, message);
    hearth_buf_finish(&whole);
    return same;
}

/* Reads a print again. A template may print values that the model must not write ("True" where the schema wants a
 * boolean); these are then read as texts. */
bool hearth_rereading_reads(void *user, const struct hearth_transcript_print *print,
                            const struct hearth_message *message) {
    struct hearth_rereading *rereading = user;
    struct hearth_chat_format *own = rereading->job->resolved->format;
    const char *rest;
    const size_t which = fitting(rereading, print, message, &rest);
    const struct hearth_chat_format *format = rest != NULL ? format_of(rereading, which) : NULL;
    if (format != NULL && reads_behind(format, print, rest, message)) {
        return true;
    }
    if (format != own && !rereading->request->continues && reads_in(own, print->text, print->len, message)) {
        return true;
    }
    const bool calls = format != NULL && message->call_count > 0;
    const struct hearth_chat_format *texts = calls ? format_of(rereading, AS_TEXTS + which) : NULL;
    return texts != NULL && reads_behind(texts, print, rest, message);
}
