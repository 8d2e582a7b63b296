/* What the log says of every request: one line when it is over.
 *
 *     REQUEST-ID POST /v1/chat/completions 200 [key=NAME] class=CLASS prompt=N reused=N computed=N generated=N
 *     queue_ms=X prefill_ms=X decode_ms=X task=N [session=NAME] [drafted=N accepted=N] [preemptions=N] total_ms=X
 *     end=WORD [cause="TEXT"]
 *
 * (on one line; restoring is part of prefill, as it is for the client). `end` is how it came to its end: stop or
 * length; deadline, gone (the client has left), cancelled (by another request), failed. Whatever is not as the client
 * wanted it has a cause. The status is what the client was told, or would have been: 499 for one that has left, and
 * that of the error where a stream broke off.
 *
 * Levels: answers that took a turn of the model, and errors that are the client's or the queue's (a 4xx; a 5xx that is
 * BUSY, CANCELLED, OVERLOADED or DEADLINE), info; what the server is to blame for (every other 5xx, also for want of
 * memory or cells), warn; everything else, debug. Of what is refused before it is a job (no key, no room) only some
 * lines are written when there are many (http/report.c). What clients have written (paths, names, words of errors) can
 * neither break the line nor command the terminal. Prompts are not logged. */
#include "api/kept.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"

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
static void tame(char *text) {
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

/* The same for what ends at a blank. */
static void tame_word(char *text) {
    tame(text);
    for (char *at = text; (at = strchr(at, ' ')) != NULL;) {
        *at = '?';
    }
}

/* Whether it is the server's fault. */
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
    tame_word(path);
    tame(cause);
    hearth_log(is_to_blame(error) ? HEARTH_LOG_WARN : HEARTH_LOG_INFO, "%s %s %s %d end=failed cause=\"%s\"",
               hearth_http_request_id(exchange), hearth_http_method(exchange), path, error->status, cause);
}

void hearth_access_log_deleted(const struct hearth_job *job, const char *kind, const char *id, unsigned turns) {
    char name[100];
    snprintf(name, sizeof name, "%s", id);
    tame_word(name);
    hearth_log(HEARTH_LOG_INFO, "%s deleted %s=%s turns=%u key=%s", job->request_id, kind, name, turns,
               job->caller.name[0] != '\0' ? job->caller.name : "-");
}

/* How a job has ended. */
struct ending {
    int status;
    const char *word;
    char cause[sizeof((struct hearth_errmsg *)NULL)->text + 64];
};

static void find_ending(const struct hearth_job *job, const struct hearth_tally *tally, struct ending *ending) {
    *ending = (struct ending){.status = job->answered, .word = "stop"};
    if (job->cancelled) {
        ending->word = "cancelled";
        snprintf(ending->cause, sizeof ending->cause, "another request cancelled it");
    } else if (job->failed) {
        const bool begun = job->begun && job->answered == 200;
        ending->status = job->error.status;
        ending->word = job->error.status == 504 ? "deadline" : "failed";
        snprintf(ending->cause, sizeof ending->cause, "%s%s", job->error.message.text,
                 begun ? " (the stream had begun)" : "");
    } else if (job->gone || (job->answered == 0 && !job->detached)) {
        ending->status = 499;
        ending->word = "gone";
        snprintf(ending->cause, sizeof ending->cause, "the client went away, or was cut off");
    } else if (tally->late) {
        ending->word = "deadline";
        snprintf(ending->cause, sizeof ending->cause, "the deadline of %.0f ms cut the reply off",
                 (double)job->deadline_us / 1000.0);
    } else if (job->choice_count > 0 && job->choices[0].finish == HEARTH_FINISH_LENGTH) {
        ending->word = "length";
    }
    ending->status = ending->status != 0 ? ending->status : 200; /* it went on without its client */
    tame(ending->cause);
}

static enum hearth_log_level level_of(const struct hearth_job *job, const struct ending *ending) {
    if (job->failed && !job->cancelled && is_to_blame(&job->error)) {
        return HEARTH_LOG_WARN;
    }
    return job->choice_count > 0 || ending->status >= 400 ? HEARTH_LOG_INFO : HEARTH_LOG_DEBUG;
}

static double ms(int64_t us) {
    return (double)us / 1000.0;
}

static enum hearth_class class_of(const struct hearth_job *job) {
    return job->generation.max_tokens == 0 ? HEARTH_CLASS_WARM : job->generation.priority;
}

/* Tokens and times, of requests that came to the service. */
static void append_cost(const struct hearth_job *job, const struct hearth_tally *tally, struct hearth_buf *line) {
    const struct hearth_receipt *receipt = &tally->receipt;
    char session[100];
    (void)hearth_buf_printf(
        line, " prompt=%u reused=%u computed=%u generated=%llu queue_ms=%.1f prefill_ms=%.1f decode_ms=%.1f",
        receipt->prompt_tokens, hearth_receipt_cached_tokens(receipt), receipt->computed_tokens,
        (unsigned long long)tally->generated_tokens, ms(receipt->queue_us),
        ms(receipt->plan_us + receipt->restore_us + receipt->prefill_us), ms(tally->generate_us));
    (void)hearth_buf_printf(line, " task=%lld", (long long)job->choices[0].service_id);
    if (job->kept != NULL && job->kept->session != NULL) {
        snprintf(session, sizeof session, "%s", job->kept->session);
        tame_word(session);
        (void)hearth_buf_printf(line, " session=%s", session);
    }
    if (tally->drafted_tokens > 0) {
        (void)hearth_buf_printf(line, " drafted=%llu accepted=%llu", (unsigned long long)tally->drafted_tokens,
                                (unsigned long long)tally->accepted_tokens);
    }
    if (tally->preemptions > 0) {
        (void)hearth_buf_printf(line, " preemptions=%u", tally->preemptions);
    }
}

void hearth_access_log_job(const struct hearth_job *job) {
    struct hearth_tally tally = {.job = job};
    struct ending ending;
    struct hearth_buf line = {0};
    char path[200];
    if (job->choice_count > 0) {
        hearth_tally_job(job, &tally);
    }
    find_ending(job, &tally, &ending);
    const enum hearth_log_level level = level_of(job, &ending);
    if (level < hearth_log_lowest()) {
        return;
    }
    snprintf(path, sizeof path, "%s", job->path != NULL ? job->path : "?");
    tame_word(path);
    (void)hearth_buf_printf(&line, "%s %s %s %d", job->request_id, job->method, path, ending.status);
    if (job->caller.name[0] != '\0') {
        (void)hearth_buf_printf(&line, " key=%s", job->caller.name);
    }
    if (job->choice_count > 0) {
        (void)hearth_buf_printf(&line, " class=%s", hearth_class_text(class_of(job)));
    }
    if (job->choice_count > 0 && job->choices[0].service_id > 0) {
        append_cost(job, &tally, &line);
    }
    (void)hearth_buf_printf(&line, " total_ms=%.1f end=%s", ms(hearth_clock_us() - job->arrived_us), ending.word);
    if (ending.cause[0] != '\0') {
        (void)hearth_buf_printf(&line, " cause=\"%s\"", ending.cause);
    }
    hearth_log(level, "%s", line.data != NULL ? (const char *)line.data : job->request_id);
    hearth_buf_finish(&line);
}
