/* `hearth replay --boxes N`: what several boxes would do with recorded requests (replay/fleet.h).
 *
 * Each number of boxes is loaded alike: --concurrency sessions for each box. With --lose every run is made twice, with
 * the loss and without, and the times of the ten minutes behind it are shown for both. */
#include "cli/replay_internal.h"

#include "console/show.h"
#include "console/table.h"
#include "console/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RAMP_US INT64_C(3600000000) /* the first sessions begin within it */
#define RUNS_MAX 64

struct fleet_run {
    struct hearth_fleet_params params;
    struct hearth_fleet_result result;
    uint64_t requests, prompt_tokens, new_tokens;
};

struct fleet_report {
    struct fleet_run runs[RUNS_MAX];
    size_t count;
    const char *lose; /* as it was written; NULL: nothing is lost */
};

/* ---- values ---- */

/* The number at the beginning of a text, times the unit behind it. NULL: it is none. */
static char *read_number(const char *text, double k, double *value) {
    static const char letters[] = "kmgt";
    char *end;
    *value = strtod(text, &end);
    const char *letter = *end ? strchr(letters, *end | 0x20) : NULL;
    if (end == text || !(*value >= 0)) {
        return NULL;
    }
    *value *= letter ? pow(k, (double)(letter - letters + 1)) : 1;
    return *value < 0x1p60 ? end + (letter != NULL) : NULL;
}

bool hearth_lab_size(const char *text, uint64_t k, uint64_t *out) {
    double value;
    const char *end = read_number(text, (double)k, &value);
    *out = end ? (uint64_t)value : 0;
    return end && *end == '\0';
}

bool hearth_lab_rate(const char *text, double *out) {
    const char *end = read_number(text, 1000, out);
    const bool bits = end && strcmp(end, "bit") == 0;
    *out /= bits ? 8 : 1;
    return end && (bits || *end == '\0') && *out > 0;
}

bool hearth_lab_time(const char *text, char **end, int64_t *out) {
    static const struct {
        const char *name;
        double us;
    } units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
    double value = strtod(text, end);
    double unit_us = 1e6;
    if (*end == text || !(value >= 0)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t len = strlen(units[i].name);
        if (strncmp(*end, units[i].name, len) == 0) {
            unit_us = units[i].us;
            *end += len;
            break;
        }
    }
    *out = (int64_t)(value * unit_us);
    return value * unit_us < 0x1p60;
}

/* ---- options ---- */

/* The next word of a list with commas, or NULL. */
static char *next_word(char **rest) {
    char *word = *rest;
    if (!word || !*word) {
        return NULL;
    }
    char *comma = strchr(word, ',');
    *rest = comma ? comma + 1 : NULL;
    if (comma) {
        *comma = '\0';
    }
    return word;
}

static bool read_boxes(const char *text, uint32_t counts[RUNS_MAX], size_t *n) {
    char copy[512], *rest = copy, *word;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (*n = 0; (word = next_word(&rest)) != NULL;) {
        int64_t count;
        if (!hearth_console_number(word, &count) || count < 1 || count > HEARTH_SIM_STORE_BOXES_MAX || *n == RUNS_MAX) {
            break;
        }
        counts[(*n)++] = (uint32_t)count;
    }
    if (word || *n == 0) {
        (void)hearth_complain(1, "--boxes: '%s' is not a number up to %d, or several with commas", text,
                              HEARTH_SIM_STORE_BOXES_MAX);
    }
    return !word && *n > 0;
}

static bool read_routers(const char *text, enum hearth_router_kind routers[HEARTH_ROUTERS], size_t *n) {
    char copy[512], *rest = copy, *word;
    (void)snprintf(copy, sizeof copy, "%s", text ? text : "affinity");
    for (*n = 0; (word = next_word(&rest)) != NULL && *n < HEARTH_ROUTERS;) {
        int kind = 0;
        while (kind < HEARTH_ROUTERS && strcmp(word, hearth_router_text((enum hearth_router_kind)kind)) != 0) {
            kind++;
        }
        if (kind == HEARTH_ROUTERS) {
            break;
        }
        routers[(*n)++] = (enum hearth_router_kind)kind;
    }
    if (word || *n == 0) {
        (void)hearth_complain(1, "--router: '%s' is not affinity, least-loaded, prefix or random", text);
    }
    return !word && *n > 0;
}

