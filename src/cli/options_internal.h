/* What the files of the options of `hearth serve` share; no other file includes it.
 *
 *     options_table.c   the rows of options.def and llama_server.def, and how they are found by name
 *     options.c         values, and the places they come from
 *     options_moot.c    what was given and has no effect
 *     options_text.c    --help and the pages in docs/ */
#ifndef HEARTH_CLI_OPTIONS_INTERNAL_H
#define HEARTH_CLI_OPTIONS_INTERNAL_H

#include "cli/options.h"

enum hearth_option_type {
    HEARTH_OPTION_IS_TEXT,
    HEARTH_OPTION_IS_FILLED,
    HEARTH_OPTION_IS_LIST,
    HEARTH_OPTION_IS_CHOICE,
    HEARTH_OPTION_IS_WHOLE,
    HEARTH_OPTION_IS_TOKENS,
    HEARTH_OPTION_IS_SIZE,
    HEARTH_OPTION_IS_REAL,
    HEARTH_OPTION_IS_SWITCH,
    HEARTH_OPTION_IS_ALWAYS,
};

struct hearth_option_row {
    const char *title; /* a section; everything else is empty then */
    enum hearth_option_type type;
    const char *long_name, *names, *argument, *preset, *help;
    double least, most;
    size_t offset;
    bool live;
};

extern const struct hearth_option_row hearth_option_rows[];
extern const size_t hearth_option_row_count;

/* The row that a flag names, or NULL; `*negated` is set for what turns a switch off. */
const struct hearth_option_row *hearth_option_find(const char *flag, size_t len, bool *negated);
/* The first of the names in `names`, which blanks separate, is at *at; steps to the next one. The length, or 0 at the
 * end. */
size_t hearth_option_next_name(const char *names, size_t *at);
bool hearth_option_has_name(const char *names, const char *name, size_t len);

/* Whether the row's value is the path of a file or a directory. */
bool hearth_option_is_path(const struct hearth_option_row *row);
/* The path that a row of this argument ("FILE", "DIR") names; NULL: none. */
const char *hearth_option_path(const struct hearth_option_row *row, const struct hearth_options *options,
                               const char *argument);

#define HEARTH_OPTION_ENV_MAX 64
/* HEARTH_CTX_SIZE for --ctx-size. */
void hearth_option_env_name(const struct hearth_option_row *row, char out[HEARTH_OPTION_ENV_MAX]);

/* The long name that a misspelt one is nearest to, or NULL. */
const char *hearth_option_nearest(const char *word);

/* ---- llama-server's flags: the table in llama_server.def ---- */

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
