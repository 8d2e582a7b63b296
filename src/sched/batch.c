/* What a batch holds. The rules stand in step.h, "Batches". */
#include "sched/step_private.h"

#include "base/assert.h"

/* Tokens from where the lane stands to its next mark or to the end of its prefill. */
static int32_t until_mark(const struct hearth_step_lane *lane) {
    int32_t end = lane->mark_count > 0 ? lane->marks[0] : lane->target;
    return end - lane->computed;
}

static double urgency(const struct hearth_step *step, const struct hearth_step_lane *lane, int64_t now_us) {
    double left = (double)(lane->target - lane->computed);
    if (lane->priority == HEARTH_CLASS_PREFETCH) {
        return left + 1e12; /* prefetches come behind all others */
    }
    double waited_s = (double)(now_us - hearth_rank_lane_us(step, lane)) / 1e6;
    return left - waited_s * step->params.ageing_tokens_per_s;
}

/* Most prefill tokens that prefetches may have in a batch; `idle`: prefetches of idle time. */
static int32_t prefetch_room(const struct hearth_step *step, bool idle) {
    if (idle) {
        const int32_t most = step->sizes.idle_tokens > 0 ? step->sizes.idle_tokens : INT32_MAX;
        return hearth_rank_others_run(step) ? 0 : most;
    }
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        if (step->lanes[i].state != HEARTH_LANE_IDLE && step->lanes[i].priority != HEARTH_CLASS_PREFETCH) {
            return step->sizes.prefetch_chunk_tokens;
        }
    }
    return step->sizes.prefetch_alone_tokens > 0 ? step->sizes.prefetch_alone_tokens : INT32_MAX;
}

/* Sum of the tokens left of all short prompts; `*count`: the number of these prompts. */
static int32_t short_left(const struct hearth_step *step, int *count) {
    int32_t all = 0;
    *count = 0;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (hearth_step_is_short(lane)) {
            all += lane->target - lane->computed;
            ++*count;
        }
    }
    return all;
}

/* Most prefill tokens in a batch that has room for `room` tokens beside the `decoding` tokens of `generating` lanes. */
static int32_t prefill_room(const struct hearth_step *step, int32_t decoding, int generating, int32_t room) {
    int prompts;
    int32_t all = short_left(step, &prompts), chunk = step->params.chunk_tokens - decoding;
    int32_t most = decoding > 0 ? step->sizes.beside_tokens : 0;
    for (uint32_t i = 0; i < step->params.lanes && decoding == 0; i++) {
        if (hearth_step_is_long(&step->lanes[i]) && !(step->lanes[i].idle && hearth_rank_others_run(step))) {
            most = step->sizes.alone_tokens;
        }
    }
    if (most > 0 && chunk > most) {
        chunk = most;
    }
    if (chunk < HEARTH_PREFILL_LEAST) {
        chunk = HEARTH_PREFILL_LEAST;
    }
    if (step->sizes.bursts && prompts > 1 && prompts > generating && all <= room && all > chunk) {
        chunk = all;
    }
    return chunk < room ? chunk : room;
}

/* Tokens left of the prompt that will be complete first; `prefetch`: prefetches count, too, but not those of idle time
 * while they stand still. */
static int32_t shortest_left(const struct hearth_step *step, bool prefetch) {
    const bool others_run = hearth_rank_others_run(step);
    int32_t shortest = INT32_MAX;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_PREFILL && (prefetch || lane->priority != HEARTH_CLASS_PREFETCH) &&
            !(lane->idle && others_run) && lane->target - lane->computed < shortest) {
            shortest = lane->target - lane->computed;
        }
    }
    return shortest;
}

int32_t hearth_step_fill(const struct hearth_step *step, int64_t now_us, int32_t *shares, bool *passed) {
    int32_t room = step->params.batch_tokens, total = 0;
    int32_t prefetch = prefetch_room(step, false), idle = prefetch_room(step, true);
    int generating = 0, prompts;
    for (uint32_t i = 0; i < step->params.lanes && room > 0; i++) {
        if (step->lanes[i].state == HEARTH_LANE_DECODE) {
            shares[i] = step->lanes[i].due < room ? step->lanes[i].due : room;
            room -= shares[i];
            total += shares[i];
            generating++;
        }
    }
    int32_t chunk = prefill_room(step, total, generating, room);
    uint64_t out = 0; /* lanes (bits) with a long prefill that is left out */
    int32_t beside = short_left(step, &prompts);
    while (chunk > 0) {
        const struct hearth_step_lane *best = NULL;
        for (uint32_t i = 0; i < step->params.lanes; i++) {
            const struct hearth_step_lane *lane = &step->lanes[i];
            if (lane->state != HEARTH_LANE_PREFILL || shares[i] > 0 || (out >> i & 1) ||
                (lane->priority == HEARTH_CLASS_PREFETCH && (lane->idle ? idle : prefetch) <= 0)) {
                continue;
            }
            if (!best || urgency(step, lane, now_us) < urgency(step, best, now_us)) {
                best = lane;
            }
        }
        if (!best) {
            break;
        }
        int32_t share = until_mark(best), left = best->target - best->computed;
        if (hearth_step_is_long(best) && step->passed < HEARTH_PASS_MOST &&
            shortest_left(step, best->priority == HEARTH_CLASS_PREFETCH) <= left / HEARTH_SHORTER_TIMES) {
            out |= UINT64_C(1) << (best - step->lanes);
            continue;
        }
        int32_t most = chunk;
        if (hearth_step_is_long(best)) { /* leaves room: short prompts would wait for its batch */
            most -= beside < chunk / 2 ? beside : chunk / 2;
        } else if (best->priority != HEARTH_CLASS_PREFETCH) {
            beside -= left;
        }
        if (share > most) {
            share = most;
        }
        if (best->priority == HEARTH_CLASS_PREFETCH) {
            int32_t *left_room = best->idle ? &idle : &prefetch;
            share = share < *left_room ? share : *left_room;
            *left_room -= share;
        }
        HEARTH_ASSERT(share > 0);
        shares[best - step->lanes] = share;
        chunk -= share;
        total += share;
    }
    *passed = out != 0;
    return total;
}
