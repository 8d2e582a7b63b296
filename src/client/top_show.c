/* A frame of `hearth top`.
 *
 * Totals first, then a line for each lane, then one for each request that waits, with the reason. Numbers that the
 * server does not tell are "-". Rates are of the time between two samples; counters that have become smaller are
 * those of a server that was started again, and tell nothing about that time. Names of keys and sessions are
 * text of others: they are printed so that a terminal obeys nothing in them. */
#include "client/client.h"
#include "console/show.h"

#include <math.h>
#include <string.h>

#define NAME_COLUMNS 24

/* ---- numbers that may be missing: NAN then ---- */

static double number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text(const json_t *object, const char *name) {
    const char *value = json_string_value(json_object_get(object, name));
    return value ? value : "";
}

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

static double reused_of(double live, double ram, double disk) {
    return live + (isnan(ram) ? 0 : ram) + (isnan(disk) ? 0 : disk);
}

static double part(double some, double all) {
    return all > 0 ? some / all : NAN;
}

/* ---- numbers as text ---- */

static const struct hearth_shown missing = {"-"};

static struct hearth_shown count(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_count((uint64_t)n) : missing;
}

static struct hearth_shown bytes(double n) {
    return n >= 0 && n < 1e18 ? hearth_show_bytes((uint64_t)n) : missing;
}

static struct hearth_shown percent(double fraction) {
    struct hearth_shown out = missing;
    if (fraction >= 0) {
        (void)snprintf(out.text, sizeof out.text, "%.0f %%", fraction * 100);
    }
    return out;
}

static struct hearth_shown rate(double per_s) {
    struct hearth_shown out = missing;
    if (per_s >= 0) {
        (void)snprintf(out.text, sizeof out.text, per_s < 100 ? "%.1f" : "%.0f", per_s);
    }
    return out;
}

static struct hearth_shown duration(double ms) {
    struct hearth_shown out = missing;
    if (ms >= 0 && ms < 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.1f s", ms / 1e3);
    } else if (ms >= 60e3) {
        (void)snprintf(out.text, sizeof out.text, "%.0f:%02d min", floor(ms / 60e3), (int)fmod(ms / 1e3, 60));
    }
    return out;
}

/* A cell of a table: text of others, filled up with blanks. */
static void cell(FILE *out, const char *value, int columns) {
    const int used = *value ? hearth_show_text(out, value, columns + 1) : fprintf(out, "-");
    (void)fprintf(out, "%*s", columns - used + 2, "");
}

/* ---- totals ---- */

static void print_requests(FILE *out, const struct top_sample *now) {
    (void)fprintf(out,
                  "requests  %s running, %s waiting; %s done, %s failed, %s given up by clients, %s refused, %s late\n",
                  count(metric(now, "lanes_busy")).text, count(metric(now, "queued")).text,
                  count(metric(now, "requests_done_total")).text, count(metric(now, "requests_failed_total")).text,
                  count(metric(now, "requests_cancelled_total")).text,
                  count(metric(now, "requests_refused_total")).text, count(metric(now, "requests_late_total")).text);
}

static void print_prompts(FILE *out, const struct top_sample *before, const struct top_sample *now) {
    const double computed = metric(now, "prompt_computed_tokens_total");
    const double reused =
        reused_of(metric(now, "prompt_reused_live_tokens_total"), metric(now, "prompt_reused_ram_tokens_total"),
                  metric(now, "prompt_reused_disk_tokens_total"));
    const double computed_now = growth(before, now, "prompt_computed_tokens_total");
    const double reused_now = reused_of(growth(before, now, "prompt_reused_live_tokens_total"),
                                        growth(before, now, "prompt_reused_ram_tokens_total"),
                                        growth(before, now, "prompt_reused_disk_tokens_total"));
    (void)fprintf(out, "prompts   %s tokens reused (%s), %s computed", count(reused).text,
                  percent(part(reused, reused + computed)).text, count(computed).text);
    if (!isnan(computed_now)) {
        (void)fprintf(out, "; in the last %.0f s %s reused (%s), %s computed", seconds_between(before, now),
                      count(reused_now).text, percent(part(reused_now, reused_now + computed_now)).text,
                      count(computed_now).text);
    }
    (void)fputc('\n', out);
}

