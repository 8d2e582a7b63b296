/* Golden traces of the scheduler's step on a virtual clock.
 *
 * A .trace file is a script, a line "---", and the trace that must come out, to the letter. It reads as a
 * specification:
 *
 *     lanes 2 batch 2048 chunk 512 ageing 200 prefill 1000 decode 50
 *     at 0 A 40000 gen 3              request A arrives at 0 ms: 40,000 tokens, then 3 tokens to generate
 *     at 100 B 300 gen 2 mark 120     with a mark at position 120
 *     at 900 cancel A
 *     at 950 C 700 gen 0 warm         requests of other classes: background, warm
 *
 * The executor below is the simplest one: nothing is ever reused, prefill and decode cost what the script says.
 * `step_golden --update FILE…` writes the traces anew. */
#include "base/assert.h"
#include "sched/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 64

struct event {
    int64_t at_us;
    char name;
    bool cancel;
    enum hearth_class priority;
    int32_t tokens, generate, mark;
    bool done;
};

struct world {
    struct hearth_step step;
    double prefill_tokens_per_s, decode_tokens_per_s;
    struct event events[EVENTS_MAX];
    size_t event_count;
    int32_t left[256];     /* tokens to generate, per name */
    int32_t computed[256]; /* per name: where it goes on after it was set aside */
    int64_t now_us;
    FILE *out;
};

static struct event *event_of(struct world *world, char name) {
    for (size_t i = 0; i < world->event_count; i++)
        if (world->events[i].name == name && !world->events[i].cancel)
            return &world->events[i];
    return NULL;
}

static void say(struct world *world, const char *text) {
    fprintf(world->out, "%8.3f  %s\n", (double)world->now_us / 1e6, text);
}

static bool read_script(struct world *world, FILE *file) {
    char line[256];
    struct hearth_step_params params = {.warm_chunk_tokens = 16};
    while (fgets(line, sizeof line, file) && strncmp(line, "---", 3) != 0) {
        struct event event = {0};
        double at_ms;
        int lanes, batch, chunk;
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (sscanf(line, "lanes %d batch %d chunk %d ageing %lf prefill %lf decode %lf", &lanes, &batch, &chunk,
                   &params.ageing_tokens_per_s, &world->prefill_tokens_per_s, &world->decode_tokens_per_s) == 6) {
            params.lanes = (uint32_t)lanes;
            params.batch_tokens = batch;
            params.chunk_tokens = chunk;
            hearth_step_init(&world->step, &params);
            continue;
        }
        if (world->event_count == EVENTS_MAX)
            return false;
        if (sscanf(line, "at %lf cancel %c", &at_ms, &event.name) == 2)
            event.cancel = true;
        else if (sscanf(line, "at %lf %c %d gen %d mark %d", &at_ms, &event.name, &event.tokens, &event.generate,
                        &event.mark) < 4)
            return false;
        event.priority = strstr(line, " warm")         ? HEARTH_CLASS_WARM
                         : strstr(line, " background") ? HEARTH_CLASS_BACKGROUND
                                                       : HEARTH_CLASS_INTERACTIVE;
        event.at_us = (int64_t)(at_ms * 1000);
        world->events[world->event_count++] = event;
    }
    return params.lanes > 0;
}

static void release(struct world *world, int lane, const char *why) {
    char text[64];
    snprintf(text, sizeof text, "%s %c", why, (char)world->step.lanes[lane].id);
    say(world, text);
    hearth_step_release(&world->step, lane, true, world->now_us);
}

static void arrive(struct world *world, struct event *event) {
    char text[64];
    event->done = true;
    if (!event->cancel) {
        snprintf(text, sizeof text, "arrives %c", event->name);
        say(world, text);
        world->left[(int)event->name] = event->generate;
        HEARTH_ASSERT(hearth_step_submit(&world->step, event->name, event->priority, event->at_us, event->tokens,
                                         false));
        return;
    }
    for (uint32_t i = 0; i < world->step.params.lanes; i++)
        if (world->step.lanes[i].id == event->name) {
            release(world, (int)i, "cancelled");
            return;
        }
    snprintf(text, sizeof text, "cancelled %c", event->name);
    say(world, text);
    hearth_step_withdraw(&world->step, event->name);
}

