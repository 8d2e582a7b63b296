/* The tables of a frame: lanes, waiting requests, and below them the last requests, or the selected row in full.
 *
 * A table has columns of fixed widths, each with a rank. When the screen is too narrow, columns of the highest ranks
 * are left out; space that remains goes to the column that can use it. Lanes come first, waiting requests get half
 * of the remaining lines, and a table with more rows than lines shows those around the selected one. Names and texts
 * come from clients, so control characters in them never reach the terminal. */
#include "client/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    hearth_client_top_part(line, "%s", selected ? ">" : " ");
    for (size_t i = 0; i < table->column_count; i++) {
        const struct top_column *column = &table->columns[i];
        const char *value = row != NULL ? column->value(row, &room) : column->title;
        if (value == NULL) {
            break;
        }
        if (widths[i] > 0) {
            hearth_client_top_part(line, "%s", gap);
            if (column->right) {
                hearth_client_top_part(line, "%*.*s", widths[i], widths[i], value);
            } else {
                hearth_client_top_cell(line, value, widths[i]);
            }
            gap = "  ";
        }
    }
    hearth_client_top_end(line);
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

static double member(const json_t *object, const char *group, const char *what) {
    return hearth_client_top_number(json_object_get(object, group), what);
}

static const char *lane_state(const json_t *slot) {
    return *hearth_client_top_name(more_of(slot), "state") ? hearth_client_top_name(more_of(slot), "state")
                                                           : hearth_client_top_name(slot, "state");
}

/* By the name that it gives itself, or by what it asks for. */
static const char *client_of(const json_t *what) {
    return *hearth_client_top_name(what, "client") ? hearth_client_top_name(what, "client")
                                                   : hearth_client_top_name(what, "endpoint");
}

static double lane_ms(const json_t *slot) {
    return hearth_client_top_number(more_of(slot),
                                    strcmp(lane_state(slot), "decode") == 0 ? "decode_ms" : "prefill_ms");
}

static double reused_share(const json_t *slot) {
    const double prompt = hearth_client_top_number(more_of(slot), "prompt_tokens");
    return prompt > 0 ? hearth_client_top_number(more_of(slot), "reused_tokens") / prompt : NAN;
}

SHOWN(lane_id, hearth_client_top_count(hearth_client_top_number(row, "id")))
TEXT(lane_state_text, lane_state(row))
TEXT(lane_class, json_is_object(more_of(row)) ? hearth_client_top_name(more_of(row), "class") : NULL)
TEXT(lane_key, hearth_client_top_name(more_of(row), "key"))
TEXT(lane_client, client_of(more_of(row)))
TEXT(lane_conversation, hearth_client_top_name(more_of(row), "session"))
SHOWN(lane_prompt, hearth_client_top_count(hearth_client_top_number(more_of(row), "prompt_tokens")))
SHOWN(lane_reused, hearth_client_top_percent(reused_share(row)))
SHOWN(lane_done, hearth_client_top_percent(hearth_client_top_number(more_of(row), "progress")))
SHOWN(lane_reply, hearth_client_top_count(hearth_client_top_number(more_of(row), "generated_tokens")))
SHOWN(lane_rate, hearth_client_top_rate(hearth_client_top_number(more_of(row), "tokens_per_second")))
SHOWN(lane_since, hearth_client_top_duration(lane_ms(row)))

static const struct top_column lane_columns[] = {
    {"LANE", 4, 0, 0, true, lane_id},          {"STATE", 7, 1, 0, false, lane_state_text},
    {"CLASS", 11, 11, 0, false, lane_class},   {"KEY", 10, 10, 0, false, lane_key},
    {"CLIENT", 15, 2, 10, false, lane_client}, {"CONVERSATION", 13, 6, 25, false, lane_conversation},
    {"PROMPT", 7, 3, 0, true, lane_prompt},    {"REUSED", 6, 7, 0, true, lane_reused},
    {"DONE", 5, 4, 0, true, lane_done},        {"REPLY", 7, 9, 0, true, lane_reply},
    {"TOKEN/S", 7, 8, 0, true, lane_rate},     {"SINCE", 8, 5, 0, true, lane_since},
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
    const char *word = *hearth_client_top_name(waiting, "wait") ? hearth_client_top_name(waiting, "wait")
                                                                : hearth_client_top_name(waiting, "state");
    const size_t n = sizeof wait_reasons / sizeof wait_reasons[0];
    size_t i = 0;
    while (i + 1 < n && strcmp(wait_reasons[i].word, word) != 0) {
        i++;
    }
    return &wait_reasons[i];
}

