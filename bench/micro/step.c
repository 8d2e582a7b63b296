/* What a batch costs beside its computation: the decision alone, and the whole loop of the service on sim, whose clock
 * is a number; beside it the same batches computed and sampled by sim without a service. CPU time, as the thread that
 * waits for the replies takes none. */
#include "micro.h"

#include "base/assert.h"
#include "engine/sim.h"
#include "sched/service.h"
#include "sched/step.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define LANES_MAX 64
#define PROMPT_TOKENS 64

static uint64_t cpu_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the decision ---- */

static void decide(struct micro *micro, uint32_t lanes) {
    static struct micro_sample sample;
    const int at_once = 100;
    struct hearth_step *step =
        hearth_step_create(&(struct hearth_step_params){.lanes = lanes, .batch_tokens = 2048, .chunk_tokens = 512});
    HEARTH_ASSERT(step);
    for (int64_t i = 0; i < lanes; i++) {
        const struct hearth_step_request request = {.id = i + 1, .arrived_us = i};
        HEARTH_ASSERT(hearth_step_submit(step, &request));
        hearth_step_assign(step, i + 1, (int)i, 0, PROMPT_TOKENS, NULL, 0, 0, i);
        (void)hearth_step_computed(step, (int)i, PROMPT_TOKENS);
    }
    for (int i = 0; i < (micro->quick ? 3 : 101); i++) {
        uint64_t start = cpu_now_ns();
        for (int k = 0; k < at_once; k++) {
            struct hearth_action action;
            hearth_step_next(step, k, &action);
            HEARTH_ASSERT(action.type == HEARTH_ACTION_COMPUTE);
            for (uint32_t lane = 0; lane < lanes; lane++) {
                (void)hearth_step_computed(step, (int)lane, action.shares[lane]);
            }
        }
        micro_add(&sample, (double)(cpu_now_ns() - start) / at_once);
    }
    micro_report(micro, "step", &sample, "\"lanes\": %u", lanes);
    hearth_step_destroy(step);
}

/* ---- the service ---- */

struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    uint32_t left;
};

static void deliver(void *user, struct hearth_event *event) {
    struct waiter *waiter = user;
    bool last = event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED;
    HEARTH_ASSERT(event->type != HEARTH_EVENT_FAILED);
    hearth_event_destroy(event);
    if (!last) {
        return;
    }
    (void)pthread_mutex_lock(&waiter->mutex);
    if (--waiter->left == 0) {
        (void)pthread_cond_signal(&waiter->ended);
    }
    (void)pthread_mutex_unlock(&waiter->mutex);
}

static struct hearth_engine *sim_create(uint32_t lanes, uint32_t ctx_tokens) {
    struct hearth_sim_params params;
    struct hearth_engine *engine;
    hearth_sim_params_default(&params);
    params.lanes = lanes;
    params.ctx_tokens = ctx_tokens;
    params.reply_tokens = 1u << 30; /* nobody ends by himself */
    HEARTH_ASSERT(hearth_sim_create(&params, &engine, NULL) == HEARTH_OK);
    return engine;
}

/* All lanes decode together. Returns CPU nanoseconds per batch, the prompts' batches among them. */
static double serve(uint32_t lanes, int32_t tokens) {
    struct hearth_service_params params;
    struct hearth_service *service;
    struct hearth_service_stats stats;
    struct waiter waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, lanes};
    struct hearth_engine *engine = sim_create(lanes, lanes * (uint32_t)(tokens + PROMPT_TOKENS + 256));
    hearth_token prompt[PROMPT_TOKENS];
    hearth_service_params_default(&params);
    params.speculate = HEARTH_SPECULATE_OFF;
    params.cache_bytes = 0; /* what capturing costs is measured elsewhere */
    HEARTH_ASSERT(hearth_service_create(engine, &params, &service, NULL) == HEARTH_OK);
    uint64_t start = cpu_now_ns();
    for (uint32_t i = 0; i < lanes; i++) {
        struct hearth_request request = {.prompt = prompt,
                                         .prompt_tokens = PROMPT_TOKENS,
                                         .max_tokens = tokens,
                                         .deliver = deliver,
                                         .user = &waiter};
        hearth_sampling_default(&request.sampling);
        request.sampling.temperature = 0;
        request.sampling.ignore_eos = true;
        for (uint32_t k = 0; k < PROMPT_TOKENS; k++) {
            prompt[k] = (hearth_token)(i + k);
        }
        HEARTH_ASSERT(hearth_service_submit(service, &request, NULL) > 0);
    }
    (void)pthread_mutex_lock(&waiter.mutex);
    while (waiter.left > 0) {
        (void)pthread_cond_wait(&waiter.ended, &waiter.mutex);
    }
    (void)pthread_mutex_unlock(&waiter.mutex);
    uint64_t ns = cpu_now_ns() - start;
    hearth_service_drain(service, 0);
    hearth_service_stats(service, &stats);
    hearth_service_destroy(service);
    engine->ops->destroy(engine);
    /* The counters are those of the last step but one, perhaps. */
    HEARTH_ASSERT(stats.steps + 2 >= (uint64_t)tokens);
    return (double)ns / (double)stats.steps;
}

/* The same batches without a service. */
static double compute(uint32_t lanes, int32_t tokens) {
    struct hearth_engine *engine = sim_create(lanes, lanes * (uint32_t)(tokens + 256));
    struct hearth_sampler *samplers[LANES_MAX];
    struct hearth_batch_item items[LANES_MAX];
    struct hearth_sampling sampling;
    hearth_sampling_default(&sampling);
    sampling.temperature = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        samplers[i] = engine->ops->sampler_create(engine, &sampling, NULL);
        HEARTH_ASSERT(samplers[i] != NULL);
        items[i] = (struct hearth_batch_item){.token = (hearth_token)i, .seq = (int32_t)i, .output = true};
    }
    uint64_t start = cpu_now_ns();
    for (int32_t pos = 0; pos < tokens; pos++) {
        for (uint32_t i = 0; i < lanes; i++) {
            items[i].pos = pos;
        }
        HEARTH_ASSERT(engine->ops->decode(engine, items, lanes) == HEARTH_OK);
        for (uint32_t i = 0; i < lanes; i++) {
            items[i].token = engine->ops->sample(engine, samplers[i], i, 0, NULL);
        }
    }
    uint64_t ns = cpu_now_ns() - start;
    for (uint32_t i = 0; i < lanes; i++) {
        engine->ops->sampler_destroy(engine, samplers[i]);
    }
    engine->ops->destroy(engine);
    return (double)ns / tokens;
}

void micro_step(struct micro *micro) {
    static struct micro_sample loop, sim;
    for (uint32_t lanes = 1; lanes <= LANES_MAX; lanes *= 4) {
        int32_t tokens = micro->quick ? 50 : 1000;
        decide(micro, lanes);
        for (int i = 0; i < (micro->quick ? 2 : 11); i++) {
            micro_add(&loop, serve(lanes, tokens));
            micro_add(&sim, compute(lanes, tokens));
        }
        micro_report(micro, "batch of the service", &loop, "\"lanes\": %u", lanes);
        micro_report(micro, "batch of sim alone", &sim, "\"lanes\": %u", lanes);
    }
}
