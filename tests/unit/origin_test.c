/* Which web pages may use the server: the rules of http/origin.h, case by case. */
#include "http/origin.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

static enum hearth_http_verdict judge(const struct hearth_http_origins *origins, const char *host, const char *origin,
                                      const char *site) {
    const struct hearth_http_asker asker = {.host = host, .origin = origin, .site = site, .local = "127.0.0.1"};
    return hearth_http_origins_judge(origins, &asker);
}

static void hosts_without_a_key(void **state) {
    static const char *const allowed[] = {"llm.lan,Box.Home.", "2001:db8:0::7"};
    static const char *const good[] = {
        "localhost",  "LOCALHOST:8080", "a.localhost:1",    "127.0.0.1:8080",       "127.9.9.9",
        "[::1]:8080", "[::1]",          "localhost.",       "[::ffff:127.0.0.1]:1", "llm.lan:80",
        "LLM.lan.",   "box.home",       "[2001:DB8::7]:80", "0.0.0.0:8080",         "[::]:8080"};
    static const char *const bad[] = {"evil.test",
                                      "evil.test:8080",
                                      "localhost.evil.test",
                                      "evillocalhost",
                                      ".localhost.evil",
                                      "127.0.0.1.evil.test",
                                      "10.0.0.1",
                                      "0.0.0.1",
                                      "[::2]",
                                      "",
                                      "llm.lan.evil.test",
                                      "[::1",
                                      "127.1",
                                      "@localhost",
                                      "localhost@evil.test"};
    struct hearth_http_origins *origins = hearth_http_origins_create("127.0.0.1", NULL, 0, allowed, 2);
    (void)state;
    assert_non_null(origins);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(judge(origins, good[i], NULL, NULL), HEARTH_HTTP_ADMITTED);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(judge(origins, bad[i], NULL, NULL), HEARTH_HTTP_FOREIGN_HOST);
    }
    assert_int_equal(judge(origins, NULL, NULL, NULL), HEARTH_HTTP_ADMITTED);
    hearth_http_origins_set_keyed(origins, true);
    assert_int_equal(judge(origins, "evil.test", NULL, NULL), HEARTH_HTTP_ADMITTED);
    hearth_http_origins_destroy(origins);
}

/* What is listened on is a name of the server: the address of this end, and what --host says. */
static void hosts_of_a_network_address(void **state) {
    struct hearth_http_origins *origins = hearth_http_origins_create("0.0.0.0", NULL, 0, NULL, 0);
    struct hearth_http_asker asker = {.host = "192.168.1.7:8080", .local = "192.168.1.7"};
    (void)state;
    assert_non_null(origins);
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    asker.host = "0.0.0.0:8080";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    asker.host = "192.168.1.8";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_HOST);
    asker.host = "[::]";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    hearth_http_origins_destroy(origins);
    /* A client of IPv4 at a socket of IPv6. */
    origins = hearth_http_origins_create("::", NULL, 0, NULL, 0);
    asker = (struct hearth_http_asker){.host = "192.168.1.7:8080", .local = "::ffff:192.168.1.7"};
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    asker.host = "192.168.1.8:8080";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_HOST);
    hearth_http_origins_destroy(origins);
    origins = hearth_http_origins_create("gpu.lan", NULL, 0, NULL, 0);
    asker = (struct hearth_http_asker){.host = "GPU.lan:1", .local = "fe80::1"};
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    asker.host = "[fe80:0::1]:1";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    hearth_http_origins_destroy(origins);
}

/* No browser reaches a socket in a file, but a port may be forwarded to it. */
static void hosts_of_a_socket_in_a_file(void **state) {
    struct hearth_http_origins *origins = hearth_http_origins_create("unix:/run/hearth", NULL, 0, NULL, 0);
    struct hearth_http_asker asker = {.host = "localhost", .local = ""};
    (void)state;
    assert_non_null(origins);
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    asker.host = "evil.test:8080";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_HOST);
    asker.origin = "http://evil.test:8080";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_HOST);
    asker.host = "unix";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_HOST);
    hearth_http_origins_destroy(origins);
}

