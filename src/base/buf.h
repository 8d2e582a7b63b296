/* Growable arrays: bytes and tokens. Growth either succeeds or leaves the array as it was. */
#ifndef HEARTH_BASE_BUF_H
#define HEARTH_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t hearth_token;

/* Bytes. A zeroed struct is an empty buffer. The buffer owns `data`. Text that was appended by hearth_buf_text() or
 * hearth_buf_printf() has a NUL behind it, which `len` does not count. Functions return false when out of memory. */
struct hearth_buf {
    uint8_t *data;
    size_t len;
    size_t cap;
};

void hearth_buf_finish(struct hearth_buf *buf);
/* Room for `extra` more bytes. False: out of memory. */
bool hearth_buf_reserve(struct hearth_buf *buf, size_t extra);
bool hearth_buf_append(struct hearth_buf *buf, const void *bytes, size_t len);
/* Append text, and a NUL behind it. */
bool hearth_buf_text(struct hearth_buf *buf, const char *text);
bool hearth_buf_printf(struct hearth_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Gives the bytes to the caller, to be freed with free(): shrunk to about `len`; a text keeps its NUL. The buffer is
 * empty afterwards. NULL if it was empty. */
uint8_t *hearth_buf_take(struct hearth_buf *buf);

/* Tokens. A zeroed struct is an empty array. */
struct hearth_tokens {
    hearth_token *v;
    size_t n;
    size_t cap;
};

void hearth_tokens_finish(struct hearth_tokens *tokens);
bool hearth_tokens_reserve(struct hearth_tokens *tokens, size_t extra);
bool hearth_tokens_push(struct hearth_tokens *tokens, hearth_token token);
bool hearth_tokens_append(struct hearth_tokens *tokens, const hearth_token *v, size_t n);
/* Replaces the content. */
bool hearth_tokens_assign(struct hearth_tokens *tokens, const hearth_token *v, size_t n);

/* Length of the common prefix of two token arrays. */
size_t hearth_tokens_common(const hearth_token *a, size_t na, const hearth_token *b, size_t nb);

/* Room for one more in an array of `n` elements with the capacity `cap`, a size_t; both may change. False: out of
 * memory, and nothing has changed. */
#define HEARTH_BUF_ROOM(array, n, cap) hearth_buf_room(&(array), n, &(cap), sizeof *(array))
/* Likewise; `array` points to the array's pointer. */
bool hearth_buf_room(void *array, size_t n, size_t *cap, size_t size);

#endif
