/* The cache against the oracle: millions of random operations on the sim engine, whose output changes with any wrong
 * reuse.
 *
 * A *game* is one cache with its lanes and a handful of conversations over one system prompt, with everything about it
 * drawn at random: memory class, page size, context, lanes, budget, speeds, faults. A *step* starts a request (a new
 * turn, an edit, a branch, a truncation, a side prompt, the same again), moves one on, captures, snapshots, changes the
 * budget or clears a lane. After every step, whatever happened in it:
 *
 *   - each lane's sequence holds exactly the state of its tokens, complete;
 *   - each token sampled was the oracle's, which is what a run without a cache gives;
 *   - the tree, the heaps and the budget are in order (hearth_cache_check), and the tier holds no more than the budget;
 *   - a restore took nothing away from the store, and one that failed left an empty, usable sequence.
 *
 * In *roomy* games, where nothing has to be evicted and nothing fails, the cache is also held to what it is for: every
 * prefix that was ever captured or is live is found, full attention resumes at its end, and a capture exports no more
 * pages than the new tokens need.
 *
 * Pins are made and lapse, within half of a budget. Paths are forgotten: afterwards nothing of them is left behind the
 * place where another one goes on, in the tree, in the sequences and, when nothing fails, in the backing tier; and in
 * roomy games nothing else is gone.
 *
 * Half of the games have a backing tier: it answers late and in any order, loses items and fails, and outlives restarts
 * of the cache. With HEARTH_LAYERED they have two of them, layered (tier/layered.h). In salted games conversations take
 * turns with two salts, and are held to the same knowledge per salt.
 *
 * HEARTH_SEED repeats a run, HEARTH_MODEL_OPS sets its length in steps, HEARTH_MODEL_GAME plays only one game of it. */
#include "model/cache_game.h"

#include "cache/store.h"
#include "tier/layered.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SEED = 1, OPS = 1500000 }; /* unless the environment says otherwise */

struct totals totals;
static const struct game *layers_now; /* whose tiers are layered */

/* ---- naive knowledge ---- */

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static size_t known_prefix(const struct game *g, const struct hearth_tokens *tokens, struct hearth_digest salt) {
    size_t best = 0;
    for (size_t i = 0; i < g->known_count; i++) {
        if (!hearth_digest_equal(g->known_salt[i], salt)) {
            continue;
        }
        size_t common = hearth_tokens_common(tokens->v, tokens->n, g->known[i].v, g->known[i].n);
        best = common > best ? common : best;
    }
    return best;
}

static size_t live_prefix(const struct game *g, const struct hearth_tokens *tokens, struct hearth_digest salt) {
    size_t best = 0;
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        if (!hearth_digest_equal(g->lives[i].salt, salt)) {
            continue;
        }
        const struct hearth_tokens *live = &g->lives[i].tokens;
        size_t common = hearth_tokens_common(tokens->v, tokens->n, live->v, live->n);
        best = common > best ? common : best;
    }
    return best;
}

/* ---- capture ---- */

static uint64_t page_exports(const struct game *g) {
    struct hearth_sim_stats stats;
    hearth_sim_stats(g->engine, &stats);
    return stats.page_exports;
}

static void capture_wholly(struct game *g, struct hearth_live *live) {
    game_note_seen(g, live);
    uint64_t exports = page_exports(g);
    size_t known = g->roomy ? known_prefix(g, &live->tokens, live->salt) : 0;
    bool pending = hearth_cache_capture_pending(g->cache, live);
    size_t limit = live->tokens.n + 2, full = 0;
    enum hearth_capture state;
    while ((state = hearth_cache_capture(g->cache, live, rng_range(&g->rng, 1, 8))) != HEARTH_CAPTURE_DONE) {
        HEARTH_ASSERT(limit-- > 0);
        if (state == HEARTH_CAPTURE_FULL) { /* what is on its way arrives, or is dropped */
            HEARTH_ASSERT(g->backing != NULL && hearth_cache_wait(g->cache, 1));
            HEARTH_ASSERT(hearth_cache_poll(g->cache, 1) == 1 ||
                          g->far != NULL); /* layered: what one tier alone is told */
            limit = live->tokens.n + 2;    /* and something may have been lost */
            totals.full++;
            if (++full == 5000) {
                memory_backing_faults(g->backing, 0); /* losses that keep step with writing would go on for ever */
                if (g->far != NULL) {
                    memory_backing_faults(g->far, 0);
                }
            }
        }
    }
    HEARTH_ASSERT(!hearth_cache_capture_pending(g->cache, live));
    totals.captures += pending;
    if (g->roomy && pending && g->known_count < KNOWN_MAX) {
        size_t new_tokens = live->tokens.n - known, page = (size_t)g->params.page_tokens;
        HEARTH_ASSERT(page_exports(g) - exports <= new_tokens / page + 2);
        g->known_salt[g->known_count] = live->salt;
        HEARTH_ASSERT(hearth_tokens_assign(&g->known[g->known_count++], live->tokens.v, live->tokens.n));
    }
}

