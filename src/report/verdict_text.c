/* What is said of a verdict: a sentence about this request, and what to do. Where there is none of its own it is what
 * the table says of the cause (HEARTH_VERDICT_TABLE). */
#include "report/report.h"

#include <stdarg.h>
#include <string.h>

#define STORE_AWAY "look at `remote` in /health, and at its network; `--kv-remote-timeout` bounds it"

static const struct {
    const char *help, *advice;
} causes[] = {
#define X(name, text, kind, help, advice) [HEARTH_VERDICT_##name] = {help, advice},
    HEARTH_VERDICT_TABLE(X)
#undef X
};

/* ---- words ---- */

/* A part of a sentence. */
struct words {
    char text[64];
};

static struct words words(const char *format, ...) __attribute__((format(printf, 1, 2)));
static struct words words(const char *format, ...) {
    struct words out;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out.text, sizeof out.text, format, args);
    va_end(args);
    return out;
}

static void say(struct hearth_verdict *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct hearth_verdict *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(to->text, sizeof to->text, format, args);
    va_end(args);
}

static void advise(struct hearth_verdict *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void advise(struct hearth_verdict *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(to->advice, sizeof to->advice, format, args);
    va_end(args);
}

/* "14.2 s", "310 ms". */
static struct words duration(int64_t us) {
    return us >= 1000000 ? words("%.1f s", (double)us / 1e6) : words("%.0f ms", (double)us / 1e3);
}

/* "41,212". */
static struct words count(uint64_t n) {
    char plain[24];
    const int len = snprintf(plain, sizeof plain, "%llu", (unsigned long long)n);
    struct words out = {""};
    for (int i = 0, at = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) {
            out.text[at++] = ',';
        }
        out.text[at++] = plain[i];
    }
    return out;
}

static struct words size(uint64_t bytes) {
    const double mib = (double)bytes / (1 << 20);
    return mib < 1      ? words("%.0f KiB", mib * 1024)
           : mib < 1024 ? words("%.0f MiB", mib)
                        : words("%.1f GiB", mib / 1024);
}

