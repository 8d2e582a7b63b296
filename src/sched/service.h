/* The service: requests in, events out. One thread of its own drives the engine, the cache and the lanes; other
 * threads talk to it through this header.
 *
 * A request is a list of tokens with sampling options. What a service delivers for it, in order:
 *     any number of HEARTH_EVENT_PROGRESS (when asked for), zero or one HEARTH_EVENT_PREFILLED, any number of
 *     HEARTH_EVENT_TEXT, then exactly one of HEARTH_EVENT_DONE or HEARTH_EVENT_FAILED; after that nothing. */
#ifndef HEARTH_SCHED_SERVICE_H
#define HEARTH_SCHED_SERVICE_H

#include "cache/pin.h"
#include "cache/receipt.h"
#include "engine/engine.h"
#include "tier/backing.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_service;

#define HEARTH_FINISH_TABLE(X)                                              \
    X(STOP, "stop")     /* the model ended, or a stop string was reached */ \
    X(LENGTH, "length") /* max_tokens or the context was reached */

enum hearth_finish {
#define X(name, text) HEARTH_FINISH_##name,
    HEARTH_FINISH_TABLE(X)
#undef X
};

/* "stop", "length": the words of the OpenAI API. */
const char *hearth_finish_text(enum hearth_finish finish);

enum hearth_event_type {
    HEARTH_EVENT_PROGRESS,  /* a part of the prompt is computed; receipt as far as it is known, and prefilled_tokens */
    HEARTH_EVENT_PREFILLED, /* the prompt is computed; receipt is filled */
    HEARTH_EVENT_TEXT,      /* text and/or sampled tokens */
    HEARTH_EVENT_DONE,      /* finish, receipt and counts are filled; text may hold the last piece */
    HEARTH_EVENT_FAILED,    /* err and message are filled; receipt as far as it is known */
};

struct hearth_sampled {
    hearth_token token;
    struct hearth_sample_logprobs logprobs; /* filled if the request asked for them (sampling.logprobs >= 0) */
};

/* Heap-allocated; owned by the receiver, freed with hearth_event_destroy(). */
struct hearth_event {
    enum hearth_event_type type;
    /* Valid UTF-8 that may be sent: whole characters, never a part of a stop string. NUL-terminated when len > 0. */
    struct hearth_buf text;
    /* Tokens sampled since the event before this one; the text of some may still be held back. */
    struct hearth_sampled *sampled;
    size_t sampled_count;
    enum hearth_finish finish;
    char *stop_string; /* the stop string that ended the reply, or NULL */
    struct hearth_receipt receipt;
    uint32_t generated_tokens;                /* an end token counts */
    int64_t generate_us;                      /* from the first sampled token to the last */
    uint32_t prefilled_tokens;                /* PROGRESS: prompt tokens that are reused or computed so far */
    bool late;                                /* DONE: the deadline ended the reply (finish is LENGTH) */
    uint32_t drafted_tokens, accepted_tokens; /* DONE, FAILED: tokens guessed for this request, and guesses kept */
    uint32_t preemptions;                     /* DONE, FAILED: how often it was preempted */
    int err;
    struct hearth_errmsg message;
    struct hearth_event *next; /* for the receiver's queue */
};

void hearth_event_destroy(struct hearth_event *event);

/* How a reply's reasoning begins and ends, in tokens, and how long it may be. */
struct hearth_thinking {
    const hearth_token *start; /* empty: the reply cannot think, and the other fields are ignored */
    size_t start_count;
    const hearth_token *const *ends; /* each of these sequences ends the reasoning */
    const size_t *end_counts;
    size_t end_count;
    const hearth_token *prefill; /* tokens of the generation prompt, since a reply may begin inside reasoning */
    size_t prefill_count;
    int32_t budget_tokens;      /* < 0: no limit; 0: ends at once */
    const hearth_token *forced; /* inserted when the budget is used up: a message, then an end */
    size_t forced_count;
};

/* The classes of requests. One rule orders requests, in the queue and among prefills: the time of arrival, plus the
 * patience of the class, plus the lead of the tenant over its fair share (at most HEARTH_LEAD_MAX_US). All of these are
 * bounded, so no request starves.
 *
 * A request may be preempted for another one (rules: sched/victim.c). Its state is kept, it is queued again, and it
 * continues later; it never fails for that.
 *
 * A prefetch ("warm" in the API and in metrics) computes a prompt's state for later. It starts when no other request
 * waits, is preempted as soon as another one needs its lane or its cells (what it has computed stays), and computes in
 * small pieces beside busy lanes. State that is only on disk is read into RAM. If nothing has to be computed it takes
 * no lane (and delivers no PREFILLED). A conversation that does not fit RAM at once is left where it is. A later
 * request that begins with the same prompt goes on from there. A drain cancels prefetches at once.
 *
 * No client asks for an `idle` prefetch. It computes only while no other request, prefetches of clients included, waits
 * or has a lane; it gives way to all of them, and counts in idle_tokens instead of in the numbers of requests. */
