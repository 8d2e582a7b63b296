/* One run over several boxes.
 *
 * Events come in the order of their times: a request arrives, a reply ends, something is lost or returns. A request is
 * carried out when it arrives: its box's clock is set to that time, or to when the request before it was restored, goes
 * on by what seeking, reading and importing take, then by what computing takes when the box has computed what came
 * before. So a box reads for one request while it computes another, and for one after the other. What a request
 * changes in the caches is there for the next one to arrive, also where it would have come a moment too late on a
 * clock.
 *
 * A request whose box is lost before its reply has ended comes again at that time, at another box.
 *
 * Invariant: a request of a conversation is in the heap only when the one before it is over. */
#include "replay/fleet.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A box knows of so many times as many of the store's pages as its RAM has room for; of the rest it asks again. So what
 * a run takes of memory does not grow with the boxes that each conversation was on. */
#define KNOWN_TIMES 2

enum fleet_event_kind { FLEET_ENDS, FLEET_RETURNS, FLEET_LOST, FLEET_ARRIVES }; /* in this order at one time */

struct fleet_event {
    int64_t at_us;
    enum fleet_event_kind kind;
    uint32_t which;   /* request, box, or loss */
    int64_t since_us; /* ARRIVES: TTFT counts from here */
};

struct fleet_box {
    struct hearth_hollow hollow;
    struct hearth_ram *ram;
    struct hearth_cache *cache;
    struct hearth_live live;
    int64_t restored_us; /* what has come is restored by then */
    int64_t free_us;     /* and computed */
};

struct fleet {
    const struct hearth_trace *trace;
    const struct hearth_fleet_params *params;
    struct hearth_fleet_result *result;
    struct hearth_sim_store *store;
    struct hearth_router router;
    struct fleet_box *boxes;
    uint32_t *next;             /* of each request: the next one of its conversation, or 0 */
    int64_t *late_us;           /* of each conversation: how far it is behind the trace */
    struct fleet_event *events; /* a heap */
    size_t event_count, event_cap;
    struct hearth_plan plan;
    struct hearth_tokens tokens;
    float *times, *after; /* in seconds */
    size_t time_count, after_count;
    double prefill_s;
    int64_t end_us;
};

/* ---- events ---- */

static bool sooner(const struct fleet_event *a, const struct fleet_event *b) {
    if (a->at_us != b->at_us) {
        return a->at_us < b->at_us;
    }
    return a->kind != b->kind ? a->kind < b->kind : a->which < b->which;
}

static bool add_event(struct fleet *fleet, struct fleet_event event) {
    if (!HEARTH_BUF_ROOM(fleet->events, fleet->event_count, fleet->event_cap)) {
        return false;
    }
    struct fleet_event *events = fleet->events;
    size_t at = fleet->event_count++;
    for (; at > 0 && sooner(&event, &events[(at - 1) / 2]); at = (at - 1) / 2) {
        events[at] = events[(at - 1) / 2];
    }
    events[at] = event;
    return true;
}

static struct fleet_event next_event(struct fleet *fleet) {
    struct fleet_event *events = fleet->events;
    const struct fleet_event first = events[0], last = events[--fleet->event_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < fleet->event_count; at = child) {
        child += child + 1 < fleet->event_count && sooner(&events[child + 1], &events[child]);
        if (!sooner(&events[child], &last)) {
            break;
        }
        events[at] = events[child];
    }
    events[at] = last;
    return first;
}

/* ---- boxes ---- */

static void close_box(struct fleet *fleet, uint32_t number) {
    struct fleet_box *box = &fleet->boxes[number];
    if (box->cache) {
        hearth_live_finish(box->cache, &box->live);
        hearth_cache_destroy(box->cache);
        box->cache = NULL;
    }
    if (box->ram) {
        hearth_ram_destroy(box->ram);
        box->ram = NULL;
    }
    hearth_hollow_finish(&box->hollow);
}

