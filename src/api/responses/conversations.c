/* OpenAI's Conversations: sessions, seen as lists of items.
 *
 * Items that are added become a turn without a response, behind the head. An item that is deleted leaves a null in its
 * turn, so that the ids of the others stay; the tokens of its turn, and of those behind, are no longer what the
 * conversation is, and are forgotten: the next request renders it anew.
 * Source: https://platform.openai.com/docs/api-reference/conversations */
#include "api/responses/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 20u

/* ---- conversations ---- */

static json_t *conversation_json(const struct hearth_session *session) {
    return json_pack("{s:o, s:s, s:I, s:o}", "id", hearth_api_json_text(session->name), "object", "conversation",
                     "created_at", (json_int_t)(session->created_us / 1000000), "metadata",
                     hearth_metadata_json(&session->metadata));
}

static const struct hearth_api_session_form form = {.kind = "conversation",
                                                    .param = "conversation_id",
                                                    .missing = {"Conversation with id", "not found."},
                                                    .print = conversation_json};

/* Loads the path's conversation; the caller finishes it. */
static bool load(struct hearth_job *job, struct hearth_session *session) {
    char *name = hearth_job_param(job, 0);
    const bool ok = name != NULL && hearth_api_session_get(job, &form, name, session);
    free(name);
    return ok;
}

/* Answers with a conversation as it stands. */
static bool respond(struct hearth_job *job, const struct hearth_api_session_form *as, const char *name) {
    (void)snprintf(job->id, sizeof job->id, "%s", name);
    return hearth_api_session_respond(job, as, name);
}

/* Stores a conversation's metadata; a new one is made. */
static bool put(struct hearth_job *job, const struct hearth_session *session, bool replace) {
    struct hearth_errmsg msg = {{0}};
    const int err = hearth_session_put(job->api->store, session, replace, &msg);
    return err == HEARTH_OK || hearth_api_session_fail(job, &form, err, session->name, &msg);
}

/* The request's items, checked against what stands before them (`past`), in the form in which they are stored. NULL:
 * job->error is filled. */
static json_t *read_items(struct hearth_job *job, const json_t *body, const struct hearth_history *past) {
    struct hearth_history read = {0};
    const json_t *given = hearth_api_json_get(body, "items");
    if (given != NULL && !json_is_array(given)) {
        hearth_api_fail(&job->error, 400, "invalid_type", "items", "items must be an array");
        return NULL;
    }
    if (json_array_size(given) > ITEMS_MAX) {
        hearth_api_fail(&job->error, 400, "array_above_max_length", "items", "items: at most %u at a time are allowed",
                        ITEMS_MAX);
        return NULL;
    }
    json_t *items = hearth_inputs_get(job, given, "items", &job->error), *unanswered = json_array(), *clean = NULL;
    if (items != NULL && hearth_api_items_read(job, items, "items", unanswered, &read, &job->error) &&
        hearth_api_items_check(unanswered, past, "items", &job->error)) {
        clean = hearth_inputs_clean(items);
    }
    hearth_history_finish(&read);
    json_decref(unanswered);
    json_decref(items);
    return clean;
}

/* Stores items as a turn behind a conversation's head; takes them. */
static bool put_items(struct hearth_job *job, const struct hearth_session *session,
                      const struct hearth_conversation_lock *lock, json_t *items, struct hearth_turn *turn) {
    struct hearth_errmsg msg = {{0}};
    *turn = (struct hearth_turn){.id = job->id_bits,
                                 .owner = job->owner,
                                 .parent = session->head,
                                 .status = HEARTH_TURN_COMPLETED,
                                 .session = hearth_memory_strdup(session->name),
                                 .joins = true,
                                 .quota = job->caller.stored};
    if (!hearth_api_json_write(json_pack("{s:o, s:[], s:{}}", "input", items, "output", "response"), &turn->body)) {
        return false;
    }
    turn->lock = hearth_conversation_lock_shared(lock);
    const int err = hearth_turn_put(job->api->store, turn, &msg);
    return err == HEARTH_OK || hearth_api_session_fail(job, &form, err, session->name, &msg);
}

