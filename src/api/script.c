/* Replies written beforehand, for tests and demonstrations: they stand for what a model would have sampled, on any
 * engine.
 *
 * A file of JSON lines; empty lines are skipped. Each line is one reply:
 *
 *     {"when": {"last": "text", "system": "text", "tools": true}, "reply": "text", "times": 1, "bytes": false}
 *
 * `when` holds conditions on a chat request; all of those that it names must hold. `last`: one of the messages since
 * the last reply contains the text (clients put reminders behind what the user said). `system`: one of the system
 * messages contains it. `tools`: the request has tools, or has none. The first line that fits and is not used up gives
 * the reply; if no line fits, the model answers. `times` is how often a line may be used (0: without limit). The reply
 * is the raw text, tags included. It is tokenised like a prompt, control tokens included; with `bytes` each character
 * is a token of its own, which no tokenizer would do.
 *
 * Invariants. Lines are never changed, except for `used`, under the mutex. */
#include "api/job.h"

#include "base/infile.h"

#include <stdlib.h>
#include <string.h>

struct line {
    json_t *value;             /* owns the texts */
    const char *last, *system; /* NULL: any */
    int tools;                 /* 0 or 1; -1: either */
    const char *reply;
    size_t reply_len;
    int64_t times, used;
    bool bytes;
};

struct hearth_script {
    pthread_mutex_t mutex;
    struct line *lines;
    size_t count;
};

static int fail_line(struct hearth_errmsg *msg, size_t number, const char *what) {
    return hearth_fail(msg, HEARTH_ERR_INVALID, "line %zu: %s", number, what);
}

static int read_line(json_t *value, size_t number, struct line *line, struct hearth_errmsg *msg) {
    const json_t *when = hearth_api_json_get(value, "when");
    const json_t *last = hearth_api_json_get(when, "last");
    const json_t *system = hearth_api_json_get(when, "system");
    const json_t *tools = hearth_api_json_get(when, "tools");
    const json_t *reply = hearth_api_json_get(value, "reply");
    const json_t *times = hearth_api_json_get(value, "times");
    const json_t *bytes = hearth_api_json_get(value, "bytes");
    *line = (struct line){.value = value, .times = 1, .tools = -1};
    if (!json_is_object(value) || (when != NULL && !json_is_object(when))) {
        return fail_line(msg, number, "an object is needed, and \"when\" must be one too");
    }
    if ((last != NULL && !json_is_string(last)) || (system != NULL && !json_is_string(system)) ||
        (tools != NULL && !json_is_boolean(tools))) {
        return fail_line(msg, number, "\"last\" and \"system\" must be strings, \"tools\" true or false");
    }
    if (json_string_length(reply) == 0) {
        return fail_line(msg, number, "\"reply\" must be a string that is not empty");
    }
    if ((times != NULL && (!hearth_api_json_integer(times, &line->times) || line->times < 0)) ||
        (bytes != NULL && !json_is_boolean(bytes))) {
        return fail_line(msg, number, "\"times\" must be an integer from 0, \"bytes\" true or false");
    }
    line->last = json_string_value(last);
    line->system = json_string_value(system);
    line->tools = tools == NULL ? -1 : json_is_true(tools);
    line->reply = json_string_value(reply);
    line->reply_len = json_string_length(reply);
    line->bytes = json_is_true(bytes);
    return HEARTH_OK;
}

