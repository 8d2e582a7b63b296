/* What each client lost, made of the last requests: for the page, `hearth top` and `hearth why` (waste.c). */
#ifndef HEARTH_REPORT_WASTE_H
#define HEARTH_REPORT_WASTE_H

#include "report/report.h"

/* A verdict as far as it is summed up. */
struct hearth_loss {
    enum hearth_verdict_cause cause; /* HEARTH_VERDICT_COUNT: of no cause that is known */
    bool ready;                      /* its advice has an option that can be used as it stands */
    uint32_t tokens;
    double ms;
};

/* Those of one request, in their order. */
struct hearth_losses {
    bool computes; /* it asked for a turn */
    uint32_t computed_tokens;
    size_t n;
    struct hearth_loss v[HEARTH_VERDICTS_MAX];
};

/* Of a report as JSON (report.h). */
void hearth_losses_read(const json_t *report, struct hearth_losses *out);

/* A request to be summed up. Everything is borrowed; names may be NULL. */
struct hearth_waste_request {
    const char *client, *key, *session;
    const char *listed; /* the report's text */
    const struct hearth_losses *losses;
    size_t age; /* 0: the newest */
};

/* One object for all of the requests, whose order changes, and in it the costliest clients (by key, where there are
 * keys), at most `most` of them. NULL: out of memory. */
json_t *hearth_waste_json(struct hearth_waste_request *requests, size_t n, size_t most);

#endif
