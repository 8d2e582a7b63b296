/* Anthropic's Messages.
 *
 *     request.c    a request's fields, and the endpoints    tools.c    tools, and which may be called
 *     blocks.c     content blocks to messages               forms.c    ids, and what a block is
 *     events.c     the reply, whole or streamed             signature.c  thinking that comes back as it went
 *
 * Source: https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/api/messages-streaming */
#ifndef HEARTH_API_ANTHROPIC_ANTHROPIC_H
#define HEARTH_API_ANTHROPIC_ANTHROPIC_H

#include "api/stored_turns.h"

/* ---- forms.c: how a request is read ---- */

struct hearth_anthropic_reading {
    const struct hearth_job *job; /* job->resolved is what a thread continues, or empty */
    struct hearth_api_parsed *out;
    struct hearth_api_error *error;
    char place[128];    /* in the body, for errors: "messages.2.content.0" */
    size_t breakpoints; /* found so far; the first few are in the generation, by the index of their message */
    bool session;       /* the conversation continues a stored one */
    json_t *thread;     /* config of the thread that it continues, or NULL */
};

/* Fills the error, naming the reading's place, and returns false. */
bool hearth_anthropic_fail(struct hearth_anthropic_reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same at another place. */
bool hearth_anthropic_fail_at(struct hearth_anthropic_reading *reading, const char *place, const char *what);
/* Reads an object's cache_control, if it has one: a breakpoint behind the first `upto` bytes of message `index` of the
 * history to be (SIZE_MAX: at its end). */
bool hearth_anthropic_read_cache_control(struct hearth_anthropic_reading *reading, const json_t *object, size_t index,
                                         size_t upto);

/* ---- tools.c ---- */

/* Reads tools, those that messages define among them, and tool_choice; `neutral` is the request in the chat's form. */
bool hearth_anthropic_read_tools(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral);
/* A block of a system message: {"type": "tool_addition" or "tool_removal", "tool": {"type": "tool_reference", "name"}
 * or, of an addition, {"type": "tool_definition", "definition": {a tool}}}. What the model is told is appended. */
bool hearth_anthropic_read_tool_change(struct hearth_anthropic_reading *reading, const json_t *block, bool removal,
                                       struct hearth_buf *text);

/* ---- forms.c ---- */

/* Prints the id of a call in Anthropic's form: toolu_ takes the place of call_, and is put in front of ids without it.
 * The caller frees it; NULL: out of memory. */
char *hearth_anthropic_id_printed(const char *id);
char *hearth_anthropic_id_read(const char *id);
/* Whether a document holds its text. */
bool hearth_anthropic_is_text(const json_t *document);
/* Whether a block is of a type that hosted tools and other services leave in a history: no template prints it. */
bool hearth_anthropic_is_left_out(const char *type);
/* Whether content (or NULL) says nothing: there is none, or only texts without a character. */
bool hearth_anthropic_is_empty(const json_t *content);

/* ---- blocks.c ---- */

/* Stands for the front of the conversation: a breakpoint in the system text or the tools. */
#define HEARTH_ANTHROPIC_FRONT SIZE_MAX

/* Reads system and messages, and their breakpoints. */
bool hearth_anthropic_read_messages(struct hearth_anthropic_reading *reading, const json_t *body);

/* ---- events.c ---- */

struct hearth_anthropic_state; /* job->dialect_state */

/* `body`: what the form of the response depends on. NULL: out of memory. */
struct hearth_anthropic_state *hearth_anthropic_state_create(const json_t *body);
extern const struct hearth_dialect hearth_anthropic_dialect;

/* ---- signature.c ---- */

#define HEARTH_SIGNATURE_CHARS 48

/* Writes the signature of a text and a NUL. False: OpenSSL failed. */
bool hearth_signature_make(const struct hearth_api *api, const char *text, size_t len,
                           char out[HEARTH_SIGNATURE_CHARS + 1]);

enum hearth_signature { HEARTH_SIGNATURE_FOREIGN, HEARTH_SIGNATURE_WRONG, HEARTH_SIGNATURE_VALID };

/* FOREIGN: no server with this secret has signed anything like it. WRONG: one has signed another text, or the signature
 * was changed. */
enum hearth_signature hearth_signature_check(const struct hearth_api *api, const char *text, size_t len,
                                             const char *signature);

/* ---- endpoints ---- */

hearth_api_now_fn hearth_anthropic_begin;
hearth_api_prepare_fn hearth_anthropic_messages_prepare;
extern const struct hearth_api_phases hearth_anthropic_count_phases;

#endif