static int open_box(struct fleet *fleet, uint32_t number, int64_t now_us, struct hearth_errmsg *msg) {
    struct fleet_box *box = &fleet->boxes[number];
    const struct hearth_replay_params *machine = &fleet->params->machine;
    const size_t block_bytes = hearth_replay_block_bytes(machine, fleet->trace);
    *box = (struct fleet_box){.ram = hearth_ram_create(), .free_us = now_us};
    hearth_live_init(&box->live, 0);
    if (!box->ram ||
        !hearth_hollow_init(&box->hollow, 1, block_bytes, machine->snapshot_bytes, 1e6 / machine->import_bytes_per_s)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a box");
    }
    box->ram->hollow = true;
    box->hollow.now_us = now_us;
    const struct hearth_cache_params params = {
        .page_tokens = hearth_replay_page_blocks(machine, fleet->trace),
        .budget_bytes = machine->ram_bytes,
        .policy = machine->policy,
        .backing = fleet->store ? hearth_sim_store_tier(fleet->store, number, &box->hollow.now_us) : NULL,
        .observer = hearth_router_observer(&fleet->router, number)};
    const int err = hearth_cache_create(&box->hollow.base, box->ram, &params, &box->cache, msg);
    if (err == HEARTH_OK) {
        hearth_replay_teach(box->cache, machine, fleet->trace);
    }
    return err;
}

/* The first loss of the box behind `from_us`, or INT64_MAX. */
static int64_t lost_after(const struct fleet *fleet, uint32_t box, int64_t from_us) {
    int64_t first_us = INT64_MAX;
    for (size_t i = 0; i < fleet->params->loss_count; i++) {
        const struct hearth_fleet_loss *loss = &fleet->params->losses[i];
        if (loss->box == box && loss->at_us > from_us && loss->at_us < first_us) {
            first_us = loss->at_us;
        }
    }
    return first_us;
}

static void lose(struct fleet *fleet, const struct hearth_fleet_loss *loss) {
    if (loss->box == HEARTH_FLEET_STORE) {
        hearth_sim_store_lose(fleet->store, loss->at_us);
        return;
    }
    fleet->router.box[loss->box].down = true;
    close_box(fleet, loss->box);
    if (fleet->store) {
        hearth_sim_store_lose_box(fleet->store, loss->box, loss->at_us);
    }
    hearth_router_forget(&fleet->router, loss->box);
}

static int take_back(struct fleet *fleet, const struct hearth_fleet_loss *loss, struct hearth_errmsg *msg) {
    if (loss->box == HEARTH_FLEET_STORE) {
        hearth_sim_store_return(fleet->store);
        return HEARTH_OK;
    }
    fleet->router.box[loss->box].down = false;
    return open_box(fleet, loss->box, loss->at_us + loss->lasts_us, msg);
}

/* ---- a request ---- */

/* Plans; what is not here is asked for first. */
static bool make_plan(struct fleet *fleet, struct fleet_box *box, const struct hearth_trace_request *request,
                      const struct hearth_cache_prompt *prompt) {
    const struct hearth_live *const lives[] = {&box->live};
    (void)hearth_cache_poll(box->cache, SIZE_MAX);
    if (!hearth_cache_plan(box->cache, prompt, lives, 1, &fleet->plan)) {
        return false;
    }
    const int32_t rest = request->prompt_tokens - fleet->plan.resume * fleet->trace->block_tokens;
    const uint64_t ticket = rest > 1 ? hearth_cache_seek(box->cache, prompt, fleet->plan.resume) : 0;
    while (ticket > 0 && !hearth_cache_sought(box->cache, ticket)) {
        if (hearth_cache_poll(box->cache, 1) == 0 && !hearth_cache_wait(box->cache, HEARTH_BACKING_WAIT_US)) {
            break;
        }
    }
    return ticket == 0 || hearth_cache_plan(box->cache, prompt, lives, 1, &fleet->plan);
}

/* The request begins at the box's clock. *computed: tokens that are left to compute. */
static bool restore(struct fleet *fleet, struct fleet_box *box, const struct hearth_trace_request *request,
                    int32_t *computed) {
    struct hearth_live *lives[] = {&box->live};
    const struct hearth_cache_prompt prompt = {.tokens = fleet->tokens.v, .n = fleet->tokens.n};
    struct hearth_restore restored;
    if (!make_plan(fleet, box, request, &prompt)) {
        return false;
    }
    hearth_cache_restore(box->cache, &fleet->plan, &prompt, lives, &restored);
    while (restored.failed) {
        if (!hearth_cache_plan(box->cache, &prompt, (const struct hearth_live *const *)lives, 1, &fleet->plan)) {
            return false;
        }
        hearth_cache_restore(box->cache, &fleet->plan, &prompt, lives, &restored);
    }
    *computed = request->prompt_tokens - restored.resumed * fleet->trace->block_tokens;
    return true;
}

