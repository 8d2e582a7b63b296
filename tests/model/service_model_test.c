/* The whole service on sim: random conversations from several sides at once, with side prompts, edits, branches,
 * clients that go away, caches and contexts that are too small, and faults. Every token of every reply must be what
 * a cache-less run would have sampled, and nothing may get stuck; nor by requests of other classes and tenants, by
 * preemption, by deadlines, by the bound on waiting requests, by pins, by expectations, or by forgets of what others
 * use, each of which is answered once. Half of the engines are so slow that replies take minutes of virtual time. Half
 * of the games have a disk tier in a directory of their own, with restarts in between; what they restore from there is
 * held to the same oracle.
 *
 * HEARTH_SEED repeats a run, HEARTH_MODEL_ROUNDS sets its length. */
#include "base/assert.h"
#include "base/log.h"
#include "engine/sim.h"
#include "sched/service.h"
#include "tier/disk.h"

#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONVERSATIONS 6
#define PARALLEL 8

static uint64_t rng_state;

static uint32_t rnd(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* ---- one request in flight ---- */

struct flight {
    struct hearth_tokens prompt;
    struct hearth_tokens reply;
    int32_t max_tokens;
    enum hearth_class priority;
    int64_t id, deadline_us;
    bool cancelled, done, prefilled, progress, late, refused;
    int err;
    struct hearth_receipt receipt;
    enum hearth_finish finish;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

static void deliver(void *user, struct hearth_event *event) {
    struct flight *flight = user;
    pthread_mutex_lock(&mutex);
    HEARTH_ASSERT(!flight->done);
    for (size_t i = 0; i < event->sampled_count; i++) {
        HEARTH_ASSERT(hearth_tokens_push(&flight->reply, event->sampled[i].token));
    }
    if (event->type == HEARTH_EVENT_PREFILLED) {
        HEARTH_ASSERT(!flight->prefilled && flight->reply.n == 0);
        flight->prefilled = true;
    }
    if (event->type == HEARTH_EVENT_PROGRESS) {
        HEARTH_ASSERT(flight->progress && !flight->prefilled && event->prefilled_tokens <= flight->prompt.n);
    }
    flight->receipt = event->receipt;
    if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
        flight->done = true;
        flight->finish = event->finish;
        flight->err = event->type == HEARTH_EVENT_FAILED ? event->err : 0;
        flight->late = event->late;
        pthread_cond_broadcast(&progress);
    }
    pthread_mutex_unlock(&mutex);
    hearth_event_destroy(event);
}

static void launch(struct hearth_service *service, struct flight *flight, bool may_refuse) {
    int32_t marks[2] = {(int32_t)flight->prompt.n / 3, (int32_t)flight->prompt.n * 2 / 3};
    int32_t pinned = 1 + (int32_t)rnd((uint32_t)flight->prompt.n);
    const struct hearth_pin pin = {.position = pinned, .ttl_us = 1 + rnd(5000000)};
    flight->priority = rnd(4) == 0   ? HEARTH_CLASS_PREFETCH
                       : rnd(3) == 0 ? HEARTH_CLASS_BACKGROUND
                       : rnd(3) == 0 ? HEARTH_CLASS_SIDE
                                     : HEARTH_CLASS_INTERACTIVE;
    flight->progress = rnd(2);
    flight->deadline_us = rnd(6) == 0 ? 1 + rnd(60) * 1000000 / (1 + rnd(10)) : 0;
    if (flight->priority == HEARTH_CLASS_PREFETCH) {
        flight->max_tokens = 0;
    }
    struct hearth_request request = {.prompt = flight->prompt.v,
                                     .prompt_tokens = flight->prompt.n,
                                     .marks = marks,
                                     .mark_count = 2,
                                     .pins = &pin,
                                     .pin_count = rnd(3) == 0,
                                     .priority = flight->priority,
                                     .idle = flight->priority == HEARTH_CLASS_PREFETCH && rnd(2),
                                     .tenant = {.id = rnd(3), .weight = rnd(4)},
                                     .progress = flight->progress,
                                     .deadline_us = flight->deadline_us,
                                     .max_tokens = flight->max_tokens,
                                     .cache_off = rnd(20) == 0,
                                     .deliver = deliver,
                                     .user = flight};
    hearth_sampling_default(&request.sampling);
    request.sampling.temperature = 0;
    struct hearth_errmsg msg;
    flight->id = hearth_service_submit(service, &request, &msg);
    if (flight->id == HEARTH_ERR_OVERLOADED && may_refuse) {
        flight->refused = flight->done = true;
        flight->err = HEARTH_ERR_OVERLOADED;
    }
    HEARTH_ASSERT(flight->refused || flight->id > 0);
}

static void await(struct flight *flight) {
    pthread_mutex_lock(&mutex);
    while (!flight->done) {
        pthread_cond_wait(&progress, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

/* The reply must be the oracle's, token for token, as far as it goes. */
static void check(struct hearth_engine *engine, const struct flight *flight, bool faults) {
    struct hearth_tokens all = {0};
    HEARTH_ASSERT(hearth_tokens_assign(&all, flight->prompt.v, flight->prompt.n));
    for (size_t i = 0; i < flight->reply.n; i++) {
        hearth_token expected = hearth_sim_oracle(engine, all.v, all.n);
        if (flight->reply.v[i] != expected) {
            fprintf(stderr, "request %lld: token %zu is %d, the oracle says %d (prompt %zu, live %u, ram %u, %s)\n",
                    (long long)flight->id, i, flight->reply.v[i], expected, flight->prompt.n,
                    flight->receipt.reused_live_tokens, flight->receipt.reused_ram_tokens,
                    hearth_reason_text(flight->receipt.reason));
            abort();
        }
        HEARTH_ASSERT(hearth_tokens_push(&all, expected));
    }
    if (flight->err == 0) {
        bool ended = flight->reply.n > 0 && engine->ops->token_is_end(engine, flight->reply.v[flight->reply.n - 1]);
        bool full = flight->prompt.n + flight->reply.n >= engine->caps.ctx_tokens;
        HEARTH_ASSERT(ended || full || (int32_t)flight->reply.n == flight->max_tokens || flight->late);
        HEARTH_ASSERT(!flight->late || (flight->deadline_us > 0 && flight->reply.n > 0));
        HEARTH_ASSERT((flight->finish == HEARTH_FINISH_STOP) == ended);
        HEARTH_ASSERT(flight->receipt.prompt_tokens == flight->prompt.n);
        size_t told = flight->receipt.reused_live_tokens + flight->receipt.reused_ram_tokens +
                      flight->receipt.reused_disk_tokens + flight->receipt.reused_remote_tokens +
                      flight->receipt.computed_tokens;
        bool untouched = flight->priority == HEARTH_CLASS_PREFETCH && !flight->prefilled; /* it ended without a lane */
        HEARTH_ASSERT(untouched ? told <= flight->prompt.n : told == flight->prompt.n);
    } else {
        HEARTH_ASSERT(faults || (flight->cancelled && flight->err == HEARTH_ERR_CANCELLED) || flight->refused ||
                      (flight->deadline_us > 0 && flight->err == HEARTH_ERR_DEADLINE && flight->reply.n == 0));
    }
    hearth_tokens_finish(&all);
}

/* ---- rounds ---- */

static void random_tokens(struct hearth_tokens *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        HEARTH_ASSERT(hearth_tokens_push(tokens, (hearth_token)(1 + rnd(6))));
    }
}

/* What a client does to its history before the next request. */
static void change(struct hearth_tokens *history, const struct hearth_tokens *system, uint32_t limit) {
    uint32_t what = rnd(10);
    if (history->n < system->n || history->n > limit || what == 0) {
        HEARTH_ASSERT(hearth_tokens_assign(history, system->v, system->n));
    } else if (what == 1) {
        history->n = system->n + rnd((uint32_t)(history->n - system->n) + 1); /* cut back */
    } else if (what == 2) {
        history->v[rnd((uint32_t)history->n)] = 7; /* edited somewhere */
    }
    random_tokens(history, 1 + rnd(60));
}

/* ---- forgets ---- */

static size_t forgets_asked, forgets_answered, forgets_done;

static void forgotten(void *user, int err) {
    pthread_mutex_lock(&mutex);
    HEARTH_ASSERT(user == &forgets_asked && (err == HEARTH_OK || err == HEARTH_ERR_CANCELLED));
    forgets_answered++;
    forgets_done += err == HEARTH_OK;
    pthread_mutex_unlock(&mutex);
}

static void forget(struct hearth_service *service, const struct hearth_tokens *tokens) {
    const struct hearth_service_forget_request request = {.tokens = tokens->v,
                                                          .count = tokens->n,
                                                          .keep_tokens = rnd(2) ? rnd((uint32_t)tokens->n + 1) : 0,
                                                          .done = forgotten,
                                                          .user = &forgets_asked};
    forgets_asked++;
    HEARTH_ASSERT(hearth_service_forget(service, &request) == HEARTH_OK);
}

/* One server's life. */
struct server {
    struct hearth_engine *engine;
    struct hearth_backing *backing;
    struct hearth_service *service;
};

static void start(struct server *server, const struct hearth_sim_params *sim, struct hearth_service_params params,
                  const char *dir) {
    struct hearth_errmsg msg;
    *server = (struct server){0};
    HEARTH_ASSERT(hearth_sim_create(sim, &server->engine, &msg) == 0);
    struct hearth_disk_params disk = {.dir = dir,
                                      .fingerprint = server->engine->caps.fingerprint,
                                      .page_tokens = (int32_t)params.page_tokens,
                                      .about = "sim",
                                      .budget_bytes = (uint64_t)(1 + rnd(64)) << 20,
                                      .queue_bytes = (uint64_t)4096 << rnd(12)};
    HEARTH_ASSERT(dir == NULL || hearth_disk_create(&disk, &server->backing, &msg) == 0);
    params.backing = server->backing;
    HEARTH_ASSERT(hearth_service_create(server->engine, &params, &server->service, &msg) == 0);
}

static uint64_t disk_tokens, yields, preemptions, refused, late;

static void stop(struct server *server, const struct hearth_sim_params *sim,
                 const struct hearth_service_params *params) {
    struct hearth_service_stats stats;
    hearth_service_drain(server->service, 1000000);
    hearth_service_stats(server->service, &stats);
    printf("  %s, page %u, ctx %u, %u lanes, cache %zu: reused live %llu ram %llu disk %llu computed %llu, "
           "evicted %llu/%llu, preempted %llu, preempted for others %llu, late %llu, restore failures %llu\n",
           hearth_engine_class_text(sim->memory_class), params->page_tokens, sim->ctx_tokens, sim->lanes,
           params->cache_bytes, (unsigned long long)stats.prompt_reused_live_tokens,
           (unsigned long long)stats.prompt_reused_ram_tokens, (unsigned long long)stats.prompt_reused_disk_tokens,
           (unsigned long long)stats.prompt_computed_tokens, (unsigned long long)stats.evicted_pages,
           (unsigned long long)stats.evicted_snapshots, (unsigned long long)stats.preemptions,
           (unsigned long long)stats.yields, (unsigned long long)stats.requests_late,
           (unsigned long long)stats.restore_failures);
    disk_tokens += stats.prompt_reused_disk_tokens;
    yields += stats.yields;
    preemptions += stats.preemptions;
    late += stats.requests_late;
    hearth_service_destroy(server->service);
    HEARTH_ASSERT(forgets_answered == forgets_asked);
    if (server->backing) {
        server->backing->ops->destroy(server->backing);
    }
    server->engine->ops->destroy(server->engine);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void play(struct hearth_sim_params sim, struct hearth_service_params params, int rounds, bool faults,
                 bool on_disk) {
    struct server server;
    char dir[] = "/tmp/hearth-model-XXXXXX";
    HEARTH_ASSERT(!on_disk || mkdtemp(dir) != NULL);
    start(&server, &sim, params, on_disk ? dir : NULL);
    struct hearth_tokens system = {0}, histories[CONVERSATIONS] = {{0}};
    random_tokens(&system, sim.ctx_tokens / 8);
    for (int round = 0; round < rounds; round++) {
        struct flight flights[PARALLEL];
        memset(flights, 0, sizeof flights);
        uint32_t n = 1 + rnd(PARALLEL);
        if (on_disk && rnd(10) == 0) {
            stop(&server, &sim, &params);
            start(&server, &sim, params, dir);
        }
        if (faults) {
            hearth_sim_fault(server.engine, (enum hearth_sim_fault)rnd(HEARTH_SIM_FAULTS), 1 + rnd(6), rnd(8) == 0);
        }
        for (uint32_t i = 0; i < n; i++) {
            struct hearth_tokens *history = &histories[rnd(CONVERSATIONS)];
            change(history, &system, sim.ctx_tokens / 2);
            HEARTH_ASSERT(hearth_tokens_assign(&flights[i].prompt, history->v, history->n));
            flights[i].max_tokens = (int32_t)rnd(30);
            launch(server.service, &flights[i], params.queue > 0);
            refused += flights[i].refused;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (rnd(6) == 0 && !flights[i].refused) {
                flights[i].cancelled = true;
                hearth_service_cancel(server.service, flights[i].id);
            }
        }
        if (rnd(8) == 0) { /* 0: no limit */
            hearth_service_tune(server.service, params.queue > 0 ? 1 + rnd(6) : 0, rnd(3));
        }
        if (rnd(4) == 0) {
            forget(server.service, &histories[rnd(CONVERSATIONS)]);
        }
        for (uint32_t i = 0; i < n; i++) {
            await(&flights[i]);
            check(server.engine, &flights[i], faults);
            if (rnd(4) == 0 && !flights[i].refused) {
                hearth_service_expect(server.service, flights[i].id - (rnd(8) == 0), 1 + rnd(3000000));
            }
            if (flights[i].err == 0 && rnd(2)) {
                struct hearth_tokens *history = &histories[rnd(CONVERSATIONS)];
                HEARTH_ASSERT(hearth_tokens_assign(history, flights[i].prompt.v, flights[i].prompt.n));
                HEARTH_ASSERT(hearth_tokens_append(history, flights[i].reply.v, flights[i].reply.n));
            }
            hearth_tokens_finish(&flights[i].prompt);
            hearth_tokens_finish(&flights[i].reply);
        }
    }
    stop(&server, &sim, &params);
    for (int i = 0; i < CONVERSATIONS; i++) {
        hearth_tokens_finish(&histories[i]);
    }
    hearth_tokens_finish(&system);
    if (on_disk) {
        (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

int main(void) {
    const char *seed = getenv("HEARTH_SEED"), *rounds_text = getenv("HEARTH_MODEL_ROUNDS");
    int rounds = rounds_text ? atoi(rounds_text) : 60, games = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    rng_state = seed ? strtoull(seed, NULL, 10) : 20240501;
    printf("seed %llu\n", (unsigned long long)rng_state);
    static const uint32_t page_sizes[] = {1, 7, 32, 256}, contexts[] = {256, 1024, 4096}, lanes[] = {1, 2, 4};
    for (int memory_class = 0; memory_class < 4; memory_class++) {
        for (int faults = 0; faults < 2; faults++) {
            for (int variant = 0; variant < 6; variant++) {
                struct hearth_sim_params sim;
                hearth_sim_params_default(&sim);
                sim.memory_class = (enum hearth_engine_class)memory_class;
                sim.ctx_tokens = contexts[rnd(3)];
                sim.lanes = lanes[rnd(3)];
                sim.parked_seqs = rnd(2);
                sim.ubatch_tokens = 16u << rnd(4);
                sim.rewind_tokens = rnd(2) ? rnd(64) : 0;
                sim.snapshot_bytes = 256;
                if (sim.memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT && variant % 3 > 0) { /* a sliding window */
                    sim.window_tokens = 1 + rnd(200);
                    sim.rewind_tokens = rnd(400);
                }
                if (rnd(2)) {
                    sim.prefill_tokens_per_s = 20;
                    sim.decode_tokens_per_s = 0.5;
                }
                struct hearth_service_params params;
                hearth_service_params_default(&params);
                params.queue = rnd(3) == 0 ? 1 + rnd(6) : 0;
                params.min_decode_tps = rnd(3);
                params.speculate = HEARTH_SPECULATE_OFF;
                bool on_disk = variant % 2 == 1; /* a file for each page: fewer and larger ones */
                params.page_tokens = page_sizes[on_disk ? 2 + rnd(2) : rnd(4)];
                params.cache_bytes = variant == 0 ? 0 : (size_t)1 << (12 + rnd(10));
                params.snapshot_interval_tokens = 1 + rnd(500);
                params.backing_min_tokens = rnd(100);
                params.backing_interval_tokens = 1 + rnd(2000);
                play(sim, params, on_disk ? rounds / 3 : rounds, faults, on_disk);
                games++;
            }
        }
    }
    HEARTH_ASSERT(rounds < 10 || (disk_tokens > 0 && forgets_done > 0 && yields > 0 && preemptions > 0));
    HEARTH_ASSERT(rounds < 10 || (refused > 0 && late > 0));
    printf("%llu requests were preempted for others, %llu for cells, %llu requests refused, %llu late\n",
           (unsigned long long)yields, (unsigned long long)preemptions, (unsigned long long)refused,
           (unsigned long long)late);
    printf("%llu tokens from disk, %zu of %zu forgets carried out; %d passed, 0 failed\n",
           (unsigned long long)disk_tokens, forgets_done, forgets_asked, games);
    return 0;
}
