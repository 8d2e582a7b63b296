/* What the HTTP API answers, to the letter, on the simulated engine.
 *
 * An .http file is a list of requests, each on a line ("POST /path {…}"), with the answer below it, indented: the
 * status, and the body, or each line of an event stream. "@id" in a request is the id of the last answer that had one.
 * What differs from run to run, ids and times, is printed as "*". The requests of a file go one after another to one
 * server, so receipts can tell of the cache.
 *
 * `http_golden --update FILE…` writes the answers anew; then `git diff` shows what a change has done to them. */
#include "base/assert.h"
#include "support/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char last_id[256];

static bool differs_by_run(const char *key) {
    static const char *const keys[] = {"id",          "created",    "timings",      "item_id",
                                       "call_id",     "turn",       "tool_call_id", "previous_response_id",
                                       "obfuscation", "request_id", "first_id",     "last_id"};
    const size_t len = strlen(key);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) {
            return true;
        }
    }
    return len > 3 && (strcmp(key + len - 3, "_ms") == 0 || strcmp(key + len - 3, "_at") == 0);
}

/* "conv_755e7e8e379c3aec…" */
static bool is_id(const char *text) {
    const char *digits = strchr(text, '_');
    return digits != NULL && strspn(digits + 1, "0123456789abcdef") >= 20;
}

/* A text with the last id in it, as an error may have. */
static json_t *without_id(const char *text) {
    const char *at = last_id[0] != '\0' ? strstr(text, last_id) : NULL;
    return at == NULL ? NULL : json_sprintf("%.*s*%s", (int)(at - text), text, at + strlen(last_id));
}

static void hide(json_t *value) {
    const char *key;
    json_t *member;
    void *next;
    size_t i;
    json_object_foreach_safe(value, next, key, member) {
        json_t *shorter = json_is_string(member) ? without_id(json_string_value(member)) : NULL;
        if ((differs_by_run(key) && !json_is_null(member)) ||
            (json_is_string(member) && is_id(json_string_value(member)))) {
            json_decref(shorter);
            json_object_set_new(value, key, json_string("*"));
        } else if (shorter != NULL) {
            json_object_set_new(value, key, shorter);
        } else {
            hide(member);
        }
    }
    json_array_foreach(value, i, member) {
        hide(member);
    }
}

/* A line of an answer, from `text`: JSON with what differs hidden, anything else as it is. */
static void print_line(FILE *out, const char *prefix, const char *text, size_t len) {
    json_t *value = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (value == NULL) {
        fprintf(out, "  %s%.*s\n", prefix, (int)len, text);
        return;
    }
    const char *id = json_string_value(json_object_get(value, "id"));
    if (id != NULL) {
        snprintf(last_id, sizeof last_id, "%s", id);
    }
    hide(value);
    char *dump = json_dumps(value, 0);
    fprintf(out, "  %s%s\n", prefix, dump);
    free(dump);
    json_decref(value);
}

static void print_stream(FILE *out, const char *text) {
    while (*text != '\0') {
        const size_t len = strcspn(text, "\n");
        const size_t skip = strncmp(text, "data: ", 6) == 0 ? 6 : 0;
        if (len > 0) {
            print_line(out, skip > 0 ? "data: " : "", text + skip, len - skip);
        }
        text += len + (text[len] == '\n');
    }
}

/* The request's line with the id in it; then the answer's lines. */
static void play(FILE *out, const struct stage *stage, const char *line) {
    char method[16], path[512], text[8192];
    int at = 0;
    size_t n = 0;
    fprintf(out, "%s\n", line);
    for (const char *from = line; *from != '\0' && n + sizeof last_id < sizeof text;) {
        if (strncmp(from, "@id", 3) == 0) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", last_id);
            from += 3;
        } else {
            text[n++] = *from++;
        }
    }
    text[n] = '\0';
    HEARTH_ASSERT(sscanf(text, "%15s %511s %n", method, path, &at) == 2);
    struct response response = http_call(stage->port, method, path, NULL, text[at] != '\0' ? text + at : NULL);
    char type[64] = "";
    (void)response_header(&response, "content-type", type, sizeof type);
    fprintf(out, "  %d\n", response.status);
    const char *body = (const char *)response.body.data;
    if (strncmp(type, "text/event-stream", 17) == 0) {
        print_stream(out, body);
    } else if (response.body.len > 0) {
        print_line(out, "", body, response.body.len);
    }
    response_finish(&response);
}

/* Of a line's rest, what an error shows. */
static size_t excerpt(const char *text) {
    const size_t len = strcspn(text, "\n");
    return len < 200 ? len : 200;
}

/* 0 when the answers are as written, else 1. */
static int check(const char *path, bool update) {
    struct stage_options options;
    struct stage stage;
    char *line = NULL, *played = NULL, *written = NULL;
    size_t cap = 0, played_len = 0, written_len = 0;
    FILE *file = fopen(path, "r"), *out = open_memstream(&played, &played_len);
    FILE *was = open_memstream(&written, &written_len);
    HEARTH_ASSERT(file != NULL && out != NULL && was != NULL);
    stage_options_default(&options);
    stage_open(&stage, &options);
    while (getline(&line, &cap, file) > 0) {
        fputs(line, was);
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || line[0] == '\0') {
            fprintf(out, "%s\n", line);
        } else if (line[0] != ' ') {
            play(out, &stage, line);
        }
    }
    stage_close(&stage);
    fclose(file);
    fclose(out);
    fclose(was);
    const int failed = !update && strcmp(played, written) != 0;
    if (update) {
        file = fopen(path, "w");
        HEARTH_ASSERT(file != NULL && fputs(played, file) >= 0 && fclose(file) == 0);
    } else if (failed) {
        size_t same = 0, line_start = 0, number = 1;
        for (; played[same] != '\0' && played[same] == written[same]; same++) {
            line_start = played[same] == '\n' ? same + 1 : line_start;
            number += played[same] == '\n';
        }
        const size_t from = same > line_start + 100 ? same - 100 : line_start;
        fprintf(stderr, "%s:%zu: written: …%.*s\nanswered: …%.*s\n", path, number, (int)excerpt(written + from),
                written + from, (int)excerpt(played + from), played + from);
    }
    free(line);
    free(played);
    free(written);
    return failed;
}

int main(int argc, char **argv) {
    const bool update = argc > 1 && strcmp(argv[1], "--update") == 0;
    int failed = 0;
    for (int i = update ? 2 : 1; i < argc; i++) {
        failed += check(argv[i], update);
    }
    printf("%d files, %d failed\n", argc - (update ? 2 : 1), failed);
    return failed != 0;
}
