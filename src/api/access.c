/* Reports a request when it has ended: a record in the ring of GET /requests (report/report.h), spans in the file of
 * --trace, and one line of the log.
 *
 *     REQUEST-ID POST /v1/chat/completions 200 [key=NAME] class=CLASS prompt=N reused=N computed=N generated=N
 *     queue_ms=X prefill_ms=X decode_ms=X reason=WORD [cause=WORD token=N message=N saved=N] task=N [session=NAME]
 *     [drafted=N accepted=N] [preemptions=N] total_ms=X end=WORD [trace=ID] [error="TEXT"]
 *
 * (all on one line; prefill_ms includes restoring, since the client waits for both). `cause`, `token` and `message` say
 * where the prompt left an earlier one; `saved` counts the tokens behind that place that would have been reused. `end`
 * is stop, length, deadline, gone (the client has left), cancelled (by another request) or failed. The last four have
 * an error. The status is the one that the client was told or would have been told: 499 when it has left, and the
 * status of the error when a stream broke off.
 *
 * Levels. info: answers for which the model computed, and errors that the client or the queue caused (a 4xx; a 5xx that
 * is BUSY, CANCELLED, OVERLOADED or DEADLINE). warn: every other 5xx, want of memory or cells included. debug:
 * everything else. When many requests are refused before they become a job (no key, no room), only some lines are
 * written (http/report.c). Text from clients (paths, names, quoted errors) is escaped, so it can neither break the line
 * nor send control codes to a terminal. Prompts are not logged. */
#include "api/divergence.h"
#include "api/idle.h"
#include "api/stored_turns.h"
#include "report/ring.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/spans.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The bytes of the character that begins here; 0: it is none. */
static size_t character_len(const char *at) {
    const unsigned char lead = (unsigned char)*at;
    const size_t len = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return strnlen(at, len) == len && hearth_utf8_valid(at, len) ? len : 0;
}

/* True for what a terminal may take for a command: C0, DEL, and C1 as UTF-8 (C2 80 to C2 9F) or as bytes of their own,
 * which they are for terminals with 8-bit controls. */
static bool is_control(const char *at, size_t len) {
    const unsigned char first = (unsigned char)at[0];
    switch (len) {
    case 0: return first <= 0x9F;
    case 1: return first < ' ' || first == 0x7F;
    case 2: return first == 0xC2 && (unsigned char)at[1] <= 0x9F;
    default: return false;
    }
}

/* Puts '?' in the place of control characters, and ' of quotes. */
static void sanitize(char *text) {
    char *out = text;
    for (const char *at = text; *at != '\0';) {
        const size_t len = character_len(at), step = len > 0 ? len : 1;
        if (is_control(at, len) || *at == '"') {
            *out++ = *at == '"' ? '\'' : '?';
        } else {
            memmove(out, at, step);
            out += step;
        }
        at += step;
    }
    *out = '\0';
}

/* The same for text that ends at a blank. */
static void sanitize_word(char *text) {
    sanitize(text);
    for (char *at = text; (at = strchr(at, ' ')) != NULL;) {
        *at = '?';
    }
}

/* Whether the server is to blame for an error. */
static bool is_to_blame(const struct hearth_api_error *error) {
    switch (error->err) {
    case HEARTH_ERR_BUSY:
    case HEARTH_ERR_CANCELLED:
    case HEARTH_ERR_OVERLOADED:
    case HEARTH_ERR_DEADLINE: return false;
    default: return error->status >= 500;
    }
}

void hearth_access_log_error(const struct hearth_http_exchange *exchange, const struct hearth_api_error *error) {
    char path[200], cause[sizeof error->message.text];
    if (!is_to_blame(error) && !hearth_http_may_report(exchange)) {
        return;
    }
    snprintf(path, sizeof path, "%s", hearth_http_path(exchange));
    snprintf(cause, sizeof cause, "%s", error->message.text);
    sanitize_word(path);
    sanitize(cause);
    hearth_log(is_to_blame(error) ? HEARTH_LOG_WARN : HEARTH_LOG_INFO, "%s %s %s %d end=failed error=\"%s\"",
               hearth_http_request_id(exchange), hearth_http_method(exchange), path, error->status, cause);
}

