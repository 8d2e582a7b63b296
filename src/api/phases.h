/* The phases of a request that the model is to answer, or whose prompt is to be known.
 *
 *     lookup   what the body refers to in the store, without which it cannot be read: a thread, items
 *     parse    the body to what it asks for       generation, chat options, messages as they were sent
 *     resolve  that to a conversation             what is stored, toolsets, replies as they were sampled
 *     render   the conversation to a prompt       template, tokens, marks, what the reply must look like
 *     submit   all of it to the service           job_life.c: a request per choice
 *     reply    events to a response               reply.c and the dialect
 *
 * The first four run on a worker. Each reads what the phases before it have made and fills one struct of its own, which
 * nothing writes behind it: a job has const pointers to the three, and only phases.c can write them. None sees the body
 * after parse. Where a prompt is too long and may be shortened, the conversation is resolved and rendered anew from
 * what was parsed. A phase that fails has filled the error, or was refused memory, and what it has made so far is
 * freed with the job.
 *
 * The store is read by lookup and resolve alone, and written after the reply. Transcripts have an archive of their own:
 * where a prompt leaves what they have in RAM they look there, in resolve (by messages) and in render (by text). */
#ifndef HEARTH_API_PHASES_H
#define HEARTH_API_PHASES_H

#include "api/internal.h"

struct hearth_choice;
struct hearth_transcript_result;

enum hearth_api_continues { HEARTH_CONTINUES_UNSAID, HEARTH_CONTINUES_NO, HEARTH_CONTINUES_YES };

struct hearth_api_parsed {
    struct hearth_generation generation;
    struct hearth_api_chat_options chat;
    struct hearth_history history; /* as sent */
    json_t *prompts;               /* of plain completions: of each an array of texts and token ids */
    json_t *items;                 /* of responses; both are dropped once the prompt is made */
    char *session;                 /* name of a conversation in the server, or NULL */
    const char *session_param;     /* the field that names it */
    bool has_tools;                /* the body has the field, whatever its value */
    bool threads;                  /* Anthropic's threads: the conversation is stored under the ids of its messages */
    bool names_previous;           /* the client names an earlier request of the conversation */
    enum hearth_api_continues continues, prompted; /* continue_final_message, add_generation_prompt */
    void *own;                                     /* what only the dialect has; NULL: nothing */
    void (*own_destroy)(void *own);
};

struct hearth_api_resolved {
    size_t left_out;                       /* resolve was asked to leave out so many messages behind the system text */
    struct hearth_digest salt;             /* of the request, or of the session that is prefetched */
    struct hearth_history history;         /* [system messages][what is stored][the request's own] */
    struct hearth_chat_request request;    /* borrows from here and from what was parsed */
    json_t *tools;                         /* those of the request that are not deferred, as they were first printed */
    json_t *offered;                       /* those that the reply may call; NULL: all of request.tools */
    json_t *kwargs;                        /* of the template: the request borrows them */
    json_t *known;                         /* those that earlier replies may have called; NULL: request.tools */
    struct hearth_toolset *toolset;        /* what the prompt describes, and where; NULL: no tools */
    size_t unknown_messages;               /* that stand at the end for what will come: the prompt ends before them */
    struct hearth_digest said;             /* the chain over the messages, for toolsets */
    struct hearth_digest replied;          /* the same up to and with the last reply; zero: there is none */
    struct hearth_chat_format *format;     /* of a chat's replies; NULL: replies are text */
    size_t sampled_messages;               /* up to and with the last reply that stands as it was sampled; 0: none */
    json_t *items;                         /* lookup's, for parse: those of the request, references followed */
    struct hearth_conversation_lock *lock; /* of the conversation, as long as its response runs; or NULL */
    struct hearth_api_stored *stored; /* the turns that it goes on from, and the turn that it becomes; NULL: neither */
};

struct hearth_api_rendered {
    struct hearth_api_prompt *prompts;
    size_t prompt_count;
    uint32_t first_tokens; /* length of the first prompt; the service takes over the tokens themselves */
    struct hearth_pin pins[HEARTH_PINS_MAX]; /* of the first prompt, ascending */
    size_t pin_count;
    size_t breakpoints[HEARTH_BREAKPOINTS_MAX]; /* offsets into the rendered prompt */
    /* history.c's, of a chat's prompt: */
    bool chat;
    struct hearth_transcript_place *place; /* where the reply will be remembered; NULL: nowhere */
    struct hearth_message *begun;          /* the message that the reply continues, or NULL */
    /* How many of its first tokens an earlier prompt or reply had, whether or not their state is still there; and how
     * many of these were sampled. */
    size_t known_tokens, sampled_tokens;
    int64_t prepare_us;                       /* how long it took until the prompt was made */
    struct hearth_divergence *divergence;     /* where it left an earlier one; NULL: it left none */
    struct hearth_api_constraint *constraint; /* NULL: the reply is unconstrained */
    struct hearth_tokens script;              /* the reply's tokens, if it is scripted */
    bool scripted;
};

typedef bool hearth_api_lookup_fn(const struct hearth_job *job, const json_t *body, struct hearth_api_resolved *out,
                                  struct hearth_api_error *error);
typedef bool hearth_api_parse_fn(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                                 struct hearth_api_error *error);
typedef bool hearth_api_resolve_fn(const struct hearth_job *job, struct hearth_api_resolved *out,
                                   struct hearth_api_error *error);
typedef bool hearth_api_render_fn(const struct hearth_job *job, struct hearth_api_rendered *out,
                                  struct hearth_api_error *error);

