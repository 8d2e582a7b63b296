/* Errors: the table of err.h as two look-ups, and the one-line failure.
 *
 * A failed allocation is also noted in base/memory.h, since not every caller can pass the code on. The table is
 * searched and not indexed: it has a dozen rows, and codes may be retired without leaving a hole. */
#include "base/err.h"

#include "base/memory.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct err_row {
    int code;
    int http;
    const char *text;
} err_rows[] = {
#define X(name, code, http, text) {HEARTH_ERR_##name, (http), (text)},
    HEARTH_ERR_TABLE(X)
#undef X
};

static const struct err_row *row_of(int err) {
    for (size_t i = 0; i < sizeof err_rows / sizeof err_rows[0]; i++) {
        if (err_rows[i].code == err) {
            return &err_rows[i];
        }
    }
    return NULL;
}

const char *hearth_err_text(int err) {
    if (err == HEARTH_OK) {
        return "ok";
    }
    const struct err_row *row = row_of(err);
    return row ? row->text : "unknown error";
}

int hearth_err_http(int err) {
    if (err == HEARTH_OK) {
        return 200;
    }
    const struct err_row *row = row_of(err);
    return row ? row->http : 500;
}

/* Shortens a line to what a message holds: its beginning and its end, and no part of a character. */
static void keep_ends(const char *line, size_t len, char *out, size_t size) {
    static const char gap[] = "…";
    size_t head = size / 2, tail = len - (size - head - sizeof gap); /* with the zero behind it */
    while (head > 0 && ((unsigned char)line[head] & 0xC0) == 0x80) {
        head--;
    }
    while (((unsigned char)line[tail] & 0xC0) == 0x80) {
        tail++;
    }
    (void)snprintf(out, size, "%.*s%s%s", (int)head, line, gap, line + tail);
}

int hearth_fail(struct hearth_errmsg *msg, int err, const char *format, ...) {
    if (err == HEARTH_ERR_NOMEM) {
        hearth_memory_note();
    }
    if (msg) {
        va_list args, again;
        va_start(args, format);
        va_copy(again, args);
        int n = vsnprintf(msg->text, sizeof msg->text, format, args);
        va_end(args);
        char *line = NULL;
        if (n < 0) {
            msg->text[0] = '\0';
        } else if ((size_t)n >= sizeof msg->text && vasprintf(&line, format, again) == n) {
            keep_ends(line, (size_t)n, msg->text, sizeof msg->text);
            free(line);
        }
        va_end(again);
        for (char *at = msg->text; *at != '\0'; at++) { /* what it quotes may be anything */
            *at = (unsigned char)*at < 0x20 || *at == 0x7F ? ' ' : *at;
        }
    }
    return err;
}

int hearth_fail_of(struct hearth_errmsg *msg, int err, const char *name) {
    if (err == HEARTH_OK || !msg || strstr(msg->text, name)) {
        return err;
    }
    const struct hearth_errmsg what = *msg;
    return hearth_fail(msg, err, "%s: %s", name, what.text[0] != '\0' ? what.text : hearth_err_text(err));
}
