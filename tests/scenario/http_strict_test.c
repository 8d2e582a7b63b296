/* What is HTTP/1.1 and what is not: a table of requests, each with the answers that must come, byte for byte as a
 * client would send it over a connection of its own. Behind each request that is refused stands another one, which
 * must never be answered: what two readers would divide differently is no request at all. Rows follow RFC 9112. */
#include "support/http_stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static struct hearth_http_server *server;

static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct hearth_buf body = {0}, out = {0};
    (void)user;
    hearth_http_take_body(exchange, &body);
    const char *mark = hearth_http_header(exchange, "x-mark");
    assert_true(hearth_buf_printf(&out, "%s %s?%s [%.*s]%s", hearth_http_method(exchange), hearth_http_path(exchange),
                                  hearth_http_query(exchange), (int)body.len,
                                  body.len > 0 ? (const char *)body.data : "", mark != NULL ? mark : ""));
    hearth_http_respond(exchange, 200, "text/plain", out.data, out.len);
    hearth_http_body_freed(server, body.len);
    hearth_buf_finish(&body);
    hearth_buf_finish(&out);
}

static int setup(void **state) {
    struct hearth_http_params params;
    struct hearth_errmsg msg;
    const struct hearth_http_handler handler = {.request = on_request, .error = fill_error};
    (void)state;
    hearth_http_params_default(&params);
    params.port = 0;
    params.header_bytes = 4096;
    if (hearth_http_create(&params, &handler, &server, &msg) != HEARTH_OK) {
        return -1;
    }
    hearth_http_set_keyed(server, true); /* any name may stand in Host */
    return hearth_http_start(server);
}

static int teardown(void **state) {
    (void)state;
    hearth_http_destroy(server);
    return 0;
}

#define H "Host: t\r\n"
#define NEXT "GET /next HTTP/1.1\r\n" H "\r\n"
#define GET "GET /x HTTP/1.1\r\n" H
#define POST "POST /x HTTP/1.1\r\n" H
#define TE "Transfer-Encoding: chunked\r\n"
#define CHUNKED POST TE "\r\n"

/* `bytes` 0: of the text's own length. */
struct row {
    const char *name, *request;
    int status;
    const char *body; /* of the answer; NULL: any */
    size_t bytes;
};

