/* One pass over the lines of a text, which is made shorter where it lies. A paragraph ends before a line that is empty
 * or has only blanks in it. */
#include "api/strip.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Claude Code's, at the head of its system text: it differs with every version and session. */
static const char billing[] = "x-anthropic-billing-header:";

static int add(struct hearth_strip *strip, const char *option, const char *pattern, struct hearth_errmsg *msg) {
    regex_t *regex = &strip->patterns[strip->count];
    const int rc = regcomp(regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (rc != 0) {
        char reason[128];
        regerror(rc, regex, reason, sizeof reason);
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s '%s': %s", option, pattern, reason);
    }
    strip->count++;
    return HEARTH_OK;
}

int hearth_strip_init(struct hearth_strip *strip, const char *const *lines, size_t line_count,
                      const char *const *paragraphs, size_t paragraph_count, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    *strip = (struct hearth_strip){.patterns = calloc(line_count + paragraph_count + 1, sizeof *strip->patterns)};
    if (strip->patterns == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    for (size_t i = 0; i < line_count && err == HEARTH_OK; i++) {
        err = add(strip, "--strip-line", lines[i], msg);
    }
    strip->line_count = strip->count;
    for (size_t i = 0; i < paragraph_count && err == HEARTH_OK; i++) {
        err = add(strip, "--strip-paragraph", paragraphs[i], msg);
    }
    return err;
}

void hearth_strip_finish(struct hearth_strip *strip) {
    for (size_t i = 0; i < strip->count; i++) {
        regfree(&strip->patterns[i]);
    }
    free(strip->patterns);
    *strip = (struct hearth_strip){.patterns = NULL};
}

static bool matches(const struct hearth_strip *strip, size_t from, size_t to, const char *line) {
    while (from < to && regexec(&strip->patterns[from], line, 0, NULL, 0) != 0) {
        from++;
    }
    return from < to;
}

void hearth_strip_text(const struct hearth_strip *strip, char *text, size_t *text_len) {
    char *out = text;
    bool inside = false; /* a paragraph that is taken out */
    if (strip->count == 0 && strstr(text, billing) == NULL) {
        return;
    }
    for (char *line = text, *next, *end = text + *text_len; line < end; line = next) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        next = newline != NULL ? newline + 1 : end;
        const size_t len = (size_t)(next - line);
        if (newline != NULL) {
            *newline = '\0';
        }
        inside = inside ? line[strspn(line, " \t\r")] != '\0' : matches(strip, strip->line_count, strip->count, line);
        const bool out_of_it =
            inside || strncmp(line, billing, sizeof billing - 1) == 0 || matches(strip, 0, strip->line_count, line);
        if (newline != NULL) {
            *newline = '\n';
        }
        if (!out_of_it) {
            memmove(out, line, len);
            out += len;
        }
    }
    *out = '\0';
    *text_len = (size_t)(out - text);
}
