/* Golden traces of the scheduler's step on a virtual clock.
 *
 * A .trace file is a script, a line "---", and the trace that must come out, to the letter. It reads as a
 * specification:
 *
 *     lanes 2 batch 2048 chunk 512 ageing 200 prefill 1000 decode 50
 *     at 0 A 40000 gen 3              request A arrives at 0 ms: 40,000 tokens, then 3 tokens to generate
 *     at 100 B 300 gen 2 mark 120     with a mark at position 120
 *     at 900 cancel A
 *     at 950 C 700 gen 0 warm         requests of other classes: side, background, warm
 *     at 950 E 700 gen 0 idle         a warm one that is computed in idle time
 *     at 960 D 500 gen 9 tenant 7 weight 3   of a tenant
 *     needs                           the step is told how many tokens waiting requests have to compute
 *     brief                           batches that only decode are not written down
 *     beside 32 alone 256             fewer prefill tokens in a batch
 *     idle 128                        tokens in a batch of idle time
 *     bursts                          short prompts that outnumber the generating lanes are computed in one batch
 *     stays A                         A's state cannot be kept: it is not preempted
 *     cost 100                        preempting and bringing back takes 100 ms, instead of much
 *     loses A 3                       A's state is lost when it is preempted, as it has been three times
 *     cells 4000                      a request that does not fit beside the lanes' tokens is held
 *
 * The executor below is the simplest one: nothing is ever reused, prefill and decode cost what the script says.
 * `step_golden --update FILE…` writes the traces anew. */
#include "base/assert.h"
#include "sched/step.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 64

struct event {
    int64_t at_us;
    char name;
    bool cancel, idle;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    int32_t tokens, generate, mark;
    bool done;
};

struct world {
    struct hearth_step *step;
    uint32_t lanes;
    struct hearth_step_sizes sizes;
    double prefill_tokens_per_s, decode_tokens_per_s;
    struct event events[EVENTS_MAX];
    size_t event_count;
    int32_t left[256];     /* tokens to generate, per name */
    int32_t computed[256]; /* per name: where it goes on after it was preempted */
    bool preempted[256], stays[256];
    bool needs, brief;
    uint32_t lost[256]; /* how often its state was lost; 0: it is kept */
    int64_t cost_us;
    int32_t cells; /* 0: as many as anybody needs */
    int64_t now_us;
    FILE *out;
};

static struct event *event_of(struct world *world, char name) {
    for (size_t i = 0; i < world->event_count; i++) {
        if (world->events[i].name == name && !world->events[i].cancel) {
            return &world->events[i];
        }
    }
    return NULL;
}

static void say(struct world *world, const char *text) {
    fprintf(world->out, "%8.3f  %s\n", (double)world->now_us / 1e6, text);
}

/* A line that is a word or two about the whole script. */
static bool read_setting(struct world *world, const char *line) {
    bool needs = strcmp(line, "needs\n") == 0, brief = strcmp(line, "brief\n") == 0;
    bool bursts = strcmp(line, "bursts\n") == 0;
    world->needs = world->needs || needs;
    world->brief = world->brief || brief;
    world->sizes.bursts = world->sizes.bursts || bursts;
    return needs || brief || bursts || sscanf(line, "cells %d", &world->cells) == 1 ||
           sscanf(line, "idle %d", &world->sizes.idle_tokens) == 1 ||
           sscanf(line, "cost %" SCNd64, &world->cost_us) == 1 ||
           sscanf(line, "beside %d alone %d", &world->sizes.beside_tokens, &world->sizes.alone_tokens) == 2;
}

static bool read_script(struct world *world, FILE *file) {
    char line[256];
    struct hearth_step_params params = {0};
    world->sizes.prefetch_chunk_tokens = 16;
    world->cost_us = HEARTH_QUANTUM_US / 1000;
    while (fgets(line, sizeof line, file) && strncmp(line, "---", 3) != 0) {
        struct event event = {0};
        double at_ms;
        int lanes, batch, chunk;
        unsigned times;
        char name;
        if (line[0] == '#' || line[0] == '\n') {
            continue;
        }
        if (read_setting(world, line)) {
            continue;
        }
        if (sscanf(line, "stays %c", &name) == 1) {
            world->stays[(int)name] = true;
            continue;
        }
        if (sscanf(line, "loses %c %u", &name, &times) == 2) {
            world->lost[(int)name] = times;
            continue;
        }
        if (sscanf(line, "lanes %d batch %d chunk %d ageing %lf prefill %lf decode %lf", &lanes, &batch, &chunk,
                   &params.ageing_tokens_per_s, &world->prefill_tokens_per_s, &world->decode_tokens_per_s) == 6) {
            params.lanes = (uint32_t)lanes;
            params.batch_tokens = batch;
            params.chunk_tokens = chunk;
            world->lanes = params.lanes;
            world->sizes.prefill_us = 1e6 / world->prefill_tokens_per_s;
            world->step = hearth_step_create(&params);
            HEARTH_ASSERT(world->step);
            continue;
        }
        if (world->event_count == EVENTS_MAX) {
            return false;
        }
        if (sscanf(line, "at %lf cancel %c", &at_ms, &event.name) == 2) {
            event.cancel = true;
        } else if (sscanf(line, "at %lf %c %d gen %d mark %d", &at_ms, &event.name, &event.tokens, &event.generate,
                          &event.mark) < 4) {
            return false;
        }
        event.idle = strstr(line, " idle") != NULL;
        event.priority = strstr(line, " warm") || event.idle ? HEARTH_CLASS_PREFETCH
                         : strstr(line, " background")       ? HEARTH_CLASS_BACKGROUND
                         : strstr(line, " side")             ? HEARTH_CLASS_SIDE
                                                             : HEARTH_CLASS_INTERACTIVE;
        const char *tenant = strstr(line, "tenant ");
        unsigned long long tenant_id = 0;
        if (tenant && sscanf(tenant, "tenant %llu weight %lf", &tenant_id, &event.tenant.weight) < 1) {
            return false;
        }
        event.tenant.id = tenant_id;
        event.at_us = (int64_t)(at_ms * 1000);
        world->events[world->event_count++] = event;
    }
    if (world->step) {
        hearth_step_resize(world->step, &world->sizes);
    }
    return params.lanes > 0;
}

