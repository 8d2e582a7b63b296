/* A report: what is kept of a request after its reply was sent. It has figures, the place where the prompt left an
 * earlier one, and verdicts on why the request was slow. The access log, GET /requests and `hearth why` all print this
 * one report.
 *
 * A report is made once, when a request ends, and never changes. Texts of prompts are in it only as the excerpts before
 * and after a divergence. */
#ifndef HEARTH_REPORT_REPORT_H
#define HEARTH_REPORT_REPORT_H

#include "base/buf.h"
#include "cache/receipt.h"
#include "session/diagnose.h"

#include <jansson.h>

/* A line of a message, or a few in a row, that differs from before. Empty: that text does not have it. */
struct hearth_report_line {
    char then[128], now[128];
    char pattern[128]; /* for --strip-line; "": there is none */
    bool paragraph;    /* the pattern is for --strip-paragraph */
    int32_t number;    /* 1: first line of its message; 0: unknown */
    int32_t count;     /* lines in a row; 0 and 1: one */
};

#define HEARTH_REPORT_LINES_MAX 6

/* What has changed in the list of tools. */
enum hearth_report_tools {
    HEARTH_REPORT_TOOL_CHANGED, /* a tool reads differently */
    HEARTH_REPORT_TOOL_OTHER,   /* another tool stands in its place */
    HEARTH_REPORT_TOOL_GONE,
    HEARTH_REPORT_TOOL_CAME,
    HEARTH_REPORT_TOOLS_MOVED,
};

/* Where a prompt left an earlier one. Texts are borrowed. */
struct hearth_report_divergence {
    enum hearth_cause cause;
    int32_t token, message; /* indices; message < 0: none, or unknown */
    const char *field;
    const char *role;      /* of the message; NULL: unknown */
    const char *tool;      /* TOOLS: the tool in which the prompts part; NULL: unknown */
    const char *tool_then; /* the tool that stood there before; NULL: the same, or unknown */
    enum hearth_report_tools tools;
    const char *before, *after; /* the text from there on, in the earlier prompt and in this one */
    uint32_t saved_tokens;      /* tokens that would have been reused without the difference: text behind it that both
                                   prompts have */
    bool all;                   /* EDITED: hardly anything of the message is unchanged */
    bool moved;                 /* EDITED: its lines are in another order */
    bool own;                   /* the earlier prompt is of the same conversation, as far as that is certain */
    const struct hearth_report_line *lines; /* VOLATILE: the first lines, and their number; EDITED,
                                             * TOOLS: the text around the difference */
    size_t line_count;
    uint32_t fixed_tokens; /* tokens that would have been reused without the lines in front of the first one that has no
                              pattern; if the first has none, without all of them */
};

/* Prompt tokens that a request must have computed for its rate to count. */
#define HEARTH_REPORT_RATE_TOKENS 64

/* One request that has ended. Strings are borrowed from the caller. Units: tokens, microseconds. */
struct hearth_report {
    const char *id, *method, *path, *client, *key, *session, *request_class, *model, *end, *error;
    struct hearth_digest turn; /* the turn that it has stored; zero: none */
    const char *trace;         /* of its client's traceparent; NULL: none */
    int64_t at_ms;             /* its arrival, since 1970 */
    int status;
    bool computes;                 /* it asked for a turn of the model; otherwise the rest is zero */
    struct hearth_receipt receipt; /* of all its prompts; with the wait for a thread that prepares it */
    uint32_t replies;              /* replies in its history, of this server or not */
    uint32_t sampled_tokens;       /* tokens of its beginning that this server has sampled */
    uint32_t known_tokens; /* tokens of its beginning that the transcripts know: computed before, or only counted */
    uint32_t idle_tokens;  /* reused tokens that were computed ahead, in idle time */
    uint32_t generated_tokens, thinking_tokens, drafted_tokens, accepted_tokens, preemptions;
    uint32_t ctx_tokens;    /* cells that there are */
    const char *ahead;      /* the requests in front of it in words, as "2 of claude-cli/2.1"; NULL or "": unknown */
    int64_t read_us;        /* how long its body was on the way */
    size_t sent_bytes;      /* bytes of its response */
    int64_t left_us;        /* when its client left before the first token; 0: it did not */
    int64_t unread_us;      /* how much of the reply's time the client did not take what was written */
    int64_t prepare_cpu_us; /* of the time for preparing it: CPU time, … */
    int64_t prepare_db_us;  /* … and waiting for the session database */
    int64_t prepare_us, ttft_us, decode_us, total_us;
    const struct hearth_report_divergence *divergence; /* NULL: none */
    double prefill_us_per_token;                       /* the server's usual cost of a prompt token; 0: not known yet */
    uint64_t token_bytes;                              /* bytes of state per token */
    uint64_t disk_bytes;                               /* bytes that state may take on disk; 0: there is no disk */
    bool store_away;                                   /* the shared store could not be asked when the request ended */
    uint32_t snapshot_interval;                        /* tokens; 0: the model needs no snapshots */
};