/*    name         text           patience, seconds */
#define HEARTH_CLASS_TABLE(X)                                                \
    X(INTERACTIVE, "interactive", 0) /* a person or an agent waits for it */ \
    X(SIDE, "side", 2)               /* titles, reviews, summaries */        \
    X(BACKGROUND, "background", 10)  /* its result is read later */          \
    X(PREFETCH, "warm", 0)

enum hearth_class {
#define X(name, text, patience) HEARTH_CLASS_##name,
    HEARTH_CLASS_TABLE(X)
#undef X
};

/* "interactive", … Any thread. */
const char *hearth_class_text(enum hearth_class priority);

#define HEARTH_LEAD_MAX_US 30000000

/* The account that a request is charged to: an API key, for example. Tenants with work at the same time share the
 * machine by weight. */
struct hearth_tenant {
    uint64_t id;   /* 0: the account of all requests without a key */
    double weight; /* > 0; zero means 1 */
};

/* One request. Everything is copied by hearth_service_submit(). */
struct hearth_request {
    enum hearth_class priority; /* zero: interactive */
    struct hearth_tenant tenant;
    int64_t deadline_us; /* from submitting to the last event; 0: none. At the deadline a reply that has begun ends with
                            what it has (LENGTH, `late`); any other request fails (DEADLINE) */
    bool idle;           /* a prefetch that is computed in idle time only */
    bool locate_only; /* a prefetch that computes nothing: its receipt says where its state is and what bringing it back
                         would cost */
    bool joins;       /* another choice of a request that was taken: it waits even if the queue is full */
    bool reserved; /* it has a slot (hearth_service_reserve) and waits even if the queue is full. A prefetch needs none:
                      its slot is given back when it is taken */
    bool progress; /* deliver PROGRESS after batches of the prefill */
    bool speculate_off; /* never guess tokens ahead for this request */
    const hearth_token *prompt;
    size_t prompt_tokens;
    /* Positions (token indices into the prompt, ascending) where a later prompt is likely to leave this one or to come
     * back to it: the end of tools and system text, the start of the last user or tool message. */
    const int32_t *marks;
    size_t mark_count;
    int32_t head_tokens; /* end of tools and system text; few prompts come back to marks in front of it. 0: none */
    const struct hearth_pin *pins; /* ascending by position, none behind the prompt; at most HEARTH_PINS_MAX */
    size_t pin_count;
    struct hearth_sampling sampling;
    int32_t max_tokens; /* < 0: until the context is full; 0: only the prefill (so for a prefetch) */
    const char *const *stops;
    size_t stop_count;
    bool cache_off;              /* cache_prompt: false */
    struct hearth_digest salt;   /* state is shared among requests of one salt only; zero: no salt */
    const hearth_token *printed; /* control tokens that are printed in any case */
    size_t printed_count;
    const struct hearth_thinking *thinking; /* NULL: none */
    const hearth_token *script;             /* a reply that was written beforehand: these tokens, then an end token */
    size_t script_count;
    /* Called on the service's thread; takes the event and must not block. */
    void (*deliver)(void *user, struct hearth_event *event);
    void *user;
};

/* Speculation: tokens that the text itself suggests (after a phrase that occurred before comes what came then) are
 * computed together with the due token, and kept as far as sampling gives the same. Replies are the same with and
 * without it. AUTO guesses only while that is measured to be faster. */
enum hearth_speculate { HEARTH_SPECULATE_AUTO, HEARTH_SPECULATE_ON, HEARTH_SPECULATE_OFF };

struct hearth_service_params {
    const struct hearth_policy *policy; /* what is evicted first; NULL: hearth_policy_returns (default) */

    uint32_t page_tokens;  /* default 256 */
    size_t cache_bytes;    /* pages and snapshots in RAM; 0 turns the cache off */
    size_t snapshot_bytes; /* the part of cache_bytes that snapshots may take; 0: by memory class */
    double cache_share;    /* part of it that one tenant may hold while others want it; 0: no bound (default) */
    uint32_t snapshot_interval_tokens; /* default 8192 */
    struct hearth_backing *backing;    /* where state outlasts RAM; NULL: nowhere. Borrowed: destroy it
                               after the service */
    uint32_t backing_min_tokens;       /* shorter sequences stay in RAM; default 256 */
    uint32_t backing_interval_tokens;  /* a long prefill or reply is persisted each time so many tokens were computed;
                                          default 8192 */
    const struct hearth_cache_observer *observer; /* of the cache; NULL: none. Must outlive the service */
    uint32_t queue; /* most requests that wait for a lane (counted by tenant: admission.h), and most prefetches; 0: no
                       limit (default) */
    double min_decode_tps; /* tokens a second that prefills leave each decoding lane; 0: a few, except beside a burst of
                              short prompts (step.h, "Batches") */
    enum hearth_speculate speculate; /* default AUTO */
    uint32_t draft_tokens;           /* most tokens guessed for a lane, at most HEARTH_DRAFT_MAX; default 8 */
};

