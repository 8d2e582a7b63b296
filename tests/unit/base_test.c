/* The base room: growth, digests, UTF-8 at the edge of a stream, errors, logging. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/health.h"
#include "base/log.h"
#include "base/utf8.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/stops.h"

/* ---- buf ---- */

static void buf_grows(void **state) {
    (void)state;
    struct hearth_buf buf = {0};
    assert_null(hearth_buf_take(&buf));
    for (unsigned i = 0; i < 5000; i++) {
        uint8_t byte = (uint8_t)(i * 7);
        assert_true(hearth_buf_append(&buf, &byte, 1));
    }
    assert_int_equal(buf.len, 5000);
    for (unsigned i = 0; i < 5000; i++) {
        assert_int_equal(buf.data[i], (uint8_t)(i * 7));
    }
    uint8_t *bytes = hearth_buf_take(&buf);
    assert_non_null(bytes);
    assert_int_equal(bytes[4999], (uint8_t)(4999 * 7));
    assert_true(buf.data == NULL && buf.len == 0 && buf.cap == 0);
    free(bytes);
}

static void buf_text(void **state) {
    (void)state;
    struct hearth_buf buf = {0};
    assert_true(hearth_buf_text(&buf, ""));
    assert_string_equal((char *)buf.data, "");
    assert_true(hearth_buf_text(&buf, "ab"));
    assert_true(hearth_buf_printf(&buf, "%s=%d", "cd", 42));
    assert_int_equal(buf.len, 7);
    assert_string_equal((char *)buf.data, "abcd=42");
    hearth_buf_finish(&buf);
}

/* Of any length: some fill the block that they are shrunk to. */
static void a_text_is_taken_with_its_end(void **state) {
    (void)state;
    for (size_t len = 1; len < 100; len++) {
        struct hearth_buf buf = {0};
        assert_true(hearth_buf_reserve(&buf, 1000));
        assert_true(hearth_buf_printf(&buf, "%*s", (int)len, "x"));
        char *text = (char *)hearth_buf_take(&buf);
        assert_int_equal(strlen(text), len);
        free(text);
    }
}

static void growth_refuses_overflow(void **state) {
    (void)state;
    struct hearth_buf buf = {0};
    struct hearth_tokens tokens = {0};
    assert_true(hearth_buf_append(&buf, "x", 1) && hearth_tokens_push(&tokens, 9));
    assert_false(hearth_buf_reserve(&buf, SIZE_MAX));
    assert_false(hearth_buf_reserve(&buf, (size_t)PTRDIFF_MAX));
    assert_false(hearth_tokens_reserve(&tokens, SIZE_MAX / sizeof(hearth_token)));
    assert_false(hearth_tokens_reserve(&tokens, (size_t)PTRDIFF_MAX / sizeof(hearth_token)));
    assert_true(buf.len == 1 && buf.data[0] == 'x' && tokens.n == 1 && tokens.v[0] == 9);
    hearth_buf_finish(&buf);
    hearth_tokens_finish(&tokens);
}

static void tokens(void **state) {
    (void)state;
    struct hearth_tokens t = {0};
    const hearth_token v[] = {5, 6, 7, 8};
    assert_true(hearth_tokens_append(&t, v, 4) && hearth_tokens_append(&t, NULL, 0));
    assert_true(hearth_tokens_assign(&t, t.v + 1, 3)); /* a part of itself */
    assert_int_equal(t.n, 3);
    assert_memory_equal(t.v, v + 1, 3 * sizeof v[0]);
    assert_true(hearth_tokens_assign(&t, NULL, 0));
    assert_int_equal(t.n, 0);
    hearth_tokens_finish(&t);
}

static void common_prefix(void **state) {
    (void)state;
    enum { N = 300 };
    hearth_token a[N], b[N];
    for (int i = 0; i < N; i++) {
        a[i] = b[i] = i;
    }
    assert_int_equal(hearth_tokens_common(a, N, b, N), N);
    assert_int_equal(hearth_tokens_common(a, N, b, 65), 65);
    assert_int_equal(hearth_tokens_common(a, 0, b, N), 0);
    for (size_t at = 0; at < N; at++) {
        b[at] = -1;
        assert_int_equal(hearth_tokens_common(a, N, b, N), at);
        b[at] = (hearth_token)at;
    }
}

/* ---- digest ---- */