/* ---- requests ---- */

static void random_tokens(struct game *g, struct hearth_tokens *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        HEARTH_ASSERT(hearth_tokens_push(out, (hearth_token)rng_below(&g->rng, g->alphabet)));
    }
}

/* The prompt that a client sends next in a conversation. Never empty, and with room for a reply. */
static void next_prompt(struct game *g, struct hearth_tokens *history) {
    uint32_t room = g->sim.ctx_tokens * 3 / 4;
    switch (rng_below(&g->rng, 10)) {
    case 0: /* the same again, or its beginning */ break;
    case 1: /* cut back */ history->n = rng_below(&g->rng, (uint32_t)history->n + 1); break;
    case 2: /* an edit in the middle; what follows stays */
        if (history->n > 0) {
            history->v[rng_below(&g->rng, (uint32_t)history->n)] = (hearth_token)rng_below(&g->rng, g->alphabet);
        }
        break;
    case 3: /* a branch: other text from some point on */
        history->n = rng_below(&g->rng, (uint32_t)history->n + 1);
        random_tokens(g, history, 1 + rng_below(&g->rng, 40));
        break;
    case 4: { /* a side prompt, or a branch of another conversation */
        const struct hearth_tokens *from = &g->histories[rng_below(&g->rng, CONVERSATIONS)];
        if (from == history || rng_once_in(&g->rng, 2)) {
            from = &g->system;
        }
        HEARTH_ASSERT(hearth_tokens_assign(history, from->v, from->n));
        random_tokens(g, history, 1 + rng_below(&g->rng, 20));
        break;
    }
    default: /* a new turn */ random_tokens(g, history, 1 + rng_below(&g->rng, 60)); break;
    }
    if (history->n > room) {
        HEARTH_ASSERT(hearth_tokens_assign(history, g->system.v, g->system.n));
    }
    if (history->n == 0) {
        random_tokens(g, history, 1);
    }
}

static void check_plan(const struct game *g, const struct hearth_plan *plan, const struct hearth_cache_prompt *prompt) {
    int32_t limit = (int32_t)prompt->n - 1;
    HEARTH_ASSERT(plan->target >= 0 && (uint32_t)plan->target < g->sim.lanes && !g->lives[plan->target].busy);
    HEARTH_ASSERT(plan->resume >= 0 && plan->resume <= limit && plan->live_tokens <= plan->resume);
    HEARTH_ASSERT(!prompt->cache_off || plan->resume == 0);
    HEARTH_ASSERT(prompt->cache_off || plan->resume <= plan->matched);
    if (!g->roomy || prompt->cache_off) {
        return;
    }
    const struct hearth_tokens tokens = {.v = (hearth_token *)(uintptr_t)prompt->tokens, .n = prompt->n};
    size_t known = known_prefix(g, &tokens, prompt->salt), live = live_prefix(g, &tokens, prompt->salt);
    HEARTH_ASSERT(plan->matched >= (int32_t)(known > live ? known : live));
    if (plan->how == HEARTH_RESUME_STORED && hearth_caps_has_pages(&g->engine->caps)) {
        HEARTH_ASSERT(plan->live_tokens == smaller((int32_t)live, plan->resume)); /* what is live is not imported */
    }
    /* A window that could be stored whole is there for any position, but where a part of a page was forgotten. */
    if (g->windows_stay && g->roomy && g->backing == NULL && plan->reason != HEARTH_REASON_COMPUTE_CHEAPER) {
        HEARTH_ASSERT(plan->resume + g->params.page_tokens >= smaller((int32_t)known, limit));
        totals.windowed++;
        totals.windowed_exactly += plan->resume >= smaller((int32_t)known, limit);
    }
    if (g->sim.memory_class == HEARTH_ENGINE_PAGES && g->backing == NULL &&
        plan->reason != HEARTH_REASON_COMPUTE_CHEAPER) {
        HEARTH_ASSERT(plan->resume == smaller(plan->matched, limit));
    }
}

