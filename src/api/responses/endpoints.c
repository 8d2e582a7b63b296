/* Responses that are made, stored and running.
 *
 * A background response is written to the store before it is answered, and once more when it is complete; between the
 * two it is polled there. It is cancelled in two steps: the loop, which knows what runs, cancels the job; a worker
 * answers with what the store has, which may not have heard of it yet. */
#include "api/responses/responses.h"

#include "report/ring.h"

#include <stdlib.h>
#include <string.h>

/* ---- the dialect ---- */

static json_t *whole(struct hearth_job *job) {
    hearth_conversation_unlock(job->resolved->lock);
    return hearth_response_json(job, hearth_response_status(job), true);
}

static const struct hearth_dialect dialect = {
    .id_prefix = "resp_",
    .begin = hearth_response_events_begin,
    .delta = hearth_response_events_delta,
    .end = hearth_response_events_end,
    .finish = hearth_response_events_finish,
    .fail = hearth_response_events_fail,
    .overflow = hearth_response_events_overflow,
    .ping = hearth_response_events_ping,
    .whole = whole,
    .begin_early = true,
    .record = hearth_response_record,
    .destroy = hearth_response_destroy,
};

/* ---- POST /v1/responses ---- */

/* Stores the response as it is now, and answers with it unless it is streamed. */
static bool begin_background(struct hearth_job *job) {
    if (!job->resolved->stored->writes) { /* it would be polled for ever */
        return hearth_api_fail(&job->error, 400, "invalid_value", "max_output_tokens",
                               "max_output_tokens must not be 0 in the background");
    }
    hearth_api_id_name(job);
    const bool told =
        job->parsed->generation.stream || hearth_job_respond(job, hearth_response_json(job, HEARTH_TURN_QUEUED, false));
    job->detached = told && hearth_api_stored_put_open(job, HEARTH_TURN_IN_PROGRESS,
                                                       hearth_response_record(job, HEARTH_TURN_IN_PROGRESS));
    return job->detached;
}

bool hearth_responses_prepare(struct hearth_job *job, const json_t *body) {
    if (!hearth_responses_read(job, body, &dialect, true)) {
        return false;
    }
    return !hearth_response_asked(job)->background || begin_background(job);
}

/* ---- stored responses ---- */

static bool fail_not_found(struct hearth_job *job, const char *id) {
    return !hearth_api_stored_fail_away(job, HEARTH_ERR_NOT_FOUND, "response", "response_id", id, &job->error) &&
           hearth_api_fail(&job->error, 404, "not_found", "response_id", "Response with id '%.100s' not found.", id);
}

/* Loads the turn with the path's id. */
static bool load(struct hearth_job *job, struct hearth_turn *turn) {
    char *id = hearth_job_param(job, 0);
    struct hearth_digest digest = {0, 0};
    int index = 0, err = HEARTH_ERR_NOT_FOUND;
    if (id == NULL) {
        return false;
    }
    if (hearth_api_id_parse(id, &digest, &index) && index < 0) {
        err = hearth_turn_get(job->api->store, job->owner, digest, turn);
    }
    const bool ok = err == HEARTH_OK || (err == HEARTH_ERR_NOT_FOUND ? fail_not_found(job, id)
                                                                     : hearth_api_fail_err(&job->error, err, NULL));
    free(id);
    return ok;
}

bool hearth_responses_get_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_turn turn = {0};
    char *stream = hearth_api_query(job->query, "stream");
    const bool streams = stream != NULL && strcmp(stream, "true") == 0;
    (void)body;
    free(stream);
    if (streams) {
        return hearth_api_fail(&job->error, 400, "unsupported_parameter", "stream",
                               "a stored response cannot be streamed again: poll it without stream");
    }
    if (!load(job, &turn)) {
        return false;
    }
    json_t *response = hearth_response_of_turn(&turn, job->api->model_name);
    hearth_turn_finish(&turn);
    return hearth_job_respond(job, response);
}

