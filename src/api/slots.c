/* GET /slots and GET /queue: what is being computed and what waits at this moment. POST /slots/{id}: accepted, but its
 * actions have nothing to do, because state is kept in the tree and not in slots.
 *
 * The members of a slot are llama-server's; `hearth` holds those for which llama-server has no name. The service knows
 * requests by numbers; their keys are found among the jobs. Texts of prompts and replies are not shown. A key sees the
 * details of its owner's requests. Of other owners' requests it sees only that a lane is busy and how many wait, unless
 * it has the scope admin.
 * Source: llama-server's README and server-context.cpp (server_slot::to_json). */
#include "api/stored_turns.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

const struct hearth_job *hearth_slots_find(const struct hearth_api *api, int64_t service_id) {
    for (const struct hearth_job *job = api->running; job != NULL && service_id > 0; job = job->next) {
        for (size_t i = 0; i < job->choice_count; i++) {
            if (job->choices[i].service_id == service_id) {
                return job;
            }
        }
    }
    return NULL;
}

/* id_task: a number made of the random id that answers carry, so that it tells nothing about other requests; the
 * service's own numbers count all requests. -1: none, or the request has just ended. */
static json_int_t task_of(const struct hearth_job *job, int64_t service_id) {
    char digits[13]; /* 48 bits: what any reader of JSON keeps whole */
    size_t choice = 0;
    if (job == NULL) {
        return -1;
    }
    while (choice + 1 < job->choice_count && job->choices[choice].service_id != service_id) {
        choice++;
    }
    snprintf(digits, sizeof digits, "%.12s", job->request_id + strlen("req_"));
    return (json_int_t)strtoll(digits, NULL, 16) + (json_int_t)choice;
}

/* Class and owner, members of both answers. `job` may be NULL: it has just ended. */
static json_t *owner_json(const struct hearth_job *job, enum hearth_class priority) {
    if (job == NULL) {
        return json_pack("{s:s}", "class", hearth_class_text(priority));
    }
    const struct hearth_api_stored *stored = job->resolved->stored;
    const double left_ms = HEARTH_MS(job->deadline_us - (hearth_clock_us() - job->arrived_us));
    return json_pack("{s:s, s:s?, s:s, s:s, s:s, s:s*, s:o*}", "class", hearth_class_text(priority), "key",
                     job->caller.name[0] != '\0' ? job->caller.name : NULL, "request_id", job->request_id, "endpoint",
                     job->route->path, "client", job->client, "session", stored != NULL ? stored->session : NULL,
                     "deadline_in_ms", job->deadline_us > 0 ? hearth_api_json_real(left_ms) : NULL);
}

/* Computed tokens of the prompt; the lane's count includes the reply. */
static uint32_t computed_of(const struct hearth_lane_info *lane) {
    const uint32_t most = lane->prompt_tokens > lane->reused_tokens ? lane->prompt_tokens - lane->reused_tokens : 0;
    return lane->computed_tokens < most ? lane->computed_tokens : most;
}

static double rate(uint32_t tokens, int64_t us) {
    return us > 0 ? (double)tokens * 1e6 / (double)us : 0;
}

static json_t *lane_hearth_json(const struct hearth_job *job, const struct hearth_lane_info *lane) {
    const bool decodes = lane->state == HEARTH_LANE_DECODE;
    const uint32_t computed = computed_of(lane);
    const double progress = decodes ? 1
                            : lane->prompt_tokens == 0
                                ? 0
                                : (double)(lane->reused_tokens + computed) / (double)lane->prompt_tokens;
    json_t *what =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "state",
                  hearth_lane_state_text(lane->state), "prompt_tokens", (json_int_t)lane->prompt_tokens,
                  "reused_tokens", (json_int_t)lane->reused_tokens, "computed_tokens", (json_int_t)computed,
                  "generated_tokens", (json_int_t)lane->generated_tokens, "progress", hearth_api_json_real(progress),
                  "queue_ms", hearth_api_json_real((double)lane->queue_us / 1000.0), "prefill_ms",
                  hearth_api_json_real((double)lane->prefill_us / 1000.0), "decode_ms",
                  hearth_api_json_real((double)lane->decode_us / 1000.0), "tokens_per_second",
                  hearth_api_json_real(decodes ? rate(lane->generated_tokens, lane->decode_us)
                                               : rate(computed, lane->prefill_us)),
                  "drafted_tokens", (json_int_t)lane->drafted_tokens, "accepted_tokens",
                  (json_int_t)lane->accepted_tokens, "preemptions", (json_int_t)lane->preemptions);
    json_object_update_new(what, owner_json(job, lane->priority));
    return what;
}

