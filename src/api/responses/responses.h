/* OpenAI's Responses and Conversations.
 *
 *     request.c    fields of a request, in a chat's form    tools.c          its tools
 *     items.c      items to messages and back               inputs.c         items that come in, put in one form
 *     response.c   the response object of a job             record.c         what is stored of it, and back
 *     events.c     a response as it grows                   truncate.c       prompts that are too long
 *     endpoints.c  responses: made, stored, running         compact.c        a summary in the place of turns
 *     sealed.c     text that only this server reads         conversations.c  sessions as conversations
 *     lists.c      lists of items                           overflow.c       how a full context is told
 *
 * What memory was refused to may be missing in what these functions make: no answer is made of it (api/json.c).
 * Source: https://platform.openai.com/docs/api-reference/responses */
#ifndef HEARTH_API_RESPONSES_RESPONSES_H
#define HEARTH_API_RESPONSES_RESPONSES_H

#include "api/stored_turns.h"

/* ---- items.c: besides what stored_turns.h says ---- */

/* What a summary begins with when it is read again. */
#define HEARTH_SUMMARY_HEAD "This is a summary of the conversation so far:\n\n"

/* Items without ids. */
json_t *hearth_api_item_text(enum hearth_role role, const char *text, size_t len);
json_t *hearth_api_item_reasoning(const char *text, size_t len);
json_t *hearth_api_item_call(const char *id, const char *name, const char *arguments, size_t len);

/* ---- inputs.c ---- */

/* The items of a field (a string, an array or missing), with each reference replaced by what it stands for. Returns a
 * new reference; NULL: the error is filled. */
json_t *hearth_inputs_get(const struct hearth_job *job, const json_t *value, const char *param,
                          struct hearth_api_error *error);
/* The items in their stored form, after they were read. */
json_t *hearth_inputs_clean(const json_t *items);
/* An item with its id. */
json_t *hearth_api_item_printed(const json_t *item, struct hearth_digest turn, size_t index);

/* ---- tools.c ---- */

#define HEARTH_OFFERS_MAX 512u

/* Where the tools of the chat's form come from. */
struct hearth_offers {
    json_t *tools;                  /* in the chat's form; never NULL */
    size_t from[HEARTH_OFFERS_MAX]; /* place of each tool in the request's list */
    size_t count;
    bool of_items; /* the request's tools are there; tools among its items follow */
};

/* Tools and tool_choice of a request, and tools among its items, put into the chat's form and into `chat`. Names that
 * stand for something other than a plain function are noted in `names`: {name: {"custom": true}} or, with the client's
 * own names, {name: {"namespace", "name"}}. */
bool hearth_offers_read(struct hearth_api_error *error, const json_t *body, const json_t *items,
                        struct hearth_offers *offers, json_t *names, json_t *chat);
/* The name by which the model knows a tool of a namespace ("": of none). The caller frees it. NULL: out of memory. */
char *hearth_response_tool_name(const char *space, const char *name);

/* ---- request.c ---- */

/* What a request asks for that only responses have: job->parsed->own. */
struct hearth_response_asked {
    json_t *unanswered;                  /* as of hearth_api_items_read() */
    struct hearth_message *instructions; /* or NULL, as are: */
    char *previous, *conversation;       /* what the request continues */
    json_t *echo;                        /* what the response says of its request */
    json_t *names;                       /* as of hearth_offers_read() */
    size_t first_index;                  /* of the output's items in their ids */
    struct hearth_digest window;         /* overflow.c's, with `compacts` */
    bool stores, background, encrypts, summarises, logprobs, truncates;
    bool compacts; /* its client compacts when it is told to */
    bool locks;    /* it locks its conversation while it runs */
};

static inline const struct hearth_response_asked *hearth_response_asked(const struct hearth_job *job) {
    return (const struct hearth_response_asked *)job->parsed->own;
}

/* A response on its way: job->dialect_state. */
struct hearth_response {
    json_t *output; /* array of printed items; whole once the reply is */
    json_t *extras; /* array: of each item of the output, what is not in the store's items; null: nothing */
    int64_t completed_unix;
    uint64_t sequence;                 /* events sent */
    struct hearth_response_item *open; /* events.c's: the item that grows */
};

/* Members of a response that are printed as the request had them, null where it did not. */
enum { HEARTH_RESPONSE_ECHOED = 10 };
extern const char *const hearth_response_echoed[HEARTH_RESPONSE_ECHOED];

/* Everything up to the prompt, which is made. job->dialect and job->dialect_state are filled, also when it fails.
 * `store`: what a request that does not say means; false also for one that is not going to run. */
bool hearth_responses_read(struct hearth_job *job, const json_t *body, const struct hearth_dialect *dialect,
                           bool store);
void hearth_response_destroy(void *state);

/* ---- truncate.c ---- */

