/* How urgent a request is: its class, its deadline, and the other fields about how it is computed rather than what. The
 * fields have the same names in every dialect.
 *
 * The class is taken from the first of these that names one: the body's priority, the header, service_tier, background.
 * A key may limit the class. A request above this limit is lowered without an error, because its client may send the
 * same fields to every server. Of several deadlines the shortest counts.
 *
 * A deadline is counted from the request's arrival. X-Stainless-Read-Timeout, which OpenAI's and Anthropic's SDKs send,
 * is not a deadline: it is how long they wait for the next byte. When that has passed they disconnect, which ends the
 * request.
 * Source: vLLM's `priority`; OpenAI's `service_tier`; Envoy's x-envoy-expected-rq-timeout-ms; llama-server's
 * `return_progress`. */
#include "api/job.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS_MAX 1e12

/* Reads the name of a class that a request may ask for; `warm` is not one of them. */
static bool class_of_word(const char *word, enum hearth_class *out) {
    for (int i = HEARTH_CLASS_INTERACTIVE; i <= HEARTH_CLASS_BACKGROUND; i++) {
        if (strcmp(word, hearth_class_text((enum hearth_class)i)) == 0) {
            *out = (enum hearth_class)i;
            return true;
        }
    }
    return false;
}

/* Reads a class given as a number; lower numbers go first. */
static enum hearth_class class_of_integer(int64_t n) {
    return n <= 0 ? HEARTH_CLASS_INTERACTIVE : n == 1 ? HEARTH_CLASS_SIDE : HEARTH_CLASS_BACKGROUND;
}

static bool fail_class(struct hearth_job *job, const char *code, const char *param) {
    return hearth_api_fail(&job->error, 400, code, param,
                           "%s must be interactive, side, background, or an integer (0, 1, 2: lower goes first)",
                           param);
}

static bool read_priority(struct hearth_job *job, const json_t *value, enum hearth_class *out) {
    int64_t n;
    if (json_is_string(value)) {
        return class_of_word(json_string_value(value), out) || fail_class(job, "invalid_value", "priority");
    }
    if (!hearth_api_json_integer(value, &n)) {
        return fail_class(job, "invalid_type", "priority");
    }
    *out = class_of_integer(n);
    return true;
}

static bool read_priority_header(struct hearth_job *job, const char *text, enum hearth_class *out) {
    char *end;
    const long n = strtol(text, &end, 10);
    if (end != text && *end == '\0') {
        *out = class_of_integer(n);
        return true;
    }
    return class_of_word(text, out) || fail_class(job, "invalid_value", "X-Hearth-Priority");
}

/* Reads what OpenAI's and Anthropic's APIs call a tier. */
static bool read_tier(struct hearth_job *job, const char *word, enum hearth_class *out) {
    static const struct {
        const char *word;
        enum hearth_class priority;
        bool asks; /* the other tiers leave it to the server */
    } tiers[] = {{"auto", HEARTH_CLASS_INTERACTIVE, false},    {"default", HEARTH_CLASS_INTERACTIVE, false},
                 {"priority", HEARTH_CLASS_INTERACTIVE, true}, {"scale", HEARTH_CLASS_INTERACTIVE, true},
                 {"flex", HEARTH_CLASS_BACKGROUND, true},      {"standard_only", HEARTH_CLASS_INTERACTIVE, false}};
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        if (strcmp(tiers[i].word, word) == 0) {
            *out = tiers[i].asks ? tiers[i].priority : *out;
            job->tier = strcmp(word, "auto") == 0 ? "default" : tiers[i].word;
            return true;
        }
    }
    return hearth_api_fail(&job->error, 400, "invalid_value", "service_tier",
                           "service_tier must be auto, default, priority or flex");
}

