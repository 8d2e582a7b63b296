/* Options from words, and a file for one test program. cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_OPTIONS_STAGE_H
#define HEARTH_TESTS_SUPPORT_OPTIONS_STAGE_H

#include "cli/options.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(a) (int)(sizeof(a) / sizeof((a)[0]))

static char path[] = "/tmp/hearth-test-XXXXXX";

static inline int make_path(void **state) {
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0 ? -1 : 0;
}

static inline int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static inline void write_path(const char *text) {
    FILE *file = fopen(path, "w");
    assert_true(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static inline int parse(struct hearth_options *options, int argc, const char *const *argv, struct hearth_errmsg *msg) {
    enum hearth_options_ask ask;
    memset(msg, 0, sizeof(*msg));
    return hearth_options_parse(options, argc, (char *const *)(uintptr_t)argv, &ask, msg);
}

#define PARSE(options, msg, ...) \
    parse((options), COUNT(((const char *const[]){__VA_ARGS__})), ((const char *const[]){__VA_ARGS__}), (msg))

#endif
