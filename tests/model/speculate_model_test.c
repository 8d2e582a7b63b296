/* Speculation beside none: two services on sims whose text repeats itself get the same random requests, one guesses all
 * it can, the other never. Every token, the text and the end of every reply must be the same, on every memory class,
 * greedy and not, with penalties and stop strings, in contexts that are too small, with clients that go away and with
 * faults. When a reply ends, some lane must hold exactly the state of its tokens.
 *
 * HEARTH_SEED repeats a run, HEARTH_MODEL_ROUNDS sets its length. */
#include "base/assert.h"
#include "base/log.h"
#include "engine/sim.h"
#include "sched/service.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARALLEL 5

static uint64_t rng_state;

static uint32_t rnd(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

struct flight {
    struct hearth_engine *engine;
    struct hearth_tokens prompt, reply;
    struct hearth_buf text;
    enum hearth_finish finish;
    uint32_t drafted, accepted;
    int64_t id;
    bool done, faults;
    int err;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static uint64_t drafted, accepted;

/* The service's thread: the engine is at rest. */
static bool state_stands(const struct flight *flight) {
    struct hearth_tokens all = {0};
    HEARTH_ASSERT(hearth_tokens_append(&all, flight->prompt.v, flight->prompt.n));
    HEARTH_ASSERT(hearth_tokens_append(&all, flight->reply.v, flight->reply.n - 1));
    bool stands = false;
    for (uint32_t i = 0; i < flight->engine->caps.seqs && !stands; i++) {
        stands = hearth_sim_intact(flight->engine, (int32_t)i, all.v, all.n);
    }
    hearth_tokens_finish(&all);
    return stands;
}

static void deliver(void *user, struct hearth_event *event) {
    struct flight *flight = user;
    pthread_mutex_lock(&mutex);
    HEARTH_ASSERT(!flight->done);
    for (size_t i = 0; i < event->sampled_count; i++) {
        HEARTH_ASSERT(hearth_tokens_push(&flight->reply, event->sampled[i].token));
    }
    HEARTH_ASSERT(hearth_buf_append(&flight->text, event->text.data, event->text.len));
    if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
        flight->err = event->type == HEARTH_EVENT_FAILED ? event->err : 0;
        if (flight->err && !flight->faults && flight->err != HEARTH_ERR_CANCELLED) {
            fprintf(stderr, "failed: %s\n", event->message.text);
            abort();
        }
        flight->finish = event->finish;
        flight->drafted = event->drafted_tokens;
        flight->accepted = event->accepted_tokens;
        HEARTH_ASSERT(flight->accepted <= flight->drafted && flight->accepted <= flight->reply.n);
        HEARTH_ASSERT(flight->err || flight->faults || state_stands(flight));
        flight->done = true;
        pthread_cond_broadcast(&progress);
    }
    pthread_mutex_unlock(&mutex);
    hearth_event_destroy(event);
}

static void await(struct flight *flight) {
    pthread_mutex_lock(&mutex);
    while (!flight->done) {
        pthread_cond_wait(&progress, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void flight_finish(struct flight *flight) {
    hearth_tokens_finish(&flight->prompt);
    hearth_tokens_finish(&flight->reply);
    hearth_buf_finish(&flight->text);
}

/* A prompt in which phrases come back. */
static void write_prompt(struct hearth_tokens *prompt, uint32_t n) {
    while (prompt->n < n) {
        size_t copy = prompt->n > 12 && rnd(3) > 0 ? 4 + rnd(8) : 0;
        size_t from = copy ? rnd((uint32_t)(prompt->n - copy)) : 0;
        for (size_t i = 0; i < copy; i++) {
            HEARTH_ASSERT(hearth_tokens_push(prompt, prompt->v[from + i]));
        }
        HEARTH_ASSERT(hearth_tokens_push(prompt, (hearth_token)(1 + rnd(40))));
    }
}

static const char *const stops[] = {"e ", "the"};

static struct hearth_request random_request(const struct hearth_tokens *prompt) {
    struct hearth_request request = {.prompt = prompt->v, .prompt_tokens = prompt->n, .deliver = deliver};
    hearth_sampling_default(&request.sampling);
    request.max_tokens = rnd(4) == 0 ? 1 + (int32_t)rnd(8) : 20 + (int32_t)rnd(120);
    request.sampling.temperature = rnd(3) == 0 ? 0.3F : 0;
    request.sampling.seed = rnd(1000);
    request.sampling.penalty_repeat = rnd(6) == 0 ? 1.1F : 1;
    request.stops = stops;
    request.stop_count = rnd(4) == 0 ? 2 : 0;
    return request;
}

static void compare(const struct flight *on, const struct flight *off) {
    bool whole = !on->err && !off->err;
    size_t n = on->reply.n < off->reply.n ? on->reply.n : off->reply.n;
    bool same = (!whole || (on->reply.n == off->reply.n && on->finish == off->finish && on->text.len == off->text.len &&
                            (on->text.len == 0 || memcmp(on->text.data, off->text.data, on->text.len) == 0))) &&
                (n == 0 || memcmp(on->reply.v, off->reply.v, n * sizeof *on->reply.v) == 0);
    if (!same) {
        fprintf(stderr, "with guesses %zu tokens, without %zu\n", on->reply.n, off->reply.n);
        abort();
    }
    HEARTH_ASSERT(off->drafted == 0);
    drafted += on->drafted;
    accepted += on->accepted;
}

struct pair {
    struct hearth_engine *engine[2];
    struct hearth_service *service[2]; /* with guesses, without */
    bool faults;
};

static void open_pair(struct pair *pair, enum hearth_engine_class memory_class) {
    struct hearth_sim_params sim;
    struct hearth_service_params params;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&sim);
    hearth_service_params_default(&params);
    sim.memory_class = memory_class;
    sim.repeats = true;
    sim.seed = rnd(1000);
    sim.lanes = 1 + rnd(4);
    sim.reply_tokens = 100;
    sim.ctx_tokens = rnd(2) ? 2048 : 500;
    sim.rewind_tokens = memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT ? (uint32_t[]){0, 5, 64}[rnd(3)] : 0;
    sim.batch_tokens = rnd(3) ? 512 : 24;
    sim.ubatch_tokens = sim.batch_tokens < 128 ? sim.batch_tokens : 128;
    params.page_tokens = 16;
    params.cache_bytes = rnd(4) ? (size_t)1 << 22 : 0;
    params.draft_tokens = 1 + rnd(HEARTH_DRAFT_MAX);
    for (int i = 0; i < 2; i++) {
        params.speculate = i == 0 ? HEARTH_SPECULATE_ON : HEARTH_SPECULATE_OFF;
        HEARTH_ASSERT(hearth_sim_create(&sim, &pair->engine[i], &msg) == HEARTH_OK);
        HEARTH_ASSERT(hearth_service_create(pair->engine[i], &params, &pair->service[i], &msg) == HEARTH_OK);
    }
    pair->faults = rnd(3) == 0;
    for (int fault = 0; fault < HEARTH_SIM_FAULTS && pair->faults; fault++) {
        if (fault != HEARTH_SIM_FAULT_DECODE) {
            hearth_sim_fault(pair->engine[0], (enum hearth_sim_fault)fault, 3 + rnd(30), true);
        }
    }
}

static void round_of(struct pair *pair) {
    struct flight flights[PARALLEL][2] = {0};
    for (int i = 0; i < PARALLEL; i++) {
        struct flight *on = &flights[i][0];
        write_prompt(&on->prompt, 8 + rnd(150));
        struct hearth_request request = random_request(&on->prompt);
        struct hearth_errmsg msg;
        bool cancels = rnd(8) == 0;
        HEARTH_ASSERT(hearth_tokens_append(&flights[i][1].prompt, on->prompt.v, on->prompt.n));
        for (int k = 0; k < 2; k++) {
            struct flight *flight = &flights[i][k];
            flight->engine = pair->engine[k];
            flight->faults = pair->faults;
            request.user = flight;
            flight->id = hearth_service_submit(pair->service[k], &request, &msg);
            HEARTH_ASSERT(flight->id > 0);
        }
        if (cancels) {
            hearth_service_cancel(pair->service[0], on->id);
        }
    }
    for (int i = 0; i < PARALLEL; i++) {
        await(&flights[i][0]);
        await(&flights[i][1]);
        compare(&flights[i][0], &flights[i][1]);
        flight_finish(&flights[i][0]);
        flight_finish(&flights[i][1]);
    }
}

int main(void) {
    static const enum hearth_engine_class classes[] = {HEARTH_ENGINE_PAGES, HEARTH_ENGINE_PAGES_SNAPSHOT,
                                                       HEARTH_ENGINE_SNAPSHOT, HEARTH_ENGINE_OPAQUE};
    const char *seed = getenv("HEARTH_SEED"), *length = getenv("HEARTH_MODEL_ROUNDS");
    int rounds = length ? atoi(length) : 60;
    hearth_log_set_lowest(HEARTH_LOG_ERROR);
    for (int round = 0; round < rounds; round++) {
        uint64_t start = seed ? strtoull(seed, NULL, 10) : (uint64_t)round + 1;
        rng_state = start * 0x9E3779B97F4A7C15u + 1;
        struct pair pair;
        open_pair(&pair, classes[round % 4]);
        for (int i = 0; i < 4; i++) {
            round_of(&pair);
        }
        for (int i = 0; i < 2; i++) {
            hearth_service_destroy(pair.service[i]);
            pair.engine[i]->ops->destroy(pair.engine[i]);
        }
    }
    printf("%llu tokens guessed, %llu kept\n", (unsigned long long)drafted, (unsigned long long)accepted);
    fflush(stdout);
    HEARTH_ASSERT(rounds < 4 || (accepted > drafted / 20 && accepted < drafted));
    return 0;
}
