/* Turns of conversations that live in the server: read before a prompt is rendered, written when the reply is complete.
 *
 * The config of a turn is everything that decides the text in front of its first message, as JSON: system messages,
 * tools, template arguments, and a digest of the template. If a request has the config of the turn from which it goes
 * on, the exact tokens up to there are known, and only what is new is rendered and tokenised (history.c). With another
 * config these tokens are useless, and the messages are rendered like any history.
 *
 * Invariant: out->history is [system messages][the line's messages][the request's own]. */
#include "api/stored_turns.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct hearth_api_stored *hearth_api_stored_make(struct hearth_api_resolved *out) {
    out->stored = out->stored != NULL ? out->stored : calloc(1, sizeof *out->stored);
    return out->stored;
}

void hearth_api_stored_destroy(struct hearth_api_stored **owned) {
    struct hearth_api_stored *stored = *owned;
    if (stored != NULL) {
        hearth_line_finish(&stored->line);
        hearth_buf_finish(&stored->config);
        json_decref(stored->input);
        free(stored->session);
        free(stored);
        *owned = NULL;
    }
}

/* ---- where it goes on from ---- */

json_t *hearth_api_stored_config_json(const struct hearth_turn *turn) {
    return hearth_api_json_read(&turn->config);
}

bool hearth_api_stored_add_system(struct hearth_history *history, const json_t *config) {
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(config, "system"), i, entry) {
        const json_t *content = json_object_get(entry, "content");
        enum hearth_role role = HEARTH_ROLE_SYSTEM;
        (void)hearth_role_from_text(json_string_value(json_object_get(entry, "role")), &role);
        if (!hearth_history_add(
                history, hearth_api_message_of(role, json_string_value(content), json_string_length(content), NULL))) {
            return false;
        }
    }
    return true;
}

/* Joins a reply with the assistant's message at `at` that it has continued. */
static void join_reply(struct hearth_history *history, size_t at) {
    struct hearth_message **pair = at > 0 && at < history->count ? &history->messages[at - 1] : NULL;
    struct hearth_message *whole = NULL;
    if (pair != NULL && pair[0]->role == HEARTH_ROLE_ASSISTANT && pair[1]->role == HEARTH_ROLE_ASSISTANT) {
        whole = hearth_history_join(pair[0], pair[1]);
    }
    if (whole != NULL) { /* otherwise they stay two messages: no text is lost */
        hearth_message_unref(pair[0]);
        hearth_message_unref(pair[1]);
        pair[0] = whole;
        history->count--;
        memmove(pair + 1, pair + 2, (history->count - at) * sizeof(struct hearth_message *));
    }
}

static bool add_turn(const struct hearth_job *job, const struct hearth_turn *turn, const char *param,
                     struct hearth_api_resolved *out, struct hearth_api_error *error) {
    json_t *body = hearth_api_json_read(&turn->body);
    const json_t *input = json_object_get(body, "input"), *output = json_object_get(body, "output");
    bool ok = input == NULL || hearth_api_items_read(job, input, param, NULL, &out->history, error);
    const size_t reply = out->history.count;
    ok = ok && (output == NULL || hearth_api_items_read(job, output, param, NULL, &out->history, error));
    if (ok && json_is_true(json_object_get(body, "continues"))) {
        join_reply(&out->history, reply);
    }
    json_decref(body);
    return ok;
}

bool hearth_api_stored_add_line(const struct hearth_job *job, size_t *ends, const char *param,
                                struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_api_stored *stored = out->stored;
    const size_t before = out->history.count;
    stored->exact_messages = 0;
    for (size_t i = 0; i < stored->line.count; i++) {
        if (!add_turn(job, &stored->line.turns[i], param, out, error)) {
            return false;
        }
        if (ends != NULL) {
            ends[i] = out->history.count - before;
        }
        if (i + 1 == stored->line.tokens_turns) {
            stored->exact_messages = out->history.count;
        }
    }
    stored->line_messages = out->history.count - before;
    stored->first_new = out->history.count;
    return true;
}

static bool are_tokens(const struct hearth_api *api, const struct hearth_tokens *tokens) {
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->v[i] < 0 || (uint32_t)tokens->v[i] >= api->engine->caps.vocab_tokens) {
            return false;
        }
    }
    return true;
}