static bool read_remote(const char *text, struct hearth_fleet_params *params) {
    char copy[512], *rest = copy, *word, *end = copy;
    params->has_store = text != NULL;
    (void)snprintf(copy, sizeof copy, "%s", text ? text : "");
    while ((word = next_word(&rest)) != NULL) {
        bool ok = strcmp(word, "default") == 0;
        if (strncmp(word, "rate=", 5) == 0) {
            ok = hearth_lab_rate(word + 5, &params->store.store_bytes_per_s);
        } else if (strncmp(word, "latency=", 8) == 0) {
            ok = hearth_lab_time(word + 8, &end, &params->store.latency_us) && *end == '\0';
        } else if (strncmp(word, "size=", 5) == 0) {
            ok = hearth_lab_size(word + 5, 1024, &params->store.bytes);
        }
        if (!ok) {
            (void)hearth_complain(1, "--remote: '%s' is not rate=10gbit, latency=200us, size=1t or default", word);
            return false;
        }
    }
    return true;
}

static bool read_loss(const char *word, struct hearth_fleet_loss *loss) {
    char *end = NULL;
    *loss = (struct hearth_fleet_loss){.box = HEARTH_FLEET_STORE};
    if (strncmp(word, "store@", 6) == 0) {
        word += 5;
    } else if (strncmp(word, "box", 3) == 0) {
        loss->box = (uint32_t)strtoul(word + 3, &end, 10);
        word = end;
    } else {
        return false;
    }
    if (*word != '@' || !hearth_lab_time(word + 1, &end, &loss->at_us)) {
        return false;
    }
    return *end == '\0' || (*end == '+' && hearth_lab_time(end + 1, &end, &loss->lasts_us) && *end == '\0');
}

static bool read_losses(const char *text, struct hearth_fleet_params *params) {
    char copy[512], *rest = copy, *word;
    (void)snprintf(copy, sizeof copy, "%s", text ? text : "");
    params->after_us = -1;
    while ((word = next_word(&rest)) != NULL) {
        struct hearth_fleet_loss *loss = &params->losses[params->loss_count];
        if (params->loss_count == HEARTH_FLEET_LOSSES_MAX || !read_loss(word, loss)) {
            (void)hearth_complain(1, "--lose: '%s' is not box@TIME, box3@TIME+TIME or store@TIME, as box@1h+10m", word);
            return false;
        }
        if (loss->box == HEARTH_FLEET_STORE && !params->has_store) {
            (void)hearth_complain(1, "--lose: there is no store without --remote");
            return false;
        }
        params->after_us = params->loss_count == 0 ? loss->at_us : params->after_us;
        params->loss_count++;
    }
    return true;
}

static bool read_options(const struct replay_fleet_options *chosen, struct hearth_fleet_params *params) {
    params->store =
        (struct hearth_sim_store_params){.store_bytes_per_s = 10e9 / 8,
                                         .network_bytes_per_s = 10e9 / 8,
                                         .latency_us = 200,
                                         .bytes = UINT64_C(1) << 40,
                                         .queue_bytes = params->machine.ram_bytes / 4}; /* as serve_disk.c */
    if (chosen->network && !hearth_lab_rate(chosen->network, &params->store.network_bytes_per_s)) {
        (void)hearth_complain(1, "--network: '%s' is not a rate such as 10gbit", chosen->network);
        return false;
    }
    return read_remote(chosen->remote, params) && read_losses(chosen->lose, params);
}

/* ---- runs ---- */

