/* See infile.h. */
#include "cli/infile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int hearth_infile_read(const char *path, struct hearth_buf *out, struct hearth_errmsg *msg) {
    const size_t before = out->len;
    int err = HEARTH_OK;
    char chunk[4096];
    FILE *file = fopen(path, "r");
    if (!file) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    for (size_t n; (n = fread(chunk, 1, sizeof(chunk), file)) > 0;) {
        if (!hearth_buf_append(out, chunk, n)) {
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory while reading %s", path);
            break;
        }
    }
    if (err == HEARTH_OK && ferror(file)) {
        err = hearth_fail(msg, HEARTH_ERR_IO, "cannot read %s: %s", path, strerror(errno)); /* a directory, say */
    }
    (void)fclose(file);
    if (err == HEARTH_OK && out->len > before && memchr((char *)out->data + before, '\0', out->len - before)) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s is no text", path);
    }
    if (err == HEARTH_OK && !hearth_buf_append(out, "", 1)) {
        err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    return err;
}

static int is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

char *hearth_infile_line(char **rest, unsigned *number) {
    char *line = *rest, *end;
    if (!*line) {
        return NULL;
    }
    end = line + strcspn(line, "\n");
    *rest = *end ? end + 1 : end;
    *end = '\0';
    if (*number == 0 && strncmp(line, "\xEF\xBB\xBF", 3) == 0) { /* the mark that editors of Windows put first */
        line += 3;
    }
    (*number)++;
    while (is_blank(*line)) {
        line++;
    }
    while (end > line && is_blank(end[-1])) {
        *--end = '\0';
    }
    return line;
}