void hearth_service_params_default(struct hearth_service_params *params);

/* Starts the thread. The engine is borrowed, and only the service uses it until hearth_service_destroy(). Errors:
 * NOMEM, INVALID. */
int hearth_service_create(struct hearth_engine *engine, const struct hearth_service_params *params,
                          struct hearth_service **out, struct hearth_errmsg *msg);

/* Hands a request over. Returns its id (> 0), or a negative error if it is refused at once; then nothing is delivered.
 * Errors: INVALID (empty prompt, token out of range, bad sampling or pins), TOO_LONG (prompt_tokens >= ctx_tokens; the
 * message has both numbers), OVERLOADED (the queue is full), BUSY (draining), NOMEM. Any thread. */
int64_t hearth_service_submit(struct hearth_service *service, const struct hearth_request *request,
                              struct hearth_errmsg *msg);

/* Whether another request of the tenant would be refused as OVERLOADED (tenant NULL: because of the requests that wait
 * now, whatever their tenants). `retry_after_s`: 1 to 60 seconds, estimated from how fast the queue moved lately. Any
 * thread. */
bool hearth_service_overloaded(struct hearth_service *service, const struct hearth_tenant *tenant,
                               uint32_t *retry_after_s);

/* Takes an admission slot for a request that is still being read; it counts as one of the tenant's waiting requests. If
 * a request is submitted with the slot (`reserved`) and accepted, the slot is the request's; otherwise the caller gives
 * it back. Any thread. */
void hearth_service_reserve(struct hearth_service *service, const struct hearth_tenant *tenant);
void hearth_service_unreserve(struct hearth_service *service, const struct hearth_tenant *tenant);

/* Drops the request at the next step, wherever it is; its FAILED event (CANCELLED) still arrives. The id of a request
 * that has ended is ignored. Any thread. */
void hearth_service_cancel(struct hearth_service *service, int64_t id);

/* Says that the conversation of a request that has ended, or soon will, is about to come back within `within_us`, for
 * example because its client runs the tools that the reply called. Its lane is the last of the idle ones to be given
 * away, and its stored state is pinned for that time. An id that is unknown or too old is ignored. Any thread. */
void hearth_service_expect(struct hearth_service *service, int64_t id, int64_t within_us);

/* What to forget: the state of the tokens behind the first `keep_tokens`, as far as no other sequence needs it. It goes
 * from the end of the tokens backwards, up to the last place that something else that is stored, live or waiting has in
 * common with them; a page that holds both stays. Copied by hearth_service_forget(). */
struct hearth_service_forget_request {
    const hearth_token *tokens;
    size_t count;
    size_t keep_tokens;
    struct hearth_digest salt;
    /* Called once, on the service's thread; must not block. OK: the state is gone, in RAM and in the backing tier. IO:
     * the backing tier failed to remove some of it, also when it tried again. CANCELLED: the service ended first. */
    void (*done)(void *user, int err);
    void *user;
};

/* Takes a forget, which begins once the backing tier has reported what it holds. Errors: BUSY (the service ends),
 * NOMEM; `done` is not called then. Any thread. */
int hearth_service_forget(struct hearth_service *service, const struct hearth_service_forget_request *request);

/* Takes no new requests; running ones get `grace_us` to finish and are then cancelled. Returns when none is left. Any
 * thread but the service's. */
void hearth_service_drain(struct hearth_service *service, int64_t grace_us);

/* Ends the thread; requests still running get FAILED. NULL is allowed. */
void hearth_service_destroy(struct hearth_service *service);

/* Lanes and counters, as of the last step. Any thread. */
#define HEARTH_LANE_STATE_TABLE(X) X(IDLE, "idle") X(PREFILL, "prefill") X(DECODE, "decode")

enum hearth_lane_state {
#define X(name, text) HEARTH_LANE_##name,
    HEARTH_LANE_STATE_TABLE(X)
#undef X
};

const char *hearth_lane_state_text(enum hearth_lane_state state);

