/* Chat templates, and what hangs on them: messages in, prompt text out; reply text in, message out. Everything goes
 * through llama.cpp's `common`; the .cpp files of this room are the only C++ in hearth. No model is needed: the
 * template's text and the BOS/EOS texts are enough.
 *
 *     template.cpp      hearth_chat: loading, rendering, marks
 *     names.cpp         which arguments a template looks at
 *     injection.cpp     texts of control tokens in a request
 *     history_form.cpp  histories in the form that a strict template takes
 *     format.cpp        hearth_chat_format: what a reply to a request looks like: grammar, triggers, tags, parser
 *     tools.cpp         tools as they are printed, and as prints are read
 *     generic.cpp       tools for templates that know none
 *     reply_parser.cpp  what the text of a reply says so far
 *     stream.cpp        hearth_chat_stream: a reply as it grows, in deltas
 *     grammar.cpp       JSON schemas to grammars
 *     schema*.c         which JSON schemas can be kept, and how
 *
 * Threads: a hearth_chat and a hearth_chat_format may be used by several threads at once; a hearth_chat_stream by one
 * at a time. No exception leaves this room. */
#ifndef HEARTH_CHAT_CHAT_H
#define HEARTH_CHAT_CHAT_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "session/message.h"
#include "session/specials.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct hearth_chat;

struct hearth_chat_params {
    const char *template_text; /* Jinja, or the name of one of llama.cpp's built-in templates ("chatml"); NULL or ""
                                  stands for chatml */
    const char *bos_text, *eos_text; /* "" when the vocabulary has none */
    bool add_bos;                    /* the tokenizer adds BOS itself: one printed by the template is removed */
};

/* Errors: TEMPLATE (it does not parse; the message says where), NOMEM. */
int hearth_chat_create(const struct hearth_chat_params *params, struct hearth_chat **out, struct hearth_errmsg *msg);
void hearth_chat_destroy(struct hearth_chat *chat); /* NULL is allowed */

/* The template's source text; owned by the chat. */
const char *hearth_chat_template(const struct hearth_chat *chat);

/* What hearth does to a history for a template that refuses it, loses words of it, or prints them in another place.
 * Found by trying the template at creation, and the same for every request: a longer history begins with the text of a
 * shorter one. Name in /props, and what the log says. */
#define HEARTH_CHAT_FORM_TABLE(X)                                                                        \
    X(IDS_SHORT, "ids_short", "ids of calls become nine letters and digits")                             \
    X(WORDS_SPLIT, "words_split", "words beside a call become a message of their own")                   \
    X(SYSTEM_MERGED, "system_merged", "system text stands in front of the first user message")           \
    X(SYSTEM_JOINED, "system_joined", "system messages in front are joined")                             \
    X(USERS_JOINED, "users_joined", "user messages in a row are joined")                                 \
    X(REPLIES_JOINED, "replies_joined", "assistant messages in a row are joined")                        \
    X(USER_FIRST, "user_first", "a user message is put in front of a conversation that has none there")  \
    X(USER_FOLDED, "user_folded", "a user message behind a tool's result is added to the result")        \
    X(SYSTEM_MARKED, "system_marked", "later system messages become <system-reminder> in user messages") \
    X(RESULTS_QUOTED, "results_quoted", "results of calls that are not there become user messages")      \
    X(SCHEMAS_FILLED, "schemas_filled", "schemas of tools that do not say a type are given one")

enum hearth_chat_form_bit {
#define X(name, text, help) HEARTH_CHAT_FORM_BIT_##name,
    HEARTH_CHAT_FORM_TABLE(X)
#undef X
        HEARTH_CHAT_FORM_BITS
};

enum hearth_chat_form {
#define X(name, text, help) HEARTH_CHAT_##name = 1 << HEARTH_CHAT_FORM_BIT_##name,
    HEARTH_CHAT_FORM_TABLE(X)
#undef X
};

/* Name and meaning of bit number `bit`. */
const char *hearth_chat_form_name(enum hearth_chat_form_bit bit);
const char *hearth_chat_form_help(enum hearth_chat_form_bit bit);

/* What the template can do, found by trying it at creation. */
struct hearth_chat_abilities {
    bool tools;          /* prints the tools of a request and knows how calls look; false: generic.cpp stands in */
    bool parallel_calls; /* several calls in one reply (with generic tools: true) */
    bool thinking;       /* has a place for reasoning */
    unsigned form;       /* bits of enum hearth_chat_form: how a history is printed that the template does not take */
    const char *failure; /* why it has printed none of the prompts that it was tried with; NULL: it prints some */
};
const struct hearth_chat_abilities *hearth_chat_abilities(const struct hearth_chat *chat);

/* Whether a template argument can make a difference to what is printed. */
bool hearth_chat_reads(const struct hearth_chat *chat, const char *argument);

/* ---- a request ---- */

enum hearth_chat_tool_choice { HEARTH_TOOLS_NONE, HEARTH_TOOLS_AUTO, HEARTH_TOOLS_REQUIRED };

