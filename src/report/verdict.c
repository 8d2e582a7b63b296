/* Verdicts: the rules that say why a request was slow. Each rule looks at a finished report and gives what its cause
 * cost; verdict_text.c puts that into words. A rule that is not sure says nothing: a wrong explanation is worse than
 * none.
 *
 * Rules about the prompt name at most one cause, since a prompt leaves the known prefix at one place; it is named when
 * at least NAMED_TOKENS were computed for it, however fast that was. Rules about time name a cause when it took at
 * least NAMED_US, and NAMED_SHARE of the time to the first token; what was computed beside it, when that was most of
 * all its time. */
#include "report/report.h"

#define NAMED_TOKENS 24
#define NAMED_US 100000
#define NAMED_SHARE 0.1
#define COLD_FAULTS 64 /* pages read from disk; fewer are not the model's */
#define LONG_TOKENS 64 /* a reply of fewer is not long, however slow the model is */

static const char *const kinds[] = {
#define X(name, text) [HEARTH_KIND_##name] = text,
    HEARTH_VERDICT_KIND_TABLE(X)
#undef X
};

static const struct {
    const char *name;
    enum hearth_verdict_kind kind;
} causes[] = {
#define X(name, text, kind, help, advice) [HEARTH_VERDICT_##name] = {text, HEARTH_KIND_##kind},
    HEARTH_VERDICT_TABLE(X)
#undef X
};

const char *hearth_verdict_name(enum hearth_verdict_cause cause) {
    return causes[cause].name;
}

enum hearth_verdict_kind hearth_verdict_kind(enum hearth_verdict_cause cause) {
    return causes[cause].kind;
}

const char *hearth_verdict_kind_text(enum hearth_verdict_cause cause) {
    return kinds[causes[cause].kind];
}

/* The tokens that were computed before. The tree may have forgotten that it had the end of an evicted path, or all of
 * it; the transcripts have not. But without a reply of this server in the prompt they prove nothing, because they also
 * know text that was only counted; and they know only conversations. */
uint32_t hearth_report_known(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    const uint32_t end = receipt->missing.end > 0 ? (uint32_t)receipt->missing.end : 0;
    uint32_t known = receipt->matched_tokens;
    if (receipt->reason == HEARTH_REASON_EVICTED) {
        known = report->known_tokens == 0 || (end > 0 && end < report->known_tokens) ? end : report->known_tokens;
    } else if (receipt->reason == HEARTH_REASON_RESTORE_FAILED && end > 0) {
        known = end;
    } else if (report->sampled_tokens > 0) {
        known = report->known_tokens;
    }
    known = known < receipt->prompt_tokens ? known : receipt->prompt_tokens - (receipt->prompt_tokens > 0);
    return known > receipt->matched_tokens ? known : receipt->matched_tokens;
}

/* ---- what things cost ---- */

struct judge {
    const struct hearth_report *report;
    struct hearth_verdict *out;
    size_t n;
};

/* How long computing the prompt itself took. */
static double own_us(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    return receipt->prefill_us > receipt->beside_us ? (double)(receipt->prefill_us - receipt->beside_us) : 0;
}

/* What reading a cold model's pages cost: compared with the server's usual speed or, if that is unknown, with the
 * fastest part of this prompt. */
static int64_t cold_us(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    const double usual =
        report->prefill_us_per_token > 0 ? report->prefill_us_per_token : (double)receipt->best_us / 1000;
    const double more = own_us(report) - usual * receipt->computed_tokens;
    return receipt->faults >= COLD_FAULTS && usual > 0 && more > 0 ? (int64_t)more : 0;
}

double hearth_report_token_us(const struct hearth_report *report) {
    const struct hearth_receipt *receipt = &report->receipt;
    if (receipt->computed_tokens >= HEARTH_REPORT_RATE_TOKENS || report->prefill_us_per_token <= 0) {
        return receipt->computed_tokens > 0 ? (own_us(report) - (double)cold_us(report)) / receipt->computed_tokens : 0;
    }
    return report->prefill_us_per_token;
}

/* Adds a verdict, if there is room. */
static void name_it(struct judge *judge, enum hearth_verdict_cause cause, uint32_t tokens, int64_t lost_us) {
    if (judge->n < HEARTH_VERDICTS_MAX) {
        judge->out[judge->n++] = (struct hearth_verdict){.cause = cause, .tokens = tokens, .lost_us = lost_us};
    }
}

/* Whether something took so long that it is named. */
static bool is_long(const struct hearth_report *report, int64_t us) {
    const int64_t waited_us = report->ttft_us > 0 ? report->ttft_us : report->total_us;
    const double share = (double)us / (double)(waited_us > 0 ? waited_us : 1);
    return us >= NAMED_US && share >= NAMED_SHARE;
}

static void name_if_long(struct judge *judge, enum hearth_verdict_cause cause, int64_t us) {
    if (is_long(judge->report, us)) {
        name_it(judge, cause, 0, us);
    }
}

/* ---- the prompt ---- */