static void addresses_of_every_interface(void **state) {
    static const char *const good[] = {"0.0.0.0", "::", "0", "00.0.0.0", "::0", "0:0::0", "::ffff:0.0.0.0"};
    static const char *const bad[] = {"127.0.0.1", "::1", "localhost", "0.0.0.1", "unix:0", "", "::ffff:10.0.0.1"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(hearth_http_host_is_everywhere(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(hearth_http_host_is_everywhere(bad[i]));
    }
}

/* What could never be met is no word of --allow-host. */
static void words_for_hosts(void **state) {
    static const char *const good[] = {"llm.lan", "llm.lan.", "my_box", "10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"};
    static const char *const bad[] = {"",         "llm.lan:8080", "10.0.0.1:80", "*.lan", "[::1]",
                                      "http://x", "a/b",          "u@a",         "::1%lo"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(hearth_http_host_is_valid(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(hearth_http_host_is_valid(bad[i], strlen(bad[i])));
    }
}

/* Browsers leave out the port that a scheme has anyway. */
static void usual_ports_are_left_out(void **state) {
    static const char *const named[] = {"https://a.test:443,http://b.test:80,https://c.test:80"};
    static const char *const good[] = {"https://a.test", "https://A.test:443", "http://b.test", "https://c.test:80"};
    static const char *const bad[] = {"http://a.test", "https://b.test", "http://b.test:443", "https://c.test",
                                      "https://a.test:4430"};
    struct hearth_http_origins *origins = hearth_http_origins_create("127.0.0.1", named, 1, NULL, 0);
    (void)state;
    assert_non_null(origins);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", good[i], NULL), HEARTH_HTTP_ADMITTED);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", bad[i], NULL), HEARTH_HTTP_FOREIGN_ORIGIN);
    }
    hearth_http_origins_destroy(origins);
}

static void origins_without_a_key(void **state) {
    static const char *const named[] = {"https://ui.example", "http://dev.example:*,app://notes"};
    static const char *const good[] = {"https://ui.example",      "HTTPS://UI.example", "http://dev.example",
                                       "http://dev.example:3000", "app://notes",        "http://localhost:8080",
                                       "https://localhost:8080"};
    static const char *const bad[] = {"null",
                                      "",
                                      "http://ui.example",
                                      "https://ui.example:444",
                                      "https://ui.example.evil",
                                      "https://evil.test",
                                      "http://dev.example.evil:1",
                                      "http://dev.example:1.evil",
                                      "http://dev.example:",
                                      "http://localhost:8081",
                                      "http://localhost",
                                      "http://127.0.0.1:8080",
                                      "app://other",
                                      "file://",
                                      "*"};
    struct hearth_http_origins *origins = hearth_http_origins_create("127.0.0.1", named, 2, NULL, 0);
    (void)state;
    assert_non_null(origins);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", good[i], "cross-site"), HEARTH_HTTP_ADMITTED);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", bad[i], NULL), HEARTH_HTTP_FOREIGN_ORIGIN);
        assert_null(hearth_http_origins_grant(origins, bad[i]));
    }
    assert_string_equal(hearth_http_origins_grant(origins, good[0]), good[0]);
    assert_null(hearth_http_origins_grant(origins, "http://localhost:8080")); /* its own page needs no grant */
    hearth_http_origins_destroy(origins);
}

