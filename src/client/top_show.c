/* A frame of `hearth top`: totals, then its tables, then the keys, or what is wrong.
 *
 * A line of totals is put together from its most important part to the least; parts that do not fit are left out.
 * Numbers that the server does not tell are "-". Rates are over the time between two samples. If a counter has become
 * smaller, the server was restarted, and there is no rate for that time.
 *
 * A table has columns of fixed widths, each with a rank. When the screen is too narrow, columns of the highest ranks
 * are left out; space that remains goes to the column that can use it. Lanes come first, waiting requests get half
 * of the remaining lines, and a table with more rows than lines shows those around the selected one.
 *
 * Invariant: every character of a frame goes through put(), put_text() or put_cell(), which count columns. So no line
 * is wider than the screen, and no control character of a client reaches the terminal. */
#include "client/top.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines ---- */

/* A line that is put together from its most important part to the least: what does not fit is left out, and so is
 * everything behind it. */
struct top_line {
    FILE *out;
    int columns, used;
    int blanks; /* of `used`: they are printed when something comes behind them */
    bool full;
};

static void print_blanks(struct top_line *line) {
    (void)fprintf(line->out, "%*s", line->blanks, "");
    line->blanks = 0;
}

/* Appends a part of ASCII, whole or not at all; the first one of a line is cut. */
static void put(struct top_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct top_line *line, const char *format, ...) {
    char part[256];
    va_list args;
    va_start(args, format);
    const int len = vsnprintf(part, sizeof part, format, args);
    va_end(args);
    const int room = line->columns - line->used;
    line->full = line->full || len < 0 || (len > room && line->used > 0);
    if (!line->full) {
        print_blanks(line);
        line->used += fprintf(line->out, "%.*s", room, part);
        line->full = len > room;
    }
}

/* Appends a client's text, as much of it as there is room for and at most `columns`. */
static void put_text(struct top_line *line, const char *text, int columns) {
    const int room = line->columns - line->used, most = columns < room ? columns : room;
    if (line->full || most < 2) {
        line->full = true;
        return;
    }
    print_blanks(line);
    line->used += hearth_show_text(line->out, text, most);
}

/* Likewise, filled up with blanks to `columns`; "-" for no text. */
static void put_cell(struct top_line *line, const char *text, int columns) {
    const int begun = line->used;
    put_text(line, *text != '\0' ? text : "-", columns);
    if (!line->full && line->used - begun < columns) {
        line->blanks = columns - (line->used - begun);
        line->used = begun + columns;
    }
}

/* Ends the line, and begins the next one. */
static void end_line(struct top_line *line) {
    (void)fputc('\n', line->out);
    line->used = line->blanks = 0;
    line->full = false;
}

/* ---- members that may be missing: NAN, "" ---- */

static double number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *name_of(const json_t *object, const char *name) {
    const char *value = json_string_value(json_object_get(object, name));
    return value ? value : "";
}

/* ---- numbers as text; "-" for NAN ---- */

static const struct hearth_shown missing = {"-"};

static struct hearth_shown shown_count(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_count((uint64_t)n) : missing;
}

static struct hearth_shown shown_bytes(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_bytes((uint64_t)n) : missing;
}

static struct hearth_shown shown_percent(double fraction) {
    struct hearth_shown out = missing;
    if (fraction >= 0) {
        (void)snprintf(out.text, sizeof out.text, "%.0f %%", fraction * 100);
    }
    return out;
}

static struct hearth_shown shown_rate(double per_s) {
    struct hearth_shown out = missing;
    if (per_s >= 0) {
        (void)snprintf(out.text, sizeof out.text, per_s < 100 ? "%.1f" : "%.0f", per_s);
    }
    return out;
}

static struct hearth_shown shown_duration(double ms) {
    struct hearth_shown out = missing;
    if (ms >= 0 && ms < 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.1f s", ms / 1e3);
    } else if (ms >= 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.0f:%02d min", floor(ms / 60e3), (int)fmod(ms / 1e3, 60));
    }
    return out;
}

#define show_count(n) (shown_count(n).text)
#define show_duration(n) (shown_duration(n).text)
#define show_bytes(n) (shown_bytes(n).text)
#define show_percent(n) (shown_percent(n).text)
#define show_rate(n) (shown_rate(n).text)

