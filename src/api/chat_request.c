/* Reads a chat request: everything that the template and the parser need, and the format of its replies.
 *
 * If the last message is the assistant's, the reply continues it, as in llama-server. A request can ask for that
 * (continue_final_message) or forbid it (add_generation_prompt: true; then a new reply follows). An empty message
 * behind the assistant's forbids it, too, and so does another one of the assistant's before it: a program that calls
 * the model in a loop leaves that, and wants the next message. */
#include "api/stored_turns.h"

#include "session/first_values.h"
#include "session/transcript.h"

#include <stdlib.h>
#include <string.h>

/* ---- parse ---- */

/* continue_final_message: true or false, or the part that goes on: "content", "reasoning_content". */
static bool read_continuation(const json_t *value, enum hearth_api_continues *continues,
                              struct hearth_api_error *error) {
    const char *word = json_string_value(value);
    if (value == NULL) {
        return true;
    }
    if (!json_is_boolean(value) && word == NULL) {
        return hearth_api_fail(error, 400, "invalid_type", "continue_final_message",
                               "continue_final_message must be true or false");
    }
    if (word != NULL && strcmp(word, "content") != 0 && strcmp(word, "reasoning_content") != 0) {
        return hearth_api_fail(error, 400, "invalid_value", "continue_final_message",
                               "continue_final_message must be true, false, content or reasoning_content");
    }
    *continues = word != NULL || json_is_true(value) ? HEARTH_CONTINUES_YES : HEARTH_CONTINUES_NO;
    return true;
}

static bool read_ending(const json_t *body, struct hearth_api_parsed *out, struct hearth_api_error *error) {
    const json_t *prompted;
    if (!hearth_field_get(body, "add_generation_prompt", HEARTH_FIELD_SWITCH, &prompted, error)) {
        return false;
    }
    if (prompted != NULL) {
        out->prompted = json_is_true(prompted) ? HEARTH_CONTINUES_YES : HEARTH_CONTINUES_NO;
    }
    if (!read_continuation(hearth_api_json_get(body, "continue_final_message"), &out->continues, error)) {
        return false;
    }
    return out->continues != HEARTH_CONTINUES_YES || out->prompted != HEARTH_CONTINUES_YES ||
           hearth_api_fail(error, 400, "invalid_value", "continue_final_message",
                           "add_generation_prompt and continue_final_message exclude each other");
}

bool hearth_api_session_parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                              struct hearth_api_error *error) {
    const json_t *given = hearth_api_json_get(body, "session_id");
    const char *name = json_string_value(given);
    out->session_param = given != NULL ? "session_id" : "x-session-id";
    out->has_tools = json_object_get(body, "tools") != NULL;
    if (given != NULL && (name == NULL || strlen(name) != json_string_length(given))) {
        return hearth_api_fail(error, 400, "invalid_type", "session_id", "session_id must be a string");
    }
    name = name != NULL ? name : job->session_header;
    out->session = name != NULL ? strdup(name) : NULL;
    return name == NULL || out->session != NULL;
}

bool hearth_api_chat_parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                           struct hearth_api_error *error) {
    return hearth_api_tools_read(job->api, body, &out->chat, error) &&
           hearth_response_format_read(body, &out->chat, error) &&
           hearth_api_reasoning_read(job->api, body, &out->chat, error) && hearth_history_read(job, body, out, error) &&
           hearth_api_session_parse(job, body, out, error) && read_ending(body, out, error);
}

/* ---- resolve ---- */

/* The message before the last one is the assistant's. */
static bool follows_another(const struct hearth_history *history) {
    return history->count > 1 && history->messages[history->count - 2]->role == HEARTH_ROLE_ASSISTANT;
}

static bool check_continuation(const struct hearth_history *history, const struct hearth_message *last,
                               struct hearth_api_error *error) {
    static const char param[] = "continue_final_message";
    if (last == NULL) {
        return hearth_api_fail(error, 400, "invalid_value", param, "the last message is not an assistant's");
    }
    if (last->call_count > 0) {
        return hearth_api_fail(error, 400, "invalid_value", param,
                               "an assistant message with tool calls cannot be continued");
    }
    if (follows_another(history)) {
        return hearth_api_fail(error, 400, "invalid_value", param,
                               "only one assistant message may stand at the end to be continued");
    }
    return true;
}