/* One run, and with losses one without them before it. Returns an exit status. */
static int run(struct fleet_report *report, const struct hearth_fleet_params *params, const struct hearth_trace *trace,
               uint64_t new_tokens) {
    for (int lossy = 0; lossy <= (params->loss_count > 0); lossy++) {
        struct hearth_errmsg msg = {""};
        struct fleet_run *one = &report->runs[report->count++];
        *one = (struct fleet_run){.params = *params,
                                  .requests = trace->count,
                                  .prompt_tokens = trace->prompt_tokens,
                                  .new_tokens = new_tokens};
        one->params.loss_count = lossy ? params->loss_count : 0;
        if (hearth_fleet_run(trace, &one->params, &one->result, &msg) != HEARTH_OK) {
            return hearth_complain(1, "%s", msg.text);
        }
        hearth_show_progress("replaying", report->count, 0, false);
    }
    return 0;
}

/* All routers with one number of boxes. */
static int run_routers(struct fleet_report *report, struct hearth_fleet_params *params,
                       const enum hearth_router_kind *routers, size_t router_count, const struct hearth_trace *trace) {
    struct hearth_oracle oracle;
    struct hearth_errmsg msg = {""};
    if (hearth_oracle_make(trace, &oracle, &msg) != HEARTH_OK) {
        return hearth_complain(1, "%s", msg.text);
    }
    const uint64_t new_tokens = oracle.new_tokens;
    hearth_oracle_finish(&oracle);
    int status = 0;
    for (size_t i = 0; i < router_count && status == 0; i++) {
        params->router = routers[i];
        status = run(report, params, trace, new_tokens);
    }
    return status;
}

/* ---- printing ---- */

static double share(const struct fleet_run *run) {
    return (double)run->result.computed_tokens / (double)run->prompt_tokens;
}

static double ratio(const struct fleet_run *run) {
    return (double)run->result.computed_tokens / (double)run->new_tokens;
}

static void add_row(struct hearth_show_table *table, const struct fleet_report *report, const struct fleet_run *run) {
    const struct hearth_fleet_result *result = &run->result;
    char store[200] = "\t\t";
    if (run->params.has_store) {
        (void)snprintf(store, sizeof store, "%s\t%s\t%.0f / %.0f %%", hearth_show_bytes(result->store.read_bytes).text,
                       hearth_show_bytes(result->store.written_bytes).text, 100 * result->store_load,
                       100 * result->store_peak_load);
    }
    hearth_show_table_addf(table, "%u\t%s\t%s\t%.2f %%\t%.3f\t%.2f / %.1f s\t%.2f / %.1f s\t%.0f %%\t%s",
                           run->params.boxes, hearth_router_text(run->params.router),
                           run->params.loss_count > 0 ? report->lose : "nothing", 100 * share(run), ratio(run),
                           result->all.p50_s, result->all.p99_s, result->after.p50_s, result->after.p99_s,
                           100 * result->prefill_load, store);
}

static int print_table(const struct fleet_report *report) {
    const struct hearth_show_column columns[] = {{.title = "BOXES"},
                                                 {.title = "ROUTER", .left = true},
                                                 {.title = report->lose ? "LOST" : NULL, .left = true},
                                                 {.title = "COMPUTED"},
                                                 {.title = "RATIO"},
                                                 {.title = "TTFT p50 / p99"},
                                                 {.title = report->lose ? "10 MIN AFTER" : NULL},
                                                 {.title = "BUSY"},
                                                 {.title = "READ"},
                                                 {.title = "WRITTEN"},
                                                 {.title = "STORE avg / max"}};
    struct hearth_show_table table;
    hearth_show_table_init(&table, columns, sizeof columns / sizeof *columns, "");
    for (size_t i = 0; i < report->count; i++) {
        add_row(&table, report, &report->runs[i]);
    }
    hearth_show_table_print(&table);
    return hearth_show_table_end(&table);
}

static json_t *times_json(const struct hearth_fleet_times *times) {
    return json_pack("{s:I, s:f, s:f, s:f}", "requests", (json_int_t)times->requests, "p50", times->p50_s, "p99",
                     times->p99_s, "mean", times->mean_s);
}

