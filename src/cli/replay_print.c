/* Printing what `hearth replay` found. A share is of all prompt tokens; what is lost is what an infinite cache would
 * not have computed. */
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

/* ---- table ---- */

static bool add_row(struct hearth_show_table *table, const struct replay_report *report, const struct replay_row *row) {
    const struct hearth_replay_result *result = &row->result;
    char cells[6][64];
    (void)snprintf(cells[0], sizeof cells[0], "%.2f %%", 100 * share(report, result->computed_tokens));
    for (size_t i = 0; i < HEARTH_REPLAY_CAUSES; i++) {
        (void)snprintf(cells[1 + i], sizeof cells[0], "%.0f", seconds(report, result->lost_tokens[i]));
    }
    (void)snprintf(cells[4], sizeof cells[0], "%s", hearth_show_bytes(result->stored_bytes).text);
    (void)snprintf(cells[5], sizeof cells[0], "%s", hearth_show_bytes(result->imported_bytes).text);
    const char *const texts[] = {row->name, cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]};
    return hearth_show_table_add(table, texts);
}

static bool add_bound(struct hearth_show_table *table, const struct replay_report *report, const char *name,
                      uint64_t tokens) {
    char computed[32], lost[32];
    (void)snprintf(computed, sizeof computed, "%.2f %%", 100 * share(report, tokens));
    (void)snprintf(lost, sizeof lost, "%.0f", seconds(report, tokens - report->oracle.new_tokens));
    const char *const texts[] = {name, computed, lost, "", "", "", ""};
    return hearth_show_table_add(table, texts);
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
                                                 {.title = "STORED"},
                                                 {.title = "IMPORTED"}};
    struct hearth_show_table table;
    hearth_show_table_init(&table, columns, sizeof columns / sizeof *columns, "");
    bool ok = true;
    for (size_t i = 0; ok && i < report->row_count; i++) {
        ok = add_row(&table, report, &report->rows[i]);
    }
    ok = ok && add_bound(&table, report, "belady", report->belady_tokens) &&
         add_bound(&table, report, "infinite", report->oracle.new_tokens);
    if (ok) {
        (void)printf("%s of %s prompt tokens\n\n", hearth_show_number(report->trace->count, "request", "requests").text,
                     hearth_show_count(report->trace->prompt_tokens).text);
        hearth_show_table_head(&table, "");
        for (size_t i = 0; i < report->row_count + 2; i++) {
            (void)hearth_show_table_row(&table, i);
            (void)putchar('\n');
        }
        print_agreement(report, &report->rows[0]);
    }
    hearth_show_table_finish(&table);
    return ok ? 0 : hearth_complain(1, "out of memory");
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
    if (result->served > 0) { /* "first": the number of the first request that differs */
        (void)json_object_set_new(json, "as_served",
                                  json_pack("{s:I, s:I, s:I}", "requests", (json_int_t)result->served, "same",
                                            (json_int_t)result->agreed, "first",
                                            result->agreed < result->served ? (json_int_t)result->differs + 1 : 0));
    }
    return json;
}

static json_t *bound_json(const struct replay_report *report, uint64_t tokens) {
    return json_pack("{s:f, s:I, s:f}", "computed_share", share(report, tokens), "computed_tokens", (json_int_t)tokens,
                     "prefill_seconds", seconds(report, tokens));
}

int hearth_lab_print_json(const struct replay_report *report) {
    json_t *policies = json_object();
    for (size_t i = 0; i < report->row_count; i++) {
        (void)json_object_set_new(policies, report->rows[i].name, row_json(report, &report->rows[i]));
    }
    (void)json_object_set_new(policies, "belady", bound_json(report, report->belady_tokens));
    (void)json_object_set_new(policies, "infinite", bound_json(report, report->oracle.new_tokens));
    json_t *root = json_pack("{s:I, s:I, s:o}", "requests", (json_int_t)report->trace->count, "prompt_tokens",
                             (json_int_t)report->trace->prompt_tokens, "policies", policies);
    return root ? hearth_show_json(root) : hearth_complain(1, "out of memory");
}

/* ---- SVG ---- */

enum { BAR_LEFT = 90, BAR_WIDTH = 500, BAR_HEIGHT = 22, BAR_STEP = 32, SVG_WIDTH = 680 };

static void draw_bar(FILE *out, size_t row, const char *name, double all, double fresh, double most) {
    const int y = 40 + (int)row * BAR_STEP;
    (void)fprintf(out,
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>"
                  "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#d95f02\"/>"
                  "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#7f7f7f\"/>"
                  "<text x=\"%.1f\" y=\"%d\">%.1f %%</text>\n",
                  BAR_LEFT - 8, y + 16, name, BAR_LEFT, y, BAR_WIDTH * all / most, BAR_HEIGHT, BAR_LEFT, y,
                  BAR_WIDTH * fresh / most, BAR_HEIGHT, BAR_LEFT + BAR_WIDTH * all / most + 6, y + 16, 100 * all);
}

int hearth_lab_print_svg(const struct replay_report *report, const char *path) {
    FILE *out = fopen(path, "we");
    if (!out) {
        return hearth_complain(1, "%s: %s", path, strerror(errno));
    }
    const double fresh = share(report, report->oracle.new_tokens), belady = share(report, report->belady_tokens);
    double most = belady;
    for (size_t i = 0; i < report->row_count; i++) {
        const double computed = share(report, report->rows[i].result.computed_tokens);
        most = computed > most ? computed : most;
    }
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\" "
                  "font-size=\"14\"><rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>"
                  "<text x=\"10\" y=\"22\">prompt tokens computed (grey: new ones)</text>\n",
                  SVG_WIDTH, 50 + (report->row_count + 1) * BAR_STEP);
    for (size_t i = 0; i < report->row_count; i++) {
        draw_bar(out, i, report->rows[i].name, share(report, report->rows[i].result.computed_tokens), fresh, most);
    }
    draw_bar(out, report->row_count, "belady", belady, fresh, most);
    (void)fputs("</svg>\n", out);
    return fclose(out) == 0 ? 0 : hearth_complain(1, "%s: %s", path, strerror(errno));
}
