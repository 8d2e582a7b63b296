/* See idle.h.
 *
 * Many templates print a reply differently once another message follows it: thinking is left out, calls are printed
 * again. Everything from there on has to be computed again, while the client waits. But the template's new text is
 * known as soon as the reply is, up to the text of the next message.
 *
 *     loop: a job is over ---> worker: the next prompt, with a ---> loop: submit ---> service: a prefetch in idle time
 *                              message that stands for what comes                     loop: freed when that has ended
 *
 * The message stands for a tool's result if the reply has calls, otherwise for one of the user, and the prompt is cut
 * in front of its text. The conversation's own state already has a part of this prompt; if that is nearly all of it,
 * the template has rewritten nothing. Conversations whose exact tokens are stored are not rendered, so they need none
 * of this.
 *
 * It begins a moment after the reply: an agent that runs tools comes back at once, and would find the lane busy. If the
 * next turn has come by then, nothing is done.
 *
 * A turn has a budget of tokens. On battery power nothing is computed ahead unless the options say so; a worker checks.
 * Any failure only means that the next turn costs what it would have cost anyway.
 *
 * Invariant: `running` counts the jobs of this file that are not freed; there are at most RUNNING_MAX. */
#include "api/idle.h"

#include "api/stored_turns.h"

#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/power.h"

#include <stdlib.h>
#include <string.h>

#define RUNNING_MAX 32  /* most conversations at a time; those that ended last are the likeliest to come back */
#define LEAST_TOKENS 32 /* fewer tokens are left to the next request */

struct idle_job {
    struct hearth_job job;        /* first, so that it converts */
    struct hearth_tokens before;  /* what the conversation's state had at the end of the reply */
    struct hearth_history next;   /* the conversation as its next request will send it */
    struct hearth_digest replied; /* the chain up to and with the reply */
    int64_t service_id;
};

static const struct hearth_route route = {.method = "", .path = "", .flags = HEARTH_ROUTE_COUNT};

bool hearth_idle_create(struct hearth_api *api) {
    if (api->params.idle_tokens > 0 && !api->params.keep_thinking &&
        (api->idle = calloc(1, sizeof *api->idle)) != NULL) {
        api->idle->api = api;
    }
    return api->params.idle_tokens == 0 || api->params.keep_thinking || api->idle != NULL;
}

/* ---- which jobs ---- */

bool hearth_idle_is_wanted(const struct hearth_job *job) {
    const struct hearth_api_stored *stored = job->resolved->stored;
    const struct hearth_generation *generation = &job->parsed->generation;
    const bool exact = stored != NULL && (stored->session != NULL || stored->line.count > 0);
    return job->api->idle != NULL && job->resolved->format != NULL && !exact && generation->n == 1 &&
           generation->cache && generation->max_tokens != 0 && !job->resolved->request.no_generation_prompt;
}

static bool has_reply(const struct hearth_job *job) {
    const struct hearth_history *sent = &job->parsed->history, *whole = &job->resolved->history;
    return hearth_idle_is_wanted(job) && !job->failed && !job->cancelled && job->choice_count == 1 &&
           job->choices[0].message != NULL && job->choices[0].prompt->tokens.n > 0 && whole->count >= sent->count &&
           (job->answered == 200 || job->detached);
}

/* ---- the next prompt ---- */

/* Makes a message that stands for the client's next one. NULL: out of memory. */
static struct hearth_message *make_unknown(const struct hearth_message *reply) {
    const struct hearth_call *call = reply->call_count > 0 ? &reply->calls[0] : NULL;
    struct hearth_api_draft draft = {0};
    struct hearth_message *message = NULL;
    if (hearth_api_draft_begin(&draft, call != NULL ? HEARTH_ROLE_TOOL : HEARTH_ROLE_USER) &&
        hearth_buf_text(&draft.content, "x")) {
        draft.message->tool_call_id = call != NULL && call->id != NULL ? hearth_memory_strdup(call->id) : NULL;
        draft.message->name = call != NULL ? hearth_memory_strdup(call->name) : NULL;
        message = hearth_api_draft_end(&draft, NULL);
    }
    hearth_api_draft_drop(&draft);
    return message;
}

