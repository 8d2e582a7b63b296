/* Chat templates: messages in, prompt text out, through llama.cpp's `common` (Jinja). chat.cpp is the only C++ in
 * hearth. It needs no model: the template's text and the BOS/EOS texts are enough.
 *
 * Threads: a hearth_chat may be used by several threads at once. */
#ifndef HEARTH_CHAT_CHAT_H
#define HEARTH_CHAT_CHAT_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct hearth_chat;

struct hearth_chat_params {
    const char *template_text; /* Jinja, or the name of one of llama.cpp's built-in templates ("chatml"); NULL or ""
                                  stands for chatml */
    const char *bos_text, *eos_text; /* "" when the vocabulary has none */
    bool add_bos;              /* the tokenizer adds BOS itself: one printed by the template is removed */
};

/* Errors: TEMPLATE (it does not parse; the message says where), NOMEM. */
int hearth_chat_create(const struct hearth_chat_params *params, struct hearth_chat **out, struct hearth_errmsg *msg);
void hearth_chat_destroy(struct hearth_chat *chat);

/* The template's source text; owned by the chat. */
const char *hearth_chat_template(const struct hearth_chat *chat);

#define HEARTH_CHAT_NO_MARK ((size_t)-1)

/* A rendered prompt. The marks are byte offsets into the text where other prompts are likely to leave this one, or
 * HEARTH_CHAT_NO_MARK: */
struct hearth_chat_prompt {
    struct hearth_buf text;  /* NUL-terminated */
    size_t system_end;       /* where the content of the first message after the system messages begins */
    size_t last_input_start; /* where the content of the last user or tool message begins */
};

void hearth_chat_prompt_finish(struct hearth_chat_prompt *prompt);

/* Renders messages.
 * Shape: `messages_json` is an array in the form of the OpenAI API, already validated (roles and content types);
 * `kwargs_json` is an object of template arguments, or NULL.
 * Owns: `out` is filled and the caller finishes it (also after a failure it is safe to).
 * Errors: TEMPLATE (the template refused the messages: its own words), NOMEM. */
int hearth_chat_render(struct hearth_chat *chat, const char *messages_json, const char *kwargs_json,
                       bool add_generation_prompt, struct hearth_chat_prompt *out, struct hearth_errmsg *msg);

#endif
