/* AES-256-GCM under a key that is derived from a file.
 *
 * The file's bytes are input keying material for HKDF-SHA256 (RFC 5869). Each derived key has an `info` of its own,
 * so no key tells anything about another. The key is not stretched: the file should hold random bytes, not a
 * password.
 *
 * Nonces are 96 random bits (NIST SP 800-38D, 8.2.2). Two for each file and at most 2^32 for a key is two thousand
 * million files.
 *
 * File bytes and derived keys are wiped before their memory is freed. */
#include "base/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

enum {
    KEY_BYTES = 32,
    FILE_BYTES_MIN = 16,
    FILE_BYTES_MAX = 1024 * 1024,
    STEP_BYTES = 1 << 30, /* OpenSSL counts in int */
};

struct hearth_seal {
    uint8_t key[KEY_BYTES];
    struct hearth_digest id, mark;
};

static bool derive(const uint8_t *material, size_t len, const char *info, uint8_t *out, size_t out_len) {
    static const char salt[] = "hearth";
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
    size_t got = out_len;
    bool ok = ctx && EVP_PKEY_derive_init(ctx) > 0 && EVP_PKEY_CTX_set_hkdf_md(ctx, EVP_sha256()) > 0 &&
              EVP_PKEY_CTX_set1_hkdf_salt(ctx, (const unsigned char *)salt, (int)strlen(salt)) > 0 &&
              EVP_PKEY_CTX_set1_hkdf_key(ctx, material, (int)len) > 0 &&
              EVP_PKEY_CTX_add1_hkdf_info(ctx, (const unsigned char *)info, (int)strlen(info)) > 0 &&
              EVP_PKEY_derive(ctx, out, &got) > 0 && got == out_len;
    EVP_PKEY_CTX_free(ctx);
    return ok;
}

/* The same on every machine: the bytes as two little-endian numbers. */
static bool derive_digest(const uint8_t *material, size_t len, const char *info, struct hearth_digest *out) {
    uint8_t bytes[16];
    uint64_t half[2] = {0, 0};
    if (!derive(material, len, info, bytes, sizeof bytes)) {
        return false;
    }
    for (unsigned i = 0; i < sizeof bytes; i++) {
        half[i / 8] |= (uint64_t)bytes[i] << 8 * (i % 8);
    }
    *out = (struct hearth_digest){.lo = half[0], .hi = half[1]};
    out->lo += half[0] == 0 && half[1] == 0; /* zero means "no key" */
    return true;
}

static int read_open_file(int fd, const char *path, uint8_t *bytes, size_t *len, struct hearth_errmsg *msg) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "key file %s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "key file %s is not a regular file", path);
    }
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "key file %s is open to other users; please run: chmod 600 %s",
                           path, path);
    }
    *len = 0;
    for (;;) {
        ssize_t n = read(fd, bytes + *len, FILE_BYTES_MAX + 1 - *len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return hearth_fail(msg, HEARTH_ERR_IO, "key file %s: %s", path, strerror(errno));
        }
        if (n == 0) {
            break;
        }
        *len += (size_t)n;
        if (*len > FILE_BYTES_MAX) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "key file %s is longer than 1 MiB: is it the right file?",
                               path);
        }
    }
    if (*len < FILE_BYTES_MIN) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "key file %s holds %zu bytes, a key needs at least %d; to make one: "
                           "head -c 32 /dev/urandom > FILE && chmod 600 FILE",
                           path, *len, FILE_BYTES_MIN);
    }
    return HEARTH_OK;
}

/* Everything that is derived from keying material. */
static bool derive_all(const uint8_t *material, size_t len, struct hearth_seal *seal) {
    return derive(material, len, "hearth state 1: key", seal->key, sizeof seal->key) &&
           derive_digest(material, len, "hearth state 1: id", &seal->id) &&
           derive_digest(material, len, "hearth state 1: mark", &seal->mark);
}

int hearth_seal_create_from(const uint8_t secret[32], struct hearth_seal **out, struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_seal *seal = calloc(1, sizeof *seal);
    if (!seal) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
    }
    if (!derive_all(secret, 32, seal)) {
        hearth_seal_destroy(seal);
        return hearth_fail(msg, HEARTH_ERR_ENGINE, "OpenSSL could not derive a key");
    }
    *out = seal;
    return HEARTH_OK;
}

