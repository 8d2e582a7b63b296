/* /v1/sessions: conversations by name. They are the same as OpenAI's conversations, in the form of no dialect: list,
 * look at, fork, warm, delete. Their messages are at /v1/conversations/{name}/items. */
#include "api/stored_turns.h"

#include "report/ring.h"

#include <stdlib.h>
#include <string.h>

static json_t *session_json(const struct hearth_session *session) {
    char head[64];
    const bool begun = !hearth_digest_is_zero(session->head);
    hearth_api_id_print(head, sizeof head, "turn_", session->head, -1);
    return json_pack("{s:o, s:s, s:I, s:I, s:o, s:I, s:I, s:o}", "id", hearth_api_json_text(session->name), "object",
                     "session", "created_at", (json_int_t)(session->created_us / 1000000), "last_used_at",
                     (json_int_t)(session->used_us / 1000000), "head", begun ? json_string(head) : json_null(), "turns",
                     (json_int_t)session->turns, "tokens", (json_int_t)session->tokens, "metadata",
                     hearth_metadata_json(&session->metadata));
}

/* ---- as a dialect shows them ---- */

bool hearth_api_session_fail(struct hearth_job *job, const struct hearth_api_session_form *form, int err,
                             const char *name, const struct hearth_errmsg *msg) {
    return !hearth_api_stored_fail_away(job, err, "conversation", form->param, name, &job->error) &&
           (err == HEARTH_ERR_NOT_FOUND ? hearth_api_fail(&job->error, 404, "not_found", form->param, "%s '%.100s' %s",
                                                          form->missing[0], name, form->missing[1])
                                        : hearth_api_fail_err(&job->error, err, msg));
}

bool hearth_api_session_get(struct hearth_job *job, const struct hearth_api_session_form *form, const char *name,
                            struct hearth_session *session) {
    const int err = hearth_session_get(job->api->store, job->owner, name, session);
    return err == HEARTH_OK || hearth_api_session_fail(job, form, err, name, NULL);
}

bool hearth_api_session_respond(struct hearth_job *job, const struct hearth_api_session_form *form, const char *name) {
    struct hearth_session session;
    if (!hearth_api_session_get(job, form, name, &session)) {
        return false;
    }
    json_t *value = form->print(&session);
    hearth_session_finish(&session);
    return hearth_job_respond(job, value);
}

bool hearth_api_session_of_path(struct hearth_job *job, const struct hearth_api_session_form *form,
                                hearth_api_session_fn *act) {
    char *name = hearth_job_param(job, 0);
    const bool ok = name != NULL && act(job, form, name);
    free(name);
    return ok;
}

bool hearth_api_session_delete(struct hearth_job *job, const struct hearth_api_session_form *form, const char *name) {
    const uint32_t turns = hearth_api_stored_count_turns(job, name);
    const int err = hearth_session_delete(job->api->store, job->owner, name);
    if (err != HEARTH_OK) {
        return hearth_api_session_fail(job, form, err, name, NULL);
    }
    hearth_ring_forget(job->api->ring, job->owner, name, (struct hearth_digest){0, 0});
    hearth_access_log_deleted(job, form->kind, name, turns);
    hearth_api_deletion_worker_wake(job->api->deletion_worker);
    return hearth_job_respond(job, json_pack("{s:o, s:s+, s:b}", "id", hearth_api_json_text(name), "object", form->kind,
                                             ".deleted", "deleted", 1));
}

/* ---- /v1/sessions ---- */

static const struct hearth_api_session_form form = {
    .kind = "session", .param = "session_id", .missing = {"there is no session", "here"}, .print = session_json};

/* Reads the name from the body, or makes one. False: the body's name is invalid. */
static bool read_name(struct hearth_job *job, const json_t *body, char out[HEARTH_SESSION_NAME_MAX + 1]) {
    const json_t *given = hearth_api_json_get(body, "name");
    given = given != NULL ? given : hearth_api_json_get(body, "id");
    if (given == NULL) {
        hearth_api_id_print(out, HEARTH_SESSION_NAME_MAX + 1, "conv_", hearth_turn_new_id(), -1);
        return true;
    }
    const char *text = json_string_value(given);
    if (text == NULL || strlen(text) != json_string_length(given)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "name", "name must be a string");
    }
    if (!hearth_api_stored_check_name(job, text, "name", &job->error)) {
        return false;
    }
    snprintf(out, HEARTH_SESSION_NAME_MAX + 1, "%s", text);
    job->about = hearth_memory_strdup(text);
    return true;
}