/* ---- samples ---- */

static double metric(const struct top_sample *sample, const char *name) {
    char full[96];
    (void)snprintf(full, sizeof full, "hearth_%s", name);
    return number(sample->metrics, full);
}

/* What a counter has grown by. */
static double growth(const struct top_sample *before, const struct top_sample *now, const char *name) {
    const double more = before ? metric(now, name) - metric(before, name) : NAN;
    return more >= 0 ? more : NAN;
}

static double seconds_between(const struct top_sample *before, const struct top_sample *now) {
    return before && now->at_us > before->at_us ? (double)(now->at_us - before->at_us) / 1e6 : NAN;
}

/* Prompt tokens that were reused, wherever their state was; with `before` since then. */
static double reused_tokens(const struct top_sample *before, const struct top_sample *now) {
    static const char *const names[] = {"prompt_reused_live_tokens_total", "prompt_reused_ram_tokens_total",
                                        "prompt_reused_disk_tokens_total", "prompt_reused_remote_tokens_total"};
    double sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const double n = before ? growth(before, now, names[i]) : metric(now, names[i]);
        sum += i > 0 && isnan(n) ? 0 : n; /* an older server has the first one only */
    }
    return sum;
}

static double share(double some, double all) {
    return all > 0 ? some / all : NAN;
}

/* ---- totals ---- */

static void print_requests(struct top_line *line, const struct top_sample *now) {
    put(line, "requests  %s running, %s waiting", show_count(metric(now, "lanes_busy")),
        show_count(metric(now, "queued")));
    if (json_is_true(json_object_get(now->queue, "full"))) {
        put(line, " (no room for more)");
    }
    put(line, "; %s done", show_count(metric(now, "requests_done_total")));
    put(line, ", %s failed", show_count(metric(now, "requests_failed_total")));
    put(line, ", %s refused", show_count(metric(now, "requests_refused_total")));
    put(line, ", %s left", show_count(metric(now, "requests_cancelled_total")));
    put(line, ", %s late", show_count(metric(now, "requests_late_total")));
    end_line(line);
}

static void print_prompts(struct top_line *line, const struct top_sample *before, const struct top_sample *now) {
    const double computed = metric(now, "prompt_computed_tokens_total");
    const double reused = reused_tokens(NULL, now), computed_now = growth(before, now, "prompt_computed_tokens_total");
    put(line, "prompts   %s tokens reused (%s), %s computed", show_count(reused),
        show_percent(share(reused, reused + computed)), show_count(computed));
    if (!isnan(computed_now)) {
        put(line, "; in the last %.0f s %s, %s", seconds_between(before, now), show_count(reused_tokens(before, now)),
            show_count(computed_now));
    }
    end_line(line);
}

static void print_replies(struct top_line *line, const struct top_sample *before, const struct top_sample *now) {
    const double drafted = metric(now, "drafted_tokens_total"), accepted = metric(now, "accepted_tokens_total");
    const double preempted = metric(now, "preemptions_total"), gave_way = metric(now, "yields_total");
    put(line, "replies   %s tokens", show_count(metric(now, "generated_tokens_total")));
    if (before) {
        put(line, ", %s/s now",
            show_rate(growth(before, now, "generated_tokens_total") / seconds_between(before, now)));
    }
    if (preempted > 0 || gave_way > 0) {
        put(line, "; lanes short of cells %s, given way %s", show_count(preempted), show_count(gave_way));
    }
    if (drafted > 0) {
        put(line, "; guessed %s, kept %s", show_count(drafted), show_percent(share(accepted, drafted)));
    }
    end_line(line);
}

static void print_cache(struct top_line *line, const struct top_sample *now) {
    const json_t *disk = json_object_get(now->health, "disk");
    const char *state = name_of(disk, "state"), *trouble = name_of(disk, "trouble");
    const bool off = strcmp(state, "off") == 0, bad = *state != '\0' && !off && strcmp(state, "ok") != 0;
    put(line, "cache     RAM %s", show_bytes(metric(now, "page_bytes") + metric(now, "snapshot_bytes")));
    if (off) {
        put(line, "; disk is off");
    }
    if (bad) {
        put(line, "; disk is ");
        put_text(line, state, 20);
    }
    if (*trouble != '\0') {
        put(line, ": ");
        put_text(line, trouble, 100);
    }
    if (*state != '\0' && !off) {
        put(line, "; disk %s of %s", show_bytes(number(disk, "bytes")), show_bytes(number(disk, "budget_bytes")));
    }
    put(line, "; %s pages, %s snapshots", show_count(metric(now, "pages")), show_count(metric(now, "snapshots")));
    put(line, ", evicted %s", show_count(metric(now, "evicted_pages_total") + metric(now, "evicted_snapshots_total")));
    end_line(line);
}

