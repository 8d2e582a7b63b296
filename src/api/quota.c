/* See quota.h. Invariant: a level is never above its limit; it may be below zero. */
#include "api/quota.h"

#include "base/assert.h"

#include <pthread.h>
#include <stdlib.h>

#define MINUTE_US 60e6
/* How long to wait before trying again for a place among the running requests; when one ends is unknown. */
#define RUNNING_WAIT_US 1000000

struct bucket {
    uint32_t limit;
    double level;
    int64_t at_us; /* time of the level */
};

struct hearth_quota {
    pthread_mutex_t mutex;
    struct hearth_api_limits limits;
    struct bucket requests, tokens;
    uint32_t running;
    uint64_t requests_total, tokens_total, refused_total;
};

static void fill(struct bucket *bucket, int64_t now_us) {
    if (now_us > bucket->at_us) {
        bucket->level += (double)bucket->limit * (double)(now_us - bucket->at_us) / MINUTE_US;
        bucket->at_us = now_us;
    }
    bucket->level = bucket->level < bucket->limit ? bucket->level : bucket->limit;
}

/* How long until a bucket holds this much. */
static int64_t time_until(const struct bucket *bucket, double level) {
    return bucket->level >= level ? 0 : (int64_t)((level - bucket->level) * MINUTE_US / (double)bucket->limit) + 1;
}

static void set_bucket(struct bucket *bucket, uint32_t limit) {
    if (bucket->limit == 0) { /* it is a new one: full */
        bucket->level = limit;
        bucket->at_us = 0;
    }
    bucket->limit = limit;
    bucket->level = bucket->level < limit ? bucket->level : limit;
}

struct hearth_quota *hearth_quota_create(void) {
    struct hearth_quota *quota = calloc(1, sizeof *quota);
    if (quota != NULL) {
        pthread_mutex_init(&quota->mutex, NULL);
    }
    return quota;
}

void hearth_quota_destroy(struct hearth_quota *quota) {
    if (quota != NULL) {
        pthread_mutex_destroy(&quota->mutex);
        free(quota);
    }
}

void hearth_quota_set(struct hearth_quota *quota, const struct hearth_api_limits *limits) {
    pthread_mutex_lock(&quota->mutex);
    quota->limits = *limits;
    set_bucket(&quota->requests, limits->requests_per_minute);
    set_bucket(&quota->tokens, limits->tokens_per_minute);
    pthread_mutex_unlock(&quota->mutex);
}

static enum hearth_quota_verdict judge(struct hearth_quota *quota, int64_t now_us, bool runs, int64_t *wait_us) {
    fill(&quota->requests, now_us);
    fill(&quota->tokens, now_us);
    if (quota->limits.running > 0 && runs && quota->running >= quota->limits.running) {
        *wait_us = RUNNING_WAIT_US;
        return HEARTH_QUOTA_RUNNING;
    }
    if (quota->tokens.limit > 0 && runs && quota->tokens.level < 1) {
        *wait_us = time_until(&quota->tokens, 1);
        return HEARTH_QUOTA_TOKENS;
    }
    if (quota->requests.limit > 0 && quota->requests.level < 1) {
        *wait_us = time_until(&quota->requests, 1);
        return HEARTH_QUOTA_REQUESTS;
    }
    *wait_us = 0;
    return HEARTH_QUOTA_FREE;
}

enum hearth_quota_verdict hearth_quota_ask(struct hearth_quota *quota, int64_t now_us, bool runs, bool take,
                                           int64_t *wait_us) {
    pthread_mutex_lock(&quota->mutex);
    const enum hearth_quota_verdict verdict = judge(quota, now_us, runs, wait_us);
    if (verdict != HEARTH_QUOTA_FREE) {
        quota->refused_total++;
    } else if (take) {
        quota->requests_total++;
        quota->requests.level -= quota->requests.limit > 0 ? 1 : 0;
        quota->running += runs;
    }
    pthread_mutex_unlock(&quota->mutex);
    return verdict;
}

void hearth_quota_end(struct hearth_quota *quota, int64_t now_us, uint64_t tokens) {
    pthread_mutex_lock(&quota->mutex);
    HEARTH_ASSERT(quota->running > 0);
    quota->running--;
    quota->tokens_total += tokens;
    if (quota->tokens.limit > 0) {
        fill(&quota->tokens, now_us);
        quota->tokens.level -= (double)tokens;
    }
    pthread_mutex_unlock(&quota->mutex);
}

static struct hearth_quota_bucket show(struct bucket *bucket, int64_t now_us) {
    fill(bucket, now_us);
    return (struct hearth_quota_bucket){.limit = bucket->limit,
                                        .remaining = bucket->level > 0 ? (uint32_t)bucket->level : 0,
                                        .reset_us = bucket->limit > 0 ? time_until(bucket, bucket->limit) : 0};
}

void hearth_quota_read(struct hearth_quota *quota, int64_t now_us, struct hearth_quota_state *out) {
    pthread_mutex_lock(&quota->mutex);
    *out = (struct hearth_quota_state){.requests = show(&quota->requests, now_us),
                                       .tokens = show(&quota->tokens, now_us),
                                       .running = quota->running,
                                       .running_limit = quota->limits.running,
                                       .requests_total = quota->requests_total,
                                       .tokens_total = quota->tokens_total,
                                       .refused_total = quota->refused_total,
                                       .stored = quota->limits.stored};
    pthread_mutex_unlock(&quota->mutex);
}