/* auto is deepseek: reasoning is taken out of the content, into reasoning_content. */
#define HEARTH_REASONING_FORMAT_TABLE(X) \
    X(AUTO, "auto")                      \
    X(NONE, "none")                      \
    X(DEEPSEEK, "deepseek")              \
    X(DEEPSEEK_LEGACY, "deepseek-legacy")

enum hearth_chat_reasoning_format {
#define X(name, text) HEARTH_REASONING_##name,
    HEARTH_REASONING_FORMAT_TABLE(X)
#undef X
};

/* Everything that template and parser see of a request. All of it is borrowed for the call, and has been checked:
 * roles, types, tools of the form {"type": "function", "function": {"name", "description"?, "parameters"?}}. */
struct hearth_chat_request {
    struct hearth_message *const *messages;
    size_t message_count;
    const json_t *tools; /* array, or NULL for none. For rendering: what the prompt describes; for the format: what
                            a reply may call. A named function (tool_choice): only that tool, and REQUIRED */
    enum hearth_chat_tool_choice tool_choice;
    bool parallel_calls;
    const json_t *json_schema; /* the reply's content must be such a value, or NULL */
    const char *grammar;       /* GBNF of the content, or NULL */
    enum hearth_chat_reasoning_format reasoning_format;
    bool thinking;             /* enable_thinking of the templates that have such a switch; default true */
    const json_t *kwargs;      /* template arguments (object), or NULL */
    bool no_generation_prompt; /* /apply-template only */
    bool continues;            /* the last message is an assistant's, to be continued (assistant prefill) */
    struct hearth_digest salt; /* the tenant's: a cached format is found under the same salt only, as the time that
                                  it takes tells of it. For the format */
    const struct hearth_specials *specials; /* texts of these stay text wherever the request has them; NULL: control
                                               tokens come of them (injection.cpp) */
};

/* ---- format: what a reply looks like ---- */

struct hearth_chat_format; /* reference-counted, immutable */

struct hearth_chat_trigger {
    bool token;       /* the word is meant as one token where the vocabulary has it as one; else a pattern */
    const char *text; /* token: the word; else a regular expression as llama.cpp's lazy grammars take them */
};

struct hearth_chat_format_info {
    const char *grammar;  /* GBNF, or NULL */
    bool grammar_lazy;    /* applies only from a trigger on */
    bool grammar_prefill; /* must be shown the tokens of generation_prompt first */
    const struct hearth_chat_trigger *triggers;
    size_t trigger_count;
    const char *const *preserved; /* texts of special tokens to be printed when sampled, where they are one token */
    size_t preserved_count;
    const char *const *stops; /* more stop strings */
    size_t stop_count;
    const char *generation_prompt; /* what the prompt ends with, as the parser sees it */
    const char *thinking_start;    /* "" when the template has no thinking */
    const char *const *thinking_ends;
    size_t thinking_end_count;
    const char *call_begin; /* what a call begins with; NULL: not known, or there are none */
    bool generic_tools;     /* tools by generic.cpp */
    bool plain;             /* a reply is its text: no calls, no reasoning */
};

/* The format of replies to a request: derived from tools, tool choice, schema, grammar, reasoning and template
 * arguments, not from what the messages say. Kept for the last few, under the salt, so that a conversation pays once.
 * Errors: TEMPLATE (the template refuses, or no parser can be made), INVALID (schema or grammar: `msg` says what). */
int hearth_chat_format_get(struct hearth_chat *chat, const struct hearth_chat_request *request,
                           struct hearth_chat_format **out, struct hearth_errmsg *msg);
/* The format that reads what the template printed for replies of a history: as the one above with the calls of all
 * tools allowed, and values of arguments are texts, whatever a schema says of them. */
int hearth_chat_format_get_texts(struct hearth_chat *chat, const struct hearth_chat_request *request,
                                 struct hearth_chat_format **out, struct hearth_errmsg *msg);
struct hearth_chat_format *hearth_chat_format_ref(struct hearth_chat_format *format);
void hearth_chat_format_unref(struct hearth_chat_format *format); /* NULL is allowed */
const struct hearth_chat_format_info *hearth_chat_format_info(const struct hearth_chat_format *format);

/* ---- rendering ---- */

#define HEARTH_CHAT_NO_MARK ((size_t)-1)
#define HEARTH_CHAT_HEAD_MAX 14 /* two for each of three messages, and eight for tools */

/* A rendered prompt. The marks are byte offsets into the text where other prompts are likely to leave this one, or
 * HEARTH_CHAT_NO_MARK: */
struct hearth_chat_prompt {
    struct hearth_buf text; /* NUL-terminated; with guards (session/specials.h) */
    /* Where the texts of the first system messages begin and end, and where some of the tools begin, ascending: prompts
     * of one client may share what is in front of any of these. An end is that of the text but for its last byte, for
     * what follows decides which token that is part of. */
    size_t head[HEARTH_CHAT_HEAD_MAX];
    size_t head_count;
    size_t system_end;       /* where the content of the first message after the system messages begins */
    size_t last_input_start; /* where the content of the last user or tool message begins */
    size_t generation_start; /* where the generation prompt begins */
};