static int add_line(struct hearth_script *script, const char *text, size_t number, struct hearth_errmsg *msg) {
    json_error_t at;
    if (text[strspn(text, " \t\r\n")] == '\0') {
        return HEARTH_OK;
    }
    struct line *grown = realloc(script->lines, (script->count + 1) * sizeof *grown);
    if (grown == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    script->lines = grown;
    json_t *value = json_loads(text, 0, &at);
    if (value == NULL) {
        return fail_line(msg, number, at.text);
    }
    int rc = read_line(value, number, &grown[script->count], msg);
    if (rc != HEARTH_OK) {
        json_decref(value);
        return rc;
    }
    script->count++;
    return HEARTH_OK;
}

int hearth_script_load(const char *path, struct hearth_script **out, struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_buf text = {0};
    struct hearth_errmsg reason = {{0}};
    int rc = hearth_infile_read(path, &text, msg);
    struct hearth_script *script = rc == HEARTH_OK ? calloc(1, sizeof *script) : NULL;
    if (rc == HEARTH_OK && script == NULL) {
        rc = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    if (rc != HEARTH_OK) {
        hearth_buf_finish(&text);
        return rc;
    }
    pthread_mutex_init(&script->mutex, NULL);
    char *rest = (char *)text.data, *line;
    unsigned number = 0;
    while (rc == HEARTH_OK && (line = hearth_infile_line(&rest, &number)) != NULL) {
        rc = add_line(script, line, number, &reason);
    }
    hearth_buf_finish(&text);
    if (rc != HEARTH_OK) {
        hearth_script_destroy(script);
        return hearth_fail(msg, rc, "%s: %s", path, reason.text);
    }
    *out = script;
    return HEARTH_OK;
}

void hearth_script_destroy(struct hearth_script *script) {
    if (script == NULL) {
        return;
    }
    for (size_t i = 0; i < script->count; i++) {
        json_decref(script->lines[i].value);
    }
    pthread_mutex_destroy(&script->mutex);
    free(script->lines);
    free(script);
}

static bool system_contains(const struct hearth_chat_request *request, const char *text) {
    for (size_t i = 0; i < request->message_count; i++) {
        const struct hearth_message *message = request->messages[i];
        if (hearth_role_is_system(message->role) && strstr(message->content, text) != NULL) {
            return true;
        }
    }
    return false;
}

/* Whether one of the messages since the last reply contains `text`; the last message counts in any case. */
static bool new_contains(const struct hearth_chat_request *request, const char *text) {
    for (size_t i = request->message_count; i-- > 0;) {
        const struct hearth_message *message = request->messages[i];
        if (message->role == HEARTH_ROLE_ASSISTANT && i + 1 < request->message_count) {
            break;
        }
        if (strstr(message->content, text) != NULL) {
            return true;
        }
    }
    return false;
}

static bool is_for(const struct line *line, const struct hearth_job *job) {
    const struct hearth_chat_request *request = &job->resolved->request;
    const bool tools = job->resolved->tools != NULL || job->parsed->chat.deferred != NULL; /* what it was sent with */
    return (line->tools < 0 || line->tools == tools) && (line->last == NULL || new_contains(request, line->last)) &&
           (line->system == NULL || system_contains(request, line->system));
}

/* The line that answers a request, counted as used; or NULL. */
static const struct line *take_line(struct hearth_script *script, const struct hearth_job *job) {
    struct line *found = NULL;
    pthread_mutex_lock(&script->mutex);
    for (size_t i = 0; i < script->count && found == NULL; i++) {
        struct line *line = &script->lines[i];
        if ((line->times == 0 || line->used < line->times) && is_for(line, job)) {
            line->used++;
            found = line;
        }
    }
    pthread_mutex_unlock(&script->mutex);
    return found;
}

/* Bytes of the character that `text` begins with. */
static size_t char_len(const char *text, size_t len) {
    size_t n = 1;
    while (n < len && ((unsigned char)text[n] & 0xC0) == 0x80) {
        n++;
    }
    return n;
}

bool hearth_script_render(const struct hearth_job *job, struct hearth_api_rendered *out,
                          struct hearth_api_error *error) {
    struct hearth_engine *engine = job->api->engine;
    const struct line *line = job->api->script != NULL ? take_line(job->api->script, job) : NULL;
    int rc = 0;
    out->scripted = line != NULL;
    if (line != NULL && !line->bytes) {
        rc = engine->ops->tokenize(engine, line->reply, line->reply_len, false, true, &out->script);
    }
    for (size_t at = 0, n; line != NULL && line->bytes && at < line->reply_len && rc >= 0; at += n) {
        n = char_len(line->reply + at, line->reply_len - at);
        rc = engine->ops->tokenize(engine, line->reply + at, n, false, false, &out->script);
    }
    return rc >= 0 || hearth_api_fail_err(error, rc, NULL);
}