/* Stores a session, which must be new, and answers with it. */
static bool make_session(struct hearth_job *job, const struct hearth_session *session) {
    struct hearth_errmsg msg = {{0}};
    const int err = hearth_session_put(job->api->store, session, false, &msg);
    if (err == HEARTH_ERR_INVALID) {
        return hearth_api_fail(&job->error, 409, "session_exists", "name", "there is a session '%s' already",
                               session->name);
    }
    return err == HEARTH_OK ? hearth_api_session_respond(job, &form, session->name)
                            : hearth_api_session_fail(job, &form, err, session->name, &msg);
}

bool hearth_api_sessions_create_prepare(struct hearth_job *job, const json_t *body) {
    char name[HEARTH_SESSION_NAME_MAX + 1];
    struct hearth_session session = {.name = name, .owner = job->owner, .quota = job->caller.stored};
    const bool ok = hearth_metadata_read(body, &session.metadata, &job->error) &&
                    hearth_key_limits_store(job, true, &job->error) && read_name(job, body, name) &&
                    make_session(job, &session);
    hearth_buf_finish(&session.metadata);
    return ok;
}

/* What the owner has stored, and may store. NULL: out of memory. */
static json_t *stored_json(const struct hearth_job *job, const struct hearth_session_quota *has) {
    const struct hearth_session_quota *most = &job->caller.stored;
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"tokens", has->tokens},        {"bytes", has->bytes},        {"sessions", has->sessions},
                {"tokens_limit", most->tokens}, {"bytes_limit", most->bytes}, {"sessions_limit", most->sessions}};
    json_t *value = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (i < 3 || rows[i].value != 0) {
            json_object_set_new(value, rows[i].name, json_integer((json_int_t)rows[i].value));
        }
    }
    return value;
}

bool hearth_api_sessions_list_prepare(struct hearth_job *job, const json_t *body) {
    enum { PAGE = 100, PAGE_MAX = 1000, METADATA_BYTES = 1 << 20 };
    bool more = false;
    char *after = hearth_api_query(job->query, "after");
    struct hearth_session_query query = {.owner = job->owner,
                                         .bytes_max = METADATA_BYTES,
                                         .after = after != NULL && *after != '\0' ? after : NULL,
                                         .more = &more};
    struct hearth_session *sessions = NULL;
    size_t count = 0;
    (void)body;
    struct hearth_session_quota has = {0};
    bool ok = hearth_list_read_limit(job, PAGE, PAGE_MAX, &query.limit);
    int err = ok ? hearth_session_owner_usage(job->api->store, job->owner, &has) : HEARTH_OK;
    err = ok && err == HEARTH_OK ? hearth_session_list(job->api->store, &query, &sessions, &count) : err;
    if (err == HEARTH_ERR_NOT_FOUND) {
        ok = hearth_api_fail(&job->error, 400, "invalid_value", "after", "after: there is no session '%.100s'", after);
    } else if (err != HEARTH_OK) {
        ok = hearth_api_fail_err(&job->error, err, NULL);
    }
    free(after);
    json_t *data = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(data, session_json(&sessions[i]));
        hearth_session_finish(&sessions[i]);
    }
    free(sessions);
    json_t *list = hearth_list_json(data, more);
    json_object_set_new(list, "stored", stored_json(job, &has));
    if (!ok) {
        json_decref(list);
        return false;
    }
    return hearth_job_respond(job, list);
}

bool hearth_api_sessions_get_prepare(struct hearth_job *job, const json_t *body) {
    (void)body;
    return hearth_api_session_of_path(job, &form, hearth_api_session_respond);
}

bool hearth_api_sessions_delete_prepare(struct hearth_job *job, const json_t *body) {
    (void)body;
    return hearth_api_session_of_path(job, &form, hearth_api_session_delete);
}

