/* The stage of one test program: its setup opens it, the teardown closes it. Included by one test each. */
#ifndef HEARTH_TESTS_SCENARIO_OWN_STAGE_H
#define HEARTH_TESTS_SCENARIO_OWN_STAGE_H

#include "support/stage.h"

static struct stage stage;

static inline int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    return 0;
}

static inline json_t *call(const char *method, const char *path, const char *body, int want) {
    return stage_want(&stage, method, path, body, want);
}

static inline json_t *post(const char *path, const char *body, int want) {
    return call("POST", path, body, want);
}

#endif
