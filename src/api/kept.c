/* Turns of conversations that live in the server: read before a prompt is made, written when the reply is there.
 *
 * A turn's config is what decides the text in front of its first message, as JSON: system messages, tools, template
 * arguments, and a digest of the template. Where a request has the config of the turn that it goes on from, the exact
 * tokens up to there are known, and only what is new is rendered and tokenised (history.c); with another config they
 * are worthless, and the messages are rendered like any history.
 *
 * Invariant: job->history is [system messages][the line's messages][the request's own]. */
#include "api/kept.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct hearth_kept *hearth_kept_get(struct hearth_job *job) {
    if (job->kept == NULL && (job->kept = calloc(1, sizeof *job->kept)) == NULL) {
        hearth_api_fail_nomem(&job->error);
    }
    return job->kept;
}

void hearth_kept_destroy(struct hearth_job *job) {
    struct hearth_kept *kept = job->kept;
    if (kept != NULL) {
        hearth_line_finish(&kept->line);
        hearth_turn_finish(&kept->turn);
        json_decref(kept->input);
        free(kept->session);
        free(kept);
        job->kept = NULL;
    }
}

/* ---- ids ---- */

static int digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, size_t digits, uint64_t *out) {
    *out = 0;
    for (size_t i = 0; i < digits; i++) {
        if (digit(text[i]) < 0) {
            return false;
        }
        *out = *out << 4 | (uint64_t)digit(text[i]);
    }
    return true;
}

bool hearth_id_parse(const char *text, struct hearth_digest *out, int *index) {
    const size_t len = strlen(text);
    const size_t prefix = strcspn(text, "_-") + 1;
    const size_t digits = prefix < len ? len - prefix : 0;
    uint64_t place = 0;
    if ((digits != 32 && digits != 36) || !read_hex(text + prefix, 16, &out->hi) ||
        !read_hex(text + prefix + 16, 16, &out->lo) || !read_hex(text + prefix + 32, digits - 32, &place)) {
        return false;
    }
    *index = digits == 36 ? (int)place : -1;
    return true;
}

void hearth_id_print(char *out, size_t cap, const char *prefix, struct hearth_digest turn, int index) {
    char hex[33];
    hearth_digest_hex(turn, hex);
    snprintf(out, cap, index >= 0 ? "%s%s%04x" : "%s%s", prefix, hex, (unsigned)index);
}

/* ---- where it goes on from ---- */

/* Members of a config: of struct hearth_chat_options, in this order. */
static const char *const late_names[] = {"deferred", "loaded", "removed"};

static json_t *body_json(const struct hearth_buf *text) {
    return text->len > 0 ? hearth_json_load((const char *)text->data, text->len, JSON_ALLOW_NUL, NULL) : NULL;
}

json_t *hearth_kept_config_json(const struct hearth_turn *turn) {
    return body_json(&turn->config);
}

bool hearth_kept_add_system(struct hearth_history *history, const json_t *config) {
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(config, "system"), i, entry) {
        const json_t *content = json_object_get(entry, "content");
        enum hearth_role role = HEARTH_ROLE_SYSTEM;
        (void)hearth_role_from_text(json_string_value(json_object_get(entry, "role")), &role);
        struct hearth_message *message = hearth_message_create(role);
        if (message != NULL) {
            message->content = strndup(json_string_value(content), json_string_length(content));
            message->content_len = json_string_length(content);
        }
        if (message == NULL || message->content == NULL || !hearth_message_seal(message)) {
            hearth_message_unref(message);
            return false;
        }
        if (!hearth_history_add(history, message)) {
            return false;
        }
    }
    return true;
}

/* A reply that has continued a message of the assistant is one message with it. `at`: where it stands. */
static void join_reply(struct hearth_history *history, size_t at) {
    struct hearth_message **pair = at > 0 && at < history->count ? &history->messages[at - 1] : NULL;
    struct hearth_message *whole = NULL;
    if (pair != NULL && pair[0]->role == HEARTH_ROLE_ASSISTANT && pair[1]->role == HEARTH_ROLE_ASSISTANT) {
        whole = hearth_history_join(pair[0], pair[1]);
    }
    if (whole != NULL) { /* otherwise they stay two: no text is lost */
        hearth_message_unref(pair[0]);
        hearth_message_unref(pair[1]);
        pair[0] = whole;
        history->count--;
        memmove(pair + 1, pair + 2, (history->count - at) * sizeof(struct hearth_message *));
    }
}

