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
    struct hearth_sample_logprobs logprobs; /* filled when the request asked for them (sampling.logprobs >= 0) */
};

/* Heap-allocated; owned by the receiver, freed with hearth_event_destroy(). */
struct hearth_event {
    enum hearth_event_type type;
    /* Valid UTF-8 that may be sent: whole characters, never a part of a stop string. NUL-terminated when len > 0. */
    struct hearth_buf text;
    /* Tokens sampled since the event before; text of some of them may still be held back. */
    struct hearth_sampled *sampled;
    size_t sampled_count;
    enum hearth_finish finish;
    char *stop_string; /* the stop string that ended the reply, or NULL */
    struct hearth_receipt receipt;
    uint32_t generated_tokens;                /* an end token counts */
    int64_t generate_us;                      /* from the first sampled token to the last */
    uint32_t prefilled_tokens;                /* PROGRESS: tokens of the prompt that are reused or computed by now */
    bool late;                                /* DONE: the deadline cut the reply off (finish is LENGTH) */
    uint32_t drafted_tokens, accepted_tokens; /* DONE, FAILED: guessed ahead for this request, and kept */
    uint32_t preemptions;                     /* DONE, FAILED: how often it was preempted */
    int err;
    struct hearth_errmsg message;
    struct hearth_event *next; /* for the receiver's queue */
};

void hearth_event_destroy(struct hearth_event *event);

/* Reasoning, as tokens: where it begins and ends, and how long it may be. */
struct hearth_thinking {
    const hearth_token *start; /* empty: the reply cannot think, and nothing else here is looked at */
    size_t start_count;
    const hearth_token *const *ends; /* any of them ends it */
    const size_t *end_counts;
    size_t end_count;
    const hearth_token *prefill; /* tokens of the generation prompt: the reply may begin inside of reasoning */
    size_t prefill_count;
    int32_t budget_tokens;      /* < 0: no limit; 0: ends at once */
    const hearth_token *forced; /* what is put in when the budget is used up: a message, then an end */
    size_t forced_count;
};

/* How much a request matters beside others. One rule orders them, in the queue and among prefills: a request counts as
 * arrived when it did, plus the patience of its class, plus the lead of its tenant over its fair share (at most
 * HEARTH_LEAD_MAX_US). All of these are bounded, so that no request starves.
 *
 * When another request needs a lane more, the request that has it is preempted: its state is kept, it is queued again,
 * and it continues from there later; it never fails for that. The rules are in sched/victim.c.
 *
 * A prefetch ("warm" in the API and in metrics) computes a prompt's state for later. It starts while no other request
 * waits, is preempted as soon as another one needs its lane or its cells (what it has computed stays), and computes in
 * small pieces beside lanes that are busy. What is only on disk is read into RAM; when nothing has to be computed, that
 * is all, and no lane is touched (then no PREFILLED comes). A conversation that RAM does not hold at once is left as it
 * is. When it has ended, a request that begins with its prompt goes on from there. A drain cancels it at once.
 *
 * One that is `idle` is asked for by no client: it computes only while no other request waits or has a lane, prefetches
 * of clients included, gives way to all of them, and counts in idle_tokens instead of in the numbers of requests. */
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

/* The account on which a request computes: an API key, say. Tenants share what there is by weight while several of them
 * have work. */
struct hearth_tenant {
    uint64_t id;   /* zero: the account of all requests without a key */
    double weight; /* > 0; zero means 1 */
};

/* One request. Everything is copied by hearth_service_submit(). */
struct hearth_request {
    enum hearth_class priority; /* zero: interactive */
    struct hearth_tenant tenant;
    int64_t deadline_us; /* from submitting to the last event; 0: none. Then a reply that has begun ends with what it
                            has (LENGTH, `late`), and one that has not fails (DEADLINE) */
    bool idle;           /* a prefetch that is computed in idle time only */
    bool locate_only; /* a prefetch of which nothing is computed: its receipt says where its state is, and what it would
                         cost to bring it back */
    bool joins;       /* another choice of a request that has been taken: it waits however many do */
    bool reserved;    /* it has a slot (hearth_service_reserve), and waits however many do. A prefetch needs
                         none: what it came with is given back when it is taken */
    bool progress;    /* deliver PROGRESS, after batches of the prefill */
    bool speculate_off; /* compute one token at a time, whatever the service does otherwise */
    const hearth_token *prompt;
    size_t prompt_tokens;
    /* Positions (token indices into the prompt, ascending) that a later prompt is likely to leave this one at, or to
     * come back to: the end of tools + system, the start of the last user or tool message. */
    const int32_t *marks;
    size_t mark_count;
    int32_t head_tokens; /* end of tools + system; marks in front of it are places that few prompts come back to. 0:
                            there is none */
    const struct hearth_pin *pins; /* ascending by position, none behind the prompt; at most HEARTH_PINS_MAX */
    size_t pin_count;
    struct hearth_sampling sampling;
    int32_t max_tokens; /* < 0: until the context is full; 0: only the prefill (so for a prefetch) */
    const char *const *stops;
    size_t stop_count;
    bool cache_off;              /* cache_prompt: false */
    struct hearth_digest salt;   /* state is shared among requests of one salt only; zero: no salt */
    bool special_text;           /* print control tokens in the text */
    const hearth_token *printed; /* control tokens that are printed all the same */
    size_t printed_count;
    const struct hearth_thinking *thinking; /* NULL: none */
    const hearth_token *script; /* a reply that was written beforehand: sampled as it stands, then an end token */
    size_t script_count;
    /* Called on the service's thread; takes the event and must not block. */
    void (*deliver)(void *user, struct hearth_event *event);
    void *user;
};

