/* The life of a job.
 *
 *     loop: start ---> worker: prepare ---> loop: prepared ---> service, one request per choice
 *                                             |  error or finished body: respond          | events
 *                                             v                                           v
 *                                           freed <--- loop: completed <-- worker: store <- loop: events
 *                                                      the response ends   (jobs with a turn only)
 *
 * The service's thread delivers events. They are queued per choice under the API's mutex, which outlives every job, and
 * the job is posted to the loop once for all events that arrive before the loop handles them. When the client
 * disconnects, `exchange` becomes NULL and every choice is cancelled, unless the job is detached or its turn is being
 * stored. The job stays until the last event has arrived.
 *
 * Invariant: a job is posted, in the pool, completing, or has open choices; otherwise it is freed. */
#include "api/job.h"

#include "api/idle.h"
#include "api/stored_turns.h"
#include "api/limits.h"

#include "base/assert.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "session/db.h"

#include <stdlib.h>
#include <string.h>

/* After a job with a body this large, memory that malloc() would keep is given back to the system. */
#define TRIM_BYTES ((size_t)1 << 20)

/* A short job has at most this many bytes of body, and needs at most this much memory. */
#define SHORT_BYTES ((size_t)256 << 10)
#define SHORT_ESTIMATE ((size_t)4 << 20)

static void job_prepared(struct hearth_http_work *work);
static void complete(struct hearth_job *job);
static void job_events(struct hearth_http_work *work);

static void job_destroy(struct hearth_job *job) {
    hearth_access_log_job(job);
    hearth_recording_add(job);
    hearth_key_limits_end(job);
    hearth_idle_follow(job);
    for (size_t i = 0; i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        HEARTH_ASSERT(choice->queue_head == NULL);
        hearth_buf_finish(&choice->text);
        hearth_tokens_finish(&choice->sampled);
        hearth_message_unref(choice->message);
        if (choice->stream != NULL) {
            hearth_chat_stream_destroy(choice->stream);
        }
        json_decref(choice->logprobs);
        free(choice->stop);
    }
    if (job->submitted) {
        *(job->prev != NULL ? &job->prev->next : &job->api->running) = job->next;
        if (job->next != NULL) {
            job->next->prev = job->prev;
        }
    }
    if (job->dialect_state != NULL) {
        job->dialect->destroy(job->dialect_state);
    }
    hearth_api_phases_finish(job);
    free(job->path);
    free(job->query);
    free(job->session_header);
    free(job->about);
    free(job->choices);
    hearth_buf_finish(&job->body);
    hearth_buf_finish(&job->response);
    if (job->body_bytes >= TRIM_BYTES) {
        job->api->trim_due = true;
    }
    hearth_idle_tick(job->api->idle, hearth_clock_us()); /* the job has released what the next prompt needs */
    atomic_fetch_sub(&job->api->jobs, 1);
    free(job);
}

static void client_gone(void *user) {
    struct hearth_job *job = user;
    job->exchange = NULL;
    if (!job->detached) {
        atomic_store(&job->gone, true);
        job->gone_us = hearth_clock_us();
        job->open = false;
        hearth_api_reply_cancel(job);
    }
}

static bool wants_reply(const struct hearth_job *job) {
    return (job->route->flags & HEARTH_ROUTE_REPLY) != 0;
}

static void prepare(struct hearth_job *job);