static bool add_turn(struct hearth_job *job, const struct hearth_turn *turn, const char *param) {
    json_t *body = body_json(&turn->body);
    const json_t *input = json_object_get(body, "input"), *output = json_object_get(body, "output");
    bool ok = input == NULL || hearth_items_read(job, input, param, true);
    const size_t reply = job->history.count;
    ok = ok && (output == NULL || hearth_items_read(job, output, param, true));
    if (ok && json_is_true(json_object_get(body, "continues"))) {
        join_reply(&job->history, reply);
    }
    json_decref(body);
    return ok;
}

bool hearth_kept_add_line(struct hearth_job *job, size_t *ends, const char *param) {
    struct hearth_kept *kept = job->kept;
    const size_t before = job->history.count;
    kept->exact_messages = 0;
    for (size_t i = 0; i < kept->line.count; i++) {
        if (!add_turn(job, &kept->line.turns[i], param)) {
            return false;
        }
        if (ends != NULL) {
            ends[i] = job->history.count - before;
        }
        if (i + 1 == kept->line.tokens_turns) {
            kept->exact_messages = job->history.count;
        }
    }
    kept->line_messages = job->history.count - before;
    kept->first_new = job->history.count;
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

bool hearth_kept_fail_away(struct hearth_job *job, int err, const char *what, const char *param, const char *name) {
    if (err != HEARTH_ERR_NOT_FOUND || !hearth_session_store_is_fallback(job->api->store)) {
        return false;
    }
    (void)hearth_api_fail(&job->error, 503, "session_store_unavailable", param,
                          "%s: the session database cannot be used, and the %s '%.100s' may be there", param, what,
                          name);
    return true;
}

bool hearth_kept_load_line(struct hearth_job *job, struct hearth_digest id, const char *name, const char *param) {
    struct hearth_kept *kept = job->kept;
    hearth_line_finish(&kept->line);
    const int err = hearth_line_get(job->api->store, job->owner, id, &kept->line);
    if (hearth_kept_fail_away(job, err, "response", param, name)) {
        return false;
    }
    if (err == HEARTH_ERR_NOT_FOUND) {
        return hearth_api_fail(&job->error, 404, "not_found", param, "%s: there is no response with the id '%s' here",
                               param, name);
    }
    if (err != HEARTH_OK) {
        return hearth_api_fail_err(&job->error, err, NULL);
    }
    if (!are_tokens(job->api, &kept->line.tokens)) { /* brought in from elsewhere, and not what it says it is */
        kept->line.tokens_turns = 0;
    }
    const enum hearth_turn_status status = kept->line.turns[kept->line.count - 1].status;
    if (status == HEARTH_TURN_QUEUED || status == HEARTH_TURN_IN_PROGRESS) {
        return hearth_api_fail(&job->error, 400, "invalid_value", param, "%s: the response '%s' is still running",
                               param, name);
    }
    return true;
}

bool hearth_kept_from_turn(struct hearth_job *job, const char *id, const char *param) {
    struct hearth_digest digest = {0, 0};
    int index = 0;
    if (!hearth_key_limits_scope(&job->caller, HEARTH_SCOPE_SESSIONS, &job->error) || hearth_kept_get(job) == NULL) {
        return false;
    }
    if (!hearth_id_parse(id, &digest, &index) || index >= 0) {
        return hearth_api_fail(&job->error, 404, "not_found", param, "%s: there is no response with the id '%s' here",
                               param, id);
    }
    return hearth_kept_load_line(job, digest, id, param) && hearth_kept_add_line(job, NULL, param);
}

bool hearth_kept_name_session(struct hearth_job *job, const char *name, const char *param) {
    const bool may = hearth_key_limits_scope(&job->caller, HEARTH_SCOPE_SESSIONS, &job->error);
    struct hearth_kept *kept = may ? hearth_kept_get(job) : NULL;
    if (kept == NULL) {
        return false;
    }
    if (!hearth_session_name_is_valid(name)) {
        return hearth_api_fail(&job->error, 400, "invalid_value", param,
                               "%s must have 1 to %d bytes of UTF-8 and no control characters", param,
                               HEARTH_SESSION_NAME_MAX);
    }
    free(kept->session);
    kept->session = strdup(name);
    return kept->session != NULL || hearth_api_fail_nomem(&job->error);
}

bool hearth_kept_find_head(struct hearth_job *job, bool must, const char *param, struct hearth_digest *head) {
    struct hearth_session session;
    const char *name = job->kept->session;
    const int err = hearth_session_get(job->api->store, job->owner, name, &session);
    *head = (struct hearth_digest){0, 0};
    if (hearth_kept_fail_away(job, err, "conversation", param, name)) { /* not taken for a new one */
        return false;
    }
    if (err == HEARTH_ERR_NOT_FOUND && !must) {
        job->kept->session_new = true;
        return true;
    }
    if (err == HEARTH_ERR_NOT_FOUND) {
        return hearth_api_fail(&job->error, 404, "not_found", param, "%s: there is no conversation '%s' here", param,
                               name);
    }
    if (err != HEARTH_OK) {
        return hearth_api_fail_err(&job->error, err, NULL);
    }
    *head = session.head;
    hearth_session_finish(&session);
    return true;
}

bool hearth_kept_from_session(struct hearth_job *job, const char *name, bool must, const char *param) {
    struct hearth_digest head;
    if (!hearth_kept_name_session(job, name, param) || !hearth_kept_find_head(job, must, param, &head)) {
        return false;
    }
    return hearth_digest_equal(head, (struct hearth_digest){0, 0}) ||
           (hearth_kept_load_line(job, head, name, param) && hearth_kept_add_line(job, NULL, param));
}

uint32_t hearth_kept_count_turns(const struct hearth_job *job, const char *name) {
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
    while (count < history->count && (history->messages[count]->role == HEARTH_ROLE_SYSTEM ||
                                      history->messages[count]->role == HEARTH_ROLE_DEVELOPER)) {
        count++;
    }
    return count;
}

/* Those in front of the line. */
static size_t system_count(const struct hearth_job *job) {
    const struct hearth_kept *kept = job->kept;
    const bool told = kept->line_messages > 0 || kept->system_apart;
    const size_t front = told ? kept->first_new - kept->line_messages : SIZE_MAX;
    const size_t count = hearth_history_system_count(&job->history);
    return count < front ? count : front;
}

/* What a conversation of which only the new is sent knows of tools besides those of its head. */
static void put_late_tools(const struct hearth_chat_options *options, json_t *config) {
    json_t *const late[] = {options->deferred, options->loaded, options->removed};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        if (late[i] != NULL) {
            json_object_set(config, late_names[i], late[i]);
        }
    }
}

