/* The test client; see client.h. Blocking sockets, with poll() for the time limit. */
#include "support/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

bool client_open(struct client *client, uint16_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *client = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (client->fd >= 0 && connect(client->fd, (struct sockaddr *)&to, sizeof to) == 0) {
        return true;
    }
    client_close(client);
    return false;
}

void client_close(struct client *client) {
    if (client->fd >= 0) {
        close(client->fd);
    }
    client->fd = -1;
    hearth_buf_finish(&client->in);
}

bool client_send(struct client *client, const void *bytes, size_t len) {
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = send(client->fd, at, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

bool client_text(struct client *client, const char *text) {
    return client_send(client, text, strlen(text));
}

bool client_request(struct client *client, const char *method, const char *path, const char *headers,
                    const char *body) {
    struct hearth_buf request = {0};
    bool ok = hearth_buf_printf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path,
                                headers != NULL ? headers : "");
    if (ok && body != NULL) {
        ok = hearth_buf_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    }
    ok = ok && hearth_buf_text(&request, "\r\n") && (body == NULL || hearth_buf_text(&request, body)) &&
         client_send(client, request.data, request.len);
    hearth_buf_finish(&request);
    return ok;
}

/* Receives more. 1: something came, 0: the server has closed, -1: nothing in time, or an error. */
static int receive(struct client *client) {
    struct pollfd poll_fd = {.fd = client->fd, .events = POLLIN};
    char bytes[16384];
    if (poll(&poll_fd, 1, CLIENT_WAIT_MS) <= 0) {
        return -1;
    }
    ssize_t n = recv(client->fd, bytes, sizeof bytes, 0);
    if (n <= 0) {
        return n == 0 ? 0 : -1;
    }
    return hearth_buf_append(&client->in, bytes, (size_t)n) ? 1 : -1;
}

static void take(struct client *client, size_t len) {
    memmove(client->in.data, client->in.data + len, client->in.len - len);
    client->in.len -= len;
}

/* Offset behind the first `needle`, 0 when it is not there. */
static size_t find(const struct client *client, const char *needle) {
    const char *at = client->in.len > 0 ? memmem(client->in.data, client->in.len, needle, strlen(needle)) : NULL;
    return at != NULL ? (size_t)(at - (const char *)client->in.data) + strlen(needle) : 0;
}

bool client_wait_for(struct client *client, const char *needle) {
    while (find(client, needle) == 0) {
        if (receive(client) <= 0) {
            return false;
        }
    }
    return true;
}

bool client_at_end(struct client *client) {
    return client->in.len == 0 && receive(client) == 0;
}

static bool take_into(struct client *client, size_t len, struct hearth_buf *out) {
    while (client->in.len < len) {
        if (receive(client) <= 0) {
            return false;
        }
    }
    bool ok = hearth_buf_append(out, client->in.data, len);
    take(client, len);
    return ok;
}

static bool read_chunks(struct client *client, struct hearth_buf *out) {
    for (;;) {
        if (!client_wait_for(client, "\r\n")) {
            return false;
        }
        size_t line = find(client, "\r\n");
        char *end;
        size_t len = strtoul((const char *)client->in.data, &end, 16);
        take(client, line);
        struct hearth_buf crlf = {0};
        bool ok = take_into(client, len, out) && take_into(client, 2, &crlf) && memcmp(crlf.data, "\r\n", 2) == 0;
        hearth_buf_finish(&crlf);
        if (!ok || len == 0) {
            return ok;
        }
    }
}

static bool read_body(struct client *client, struct response *out) {
    char value[64];
    if (response_header(out, "transfer-encoding", value, sizeof value)) {
        out->chunked = true;
        return read_chunks(client, &out->body);
    }
    if (response_header(out, "content-length", value, sizeof value)) {
        return take_into(client, strtoul(value, NULL, 10), &out->body);
    }
    int rc;
    while ((rc = receive(client)) > 0) {
    }
    return rc == 0 && take_into(client, client->in.len, &out->body);
}

bool client_response(struct client *client, bool head_only, struct response *out) {
    *out = (struct response){0};
    if (!client_wait_for(client, "\r\n\r\n")) {
        return false;
    }
    size_t len = find(client, "\r\n\r\n");
    out->head = strndup((const char *)client->in.data, len);
    take(client, len);
    if (out->head == NULL || sscanf(out->head, "HTTP/1.1 %d ", &out->status) != 1) {
        return false;
    }
    out->complete = head_only || out->status == 100 || out->status == 204 || read_body(client, out);
    return hearth_buf_append(&out->body, "", 1) && out->body.len-- > 0;
}

void response_finish(struct response *response) {
    free(response->head);
    hearth_buf_finish(&response->body);
    *response = (struct response){0};
}

bool response_header(const struct response *response, const char *name, char *out, size_t cap) {
    size_t len = strlen(name);
    for (const char *line = response->head; line != NULL; line = strstr(line, "\r\n")) {
        line += line == response->head ? 0 : 2;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
            const char *value = line + len + 1 + strspn(line + len + 1, " ");
            snprintf(out, cap, "%.*s", (int)strcspn(value, "\r"), value);
            return true;
        }
        if (*line == '\0') {
            break;
        }
    }
    return false;
}

struct response http_call(uint16_t port, const char *method, const char *path, const char *headers, const char *body) {
    struct client client;
    struct response response = {0};
    if (client_open(&client, port) && client_request(&client, method, path, headers, body)) {
        client_response(&client, strcmp(method, "HEAD") == 0, &response);
    }
    client_close(&client);
    return response;
}