/* What is known of the lanes is what comparing them gives. */
static void check_commons(const struct game *g, const struct hearth_cache_prompt *prompt) {
    for (uint32_t i = 0; i < g->sim.lanes && !prompt->cache_off; i++) {
        HEARTH_ASSERT(g->cache->measures[g->sim.lanes + i] ==
                      hearth_live_common(&g->lives[i], prompt->tokens, prompt->n, prompt->salt));
    }
}

static void note_plan(const struct hearth_plan *plan) {
    const int32_t said[] = {
        (int32_t)plan->how,   plan->target,      plan->source,
        plan->resume,         plan->live_tokens, plan->piece_count > 0 ? plan->pieces[plan->piece_count - 1]->pos : 0,
        plan->matched,        plan->divergence,  plan->pending != NULL ? plan->pending->pos : 0,
        (int32_t)plan->reason};
    totals.plans = hearth_digest_chain(totals.plans, said, sizeof said);
}

/* Carries a plan out and checks what it left. True: the lane is ready. */
static bool restore(struct game *g, const struct hearth_plan *plan, const struct hearth_cache_prompt *prompt) {
    struct hearth_live *target = &g->lives[plan->target];
    struct hearth_cache_stats before, after;
    struct hearth_restore result;
    enum hearth_resume how = plan->how;
    int32_t resume = plan->resume;
    hearth_cache_stats(g->cache, &before);
    hearth_cache_restore(g->cache, plan, prompt, g->live_list, &result);
    hearth_cache_stats(g->cache, &after);
    if (result.failed || result.no_cells) {
        HEARTH_ASSERT(target->tokens.n == 0 && hearth_sim_intact(g->engine, target->seq, NULL, 0));
        HEARTH_ASSERT(result.failed != result.no_cells && (g->faults || result.no_cells || g->backing != NULL));
        /* What could not be restored is gone, or the next plan would choose it again. */
        HEARTH_ASSERT(!result.failed || how != HEARTH_RESUME_STORED || g->backing != NULL ||
                      after.page_bytes + after.snapshot_bytes < before.page_bytes + before.snapshot_bytes);
        totals.failures += result.failed;
        totals.no_cells += result.no_cells;
        return false;
    }
    HEARTH_ASSERT(result.resumed == resume &&
                  result.live_tokens + result.ram_tokens + result.disk_tokens + result.remote_tokens == resume);
    HEARTH_ASSERT(result.disk_tokens >= 0 && result.remote_tokens >= 0 && result.ram_tokens >= 0 &&
                  (g->backing != NULL || result.disk_tokens + result.remote_tokens == 0));
    HEARTH_ASSERT((size_t)resume == target->tokens.n);
    HEARTH_ASSERT(resume == 0 ||
                  memcmp(target->tokens.v, prompt->tokens, (size_t)resume * sizeof prompt->tokens[0]) == 0);
    HEARTH_ASSERT(hearth_sim_intact(g->engine, target->seq, prompt->tokens, (size_t)resume));
    if (g->backing == NULL) { /* loading never consumes */
        HEARTH_ASSERT(after.pages == before.pages && after.page_bytes == before.page_bytes);
        HEARTH_ASSERT(after.snapshots == before.snapshots);
    }
    totals.how[how]++;
    totals.backing_tokens += (uint64_t)(result.disk_tokens + result.remote_tokens);
    totals.resumed_tokens += (uint64_t)resume;
    return true;
}

/* Frees cells by clearing an idle lane. False: there is none. */
static bool make_room(struct game *g, int except) {
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        struct hearth_live *live = &g->lives[i];
        if ((int)i != except && !live->busy && live->tokens.n > 0) {
            if (!rng_once_in(&g->rng, 3)) {
                capture_wholly(g, live);
            }
            hearth_live_clear(g->cache, live);
            return true;
        }
    }
    return false;
}

