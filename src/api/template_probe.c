/* Finds out at load what a template does, by rendering messages that differ in one thing. */
#include "api/internal.h"

#include <stdlib.h>
#include <string.h>

#define REWRITTEN_MAX 16 /* tokens; a longer difference is another text, not an ending printed in two ways */

/* A message for trying the template out; NULL: out of memory. */
static struct hearth_message *probe_message(enum hearth_role role, const char *content) {
    struct hearth_message *message = hearth_message_create(role);
    if (message != NULL) {
        message->content = strdup(content);
        message->content_len = message->content != NULL ? strlen(content) : 0;
    }
    return message;
}

/* Renders messages, which it takes (any may be NULL). False: the template refuses them, or out of memory. */
static bool render_probe(struct hearth_chat *chat, struct hearth_message **messages, size_t count, bool ends,
                         bool thinking, struct hearth_chat_prompt *out) {
    struct hearth_chat_request request = {
        .messages = messages, .message_count = count, .thinking = thinking, .no_generation_prompt = ends};
    struct hearth_chat_format *format = NULL;
    struct hearth_errmsg msg;
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        ok = ok && messages[i] != NULL && messages[i]->content != NULL && hearth_message_seal(messages[i]);
    }
    ok = ok && hearth_chat_format_get(chat, &request, &format, &msg) == HEARTH_OK &&
         hearth_chat_render(chat, &request, format, out, &msg) == HEARTH_OK;
    hearth_chat_format_unref(format);
    for (size_t i = 0; i < count; i++) {
        hearth_message_unref(messages[i]);
    }
    return ok;
}

/* A call with this id and its result; with `more`, a reply to it and another message of the user. */
static bool render_call(struct hearth_chat *chat, const char *id, bool more, struct hearth_chat_prompt *out) {
    struct hearth_message *messages[] = {probe_message(HEARTH_ROLE_USER, "x"), probe_message(HEARTH_ROLE_ASSISTANT, ""),
                                         probe_message(HEARTH_ROLE_TOOL, "y"),
                                         more ? probe_message(HEARTH_ROLE_ASSISTANT, "z") : NULL,
                                         more ? probe_message(HEARTH_ROLE_USER, "x") : NULL};
    bool ok = messages[1] != NULL && messages[2] != NULL && hearth_message_alloc_calls(messages[1], 1);
    if (ok) {
        struct hearth_call *call = &messages[1]->calls[0];
        *call = (struct hearth_call){strdup(id), strdup("f"), strdup("{}"), NULL};
        messages[2]->tool_call_id = strdup(id);
        ok = call->id != NULL && call->name != NULL && call->arguments != NULL && messages[2]->tool_call_id != NULL;
    }
    if (!ok) { /* there is nothing to render */
        hearth_message_unref(messages[0]);
        messages[0] = NULL;
    }
    return render_probe(chat, messages, more ? 5 : 3, more, true, out);
}

/* Whether the ids of calls are printed: renders two histories that differ only in them. */
static bool prints_ids(struct hearth_chat *chat) {
    struct hearth_chat_prompt a = {.text = {0}}, b = {.text = {0}};
    bool same = render_call(chat, "a1b2c3d4e", false, &a) && render_call(chat, "f5g6h7i8j", false, &b) &&
                a.text.len == b.text.len && memcmp(a.text.data, b.text.data, a.text.len) == 0;
    hearth_chat_prompt_finish(&a);
    hearth_chat_prompt_finish(&b);
    return !same;
}

/* A user's message, one of the assistant and, if wanted, another of the user. */
static bool render_around(struct hearth_chat *chat, const char *said, bool more, bool thinking,
                          struct hearth_chat_prompt *out) {
    struct hearth_message *messages[] = {probe_message(HEARTH_ROLE_USER, "a"),
                                         probe_message(HEARTH_ROLE_ASSISTANT, said),
                                         more ? probe_message(HEARTH_ROLE_USER, "b") : NULL};
    return render_probe(chat, messages, more ? 3 : 2, true, thinking, out);
}

/* Whether a conversation is printed differently without thinking, even before the next reply begins. */
static bool prints_thinking(struct hearth_chat *chat) {
    struct hearth_chat_prompt with = {.text = {0}}, without = {.text = {0}};
    bool same = render_around(chat, "x", true, true, &with) && render_around(chat, "x", true, false, &without) &&
                with.text.len == without.text.len && memcmp(with.text.data, without.text.data, with.text.len) == 0;
    hearth_chat_prompt_finish(&with);
    hearth_chat_prompt_finish(&without);
    return !same;
}