static bool capture(struct fleet *fleet, struct fleet_box *box, const struct hearth_trace_request *request) {
    box->live.lasted_us = request->lasted_us;
    box->live.awaits = request->calls ? HEARTH_AWAITS_TOOL : HEARTH_AWAITS_USER;
    const struct hearth_replay_lane lane = {.hollow = &box->hollow,
                                            .cache = box->cache,
                                            .live = &box->live,
                                            .prompt = &fleet->tokens,
                                            .interval_blocks = hearth_replay_interval_blocks(fleet->trace)};
    if (!hearth_replay_compute(&lane, request, fleet->plan.divergence)) {
        return false;
    }
    for (enum hearth_capture done;
         (done = hearth_cache_capture(box->cache, &box->live, INT32_MAX)) != HEARTH_CAPTURE_DONE;) {
        if (done == HEARTH_CAPTURE_FULL && hearth_cache_poll(box->cache, 1) == 0 &&
            !hearth_cache_wait(box->cache, HEARTH_BACKING_WAIT_US)) {
            break;
        }
    }
    return true;
}

static void count_time(struct fleet *fleet, int64_t since_us, int64_t first_us) {
    const float seconds = (float)(first_us - since_us) / 1e6f;
    const int64_t after_us = fleet->params->after_us;
    fleet->times[fleet->time_count++] = seconds;
    if (after_us >= 0 && since_us >= after_us && since_us < after_us + HEARTH_FLEET_AFTER_US) {
        fleet->after[fleet->after_count++] = seconds;
    }
}

/* The reply is over at `end_us`: the conversation goes on. */
static bool go_on(struct fleet *fleet, uint32_t which, int64_t arrived_us, int64_t end_us) {
    const struct hearth_trace_request *request = &fleet->trace->requests[which];
    const uint32_t next = fleet->next[which];
    if (next == 0) {
        return true;
    }
    int64_t *late_us = &fleet->late_us[request->talk];
    const int64_t over_us = end_us - (arrived_us + request->lasted_us); /* longer than in the trace */
    *late_us = arrived_us - request->at_us + (over_us > 0 ? over_us : 0);
    const int64_t at_us = fleet->trace->requests[next].at_us + *late_us;
    return add_event(fleet,
                     (struct fleet_event){.at_us = at_us, .kind = FLEET_ARRIVES, .which = next, .since_us = at_us});
}

/* Carries a request out on a box. False: out of memory. */
static bool serve(struct fleet *fleet, const struct fleet_event *event, uint32_t number) {
    const struct hearth_trace_request *request = &fleet->trace->requests[event->which];
    struct fleet_box *box = &fleet->boxes[number];
    int32_t computed = 0;
    box->hollow.now_us = event->at_us > box->restored_us ? event->at_us : box->restored_us;
    if (!restore(fleet, box, request, &computed)) {
        return false;
    }
    box->restored_us = box->hollow.now_us;
    const double prefill_s = computed / fleet->params->machine.prefill_tokens_per_s;
    const int64_t start_us = box->hollow.now_us > box->free_us ? box->hollow.now_us : box->free_us;
    const int64_t first_us = start_us + (int64_t)(prefill_s * 1e6);
    const int64_t lasted_us = event->at_us + request->lasted_us, end_us = lasted_us > first_us ? lasted_us : first_us;
    const int64_t lost_us = lost_after(fleet, number, event->at_us);
    fleet->result->prompt_tokens += (uint64_t)request->prompt_tokens;
    fleet->result->computed_tokens += (uint64_t)computed;
    fleet->prefill_s += prefill_s;
    box->free_us = box->hollow.now_us = first_us;
    fleet->end_us = first_us > fleet->end_us ? first_us : fleet->end_us;
    fleet->router.box[number].running++;
    fleet->router.box[number].routed++;
    if (lost_us <= end_us) {
        fleet->result->retried++;
        hearth_live_clear(box->cache, &box->live);
        return add_event(fleet, (struct fleet_event){.at_us = lost_us, .kind = FLEET_ENDS, .which = number}) &&
               add_event(fleet, (struct fleet_event){.at_us = lost_us,
                                                     .kind = FLEET_ARRIVES,
                                                     .which = event->which,
                                                     .since_us = first_us < lost_us ? lost_us : event->since_us});
    }
    if (!capture(fleet, box, request)) {
        return false;
    }
    hearth_live_clear(box->cache, &box->live);
    count_time(fleet, event->since_us, first_us);
    return add_event(fleet, (struct fleet_event){.at_us = end_us, .kind = FLEET_ENDS, .which = number}) &&
           go_on(fleet, event->which, event->at_us, end_us);
}