void hearth_chat_prompt_finish(struct hearth_chat_prompt *prompt);

/* Renders a request. `format` is that of the request.
 * Owns: `out` is filled and the caller finishes it (also after a failure it is safe to).
 * Errors: TEMPLATE (the template refused the messages: its own words), NOMEM. */
int hearth_chat_render(struct hearth_chat *chat, const struct hearth_chat_request *request,
                       const struct hearth_chat_format *format, struct hearth_chat_prompt *out,
                       struct hearth_errmsg *msg);

/* Where each message's own text begins in a rendered prompt: offsets[message_count], NO_MARK for messages that print
 * nothing of their own. Linear in the text; for diagnoses. */
void hearth_chat_locate(const struct hearth_chat_request *request, const struct hearth_chat_prompt *prompt,
                        size_t *offsets);

/* ---- replies ---- */

/* Reads a whole reply, or what a template printed in its place. `*out` is a sealed assistant message without call ids.
 * Errors: TEMPLATE (it is not a reply of this format), NOMEM. */
int hearth_chat_parse(const struct hearth_chat_format *format, const char *text, size_t len,
                      struct hearth_message **out, struct hearth_errmsg *msg);

struct hearth_chat_stream;

#define HEARTH_CHAT_NO_CALL ((size_t)-1)

/* What came in. Pieces are appended to what came before: reasoning, content, the arguments of call `call`. A call's
 * first delta has its id and name and no arguments; ids are made here. Texts are whole UTF-8 characters. */
struct hearth_chat_delta {
    const char *reasoning, *content; /* NULL when none */
    size_t reasoning_len, content_len;
    size_t call;                     /* HEARTH_CHAT_NO_CALL when none */
    const char *call_id, *call_name; /* first delta of a call, else NULL */
    const char *arguments;           /* or NULL */
    size_t arguments_len;
};

typedef void hearth_chat_delta_fn(void *user, const struct hearth_chat_delta *delta);

/* Takes a reference of the format. `deltas`: false when only the end is wanted (nothing is parsed on the way).
 * NULL: out of memory. */
struct hearth_chat_stream *hearth_chat_stream_create(struct hearth_chat_format *format, bool deltas);
void hearth_chat_stream_destroy(struct hearth_chat_stream *stream);

/* Adds text (whole characters; stop strings already taken out). Total cost over a stream is linear in its length.
 * Errors: NOMEM. */
int hearth_chat_stream_feed(struct hearth_chat_stream *stream, const char *text, size_t len, hearth_chat_delta_fn *each,
                            void *user);

/* The end. `cut`: the reply did not end by itself. What is complete of a reply that does not parse becomes calls, the
 * rest content; in a stream whose deltas have been sent, what was sent stays. `*out` is the sealed message with the
 * ids that were given out: what the client has now. `*repaired` is set when the text was not a reply of the format.
 * Errors: NOMEM. */
int hearth_chat_stream_end(struct hearth_chat_stream *stream, bool cut, hearth_chat_delta_fn *each, void *user,
                           struct hearth_message **out, bool *repaired);

/* ---- grammar.cpp ---- */

/* Appends the GBNF of the values of a schema, and a NUL that is not counted: to the letter where
 * hearth_chat_schema_check() says so, and else as far as llama.cpp's builder keeps it.
 * Errors: INVALID (`msg` says what), NOMEM. */
int hearth_chat_schema_grammar(const json_t *schema, struct hearth_buf *out, struct hearth_errmsg *msg);

/* Sets `*out` to the schema as far as a format keeps it that need not be kept to the letter: the schema itself where
 * llama.cpp's builder takes it, and else one that says the type alone. A new reference.
 * Errors: INVALID: its type is none of JSON's; NOMEM; and those of a work that was ended (`msg` says what); NULL then.
 */
int hearth_chat_schema_loosen(const json_t *schema, json_t **out, struct hearth_errmsg *msg);

/* ---- schema.c ---- */

/* A schema for the grammar builder alone: every value that the builder's grammar of it allows is valid by `schema`.
 * It is as strong or stronger, in the few forms that the builder keeps; annotations are gone, and number ranges stand
 * as constants until hearth_chat_schema_fill(). A new reference; NULL: there is none, and `msg` names the first keyword
 * that cannot be kept, and where ("properties.tags.uniqueItems"). */
json_t *hearth_chat_schema_strengthen(const json_t *schema, struct hearth_errmsg *msg);

/* Appends a grammar made with a strengthened schema, with its ranges in place, and a NUL that is not counted. False:
 * out of memory. */
bool hearth_chat_schema_fill(const char *grammar, struct hearth_buf *out);

/* Whether a schema can be strengthened. */
bool hearth_chat_schema_check(const json_t *schema, struct hearth_errmsg *msg);

#endif
