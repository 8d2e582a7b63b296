/* The spans of a request in the file of --trace: one for the whole request, with the facts of its log line, and one
 * inside it for each phase. They are written from the report when the request has ended, so phases follow each other
 * without gaps: time that was lost in between (a preemption) stands at the end of its phase. */
#include "api/job.h"
#include "report/report.h"
#include "session/json_memory.h"

#include "base/clock.h"
#include "base/spans.h"

#include <stdlib.h>
#include <string.h>

/* The report's numbers and names as members of an object. NULL: out of memory. The caller's to free. */
static char *members(const struct hearth_report *report, int64_t task) {
    json_t *args =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "request", report->id, "task", (json_int_t)task, "prompt",
                  (json_int_t)report->prompt_tokens, "computed", (json_int_t)report->computed_tokens, "reused",
                  (json_int_t)(report->live_tokens + report->ram_tokens + report->disk_tokens + report->remote_tokens),
                  "generated", (json_int_t)report->generated_tokens, "end", report->end, "class",
                  report->request_class != NULL ? report->request_class : "");
    const struct {
        const char *name, *text;
    } texts[] = {
        {"session", report->session}, {"client", report->client}, {"key", report->key}, {"trace", report->trace}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].text != NULL && texts[i].text[0] != '\0') {
            json_object_set_new(args, texts[i].name, hearth_json_text(texts[i].text, strlen(texts[i].text)));
        }
    }
    char *text = args != NULL ? hearth_json_dumps(args, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(args);
    if (text != NULL) { /* without its braces */
        const size_t len = strlen(text);
        memmove(text, text + 1, len - 2);
        text[len - 2] = '\0';
    }
    return text;
}

void hearth_request_spans_put(const struct hearth_job *job, const struct hearth_report *report) {
    const int64_t now_us = hearth_clock_us();
    const struct {
        const char *name;
        int64_t us;
    } phases[] = {{"prepare", report->prepare_us},
                  {"queue", report->queue_us},
                  {"restore", report->plan_us + report->restore_us},
                  {"prefill", report->prefill_us},
                  {"decode", report->decode_us}};
    struct hearth_span span = {.track = HEARTH_TRACK_SERVICE,
                               .category = "request",
                               .name = "request",
                               .begun_us = now_us - report->total_us,
                               .ended_us = now_us,
                               .json = members(report, job->choices[0].service_id)};
    (void)snprintf(span.id, sizeof span.id, "%s", report->id);
    hearth_span_put(&span);
    span.json = NULL;
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        const int64_t ended_us = span.begun_us + phases[i].us;
        span.name = phases[i].name;
        span.ended_us = ended_us < now_us ? ended_us : now_us;
        if (span.ended_us > span.begun_us) {
            hearth_span_put(&span);
            span.begun_us = span.ended_us;
        }
    }
}