/* The conversation as its next request will send it. */
static bool follow_history(const struct hearth_job *over, struct hearth_history *out) {
    const struct hearth_history *sent = &over->parsed->history;
    const size_t lead = over->resolved->history.count - sent->count; /* instructions, which are not in what was sent */
    const size_t count = sent->count - (over->resolved->request.continues ? 1 : 0);
    struct hearth_message *reply = over->choices[0].message;
    reply = over->resolved->request.continues ? hearth_history_join(sent->messages[count], reply)
                                              : hearth_message_ref(reply);
    struct hearth_message *unknown = reply != NULL ? make_unknown(reply) : NULL;
    const bool ok = unknown != NULL && hearth_history_append(out, &over->resolved->history, 0, lead) &&
                    hearth_history_append(out, sent, 0, count);
    if (!ok) {
        hearth_message_unref(reply);
        hearth_message_unref(unknown);
        return false;
    }
    const bool added = hearth_history_add(out, reply);
    return hearth_history_add(out, unknown) && added;
}

static int is_wanted(void *user) {
    const struct hearth_job *job = user;
    return atomic_load(&job->api->drained) ? HEARTH_ERR_CANCELLED : HEARTH_OK;
}

static bool resolve(const struct hearth_job *job, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    const struct hearth_history *next = &((const struct idle_job *)job)->next;
    out->unknown_messages = 1;
    return hearth_history_append(&out->history, next, 0, next->count) &&
           hearth_api_chat_take(&job->parsed->chat, out) && hearth_api_chat_end(job, out, error) &&
           hearth_history_resolve(job, out, error);
}

/* Where the next prompt leaves what the conversation's state has. */
static size_t leaves_at(const struct idle_job *idle, const struct hearth_api_rendered *rendered) {
    const struct hearth_tokens *tokens = &rendered->prompts[0].tokens;
    return hearth_tokens_common(idle->before.v, idle->before.n, tokens->v, tokens->n);
}

/* The prompt is cut to what the turn may cost. */
static bool render(const struct hearth_job *job, struct hearth_api_rendered *out, struct hearth_api_error *error) {
    if (!hearth_api_prompts_alloc(1, out) || !hearth_history_prompt(job, out, error)) {
        return false;
    }
    struct hearth_api_prompt *prompt = &out->prompts[0];
    const size_t from = leaves_at((const struct idle_job *)job, out), most = from + job->api->params.idle_tokens;
    if (prompt->tokens.n < from + LEAST_TOKENS) {
        return false;
    }
    if (prompt->tokens.n > most) {
        prompt->tokens.n = most;
    }
    while (prompt->mark_count > 0 && (size_t)prompt->marks[prompt->mark_count - 1] >= prompt->tokens.n) {
        prompt->mark_count--;
    }
    return true;
}

/* On a worker. */
static void prepare(struct hearth_job *job) {
    static const struct hearth_api_phases phases = {.resolve = resolve, .render = render};
    struct hearth_cancel cancel = {.wanted = is_wanted, .user = job, .cpu_us = job->api->params.prepare_timeout_us};
    hearth_memory_begin();
    job->prepare_start_us = hearth_clock_us();
    job->failed = !hearth_memory_refill() ||
                  (!job->api->params.idle_on_battery && hearth_power_on_battery(HEARTH_POWER_DIRECTORY));
    if (!job->failed) {
        hearth_cancel_enter(&cancel);
        job->failed = !hearth_api_phases_run(job, &phases, NULL);
        hearth_cancel_leave();
    }
    job->failed = job->failed || hearth_memory_refused();
    hearth_http_post(job->api->http, &job->work);
}

/* ---- its life ---- */

static void destroy(struct idle_job *idle) {
    struct hearth_api *api = idle->job.api;
    hearth_api_phases_finish(&idle->job);
    hearth_history_finish(&idle->next);
    hearth_tokens_finish(&idle->before);
    free(idle);
    api->idle->running--;
    atomic_fetch_sub(&api->jobs, 1);
}

/* Takes the job that `link` leads to out of a list. */
static struct hearth_job *leave_list(struct hearth_job **link) {
    struct hearth_job *job = *link;
    *link = job->next;
    job->next = NULL;
    return job;
}

static void ended(struct hearth_http_work *work) {
    struct hearth_job *job = (struct hearth_job *)work, **link = &job->api->idle->submitted;
    while (*link != job) {
        link = &(*link)->next;
    }
    destroy((struct idle_job *)leave_list(link));
}

/* On the service's thread. */
static void deliver(void *user, struct hearth_event *event) {
    struct hearth_job *job = user;
    const bool last = event->type == HEARTH_EVENT_DONE || event->type == HEARTH_EVENT_FAILED;
    hearth_event_destroy(event);
    if (last) {
        hearth_http_post(job->api->http, &job->work);
    }
}

