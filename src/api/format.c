/* What a reply must look like (response_format, json_schema, grammar) and how it may think (reasoning_format,
 * reasoning_effort, thinking, its budget, chat_template_kwargs).
 *
 * The same thing has several names, from OpenAI's API, llama-server and other servers' clients. Where a request uses
 * more than one for thinking, the later row of this list wins: enable_thinking among the template's arguments,
 * enable_thinking, reasoning, thinking, reasoning_effort.
 * Source: https://platform.openai.com/docs/api-reference/chat/create, llama-server's README. */
#include "api/job.h"
#include "api/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- structured output ---- */

/* Takes over a schema. A schema without any keyword stands for any object, as in llama-server. `loose`: what cannot be
 * kept is left out instead of refused. */
static bool set_schema(const json_t *schema, bool loose, const char *param, struct hearth_api_chat_options *options,
                       struct hearth_api_error *error) {
    struct hearth_errmsg reason;
    if (!json_is_object(schema)) {
        return hearth_api_fail(error, 400, hearth_fields_code(schema), param, "%s must be a JSON schema, an object",
                               param);
    }
    if (options->schema != NULL) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s: there are two schemas in this request", param);
    }
    int rc = hearth_chat_schema_check(schema, &reason) ? HEARTH_OK : HEARTH_ERR_INVALID;
    if (rc != HEARTH_OK && loose) {
        rc = hearth_chat_schema_loosen(schema, &options->schema, &reason);
        options->request.json_schema = options->schema;
        if (rc == HEARTH_OK) {
            return true;
        }
    }
    if (rc != HEARTH_OK) {
        return rc == HEARTH_ERR_INVALID
                   ? hearth_api_fail(error, 400, "unsupported_schema", param, "%s: %s", param, reason.text)
                   : hearth_api_fail_err(error, rc, &reason);
    }
    options->schema = json_object_size(schema) == 0 ? json_pack("{s:s}", "type", "object") : json_deep_copy(schema);
    options->request.json_schema = options->schema;
    return options->schema != NULL;
}