static enum hearth_verdict_cause divergence_cause(enum hearth_cause cause) {
    switch (cause) {
    case HEARTH_CAUSE_EDITED: return HEARTH_VERDICT_EDITED_MESSAGE;
    case HEARTH_CAUSE_REPRINTED: return HEARTH_VERDICT_CALLS_REPRINTED;
    case HEARTH_CAUSE_COMPACTED: return HEARTH_VERDICT_COMPACTED;
    case HEARTH_CAUSE_DROPPED:
    case HEARTH_CAUSE_INSERTED:
    case HEARTH_CAUSE_MOVED: return HEARTH_VERDICT_MESSAGES_MOVED;
    case HEARTH_CAUSE_TOOLS: return HEARTH_VERDICT_TOOLS_CHANGED;
    case HEARTH_CAUSE_ARGUMENTS: return HEARTH_VERDICT_ARGUMENTS_CHANGED;
    case HEARTH_CAUSE_VOLATILE: return HEARTH_VERDICT_VOLATILE_LINE;
    case HEARTH_CAUSE_TRUNCATED: /* the rest was printed differently while there was more behind it */
    case HEARTH_CAUSE_RENDERED: return HEARTH_VERDICT_TEMPLATE_REWRITES;
    case HEARTH_CAUSE_OTHER: break;
    }
    return HEARTH_VERDICT_NEW_CONVERSATION;
}

size_t hearth_report_fixable_lines(const struct hearth_report_divergence *divergence) {
    size_t n = 0;
    while (n < divergence->line_count && divergence->lines[n].pattern[0] != '\0') {
        n++;
    }
    return n;
}

/* Judges text that no earlier prompt had. */
static void judge_new(struct judge *judge, uint32_t again) {
    const struct hearth_report *report = judge->report;
    const uint32_t computed = report->receipt.computed_tokens, fresh = computed > again ? computed - again : 0;
    const int64_t us = (int64_t)((double)fresh * hearth_report_token_us(report));
    const bool begins = report->receipt.reason == HEARTH_REASON_COLD;
    if (is_long(report, us)) {
        name_it(judge, begins ? HEARTH_VERDICT_NEW_CONVERSATION : HEARTH_VERDICT_NEW_TEXT, fresh, us);
    }
}

/* How state that was known was lost; COUNT: it was used, or was not worth it. */
static enum hearth_verdict_cause loss_cause(enum hearth_reason reason) {
    switch (reason) {
    case HEARTH_REASON_EVICTED: return HEARTH_VERDICT_EVICTED;
    case HEARTH_REASON_NO_SNAPSHOT: return HEARTH_VERDICT_NO_SNAPSHOT;
    case HEARTH_REASON_RESTORE_FAILED: return HEARTH_VERDICT_RESTORE_FAILED;
    case HEARTH_REASON_CACHE_OFF: return HEARTH_VERDICT_CACHE_OFF;
    case HEARTH_REASON_COLD:
    case HEARTH_REASON_EXTENDED:
    case HEARTH_REASON_DIVERGED: return HEARTH_VERDICT_STATE_GONE;
    default: return HEARTH_VERDICT_COUNT;
    }
}

/* Judges state that was known and could not be used. Returns how many tokens. */
static uint32_t judge_state(struct judge *judge) {
    const struct hearth_report *report = judge->report;
    const enum hearth_verdict_cause cause = loss_cause(report->receipt.reason);
    const uint32_t known = hearth_report_known(report), reused = hearth_receipt_reused_tokens(&report->receipt);
    const uint32_t lost = known > reused ? known - reused : 0;
    if (lost < NAMED_TOKENS || cause == HEARTH_VERDICT_COUNT) {
        return 0;
    }
    name_it(judge, cause, lost, (int64_t)((double)lost * hearth_report_token_us(report)));
    return lost;
}

/* Tokens that the place where the prompt left an earlier one has cost. */
static uint32_t tokens_of(const struct hearth_report_divergence *divergence, uint32_t computed) {
    const bool fixed = divergence->line_count > 0 &&
                       (hearth_report_fixable_lines(divergence) == divergence->line_count || !divergence->own);
    uint32_t saved = fixed ? divergence->fixed_tokens : divergence->saved_tokens;
    if (divergence->cause == HEARTH_CAUSE_COMPACTED) {
        saved = computed;
    } else if (divergence->own && saved < divergence->saved_tokens / 10 * 9) { /* more changed than those lines */
        saved = divergence->saved_tokens;
    }
    return saved < computed ? saved : computed;
}

static void judge_prompt(struct judge *judge) {
    const struct hearth_report *report = judge->report;
    const struct hearth_report_divergence *divergence = report->divergence;
    uint32_t again = judge_state(judge);
    if (divergence != NULL && divergence->cause != HEARTH_CAUSE_OTHER) {
        const uint32_t lost = tokens_of(divergence, report->receipt.computed_tokens);
        if (lost >= NAMED_TOKENS) {
            name_it(judge, divergence_cause(divergence->cause), lost,
                    (int64_t)((double)lost * hearth_report_token_us(report)));
            again += lost;
        }
    }
    judge_new(judge, again);
}

/* ---- time ---- */