static bool inside_character(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* The first line of a text with something in it, at most 40 bytes. */
static struct words first_line(const char *text) {
    const char *said = text + strspn(text, " \t\r\n");
    text = *said != '\0' ? said : text;
    size_t len = strcspn(text, "\r\n");
    const bool cut = len > 40;
    len = cut ? 40 : len;
    while (cut && len > 0 && inside_character(text[len])) {
        len--;
    }
    return words("%.*s%s", (int)len, text, cut ? "…" : "");
}

/* About 40 bytes of a line, from a little before its first difference from the other line. */
static struct words around(const char *line, const char *other) {
    enum { BEFORE = 24, SHOWN = 40 };
    size_t front = 0, from = 0;
    while (line[front] != '\0' && line[front] == other[front]) {
        front++;
    }
    if (strlen(line) > SHOWN && front > BEFORE && (line[front] != '\0' || other[front] != '\0')) {
        from = front - BEFORE;
        while (from < front && line[from - 1] != ' ') {
            from++;
        }
        from = from < front ? from : front - BEFORE;
        while (inside_character(line[from])) {
            from++;
        }
    }
    return words("%s%.56s", from > 0 ? "…" : "", first_line(line + from).text);
}

/* What the table says of the cause, and how many tokens it cost. */
static void say_again(struct hearth_verdict *verdict) {
    say(verdict, "%s, so %s tokens were computed again", causes[verdict->cause].help, count(verdict->tokens).text);
}

/* ---- where the prompt left an earlier one ---- */

static bool is_field(const struct hearth_report_divergence *divergence, const char *field) {
    return divergence->field != NULL && strcmp(divergence->field, field) == 0;
}

/* "message 6 (user)", "the system text". */
static struct words place(const struct hearth_report_divergence *divergence) {
    if (is_field(divergence, "system")) {
        return words("the system text");
    }
    if (divergence->message < 0) {
        return words("the prompt at token %d", divergence->token);
    }
    return divergence->role != NULL ? words("message %d (%s)", divergence->message, divergence->role)
                                    : words("message %d", divergence->message);
}

/* The first line that differs; NULL: unknown. */
static const struct hearth_report_line *first_of(const struct hearth_report_divergence *divergence) {
    return divergence->line_count > 0 ? &divergence->lines[0] : NULL;
}

/* "line 3" or "lines 40 to 44" of a text; "a line" if the number is unknown. */
static struct words name_lines(const struct hearth_report_line *line) {
    if (line == NULL || line->number <= 0) {
        return words("%s", line != NULL && line->count > 1 ? "lines" : "a line");
    }
    return line->count > 1 ? words("lines %d to %d", line->number, line->number + line->count - 1)
                           : words("line %d", line->number);
}

/* "line 3 of the system text changed (`Today: 2026-11-25`)", and how many other lines changed. */
static void say_lines(const struct hearth_report_divergence *divergence, struct hearth_verdict *verdict) {
    const struct hearth_report_line *line = first_of(divergence);
    const bool came = line != NULL && line->then[0] == '\0', went = line != NULL && line->now[0] == '\0';
    const bool many = line != NULL && line->count > 1;
    const struct words shown = line == NULL ? first_line(divergence->after)
                               : went       ? first_line(line->then)
                               : came       ? first_line(line->now)
                                            : around(line->now, line->then);
    const struct words others =
        divergence->line_count > 1 ? words(", and %zu more behind it", divergence->line_count - 1) : words("%s", "");
    const char *what = came ? "came in" : went ? many ? "were taken out" : "was taken out" : "changed";
    if (!divergence->own) { /* of another conversation: the line may be right in both */
        what = many ? "are not those of an earlier prompt" : "is not that of an earlier prompt";
    }
    say(verdict, "%s of the system text %s (`%s`)%s, so %s tokens were computed%s", name_lines(line).text, what,
        shown.text, others.text, count(verdict->tokens).text, divergence->own ? " again" : "");
}

/* The options that remove the lines, and what they save: up to the first line without a pattern. */
static void advise_lines(const struct hearth_report *report, const struct hearth_report_divergence *divergence,
                         struct hearth_verdict *verdict) {
    enum { AROUND = 140 }; /* bytes of the sentences around the options */
    char options[sizeof verdict->advice - AROUND] = "";
    size_t n = 0, i = 0;
    const size_t fixable = hearth_report_fixable_lines(divergence);
    bool whole = false; /* paragraphs */
    while (i < fixable && n + sizeof " --strip-paragraph ''" + strlen(divergence->lines[i].pattern) <= sizeof options) {
        char option[160];
        const struct hearth_report_line *line = &divergence->lines[i];
        (void)snprintf(option, sizeof option, "--strip-%s '%s'", line->paragraph ? "paragraph" : "line", line->pattern);
        whole = whole || line->paragraph;
        if (strstr(options, option) == NULL) { /* two lines may be of one paragraph */
            n += (size_t)snprintf(options + n, sizeof options - n, "%s%s", n > 0 ? " " : "", option);
        }
        i++;
    }
    if (i < fixable || i == 0) {
        advise(verdict, "have the client put what changes into its newest message; or take such lines out with "
                        "`--strip-line` and a pattern that fits each of them and nothing else");
    } else if (i < divergence->line_count || divergence->fixed_tokens < verdict->tokens / 10 * 9) {
        advise(verdict, "`%s` would have saved %s tokens of them; what else changes belongs into the newest message",
               options, count(divergence->fixed_tokens).text);
    } else {
        advise(verdict, "%s`%s` would have saved %s (it takes %s out)",
               divergence->own && !whole ? "" : "where the model can do without it, ", options,
               duration((int64_t)((double)verdict->tokens * hearth_report_token_us(report))).text,
               whole                        ? "all up to the next empty line"
               : divergence->line_count > 1 ? "these lines"
                                            : "the whole line");
    }
}

static void say_tools(const struct hearth_report_divergence *divergence, struct hearth_verdict *verdict) {
    static const char *const said[] = {[HEARTH_REPORT_TOOL_OTHER] = "`%.60s` stands where `%.60s` stood",
                                       [HEARTH_REPORT_TOOL_GONE] = "`%2$.60s` is gone",
                                       [HEARTH_REPORT_TOOL_CAME] = "`%.60s` has come in before `%.60s`",
                                       [HEARTH_REPORT_TOOLS_MOVED] =
                                           "they come in another order (`%.60s` stands where `%.60s` stood)"};
    const struct hearth_report_line *line = first_of(divergence);
    const struct words tokens = count(verdict->tokens);
    char what[200];
    if (divergence->tool == NULL ||
        (divergence->tools != HEARTH_REPORT_TOOL_CHANGED && divergence->tool_then == NULL)) {
        say_again(verdict);
    } else if (divergence->tools != HEARTH_REPORT_TOOL_CHANGED) {
        (void)snprintf(what, sizeof what, said[divergence->tools], divergence->tool, divergence->tool_then);
        say(verdict, "the list of tools changed: %s, so %s tokens were computed again", what, tokens.text);
    } else {
        say(verdict, "the definition of tool `%.60s` changed (`%s` became `%s`), so %s tokens were computed again",
            divergence->tool, first_line(line != NULL ? line->then : divergence->before).text,
            first_line(line != NULL ? line->now : divergence->after).text, tokens.text);
        advise(verdict, "keep tools the same through a conversation: no counters, dates or lists that grow");
    }
}

/* The sentence about a message that changed: in which line, and what stood there. */
static void say_edited(const struct hearth_report_divergence *divergence, struct hearth_verdict *verdict) {
    const struct hearth_report_line *line = first_of(divergence);
    const bool numbered = line != NULL && line->number > 0;
    const bool came = line != NULL && line->then[0] == '\0', went = line != NULL && line->now[0] == '\0';
    const bool calls = line == NULL && is_field(divergence, "tool_calls");
    const struct words then = line != NULL ? around(line->then, line->now) : first_line(divergence->before);
    const struct words now = line != NULL ? around(line->now, line->then) : first_line(divergence->after);
    const struct words tokens = count(verdict->tokens), where = place(divergence);
    if (divergence->moved) {
        say(verdict,
            "the lines of %s stand in another order (`%s` where `%s` stood), so %s tokens from there on had to be "
            "computed",
            where.text, now.text, then.text, tokens.text);
        advise(verdict, "have the client sort what it puts there, or put what comes in another order into its newest "
                        "message");
        return;
    }
    if (divergence->all) {
        say(verdict, "all of %s changed (`%s` became `%s`), so %s tokens from there on had to be computed", where.text,
            then.text, now.text, tokens.text);
    } else if (came || went) {
        say(verdict, "%s of %s %s (`%s`), so %s tokens from there on had to be computed",
            numbered ? name_lines(line).text : "a line", where.text, came ? "came in" : "was taken out",
            first_line(came ? line->now : line->then).text, tokens.text);
    } else {
        say(verdict, "%s%s%s%s changed (`%s` became `%s`), so %s tokens from there on had to be computed",
            calls ? "what is called in " : "", numbered ? name_lines(line).text : "", numbered ? " of " : "",
            where.text, then.text, now.text, tokens.text);
    }
    if (divergence->role != NULL && strcmp(divergence->role, "tool") == 0) {
        advise(verdict,
               "a client that clears or shortens old results has what follows them computed again: seldom, and "
               "many at a time, costs least");
    } else if (divergence->all && is_field(divergence, "system")) {
        advise(verdict, "keep one system text through a conversation: what changes belongs into the newest message");
    } else if (numbered) {
        advise(verdict,
               "have the client leave earlier messages as they were: what changes belongs into the newest one");
    }
}

static void say_moved(const struct hearth_report_divergence *divergence, struct hearth_verdict *verdict) {
    const struct words tokens = count(verdict->tokens), where = place(divergence);
    if (divergence->cause == HEARTH_CAUSE_MOVED) {
        say(verdict,
            "the client put messages in another order, from %s on, so %s tokens from there on had to be computed",
            where.text, tokens.text);
        advise(verdict, "have the client keep earlier messages in their order, and add new ones at the end");
    } else {
        say(verdict, "the client %s messages at %s, so %s tokens from there on had to be computed",
            divergence->cause == HEARTH_CAUSE_DROPPED ? "dropped" : "inserted", where.text, tokens.text);
    }
}

/* The sentences about the place where the prompt left an earlier one. */
static void say_divergence(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct hearth_report_divergence *divergence = report->divergence;
    switch (verdict->cause) {
    case HEARTH_VERDICT_VOLATILE_LINE:
        say_lines(divergence, verdict);
        advise_lines(report, divergence, verdict);
        break;
    case HEARTH_VERDICT_EDITED_MESSAGE: say_edited(divergence, verdict); break;
    case HEARTH_VERDICT_MESSAGES_MOVED: say_moved(divergence, verdict); break;
    case HEARTH_VERDICT_TOOLS_CHANGED: say_tools(divergence, verdict); break;
    case HEARTH_VERDICT_ARGUMENTS_CHANGED:
    case HEARTH_VERDICT_TEMPLATE_REWRITES: say_again(verdict); break;
    case HEARTH_VERDICT_CALLS_REPRINTED:
        say(verdict,
            "the calls in %s say the same, but their arguments are written in another way (order of keys, blanks), so "
            "%s tokens were computed again",
            place(divergence).text, count(verdict->tokens).text);
        break;
    case HEARTH_VERDICT_COMPACTED:
        say(verdict,
            "the client put a summary in the place of earlier messages, from %s on, so %s tokens were computed",
            place(divergence).text, count(verdict->tokens).text);
        break;
    default: break;
    }
}

/* ---- new text, and state that could not be used ---- */

static void say_new_conversation(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct words tokens = count(verdict->tokens);
    if (report->replies == 0) {
        say(verdict, "a new conversation: its %s tokens had not been computed before%s", tokens.text,
            report->key != NULL ? " for this key" : "");
        return;
    }
    say(verdict,
        "a conversation with a history that is not known here: it began before the server was started, "
        "with another model, adapter, key or salt, or somewhere else, or its client has rewritten it, so all of "
        "its %s tokens were computed%s",
        tokens.text, report->store_away ? "; the store that boxes share could not be asked" : "");
    if (report->store_away) {
        advise(verdict, "%s", STORE_AWAY);
    } else if (report->disk_bytes == 0) {
        advise(verdict, "`--kv-dir DIR` keeps what is known when the server is started again");
    }
}

static unsigned long long mib_up(uint64_t bytes) {
    return (unsigned long long)((bytes + (1 << 20) - 1) >> 20);
}

/* Advises how much room would have kept the state. */
static void advise_room(const struct hearth_report *report, struct hearth_verdict *to) {
    const struct hearth_shortfall *missing = &report->receipt.missing;
    if (missing->store) {
        advise(to, "more memory for the store, or a longer `--kv-remote-ttl`: it removes by itself what is too much "
                   "or too old");
        return;
    }
    if (missing->ram == 0) {
        return;
    }
    if (report->disk_bytes > 0) {
        advise(to, "`--kv-disk %llu` instead of %llu would have kept it", mib_up(report->disk_bytes + missing->disk),
               mib_up(report->disk_bytes));
    } else {
        advise(to, "`--cache-ram %llu` instead of %llu would have kept it, or `--kv-dir DIR` on disk",
               mib_up(missing->ram), mib_up(missing->budget));
    }
}

#define INTERVAL_MARKS 32 /* about the most snapshots that a prompt gets on the way */

/* Advises the largest interval with a snapshot near enough to the known part to save most of it. */
static void advise_interval(const struct hearth_report *report, struct hearth_verdict *to) {
    const uint32_t known = hearth_report_known(report), from = known - to->tokens;
    for (uint32_t every = 4096; every >= 64; every /= 2) {
        const uint32_t at = known / every * every, saved = at > from ? at - from : 0;
        if (every < report->snapshot_interval && saved >= to->tokens / 4 * 3 && known / every <= INTERVAL_MARKS) {
            advise(to, "`--snapshot-interval %u` instead of %u would have saved %s tokens (%s)", every,
                   report->snapshot_interval, count(saved).text,
                   duration((int64_t)(saved * hearth_report_token_us(report))).text);
            return;
        }
    }
}

static void say_computed(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct words tokens = count(verdict->tokens);
    const bool one = verdict->tokens == 1;
    switch (verdict->cause) {
    case HEARTH_VERDICT_NEW_CONVERSATION: say_new_conversation(report, verdict); break;
    case HEARTH_VERDICT_NEW_TEXT:
        say(verdict, "%s token%s of the prompt %s new", tokens.text, one ? "" : "s", one ? "is" : "are");
        break;
    case HEARTH_VERDICT_EVICTED:
        say(verdict, "%s tokens were known, but their state (%s) had been evicted%s", tokens.text,
            size(verdict->tokens * report->token_bytes).text,
            report->receipt.missing.store ? " from the store that boxes share" : "");
        advise_room(report, verdict);
        break;
    case HEARTH_VERDICT_NO_SNAPSHOT:
        say(verdict, "%s tokens were known, but the model can only be resumed where a snapshot was kept", tokens.text);
        advise_interval(report, verdict);
        break;
    case HEARTH_VERDICT_RESTORE_FAILED:
        say(verdict, "%s tokens were known, but their stored state could not be read, or did not verify", tokens.text);
        break;
    case HEARTH_VERDICT_STATE_GONE:
        say(verdict,
            "%s tokens had been computed before, but their state was gone: the server was started again, or "
            "they were evicted long ago",
            tokens.text);
        break;
    default: break;
    }
}

/* ---- waits ---- */

/* A context for this many tokens: rounded up, with room for a reply. */
static uint32_t enough_cells(uint32_t needed) {
    enum { STEP = 4096, REPLY = 1024 };
    return (needed + REPLY + STEP - 1) / STEP * STEP;
}

static void say_wait(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct hearth_receipt *receipt = &report->receipt;
    const struct words time = duration(verdict->lost_us);
    const bool named = receipt->behind > 0 && report->ahead != NULL && report->ahead[0] != '\0';
    switch (verdict->cause) {
    case HEARTH_VERDICT_QUEUED:
        say(verdict, "it waited %s for a lane, behind %u other request%s%s%s%s", time.text, receipt->behind,
            receipt->behind == 1 ? "" : "s", named ? " (when it came, running or waiting: " : "",
            named ? report->ahead : "", named ? ")" : "");
        break;
    case HEARTH_VERDICT_SAME_PREFIX:
        say(verdict,
            "it waited %s for another request that was computing the same beginning, and took %s tokens from "
            "it",
            time.text, count(hearth_receipt_reused_tokens(receipt)).text);
        break;
    case HEARTH_VERDICT_SHORT_OF_CELLS:
        say(verdict, "it waited %s because the KV cache was full%s", time.text,
            report->preemptions > 0 ? ", having lost its lane for that" : "");
        if (receipt->cells_needed > 0) {
            advise(verdict,
                   "`--ctx-size %u` instead of %u would have had room for it beside those that ran; or less "
                   "`--parallel`",
                   enough_cells(receipt->cells_needed), report->ctx_tokens);
        }
        break;
    case HEARTH_VERDICT_PREEMPTED:
        say(verdict, "it was preempted %u time%s, for %s together", report->preemptions,
            report->preemptions == 1 ? "" : "s", time.text);
        break;
    case HEARTH_VERDICT_SLOW_DISK:
        say(verdict, "reading the state of %s tokens from disk took %s", count(receipt->reused_disk_tokens).text,
            time.text);
        break;
    case HEARTH_VERDICT_SLOW_STORE:
        if (receipt->reused_remote_tokens > 0) {
            say(verdict, "asking the store that boxes share, and reading the state of %s tokens from it, took %s",
                count(receipt->reused_remote_tokens).text, time.text);
        } else {
            say(verdict, "it waited %s for the store that boxes share, which %s", time.text,
                report->store_away ? "did not answer" : "had nothing");
        }
        break;
    case HEARTH_VERDICT_SCANNING:
        say(verdict, "it waited %s: %s", time.text, hearth_wait_help(HEARTH_WAIT_SCAN));
        break;
    case HEARTH_VERDICT_WORKERS:
        say(verdict, "it waited %s: %s", time.text, hearth_wait_help(HEARTH_WAIT_WORKER));
        break;
    default: break;
    }
}

/* ---- time ---- */

/* It was the database, the work, or having no core. */
static void say_preparing(const struct hearth_report *report, struct hearth_verdict *to) {
    const struct hearth_receipt *receipt = &report->receipt;
    const int64_t us = report->prepare_us;
    const struct words time = duration(us);
    if (report->prepare_db_us * 2 > us) {
        say(to, "preparing the request took %s: %s of that reading what is kept of its conversation", time.text,
            duration(report->prepare_db_us).text);
        advise(to, "a faster disk, or database, for `--session-db` and `--kv-dir`");
    } else if (report->prepare_cpu_us * 2 > us) {
        say(to,
            "reading, rendering and tokenising the request took %s: it has %s bytes, and the text of %s of its "
            "%s tokens was known",
            time.text, count(report->sent_bytes).text, count(report->known_tokens).text,
            count(receipt->prompt_tokens).text);
        if (report->known_tokens * 2 > receipt->prompt_tokens) {
            advise(to, "fewer or smaller tools and schemas: they are read and become a grammar with each request");
        }
    } else {
        say(to, "preparing the request took %s, but only %s of work: the machine was busy with something else",
            time.text, duration(report->prepare_cpu_us).text);
        advise(to, "fewer threads for the model (`-t`), or fewer programs beside it");
    }
}

static void say_left(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct hearth_receipt *receipt = &report->receipt;
    const double each_us = hearth_report_token_us(report);
    const uint32_t reused = hearth_receipt_reused_tokens(receipt), done = reused + receipt->computed_tokens;
    if (receipt->prompt_tokens == 0) {
        return;
    }
    say(verdict,
        "the client left after %s, before the first token: the state of %s of its prompt's %s tokens was ready",
        duration(report->left_us).text, count(done).text, count(receipt->prompt_tokens).text);
    if (each_us > 0 && receipt->reason != HEARTH_REASON_CACHE_OFF) {
        advise(verdict,
               "if that was its time limit, a longer one: this prompt takes about %s alone. What was computed is kept, "
               "and the same request goes on from there",
               duration((int64_t)((receipt->prompt_tokens - reused) * each_us)).text);
    }
}

static void say_time(const struct hearth_report *report, struct hearth_verdict *verdict) {
    const struct hearth_receipt *receipt = &report->receipt;
    const struct words time = duration(verdict->lost_us);
    const struct words thinking =
        report->thinking_tokens > 0 ? words(" (%s of thinking)", count(report->thinking_tokens).text) : words("%s", "");
    switch (verdict->cause) {
    case HEARTH_VERDICT_PREPARING: say_preparing(report, verdict); break;
    case HEARTH_VERDICT_SHARED:
        say(verdict,
            "other requests were computed at the same time: %s until their batch ended, %s while its prompt was "
            "computed, %s of its reply's time",
            duration(receipt->wait_us[HEARTH_WAIT_BATCH]).text, duration(receipt->beside_us).text,
            duration(receipt->reply_beside_us).text);
        break;
    case HEARTH_VERDICT_COLD_MODEL:
        say(verdict,
            "%s pages were read from disk while its prompt was computed: the model was not in RAM, which took "
            "%s",
            count((uint64_t)receipt->faults).text, time.text);
        break;
    case HEARTH_VERDICT_SLOW_UPLOAD:
        say(verdict, "the request itself took %s to arrive: %s bytes after its head", time.text,
            count(report->sent_bytes).text);
        break;
    case HEARTH_VERDICT_SLOW_READER:
        say(verdict, "for %s of the reply's time the client, or the network to it, had not taken what was written",
            time.text);
        break;
    case HEARTH_VERDICT_LONG_REPLY:
        say(verdict, "the reply has %s tokens%s, which took %s", count(report->generated_tokens).text, thinking.text,
            time.text);
        break;
    case HEARTH_VERDICT_CLIENT_LEFT: say_left(report, verdict); break;
    default: break;
    }
}

/* ---- all ---- */

size_t hearth_verdicts(const struct hearth_report *report, struct hearth_verdict out[HEARTH_VERDICTS_MAX]) {
    const size_t n = hearth_verdicts_judge(report, out);
    for (size_t i = 0; i < n; i++) {
        say(&out[i], "%s", causes[out[i].cause].help);
        advise(&out[i], "%s", causes[out[i].cause].advice);
        say_divergence(report, &out[i]); /* each of them knows causes of its own */
        say_computed(report, &out[i]);
        say_wait(report, &out[i]);
        say_time(report, &out[i]);
    }
    return n;
}

void hearth_verdict_unquote(struct hearth_verdict *verdict) {
    if (verdict->cause == HEARTH_VERDICT_VOLATILE_LINE || verdict->cause == HEARTH_VERDICT_EDITED_MESSAGE ||
        verdict->cause == HEARTH_VERDICT_TOOLS_CHANGED) {
        say_again(verdict);
        advise(verdict, "%s", causes[verdict->cause].advice);
    }
}
