/* Checks the head of a request, beyond what llhttp itself refuses.
 *
 * llhttp, without any of its lenient flags, refuses what is not HTTP: a bare LF, a folded line, a space before a
 * colon, a control character in a value, a chunk that does not end in CRLF, Content-Length beside Transfer-Encoding.
 * This file refuses what is well formed but can be understood in two ways: a second copy of a header that may occur
 * once, a missing or malformed Host, an unknown transfer coding, a target that names another host than the Host
 * header does.
 *
 * Source: RFC 9112, sections 2.3, 3.2, 6.1, 6.3, 7.4; RFC 9110, sections 5.3, 7.2, 9.3, 15.5, 15.6 */
#include "http/conn.h"

#include <string.h>
#include <strings.h>

const char *hearth_http_conn_header(const struct hearth_http_conn *conn, const char *name) {
    for (size_t i = 0; i < conn->header_count; i++) {
        if (strcasecmp((const char *)conn->head.data + conn->headers[i].name, name) == 0) {
            return (const char *)conn->head.data + conn->headers[i].value;
        }
    }
    return NULL;
}

/* Headers that may occur once: of two copies, one program would read the first and another the last. */
#define SINGLE_TABLE(X)    \
    X("Authorization")     \
    X("Content-Length")    \
    X("Content-Type")      \
    X("Expect")            \
    X("Host")              \
    X("Origin")            \
    X("Sec-Fetch-Site")    \
    X("Transfer-Encoding") \
    X("X-Api-Key")

static const struct {
    const char *name, *message;
} singles[] = {
#define X(name) {name, "the request has more than one header " name},
    SINGLE_TABLE(X)
#undef X
};

/* Methods that some route may have; all others are not implemented. */
static const llhttp_method_t methods[] = {HTTP_GET,   HTTP_HEAD,   HTTP_POST,   HTTP_PUT,
                                          HTTP_PATCH, HTTP_DELETE, HTTP_OPTIONS};

static bool refuse(struct hearth_http_refusal *out, int status, const char *message) {
    *out = (struct hearth_http_refusal){.status = status, .message = message};
    return false;
}

static bool is_served(uint8_t method) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i] == method) {
            return true;
        }
    }
    return false;
}

static const char *name_at(const struct hearth_http_conn *conn, uint32_t i) {
    return (const char *)conn->head.data + conn->headers[i].name;
}

static bool check_singles(const struct hearth_http_conn *conn, struct hearth_http_refusal *out) {
    for (size_t k = 0; k < sizeof singles / sizeof singles[0]; k++) {
        unsigned count = 0;
        for (uint32_t i = 0; i < conn->header_count; i++) {
            count += strcasecmp(name_at(conn, i), singles[k].name) == 0;
        }
        if (count > 1) {
            return refuse(out, 400, singles[k].message);
        }
    }
    return true;
}

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Whether `text` can be a host, with or without a port. What one program reads as the host must not be the port for
 * another. */
static bool is_authority(const char *text, size_t len) {
    const bool bracket = len > 0 && *text == '[';
    const char *others = bracket ? ":.%-_~" : "-._~%!$&'()*+;=";
    size_t at = bracket, from = at;
    while (at < len && (is_plain(text[at]) || (text[at] != '\0' && strchr(others, text[at]) != NULL))) {
        at++;
    }
    if (at == from || (bracket && (at == len || text[at++] != ']'))) {
        return false;
    }
    if (at < len && text[at++] != ':') {
        return false;
    }
    unsigned port = 0;
    while (at < len && text[at] >= '0' && text[at] <= '9' && port <= UINT16_MAX) {
        port = 10 * port + (unsigned)(text[at++] - '0');
    }
    return at == len && port <= UINT16_MAX;
}

static bool check_host(const struct hearth_http_conn *conn, const struct hearth_http_target *target,
                       struct hearth_http_refusal *out) {
    const char *host = hearth_http_conn_header(conn, "host");
    if (host == NULL) {
        return conn->parser.http_minor == 0 || refuse(out, 400, "the request has no header Host");
    }
    if (!is_authority(host, strlen(host))) {
        return refuse(out, 400, "the request's header Host names no host");
    }
    if (target->authority_len > 0 &&
        (strlen(host) != target->authority_len || strncasecmp(host, target->authority, target->authority_len) != 0)) {
        return refuse(out, 400, "the request's URL names another host than its header Host");
    }
    return true;
}

/* Checks the transfer coding: only chunked is known, and it must be the only one. */
static bool check_coding(const struct hearth_http_conn *conn, struct hearth_http_refusal *out) {
    static const char chunked[] = "chunked";
    const char *coding = hearth_http_conn_header(conn, "transfer-encoding");
    if (coding == NULL) {
        return true;
    }
    if (hearth_http_conn_header(conn, "content-length") != NULL) {
        return refuse(out, 400, "the request has both Content-Length and Transfer-Encoding");
    }
    if (conn->parser.http_minor == 0) {
        return refuse(out, 400, "HTTP/1.0 has no Transfer-Encoding");
    }
    if (strcasecmp(coding, chunked) == 0) {
        return true;
    }
    const char *last = strrchr(coding, ',');
    last = last != NULL ? last + 1 + strspn(last + 1, " \t") : coding;
    if (strcasecmp(last, chunked) != 0) {
        return refuse(out, 400, "the last coding of Transfer-Encoding is not chunked");
    }
    return refuse(out, 501, "the only Transfer-Encoding that is understood here is chunked");
}

bool hearth_http_target_split(const char *text, size_t len, struct hearth_http_target *out) {
    *out = (struct hearth_http_target){0};
    const char *end = text + len;
    if (len == 0 || memchr(text, '#', len) != NULL) {
        return false;
    }
    const char *path = text;
    if (*text != '/' && !(len == 1 && *text == '*')) {
        const size_t scheme_len = len > 7 && strncasecmp(text, "http://", 7) == 0    ? 7
                                  : len > 8 && strncasecmp(text, "https://", 8) == 0 ? 8
                                                                                     : 0;
        out->authority = text + scheme_len;
        for (path = out->authority; path < end && *path != '/' && *path != '?'; path++) {
        }
        out->authority_len = (size_t)(path - out->authority);
        if (scheme_len == 0 || !is_authority(out->authority, out->authority_len)) {
            return false;
        }
    }
    const char *mark = path < end ? memchr(path, '?', (size_t)(end - path)) : NULL;
    out->path = path;
    out->path_len = (size_t)((mark != NULL ? mark : end) - path);
    out->query = mark != NULL ? mark + 1 : end;
    out->query_len = (size_t)(end - out->query);
    return true;
}

bool hearth_http_head_check(const struct hearth_http_conn *conn, struct hearth_http_refusal *out) {
    const llhttp_t *parser = &conn->parser;
    struct hearth_http_target target;
    if (parser->http_major != 1) {
        return refuse(out, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    }
    if (!is_served(parser->method)) {
        return refuse(out, 501, "this request method is not implemented");
    }
    if (!hearth_http_target_split((const char *)conn->url.data, conn->url.len, &target) ||
        (*target.path == '*' && parser->method != HTTP_OPTIONS)) {
        return refuse(out, 400, "the request's URL is malformed");
    }
    if (!check_singles(conn, out) || !check_host(conn, &target, out) || !check_coding(conn, out)) {
        return false;
    }
    const char *expect = hearth_http_conn_header(conn, "expect");
    if (expect != NULL && parser->http_minor >= 1 && strcasecmp(expect, "100-continue") != 0) {
        return refuse(out, 417, "this expectation cannot be met");
    }
    return true;
}