static void digests(void **state) {
    (void)state;
    char hex[33];
    /* XXH3-128 and XXH3-64 of the empty input, as their specification's test vectors have them. */
    hearth_digest_hex(hearth_digest_bytes(NULL, 0), hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    assert_true(hearth_checksum(NULL, 0) == 0x2d06800538d394c2u);

    /* A chain is the digest of the parent's 16 bytes followed by the input, whatever way it was computed. */
    uint8_t joined[16 + 5000];
    for (size_t i = 0; i < sizeof joined; i++) {
        joined[i] = (uint8_t)(i * 31);
    }
    struct hearth_digest parent = {.lo = 0, .hi = 0};
    for (int i = 0; i < 8; i++) {
        parent.hi = parent.hi << 8 | joined[i];
        parent.lo = parent.lo << 8 | joined[8 + i];
    }
    const size_t lens[] = {0, 1, 1024, 2048, 2049, 5000};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        struct hearth_digest whole = hearth_digest_bytes(joined, 16 + lens[i]);
        assert_true(hearth_digest_equal(hearth_digest_chain(parent, joined + 16, lens[i]), whole));
    }
    struct hearth_digest other = {.lo = parent.lo ^ 1, .hi = parent.hi};
    assert_false(hearth_digest_equal(parent, other));
    assert_false(hearth_digest_equal(hearth_digest_chain(other, joined, 8), hearth_digest_chain(parent, joined, 8)));
}

/* ---- UTF-8 ---- */