static void step_request(struct game *g) {
    int conversation = (int)rng_below(&g->rng, CONVERSATIONS);
    struct hearth_tokens *prompt = &g->histories[conversation];
    next_prompt(g, prompt);
    bool cache_off = rng_once_in(&g->rng, 20);
    for (int attempt = 0;; attempt++) {
        static struct hearth_plan plan;
        HEARTH_ASSERT(attempt < ATTEMPTS_MAX);
        bool off = cache_off || attempt > ATTEMPTS_MAX / 2; /* as a server does when faults go on and on */
        const struct hearth_live *const *lives = (const struct hearth_live *const *)g->live_list;
        const struct hearth_cache_prompt asked = {
            .tokens = prompt->v, .n = prompt->n, .salt = game_salt(g, conversation), .cache_off = off};
        hearth_cache_own(g->cache, asked.salt, asked.salt.hi > 0 ? asked.salt.lo + 1 : 0);
        if (!hearth_cache_plan(g->cache, &asked, lives, g->sim.lanes, &plan)) {
            for (uint32_t i = 0; i < g->sim.lanes; i++) {
                HEARTH_ASSERT(g->lives[i].busy);
            }
            return;
        }
        check_plan(g, &plan, &asked);
        check_commons(g, &asked);
        note_plan(&plan);
        int32_t rest = (int32_t)prompt->n - plan.resume;
        HEARTH_ASSERT(hearth_cache_peek(g->cache, &asked, lives, g->sim.lanes) == rest);
        if (g->backing != NULL && rng_once_in(&g->rng, 4) && hearth_cache_fetch(g->cache, &plan)) {
            (void)hearth_cache_poll(g->cache, rng_below(&g->rng, 4)); /* read ahead; some of it comes later */
            continue;
        }
        if (hearth_cache_must_capture(g->cache, &plan, &g->lives[plan.target])) {
            capture_wholly(g, &g->lives[plan.target]);
            continue;
        }
        if (restore(g, &plan, &asked)) {
            struct flight *flight = &g->flights[plan.target];
            flight->active = true;
            flight->conversation = conversation;
            flight->reply_left = rng_below(&g->rng, 12);
            HEARTH_ASSERT(hearth_tokens_assign(&flight->all, prompt->v, prompt->n));
            g->lives[plan.target].busy = true;
            totals.requests++;
            totals.prompt_tokens += prompt->n;
            return;
        }
        if (!make_room(g, plan.target) && rng_once_in(&g->rng, 2)) {
            return;
        }
    }
}

/* ---- a request's way ---- */

static void land(struct game *g, int lane) {
    struct flight *flight = &g->flights[lane];
    struct hearth_tokens *history = &g->histories[flight->conversation];
    flight->active = false;
    g->lives[lane].busy = false;
    /* Usually the client goes on from the reply; sometimes it has gone elsewhere in the meantime. */
    if (!rng_once_in(&g->rng, 4)) {
        HEARTH_ASSERT(hearth_tokens_assign(history, flight->all.v, flight->all.n));
    }
}

/* Decodes what comes next of a lane's tokens. False: the lane was cleared. */
static bool advance(struct game *g, int lane, size_t n, bool output) {
    struct hearth_batch_item items[CHUNK_MAX];
    struct hearth_live *live = &g->lives[lane];
    const hearth_token *from = g->flights[lane].all.v + live->tokens.n;
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct hearth_batch_item){
            .token = from[i], .seq = live->seq, .pos = (int32_t)(live->tokens.n + i), .output = output && i + 1 == n};
    }
    for (;;) {
        int err = g->engine->ops->decode(g->engine, items, n);
        if (err == HEARTH_OK) {
            HEARTH_ASSERT(hearth_live_append(live, from, n));
            if (hearth_cache_window_due(g->cache, live) && (g->roomy || !rng_once_in(&g->rng, 8))) {
                game_note_seen(g, live);
                hearth_cache_capture_window(g->cache, live);
            }
            return true;
        }
        if (err == HEARTH_ERR_NO_CELLS && make_room(g, lane)) {
            continue;
        }
        hearth_live_clear(g->cache, live);
        land(g, lane);
        return false;
    }
}