static const struct row refused[] = {
    /* lines */
    {"bare LF behind the request line", "GET /x HTTP/1.1\n" H "\r\n", 400, NULL, 0},
    {"bare LF behind a header", "GET /x HTTP/1.1\r\nHost: t\n\r\n", 400, NULL, 0},
    {"bare LF at the end of the head", GET "\n", 400, NULL, 0},
    {"bare CR in a value", GET "A: b\rc\r\n\r\n", 400, NULL, 0},
    {"bare CR in the request line", "GET /x\r HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"NUL in a value", GET "A: b\0c\r\n\r\n", 400, NULL, 36},
    {"NUL in a name", GET "A\0: b\r\n\r\n", 400, NULL, 35},
    {"a control character in a value", GET "A: b\001\r\n\r\n", 400, NULL, 0},
    {"a folded header", GET "A: b\r\n c\r\n\r\n", 400, NULL, 0},
    {"a header folded by a tab", GET "A: b\r\n\tc\r\n\r\n", 400, NULL, 0},
    {"a folded Transfer-Encoding", POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"white space before the first header", "GET /x HTTP/1.1\r\n " H "\r\n", 400, NULL, 0},
    {"a space before the colon", "GET /x HTTP/1.1\r\nHost : t\r\n\r\n", 400, NULL, 0},
    {"a space before the colon of a length", POST "Content-Length : 3\r\n\r\nabc", 400, NULL, 0},
    {"a space in a name", GET "Bad Header: x\r\n\r\n", 400, NULL, 0},
    {"a header without a name", GET ": x\r\n\r\n", 400, NULL, 0},
    {"a header without a colon", GET "Header\r\n\r\n", 400, NULL, 0},
    /* the request line */
    {"HTTP/0.9", "GET /x\r\n", 505, NULL, 0},
    {"HTTP/0.9 with a space", "GET /x \r\n", 400, NULL, 0},
    {"HTTP/1.2", "GET /x HTTP/1.2\r\n" H "\r\n", 505, NULL, 0},
    {"HTTP/2 over plain TCP", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, NULL, 0},
    {"HTTP/3.0", "GET /x HTTP/3.0\r\n" H "\r\n", 505, NULL, 0},
    {"HTTP/11", "GET /x HTTP/11\r\n" H "\r\n", 400, NULL, 0},
    {"http/1.1", "GET /x http/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"another protocol", "GET /x RTSP/1.0\r\n" H "\r\n", 400, NULL, 0},
    {"an unknown method", "FROB /x HTTP/1.1\r\n" H "\r\n", 501, NULL, 0},
    {"a method in small letters", "get /x HTTP/1.1\r\n" H "\r\n", 501, NULL, 0},
    {"CONNECT", "CONNECT t:80 HTTP/1.1\r\nHost: t:80\r\n\r\n", 501, NULL, 0},
    {"TRACE", "TRACE /x HTTP/1.1\r\n" H "\r\n", 501, NULL, 0},
    {"a method of WebDAV", "PROPFIND /x HTTP/1.1\r\n" H "\r\n", 501, NULL, 0},
    {"a TLS client", "\x16\x03\x01\x02\r\n\r\n", 501, NULL, 0},
    {"a target that is none", "GET x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an asterisk that is no OPTIONS", "GET * HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a fragment", "GET /x#y HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"two spaces before the target", "GET  /x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"two spaces before the version", "GET /x  HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a space behind the version", "GET /x HTTP/1.1 \r\n" H "\r\n", 400, NULL, 0},
    {"a space before the method", " GET /x HTTP/1.1\r\n" H "\r\n", 501, NULL, 0},
    {"a tab before the target", "GET \t/x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"two lines before the request", "\r\n\r\nGET /x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a bare LF before the request", "\nGET /x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a bare CR before the request", "\rGET /x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a space in the target", "GET /x y HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"a broken escape", "GET /%zz HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an escaped NUL", "GET /%00 HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an absolute target of another host", "GET http://other/x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an absolute target of another port", "GET http://t:81/x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an absolute target with a user", "GET http://t@t/x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an absolute target of another scheme", "GET ftp://t/x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    {"an absolute target without a host", "GET http:///x HTTP/1.1\r\n" H "\r\n", 400, NULL, 0},
    /* hosts */
    {"no Host", "GET /x HTTP/1.1\r\n\r\n", 400, NULL, 0},
    {"no Host but an absolute target", "GET http://t/x HTTP/1.1\r\n\r\n", 400, NULL, 0},
    {"two Hosts", GET "host: u\r\n\r\n", 400, NULL, 0},
    {"the same Host twice", GET H "\r\n", 400, NULL, 0},
    {"an empty Host", "GET /x HTTP/1.1\r\nHost:\r\n\r\n", 400, NULL, 0},
    {"two names in one Host", "GET /x HTTP/1.1\r\nHost: t, u\r\n\r\n", 400, NULL, 0},
    {"a path in Host", "GET /x HTTP/1.1\r\nHost: t/u\r\n\r\n", 400, NULL, 0},
    {"a port that is none", "GET /x HTTP/1.1\r\nHost: localhost:evil.test\r\n\r\n", 400, NULL, 0},
    {"a port with a sign", "GET /x HTTP/1.1\r\nHost: localhost:+80\r\n\r\n", 400, NULL, 0},
    {"two ports", "GET /x HTTP/1.1\r\nHost: localhost:1:2\r\n\r\n", 400, NULL, 0},
    {"a name behind an address", "GET /x HTTP/1.1\r\nHost: [::1]evil.test\r\n\r\n", 400, NULL, 0},
    {"an address without its bracket", "GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, NULL, 0},
    {"IPv6 without brackets", "GET /x HTTP/1.1\r\nHost: ::1\r\n\r\n", 400, NULL, 0},
    {"two Sec-Fetch-Sites", GET H "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n\r\n", 400, NULL, 0},
    {"a port in Host that is no number", "GET /x HTTP/1.1\r\nHost: t:80a\r\n\r\n", 400, NULL, 0},
    {"a port in Host that is none", "GET /x HTTP/1.1\r\nHost: t:65536\r\n\r\n", 400, NULL, 0},
    {"a port in Host and no name", "GET /x HTTP/1.1\r\nHost: :80\r\n\r\n", 400, NULL, 0},
    {"a user in Host", "GET /x HTTP/1.1\r\nHost: u@t\r\n\r\n", 400, NULL, 0},
    /* headers that may stand once */
    {"two Authorizations", GET "Authorization: a\r\nAuthorization: b\r\n\r\n", 400, NULL, 0},
    {"two keys", GET "x-api-key: a\r\nX-API-Key: b\r\n\r\n", 400, NULL, 0},
    {"two Origins", GET "Origin: null\r\nOrigin: http://t\r\n\r\n", 400, NULL, 0},
    {"two Content-Types", POST "Content-Type: a/b\r\ncontent-type: a/b\r\nContent-Length: 0\r\n\r\n", 400, NULL, 0},
    {"two lengths", POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, NULL, 0},
    {"the same length twice", POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, NULL, 0},
    {"the same length twice in one", POST "Content-Length: 3, 3\r\n\r\nabc", 400, NULL, 0},
    {"two Expects", POST "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", 400, NULL, 0},
    /* lengths */
    {"a length that is no number", POST "Content-Length: ten\r\n\r\n", 400, NULL, 0},
    {"a length without digits", POST "Content-Length:\r\n\r\n", 400, NULL, 0},
    {"a length with a sign", POST "Content-Length: +3\r\n\r\nabc", 400, NULL, 0},
    {"a length below zero", POST "Content-Length: -1\r\n\r\n", 400, NULL, 0},
    {"a length in hex", POST "Content-Length: 0x3\r\n\r\nabc", 400, NULL, 0},
    {"a length in two words", POST "Content-Length: 3 3\r\n\r\nabc", 400, NULL, 0},
    {"a length beyond 64 bits", POST "Content-Length: 18446744073709551619\r\n\r\nabc", 400, NULL, 0},
    {"a length beyond the limit", POST "Content-Length: 18446744073709551614\r\n\r\n", 413, NULL, 0},
    /* codings */
    {"CL.TE", POST "Content-Length: 3\r\n" TE "\r\n0\r\n\r\n", 400, NULL, 0},
    {"TE.CL", POST TE "Content-Length: 3\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"TE.TE", POST TE "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"chunked in two headers", POST TE TE "\r\n", 400, NULL, 0},
    {"chunked twice", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"gzip below chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, NULL, 0},
    {"gzip above chunked", POST "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"gzip alone", POST "Transfer-Encoding: gzip\r\n\r\n", 400, NULL, 0},
    {"identity", POST "Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc", 400, NULL, 0},
    {"almost chunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"chunked with a parameter", POST "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"chunked in quotes", POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400, NULL, 0},
    {"an empty coding", POST "Transfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc", 400, NULL, 0},
    {"chunked in HTTP/1.0", "POST /x HTTP/1.0\r\n" H TE "\r\n0\r\n\r\n", 400, NULL, 0},
    /* chunks */
    {"a chunk size that is no number", CHUNKED "zz\r\n", 400, NULL, 0},
    {"a chunk size with 0x", CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk size with a sign", CHUNKED "+3\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk size behind a space", CHUNKED " 3\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk size before a space", CHUNKED "3 \r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"no chunk size", CHUNKED "\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk size beyond 64 bits", CHUNKED "10000000000000003\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk of all that 64 bits can tell", CHUNKED "ffffffffffffffff\r\nabc", 413, NULL, 0},
    {"a chunk beyond the limit", CHUNKED "4000001\r\nabc", 413, NULL, 0},
    {"two chunks beyond the limit", CHUNKED "1\r\na\r\n4000000\r\nabc", 413, NULL, 0},
    {"a size line that ends in LF", CHUNKED "3\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk that ends in LF", CHUNKED "3\r\nabc\n0\r\n\r\n", 400, NULL, 0},
    {"a chunk that ends in CR", CHUNKED "3\r\nabc\r0\r\n\r\n", 400, NULL, 0},
    {"a chunk that ends in nothing", CHUNKED "3\r\nabc0\r\n\r\n", 400, NULL, 0},
    {"a chunk that is too long", CHUNKED "3\r\nabcdef\r\n0\r\n\r\n", 400, NULL, 0},
    {"an extension that ends in LF", CHUNKED "3;a\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"an extension with a CR", CHUNKED "3;a\rb\r\nabc\r\n0\r\n\r\n", 400, NULL, 0},
    {"trailers that end in LF", CHUNKED "3\r\nabc\r\n0\r\n\n", 400, NULL, 0},
    {"a length as a trailer", CHUNKED "3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n", 400, NULL, 0},
    {"a folded trailer", CHUNKED "3\r\nabc\r\n0\r\nA: b\r\n c\r\n\r\n", 400, NULL, 0},
};

static const struct row taken[] = {
    {"a query", "GET /a%20b?x=%20y HTTP/1.1\r\n" H "\r\n", 200, "GET /a b?x=%20y []", 0},
    {"slashes in a row", "GET //a///b/?c=//d/ HTTP/1.1\r\n" H "\r\n", 200, "GET /a/b?c=//d/ []", 0},
    {"nothing but slashes", "GET // HTTP/1.1\r\n" H "\r\n", 200, "GET /? []", 0},
    {"slashes that belong to a name", "GET /a/b%2F%2Fc%2F HTTP/1.1\r\n" H "\r\n", 200, "GET /a/b//c/? []", 0},
    {"an absolute target", "GET http://T/x?y HTTP/1.1\r\n" H "\r\n", 200, "GET /x?y []", 0},
    {"an absolute target without a path", "GET http://t?y HTTP/1.1\r\n" H "\r\n", 200, "GET /?y []", 0},
    {"an empty port", "GET /x HTTP/1.1\r\nHost: t:\r\n\r\n", 200, "GET /x? []", 0},
    {"an IPv6 host", "GET /x HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200, "GET /x? []", 0},
    {"a line before the request", "\r\nGET /x HTTP/1.1\r\n" H "\r\n", 200, "GET /x? []", 0},
    {"white space around a value", GET "X-Mark: \t m  n \t \r\n\r\n", 200, "GET /x? []m  n", 0},
    {"no white space before a value", GET "X-Mark:m\r\n\r\n", 200, "GET /x? []m", 0},
    {"an empty value", GET "X-Mark:\r\n\r\n", 200, "GET /x? []", 0},
    {"an offered upgrade", GET "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200, "GET /x? []", 0},
    {"an upgrade with a body", POST "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc", 200,
     "POST /x? [abc]", 0},
    {"a length", POST "Content-Length: 3\r\n\r\nabc", 200, "POST /x? [abc]", 0},
    {"a length with zeros", POST "Content-Length: 0003 \r\n\r\nabc", 200, "POST /x? [abc]", 0},
    {"chunks", CHUNKED "3\r\nabc\r\n02\r\nde\r\n0\r\n\r\n", 200, "POST /x? [abcde]", 0},
    {"a coding in capitals", POST "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "POST /x? [abc]", 0},
    {"extensions", CHUNKED "3;a=b;c=\"d\";e\r\nabc\r\n0;f\r\n\r\n", 200, "POST /x? [abc]", 0},
    {"a trailer that nobody reads", CHUNKED "3\r\nabc\r\n0\r\nX-Mark: m\r\n\r\n", 200, "POST /x? [abc]", 0},
    {"a GET with a body", GET "Content-Length: 3\r\n\r\nabc", 200, "GET /x? [abc]", 0},
};

static void send_row(struct client *client, const struct row *row) {
    assert_true(client_open(client, hearth_http_port(server)));
    assert_true(client_send(client, row->request, row->bytes > 0 ? row->bytes : strlen(row->request)));
}

static void refuses(void **state) {
    unsigned wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct row *row = &refused[i];
        struct client client;
        struct response response;
        char connection[16] = "";
        send_row(&client, row);
        client_text(&client, NEXT); /* which may find the connection closed */
        shutdown(client.fd, SHUT_WR);
        const bool came = client_response(&client, false, &response);
        response_header(&response, "Connection", connection, sizeof connection);
        if (!came || response.status != row->status || strcmp(connection, "close") != 0 || !client_at_end(&client)) {
            print_error("%s: %d %s (%s)\n", row->name, response.status,
                        response.body.data != NULL ? (const char *)response.body.data : "", connection);
            wrong++;
        }
        response_finish(&response);
        client_close(&client);
    }
    assert_int_equal(wrong, 0);
}

/* The same whether it comes at once or byte by byte, and the request behind it is the next one. */
static void takes(void **state) {
    unsigned wrong = 0;
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof taken / sizeof taken[0]); i++) {
        const struct row *row = &taken[i / 2];
        struct client client;
        struct response response, next;
        if (i % 2 == 0) {
            send_row(&client, row);
        } else {
            assert_true(client_open(&client, hearth_http_port(server)));
            for (const char *c = row->request; *c != '\0'; c++) {
                assert_true(client_send(&client, c, 1));
            }
        }
        assert_true(client_text(&client, NEXT));
        const bool came = client_response(&client, false, &response) && client_response(&client, false, &next);
        if (!came || response.status != row->status || strcmp((const char *)response.body.data, row->body) != 0 ||
            strcmp((const char *)next.body.data, "GET /next? []") != 0) {
            print_error("%s: %d %s\n", row->name, response.status,
                        response.body.data != NULL ? (const char *)response.body.data : "");
            wrong++;
        }
        response_finish(&response);
        response_finish(&next);
        client_close(&client);
    }
    assert_int_equal(wrong, 0);
}

static void takes_http_1_0_without_a_host(void **state) {
    struct client client;
    struct response response;
    (void)state;
    assert_true(client_open(&client, hearth_http_port(server)));
    assert_true(client_text(&client, "GET /x HTTP/1.0\r\n\r\n"));
    assert_true(client_response(&client, false, &response));
    assert_int_equal(response.status, 200);
    response_finish(&response);
    assert_true(client_at_end(&client));
    client_close(&client);
}

/* Each way to make a chunked body long without content ends; what ordinary clients send does not. */
static void bounds_what_is_no_content(void **state) {
    static const struct {
        const char *before, *again, *after;
        unsigned times;
        int status;
    } cases[] = {
        {"1;a=", "b", "\r\nx\r\n0\r\n\r\n", 100000, 400},    {"1;a=\"", "b", "\"\r\nx\r\n0\r\n\r\n", 100000, 400},
        {"", "0", "1\r\nx\r\n0\r\n\r\n", 100000, 400},       {"0\r\n", "A: b\r\n", "\r\n", 10000, 400},
        {"0\r\nA: ", "b", "\r\n\r\n", 100000, 400},          {"", "1;a=b;c=d\r\nx\r\n", "0\r\n\r\n", 10000, 400},
        {"", "1\r\nx\r\n", "0\r\n\r\n", 10000, 200},         {"", "3;a=b\r\nxyz\r\n", "0\r\n\r\n", 10000, 200},
        {"3\r\nxyz\r\n0\r\n", "A: b\r\n", "\r\n", 100, 200},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_buf all = {0};
        struct client client;
        struct response response;
        assert_true(hearth_buf_text(&all, cases[i].before));
        for (unsigned k = 0; k < cases[i].times; k++) {
            assert_true(hearth_buf_text(&all, cases[i].again));
        }
        assert_true(hearth_buf_text(&all, cases[i].after));
        assert_true(client_open(&client, hearth_http_port(server)) && client_text(&client, CHUNKED));
        (void)client_send(&client, all.data, all.len);
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, cases[i].status);
        response_finish(&response);
        client_close(&client);
        hearth_buf_finish(&all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses),
        cmocka_unit_test(takes),
        cmocka_unit_test(takes_http_1_0_without_a_host),
        cmocka_unit_test(bounds_what_is_no_content),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
