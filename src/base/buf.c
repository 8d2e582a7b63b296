/* Growable arrays.
 *
 * One growth function serves both element sizes. Invariants: `len <= cap`; `data == NULL` exactly when `cap == 0`;
 * a failed call changes nothing. Capacity grows by half, so that appending n elements one by one costs O(n). */
#include "base/buf.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALLEST_BYTES = 64 };

/* Makes room for `extra` more elements of `size` bytes. Objects are kept below PTRDIFF_MAX bytes, as the language
 * wants them. */
static bool grow(void **data, size_t len, size_t *cap, size_t extra, size_t size) {
    const size_t most = (size_t)PTRDIFF_MAX / size;
    HEARTH_ASSERT(len <= *cap);
    if (extra <= *cap - len) {
        return true;
    }
    if (extra > most || len > most - extra) {
        return false;
    }
    size_t want = *cap <= most - *cap / 2 ? *cap + *cap / 2 : most;
    if (want < len + extra) {
        want = len + extra;
    }
    if (want < SMALLEST_BYTES / size) {
        want = SMALLEST_BYTES / size;
    }
    void *grown = hearth_memory_realloc(*data, want * size);
    if (!grown) {
        return false;
    }
    *data = grown;
    *cap = want;
    return true;
}

bool hearth_buf_room(void *array, size_t n, size_t *cap, size_t size) {
    void *data;
    memcpy(&data, array, sizeof data); /* a pointer of another type */
    const bool ok = grow(&data, n, cap, 1, size);
    memcpy(array, &data, sizeof data);
    return ok;
}

void hearth_buf_finish(struct hearth_buf *buf) {
    free(buf->data);
    *buf = (struct hearth_buf){0};
}

bool hearth_buf_reserve(struct hearth_buf *buf, size_t extra) {
    void *data = buf->data;
    bool ok = grow(&data, buf->len, &buf->cap, extra, 1);
    buf->data = data;
    return ok;
}

bool hearth_buf_append(struct hearth_buf *buf, const void *bytes, size_t len) {
    if (len == 0) {
        return true;
    }
    if (!hearth_buf_reserve(buf, len)) {
        return false;
    }
    memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    return true;
}

bool hearth_buf_text(struct hearth_buf *buf, const char *text) {
    size_t len = strlen(text);
    if (!hearth_buf_reserve(buf, len + 1)) {
        return false;
    }
    memcpy(buf->data + buf->len, text, len + 1);
    buf->len += len;
    return true;
}

bool hearth_buf_printf(struct hearth_buf *buf, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !hearth_buf_reserve(buf, (size_t)n + 1)) {
        return false;
    }
    va_start(args, format);
    int written = vsnprintf((char *)buf->data + buf->len, (size_t)n + 1, format, args);
    va_end(args);
    HEARTH_ASSERT(written == n);
    buf->len += (size_t)n;
    return true;
}

uint8_t *hearth_buf_take(struct hearth_buf *buf) {
    uint8_t *data = buf->data;
    size_t len = buf->len;
    if (len == 0) {
        hearth_buf_finish(buf);
        return NULL;
    }
    if (buf->cap - len > buf->cap / 64 + 1) {     /* a little too much is not worth a call of the system */
        uint8_t *shrunk = realloc(data, len + 1); /* with the NUL of a text */
        data = shrunk ? shrunk : data;            /* a block that could not shrink is still whole */
    }
    *buf = (struct hearth_buf){0};
    return data;
}

void hearth_tokens_finish(struct hearth_tokens *tokens) {
    free(tokens->v);
    *tokens = (struct hearth_tokens){0};
}

bool hearth_tokens_reserve(struct hearth_tokens *tokens, size_t extra) {
    void *data = tokens->v;
    bool ok = grow(&data, tokens->n, &tokens->cap, extra, sizeof tokens->v[0]);
    tokens->v = data;
    return ok;
}

bool hearth_tokens_push(struct hearth_tokens *tokens, hearth_token token) {
    if (!hearth_tokens_reserve(tokens, 1)) {
        return false;
    }
    tokens->v[tokens->n++] = token;
    return true;
}

bool hearth_tokens_append(struct hearth_tokens *tokens, const hearth_token *v, size_t n) {
    if (n == 0) {
        return true;
    }
    if (!hearth_tokens_reserve(tokens, n)) {
        return false;
    }
    memcpy(tokens->v + tokens->n, v, n * sizeof v[0]);
    tokens->n += n;
    return true;
}

bool hearth_tokens_assign(struct hearth_tokens *tokens, const hearth_token *v, size_t n) {
    if (n > tokens->n && !hearth_tokens_reserve(tokens, n - tokens->n)) {
        return false;
    }
    if (n > 0) {
        memmove(tokens->v, v, n * sizeof v[0]); /* `v` may be a part of the array itself */
    }
    tokens->n = n;
    return true;
}

size_t hearth_tokens_common(const hearth_token *a, size_t na, const hearth_token *b, size_t nb) {
    enum { STRIDE = 64 };
    size_t n = na < nb ? na : nb;
    size_t i = 0;
    while (n - i >= STRIDE && memcmp(a + i, b + i, STRIDE * sizeof a[0]) == 0) {
        i += STRIDE;
    }
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}
