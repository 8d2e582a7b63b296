/* A chat request: everything of it that template and parser see, and the format of its replies.
 *
 * An assistant's message at the end is continued, as in llama-server: the reply goes on where it ends. A request can
 * say so (continue_final_message) or forbid it (add_generation_prompt: true, then a new reply follows it). So does a
 * message that says nothing behind it. */
#include "api/kept.h"

#include "session/first_values.h"
#include "session/toolsets.h"
#include "session/transcript.h"

#include <stdlib.h>
#include <string.h>

/* The last message, when it is an assistant's. */
static const struct hearth_message *last_reply(const struct hearth_history *history) {
    const struct hearth_message *last = history->count > 0 ? history->messages[history->count - 1] : NULL;
    return last != NULL && last->role == HEARTH_ROLE_ASSISTANT ? last : NULL;
}

/* continue_final_message: true or false, or which part goes on: "content", "reasoning_content". */
static bool read_continuation(const json_t *value, bool *continues, struct hearth_api_error *error) {
    const char *word = json_string_value(value);
    if (!json_is_boolean(value) && word == NULL) {
        return hearth_api_fail(error, 400, "invalid_type", "continue_final_message",
                               "continue_final_message must be true or false");
    }
    if (word != NULL && strcmp(word, "content") != 0 && strcmp(word, "reasoning_content") != 0) {
        return hearth_api_fail(error, 400, "invalid_value", "continue_final_message",
                               "continue_final_message must be true, false, content or reasoning_content");
    }
    *continues = word != NULL || json_is_true(value);
    return true;
}

static bool check_continuation(const struct hearth_history *history, bool asked, struct hearth_api_error *error) {
    const struct hearth_message *last = last_reply(history);
    const char *param = asked ? "continue_final_message" : "messages";
    if (last == NULL) {
        return hearth_api_fail(error, 400, "invalid_value", param, "the last message is not an assistant's");
    }
    if (last->call_count > 0) {
        return hearth_api_fail(error, 400, "invalid_value", param,
                               "an assistant message with tool calls cannot be continued");
    }
    if (history->count > 1 && history->messages[history->count - 2]->role == HEARTH_ROLE_ASSISTANT) {
        return hearth_api_fail(error, 400, "invalid_value", param,
                               "only one assistant message may stand at the end to be continued");
    }
    return true;
}

static bool read_ending(struct hearth_job *job, const json_t *body) {
    const json_t *prompted = hearth_json_get(body, "add_generation_prompt");
    const json_t *continuation = hearth_json_get(body, "continue_final_message");
    struct hearth_chat_request *request = &job->chat.request;
    const struct hearth_message *last = last_reply(&job->history);
    bool asked = false;
    if (prompted != NULL && !json_is_boolean(prompted)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "add_generation_prompt",
                               "add_generation_prompt must be true or false");
    }
    if (continuation != NULL && !read_continuation(continuation, &asked, &job->error)) {
        return false;
    }
    if (asked && json_is_true(prompted)) {
        return hearth_api_fail(&job->error, 400, "invalid_value", "continue_final_message",
                               "add_generation_prompt and continue_final_message exclude each other");
    }
    request->continues = asked || (continuation == NULL && !json_is_true(prompted) && last != NULL &&
                                   last->call_count == 0 && !job->history.ends_empty);
    request->no_generation_prompt = !request->continues && json_is_false(prompted);
    return !request->continues || check_continuation(&job->history, asked, &job->error);
}

/* Puts in the place of each tool the one that is equal to it and was printed first: a client that orders the members
 * of its schemas otherwise after a restart has the same prompt. */