static void step_flight(struct game *g, int lane) {
    struct flight *flight = &g->flights[lane];
    struct hearth_live *live = &g->lives[lane];
    size_t left = flight->all.n - live->tokens.n;
    HEARTH_ASSERT(left > 0);
    live->used_us = g->engine->ops->now_us(g->engine);
    if (rng_once_in(&g->rng, 40)) { /* the client goes away */
        land(g, lane);
        return;
    }
    size_t n = rng_once_in(&g->rng, 3) ? 1 + rng_below(&g->rng, CHUNK_MAX) : CHUNK_MAX;
    n = n < left ? n : left;
    if (!advance(g, lane, n, n == left)) {
        return;
    }
    if (rng_once_in(&g->rng, 4)) {
        (void)hearth_cache_snapshot(g->cache, live, (enum hearth_snapshot_kind)rng_below(&g->rng, 6));
    }
    if (n < left) {
        return;
    }
    /* hearth_cache_snapshot() decodes nothing: the output is still there. */
    hearth_token token = g->engine->ops->sample(g->engine, g->greedy, n - 1, 0, NULL);
    HEARTH_ASSERT(token == hearth_sim_oracle(g->engine, flight->all.v, flight->all.n));
    totals.tokens_sampled++;
    if (flight->reply_left == 0 || flight->all.n + 1 >= g->sim.ctx_tokens) {
        land(g, lane);
        return;
    }
    flight->reply_left--;
    HEARTH_ASSERT(hearth_tokens_push(&flight->all, token));
}

/* ---- other steps ---- */

static size_t random_budget(struct game *g) {
    if (g->roomy) {
        return (size_t)1 << 30;
    }
    return rng_once_in(&g->rng, 12) ? 0 : rng_below(&g->rng, 1u << rng_range(&g->rng, 8, 20));
}

static void step_fault(struct game *g) {
    enum hearth_sim_fault fault = (enum hearth_sim_fault)rng_below(&g->rng, HEARTH_SIM_FAULTS);
    hearth_sim_fault(g->engine, fault, rng_below(&g->rng, 6), rng_once_in(&g->rng, 4));
    shaky_ram_fail(&g->rng, rng_once_in(&g->rng, 4) ? 1 + rng_below(&g->rng, 20) : 0);
    if (g->backing != NULL) {
        memory_backing_faults(g->backing, rng_once_in(&g->rng, 3) ? 2 + rng_below(&g->rng, 40) : 0);
    }
    if (g->far != NULL) {
        memory_backing_faults(g->far, rng_once_in(&g->rng, 3) ? 2 + rng_below(&g->rng, 40) : 0);
    }
}

/* Waits as the tiers of a test do: what is under way goes on meanwhile. */
static bool wait_both(struct hearth_backing *layered, int64_t timeout_us) {
    struct hearth_backing *near = memory_backing_tier(layers_now->backing), *far = memory_backing_tier(layers_now->far);
    (void)layered;
    return near->ops->wait(near, timeout_us) || far->ops->wait(far, timeout_us);
}

/* The two tiers as one. */
static void join_layers(struct game *g) {
    static struct hearth_backing_ops ops;
    if (g->far != NULL) {
        layers_now = g;
        HEARTH_ASSERT(hearth_layered_create(memory_backing_tier(g->backing), memory_backing_tier(g->far),
                                            &g->params.backing) == HEARTH_OK);
        ops = *g->params.backing->ops;
        ops.wait = wait_both;
        g->params.backing->ops = &ops;
    }
}

static void part_layers(struct game *g) {
    if (g->far != NULL) {
        g->params.backing->ops->destroy(g->params.backing);
    }
}

/* The process ends, in order or not, and another one begins: lanes and RAM are empty, the backing tier is what it was.
 */