/* Speculation: tokens that the text itself suggests (a phrase that occurred before goes on as it did then) are computed
 * together with the one that is due, and kept as far as they are what is sampled. Replies are the same with and
 * without. AUTO guesses only while that is measured to be faster. */
enum hearth_speculate { HEARTH_SPECULATE_AUTO, HEARTH_SPECULATE_ON, HEARTH_SPECULATE_OFF };

struct hearth_service_params {
    uint32_t page_tokens;              /* default 256 */
    size_t cache_bytes;                /* pages and snapshots in RAM; 0 turns the cache off */
    size_t snapshot_bytes;             /* the part of cache_bytes that snapshots may take; 0: by memory class */
    double cache_share;                /* of it one tenant may hold while others want it; 0: no bound (default) */
    uint32_t snapshot_interval_tokens; /* default 8192 */
    struct hearth_backing *backing; /* where state outlasts RAM; NULL: nowhere. The caller's, to be destroyed after the
                               service */
    uint32_t backing_min_tokens;    /* shorter sequences stay in RAM; default 256 */
    uint32_t backing_interval_tokens; /* a long prefill or reply is persisted every so often; default 8192 */
    const struct hearth_cache_observer *observer; /* of the cache; NULL: none. It must outlive the service */
    uint32_t queue;        /* most requests that wait for a lane (by tenant: admission.h), and as many prefetches;
                              0: no limit (default) */
    double min_decode_tps; /* prefills leave each decoding lane at least so many tokens a second; 0: a few, except
                              beside a burst of short prompts (step.h, "Batches") */
    enum hearth_speculate speculate; /* default AUTO */
    uint32_t draft_tokens;           /* most tokens guessed ahead for a lane, at most HEARTH_DRAFT_MAX; default 8 */
};

void hearth_service_params_default(struct hearth_service_params *params);

/* Starts the thread. The engine stays the caller's, and is the service's alone until hearth_service_destroy().
 * Errors: NOMEM, INVALID. */
int hearth_service_create(struct hearth_engine *engine, const struct hearth_service_params *params,
                          struct hearth_service **out, struct hearth_errmsg *msg);

/* Hands a request over. Returns its id (> 0), or a negative error when it is refused at once and nothing will be
 * delivered: INVALID (empty prompt, token out of range, bad sampling or pins), TOO_LONG (prompt_tokens >= ctx_tokens;
 * the message holds both numbers), OVERLOADED (as many wait as may), BUSY (draining), NOMEM. Any thread. */
int64_t hearth_service_submit(struct hearth_service *service, const struct hearth_request *request,
                              struct hearth_errmsg *msg);

/* Whether another request of a tenant would be refused as OVERLOADED (NULL: of those that wait already), and in how
 * many seconds (1 to 60, from what the queue has taken lately) it is worth trying again. Any thread. */
bool hearth_service_overloaded(struct hearth_service *service, const struct hearth_tenant *tenant,
                               uint32_t *retry_after_s);

/* An admission slot for a request that is still being read: it counts as one of the tenant's that wait. A request that
 * is submitted with it (`reserved`) and taken has it from then on; otherwise the caller gives it back. Any thread. */
void hearth_service_reserve(struct hearth_service *service, const struct hearth_tenant *tenant);
void hearth_service_unreserve(struct hearth_service *service, const struct hearth_tenant *tenant);

/* The request is dropped at the next step, wherever it is; its FAILED event (err CANCELLED) still arrives. An id that
 * has ended is ignored. Any thread. */
void hearth_service_cancel(struct hearth_service *service, int64_t id);

/* The conversation of a request that has ended (or will soon) is about to come back within `within_us`: its client runs
 * the tools that the reply called, say. Its lane is the last of the idle ones to be given away, and what is stored of
 * it is pinned for that time. An id that is unknown, or too long ago, is ignored. Any thread. */
void hearth_service_expect(struct hearth_service *service, int64_t id, int64_t within_us);

/* What is to be forgotten: the state of the tokens behind the first `keep_tokens`, as far as no other sequence has it.
 * From the end of the tokens backwards, up to where something else that is stored, live or waiting begins likewise: a
 * page that holds both stays. Copied by hearth_service_forget(). */
struct hearth_service_forget_request {
    const hearth_token *tokens;
    size_t count;
    size_t keep_tokens;
    struct hearth_digest salt;
    /* Called once, on the service's thread, and must not block. OK: it is gone, in RAM and in the backing tier. IO: the
     * backing tier could not remove some of it, though it tried again. CANCELLED: the service ended first. */
    void (*done)(void *user, int err);
    void *user;
};

/* Takes a forget; it waits until the backing tier knows what it has. Errors: BUSY (the service ends), NOMEM: `done` is
 * not called then. Any thread. */
int hearth_service_forget(struct hearth_service *service, const struct hearth_service_forget_request *request);

/* No new requests; running ones finish for at most `grace_us`, then are cancelled. Returns when none is left. Any
 * thread but the service's. */
void hearth_service_drain(struct hearth_service *service, int64_t grace_us);

/* Ends the thread; requests still running get FAILED. */
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
    uint32_t drafted_tokens, accepted_tokens;                  /* guessed ahead for this request, and kept */
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
    bool held; /* not for a lane, but for another prompt that begins alike, for cells, or for the disk */
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
/* Likewise the requests that wait, in the order in which they will be admitted; at most HEARTH_WAITING_MAX are kept
 * track of. */
#define HEARTH_WAITING_MAX 64
size_t hearth_service_waiting(struct hearth_service *service, struct hearth_waiting_info *waiting, size_t cap);

/* Changes how many may wait and what decoding lanes are left, while it runs. Any thread. */
void hearth_service_tune(struct hearth_service *service, uint32_t queue, double min_decode_tps);

#endif