/* What a prompt that was too long is made without; truncate.c's but for `messages`, which go. */
struct hearth_api_cut {
    size_t messages, bytes, target_bytes;
    bool guessed;
};

/* The phases as a dialect carries them out. */
struct hearth_api_phases {
    hearth_api_lookup_fn *lookup;   /* NULL: the body refers to nothing; resolve goes on with what it has made */
    hearth_api_parse_fn *parse;     /* NULL: the job goes on with what another one was parsed to */
    hearth_api_resolve_fn *resolve; /* NULL: there is no conversation */
    hearth_api_render_fn *render;   /* NULL: no prompt is made */
    /* The prompt is too long, as the error says: how much more of the conversation is left out when both are asked
     * again. False: it stays too long. NULL: always. */
    bool (*shorten)(const struct hearth_job *job, struct hearth_api_cut *cut);
    /* The answer of a request that is not submitted, such as the length of its prompt, which may be too long for the
     * context. NULL: the request is submitted and answered in the dialect. It returns NULL when out of memory, or with
     * the error filled. */
    json_t *(*answer)(const struct hearth_job *job, struct hearth_api_error *error);
    const struct hearth_dialect *dialect;
};

/* Of the routes that need nothing else. */
extern const struct hearth_api_phases hearth_api_chat_phases, hearth_api_chat_tokens_phases,
    hearth_apply_template_phases, hearth_completions_phases, hearth_completion_phases, hearth_infill_phases;

/* A job is made: its phases have made nothing yet. */
void hearth_api_phases_begin(struct hearth_job *job);
/* Worker: the first four phases. */
bool hearth_api_phases_run(struct hearth_job *job, const struct hearth_api_phases *phases, const json_t *body);
/* Takes over what a job was parsed to that is over, and has nothing else then. */
void hearth_api_phases_go_on(struct hearth_job *job, struct hearth_job *over);
/* Frees the tokens of all prompts: the service has its own. */
void hearth_api_phases_drop_tokens(struct hearth_job *job);
/* Frees what the phases have made, once no choice is left. */
void hearth_api_phases_finish(struct hearth_job *job);

/* ---- parse ---- */

/* chat_request.c: reads everything that chats of all dialects have in common. */
hearth_api_parse_fn hearth_api_chat_parse;
/* Reads session_id, or the header. */
hearth_api_parse_fn hearth_api_session_parse;
/* completions.c: "prompt". */
hearth_api_parse_fn hearth_completions_prompts_parse;
/* messages.c: "messages". */
hearth_api_parse_fn hearth_history_read;

/* ---- resolve ---- */

/* chat_request.c: the whole phase for chat completions; its beginning, with the options as they were parsed, and its
 * end, once the messages are there: tools, and the format of the replies. */
hearth_api_resolve_fn hearth_api_chat_resolve;
hearth_api_resolve_fn hearth_api_chat_end;
bool hearth_api_chat_take(const struct hearth_api_chat_options *sent, struct hearth_api_resolved *out);
void hearth_api_chat_options_finish(struct hearth_api_chat_options *options);
/* tool_changes.c: what the conversation's prompts have described before; the prompt goes on with it. */
hearth_api_resolve_fn hearth_api_tools_recall;
/* loading.c, after that: sets which tools the reply may call, unless tool_choice has said so, and which ones earlier
 * replies may have called. False: out of memory. */
bool hearth_api_tools_fill_offered(const struct hearth_api_chat_options *sent, struct hearth_api_resolved *out);
/* history.c: puts replies of this server back as they were sampled, and finds out whether the prompt has the exact
 * tokens of what is stored. */
hearth_api_resolve_fn hearth_history_resolve;

/* ---- render ---- */

bool hearth_api_prompts_alloc(size_t count, struct hearth_api_rendered *out); /* false: out of memory */
/* chat_request.c: the whole of it for a chat. */
hearth_api_render_fn hearth_api_chat_render;
/* completions.c: the constraint, and the tokens of each prompt. */
hearth_api_render_fn hearth_completions_render;
/* history.c: the prompt's tokens and marks. */
hearth_api_render_fn hearth_history_prompt;
/* breakpoints.c: adds marks for the request's breakpoints to a rendered text, of which the prompt's text is the part
 * behind `from`; and fills the pins with the positions of these marks. */
void hearth_breakpoints_mark(const struct hearth_job *job, const struct hearth_chat_prompt *rendered, size_t from,
                             struct hearth_transcript_prompt *prompt, struct hearth_api_rendered *out);
void hearth_breakpoints_pin(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_transcript_result *result, struct hearth_api_rendered *out);
/* output_constraint.c: the constraint of a chat's format, and of a plain completion (a schema becomes a grammar). */
hearth_api_render_fn hearth_api_constraint_of_chat;
hearth_api_render_fn hearth_api_constraint_of_text;
/* script.c: the tokens of the first scripted reply that fits the request and is not used up. */
hearth_api_render_fn hearth_script_render;

/* ---- submit and reply ---- */

/* output_constraint.c: fills grammar, stops, printed tokens, thinking, call syntax and script of a request, borrowed
 * until it has been submitted. */
void hearth_api_constraint_fill_request(const struct hearth_job *job, struct hearth_request *request);
/* tool_changes.c: remembers the tools of the prompt with its reply. */
void hearth_api_tools_remember(const struct hearth_job *job, const struct hearth_message *reply);
/* history.c: remembers message and tokens of a choice that has ended. `stop`: the stop string that ended it, or NULL.
 */
void hearth_history_remember(struct hearth_choice *choice, struct hearth_message *message, const char *stop);

#endif
