/* Checks what a request's key allows: its scopes, and its limits (quota.h), which are also sent in the headers that
 * SDKs read.
 *
 * Every answer to a key with limits says what is left. A request is counted after all other checks, just before it
 * begins, so a request that is refused costs nothing.
 * Source: https://platform.openai.com/docs/guides/rate-limits, https://docs.claude.com/en/api/rate-limits */
#include "api/job.h"
#include "api/quota.h"

#include "base/clock.h"

#include <string.h>
#include <time.h>

static const char *scope_text(unsigned scope) {
#define X(constant, name, bit, help)              \
    if ((scope & HEARTH_SCOPE_##constant) != 0) { \
        return #name;                             \
    }
    HEARTH_SCOPE_TABLE(X)
#undef X
    return "";
}

bool hearth_key_limits_scope(const struct hearth_caller *caller, unsigned scope, struct hearth_api_error *error) {
    const unsigned missing = scope & ~caller->scopes;
    return missing == 0 ||
           hearth_api_fail(error, 403, "insufficient_scope", NULL,
                           "this key has no scope '%s' (scope= in the server's --api-key-file)", scope_text(missing));
}

/* ---- headers ---- */

static void set_number(struct hearth_http_exchange *exchange, const char *name, uint32_t number) {
    char text[16];
    snprintf(text, sizeof text, "%u", (unsigned)number);
    hearth_http_set_header(exchange, name, text);
}

/* OpenAI's: "1.5s", "6m0s". */
static void print_span(char *out, size_t cap, int64_t us) {
    const int64_t ms = (us + 999) / 1000;
    if (ms < 1000) {
        snprintf(out, cap, "%lldms", (long long)ms);
    } else if (ms < 60000) {
        snprintf(out, cap, "%lld.%03llds", (long long)(ms / 1000), (long long)(ms % 1000));
    } else {
        snprintf(out, cap, "%lldm%llds", (long long)(ms / 60000), (long long)(ms % 60000 / 1000));
    }
}

/* Anthropic's: a moment. */
static void print_moment(char *out, size_t cap, int64_t us) {
    const time_t at = (time_t)(hearth_clock_unix() + (us + 999999) / 1000000);
    struct tm utc;
    if (gmtime_r(&at, &utc) == NULL || strftime(out, cap, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) {
        snprintf(out, cap, "?");
    }
}

static void tell_bucket(struct hearth_http_exchange *exchange, const char *what,
                        const struct hearth_quota_bucket *bucket) {
    const bool anthropic = hearth_api_is_anthropic(exchange);
    char name[64], text[40];
    if (bucket->limit == 0) {
        return;
    }
#define NAME(part)                                                                              \
    (snprintf(name, sizeof name, anthropic ? "anthropic-ratelimit-%s-%s" : "x-ratelimit-%s-%s", \
              anthropic ? what : (part), anthropic ? (part) : what),                            \
     name)
    set_number(exchange, NAME("limit"), bucket->limit);
    set_number(exchange, NAME("remaining"), bucket->remaining);
    (anthropic ? print_moment : print_span)(text, sizeof text, bucket->reset_us);
    hearth_http_set_header(exchange, NAME("reset"), text);
#undef NAME
}

void hearth_key_limits_tell(const struct hearth_caller *caller, struct hearth_http_exchange *exchange) {
    struct hearth_quota_state state;
    if (caller->quota != NULL) {
        hearth_quota_read(caller->quota, hearth_clock_us(), &state);
        tell_bucket(exchange, "requests", &state.requests);
        tell_bucket(exchange, "tokens", &state.tokens);
    }
}

/* ---- limits ---- */

static bool fail_quota(struct hearth_quota *quota, enum hearth_quota_verdict verdict, int64_t wait_us,
                       struct hearth_api_error *error) {
    struct hearth_quota_state state;
    hearth_quota_read(quota, hearth_clock_us(), &state);
    const char *what = verdict == HEARTH_QUOTA_REQUESTS ? "requests a minute"
                       : verdict == HEARTH_QUOTA_TOKENS ? "tokens a minute"
                                                        : "requests at once";
    const uint32_t limit = verdict == HEARTH_QUOTA_REQUESTS ? state.requests.limit
                           : verdict == HEARTH_QUOTA_TOKENS ? state.tokens.limit
                                                            : state.running_limit;
    hearth_api_fail(error, 429, "rate_limit_exceeded", NULL, "this key may have %u %s: try again in %.1f s",
                    (unsigned)limit, what, (double)wait_us / 1e6);
    error->err = HEARTH_ERR_OVERLOADED;
    error->retry_after_s = (uint32_t)((wait_us + 999999) / 1000000);
    error->retry_after_ms = (uint32_t)((wait_us + 999) / 1000);
    return false;
}

bool hearth_key_limits_ask(const struct hearth_caller *caller, const struct hearth_route *route, bool take,
                           struct hearth_api_error *error) {
    int64_t wait_us = 0;
    if (caller->quota == NULL) {
        return true;
    }
    const bool runs = (route->flags & HEARTH_ROUTE_REPLY) != 0;
    const enum hearth_quota_verdict verdict = hearth_quota_ask(caller->quota, hearth_clock_us(), runs, take, &wait_us);
    return verdict == HEARTH_QUOTA_FREE || fail_quota(caller->quota, verdict, wait_us, error);
}

void hearth_key_limits_end(const struct hearth_job *job) {
    struct hearth_tally tally = {.job = job};
    if (job->caller.quota == NULL || (job->route->flags & HEARTH_ROUTE_REPLY) == 0) {
        return;
    }
    if (job->choice_count > 0) {
        hearth_tally_job(job, &tally);
    }
    hearth_quota_end(job->caller.quota, hearth_clock_us(),
                     (uint64_t)tally.receipt.prompt_tokens + (uint64_t)tally.generated_tokens);
}

bool hearth_key_limits_store(const struct hearth_job *job, bool session, struct hearth_api_error *error) {
    struct hearth_errmsg msg = {{0}};
    const int err = hearth_session_owner_check(job->api->store, job->owner, &job->caller.stored, session, &msg);
    return err == HEARTH_OK || hearth_api_fail_err(error, err, &msg);
}
