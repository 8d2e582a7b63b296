/* Requests to the server, by libcurl. One connection is kept open for all of them.
 *
 * A request waits in curl_multi_poll() for the network and for Ctrl-C at the same time (the pipe that the signal
 * handler writes to is one of its descriptors). Ctrl-C closes the connection, which is how the server learns that a
 * reply is not wanted any more. There is no limit on the time of a request unless the caller sets one: a long prompt
 * may take minutes before its first byte. */
#include "client/client.h"

#include "console/interrupt.h"
#include "console/show.h"
#include "console/tool.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONNECT_TIMEOUT_S 10L
#define OUT_BYTES_MAX ((size_t)256 << 20)

struct hearth_client {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    char *base;
    const char *socket_path; /* NULL: an address */
    const char *cacert;      /* NULL: as the system has it */
    int stop_fd;             /* input there ends a request; -1: none */
    long timeout_s;          /* 0: none */
    char cause[CURL_ERROR_SIZE];
};

struct transfer {
    struct hearth_client *client;
    bool (*sink)(void *user, const char *bytes, size_t len);
    void *user;
    struct hearth_buf *out;
    bool refused; /* by the sink, or too much */
    bool begun;   /* bytes have come */
};

/* ---- addresses ---- */

/* A variable's text, or `otherwise` when it is not there or empty. */
static const char *variable(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text && *text ? text : otherwise;
}

/* The server's address without what need not be there. NULL: it is none, or out of memory. The caller's to free. */
static char *base_url(const char *url) {
    CURLU *parts = curl_url();
    char *scheme = NULL, *text = NULL, *copy = NULL;
    if (parts && curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) &&
        curl_url_set(parts, CURLUPART_QUERY, NULL, 0) == CURLUE_OK &&
        curl_url_set(parts, CURLUPART_FRAGMENT, NULL, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_URL, &text, 0) == CURLUE_OK && (copy = strdup(text)) != NULL) {
        size_t len = strlen(copy);
        while (len > 0 && copy[len - 1] == '/') {
            copy[--len] = '\0';
        }
        if (len >= 3 && strcmp(copy + len - 3, "/v1") == 0) {
            copy[len - 3] = '\0';
        }
    }
    curl_free(scheme);
    curl_free(text);
    curl_url_cleanup(parts);
    return copy;
}

bool hearth_client_escape(struct hearth_buf *out, const char *text) {
    char *escaped = curl_easy_escape(NULL, text, 0);
    const bool ok = escaped && hearth_buf_text(out, escaped);
    curl_free(escaped);
    return ok;
}

char *hearth_client_path(const char *before, const char *name, const char *behind) {
    struct hearth_buf path = {0};
    if (hearth_buf_text(&path, before) && hearth_client_escape(&path, name) && hearth_buf_text(&path, behind)) {
        return (char *)path.data;
    }
    hearth_buf_finish(&path);
    return NULL;
}

/* A server on this machine is never behind a proxy, whatever the environment says. */
static bool is_local(const char *base) {
    CURLU *parts = curl_url();
    char *host = NULL;
    const bool local = parts && curl_url_set(parts, CURLUPART_URL, base, 0) == CURLUE_OK &&
                       curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                       (strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "[::1]") == 0);
    curl_free(host);
    curl_url_cleanup(parts);
    return local;
}

/* ---- the client ---- */

static bool add_header(struct hearth_client *client, const char *line) {
    struct curl_slist *headers = curl_slist_append(client->headers, line);
    client->headers = headers ? headers : client->headers;
    return headers != NULL;
}

/* `key`: of an option; NULL: the first one of the variable. */
static bool add_headers(struct hearth_client *client, const char *key) {
    struct hearth_buf line = {0};
    /* no "Expect: 100-continue": it costs a round trip */
    bool ok = add_header(client, "Content-Type: application/json") && add_header(client, "Expect:");
    const char *text = key ? key : variable("HEARTH_API_KEY", "");
    const int len = (int)(key ? strlen(key) : strcspn(text, ",\r\n"));
    if (ok && len > 0) {
        ok = hearth_buf_printf(&line, "Authorization: Bearer %.*s", len, text) && add_header(client, (char *)line.data);
    }
    hearth_buf_finish(&line);
    return ok;
}

