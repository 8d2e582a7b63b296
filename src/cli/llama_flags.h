/* What becomes of llama-server's flags here: the table in llama_server.def. The options themselves, and llama-server's
 * names for them, are in options.def.
 *
 * Threads: any one; no state between calls. */
#ifndef HEARTH_CLI_LLAMA_FLAGS_H
#define HEARTH_CLI_LLAMA_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

enum hearth_flag_verdict {
    HEARTH_FLAG_HONOURED, /* an option of hearth's own has this name */
    HEARTH_FLAG_SAME,     /* it stands for an option with a value: `text` is "--log-level debug" */
    HEARTH_FLAG_ACCEPTED, /* it changes nothing here; `text` gives the reason */
    HEARTH_FLAG_REFUSED,  /* `text` says what to do instead */
};

struct hearth_flag {
    const char *title; /* a section of the page; everything else is empty then */
    enum hearth_flag_verdict verdict;
    const char *names; /* separated by blanks; the flag and its negation are two rows */
    int arguments;
    const char *env;  /* its variable, or "" */
    const char *text; /* "": nothing is to be said */
    bool old;         /* of earlier versions */
};

extern const struct hearth_flag hearth_flags[];
extern const size_t hearth_flag_count;

/* The row of a flag, or of its variable; NULL: llama-server has none of that name. */
const struct hearth_flag *hearth_flag_find(const char *flag, size_t len);
const struct hearth_flag *hearth_flag_of_env(const char *name);

#endif
