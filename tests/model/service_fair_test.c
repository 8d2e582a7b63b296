/* The service on sim under clients that never stop: everybody sends the next request when the last has ended, in
 * virtual time and from the service's own thread, so that a run repeats to the letter. Tenants share by weight; a
 * request of the least class of a tenant in debt waits no longer than sched/step.h says; a long prompt and short ones
 * do not throw each other out for good; and short ones do not wait for the long one's end. */
#include "base/assert.h"
#include "engine/sim.h"
#include "sched/service.h"
#include "sched/step.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_US 1000000
#define CLIENTS_MAX 16

struct client {
    struct arena *arena;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    size_t prompt_tokens;
    int32_t max_tokens;
    int64_t pause_us;                   /* 0: the next request at once; negative: there is none */
    int64_t sent_us, wait_us, worst_us; /* to the first token */
    uint64_t turns, generated;
    bool begun;
    bool same; /* it asks the same again and again, and finds it stored */
};

struct arena {
    struct hearth_engine *engine;
    struct hearth_service *service;
    struct client clients[CLIENTS_MAX];
    int client_count;
    int64_t until_us;
    int64_t for_us;
    uint32_t serial;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t quiet = PTHREAD_COND_INITIALIZER;
static int running;

static int64_t now_us(const struct arena *arena) {
    return arena->engine->ops->now_us(arena->engine);
}

static void deliver(void *user, struct hearth_event *event);

/* A prompt of its own: only the 200th before it begins with the same token. */
static void send_next(struct client *client) {
    struct arena *arena = client->arena;
    struct hearth_tokens prompt = {0};
    uint32_t serial = client->same ? 0 : ++arena->serial;
    for (size_t i = 0; i < client->prompt_tokens; i++) {
        uint32_t mixed = i == 0 ? serial << 7 : (uint32_t)i * 2654435761u ^ serial * 40503u;
        HEARTH_ASSERT(hearth_tokens_push(&prompt, (hearth_token)(1 + (mixed >> 7) % 200)));
    }
    struct hearth_request request = {.priority = client->priority,
                                     .tenant = client->tenant,
                                     .prompt = prompt.v,
                                     .prompt_tokens = prompt.n,
                                     .max_tokens = client->max_tokens,
                                     .speculate_off = true,
                                     .deliver = deliver,
                                     .user = client};
    hearth_sampling_default(&request.sampling);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    client->sent_us = now_us(arena);
    client->begun = false;
    HEARTH_ASSERT(hearth_service_submit(arena->service, &request, NULL) > 0);
    hearth_tokens_finish(&prompt);
}

static void deliver(void *user, struct hearth_event *event) {
    struct client *client = user;
    struct arena *arena = client->arena;
    client->generated += event->sampled_count;
    if (!client->begun && event->sampled_count > 0) {
        client->begun = true;
        client->wait_us = now_us(arena) - client->sent_us;
        client->worst_us = client->wait_us > client->worst_us ? client->wait_us : client->worst_us;
    }
    if (event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED) {
        HEARTH_ASSERT(event->type == HEARTH_EVENT_DONE);
        client->turns++;
        if (now_us(arena) < arena->until_us && client->pause_us >= 0) {
            send_next(client);
        } else {
            pthread_mutex_lock(&mutex);
            running--;
            pthread_cond_broadcast(&quiet);
            pthread_mutex_unlock(&mutex);
        }
    }
    hearth_event_destroy(event);
}

static void open_arena(struct arena *arena, uint32_t ctx_tokens, uint32_t lanes, enum hearth_engine_class class_of,
                       uint32_t page_tokens) {
    struct hearth_sim_params sim;
    struct hearth_service_params params;
    *arena = (struct arena){0};
    hearth_sim_params_default(&sim);
    hearth_service_params_default(&params);
    sim.ctx_tokens = ctx_tokens;
    sim.lanes = lanes;
    sim.parked_seqs = 1;
    sim.memory_class = class_of;
    params.page_tokens = page_tokens;
    HEARTH_ASSERT(hearth_sim_create(&sim, &arena->engine, NULL) == 0);
    HEARTH_ASSERT(hearth_service_create(arena->engine, &params, &arena->service, NULL) == 0);
}

static struct client *add_client(struct arena *arena, enum hearth_class priority, uint64_t tenant, double weight,
                                 size_t prompt_tokens, int32_t max_tokens) {
    HEARTH_ASSERT(arena->client_count < CLIENTS_MAX);
    struct client *client = &arena->clients[arena->client_count++];
    *client = (struct client){.arena = arena,
                              .priority = priority,
                              .tenant = {.id = tenant, .weight = weight},
                              .prompt_tokens = prompt_tokens,
                              .max_tokens = max_tokens};
    return client;
}

/* The first request has ended: everybody begins, at one moment of virtual time. */
static void begin(void *user, struct hearth_event *event) {
    struct arena *arena = user;
    HEARTH_ASSERT(event->type != HEARTH_EVENT_FAILED);
    if (event->type == HEARTH_EVENT_DONE) {
        arena->until_us = now_us(arena) + arena->for_us;
        for (int i = 0; i < arena->client_count; i++) {
            send_next(&arena->clients[i]);
        }
    }
    hearth_event_destroy(event);
}

/* Everybody sends for so long, and what runs then ends. */
static void play(struct arena *arena, int64_t us) {
    const hearth_token token = 1;
    struct hearth_request request = {
        .prompt = &token, .prompt_tokens = 1, .max_tokens = 1, .deliver = begin, .user = arena};
    hearth_sampling_default(&request.sampling);
    pthread_mutex_lock(&mutex);
    running = arena->client_count;
    pthread_mutex_unlock(&mutex);
    arena->for_us = us;
    HEARTH_ASSERT(hearth_service_submit(arena->service, &request, NULL) > 0);
    pthread_mutex_lock(&mutex);
    while (running > 0) {
        pthread_cond_wait(&quiet, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void close_arena(struct arena *arena) {
    hearth_service_destroy(arena->service);
    arena->engine->ops->destroy(arena->engine);
}

static void check(bool ok, const char *what, double got, double low, double high) {
    printf("%s %s: %.2f, between %.2f and %.2f\n", ok ? "ok" : "not ok", what, got, low, high);
    fflush(stdout);
    if (!ok) {
        abort();
    }
}

/* ---- tenants ---- */

static void tenants_share_by_weight(uint32_t lanes, size_t prompt_tokens, int32_t max_tokens) {
    struct arena arena;
    open_arena(&arena, 16384, lanes, HEARTH_ENGINE_PAGES, 256);
    for (int i = 0; i < 12; i++) {
        (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 1 + (uint64_t)(i % 2), i % 2 ? 3 : 1, prompt_tokens,
                         max_tokens);
    }
    play(&arena, (int64_t)1200 * SECOND_US);
    double turns[2] = {0};
    for (int i = 0; i < 12; i++) {
        turns[i % 2] += (double)arena.clients[i].turns;
    }
    double share = turns[1] / turns[0];
    check(share > 2.6 && share < 3.4, "share of the heavier tenant", share, 2.6, 3.4);
    close_arena(&arena);
}

/* A tenant that comes back after a long time has saved nothing up, and owes nothing. */
static void sleeping_saves_nothing(void) {
    struct arena arena;
    open_arena(&arena, 16384, 1, HEARTH_ENGINE_PAGES, 256);
    for (int i = 0; i < 4; i++) {
        (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 1, 1, 400, 20);
    }
    play(&arena, (int64_t)600 * SECOND_US);
    for (int i = 0; i < 4; i++) {
        arena.clients[i].turns = 0;
    }
    for (int i = 0; i < 4; i++) {
        (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 2, 1, 400, 20);
    }
    play(&arena, (int64_t)600 * SECOND_US);
    double turns[2] = {0};
    for (int i = 0; i < 8; i++) {
        turns[i / 4] += (double)arena.clients[i].turns;
    }
    double share = turns[1] / turns[0];
    check(share > 0.9 && share < 1.12, "share of who slept", share, 0.9, 1.12);
    close_arena(&arena);
}

/* ---- starvation ---- */

/* The longest wait of a tenant's first request (sched/victim.c): 40 s until no new request can come before it; then the
 * requests that are before it (here all others), each with a lane for its prompt and a slice, one after another on each
 * lane; and batches to the end. For the tenant's next request this begins anew when the first one has ended. */
static double bound_s(int others, uint32_t lanes, double prefill_s) {
    double rank_s = 10 + HEARTH_LEAD_MAX_US / 1e6, turn_s = prefill_s + HEARTH_SLICE_US / 1e6 + 1;
    return rank_s + ((double)others / lanes + 1) * turn_s;
}

static void nobody_starves(uint32_t lanes, size_t prompt_tokens, int32_t max_tokens, enum hearth_engine_class memory) {
    struct arena arena;
    open_arena(&arena, 16384, lanes, memory, 256);
    for (int i = 0; i < 8; i++) {
        (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 1 + (uint64_t)i % 2, 1, prompt_tokens, max_tokens);
    }
    /* Much work of a tenant of little weight, in the background. */
    for (int i = 0; i < 2; i++) {
        (void)add_client(&arena, HEARTH_CLASS_BACKGROUND, 3, 0.01, 700, 50);
    }
    play(&arena, (int64_t)1800 * SECOND_US);
    double most = bound_s(9, lanes, (double)(prompt_tokens > 700 ? prompt_tokens : 700) / 1000);
    for (int i = 0; i < 10; i++) {
        double worst = (double)arena.clients[i].worst_us / SECOND_US;
        double bound = i < 8 ? most : 2 * most; /* of little weight, and two of them wait */
        check(worst <= bound && arena.clients[i].turns > 0, i < 8 ? "longest wait" : "longest wait in the background",
              worst, 0, bound);
    }
    close_arena(&arena);
}

/* State that is never there when a request comes back: it has to compute everything again, and gets on all the same,
 * whatever of a better class comes meanwhile. */
static void who_loses_state_gets_on(enum hearth_engine_class memory, uint32_t page_tokens) {
    struct arena arena;
    open_arena(&arena, 16384, 1, memory, page_tokens);
    hearth_sim_fault(arena.engine, HEARTH_SIM_FAULT_PAGE_EXPORT, 1, true);
    hearth_sim_fault(arena.engine, HEARTH_SIM_FAULT_SNAPSHOT_EXPORT, 1, true);
    struct client *victim = add_client(&arena, HEARTH_CLASS_BACKGROUND, 0, 1, 8000, 10);
    (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 0, 1, 200, 20);
    play(&arena, (int64_t)600 * SECOND_US);
    double turns = (double)victim->turns;
    check(turns >= 4, "replies of the one that loses its state", turns, 4, 1000);
    close_arena(&arena);
}

/* A long conversation that needs most cells, among short ones that use the lanes without end: once it has lacked cells
 * for long enough no other is admitted, so that it gets them when the running ones have ended. */
static void a_long_conversation_gets_its_cells(enum hearth_engine_class memory) {
    struct arena arena;
    open_arena(&arena, 4096, 6, memory, 256);
    struct client *whale = add_client(&arena, HEARTH_CLASS_INTERACTIVE, 0, 1, 3000, 5);
    whale->same = true;
    for (int i = 0; i < 8; i++) {
        (void)add_client(&arena, HEARTH_CLASS_INTERACTIVE, 0, 1, 300, 60);
    }
    play(&arena, (int64_t)600 * SECOND_US);
    double worst = (double)whale->worst_us / SECOND_US, most = HEARTH_CELLS_WAIT_US / 1e6 + 25;
    check(worst <= most && whale->turns >= 10, "a long conversation's longest wait", worst, 0, most);
    close_arena(&arena);
}

/* ---- long and short ---- */

/* On one lane: a prompt of 40,000 tokens, and short ones one after another. Short ones wait for a quantum at most, not
 * for 40 s; the long one gets on all the same, and is computed once. */
static void long_and_short_share_a_lane(enum hearth_engine_class memory) {
    struct arena arena;
    open_arena(&arena, 65536, 1, memory, 256);
    struct client *whale = add_client(&arena, HEARTH_CLASS_INTERACTIVE, 0, 1, 40000, 10);
    struct client *fish = add_client(&arena, HEARTH_CLASS_INTERACTIVE, 0, 1, 200, 20);
    whale->pause_us = -1;
    play(&arena, (int64_t)70 * SECOND_US);
    double most = (HEARTH_QUANTUM_US + HEARTH_QUANTUM_MORE_US) / 1e6 + 2.5;
    double wait = (double)fish->worst_us / SECOND_US;
    check(wait <= most, "longest wait beside a long prompt", wait, 0, most);
    check(whale->turns == 1 && whale->worst_us <= (int64_t)100 * SECOND_US, "the long prompt's time",
          (double)whale->worst_us / SECOND_US, 40, 100);
    struct hearth_sim_stats sim;
    hearth_sim_stats(arena.engine, &sim);
    uint64_t least = 1 + 40000 + 9 + fish->turns * 219; /* and the request that play() begins with */
    check(sim.decoded_tokens == least, "tokens computed", (double)sim.decoded_tokens, (double)least, (double)least);
    close_arena(&arena);
}

int main(void) {
    tenants_share_by_weight(1, 500, 20);
    tenants_share_by_weight(4, 300, 100);
    tenants_share_by_weight(2, 50, 700);
    sleeping_saves_nothing();
    nobody_starves(1, 300, 30, HEARTH_ENGINE_PAGES);
    nobody_starves(2, 300, 2000, HEARTH_ENGINE_PAGES);
    nobody_starves(2, 3000, 300, HEARTH_ENGINE_PAGES_SNAPSHOT);
    nobody_starves(4, 1000, 500, HEARTH_ENGINE_PAGES);
    for (int memory = 0; memory < 4; memory++) {
        who_loses_state_gets_on((enum hearth_engine_class)memory, 256);
        who_loses_state_gets_on((enum hearth_engine_class)memory, 16384);
        long_and_short_share_a_lane((enum hearth_engine_class)memory);
        a_long_conversation_gets_its_cells((enum hearth_engine_class)memory);
    }
    printf("24 passed, 0 failed\n");
    return 0;
}