/* phases.h's `shorten`: more of the oldest turns go, where the request allows that. */
bool hearth_truncate_shorten(const struct hearth_job *job, struct hearth_api_cut *cut);
/* The end of resolve: leaves out of the history what out->left_out says. */
hearth_api_resolve_fn hearth_truncate_resolve;

/* ---- overflow.c ---- */

/* Finds out whether the client compacts when it is told so. */
void hearth_overflow_read(struct hearth_response_asked *asked, const json_t *body);
/* Loop: the prompt was too long. True: the client is to be told to compact, by the response below instead of a failure;
 * for each of its windows that is so once. */
bool hearth_overflow_compacts(struct hearth_job *job);
json_t *hearth_overflow_json(struct hearth_job *job);

/* ---- response.c ---- */

/* The response as it is now; `last`: with its cost. */
json_t *hearth_response_json(struct hearth_job *job, enum hearth_turn_status status, bool last);
/* Fills output and extras from the job's message, if that has not happened. */
void hearth_response_fill_output(struct hearth_job *job);
/* Completed, or incomplete. */
enum hearth_turn_status hearth_response_status(const struct hearth_job *job);
/* An item of the output as it is printed: `extra` may be NULL. */
json_t *hearth_response_item(const json_t *item, const json_t *names, bool summarises, const json_t *extra,
                             struct hearth_digest turn, size_t index);
/* Members of an item that are not stored with it: sealed reasoning if it is a reasoning item; log-probabilities, which
 * are borrowed. JSON null: none. */
json_t *hearth_response_extra(const struct hearth_job *job, const char *reasoning, size_t len, json_t *logprobs,
                              bool cut);
json_t *hearth_response_usage(const struct hearth_tally *tally);
/* Adds usage, timings and receipt. */
void hearth_response_add_cost(const struct hearth_job *job, json_t *object);
json_t *hearth_response_error(const struct hearth_api_error *error);
/* Adds the members that follow from the status, and those that every response has; takes object and output. */
json_t *hearth_response_finished(json_t *object, struct hearth_digest id, int64_t created_unix,
                                 enum hearth_turn_status status, json_t *output);

/* ---- record.c ---- */

/* What is stored beside the items. */
json_t *hearth_response_record(struct hearth_job *job, enum hearth_turn_status status);
/* A stored turn as a response. `model`: for turns that do not say. */
json_t *hearth_response_of_turn(const struct hearth_turn *turn, const char *model);

/* ---- events.c ---- */

bool hearth_response_events_begin(struct hearth_job *job, struct hearth_buf *out);
bool hearth_response_events_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta,
                                  struct hearth_buf *out);
bool hearth_response_events_end(struct hearth_choice *choice, struct hearth_buf *out);
bool hearth_response_events_finish(struct hearth_job *job, struct hearth_buf *out);
bool hearth_response_events_fail(struct hearth_job *job, struct hearth_buf *out);
bool hearth_response_events_overflow(struct hearth_job *job, struct hearth_buf *out);
bool hearth_response_events_ping(struct hearth_job *job, struct hearth_buf *out);
void hearth_response_item_destroy(struct hearth_response_item *item);

/* ---- lists.c ---- */

/* Appends the items of a turn, printed: those that came in, and with `output` those that went out. */
void hearth_list_add_turn(json_t *list, const struct hearth_turn *turn, bool output);
/* Answers with the page that a query asks for (order, limit, after) of a conversation's items up to and including a
 * turn (zero: there is none); the last turn's output only if `output`. Reads only the turns of the page. */
bool hearth_list_respond(struct hearth_job *job, struct hearth_digest end, bool output);

/* ---- sealed.c ---- */

enum hearth_api_sealed_kind { HEARTH_SEALED_REASONING, HEARTH_SEALED_SUMMARY };

/* Encrypts a text under the store's secret, in base64. NULL: out of memory, or no randomness. Caller frees. */
char *hearth_api_sealed_close(const struct hearth_api *api, enum hearth_api_sealed_kind kind, const char *text,
                              size_t len);
/* Opens a sealed text. NULL: it has another kind, was sealed under another secret, or was changed. The caller frees it.
 */
char *hearth_api_sealed_open(const struct hearth_api *api, enum hearth_api_sealed_kind kind, const char *text);

/* ---- endpoints ---- */

hearth_api_now_fn hearth_responses_cancel;
hearth_api_prepare_fn hearth_responses_prepare, hearth_responses_get_prepare, hearth_responses_delete_prepare,
    hearth_responses_cancel_prepare, hearth_responses_items_prepare, hearth_responses_tokens_prepare,
    hearth_responses_compact_prepare;
hearth_api_prepare_fn hearth_conversations_create_prepare, hearth_conversations_get_prepare,
    hearth_conversations_update_prepare, hearth_conversations_delete_prepare, hearth_conversations_list_prepare,
    hearth_conversations_add_prepare, hearth_conversations_item_prepare, hearth_conversations_remove_prepare;

#endif
