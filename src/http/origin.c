/* See origin.h. Hosts are compared in any case, without their port and without one trailing dot. The port does not
 * matter: it is no secret, and a name that was rebound is foreign with every port.
 *
 * A numeric address in Host would be harmless, because only its owner can make a browser go there. Still only the
 * address to which the connection was made is accepted, which keeps the rule short, and 0.0.0.0 and ::, by which
 * clients mean the machine that they run on. */
#include "http/origin.h"

#include "base/buf.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SHOWN 100

struct origin_words {
    char *text; /* words, each with its NUL, and an empty one behind the last */
};

struct hearth_http_origins {
    struct origin_words origins, hosts;
    char *listen;
    bool any, local; /* "*" and "localhost" are among the origins */
    atomic_bool keyed;
};

/* ---- words ---- */

static bool words_take(struct origin_words *words, const char *const *from, size_t count) {
    struct hearth_buf out = {0};
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        for (const char *at = from[i]; *at != '\0' && ok;) {
            const size_t len = strcspn(at, ", \t");
            ok = len == 0 || (hearth_buf_append(&out, at, len) && hearth_buf_append(&out, "", 1));
            at += len + (at[len] != '\0');
        }
    }
    ok = ok && hearth_buf_append(&out, "", 1);
    words->text = ok ? (char *)hearth_buf_take(&out) : NULL;
    hearth_buf_finish(&out);
    return ok;
}

static bool words_have(const struct origin_words *words, const char *word,
                       bool (*same)(const char *one, const char *other)) {
    for (const char *at = words->text; *at != '\0'; at += strlen(at) + 1) {
        if (same(at, word)) {
            return true;
        }
    }
    return false;
}

static bool same_word(const char *one, const char *other) {
    return strcasecmp(one, other) == 0;
}

/* ---- hosts ---- */

/* "[::1]:8080" to "::1", "Name.:80" to "Name". False: it is none. */
static bool bare_host(const char *host, char out[HEARTH_HTTP_HOST_BYTES]) {
    const bool bracket = *host == '[';
    const char *colon = strchr(host, ':');
    const bool address = !bracket && colon != NULL && strchr(colon + 1, ':') != NULL; /* IPv6 as such */
    const size_t len = bracket ? strcspn(host + 1, "]") : address ? strlen(host) : strcspn(host, ":");
    if (len == 0 || len >= HEARTH_HTTP_HOST_BYTES || (bracket && host[1 + len] != ']')) {
        return false;
    }
    memcpy(out, host + bracket, len);
    out[len] = '\0';
    if (len > 1 && out[len - 1] == '.') {
        out[len - 1] = '\0';
    }
    return true;
}

static bool is_loopback_name(const char *name) {
    static const char tail[] = ".localhost";
    const size_t len = strlen(name);
    return strcasecmp(name, tail + 1) == 0 ||
           (len > sizeof tail - 1 && strcasecmp(name + len - (sizeof tail - 1), tail) == 0);
}

/* Reads an IPv4 address as IPv6 maps it, or an IPv6 address. False: the text is a name. */
static bool read_address(const char *text, struct in6_addr *out) {
    *out = (struct in6_addr){.s6_addr = {[10] = 0xFF, [11] = 0xFF}};
    return inet_pton(AF_INET, text, &out->s6_addr[12]) == 1 || inet_pton(AF_INET6, text, out) == 1;
}

bool hearth_http_host_is_loopback(const char *host) {
    char bare[HEARTH_HTTP_HOST_BYTES];
    struct in6_addr address;
    if (!bare_host(host, bare)) {
        return false;
    }
    if (read_address(bare, &address)) {
        return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
    }
    return is_loopback_name(bare);
}

/* Whether both are the same name or address, however written. */
static bool same_host(const char *a, const char *b) {
    char one[HEARTH_HTTP_HOST_BYTES], other[HEARTH_HTTP_HOST_BYTES];
    struct in6_addr x, y;
    if (!bare_host(a, one) || !bare_host(b, other)) {
        return false;
    }
    return strcasecmp(one, other) == 0 ||
           (read_address(one, &x) && read_address(other, &y) && memcmp(&x, &y, sizeof x) == 0);
}

bool hearth_http_host_is_valid(const char *text, size_t len) {
    char word[HEARTH_HTTP_HOST_BYTES];
    struct in6_addr address;
    if (len == 0 || len >= sizeof word) {
        return false;
    }
    memcpy(word, text, len);
    word[len] = '\0';
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return word[strspn(word, name)] == '\0' || read_address(word, &address);
}

