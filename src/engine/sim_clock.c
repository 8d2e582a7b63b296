/* The sim engine's clock and its faults.
 *
 * Time is a sum of costs, which the other files add. With `real_time` they are also slept, and the clock is the real
 * one. A test sets a fault, from any thread, for the nth call of an operation. */
#include "engine/sim_parts.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <time.h>

/* ---- clock ---- */

static void sleep_ns(int64_t ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

void hearth_sim_spend_ns(struct sim *sim, double ns) {
    int64_t whole = llround(ns);
    HEARTH_ASSERT(whole >= 0);
    sim->now_ns += whole;
    if (sim->params.real_time && whole > 0) {
        sleep_ns(whole);
    }
}

int64_t hearth_sim_now_us(struct hearth_engine *engine) {
    const struct sim *sim = hearth_sim_of(engine);
    return sim->params.real_time ? hearth_clock_us() : sim->now_ns / 1000;
}

void hearth_sim_advance_us(struct hearth_engine *engine, int64_t us) {
    HEARTH_ASSERT(us >= 0);
    hearth_sim_spend_ns(hearth_sim_of(engine), (double)us * 1e3);
}

/* ---- faults ---- */

void hearth_sim_fault(struct hearth_engine *engine, enum hearth_sim_fault fault, uint32_t nth, bool every) {
    HEARTH_ASSERT((unsigned)fault < HEARTH_SIM_FAULTS);
    struct sim_fault *slot = &hearth_sim_of(engine)->faults[fault];
    slot->every = every;
    slot->nth = nth;
    slot->left = nth;
}

bool hearth_sim_fails(struct sim *sim, enum hearth_sim_fault fault) {
    struct sim_fault *f = &sim->faults[fault];
    if (f->left == 0 || --f->left > 0) {
        return false;
    }
    f->left = f->every ? f->nth : 0;
    return true;
}