/* ---- verdict.c: which causes there are, and what they cost ---- */

/* The kinds of causes: tokens that were computed again; time that was not the prompt's own; nothing to cure. */
#define HEARTH_VERDICT_KIND_TABLE(X) \
    X(WASTE, "waste")                \
    X(WAIT, "wait")                  \
    X(NO_LOSS, "no_loss")

enum hearth_verdict_kind {
#define X(name, text) HEARTH_KIND_##name,
    HEARTH_VERDICT_KIND_TABLE(X)
#undef X
};

/* Causes of slowness, each with its kind, what it says, and what to do. docs/watching.md has this table. */
#define HEARTH_VERDICT_TABLE(X)                                                                                       \
    X(VOLATILE_LINE, "volatile_line", WASTE, "one line of the system text changes from request to request",           \
      "`--strip-line REGEX` takes such lines out before anything else sees them")                                     \
    X(EDITED_MESSAGE, "edited_message", WASTE, "the client changed a message that was known",                         \
      "nothing to do, if you meant it; otherwise look at what the client does to that message")                       \
    X(MESSAGES_MOVED, "messages_moved", WASTE, "the client dropped, inserted or moved messages before known ones",    \
      "clients that add hints and take them away again do this: see whether that can be switched off")                \
    X(CALLS_REPRINTED, "calls_reprinted", WASTE, "the client wrote the arguments of earlier calls in another way",    \
      "have the client send calls back as it got them: the same order of keys, the same blanks")                      \
    X(COMPACTED, "compacted", NO_LOSS, "the client put a summary in the place of earlier messages",                   \
      "nothing to do: that makes room. A larger context in the client's settings, and `--ctx-size`, make it rarer")   \
    X(TOOLS_CHANGED, "tools_changed", WASTE, "the tools are not those of the earlier prompt",                         \
      "keep the list of tools the same through a conversation; new ones may come at its end")                         \
    X(ARGUMENTS_CHANGED, "arguments_changed", WASTE, "the template's arguments are not those of the earlier prompt",  \
      "keep thinking, effort and template arguments the same through a conversation")                                 \
    X(TEMPLATE_REWRITES, "template_rewrites", WASTE, "the template prints earlier turns differently now",             \
      "with time between turns that is computed ahead (`--idle-compute`); `--keep-thinking` keeps "                   \
      "earlier thinking as it was sampled")                                                                           \
    X(NEW_CONVERSATION, "new_conversation", NO_LOSS, "no stored prompt begins like this one",                         \
      "nothing to do: it is computed once")                                                                           \
    X(NEW_TEXT, "new_text", NO_LOSS, "the prompt has that much new text", "nothing to do: it is computed once")       \
    X(EVICTED, "evicted", WASTE, "the state was there and had to make room",                                          \
      "more `--cache-ram`, or `--kv-dir` with more "                                                                  \
      "`--kv-disk`")                                                                                                  \
    X(STATE_GONE, "state_gone", WASTE, "it was computed before, and the state was not kept",                          \
      "`--kv-dir` keeps state when the server is started again, and what RAM has no room for; or more `--cache-ram`") \
    X(NO_SNAPSHOT, "no_snapshot", WASTE,                                                                              \
      "the model can only be resumed at snapshots, and none was kept far enough on",                                  \
      "a smaller `--snapshot-interval`, or more `--cache-ram`")                                                       \
    X(RESTORE_FAILED, "restore_failed", WASTE, "stored state could not be read, or did not verify",                   \
      "look at the log: the disk, the store that boxes share, or the memory may be failing")                          \
    X(CACHE_OFF, "cache_off", WASTE, "the cache is off for this server or this request",                              \
      "leave `cache_prompt: false` and `--cache-ram 0` out")                                                          \
    X(QUEUED, "queued", WAIT, "it waited for a lane",                                                                 \
      "more lanes (`--parallel`), fewer clients, or classes and weights")                                             \
    X(SAME_PREFIX, "same_prefix", NO_LOSS, "another request was computing the same beginning",                        \
      "nothing to do: waiting for it was cheaper than computing it twice")                                            \
    X(SHORT_OF_CELLS, "short_of_cells", WAIT, "the KV cache was full", "more `--ctx-size`, or less `--parallel`")     \
    X(PREEMPTED, "preempted", WAIT, "it was preempted", "more lanes (`--parallel`), or another class or weight")      \
    X(SLOW_DISK, "slow_disk", WAIT, "its state had to be read from disk", "more `--cache-ram`, or a faster disk")     \
    X(SCANNING, "scanning", WAIT, "the server had just started, and what is on disk was not known yet",               \
      "nothing to do: that is over")                                                                                  \
    X(SLOW_STORE, "slow_store", WAIT, "the store that boxes share answered late",                                     \
      "look at `remote` in /health, and at its network; `--kv-remote-timeout` bounds it")                             \
    X(WORKERS, "workers", WAIT, "all threads that prepare requests were busy",                                        \
      "fewer requests at a time; long histories take long to read")                                                   \
    X(SHARED, "shared", NO_LOSS, "other requests were computed at the same time",                                     \
      "fewer requests at a time, classes and weights, or `--min-decode-tps` where replies crawl beside prompts")      \
    X(COLD_MODEL, "cold_model", WAIT, "the model was read from disk while it computed",                               \
      "nothing to do after a start; otherwise more RAM, or `--mlock`")                                                \
    X(SLOW_UPLOAD, "slow_upload", WAIT, "the request itself took long to arrive",                                     \
      "look at the client and the network; sessions send only what is new")                                           \
    X(SLOW_READER, "slow_reader", WAIT, "the client, or the network to it, took the reply slowly",                    \
      "look at the client: it has to read while the reply is written")                                                \
    X(CLIENT_LEFT, "client_left", WAIT, "the client left before the first token",                                     \
      "if that was its time limit, a longer one: what was computed is kept, and the same request goes on from there") \
    X(LONG_REPLY, "long_reply", NO_LOSS, "the reply is long", "a smaller `max_tokens`, or less thinking")             \
    X(PREPARING, "preparing", WAIT, "reading, rendering and tokenising the request took long",                        \
      "a history whose text is known costs little: does the client change its beginning?")