void hearth_job_start(struct hearth_api *api, const struct hearth_route *route, struct hearth_http_exchange *exchange,
                      const struct hearth_caller *caller) {
    struct hearth_job *job = calloc(1, sizeof *job);
    struct hearth_api_error error;
    const char *session = hearth_http_header(exchange, "x-session-id");
    if (job == NULL) {
        const struct hearth_job none = {.route = route, .caller = *caller};
        hearth_key_limits_end(&none);
        hearth_api_fail_nomem(&error);
        hearth_api_respond_error(exchange, &error);
        return;
    }
    job->api = api;
    job->route = route;
    job->exchange = exchange;
    job->caller = *caller;
    job->owner = caller->salt;
    job->priority = caller->highest;
    job->speculate = true;
    hearth_api_phases_begin(job);
    job->arrived_us = hearth_clock_us();
    job->method = hearth_http_method(exchange);
    snprintf(job->request_id, sizeof job->request_id, "%s", hearth_http_request_id(exchange));
    hearth_access_take_client(job, exchange);
    hearth_urgency_take_headers(job, exchange);
    job->id_bits = hearth_turn_new_id();
    job->created_unix = hearth_clock_unix();
    job->path = strdup(hearth_api_path(exchange));
    job->query = strdup(hearth_http_query(exchange));
    job->session_header = session != NULL && *session != '\0' ? strdup(session) : NULL;
    job->work.run = job_prepared;
    job->complete = complete;
    job->pool_run = prepare;
    atomic_init(&job->gone, false);
    atomic_fetch_add(&api->jobs, 1);
    hearth_http_take_body(exchange, &job->body);
    job->body_bytes = job->sent_bytes = job->body.len;
    job->read_us = job->arrived_us - hearth_http_head_us(exchange);
    job->is_long = job->body.len >= SHORT_BYTES ||
                   hearth_limits_estimate((const char *)job->body.data, job->body.len) >= SHORT_ESTIMATE;
    hearth_http_on_gone(exchange, client_gone, job);
    if (wants_reply(job)) {
        hearth_service_reserve(api->service, &job->caller.tenant);
        job->reserved = true;
    }
    hearth_api_pool_push(api->pool, job);
}