static void pages_of_this_machine(void **state) {
    static const char *const named[] = {"localhost"};
    static const char *const good[] = {"http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173",
                                       "tauri://localhost",     "app://obsidian.md", "http://ui.localhost:1"};
    static const char *const bad[] = {"null",
                                      "http://localhost.evil.test",
                                      "http://127.0.0.1.evil.test:80",
                                      "ftp://localhost",
                                      "http://evil.test#localhost",
                                      "chrome-extension://abc"};
    struct hearth_http_origins *origins = hearth_http_origins_create("127.0.0.1", named, 1, NULL, 0);
    (void)state;
    assert_non_null(origins);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", good[i], NULL), HEARTH_HTTP_ADMITTED);
        assert_string_equal(hearth_http_origins_grant(origins, good[i]), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(judge(origins, "localhost:8080", bad[i], NULL), HEARTH_HTTP_FOREIGN_ORIGIN);
    }
    hearth_http_origins_destroy(origins);
}

static void requests_without_an_origin(void **state) {
    struct hearth_http_origins *origins = hearth_http_origins_create("127.0.0.1", NULL, 0, NULL, 0);
    (void)state;
    assert_non_null(origins);
    assert_int_equal(judge(origins, "localhost", NULL, "none"), HEARTH_HTTP_ADMITTED);
    assert_int_equal(judge(origins, "localhost", NULL, "same-origin"), HEARTH_HTTP_ADMITTED);
    assert_int_equal(judge(origins, "localhost", NULL, "same-site"), HEARTH_HTTP_FOREIGN_SITE);
    assert_int_equal(judge(origins, "localhost", NULL, "cross-site"), HEARTH_HTTP_FOREIGN_SITE);
    hearth_http_origins_destroy(origins);
}

/* With keys a page may ask as it likes: it has none. It learns nothing by preflights, and every origin may be named. */
static void origins_with_keys(void **state) {
    static const char *const every[] = {"*"};
    struct hearth_http_asker asker = {.host = "x", .origin = "https://evil.test", .local = "127.0.0.1"};
    struct hearth_http_origins *origins = hearth_http_origins_create("0.0.0.0", NULL, 0, NULL, 0);
    (void)state;
    assert_non_null(origins);
    hearth_http_origins_set_keyed(origins, true);
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    assert_null(hearth_http_origins_grant(origins, asker.origin));
    asker.preflight = true;
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_ORIGIN);
    hearth_http_origins_destroy(origins);
    origins = hearth_http_origins_create("0.0.0.0", every, 1, NULL, 0);
    asker.host = "localhost";
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_FOREIGN_ORIGIN); /* no key, no "*" */
    hearth_http_origins_set_keyed(origins, true);
    assert_int_equal(hearth_http_origins_judge(origins, &asker), HEARTH_HTTP_ADMITTED);
    assert_string_equal(hearth_http_origins_grant(origins, asker.origin), "*");
    hearth_http_origins_destroy(origins);
}

static void words_of_the_option(void **state) {
    static const char *const good[] = {"*", "localhost", "https://a.b", "http://a.b:80", "http://[::1]:*", "app://x"};
    static const char *const bad[] = {"",
                                      "a.b",
                                      "null",
                                      "https://",
                                      "https://a.b/",
                                      "https://a/c",
                                      "://a",
                                      "http://u@a",
                                      "https://*.a.b",
                                      "https://*",
                                      "http://*:*",
                                      "http://a.b:x",
                                      "http://a.b:",
                                      "http://a:1:2",
                                      "http://a:65536",
                                      "http://[::1"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(hearth_http_origin_is_valid(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(hearth_http_origin_is_valid(bad[i], strlen(bad[i])));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_without_a_key),
        cmocka_unit_test(hosts_of_a_network_address),
        cmocka_unit_test(hosts_of_a_socket_in_a_file),
        cmocka_unit_test(addresses_of_every_interface),
        cmocka_unit_test(words_for_hosts),
        cmocka_unit_test(usual_ports_are_left_out),
        cmocka_unit_test(origins_without_a_key),
        cmocka_unit_test(pages_of_this_machine),
        cmocka_unit_test(requests_without_an_origin),
        cmocka_unit_test(origins_with_keys),
        cmocka_unit_test(words_of_the_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
