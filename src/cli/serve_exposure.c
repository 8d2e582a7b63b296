/* See serve_internal.h. A name is local when all of its addresses are. A name that cannot be resolved is not local,
 * and the log says that it cannot be resolved. */
#include "cli/serve_internal.h"

#include "base/log.h"
#include "http/origin.h"
#include "http/server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool is_loopback(const struct addrinfo *at) {
    char text[INET6_ADDRSTRLEN];
    return getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0 &&
           hearth_http_host_is_loopback(text);
}

/* 0, or the code of getaddrinfo() for a host without an address. */
static int look_up(const char *host, bool *local) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    *local = hearth_http_host_is_unix(host);
    const int cause = *local ? 0 : getaddrinfo(host, NULL, &hints, &list);
    if (cause == 0 && list != NULL) {
        *local = true;
        for (const struct addrinfo *at = list; at != NULL && *local; at = at->ai_next) {
            *local = is_loopback(at);
        }
        freeaddrinfo(list);
    }
    return cause;
}

bool hearth_serve_exposure_is_local(const char *host) {
    bool local;
    (void)look_up(host, &local);
    return local;
}

/* Calls `each` with every word of a list, which commas may separate, too. */
static int check_words(const struct hearth_option_list *list,
                       int (*each)(const char *, size_t, bool, struct hearth_errmsg *), bool keyed,
                       struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < list->n && err == HEARTH_OK; i++) {
        for (const char *at = list->v[i]; *at && err == HEARTH_OK;) {
            const size_t len = strcspn(at, ", \t");
            err = len > 0 ? each(at, len, keyed, msg) : HEARTH_OK;
            at += len + (at[len] != '\0');
        }
    }
    return err;
}

static int check_origin(const char *word, size_t len, bool keyed, struct hearth_errmsg *msg) {
    if (!hearth_http_origin_is_valid(word, len)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "--cors-origin %.*s: an origin is http://HOST:PORT or https://HOST, without a path; or "
                           "localhost, for pages of this machine",
                           (int)len, word);
    }
    if (len == 1 && !keyed) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "--cors-origin '*' opens the server to every web page that anybody on this machine visits: "
                           "set --api-key, or name the origins");
    }
    return HEARTH_OK;
}

static int check_host(const char *word, size_t len, bool keyed, struct hearth_errmsg *msg) {
    (void)keyed;
    return hearth_http_host_is_valid(word, len)
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_INVALID,
                             "--allow-host %.*s: a name or an address, without a scheme, a port or a '*'", (int)len,
                             word);
}

int hearth_serve_exposure_check(const struct hearth_options *options, size_t key_count, struct hearth_errmsg *msg) {
    const bool keyed = key_count > 0;
    if (!keyed && getenv("LLAMA_API_KEY")) { /* the user may believe that there is one */
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "LLAMA_API_KEY is set, which is not read here, and there is no key: set HEARTH_API_KEY");
    }
    int err = check_words(&options->cors_origin, check_origin, keyed, msg);
    err = err == HEARTH_OK ? check_words(&options->allow_host, check_host, keyed, msg) : err;
    if (err != HEARTH_OK || keyed) {
        return err;
    }
    bool local;
    const int cause = look_up(options->host, &local);
    if (local) {
        return HEARTH_OK;
    }
    if (cause != 0) { /* it opens nothing, and --insecure is not what is missing */
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "--host %s: %s (an address without brackets and port, a name, or unix:PATH)", options->host,
                           gai_strerror(cause));
    }
    if (!options->insecure) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "--host %s is open to the network and there is no key: set --api-key or --api-key-file (or "
                           "--insecure, if everybody who reaches it may use it and read its conversations)",
                           options->host);
    }
    hearth_log(HEARTH_LOG_WARN, "--insecure: everybody who reaches %s may use this server and read its conversations",
               options->host);
    return HEARTH_OK;
}