/* Any object. */
static bool set_any_object(const char *param, struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    json_t *any = json_object();
    const bool ok = any != NULL && set_schema(any, false, param, options, error);
    json_decref(any);
    return ok;
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"?}}; llama-server's page also has the schema beside
 * the type. Frameworks make schemas of their users' classes: without `strict` none is refused, as by OpenAI. */
static bool read_json_schema(const json_t *format, struct hearth_api_chat_options *options,
                             struct hearth_api_error *error) {
    static const char param[] = "response_format.json_schema";
    const json_t *inner = hearth_api_json_get(format, "json_schema");
    if (inner == NULL && hearth_api_json_get(format, "schema") != NULL) {
        inner = format;
    }
    const json_t *name = hearth_api_json_get(inner, "name");
    const json_t *strict = hearth_api_json_get(inner, "strict");
    if (!json_is_object(inner)) {
        return hearth_api_fail(error, 400, hearth_fields_code(inner), param, "%s must be an object with a schema",
                               param);
    }
    if ((name != NULL && !json_is_string(name)) || (strict != NULL && !json_is_boolean(strict))) {
        return hearth_api_fail(error, 400, "invalid_type", param,
                               "%s: the name must be a string, and strict true or false", param);
    }
    return set_schema(hearth_api_json_get(inner, "schema"), !json_is_true(strict),
                      inner == format ? "response_format.schema" : "response_format.json_schema.schema", options,
                      error);
}

static bool read_format(const json_t *format, struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    const json_t *type = hearth_api_json_get(format, "type");
    const char *word = json_string_value(type);
    if (word == NULL) {
        return hearth_api_fail(error, 400, hearth_fields_code(type), "response_format.type",
                               "response_format.type must be a string");
    }
    if (strcmp(word, "text") == 0) {
        return true;
    }
    if (strcmp(word, "json_schema") == 0) {
        return read_json_schema(format, options, error);
    }
    if (strcmp(word, "json_object") != 0) {
        return hearth_api_fail(error, 400, "invalid_value", "response_format.type",
                               "response_format.type must be text, json_object or json_schema");
    }
    const json_t *schema = hearth_api_json_get(format, "schema");
    if (schema != NULL) {
        return set_schema(schema, false, "response_format.schema", options, error);
    }
    return set_any_object("response_format", options, error);
}

static bool read_grammar(const json_t *grammar, struct hearth_api_chat_options *options,
                         struct hearth_api_error *error) {
    const char *text = json_string_value(grammar);
    if (strlen(text) != json_string_length(grammar)) {
        return hearth_api_fail(error, 400, "invalid_value", "grammar", "the grammar holds a NUL character");
    }
    if (*text == '\0') {
        return true;
    }
    if (options->schema != NULL) {
        return hearth_api_fail(error, 400, "invalid_value", "grammar", "a grammar and a schema exclude each other");
    }
    if (options->tools != NULL && options->request.tool_choice != HEARTH_TOOLS_NONE) {
        return hearth_api_fail(error, 400, "invalid_value", "grammar", "a grammar and tools exclude each other");
    }
    options->grammar = strdup(text);
    options->request.grammar = options->grammar;
    return options->grammar != NULL;
}

/* ---- vLLM's names ---- */

/* The grammar of a list of texts, one of which is the reply. */
static bool set_choice(const json_t *texts, const char *param, struct hearth_api_chat_options *options,
                       struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    const json_t *each;
    size_t i;
    bool ok = hearth_buf_text(&text, "root ::= "), strings = json_array_size(texts) > 0;
    json_array_foreach(texts, i, each) {
        strings = strings && json_is_string(each) && strlen(json_string_value(each)) == json_string_length(each);
        ok = ok && hearth_buf_text(&text, i > 0 ? " | \"" : "\"");
        for (const char *at = strings ? json_string_value(each) : ""; *at != '\0' && ok; at++) {
            ok = *at == '\n'                 ? hearth_buf_text(&text, "\\n")
                 : *at == '\r'               ? hearth_buf_text(&text, "\\r")
                 : *at == '"' || *at == '\\' ? hearth_buf_append(&text, "\\", 1) && hearth_buf_append(&text, at, 1)
                                             : hearth_buf_append(&text, at, 1);
        }
        ok = ok && hearth_buf_text(&text, "\"");
    }
    if (!strings) {
        ok = hearth_api_fail(error, 400, "invalid_type", param, "%s must be a list of texts", param);
    } else if (ok) {
        json_t *grammar = json_string((const char *)text.data);
        ok = grammar != NULL && read_grammar(grammar, options, error);
        json_decref(grammar);
    }
    hearth_buf_finish(&text);
    return ok;
}

/* One of vLLM's constraints. */
static bool read_constraint(const char *name, const json_t *value, const char *param,
                            struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    if (strcmp(name, "json_object") == 0 && json_is_false(value)) {
        return true;
    }
    if (options->grammar != NULL) {
        return hearth_api_fail(error, 400, "invalid_value", param, "%s: a reply has one grammar", param);
    }
    if (strcmp(name, "json") == 0) {
        const char *text = json_string_value(value);
        const size_t len = json_string_length(value);
        if (text != NULL && !hearth_limits_check(text, len, NULL, error)) {
            return false;
        }
        json_t *parsed = text != NULL ? hearth_json_parse(text, len, 0, NULL) : NULL;
        const bool ok = set_schema(parsed != NULL ? parsed : value, false, param, options, error);
        json_decref(parsed);
        return ok;
    }
    if (strcmp(name, "json_object") == 0 && json_is_true(value)) {
        return set_any_object(param, options, error);
    }
    if (strcmp(name, "choice") == 0) {
        return set_choice(value, param, options, error);
    }
    if (strcmp(name, "grammar") == 0 && json_is_string(value)) {
        return read_grammar(value, options, error);
    }
    return hearth_api_fail(error, 400, "unsupported_parameter", param,
                           "%s is not supported; a schema (json), a choice and a grammar (GBNF) are", param);
}

/* structured_outputs, and its members' names before it. None is ignored: the client's parser relies on it. */
static bool read_structured(const json_t *body, struct hearth_api_chat_options *options,
                            struct hearth_api_error *error) {
    static const char *const names[] = {"json", "json_object", "choice", "grammar", "regex", "structural_tag"};
    const json_t *outputs;
    if (!hearth_field_get(body, "structured_outputs", HEARTH_FIELD_OBJECT, &outputs, error)) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char param[48];
        const json_t *value = hearth_api_json_get(outputs, names[i]);
        snprintf(param, sizeof param, "%s%s", value != NULL ? "structured_outputs." : "guided_", names[i]);
        value = value != NULL ? value : hearth_api_json_get(body, param);
        if (value != NULL && !read_constraint(names[i], value, param, options, error)) {
            return false;
        }
    }
    return true;
}

