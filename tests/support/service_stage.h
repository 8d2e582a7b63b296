/* A service on sim for one test, with a disk tier if wanted, and replies as they come. cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_SERVICE_STAGE_H
#define HEARTH_TESTS_SUPPORT_SERVICE_STAGE_H

#include "base/assert.h"
#include "engine/sim.h"
#include "sched/service.h"
#include "tier/disk.h"

#include <pthread.h>
#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct stage {
    struct hearth_engine *engine;
    struct hearth_service *service;
    struct hearth_backing *backing;
};

/* What a request gave. */
struct reply {
    struct hearth_tokens tokens;
    struct hearth_buf text;
    struct hearth_sample_logprobs first;
    enum hearth_finish finish;
    struct hearth_receipt receipt;
    int err;
    char stop[32];
    bool prefilled, late, done;
    int place; /* in the order in which replies end */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int places;

static inline void deliver(void *user, struct hearth_event *event) {
    struct reply *reply = user;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < event->sampled_count; i++) {
        if (reply->tokens.n == 0) {
            reply->first = event->sampled[i].logprobs;
        }
        HEARTH_ASSERT(hearth_tokens_push(&reply->tokens, event->sampled[i].token));
    }
    reply->prefilled = reply->prefilled || event->type == HEARTH_EVENT_PREFILLED;
    HEARTH_ASSERT(hearth_buf_append(&reply->text, event->text.data, event->text.len));
    if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
        reply->finish = event->finish;
        reply->receipt = event->receipt;
        reply->err = event->err;
        reply->late = event->late;
        if (event->stop_string != NULL) {
            strncpy(reply->stop, event->stop_string, sizeof reply->stop - 1);
        }
        reply->place = ++places;
        reply->done = true;
        pthread_cond_broadcast(&ended);
    }
    pthread_mutex_unlock(&mutex);
    hearth_event_destroy(event);
}

struct stage_options {
    enum hearth_engine_class memory_class;
    uint32_t ctx_tokens, lanes, parked, queue;
    uint32_t window_tokens; /* a sliding window, held for as long as what is computed at once needs */
    double prefill_tokens_per_s, decode_tokens_per_s, import_bytes_per_s; /* 0: the default, as for the sizes */
    size_t cache_bytes, snapshot_bytes;
    const char *dir;                                      /* of a disk tier; NULL: none */
    void (*backing_made)(struct hearth_backing *backing); /* before the service has that tier; may be NULL */
};

static inline void stage_set(double *value, double wanted) {
    *value = wanted > 0 ? wanted : *value;
}

static inline void open_stage_with(struct stage *stage, const struct stage_options *options) {
    struct hearth_sim_params sim;
    struct hearth_service_params params;
    hearth_sim_params_default(&sim);
    hearth_service_params_default(&params);
    *stage = (struct stage){0};
    sim.memory_class = options->memory_class;
    sim.ctx_tokens = options->ctx_tokens;
    sim.lanes = options->lanes > 0 ? options->lanes : sim.lanes;
    sim.parked_seqs = options->parked;
    sim.window_tokens = options->window_tokens;
    sim.rewind_tokens = options->window_tokens > 0 ? sim.ubatch_tokens + 32 : 0;
    sim.snapshot_bytes = options->snapshot_bytes > 0 ? options->snapshot_bytes : sim.snapshot_bytes;
    stage_set(&sim.prefill_tokens_per_s, options->prefill_tokens_per_s);
    stage_set(&sim.decode_tokens_per_s, options->decode_tokens_per_s);
    stage_set(&sim.import_bytes_per_s, options->import_bytes_per_s);
    params.page_tokens = 32;
    params.queue = options->queue;
    params.cache_bytes = options->cache_bytes > 0 ? options->cache_bytes : params.cache_bytes;
    assert_int_equal(hearth_sim_create(&sim, &stage->engine, NULL), HEARTH_OK);
    struct hearth_disk_params disk = {.dir = options->dir,
                                      .fingerprint = stage->engine->caps.fingerprint,
                                      .page_tokens = 32,
                                      .about = "sim",
                                      .budget_bytes = (uint64_t)1 << 30,
                                      .rescan_us = 20000};
    if (options->dir != NULL) {
        assert_int_equal(hearth_disk_create(&disk, &stage->backing, NULL), HEARTH_OK);
        if (options->backing_made != NULL) {
            options->backing_made(stage->backing);
        }
    }
    params.backing = stage->backing;
    params.backing_min_tokens = 0;
    assert_int_equal(hearth_service_create(stage->engine, &params, &stage->service, NULL), HEARTH_OK);
}