static bool read_class(struct hearth_job *job, const json_t *body) {
    const json_t *priority = hearth_api_json_get(body, "priority"), *tier;
    const enum hearth_class highest = job->caller.highest;
    enum hearth_class asked =
        json_is_true(hearth_api_json_get(body, "background")) ? HEARTH_CLASS_BACKGROUND : HEARTH_CLASS_INTERACTIVE;
    if (!hearth_field_get(body, "service_tier", HEARTH_FIELD_TEXT, &tier, &job->error) ||
        (tier != NULL && !read_tier(job, json_string_value(tier), &asked)) ||
        (job->priority_header[0] != '\0' && !read_priority_header(job, job->priority_header, &asked)) ||
        (priority != NULL && !read_priority(job, priority, &asked))) {
        return false;
    }
    job->priority = asked > highest ? asked : highest; /* the table goes from high to low */
    return true;
}

static void shorten(struct hearth_job *job, double ms) {
    const int64_t us = ms < DEADLINE_MS_MAX ? (int64_t)(ms * 1000) : (int64_t)(DEADLINE_MS_MAX * 1000);
    if (job->deadline_us == 0 || us < job->deadline_us) {
        job->deadline_us = us > 0 ? us : 1;
    }
}

static bool read_deadline(struct hearth_job *job, const json_t *body) {
    static const char *const headers[] = {"X-Request-Deadline-Ms", "X-Envoy-Expected-Rq-Timeout-Ms"};
    const json_t *value;
    if (!hearth_field_get(body, "deadline_ms", HEARTH_FIELD_NUMBER, &value, &job->error)) {
        return false;
    }
    if (value != NULL && json_number_value(value) <= 0) {
        return hearth_api_fail(&job->error, 400, "invalid_value", "deadline_ms", "deadline_ms must be above 0");
    }
    if (value != NULL) {
        shorten(job, json_number_value(value));
    }
    for (size_t i = 0; i < HEARTH_DEADLINE_HEADERS; i++) {
        const char *text = job->deadline_headers[i];
        char *end;
        const double ms = strtod(text, &end);
        if (*text != '\0' && (end == text || *end != '\0' || !(ms > 0) || !isfinite(ms))) {
            return hearth_api_fail(&job->error, 400, "invalid_value", headers[i],
                                   "%s must be a number of milliseconds above 0", headers[i]);
        }
        if (*text != '\0') {
            shorten(job, ms);
        }
    }
    return true;
}

static void copy_header(const struct hearth_http_exchange *exchange, const char *name, char *out, size_t cap) {
    const char *value = hearth_http_header(exchange, name);
    snprintf(out, cap, "%s", value != NULL ? value : ""); /* a longer value is none of the words */
}

void hearth_urgency_take_headers(struct hearth_job *job, const struct hearth_http_exchange *exchange) {
    copy_header(exchange, "x-hearth-priority", job->priority_header, sizeof job->priority_header);
    copy_header(exchange, "x-request-deadline-ms", job->deadline_headers[0], sizeof job->deadline_headers[0]);
    copy_header(exchange, "x-envoy-expected-rq-timeout-ms", job->deadline_headers[1], sizeof job->deadline_headers[1]);
}

bool hearth_urgency_read(struct hearth_job *job, const json_t *body) {
    return read_class(job, body) && read_deadline(job, body) &&
           hearth_field_bool(body, "speculate", &job->speculate, &job->error) &&
           hearth_field_bool(body, "return_progress", &job->progress, &job->error);
}

bool hearth_urgency_left(struct hearth_job *job, int64_t *left_us) {
    const int64_t most = atomic_load(&job->api->request_timeout_us);
    const bool bounded = most > 0 && job->parsed->generation.max_tokens != 0; /* a prefetch has time */
    int64_t whole = job->deadline_us;
    if (bounded && (whole == 0 || most < whole)) {
        whole = most;
    }
    *left_us = 0;
    if (whole == 0) {
        return true;
    }
    job->deadline_us = whole;
    *left_us = whole - (hearth_clock_us() - job->arrived_us);
    return *left_us > 0 || hearth_urgency_fail_late(job);
}

bool hearth_urgency_fail_late(struct hearth_job *job) {
    hearth_api_fail_err(&job->error, HEARTH_ERR_DEADLINE, NULL);
    if (job->deadline_us > 0) {
        snprintf(job->error.message.text, sizeof job->error.message.text,
                 "the request's deadline of %.0f ms passed before there was anything of a reply",
                 (double)job->deadline_us / 1000.0);
    }
    return false;
}
