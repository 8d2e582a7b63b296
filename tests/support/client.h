/* A small HTTP client for tests: it sends what it is told, byte for byte, and reads responses with a time limit. */
#ifndef HEARTH_TESTS_SUPPORT_CLIENT_H
#define HEARTH_TESTS_SUPPORT_CLIENT_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define CLIENT_WAIT_MS 60000

struct client {
    int fd;               /* -1 when closed */
    struct hearth_buf in; /* received and not yet taken */
};

struct response {
    int status;             /* 0: none came */
    char *head;             /* status line and headers */
    struct hearth_buf body; /* decoded; NUL-terminated */
    bool complete;          /* the body ended as its framing says */
    bool chunked;
};

bool client_open(struct client *client, uint16_t port);
void client_close(struct client *client);
bool client_send(struct client *client, const void *bytes, size_t len);
bool client_text(struct client *client, const char *text);
/* Sends a request with a Content-Length; `headers` holds whole lines ("A: b\r\n"), or NULL. `body` NULL: none. */
bool client_request(struct client *client, const char *method, const char *path, const char *headers, const char *body);
/* Reads one response. Interim ones (100) are returned like any other, with an empty body. `head_only`: it has no body,
 * whatever its headers say. False: none came in time. */
bool client_response(struct client *client, bool head_only, struct response *out);
/* Waits until `needle` has been received (without taking anything). */
bool client_wait_for(struct client *client, const char *needle);
/* True when the server closes the connection in time and nothing more comes before it does. */
bool client_at_end(struct client *client);
void response_finish(struct response *response);
/* The value of a header in `out`; false when it is missing. */
bool response_header(const struct response *response, const char *name, char *out, size_t cap);

/* One request over a connection of its own. */
struct response http_call(uint16_t port, const char *method, const char *path, const char *headers, const char *body);

#endif
