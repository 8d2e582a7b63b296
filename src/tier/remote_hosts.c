/* URLs of a cluster, scheme://user:password@HOST:PORT,HOST:PORT, and its slots.
 *
 * A key's slot is that of what stands in its braces, which is the block's digest in hex (tier/remote_engine.h). */
#include "tier/remote_hosts.h"

#include "tier/remote.h"

#include "base/memory.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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