void hearth_access_log_deleted(const struct hearth_job *job, const char *kind, const char *id, unsigned turns) {
    char name[100];
    snprintf(name, sizeof name, "%s", id);
    sanitize_word(name);
    hearth_log(HEARTH_LOG_INFO, "%s deleted %s=%s turns=%u key=%s", job->request_id, kind, name, turns,
               job->caller.name[0] != '\0' ? job->caller.name : "-");
}

/* How a job has ended. */
struct job_ending {
    int status;
    const char *word;
    char error[sizeof((struct hearth_errmsg *)NULL)->text + 64];
};

static void find_ending(const struct hearth_job *job, const struct hearth_tally *tally, struct job_ending *ending) {
    *ending = (struct job_ending){.status = job->answered, .word = "stop"};
    if (job->cancelled) {
        ending->word = "cancelled";
        snprintf(ending->error, sizeof ending->error, "another request cancelled it");
    } else if (job->failed) {
        const bool begun = job->begun && job->answered == 200;
        ending->status = job->error.status;
        ending->word = job->error.status == 504 ? "deadline" : "failed";
        snprintf(ending->error, sizeof ending->error, "%s%s", job->error.message.text,
                 begun ? " (the stream had begun)" : "");
    } else if (job->gone || (job->answered == 0 && !job->detached)) {
        ending->status = 499;
        ending->word = "gone";
        snprintf(ending->error, sizeof ending->error, "the client went away, or was cut off");
    } else if (tally->late) {
        ending->word = "deadline";
        snprintf(ending->error, sizeof ending->error, "the deadline of %.0f ms cut the reply off",
                 (double)job->deadline_us / 1000.0);
    } else if (job->choice_count > 0 && job->choices[0].finish == HEARTH_FINISH_LENGTH) {
        ending->word = "length";
    }
    ending->status = ending->status != 0 ? ending->status : 200; /* the request went on without its client */
    sanitize(ending->error);
}

static enum hearth_log_level level_of(const struct hearth_job *job, const struct job_ending *ending) {
    if (job->failed && !job->cancelled && is_to_blame(&job->error)) {
        return HEARTH_LOG_WARN;
    }
    return (job->choice_count > 0 && !job->parsed->generation.locate_only) || ending->status >= 400 ? HEARTH_LOG_INFO
                                                                                                    : HEARTH_LOG_DEBUG;
}

/* ---- the report ---- */

/* A name that a client gave, as one word. */
static void copy_word(char *out, size_t cap, const char *text) {
    snprintf(out, cap, "%s", text != NULL ? text : "");
    out[hearth_utf8_complete(out, strlen(out))] = '\0';
    sanitize_word(out);
}

/* ---- the header traceparent, which connects an agent's own trace with the request here ----
 *
 *     VERSION-TRACE-PARENT-FLAGS: 2, 32, 16 and 2 lower-case hexadecimal digits
 *
 * Version ff is invalid. Version 00 ends after the flags; later versions may continue behind another dash. A trace or
 * parent of zeros is invalid. An invalid header is no error: the request then has no trace.
 * Source: W3C Trace Context, section 3.2. */

static bool is_hex(const char *text, size_t len) {
    return strspn(text, "0123456789abcdef") >= len;
}

static bool is_zero(const char *text, size_t len) {
    return strspn(text, "0") >= len;
}

bool hearth_traceparent_read(const char *header, char trace[HEARTH_TRACE_ID_BYTES]) {
    trace[0] = '\0';
    if (header == NULL || !is_hex(header, 2) || header[2] != '-' || !is_hex(header + 3, 32) || header[35] != '-' ||
        !is_hex(header + 36, 16) || header[52] != '-' || !is_hex(header + 53, 2)) {
        return false;
    }
    const bool later = strncmp(header, "00", 2) != 0;
    if (strncmp(header, "ff", 2) == 0 || is_zero(header + 3, 32) || is_zero(header + 36, 16) ||
        (header[55] != '\0' && !(later && header[55] == '-'))) {
        return false;
    }
    memcpy(trace, header + 3, 32);
    trace[32] = '\0';
    return true;
}

void hearth_access_take_client(struct hearth_job *job, const struct hearth_http_exchange *exchange) {
    const char *agent = hearth_http_header(exchange, "user-agent");
    copy_word(job->client, sizeof job->client, agent);
    job->client[strcspn(job->client, "?")] = '\0'; /* its first word: a blank became that */
    (void)hearth_traceparent_read(hearth_http_header(exchange, "traceparent"), job->trace);
}