static void print_tools_as_before(struct hearth_job *job) {
    struct hearth_chat_options *options = &job->chat;
    for (size_t i = 0; i < json_array_size(options->tools); i++) {
        json_t *tool = json_array_get(options->tools, i);
        json_t *first = hearth_first_values_get(job->api->first_values, job->generation.salt, tool);
        for (size_t k = 0; k < json_array_size(options->offered); k++) {
            if (json_array_get(options->offered, k) == tool) {
                json_array_set(options->offered, k, first);
            }
        }
        json_array_set_new(options->tools, i, first);
    }
}

/* The format knows the tools that are offered, the prompt all of them: it must not change with the choice. */
static bool get_format(struct hearth_job *job) {
    struct hearth_chat_options *options = &job->chat;
    struct hearth_chat_request request = options->request;
    struct hearth_errmsg why = {{0}};
    if (options->offered != NULL) {
        request.tools = options->offered;
    }
    int rc = hearth_chat_format_get(job->api->chat, &request, &options->format, &why);
    if (rc == HEARTH_OK) {
        return true;
    }
    hearth_api_fail_err(&job->error, rc, &why);
    if (rc == HEARTH_ERR_INVALID) {
        job->error.code = options->grammar != NULL ? "invalid_grammar" : "unsupported_schema";
        snprintf(job->error.param, sizeof job->error.param, "%s",
                 options->grammar != NULL  ? "grammar"
                 : options->schema != NULL ? "response_format"
                                           : "tools");
    }
    return false;
}

bool hearth_chat_request_read(struct hearth_job *job, const json_t *body) {
    struct hearth_chat_options *options = &job->chat;
    if (!hearth_tools_read(job->api, body, options, &job->error) ||
        !hearth_response_format_read(body, options, &job->error) ||
        !hearth_reasoning_read(job->api, body, options, &job->error)) {
        return false;
    }
    return hearth_history_read(job, body, &job->error) && hearth_kept_attach_session(job, body) &&
           read_ending(job, body) && hearth_chat_request_ready(job);
}

bool hearth_chat_request_ready(struct hearth_job *job) {
    job->chat.request.messages = job->history.messages;
    job->chat.request.message_count = job->history.count;
    job->chat.request.salt = job->owner;
    job->chat.request.specials =
        job->api->allow_control_tokens ? NULL : hearth_transcripts_specials(job->api->transcripts);
    print_tools_as_before(job);
    return hearth_tools_recall(job) && (hearth_tools_settle(&job->chat) || hearth_api_fail_nomem(&job->error)) &&
           get_format(job);
}

bool hearth_chat_request_prompt(struct hearth_job *job) {
    struct hearth_api *api = job->api;
    if (!hearth_shape_chat(job) || !hearth_history_prompt(job, &job->chat.request, &job->error)) {
        return false;
    }
    if (api->script == NULL) {
        return true;
    }
    const int rc = hearth_script_reply(api->script, api->engine, &job->chat, &job->script, &job->scripted);
    return rc == HEARTH_OK || hearth_api_fail_err(&job->error, rc, NULL);
}

static void finish_options(struct hearth_chat_options *options) {
    hearth_chat_format_unref(options->format);
    hearth_toolset_unref(options->toolset);
    json_decref(options->known);
    json_decref(options->tools);
    json_decref(options->deferred);
    json_decref(options->loaded);
    json_decref(options->removed);
    json_decref(options->offered);
    json_decref(options->schema);
    json_decref(options->kwargs);
    free(options->grammar);
    free(options->reasoning_budget_message);
    *options = (struct hearth_chat_options){0};
}

void hearth_job_finish_chat(struct hearth_job *job) {
    for (size_t i = 0; i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        if (choice->stream != NULL) {
            hearth_chat_stream_destroy(choice->stream);
        }
        hearth_message_unref(choice->message);
        hearth_tokens_finish(&choice->sampled);
        choice->stream = NULL;
        choice->message = NULL;
    }
    hearth_shape_destroy(job->shape);
    job->shape = NULL;
    hearth_tokens_finish(&job->script);
    hearth_history_finish(&job->history);
    finish_options(&job->chat);
}