static json_t *run_json(const struct fleet_report *report, const struct fleet_run *run) {
    const struct hearth_fleet_result *result = &run->result;
    json_t *root = json_pack(
        "{s:I, s:s, s:I, s:I, s:I, s:f, s:f, s:I, s:o, s:f, s:f}", "boxes", (json_int_t)run->params.boxes, "router",
        hearth_router_text(run->params.router), "requests", (json_int_t)run->requests, "prompt_tokens",
        (json_int_t)run->prompt_tokens, "computed_tokens", (json_int_t)result->computed_tokens, "computed_share",
        share(run), "recompute_ratio", ratio(run), "retried", (json_int_t)result->retried, "ttft_seconds",
        times_json(&result->all), "prefill_load", result->prefill_load, "replay_seconds", result->replay_seconds);
    if (root && run->params.has_store) {
        (void)json_object_set_new(
            root, "store",
            json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "read_bytes", (json_int_t)result->store.read_bytes,
                      "written_bytes", (json_int_t)result->store.written_bytes, "deduplicated",
                      (json_int_t)result->store.deduplicated, "dropped", (json_int_t)result->store.dropped, "evicted",
                      (json_int_t)result->store.evicted, "load", result->store_load, "busiest_minute",
                      result->store_peak_load));
    }
    if (root && report->lose) {
        const bool lossy = run->params.loss_count > 0;
        (void)json_object_set_new(root, "lost", lossy ? json_string(report->lose) : json_null());
        (void)json_object_set_new(root, "ttft_seconds_after", times_json(&result->after));
    }
    return root;
}

static int print_json(const struct fleet_report *report) {
    json_t *runs = json_array();
    for (size_t i = 0; i < report->count; i++) {
        (void)json_array_append_new(runs, run_json(report, &report->runs[i]));
    }
    json_t *root = json_pack("{s:o}", "runs", runs);
    return hearth_show_json(root);
}

/* ---- entry ---- */

int hearth_lab_fleet(const struct replay_fleet_options *chosen, const struct hearth_replay_params *machine,
                     const struct hearth_trace_choice *choice, char *const paths[], size_t path_count, bool json) {
    struct hearth_fleet_params params = {.machine = *machine};
    uint32_t counts[RUNS_MAX];
    enum hearth_router_kind routers[HEARTH_ROUTERS];
    size_t count = 0, router_count = 0;
    if (!read_boxes(chosen->boxes, counts, &count) || !read_routers(chosen->router, routers, &router_count) ||
        !read_options(chosen, &params)) {
        return HEARTH_CONSOLE_USAGE;
    }
    if (count * router_count * (params.loss_count > 0 ? 2 : 1) > RUNS_MAX) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "these are more than %d runs", RUNS_MAX);
    }
    struct fleet_report *report = calloc(1, sizeof *report);
    int status = report ? 0 : hearth_complain(1, "out of memory");
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct hearth_trace_choice own = *choice;
        struct hearth_trace trace = {0};
        struct hearth_errmsg msg = {""};
        own.concurrency *= counts[i];
        own.ramp_us = RAMP_US;
        params.boxes = counts[i];
        report->lose = chosen->lose;
        for (size_t k = 0; k < params.loss_count; k++) {
            if (params.losses[k].box != HEARTH_FLEET_STORE && params.losses[k].box >= counts[i]) {
                status = hearth_complain(HEARTH_CONSOLE_USAGE, "--lose: of %u boxes there is no box %u", counts[i],
                                         params.losses[k].box);
            }
        }
        if (status == 0 && hearth_trace_read(paths, path_count, &own, &trace, &msg) != HEARTH_OK) {
            status = hearth_complain(1, "%s", msg.text);
        }
        status = status == 0 ? run_routers(report, &params, routers, router_count, &trace) : status;
        hearth_trace_finish(&trace);
    }
    hearth_show_progress_end();
    status = status == 0 ? (json ? print_json(report) : print_table(report)) : status;
    free(report);
    return status;
}
