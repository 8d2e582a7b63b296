/* `hearth replay`: what each policy would compute of a trace (src/replay), as a table, a picture or JSON.
 *
 * --cache-tokens gives what RAM may hold as tokens of the model's shape. A share is of all prompt tokens; what is lost
 * is what an infinite cache would not have computed. Seconds are those of computing and of waiting for RAM and disk;
 * columns of the disk are printed if there is one. */
#include "cli/commands.h"

#include "cli/replay_internal.h"
#include "console/show.h"
#include "console/table.h"
#include "console/tool.h"
#include "tier/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct replay_options {
    const char *policy, *ram, *cache_tokens, *shape, *part, *token_bytes, *svg;
    const char *import, *disk, *disk_read, *disk_write;
    int64_t concurrency, prefill, conversations, parallel, share, page_tokens;
    bool json;
    struct replay_fleet_options fleet;
};

static const struct hearth_console_command commands[] = {
    {"", "TRACE…", "what a cache would have computed of recorded requests, by policy", 1, 1, HEARTH_CONSOLE_MANY},
};

#define OPTION_AT(member) offsetof(struct replay_options, member)

static const struct hearth_console_option options[] = {
    {"--policy", "NAME", "only this one [all]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(policy)},
    {"--ram", "SIZE", "state that RAM may hold, as 64G [of a recording: the server's; else 16G]", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(ram)},
    {"--disk", "SIZE", "state that a disk may hold besides, as 400G; with --cache-tokens a part of it [none]", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(disk)},
    {"--disk-read", "RATE", "bytes a second that are read from it [2g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(disk_read)},
    {"--disk-write", "RATE", "and written [1g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(disk_write)},
    {"--cache-share", "PERCENT", "of RAM, that one key may hold while others want it, as the server's [75]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(share)},
    {"--cache-tokens", "N", "instead: tokens of state that may be held in all, as 600k", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(cache_tokens)},
    {"--model-shape", "SHAPE",
     "pages; hybrid:BYTES, with snapshots of so many; window:N, with a window of N tokens "
     "[the server's, or pages]",
     1, HEARTH_CONSOLE_TEXT, OPTION_AT(shape)},
    {"--token-bytes", "SIZE", "state of a token in pages [the server's, or 96k]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(token_bytes)},
    {"--page-tokens", "N", "tokens of a page, up to 65536 [the server's, or 256]", 1, HEARTH_CONSOLE_NUMBER,
     OPTION_AT(page_tokens)},
    {"--prefill", "N", "tokens that are computed in a second [2000]", 1, HEARTH_CONSOLE_NUMBER, OPTION_AT(prefill)},
    {"--import", "RATE", "bytes a second from RAM to the model [10g]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(import)},
    {"--parallel", "N", "lanes that keep the state of their last prompt; 0: none does [the server's, or 0]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(parallel)},
    {"--concurrency", "N", "sessions at once, for each box; the next starts when one ends [20]", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(concurrency)},
    {"--conversations", "N", "so many sessions: more than there are come again as others with the same heads", 1,
     HEARTH_CONSOLE_NUMBER, OPTION_AT(conversations)},
    {"--part", "K/N", "only sessions K, K + N, K + 2N, … [0/1]", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(part)},
    {"--boxes", "N,…", "over so many boxes; several numbers: one run each", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.boxes)},
    {"--router", "NAME,…", "with --boxes: affinity, least-loaded, prefix or random [affinity]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.router)},
    {"--remote", "SPEC", "with --boxes: a store that they share, as rate=10gbit,latency=200us,size=1t (or default)", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(fleet.remote)},
    {"--network", "RATE", "with --boxes: of each box, in each direction [10gbit]", 1, HEARTH_CONSOLE_TEXT,
     OPTION_AT(fleet.network)},
    {"--lose", "WHAT@TIME,…", "with --boxes: box@1h, box3@1h+10m, store@1h: gone since then, for so long", 1,
     HEARTH_CONSOLE_TEXT, OPTION_AT(fleet.lose)},
    {"--svg", "FILE", "draw it, too", 1, HEARTH_CONSOLE_TEXT, OPTION_AT(svg)},
    {"--json", "", "output for programs", 1, HEARTH_CONSOLE_SWITCH, OPTION_AT(json)},
};

static const struct hearth_console_tool tool =
    HEARTH_CONSOLE_TOOL("replay", "The lab for what is kept: no model is needed.", commands, options);

/* ---- values ---- */

static bool read_bytes(const char *name, const char *text, uint64_t *out) {
    if (text && !hearth_lab_size(text, 1024, out)) {
        (void)hearth_complain(1, "%s: '%s' is not a size such as 64M or 2G", name, text);
        return false;
    }
    return true;
}

static bool read_rate(const char *name, const char *text, double *out) {
    if (text && !hearth_lab_rate(text, out)) {
        (void)hearth_complain(1, "%s: '%s' is not a rate such as 2g", name, text);
        return false;
    }
    return true;
}

static bool read_shape(const char *text, struct hearth_replay_params *params) {
    uint64_t value = 0;
    if (!text || strcmp(text, "pages") == 0) {
        return true;
    }
    if (strncmp(text, "hybrid:", 7) == 0 && hearth_lab_size(text + 7, 1024, &value) && value > 0) {
        params->snapshot_bytes = value;
        return true;
    }
    if (strncmp(text, "window:", 7) == 0 && hearth_lab_size(text + 7, 1000, &value) && value > 0) {
        params->snapshot_bytes = value * params->token_bytes;
        return true;
    }
    (void)hearth_complain(1, "--model-shape: '%s' is not pages, hybrid:BYTES or window:N", text);
    return false;
}

static bool read_part(const char *text, struct hearth_trace_choice *choice) {
    char *end;
    if (!text) {
        return true;
    }
    unsigned long part = strtoul(text, &end, 10), of = *end == '/' ? strtoul(end + 1, &end, 10) : 0;
    if (*end || of < 1 || of > UINT32_MAX || part >= of) {
        (void)hearth_complain(1, "--part: '%s' is not K/N with K below N, such as 0/2", text);
        return false;
    }
    *choice =
        (struct hearth_trace_choice){.part = (uint32_t)part, .of = (uint32_t)of, .concurrency = choice->concurrency};
    return true;
}

static bool check_numbers(const struct replay_options *chosen) {
    const struct {
        const char *name;
        int64_t value, least, most; /* -1: not given */
    } numbers[] = {{"--concurrency", chosen->concurrency, 1, 100000},
                   {"--parallel", chosen->parallel, 0, 64},
                   {"--page-tokens", chosen->page_tokens, 1, HEARTH_RECORD_TOKENS_MAX},
                   {"--cache-share", chosen->share, 1, 100}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value >= 0 && (numbers[i].value < numbers[i].least || numbers[i].value > numbers[i].most)) {
            (void)hearth_complain(1, "%s is between %" PRId64 " and %" PRId64, numbers[i].name, numbers[i].least,
                                  numbers[i].most);
            return false;
        }
    }
    return true;
}

/* What the recorded server had, where nothing else is asked for. */
static void take_server(const struct hearth_trace *trace, const struct replay_options *chosen,
                        struct hearth_replay_params *params) {
    const struct hearth_trace_server *server = &trace->server;
    if (!server->known) {
        return;
    }
    params->page_tokens = chosen->page_tokens > 0 ? params->page_tokens : server->page_tokens;
    params->export_bytes_per_s = params->import_bytes_per_s;
    params->lanes = chosen->parallel >= 0 ? params->lanes : server->lanes;
    params->token_bytes = chosen->token_bytes ? params->token_bytes : server->token_bytes;
    params->snapshot_bytes = chosen->shape ? params->snapshot_bytes : server->snapshot_bytes;
    params->ram_bytes = chosen->ram || chosen->cache_tokens ? params->ram_bytes : server->ram_bytes;
}

/* False after a complaint. */
static bool read_options(const struct replay_options *chosen, struct hearth_replay_params *params,
                         struct hearth_trace_choice *choice) {
    uint64_t token_bytes = 96 << 10, tokens = 0;
    *params =
        (struct hearth_replay_params){.ram_bytes = UINT64_C(16) << 30,
                                      .prefill_tokens_per_s = chosen->prefill > 0 ? (double)chosen->prefill : 2000,
                                      .import_bytes_per_s = 10e9,
                                      .disk_read_bytes_per_s = 2e9,
                                      .disk_write_bytes_per_s = 1e9};
    *choice = (struct hearth_trace_choice){.of = 1, .concurrency = 20};
    if (!check_numbers(chosen)) {
        return false;
    }
    choice->sessions = chosen->conversations > 0 ? (uint64_t)chosen->conversations : 0;
    choice->concurrency = chosen->concurrency > 0 ? (uint32_t)chosen->concurrency : choice->concurrency;
    bool ok = read_bytes("--token-bytes", chosen->token_bytes, &token_bytes) &&
              read_bytes("--ram", chosen->ram, &params->ram_bytes) && read_part(chosen->part, choice) &&
              read_bytes("--disk", chosen->disk, &params->disk_bytes) &&
              read_rate("--disk-read", chosen->disk_read, &params->disk_read_bytes_per_s) &&
              read_rate("--disk-write", chosen->disk_write, &params->disk_write_bytes_per_s) &&
              read_rate("--import", chosen->import, &params->import_bytes_per_s);
    params->token_bytes = token_bytes;
    params->page_tokens = chosen->page_tokens > 0 ? (int32_t)chosen->page_tokens : 0;
    params->share = chosen->share > 0 ? (double)chosen->share / 100 : 0.75;
    params->lanes = chosen->parallel > 0 ? (uint32_t)chosen->parallel : 0;
    if (!ok || !read_shape(chosen->shape, params)) {
        return false;
    }
    if (chosen->cache_tokens && !hearth_lab_size(chosen->cache_tokens, 1000, &tokens)) {
        (void)hearth_complain(1, "--cache-tokens: '%s' is not a number such as 600k", chosen->cache_tokens);
        return false;
    }
    if (chosen->cache_tokens) {
        params->ram_bytes = hearth_replay_bytes(params, tokens);
        if (params->ram_bytes <= params->disk_bytes) {
            (void)hearth_complain(1, "--cache-tokens: the disk alone holds more, which leaves nothing to RAM");
            return false;
        }
        params->ram_bytes -= params->disk_bytes;
    }
    return true;
}

/* ---- the report ---- */

#define REPLAY_POLICIES_MAX 8

struct replay_report {
    const struct hearth_trace *trace;
    const struct hearth_replay_params *params;
    struct hearth_oracle oracle;
    struct replay_row {
        const char *name;
        struct hearth_replay_result result;
    } rows[REPLAY_POLICIES_MAX];
    size_t row_count;
    struct hearth_replay_bound belady;
};

static double share(const struct replay_report *report, uint64_t tokens) {
    return (double)tokens / (double)report->trace->prompt_tokens;
}

static double seconds(const struct replay_report *report, uint64_t tokens) {
    return (double)tokens / report->params->prefill_tokens_per_s;
}

static bool has_disk(const struct replay_report *report) {
    return report->params->disk_bytes > 0;
}

static double all_seconds(const struct hearth_replay_result *result) {
    return result->prefill_s + result->import_s + result->read_s;
}

/* ---- table ---- */

static void add_row(struct hearth_show_table *table, const struct replay_report *report, const struct replay_row *row) {
    const struct hearth_replay_result *result = &row->result;
    hearth_show_table_addf(
        table, "%s\t%.2f %%\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%s / %s\t%s / %s", row->name,
        100 * share(report, result->computed_tokens), seconds(report, result->lost_tokens[HEARTH_REPLAY_EVICTED]),
        seconds(report, result->lost_tokens[HEARTH_REPLAY_NO_SNAPSHOT]),
        seconds(report, result->lost_tokens[HEARTH_REPLAY_CHEAPER]), result->read_s, all_seconds(result),
        hearth_show_bytes(result->stored_bytes).text, hearth_show_bytes(result->imported_bytes).text,
        hearth_show_bytes(result->written_bytes).text, hearth_show_bytes(result->read_bytes).text);
}

static void add_bound(struct hearth_show_table *table, const struct replay_report *report, const char *name,
                      const struct hearth_replay_bound *bound) {
    hearth_show_table_addf(table, "%s\t%.2f %%\t%.0f\t\t\t%.0f\t%.0f\t\t", name,
                           100 * share(report, bound->computed_tokens),
                           seconds(report, bound->computed_tokens - report->oracle.new_tokens), bound->read_s,
                           bound->prefill_s + bound->read_s);
}

/* What an endless cache computes. */
static struct hearth_replay_bound infinite_of(const struct replay_report *report) {
    return (struct hearth_replay_bound){.computed_tokens = report->oracle.new_tokens,
                                        .prefill_s = seconds(report, report->oracle.new_tokens)};
}

/* Says how far a policy did what the recorded server did. */
static void print_agreement(const struct replay_report *report, const struct replay_row *row) {
    const struct hearth_replay_result *result = &row->result;
    if (result->served == 0) {
        return;
    }
    (void)printf("\n%s: %llu of %s as the server did", row->name, (unsigned long long)result->agreed,
                 hearth_show_number(result->served, "request", "requests").text);
    if (result->agreed < result->served) {
        const struct hearth_trace_request *first = &report->trace->requests[result->differs];
        (void)printf("; the first that differs is number %zu, of %d tokens", result->differs + 1, first->prompt_tokens);
    }
    (void)putchar('\n');
}

static int print_table(const struct replay_report *report) {
    const struct hearth_show_column columns[] = {{.title = "POLICY", .left = true},
                                                 {.title = "COMPUTED"},
                                                 {.title = "EVICTED s"},
                                                 {.title = "NO SNAPSHOT s"},
                                                 {.title = "CHEAPER s"},
                                                 {.title = has_disk(report) ? "READ s" : NULL},
                                                 {.title = "ALL s"},
                                                 {.title = "RAM in / out"},
                                                 {.title = has_disk(report) ? "DISK in / out" : NULL}};
    const struct hearth_replay_bound infinite = infinite_of(report);
    struct hearth_show_table table;
    hearth_show_table_init(&table, columns, sizeof columns / sizeof *columns, "");
    for (size_t i = 0; i < report->row_count; i++) {
        add_row(&table, report, &report->rows[i]);
    }
    add_bound(&table, report, "belady", &report->belady);
    add_bound(&table, report, "infinite", &infinite);
    (void)printf("%s of %s prompt tokens\n\n", hearth_show_number(report->trace->count, "request", "requests").text,
                 hearth_show_count(report->trace->prompt_tokens).text);
    hearth_show_table_print(&table);
    print_agreement(report, &report->rows[0]);
    return hearth_show_table_end(&table);
}

/* ---- JSON ---- */

static json_t *row_json(const struct replay_report *report, const struct replay_row *row) {
    const struct hearth_replay_result *result = &row->result;
    json_t *lost = json_object();
    for (size_t i = 0; i < HEARTH_REPLAY_CAUSES; i++) {
        (void)json_object_set_new(lost, hearth_replay_cause_text((enum hearth_replay_cause)i),
                                  json_real(seconds(report, result->lost_tokens[i])));
    }
    json_t *json = json_pack(
        "{s:f, s:I, s:o, s:f, s:f, s:I, s:I, s:f}", "computed_share", share(report, result->computed_tokens),
        "computed_tokens", (json_int_t)result->computed_tokens, "lost_seconds", lost, "prefill_seconds",
        result->prefill_s, "import_seconds", result->import_s, "stored_bytes", (json_int_t)result->stored_bytes,
        "imported_bytes", (json_int_t)result->imported_bytes, "replay_seconds", result->seconds);
    (void)json_object_set_new(json, "seconds", json_real(all_seconds(result)));
    (void)json_object_set_new(json, "read_seconds", json_real(result->read_s));
    json_t *keys = json_object();
    for (size_t i = 0; i < HEARTH_REPLAY_KEYS; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "%zu", i);
        if (result->key_tokens[i] > 0) {
            (void)json_object_set_new(keys, name, json_integer((json_int_t)result->key_tokens[i]));
        }
    }
    (void)json_object_set_new(json, "computed_tokens_of_keys", keys);
    if (has_disk(report)) {
        (void)json_object_set_new(json, "disk",
                                  json_pack("{s:I, s:I}", "written_bytes", (json_int_t)result->written_bytes,
                                            "read_bytes", (json_int_t)result->read_bytes));
    }
    if (result->served > 0) { /* "first": the number of the first request that differs */
        (void)json_object_set_new(json, "as_served",
                                  json_pack("{s:I, s:I, s:I}", "requests", (json_int_t)result->served, "same",
                                            (json_int_t)result->agreed, "first",
                                            result->agreed < result->served ? (json_int_t)result->differs + 1 : 0));
    }
    return json;
}

static json_t *bound_json(const struct replay_report *report, const struct hearth_replay_bound *bound) {
    return json_pack("{s:f, s:I, s:f, s:f, s:f}", "computed_share", share(report, bound->computed_tokens),
                     "computed_tokens", (json_int_t)bound->computed_tokens, "prefill_seconds", bound->prefill_s,
                     "read_seconds", bound->read_s, "seconds", bound->prefill_s + bound->read_s);
}

static int print_json(const struct replay_report *report) {
    const struct hearth_replay_bound infinite = infinite_of(report);
    json_t *policies = json_object();
    for (size_t i = 0; i < report->row_count; i++) {
        (void)json_object_set_new(policies, report->rows[i].name, row_json(report, &report->rows[i]));
    }
    (void)json_object_set_new(policies, "belady", bound_json(report, &report->belady));
    (void)json_object_set_new(policies, "infinite", bound_json(report, &infinite));
    json_t *root = json_pack("{s:I, s:I, s:o}", "requests", (json_int_t)report->trace->count, "prompt_tokens",
                             (json_int_t)report->trace->prompt_tokens, "policies", policies);
    return hearth_show_json(root);
}

/* ---- SVG ---- */

enum { BAR_LEFT = 90, BAR_WIDTH = 500, BAR_HEIGHT = 22, BAR_STEP = 32, SVG_WIDTH = 740 };

/* A bar of tokens: all of them, and those that are new; at its end their share, and the seconds. */
static void draw_bar(FILE *out, const struct replay_report *report, size_t row, const char *name, uint64_t tokens,
                     double seconds, double most) {
    const int y = 40 + (int)row * BAR_STEP;
    const double all = share(report, tokens), fresh = share(report, report->oracle.new_tokens);
    (void)fprintf(out,
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>"
                  "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#d95f02\"/>"
                  "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#7f7f7f\"/>"
                  "<text x=\"%.1f\" y=\"%d\">%.1f %%, %.0f s</text>\n",
                  BAR_LEFT - 8, y + 16, name, BAR_LEFT, y, BAR_WIDTH * all / most, BAR_HEIGHT, BAR_LEFT, y,
                  BAR_WIDTH * fresh / most, BAR_HEIGHT, BAR_LEFT + BAR_WIDTH * all / most + 6, y + 16, 100 * all,
                  seconds);
}

static int print_svg(const struct replay_report *report, const char *path) {
    FILE *out = fopen(path, "we");
    if (!out) {
        return hearth_complain(1, "%s: %s", path, strerror(errno));
    }
    double most = share(report, report->belady.computed_tokens);
    for (size_t i = 0; i < report->row_count; i++) {
        const double computed = share(report, report->rows[i].result.computed_tokens);
        most = computed > most ? computed : most;
    }
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\" "
                  "font-size=\"14\"><rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>"
                  "<text x=\"10\" y=\"22\">prompt tokens computed (grey: new ones), and seconds of computing and "
                  "waiting</text>\n",
                  SVG_WIDTH, 50 + (report->row_count + 1) * BAR_STEP);
    for (size_t i = 0; i < report->row_count; i++) {
        const struct hearth_replay_result *result = &report->rows[i].result;
        draw_bar(out, report, i, report->rows[i].name, result->computed_tokens, all_seconds(result), most);
    }
    draw_bar(out, report, report->row_count, "belady", report->belady.computed_tokens,
             report->belady.prefill_s + report->belady.read_s, most);
    (void)fputs("</svg>\n", out);
    return fclose(out) == 0 ? 0 : hearth_complain(1, "%s: %s", path, strerror(errno));
}

/* ---- the command ---- */

static int replay(const struct replay_options *chosen, struct hearth_replay_params *params,
                  const struct hearth_trace *trace) {
    struct hearth_errmsg msg = {""};
    struct replay_report report = {.trace = trace, .params = params};
    take_server(trace, chosen, params);
    if (hearth_oracle_make(trace, &report.oracle, &msg)) {
        return hearth_complain(1, "%s", msg.text);
    }
    int status = 0;
    for (size_t i = 0; status == 0 && hearth_replay_policies[i]; i++) {
        if (chosen->policy && strcmp(chosen->policy, hearth_replay_policies[i]->name) != 0) {
            continue;
        }
        struct replay_row *row = &report.rows[report.row_count++];
        row->name = hearth_replay_policies[i]->name;
        params->policy = hearth_replay_policies[i];
        if (hearth_replay_run(trace, &report.oracle, params, &row->result, &msg)) {
            status = hearth_complain(1, "%s", msg.text);
        }
    }
    if (status == 0 && report.row_count == 0) {
        status = hearth_complain(HEARTH_CONSOLE_USAGE, "--policy: there is no '%s'", chosen->policy);
    }
    if (status == 0) {
        report.belady = hearth_replay_bound(trace, &report.oracle, params);
        status = chosen->json ? print_json(&report) : print_table(&report);
    }
    if (status == 0 && chosen->svg) {
        status = print_svg(&report, chosen->svg);
    }
    hearth_oracle_finish(&report.oracle);
    return status;
}

/* The policy of that name; NULL: the server's. False: there is none. */
static bool find_policy(const char *name, const struct hearth_policy **out) {
    size_t i = 0;
    while (name && hearth_replay_policies[i] && strcmp(name, hearth_replay_policies[i]->name) != 0) {
        i++;
    }
    *out = hearth_replay_policies[i];
    return *out != NULL;
}

static int replay_fleet(const struct replay_options *chosen, struct hearth_replay_params *params,
                        const struct hearth_trace_choice *choice, const struct hearth_console_call *call) {
    if (!find_policy(chosen->policy, &params->policy)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--policy: there is no '%s'", chosen->policy);
    }
    if (chosen->svg) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--svg: there is no picture of several boxes");
    }
    if (chosen->disk) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--disk: several boxes have a store (--remote) and no disks");
    }
    return hearth_lab_fleet(&chosen->fleet, params, choice, call->args, (size_t)call->arg_count, chosen->json);
}

static int run(const struct hearth_console_call *call, void *user) {
    const struct replay_options *chosen = user;
    const struct replay_fleet_options *fleet = &chosen->fleet;
    struct hearth_replay_params params;
    struct hearth_trace_choice choice;
    struct hearth_trace trace = {0};
    struct hearth_errmsg msg = {""};
    if (!fleet->boxes && (fleet->router || fleet->remote || fleet->network || fleet->lose)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--router, --remote, --network and --lose need --boxes");
    }
    if (!read_options(chosen, &params, &choice)) {
        return HEARTH_CONSOLE_USAGE;
    }
    if (fleet->boxes) {
        return replay_fleet(chosen, &params, &choice, call);
    }
    const int status = hearth_trace_read(call->args, (size_t)call->arg_count, &choice, &trace, &msg) == HEARTH_OK
                           ? replay(chosen, &params, &trace)
                           : hearth_complain(1, "%s", msg.text);
    hearth_trace_finish(&trace);
    return status;
}

int hearth_cli_replay(int argc, char *const argv[]) {
    struct replay_options chosen = {.concurrency = -1, .prefill = -1, .parallel = -1, .share = -1, .page_tokens = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, run);
}
