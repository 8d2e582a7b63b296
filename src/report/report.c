/* A report as JSON: the only form in which it is kept in the ring, stored in the session database, and printed. */
#include "report/report.h"

#include "session/json_memory.h"

#include <string.h>
#include <time.h>

static json_t *ms(int64_t us) {
    return json_real((double)(us / 10) / 100.0); /* two digits are enough */
}

/* Text of a client as JSON; it need not be UTF-8. */
static json_t *text_json(const char *text) {
    return hearth_json_text(text, strlen(text));
}

static json_t *text_or_null(const char *text) {
    return text != NULL && text[0] != '\0' ? text_json(text) : json_null();
}

static json_t *tokens_json(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    const uint32_t known = hearth_report_known(report);
    const json_int_t fresh = receipt->prompt_tokens > known ? receipt->prompt_tokens - known : 0;
    return json_pack("{s:I, s:I, s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:I, s:I}", "prompt",
                     (json_int_t)receipt->prompt_tokens, "new", fresh, "reused", "live",
                     (json_int_t)receipt->reused_live_tokens, "ram", (json_int_t)receipt->reused_ram_tokens, "disk",
                     (json_int_t)receipt->reused_disk_tokens, "remote", (json_int_t)receipt->reused_remote_tokens,
                     "computed", (json_int_t)receipt->computed_tokens, "idle", (json_int_t)report->idle_tokens,
                     "matched", (json_int_t)receipt->matched_tokens, "generated", (json_int_t)report->generated_tokens);
}

static json_t *times_json(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "read", ms(report->read_us), "prepare",
                     ms(report->prepare_us), "queue", ms(receipt->queue_us), "plan", ms(receipt->plan_us), "restore",
                     ms(receipt->restore_us), "prefill", ms(receipt->prefill_us), "ttft", ms(report->ttft_us), "decode",
                     ms(report->decode_us), "beside", ms(receipt->beside_us + receipt->reply_beside_us), "unread",
                     ms(report->unread_us), "total", ms(report->total_us));
}

static json_t *waits_json(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    json_t *waits = json_object();
    for (size_t i = 0; i < HEARTH_WAIT_COUNT; i++) {
        if (receipt->wait_us[i] > 0) {
            json_object_set_new(waits, hearth_wait_text((enum hearth_wait)i), ms(receipt->wait_us[i]));
        }
    }
    return waits;
}

static json_t *lines_json(const struct hearth_report_divergence *divergence) {
    json_t *list = json_array();
    for (size_t i = 0; i < divergence->line_count; i++) {
        const struct hearth_report_line *line = &divergence->lines[i];
        json_array_append_new(list, json_pack("{s:i, s:o, s:o, s:o, s:o*}", "number", (int)line->number, "before",
                                              text_or_null(line->then), "after", text_or_null(line->now), "strip_line",
                                              text_or_null(line->paragraph ? NULL : line->pattern), "strip_paragraph",
                                              line->paragraph ? text_json(line->pattern) : NULL));
    }
    return list;
}

json_t *hearth_report_divergence_json(const struct hearth_report_divergence *divergence, bool texts) {
    const bool lines = texts && divergence->line_count > 0;
    return json_pack("{s:I, s:o, s:s, s:o*, s:o*, s:s, s:s, s:I, s:o*, s:o*}", "token", (json_int_t)divergence->token,
                     "message", divergence->message >= 0 ? json_integer(divergence->message) : json_null(), "field",
                     divergence->field, "before", texts ? text_json(divergence->before) : NULL, "after",
                     texts ? text_json(divergence->after) : NULL, "cause", hearth_cause_text(divergence->cause),
                     "cause_text", hearth_cause_help(divergence->cause), "saved_tokens",
                     (json_int_t)divergence->saved_tokens, "line", lines ? text_json(divergence->lines[0].now) : NULL,
                     "lines", lines ? lines_json(divergence) : NULL);
}

static json_t *verdicts_json(const struct hearth_report *report, bool texts) {
    struct hearth_verdict verdicts[HEARTH_VERDICTS_MAX];
    const size_t n = hearth_verdicts(report, verdicts);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        struct hearth_verdict *verdict = &verdicts[i];
        if (!texts) {
            hearth_verdict_unquote(verdict);
        }
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:s, s:o, s:I}", "cause", hearth_verdict_name(verdict->cause), "kind",
                            hearth_verdict_kind_text(verdict->cause), "text", text_json(verdict->text), "advice",
                            verdict->advice, "lost_ms", ms(verdict->lost_us), "tokens", (json_int_t)verdict->tokens));
    }
    return list;
}

/* Adds the members of a request that asked for a turn of the model. */
static bool add_turn(const struct hearth_report *report, bool texts, json_t *json) {
    const struct hearth_receipt *receipt = &report->receipt;
    const double s = (double)report->decode_us / 1e6;
    const double rate = s > 0 && report->generated_tokens > 1 ? (report->generated_tokens - 1) / s : 0;
    json_t *turn =
        json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:f, s:s, s:o, s:o}", "tokens", tokens_json(report), "ms",
                  times_json(report), "waits_ms", waits_json(report), "preemptions", (json_int_t)report->preemptions,
                  "behind", (json_int_t)receipt->behind, "ahead", text_or_null(report->ahead), "tokens_per_second",
                  (double)(int64_t)(rate * 10) / 10.0, "reason", hearth_reason_text(receipt->reason), "divergence",
                  report->divergence != NULL ? hearth_report_divergence_json(report->divergence, texts) : json_null(),
                  "verdicts", verdicts_json(report, texts));
    const bool ok = turn != NULL && json_object_update(json, turn) == 0;
    json_decref(turn);
    return ok;
}

json_t *hearth_report_json(const struct hearth_report *report, bool texts) {
    char at[40];
    const time_t seconds = (time_t)(report->at_ms / 1000);
    struct tm tm;
    size_t len = strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &tm));
    (void)snprintf(at + len, sizeof at - len, ".%03dZ", (int)(report->at_ms % 1000));
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s, s:o, s:o}", "id", report->id, "at", at,
                  "method", report->method, "endpoint", text_json(report->path), "client", text_or_null(report->client),
                  "key", text_or_null(report->key), "session", text_or_null(report->session), "class",
                  text_or_null(report->request_class), "model", text_or_null(report->model), "status", report->status,
                  "end", report->end, "error", text_or_null(report->error), "trace", text_or_null(report->trace));
    if (json != NULL && report->computes && !add_turn(report, texts, json)) {
        json_decref(json);
        return NULL;
    }
    return json;
}
