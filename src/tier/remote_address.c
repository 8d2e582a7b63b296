/* URLs of a store. A password stands in a URL, so no error shows more of it than the scheme. */
#include "tier/remote_engine.h"

#include "base/memory.h"

#include <openssl/crypto.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