static int arrive(struct fleet *fleet, const struct fleet_event *event, struct hearth_errmsg *msg) {
    const struct hearth_trace_request *request = &fleet->trace->requests[event->which];
    if (!hearth_trace_tokens(fleet->trace, request, &fleet->tokens)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
    }
    const uint32_t box = hearth_router_choose(&fleet->router, request, &fleet->tokens);
    if (box == UINT32_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "no box is left to send a request to");
    }
    const bool ok =
        hearth_tokens_push(&fleet->tokens, (hearth_token)event->which | INT32_MIN) && serve(fleet, event, box);
    return ok ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
}

/* ---- a run ---- */

/* Links the requests of each conversation, and puts the first of each into the heap. False: out of memory. */
static bool plan_arrivals(struct fleet *fleet) {
    const struct hearth_trace *trace = fleet->trace;
    uint32_t *first = calloc((size_t)trace->talks + 1, sizeof *first);
    bool ok = first != NULL;
    for (size_t i = trace->count; ok && i-- > 0;) {
        const uint32_t talk = trace->requests[i].talk;
        fleet->next[i] = talk > 0 ? first[talk] : 0;
        if (talk > 0) {
            first[talk] = (uint32_t)i;
        }
    }
    for (size_t i = 0; ok && i < trace->count; i++) {
        const struct hearth_trace_request *request = &trace->requests[i];
        if (request->talk == 0 || first[request->talk] == i) {
            ok = add_event(fleet, (struct fleet_event){.at_us = request->at_us,
                                                       .kind = FLEET_ARRIVES,
                                                       .which = (uint32_t)i,
                                                       .since_us = request->at_us});
        }
    }
    free(first);
    for (size_t i = 0; ok && i < fleet->params->loss_count; i++) {
        const struct hearth_fleet_loss *loss = &fleet->params->losses[i];
        ok = add_event(fleet, (struct fleet_event){.at_us = loss->at_us, .kind = FLEET_LOST, .which = (uint32_t)i});
        if (ok && loss->lasts_us > 0) {
            ok = add_event(fleet, (struct fleet_event){.at_us = loss->at_us + loss->lasts_us,
                                                       .kind = FLEET_RETURNS,
                                                       .which = (uint32_t)i});
        }
    }
    return ok;
}

static struct hearth_sim_store *open_store(const struct fleet *fleet) {
    struct hearth_sim_store_params params = fleet->params->store;
    const struct hearth_replay_params *machine = &fleet->params->machine;
    const uint64_t page_bytes =
        (uint64_t)hearth_replay_page_blocks(machine, fleet->trace) * hearth_replay_block_bytes(machine, fleet->trace);
    params.known = machine->ram_bytes / page_bytes * KNOWN_TIMES + 1;
    return hearth_sim_store_create(&params, fleet->params->boxes);
}