bool hearth_kept_add_tools(struct hearth_chat_options *options, const json_t *config, json_t *tools) {
    json_t *kept = json_object_get(config, "tools");
    size_t i;
    json_t *tool;
    if (kept != NULL && json_array_extend(tools, kept) < 0) {
        return false;
    }
    json_array_foreach(json_object_get(config, late_names[0]), i, tool) {
        json_t *deferred = json_copy(tool);
        if (deferred == NULL || json_object_set_new(deferred, "defer_loading", json_true()) < 0 ||
            json_array_append_new(tools, deferred) < 0) {
            return false;
        }
    }
    options->loaded = json_deep_copy(json_object_get(config, late_names[1]));
    options->removed = json_deep_copy(json_object_get(config, late_names[2]));
    return true;
}

/* The system messages in front, tools, template arguments and the template; and that there is to be no thinking, where
 * that stands in front, too. NULL: out of memory. */
static json_t *config_json(const struct hearth_job *job) {
    const struct hearth_chat_request *request = &job->chat.request;
    const char *template_text = hearth_chat_template(job->api->chat);
    const size_t system = system_count(job);
    json_t *messages = json_array();
    char hex[33];
    hearth_digest_hex(hearth_digest_bytes(template_text, template_text != NULL ? strlen(template_text) : 0), hex);
    for (size_t i = 0; i < system; i++) {
        const struct hearth_message *message = job->history.messages[i];
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", hearth_role_text(message->role), "content",
                                                  hearth_json_text(message->content, message->content_len)));
    }
    json_t *config = json_pack("{s:o, s:s}", "system", messages, "template", hex);
    if (config != NULL && request->tools != NULL) {
        json_object_set(config, "tools", (json_t *)request->tools);
    }
    if (config != NULL && job->kept->must) {
        put_late_tools(&job->chat, config);
    }
    if (config != NULL && request->kwargs != NULL) {
        json_object_set(config, "kwargs", (json_t *)request->kwargs);
    }
    if (config != NULL && !request->thinking && job->api->trials.prints_thinking) {
        json_object_set_new(config, "thinking", json_false());
    }
    return config;
}

