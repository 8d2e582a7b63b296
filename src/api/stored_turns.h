/* How a request uses the store: the conversation that it continues, and the turn that it becomes.
 *
 * A dialect's resolve finds the conversation (one of the hearth_api_stored_from_… functions: its messages are put in
 * front of the request's own), says what is to be kept (hearth_api_stored_plan_write), and has the prompt made. When
 * the choices have ended a worker writes the turn, in one transaction; only then does the response say that it is
 * complete.
 */
#ifndef HEARTH_API_STORED_TURNS_H
#define HEARTH_API_STORED_TURNS_H

#include "api/job.h"

struct hearth_api_stored {
    struct hearth_line line;  /* the turns that it goes on from; none: a conversation begins */
    size_t line_messages;     /* so many messages, behind the system messages, come from there */
    size_t first_new;         /* index of the first message that the request has added */
    size_t exact_messages;    /* the first so many of the history are what line.tokens stand for; 0: unknown */
    bool system_apart;        /* system messages from first_new on are the request's items, no part of the config */
    bool same_config;         /* tools and system text are those of line's last turn */
    char *session;            /* name, or NULL */
    bool session_new;         /* it is made by this request */
    json_t *input;            /* array: the items that the request has added */
    bool writes;              /* the turn is stored */
    struct hearth_buf config; /* of the turn */
    struct hearth_session_lock lock; /* of the session, if it is held */
};

/* out->stored, made when it is not there; NULL: out of memory. */
struct hearth_api_stored *hearth_api_stored_make(struct hearth_api_resolved *out);
void hearth_api_stored_destroy(struct hearth_api_stored **stored); /* also sets it to NULL */

/* Worker, before the request's own messages: loads the turn with this id (any dialect's prefix) or a session's head
 * and appends its messages to the history. Errors: 404 naming `param`. */
bool hearth_api_stored_from_turn(const struct hearth_job *job, const char *id, const char *param,
                                 struct hearth_api_resolved *out, struct hearth_api_error *error);
bool hearth_api_stored_from_session(const struct hearth_job *job, const char *name, const char *param,
                                    struct hearth_api_resolved *out, struct hearth_api_error *error);

/* Chat completions and Anthropic messages: the session that was parsed. The messages that the client has sent become
 * the whole conversation, whether they are all of it or only what is new; system text and tools that it has not sent
 * are those of the session. Without a session the conversation is what was sent. */
hearth_api_resolve_fn hearth_api_stored_attach_session;

/* False: the caller may have no sessions, or the name is not fit for one. */
bool hearth_api_stored_check_name(const struct hearth_job *job, const char *name, const char *param,
                                  struct hearth_api_error *error);

/* The parts of these: the session's name; its head (zero: none yet; where it is not there, either, unless it `must`
 * be); the line of a turn, in stored->line; and its messages, where ends[i] (optional) becomes how many of them there
 * are up to and with turn i. */
bool hearth_api_stored_name_session(const struct hearth_job *job, const char *name, const char *param,
                                    struct hearth_api_resolved *out, struct hearth_api_error *error);
/* True, with the error 503: the database is away, and what was not found may be in it. */
bool hearth_api_stored_fail_away(const struct hearth_job *job, int err, const char *what, const char *param,
                                 const char *name, struct hearth_api_error *error);
bool hearth_api_stored_find_head(const struct hearth_job *job, bool must, const char *param, struct hearth_digest *head,
                                 struct hearth_api_resolved *out, struct hearth_api_error *error);
bool hearth_api_stored_load_line(const struct hearth_job *job, struct hearth_digest id, const char *name,
                                 const char *param, struct hearth_api_resolved *out, struct hearth_api_error *error);
bool hearth_api_stored_add_line(const struct hearth_job *job, size_t *ends, const char *param,
                                struct hearth_api_resolved *out, struct hearth_api_error *error);
/* How many system and developer messages stand in front. */
size_t hearth_history_system_count(const struct hearth_history *history);

/* Before the prompt is made: the config of the turn, and whether it is that of the line (stored->same_config). */
hearth_api_resolve_fn hearth_api_stored_fill_config;

/* How many turns a session has, for the log; 0 when there is none. */
uint32_t hearth_api_stored_count_turns(const struct hearth_job *job, const char *name);

/* Plans to store the turn. `input`: its new items, which are taken; NULL: they are made from the messages behind the
 * line's. */
bool hearth_api_stored_plan_write(const struct hearth_job *job, json_t *input, struct hearth_api_resolved *out,
                                  struct hearth_api_error *error);
/* Stores the job's turn as it is now (queued or in progress), for a response that is polled. */
bool hearth_api_stored_put_open(struct hearth_job *job, enum hearth_turn_status status, json_t *response);

