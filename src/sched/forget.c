/* Carries out forgets one after another. Each begins when the backing tier has reported what it holds, and ends when
 * the tier has removed it. A store that boxes share is asked for what it has, since this box need not know of it; one
 * that cannot be asked is an IO error, behind what was forgotten here.
 *
 * Invariant: a forget's `done` is called exactly once, on the service's thread. */
#include "sched/service_internal.h"

#include <stdlib.h>

static void forget_destroy(struct hearth_task_forget *forget) {
    hearth_tokens_finish(&forget->tokens);
    free(forget);
}

int hearth_service_forget(struct hearth_service *service, const struct hearth_service_forget_request *request) {
    struct hearth_task_forget *forget = calloc(1, sizeof *forget);
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

/* Begins a forget. The tokens that waiting and running prompts begin with are kept. */
static int begin(struct hearth_service *service, const struct hearth_task_forget *forget) {
    if (forget->tokens.n == 0) {
        return HEARTH_OK;
    }
    int32_t keep = forget->keep, stop;
    for (const struct hearth_task *task = service->tasks; task; task = task->next) {
        if (hearth_digest_equal(forget->salt, task->request.salt)) {
            int32_t common =
                (int32_t)hearth_tokens_common(forget->tokens.v, forget->tokens.n, task->tokens.v, task->tokens.n);
            keep = common > keep ? common : keep;
        }
    }
    const struct hearth_cache_prompt prompt = {.tokens = forget->tokens.v, .n = forget->tokens.n, .salt = forget->salt};
    int err =
        hearth_cache_forget(service->cache, &prompt, keep, service->live_list, hearth_service_lives(service), &stop);
    if (!err) {
        hearth_ended_forget(service, forget->salt, &forget->tokens, stop);
    }
    service->counters.forgets += err == HEARTH_OK;
    return err;
}

/* Asks a shared store what it has of the tokens. True while its answer is missing. */
static bool seek(struct hearth_service *service, struct hearth_task_forget *forget) {
    const struct hearth_cache_prompt prompt = {.tokens = forget->tokens.v, .n = forget->tokens.n, .salt = forget->salt};
    if (!forget->sought) {
        forget->sought = true;
        forget->seek = hearth_cache_seek(service->cache, &prompt, 0);
        forget->unseen = forget->seek == 0 && hearth_cache_must_seek(service->cache) && prompt.n > 0;
    }
    return forget->seek > 0 && !hearth_cache_sought(service->cache, forget->seek);
}

void hearth_service_forget_due(struct hearth_service *service) {
    struct hearth_task_forget *forget;
    while ((forget = service->forgets) != NULL) {
        int err = HEARTH_OK;
        bool failed = false;
        if (!forget->begun) {
            if (hearth_cache_scanning(service->cache) || seek(service, forget)) {
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
            forget->done(forget->user, err ? err : failed || forget->unseen ? HEARTH_ERR_IO : HEARTH_OK);
        }
        forget_destroy(forget);
    }
}

static void cancel_all(struct hearth_task_forget *forget) {
    while (forget) {
        struct hearth_task_forget *next = forget->next;
        if (forget->done) {
            forget->done(forget->user, HEARTH_ERR_CANCELLED);
        }
        forget_destroy(forget);
        forget = next;
    }
}

void hearth_service_forget_finish(struct hearth_service *service) {
    pthread_mutex_lock(&service->mutex);
    struct hearth_task_forget *inbox = service->forget_inbox;
    service->forget_inbox = NULL;
    service->forget_inbox_tail = &service->forget_inbox;
    pthread_mutex_unlock(&service->mutex);
    cancel_all(service->forgets);
    service->forgets = NULL;
    cancel_all(inbox);
}