static void judge_waits(struct judge *judge) {
    static const enum hearth_verdict_cause causes_of[] = {
        [HEARTH_WAIT_LANE] = HEARTH_VERDICT_QUEUED,          [HEARTH_WAIT_PREFIX] = HEARTH_VERDICT_SAME_PREFIX,
        [HEARTH_WAIT_CELLS] = HEARTH_VERDICT_SHORT_OF_CELLS, [HEARTH_WAIT_DISK] = HEARTH_VERDICT_SLOW_DISK,
        [HEARTH_WAIT_SCAN] = HEARTH_VERDICT_SCANNING,        [HEARTH_WAIT_PREEMPTED] = HEARTH_VERDICT_PREEMPTED,
        [HEARTH_WAIT_STORE] = HEARTH_VERDICT_SLOW_STORE,     [HEARTH_WAIT_WORKER] = HEARTH_VERDICT_WORKERS};
    const struct hearth_receipt *receipt = &judge->report->receipt;
    for (size_t wait = 0; wait < HEARTH_WAIT_COUNT; wait++) {
        int64_t us = receipt->wait_us[wait];
        if (wait == HEARTH_WAIT_BATCH) {
            continue; /* it belongs to the requests computed beside it */
        }
        const bool remote = receipt->reused_remote_tokens > receipt->reused_disk_tokens;
        if (wait == (remote ? HEARTH_WAIT_STORE : HEARTH_WAIT_DISK) &&
            receipt->reused_disk_tokens + receipt->reused_remote_tokens > 0) {
            us += receipt->restore_us;
        }
        name_if_long(judge, causes_of[wait], us);
    }
}

static void judge_times(struct judge *judge) {
    const struct hearth_report *report = judge->report;
    const struct hearth_receipt *receipt = &report->receipt;
    const int64_t shared_us = receipt->wait_us[HEARTH_WAIT_BATCH] + receipt->beside_us + receipt->reply_beside_us;
    const int64_t reply_us = report->decode_us - receipt->reply_beside_us - receipt->wait_us[HEARTH_WAIT_PREEMPTED];
    name_if_long(judge, HEARTH_VERDICT_PREPARING, report->prepare_us);
    if (shared_us * 2 > report->total_us) { /* on a busy server there are always some */
        name_if_long(judge, HEARTH_VERDICT_SHARED, shared_us);
    }
    name_if_long(judge, HEARTH_VERDICT_COLD_MODEL, cold_us(report));
    name_if_long(judge, HEARTH_VERDICT_SLOW_UPLOAD, report->read_us);
    name_if_long(judge, HEARTH_VERDICT_SLOW_READER, report->unread_us);
    if (report->generated_tokens >= LONG_TOKENS && reply_us * 2 > report->total_us) {
        name_if_long(judge, HEARTH_VERDICT_LONG_REPLY, reply_us);
    }
}

/* Names a client that left before the first token. What it costs is the time in no other verdict's wait. */
static void judge_left(struct judge *judge) {
    int64_t lost_us = judge->report->left_us;
    if (lost_us < NAMED_US) {
        return;
    }
    for (size_t i = 0; i < judge->n; i++) {
        lost_us -= causes[judge->out[i].cause].kind == HEARTH_KIND_WAIT ? judge->out[i].lost_us : 0;
    }
    name_it(judge, HEARTH_VERDICT_CLIENT_LEFT, 0, lost_us > 0 ? lost_us : 0);
}

/* The order of verdicts: first a client that left; then those that can be cured, if they took a tenth of all the time;
 * then those that have to be, such as new text; last other requests' share of the machine, which no client can
 * change. */
static int rank(const struct hearth_report *report, const struct hearth_verdict *verdict) {
    const bool helped = causes[verdict->cause].kind != HEARTH_KIND_NO_LOSS &&
                        (double)verdict->lost_us >= NAMED_SHARE * (double)report->total_us;
    return verdict->cause == HEARTH_VERDICT_CLIENT_LEFT ? 0
           : verdict->cause == HEARTH_VERDICT_SHARED    ? 3
           : helped                                     ? 1
                                                        : 2;
}

static bool comes_before(const struct hearth_report *report, const struct hearth_verdict *a,
                         const struct hearth_verdict *b) {
    const int x = rank(report, a), y = rank(report, b);
    return x != y ? x < y : a->lost_us > b->lost_us;
}

static void sort(const struct judge *judge) {
    for (size_t i = 1; i < judge->n; i++) {
        for (size_t k = i; k > 0 && comes_before(judge->report, &judge->out[k], &judge->out[k - 1]); k--) {
            const struct hearth_verdict moved = judge->out[k];
            judge->out[k] = judge->out[k - 1];
            judge->out[k - 1] = moved;
        }
    }
}

size_t hearth_verdicts_judge(const struct hearth_report *report, struct hearth_verdict out[HEARTH_VERDICTS_MAX]) {
    struct judge judge = {.report = report, .out = out};
    if (report->computes) {
        judge_prompt(&judge);
        judge_waits(&judge);
        judge_times(&judge);
        judge_left(&judge);
        sort(&judge);
    }
    return judge.n;
}
