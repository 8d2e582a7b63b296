/* See stage.h. */
#include "support/stage.h"

#include "base/assert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void stage_options_default(struct stage_options *options) {
    *options = (struct stage_options){0};
    hearth_sim_params_default(&options->sim);
    hearth_service_params_default(&options->service);
    options->service.cache_bytes = 64u * 1024 * 1024;
    hearth_api_params_default(&options->api);
    options->api.http.port = 0;
    options->api.model_path = "/models/Sim-1.gguf";
    options->api.version = "hearth test";
    options->api.metrics = true;
}

static void write_script(char *path, const char *text) {
    FILE *file = fdopen(mkstemp(path), "w");
    HEARTH_ASSERT(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

void stage_open(struct stage *stage, const struct stage_options *options) {
    struct hearth_errmsg msg;
    *stage = (struct stage){0};
    HEARTH_ASSERT(hearth_sim_create(&options->sim, &stage->engine, &msg) == HEARTH_OK);
    if (options->markers != NULL) {
        options->markers(stage->engine, options->chat_template);
    }
    const struct hearth_caps *caps = &stage->engine->caps;
    const struct hearth_chat_params chat = {.template_text = options->chat_template,
                                            .bos_text = caps->bos_text,
                                            .eos_text = caps->eos_text,
                                            .add_bos = caps->add_bos};
    HEARTH_ASSERT(hearth_chat_create(&chat, &stage->chat, &msg) == HEARTH_OK);
    HEARTH_ASSERT(hearth_service_create(stage->engine, &options->service, &stage->service, &msg) == HEARTH_OK);
    struct hearth_api_params api = options->api;
    api.engine = stage->engine;
    api.chat = stage->chat;
    api.service = stage->service;
    api.lanes = options->sim.lanes;
    char script[] = "/tmp/hearth-script-XXXXXX";
    if (options->script != NULL) {
        write_script(script, options->script);
        api.script_path = script;
    }
    HEARTH_ASSERT(hearth_api_create(&api, &stage->api, &msg) == HEARTH_OK);
    if (options->script != NULL) {
        unlink(script); /* it has been read */
    }
    stage->port = hearth_api_port(stage->api);
}

void stage_close(struct stage *stage) {
    hearth_api_destroy(stage->api); /* asserts that no job is left */
    hearth_service_destroy(stage->service);
    hearth_chat_destroy(stage->chat);
    stage->engine->ops->destroy(stage->engine);
}

json_t *stage_call(const struct stage *stage, const char *method, const char *path, const char *body, int *status) {
    struct response response = http_call(stage->port, method, path, NULL, body);
    json_t *value = response.complete
                        ? json_loadb((const char *)response.body.data, response.body.len, JSON_ALLOW_NUL, NULL)
                        : NULL;
    *status = response.status;
    response_finish(&response);
    return value;
}

json_t *stage_want(const struct stage *stage, const char *method, const char *path, const char *body, int want) {
    int status;
    json_t *answer = stage_call(stage, method, path, body, &status);
    if (status != want) {
        print_error("%s %s %.300s: %d, not %d: %s\n", method, path, body != NULL ? body : "", status, want,
                    json_str(answer, "error.message"));
    }
    assert_int_equal(status, want);
    assert_non_null(answer);
    return answer;
}

json_t *json_at(json_t *value, const char *path) {
    while (value != NULL && *path != '\0') {
        char key[64];
        size_t len = strcspn(path, ".");
        HEARTH_ASSERT(len < sizeof key);
        memcpy(key, path, len);
        key[len] = '\0';
        value = json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10)) : json_object_get(value, key);
        path += len + (path[len] == '.');
    }
    return value;
}

const char *json_str(json_t *value, const char *path) {
    const char *text = json_string_value(json_at(value, path));
    return text != NULL ? text : "";
}

json_int_t json_num(json_t *value, const char *path) {
    json_t *number = json_at(value, path);
    return json_is_integer(number) ? json_integer_value(number) : -1;
}

json_t *sse_events(const char *text) {
    json_t *events = json_array();
    while (*text != '\0') {
        const char *end = strstr(text, "\n\n");
        json_t *event = NULL;
        if (end != NULL && strncmp(text, "data: ", 6) == 0) {
            size_t len = (size_t)(end - text) - 6;
            event = len == 6 && memcmp(text + 6, "[DONE]", 6) == 0 ? json_string("[DONE]")
                                                                   : json_loadb(text + 6, len, JSON_ALLOW_NUL, NULL);
        }
        if (event == NULL) {
            json_decref(events);
            return NULL;
        }
        json_array_append_new(events, event);
        text = end + 2;
    }
    return events;
}
