/* Which web pages may use the server. A browser sends a page's requests to any address that it can reach, loopback
 * included, and says in Origin, Host and Sec-Fetch-Site where they come from; other programs send no Origin, and a Host
 * that they were given.
 *
 * Where no key is needed, a request is refused when
 *
 *     its Host is neither loopback, nor what is listened on, nor allowed    a name that was rebound to this address
 *     its Origin is neither the server's own nor allowed                    a page of another site or another port
 *     it has no Origin, but Sec-Fetch-Site says that it is another site's   an image, a script, a link, a form
 *
 * Where keys are needed they decide, whichever page asks; preflights of pages that are not allowed are refused all the
 * same. Only allowed origins get Access-Control-Allow-Origin. X-Forwarded-Host and Referer are never believed. Source:
 * https://fetch.spec.whatwg.org/#http-cors-protocol, https://www.w3.org/TR/fetch-metadata/,
 * https://wicg.github.io/private-network-access/ */
#ifndef HEARTH_HTTP_ORIGIN_H
#define HEARTH_HTTP_ORIGIN_H

#include <stdbool.h>
#include <stddef.h>

#define HEARTH_HTTP_HOST_BYTES 256 /* of a host's name, with its NUL */

struct hearth_http_origins;

/* The parts of a request that decide. */
struct hearth_http_asker {
    const char *host;   /* of the target or the Host header; NULL: neither (HTTP/1.0) */
    const char *origin; /* NULL: not sent */
    const char *site;   /* Sec-Fetch-Site; NULL: not sent */
    const char *local;  /* the address of this end of the connection; "": it has none (a socket in a file) */
    bool preflight;
};

enum hearth_http_verdict {
    HEARTH_HTTP_ADMITTED,
    HEARTH_HTTP_FOREIGN_HOST,
    HEARTH_HTTP_FOREIGN_ORIGIN,
    HEARTH_HTTP_FOREIGN_SITE,
};

/* `listen` is the address of --host. Each of `origins` is "SCHEME://HOST", with ":PORT" or ":*" behind it, "localhost"
 * (any port of this machine, and desktop programs' pages: app://, tauri://), or "*"; each of `hosts` a name or an
 * address without its port; both may be several, separated by commas. Texts are copied. NULL: out of memory. Threads:
 * any, the same one at a time but for hearth_http_origins_set_keyed(). */
struct hearth_http_origins *hearth_http_origins_create(const char *listen, const char *const *origins,
                                                       size_t origin_count, const char *const *hosts,
                                                       size_t host_count);
void hearth_http_origins_destroy(struct hearth_http_origins *origins); /* NULL is allowed */

/* Says whether every request needs a key. Any thread. */
void hearth_http_origins_set_keyed(struct hearth_http_origins *origins, bool keyed);

enum hearth_http_verdict hearth_http_origins_judge(const struct hearth_http_origins *origins,
                                                   const struct hearth_http_asker *asker);
/* Writes, for the client, why it was refused, and which option of the server would admit it. */
void hearth_http_origin_explain(enum hearth_http_verdict verdict, const struct hearth_http_asker *asker, char *out,
                                size_t cap);
/* The value of Access-Control-Allow-Origin for a page of this origin; NULL: none. */
const char *hearth_http_origins_grant(const struct hearth_http_origins *origins, const char *origin);

/* Whether a word of --cors-origin is valid. */
bool hearth_http_origin_is_valid(const char *text, size_t len);
/* A name or an address, with or without a port, that is always this machine: localhost, *.localhost, 127.0.0.0/8 and
 * ::1. */
bool hearth_http_host_is_loopback(const char *host);
/* An address that stands for every one of this machine, however it is written: 0.0.0.0, ::, 0. */
bool hearth_http_host_is_everywhere(const char *host);
/* Whether a word of --allow-host is valid: a name, or an address without brackets; neither with a port. */
bool hearth_http_host_is_valid(const char *text, size_t len);

#endif
