/* Printing what `hearth replay` found. A share is of all prompt tokens; what is lost is what an infinite cache would
 * not have computed. Seconds are those of computing and of waiting for RAM and disk; columns of the disk are there
 * where there is one. */
#include "cli/replay_print.h"

#include "console/show.h"
#include "console/table.h"

#include <errno.h>
#include <string.h>

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

int hearth_lab_print_table(const struct replay_report *report) {
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

int hearth_lab_print_json(const struct replay_report *report) {
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

int hearth_lab_print_svg(const struct replay_report *report, const char *path) {
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