enum hearth_verdict_cause {
#define X(name, text, kind, help, advice) HEARTH_VERDICT_##name,
    HEARTH_VERDICT_TABLE(X)
#undef X
        HEARTH_VERDICT_COUNT
};

struct hearth_verdict {
    enum hearth_verdict_cause cause;
    int64_t lost_us; /* the time that it cost */
    uint32_t tokens; /* prompt tokens that were computed because of it; 0: none */
    char text[400];  /* a sentence for this request */
    char advice[600];
};

#define HEARTH_VERDICTS_MAX 8

const char *hearth_verdict_name(enum hearth_verdict_cause cause);
enum hearth_verdict_kind hearth_verdict_kind(enum hearth_verdict_cause cause);
const char *hearth_verdict_kind_text(enum hearth_verdict_cause cause);
/* Tokens that were computed before, whatever happened to their state, as far as that is certain. */
uint32_t hearth_report_known(const struct hearth_report *report);
/* The prefill time of a prompt token: in this request or, if it computed too few, as is usual for the server. */
double hearth_report_token_us(const struct hearth_report *report);
/* How many of the lines, from the first on, have a pattern. */
size_t hearth_report_fixable_lines(const struct hearth_report_divergence *divergence);
/* Fills `out` with verdicts that have no words yet, the worst first, and returns how many. Pure. */
size_t hearth_verdicts_judge(const struct hearth_report *report, struct hearth_verdict out[HEARTH_VERDICTS_MAX]);

/* ---- verdict_text.c: what is said of them ---- */

/* Verdicts with their words. Pure. */
size_t hearth_verdicts(const struct hearth_report *report, struct hearth_verdict out[HEARTH_VERDICTS_MAX]);
/* Rewrites a verdict so that it quotes no prompt. */
void hearth_verdict_unquote(struct hearth_verdict *verdict);

/* ---- report.c ---- */

/* Where the prompt left an earlier one; `texts`: with the texts around that place. NULL: out of memory. */
json_t *hearth_report_divergence_json(const struct hearth_report_divergence *divergence, bool texts);
/* The report as GET /requests/{id} prints it, verdicts included; `texts`: with the texts of the divergence. NULL: out
 * of memory. */
json_t *hearth_report_json(const struct hearth_report *report, bool texts);

#endif