/* Set aside; it will go on from where it is. */
static void yield(struct world *world, int index) {
    const struct hearth_step_lane lane = world->step.lanes[index];
    world->computed[lane.id] = lane.computed;
    release(world, index, "yields");
    HEARTH_ASSERT(hearth_step_submit(&world->step, lane.id, lane.priority, lane.arrived_us, lane.target, true));
}

static void compute(struct world *world, const struct hearth_action *action) {
    char text[512] = "compute";
    double us = 0;
    bool decodes = false;
    for (uint32_t i = 0; i < world->step.params.lanes; i++) {
        if (action->shares[i] == 0)
            continue;
        const struct hearth_step_lane *lane = &world->step.lanes[i];
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " %c:%d%s", (char)lane->id, action->shares[i],
                 lane->state == HEARTH_LANE_DECODE ? "d" : "");
        if (lane->state == HEARTH_LANE_DECODE)
            decodes = true;
        else
            us += action->shares[i] / world->prefill_tokens_per_s * 1e6;
    }
    say(world, text);
    world->now_us += (int64_t)(us + (decodes ? 1e6 / world->decode_tokens_per_s : 0));
    for (uint32_t i = 0; i < world->step.params.lanes; i++) {
        if (action->shares[i] == 0)
            continue;
        struct hearth_step_lane *lane = &world->step.lanes[i];
        if (hearth_step_computed(&world->step, (int)i, action->shares[i])) {
            snprintf(text, sizeof text, "mark %c at %d", (char)lane->id, lane->computed);
            say(world, text);
        }
        if (lane->state == HEARTH_LANE_DECODE && world->left[lane->id]-- <= 1)
            release(world, (int)i, "done");
    }
}

static bool next_arrival(struct world *world, bool wait) {
    struct event *first = NULL;
    for (size_t i = 0; i < world->event_count; i++)
        if (!world->events[i].done && (!first || world->events[i].at_us < first->at_us))
            first = &world->events[i];
    if (!first || (!wait && first->at_us > world->now_us))
        return false;
    if (first->at_us > world->now_us)
        world->now_us = first->at_us;
    arrive(world, first);
    return true;
}

static void play(struct world *world) {
    for (;;) {
        while (next_arrival(world, false)) {
        }
        struct hearth_action action;
        char text[64];
        hearth_step_next(&world->step, world->now_us, &action);
        switch (action.type) {
        case HEARTH_ACTION_ADMIT: {
            int lane = 0;
            while (world->step.lanes[lane].state != HEARTH_LANE_IDLE)
                lane++;
            const struct event *event = event_of(world, (char)action.id);
            snprintf(text, sizeof text, "admit %c to lane %d", (char)action.id, lane);
            say(world, text);
            hearth_step_assign(&world->step, action.id, lane, world->computed[action.id], event->tokens, &event->mark,
                               event->mark > 0);
            break;
        }
        case HEARTH_ACTION_YIELD: yield(world, action.lane); break;
        case HEARTH_ACTION_COMPUTE: compute(world, &action); break;
        case HEARTH_ACTION_CAPTURE:
            snprintf(text, sizeof text, "capture lane %d%s", action.lane, action.alone ? "" : " between batches");
            say(world, text);
            world->now_us += 1000;
            hearth_step_captured(&world->step, action.lane);
            break;
        case HEARTH_ACTION_SLEEP:
            say(world, "sleep");
            if (!next_arrival(world, true))
                return;
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
    hearth_step_finish(&world.step);
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
    if (failed)
        fprintf(stderr, "%s: expected\n%s\ngot\n%s", path, expected, trace);
    free(trace);
    free(whole);
    return failed;
}

int main(int argc, char **argv) {
    bool update = argc > 1 && strcmp(argv[1], "--update") == 0;
    int failed = 0;
    for (int i = update ? 2 : 1; i < argc; i++)
        failed += check_file(argv[i], update);
    return failed > 0;
}