SHOWN(wait_time, hearth_client_top_duration(hearth_client_top_number(row, "waited_ms")))
TEXT(wait_class, hearth_client_top_name(row, "class"))
TEXT(wait_key, hearth_client_top_name(row, "key"))
TEXT(wait_client, client_of(row))
TEXT(wait_conversation, hearth_client_top_name(row, "session"))
SHOWN(wait_prompt, hearth_client_top_count(hearth_client_top_number(row, "prompt_tokens")))
TEXT(wait_why, wait_reason(row)->text)

static const struct top_column wait_columns[] = {
    {"WAITS", 8, 0, 0, false, wait_time},
    {"CLASS", 11, 6, 0, false, wait_class},
    {"KEY", 10, 5, 0, false, wait_key},
    {"CLIENT", 15, 2, 10, false, wait_client},
    {"CONVERSATION", 13, 4, 25, false, wait_conversation},
    {"PROMPT", 7, 3, 0, true, wait_prompt},
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
                   hearth_client_local_time(hearth_client_top_name(request, "at"), ms > 0 ? ms : 0, text));
    return out;
}

static const char *outcome(const json_t *request) {
    const char *end = hearth_client_top_name(request, "end");
    const bool replied = strcmp(end, "stop") == 0 || strcmp(end, "length") == 0;
    return !replied ? end
           : *hearth_client_top_name(first_verdict(request), "cause")
               ? hearth_client_top_name(first_verdict(request), "cause")
               : "-";
}

SHOWN(request_at, time_of_day(row))
SHOWN(request_ttft, hearth_client_top_duration(member(row, "ms", "ttft")))
SHOWN(request_prompt, hearth_client_top_count(member(row, "tokens", "prompt")))
SHOWN(request_computed, hearth_client_top_count(member(row, "tokens", "computed")))
TEXT(request_client, client_of(row))
TEXT(request_session, hearth_client_top_name(row, "session"))
TEXT(request_outcome, outcome(row))
TEXT(request_text, *hearth_client_top_name(row, "error") ? hearth_client_top_name(row, "error")
                                                         : hearth_client_top_name(first_verdict(row), "text"))

static const struct top_column request_columns[] = {
    {"ENDED", 8, 0, 0, false, request_at},       {"TTFT", 8, 1, 0, true, request_ttft},
    {"PROMPT", 7, 4, 0, true, request_prompt},   {"COMPUTED", 8, 5, 0, true, request_computed},
    {"CLIENT", 16, 3, 0, false, request_client}, {"CONVERSATION", 15, 7, 0, false, request_session},
    {"WHY", 18, 2, 0, false, request_outcome},   {" ", 24, 6, 100, false, request_text},
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
    const double value = hearth_client_top_number(more_of(slot), orders[order].member);
    return isnan(value) ? INFINITY : value * orders[order].sign; /* idle lanes last */
}

static int in_order(const void *a, const void *b) {
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    const double difference = order != TOP_SORT_LANE && sort_key(x) != sort_key(y)
                                  ? sort_key(x) - sort_key(y)
                                  : hearth_client_top_number(x, "id") - hearth_client_top_number(y, "id");
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
        (void)snprintf(out, 64, "lane %.0f", hearth_client_top_number(row, "id"));
    } else {
        (void)snprintf(out, 64, "%s", hearth_client_top_name(row, "request_id"));
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
        if (*view->selected &&
            strcmp(hearth_client_top_name(more_of(lanes.rows[i]), "request_id"), view->selected) == 0) {
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
    hearth_client_top_part(line, "    ");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (*hearth_client_top_name(what, members[i])) {
            hearth_client_top_part(line, "%s ", members[i]);
            hearth_client_top_text(line, hearth_client_top_name(what, members[i]), NAME_COLUMNS);
            hearth_client_top_part(line, "  ");
        }
    }
    hearth_client_top_end(line);
}

static void print_prefill(struct top_line *line, const json_t *more) {
    const double prompt = hearth_client_top_number(more, "prompt_tokens"),
                 reused = hearth_client_top_number(more, "reused_tokens");
    const double computed = hearth_client_top_number(more, "computed_tokens"),
                 per_s = hearth_client_top_number(more, "tokens_per_second");
    hearth_client_top_part(line, "    %s of %s prompt tokens are there: %s reused, %s computed",
                           hearth_client_top_count(reused + computed).text, hearth_client_top_count(prompt).text,
                           hearth_client_top_count(reused).text, hearth_client_top_count(computed).text);
    hearth_client_top_end(line);
    hearth_client_top_part(line, "    %s tokens a second: about %s to go", hearth_client_top_rate(per_s).text,
                           hearth_client_top_duration((prompt - reused - computed) / per_s * 1e3).text);
    hearth_client_top_end(line);
}

