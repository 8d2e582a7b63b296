/* hearth-micro: options, clock, samples and output. See micro.h. */
#include "micro.h"

#include "base/assert.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLUSH_BYTES ((size_t)256 << 20)
#define LINE 64

uint64_t micro_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void micro_flush(struct micro *micro) {
    if (!micro->flush) {
        micro->flush = malloc(FLUSH_BYTES);
        HEARTH_ASSERT(micro->flush != NULL);
        memset(micro->flush, 1, FLUSH_BYTES);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < FLUSH_BYTES; i += LINE) {
        sum += micro->flush[i];
    }
    micro->flushed += sum;
}

bool micro_wanted(const struct micro *micro, const char *group) {
    size_t len = strlen(group);
    for (const char *at = micro->only; at && *at; at += strcspn(at, ","), at += *at == ',') {
        if (strcspn(at, ",") == len && strncmp(at, group, len) == 0) {
            return true;
        }
    }
    return micro->only == NULL;
}

/* ---- output ---- */

void micro_add(struct micro_sample *sample, double ns) {
    HEARTH_ASSERT(sample->n < MICRO_SAMPLES_MAX);
    sample->ns[sample->n++] = ns;
}

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double quantile(const struct micro_sample *sample, double q) {
    double at = q * (double)(sample->n - 1);
    size_t low = (size_t)at, high = low + 1 < sample->n ? low + 1 : low;
    return sample->ns[low] + (sample->ns[high] - sample->ns[low]) * (at - floor(at));
}

double micro_median(struct micro_sample *sample) {
    qsort(sample->ns, sample->n, sizeof *sample->ns, by_size);
    return sample->n > 0 ? quantile(sample, 0.5) : 0;
}

/* Digits enough for three that count. */
static const char *human(double ns, char *out, size_t cap) {
    const char *unit = ns >= 1e9 ? "s" : ns >= 1e6 ? "ms" : ns >= 1e3 ? "us" : "ns";
    double value = ns >= 1e9 ? ns / 1e9 : ns >= 1e6 ? ns / 1e6 : ns >= 1e3 ? ns / 1e3 : ns;
    (void)snprintf(out, cap, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, unit);
    return out;
}

/* What a table shows of the parameters: JSON without its quotes. */
static void plain(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from != '"' && !(*from == ' ' && from > text && from[-1] == ':')) {
            *to++ = *from == ':' ? ' ' : *from;
        }
    }
    *to = '\0';
}

void micro_report(struct micro *micro, const char *name, struct micro_sample *sample, const char *params, ...) {
    char text[256], median[32], low[32], high[32];
    va_list args;
    if (sample->n == 0) {
        return;
    }
    va_start(args, params);
    (void)vsnprintf(text, sizeof text, params, args);
    va_end(args);
    qsort(sample->ns, sample->n, sizeof *sample->ns, by_size);
    if (micro->json) {
        fprintf(micro->json,
                "{\"name\": \"%s\", \"params\": {%s}, \"median_ns\": %.1f, \"p10_ns\": %.1f, \"p90_ns\": %.1f, "
                "\"repetitions\": %zu}\n",
                name, text, quantile(sample, 0.5), quantile(sample, 0.1), quantile(sample, 0.9), sample->n);
    }
    plain(text);
    if (!micro->headed) {
        fprintf(micro->table, "%-20s %10s %10s %10s\n", "", "median", "p10", "p90");
    }
    micro->headed = true;
    fprintf(micro->table, "%-20s %10s %10s %10s   %s\n", name, human(quantile(sample, 0.5), median, sizeof median),
            human(quantile(sample, 0.1), low, sizeof low), human(quantile(sample, 0.9), high, sizeof high), text);
    sample->n = 0;
    (void)fflush(micro->table);
}

void micro_value(struct micro *micro, const char *name, const char *unit, double value, const char *params, ...) {
    char text[256];
    va_list args;
    va_start(args, params);
    (void)vsnprintf(text, sizeof text, params, args);
    va_end(args);
    if (micro->json) {
        fprintf(micro->json, "{\"name\": \"%s\", \"params\": {%s}, \"value\": %.2f, \"unit\": \"%s\"}\n", name, text,
                value, unit);
    }
    plain(text);
    fprintf(micro->table, "%-20s %10.1f %-21s   %s\n", name, value, unit, text);
    (void)fflush(micro->table);
}

/* ---- entry ---- */

static const struct {
    const char *name;
    void (*run)(struct micro *micro);
} groups[] = {{"cache", micro_cache},   {"live", micro_live},   {"memory", micro_memory}, {"policy", micro_policy},
              {"remote", micro_remote}, {"state", micro_state}, {"step", micro_step}};

static int usage(FILE *out) {
    fputs("hearth-micro [--only GROUP,…] [--pages N] [--models DIR] [--json FILE] [--quick]\n"
          "\n"
          "  --only GROUP,…   of cache, live, memory, policy, remote, state, step (all)\n"
          "  --pages N        the largest store (1000000)\n"
          "  --models DIR     GGUF files for the group state ($HEARTH_MODELS)\n"
          "  --json FILE      one JSON object a line, too; -: to the standard output, and the table to the other\n"
          "  --quick          little of everything: to see that it works\n",
          out);
    return out == stdout ? 0 : 2;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"only", 1, NULL, 'o'}, {"pages", 1, NULL, 'p'}, {"models", 1, NULL, 'm'},
                                            {"json", 1, NULL, 'j'}, {"quick", 0, NULL, 'q'}, {"help", 0, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct micro micro = {.pages_max = 1000000, .table = stdout, .models = getenv("HEARTH_MODELS")};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'o': micro.only = optarg; break;
        case 'p': micro.pages_max = (size_t)strtoull(optarg, NULL, 10); break;
        case 'm': micro.models = optarg; break;
        case 'q': micro.quick = true; break;
        case 'j': micro.json = strcmp(optarg, "-") == 0 ? stdout : fopen(optarg, "w"); break;
        case 'h': return usage(stdout);
        default: return usage(stderr);
        }
        if (option == 'j' && !micro.json) {
            perror(optarg);
            return 1;
        }
    }
    if (optind < argc) {
        return usage(stderr);
    }
    if (micro.json == stdout) {
        micro.table = stderr;
    }
    if (micro.quick && micro.pages_max > 2000) {
        micro.pages_max = 2000;
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (micro_wanted(&micro, groups[i].name)) {
            groups[i].run(&micro);
        }
    }
    free(micro.flush);
    bool written = !micro.json || (fflush(micro.json) == 0 && !ferror(micro.json));
    if (micro.json && micro.json != stdout) {
        written = fclose(micro.json) == 0 && written;
    }
    return written ? 0 : 1;
}