/* ---- requests that came before ---- */

static enum hearth_class class_of(const struct hearth_job *job) {
    return job->parsed->generation.max_tokens == 0 ? HEARTH_CLASS_PREFETCH : job->priority;
}

#define AHEAD_GROUPS 8
#define AHEAD_TOLD 3

/* The running jobs of one client and session. */
struct ahead_group {
    const struct hearth_job *job;
    unsigned count;
};

static const char *session_of(const struct hearth_job *job) {
    return job->resolved->stored != NULL && job->resolved->stored->session != NULL ? job->resolved->stored->session
                                                                                   : "";
}

static bool same_group(const struct hearth_job *a, const struct hearth_job *b) {
    return strcmp(a->client, b->client) == 0 && strcmp(session_of(a), session_of(b)) == 0 && class_of(a) == class_of(b);
}

/* Fills the groups, the largest first, and returns how many there are. `*others` counts the jobs of other keys and of
 * groups that found no room. */
static size_t group_ahead(const struct hearth_job *job, struct ahead_group groups[AHEAD_GROUPS], unsigned *others) {
    size_t n = 0;
    for (const struct hearth_job *one = job->api->running; one != NULL; one = one->next) {
        size_t i = 0;
        while (i < n && !same_group(groups[i].job, one)) {
            i++;
        }
        if (one->open_choices == 0 || !hearth_digest_equal(one->owner, job->owner) || i == AHEAD_GROUPS) {
            *others += one->open_choices > 0;
            continue;
        }
        if (i == n) {
            groups[n++] = (struct ahead_group){.job = one};
        }
        groups[i].count++;
        for (; i > 0 && groups[i - 1].count < groups[i].count; i--) {
            const struct ahead_group moved = groups[i];
            groups[i] = groups[i - 1];
            groups[i - 1] = moved;
        }
    }
    return n;
}

void hearth_access_note_ahead(struct hearth_job *job) {
    struct ahead_group groups[AHEAD_GROUPS];
    struct hearth_buf text = {0};
    unsigned others = 0;
    const size_t n = group_ahead(job, groups, &others);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        const struct hearth_job *one = groups[i].job;
        char session[60];
        if (i >= AHEAD_TOLD) {
            others += groups[i].count;
            continue;
        }
        copy_word(session, sizeof session, session_of(one));
        ok = hearth_buf_printf(&text, "%s%u of %s", i > 0 ? ", " : "", groups[i].count,
                               one->client[0] != '\0' ? one->client : "a client without a name") &&
             (session[0] == '\0' || hearth_buf_printf(&text, " (session %s)", session)) &&
             (class_of(one) == HEARTH_CLASS_INTERACTIVE ||
              hearth_buf_printf(&text, " (%s)", hearth_class_text(class_of(one))));
    }
    if (ok && others > 0) {
        ok = hearth_buf_printf(&text, "%s%u of others", n > 0 ? ", " : "", others);
    }
    if (ok && text.data != NULL) {
        snprintf(job->ahead, sizeof job->ahead, "%.*s", (int)text.len, (const char *)text.data);
        job->ahead[hearth_utf8_complete(job->ahead, strlen(job->ahead))] = '\0';
    }
    hearth_buf_finish(&text);
}

/* What a tier says of itself; all 0 where it is off. */
static struct hearth_backing_stats stats_of(struct hearth_backing *tier) {
    struct hearth_backing_stats stats = {0};
    if (tier != NULL) {
        tier->ops->stats(tier, &stats);
    }
    return stats;
}

