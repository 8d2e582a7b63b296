/* An HTTP server for a test, and what its handler and its clients have in common. cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_HTTP_STAGE_H
#define HEARTH_TESTS_SUPPORT_HTTP_STAGE_H

#include "http/server.h"
#include "support/client.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

/* Starts a server; the port is the system's choice where `params` say 0. */
static inline uint16_t start_http(const struct hearth_http_params *params, const struct hearth_http_handler *handler,
                                  struct hearth_http_server **server) {
    struct hearth_errmsg msg;
    assert_int_equal(hearth_http_create(params, handler, server, &msg), HEARTH_OK);
    assert_int_equal(hearth_http_start(*server), HEARTH_OK);
    return hearth_http_port(*server);
}

/* A handler's error body: "400 /path: message". */
static inline void fill_error(void *user, int status, const char *message, const char *path, const char *request_id,
                              struct hearth_buf *body) {
    (void)user, (void)request_id;
    hearth_buf_printf(body, "%d %s: %s", status, path, message);
}

/* Waits up to 20 s for a counter. True: it has exactly this value. */
static inline bool reaches(atomic_int *counter, int value) {
    for (int i = 0; i < 4000 && atomic_load(counter) < value; i++) {
        usleep(5000);
    }
    return atomic_load(counter) == value;
}

/* Reads an answer, which is whole. NULL as `body`: any. */
static inline void expect_answer(struct client *client, int status, const char *body) {
    struct response response;
    assert_true(client_response(client, false, &response));
    assert_int_equal(response.status, status);
    assert_true(response.complete);
    if (body != NULL) {
        assert_string_equal((const char *)response.body.data, body);
    }
    response_finish(&response);
}

#endif