bool hearth_conversations_create_prepare(struct hearth_job *job, const json_t *body) {
    char name[64];
    struct hearth_session session = {.name = name, .owner = job->owner, .quota = job->caller.stored};
    struct hearth_turn turn = {0};
    hearth_api_id_print(name, sizeof name, "conv_", hearth_turn_new_id(), -1);
    const struct hearth_history none = {0};
    json_t *items = hearth_key_limits_store(job, true, &job->error) ? read_items(job, body, &none) : NULL;
    bool ok = items != NULL && hearth_metadata_read(body, &session.metadata, &job->error) && put(job, &session, false);
    if (ok && json_array_size(items) > 0) {
        ok = put_items(job, &session, NULL, json_incref(items), &turn);
    }
    json_decref(items);
    hearth_turn_finish(&turn);
    hearth_buf_finish(&session.metadata);
    return ok && respond(job, &form, name);
}

bool hearth_conversations_get_prepare(struct hearth_job *job, const json_t *body) {
    (void)body;
    return hearth_api_session_of_path(job, &form, respond);
}

bool hearth_conversations_delete_prepare(struct hearth_job *job, const json_t *body) {
    (void)body;
    return hearth_api_session_of_path(job, &form, hearth_api_session_delete);
}

bool hearth_conversations_update_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_session session = {0};
    if (json_object_get(body, "metadata") == NULL) {
        return hearth_api_fail(&job->error, 400, "missing_required_parameter", "metadata", "metadata is needed");
    }
    if (!load(job, &session)) {
        return false;
    }
    session.head = (struct hearth_digest){0, 0}; /* keeps the stored head */
    const bool ok = hearth_metadata_read(body, &session.metadata, &job->error) && put(job, &session, true) &&
                    respond(job, &form, session.name);
    hearth_session_finish(&session);
    return ok;
}

/* ---- items ---- */

/* Loads the path's conversation and its turns. */
static bool load_line(struct hearth_job *job, struct hearth_session *session, struct hearth_line *line) {
    if (!load(job, session)) {
        return false;
    }
    const bool begun = !hearth_digest_is_zero(session->head);
    const int err = begun ? hearth_line_get(job->api->store, job->owner, session->head, line) : HEARTH_OK;
    if (err != HEARTH_OK) {
        hearth_session_finish(session);
        return hearth_api_fail_err(&job->error, err, NULL);
    }
    return true;
}

bool hearth_conversations_list_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_session session = {0};
    (void)body;
    if (!load(job, &session)) {
        return false;
    }
    const struct hearth_digest head = session.head;
    hearth_session_finish(&session);
    return hearth_list_respond(job, head, true);
}

bool hearth_conversations_add_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_conversation_lock *lock = NULL;
    struct hearth_api_resolved past = {0};
    struct hearth_session session = {0};
    struct hearth_turn turn = {0};
    if (hearth_api_json_get(body, "items") == NULL) {
        return hearth_api_fail(&job->error, 400, "missing_required_parameter", "items", "items are needed");
    }
    if (!hearth_key_limits_store(job, false, &job->error) || !load(job, &session)) {
        return false;
    }
    bool ok = hearth_conversation_lock(job, session.name, &lock, &job->error) &&
              hearth_api_stored_from_session(job, session.name, "conversation_id", &past, &job->error);
    json_t *items = ok ? read_items(job, body, &past.history) : NULL;
    if (ok && past.stored->line.count > 0) { /* by now it may be another one */
        session.head = past.stored->line.turns[past.stored->line.count - 1].id;
    }
    job->about = hearth_memory_strdup(session.name);
    hearth_api_stored_destroy(&past.stored);
    hearth_history_finish(&past.history);
    ok = ok && items != NULL &&
         (json_array_size(items) == 0 || put_items(job, &session, lock, json_incref(items), &turn));
    json_t *list = json_array();
    hearth_list_add_turn(list, &turn, false);
    hearth_conversation_lock_destroy(lock);
    json_decref(items);
    hearth_turn_finish(&turn);
    hearth_session_finish(&session);
    json_t *answer = hearth_list_json(list, false);
    if (!ok) {
        json_decref(answer);
        return false;
    }
    return hearth_job_respond(job, answer);
}

/* Finds the path's item: the place of its turn in the line, and its own place in the turn. */
static bool find_item(struct hearth_job *job, const struct hearth_line *line, size_t *turn, int *index) {
    char *id = hearth_job_param(job, 1);
    struct hearth_digest digest = {0, 0};
    *index = -1;
    *turn = line->count;
    if (id != NULL && hearth_api_id_parse(id, &digest, index) && *index >= 0) {
        for (*turn = 0; *turn < line->count; ++*turn) {
            if (hearth_digest_equal(line->turns[*turn].id, digest)) {
                break;
            }
        }
    }
    const bool ok = *turn < line->count || hearth_api_fail(&job->error, 404, "not_found", "item_id",
                                                           "Item with id '%.100s' not found.", id != NULL ? id : "");
    free(id);
    return ok;
}

