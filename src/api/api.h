/* The API: reads HTTP requests of the dialects of OpenAI, Anthropic and llama-server, hands requests to the service,
 * and prints its events as responses. It owns the HTTP server.
 *
 * Threads: the HTTP loop answers what is quick and carries events to clients; workers parse, render and tokenise. */
#ifndef HEARTH_API_API_H
#define HEARTH_API_API_H

#include "chat/chat.h"
#include "engine/engine.h"
#include "http/server.h"
#include "sched/service.h"
#include "session/store.h"

struct hearth_api;

/* What a key may do. Reading what the server does needs no scope (models, /props, and of /slots, /queue and /metrics
 * what concerns the key's owner). */
#define HEARTH_SCOPE_TABLE(X)                                                      \
    X(INFER, infer, 1, "ask the model, count tokens")                              \
    X(SESSIONS, sessions, 2, "what is stored: sessions, responses, conversations") \
    X(ADMIN, admin, 4, "see what everybody does; settings")

enum hearth_scope {
#define X(constant, name, bit, help) HEARTH_SCOPE_##constant = (bit),
    HEARTH_SCOPE_TABLE(X)
#undef X
        HEARTH_SCOPE_ALL = 7,
};

/* Zero: no limit. */
struct hearth_api_limits {
    uint32_t requests_per_minute, tokens_per_minute;
    uint32_t running;                   /* requests that compute at the same time */
    struct hearth_session_quota stored; /* what its sessions, responses and conversations may hold */
};

/* A key that opens the server. */
struct hearth_api_key {
    const char *key;  /* not empty; or its hash (api/key_hash.h) */
    const char *name; /* its owner, which may have several keys, now or later; NULL: the key is an owner of its own */
    double weight;    /* its share of the machine relative to other keys; 0 means 1 */
    enum hearth_class highest;       /* the class of its requests, which may only ask for a lower one */
    unsigned scopes;                 /* bits of enum hearth_scope; 0: all */
    struct hearth_api_limits limits; /* shared by all keys of one name */
};

/* Strings are copied; engine, chat and service are borrowed until hearth_api_destroy(). Start from
 * hearth_api_params_default(). */
struct hearth_api_params {
    struct hearth_engine *engine; /* its text operations and caps are used */
    struct hearth_chat *chat;
    struct hearth_service *service;
    struct hearth_backing *disk;        /* for its figures; NULL: none */
    struct hearth_kv_events *kv_events; /* likewise */
    struct hearth_backing *remote;      /* likewise, the store that boxes share */
    struct hearth_http_params http;
    const struct hearth_api_key *keys; /* a request needs one of them. With two or more, requests share state with those
                                          of the same key only */
    size_t key_count;                  /* 0: no request needs a key */
    int64_t prepare_timeout_us;        /* CPU time that preparing a request may take; 0: no limit */
    int64_t request_timeout_us;        /* the longest deadline, also for a request without one; 0: none */
    int64_t ping_us;                   /* a stream that was silent for so long sends a sign of life; default 10 s */
    bool speculates;                   /* the service guesses tokens ahead; printed by /slots */
    const char *model_path;
    const char *lora_path; /* of the loaded adapter; NULL: none */
    double lora_scale;
    const char *alias;   /* the model's name; NULL: the last part of model_path */
    const char *version; /* for build_info and system_fingerprint, for example "hearth 0.1.0" */
    uint32_t lanes;
    struct hearth_sampling sampling; /* defaults for what a request does not say; logit_bias is ignored */
    int32_t max_tokens;              /* default; -1: until the context is full */
    bool metrics, slots, ui;         /* serve /metrics, /slots, the page at /; default false, true, true */
    size_t keep_requests;            /* how many of the last requests /requests has; default 500, 0: none */
    uint32_t snapshot_interval;      /* of the service, in tokens */
    size_t cache_bytes;              /* of the service */
    int32_t page_tokens;             /* likewise */
    bool keep_texts; /* /requests keeps the texts around the place where a prompt left an earlier one; default true */

    /* Chat. */
    bool keep_thinking;    /* reasoning of earlier turns stays as it was sampled, whatever the template does */
    uint32_t idle_tokens;  /* most tokens that are computed ahead of a conversation's next turn, in idle time, if the
                              template rewrites history; default 0: none */
    int64_t idle_after_us; /* that begins so long after the reply, or up to a second later; default 250 ms */
    bool idle_on_battery;  /* also on battery power */
    bool allow_control_tokens; /* text in a request that reads like a control token becomes one; otherwise it stays text
                                */
    bool strict_content;       /* images, sounds and files are refused; otherwise notes stand for them */
    const char *const *strip_lines; /* regular expressions (POSIX, extended): lines of system and developer messages
                                       that match one are taken out */
    size_t strip_line_count;
    const char *const *strip_paragraphs; /* the same for the first lines of paragraphs, which are taken out whole */
    size_t strip_paragraph_count;
    size_t transcript_bytes;                    /* memory for replies as they were sampled; default 256 MiB */
    const char *transcripts_path;               /* SQLite database in which they outlive the process; NULL: none */
    const struct hearth_seal *transcripts_seal; /* encrypts that database; borrowed; NULL: it is not encrypted */
    struct hearth_session_store *store;         /* sessions and responses; borrowed; NULL: in memory */
    enum hearth_chat_reasoning_format reasoning_format;
    int32_t reasoning_budget;             /* tokens of reasoning; -1: no limit (default) */
    const char *reasoning_budget_message; /* inserted when the budget is used up; NULL: none */
    const char *template_kwargs;          /* a JSON object of template arguments; NULL: none */
    const char *script_path;              /* a file of replies written beforehand (api/script.c); NULL: none */
};

void hearth_api_params_default(struct hearth_api_params *params);

/* Listens and serves. Errors: IO (the address, the script's file), INVALID (a regular expression, template arguments,
 * the script), each with one clear line in `msg`; NOMEM. */
int hearth_api_create(const struct hearth_api_params *params, struct hearth_api **out, struct hearth_errmsg *msg);

/* The port on which the server listens. Any thread. */
uint16_t hearth_api_port(const struct hearth_api *api);

/* Replaces the certificate while the server runs; see hearth_http_load_tls(). */
int hearth_api_load_tls(struct hearth_api *api, const char *cert_path, const char *key_path, struct hearth_errmsg *msg);

/* Replaces the keys for requests that arrive from now on; requests in flight go on. No keys: every request is accepted.
 * Errors: NOMEM (the old keys stay). Any thread. */
int hearth_api_set_keys(struct hearth_api *api, const struct hearth_api_key *keys, size_t count);
void hearth_api_set_request_timeout(struct hearth_api *api, int64_t request_timeout_us);

/* Stops. /health and new requests for replies are answered with 503 while the service is drained (requests that it has
 * finish for at most `grace_us`, then are cancelled and answered with 503); then there are no new connections; returns
 * when the last answer has been taken, or `grace_us` (at least half a second) later at the most. Any thread but the
 * loop's and the service's. */
void hearth_api_shutdown(struct hearth_api *api, int64_t grace_us);

/* Shuts down without grace if that has not been done, and frees. Before hearth_service_destroy(). NULL is allowed. */
void hearth_api_destroy(struct hearth_api *api);

#endif
