/* URLs of a store. A password stands in a URL, so no error shows more of it than the scheme. */
#include "tier/remote_engine.h"

#include "base/memory.h"

#include <openssl/crypto.h>

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PORT 6379

/* Undoes %XX in place. False: a broken escape, or a NUL. */
static bool unescape(char *text) {
    char *out = text;
    for (const char *in = text; *in; in++) {
        unsigned byte = (unsigned char)*in;
        if (*in == '%') {
            char end;
            if (!in[1] || !in[2] || sscanf((const char[]){in[1], in[2], '\0'}, "%2x%c", &byte, &end) != 1 ||
                byte == 0) {
                return false;
            }
            in += 2;
        }
        *out++ = (char)byte;
    }
    *out = '\0';
    return true;
}

static bool number(const char *text, long most, int *out) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value > most) {
        return false;
    }
    *out = (int)value;
    return true;
}

/* user:password, without the "@". */
static bool take_user(char *text, struct hearth_remote_address *out) {
    char *colon = strchr(text, ':');
    if (!colon) {
        return false;
    }
    *colon = '\0';
    out->user = *text ? strdup(text) : NULL;
    out->password = strdup(colon + 1);
    return out->password && unescape(out->password) && (!*text || (out->user && unescape(out->user)));
}

/* host[:port], with brackets around an IPv6 address. */
static bool take_host(char *text, struct hearth_remote_address *out) {
    const bool bracketed = *text == '[';
    char *end = strpbrk(text, bracketed ? "]" : ":"), *port = NULL;
    if (bracketed && (!end || (end[1] && end[1] != ':'))) {
        return false;
    }
    if (end) {
        port = bracketed ? end + 1 : end;
        port = *port ? port + 1 : NULL;
        *end = '\0';
    }
    text += bracketed;
    out->port = PORT;
    if (!*text || (port && (!number(port, 65535, &out->port) || out->port == 0))) {
        return false;
    }
    out->host = strdup(text);
    return out->host != NULL;
}

static bool parse_network(char *rest, struct hearth_remote_address *out) {
    char *at = strrchr(rest, '@');
    if (at) {
        *at = '\0';
        if (!take_user(rest, out)) {
            return false;
        }
        rest = at + 1;
    }
    char *slash = strchr(rest, '/');
    if (slash) {
        *slash = '\0';
        if (slash[1] && !number(slash + 1, 1000000, &out->db)) {
            return false;
        }
    }
    if (!take_host(rest, out)) {
        return false;
    }
    (void)snprintf(out->label, sizeof out->label, "%s://%s:%d/%d", out->tls ? "rediss" : "redis", out->host, out->port,
                   out->db);
    return true;
}

static bool parse_unix(char *rest, struct hearth_remote_address *out) {
    char *query = strchr(rest, '?');
    if (query) {
        *query = '\0';
        if (strncmp(query + 1, "db=", 3) != 0 || !number(query + 4, 1000000, &out->db)) {
            return false;
        }
    }
    out->path = strdup(rest);
    (void)snprintf(out->label, sizeof out->label, "unix://%s", rest);
    return *rest && out->path;
}

int hearth_remote_address_parse(const char *url, struct hearth_remote_address *out, struct hearth_errmsg *msg) {
    static const struct {
        const char *scheme;
        bool tls, local;
    } SCHEMES[] = {{"redis://", false, false}, {"rediss://", true, false}, {"unix://", false, true}};
    *out = (struct hearth_remote_address){0};
    for (size_t i = 0; i < sizeof SCHEMES / sizeof *SCHEMES; i++) {
        const size_t len = strlen(SCHEMES[i].scheme);
        if (strncmp(url, SCHEMES[i].scheme, len) != 0) {
            continue;
        }
        char *copy = strdup(url);
        if (!copy) {
            return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
        }
        out->tls = SCHEMES[i].tls;
        const bool good = SCHEMES[i].local ? parse_unix(copy + len, out) : parse_network(copy + len, out);
        OPENSSL_cleanse(copy, strlen(url));
        free(copy);
        if (good) {
            return HEARTH_OK;
        }
        hearth_remote_address_finish(out);
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a %s address is %s", SCHEMES[i].scheme,
                           SCHEMES[i].local ? "unix:///PATH[?db=N]"
                                            : "[[USER]:PASSWORD@]HOST[:PORT][/DB], with %XX for special characters");
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "a store's address begins with redis://, rediss:// or unix://");
}

int hearth_remote_tls(const struct hearth_remote_address *address, const char *ca_file, redisSSLContext **out,
                      struct hearth_errmsg *msg) {
    redisSSLContextError error = REDIS_SSL_CTX_NONE;
    redisSSLOptions options = {.cacert_filename = ca_file,
                               .capath = ca_file ? NULL : "/etc/ssl/certs",
                               .server_name = address->host,
                               .verify_name = address->host,
                               .verify_mode = REDIS_SSL_VERIFY_PEER};
    (void)redisInitOpenSSL();
    *out = redisCreateSSLContextWithOptions(&options, &error);
    return *out ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_INVALID, "%s", redisSSLContextGetError(error));
}

