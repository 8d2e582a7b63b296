/* Lines that fit, and numbers that may be missing. Design in top.h.
 *
 * Every character that a frame has goes through top_part(), top_text() or top_cell(), which count columns; so no line
 * is wider than the screen, whatever the numbers and names are. */
#include "client/top.h"

#include <math.h>
#include <stdarg.h>

/* ---- lines ---- */

static void print_blanks(struct top_line *line) {
    (void)fprintf(line->out, "%*s", line->blanks, "");
    line->blanks = 0;
}

void hearth_client_top_part(struct top_line *line, const char *format, ...) {
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

void hearth_client_top_text(struct top_line *line, const char *text, int columns) {
    const int room = line->columns - line->used, most = columns < room ? columns : room;
    if (line->full || most < 2) {
        line->full = true;
        return;
    }
    print_blanks(line);
    line->used += hearth_show_text(line->out, text, most);
}

void hearth_client_top_cell(struct top_line *line, const char *text, int columns) {
    const int begun = line->used;
    hearth_client_top_text(line, *text != '\0' ? text : "-", columns);
    if (!line->full && line->used - begun < columns) {
        line->blanks = columns - (line->used - begun);
        line->used = begun + columns;
    }
}

void hearth_client_top_end(struct top_line *line) {
    (void)fputc('\n', line->out);
    line->used = line->blanks = 0;
    line->full = false;
}

/* ---- members ---- */

double hearth_client_top_number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *hearth_client_top_name(const json_t *object, const char *name) {
    const char *value = json_string_value(json_object_get(object, name));
    return value ? value : "";
}

/* ---- numbers as text ---- */

static const struct hearth_shown missing = {"-"};

struct hearth_shown hearth_client_top_count(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_count((uint64_t)n) : missing;
}

struct hearth_shown hearth_client_top_bytes(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_bytes((uint64_t)n) : missing;
}

struct hearth_shown hearth_client_top_percent(double fraction) {
    struct hearth_shown out = missing;
    if (fraction >= 0) {
        (void)snprintf(out.text, sizeof out.text, "%.0f %%", fraction * 100);
    }
    return out;
}

struct hearth_shown hearth_client_top_rate(double per_s) {
    struct hearth_shown out = missing;
    if (per_s >= 0) {
        (void)snprintf(out.text, sizeof out.text, per_s < 100 ? "%.1f" : "%.0f", per_s);
    }
    return out;
}

struct hearth_shown hearth_client_top_duration(double ms) {
    struct hearth_shown out = missing;
    if (ms >= 0 && ms < 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.1f s", ms / 1e3);
    } else if (ms >= 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.0f:%02d min", floor(ms / 60e3), (int)fmod(ms / 1e3, 60));
    }
    return out;
}