bool hearth_responses_delete_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_turn turn = {0};
    char id[64];
    (void)body;
    if (!load(job, &turn)) {
        return false;
    }
    hearth_api_id_print(id, sizeof id, "resp_", turn.id, -1);
    const bool open = hearth_turn_is_open(turn.status);
    const int err = open ? HEARTH_OK : hearth_turn_delete(job->api->store, job->owner, turn.id);
    if (err == HEARTH_OK) {
        hearth_ring_forget(job->api->ring, job->owner, NULL, turn.id);
    }
    hearth_turn_finish(&turn);
    if (open) {
        return hearth_api_fail(&job->error, 400, "invalid_value", "response_id",
                               "the response '%s' is still running: cancel it first", id);
    }
    if (err != HEARTH_OK) {
        return err == HEARTH_ERR_NOT_FOUND ? fail_not_found(job, id) : hearth_api_fail_err(&job->error, err, NULL);
    }
    hearth_access_log_deleted(job, "response", id, 1);
    hearth_api_deletion_worker_wake(job->api->deletion_worker);
    return hearth_job_respond(job, json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1));
}

bool hearth_responses_cancel(struct hearth_api *api, struct hearth_http_exchange *exchange,
                             const struct hearth_caller *caller, struct hearth_api_error *error) {
    static const char head[] = "/v1/responses/";
    const char *path = hearth_api_path(exchange);
    struct hearth_digest id;
    char text[64] = "";
    int index = 0;
    (void)error;
    if (strncmp(path, head, strlen(head)) == 0) {
        snprintf(text, sizeof text, "%.*s", (int)strcspn(path + strlen(head), "/"), path + strlen(head));
    }
    const bool known = hearth_api_id_parse(text, &id, &index) && index < 0;
    for (struct hearth_job *job = api->running; known && job != NULL; job = job->next) {
        if (job->detached && !job->completing && hearth_digest_equal(job->id_bits, id) &&
            hearth_digest_equal(job->owner, caller->salt)) {
            job->cancelled = true;
            hearth_api_reply_cancel(job);
            hearth_conversation_unlock(job->resolved->lock); /* its conversation may go on at once */
        }
    }
    return true;
}

/* Loads a turn; one that is still open counts as cancelled from now on, and every reader is told so. False: it is not
 * there. */
static bool load_cancelled(struct hearth_job *job, struct hearth_turn *turn, int *err) {
    pthread_mutex_lock(&job->api->ends_mutex);
    const bool loaded = load(job, turn);
    *err = HEARTH_OK;
    if (loaded && hearth_turn_is_open(turn->status)) {
        turn->status = HEARTH_TURN_CANCELLED;
        turn->again = turn->joins = true;
        *err = hearth_turn_put(job->api->store, turn, NULL);
    }
    pthread_mutex_unlock(&job->api->ends_mutex);
    return loaded;
}

bool hearth_responses_cancel_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_turn turn = {0};
    int err;
    (void)body;
    if (!load_cancelled(job, &turn, &err)) {
        return false;
    }
    json_t *response = hearth_response_of_turn(&turn, job->api->model_name);
    const bool background = json_is_true(json_object_get(response, "background"));
    hearth_turn_finish(&turn);
    if (err != HEARTH_OK) {
        json_decref(response);
        return hearth_api_fail_err(&job->error, err, NULL);
    }
    if (response != NULL && !background) {
        json_decref(response);
        return hearth_api_fail(&job->error, 400, "invalid_value", "response_id",
                               "Cannot cancel a synchronous response: only those in the background can be cancelled.");
    }
    return hearth_job_respond(job, response);
}

bool hearth_responses_items_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_turn turn = {0};
    (void)body;
    if (!load(job, &turn)) {
        return false;
    }
    const struct hearth_digest id = turn.id;
    hearth_turn_finish(&turn);
    return hearth_list_respond(job, id, false);
}

/* ---- POST /v1/responses/input_tokens ---- */

bool hearth_responses_tokens_prepare(struct hearth_job *job, const json_t *body) {
    size_t tokens = 0;
    if (hearth_responses_read(job, body, &dialect, false)) {
        tokens = job->rendered->prompts[0].tokens.n;
    } else if (job->error.prompt_tokens > 0) { /* too long, but counted */
        tokens = job->error.prompt_tokens;
    } else {
        return false;
    }
    hearth_response_destroy(job->dialect_state);
    job->dialect_state = NULL;
    job->dialect = NULL;
    return hearth_job_respond(
        job, json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)tokens));
}
