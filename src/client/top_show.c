/* A frame of `hearth top`: totals, then its tables (top_rows.c), then the keys, or what is wrong.
 *
 * A line of totals begins with its most important part; parts that do not fit are left out. Numbers that the server
 * does not tell are "-". Rates are over the time between two samples. If a counter has become smaller, the server
 * was restarted, and there is no rate for that time. */
#include "client/top.h"

#include <math.h>
#include <string.h>

#define show_count(n) (hearth_client_top_count(n).text)
#define show_bytes(n) (hearth_client_top_bytes(n).text)
#define show_percent(n) (hearth_client_top_percent(n).text)
#define show_rate(n) (hearth_client_top_rate(n).text)

static double metric(const struct top_sample *sample, const char *name) {
    char full[96];
    (void)snprintf(full, sizeof full, "hearth_%s", name);
    return hearth_client_top_number(sample->metrics, full);
}

/* What a counter has grown by. */
static double growth(const struct top_sample *before, const struct top_sample *now, const char *name) {
    const double more = before ? metric(now, name) - metric(before, name) : NAN;
    return more >= 0 ? more : NAN;
}

static double seconds_between(const struct top_sample *before, const struct top_sample *now) {
    return before && now->at_us > before->at_us ? (double)(now->at_us - before->at_us) / 1e6 : NAN;
}

static double reused_of(double live, double ram, double disk, double remote) {
    return live + (isnan(ram) ? 0 : ram) + (isnan(disk) ? 0 : disk) + (isnan(remote) ? 0 : remote);
}

static double share(double some, double all) {
    return all > 0 ? some / all : NAN;
}

/* ---- totals ---- */

static void print_requests(struct top_line *line, const struct top_sample *now) {
    hearth_client_top_part(line, "requests  %s running, %s waiting", show_count(metric(now, "lanes_busy")),
                           show_count(metric(now, "queued")));
    if (json_is_true(json_object_get(now->queue, "full"))) {
        hearth_client_top_part(line, " (no room for more)");
    }
    hearth_client_top_part(line, "; %s done", show_count(metric(now, "requests_done_total")));
    hearth_client_top_part(line, ", %s failed", show_count(metric(now, "requests_failed_total")));
    hearth_client_top_part(line, ", %s refused", show_count(metric(now, "requests_refused_total")));
    hearth_client_top_part(line, ", %s left", show_count(metric(now, "requests_cancelled_total")));
    hearth_client_top_part(line, ", %s late", show_count(metric(now, "requests_late_total")));
    hearth_client_top_end(line);
}

static void print_prompts(struct top_line *line, const struct top_sample *before, const struct top_sample *now) {
    const double computed = metric(now, "prompt_computed_tokens_total");
    const double reused =
        reused_of(metric(now, "prompt_reused_live_tokens_total"), metric(now, "prompt_reused_ram_tokens_total"),
                  metric(now, "prompt_reused_disk_tokens_total"), metric(now, "prompt_reused_remote_tokens_total"));
    const double computed_now = growth(before, now, "prompt_computed_tokens_total");
    const double reused_now = reused_of(growth(before, now, "prompt_reused_live_tokens_total"),
                                        growth(before, now, "prompt_reused_ram_tokens_total"),
                                        growth(before, now, "prompt_reused_disk_tokens_total"),
                                        growth(before, now, "prompt_reused_remote_tokens_total"));
    hearth_client_top_part(line, "prompts   %s tokens reused (%s), %s computed", show_count(reused),
                           show_percent(share(reused, reused + computed)), show_count(computed));
    if (!isnan(computed_now)) {
        hearth_client_top_part(line, "; in the last %.0f s %s, %s", seconds_between(before, now),
                               show_count(reused_now), show_count(computed_now));
    }
    hearth_client_top_end(line);
}

static void print_replies(struct top_line *line, const struct top_sample *before, const struct top_sample *now) {
    const double drafted = metric(now, "drafted_tokens_total"), accepted = metric(now, "accepted_tokens_total");
    const double preempted = metric(now, "preemptions_total"), gave_way = metric(now, "yields_total");
    hearth_client_top_part(line, "replies   %s tokens", show_count(metric(now, "generated_tokens_total")));
    if (before) {
        hearth_client_top_part(line, ", %s/s now",
                               show_rate(growth(before, now, "generated_tokens_total") / seconds_between(before, now)));
    }
    if (preempted > 0 || gave_way > 0) {
        hearth_client_top_part(line, "; lanes short of cells %s, given way %s", show_count(preempted),
                               show_count(gave_way));
    }
    if (drafted > 0) {
        hearth_client_top_part(line, "; guessed %s, kept %s", show_count(drafted),
                               show_percent(share(accepted, drafted)));
    }
    hearth_client_top_end(line);
}

static void print_cache(struct top_line *line, const struct top_sample *now) {
    const json_t *disk = json_object_get(now->health, "disk");
    const char *state = hearth_client_top_name(disk, "state"), *trouble = hearth_client_top_name(disk, "trouble");
    const bool off = strcmp(state, "off") == 0, bad = *state != '\0' && !off && strcmp(state, "ok") != 0;
    hearth_client_top_part(line, "cache     RAM %s",
                           show_bytes(metric(now, "page_bytes") + metric(now, "snapshot_bytes")));
    if (off) {
        hearth_client_top_part(line, "; disk is off");
    }
    if (bad) {
        hearth_client_top_part(line, "; disk is ");
        hearth_client_top_text(line, state, 20);
    }
    if (*trouble != '\0') {
        hearth_client_top_part(line, ": ");
        hearth_client_top_text(line, trouble, 100);
    }
    if (*state != '\0' && !off) {
        hearth_client_top_part(line, "; disk %s of %s", show_bytes(hearth_client_top_number(disk, "bytes")),
                               show_bytes(hearth_client_top_number(disk, "budget_bytes")));
    }
    hearth_client_top_part(line, "; %s pages, %s snapshots", show_count(metric(now, "pages")),
                           show_count(metric(now, "snapshots")));
    hearth_client_top_part(line, ", evicted %s",
                           show_count(metric(now, "evicted_pages_total") + metric(now, "evicted_snapshots_total")));
    hearth_client_top_end(line);
}

