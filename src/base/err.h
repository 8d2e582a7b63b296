/* Errors: one table of (name, text, HTTP status), and the context text that travels beside a code.
 *
 * Misuse is an assertion (base/assert.h). A failure is a negative `enum hearth_err`. A miss is a value,
 * never an error. */
#ifndef HEARTH_BASE_ERR_H
#define HEARTH_BASE_ERR_H

#include <stdarg.h>

/*      name           code  HTTP  text */
#define HEARTH_ERR_TABLE(X)                                                                          \
    X(NOMEM, -1, 503, "out of memory")                                                               \
    X(INVALID, -2, 400, "invalid argument")                                                          \
    X(TOO_LONG, -3, 400, "prompt is longer than the context")                                        \
    X(NO_CELLS, -4, 503, "no free cells in the KV cache")                                            \
    X(ENGINE, -5, 500, "the engine failed")                                                          \
    X(STATE, -6, 500, "stored state could not be restored")                                          \
    X(UNSUPPORTED, -7, 400, "not supported")                                                         \
    X(CANCELLED, -8, 499, "cancelled")                                                               \
    X(BUSY, -9, 503, "the server is shutting down")                                                  \
    X(IO, -10, 500, "input/output error")                                                            \
    X(TEMPLATE, -11, 400, "the chat template failed")                                                \
    X(TOO_LARGE, -12, 413, "too large")                                                              \
    X(NOT_FOUND, -13, 404, "not found")                                                              \
    X(AUTH, -14, 401, "invalid API key")                                                             \
    X(METHOD, -15, 405, "method not allowed")                                                        \
    X(TIMEOUT, -16, 408, "timed out")                                                                \
    X(OVERLOADED, -17, 429, "too many requests wait")                                                \
    X(DEADLINE, -18, 504, "the deadline has passed")                                                 \
    X(EFFORT, -19, 400, "preparing the request takes more CPU time than it may (--prepare-timeout)") \
    X(QUOTA, -20, 429, "the key's quota of stored conversations is used up")                         \
    X(STORE, -21, 503, "the database of conversations cannot be used now")

enum hearth_err {
    HEARTH_OK = 0,
#define X(name, code, http, text) HEARTH_ERR_##name = (code),
    HEARTH_ERR_TABLE(X)
#undef X
};

/* Room for one line of context, owned by the caller. Functions that take one may be given NULL. */
struct hearth_errmsg {
    char text[512];
};

/* The table's text for a code ("ok" for 0, "unknown error" for any other number). */
const char *hearth_err_text(int err);

/* The HTTP status for a code (200 for 0, 500 for any other number). */
int hearth_err_http(int err);

/* Writes context into `msg` (which may be NULL), with a space for each control character, and returns `err`, so that a
 * failure is one line:
 *     return hearth_fail(msg, HEARTH_ERR_INVALID, "top_p is %g", top_p);
 * Of a text that is too long the middle is left out, because a long path stands in front of the reason. */
int hearth_fail(struct hearth_errmsg *msg, int err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "NAME: " in front of the context of a failure, unless NAME is in it. Does nothing for HEARTH_OK. Returns `err`.
 */
int hearth_fail_of(struct hearth_errmsg *msg, int err, const char *name);

#endif