static void print_replies(FILE *out, const struct top_sample *before, const struct top_sample *now) {
    const double drafted = metric(now, "drafted_tokens_total"), accepted = metric(now, "accepted_tokens_total");
    (void)fprintf(out, "replies   %s tokens", count(metric(now, "generated_tokens_total")).text);
    if (before) {
        (void)fprintf(out, ", %s/s now",
                      rate(growth(before, now, "generated_tokens_total") / seconds_between(before, now)).text);
    }
    if (drafted > 0) {
        (void)fprintf(out, "; guessed ahead %s, kept %s", count(drafted).text, percent(part(accepted, drafted)).text);
    }
    const double preempted = metric(now, "preemptions_total"), gave_way = metric(now, "yields_total");
    if (preempted > 0 || gave_way > 0) {
        (void)fprintf(out, "; lanes preempted %s, given way %s", count(preempted).text, count(gave_way).text);
    }
    (void)fputc('\n', out);
}

static void print_cache(FILE *out, const struct top_sample *now) {
    const json_t *disk = json_object_get(now->health, "disk");
    const char *state = text(disk, "state");
    (void)fprintf(out, "cache     RAM %s in %s pages, %s in %s snapshots", bytes(metric(now, "page_bytes")).text,
                  count(metric(now, "pages")).text, bytes(metric(now, "snapshot_bytes")).text,
                  count(metric(now, "snapshots")).text);
    if (*state && strcmp(state, "off") != 0) {
        (void)fprintf(out, "; disk %s of %s in %s files", bytes(number(disk, "bytes")).text,
                      bytes(number(disk, "budget_bytes")).text, count(number(disk, "files")).text);
    }
    if (*state && strcmp(state, "ok") != 0) {
        (void)fprintf(out, "; disk is %s", strcmp(state, "off") == 0 ? "off" : "");
        (void)hearth_show_text(out, strcmp(state, "off") == 0 ? "" : state, 20);
    }
    if (*text(disk, "trouble")) {
        (void)fputs(": ", out);
        (void)hearth_show_text(out, text(disk, "trouble"), 100);
    }
    (void)fputc('\n', out);
}

static void print_connections(FILE *out, const struct top_sample *now) {
    (void)fprintf(out,
                  "clients   %s connections (%s idle, %s sending, %s waiting for replies); %s cut off as too slow, "
                  "%s too late, %s refused\n",
                  count(metric(now, "http_connections")).text, count(metric(now, "http_connections_idle")).text,
                  count(metric(now, "http_connections_reading")).text, count(metric(now, "http_connections_busy")).text,
                  count(metric(now, "http_stalled_total")).text, count(metric(now, "http_timeouts_total")).text,
                  count(metric(now, "http_refused_total")).text);
}

/* ---- lanes and what waits ---- */

/* The conversation, as far as it has a name. */
static const char *conversation(const json_t *what) {
    return *text(what, "session") ? text(what, "session") : text(what, "endpoint");
}

static void print_lane(FILE *out, const json_t *slot) {
    const json_t *more = json_object_get(slot, "hearth");
    const char *state = *text(more, "state") ? text(more, "state") : text(slot, "state");
    const double prompt = number(more, "prompt_tokens");
    const bool decodes = strcmp(state, "decode") == 0;
    (void)fprintf(out, "%4s  ", count(number(slot, "id")).text);
    cell(out, state, 8);
    if (json_is_object(more)) {
        cell(out, text(more, "class"), 11);
        cell(out, text(more, "key"), 10);
        cell(out, conversation(more), NAME_COLUMNS);
        (void)fprintf(out, "%9s  %6s  %5s  %7s  %7s  %9s", count(prompt).text,
                      percent(part(number(more, "reused_tokens"), prompt)).text, percent(number(more, "progress")).text,
                      count(number(more, "generated_tokens")).text, rate(number(more, "tokens_per_second")).text,
                      duration(number(more, decodes ? "decode_ms" : "prefill_ms")).text);
    }
    (void)fputc('\n', out);
}