static void step_restart(struct game *g) {
    bool in_order = rng_once_in(&g->rng, 2);
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        if (g->flights[i].active) {
            land(g, (int)i);
        }
        if (in_order) {
            capture_wholly(g, &g->lives[i]);
        }
        hearth_live_clear(g->cache, &g->lives[i]);
    }
    bool whole = g->roomy && in_order;
    while (whole && hearth_cache_wait(g->cache, 1)) {
        (void)hearth_cache_poll(g->cache, 8);
    }
    hearth_cache_destroy(g->cache);
    HEARTH_ASSERT(g->ram->used_bytes == 0);
    part_layers(g);
    memory_backing_restart(g->backing);
    if (g->far != NULL) {
        memory_backing_restart(g->far);
    }
    join_layers(g);
    HEARTH_ASSERT(hearth_cache_create(g->engine, g->ram, &g->params, &g->cache, NULL) == HEARTH_OK);
    size_t kept = 0; /* what was captured, long enough and written is known again */
    for (size_t i = 0; i < g->known_count; i++) {
        if (whole && g->known[i].n >= (size_t)g->params.backing_min_tokens) {
            struct hearth_tokens tokens = g->known[i];
            g->known[i] = (struct hearth_tokens){0};
            g->known_salt[kept] = g->known_salt[i];
            g->known[kept++] = tokens;
        } else {
            hearth_tokens_finish(&g->known[i]);
        }
    }
    g->known_count = kept;
    if (whole) {
        game_find_all(g);
    }
    totals.restarts++;
}

static void step(struct game *g) {
    int lane = (int)rng_below(&g->rng, g->sim.lanes);
    struct hearth_live *live = &g->lives[lane];
    uint32_t what = rng_below(&g->rng, 100);
    if (g->backing != NULL && rng_once_in(&g->rng, 3)) {
        (void)hearth_cache_poll(g->cache, rng_below(&g->rng, 20));
    }
    if (g->backing != NULL && rng_once_in(&g->rng, 150)) {
        step_restart(g);
    } else if (rng_once_in(&g->rng, 30)) {
        game_pin(g);
    } else if (rng_once_in(&g->rng, 60)) {
        game_forget(g);
    } else if (what < 70 && g->flights[lane].active) {
        step_flight(g, lane);
    } else if (what < 80) {
        step_request(g);
    } else if (what < 92) { /* idle time: a slice of a capture, of a busy lane too */
        game_note_seen(g, live);
        int pages = rng_range(&g->rng, 1, 8);
        bool ahead = live->busy && rng_once_in(&g->rng, 2);
        ahead ? hearth_cache_capture_ahead(g->cache, live, pages) : (void)hearth_cache_capture(g->cache, live, pages);
    } else if (what < 95) {
        if (!live->busy) {
            capture_wholly(g, live);
        }
    } else if (what < 96) {
        hearth_cache_learn_prefill(g->cache, rng_range(&g->rng, 1, 2000), rng_range(&g->rng, 0, 1000000));
    } else if (what < 97 && !g->roomy) {
        hearth_cache_set_budget(g->cache, random_budget(g), 0);
    } else if (what < 98 && !live->busy) {
        hearth_live_clear(g->cache, live);
    } else if (g->faults) {
        step_fault(g);
    }
}

static void check(struct game *g) {
    struct hearth_cache_stats stats;
    hearth_cache_check(g->cache);
    hearth_cache_stats(g->cache, &stats);
    HEARTH_ASSERT(g->ram->used_bytes <= stats.page_bytes + stats.snapshot_bytes);
    HEARTH_ASSERT(!g->roomy || g->backing != NULL || stats.evicted_pages + stats.evicted_snapshots == 0);
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        const struct hearth_live *live = &g->lives[i];
        HEARTH_ASSERT(hearth_sim_intact(g->engine, live->seq, live->tokens.v, live->tokens.n));
        HEARTH_ASSERT(live->busy == g->flights[i].active);
    }
}

/* ---- games ---- */
static uint32_t pick(struct rng *rng, const uint32_t *from, uint32_t count) {
    return from[rng_below(rng, count)];
}