int hearth_client_create(const struct client_server *server, const char *key_option, struct hearth_client **out) {
    static const char unix_prefix[] = "unix:";
    const char *url = server->url ? server->url : variable("HEARTH_URL", CLIENT_DEFAULT_URL);
    *out = NULL;
    if (server->key && strpbrk(server->key, "\r\n")) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "%s needs a key of one line", key_option);
    }
    if (!hearth_interrupt_catch()) {
        return hearth_complain(1, "out of descriptors");
    }
    struct hearth_client *client = calloc(1, sizeof *client);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !client || !(client->multi = curl_multi_init()) ||
        !(client->easy = curl_easy_init()) || !add_headers(client, server->key)) {
        hearth_client_destroy(client);
        return hearth_complain(1, "out of memory");
    }
    client->stop_fd = -1;
    client->cacert = server->cacert ? server->cacert : variable("HEARTH_CACERT", NULL);
    if (strncmp(url, unix_prefix, sizeof unix_prefix - 1) == 0) {
        client->socket_path = url + sizeof unix_prefix - 1;
        url = "http://localhost";
    }
    client->base = base_url(url);
    if (!client->base) {
        hearth_client_destroy(client);
        return hearth_complain(1, "'%.200s' is no address of a server, which looks like http://127.0.0.1:8080", url);
    }
    *out = client;
    return 0;
}

void hearth_client_destroy(struct hearth_client *client) {
    if (client) {
        curl_easy_cleanup(client->easy);
        (void)curl_multi_cleanup(client->multi);
        curl_slist_free_all(client->headers);
        free(client->base);
        free(client);
    }
}

const char *hearth_client_url(const struct hearth_client *client) {
    return client->socket_path ? client->socket_path : client->base;
}

void hearth_client_limit(struct hearth_client *client, int fd, long timeout_s) {
    client->stop_fd = fd;
    client->timeout_s = timeout_s;
}

/* ---- a request ---- */

static size_t on_bytes(char *bytes, size_t one, size_t len, void *user) {
    struct transfer *transfer = user;
    long status = 0;
    (void)one;
    transfer->begun = true;
    (void)curl_easy_getinfo(transfer->client->easy, CURLINFO_RESPONSE_CODE, &status);
    if (transfer->sink && status == 200) {
        transfer->refused = !transfer->sink(transfer->user, bytes, len);
    } else {
        transfer->refused = transfer->out->len + len > OUT_BYTES_MAX || !hearth_buf_append(transfer->out, bytes, len);
    }
    return transfer->refused ? CURL_WRITEFUNC_ERROR : len;
}

#define SET(option, value) (curl_easy_setopt(easy, CURLOPT_##option, value) == CURLE_OK)

static bool set_up(struct hearth_client *client, const char *url, const char *body, struct transfer *transfer) {
    CURL *easy = client->easy;
    curl_easy_reset(easy); /* keeps the connection */
    client->cause[0] = '\0';
    return SET(URL, url) && SET(PROTOCOLS_STR, "http,https") && SET(NOSIGNAL, 1L) &&
           SET(CONNECTTIMEOUT, CONNECT_TIMEOUT_S) && SET(TIMEOUT, client->timeout_s) && SET(TCP_KEEPALIVE, 1L) &&
           SET(USERAGENT, "hearth-chat/" HEARTH_VERSION) && SET(HTTPHEADER, client->headers) &&
           SET(ERRORBUFFER, client->cause) && SET(WRITEFUNCTION, on_bytes) && SET(WRITEDATA, transfer) &&
           (!client->socket_path || SET(UNIX_SOCKET_PATH, client->socket_path)) &&
           (!client->cacert || SET(CAINFO, client->cacert)) && (!is_local(client->base) || SET(PROXY, "")) &&
           (!body || (SET(POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) && SET(POSTFIELDS, body) /* borrowed */));
}

/* Runs what was set up. False: Ctrl-C, or input on `stop_fd`. */
static bool wait_for_end(struct hearth_client *client, CURLcode *result) {
    struct curl_waitfd wakes[] = {{.fd = hearth_interrupt_fd(), .events = CURL_WAIT_POLLIN},
                                  {.fd = client->stop_fd, .events = CURL_WAIT_POLLIN}};
    const unsigned wake_count = client->stop_fd >= 0 ? 2 : 1;
    int running = 1;
    *result = CURLE_OK;
    if (curl_multi_add_handle(client->multi, client->easy) != CURLM_OK) {
        *result = CURLE_OUT_OF_MEMORY;
        return true;
    }
    while (running > 0 && !hearth_interrupted && wakes[1].revents == 0) {
        int left;
        if (curl_multi_perform(client->multi, &running) != CURLM_OK) {
            *result = CURLE_FAILED_INIT;
            break;
        }
        for (const CURLMsg *msg; (msg = curl_multi_info_read(client->multi, &left)) != NULL;) {
            *result = msg->msg == CURLMSG_DONE ? msg->data.result : *result;
        }
        if (running > 0 && curl_multi_poll(client->multi, wakes, wake_count, 1000, NULL) != CURLM_OK) {
            *result = CURLE_FAILED_INIT;
            break;
        }
        hearth_interrupt_drain();
    }
    (void)curl_multi_remove_handle(client->multi, client->easy);
    const bool stopped = (hearth_interrupted || wakes[1].revents != 0) && running > 0;
    if (stopped && hearth_interrupted) {
        hearth_interrupt_clear();
    }
    return !stopped;
}

