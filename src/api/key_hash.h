/* Keys as files may hold them: hashed, so that the file gives no key away. "sha256:SALT:HEX" is SHA-256 of the
 * salt's text and the key behind it; "sha256:HEX" has no salt. One round is enough for keys that cannot be guessed,
 * such as `hearth keys new` makes; a password is none. Threads: any. */
#ifndef HEARTH_API_KEY_HASH_H
#define HEARTH_API_KEY_HASH_H

#include <stdbool.h>

/* A longer key is refused, since a client without a key could otherwise make the server hash much. */
#define HEARTH_KEY_BYTES_MAX 4096
#define HEARTH_KEY_HASH_BYTES 32
#define HEARTH_KEY_HASH_SALT_MAX 64
#define HEARTH_KEY_HASH_TEXT_MAX (8 + HEARTH_KEY_HASH_SALT_MAX + 2 * HEARTH_KEY_HASH_BYTES + 1)

struct hearth_key_hash {
    char salt[HEARTH_KEY_HASH_SALT_MAX + 1];
    unsigned char digest[HEARTH_KEY_HASH_BYTES];
};

/* False: out of memory. */
bool hearth_key_hash_make(const char *salt, const char *key, struct hearth_key_hash *out);
/* Whether a text has the form of a hash; and reads it: false if it is malformed. */
bool hearth_key_hash_is(const char *text);
bool hearth_key_hash_read(const char *text, struct hearth_key_hash *out);
void hearth_key_hash_print(const struct hearth_key_hash *hash, char out[HEARTH_KEY_HASH_TEXT_MAX]);
/* Compares in a time that does not depend on where the two differ. */
bool hearth_key_hash_equal(const struct hearth_key_hash *a, const struct hearth_key_hash *b);

#endif
