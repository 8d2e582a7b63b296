/* What a key may use: requests and tokens a minute, requests at once, tokens kept in conversations. Each rate is a
 * bucket that holds a minute's worth and fills steadily, on the monotonic clock. A request takes one from the first
 * when it begins, and its tokens (prompt and reply, reused ones too) from the second when it has ended, which may
 * leave a debt: a request of any size passes when the bucket is not empty, and the next ones wait for it. Threads:
 * any. */
#ifndef HEARTH_API_QUOTA_H
#define HEARTH_API_QUOTA_H

#include "api/api.h"

/* A bucket at one moment. */
struct hearth_quota_bucket {
    uint32_t limit; /* a minute; 0: none */
    uint32_t remaining;
    int64_t reset_us; /* until it is full */
};

struct hearth_quota_state {
    struct hearth_quota_bucket requests, tokens;
    uint32_t running, running_limit;
    uint64_t requests_total, tokens_total, refused_total;
    struct hearth_session_quota stored; /* what may be stored */
};

enum hearth_quota_verdict {
    HEARTH_QUOTA_FREE,
    HEARTH_QUOTA_REQUESTS,
    HEARTH_QUOTA_TOKENS,
    HEARTH_QUOTA_RUNNING,
};

struct hearth_quota *hearth_quota_create(void); /* NULL: out of memory */
void hearth_quota_destroy(struct hearth_quota *quota);
/* Sets other limits; what has been used stays used. */
void hearth_quota_set(struct hearth_quota *quota, const struct hearth_api_limits *limits);

/* Whether a request may begin at `now_us`, and if not, when to try again. `runs`: it computes. `take`: it begins; if it
 * runs, hearth_quota_end() follows. */
enum hearth_quota_verdict hearth_quota_ask(struct hearth_quota *quota, int64_t now_us, bool runs, bool take,
                                           int64_t *wait_us);
/* A request that ran has ended after using so many tokens. */
void hearth_quota_end(struct hearth_quota *quota, int64_t now_us, uint64_t tokens);
void hearth_quota_read(struct hearth_quota *quota, int64_t now_us, struct hearth_quota_state *out);

#endif