bool hearth_api_stored_fail_away(const struct hearth_job *job, int err, const char *what, const char *param,
                                 const char *name, struct hearth_api_error *error) {
    if (err != HEARTH_ERR_NOT_FOUND || !hearth_session_store_is_fallback(job->api->store)) {
        return false;
    }
    (void)hearth_api_fail(error, 503, "session_store_unavailable", param,
                          "%s: the session database cannot be used, and the %s '%.100s' may be there", param, what,
                          name);
    return true;
}

bool hearth_api_stored_load_line(const struct hearth_job *job, struct hearth_digest id, const char *name,
                                 const char *param, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_api_stored *stored = out->stored;
    hearth_line_finish(&stored->line);
    const int err = hearth_line_get(job->api->store, job->owner, id, &stored->line);
    if (hearth_api_stored_fail_away(job, err, "response", param, name, error)) {
        return false;
    }
    if (err == HEARTH_ERR_NOT_FOUND) {
        return hearth_api_fail(error, 404, "not_found", param, "%s: there is no response with the id '%s' here", param,
                               name);
    }
    if (err != HEARTH_OK) {
        return hearth_api_fail_err(error, err, NULL);
    }
    if (!are_tokens(job->api, &stored->line.tokens)) { /* the line was imported, and its tokens are not this model's */
        stored->line.tokens_turns = 0;
    }
    const enum hearth_turn_status status = stored->line.turns[stored->line.count - 1].status;
    if (hearth_turn_is_open(status)) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s: the response '%s' is still running", param,
                               name);
    }
    return true;
}

bool hearth_api_stored_from_turn(const struct hearth_job *job, const char *id, const char *param,
                                 struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_digest digest = {0, 0};
    int index = 0;
    if (!hearth_key_limits_scope(&job->caller, HEARTH_SCOPE_SESSIONS, error) || hearth_api_stored_make(out) == NULL) {
        return false;
    }
    if (!hearth_api_id_parse(id, &digest, &index) || index >= 0) {
        return hearth_api_fail(error, 404, "not_found", param, "%s: there is no response with the id '%s' here", param,
                               id);
    }
    return hearth_api_stored_load_line(job, digest, id, param, out, error) &&
           hearth_api_stored_add_line(job, NULL, param, out, error);
}

bool hearth_api_stored_check_name(const struct hearth_job *job, const char *name, const char *param,
                                  struct hearth_api_error *error) {
    return hearth_key_limits_scope(&job->caller, HEARTH_SCOPE_SESSIONS, error) &&
           (hearth_session_name_is_valid(name) ||
            hearth_api_fail(error, 400, "invalid_value", param,
                            "%s must have 1 to %d bytes of UTF-8 and no control characters", param,
                            HEARTH_SESSION_NAME_MAX));
}

bool hearth_api_stored_name_session(const struct hearth_job *job, const char *name, const char *param,
                                    struct hearth_api_resolved *out, struct hearth_api_error *error) {
    if (!hearth_api_stored_check_name(job, name, param, error) || hearth_api_stored_make(out) == NULL) {
        return false;
    }
    out->stored->session = strdup(name);
    return out->stored->session != NULL;
}

bool hearth_api_stored_find_head(const struct hearth_job *job, bool must, const char *param, struct hearth_digest *head,
                                 struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_session session;
    const char *name = out->stored->session;
    const int err = hearth_session_get(job->api->store, job->owner, name, &session);
    *head = (struct hearth_digest){0, 0};
    if (hearth_api_stored_fail_away(job, err, "conversation", param, name, error)) { /* not treated as a new one */
        return false;
    }
    if (err == HEARTH_ERR_NOT_FOUND && !must) {
        out->stored->session_new = true;
        return true;
    }
    if (err == HEARTH_ERR_NOT_FOUND) {
        return hearth_api_fail(error, 404, "not_found", param, "%s: there is no conversation '%s' here", param, name);
    }
    if (err != HEARTH_OK) {
        return hearth_api_fail_err(error, err, NULL);
    }
    *head = session.head;
    hearth_session_finish(&session);
    return true;
}