/* Whether a worker has something to store at the end. */
bool hearth_api_stored_is_due(const struct hearth_job *job);
/* On a worker: stores the turn. If it must be stored and cannot be, job->failed and job->error say so. */
void hearth_api_stored_write(struct hearth_job *job);

/* ---- sessions/endpoints.c: sessions as a dialect shows them ---- */

struct hearth_api_session_form {
    const char *kind, *param; /* what it is called; the parameter with its name */
    const char *missing[2];   /* what a failure says of a name that is not there: before and behind it */
    json_t *(*print)(const struct hearth_session *session);
};
/* Fails with the store's error. */
bool hearth_api_session_fail(struct hearth_job *job, const struct hearth_api_session_form *form, int err,
                             const char *name, const struct hearth_errmsg *msg);
/* Reads a session, which the caller finishes. */
bool hearth_api_session_get(struct hearth_job *job, const struct hearth_api_session_form *form, const char *name,
                            struct hearth_session *session);
/* Answers with a session; deletes one, and answers. */
typedef bool hearth_api_session_fn(struct hearth_job *job, const struct hearth_api_session_form *form,
                                   const char *name);
hearth_api_session_fn hearth_api_session_respond, hearth_api_session_delete;
/* Does something with the path's session. */
bool hearth_api_session_of_path(struct hearth_job *job, const struct hearth_api_session_form *form,
                                hearth_api_session_fn *act);

/* ---- responses/lists.c ---- */

/* A list of objects with ids; takes them. */
json_t *hearth_list_json(json_t *data, bool more);
/* The query's limit: from 1 to `most`; `usual` if there is none. */
bool hearth_list_read_limit(struct hearth_job *job, int usual, int most, size_t *limit);

/* ---- sessions/lock.c ---- */

/* One response at a time: 409 while another one is running on this conversation. */
bool hearth_conversation_lock(const struct hearth_job *job, const char *name, struct hearth_conversation_lock **out,
                              struct hearth_api_error *error);
/* It need not be held any more. NULL is allowed in both. */
void hearth_conversation_unlock(struct hearth_conversation_lock *lock);
void hearth_conversation_lock_destroy(struct hearth_conversation_lock *lock);
/* The database's lock on the conversation, for the turn that holds it. NULL is allowed. */
struct hearth_session_lock hearth_conversation_lock_shared(const struct hearth_conversation_lock *lock);

/* ---- sessions/deletion_worker.c: what deletions leave to be done ---- */

/* A box without a sign of life for so long has ended: its responses have failed. A box that only lost its database
 * connects again within a round of the worker. */
#define HEARTH_API_GONE_US 20000000

/* NULL: out of memory, or no thread. */
struct hearth_api_deletion_worker *hearth_api_deletion_worker_create(struct hearth_api *api);
/* Says that something was deleted. Any thread; NULL is allowed. */
void hearth_api_deletion_worker_wake(struct hearth_api_deletion_worker *worker);
/* Ends the worker. Only after the service was drained, which answers what the worker waits for. NULL is allowed. */
void hearth_api_deletion_worker_destroy(struct hearth_api_deletion_worker *worker);

/* Appends the system messages of a config. False: out of memory. */
bool hearth_api_stored_add_system(struct hearth_history *history, const json_t *config);
/* The tools of a config, appended in the form that hearth_api_tools_read() takes, the deferred ones too; and what its
 * messages have loaded and removed. False: out of memory. */
bool hearth_api_stored_add_tools(struct hearth_api_chat_options *options, const json_t *config, json_t *tools);
/* {"system": [{role, content}], "template", "tools"?, "kwargs"?, "thinking"?, "deferred"?, "loaded"?, "removed"?} of a
 * turn's config; NULL: none. */
json_t *hearth_api_stored_config_json(const struct hearth_turn *turn);
/* Adds session and turn to a receipt. */
void hearth_api_stored_add_json(const struct hearth_job *job, json_t *receipt);

/* ---- items.c: messages as items of OpenAI's Responses API, the form in which turns are stored ---- */

/* Appends messages to a history. Items of one reply (reasoning, message, calls in a row) become one message. `param`
 * names the field in errors ("input"). `unanswered`: an array for what hearth_api_items_check() is to check; NULL: they
 * come from the store. */
bool hearth_api_items_read(const struct hearth_job *job, const json_t *items, const char *param, json_t *unanswered,
                           struct hearth_history *history, struct hearth_api_error *error);
/* False: a result among the items has no call there, nor in what stood in front of them. */
bool hearth_api_items_check(const json_t *unanswered, const struct hearth_history *past, const char *param,
                            struct hearth_api_error *error);
/* A message as items, without ids. NULL: out of memory. */
json_t *hearth_api_items_of_message(const struct hearth_message *message);

#endif