static void print_decode(struct top_line *line, const json_t *slot) {
    const json_t *more = more_of(slot);
    const json_t *next = json_object_get(slot, "next_token");
    const double remain = hearth_client_top_number(json_is_array(next) ? json_array_get(next, 0) : next, "n_remain");
    hearth_client_top_part(line, "    %s tokens of the reply so far, %s a second",
                           hearth_client_top_count(hearth_client_top_number(more, "generated_tokens")).text,
                           hearth_client_top_rate(hearth_client_top_number(more, "tokens_per_second")).text);
    if (remain >= 0) {
        hearth_client_top_part(line, "; at most %s more", hearth_client_top_count(remain).text);
    }
    hearth_client_top_end(line);
    hearth_client_top_part(line, "    of its prompt of %s tokens %s were reused",
                           hearth_client_top_count(hearth_client_top_number(more, "prompt_tokens")).text,
                           hearth_client_top_count(hearth_client_top_number(more, "reused_tokens")).text);
    hearth_client_top_end(line);
}

static void print_lane(struct top_line *line, const json_t *slot) {
    const json_t *more = more_of(slot);
    const bool decodes = strcmp(lane_state(slot), "decode") == 0;
    hearth_client_top_part(line, "lane %s: ", hearth_client_top_count(hearth_client_top_number(slot, "id")).text);
    if (!*hearth_client_top_name(more, "request_id")) {
        const bool busy = json_is_object(more);
        hearth_client_top_part(line, busy ? "a request of another key" : "idle, with the state of %s tokens",
                               hearth_client_top_count(hearth_client_top_number(slot, "live_tokens")).text);
        hearth_client_top_end(line);
        return;
    }
    hearth_client_top_part(line, decodes ? "computes the reply of " : "computes the prompt of ");
    hearth_client_top_text(line, hearth_client_top_name(more, "request_id"), NAME_COLUMNS);
    hearth_client_top_end(line);
    print_whose(line, more);
    (decodes ? print_decode(line, slot) : print_prefill(line, more));
    hearth_client_top_part(line, "    waited %s for its lane",
                           hearth_client_top_duration(hearth_client_top_number(more, "queue_ms")).text);
    if (hearth_client_top_number(more, "preemptions") > 0) {
        hearth_client_top_part(line, ", preempted %s times",
                               hearth_client_top_count(hearth_client_top_number(more, "preemptions")).text);
    }
    if (hearth_client_top_number(more, "deadline_in_ms") > 0) {
        hearth_client_top_part(line, "; its deadline is in %s",
                               hearth_client_top_duration(hearth_client_top_number(more, "deadline_in_ms")).text);
    }
    hearth_client_top_end(line);
    hearth_client_top_part(line, "    when it has ended: hearth why ");
    hearth_client_top_text(line, hearth_client_top_name(more, "request_id"), NAME_COLUMNS);
    hearth_client_top_end(line);
}

static void print_wait(struct top_line *line, const json_t *waiting) {
    const struct wait_reason *reason = wait_reason(waiting);
    hearth_client_top_part(
        line, "waits %s: %s: ", hearth_client_top_duration(hearth_client_top_number(waiting, "waited_ms")).text,
        reason->text);
    hearth_client_top_text(line, hearth_client_top_name(waiting, "request_id"), NAME_COLUMNS);
    hearth_client_top_end(line);
    print_whose(line, waiting);
    hearth_client_top_part(line, "    what helps: ");
    hearth_client_top_text(line, reason->advice, 100);
    hearth_client_top_end(line);
    hearth_client_top_part(line, "    %s prompt tokens, %s of the reply",
                           hearth_client_top_count(hearth_client_top_number(waiting, "prompt_tokens")).text,
                           hearth_client_top_count(hearth_client_top_number(waiting, "generated_tokens")).text);
    hearth_client_top_end(line);
}

/* ---- the whole ---- */

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

void hearth_client_top_tables(FILE *out, const struct top_sample *now, const struct top_view *view, int rows) {
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
        hearth_client_top_part(&line, "lanes     the server does not show them (--slots)");
        hearth_client_top_end(&line);
        lines = 1;
    } else {
        print_table(&line, &lanes, lines, lane);
    }
    room -= lines;
    lines = below > waits_need ? least(waits_need, rows > 0 ? room / 2 : room) : least(waits_need, room);
    if (lines > 2) {
        hearth_client_top_end(&line);
        print_table(&line, &waits, lines - 1, wait);
        room -= lines;
    }
    if (room > 2 && (open || requests.row_count > 0)) {
        hearth_client_top_end(&line);
        if (open) {
            print_open(out, view, lane >= 0 ? lanes.rows[lane] : waits.rows[wait], lane >= 0, room - 1);
        } else {
            print_table(&line, &requests, room - 1, -1);
        }
    }
}
