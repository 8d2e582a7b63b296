/* Remembers the last requests that have ended, with their tokens, so that the lane that still holds them can be found
 * by comparison. */
#include "sched/service_internal.h"

static void clear(struct hearth_ended *ended) {
    hearth_tokens_finish(&ended->tokens);
    *ended = (struct hearth_ended){0};
}

void hearth_ended_note(struct hearth_service *service, struct hearth_task *task) {
    if (task->last_lane < 0 || hearth_task_is_prefetch(task)) {
        return;
    }
    struct hearth_ended *place = &service->ended_ring[service->ended_at];
    service->ended_at = (service->ended_at + 1) % HEARTH_ENDED_MAX;
    clear(place);
    size_t total = task->tokens.n;
    for (size_t back = 1; back < HEARTH_ENDED_MAX; back++) { /* from the newest on */
        struct hearth_ended *ended =
            &service->ended_ring[(service->ended_at + 2 * HEARTH_ENDED_MAX - 1 - back) % HEARTH_ENDED_MAX];
        total += ended->tokens.n;
        if (total > HEARTH_ENDED_TOKENS) {
            clear(ended);
        }
    }
    *place = (struct hearth_ended){
        .id = task->id, .salt = task->request.salt, .tokens = task->tokens, .lane = task->last_lane};
    task->tokens = (struct hearth_tokens){0};
    if (task->expect_us > 0) {
        hearth_ended_expect(service, place->id, task->expect_us);
    }
}

void hearth_ended_expect(struct hearth_service *service, int64_t id, int64_t within_us) {
    size_t at = 0;
    while (at < HEARTH_ENDED_MAX && service->ended_ring[at].id != id) {
        at++;
    }
    if (at == HEARTH_ENDED_MAX) {
        return;
    }
    const struct hearth_ended *ended = &service->ended_ring[at];
    int64_t until_us = hearth_service_now_us(service) + within_us;
    struct hearth_live *live = &service->lives[ended->lane];
    size_t n = live->tokens.n;
    if (!live->busy && n > 0 && hearth_digest_equal(live->salt, ended->salt) &&
        hearth_tokens_common(live->tokens.v, n, ended->tokens.v, ended->tokens.n) == n) {
        live->expected_until_us = until_us;
        live->awaits = HEARTH_AWAITS_TOOL;
    }
    const struct hearth_cache_prompt prompt = {.tokens = ended->tokens.v, .n = ended->tokens.n, .salt = ended->salt};
    hearth_cache_expect(service->cache, &prompt, until_us);
}

void hearth_ended_forget(struct hearth_service *service, struct hearth_digest salt, const struct hearth_tokens *tokens,
                         int32_t stop) {
    for (size_t i = 0; i < HEARTH_ENDED_MAX; i++) {
        struct hearth_ended *ended = &service->ended_ring[i];
        if (ended->id > 0 && hearth_digest_equal(salt, ended->salt) &&
            hearth_tokens_common(tokens->v, tokens->n, ended->tokens.v, ended->tokens.n) > (size_t)stop) {
            clear(ended);
        }
    }
}

void hearth_ended_finish(struct hearth_service *service) {
    for (size_t i = 0; i < HEARTH_ENDED_MAX; i++) {
        clear(&service->ended_ring[i]);
    }
}
