/* What callers say about conversations between requests: that one will come back, or that one is to be forgotten.
 *
 * Requests that have ended are remembered for a while, with their tokens: which lane still holds them is known by
 * comparing. Forgets are carried out one after another, each when the backing tier has told what it has; the next
 * begins when all that the one before had to be removed there is gone.
 *
 * Invariant: a forget's `done` is called exactly once; from the service's thread. */
#include "base/assert.h"
#include "sched/service_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- ended requests ---- */

static void ended_clear(struct hearth_ended *ended) {
    hearth_tokens_finish(&ended->tokens);
    *ended = (struct hearth_ended){0};
}

void hearth_ended_note(struct hearth_service *service, struct hearth_task *task) {
    if (task->last_lane < 0 || hearth_task_is_prefetch(task)) {
        return;
    }
    struct hearth_ended *place = &service->ended_ring[service->ended_at];
    service->ended_at = (service->ended_at + 1) % HEARTH_ENDED_MAX;
    ended_clear(place);
    size_t total = task->tokens.n;
    for (size_t back = 1; back < HEARTH_ENDED_MAX; back++) { /* from the newest on */
        struct hearth_ended *ended =
            &service->ended_ring[(service->ended_at + 2 * HEARTH_ENDED_MAX - 1 - back) % HEARTH_ENDED_MAX];
        total += ended->tokens.n;
        if (total > HEARTH_ENDED_TOKENS) {
            ended_clear(ended);
        }
    }
    *place = (struct hearth_ended){
        .id = task->id, .salt = task->request.salt, .tokens = task->tokens, .lane = task->last_lane};
    task->tokens = (struct hearth_tokens){0};
    if (task->expect_us > 0) {
        hearth_service_expect_back(service, (struct hearth_expectation){.id = place->id, .within_us = task->expect_us});
    }
}

void hearth_service_expect_back(struct hearth_service *service, struct hearth_expectation expectation) {
    struct hearth_task *task = hearth_task_find(service, expectation.id);
    if (task) {
        task->expect_us = expectation.within_us;
        return;
    }
    size_t at = 0;
    while (at < HEARTH_ENDED_MAX && service->ended_ring[at].id != expectation.id) {
        at++;
    }
    if (at == HEARTH_ENDED_MAX) {
        return;
    }
    const struct hearth_ended *ended = &service->ended_ring[at];
    int64_t until_us = hearth_service_now_us(service) + expectation.within_us;
    struct hearth_live *live = &service->lives[ended->lane];
    size_t n = live->tokens.n;
    if (!live->busy && n > 0 && hearth_digest_equal(live->salt, ended->salt) &&
        hearth_tokens_common(live->tokens.v, n, ended->tokens.v, ended->tokens.n) == n) {
        live->expected_until_us = until_us;
    }
    const struct hearth_cache_prompt prompt = {.tokens = ended->tokens.v, .n = ended->tokens.n, .salt = ended->salt};
    hearth_cache_expect(service->cache, &prompt, until_us);
}

void hearth_service_expect(struct hearth_service *service, int64_t id, int64_t within_us) {
    if (id <= 0 || within_us <= 0) {
        return;
    }
    pthread_mutex_lock(&service->mutex);
    if (service->expectation_count == service->expectation_cap) {
        size_t cap = service->expectation_cap ? service->expectation_cap * 2 : 16;
        struct hearth_expectation *more = realloc(service->expectations, cap * sizeof *more);
        if (more) {
            service->expectations = more;
            service->expectation_cap = cap;
        }
    }
    if (service->expectation_count < service->expectation_cap) { /* else it is not expected: that costs only time */
        service->expectations[service->expectation_count++] = (struct hearth_expectation){id, within_us};
    }
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
}

/* ---- forgets ---- */

static void forget_destroy(struct hearth_forget_task *forget) {
    hearth_tokens_finish(&forget->tokens);
    free(forget);
}