struct hearth_lane_info {
    enum hearth_lane_state state;
    int64_t request_id;                                        /* 0 when idle */
    uint32_t live_tokens;                                      /* tokens that the lane's sequence holds */
    uint32_t prompt_tokens, computed_tokens, generated_tokens; /* computed: of the prompt and of what was generated */
    uint32_t reused_tokens;                                    /* of the prompt */
    uint32_t drafted_tokens, accepted_tokens;                  /* tokens guessed for this request, and guesses kept */
    enum hearth_class priority;
    uint64_t tenant;
    int64_t queue_us, prefill_us, decode_us; /* how long the request has spent in each, so far */
    uint32_t preemptions;                    /* how often it was preempted */
};

/* A request that waits for a lane. */
struct hearth_waiting_info {
    int64_t request_id;
    enum hearth_class priority;
    uint64_t tenant;
    uint32_t prompt_tokens, generated_tokens;
    uint32_t preemptions; /* how often it was preempted */
    int64_t waited_us;
    enum hearth_wait wait;
    bool held; /* it waits for a prompt that begins alike, for cells or for the disk, not for a lane */
};

/* Monotonic counters (suffix _total in /metrics) and gauges; name, kind, help. All uint64_t, so that any thread can
 * read them without a lock. */
#define HEARTH_SERVICE_STATS_TABLE(X)                                                     \
    X(requests, counter, "Requests accepted")                                             \
    X(requests_done, counter, "Requests that ended with a reply")                         \
    X(requests_failed, counter, "Requests that failed")                                   \
    X(requests_cancelled, counter, "Requests whose client went away")                     \
    X(prompt_tokens, counter, "Prompt tokens received")                                   \
    X(prompt_computed_tokens, counter, "Prompt tokens computed")                          \
    X(idle_tokens, counter, "Prompt tokens computed ahead in idle time")                  \
    X(idle_us, counter, "Microseconds spent computing them")                              \
    X(prompt_reused_live_tokens, counter, "Prompt tokens reused from live sequences")     \
    X(prompt_reused_ram_tokens, counter, "Prompt tokens restored from RAM")               \
    X(prompt_reused_disk_tokens, counter, "Prompt tokens restored from disk")             \
    X(prompt_reused_remote_tokens, counter, "Prompt tokens restored from a shared store") \
    X(generated_tokens, counter, "Tokens sampled")                                        \
    X(prefill_us, counter, "Microseconds spent in steps that prefilled")                  \
    X(decode_us, counter, "Microseconds spent in steps that only decoded")                \
    X(restore_us, counter, "Microseconds spent restoring state")                          \
    X(capture_us, counter, "Microseconds spent capturing state")                          \
    X(sample_us, counter, "Microseconds spent choosing tokens and delivering them")       \
    X(sched_us, counter, "Microseconds of the service's thread that are none of these")   \
    X(drafted_tokens, counter, "Tokens guessed ahead")                                    \
    X(accepted_tokens, counter, "Of these, tokens that were kept")                        \
    X(requests_refused, counter, "Requests refused because too many waited")              \
    X(requests_late, counter, "Requests that their deadline ended")                       \
    X(steps, counter, "Batches computed")                                                 \
    X(preemptions, counter, "Requests preempted because the KV cache was full")           \
    X(yields, counter, "Requests preempted for one that mattered more")                   \
    X(forgets, counter, "Conversations forgotten")                                        \
    X(restore_failures, counter, "Restores that failed and were recomputed")              \
    X(warmed_tokens, counter, "Tokens of shared heads read into RAM at the start")        \
    X(pages, gauge, "Pages stored")                                                       \
    X(page_bytes, gauge, "Bytes of pages in RAM")                                         \
    X(snapshots, gauge, "Snapshots stored")                                               \
    X(snapshot_bytes, gauge, "Bytes of snapshots in RAM")                                 \
    X(pinned_bytes, gauge, "Bytes in RAM that are pinned")                                \
    X(evicted_pages, counter, "Pages evicted")                                            \
    X(evicted_snapshots, counter, "Snapshots evicted")                                    \
    X(queued, gauge, "Requests that wait for a lane")                                     \
    X(lanes_busy, gauge, "Lanes with a request")

struct hearth_service_stats {
#define X(name, kind, help) uint64_t name;
    HEARTH_SERVICE_STATS_TABLE(X)
#undef X
};

void hearth_service_stats(struct hearth_service *service, struct hearth_service_stats *stats);
/* Writes at most `cap` lanes and returns how many there are. */
size_t hearth_service_lanes(struct hearth_service *service, struct hearth_lane_info *lanes, size_t cap);
/* The same for waiting requests, in the order in which they will be admitted. At most HEARTH_WAITING_MAX are known. */
#define HEARTH_WAITING_MAX 64
size_t hearth_service_waiting(struct hearth_service *service, struct hearth_waiting_info *waiting, size_t cap);

/* Changes the length of the queue and the rate that prefills leave to decoding lanes, while the service runs. Any
 * thread. */
void hearth_service_tune(struct hearth_service *service, uint32_t queue, double min_decode_tps);

#endif
