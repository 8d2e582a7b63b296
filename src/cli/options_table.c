/* Design. The table becomes an array of rows that know where in the struct their value lives; code that reads values or
 * prints texts walks that array. */
#include "cli/options_internal.h"

#include "base/assert.h"
#include "console/show.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const struct hearth_option_row hearth_option_rows[] = {
#define SECTION(text) {.title = (text)},
#define ROW(field, kind, long_text, other, metavar, value, low, high, text, changes) \
    {.type = HEARTH_OPTION_IS_##kind,                                                \
     .long_name = (long_text),                                                       \
     .names = (other),                                                               \
     .argument = (metavar),                                                          \
     .preset = (value),                                                              \
     .help = (text),                                                                 \
     .least = (low),                                                                 \
     .most = (high),                                                                 \
     .offset = offsetof(struct hearth_options, field),                               \
     .live = (changes)},
#define OPTION(...) ROW(__VA_ARGS__, false)
#define LIVE(...) ROW(__VA_ARGS__, true)
#include "cli/options.def"
#undef SECTION
#undef OPTION
#undef ROW
};

const size_t hearth_option_row_count = sizeof(hearth_option_rows) / sizeof(hearth_option_rows[0]);

_Static_assert(sizeof(hearth_option_rows) / sizeof(hearth_option_rows[0]) == HEARTH_OPTION_ROWS,
               "options.h counts the rows");

/* ---- paths ---- */

bool hearth_option_is_path(const struct hearth_option_row *row) {
    return !row->title && (row->type == HEARTH_OPTION_IS_TEXT || row->type == HEARTH_OPTION_IS_FILLED) &&
           (strcmp(row->argument, "FILE") == 0 || strcmp(row->argument, "DIR") == 0);
}

const char *hearth_option_path(const struct hearth_option_row *row, const struct hearth_options *options,
                               const char *argument) {
    if (!hearth_option_is_path(row) || strcmp(row->argument, argument) != 0) {
        return NULL;
    }
    const char *path = *(const char *const *)(const void *)((const char *)options + row->offset);
    return path && strcmp(path, "none") != 0 && !strstr(path, "://") ? path : NULL; /* a URL is none */
}

/* ---- names ---- */

size_t hearth_option_next_name(const char *names, size_t *at) {
    *at += strspn(names + *at, " ");
    return strcspn(names + *at, " ");
}

bool hearth_option_has_name(const char *names, const char *name, size_t len) {
    size_t n;
    for (size_t at = 0; (n = hearth_option_next_name(names, &at)) > 0; at += n) {
        if (n == len && memcmp(names + at, name, len) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether `flag` turns the switch off: it is --no-name, or stands among the names behind a '!'. */
static bool is_negation(const struct hearth_option_row *row, const char *flag, size_t len) {
    static const char no[] = "--no-";
    char name[64];
    if (row->type != HEARTH_OPTION_IS_SWITCH || len + 2 > sizeof(name)) {
        return false;
    }
    (void)snprintf(name, sizeof(name), "!%.*s", (int)len, flag);
    return hearth_option_has_name(row->names, name, len + 1) ||
           (len == strlen(row->long_name) + 3 && strncmp(flag, no, sizeof(no) - 1) == 0 &&
            memcmp(flag + sizeof(no) - 1, row->long_name + 2, len - sizeof(no) + 1) == 0);
}

const struct hearth_option_row *hearth_option_find(const char *flag, size_t len, bool *negated) {
    *negated = false;
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        if (row->title) {
            continue;
        }
        if ((strlen(row->long_name) == len && memcmp(row->long_name, flag, len) == 0) ||
            (*flag != '!' && hearth_option_has_name(row->names, flag, len))) {
            return row;
        }
        if (is_negation(row, flag, len)) {
            *negated = true;
            return row;
        }
    }
    return NULL;
}

void hearth_option_env_name(const struct hearth_option_row *row, char out[HEARTH_OPTION_ENV_MAX]) {
    const int n = snprintf(out, HEARTH_OPTION_ENV_MAX, "HEARTH_%s", row->long_name + 2);
    HEARTH_ASSERT(n > 0 && n < HEARTH_OPTION_ENV_MAX);
    for (char *p = out; *p; p++) {
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
}

const char *hearth_option_nearest(const char *word) {
    const char *names[sizeof(hearth_option_rows) / sizeof(hearth_option_rows[0])];
    size_t n = 0;
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        if (!hearth_option_rows[i].title) {
            names[n++] = hearth_option_rows[i].long_name;
        }
    }
    return hearth_show_nearest(word, names, n);
}

/* ---- llama-server's flags ---- */

const struct hearth_flag hearth_flags[] = {
#define SECTION(text) {.title = (text)},
#define ROW(kind, flags, count, variable, words, earlier) \
    {.verdict = HEARTH_FLAG_##kind,                       \
     .names = (flags),                                    \
     .arguments = (count),                                \
     .env = (variable),                                   \
     .text = (words),                                     \
     .old = (earlier)},
#define FLAG(...) ROW(__VA_ARGS__, false)
#define OLD(...) ROW(__VA_ARGS__, true)
#include "cli/llama_server.def"
#undef SECTION
#undef FLAG
#undef OLD
#undef ROW
};

const size_t hearth_flag_count = sizeof(hearth_flags) / sizeof(hearth_flags[0]);

const struct hearth_flag *hearth_flag_find(const char *flag, size_t len) {
    for (size_t i = 0; i < hearth_flag_count; i++) {
        const struct hearth_flag *row = &hearth_flags[i];
        if (!row->title && hearth_option_has_name(row->names, flag, len)) {
            return row;
        }
    }
    return NULL;
}

const struct hearth_flag *hearth_flag_of_env(const char *name) {
    for (size_t i = 0; i < hearth_flag_count; i++) {
        const struct hearth_flag *row = &hearth_flags[i];
        if (!row->title && strcmp(row->env, name) == 0) {
            return row;
        }
    }
    return NULL;
}
