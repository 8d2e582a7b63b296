/* A job's life.
 *
 *     loop: start ---> worker: prepare ---> loop: prepared ---> service, one request per choice
 *                                             |  error or finished body: respond          | events
 *                                             v                                           v
 *                                           freed <--- response ended, all choices ended --- loop: events
 *
 * Events arrive on the service's thread and are queued per choice under the API's mutex (which outlives every job); the
 * job's work is posted once for as many as come before the loop gets to them. A client that goes away clears `exchange`
 * and cancels every choice; the job stays until their last events have come.
 *
 * Invariant: a job is posted, in the pool, or has open choices; when none of it is true it is freed. */
#include "api/api_internal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void job_prepared(struct hearth_http_work *work);
static void job_events(struct hearth_http_work *work);

static void destroy_events(struct hearth_event *event) {
    while (event != NULL) {
        struct hearth_event *next = event->next;
        hearth_event_destroy(event);
        event = next;
    }
}

static void job_destroy(struct hearth_job *job) {
    for (size_t i = 0; i < job->choice_count; i++) {
        HEARTH_ASSERT(job->choices[i].queue_head == NULL);
        hearth_buf_finish(&job->choices[i].text);
        json_decref(job->choices[i].logprobs);
    }
    hearth_job_finish_chat(job);
    hearth_conversation_destroy(job);
    free(job->choices);
    hearth_generation_finish(&job->generation);
    hearth_buf_finish(&job->body);
    hearth_buf_finish(&job->response);
    atomic_fetch_sub(&job->api->jobs, 1);
    free(job);
}

void hearth_job_cancel(struct hearth_job *job) {
    for (size_t i = 0; i < job->choice_count; i++) {
        if (!job->choices[i].ended && job->choices[i].service_id > 0) {
            hearth_service_cancel(job->api->service, job->choices[i].service_id);
        }
    }
}

static void client_gone(void *user) {
    struct hearth_job *job = user;
    job->exchange = NULL;
    atomic_store(&job->gone, true);
    hearth_job_cancel(job);
}

void hearth_job_start(struct hearth_api *api, const struct hearth_route *route, struct hearth_http_exchange *exchange,
                      struct hearth_digest salt) {
    struct hearth_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        struct hearth_api_error error;
        hearth_api_fail_nomem(&error);
        hearth_api_respond_error(exchange, &error);
        return;
    }
    job->api = api;
    job->route = route;
    job->exchange = exchange;
    job->generation.salt = salt;
    job->work.run = job_prepared;
    atomic_init(&job->gone, false);
    atomic_fetch_add(&api->jobs, 1);
    hearth_http_take_body(exchange, &job->body);
    hearth_http_on_gone(exchange, client_gone, job);
    hearth_pool_push(api->pool, job);
}