void hearth_remote_address_finish(struct hearth_remote_address *address) {
    hearth_memory_wipe(address->password);
    free(address->user);
    free(address->host);
    free(address->path);
    *address = (struct hearth_remote_address){0};
}

/* ---- a cluster: scheme://user:password@HOST:PORT,HOST:PORT, and its slots ----
 *
 * A key's slot is that of what stands in its braces, which is the block's digest in hex (tier/remote_engine.h). */

bool hearth_remote_hosts_several(const char *url) {
    const char *at = strrchr(url, '@');
    return strncmp(url, "unix:", 5) != 0 && strchr(at ? at : url, ',') != NULL;
}

bool hearth_remote_hosts_seed(const char *url) {
    const char *scheme = strstr(url, "://"), *at = strrchr(url, '@');
    const char *host = at ? at + 1 : scheme ? scheme + 3 : url;
    return strncmp(url, "unix:", 5) != 0 && strpbrk(host, ",/") == NULL;
}

unsigned hearth_remote_numeric(const char *host, unsigned turn, char out[HEARTH_REMOTE_WHERE_BYTES]) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL, *at;
    unsigned n = 0;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return 0;
    }
    for (at = found; at; at = at->ai_next) {
        n++;
    }
    at = found;
    for (unsigned i = 0; i < turn % n; i++) {
        at = at->ai_next;
    }
    const bool good =
        getnameinfo(at->ai_addr, at->ai_addrlen, out, HEARTH_REMOTE_WHERE_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
    freeaddrinfo(found);
    return good ? n : 0;
}

char *hearth_remote_hosts_url(const struct hearth_remote_hosts *hosts, const char *where) {
    const size_t len = strlen(hosts->prefix) + strlen(where) + 1;
    char *url = malloc(len);
    if (url) {
        (void)snprintf(url, len, "%s%s", hosts->prefix, where);
    }
    return url;
}

void hearth_remote_hosts_finish(struct hearth_remote_hosts *hosts) {
    for (size_t i = 0; i < hosts->n; i++) {
        free(hosts->hosts[i]);
    }
    free(hosts->hosts);
    hearth_memory_wipe(hosts->prefix);
    *hosts = (struct hearth_remote_hosts){0};
}

static bool split(const char *text, struct hearth_remote_hosts *out) {
    bool good = out->prefix && out->hosts;
    for (const char *host = text; good && *host;) {
        const size_t len = strcspn(host, ",");
        const bool bracketed = *host == '[';
        const char *end = bracketed ? memchr(host, ']', len) : host;
        const bool ported = end && memchr(end, ':', len - (size_t)(end - host)) != NULL;
        char *where = malloc(len + 8);
        good = where != NULL;
        if (good) {
            (void)snprintf(where, len + 8, "%.*s%s", (int)len, host, ported ? "" : ":6379");
            out->hosts[out->n++] = where;
        }
        host += len + (host[len] == ',');
    }
    return good;
}

int hearth_remote_hosts_parse(const char *url, struct hearth_remote_hosts *out, struct hearth_errmsg *msg) {
    const char *scheme = strstr(url, "://"), *at = strrchr(url, '@');
    const char *text = at ? at + 1 : scheme ? scheme + 3 : url;
    *out = (struct hearth_remote_hosts){0};
    if (strchr(text, '/')) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a cluster has one database, so no /DB stands behind its hosts");
    }
    out->prefix = strndup(url, (size_t)(text - url));
    out->hosts = calloc(strlen(text) + 1, sizeof *out->hosts);
    int err = split(text, out) ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    for (size_t i = 0; err == HEARTH_OK && i < out->n; i++) {
        struct hearth_remote_address address;
        char *node = hearth_remote_hosts_url(out, out->hosts[i]);
        err = node ? hearth_remote_address_parse(node, &address, msg)
                   : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
        if (err == HEARTH_OK) {
            hearth_remote_address_finish(&address);
        }
        free(node);
    }
    if (err != HEARTH_OK) {
        hearth_remote_hosts_finish(out);
    }
    return err;
}

void hearth_remote_where(const char *host, int port, const char *asked, char where[HEARTH_REMOTE_WHERE_BYTES]) {
    const char *name = *host ? host : asked;
    const bool bare = strchr(name, ':') && *name != '['; /* an IPv6 address */
    (void)snprintf(where, HEARTH_REMOTE_WHERE_BYTES, bare ? "[%.*s]:%d" : "%.*s:%d", HEARTH_REMOTE_WHERE_BYTES - 16,
                   name, port);
}

/* CRC16/XMODEM, as the cluster's specification prescribes. */
static unsigned crc16(const char *bytes, size_t len) {
    unsigned crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned)(unsigned char)bytes[i] << 8;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
        }
    }
    return crc & 0xffff;
}

int hearth_remote_slot(struct hearth_digest base) {
    char hex[33];
    hearth_digest_hex(base, hex);
    return (int)(crc16(hex, 32) % HEARTH_REMOTE_SLOTS);
}