bool hearth_http_host_is_everywhere(const char *host) {
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    static const uint8_t none[4] = {0};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, "0", &hints, &list) != 0) { /* a name */
        return false;
    }
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)list->ai_addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)list->ai_addr;
    const bool every = list->ai_family == AF_INET ? v4->sin_addr.s_addr == INADDR_ANY
                                                  : IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) ||
                                                        (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
                                                         memcmp(&v6->sin6_addr.s6_addr[12], none, sizeof none) == 0);
    freeaddrinfo(list);
    return every;
}

/* Whether the host is known. A socket in a file is judged like a port, because browsers reach it through anything that
 * forwards a port to it (ssh -L, a proxy). */
static bool is_known_host(const struct hearth_http_origins *origins, const struct hearth_http_asker *asker) {
    const char *host = asker->host;
    if (host == NULL || hearth_http_host_is_loopback(host)) {
        return true;
    }
    return words_have(&origins->hosts, host, same_host) || same_host(host, asker->local) ||
           (*asker->local != '\0' && same_host(host, origins->listen)) || same_host(host, "0.0.0.0") ||
           same_host(host, "::");
}

/* ---- origins ---- */

/* What stands behind "scheme://"; NULL: nothing does. */
static const char *authority_of(const char *origin) {
    const char *colon = strstr(origin, "://");
    return colon != NULL && colon != origin && colon[3] != '\0' ? colon + 3 : NULL;
}

static bool has_scheme(const char *origin, const char *scheme) {
    const size_t len = strlen(scheme);
    return strncasecmp(origin, scheme, len) == 0 && strncmp(origin + len, "://", 3) == 0;
}

static bool is_web(const char *origin) {
    return has_scheme(origin, "http") || has_scheme(origin, "https");
}

/* The length of an origin without the default port of its scheme, which browsers leave out. */
static size_t length_without_port(const char *origin) {
    const size_t len = strlen(origin), tail = strlen(has_scheme(origin, "https") ? ":443" : ":80");
    const bool usual =
        is_web(origin) && len > tail && strcmp(origin + len - tail, has_scheme(origin, "https") ? ":443" : ":80") == 0;
    return usual ? len - tail : len;
}

