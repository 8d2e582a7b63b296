/* Keys: what is sealed opens with the same key, the same additional data and unchanged bytes, and with nothing else;
 * key files that cannot be meant are refused with a line that says what to do. */
#include "base/seal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/hearth-seal-XXXXXX";

static const char *path_of(const char *name) {
    static char path[64];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *file(const char *name, size_t len, uint8_t first, mode_t mode) {
    const char *path = path_of(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < len; i++) {
        assert_true(putc((int)((first + i * 31) & 0xFF), f) != EOF);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static struct hearth_seal *seal_of(const char *name, size_t len, uint8_t first) {
    struct hearth_seal *seal = NULL;
    struct hearth_errmsg msg = {""};
    assert_int_equal(hearth_seal_create(file(name, len, first, 0600), &seal, &msg), HEARTH_OK);
    assert_non_null(seal);
    return seal;
}

static void opens_what_it_closed(void **state) {
    (void)state;
    struct hearth_seal *seal = seal_of("a", 32, 1);
    static uint8_t plain[100000], bytes[sizeof plain];
    for (size_t i = 0; i < sizeof plain; i++) {
        plain[i] = (uint8_t)(i * 7);
    }
    const size_t lens[] = {0, 1, 15, 16, 17, 4096, sizeof plain};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        uint8_t nonce[HEARTH_SEAL_NONCE_BYTES], tag[HEARTH_SEAL_TAG_BYTES];
        memcpy(bytes, plain, lens[i]);
        assert_true(hearth_seal_close(seal, "about", 5, bytes, lens[i], nonce, tag));
        assert_true(lens[i] < 15 || memcmp(bytes, plain, lens[i]) != 0);
        assert_true(hearth_seal_open(seal, "about", 5, bytes, lens[i], nonce, tag));
        assert_memory_equal(bytes, plain, lens[i]);
    }
    hearth_seal_destroy(seal);
    hearth_seal_destroy(NULL);
}

/* Each thing that is changed is put back before the next. */
static void opens_nothing_else(void **state) {
    (void)state;
    struct hearth_seal *seal = seal_of("a", 32, 1), *other = seal_of("b", 32, 2);
    uint8_t plain[64], closed[64], bytes[64], nonce[HEARTH_SEAL_NONCE_BYTES], tag[HEARTH_SEAL_TAG_BYTES];
    memset(plain, 9, sizeof plain);
    memcpy(closed, plain, sizeof plain);
    assert_true(hearth_seal_close(seal, "about", 5, closed, sizeof closed, nonce, tag));
#define OPENS(with, aad, aad_len, len) \
    (memcpy(bytes, closed, sizeof bytes), hearth_seal_open(with, aad, aad_len, bytes, len, nonce, tag))
    assert_true(OPENS(seal, "about", 5, 64));
    assert_false(OPENS(other, "about", 5, 64));
    assert_false(OPENS(seal, "abouT", 5, 64));
    assert_false(OPENS(seal, "about", 4, 64));
    assert_false(OPENS(seal, NULL, 0, 64));
    assert_false(OPENS(seal, "about", 5, 63));
    for (unsigned bit = 0; bit < 8 * sizeof closed; bit++) {
        closed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(OPENS(seal, "about", 5, 64));
        closed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * sizeof nonce; bit++) {
        nonce[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(OPENS(seal, "about", 5, 64));
        nonce[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * sizeof tag; bit++) {
        tag[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(OPENS(seal, "about", 5, 64));
        tag[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(OPENS(seal, "about", 5, 64));
    assert_memory_equal(bytes, plain, sizeof plain);
#undef OPENS
    hearth_seal_destroy(seal);
    hearth_seal_destroy(other);
}

static void nonces_differ(void **state) {
    (void)state;
    enum { TIMES = 200 };
    struct hearth_seal *seal = seal_of("a", 32, 1);
    uint8_t nonces[TIMES][HEARTH_SEAL_NONCE_BYTES], tag[HEARTH_SEAL_TAG_BYTES], byte = 0;
    for (int i = 0; i < TIMES; i++) {
        assert_true(hearth_seal_close(seal, NULL, 0, &byte, 1, nonces[i], tag));
        for (int k = 0; k < i; k++) {
            assert_memory_not_equal(nonces[i], nonces[k], HEARTH_SEAL_NONCE_BYTES);
        }
    }
    hearth_seal_destroy(seal);
}

static void ids_tell_keys_apart(void **state) {
    (void)state;
    struct hearth_seal *a = seal_of("a", 32, 1), *same = seal_of("same", 32, 1), *b = seal_of("b", 32, 2),
                       *longer = seal_of("longer", 33, 1);
    struct hearth_digest none = {0, 0};
    assert_true(hearth_digest_equal(hearth_seal_id(a), hearth_seal_id(same)));
    assert_true(hearth_digest_equal(hearth_seal_mark(a), hearth_seal_mark(same)));
    assert_false(hearth_digest_equal(hearth_seal_id(a), hearth_seal_id(b)));
    assert_false(hearth_digest_equal(hearth_seal_mark(a), hearth_seal_mark(b)));
    assert_false(hearth_digest_equal(hearth_seal_id(a), hearth_seal_id(longer)));
    assert_false(hearth_digest_equal(hearth_seal_id(a), hearth_seal_mark(a)));
    assert_false(hearth_digest_equal(hearth_seal_id(a), none));
    assert_false(hearth_digest_equal(hearth_seal_mark(a), none));
    /* And what one closed the other opens. */
    uint8_t byte = 5, nonce[HEARTH_SEAL_NONCE_BYTES], tag[HEARTH_SEAL_TAG_BYTES];
    assert_true(hearth_seal_close(a, NULL, 0, &byte, 1, nonce, tag));
    assert_true(hearth_seal_open(same, NULL, 0, &byte, 1, nonce, tag));
    assert_int_equal(byte, 5);
    hearth_seal_destroy(a);
    hearth_seal_destroy(same);
    hearth_seal_destroy(b);
    hearth_seal_destroy(longer);
}

/* The values that stand in files must be the same in every build: HKDF-SHA256 with salt "hearth", computed with
 * another implementation (Python's hmac) for 32 bytes 0, 1, ... 31. */
static void derivation_is_pinned(void **state) {
    (void)state;
    const char *path = path_of("counting");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (uint8_t i = 0; i < 32; i++) {
        assert_int_equal(write(fd, &i, 1), 1);
    }
    assert_int_equal(close(fd), 0);
    struct hearth_seal *seal = NULL;
    assert_int_equal(hearth_seal_create(path, &seal, NULL), HEARTH_OK);
    struct hearth_digest id = hearth_seal_id(seal), mark = hearth_seal_mark(seal);
    assert_true(id.lo == 0xD059B4E5E3095315u && id.hi == 0x4729ED09FCD04723u);
    assert_true(mark.lo == 0xA7E0B1BF05855541u && mark.hi == 0xA058A0ED4E9432B8u);
    hearth_seal_destroy(seal);
}

static void refused(const char *path, int want, const char *says) {
    struct hearth_errmsg msg = {""};
    struct hearth_seal *seal = (struct hearth_seal *)&msg;
    assert_int_equal(hearth_seal_create(path, &seal, &msg), want);
    assert_null(seal);
    if (strstr(msg.text, says) == NULL || strstr(msg.text, path) == NULL || strchr(msg.text, '\n') != NULL) {
        fail_msg("\"%s\" does not say \"%s\"", msg.text, says);
    }
    assert_int_equal(hearth_seal_create(path, &seal, NULL), want);
}

static void bad_key_files_are_refused(void **state) {
    (void)state;
    refused(file("empty", 0, 0, 0600), HEARTH_ERR_INVALID, "0 bytes");
    refused(file("short", 15, 0, 0600), HEARTH_ERR_INVALID, "15 bytes");
    refused(file("long", 1024 * 1024 + 1, 0, 0600), HEARTH_ERR_INVALID, "1 MiB");
    const mode_t modes[] = {0604, 0640, 0644, 0660, 0602, 0666};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        refused(file("open", 32, 0, modes[i]), HEARTH_ERR_INVALID, "chmod 600");
    }
    refused(path_of("missing"), HEARTH_ERR_IO, "No such file");
    refused(dir, HEARTH_ERR_INVALID, "not a regular file");
    const char *fifo = path_of("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refused(fifo, HEARTH_ERR_INVALID, "not a regular file"); /* and does not wait for a writer */
    /* The bounds themselves are fine. */
    hearth_seal_destroy(seal_of("least", 16, 0));
    hearth_seal_destroy(seal_of("most", 1024 * 1024, 0));
    struct hearth_seal *seal = NULL;
    assert_int_equal(hearth_seal_create(file("readonly", 32, 0, 0400), &seal, NULL), HEARTH_OK);
    hearth_seal_destroy(seal);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state) {
    (void)state;
    static const char *const names[] = {"a",     "b",    "same", "longer", "counting", "empty",   "long",
                                        "short", "open", "fifo", "least",  "most",     "readonly"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unlink(path_of(names[i]));
    }
    return rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_what_it_closed), cmocka_unit_test(opens_nothing_else),
        cmocka_unit_test(nonces_differ),        cmocka_unit_test(ids_tell_keys_apart),
        cmocka_unit_test(derivation_is_pinned), cmocka_unit_test(bad_key_files_are_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