static void deal(struct game *g) {
    static const uint32_t pages[] = {1, 2, 3, 7, 16, 64, 256, 512}, contexts[] = {48, 200, 512, 1024};
    struct rng *rng = &g->rng;
    hearth_sim_params_default(&g->sim);
    g->sim.memory_class = (enum hearth_engine_class)rng_below(rng, 4);
    g->sim.ctx_tokens = pick(rng, contexts, 4);
    g->sim.lanes = 1 + rng_below(rng, LANES_MAX);
    g->sim.rewind_tokens = rng_once_in(rng, 2) ? rng_below(rng, 64) : 0;
    g->sim.snapshot_bytes = 64 + rng_below(rng, 400);
    g->sim.prefill_tokens_per_s = rng_once_in(rng, 4) ? 1e7 : 1000;
    g->sim.seed = rng_next(rng);
    g->roomy = rng_once_in(rng, 4);
    g->faults = !g->roomy && rng_once_in(rng, 2);
    g->salted = rng_once_in(rng, 4);
    g->alphabet = 1 + rng_below(rng, 6);
    g->params.page_tokens = (int32_t)pick(rng, pages, 8);
    g->params.budget_bytes = random_budget(g);
    g->params.share = g->salted ? 0.6 : 0;
    if (rng_once_in(rng, 2)) {
        g->backing = memory_backing_create(rng);
        g->params.backing = memory_backing_tier(g->backing);
        g->params.backing_min_tokens = rng_once_in(rng, 2) ? 0 : rng_range(rng, 0, 60);
        g->far = getenv("HEARTH_LAYERED") != NULL ? memory_backing_create(rng) : NULL;
        join_layers(g);
    }
}

/* Half of the games that can have a window; in some of them it is held for long enough to be stored whole, as a cache
 * of windows that has room for what is computed at once does. Numbers of its own: other games stay what they were. */
static void deal_window(struct game *g) {
    static const uint32_t windows[] = {1, 3, 17, 60, 130, 300};
    struct rng own = {g->rng.state ^ 0x57494E}, *rng = &own;
    if (g->sim.memory_class != HEARTH_ENGINE_PAGES_SNAPSHOT || rng_once_in(rng, 2)) {
        return;
    }
    g->sim.window_tokens = pick(rng, windows, 6);
    g->windows_stay = rng_once_in(rng, 2) && g->params.page_tokens >= (int32_t)g->sim.window_tokens / 40;
    if (g->windows_stay) {
        g->sim.rewind_tokens = CHUNK_MAX + (uint32_t)g->params.page_tokens;
    }
}

static void play(struct game *g, uint64_t steps) {
    struct hearth_sampling sampling;
    deal(g);
    deal_window(g);
    shaky_ram_fail(&g->rng, 0);
    HEARTH_ASSERT(hearth_sim_create(&g->sim, &g->engine, NULL) == HEARTH_OK && (g->ram = hearth_ram_create()) != NULL);
    HEARTH_ASSERT(hearth_cache_create(g->engine, g->ram, &g->params, &g->cache, NULL) == HEARTH_OK);
    hearth_sampling_default(&sampling);
    sampling.temperature = 0.0f;
    HEARTH_ASSERT((g->greedy = g->engine->ops->sampler_create(g->engine, &sampling, NULL)) != NULL);
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        hearth_live_init(&g->lives[i], (int32_t)i);
        g->live_list[i] = &g->lives[i];
    }
    random_tokens(g, &g->system, rng_below(&g->rng, g->sim.ctx_tokens / 3));
    for (g->step = 0; g->step < steps; g->step++) {
        step(g);
        check(g);
    }
    struct hearth_cache_stats stats;
    hearth_cache_stats(g->cache, &stats);
    totals.evicted += stats.evicted_pages + stats.evicted_snapshots;
    totals.copies += stats.copies;
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        hearth_live_finish(g->cache, &g->lives[i]);
        hearth_tokens_finish(&g->flights[i].all);
    }
    hearth_cache_destroy(g->cache);
    part_layers(g);
    memory_backing_destroy(g->backing);
    memory_backing_destroy(g->far);
    HEARTH_ASSERT(g->ram->used_bytes == 0); /* nothing was lost track of */
    hearth_ram_destroy(g->ram);
    g->engine->ops->sampler_destroy(g->engine, g->greedy);
    g->engine->ops->destroy(g->engine);
    hearth_tokens_finish(&g->system);
    for (int i = 0; i < CONVERSATIONS; i++) {
        hearth_tokens_finish(&g->histories[i]);
    }
    for (size_t i = 0; i < g->known_count; i++) {
        hearth_tokens_finish(&g->known[i]);
    }
    for (size_t i = 0; i < g->seen_count; i++) {
        hearth_tokens_finish(&g->seen[i]);
    }
}