static void print_connections(struct top_line *line, const struct top_sample *now) {
    put(line, "clients   %s connections, %s waiting for replies", show_count(metric(now, "http_connections")),
        show_count(metric(now, "http_connections_busy")));
    put(line, ", %s sending", show_count(metric(now, "http_connections_reading")));
    put(line, ", %s idle", show_count(metric(now, "http_connections_idle")));
    put(line, "; %s too slow, %s too late, %s refused", show_count(metric(now, "http_stalled_total")),
        show_count(metric(now, "http_timeouts_total")), show_count(metric(now, "http_refused_total")));
    end_line(line);
}

/* What most was computed again for: a client may have waited for longer. */
static const json_t *main_waste(const json_t *client) {
    size_t i;
    const json_t *cause;
    json_array_foreach(json_object_get(client, "causes"), i, cause) {
        if (strcmp(name_of(cause, "kind"), "waste") == 0) {
            return cause;
        }
    }
    return NULL;
}

/* Which clients had most computed again among the last requests, and why. Returns the number of lines. */
static int print_waste(struct top_line *line, const struct top_sample *now) {
    const json_t *client;
    size_t i;
    if (!(number(now->clients, "requests") > 0)) {
        return 0;
    }
    put(line, "wasted    %s of computed",
        show_percent(share(number(now->clients, "again_tokens"), number(now->clients, "computed_tokens"))));
    json_array_foreach(json_object_get(now->clients, "data"), i, client) {
        const char *name = name_of(client, "client");
        const double lost_ms = number(client, "lost_ms");
        if (lost_ms > 0) {
            put(line, "%s %s %s ", i == 0 ? ":" : ",", show_duration(lost_ms), name_of(main_waste(client), "cause"));
            put_text(line, *name != '\0' ? name : "-", 20);
        }
    }
    end_line(line);
    return 1;
}

#define GAP 2
#define LINES_BELOW 9 /* that lanes leave to what is below them, when it has so many */
#define LANES_LEAST 3
#define ROWS_MAX 1024
#define NAME_COLUMNS 40

/* ---- tables ---- */

struct top_column {
    const char *title;
    int width, rank, grows; /* `grows`: so much wider, if there is room */
    bool right;             /* aligned, as numbers are */
    /* The cell's text, which may be put into `room`. NULL: the row ends here. */
    const char *(*value)(const json_t *row, struct hearth_shown *room);
};

struct top_table {
    const struct top_column *columns;
    size_t column_count;
    const json_t *rows[ROWS_MAX];
    size_t row_count;
};