static json_t *lane_json(const struct hearth_api *api, size_t id, const struct hearth_lane_info *lane) {
    const struct hearth_job *job = hearth_slots_find(api, lane->request_id);
    const bool busy = lane->state != HEARTH_LANE_IDLE;
    const struct hearth_generation *generation = job != NULL ? &job->parsed->generation : NULL;
    const int32_t most = generation != NULL ? generation->max_tokens : api->params.max_tokens;
    const json_int_t remain = most < 0 ? -1 : (json_int_t)most - (json_int_t)lane->generated_tokens;
    json_t *json = json_pack(
        "{s:I, s:I, s:b, s:b, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:[{s:b, s:I, s:I}], s:o}", "id", (json_int_t)id,
        "n_ctx", (json_int_t)api->engine->caps.ctx_tokens, "speculative",
        api->params.speculates && (job == NULL || job->speculate), "is_processing", busy, "id_task",
        task_of(job, lane->request_id), "state", hearth_lane_state_text(lane->state), "live_tokens",
        (json_int_t)lane->live_tokens, "n_prompt_tokens", (json_int_t)lane->prompt_tokens, "n_prompt_tokens_processed",
        (json_int_t)computed_of(lane), "n_prompt_tokens_cache", (json_int_t)lane->reused_tokens, "n_decoded",
        (json_int_t)lane->generated_tokens, "next_token", "has_next_token", busy, "n_remain", remain, "n_decoded",
        (json_int_t)lane->generated_tokens, "hearth", busy ? lane_hearth_json(job, lane) : json_null());
    if (generation != NULL) {
        json_t *params = hearth_api_sampling_json(&generation->sampling, generation->max_tokens);
        json_object_set_new(params, "stream", json_boolean(generation->stream));
        json_object_set_new(json, "params", params);
    }
    return json;
}

static bool is_off(const struct hearth_api *api, const struct hearth_http_exchange *exchange,
                   struct hearth_api_error *error) {
    return !api->params.slots && !hearth_api_fail(error, 501, NULL, NULL, "%s is off; start the server with --slots",
                                                  hearth_http_path(exchange));
}

struct hearth_lane_info *hearth_slots_lanes(struct hearth_api *api, size_t *count) {
    const size_t room = hearth_service_lanes(api->service, NULL, 0);
    struct hearth_lane_info *lanes = calloc(room + 1, sizeof *lanes);
    if (lanes != NULL) {
        const size_t now = hearth_service_lanes(api->service, lanes, room);
        *count = now < room ? now : room;
    }
    return lanes;
}

/* A lane with another owner's request: only that it is busy. */
static struct hearth_lane_info veiled(const struct hearth_lane_info *lane) {
    return (struct hearth_lane_info){.state = lane->state, .request_id = -1};
}

static json_t *veiled_lane_json(const struct hearth_api *api, size_t id, const struct hearth_lane_info *lane) {
    const struct hearth_lane_info bare = veiled(lane);
    json_t *json = lane_json(api, id, &bare);
    if (json != NULL && lane->state != HEARTH_LANE_IDLE) {
        json_object_set_new(json, "hearth", json_pack("{s:s, s:n}", "state", "busy", "key"));
        json_object_set_new(json, "state", json_string("busy"));
    }
    return json;
}

json_t *hearth_slots_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                         const struct hearth_caller *caller, struct hearth_api_error *error) {
    size_t count = 0;
    bool idle = false;
    if (is_off(api, exchange, error)) {
        return NULL;
    }
    struct hearth_lane_info *lanes = hearth_slots_lanes(api, &count);
    json_t *slots = lanes != NULL ? json_array() : NULL;
    for (size_t i = 0; i < count; i++) {
        idle = idle || lanes[i].state == HEARTH_LANE_IDLE;
        const bool sees = hearth_caller_sees(caller, hearth_slots_find(api, lanes[i].request_id));
        json_array_append_new(slots, (sees ? lane_json : veiled_lane_json)(api, i, &lanes[i]));
    }
    free(lanes);
    if (slots != NULL && !idle && strstr(hearth_http_query(exchange), "fail_on_no_slot=1") != NULL) {
        json_decref(slots);
        hearth_api_fail(error, 503, "no_slot", NULL, "no slot is available: every lane has a request");
        error->err = HEARTH_ERR_OVERLOADED;
        return NULL;
    }
    return slots;
}