/* Where a fork begins: the session's head, or a turn of its line. */
static bool fork_head(struct hearth_job *job, const json_t *body, struct hearth_session *session) {
    const json_t *turn = hearth_api_json_get(body, "turn");
    struct hearth_digest id;
    struct hearth_line line;
    int index;
    bool found = false;
    if (turn == NULL) {
        return true;
    }
    if (!json_is_string(turn) || !hearth_api_id_parse(json_string_value(turn), &id, &index)) {
        return hearth_api_fail(&job->error, 400, "invalid_value", "turn",
                               "turn must be the id of a turn or a response");
    }
    const int err = hearth_line_get(job->api->store, job->owner, session->head, &line);
    for (size_t i = 0; err == HEARTH_OK && i < line.count; i++) {
        found = found || hearth_digest_equal(line.turns[i].id, id);
    }
    if (err == HEARTH_OK) {
        hearth_line_finish(&line);
    }
    if (err != HEARTH_OK && err != HEARTH_ERR_NOT_FOUND) {
        return hearth_api_fail_err(&job->error, err, NULL);
    }
    session->head = id;
    return found || hearth_api_fail(&job->error, 404, "not_found", "turn", "the session has no turn '%s'",
                                    json_string_value(turn));
}

/* Adds to a fork's metadata (those of the session) where it was forked from, if there is room. */
static bool note_origin(struct hearth_session *session) {
    json_t *metadata = hearth_metadata_json(&session->metadata);
    if (json_object_size(metadata) < 16 || json_object_get(metadata, "forked_from") != NULL) {
        json_object_set_new(metadata, "forked_from", hearth_api_json_text(session->name));
    }
    session->metadata.len = 0;
    return hearth_api_json_write(metadata, &session->metadata);
}

bool hearth_api_sessions_fork_prepare(struct hearth_job *job, const json_t *body) {
    char *from = hearth_job_param(job, 0);
    char name[HEARTH_SESSION_NAME_MAX + 1];
    struct hearth_session session;
    bool ok = from != NULL && hearth_api_session_get(job, &form, from, &session);
    free(from);
    if (!ok) {
        return false;
    }
    ok = fork_head(job, body, &session) && read_name(job, body, name) && note_origin(&session);
    if (ok) {
        char *before = session.name;
        session.name = name;
        session.created_us = session.used_us = 0;
        session.quota = job->caller.stored;
        ok = make_session(job, &session);
        session.name = before;
    }
    hearth_session_finish(&session);
    return ok;
}

/* ---- warm ---- */

static json_t *prefetch_whole(struct hearth_job *job) {
    struct hearth_tally tally;
    hearth_tally_job(job, &tally);
    return json_pack("{s:s, s:s, s:I, s:o}", "id", job->resolved->stored->session, "object", "session.warm", "tokens",
                     (json_int_t)job->choices[0].receipt.prompt_tokens, "hearth", hearth_api_receipt_json(&tally));
}

static const struct hearth_dialect prefetch_dialect = {.id_prefix = "warm_", .whole = prefetch_whole};

/* Whether the tokens of the whole conversation are stored and of this model: then nothing is rendered. */
static bool has_tokens(const struct hearth_job *job, const struct hearth_line *line) {
    return line->tokens_turns == line->count && hearth_digest_equal(line->model, job->api->engine->caps.fingerprint);
}

/* There is no body. */
static bool prefetch_parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                           struct hearth_api_error *error) {
    (void)body;
    const bool ok = hearth_generation_read(job->api, NULL, false, &out->generation, error);
    out->generation.max_tokens = 0;
    return ok;
}

/* Tools and arguments of the template as the last turn had them. */
static bool take_config(const struct hearth_job *job, const json_t *config, struct hearth_api_resolved *out,
                        struct hearth_api_error *error) {
    struct hearth_api_chat_options told = {0};
    json_t *tools = json_object_get(config, "tools"), *kwargs = json_object_get(config, "kwargs");
    json_t *sent = json_pack("{s:O*, s:O*}", "tools", tools, "chat_template_kwargs", kwargs);
    bool ok = sent != NULL && hearth_api_tools_read(job->api, sent, &told, error) &&
              hearth_api_reasoning_read(job->api, sent, &told, error);
    told.request.no_generation_prompt = true;
    told.request.thinking = told.request.thinking && !json_is_false(json_object_get(config, "thinking"));
    ok = ok && hearth_api_chat_take(&told, out);
    hearth_api_chat_options_finish(&told);
    json_decref(sent);
    return ok;
}