bool hearth_api_stored_from_session(const struct hearth_job *job, const char *name, const char *param,
                                    struct hearth_api_resolved *out, struct hearth_api_error *error) {
    struct hearth_digest head;
    if (!hearth_api_stored_name_session(job, name, param, out, error) ||
        !hearth_api_stored_find_head(job, true, param, &head, out, error)) {
        return false;
    }
    return hearth_digest_is_zero(head) || (hearth_api_stored_load_line(job, head, name, param, out, error) &&
                                           hearth_api_stored_add_line(job, NULL, param, out, error));
}

uint32_t hearth_api_stored_count_turns(const struct hearth_job *job, const char *name) {
    struct hearth_session session;
    if (name == NULL || hearth_session_get(job->api->store, job->owner, name, &session) != HEARTH_OK) {
        return 0;
    }
    const uint32_t turns = session.turns;
    hearth_session_finish(&session);
    return turns;
}

/* ---- what is kept ---- */

size_t hearth_history_system_count(const struct hearth_history *history) {
    size_t count = 0;
    while (count < history->count && hearth_role_is_system(history->messages[count]->role)) {
        count++;
    }
    return count;
}

/* How many system messages stand in front of the line. */
static size_t system_count(const struct hearth_api_resolved *out) {
    const struct hearth_api_stored *stored = out->stored;
    const bool told = stored->line_messages > 0 || stored->system_apart;
    const size_t front = told ? stored->first_new - stored->line_messages : SIZE_MAX;
    const size_t count = hearth_history_system_count(&out->history);
    return count < front ? count : front;
}

bool hearth_api_stored_add_tools(struct hearth_api_chat_options *options, const json_t *config, json_t *tools) {
    json_t *stored = json_object_get(config, "tools");
    size_t i;
    json_t *tool;
    if (stored != NULL && json_array_extend(tools, stored) < 0) {
        return false;
    }
    json_array_foreach(json_object_get(config, "deferred"), i, tool) {
        json_t *deferred = json_copy(tool);
        if (deferred == NULL || json_object_set_new(deferred, "defer_loading", json_true()) < 0 ||
            json_array_append_new(tools, deferred) < 0) {
            return false;
        }
    }
    options->loaded = json_deep_copy(json_object_get(config, "loaded"));
    options->removed = json_deep_copy(json_object_get(config, "removed"));
    return true;
}

/* The system messages in front, tools, template arguments and the template; and that there is to be no thinking, where
 * that stands in front, too. Tools that are not in the head are for later requests that send only what is new. NULL:
 * out of memory. */
static json_t *config_json(const struct hearth_job *job, const struct hearth_api_resolved *out) {
    const struct hearth_chat_request *request = &out->request;
    static const struct hearth_api_chat_options none;
    const struct hearth_api_chat_options *late = out->stored->input != NULL ? &job->parsed->chat : &none;
    const char *template_text = hearth_chat_template(job->api->chat);
    const size_t system = system_count(out);
    json_t *messages = json_array();
    char hex[33];
    hearth_digest_hex(hearth_digest_bytes(template_text, template_text != NULL ? strlen(template_text) : 0), hex);
    for (size_t i = 0; i < system; i++) {
        const struct hearth_message *message = out->history.messages[i];
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", hearth_role_text(message->role), "content",
                                                  hearth_json_text(message->content, message->content_len)));
    }
    return json_pack("{s:o, s:s, s:O*, s:O*, s:O*, s:O*, s:O*, s:o*}", "system", messages, "template", hex, "tools",
                     request->tools, "deferred", late->deferred, "loaded", late->loaded, "removed", late->removed,
                     "kwargs", request->kwargs, "thinking",
                     !request->thinking && job->api->template_probe.prints_thinking ? json_false() : NULL);
}

bool hearth_api_stored_fill_config(const struct hearth_job *job, struct hearth_api_resolved *out,
                                   struct hearth_api_error *error) {
    struct hearth_api_stored *stored = out->stored;
    const struct hearth_line *line = &stored->line;
    (void)error;
    if (stored->config.len > 0) {
        return true;
    }
    if (!hearth_api_json_write(config_json(job, out), &stored->config)) {
        return false;
    }
    const struct hearth_digest own =
        hearth_turn_config_id(job->api->store, job->owner, stored->config.data, stored->config.len);
    stored->same_config = stored->exact_messages > 0 &&
                          hearth_digest_equal(line->model, job->api->engine->caps.fingerprint) &&
                          hearth_digest_equal(line->turns[line->tokens_turns - 1].config_id, own);
    return true;
}