bool hearth_job_parse_body(struct hearth_job *job, json_t **out) {
    json_error_t at;
    *out = NULL;
    if (job->body.len == 0 && (job->route->flags & HEARTH_ROUTE_BODYLESS) != 0) {
        return true;
    }
    if (job->body.len == 0) {
        return hearth_api_fail(&job->error, 400, "invalid_json", NULL,
                               "the request has no body; a JSON object is needed");
    }
    static const char mark[] = "\xEF\xBB\xBF"; /* editors on Windows put it in front of UTF-8 */
    const size_t skip = job->body.len >= 3 && memcmp(job->body.data, mark, 3) == 0 ? 3 : 0, len = job->body.len - skip;
    const char *text = (const char *)job->body.data + skip;
    const bool chat = (job->route->flags & HEARTH_ROUTE_CHAT) != 0;
    if (!hearth_limits_check(text, len, chat ? &job->parts : NULL, &job->error)) {
        return false;
    }
    json_t *body = chat ? hearth_body_parse_new(job->api->message_cache, job->owner, text, len, &job->parts) : NULL;
    if (body == NULL) {
        body = hearth_json_parse(text, len, JSON_ALLOW_NUL, &at);
    }
    if (body == NULL) {
        return json_error_code(&at) != json_error_out_of_memory &&
               hearth_api_fail(&job->error, 400, "invalid_json", NULL,
                               "the body is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    }
    const bool list = (job->route->flags & HEARTH_ROUTE_LIST) != 0;
    if (list ? !json_is_array(body) : !json_is_object(body)) {
        json_decref(body);
        return hearth_api_fail(&job->error, 400, "invalid_json", NULL, "the body must be a JSON %s",
                               list ? "array" : "object");
    }
    *out = body;
    return true;
}

/* Reads class and deadline. False: the request's own deadline leaves no time for a reply, which happens in a burst
 * before a worker comes to it. */
static bool read_urgency(struct hearth_job *job, const json_t *body) {
    int64_t left_us;
    return hearth_urgency_read(job, body) && hearth_urgency_left(job, &left_us);
}

/* Whether the client still waits for what is being prepared. After the drain no reply is computed; a request that only
 * counts may be answered until the end. */
static int is_wanted(void *user) {
    const struct hearth_job *job = user;
    const atomic_bool *over = wants_reply(job) ? &job->api->drained : &job->api->ended;
    const bool left = atomic_load(&job->gone) && !atomic_load(&job->detached);
    return left || atomic_load(over) ? HEARTH_ERR_CANCELLED : HEARTH_OK;
}

static void prepare_wanted(struct hearth_job *job) {
    struct hearth_cancel cancel = {.wanted = is_wanted, .user = job, .cpu_us = job->api->params.prepare_timeout_us};
    json_t *body = NULL;
    (void)hearth_api_fail_nomem(&job->error); /* what a failure means that says nothing else */
    hearth_cancel_enter(&cancel);
    job->failed = !hearth_job_parse_body(job, &body) || (wants_reply(job) && !read_urgency(job, body)) ||
                  !(job->route->phases != NULL ? hearth_api_phases_run(job, job->route->phases, body)
                                               : job->route->prepare(job, body));
    hearth_cancel_leave();
    if (job->failed && cancel.verdict != HEARTH_OK) { /* whatever error the cancellation has caused on the way */
        hearth_api_fail_err(&job->error, cancel.verdict, NULL);
    }
    json_decref(body);
}

static void prepare(struct hearth_job *job) {
    hearth_memory_begin();
    const int64_t cpu_us = hearth_cancel_cpu_us(), db_us = hearth_db_waited_us();
    job->prepare_start_us = hearth_clock_us();
    if (!atomic_load(&job->gone) && hearth_memory_refill()) {
        prepare_wanted(job);
    }
    job->prepare_us = hearth_clock_us() - job->prepare_start_us;
    job->prepare_cpu_us = hearth_cancel_cpu_us() - cpu_us;
    job->prepare_db_us = hearth_db_waited_us() - db_us;
    if (hearth_memory_refused()) { /* an allocation was refused: something may be missing in the result */
        job->failed = true;
        hearth_api_fail_nomem(&job->error);
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

/* The most tokens of a choice's reply. */
static int32_t most_tokens(const struct hearth_job *job, const struct hearth_choice *choice) {
    const int32_t asked = job->parsed->generation.max_tokens;
    const int32_t most = job->dialect->reply_most != NULL ? job->dialect->reply_most(choice->prompt->tokens.n) : asked;
    return most < asked ? most : asked;
}

static bool submit_choice(struct hearth_job *job, struct hearth_choice *choice) {
    const struct hearth_generation *generation = &job->parsed->generation;
    uint32_t nth = choice->index % (uint32_t)generation->n;
    int64_t left_us;
    if (!hearth_urgency_left(job, &left_us)) {
        return false;
    }
    struct hearth_request request = {
        .tenant = job->caller.tenant,
        .deadline_us = left_us,
        .locate_only = generation->locate_only,
        .joins = choice->index > 0,
        .reserved = job->reserved,
        .progress = job->progress && generation->stream,
        .speculate_off = !job->speculate,
        .prompt = choice->prompt->tokens.v,
        .prompt_tokens = choice->prompt->tokens.n,
        .marks = choice->prompt->marks,
        .mark_count = choice->prompt->mark_count,
        .head_tokens = choice->prompt->head_tokens,
        .pins = job->rendered->pins,
        .pin_count = job->rendered->pin_count,
        /* Whether the request only prefetches: its reply has no tokens. */
        .priority = generation->max_tokens == 0 ? HEARTH_CLASS_PREFETCH : job->priority,
        .sampling = generation->sampling,
        .max_tokens = most_tokens(job, choice),
        .stops = (const char *const *)generation->stops,
        .stop_count = generation->stop_count,
        .cache_off = !generation->cache,
        .salt = job->resolved->salt,
        .deliver = deliver,
        .user = choice,
    };
    hearth_api_constraint_fill_request(job, &request);
    if (request.sampling.seed != HEARTH_SEED_RANDOM) {
        request.sampling.seed += nth;
        if (request.sampling.seed == HEARTH_SEED_RANDOM) {
            request.sampling.seed = 0;
        }
    }
    struct hearth_errmsg msg = {{0}};
    int64_t id = hearth_service_submit(job->api->service, &request, &msg);
    if (id <= 0) {
        return hearth_api_fail_submit(job->api, &job->error, id < 0 ? (int)id : HEARTH_ERR_ENGINE, &msg);
    }
    choice->service_id = id;
    job->reserved = false; /* the service has taken the slot */
    return true;
}

static bool make_choices(struct hearth_job *job) {
    const struct hearth_generation *generation = &job->parsed->generation;
    size_t count = job->rendered->prompt_count * (size_t)generation->n;
    HEARTH_ASSERT(count > 0);
    job->choices = calloc(count, sizeof *job->choices);
    if (job->choices == NULL) {
        return hearth_api_fail_nomem(&job->error);
    }
    job->choice_count = count;
    for (size_t i = 0; i < count; i++) {
        job->choices[i].job = job;
        job->choices[i].index = (uint32_t)i;
        job->choices[i].prompt = &job->rendered->prompts[i / (size_t)generation->n];
        job->choices[i].ended = true; /* until it is submitted */
    }
    if (job->id[0] == '\0') {
        hearth_api_id_name(job);
    }
    return true;
}

static void submit(struct hearth_job *job) {
    struct hearth_api *api = job->api;
    job->work.run = job_events;
    job->open = true;
    job->submitted = true;
    hearth_access_note_ahead(job);
    hearth_idle_overtake(job);
    job->next = api->running;
    if (job->next != NULL) {
        job->next->prev = job;
    }
    api->running = job;
    bool ok = make_choices(job);
    for (size_t i = 0; ok && i < job->choice_count; i++) {
        job->choices[i].ended = false;
        job->open_choices++;
        ok = submit_choice(job, &job->choices[i]);
        if (!ok) {
            job->choices[i].ended = true;
            job->open_choices--;
        }
    }
    if (!ok) {
        hearth_api_reply_fail(job);
        return;
    }
    if (job->resolved->stored == NULL && !hearth_idle_is_wanted(job) && api->recordings == NULL) {
        hearth_api_phases_drop_tokens(job);
    }
    hearth_api_reply_submitted(job);
}

static void free_if_over(struct hearth_job *job) {
    if (job->open_choices == 0 && !job->completing) {
        HEARTH_ASSERT(job->exchange == NULL);
        job_destroy(job);
    }
}

/* Answers a request that needs no choices, or gives the first answer of a detached job. */
static void respond_prepared(struct hearth_job *job) {
    struct hearth_http_exchange *exchange = job->exchange;
    if (exchange == NULL || (job->failed && hearth_api_reply_refuse(job))) {
        return;
    }
    job->exchange = NULL;
    if (job->failed) {
        job->answered = job->error.status;
        hearth_api_write_error(exchange, &job->error);
    } else {
        job->answered = 200;
        hearth_api_id_show(job, exchange);
        hearth_http_respond(exchange, 200, HEARTH_CONTENT_JSON, job->response.data, job->response.len);
    }
}

static void job_prepared(struct hearth_http_work *work) {
    struct hearth_job *job = (struct hearth_job *)work;
    hearth_memory_begin();
    hearth_http_body_freed(job->api->http, job->body_bytes);
    const bool submits = !job->failed && job->dialect != NULL && (job->exchange != NULL || job->detached);
    if (!submits || job->response.len > 0) {
        respond_prepared(job);
    }
    if (submits) {
        if (job->exchange != NULL) {
            hearth_content_warn(&job->resolved->history, job->exchange);
        }
        if (job->detached) { /* the detached job goes on, even if its client has gone */
            atomic_store(&job->gone, false);
        }
        submit(job);
    }
    if (job->reserved) { /* the slot was not used */
        hearth_service_unreserve(job->api->service, &job->caller.tenant);
        job->reserved = false;
    }
    free_if_over(job);
}

static void take_events(struct hearth_job *job, struct hearth_choice *choice, struct hearth_event *event) {
    while (event != NULL) {
        struct hearth_event *next = event->next;
        if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
            HEARTH_ASSERT(!choice->ended && next == NULL);
            choice->ended = true;
            job->open_choices--;
            /* The log tells what it has cost, also when the client has gone. */
            choice->receipt = event->receipt;
            hearth_history_refine_reason(job, &choice->receipt);
            choice->generated_tokens = event->generated_tokens;
            choice->generate_us = event->generate_us;
            choice->late = event->late;
            choice->drafted_tokens = event->drafted_tokens;
            choice->accepted_tokens = event->accepted_tokens;
            choice->preemptions = event->preemptions;
        }
        if (job->open && !job->completing) {
            hearth_api_reply_event(job, choice, event);
        }
        hearth_event_destroy(event);
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
        hearth_memory_begin();
        take_events(job, &job->choices[i], taken[i]);
    }
    free_if_over(job);
}

/* ---- the end ---- */

static void job_completed(struct hearth_http_work *work) {
    struct hearth_job *job = ((struct hearth_job_end *)work)->job;
    job->completing = false;
    hearth_memory_begin();
    hearth_api_reply_end(job);
    free_if_over(job);
}

static void store_turn(struct hearth_job *job) {
    hearth_memory_begin();
    hearth_api_stored_write(job);
    hearth_http_post(job->api->http, &job->end.work);
}

static void complete(struct hearth_job *job) {
    HEARTH_ASSERT(job->open && !job->completing);
    if (!hearth_api_stored_is_due(job)) {
        hearth_api_reply_end(job);
        return;
    }
    job->completing = true;
    job->end = (struct hearth_job_end){.work = {.run = job_completed}, .job = job};
    job->pool_run = store_turn;
    hearth_api_pool_push(job->api->pool, job);
}