static const struct utf8_row {
    const char *text;
    size_t complete; /* bytes that may be shown */
    bool valid;
    const char *repaired;
} utf8_rows[] = {
    {"", 0, true, ""},
    {"plain", 5, true, "plain"},
    {"\xC3\xA9", 2, true, "\xC3\xA9"},
    {"a\xC3", 1, false, "a\xEF\xBF\xBD"},
    {"a\xE2\x82", 1, false, "a\xEF\xBF\xBD"},
    {"\xE2\x82\xAC", 3, true, "\xE2\x82\xAC"},
    {"\xF0\x9F\x98\x80", 4, true, "\xF0\x9F\x98\x80"},
    {"x\xF0\x9F\x98", 1, false, "x\xEF\xBF\xBD"},
    {"x\xF0\x9F", 1, false, "x\xEF\xBF\xBD"},
    {"x\xF0", 1, false, "x\xEF\xBF\xBD"},
    {"\x80", 1, false, "\xEF\xBF\xBD"}, /* a stray continuation */
    {"\x80\x80\x80\x80", 4, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\xC0\xAF", 2, false, "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong */
    {"\xE0\x80\x80", 3, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* overlong */
    {"\xE0\x80", 2, false, "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* never becomes a character */
    {"\xED\xA0\x80", 3, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate */
    {"\xED\x9F\xBF", 3, true, "\xED\x9F\xBF"},
    {"\xF4\x8F\xBF\xBF", 4, true, "\xF4\x8F\xBF\xBF"},
    {"\xF4\x90\x80\x80", 4, false, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* above U+10FFFF */
    {"\xF5", 1, false, "\xEF\xBF\xBD"},
    {"\xFF", 1, false, "\xEF\xBF\xBD"},
    {"\xE2\x82"
     "a",
     3, false,
     "\xEF\xBF\xBD"
     "a"}, /* one mark for one broken character */
    {"\xF0\x9F\x98"
     "b",
     4, false,
     "\xEF\xBF\xBD"
     "b"},
    {"\xC3\xA9\xC3", 2, false, "\xC3\xA9\xEF\xBF\xBD"},
};

static void utf8_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof utf8_rows / sizeof utf8_rows[0]; i++) {
        const struct utf8_row *row = &utf8_rows[i];
        size_t len = strlen(row->text);
        struct hearth_buf out = {0};
        assert_int_equal(hearth_utf8_complete(row->text, len), row->complete);
        assert_int_equal(hearth_utf8_valid(row->text, len), row->valid);
        assert_true(hearth_utf8_append(&out, row->text, len));
        assert_string_equal((char *)out.data, row->repaired);
        assert_int_equal(out.len, strlen(row->repaired));
        hearth_buf_finish(&out);
    }
}

/* Any bytes, cut anywhere: what is shown piece by piece is what is shown at once. */
static void utf8_stream(void **state) {
    (void)state;
    struct rng rng = {seed_announced(1)};
    static const char alphabet[] = {'a',    '\x80', '\xA0', '\xBF', '\xC3', '\xE0',
                                    '\xE2', '\xED', '\xF0', '\xF4', '\xFF'};
    for (int round = 0; round < 20000; round++) {
        char text[24];
        size_t len = rng_below(&rng, sizeof text), start = 0;
        for (size_t i = 0; i < len; i++) {
            text[i] = alphabet[rng_below(&rng, sizeof alphabet)];
        }
        struct hearth_buf once = {0}, pieces = {0};
        assert_true(hearth_utf8_append(&once, text, len));
        assert_true(hearth_utf8_valid((char *)once.data, once.len));
        for (size_t end = 1; end <= len; end++) {
            size_t shown = hearth_utf8_complete(text + start, end - start);
            assert_true(end - start - shown <= 3);
            assert_true(hearth_utf8_append(&pieces, text + start, shown));
            start += shown;
        }
        assert_true(hearth_utf8_append(&pieces, text + start, len - start));
        assert_string_equal((char *)pieces.data, (char *)once.data);
        hearth_buf_finish(&once);
        hearth_buf_finish(&pieces);
    }
}

/* ---- err, assert, log, clock ---- */

static void errors(void **state) {
    (void)state;
    struct hearth_errmsg msg;
    assert_string_equal(hearth_err_text(HEARTH_OK), "ok");
    assert_string_equal(hearth_err_text(HEARTH_ERR_NO_CELLS), "no free cells in the KV cache");
    assert_string_equal(hearth_err_text(-999), "unknown error");
    assert_int_equal(hearth_err_http(HEARTH_OK), 200);
    assert_int_equal(hearth_err_http(HEARTH_ERR_NOT_FOUND), 404);
    assert_int_equal(hearth_err_http(1), 500);
    assert_int_equal(hearth_fail(&msg, HEARTH_ERR_IO, "%d of %s", 3, "four"), HEARTH_ERR_IO);
    assert_string_equal(msg.text, "3 of four");
    assert_int_equal(hearth_fail(NULL, HEARTH_ERR_IO, "nobody reads this"), HEARTH_ERR_IO);
    (void)hearth_fail(&msg, HEARTH_ERR_IO, "near '%s'", "a\n\x1b[2Jb\x7f");
    assert_string_equal(msg.text, "near 'a  [2Jb '"); /* one line, and nothing that a terminal obeys */
    char long_text[2 * sizeof msg.text];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    (void)hearth_fail(&msg, HEARTH_ERR_IO, "%s", long_text);
    assert_int_equal(strlen(msg.text), sizeof msg.text - 1);
}

static void assertions_stop(void **state) {
    (void)state;
    HEARTH_ASSERT(1 + 1 == 2);
    assert_stops(HEARTH_ASSERT(1 + 1 == 3));
}

static struct {
    int lines;
    enum hearth_log_level level;
    char last[4096];
} seen;

static void sink(void *user, enum hearth_log_level level, const char *line) {
    assert_ptr_equal(user, &seen);
    seen.lines++;
    seen.level = level;
    (void)snprintf(seen.last, sizeof seen.last, "%s", line);
}

static void logging(void **state) {
    (void)state;
    hearth_log(HEARTH_LOG_ERROR, "into silence");
    hearth_log_set(sink, &seen, HEARTH_LOG_INFO);
    assert_int_equal(hearth_log_lowest(), HEARTH_LOG_INFO);
    hearth_log(HEARTH_LOG_DEBUG, "too low");
    assert_int_equal(seen.lines, 0);
    hearth_log(HEARTH_LOG_WARN, "a line %d\n", 7);
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, HEARTH_LOG_WARN);
    assert_string_equal(seen.last, "a line 7");
    hearth_log(HEARTH_LOG_ERROR, "%03000d", 1); /* longer than the stack's room */
    assert_int_equal(strlen(seen.last), 3000);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    hearth_log(HEARTH_LOG_ERROR, "silence again");
    assert_int_equal(seen.lines, 2);
}

static void health(void **state) {
    (void)state;
    char message[16];
    seen.lines = 0;
    hearth_log_set(sink, &seen, HEARTH_LOG_INFO);
    assert_false(hearth_health_raised(HEARTH_HEALTH_KV_DIR, message, sizeof message));
    assert_string_equal(message, "");
    hearth_health_clear(HEARTH_HEALTH_KV_DIR); /* was not raised: nothing to tell */
    assert_int_equal(seen.lines, 0);
    for (int i = 0; i < 2; i++) { /* told once */
        hearth_health_raise(HEARTH_HEALTH_KV_DIR, "no %s, twenty characters", "directory");
        assert_int_equal(seen.lines, 1);
    }
    assert_true(hearth_health_raised(HEARTH_HEALTH_KV_DIR, message, sizeof message));
    assert_string_equal(message, "no directory, t");
    hearth_health_raise(HEARTH_HEALTH_KV_DIR, "another message");
    assert_int_equal(seen.lines, 2);
    assert_false(hearth_health_raised(HEARTH_HEALTH_KV_DISK, NULL, 0));
    hearth_health_clear(HEARTH_HEALTH_KV_DIR);
    assert_int_equal(seen.lines, 3);
    assert_false(hearth_health_raised(HEARTH_HEALTH_KV_DIR, NULL, 0));
    assert_string_equal(hearth_health_name(HEARTH_HEALTH_KV_DIR), "kv_dir");
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
}

static void clocks(void **state) {
    (void)state;
    int64_t before = hearth_clock_us();
    usleep(2000);
    int64_t passed = hearth_clock_us() - before;
    assert_true(passed >= 2000 && passed < 60 * 1000000);
    assert_true(hearth_clock_unix() > 1600000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_grows),
        cmocka_unit_test(buf_text),
        cmocka_unit_test(a_text_is_taken_with_its_end),
        cmocka_unit_test(growth_refuses_overflow),
        cmocka_unit_test(tokens),
        cmocka_unit_test(common_prefix),
        cmocka_unit_test(digests),
        cmocka_unit_test(utf8_table),
        cmocka_unit_test(utf8_stream),
        cmocka_unit_test(errors),
        cmocka_unit_test(assertions_stop),
        cmocka_unit_test(logging),
        cmocka_unit_test(clocks),
        cmocka_unit_test(health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