static int init(struct fleet *fleet, struct hearth_errmsg *msg) {
    const struct hearth_fleet_params *params = fleet->params;
    const size_t count = fleet->trace->count;
    hearth_router_init(&fleet->router, params->router, params->boxes,
                       hearth_replay_page_blocks(&params->machine, fleet->trace));
    fleet->boxes = calloc(params->boxes, sizeof *fleet->boxes);
    fleet->next = calloc(count, sizeof *fleet->next);
    fleet->late_us = calloc((size_t)fleet->trace->talks + 1, sizeof *fleet->late_us);
    fleet->times = calloc(count, sizeof *fleet->times);
    fleet->after = calloc(count, sizeof *fleet->after);
    fleet->store = params->has_store ? open_store(fleet) : NULL;
    if (!fleet->boxes || !fleet->next || !fleet->late_us || !fleet->times || !fleet->after ||
        (params->has_store && !fleet->store) || !plan_arrivals(fleet)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
    }
    int err = HEARTH_OK;
    for (uint32_t i = 0; i < params->boxes && err == HEARTH_OK; i++) {
        err = open_box(fleet, i, 0, msg);
    }
    return err;
}

static void finish(struct fleet *fleet) {
    for (uint32_t i = 0; fleet->boxes && i < fleet->params->boxes; i++) {
        close_box(fleet, i);
    }
    hearth_sim_store_destroy(fleet->store);
    hearth_router_finish(&fleet->router);
    hearth_plan_finish(&fleet->plan);
    hearth_tokens_finish(&fleet->tokens);
    free(fleet->boxes);
    free(fleet->next);
    free(fleet->late_us);
    free(fleet->events);
    free(fleet->times);
    free(fleet->after);
}

static int ascending(const void *a, const void *b) {
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

static void sum_up(float *times, size_t n, struct hearth_fleet_times *out) {
    *out = (struct hearth_fleet_times){.requests = n};
    if (n == 0) {
        return;
    }
    qsort(times, n, sizeof *times, ascending);
    for (size_t i = 0; i < n; i++) {
        out->mean_s += (double)times[i] / (double)n;
    }
    out->p50_s = (double)times[n / 2];
    out->p99_s = (double)times[n - 1 - (n - 1) / 100];
}

static void sum_up_line(const struct hearth_wire *wire, int64_t end_us, struct hearth_fleet_result *result) {
    const double minute = wire->bytes_per_us * HEARTH_WIRE_MINUTE_US;
    double bytes = 0, most = 0;
    for (size_t i = 0; i < wire->minute_count; i++) {
        bytes += wire->minutes[i];
        most = wire->minutes[i] > most ? wire->minutes[i] : most;
    }
    const double load = end_us > 0 ? bytes / (wire->bytes_per_us * (double)end_us) : 0;
    result->store_load = load > result->store_load ? load : result->store_load;
    result->store_peak_load = most / minute > result->store_peak_load ? most / minute : result->store_peak_load;
}

int hearth_fleet_run(const struct hearth_trace *trace, const struct hearth_fleet_params *params,
                     struct hearth_fleet_result *result, struct hearth_errmsg *msg) {
    struct fleet fleet = {.trace = trace, .params = params, .result = result};
    const int64_t began_us = hearth_clock_us();
    *result = (struct hearth_fleet_result){0};
    int err = init(&fleet, msg);
    while (err == HEARTH_OK && fleet.event_count > 0) {
        const struct fleet_event event = next_event(&fleet);
        switch (event.kind) {
        case FLEET_ENDS: fleet.router.box[event.which].running--; break;
        case FLEET_LOST: lose(&fleet, &params->losses[event.which]); break;
        case FLEET_RETURNS: err = take_back(&fleet, &params->losses[event.which], msg); break;
        case FLEET_ARRIVES: err = arrive(&fleet, &event, msg); break;
        }
    }
    if (err == HEARTH_OK) {
        sum_up(fleet.times, fleet.time_count, &result->all);
        sum_up(fleet.after, fleet.after_count, &result->after);
        result->seconds = (double)fleet.end_us / 1e6;
        result->prefill_load = fleet.end_us > 0 ? fleet.prefill_s / result->seconds / params->boxes : 0;
        if (fleet.store) {
            hearth_sim_store_figures(fleet.store, &result->store);
            sum_up_line(hearth_sim_store_wire(fleet.store, true), fleet.end_us, result);
            sum_up_line(hearth_sim_store_wire(fleet.store, false), fleet.end_us, result);
        }
    }
    finish(&fleet);
    result->replay_seconds = (double)(hearth_clock_us() - began_us) / 1e6;
    return err;
}
