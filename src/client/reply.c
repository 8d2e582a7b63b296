/* A reply of POST /v1/chat/completions with "stream": true.
 *
 * Bytes become lines, lines become events, events become text. An event is the "data:" lines up to an empty line;
 * everything else of the format means nothing here. Its last data is [DONE]. Text is passed on as soon as its event is
 * complete, so never in the middle of a character. The receipt and the timings stand in the last chunks: later ones
 * take the place of earlier ones.
 * Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation */
#include "client/client.h"

#include "base/clock.h"
#include "console/show.h"

#include <inttypes.h>
#include <string.h>

#define LINE_BYTES_MAX ((size_t)64 << 20)

void hearth_client_reply_finish(struct client_reply *reply) {
    hearth_buf_finish(&reply->line);
    hearth_buf_finish(&reply->data);
    hearth_buf_finish(&reply->content);
    hearth_buf_finish(&reply->reasoning);
    hearth_buf_finish(&reply->error);
    json_decref(reply->receipt);
    json_decref(reply->timings);
    *reply = (struct client_reply){0};
}

static bool take_text(struct client_reply *reply, enum client_text kind, const json_t *value) {
    const char *text = json_string_value(value);
    if (!text || *text == '\0') {
        return true;
    }
    if (reply->first_us == 0) {
        reply->first_us = hearth_clock_us();
    }
    if (reply->on_text) {
        reply->on_text(reply->user, kind, text);
    }
    return hearth_buf_text(kind == CLIENT_CONTENT ? &reply->content : &reply->reasoning, text);
}

static void take_object(json_t **slot, json_t *value) {
    if (json_is_object(value)) {
        json_decref(*slot);
        *slot = json_incref(value);
    }
}

static bool take_error(struct client_reply *reply, const json_t *error) {
    const char *text = json_string_value(json_object_get(error, "message"));
    text = text ? text : json_string_value(error);
    return reply->error.len > 0 || hearth_buf_text(&reply->error, text ? text : "the server reports an error");
}

/* The data of one event. Data that is no JSON object is passed over. */
static bool take_event(struct client_reply *reply) {
    const struct hearth_buf *data = &reply->data;
    if (data->len == 6 && memcmp(data->data, "[DONE]", 6) == 0) {
        reply->done = true;
        return true;
    }
    json_t *chunk = json_loadb((const char *)data->data, data->len, JSON_ALLOW_NUL, NULL);
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta"), *error = json_object_get(chunk, "error");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    bool ok = take_text(reply, CLIENT_REASONING, json_object_get(delta, "reasoning_content")) &&
              take_text(reply, CLIENT_CONTENT, json_object_get(delta, "content"));
    if (finish) {
        (void)snprintf(reply->finish, sizeof reply->finish, "%s", finish);
    }
    if (error && !json_is_null(error)) {
        ok = take_error(reply, error) && ok;
    }
    take_object(&reply->receipt, json_object_get(chunk, "hearth"));
    take_object(&reply->timings, json_object_get(chunk, "timings"));
    json_decref(chunk);
    return ok;
}

/* A line without its end. */
static bool take_line(struct client_reply *reply) {
    struct hearth_buf *line = &reply->line;
    bool ok = true;
    if (line->len > 0 && line->data[line->len - 1] == '\r') {
        line->len--;
    }
    if (line->len == 0) {
        ok = reply->data.len == 0 || take_event(reply);
        reply->data.len = 0;
    } else if (line->len >= 5 && memcmp(line->data, "data:", 5) == 0) {
        const size_t skip = line->len > 5 && line->data[5] == ' ' ? 6 : 5;
        ok = (reply->data.len == 0 || hearth_buf_append(&reply->data, "\n", 1)) &&
             hearth_buf_append(&reply->data, line->data + skip, line->len - skip) && reply->data.len <= LINE_BYTES_MAX;
    }
    line->len = 0;
    return ok;
}

bool hearth_client_reply_feed(struct client_reply *reply, const char *bytes, size_t len) {
    while (len > 0) {
        const char *end = memchr(bytes, '\n', len);
        const size_t n = end ? (size_t)(end - bytes) : len;
        if (!hearth_buf_append(&reply->line, bytes, n) || reply->line.len > LINE_BYTES_MAX ||
            (end && !take_line(reply))) {
            return false;
        }
        bytes += end ? n + 1 : n;
        len -= end ? n + 1 : n;
    }
    return true;
}

static bool number(const json_t *object, const char *name, double *out) {
    const json_t *value = json_object_get(object, name);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out < 1e15;
}

bool hearth_client_reply_status(const struct client_reply *reply, int64_t begun_us, const char *session,
                                struct hearth_buf *out) {
    const json_t *reused = json_object_get(reply->receipt, "reused");
    double live, ram, disk, remote, computed, n, per_second;
    bool ok = true;
    const size_t empty = out->len;
    if (number(reused, "live", &live) && number(reused, "ram", &ram) && number(reused, "disk", &disk)) {
        const double shared = number(reused, "remote", &remote) ? remote : 0; /* of a server that knows it */
        ok = hearth_buf_printf(out, "reused %s", hearth_show_count((uint64_t)(live + ram + disk + shared)).text);
    }
    if (ok && number(reply->receipt, "computed", &computed)) {
        ok = hearth_buf_printf(out, "%scomputed %s", out->len > empty ? " · " : "",
                               hearth_show_count((uint64_t)computed).text);
    }
    if (ok && number(reply->timings, "predicted_n", &n)) {
        ok = hearth_buf_printf(out, "%s%s", out->len > empty ? " · " : "",
                               hearth_show_number((uint64_t)n, "token", "tokens").text);
        if (ok && n > 1 && number(reply->timings, "predicted_per_second", &per_second) && per_second > 0) {
            ok = hearth_buf_printf(out, " at %.*f/s", per_second < 100 ? 1 : 0, per_second);
        }
    }
    if (ok && reply->first_us > 0) {
        ok = hearth_buf_printf(out, "%sfirst token %.2f s", out->len > empty ? " · " : "",
                               (double)(reply->first_us - begun_us) / 1e6);
    }
    if (ok && strcmp(reply->finish, "length") == 0) {
        ok = hearth_buf_printf(out, "%scut off", out->len > empty ? " · " : "");
    }
    return ok && (!session || hearth_buf_printf(out, "%ssession %s", out->len > empty ? " · " : "", session));
}

bool hearth_client_error_text(const char *body, size_t len, long http_status, struct hearth_buf *out) {
    json_t *root = json_loadb(body, len, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *text = json_string_value(json_object_get(error, "message"));
    text = text ? text : json_string_value(error);
    const bool ok =
        text ? hearth_buf_text(out, text) : hearth_buf_printf(out, "the server answers with status %ld", http_status);
    json_decref(root);
    return ok;
}