static void release(struct world *world, int lane, const char *why) {
    char text[64];
    snprintf(text, sizeof text, "%s %c", why, (char)hearth_step_lane(world->step, lane)->id);
    say(world, text);
    hearth_step_release(world->step, lane, true, world->now_us);
}

static void submit(struct world *world, const struct event *event, int64_t arrived_us, int64_t queued_us) {
    int name = event->name;
    const struct hearth_step_request request = {.id = name,
                                                .priority = event->priority,
                                                .tenant = event->tenant,
                                                .arrived_us = arrived_us,
                                                .queued_us = queued_us,
                                                .lost = world->lost[name],
                                                .preempted = world->preempted[name],
                                                .idle = event->idle};
    HEARTH_ASSERT(hearth_step_submit(world->step, &request));
    if (world->needs) {
        hearth_step_need(world->step, name, event->tokens - world->computed[name]);
    }
}

static void arrive(struct world *world, struct event *event) {
    char text[64];
    event->done = true;
    if (!event->cancel) {
        snprintf(text, sizeof text, "arrives %c", event->name);
        say(world, text);
        world->left[(int)event->name] = event->generate;
        submit(world, event, event->at_us, event->at_us);
        return;
    }
    for (uint32_t i = 0; i < world->lanes; i++) {
        if (hearth_step_lane(world->step, (int)i)->id == event->name) {
            release(world, (int)i, "cancelled");
            return;
        }
    }
    snprintf(text, sizeof text, "cancelled %c", event->name);
    say(world, text);
    hearth_step_withdraw(world->step, event->name);
}

static bool fits(const struct world *world, int32_t tokens) {
    for (uint32_t i = 0; i < world->lanes; i++) {
        tokens += hearth_step_lane(world->step, (int)i)->target;
    }
    return world->cells == 0 || tokens <= world->cells;
}

static void admit(struct world *world, int name) {
    const struct event *event = event_of(world, (char)name);
    char text[64];
    int lane = 0;
    while (hearth_step_lane(world->step, lane)->state != HEARTH_LANE_IDLE) {
        lane++;
    }
    if (!fits(world, event->tokens)) {
        snprintf(text, sizeof text, "no cells for %c", (char)name);
        say(world, text);
        hearth_step_hold(world->step, name, true, world->now_us);
        return;
    }
    snprintf(text, sizeof text, "admit %c to lane %d", (char)name, lane);
    say(world, text);
    hearth_step_assign(world->step, name, lane, world->computed[name], event->tokens, &event->mark, event->mark > 0,
                       world->cost_us * 1000, world->now_us);
    hearth_step_set_not_preemptible(world->step, lane, world->stays[name]);
}

/* Preempted; it will go on from where it is. */
static void preempt(struct world *world, const struct hearth_action *action) {
    const struct hearth_step_lane lane = *hearth_step_lane(world->step, action->lane);
    char text[64];
    snprintf(text, sizeof text, "%c preempted for %c%s", (char)lane.id, (char)action->id,
             action->loses_place ? " and queues anew" : "");
    say(world, text);
    world->computed[lane.id] = lane.state == HEARTH_LANE_DECODE ? lane.target - 1 : lane.computed;
    if (world->lost[lane.id] > 0) {
        world->computed[lane.id] = 0;
        world->lost[lane.id]++;
    }
    world->preempted[lane.id] = true;
    hearth_step_release(world->step, action->lane, true, world->now_us);
    submit(world, event_of(world, (char)lane.id), action->loses_place ? world->now_us : lane.arrived_us, world->now_us);
}

