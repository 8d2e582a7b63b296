/* The rows of llama_server.def, and how they are found. */
#include "cli/llama_flags.h"

#include "cli/options_internal.h"

#include <string.h>

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