/* "https://a.b:*" is every port of it. */
static bool matches(const char *word, const char *origin) {
    const size_t len = strlen(word);
    if (len < 2 || strcmp(word + len - 2, ":*") != 0) {
        const size_t most = length_without_port(word);
        return most == length_without_port(origin) && strncasecmp(word, origin, most) == 0;
    }
    const char *rest = origin + len - 2;
    return strncasecmp(word, origin, len - 2) == 0 &&
           (*rest == '\0' || (*rest == ':' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789")] == '\0'));
}

static bool is_local_page(const char *origin) {
    return has_scheme(origin, "app") || has_scheme(origin, "tauri") ||
           (is_web(origin) && hearth_http_host_is_loopback(authority_of(origin)));
}

static bool is_listed(const struct hearth_http_origins *origins, const char *origin) {
    if (authority_of(origin) == NULL) { /* "null" stands for every page without an origin of its own */
        return false;
    }
    for (const char *at = origins->origins.text; *at != '\0'; at += strlen(at) + 1) {
        if (matches(at, origin)) {
            return true;
        }
    }
    return origins->local && is_local_page(origin);
}

/* Whether the origin is the server's own. It serves no other page, but a user may open an answer and ask from there. */
static bool is_own(const char *origin, const char *host) {
    return host != NULL && is_web(origin) && authority_of(origin) != NULL &&
           strcasecmp(authority_of(origin), host) == 0;
}

/* "a.b", "a.b:80", "[::1]:*": a host with a port, or with every port. */
static bool is_host_with_port(const char *text) {
    const bool bracket = *text == '[';
    const size_t len = bracket ? strcspn(text, "]") + 1 : strcspn(text, ":");
    char *end;
    if (len == 0 || len > strlen(text) || memchr(text, '*', len) != NULL) {
        return false;
    }
    const char *port = text + len;
    if (*port == '\0' || strcmp(port, ":*") == 0) {
        return true;
    }
    const bool digits = *port == ':' && port[1] != '\0' && port[1 + strspn(port + 1, "0123456789")] == '\0';
    return digits && strtoul(port + 1, &end, 10) <= UINT16_MAX;
}

bool hearth_http_origin_is_valid(const char *text, size_t len) {
    char word[HEARTH_HTTP_HOST_BYTES];
    if (len == 0 || len >= sizeof word) {
        return false;
    }
    memcpy(word, text, len);
    word[len] = '\0';
    const char *authority = authority_of(word);
    return strcmp(word, "*") == 0 || strcmp(word, "localhost") == 0 ||
           (authority != NULL && strpbrk(authority, "/?#@\\ ") == NULL && is_host_with_port(authority));
}

/* ---- the whole ---- */

struct hearth_http_origins *hearth_http_origins_create(const char *listen, const char *const *origins,
                                                       size_t origin_count, const char *const *hosts,
                                                       size_t host_count) {
    struct hearth_http_origins *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    atomic_init(&made->keyed, false);
    made->listen = strdup(listen);
    if (made->listen == NULL || !words_take(&made->origins, origins, origin_count) ||
        !words_take(&made->hosts, hosts, host_count)) {
        hearth_http_origins_destroy(made);
        return NULL;
    }
    made->any = words_have(&made->origins, "*", same_word);
    made->local = words_have(&made->origins, "localhost", same_word);
    return made;
}

void hearth_http_origins_destroy(struct hearth_http_origins *origins) {
    if (origins != NULL) {
        free(origins->listen);
        free(origins->origins.text);
        free(origins->hosts.text);
        free(origins);
    }
}

void hearth_http_origins_set_keyed(struct hearth_http_origins *origins, bool keyed) {
    atomic_store(&origins->keyed, keyed);
}

const char *hearth_http_origins_grant(const struct hearth_http_origins *origins, const char *origin) {
    if (origins->any && atomic_load(&origins->keyed)) {
        return "*";
    }
    return is_listed(origins, origin) ? origin : NULL;
}

enum hearth_http_verdict hearth_http_origins_judge(const struct hearth_http_origins *origins,
                                                   const struct hearth_http_asker *asker) {
    if (atomic_load(&origins->keyed)) {
        const bool refused =
            asker->preflight && asker->origin != NULL && hearth_http_origins_grant(origins, asker->origin) == NULL;
        return refused ? HEARTH_HTTP_FOREIGN_ORIGIN : HEARTH_HTTP_ADMITTED;
    }
    if (!is_known_host(origins, asker)) {
        return HEARTH_HTTP_FOREIGN_HOST;
    }
    if (asker->origin != NULL) {
        return is_own(asker->origin, asker->host) || is_listed(origins, asker->origin) ? HEARTH_HTTP_ADMITTED
                                                                                       : HEARTH_HTTP_FOREIGN_ORIGIN;
    }
    return asker->site != NULL && strcasecmp(asker->site, "same-origin") != 0 && strcasecmp(asker->site, "none") != 0
               ? HEARTH_HTTP_FOREIGN_SITE
               : HEARTH_HTTP_ADMITTED;
}

/* Copies a client's text for a line of text. */
static void show(const char *text, char out[SHOWN + 1]) {
    size_t len = 0;
    for (; text != NULL && text[len] != '\0' && len < SHOWN; len++) {
        const char c = text[len];
        out[len] = c > ' ' && c < 0x7F && c != '"' && c != '\'' && c != '\\' ? c : '?';
    }
    out[len] = '\0';
}

void hearth_http_origin_explain(enum hearth_http_verdict verdict, const struct hearth_http_asker *asker, char *out,
                                size_t cap) {
    char shown[SHOWN + 1], bare[HEARTH_HTTP_HOST_BYTES];
    switch (verdict) {
    case HEARTH_HTTP_FOREIGN_HOST:
        show(bare_host(asker->host, bare) ? bare : asker->host, shown);
        snprintf(out, cap,
                 "'%s' is not known to be this server, and may be a web page's name for it: start it with "
                 "--allow-host %s, or with --api-key",
                 shown, shown);
        break;
    case HEARTH_HTTP_FOREIGN_ORIGIN:
        show(asker->origin, shown);
        if (authority_of(asker->origin) == NULL) {
            snprintf(out, cap,
                     "web pages without an origin ('%s') may not use this server: serve the page over HTTP and "
                     "start the server with its --cors-origin",
                     shown);
        } else {
            snprintf(out, cap, "web pages of '%s' may not use this server: start it with --cors-origin %s", shown,
                     shown);
        }
        break;
    case HEARTH_HTTP_FOREIGN_SITE:
    case HEARTH_HTTP_ADMITTED:
        snprintf(out, cap,
                 "web pages of other sites may not use this server: start it with --cors-origin and the "
                 "page's origin");
        break;
    }
}