/* Tokens and times of a request that came to the service. */
static void report_turn(const struct hearth_job *job, const struct hearth_tally *tally, struct hearth_report *report) {
    const struct hearth_api *api = job->api;
    struct hearth_receipt *receipt = &report->receipt;
    report->computes = true;
    *receipt = tally->receipt;
    receipt->wait_us[HEARTH_WAIT_WORKER] += job->prepare_start_us - job->arrived_us;
    receipt->queue_us += job->prepare_start_us - job->arrived_us;
    receipt->reply_beside_us = receipt->reply_beside_us > 0 ? receipt->reply_beside_us : 0;
    report->idle_tokens = hearth_idle_computed(job, receipt);
    report->known_tokens = (uint32_t)job->rendered->known_tokens;
    report->sampled_tokens = (uint32_t)job->rendered->sampled_tokens;
    report->replies = hearth_history_replies(&job->resolved->request);
    report->generated_tokens = (uint32_t)tally->generated_tokens;
    report->thinking_tokens = (uint32_t)tally->reasoning_tokens;
    report->drafted_tokens = (uint32_t)tally->drafted_tokens;
    report->accepted_tokens = (uint32_t)tally->accepted_tokens;
    report->preemptions = tally->preemptions;
    report->ahead = job->ahead;
    report->ctx_tokens = api->engine->caps.ctx_tokens;
    report->prepare_us = job->prepare_us;
    report->prepare_cpu_us = job->prepare_cpu_us;
    report->prepare_db_us = job->prepare_db_us;
    report->read_us = job->read_us;
    report->sent_bytes = job->sent_bytes;
    report->left_us = job->gone_us > 0 && job->first_us == 0 ? job->gone_us - job->arrived_us : 0;
    report->unread_us = job->unread_us;
    report->decode_us = tally->generate_us;
    report->ttft_us = job->first_us > 0 ? job->first_us - job->arrived_us : 0;
    report->disk_bytes = stats_of(api->params.disk).budget_bytes;
    report->store_away = stats_of(api->params.remote).failing; /* the store that boxes share cannot be asked now */
    const struct hearth_caps *caps = &api->engine->caps;
    report->snapshot_interval =
        hearth_caps_needs_snapshot(caps) && caps->window_tokens == 0 ? api->params.snapshot_interval : 0;
    report->prefill_us_per_token = api->prefill_us_per_token;
    report->token_bytes = api->engine->caps.page_bytes_per_token;
}

/* What a prompt token usually costs, from the requests that computed enough to tell. */
static void learn_rates(struct hearth_api *api, const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    if (receipt->computed_tokens >= HEARTH_REPORT_RATE_TOKENS) {
        const double each = (double)(receipt->prefill_us - receipt->beside_us) / receipt->computed_tokens;
        api->prefill_us_per_token = api->prefill_us_per_token > 0 ? api->prefill_us_per_token * 0.8 + each * 0.2 : each;
    }
}

/* ---- the line ---- */

/* Tokens and times, of requests that came to the service. */
static void append_cost(const struct hearth_job *job, const struct hearth_report *report, struct hearth_buf *line) {
    const struct hearth_receipt *receipt = &report->receipt;
    const struct hearth_report_divergence *divergence = report->divergence;
    (void)hearth_buf_printf(line,
                            " prompt=%u reused=%u computed=%u generated=%u queue_ms=%.1f prefill_ms=%.1f "
                            "decode_ms=%.1f reason=%s",
                            receipt->prompt_tokens, hearth_receipt_reused_tokens(receipt), receipt->computed_tokens,
                            report->generated_tokens, HEARTH_MS(receipt->queue_us),
                            HEARTH_MS(receipt->plan_us + receipt->restore_us + receipt->prefill_us),
                            HEARTH_MS(report->decode_us), hearth_reason_text(receipt->reason));
    if (divergence != NULL) {
        (void)hearth_buf_printf(line, " cause=%s token=%d message=%d saved=%u", hearth_cause_text(divergence->cause),
                                divergence->token, divergence->message, divergence->saved_tokens);
    }
    (void)hearth_buf_printf(line, " task=%lld", (long long)job->choices[0].service_id);
    if (report->session != NULL) {
        char session[100];
        copy_word(session, sizeof session, report->session);
        (void)hearth_buf_printf(line, " session=%s", session);
    }
    if (report->drafted_tokens > 0) {
        (void)hearth_buf_printf(line, " drafted=%u accepted=%u", report->drafted_tokens, report->accepted_tokens);
    }
    if (report->preemptions > 0) {
        (void)hearth_buf_printf(line, " preemptions=%u", report->preemptions);
    }
}

