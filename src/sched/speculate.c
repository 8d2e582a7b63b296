/* Speculation: how many drafted tokens to compute.
 *
 * A draft is better the longer the phrase that it follows, so acceptance rates are learned by this length. They are
 * learned from drafts that were computed, and also from drafts that were not, which are compared with what was
 * sampled. A task starts with the rates of all tasks, and forgets them as it learns its own.
 *
 * How many tokens to compute: the number, over all lanes, that promises the most accepted tokens per time,
 *
 *     (lanes + sum of the probabilities that a drafted token is accepted) / (T(tokens) + costs of going back)
 *
 * T is the pace's (pace.h). Tokens are added in the order of their probabilities, so one pass finds the best number.
 * It must beat computing no draft by GAIN_MIN. As long as no batch of that size has been measured, one token more is
 * taken to cost as much as a token of a prompt. That is right where arithmetic limits the speed, and too much where
 * memory does. Now and then a draft is computed although it does not seem worth it, in case what is known of times is
 * out of date.
 *
 * Invariants: a lane that does not decode computes no draft; a lane's due and drafted tokens fit into max_tokens,
 * the context, and the outputs of a batch. */
#include "sched/speculate.h"

#include "base/clock.h"
#include "sched/service_internal.h"

#define INDEX_SLICE 8192 /* positions indexed per batch, which takes some hundred microseconds */
#define RATE_DECAY 0.97F /* a rate remembers some thirty guesses */
/* Times are noisy, and the best of many numbers is the one that looks too good. A smaller value computes drafts that
 * gain nothing; a larger one misses drafts that gain. */
#define GAIN_MIN 1.15
/* In batches. Without a probe, a size that was once too slow would never be tried again. A probe of three times a
 * batch's cost takes less than 1 % of the time. */
#define PROBE_EVERY 400

_Static_assert(sizeof((struct hearth_speculator){0}.guesses) / sizeof(struct hearth_guess) == HEARTH_LANES_MAX,
               "a guess for every lane");

/* ---- rates ---- */

static int grade_of(int match) {
    static const int least[HEARTH_GUESS_GRADES] = {3, 4, 5, 7, 10, 15, 24};
    int grade = 0;
    while (grade + 1 < HEARTH_GUESS_GRADES && match >= least[grade + 1]) {
        grade++;
    }
    return grade;
}

static void rate_learn(struct hearth_guess_rates *rates, int grade, bool right) {
    rates->right[grade] = rates->right[grade] * RATE_DECAY + (right ? 1.0F : 0.0F);
    rates->asked[grade] = rates->asked[grade] * RATE_DECAY + 1.0F;
}

/* The probability that the token after a phrase of this length is guessed right. */
static double rate_of(const struct hearth_task *task, int match) {
    const int grade = grade_of(match);
    return (double)(task->spec.rates.right[grade] / task->spec.rates.asked[grade]);
}

void hearth_speculate_init(struct hearth_service *service) {
    service->spec.rates = (struct hearth_guess_rates){.right = {0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.8F, 0.85F},
                                                      .asked = {1, 1, 1, 1, 1, 1, 1}};
}

bool hearth_speculate_observe(struct hearth_service *service, struct hearth_task *task, int lane, int at,
                              hearth_token token) {
    const struct hearth_guess *guess = &service->spec.guesses[lane];
    if (at >= guess->count) {
        return false;
    }
    bool right = guess->tokens[at] == token;
    rate_learn(&task->spec.rates, grade_of(guess->match + at), right);
    rate_learn(&service->spec.rates, grade_of(guess->match + at), right);
    return right;
}

/* ---- guesses ---- */

/* Most tokens that may be guessed for a task now. */
static int32_t task_room(const struct hearth_service *service, const struct hearth_task *task) {
    const struct hearth_request *request = &task->request;
    if (request->speculate_off || request->script_count > 0 || request->max_tokens == 0 || !task->prefilled) {
        return 0;
    }
    int64_t room = service->params.draft_tokens;
    int64_t context = (int64_t)service->engine->caps.ctx_tokens - (int64_t)task->tokens.n - 1;
    int64_t left = (int64_t)request->max_tokens - task->generated - 1;
    room = context < room ? context : room;
    room = request->max_tokens > 0 && left < room ? left : room;
    return room > 0 ? (int32_t)room : 0;
}

/* Tokens that the next batch computes in any case for a generating lane: the last one, and those behind a checkpoint to
 * which the lane was cut back. */
static int32_t due_tokens(const struct hearth_service *service, int lane) {
    return (int32_t)(service->on_lane[lane]->tokens.n - service->lives[lane].tokens.n);
}