static inline void open_stage(struct stage *stage, enum hearth_engine_class memory_class, uint32_t ctx_tokens) {
    const struct stage_options options = {.memory_class = memory_class, .ctx_tokens = ctx_tokens};
    open_stage_with(stage, &options);
}

static inline void close_stage(struct stage *stage) {
    hearth_service_destroy(stage->service);
    if (stage->backing != NULL) {
        stage->backing->ops->destroy(stage->backing);
    }
    stage->engine->ops->destroy(stage->engine);
}

static inline struct hearth_request request_of(const struct hearth_tokens *prompt) {
    struct hearth_request request = {
        .prompt = prompt->v, .prompt_tokens = prompt->n, .max_tokens = 200, .deliver = deliver};
    hearth_sampling_default(&request.sampling);
    request.sampling.temperature = 0;
    return request;
}

static inline int64_t launch(struct stage *stage, struct hearth_request *request, struct reply *reply) {
    struct hearth_errmsg msg = {""};
    *reply = (struct reply){0};
    request->user = reply;
    int64_t id = hearth_service_submit(stage->service, request, &msg);
    if (id < 0) {
        fail_msg("%s", msg.text);
    }
    return id;
}

static inline void await(struct reply *reply) {
    pthread_mutex_lock(&mutex);
    while (!reply->done) {
        pthread_cond_wait(&ended, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    assert_true(hearth_buf_text(&reply->text, ""));
}

static inline int64_t run(struct stage *stage, struct hearth_request *request, struct reply *reply) {
    int64_t id = launch(stage, request, reply);
    await(reply);
    assert_int_equal(reply->err, 0);
    return id;
}

static inline void reply_finish(struct reply *reply) {
    hearth_tokens_finish(&reply->tokens);
    hearth_buf_finish(&reply->text);
}

static inline struct hearth_tokens tokens_of(struct stage *stage, const char *text) {
    struct hearth_tokens tokens = {0};
    assert_int_equal(stage->engine->ops->tokenize(stage->engine, text, strlen(text), false, true, &tokens), HEARTH_OK);
    return tokens;
}

static inline struct hearth_service_stats stats_of(struct stage *stage) {
    struct hearth_service_stats stats;
    hearth_service_stats(stage->service, &stats);
    return stats;
}

/* ---- a gate ---- */

/* Holds the service's thread up in the n-th event of a request, until it is opened; then in a later one. */
struct gate {
    struct reply reply;
    int events_left;
    int reached, opened; /* how often */
};

static inline void deliver_through(void *user, struct hearth_event *event) {
    struct gate *gate = user;
    pthread_mutex_lock(&mutex);
    if (--gate->events_left == 0) {
        int stop = ++gate->reached;
        pthread_cond_broadcast(&ended);
        while (gate->opened < stop) {
            pthread_cond_wait(&ended, &mutex);
        }
    }
    pthread_mutex_unlock(&mutex);
    deliver(&gate->reply, event);
}

/* Until it stands at its next stop. */
static inline void await_gate(struct gate *gate) {
    pthread_mutex_lock(&mutex);
    while (gate->reached == gate->opened) {
        pthread_cond_wait(&ended, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static inline int64_t launch_gate(struct stage *stage, struct hearth_request *request, struct gate *gate, int events) {
    *gate = (struct gate){.events_left = events};
    request->deliver = deliver_through;
    request->user = gate;
    int64_t id = hearth_service_submit(stage->service, request, NULL);
    assert_true(id > 0);
    await_gate(gate);
    return id;
}

/* Opens it; it holds again `events` later, or (0) never. */
static inline void open_gate(struct gate *gate, int events) {
    pthread_mutex_lock(&mutex);
    gate->events_left = events;
    gate->opened++;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
}

#endif