static void log_report(const struct hearth_job *job, const struct hearth_report *report, enum hearth_log_level level) {
    struct hearth_buf line = {0};
    if (level < hearth_log_lowest()) {
        return;
    }
    (void)hearth_buf_printf(&line, "%s %s %s %d", report->id, report->method, report->path, report->status);
    if (report->key != NULL) {
        (void)hearth_buf_printf(&line, " key=%s", report->key);
    }
    if (report->request_class != NULL) {
        (void)hearth_buf_printf(&line, " class=%s", report->request_class);
    }
    if (report->computes) {
        append_cost(job, report, &line);
    }
    (void)hearth_buf_printf(&line, " total_ms=%.1f end=%s", HEARTH_MS(report->total_us), report->end);
    if (report->trace != NULL) {
        (void)hearth_buf_printf(&line, " trace=%s", report->trace);
    }
    if (report->error[0] != '\0') {
        (void)hearth_buf_printf(&line, " error=\"%s\"", report->error);
    }
    hearth_log(level, "%s", line.data != NULL ? (const char *)line.data : job->request_id);
    hearth_buf_finish(&line);
}

/* ---- the spans: one for the whole request, with the facts of its line, and one inside it for each phase ---- */

/* The report's numbers and names as members of an object. NULL: out of memory. The caller's to free. */
static char *members(const struct hearth_report *report, int64_t task) {
    json_t *args = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "request", report->id, "task", (json_int_t)task, "prompt",
        (json_int_t)report->receipt.prompt_tokens, "computed", (json_int_t)report->receipt.computed_tokens, "reused",
        (json_int_t)hearth_receipt_reused_tokens(&report->receipt), "generated", (json_int_t)report->generated_tokens,
        "end", report->end, "class", report->request_class != NULL ? report->request_class : "");
    const struct {
        const char *name, *text;
    } texts[] = {
        {"session", report->session}, {"client", report->client}, {"key", report->key}, {"trace", report->trace}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].text != NULL && texts[i].text[0] != '\0') {
            json_object_set_new(args, texts[i].name, hearth_api_json_text(texts[i].text));
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

/* Writes them from the report, so phases follow each other without gaps: time that was lost in between (a preemption)
 * stands at the end of its phase. */
static void put_spans(const struct hearth_job *job, const struct hearth_report *report) {
    const int64_t now_us = hearth_clock_us();
    const struct {
        const char *name;
        int64_t us;
    } phases[] = {{"prepare", report->prepare_us},
                  {"queue", report->receipt.queue_us},
                  {"restore", report->receipt.plan_us + report->receipt.restore_us},
                  {"prefill", report->receipt.prefill_us},
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

/* ---- the end of a job ---- */

void hearth_access_log_job(const struct hearth_job *job) {
    struct hearth_tally tally = {.job = job};
    struct job_ending ending;
    char path[200];
    const struct hearth_api_stored *stored = job->resolved->stored;
    const bool turn = job->choice_count > 0 && !job->parsed->generation.locate_only;
    if (turn) {
        hearth_tally_job(job, &tally);
    }
    find_ending(job, &tally, &ending);
    copy_word(path, sizeof path, job->path != NULL ? job->path : "?");
    struct hearth_report report = {.id = job->request_id,
                                   .method = job->method,
                                   .path = path,
                                   .client = job->client,
                                   .key = job->caller.name[0] != '\0' ? job->caller.name : NULL,
                                   .session = stored != NULL ? stored->session : job->about,
                                   .request_class = turn ? hearth_class_text(class_of(job)) : NULL,
                                   .model = job->api->model_name,
                                   .trace = job->trace[0] != '\0' ? job->trace : NULL,
                                   .end = ending.word,
                                   .error = ending.error,
                                   .status = ending.status,
                                   .total_us = hearth_clock_us() - job->arrived_us};
    report.turn = job->turn_written ? job->id_bits : (struct hearth_digest){0, 0};
    report.at_ms = (hearth_clock_unix_us() - report.total_us) / 1000;
    if (turn && job->choices[0].service_id > 0) {
        report_turn(job, &tally, &report);
    }
    if (report.computes && job->rendered->divergence != NULL) {
        report.divergence = &job->rendered->divergence->report;
    }
    log_report(job, &report, level_of(job, &ending));
    if (!turn) {
        return;
    }
    if (job->api->ring != NULL) {
        (void)hearth_ring_add(job->api->ring, &report, job->owner, job->api->params.keep_texts);
    }
    if (hearth_spans_on()) {
        put_spans(job, &report);
    }
    hearth_figures_add(&job->api->figures, &report, class_of(job));
    hearth_trend_add(&job->api->trend, &report, hearth_clock_unix() / 60);
    learn_rates(job->api, &report);
}