/* The items of the messages that the request has added. What memory was refused to may be missing (base/memory.h). */
static json_t *new_items(const struct hearth_api_resolved *out) {
    const struct hearth_api_stored *stored = out->stored;
    json_t *all = json_array();
    for (size_t i = stored->line_messages > 0 ? stored->first_new : system_count(out); i < out->history.count; i++) {
        json_t *items = hearth_api_items_of_message(out->history.messages[i]);
        json_array_extend(all, items);
        json_decref(items);
    }
    return all;
}

bool hearth_api_stored_plan_write(const struct hearth_job *job, json_t *input, struct hearth_api_resolved *out,
                                  struct hearth_api_error *error) {
    const bool may = hearth_key_limits_store(job, out->stored != NULL && out->stored->session_new, error) &&
                     (job->parsed->generation.n <= 1 ||
                      hearth_api_fail(error, 400, "invalid_value", "n", "n must be 1 where the reply is stored"));
    struct hearth_api_stored *stored = may ? hearth_api_stored_make(out) : NULL;
    if (stored == NULL) {
        json_decref(input);
        return false;
    }
    stored->input = input != NULL ? input : new_items(out);
    stored->writes = job->parsed->generation.max_tokens != 0; /* nothing will be said */
    return true;
}

bool hearth_api_stored_is_due(const struct hearth_job *job) {
    return job->resolved->stored != NULL && job->resolved->stored->writes && (!job->failed || job->detached);
}

/* Fills in the exact tokens of the conversation up to and with the reply. False: out of memory. */
static bool fill_tokens(const struct hearth_job *job, struct hearth_turn *turn) {
    const struct hearth_choice *choice = &job->choices[0];
    const struct hearth_line *line = &job->resolved->stored->line;
    struct hearth_tokens path = {0};
    if (!hearth_tokens_append(&path, choice->prompt->tokens.v, choice->prompt->tokens.n) ||
        !hearth_tokens_append(&path, choice->sampled.v, choice->sampled.n)) {
        hearth_tokens_finish(&path);
        return false;
    }
    const bool parent_known = line->count > 0 && line->tokens_turns == line->count &&
                              hearth_digest_equal(line->model, job->api->engine->caps.fingerprint) &&
                              hearth_digest_equal(line->turns[line->count - 1].salt, job->resolved->salt);
    const size_t base = parent_known ? hearth_tokens_common(line->tokens.v, line->tokens.n, path.v, path.n) : 0;
    const bool ok = hearth_tokens_append(&turn->tokens, path.v + base, path.n - base);
    turn->base_tokens = (uint32_t)base;
    turn->model = job->api->engine->caps.fingerprint;
    turn->salt = job->resolved->salt;
    turn->path = hearth_turn_path_id(job->api->store, turn->model, turn->salt, path.v, path.n);
    hearth_tokens_finish(&path);
    return ok;
}

/* Writes the turn; `exact`: with its tokens. Output and response are given up. */
static int put(struct hearth_job *job, enum hearth_turn_status status, bool exact, json_t *output, json_t *response,
               struct hearth_errmsg *msg) {
    const struct hearth_api_stored *stored = job->resolved->stored;
    const struct hearth_line *line = &stored->line;
    struct hearth_turn turn = {
        .id = job->id_bits,
        .owner = job->owner,
        .quota = job->caller.stored,
        .parent = line->count > 0 ? line->turns[line->count - 1].id : (struct hearth_digest){0, 0},
        .status = status,
        .created_us = job->created_unix * 1000000,
        .session = stored->session,
        .lock = stored->lock,
        .again = job->turn_written, /* a client that knows it may have deleted it */
        .joins = !stored->session_new,
        .config = stored->config,
    };
    json_t *body = json_pack("{s:O, s:o, s:o}", "input", stored->input, "output", output, "response", response);
    if (job->resolved->request.continues && body != NULL) {
        json_object_set_new(body, "continues", json_true());
    }
    int err =
        hearth_api_json_write(body, &turn.body) && (!exact || fill_tokens(job, &turn)) ? HEARTH_OK : HEARTH_ERR_NOMEM;
    if (err == HEARTH_OK) {
        err = hearth_turn_put(job->api->store, &turn, msg);
        job->turn_written = job->turn_written || err == HEARTH_OK;
    }
    hearth_buf_finish(&turn.body); /* the rest is the request's */
    hearth_tokens_finish(&turn.tokens);
    return err;
}