static int complain_of(const struct hearth_client *client, CURLcode result, const struct transfer *transfer) {
    const char *cause = *client->cause ? client->cause : curl_easy_strerror(result);
    switch (result) {
    case CURLE_COULDNT_CONNECT:
        return hearth_complain(1,
                               "no server answers at %s (hearth serve -m MODEL.gguf starts one; --url names another)",
                               hearth_client_url(client));
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_OPERATION_TIMEDOUT: return hearth_complain(1, "%s cannot be reached: %s", client->base, cause);
    case CURLE_OUT_OF_MEMORY: return hearth_complain(1, "out of memory");
    default: break;
    }
    if (transfer->refused) {
        return hearth_complain(1, "what %s sends is no reply", client->base);
    }
    return hearth_complain(
        1, transfer->begun ? "the connection broke in the middle of the reply: %s" : "the request failed: %s", cause);
}

enum client_outcome hearth_client_request(struct hearth_client *client, const char *path, const json_t *body,
                                          bool (*sink)(void *user, const char *bytes, size_t len), void *user,
                                          struct hearth_buf *out, long *http_status) {
    struct transfer transfer = {.client = client, .sink = sink, .user = user, .out = out};
    struct hearth_buf url = {0};
    enum client_outcome outcome = CLIENT_FAILED;
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    CURLcode result;
    *http_status = 0;
    if ((body && !text) || !hearth_buf_printf(&url, "%s%s", client->base, path) ||
        !set_up(client, (char *)url.data, text, &transfer)) {
        (void)hearth_complain(1, "out of memory");
    } else if (!wait_for_end(client, &result)) {
        outcome = CLIENT_STOPPED;
    } else if (result != CURLE_OK) {
        (void)complain_of(client, result, &transfer);
    } else {
        (void)curl_easy_getinfo(client->easy, CURLINFO_RESPONSE_CODE, http_status);
        outcome = CLIENT_DONE;
    }
    hearth_buf_finish(&url);
    free(text);
    return outcome;
}

int hearth_client_complain(const struct hearth_buf *answer, long http_status, const char *key_hint) {
    struct hearth_buf cause = {0};
    const bool told = hearth_client_error_text((const char *)answer->data, answer->len, http_status, &cause);
    (void)hearth_complain(1, "%s%s", told ? (const char *)cause.data : "out of memory",
                          http_status == 401 ? key_hint : "");
    hearth_buf_finish(&cause);
    return 1;
}

enum client_outcome hearth_client_json(struct hearth_client *client, const char *path, const json_t *body, json_t **out,
                                       bool *missing) {
    struct hearth_buf answer = {0};
    long status;
    *out = NULL;
    if (missing) {
        *missing = false;
    }
    enum client_outcome outcome = hearth_client_request(client, path, body, NULL, NULL, &answer, &status);
    if (outcome == CLIENT_DONE && (status == 200 || status == 201)) {
        *out = json_loadb((const char *)answer.data, answer.len, JSON_ALLOW_NUL, NULL);
        if (!*out) {
            (void)hearth_complain(1, "what %s sends is no JSON: is it a hearth server?", client->base);
            outcome = CLIENT_FAILED;
        }
    } else if (outcome == CLIENT_DONE && status == 404 && missing) {
        *missing = true;
    } else if (outcome == CLIENT_DONE) {
        outcome = CLIENT_FAILED;
        (void)hearth_client_complain(&answer, status, "");
    }
    hearth_buf_finish(&answer);
    return outcome;
}

const char *hearth_client_local_time(const char *at, double later_ms, char out[16]) {
    struct tm tm = {0};
    const char *behind = strptime(at, "%Y-%m-%dT%H:%M:%S", &tm);
    if (behind == NULL) {
        return "--:--:--";
    }
    const time_t when = timegm(&tm) + (time_t)((strtod(behind, NULL) * 1000 + later_ms) / 1000);
    (void)strftime(out, 16, "%H:%M:%S", localtime_r(&when, &tm));
    return out;
}