static bool parse_body(struct hearth_job *job, json_t **out) {
    json_error_t at;
    *out = NULL;
    if (job->body.len == 0) {
        return hearth_api_fail(&job->error, 400, "invalid_json", NULL,
                               "the request has no body; a JSON object is needed");
    }
    const char *text = (const char *)job->body.data;
    json_t *body = hearth_body_parse_new(job->api->intern, text, job->body.len, &job->parts);
    if (body == NULL) {
        body = json_loadb(text, job->body.len, JSON_ALLOW_NUL, &at);
    }
    if (body == NULL) {
        if (json_error_code(&at) == json_error_out_of_memory) {
            return hearth_api_fail_nomem(&job->error);
        }
        return hearth_api_fail(&job->error, 400, "invalid_json", NULL,
                               "the body is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    }
    if (!json_is_object(body)) {
        json_decref(body);
        return hearth_api_fail(&job->error, 400, "invalid_json", NULL, "the body must be a JSON object");
    }
    *out = body;
    return true;
}

void hearth_job_prepare(struct hearth_job *job) {
    json_t *body = NULL;
    job->prepare_start_us = hearth_clock_us();
    if (!atomic_load(&job->gone)) {
        job->failed = !parse_body(job, &body) || !job->route->prepare(job, body);
        json_decref(body);
    }
    hearth_body_finish(&job->parts);
    hearth_buf_finish(&job->body);
    hearth_http_post(job->api->http, &job->work);
}

/* On the service's thread. */
static void deliver(void *user, struct hearth_event *event) {
    struct hearth_choice *choice = user;
    struct hearth_job *job = choice->job;
    struct hearth_api *api = job->api;
    event->next = NULL;
    pthread_mutex_lock(&api->events_mutex);
    if (choice->queue_head == NULL) {
        choice->queue_head = event;
    } else {
        choice->queue_tail->next = event;
    }
    choice->queue_tail = event;
    bool post = !job->posted;
    job->posted = true;
    pthread_mutex_unlock(&api->events_mutex);
    if (post) { /* otherwise the loop may by now have freed the job */
        hearth_http_post(api->http, &job->work);
    }
}

static bool submit_choice(struct hearth_job *job, struct hearth_choice *choice, struct hearth_api_error *error) {
    const struct hearth_generation *generation = &job->generation;
    uint32_t nth = choice->index % (uint32_t)generation->n;
    struct hearth_request request = {
        .prompt = choice->prompt->tokens.v,
        .prompt_tokens = choice->prompt->tokens.n,
        .marks = choice->prompt->marks,
        .mark_count = choice->prompt->mark_count,
        .sampling = generation->sampling,
        .max_tokens = generation->max_tokens,
        .stops = (const char *const *)generation->stops,
        .stop_count = generation->stop_count,
        .cache_off = !generation->cache,
        .salt = generation->salt,
        .deliver = deliver,
        .user = choice,
    };
    hearth_choice_fill_request(choice, &request);
    if (request.sampling.seed != HEARTH_SEED_RANDOM) {
        request.sampling.seed += nth;
        if (request.sampling.seed == HEARTH_SEED_RANDOM) {
            request.sampling.seed = 0;
        }
    }
    struct hearth_errmsg msg = {{0}};
    int64_t id = hearth_service_submit(job->api->service, &request, &msg);
    if (id <= 0) {
        return hearth_api_fail_err(error, id < 0 ? (int)id : HEARTH_ERR_ENGINE, &msg);
    }
    choice->service_id = id;
    return true;
}

static bool make_choices(struct hearth_job *job, struct hearth_api_error *error) {
    const struct hearth_generation *generation = &job->generation;
    size_t count = generation->prompt_count * (size_t)generation->n;
    HEARTH_ASSERT(count > 0);
    job->choices = calloc(count, sizeof *job->choices);
    if (job->choices == NULL) {
        return hearth_api_fail_nomem(error);
    }
    job->choice_count = count;
    for (size_t i = 0; i < count; i++) {
        job->choices[i].job = job;
        job->choices[i].index = (uint32_t)i;
        job->choices[i].prompt = &generation->prompts[i / (size_t)generation->n];
        job->choices[i].ended = true; /* until it is submitted */
    }
    struct hearth_api *api = job->api;
    job->created_unix = hearth_clock_unix();
    snprintf(job->id, sizeof job->id, "%s%016" PRIx64 "%08" PRIx64, job->dialect->id_prefix, api->id_seed,
             (uint64_t)atomic_fetch_add(&api->id_count, 1));
    return true;
}

static void submit(struct hearth_job *job) {
    struct hearth_api_error error;
    job->work.run = job_events;
    if (!make_choices(job, &error)) {
        hearth_reply_fail(job, &error);
        return;
    }
    for (size_t i = 0; i < job->choice_count; i++) {
        job->choices[i].ended = false;
        job->open_choices++;
        if (!submit_choice(job, &job->choices[i], &error)) {
            job->choices[i].ended = true;
            job->open_choices--;
            hearth_reply_fail(job, &error);
            return;
        }
    }
    for (size_t i = 0; i < job->generation.prompt_count; i++) {
        hearth_tokens_finish(&job->generation.prompts[i].tokens); /* the service has its own */
    }
}

static void job_prepared(struct hearth_http_work *work) {
    struct hearth_job *job = (struct hearth_job *)work;
    if (job->exchange != NULL && job->failed) {
        hearth_log(HEARTH_LOG_DEBUG, "api: %s: %d %s", hearth_http_request_id(job->exchange), job->error.status,
                   job->error.message.text);
        hearth_api_respond_error(job->exchange, &job->error);
        job->exchange = NULL;
    } else if (job->exchange != NULL && job->dialect == NULL) {
        hearth_http_respond(job->exchange, 200, HEARTH_CONTENT_JSON, job->response.data, job->response.len);
        job->exchange = NULL;
    } else if (job->exchange != NULL) {
        submit(job);
    }
    if (job->open_choices == 0) {
        job_destroy(job);
    }
}

static void take_events(struct hearth_job *job, struct hearth_choice *choice, struct hearth_event *event) {
    while (event != NULL) {
        struct hearth_event *next = event->next;
        if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
            HEARTH_ASSERT(!choice->ended && next == NULL);
            choice->ended = true;
            job->open_choices--;
        }
        if (job->exchange != NULL) {
            hearth_reply_event(job, choice, event);
        }
        event->next = NULL;
        destroy_events(event);
        event = next;
    }
}

static void job_events(struct hearth_http_work *work) {
    struct hearth_job *job = (struct hearth_job *)work;
    struct hearth_event *taken[HEARTH_CHOICES_MAX];
    pthread_mutex_lock(&job->api->events_mutex);
    job->posted = false;
    for (size_t i = 0; i < job->choice_count; i++) {
        taken[i] = job->choices[i].queue_head;
        job->choices[i].queue_head = job->choices[i].queue_tail = NULL;
    }
    pthread_mutex_unlock(&job->api->events_mutex);
    for (size_t i = 0; i < job->choice_count; i++) {
        take_events(job, &job->choices[i], taken[i]);
    }
    if (job->open_choices == 0) {
        HEARTH_ASSERT(job->exchange == NULL);
        job_destroy(job);
    }
}
