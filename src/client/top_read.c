/* Asks the server what it is doing: /props once per sample (which also tells whether the key is good), /slots, /queue,
 * /metrics, /health, /requests and /requests/clients. What it does not have, or was told not to show, is missing from
 * the sample. */
#include "client/top.h"

#include "base/clock.h"
#include "console/show.h"

#include <stdlib.h>
#include <string.h>

void hearth_client_top_finish(struct top_sample *sample) {
    json_decref(sample->props);
    json_decref(sample->health);
    json_decref(sample->slots);
    json_decref(sample->queue);
    json_decref(sample->metrics);
    json_decref(sample->requests);
    json_decref(sample->clients);
    *sample = (struct top_sample){0};
}

/* The lines "name value" of the Prometheus text format, without those that have labels. NULL: out of memory. */
static json_t *parse_metrics(char *text) {
    json_t *metrics = json_object();
    char *rest = text;
    for (char *line; metrics && (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char *space = strchr(line, ' '), *end = NULL;
        if (line[0] == '#' || !space || memchr(line, '{', (size_t)(space - line))) {
            continue;
        }
        *space = '\0';
        const double value = strtod(space + 1, &end);
        json_t *number = end != space + 1 ? json_real(value) : NULL; /* NULL also for what is not finite */
        if (number) {
            (void)json_object_set_new(metrics, line, number);
        }
    }
    return metrics;
}

/* An answer that has come is a JSON document, of which `wanted` is the type, or text. NULL: it is neither. */
static json_t *parse(const char *path, struct hearth_buf *answer, json_type wanted) {
    if (strcmp(path, "/metrics") == 0) {
        return hearth_buf_text(answer, "") ? parse_metrics((char *)answer->data) : NULL;
    }
    json_t *json = json_loadb((const char *)answer->data, answer->len, JSON_ALLOW_NUL, NULL);
    if (json && json_typeof(json) != wanted) {
        json_decref(json);
        json = NULL;
    }
    return json;
}

/* `must`: without it nothing can be said. */
static enum client_outcome read_part(struct hearth_client *client, const char *path, json_type wanted, bool must,
                                     json_t **out) {
    struct hearth_buf answer = {0};
    long status = 0;
    enum client_outcome outcome = hearth_client_request(client, path, NULL, NULL, NULL, &answer, &status);
    *out = outcome == CLIENT_DONE && status == 200 ? parse(path, &answer, wanted) : NULL;
    if (outcome == CLIENT_DONE && must && !*out) {
        outcome = CLIENT_FAILED;
        if (status == 200 || status == 404) {
            (void)hearth_complain(1, "%s is no hearth server: it has no %s", hearth_client_url(client), path);
        } else {
            (void)hearth_client_complain(&answer, status, " (--api-key)");
        }
    }
    hearth_buf_finish(&answer);
    return outcome;
}

enum client_outcome hearth_client_top_read(struct hearth_client *client, struct top_sample *out) {
    *out = (struct top_sample){0};
    const struct {
        const char *path;
        json_type type;
        bool must;
        json_t **to;
    } parts[] = {
        {"/props", JSON_OBJECT, true, &out->props},
        {"/slots", JSON_ARRAY, false, &out->slots},
        {"/queue", JSON_OBJECT, false, &out->queue},
        {"/metrics", JSON_OBJECT, false, &out->metrics},
        {"/health", JSON_OBJECT, false, &out->health},
        {"/requests?limit=100", JSON_OBJECT, false, &out->requests},
        {"/requests/clients", JSON_OBJECT, false, &out->clients},
    };
    enum client_outcome outcome = CLIENT_DONE;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && outcome == CLIENT_DONE; i++) {
        outcome = read_part(client, parts[i].path, parts[i].type, parts[i].must, parts[i].to);
    }
    out->at_us = hearth_clock_us();
    if (outcome != CLIENT_DONE) {
        hearth_client_top_finish(out);
    }
    return outcome;
}