bool hearth_response_format_read(const json_t *body, struct hearth_api_chat_options *options,
                                 struct hearth_api_error *error) {
    const json_t *format, *grammar, *schema = hearth_api_json_get(body, "json_schema");
    return hearth_field_get(body, "response_format", HEARTH_FIELD_OBJECT, &format, error) &&
           (format == NULL || read_format(format, options, error)) &&
           (schema == NULL || set_schema(schema, false, "json_schema", options, error)) &&
           hearth_field_get(body, "grammar", HEARTH_FIELD_TEXT, &grammar, error) &&
           (grammar == NULL || read_grammar(grammar, options, error)) && read_structured(body, options, error);
}

/* ---- reasoning ---- */

/* Merges the server's template arguments with the request's, which win. enable_thinking is taken out: it is a switch of
 * the request under one of its names. */
static bool read_kwargs(const struct hearth_api *api, const json_t *body, struct hearth_api_chat_options *options,
                        struct hearth_api_error *error) {
    const json_t *own;
    if (!hearth_field_get(body, "chat_template_kwargs", HEARTH_FIELD_OBJECT, &own, error)) {
        return false;
    }
    options->kwargs = api->template_kwargs != NULL ? json_deep_copy(api->template_kwargs) : json_object();
    if (options->kwargs == NULL || (own != NULL && json_object_update(options->kwargs, (json_t *)(uintptr_t)own) < 0)) {
        return false;
    }
    const json_t *thinking = hearth_api_json_get(options->kwargs, "enable_thinking");
    if (thinking != NULL && !json_is_boolean(thinking)) {
        return hearth_api_fail(error, 400, "invalid_type", "chat_template_kwargs.enable_thinking",
                               "enable_thinking must be true or false");
    }
    options->request.thinking = !json_is_false(thinking);
    json_object_del(options->kwargs, "enable_thinking");
    return true;
}

static bool read_effort(const json_t *effort, const char *param, struct hearth_api_chat_options *options,
                        struct hearth_api_error *error) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"};
    const char *word = json_string_value(effort);
    if (effort == NULL) {
        return true;
    }
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) != 0) {
            continue;
        }
        if (i == 0) {
            options->request.thinking = false;
            json_object_del(options->kwargs, "reasoning_effort");
            return true;
        }
        return json_object_set_new(options->kwargs, "reasoning_effort", json_string(word)) == 0;
    }
    return hearth_api_fail(error, 400, word == NULL ? "invalid_type" : "invalid_value", param,
                           "%s must be none, minimal, low, medium, high, xhigh, max or ultra", param);
}

/* {"effort", "max_tokens", "enabled"}, as routers between servers write it. */
static bool read_reasoning(const json_t *reasoning, struct hearth_api_chat_options *options,
                           struct hearth_api_error *error) {
    const json_t *enabled = hearth_api_json_get(reasoning, "enabled");
    if (reasoning == NULL) {
        return true;
    }
    if (!json_is_object(reasoning) || (enabled != NULL && !json_is_boolean(enabled))) {
        return hearth_api_fail(error, 400, "invalid_type", "reasoning",
                               "reasoning must be an object with effort, max_tokens or enabled");
    }
    if (enabled != NULL) {
        options->request.thinking = json_is_true(enabled);
    }
    return read_effort(hearth_api_json_get(reasoning, "effort"), "reasoning.effort", options, error) &&
           hearth_field_tokens(hearth_api_json_get(reasoning, "max_tokens"), "reasoning.max_tokens",
                               &options->reasoning_budget, error);
}

