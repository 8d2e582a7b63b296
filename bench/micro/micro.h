/* hearth-micro: what the machinery around the arithmetic costs.
 *
 * Every measurement is a sample of durations; its median, p10 and p90 go out as one line of JSON and one row of a
 * table. Nothing here asserts a time. */
#ifndef HEARTH_BENCH_MICRO_H
#define HEARTH_BENCH_MICRO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MICRO_SAMPLES_MAX 4096

struct micro {
    bool quick;         /* a few samples of everything small: for tests */
    const char *only;   /* NULL: all; else the groups to run, separated by commas */
    const char *models; /* directory of GGUF files, or NULL */
    size_t pages_max;   /* largest store */
    FILE *json;         /* NULL: none */
    FILE *table;
    uint64_t flushed; /* keeps the flushing reads alive */
    uint8_t *flush;   /* FLUSH_BYTES */
    bool headed;      /* the table has its heading */
};

/* Nanoseconds of a monotonic clock. */
uint64_t micro_now_ns(void);
/* Pushes everything out of the CPU's caches, by reading as much else. */
void micro_flush(struct micro *micro);
/* Whether a group was asked for. */
bool micro_wanted(const struct micro *micro, const char *group);

struct micro_sample {
    double ns[MICRO_SAMPLES_MAX];
    size_t n;
};

void micro_add(struct micro_sample *sample, double ns);
double micro_median(struct micro_sample *sample);
/* Prints and empties a sample (an empty one prints nothing). `params` is the inside of a JSON object. */
void micro_report(struct micro *micro, const char *name, struct micro_sample *sample, const char *params, ...)
    __attribute__((format(printf, 4, 5)));
/* Likewise one value that is no duration. */
void micro_value(struct micro *micro, const char *name, const char *unit, double value, const char *params, ...)
    __attribute__((format(printf, 5, 6)));

/* The groups. */
void micro_cache(struct micro *micro);  /* match, plan, insert, evict, forget against what is stored */
void micro_live(struct micro *micro);   /* the part of a plan that looks at lanes */
void micro_memory(struct micro *micro); /* bytes per page beyond its state */
void micro_policy(struct micro *micro); /* evicting from a large store */
void micro_remote(struct micro *micro); /* reading from a Redis, beside redis-benchmark */
void micro_state(struct micro *micro);  /* export and import on real models */
void micro_step(struct micro *micro);   /* what a batch costs beside its computation */

#endif