static const struct game *volatile game_now;
static volatile uint64_t seed_now;

/* The last words of a failure say how to come back to it. */
static void on_abort(int signal_number) {
    const struct game *g = game_now;
    (void)signal(signal_number, SIG_DFL);
    if (g != NULL) {
        dprintf(STDERR_FILENO,
                "in HEARTH_SEED=%llu HEARTH_MODEL_GAME=%llu, step %llu: %s, page %d, ctx %u, %u lanes, "
                "%s, %s, %s\n",
                (unsigned long long)seed_now, (unsigned long long)g->number, (unsigned long long)g->step,
                hearth_engine_class_text(g->sim.memory_class), (int)g->params.page_tokens, g->sim.ctx_tokens,
                g->sim.lanes, g->roomy ? "roomy" : "tight", g->faults ? "faults" : "no faults",
                g->backing != NULL ? "backing" : "RAM");
    }
}

/* The plans of a whole run are those that HEARTH_PLANS (tests/golden/plans.digest) has the digest of; with HEARTH_WRITE
 * the file gets it. */
static void check_plans(const char *plans, bool whole) {
    const char *path = getenv("HEARTH_PLANS");
    char written[64] = "";
    if (path == NULL || !whole) {
        return;
    }
    FILE *file = fopen(path, getenv("HEARTH_WRITE") != NULL ? "w" : "r");
    HEARTH_ASSERT(file != NULL);
    if (getenv("HEARTH_WRITE") != NULL) {
        fprintf(file, "%s\n", plans);
    } else {
        HEARTH_ASSERT(fscanf(file, "%63s", written) == 1);
        if (strcmp(written, plans) != 0) {
            fprintf(stderr, "the plans are others than those of %s, which says %s\n", path, written);
            exit(1);
        }
    }
    fclose(file);
}

int main(void) {
    const uint64_t seed = seed_announced(SEED), all = env_number("HEARTH_MODEL_OPS", OPS);
    seed_now = seed;
    (void)signal(SIGABRT, on_abort);
    uint64_t steps = all;
    uint64_t only = env_number("HEARTH_MODEL_GAME", UINT64_MAX);
    for (uint64_t number = 0; steps > 0; number++) {
        uint64_t now = steps < STEPS_PER_GAME ? steps : STEPS_PER_GAME;
        steps -= now;
        if (only != UINT64_MAX && number != only) {
            continue;
        }
        struct game *g = calloc(1, sizeof *g);
        HEARTH_ASSERT(g != NULL);
        g->rng.state = seed * 1000003 + number;
        g->number = number;
        game_now = g;
        play(g, now);
        free(g);
    }
    printf("%llu requests, %llu prompt tokens of which %llu were resumed, %llu tokens sampled, %llu captures, "
           "%llu evictions, %llu failed restores, %llu without cells\n",
           (unsigned long long)totals.requests, (unsigned long long)totals.prompt_tokens,
           (unsigned long long)totals.resumed_tokens, (unsigned long long)totals.tokens_sampled,
           (unsigned long long)totals.captures, (unsigned long long)totals.evicted, (unsigned long long)totals.failures,
           (unsigned long long)totals.no_cells);
    printf("%llu tokens read from afar, %llu restarts, %llu copies at the end, %llu waits for writing\n",
           (unsigned long long)totals.backing_tokens, (unsigned long long)totals.restarts,
           (unsigned long long)totals.copies, (unsigned long long)totals.full);
    printf("%llu pins, %llu forgets of %llu tokens\n", (unsigned long long)totals.pinned,
           (unsigned long long)totals.forgets, (unsigned long long)totals.forgotten_tokens);
    char plans[33];
    printf("windows: %llu plans, %llu of them at the token\n", (unsigned long long)totals.windowed,
           (unsigned long long)totals.windowed_exactly);
    hearth_digest_hex(totals.plans, plans);
    printf("all plans: %s\n", plans);
    check_plans(plans, seed == SEED && only == UINT64_MAX && all == OPS);
#define X(name, text) printf("  %s: %llu\n", text, (unsigned long long)totals.how[HEARTH_RESUME_##name]);
    HEARTH_RESUME_TABLE(X)
#undef X
    return 0;
}