int hearth_seal_create(const char *key_file, struct hearth_seal **out, struct hearth_errmsg *msg) {
    *out = NULL;
    int fd = open(key_file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "key file %s: %s", key_file, strerror(errno));
    }
    size_t len = 0;
    uint8_t *bytes = malloc(FILE_BYTES_MAX + 1);
    struct hearth_seal *seal = calloc(1, sizeof *seal);
    int err = !bytes || !seal ? hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM))
                              : read_open_file(fd, key_file, bytes, &len, msg);
    (void)close(fd);
    if (err == HEARTH_OK && !derive_all(bytes, len, seal)) {
        err = hearth_fail(msg, HEARTH_ERR_ENGINE, "OpenSSL could not derive a key from %s", key_file);
    }
    if (bytes) {
        OPENSSL_cleanse(bytes, len <= FILE_BYTES_MAX ? len : FILE_BYTES_MAX + 1);
    }
    free(bytes);
    if (err != HEARTH_OK) {
        hearth_seal_destroy(seal);
        return err;
    }
    *out = seal;
    return HEARTH_OK;
}

void hearth_seal_destroy(struct hearth_seal *seal) {
    if (seal) {
        OPENSSL_cleanse(seal, sizeof *seal);
        free(seal);
    }
}

struct hearth_digest hearth_seal_id(const struct hearth_seal *seal) {
    return seal->id;
}

struct hearth_digest hearth_seal_mark(const struct hearth_seal *seal) {
    return seal->mark;
}

/* Additional data (`out` NULL) or bytes, in steps that OpenSSL can count. */
static bool update(EVP_CIPHER_CTX *ctx, uint8_t *out, const uint8_t *in, size_t len) {
    for (size_t at = 0; at < len;) {
        int step = len - at < STEP_BYTES ? (int)(len - at) : STEP_BYTES, n = 0;
        if (EVP_CipherUpdate(ctx, out ? out + at : NULL, &n, in + at, step) != 1 || n != step) {
            return false;
        }
        at += (size_t)step;
    }
    return true;
}

bool hearth_seal_close(const struct hearth_seal *seal, const void *aad, size_t aad_len, void *bytes, size_t len,
                       uint8_t nonce[HEARTH_SEAL_NONCE_BYTES], uint8_t tag[HEARTH_SEAL_TAG_BYTES]) {
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    uint8_t rest[16];
    int n = 0;
    bool ok = ctx && RAND_bytes(nonce, HEARTH_SEAL_NONCE_BYTES) == 1 &&
              EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, seal->key, nonce, 1) == 1 &&
              update(ctx, NULL, aad, aad_len) && update(ctx, bytes, bytes, len) &&
              EVP_CipherFinal_ex(ctx, rest, &n) == 1 && n == 0 &&
              EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, HEARTH_SEAL_TAG_BYTES, tag) == 1;
    EVP_CIPHER_CTX_free(ctx);
    return ok;
}

struct hearth_seal_opening {
    EVP_CIPHER_CTX *ctx;
    bool failed;
};

struct hearth_seal_opening *hearth_seal_open_begin(const struct hearth_seal *seal, const void *aad, size_t aad_len,
                                                   const uint8_t nonce[HEARTH_SEAL_NONCE_BYTES]) {
    struct hearth_seal_opening *unsealing = calloc(1, sizeof *unsealing);
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    if (!unsealing || !ctx || EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, seal->key, nonce, 0) != 1 ||
        !update(ctx, NULL, aad, aad_len)) {
        EVP_CIPHER_CTX_free(ctx);
        free(unsealing);
        return NULL;
    }
    unsealing->ctx = ctx;
    return unsealing;
}

void hearth_seal_open_part(struct hearth_seal_opening *unsealing, void *bytes, size_t len) {
    unsealing->failed = unsealing->failed || !update(unsealing->ctx, bytes, bytes, len);
}

bool hearth_seal_open_end(struct hearth_seal_opening *unsealing, const uint8_t tag[HEARTH_SEAL_TAG_BYTES]) {
    uint8_t rest[16], want[HEARTH_SEAL_TAG_BYTES];
    int n = 0;
    if (!unsealing) {
        return false;
    }
    memcpy(want, tag, sizeof want);
    const bool ok = !unsealing->failed &&
                    EVP_CIPHER_CTX_ctrl(unsealing->ctx, EVP_CTRL_GCM_SET_TAG, HEARTH_SEAL_TAG_BYTES, want) == 1 &&
                    EVP_CipherFinal_ex(unsealing->ctx, rest, &n) == 1 && n == 0;
    EVP_CIPHER_CTX_free(unsealing->ctx);
    free(unsealing);
    return ok;
}

bool hearth_seal_open(const struct hearth_seal *seal, const void *aad, size_t aad_len, void *bytes, size_t len,
                      const uint8_t nonce[HEARTH_SEAL_NONCE_BYTES], const uint8_t tag[HEARTH_SEAL_TAG_BYTES]) {
    struct hearth_seal_opening *unsealing = hearth_seal_open_begin(seal, aad, aad_len, nonce);
    if (unsealing) {
        hearth_seal_open_part(unsealing, bytes, len);
    }
    return hearth_seal_open_end(unsealing, tag);
}