static void print_connections(struct top_line *line, const struct top_sample *now) {
    hearth_client_top_part(line, "clients   %s connections, %s waiting for replies",
                           show_count(metric(now, "http_connections")),
                           show_count(metric(now, "http_connections_busy")));
    hearth_client_top_part(line, ", %s sending", show_count(metric(now, "http_connections_reading")));
    hearth_client_top_part(line, ", %s idle", show_count(metric(now, "http_connections_idle")));
    hearth_client_top_part(
        line, "; %s too slow, %s too late, %s refused", show_count(metric(now, "http_stalled_total")),
        show_count(metric(now, "http_timeouts_total")), show_count(metric(now, "http_refused_total")));
    hearth_client_top_end(line);
}

/* What most was computed again for: a client may have waited for longer. */
static const json_t *main_waste(const json_t *client) {
    size_t i;
    const json_t *cause;
    json_array_foreach(json_object_get(client, "causes"), i, cause) {
        if (strcmp(hearth_client_top_name(cause, "kind"), "waste") == 0) {
            return cause;
        }
    }
    return NULL;
}

/* Which clients had most computed again among the last requests, and why. Returns the number of lines. */
static int print_waste(struct top_line *line, const struct top_sample *now) {
    const json_t *client;
    size_t i;
    if (!(hearth_client_top_number(now->clients, "requests") > 0)) {
        return 0;
    }
    hearth_client_top_part(line, "wasted    %s of computed",
                           show_percent(share(hearth_client_top_number(now->clients, "again_tokens"),
                                              hearth_client_top_number(now->clients, "computed_tokens"))));
    json_array_foreach(json_object_get(now->clients, "data"), i, client) {
        const char *name = hearth_client_top_name(client, "client");
        const double lost_ms = hearth_client_top_number(client, "lost_ms");
        if (lost_ms > 0) {
            hearth_client_top_part(line, "%s %s %s ", i == 0 ? ":" : ",", hearth_client_top_duration(lost_ms).text,
                                   hearth_client_top_name(main_waste(client), "cause"));
            hearth_client_top_text(line, *name != '\0' ? name : "-", 20);
        }
    }
    hearth_client_top_end(line);
    return 1;
}

/* ---- the frame ---- */

#define WASTE_ROWS 16 /* on a screen with fewer, lanes need the line */

/* Returns the number of lines. */
static int print_totals(struct top_line *line, const char *url, const struct top_sample *before,
                        const struct top_sample *now, bool waste) {
    hearth_client_top_part(line, "hearth top  ");
    hearth_client_top_text(line, url, 80);
    hearth_client_top_part(line, "  ");
    hearth_client_top_text(line, hearth_client_top_name(now->props, "model_alias"), 60);
    hearth_client_top_part(line, "  ");
    hearth_client_top_text(line, hearth_client_top_name(now->props, "build_info"), 60);
    hearth_client_top_end(line);
    if (!now->metrics) {
        hearth_client_top_part(line, "numbers   the server does not show them (--metrics)");
        hearth_client_top_end(line);
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
        hearth_client_top_text(line, view->trouble, line->columns);
    } else {
        hearth_client_top_part(line, "q quit   arrows select   Enter %s",
                               view->open ? "back" : "what it does, or why it waits");
        hearth_client_top_part(line, "   s sort: %s", sorts[view->sort]);
    }
}

void hearth_client_top_print(FILE *out, const char *url, const struct top_sample *before, const struct top_sample *now,
                             const struct top_view *view) {
    struct top_line line = {.out = out, .columns = view->columns};
    const bool last = view->keys || view->trouble != NULL;
    const int head = print_totals(&line, url, before, now, view->rows == 0 || view->rows >= WASTE_ROWS) + 1;
    hearth_client_top_end(&line);
    const int room = view->rows > 0 ? view->rows - head - last : 0;
    if (view->rows == 0 || room > 0) {
        hearth_client_top_tables(out, now, view, room);
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
                     real(reused_of(growth(before, now, "prompt_reused_live_tokens_total"),
                                    growth(before, now, "prompt_reused_ram_tokens_total"),
                                    growth(before, now, "prompt_reused_disk_tokens_total"),
                                    growth(before, now, "prompt_reused_remote_tokens_total"))),
                     "generated_tokens", real(growth(before, now, "generated_tokens_total")),
                     "generated_tokens_per_second", real(growth(before, now, "generated_tokens_total") / seconds));
}

json_t *hearth_client_top_json(const char *url, const struct top_sample *before, const struct top_sample *now) {
    return json_pack("{s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:o}", "url", url, "props", now->props, "slots",
                     now->slots, "queue", now->queue, "metrics", now->metrics, "health", now->health, "requests",
                     now->requests, "clients", now->clients, "interval", interval_json(before, now));
}
