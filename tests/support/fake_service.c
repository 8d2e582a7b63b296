/* The scripted service; see fake_service.h. One thread looks at all requests every millisecond. */
#include "support/fake_service.h"

#include "base/assert.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEEDS_MAX 64

struct flight {
    struct flight *next;
    int64_t id;
    struct fake_plan plan;
    uint32_t prompt_tokens;
    bool logprobs, prefilled, cancelled, progress;
    int sent, told;
    int64_t due_us;
    void (*deliver)(void *user, struct hearth_event *event);
    void *user;
};

struct hearth_service {
    pthread_t thread;
    bool ending, draining;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct fake_plan current;
static struct fake_counts counts;
static struct fake_request last;
static uint32_t seeds_seen[SEEDS_MAX];
static size_t seed_count;
static int planned; /* requests under this plan */
static struct flight *flights;
static uint32_t overloaded_s;
static int64_t next_id = 1;

const char *hearth_finish_text(enum hearth_finish finish) {
    static const char *const texts[] = {
#define X(name, text) text,
        HEARTH_FINISH_TABLE(X)
#undef X
    };
    return texts[finish];
}

const char *hearth_lane_state_text(enum hearth_lane_state state) {
    static const char *const texts[] = {
#define X(name, text) text,
        HEARTH_LANE_STATE_TABLE(X)
#undef X
    };
    return texts[state];
}

const char *hearth_class_text(enum hearth_class priority) {
    static const char *const texts[] = {
#define X(name, text, patience) text,
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    return texts[priority];
}

void hearth_event_destroy(struct hearth_event *event) {
    if (event != NULL) {
        hearth_buf_finish(&event->text);
        free(event->sampled);
        free(event->stop_string);
        free(event);
    }
}

void hearth_service_params_default(struct hearth_service_params *params) {
    *params = (struct hearth_service_params){.page_tokens = 256};
}

static struct hearth_event *make_event(const struct flight *flight, enum hearth_event_type type) {
    struct hearth_event *event = calloc(1, sizeof *event);
    HEARTH_ASSERT(event != NULL);
    event->type = type;
    event->receipt = (struct hearth_receipt){.prompt_tokens = flight->prompt_tokens,
                                             .reused_live_tokens = 2,
                                             .reused_ram_tokens = 3,
                                             .computed_tokens = flight->prompt_tokens - 5,
                                             .matched_tokens = 5,
                                             .queue_us = 1000,
                                             .plan_us = 2000,
                                             .restore_us = 3000,
                                             .prefill_us = 5000,
                                             .reason = HEARTH_REASON_EXTENDED};
    if (flight->plan.receipt.prompt_tokens > 0) {
        event->receipt = flight->plan.receipt;
    }
    return event;
}

static struct hearth_event *make_text(const struct flight *flight) {
    struct hearth_event *event = make_event(flight, HEARTH_EVENT_TEXT);
    HEARTH_ASSERT(hearth_buf_text(&event->text, flight->plan.piece));
    event->sampled = calloc(1, sizeof *event->sampled);
    HEARTH_ASSERT(event->sampled != NULL);
    event->sampled_count = 1;
    event->sampled[0].token = 256; /* " the" in sim's vocabulary */
    if (flight->logprobs) {
        event->sampled[0].logprobs =
            (struct hearth_sample_logprobs){.chosen = -0.5f, .n = 2, .token = {256, 257}, .logprob = {-0.5f, -1.5f}};
    }
    return event;
}

/* The next event of a flight, or NULL when nothing is due. *ended: it is the last one. */
static struct hearth_event *advance(struct flight *flight, int64_t now_us, bool *ended) {
    const struct fake_plan *plan = &flight->plan;
    struct hearth_event *event = NULL;
    *ended = true;
    if (flight->cancelled ||
        (plan->fail_err != 0 &&
         (flight->prefilled ? plan->fail_after <= flight->sent && plan->fail_after >= 0 : plan->fail_after < 0))) {
        event = make_event(flight, HEARTH_EVENT_FAILED);
        event->err = flight->cancelled ? HEARTH_ERR_CANCELLED : plan->fail_err;
        event->generated_tokens = (uint32_t)flight->sent;
        event->generate_us = flight->sent > 0 ? 20000 : 0;
        return event;
    }
    if (!flight->prefilled && flight->progress && flight->told < plan->progress) {
        flight->told++;
        *ended = false;
        event = make_event(flight, HEARTH_EVENT_PROGRESS);
        event->prefilled_tokens =
            event->receipt.prompt_tokens * (uint32_t)flight->told / (uint32_t)(plan->progress + 1);
        return event;
    }
    if (!flight->prefilled && !plan->hold) {
        flight->prefilled = true;
        *ended = false;
        return make_event(flight, HEARTH_EVENT_PREFILLED);
    }
    if (flight->prefilled && flight->sent == plan->pieces) {
        event = make_event(flight, HEARTH_EVENT_DONE);
        event->finish = plan->finish;
        event->late = plan->late;
        event->preemptions = plan->preemptions;
        event->drafted_tokens = plan->drafted_tokens;
        event->accepted_tokens = plan->accepted_tokens;
        event->generated_tokens = (uint32_t)flight->sent;
        event->generate_us = 20000;
        return event;
    }
    *ended = false;
    if (flight->prefilled && now_us >= flight->due_us) {
        flight->sent++;
        flight->due_us = now_us + (int64_t)plan->wait_ms * 1000;
        return make_text(flight);
    }
    return NULL;
}

static bool step(void) {
    bool moved = false;
    pthread_mutex_lock(&mutex);
    int64_t now_us = hearth_clock_us();
    for (struct flight **at = &flights; *at != NULL;) {
        struct flight *flight = *at;
        bool ended = false;
        struct hearth_event *event = advance(flight, now_us, &ended);
        moved = moved || event != NULL;
        if (ended) {
            *at = flight->next;
            counts.ended++;
            counts.active--;
        } else {
            at = &flight->next;
        }
        if (event != NULL) {
            flight->deliver(flight->user, event);
        }
        if (ended) {
            free(flight);
        }
    }
    pthread_mutex_unlock(&mutex);
    return moved;
}

static void *run(void *user) {
    struct hearth_service *service = user;
    for (;;) {
        if (step()) {
            continue;
        }
        pthread_mutex_lock(&mutex);
        bool ending = service->ending && flights == NULL;
        pthread_mutex_unlock(&mutex);
        if (ending) {
            return NULL;
        }
        usleep(1000);
    }
}

int hearth_service_create(struct hearth_engine *engine, const struct hearth_service_params *params,
                          struct hearth_service **out, struct hearth_errmsg *msg) {
    (void)engine, (void)params, (void)msg;
    counts = (struct fake_counts){0};
    *out = calloc(1, sizeof **out);
    HEARTH_ASSERT(*out != NULL && pthread_create(&(*out)->thread, NULL, run, *out) == 0);
    return HEARTH_OK;
}

static void remember(const struct hearth_request *request) {
    last = (struct fake_request){.sampling = request->sampling,
                                 .max_tokens = request->max_tokens,
                                 .cache_off = request->cache_off,
                                 .salt = request->salt,
                                 .mark_count = request->mark_count,
                                 .stop_count = request->stop_count,
                                 .prompt_tokens = request->prompt_tokens,
                                 .thinks = request->thinking != NULL,
                                 .script_count = request->script_count,
                                 .priority = request->priority,
                                 .tenant = request->tenant,
                                 .deadline_us = request->deadline_us,
                                 .progress = request->progress,
                                 .speculate_off = request->speculate_off};
    HEARTH_ASSERT(request->prompt_tokens <= sizeof last.prompt / sizeof last.prompt[0]);
    memcpy(last.prompt, request->prompt, request->prompt_tokens * sizeof *request->prompt);
    for (size_t i = 0; i < request->mark_count && i < 8; i++) {
        last.marks[i] = request->marks[i];
    }
    last.pin_count = request->pin_count;
    for (size_t i = 0; i < request->pin_count && i < 8; i++) {
        last.pins[i] = request->pins[i];
    }
    for (size_t i = 0; i < request->stop_count && i < 4; i++) {
        strncpy(last.stops[i], request->stops[i], sizeof last.stops[i] - 1);
    }
    for (size_t i = 0; i < request->sampling.logit_biases && i < 4; i++) {
        last.bias[i] = request->sampling.logit_bias[i];
    }
    const struct hearth_grammar *grammar = request->sampling.grammar;
    if (grammar != NULL) {
        strncpy(last.grammar, grammar->text, sizeof last.grammar - 1);
        last.lazy = grammar->lazy;
    }
    if (request->thinking != NULL) {
        last.budget_tokens = request->thinking->budget_tokens;
        last.forced_count = request->thinking->forced_count;
        HEARTH_ASSERT(last.forced_count <= sizeof last.forced / sizeof last.forced[0]);
        memcpy(last.forced, request->thinking->forced, last.forced_count * sizeof *last.forced);
    }
    if (seed_count < SEEDS_MAX) {
        seeds_seen[seed_count++] = request->sampling.seed;
    }
}

int64_t hearth_service_submit(struct hearth_service *service, const struct hearth_request *request,
                              struct hearth_errmsg *msg) {
    int64_t id;
    pthread_mutex_lock(&mutex);
    int err = service->draining ? HEARTH_ERR_BUSY : current.submit_err;
    if (err != 0) {
        id = hearth_fail(msg, err, "refused by plan");
    } else {
        struct flight *flight = calloc(1, sizeof *flight);
        HEARTH_ASSERT(flight != NULL);
        *flight = (struct flight){.next = flights,
                                  .id = next_id++,
                                  .plan = current,
                                  .deliver = request->deliver,
                                  .user = request->user,
                                  .prompt_tokens = (uint32_t)request->prompt_tokens,
                                  .logprobs = request->sampling.logprobs >= 0,
                                  .progress = request->progress};
        planned++;
        if (current.fail_only > 0 && current.fail_only != planned) {
            flight->plan.fail_err = 0;
        }
        flights = flight;
        id = flight->id;
        counts.submitted++;
        counts.active++;
        counts.reserved -= request->reserved;
        remember(request);
    }
    pthread_mutex_unlock(&mutex);
    return id;
}

void hearth_service_cancel(struct hearth_service *service, int64_t id) {
    (void)service;
    pthread_mutex_lock(&mutex);
    for (struct flight *flight = flights; flight != NULL; flight = flight->next) {
        if (flight->id == id && !flight->cancelled) {
            flight->cancelled = true;
            counts.cancelled++;
        }
    }
    pthread_mutex_unlock(&mutex);
}

void hearth_service_expect(struct hearth_service *service, int64_t id, int64_t within_us) {
    (void)service, (void)id, (void)within_us;
}

int hearth_service_forget(struct hearth_service *service, const struct hearth_service_forget_request *request) {
    (void)service;
    request->done(request->user, HEARTH_OK);
    return HEARTH_OK;
}

void hearth_service_drain(struct hearth_service *service, int64_t grace_us) {
    int64_t until = hearth_clock_us() + grace_us;
    for (;;) {
        pthread_mutex_lock(&mutex);
        service->draining = true;
        bool done = flights == NULL;
        for (struct flight *flight = flights; flight != NULL && hearth_clock_us() >= until; flight = flight->next) {
            flight->cancelled = true;
        }
        pthread_mutex_unlock(&mutex);
        if (done) {
            return;
        }
        usleep(1000);
    }
}

void hearth_service_destroy(struct hearth_service *service) {
    hearth_service_drain(service, 0);
    pthread_mutex_lock(&mutex);
    service->ending = true;
    pthread_mutex_unlock(&mutex);
    pthread_join(service->thread, NULL);
    free(service);
}

void hearth_service_stats(struct hearth_service *service, struct hearth_service_stats *stats) {
    (void)service;
    pthread_mutex_lock(&mutex);
    *stats = (struct hearth_service_stats){.requests = (uint64_t)counts.submitted};
    pthread_mutex_unlock(&mutex);
}

size_t hearth_service_lanes(struct hearth_service *service, struct hearth_lane_info *lanes, size_t cap) {
    (void)service;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < cap && i < 2; i++) { /* the second one computes the request that came last */
        lanes[i] = (struct hearth_lane_info){.state = HEARTH_LANE_DECODE, .request_id = 7, .live_tokens = 11};
    }
    if (cap > 1 && flights != NULL) {
        lanes[1] = (struct hearth_lane_info){.state = HEARTH_LANE_PREFILL,
                                             .request_id = flights->id,
                                             .prompt_tokens = 100,
                                             .reused_tokens = 20,
                                             .computed_tokens = 30,
                                             .priority = last.priority,
                                             .tenant = last.tenant.id,
                                             .queue_us = 1000,
                                             .prefill_us = 500000,
                                             .preemptions = 2};
    }
    pthread_mutex_unlock(&mutex);
    return 2;
}

size_t hearth_service_waiting(struct hearth_service *service, struct hearth_waiting_info *waiting, size_t cap) {
    (void)service;
    if (cap > 0) {
        waiting[0] = (struct hearth_waiting_info){.request_id = 8, .prompt_tokens = 5, .waited_us = 1500000};
    }
    if (cap > 1) { /* preempted before it had said anything */
        waiting[1] = (struct hearth_waiting_info){.request_id = 9, .prompt_tokens = 6, .preemptions = 1, .held = true};
    }
    return 2;
}

bool hearth_service_overloaded(struct hearth_service *service, const struct hearth_tenant *tenant,
                               uint32_t *retry_after_s) {
    (void)service;
    (void)tenant;
    pthread_mutex_lock(&mutex);
    const bool full = overloaded_s > 0;
    *retry_after_s = full ? overloaded_s : 1;
    pthread_mutex_unlock(&mutex);
    return full;
}

void hearth_service_reserve(struct hearth_service *service, const struct hearth_tenant *tenant) {
    (void)service;
    (void)tenant;
    pthread_mutex_lock(&mutex);
    counts.reserved++;
    pthread_mutex_unlock(&mutex);
}

void hearth_service_unreserve(struct hearth_service *service, const struct hearth_tenant *tenant) {
    (void)service;
    (void)tenant;
    pthread_mutex_lock(&mutex);
    HEARTH_ASSERT(counts.reserved > 0);
    counts.reserved--;
    pthread_mutex_unlock(&mutex);
}

void hearth_service_tune(struct hearth_service *service, uint32_t queue, double min_decode_tps) {
    (void)service;
    (void)queue;
    (void)min_decode_tps;
}

void fake_set_overloaded(uint32_t retry_after_s) {
    pthread_mutex_lock(&mutex);
    overloaded_s = retry_after_s;
    pthread_mutex_unlock(&mutex);
}

void fake_set_plan(const struct fake_plan *plan) {
    pthread_mutex_lock(&mutex);
    current = *plan;
    seed_count = 0;
    planned = 0;
    pthread_mutex_unlock(&mutex);
}

void fake_get_counts(struct fake_counts *out) {
    pthread_mutex_lock(&mutex);
    *out = counts;
    pthread_mutex_unlock(&mutex);
}

size_t fake_seeds(uint32_t *seeds, size_t cap) {
    pthread_mutex_lock(&mutex);
    size_t count = seed_count;
    for (size_t i = 0; i < count && i < cap; i++) {
        seeds[i] = seeds_seen[i];
    }
    pthread_mutex_unlock(&mutex);
    return count;
}

const struct fake_request *fake_last(void) {
    return &last;
}