static void prepared(struct hearth_http_work *work) {
    struct idle_job *idle = (struct idle_job *)work;
    struct hearth_job *job = &idle->job;
    struct hearth_errmsg msg = {{0}};
    if (job->failed) {
        destroy(idle);
        return;
    }
    const struct hearth_api_prompt *prompt = &job->rendered->prompts[0];
    const struct hearth_request request = {.tenant = job->caller.tenant,
                                           .priority = HEARTH_CLASS_PREFETCH,
                                           .idle = true,
                                           .prompt = prompt->tokens.v,
                                           .prompt_tokens = prompt->tokens.n,
                                           .marks = prompt->marks,
                                           .mark_count = prompt->mark_count,
                                           .head_tokens = prompt->head_tokens,
                                           .sampling = job->api->params.sampling,
                                           .salt = job->resolved->salt,
                                           .deliver = deliver,
                                           .user = job};
    job->work.run = ended;
    idle->service_id = hearth_service_submit(job->api->service, &request, &msg);
    if (idle->service_id > 0) {
        job->next = job->api->idle->submitted;
        job->api->idle->submitted = job;
        hearth_idle_note(job->api->idle, idle->replied, leaves_at(idle, job->rendered), prompt->tokens.n);
        return;
    }
    hearth_log(HEARTH_LOG_DEBUG, "idle: not computed ahead: %s", msg.text);
    destroy(idle);
}

void hearth_idle_overtake(const struct hearth_job *job) {
    struct hearth_idle *idle = job->api->idle;
    if (idle == NULL || hearth_digest_is_zero(job->resolved->replied)) {
        return;
    }
    for (const struct hearth_job *one = idle->submitted; one != NULL; one = one->next) {
        const struct idle_job *running = (const struct idle_job *)one;
        if (hearth_digest_equal(running->replied, job->resolved->replied)) {
            hearth_service_cancel(job->api->service, running->service_id); /* what it has computed stays */
        }
    }
    for (struct hearth_job **link = &idle->waiting; *link != NULL;) {
        struct idle_job *waiting = (struct idle_job *)*link;
        if (hearth_digest_equal(waiting->replied, job->resolved->replied)) {
            destroy((struct idle_job *)leave_list(link));
        } else {
            link = &(*link)->next;
        }
    }
}

void hearth_idle_tick(struct hearth_idle *idle, int64_t now_us) {
    while (idle != NULL && idle->waiting != NULL &&
           now_us - idle->waiting->arrived_us >= idle->api->params.idle_after_us &&
           !atomic_load(&idle->api->drained)) { /* once drained, the pool may have stopped */
        hearth_api_pool_push(idle->api->pool, leave_list(&idle->waiting));
    }
}

void hearth_idle_destroy(struct hearth_idle *idle) {
    while (idle != NULL && idle->waiting != NULL) {
        destroy((struct idle_job *)leave_list(&idle->waiting));
    }
    free(idle);
}

/* Puts a job at the end of the queue. */
static void wait_in_line(struct hearth_idle *idle, struct hearth_job *job) {
    struct hearth_job **end = &idle->waiting;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = job;
}

void hearth_idle_follow(struct hearth_job *over) {
    struct hearth_api *api = over->api;
    if (!has_reply(over) || api->idle->running >= RUNNING_MAX || atomic_load(&api->drained)) {
        return;
    }
    const struct hearth_choice *choice = &over->choices[0];
    struct idle_job *idle = calloc(1, sizeof *idle);
    if (idle == NULL || !hearth_tokens_append(&idle->before, choice->prompt->tokens.v, choice->prompt->tokens.n) ||
        !hearth_tokens_append(&idle->before, choice->sampled.v, choice->sampled.n) ||
        !follow_history(over, &idle->next)) {
        if (idle != NULL) {
            hearth_history_finish(&idle->next);
            hearth_tokens_finish(&idle->before);
        }
        free(idle);
        return;
    }
    struct hearth_job *job = &idle->job;
    idle->replied = hearth_message_chain(over->resolved->said, idle->next.messages[idle->next.count - 2]);
    job->api = api;
    job->route = &route;
    job->arrived_us = hearth_clock_us();
    job->caller = over->caller;
    job->caller.quota = NULL;
    job->owner = over->owner;
    hearth_api_phases_go_on(job, over);
    job->is_long = true;
    job->work.run = prepared;
    job->pool_run = prepare;
    api->idle->running++;
    atomic_fetch_add(&api->jobs, 1);
    wait_in_line(api->idle, job);
}