static void guess_make(struct hearth_service *service, struct hearth_task *task, int32_t due,
                       struct hearth_guess *guess) {
    int32_t room = task_room(service, task);
    if (room > 1 + HEARTH_DRAFT_MAX - due) { /* up to there a batch is exact, and cutting back is possible */
        room = 1 + HEARTH_DRAFT_MAX - due;
    }
    guess->count = guess->ahead = 0;
    if (room > 0 && hearth_draft_index(&task->spec.index, task->tokens.v, task->tokens.n, INDEX_SLICE)) {
        guess->count = (int)hearth_draft_find(&task->spec.index, task->tokens.v, task->tokens.n, guess->tokens,
                                              (size_t)room, &guess->match);
    }
}

/* ---- how many ---- */

struct offer {
    int lane;
    double next;  /* probability that the next guessed token is kept */
    double whole; /* probability that all guessed tokens so far are kept */
    double kept;  /* expected number of kept tokens */
    int taken;
};

struct decision {
    struct offer offers[HEARTH_LANES_MAX];
    int count;
    int lanes;      /* generating lanes */
    int32_t tokens; /* due tokens */
    int32_t room;   /* room for guessed tokens */
};

/* Expected time of a batch; `cheap`: as if another token cost nothing. */
static double batch_us(const struct hearth_service *service, const struct decision *decision, int32_t ahead,
                       bool cheap) {
    double least = hearth_pace_decode_us(&service->pace, decision->tokens);
    if (least <= 0 || cheap) {
        return least > 0 ? least : 0;
    }
    double us = hearth_pace_decode_us(&service->pace, decision->tokens + ahead);
    return us > 0 ? us : least + ahead * hearth_pace_prefill_us(&service->pace);
}

/* Expected cost of cutting back all lanes that have guesses. */
static double returns_us(const struct hearth_service *service, const struct decision *decision, double token_us) {
    double us = 0;
    for (int i = 0; i < decision->count; i++) {
        const struct offer *offer = &decision->offers[i];
        if (offer->taken == 0 || !hearth_checkpoint_needed(&service->engine->caps, offer->taken)) {
            continue;
        }
        const struct hearth_live *live = &service->lives[offer->lane];
        bool there = service->spec.guesses[offer->lane].checkpoint.pos == (int32_t)live->tokens.n;
        us += there ? 0 : service->spec.take_us;
        double again = due_tokens(service, offer->lane) + offer->kept; /* computed again after cutting back */
        us += (1 - offer->whole) * (service->spec.return_us + again * token_us);
    }
    return us;
}

/* Adds the guessed token that is kept most probably. False: none is left. */
static bool take_next(const struct hearth_service *service, struct decision *decision) {
    struct offer *best = NULL;
    for (int i = 0; i < decision->count; i++) {
        struct offer *offer = &decision->offers[i];
        if (offer->taken < service->spec.guesses[offer->lane].count && (!best || offer->next > best->next)) {
            best = offer;
        }
    }
    if (!best) {
        return false;
    }
    best->taken++;
    best->whole = best->next;
    best->kept += best->whole;
    best->next =
        best->whole * rate_of(service->on_lane[best->lane], service->spec.guesses[best->lane].match + best->taken);
    return true;
}

static void offers_reset(const struct hearth_service *service, struct decision *decision) {
    for (int i = 0; i < decision->count; i++) {
        int lane = decision->offers[i].lane;
        decision->offers[i] = (struct offer){
            .lane = lane, .whole = 1, .next = rate_of(service->on_lane[lane], service->spec.guesses[lane].match)};
    }
}

/* Fills `ahead` of the guesses with the numbers that pay best. False: it is best to compute no guess. */
static bool choose(struct hearth_service *service, struct decision *decision, bool cheap) {
    double alone_us = batch_us(service, decision, 0, cheap);
    if (alone_us <= 0) {
        return false;
    }
    offers_reset(service, decision);
    double best = GAIN_MIN * decision->lanes / alone_us, kept;
    bool any = false;
    for (int32_t ahead = 1; ahead <= decision->room; ahead++) {
        if (!take_next(service, decision)) {
            break;
        }
        kept = decision->lanes;
        for (int i = 0; i < decision->count; i++) {
            kept += decision->offers[i].kept;
        }
        double us = batch_us(service, decision, ahead, cheap);
        double rate = kept / (us + returns_us(service, decision, (us - alone_us) / ahead));
        if (rate <= best) {
            continue;
        }
        best = rate;
        any = true;
        for (int i = 0; i < decision->count; i++) {
            service->spec.guesses[decision->offers[i].lane].ahead = decision->offers[i].taken;
        }
    }
    return any;
}

