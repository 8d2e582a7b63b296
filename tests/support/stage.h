/* A whole server in the test's process: sim, chat, service (whichever is linked) and API, on a free port; and helpers
 * to look into JSON. */
#ifndef HEARTH_TESTS_SUPPORT_STAGE_H
#define HEARTH_TESTS_SUPPORT_STAGE_H

#include "api/api.h"
#include "engine/sim.h"
#include "support/client.h"

#include <jansson.h>

struct stage_options {
    struct hearth_sim_params sim;
    struct hearth_service_params service;
    struct hearth_api_params api;
    const char *chat_template; /* NULL: chatml */
    const char *script;        /* text of a file of replies (api/script.c), or NULL */
    /* Gives the engine the template's markers as control tokens (support/markers.h), or NULL. */
    void (*markers)(struct hearth_engine *engine, const char *template_text);
};

struct stage {
    struct hearth_engine *engine;
    struct hearth_chat *chat;
    struct hearth_service *service;
    struct hearth_api *api;
    uint16_t port;
};

void stage_options_default(struct stage_options *options);
/* Stops the process when something fails. */
void stage_open(struct stage *stage, const struct stage_options *options);
void stage_close(struct stage *stage);

/* One call; the body parsed. *status is 0 when no answer came; the result is NULL when it is no JSON. */
json_t *stage_call(const struct stage *stage, const char *method, const char *path, const char *body, int *status);

/* Likewise, in a cmocka test that fails (and says why) unless the status is `want` and the body is JSON. */
json_t *stage_want(const struct stage *stage, const char *method, const char *path, const char *body, int want);

/* A member by path, with '.' between keys and array indices: "choices.0.message.content". NULL when it is not there. */
json_t *json_at(json_t *value, const char *path);
const char *json_str(json_t *value, const char *path); /* "" when it is no string */
json_int_t json_num(json_t *value, const char *path);  /* -1 when it is no integer */

/* Splits an event stream: the JSON of every `data:` line, in an array; "[DONE]" is a string. NULL: it is no event
 * stream. */
json_t *sse_events(const char *text);

#endif