/* The width of each column; 0: there is no room for it. */
static void fit(const struct top_table *table, int room, int *widths) {
    const int n = (int)table->column_count;
    room -= 1; /* the mark of the selected row */
    for (int rank = 0; rank < n; rank++) {
        for (int i = 0; i < n; i++) {
            const int needed = table->columns[i].width + (rank > 0 ? GAP : 0);
            if (table->columns[i].rank == rank) {
                widths[i] = needed <= room ? table->columns[i].width : 0;
                room -= widths[i] > 0 ? needed : 0;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        const int more = table->columns[i].grows < room ? table->columns[i].grows : room;
        widths[i] += widths[i] > 0 ? more : 0;
        room -= widths[i] > 0 ? more : 0;
    }
}

/* The row, or the titles. */
static void print_row(struct top_line *line, const struct top_table *table, const int *widths, const json_t *row,
                      bool selected) {
    struct hearth_shown room;
    const char *gap = "";
    put(line, "%s", selected ? ">" : " ");
    for (size_t i = 0; i < table->column_count; i++) {
        const struct top_column *column = &table->columns[i];
        const char *value = row != NULL ? column->value(row, &room) : column->title;
        if (value == NULL) {
            break;
        }
        if (widths[i] > 0) {
            put(line, "%s", gap);
            if (column->right) {
                put(line, "%*.*s", widths[i], widths[i], value);
            } else {
                put_cell(line, value, widths[i]);
            }
            gap = "  ";
        }
    }
    end_line(line);
}

/* The titles and as many rows as there is room for; of more, those around the selected one (-1: none). */
static void print_table(struct top_line *line, const struct top_table *table, size_t lines, int selected) {
    int widths[16];
    const size_t room = lines > 1 ? lines - 1 : 0, shown = table->row_count < room ? table->row_count : room;
    const size_t first = selected >= (int)shown ? (size_t)selected - shown + 1 : 0;
    fit(table, line->columns, widths);
    if (shown > 0) {
        print_row(line, table, widths, NULL, false);
    }
    for (size_t i = first; i < first + shown; i++) {
        print_row(line, table, widths, table->rows[i], (int)i == selected);
    }
}

/* ---- cells ---- */

#define SHOWN(title, expression)                                             \
    static const char *title(const json_t *row, struct hearth_shown *room) { \
        *room = (expression);                                                \
        return room->text;                                                   \
    }

#define TEXT(title, expression)                                              \
    static const char *title(const json_t *row, struct hearth_shown *room) { \
        (void)room;                                                          \
        return (expression);                                                 \
    }

static const json_t *more_of(const json_t *slot) {
    return json_object_get(slot, "hearth");
}

/* A lane's request, or the request itself. */
static const json_t *details_of(const json_t *row) {
    const json_t *more = more_of(row);
    return more ? more : row;
}

static double member(const json_t *object, const char *group, const char *what) {
    return number(json_object_get(object, group), what);
}

static const char *lane_state(const json_t *slot) {
    return *name_of(more_of(slot), "state") ? name_of(more_of(slot), "state") : name_of(slot, "state");
}

/* By the name that it gives itself, or by what it asks for. */
static const char *client_of(const json_t *what) {
    return *name_of(what, "client") ? name_of(what, "client") : name_of(what, "endpoint");
}

static double lane_ms(const json_t *slot) {
    return number(more_of(slot), strcmp(lane_state(slot), "decode") == 0 ? "decode_ms" : "prefill_ms");
}

static double reused_share(const json_t *slot) {
    const double prompt = number(more_of(slot), "prompt_tokens");
    return prompt > 0 ? number(more_of(slot), "reused_tokens") / prompt : NAN;
}

/* Of a lane or a request. */
TEXT(row_key, name_of(details_of(row), "key"))
TEXT(row_client, client_of(details_of(row)))
TEXT(row_session, name_of(details_of(row), "session"))
SHOWN(row_prompt, shown_count(number(details_of(row), "prompt_tokens")))

SHOWN(lane_id, shown_count(number(row, "id")))
TEXT(lane_state_text, lane_state(row))
TEXT(lane_class, json_is_object(more_of(row)) ? name_of(more_of(row), "class") : NULL)
SHOWN(lane_reused, shown_percent(reused_share(row)))
SHOWN(lane_done, shown_percent(number(more_of(row), "progress")))
SHOWN(lane_reply, shown_count(number(more_of(row), "generated_tokens")))
SHOWN(lane_rate, shown_rate(number(more_of(row), "tokens_per_second")))
SHOWN(lane_since, shown_duration(lane_ms(row)))

static const struct top_column lane_columns[] = {
    {"LANE", 4, 0, 0, true, lane_id},         {"STATE", 7, 1, 0, false, lane_state_text},
    {"CLASS", 11, 11, 0, false, lane_class},  {"KEY", 10, 10, 0, false, row_key},
    {"CLIENT", 15, 2, 10, false, row_client}, {"CONVERSATION", 13, 6, 25, false, row_session},
    {"PROMPT", 7, 3, 0, true, row_prompt},    {"REUSED", 6, 7, 0, true, lane_reused},
    {"DONE", 5, 4, 0, true, lane_done},       {"REPLY", 7, 9, 0, true, lane_reply},
    {"TOKEN/S", 7, 8, 0, true, lane_rate},    {"SINCE", 8, 5, 0, true, lane_since},
};

/* Why a request waits. The words are those of the server (`wait`), or what its state tells. */
static const struct wait_reason {
    const char *word, *text, *advice;
} wait_reasons[] = {
    {"lane", "every lane is busy", "more lanes (--parallel), fewer clients, or classes and weights"},
    {"batch", "the batch before it", "nothing: it begins when that has been computed"},
    {"prefix", "its beginning is computed", "nothing: in a moment that is reused"},
    {"cells", "short of cells", "more --ctx-size, or less --parallel"},
    {"disk", "its state is read (disk)", "more --cache-ram, or a faster disk"},
    {"store", "the shared store is asked", "a store that is nearer, or without --kv-remote"},
    {"scan", "the disk is looked through", "nothing: the server has just started"},
    {"preempted", "preempted for another", "another class or weight, or more lanes (--parallel)"},
    {"worker", "it is still prepared", "clients that send less at once, or a cheaper history"},
    {"queued", "every lane is busy", "more lanes (--parallel), fewer clients, or classes and weights"},
};

static const struct wait_reason *wait_reason(const json_t *waiting) {
    const char *word = *name_of(waiting, "wait") ? name_of(waiting, "wait") : name_of(waiting, "state");
    const size_t n = sizeof wait_reasons / sizeof wait_reasons[0];
    size_t i = 0;
    while (i + 1 < n && strcmp(wait_reasons[i].word, word) != 0) {
        i++;
    }
    return &wait_reasons[i];
}

SHOWN(wait_time, shown_duration(number(row, "waited_ms")))
TEXT(wait_class, name_of(row, "class"))
TEXT(wait_why, wait_reason(row)->text)

static const struct top_column wait_columns[] = {
    {"WAITS", 8, 0, 0, false, wait_time},
    {"CLASS", 11, 6, 0, false, wait_class},
    {"KEY", 10, 5, 0, false, row_key},
    {"CLIENT", 15, 2, 10, false, row_client},
    {"CONVERSATION", 13, 4, 25, false, row_session},
    {"PROMPT", 7, 3, 0, true, row_prompt},
    {"WHY", 26, 1, 0, false, wait_why},
};

static const json_t *first_verdict(const json_t *request) {
    return json_array_get(json_object_get(request, "verdicts"), 0);
}

/* When it ended. */
static struct hearth_shown time_of_day(const json_t *request) {
    struct hearth_shown out;
    char text[16];
    const double ms = member(request, "ms", "total");
    (void)snprintf(out.text, sizeof out.text, "%s",
                   hearth_client_local_time(name_of(request, "at"), ms > 0 ? ms : 0, text));
    return out;
}

static const char *outcome(const json_t *request) {
    const char *end = name_of(request, "end");
    const bool replied = strcmp(end, "stop") == 0 || strcmp(end, "length") == 0;
    return !replied ? end : *name_of(first_verdict(request), "cause") ? name_of(first_verdict(request), "cause") : "-";
}

SHOWN(request_at, time_of_day(row))
SHOWN(request_ttft, shown_duration(member(row, "ms", "ttft")))
SHOWN(request_prompt, shown_count(member(row, "tokens", "prompt")))
SHOWN(request_computed, shown_count(member(row, "tokens", "computed")))
TEXT(request_outcome, outcome(row))
TEXT(request_text, *name_of(row, "error") ? name_of(row, "error") : name_of(first_verdict(row), "text"))

static const struct top_column request_columns[] = {
    {"ENDED", 8, 0, 0, false, request_at},     {"TTFT", 8, 1, 0, true, request_ttft},
    {"PROMPT", 7, 4, 0, true, request_prompt}, {"COMPUTED", 8, 5, 0, true, request_computed},
    {"CLIENT", 16, 3, 0, false, row_client},   {"CONVERSATION", 15, 7, 0, false, row_session},
    {"WHY", 18, 2, 0, false, request_outcome}, {" ", 24, 6, 100, false, request_text},
};

/* ---- rows ---- */

static enum top_sort order;

static double sort_key(const json_t *slot) {
#define X(key, text, what, sign) {what, sign},
    static const struct {
        const char *member;
        int sign;
    } orders[] = {TOP_SORT_TABLE(X)};
#undef X
    const double value = number(more_of(slot), orders[order].member);
    return isnan(value) ? INFINITY : value * orders[order].sign; /* idle lanes last */
}

static int in_order(const void *a, const void *b) {
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    const double difference = order != TOP_SORT_LANE && sort_key(x) != sort_key(y) ? sort_key(x) - sort_key(y)
                                                                                   : number(x, "id") - number(y, "id");
    return (difference > 0) - (difference < 0);
}

static void take_rows(const json_t *list, struct top_table *table) {
    for (size_t i = 0; i < json_array_size(list) && table->row_count < ROWS_MAX; i++) {
        table->rows[table->row_count++] = json_array_get(list, i);
    }
}

static void lanes_table(const struct top_sample *now, enum top_sort sort, struct top_table *table) {
    *table = (struct top_table){.columns = lane_columns, .column_count = sizeof lane_columns / sizeof lane_columns[0]};
    take_rows(now->slots, table);
    order = sort;
    qsort((void *)table->rows, table->row_count, sizeof *table->rows, in_order);
}

static void waits_table(const struct top_sample *now, struct top_table *table) {
    *table = (struct top_table){.columns = wait_columns, .column_count = sizeof wait_columns / sizeof wait_columns[0]};
    take_rows(json_object_get(now->queue, "requests"), table);
}

/* What a row is known by from frame to frame. */
static void row_id(const json_t *row, bool is_lane, char out[64]) {
    if (is_lane) {
        (void)snprintf(out, 64, "lane %.0f", number(row, "id"));
    } else {
        (void)snprintf(out, 64, "%s", name_of(row, "request_id"));
    }
}

/* -1: it is not in this table. */
static int find_row(const struct top_table *table, bool is_lane, const char *selected) {
    char id[64];
    for (size_t i = 0; *selected != '\0' && i < table->row_count; i++) {
        row_id(table->rows[i], is_lane, id);
        if (strcmp(id, selected) == 0) {
            return (int)i;
        }
    }
    return -1;
}

void hearth_client_top_move(const struct top_sample *now, struct top_view *view, int step) {
    struct top_table lanes, waits;
    lanes_table(now, view->sort, &lanes);
    waits_table(now, &waits);
    const int n_lanes = (int)lanes.row_count, n = n_lanes + (int)waits.row_count;
    const int lane = find_row(&lanes, true, view->selected), wait = find_row(&waits, false, view->selected);
    int at = lane >= 0 ? lane : wait >= 0 ? n_lanes + wait : step > 0 ? -1 : n;
    at = at + step < 0 ? 0 : at + step >= n ? n - 1 : at + step;
    if (n > 0) {
        row_id(at < n_lanes ? lanes.rows[at] : waits.rows[at - n_lanes], at < n_lanes, view->selected);
    }
}

void hearth_client_top_follow(const struct top_sample *now, struct top_view *view) {
    struct top_table lanes, waits;
    lanes_table(now, view->sort, &lanes);
    waits_table(now, &waits);
    if (find_row(&lanes, true, view->selected) >= 0 || find_row(&waits, false, view->selected) >= 0) {
        return;
    }
    for (size_t i = 0; i < lanes.row_count; i++) {
        if (*view->selected && strcmp(name_of(more_of(lanes.rows[i]), "request_id"), view->selected) == 0) {
            row_id(lanes.rows[i], true, view->selected);
            return;
        }
    }
    view->selected[0] = '\0';
    view->open = false;
}

/* ---- one row in full ---- */

static void print_whose(struct top_line *line, const json_t *what) {
    static const char *const members[] = {"client", "session", "key", "class", "endpoint"};
    put(line, "    ");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (*name_of(what, members[i])) {
            put(line, "%s ", members[i]);
            put_text(line, name_of(what, members[i]), NAME_COLUMNS);
            put(line, "  ");
        }
    }
    end_line(line);
}

static void print_prefill(struct top_line *line, const json_t *more) {
    const double prompt = number(more, "prompt_tokens"), reused = number(more, "reused_tokens");
    const double computed = number(more, "computed_tokens"), per_s = number(more, "tokens_per_second");
    put(line, "    %s of %s prompt tokens are there: %s reused, %s computed", show_count(reused + computed),
        show_count(prompt), show_count(reused), show_count(computed));
    end_line(line);
    put(line, "    %s tokens a second: about %s to go", show_rate(per_s),
        show_duration((prompt - reused - computed) / per_s * 1e3));
    end_line(line);
}

static void print_decode(struct top_line *line, const json_t *slot) {
    const json_t *more = more_of(slot);
    const json_t *next = json_object_get(slot, "next_token");
    const double remain = number(json_is_array(next) ? json_array_get(next, 0) : next, "n_remain");
    put(line, "    %s tokens of the reply so far, %s a second", show_count(number(more, "generated_tokens")),
        show_rate(number(more, "tokens_per_second")));
    if (remain >= 0) {
        put(line, "; at most %s more", show_count(remain));
    }
    end_line(line);
    put(line, "    of its prompt of %s tokens %s were reused", show_count(number(more, "prompt_tokens")),
        show_count(number(more, "reused_tokens")));
    end_line(line);
}

static void print_lane(struct top_line *line, const json_t *slot) {
    const json_t *more = more_of(slot);
    const bool decodes = strcmp(lane_state(slot), "decode") == 0;
    put(line, "lane %s: ", show_count(number(slot, "id")));
    if (!*name_of(more, "request_id")) {
        const bool busy = json_is_object(more);
        put(line, busy ? "a request of another key" : "idle, with the state of %s tokens",
            show_count(number(slot, "live_tokens")));
        end_line(line);
        return;
    }
    put(line, decodes ? "computes the reply of " : "computes the prompt of ");
    put_text(line, name_of(more, "request_id"), NAME_COLUMNS);
    end_line(line);
    print_whose(line, more);
    (decodes ? print_decode(line, slot) : print_prefill(line, more));
    put(line, "    waited %s for its lane", show_duration(number(more, "queue_ms")));
    if (number(more, "preemptions") > 0) {
        put(line, ", preempted %s times", show_count(number(more, "preemptions")));
    }
    if (number(more, "deadline_in_ms") > 0) {
        put(line, "; its deadline is in %s", show_duration(number(more, "deadline_in_ms")));
    }
    end_line(line);
    put(line, "    when it has ended: hearth why ");
    put_text(line, name_of(more, "request_id"), NAME_COLUMNS);
    end_line(line);
}

static void print_wait(struct top_line *line, const json_t *waiting) {
    const struct wait_reason *reason = wait_reason(waiting);
    put(line, "waits %s: %s: ", show_duration(number(waiting, "waited_ms")), reason->text);
    put_text(line, name_of(waiting, "request_id"), NAME_COLUMNS);
    end_line(line);
    print_whose(line, waiting);
    put(line, "    what helps: ");
    put_text(line, reason->advice, 100);
    end_line(line);
    put(line, "    %s prompt tokens, %s of the reply", show_count(number(waiting, "prompt_tokens")),
        show_count(number(waiting, "generated_tokens")));
    end_line(line);
}

/* ---- all tables ---- */

/* Lines that were printed into memory, the first `room` of them. */
static size_t copy_lines(FILE *out, const char *text, size_t room) {
    size_t n = 0;
    for (; n < room && *text != '\0'; n++) {
        const size_t len = strcspn(text, "\n");
        (void)fwrite(text, 1, len, out);
        (void)fputc('\n', out);
        text += len + (text[len] == '\n');
    }
    return n;
}

static void print_open(FILE *out, const struct top_view *view, const json_t *row, bool is_lane, size_t room) {
    char *text = NULL;
    size_t len = 0;
    struct top_line line = {.out = open_memstream(&text, &len), .columns = view->columns};
    if (line.out != NULL) {
        (is_lane ? print_lane : print_wait)(&line, row);
        (void)fclose(line.out);
        (void)copy_lines(out, text, room);
        free(text);
    }
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Lanes, what waits, and either the last requests or the selected row, in at most `rows` lines (0: no limit). */
static void print_tables(FILE *out, const struct top_sample *now, const struct top_view *view, int rows) {
    struct top_line line = {.out = out, .columns = view->columns};
    struct top_table lanes, waits,
        requests = {.columns = request_columns, .column_count = sizeof request_columns / sizeof request_columns[0]};
    lanes_table(now, view->sort, &lanes);
    waits_table(now, &waits);
    take_rows(json_object_get(now->requests, "data"), &requests);
    const int lane = find_row(&lanes, true, view->selected), wait = find_row(&waits, false, view->selected);
    const bool open = view->open && (lane >= 0 || wait >= 0);
    const size_t waits_need = waits.row_count > 0 ? waits.row_count + 2 : 0;
    const size_t below = waits_need + (open ? 9 : requests.row_count > 0 ? requests.row_count + 2 : 0);
    size_t room = rows > 0 ? (size_t)rows : 1 << 20;
    const size_t reserved = least(below, LINES_BELOW);
    size_t lines = room > reserved + LANES_LEAST ? room - reserved : LANES_LEAST;
    lines = least(least(lines, room), lanes.row_count + 1);
    if (now->slots == NULL) {
        put(&line, "lanes     the server does not show them (--slots)");
        end_line(&line);
        lines = 1;
    } else {
        print_table(&line, &lanes, lines, lane);
    }
    room -= lines;
    lines = below > waits_need ? least(waits_need, rows > 0 ? room / 2 : room) : least(waits_need, room);
    if (lines > 2) {
        end_line(&line);
        print_table(&line, &waits, lines - 1, wait);
        room -= lines;
    }
    if (room > 2 && (open || requests.row_count > 0)) {
        end_line(&line);
        if (open) {
            print_open(out, view, lane >= 0 ? lanes.rows[lane] : waits.rows[wait], lane >= 0, room - 1);
        } else {
            print_table(&line, &requests, room - 1, -1);
        }
    }
}

/* ---- the frame ---- */

#define WASTE_ROWS 16 /* on a screen with fewer, lanes need the line */

/* Returns the number of lines. */
static int print_totals(struct top_line *line, const char *url, const struct top_sample *before,
                        const struct top_sample *now, bool waste) {
    put(line, "hearth top  ");
    put_text(line, url, 80);
    put(line, "  ");
    put_text(line, name_of(now->props, "model_alias"), 60);
    put(line, "  ");
    put_text(line, name_of(now->props, "build_info"), 60);
    end_line(line);
    if (!now->metrics) {
        put(line, "numbers   the server does not show them (--metrics)");
        end_line(line);
        return 2 + (waste ? print_waste(line, now) : 0);
    }
    print_requests(line, now);
    print_prompts(line, before, now);
    print_replies(line, before, now);
    print_cache(line, now);
    print_connections(line, now);
    return 6 + (waste ? print_waste(line, now) : 0);
}

static void print_keys(struct top_line *line, const struct top_view *view) {
    static const char *const sorts[] = {
#define X(name, word, member, sign) word,
        TOP_SORT_TABLE(X)
#undef X
    };
    if (view->trouble != NULL) {
        put_text(line, view->trouble, line->columns);
    } else {
        put(line, "q quit   arrows select   Enter %s", view->open ? "back" : "what it does, or why it waits");
        put(line, "   s sort: %s", sorts[view->sort]);
    }
}

void hearth_client_top_print(FILE *out, const char *url, const struct top_sample *before, const struct top_sample *now,
                             const struct top_view *view) {
    struct top_line line = {.out = out, .columns = view->columns};
    const bool last = view->keys || view->trouble != NULL;
    const int head = print_totals(&line, url, before, now, view->rows == 0 || view->rows >= WASTE_ROWS) + 1;
    end_line(&line);
    const int room = view->rows > 0 ? view->rows - head - last : 0;
    if (view->rows == 0 || room > 0) {
        print_tables(out, now, view, room);
    }
    if (last) {
        print_keys(&line, view);
    }
}

/* ---- for programs ---- */

/* A number, or null for what is not known. */
static json_t *real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *interval_json(const struct top_sample *before, const struct top_sample *now) {
    if (!before) {
        return json_null();
    }
    const double seconds = seconds_between(before, now);
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "seconds", real(seconds), "prompt_computed_tokens",
                     real(growth(before, now, "prompt_computed_tokens_total")), "prompt_reused_tokens",
                     real(reused_tokens(before, now)), "generated_tokens",
                     real(growth(before, now, "generated_tokens_total")), "generated_tokens_per_second",
                     real(growth(before, now, "generated_tokens_total") / seconds));
}

json_t *hearth_client_top_json(const char *url, const struct top_sample *before, const struct top_sample *now) {
    return json_pack("{s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:o}", "url", url, "props", now->props, "slots",
                     now->slots, "queue", now->queue, "metrics", now->metrics, "health", now->health, "requests",
                     now->requests, "clients", now->clients, "interval", interval_json(before, now));
}
