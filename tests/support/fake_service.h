/* A service that does what it is told: it implements sched/service.h without engine or cache, so that tests decide when
 * text comes, how requests end, and see what the API asked for. One service per process. */
#ifndef HEARTH_TESTS_SUPPORT_FAKE_SERVICE_H
#define HEARTH_TESTS_SUPPORT_FAKE_SERVICE_H

#include "sched/service.h"

/* What every request from now on does. */
struct fake_plan {
    int submit_err; /* refuse at submission */
    int fail_err;   /* end with FAILED … */
    int fail_after; /* … after this many pieces; -1: before PREFILLED */
    int fail_only;  /* of the requests under this plan only the one of this number, from 1; 0: each */
    int pieces;     /* then DONE; -1: go on until cancelled */
    const char *piece;
    int wait_ms;  /* before each piece */
    bool hold;    /* nothing at all until cancelled */
    int progress; /* so many PROGRESS events before PREFILLED, when they are asked for */
    bool late;    /* DONE: the deadline cut it off */
    uint32_t preemptions, drafted_tokens, accepted_tokens; /* told at the end */
    enum hearth_finish finish;
    struct hearth_receipt receipt; /* told of every request; without prompt_tokens one that is made up */
};

struct fake_counts {
    int submitted, cancelled, ended, active;
    int reserved; /* admission slots of requests that are not submitted yet */
};

/* The last request, as it was submitted; marks, pins and stops are copies of at most this many. */
struct fake_request {
    struct hearth_sampling sampling;
    struct hearth_logit_bias bias[4];
    hearth_token prompt[65536];
    size_t prompt_tokens;
    int32_t marks[8];
    size_t mark_count;
    struct hearth_pin pins[8];
    size_t pin_count;
    int32_t max_tokens;
    char stops[4][32];
    size_t stop_count;
    bool cache_off;
    struct hearth_digest salt;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    int64_t deadline_us;
    bool progress, speculate_off;
    char grammar[256]; /* its beginning; "" when there is none */
    bool lazy, thinks;
    int32_t budget_tokens;
    hearth_token forced[64];
    size_t forced_count, script_count;
};

void fake_set_plan(const struct fake_plan *plan);
void fake_get_counts(struct fake_counts *counts);
/* The seeds of all requests since the plan was set; returns how many. */
size_t fake_seeds(uint32_t *seeds, size_t cap);
const struct fake_request *fake_last(void);
/* From now on new requests would be refused, and are worth repeating after so many seconds; 0: no longer. */
void fake_set_overloaded(uint32_t retry_after_s);

#endif