bool hearth_api_stored_put_open(struct hearth_job *job, enum hearth_turn_status status, json_t *response) {
    struct hearth_errmsg msg = {{0}};
    const int err = put(job, status, false, json_array(), response, &msg);
    return err == HEARTH_OK || hearth_api_fail_err(&job->error, err, &msg);
}

static enum hearth_turn_status status_of(const struct hearth_job *job) {
    if (job->cancelled) {
        return HEARTH_TURN_CANCELLED; /* a client was told so, even if the reply was complete by then */
    }
    if (job->failed) {
        return HEARTH_TURN_FAILED;
    }
    return job->choices[0].cut ? HEARTH_TURN_INCOMPLETE : HEARTH_TURN_COMPLETED;
}

/* Whether another request has cancelled the turn meanwhile, and was answered so. */
static bool was_cancelled(const struct hearth_job *job) {
    struct hearth_turn turn = {0};
    const int err = hearth_turn_get(job->api->store, job->owner, job->id_bits, &turn);
    const bool cancelled = err == HEARTH_OK && turn.status == HEARTH_TURN_CANCELLED;
    hearth_turn_finish(&turn);
    return cancelled;
}

/* Writes the turn as it has ended, unless it was cancelled by then. Only a turn that is there as in progress can be
 * cancelled; the others need no lock, which may be held while a database server is waited for. */
static int put_end(struct hearth_job *job, enum hearth_turn_status status, json_t *output, json_t *response,
                   struct hearth_errmsg *msg) {
    const bool exact = !job->failed && job->resolved->left_out == 0; /* otherwise they are not the conversation's */
    if (!job->turn_written) {
        return put(job, status, exact, output, response, msg);
    }
    int err = HEARTH_OK;
    pthread_mutex_lock(&job->api->ends_mutex);
    if (status != HEARTH_TURN_CANCELLED && was_cancelled(job)) {
        json_decref(output);
        json_decref(response);
    } else {
        err = put(job, status, exact, output, response, msg);
    }
    pthread_mutex_unlock(&job->api->ends_mutex);
    return err;
}

void hearth_api_stored_write(struct hearth_job *job) {
    struct hearth_errmsg msg = {{0}};
    const enum hearth_turn_status status = status_of(job);
    json_t *output = job->failed ? json_array() : hearth_api_items_of_message(job->choices[0].message);
    json_t *response = job->dialect->record != NULL ? job->dialect->record(job, status) : json_object();
    const int err = put_end(job, status, output, response, &msg);
    if (err != HEARTH_OK) {
        hearth_log(HEARTH_LOG_WARN, "sessions: %s could not be stored: %s", job->id,
                   msg.text[0] != '\0' ? msg.text : hearth_err_text(err));
    }
    if (err != HEARTH_OK && !job->failed) {
        job->failed = true;
        hearth_api_fail(&job->error, hearth_err_http(err),
                        err == HEARTH_ERR_QUOTA ? "storage_limit_exceeded" : "not_stored", NULL,
                        "the reply could not be stored: %s", msg.text[0] != '\0' ? msg.text : hearth_err_text(err));
    }
}

void hearth_api_stored_add_json(const struct hearth_job *job, json_t *receipt) {
    const struct hearth_api_stored *stored = job->resolved->stored;
    char id[64];
    if (stored != NULL) {
        hearth_api_id_print(id, sizeof id, "turn_", job->id_bits, -1);
        json_object_update_new(
            receipt, json_pack("{s:s*, s:s*}", "session", stored->session, "turn", job->turn_written ? id : NULL));
    }
}