json_t *hearth_slots_summary(struct hearth_api *api, const struct hearth_caller *caller) {
    size_t count = 0;
    struct hearth_lane_info *lanes = hearth_slots_lanes(api, &count);
    json_t *list = lanes != NULL ? json_array() : NULL;
    for (size_t i = 0; i < count; i++) {
        const struct hearth_job *job = hearth_slots_find(api, lanes[i].request_id);
        const bool busy = lanes[i].state != HEARTH_LANE_IDLE, sees = hearth_caller_sees(caller, job);
        json_t *lane = busy && sees
                           ? lane_hearth_json(job, &lanes[i])
                           : json_pack("{s:s}", "state", busy ? "busy" : hearth_lane_state_text(lanes[i].state));
        if (job != NULL && busy && sees) {
            json_object_set_new(lane, "max_tokens", json_integer(job->parsed->generation.max_tokens));
        }
        json_object_set_new(lane, "id", json_integer((json_int_t)i));
        json_array_append_new(list, lane);
    }
    free(lanes);
    return list;
}

bool hearth_slots_act_prepare(struct hearth_job *job, const json_t *body) {
    static const struct {
        const char *name, *tokens, *bytes, *time;
    } actions[] = {{"save", "n_saved", "n_written", "save_ms"},
                   {"restore", "n_restored", "n_read", "restore_ms"},
                   {"erase", "n_erased", NULL, NULL}};
    static const char reason[] =
        "nothing to do: the state of prompts is kept by itself, in RAM and in --kv-dir, and is "
        "found by what they are; hearth kv looks after it";
    char *slot = hearth_job_param(job, 0), *name = hearth_api_query(job->query, "action"), *end = NULL;
    const unsigned long id = slot != NULL ? strtoul(slot, &end, 10) : 0;
    const bool known = slot != NULL && strspn(slot, "0123456789") == strlen(slot) && id < job->api->params.lanes;
    json_t *answer = known ? json_pack("{s:I, s:s}", "id_slot", (json_int_t)id, "message", reason) : NULL;
    size_t i = 0;
    const size_t count = sizeof actions / sizeof actions[0];
    while (i < count && (name == NULL || strcmp(name, actions[i].name) != 0)) {
        i++;
    }
    bool ok = known || hearth_api_fail(&job->error, 400, "invalid_value", "id_slot", "slots have numbers from 0 to %u",
                                       job->api->params.lanes - 1);
    ok = ok && (i < count ||
                hearth_api_fail(&job->error, 400, "invalid_value", "action", "action must be save, restore or erase"));
    if (ok) {
        json_t *file = hearth_api_json_get(body, "filename");
        json_object_set_new(answer, actions[i].tokens, json_integer(0));
        if (actions[i].bytes != NULL) {
            json_object_set(answer, "filename", file != NULL ? file : json_null());
            json_object_set_new(answer, actions[i].bytes, json_integer(0));
            json_object_set_new(answer, "timings", json_pack("{s:i}", actions[i].time, 0));
        }
        ok = hearth_job_respond(job, answer);
    } else {
        json_decref(answer);
    }
    free(slot);
    free(name);
    return ok;
}

static json_t *waiting_json(const struct hearth_api *api, const struct hearth_waiting_info *waiting) {
    const struct hearth_job *job = hearth_slots_find(api, waiting->request_id);
    const char *state = waiting->preemptions > 0 ? "preempted" : waiting->held ? "held" : "queued";
    json_t *json = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:o}", "id_task", task_of(job, waiting->request_id), "state", state, "wait",
        hearth_wait_text(waiting->wait), "prompt_tokens", (json_int_t)waiting->prompt_tokens, "generated_tokens",
        (json_int_t)waiting->generated_tokens, "waited_ms", hearth_api_json_real((double)waiting->waited_us / 1000.0));
    json_object_update_new(json, owner_json(job, waiting->priority));
    return json;
}

json_t *hearth_queue_json(struct hearth_api *api, const struct hearth_caller *caller) {
    struct hearth_waiting_info waiting[HEARTH_WAITING_MAX];
    struct hearth_service_stats stats;
    uint32_t retry_after_s = 0;
    hearth_service_stats(api->service, &stats);
    const bool full =
        hearth_service_overloaded(api->service, &caller->tenant, &retry_after_s); /* the tenant's part of the slots */
    size_t count = hearth_service_waiting(api->service, waiting, HEARTH_WAITING_MAX);
    count = count < HEARTH_WAITING_MAX ? count : HEARTH_WAITING_MAX;
    json_t *requests = json_array();
    for (size_t i = 0; i < count; i++) {
        if (hearth_caller_sees(caller, hearth_slots_find(api, waiting[i].request_id))) {
            json_array_append_new(requests, waiting_json(api, &waiting[i]));
        }
    }
    return json_pack("{s:I, s:b, s:o, s:o}", "waiting", (json_int_t)stats.queued, "full", full, "retry_after",
                     full ? json_integer((json_int_t)retry_after_s) : json_null(), "requests", requests);
}

json_t *hearth_queue_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                         const struct hearth_caller *caller, struct hearth_api_error *error) {
    return is_off(api, exchange, error) ? NULL : hearth_queue_json(api, caller);
}