/* {"type": "enabled" or "disabled", "budget_tokens"}, or true or false. */
static bool read_thinking(const json_t *thinking, struct hearth_api_chat_options *options,
                          struct hearth_api_error *error) {
    if (json_is_boolean(thinking)) {
        options->request.thinking = json_is_true(thinking);
        return true;
    }
    if (thinking != NULL && !json_is_object(thinking)) {
        return hearth_api_fail(error, 400, "invalid_type", "thinking", "thinking must be an object with a type");
    }
    const json_t *type = hearth_api_json_get(thinking, "type");
    const char *word = json_string_value(type);
    if (type != NULL && (word == NULL || (strcmp(word, "enabled") != 0 && strcmp(word, "disabled") != 0 &&
                                          strcmp(word, "adaptive") != 0))) {
        return hearth_api_fail(error, 400, word == NULL ? "invalid_type" : "invalid_value", "thinking.type",
                               "thinking.type must be enabled, disabled or adaptive");
    }
    if (word != NULL) {
        options->request.thinking = strcmp(word, "disabled") != 0;
    }
    return hearth_field_tokens(hearth_api_json_get(thinking, "budget_tokens"), "thinking.budget_tokens",
                               &options->reasoning_budget, error);
}

static bool read_reasoning_format(const json_t *format, struct hearth_api_chat_options *options,
                                  struct hearth_api_error *error) {
    static const char *const texts[] = {
#define X(name, text) text,
        HEARTH_REASONING_FORMAT_TABLE(X)
#undef X
    };
    const char *word = json_string_value(format);
    if (format == NULL) {
        return true;
    }
    for (size_t i = 0; word != NULL && i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(word, texts[i]) == 0) {
            options->request.reasoning_format = (enum hearth_chat_reasoning_format)i;
            return true;
        }
    }
    return hearth_api_fail(error, 400, word == NULL ? "invalid_type" : "invalid_value", "reasoning_format",
                           "reasoning_format must be auto, none, deepseek or deepseek-legacy");
}

static bool read_budget_message(const json_t *message, struct hearth_api_chat_options *options,
                                struct hearth_api_error *error) {
    const char *text = json_string_value(message);
    if (message == NULL) {
        return true;
    }
    if (text == NULL || strlen(text) != json_string_length(message)) {
        return hearth_api_fail(error, 400, "invalid_type", "reasoning_budget_message",
                               "reasoning_budget_message must be a string");
    }
    free(options->reasoning_budget_message);
    options->reasoning_budget_message = strdup(text);
    return options->reasoning_budget_message != NULL;
}

/* Drops arguments that the template does not read, so that changing them does not make it another conversation. */
static void drop_unread(const struct hearth_api *api, json_t *kwargs) {
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(kwargs, next, name, value) {
        if (!hearth_chat_reads(api->chat, name)) {
            json_object_del(kwargs, name);
        }
    }
}

bool hearth_api_reasoning_read(const struct hearth_api *api, const json_t *body,
                               struct hearth_api_chat_options *options, struct hearth_api_error *error) {
    static const char *const budgets[] = {"reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"};
    options->request.reasoning_format = api->params.reasoning_format;
    options->reasoning_budget = api->params.reasoning_budget;
    if ((api->reasoning_budget_message != NULL &&
         (options->reasoning_budget_message = strdup(api->reasoning_budget_message)) == NULL) ||
        !read_kwargs(api, body, options, error) ||
        !hearth_field_bool(body, "enable_thinking", &options->request.thinking, error) ||
        !read_reasoning(hearth_api_json_get(body, "reasoning"), options, error) ||
        !read_thinking(hearth_api_json_get(body, "thinking"), options, error) ||
        !read_effort(hearth_api_json_get(body, "reasoning_effort"), "reasoning_effort", options, error) ||
        !read_reasoning_format(hearth_api_json_get(body, "reasoning_format"), options, error) ||
        !read_budget_message(hearth_api_json_get(body, "reasoning_budget_message"), options, error)) {
        return false;
    }
    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
        if (!hearth_field_tokens(hearth_api_json_get(body, budgets[i]), budgets[i], &options->reasoning_budget,
                                 error)) {
            return false;
        }
    }
    drop_unread(api, options->kwargs);
    options->request.kwargs = json_object_size(options->kwargs) > 0 ? options->kwargs : NULL;
    return true;
}