static bool resolve_ending(const struct hearth_api_parsed *parsed, struct hearth_api_resolved *out,
                           struct hearth_api_error *error) {
    const struct hearth_history *history = &out->history;
    const struct hearth_message *last = history->count > 0 ? history->messages[history->count - 1] : NULL;
    const bool asked = parsed->continues == HEARTH_CONTINUES_YES;
    last = last != NULL && last->role == HEARTH_ROLE_ASSISTANT ? last : NULL;
    out->request.continues =
        asked || (parsed->continues == HEARTH_CONTINUES_UNSAID && parsed->prompted != HEARTH_CONTINUES_YES &&
                  last != NULL && last->call_count == 0 && !history->ends_empty && !follows_another(history));
    out->request.no_generation_prompt = !out->request.continues && parsed->prompted == HEARTH_CONTINUES_NO;
    return !asked || check_continuation(history, last, error);
}

/* Replaces each tool by the equal one that was printed first, so that a client that orders the members of its schemas
 * differently after a restart has the same prompt. */
static void print_tools_as_before(const struct hearth_job *job, struct hearth_api_resolved *out) {
    for (size_t i = 0; i < json_array_size(out->tools); i++) {
        json_t *tool = json_array_get(out->tools, i);
        json_t *first = hearth_first_values_get(job->api->first_values, out->salt, tool);
        for (size_t k = 0; k < json_array_size(out->offered); k++) {
            if (json_array_get(out->offered, k) == tool) {
                json_array_set(out->offered, k, first);
            }
        }
        json_array_set_new(out->tools, i, first);
    }
}

/* The format of the replies knows only the tools that are offered. The prompt describes all tools, because it must not
 * change with the choice. */
static bool get_format(const struct hearth_job *job, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    const struct hearth_api_chat_options *sent = &job->parsed->chat;
    struct hearth_chat_request request = out->request;
    struct hearth_errmsg reason = {{0}};
    if (out->offered != NULL) {
        request.tools = out->offered;
    }
    int rc = hearth_chat_format_get(job->api->chat, &request, &out->format, &reason);
    if (rc == HEARTH_OK) {
        return true;
    }
    hearth_api_fail_err(error, rc, &reason);
    if (rc == HEARTH_ERR_INVALID) {
        error->code = sent->grammar != NULL ? "invalid_grammar" : "unsupported_schema";
        snprintf(error->param, sizeof error->param, "%s",
                 sent->grammar != NULL  ? "grammar"
                 : sent->schema != NULL ? "response_format"
                                        : "tools");
    }
    return false;
}

bool hearth_api_chat_take(const struct hearth_api_chat_options *sent, struct hearth_api_resolved *out) {
    out->request = sent->request;
    out->kwargs = json_incref(sent->kwargs);
    out->tools = json_copy(sent->tools);
    out->offered = json_copy(sent->offered);
    out->request.tools = out->tools;
    return (out->tools != NULL) == (sent->tools != NULL) && (out->offered != NULL) == (sent->offered != NULL);
}

bool hearth_api_chat_end(const struct hearth_job *job, struct hearth_api_resolved *out,
                         struct hearth_api_error *error) {
    out->request.messages = out->history.messages;
    out->request.message_count = out->history.count;
    out->request.salt = job->owner;
    out->request.specials =
        job->api->params.allow_control_tokens ? NULL : hearth_transcripts_specials(job->api->transcripts);
    print_tools_as_before(job, out);
    return hearth_api_tools_recall(job, out, error) && hearth_api_tools_fill_offered(&job->parsed->chat, out) &&
           get_format(job, out, error);
}

bool hearth_api_chat_resolve(const struct hearth_job *job, struct hearth_api_resolved *out,
                             struct hearth_api_error *error) {
    return hearth_api_chat_take(&job->parsed->chat, out) && hearth_api_stored_attach_session(job, out, error) &&
           resolve_ending(job->parsed, out, error) && hearth_api_chat_end(job, out, error);
}

/* ---- render ---- */

bool hearth_api_chat_render(const struct hearth_job *job, struct hearth_api_rendered *out,
                            struct hearth_api_error *error) {
    return hearth_api_prompts_alloc(1, out) && hearth_api_constraint_of_chat(job, out, error) &&
           hearth_history_prompt(job, out, error) && hearth_script_render(job, out, error);
}
