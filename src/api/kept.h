/* What a request has to do with the store: the conversation that it goes on from, and the turn that it becomes.
 *
 * A dialect's prepare finds the conversation (one of the hearth_kept_from_… functions: its messages are put in front
 * of the request's own), says what is to be kept (hearth_kept_keep), and has the prompt made. When the choices have
 * ended a worker writes the turn, in one transaction; only then does the response say that it is complete. */
#ifndef HEARTH_API_KEPT_H
#define HEARTH_API_KEPT_H

#include "api/job.h"

struct hearth_kept {
    struct hearth_line line; /* the turns that it goes on from; none: a conversation begins */
    size_t line_messages;    /* so many messages, behind the system messages, come from there */
    size_t first_new;        /* index of the first message that the request has added */
    size_t exact_messages;   /* the first so many of job->history are what line.tokens stand for; 0: unknown */
    bool system_apart;       /* system messages from first_new on are the request's items, no part of the config */
    bool same_config;        /* tools and system text are those of line's last turn */
    char *session;           /* name, or NULL */
    bool session_new;        /* it is made by this request */
    json_t *input;           /* array: the items that the request has added */
    bool keeps;              /* the turn is stored */
    bool must;               /* the request fails when it cannot be; otherwise that is logged */
    bool stored;
    struct hearth_turn turn;
    size_t dropped_messages; /* truncation: "auto" has left so many out of the prompt */
};

/* job->kept, made when it is not there; NULL: out of memory (job->error is filled). */
struct hearth_kept *hearth_kept_get(struct hearth_job *job);
void hearth_kept_destroy(struct hearth_job *job);

/* Worker, before the request's own messages: loads the turn with this id (any dialect's prefix) or a session's head
 * and appends its messages to job->history. Errors: 404 naming `param`. A session that is not there is an empty one
 * unless it `must` be. */
bool hearth_kept_from_turn(struct hearth_job *job, const char *id, const char *param);
bool hearth_kept_from_session(struct hearth_job *job, const char *name, bool must, const char *param);

/* Chat completions and Anthropic messages: `session_id` of the body or the x-session-id header. job->history holds what
 * the client has sent, job->chat its tools. The messages become the whole conversation, whether the client has sent
 * all of it or only what is new; system text and tools that it has not sent are those of the session. Does nothing
 * without a session. */
bool hearth_kept_attach_session(struct hearth_job *job, const json_t *body);

/* The parts of these: a name that is fit for a session; its head (zero: none yet); the line of a turn, in kept->line;
 * and its messages, where ends[i] (optional) becomes how many of them there are up to and with turn i. */
bool hearth_kept_name_session(struct hearth_job *job, const char *name, const char *param);
/* What is not in a store that stands in for the database may be in there: then the error is 503, and this true. */
bool hearth_kept_fail_away(struct hearth_job *job, int err, const char *what, const char *param, const char *name);
bool hearth_kept_find_head(struct hearth_job *job, bool must, const char *param, struct hearth_digest *head);
bool hearth_kept_load_line(struct hearth_job *job, struct hearth_digest id, const char *name, const char *param);
bool hearth_kept_add_line(struct hearth_job *job, size_t *ends, const char *param);
/* How many system and developer messages stand in front. */
size_t hearth_history_system_count(const struct hearth_history *history);

/* Before the prompt is made: the config of the turn, and whether it is that of the line (kept->same_config). */
bool hearth_kept_settle(struct hearth_job *job);

/* How many turns a session has, for the log; 0 when there is none. */
uint32_t hearth_kept_count_turns(const struct hearth_job *job, const char *name);

/* The turn is to be stored. `input`: the items that are new, given up; NULL: made from the messages behind line's. */
bool hearth_kept_keep(struct hearth_job *job, json_t *input, bool must);
/* Writes job->kept's turn as it is now (queued or in progress), for a response that is polled. */
bool hearth_kept_put_open(struct hearth_job *job, enum hearth_turn_status status, json_t *response);

/* True when a worker has something to write at the end. */
bool hearth_kept_is_due(const struct hearth_job *job);
/* Worker: writes the turn. job->failed with job->error when it had to be and could not. */
void hearth_kept_write(struct hearth_job *job);

/* ---- sessions/keeper.c: what deletions leave to be done ---- */

/* NULL: out of memory, or no thread. */
struct hearth_keeper *hearth_keeper_create(struct hearth_api *api);
/* Something was deleted. Any thread; NULL is allowed. */
void hearth_keeper_wake(struct hearth_keeper *keeper);
/* After the service was drained (what waits for it is told). NULL is allowed. */
void hearth_keeper_destroy(struct hearth_keeper *keeper);

/* The system messages of a config, appended. False: out of memory. */
bool hearth_kept_add_system(struct hearth_history *history, const json_t *config);
/* The tools of a config, appended in the form that hearth_tools_read() takes, the deferred ones too; and what its
 * messages have loaded and removed. False: out of memory. */
bool hearth_kept_add_tools(struct hearth_chat_options *options, const json_t *config, json_t *tools);
/* {"system": [{role, content}], "template", "tools"?, "kwargs"?, "thinking"?, "deferred"?, "loaded"?, "removed"?} of a
 * turn's config; NULL: none. */
json_t *hearth_kept_config_json(const struct hearth_turn *turn);
/* Adds session and turn to a receipt. */
bool hearth_kept_add_json(const struct hearth_job *job, json_t *receipt);

/* "resp_" and the like with a turn's id. False: it is no such id. `out` also takes an item's: *index is its place in
 * the turn then, else -1. */
bool hearth_id_parse(const char *text, struct hearth_digest *out, int *index);
/* An item's id: PREFIX + turn + index. `out` has at least 64 bytes. */
void hearth_id_print(char *out, size_t cap, const char *prefix, struct hearth_digest turn, int index);

/* ---- items.c: messages as items of OpenAI's Responses API, the form in which turns are stored ---- */

/* Appends messages to job->history. Items of one reply (reasoning, message, calls in a row) become one message.
 * `param` names the field in errors ("input"). `trusted`: they come from the store. */
bool hearth_items_read(struct hearth_job *job, const json_t *items, const char *param, bool trusted);
/* A message as items, without ids. NULL: out of memory. */
json_t *hearth_items_of_message(const struct hearth_message *message);

#endif