bool hearth_kept_settle(struct hearth_job *job) {
    struct hearth_kept *kept = job->kept;
    const struct hearth_line *line = &kept->line;
    if (kept->turn.config.len > 0) {
        return true;
    }
    if (!hearth_json_write(config_json(job), &kept->turn.config)) {
        return hearth_api_fail_nomem(&job->error);
    }
    const struct hearth_digest own =
        hearth_turn_config_id(job->api->store, job->owner, kept->turn.config.data, kept->turn.config.len);
    kept->same_config = kept->exact_messages > 0 &&
                        hearth_digest_equal(line->model, job->api->engine->caps.fingerprint) &&
                        hearth_digest_equal(line->turns[line->tokens_turns - 1].config_id, own);
    return true;
}

/* The items of the messages that the request has added. NULL: out of memory. */
static json_t *new_items(const struct hearth_job *job) {
    const struct hearth_kept *kept = job->kept;
    json_t *all = json_array();
    for (size_t i = kept->line_messages > 0 ? kept->first_new : system_count(job); i < job->history.count; i++) {
        json_t *items = hearth_items_of_message(job->history.messages[i]);
        const bool ok = items != NULL && json_array_extend(all, items) == 0;
        json_decref(items);
        if (!ok) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

bool hearth_kept_keep(struct hearth_job *job, json_t *input, bool must) {
    if (!hearth_key_limits_store(job, job->kept != NULL && job->kept->session_new)) { /* before it costs anything */
        json_decref(input);
        return false;
    }
    struct hearth_kept *kept = hearth_kept_get(job);
    if (kept != NULL && input == NULL) {
        input = new_items(job);
    }
    if (kept == NULL || input == NULL) {
        json_decref(input);
        return hearth_api_fail_nomem(&job->error);
    }
    if (job->generation.n > 1) {
        json_decref(input);
        return hearth_api_fail(&job->error, 400, "invalid_value", "n", "n must be 1 where the reply is stored");
    }
    kept->input = input;
    kept->keeps = job->generation.max_tokens != 0; /* nothing will be said */
    kept->must = must;
    return true;
}

bool hearth_kept_is_due(const struct hearth_job *job) {
    return job->kept != NULL && job->kept->keeps && (!job->failed || job->detached);
}

static size_t common_tokens(const struct hearth_tokens *a, const struct hearth_tokens *b) {
    const size_t most = a->n < b->n ? a->n : b->n;
    size_t n = 0;
    while (n < most && a->v[n] == b->v[n]) {
        n++;
    }
    return n;
}

/* The exact tokens of the conversation up to and with the reply. False: out of memory. */
static bool fill_tokens(struct hearth_job *job) {
    struct hearth_kept *kept = job->kept;
    const struct hearth_choice *choice = &job->choices[0];
    const struct hearth_line *line = &kept->line;
    struct hearth_tokens path = {0};
    if (!hearth_tokens_append(&path, choice->prompt->tokens.v, choice->prompt->tokens.n) ||
        !hearth_tokens_append(&path, choice->sampled.v, choice->sampled.n)) {
        hearth_tokens_finish(&path);
        return false;
    }
    const bool parent_known = line->count > 0 && line->tokens_turns == line->count &&
                              hearth_digest_equal(line->model, job->api->engine->caps.fingerprint) &&
                              hearth_digest_equal(line->turns[line->count - 1].salt, job->generation.salt);
    const size_t base = parent_known ? common_tokens(&line->tokens, &path) : 0;
    const bool ok = hearth_tokens_append(&kept->turn.tokens, path.v + base, path.n - base);
    kept->turn.base_tokens = (uint32_t)base;
    kept->turn.model = job->api->engine->caps.fingerprint;
    kept->turn.salt = job->generation.salt;
    kept->turn.path = hearth_turn_path_id(job->api->store, kept->turn.model, kept->turn.salt, path.v, path.n);
    hearth_tokens_finish(&path);
    return ok;
}

/* Everything of the turn but its body's text and its tokens. False: out of memory. */
static bool fill_head(struct hearth_job *job, enum hearth_turn_status status) {
    struct hearth_kept *kept = job->kept;
    struct hearth_turn *turn = &kept->turn;
    turn->id = job->id_bits;
    turn->owner = job->owner;
    turn->quota = job->caller.stored;
    turn->parent = kept->line.count > 0 ? kept->line.turns[kept->line.count - 1].id : turn->parent;
    turn->status = status;
    turn->created_us = job->created_unix * 1000000;
    turn->again = kept->stored; /* who has been told of it may have deleted it */
    turn->joins = !kept->session_new;
    if (turn->session == NULL && kept->session != NULL && (turn->session = strdup(kept->session)) == NULL) {
        return false;
    }
    turn->body.len = 0;
    return true;
}

static int put(struct hearth_job *job, enum hearth_turn_status status, json_t *output, json_t *response,
               struct hearth_errmsg *msg) {
    struct hearth_kept *kept = job->kept;
    const bool ok = fill_head(job, status);
    json_t *body = json_pack("{s:O, s:o, s:o}", "input", kept->input, "output", output, "response", response);
    if (job->chat.request.continues && body != NULL) {
        json_object_set_new(body, "continues", json_true());
    }
    if (!hearth_json_write(body, &kept->turn.body) || !ok) {
        return HEARTH_ERR_NOMEM;
    }
    const int err = hearth_turn_put(job->api->store, &kept->turn, msg);
    kept->stored = kept->stored || err == HEARTH_OK;
    return err;
}

bool hearth_kept_put_open(struct hearth_job *job, enum hearth_turn_status status, json_t *response) {
    struct hearth_errmsg msg = {{0}};
    const int err = put(job, status, json_array(), response, &msg);
    return err == HEARTH_OK || hearth_api_fail_err(&job->error, err, &msg);
}

static enum hearth_turn_status status_of(const struct hearth_job *job) {
    if (job->cancelled) {
        return HEARTH_TURN_CANCELLED; /* somebody has been told so, even if it was complete by then */
    }
    if (job->failed) {
        return HEARTH_TURN_FAILED;
    }
    return job->choices[0].cut ? HEARTH_TURN_INCOMPLETE : HEARTH_TURN_COMPLETED;
}

/* Somebody who asked for it has been told that the turn was cancelled, while this worker was on its way. */
static bool was_cancelled(const struct hearth_job *job) {
    struct hearth_turn turn = {0};
    const int err = hearth_turn_get(job->api->store, job->owner, job->id_bits, &turn);
    const bool cancelled = err == HEARTH_OK && turn.status == HEARTH_TURN_CANCELLED;
    hearth_turn_finish(&turn);
    return cancelled;
}

/* Writes the turn as it has ended, unless it was cancelled by then. */
static int put_end(struct hearth_job *job, enum hearth_turn_status status, json_t *output, json_t *response,
                   struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    pthread_mutex_lock(&job->api->ends_mutex);
    if (job->kept->stored && status != HEARTH_TURN_CANCELLED && was_cancelled(job)) {
        json_decref(output);
        json_decref(response);
    } else {
        err = put(job, status, output, response, msg);
    }
    pthread_mutex_unlock(&job->api->ends_mutex);
    return err;
}

void hearth_kept_write(struct hearth_job *job) {
    struct hearth_kept *kept = job->kept;
    struct hearth_errmsg msg = {{0}};
    const enum hearth_turn_status status = status_of(job);
    json_t *output = job->failed ? json_array() : hearth_items_of_message(job->choices[0].message);
    json_t *response = job->dialect->record != NULL ? job->dialect->record(job, status) : json_object();
    const bool exact = !job->failed && kept->dropped_messages == 0; /* otherwise they are not the conversation's */
    int err = !exact || fill_tokens(job) ? HEARTH_OK : HEARTH_ERR_NOMEM;
    if (err == HEARTH_OK) {
        err = put_end(job, status, output, response, &msg);
    } else {
        json_decref(output);
        json_decref(response);
    }
    if (err != HEARTH_OK) {
        hearth_log(HEARTH_LOG_WARN, "sessions: %s could not be stored: %s", job->id,
                   msg.text[0] != '\0' ? msg.text : hearth_err_text(err));
    }
    if (err != HEARTH_OK && kept->must && !job->failed) {
        job->failed = true;
        hearth_api_fail(&job->error, hearth_err_http(err),
                        err == HEARTH_ERR_QUOTA ? "storage_limit_exceeded" : "not_stored", NULL,
                        "the reply could not be stored: %s", msg.text[0] != '\0' ? msg.text : hearth_err_text(err));
    }
}

bool hearth_kept_add_json(const struct hearth_job *job, json_t *receipt) {
    const struct hearth_kept *kept = job->kept;
    char id[64];
    if (kept == NULL) {
        return true;
    }
    hearth_id_print(id, sizeof id, "turn_", job->id_bits, -1);
    return (kept->session == NULL || json_object_set_new(receipt, "session", json_string(kept->session)) == 0) &&
           (!kept->stored || json_object_set_new(receipt, "turn", json_string(id)) == 0);
}