int hearth_service_forget(struct hearth_service *service, const struct hearth_forget_request *request) {
    struct hearth_forget_task *forget = calloc(1, sizeof *forget);
    if (!forget || !hearth_tokens_assign(&forget->tokens, request->tokens, request->count)) {
        free(forget);
        return HEARTH_ERR_NOMEM;
    }
    size_t keep = request->keep_tokens < request->count ? request->keep_tokens : request->count;
    forget->keep = (int32_t)keep;
    forget->salt = request->salt;
    forget->done = request->done;
    forget->user = request->user;
    pthread_mutex_lock(&service->mutex);
    bool stopping = service->stopping;
    if (!stopping) {
        *service->forget_inbox_tail = forget;
        service->forget_inbox_tail = &forget->next;
        pthread_cond_signal(&service->wake);
    }
    pthread_mutex_unlock(&service->mutex);
    if (stopping) {
        forget_destroy(forget);
    }
    return stopping ? HEARTH_ERR_BUSY : HEARTH_OK;
}

static int32_t common_tokens(const struct hearth_forget_task *forget, struct hearth_digest salt,
                             const struct hearth_tokens *tokens) {
    if (!hearth_digest_equal(forget->salt, salt)) {
        return 0;
    }
    return (int32_t)hearth_tokens_common(forget->tokens.v, forget->tokens.n, tokens->v, tokens->n);
}

/* What requests that run or wait begin with is kept. */
static int begin(struct hearth_service *service, const struct hearth_forget_task *forget) {
    if (forget->tokens.n == 0) {
        return HEARTH_OK;
    }
    int32_t keep = forget->keep, stop;
    for (const struct hearth_task *task = service->tasks; task; task = task->next) {
        int32_t common = common_tokens(forget, task->request.salt, &task->tokens);
        keep = common > keep ? common : keep;
    }
    const struct hearth_cache_prompt prompt = {.tokens = forget->tokens.v, .n = forget->tokens.n, .salt = forget->salt};
    int err =
        hearth_cache_forget(service->cache, &prompt, keep, service->live_list, hearth_service_lives(service), &stop);
    for (size_t i = 0; i < HEARTH_ENDED_MAX && !err; i++) {
        struct hearth_ended *ended = &service->ended_ring[i];
        if (ended->id > 0 && common_tokens(forget, ended->salt, &ended->tokens) > stop) {
            ended_clear(ended);
        }
    }
    service->counters.forgets += err == HEARTH_OK;
    return err;
}

void hearth_service_forget_due(struct hearth_service *service) {
    struct hearth_forget_task *forget;
    while ((forget = service->forgets) != NULL) {
        int err = HEARTH_OK;
        bool failed = false;
        if (!forget->begun) {
            if (hearth_cache_scanning(service->cache)) {
                return;
            }
            err = begin(service, forget);
            forget->begun = true;
        }
        if (!err && hearth_cache_removing(service->cache, &failed)) {
            return;
        }
        service->forgets = forget->next;
        if (forget->done) {
            forget->done(forget->user, err ? err : failed ? HEARTH_ERR_IO : HEARTH_OK);
        }
        forget_destroy(forget);
    }
}

static void cancel_all(struct hearth_forget_task *forget) {
    while (forget) {
        struct hearth_forget_task *next = forget->next;
        if (forget->done) {
            forget->done(forget->user, HEARTH_ERR_CANCELLED);
        }
        forget_destroy(forget);
        forget = next;
    }
}

void hearth_service_keep_finish(struct hearth_service *service) {
    pthread_mutex_lock(&service->mutex);
    struct hearth_forget_task *inbox = service->forget_inbox;
    service->forget_inbox = NULL;
    service->forget_inbox_tail = &service->forget_inbox;
    pthread_mutex_unlock(&service->mutex);
    cancel_all(service->forgets);
    service->forgets = NULL;
    cancel_all(inbox);
    for (size_t i = 0; i < HEARTH_ENDED_MAX; i++) {
        ended_clear(&service->ended_ring[i]);
    }
}