static void print_lanes(FILE *out, const struct top_sample *now) {
    if (!now->slots) {
        (void)fputs("lanes     the server does not show them (--slots)\n", out);
        return;
    }
    (void)fprintf(out, "LANE  %-8s  %-11s  %-10s  %-*s  %9s  %6s  %5s  %7s  %7s  %9s\n", "STATE", "CLASS", "KEY",
                  NAME_COLUMNS, "CONVERSATION", "PROMPT", "REUSED", "DONE", "REPLY", "TOKEN/S", "SINCE");
    size_t i;
    const json_t *slot;
    json_array_foreach(now->slots, i, slot) {
        print_lane(out, slot);
    }
}

static bool has_idle_lane(const struct top_sample *now) {
    size_t i;
    const json_t *slot;
    json_array_foreach(now->slots, i, slot) {
        if (json_is_false(json_object_get(slot, "is_processing"))) {
            return true;
        }
    }
    return false;
}

static const char *wait_reason(const json_t *waiting, bool idle_lane) {
    const char *state = text(waiting, "state");
    if (strcmp(state, "held") == 0) {
        return "a prompt that begins alike is being computed, cells are short, or the disk is asked";
    }
    if (strcmp(state, "preempted") == 0) {
        return "preempted: the context was full, or another request came first";
    }
    return idle_lane ? "it is about to begin" : "every lane is busy";
}

static void print_waiting(FILE *out, const struct top_sample *now) {
    const json_t *requests = json_object_get(now->queue, "requests");
    const size_t n = json_array_size(requests);
    const double all = number(now->queue, "waiting");
    if (n == 0) {
        return;
    }
    (void)fprintf(out, "\nWAITS      %-11s  %-10s  %-*s  %9s  WHY\n", "CLASS", "KEY", NAME_COLUMNS, "CONVERSATION",
                  "PROMPT");
    size_t i;
    const json_t *waiting;
    json_array_foreach(requests, i, waiting) {
        (void)fprintf(out, "%-9s  ", duration(number(waiting, "waited_ms")).text);
        cell(out, text(waiting, "class"), 11);
        cell(out, text(waiting, "key"), 10);
        cell(out, conversation(waiting), NAME_COLUMNS);
        (void)fprintf(out, "%9s  %s\n", count(number(waiting, "prompt_tokens")).text,
                      wait_reason(waiting, has_idle_lane(now)));
    }
    if (all > (double)n) {
        (void)fprintf(out, "and %s more\n", count(all - (double)n).text);
    }
    if (json_is_true(json_object_get(now->queue, "full"))) {
        (void)fprintf(out, "the queue is full: more requests are refused (try again in %s s)\n",
                      count(number(now->queue, "retry_after")).text);
    }
}

void hearth_client_top_print(FILE *out, const char *url, const struct top_sample *before,
                             const struct top_sample *now) {
    (void)fputs("hearth top  ", out);
    (void)hearth_show_text(out, url, 80);
    (void)fputs("  ", out);
    (void)hearth_show_text(out, text(now->props, "model_alias"), 60);
    (void)fputs("  ", out);
    (void)hearth_show_text(out, text(now->props, "build_info"), 60);
    (void)fputc('\n', out);
    if (now->metrics) {
        print_requests(out, now);
        print_prompts(out, before, now);
        print_replies(out, before, now);
        print_cache(out, now);
        print_connections(out, now);
    } else {
        (void)fputs("numbers   the server does not show them (--metrics)\n", out);
    }
    (void)fputc('\n', out);
    print_lanes(out, now);
    print_waiting(out, now);
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
                                    growth(before, now, "prompt_reused_disk_tokens_total"))),
                     "generated_tokens", real(growth(before, now, "generated_tokens_total")),
                     "generated_tokens_per_second", real(growth(before, now, "generated_tokens_total") / seconds));
}

json_t *hearth_client_top_json(const char *url, const struct top_sample *before, const struct top_sample *now) {
    return json_pack("{s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:o}", "url", url, "props", now->props, "slots", now->slots,
                     "queue", now->queue, "metrics", now->metrics, "health", now->health, "interval",
                     interval_json(before, now));
}