/* What the template prints behind a message of the assistant, whatever comes next. */
static bool find_turn_end(struct hearth_chat *chat, struct hearth_buf *out) {
    static const char said[] = "hearthturn";
    struct hearth_chat_prompt last = {.text = {0}}, between = {.text = {0}};
    if (render_around(chat, said, false, true, &last) && render_around(chat, said, true, true, &between)) {
        const char *a = strstr((const char *)last.text.data, said), *b = strstr((const char *)between.text.data, said);
        if (a != NULL && b != NULL) {
            a += sizeof said - 1;
            b += sizeof said - 1;
            size_t n = 0;
            while (a[n] != '\0' && a[n] == b[n]) {
                n++;
            }
            (void)hearth_buf_append(out, a, n);
        }
    }
    hearth_chat_prompt_finish(&last);
    hearth_chat_prompt_finish(&between);
    return hearth_buf_append(out, "", 1);
}

/* A message of the user, as the last one or with a reply and another one behind it. */
static bool render_asked(struct hearth_chat *chat, bool more, struct hearth_chat_prompt *out) {
    struct hearth_message *message = more ? NULL : probe_message(HEARTH_ROLE_USER, "a"); /* as in render_around() */
    return more ? render_around(chat, "x", true, true, out) : render_probe(chat, &message, 1, false, true, out);
}

/* The same for the result of a tool's call. */
static bool render_result(struct hearth_chat *chat, bool more, struct hearth_chat_prompt *out) {
    return render_call(chat, "a1b2c3d4e", more, out);
}

static bool tokenize(struct hearth_engine *engine, const struct hearth_buf *text, size_t len,
                     struct hearth_tokens *tokens) {
    return engine->ops->tokenize(engine, (const char *)text->data, len, true, true, tokens) == HEARTH_OK;
}

/* The tokens from where two prompts part to where the first one's generation prompt begins. */
static void find_rewritten(struct hearth_engine *engine, const struct hearth_chat_prompt *last,
                           const struct hearth_chat_prompt *between, struct hearth_tokens *out) {
    struct hearth_tokens a = {0}, b = {0};
    if (last->generation_start <= last->text.len && tokenize(engine, &last->text, last->generation_start, &a) &&
        tokenize(engine, &between->text, between->text.len, &b)) {
        size_t same = hearth_tokens_common(a.v, a.n, b.v, b.n);
        if (same < a.n && a.n - same <= REWRITTEN_MAX) {
            (void)hearth_tokens_assign(out, a.v + same, a.n - same); /* else they are computed again */
        }
    }
    hearth_tokens_finish(&a);
    hearth_tokens_finish(&b);
}

/* The same for a prompt rendered with and without more messages behind it. */
static void try_rewritten(struct hearth_chat *chat, struct hearth_engine *engine,
                          bool (*render)(struct hearth_chat *chat, bool more, struct hearth_chat_prompt *out),
                          struct hearth_tokens *rewritten) {
    struct hearth_chat_prompt last = {.text = {0}}, between = {.text = {0}};
    if (render(chat, false, &last) && render(chat, true, &between)) {
        find_rewritten(engine, &last, &between, rewritten);
    }
    hearth_chat_prompt_finish(&last);
    hearth_chat_prompt_finish(&between);
}

bool hearth_api_template_probe_run(struct hearth_chat *chat, struct hearth_engine *engine,
                                   struct hearth_api_template_probe *probe) {
    *probe =
        (struct hearth_api_template_probe){.prints_ids = prints_ids(chat), .prints_thinking = prints_thinking(chat)};
    try_rewritten(chat, engine, render_asked, &probe->asked_rewritten);
    try_rewritten(chat, engine, render_result, &probe->result_rewritten);
    return find_turn_end(chat, &probe->turn_end);
}

void hearth_api_template_probe_finish(struct hearth_api_template_probe *probe) {
    hearth_buf_finish(&probe->turn_end);
    hearth_tokens_finish(&probe->asked_rewritten);
    hearth_tokens_finish(&probe->result_rewritten);
}