static void compute(struct world *world, const struct hearth_action *action) {
    char text[512] = "compute";
    double each_us[HEARTH_LANES_MAX] = {0}, us = 0;
    uint32_t decodes = 0;
    for (uint32_t i = 0; i < world->lanes; i++) {
        decodes += action->shares[i] > 0 && hearth_step_lane(world->step, (int)i)->state == HEARTH_LANE_DECODE;
    }
    for (uint32_t i = 0; i < world->lanes; i++) {
        if (action->shares[i] == 0) {
            continue;
        }
        const struct hearth_step_lane *lane = hearth_step_lane(world->step, (int)i);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " %c:%d%s", (char)lane->id, action->shares[i],
                 lane->state == HEARTH_LANE_DECODE ? "d" : "");
        each_us[i] = lane->state == HEARTH_LANE_DECODE ? 1e6 / world->decode_tokens_per_s / decodes
                                                       : action->shares[i] / world->prefill_tokens_per_s * 1e6;
        us += each_us[i];
    }
    if (!world->brief || strchr(text, 'd') == NULL || us > 1e6 / world->decode_tokens_per_s + 1) {
        say(world, text);
    }
    world->now_us += (int64_t)(us + 0.5);
    for (uint32_t i = 0; i < world->lanes; i++) {
        if (action->shares[i] == 0) {
            continue;
        }
        const struct hearth_step_lane *lane = hearth_step_lane(world->step, (int)i);
        hearth_step_charge(world->step, (int)i, each_us[i]);
        if (hearth_step_computed(world->step, (int)i, action->shares[i])) {
            snprintf(text, sizeof text, "mark %c at %d", (char)lane->id, lane->computed);
            say(world, text);
        }
        if (lane->state == HEARTH_LANE_DECODE && world->left[lane->id]-- <= 1) {
            release(world, (int)i, "done");
        }
    }
}

static bool next_arrival(struct world *world, bool wait) {
    struct event *first = NULL;
    for (size_t i = 0; i < world->event_count; i++) {
        if (!world->events[i].done && (!first || world->events[i].at_us < first->at_us)) {
            first = &world->events[i];
        }
    }
    if (!first || (!wait && first->at_us > world->now_us)) {
        return false;
    }
    if (first->at_us > world->now_us) {
        world->now_us = first->at_us;
    }
    arrive(world, first);
    return true;
}

static bool computes(const struct hearth_action *action) {
    for (int i = 0; i < HEARTH_LANES_MAX; i++) {
        if (action->shares[i] > 0) {
            return true;
        }
    }
    return false;
}

static void play(struct world *world) {
    for (;;) {
        while (next_arrival(world, false)) {
        }
        struct hearth_action action;
        char text[64];
        hearth_step_next(world->step, world->now_us, &action);
        switch (action.type) {
        case HEARTH_ACTION_ADMIT: admit(world, (int)action.id); break;
        case HEARTH_ACTION_PREEMPT: preempt(world, &action); break;
        case HEARTH_ACTION_COMPUTE: compute(world, &action); break;
        case HEARTH_ACTION_CAPTURE:
            snprintf(text, sizeof text, "capture lane %d%s", action.lane, computes(&action) ? " between batches" : "");
            say(world, text);
            world->now_us += 1000;
            hearth_step_pending(world->step, action.lane, false);
            break;
        case HEARTH_ACTION_SLEEP:
            say(world, "sleep");
            if (!next_arrival(world, true)) {
                return;
            }
            break;
        }
    }
}

static char *read_all(FILE *file) {
    char *text = calloc(1, 1 << 20);
    HEARTH_ASSERT(text);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    return text;
}

/* Returns 0 when the trace is as written, else 1. */
static int check_file(const char *path, bool update) {
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        return 1;
    }
    char *whole = read_all(file);
    rewind(file);
    static struct world world;
    memset(&world, 0, sizeof world);
    if (!read_script(&world, file)) {
        fprintf(stderr, "%s: the script cannot be read\n", path);
        return 1;
    }
    fclose(file);
    char *trace = NULL;
    size_t len = 0;
    world.out = open_memstream(&trace, &len);
    play(&world);
    fclose(world.out);
    hearth_step_destroy(world.step);
    char *expected = strstr(whole, "---\n");
    HEARTH_ASSERT(expected);
    expected += 4;
    int failed = strcmp(expected, trace) != 0;
    if (failed && update) {
        *expected = '\0';
        file = fopen(path, "w");
        HEARTH_ASSERT(file);
        fprintf(file, "%s%s", whole, trace);
        fclose(file);
        failed = 0;
    }
    printf("%s %s\n", failed ? "not ok" : "ok", path);
    if (failed) {
        fprintf(stderr, "%s: expected\n%s\ngot\n%s", path, expected, trace);
    }
    free(trace);
    free(whole);
    return failed;
}

int main(int argc, char **argv) {
    bool update = argc > 1 && strcmp(argv[1], "--update") == 0;
    int failed = 0;
    for (int i = update ? 2 : 1; i < argc; i++) {
        failed += check_file(argv[i], update);
    }
    return failed > 0;
}