bool hearth_conversations_item_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_session session = {0};
    struct hearth_line line = {0};
    size_t at, i;
    int index;
    json_t *list = json_array(), *item, *found = NULL;
    (void)body;
    bool ok = load_line(job, &session, &line) && find_item(job, &line, &at, &index);
    if (ok) {
        char *id = hearth_job_param(job, 1);
        hearth_list_add_turn(list, &line.turns[at], true);
        json_array_foreach(list, i, item) {
            const char *own = json_string_value(json_object_get(item, "id"));
            if (id != NULL && found == NULL && strcmp(own + strcspn(own, "_"), id + strcspn(id, "_")) == 0) {
                found = json_incref(item);
            }
        }
        ok = found != NULL || hearth_api_fail(&job->error, 404, "not_found", "item_id",
                                              "Item with id '%.100s' not found.", id != NULL ? id : "");
        free(id);
    }
    hearth_line_finish(&line);
    hearth_session_finish(&session);
    json_decref(list);
    return ok && hearth_job_respond(job, found);
}

/* Replaces an item by null. NULL: there is no such item. */
static json_t *without_item(const struct hearth_turn *turn, size_t index) {
    json_t *body = hearth_api_json_read(&turn->body);
    json_t *items = json_object_get(body, "input");
    if (index >= json_array_size(items)) {
        index -= json_array_size(items);
        items = json_object_get(body, "output");
    }
    if (!json_is_object(json_array_get(items, index)) || json_array_set_new(items, index, json_null()) < 0) {
        json_decref(body);
        return NULL;
    }
    return body;
}

/* Rewrites a turn without its tokens and, if `body` is not NULL, with another body; takes it. */
static bool rewrite(struct hearth_job *job, struct hearth_digest id, json_t *body) {
    struct hearth_turn turn = {0};
    struct hearth_errmsg msg = {{0}};
    int err = hearth_turn_get_hidden(job->api->store, job->owner, id, &turn);
    if (err == HEARTH_ERR_NOT_FOUND && body == NULL) {
        return true; /* it was deleted meanwhile */
    }
    if (err == HEARTH_OK) {
        turn.tokens.n = 0;
        turn.base_tokens = 0;
        turn.model = (struct hearth_digest){0, 0};
        turn.again = turn.joins = true;
        if (body != NULL) {
            turn.body.len = 0;
            err = hearth_api_json_write(body, &turn.body) ? HEARTH_OK : HEARTH_ERR_NOMEM;
            body = NULL;
        }
        err = err == HEARTH_OK ? hearth_turn_put(job->api->store, &turn, &msg) : err;
    }
    json_decref(body);
    hearth_turn_finish(&turn);
    return err == HEARTH_OK || hearth_api_fail_err(&job->error, err, &msg);
}

bool hearth_conversations_remove_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_conversation_lock *lock = NULL;
    struct hearth_session session = {0};
    struct hearth_line line = {0};
    size_t at = 0;
    int index = 0;
    char *name = hearth_job_param(job, 0);
    (void)body;
    bool ok = name != NULL && hearth_conversation_lock(job, name, &lock, &job->error) &&
              load_line(job, &session, &line) && find_item(job, &line, &at, &index);
    json_t *less = ok ? without_item(&line.turns[at], (size_t)index) : NULL;
    ok = ok && (less != NULL || hearth_api_fail(&job->error, 404, "not_found", "item_id", "there is no such item"));
    for (size_t i = line.count; ok && i > at + 1; i--) { /* before it, so that what fails half-way can be asked again */
        ok = rewrite(job, line.turns[i - 1].id, NULL);
    }
    if (ok) {
        ok = rewrite(job, line.turns[at].id, less);
    } else {
        json_decref(less);
    }
    hearth_conversation_lock_destroy(lock);
    if (ok) {
        hearth_access_log_deleted(job, "item_of", name, 1);
    }
    ok = ok && respond(job, &form, name);
    hearth_line_finish(&line);
    hearth_session_finish(&session);
    free(name);
    return ok;
}