/* The conversation as its next prompt begins. */
static bool resolve_messages(const struct hearth_job *job, struct hearth_api_resolved *out,
                             struct hearth_api_error *error) {
    const struct hearth_line *line = &out->stored->line;
    json_t *config = hearth_api_stored_config_json(&line->turns[line->count - 1]);
    struct hearth_history past = out->history;
    out->history = (struct hearth_history){0};
    const bool ok = hearth_api_stored_add_system(&out->history, config) &&
                    hearth_history_append(&out->history, &past, 0, past.count) && take_config(job, config, out, error);
    hearth_history_finish(&past);
    json_decref(config);
    return ok && hearth_api_chat_end(job, out, error) && hearth_history_resolve(job, out, error);
}

static bool prefetch_resolve(const struct hearth_job *job, struct hearth_api_resolved *out,
                             struct hearth_api_error *error) {
    char *name = hearth_job_param(job, 0);
    const bool ok = name != NULL && hearth_api_stored_from_session(job, name, "session_id", out, error);
    free(name);
    const struct hearth_line *line = ok ? &out->stored->line : NULL;
    if (!ok || line->count == 0) {
        return ok;
    }
    const struct hearth_turn *last = &line->turns[line->count - 1];
    if (!hearth_digest_is_zero(last->model)) { /* else the salt is not known: the owner's */
        out->salt = last->salt;
    }
    return has_tokens(job, line) || resolve_messages(job, out, error);
}

static bool prefetch_render(const struct hearth_job *job, struct hearth_api_rendered *out,
                            struct hearth_api_error *error) {
    const struct hearth_line *line = &job->resolved->stored->line;
    if (!hearth_api_prompts_alloc(1, out) || line->count == 0) {
        return out->prompts != NULL;
    }
    if (!has_tokens(job, line)) {
        return hearth_history_prompt(job, out, error);
    }
    return hearth_tokens_append(&out->prompts[0].tokens, line->tokens.v, line->tokens.n) &&
           hearth_api_prompt_check_length(job->api, &out->prompts[0], 1, "session_id", error);
}

/* Runs the phases; a session without turns is answered at once. */
static bool run_phases(struct hearth_job *job, const struct hearth_api_phases *phases, const char *object,
                       const json_t *body) {
    if (!hearth_api_phases_run(job, phases, body)) {
        return false;
    }
    if (job->resolved->stored->line.count > 0) {
        return true;
    }
    job->dialect = NULL; /* an empty session: nothing to prefetch or to look at */
    return hearth_job_respond(
        job, json_pack("{s:s, s:s, s:i}", "id", job->resolved->stored->session, "object", object, "tokens", 0));
}

bool hearth_api_sessions_prefetch_prepare(struct hearth_job *job, const json_t *body) {
    static const struct hearth_api_phases phases = {
        .parse = prefetch_parse, .resolve = prefetch_resolve, .render = prefetch_render, .dialect = &prefetch_dialect};
    return run_phases(job, &phases, "session.warm", body);
}

/* ---- where its state is ---- */

static json_t *state_whole(struct hearth_job *job) {
    const struct hearth_receipt *receipt = &job->choices[0].receipt;
    return json_pack("{s:s, s:s, s:I, s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:o, s:o}", "id",
                     job->resolved->stored->session, "object", "session.state", "tokens",
                     (json_int_t)receipt->prompt_tokens, "there", "live", (json_int_t)receipt->reused_live_tokens,
                     "ram", (json_int_t)receipt->reused_ram_tokens, "disk", (json_int_t)receipt->reused_disk_tokens,
                     "remote", (json_int_t)receipt->reused_remote_tokens, "computed",
                     (json_int_t)receipt->computed_tokens, "read_bytes", (json_int_t)receipt->read_bytes, "restore_ms",
                     hearth_api_json_real(HEARTH_MS(receipt->restore_us)), "prefill_ms",
                     hearth_api_json_real(HEARTH_MS(receipt->prefill_us)));
}

static const struct hearth_dialect state_dialect = {.id_prefix = "state_", .whole = state_whole};

static bool state_parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                        struct hearth_api_error *error) {
    const bool ok = prefetch_parse(job, body, out, error);
    out->generation.locate_only = true;
    return ok;
}

bool hearth_api_sessions_state_prepare(struct hearth_job *job, const json_t *body) {
    static const struct hearth_api_phases phases = {
        .parse = state_parse, .resolve = prefetch_resolve, .render = prefetch_render, .dialect = &state_dialect};
    return run_phases(job, &phases, "session.state", body);
}