/* Adds as many guessed tokens as fit, one of each lane in turn. */
static void take_all(struct hearth_service *service, const struct decision *decision) {
    int32_t room = decision->room;
    for (int k = 1; k <= HEARTH_DRAFT_MAX; k++) {
        for (int i = 0; i < decision->count && room > 0; i++) {
            struct hearth_guess *guess = &service->spec.guesses[decision->offers[i].lane];
            if (guess->count < k) {
                continue;
            }
            guess->ahead = k;
            room--;
        }
    }
}

/* Decides how much of each lane's guess is computed. Now and then a guess is tried that would pay only if it cost
 * nothing, so that the measured costs stay up to date. */
static void decide(struct hearth_service *service, struct decision *decision) {
    if (service->params.speculate == HEARTH_SPECULATE_ON) {
        take_all(service, decision);
        return;
    }
    if (choose(service, decision, false) ||
        (++service->spec.since_probe >= PROBE_EVERY && choose(service, decision, true))) {
        service->spec.since_probe = 0;
    }
}

void hearth_speculate_plan(struct hearth_service *service) {
    const struct hearth_caps *caps = &service->engine->caps;
    enum hearth_speculate speculate = service->params.speculate;
    if (speculate == HEARTH_SPECULATE_OFF || !caps->cache_ok ||
        (speculate == HEARTH_SPECULATE_AUTO && !caps->batch_exact)) {
        return;
    }
    struct decision decision = {0};
    bool prefills = false;
    for (uint32_t i = 0; i < service->lanes; i++) {
        struct hearth_guess *guess = &service->spec.guesses[i];
        guess->count = guess->ahead = 0;
        prefills = prefills || hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_PREFILL;
        if (hearth_step_lane(service->step, (int)i)->state != HEARTH_LANE_DECODE) {
            continue;
        }
        int32_t due = due_tokens(service, (int)i);
        guess_make(service, service->on_lane[i], due, guess);
        decision.lanes++;
        decision.tokens += due;
        if (guess->count > 0) {
            decision.offers[decision.count++].lane = (int)i;
        }
    }
    int32_t outputs = (int32_t)caps->outputs - (int32_t)service->lanes;
    decision.room = (int32_t)caps->batch_tokens - decision.tokens - (prefills ? HEARTH_PREFILL_LEAST : 0);
    decision.room = outputs < decision.room ? outputs : decision.room;
    if (decision.count > 0 && decision.room > 0) {
        decide(service, &decision);
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_DECODE) {
            hearth_step_due(service->step, (int)i, due_tokens(service, (int)i) + service->spec.guesses[i].ahead);
        }
    }
}

/* ---- there and back ---- */

static void learn_us(double *value, int64_t us) {
    *value = *value > 0 ? *value + 0.2 * ((double)us - *value) : (double)us;
}

void hearth_speculate_prepare(struct hearth_service *service, int lane) {
    struct hearth_guess *guess = &service->spec.guesses[lane];
    const struct hearth_live *live = &service->lives[lane];
    int32_t n = (int32_t)live->tokens.n;
    if (guess->ahead == 0 || !hearth_checkpoint_needed(&service->engine->caps, guess->ahead) ||
        guess->checkpoint.pos == n) {
        return;
    }
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    if (hearth_checkpoint_take(&guess->checkpoint, service->engine, live->seq, n)) {
        guess->ahead = 0;
    }
    service->told_us += hearth_clock_us() - real_us;
    learn_us(&service->spec.take_us, hearth_service_now_us(service) - start_us);
}

bool hearth_speculate_drop(struct hearth_service *service) {
    bool any = false;
    for (uint32_t i = 0; i < service->lanes; i++) {
        struct hearth_guess *guess = &service->spec.guesses[i];
        if (guess->ahead == 0) {
            continue;
        }
        any = true;
        guess->count = guess->ahead = 0;
        if (hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_DECODE) {
            hearth_step_due(service->step, (int)i, due_tokens(service, (int)i));
        }
    }
    return any;
}

int32_t hearth_speculate_return(struct hearth_service *service, int lane, int32_t end, int32_t n) {
    if (n == end) {
        return n;
    }
    const struct hearth_guess *guess = &service->spec.guesses[lane];
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    int32_t pos = hearth_checkpoint_return(&guess->checkpoint, service->engine, service->lives[lane].seq, end, n);
    service->told_us += hearth_clock_us() - real_us;
    if (guess->checkpoint.pos > 0 && pos == guess->checkpoint.pos) {
        learn_us(&service->spec.return_us, hearth_service_now_us(service) - start_us);
    }
    return pos;
}

void hearth_speculate_finish(struct hearth_service *service) {
    for (size_t i = 0; i < HEARTH_LANES_MAX; i++) {
        hearth_checkpoint_finish(&service->spec.guesses[i].checkpoint);
    }
}
