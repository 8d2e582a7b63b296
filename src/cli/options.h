/* The command line of `hearth serve`, from the table in options.def. A flag wins over its environment variable
 * (HEARTH_ and the long name: --ctx-size is HEARTH_CTX_SIZE), which wins over the file of --config (lines like
 * ctx-size = 32768), which wins over the default.
 *
 * Threads: any one; no state between calls. */
#ifndef HEARTH_CLI_OPTIONS_H
#define HEARTH_CLI_OPTIONS_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_OPTION_TYPE_TEXT const char *
#define HEARTH_OPTION_TYPE_CHOICE const char *
#define HEARTH_OPTION_TYPE_FILLED const char *
#define HEARTH_OPTION_TYPE_LIST struct hearth_option_list
#define HEARTH_OPTION_TYPE_WHOLE int64_t
#define HEARTH_OPTION_TYPE_TOKENS int64_t
#define HEARTH_OPTION_TYPE_SIZE int64_t
#define HEARTH_OPTION_TYPE_REAL double
#define HEARTH_OPTION_TYPE_SWITCH bool
#define HEARTH_OPTION_TYPE_ALWAYS bool

#define HEARTH_OPTION_LIST_MAX 32

/* Where a value comes from; later ones win. */
enum hearth_option_source {
    HEARTH_OPTION_DEFAULT,
    HEARTH_OPTION_CONFIG,
    HEARTH_OPTION_ENVIRONMENT,
    HEARTH_OPTION_FLAG,
};

struct hearth_option_list {
    const char *v[HEARTH_OPTION_LIST_MAX];
    size_t n;
    enum hearth_option_source source; /* all of it comes from one place; from the environment it is one at most */
};

enum {
    HEARTH_OPTION_ROWS = 0 /* of the table, titles included */
#define SECTION(title) +1
#define OPTION(...) +1
#include "cli/options.def"
#undef SECTION
#undef OPTION
};

/* Texts are borrowed from the arguments, the environment, the table or config_text. */
struct hearth_options {
    struct hearth_buf config_text;             /* of --config, cut into strings */
    struct hearth_buf notes;                   /* lines for the log: flags that change nothing here */
    struct hearth_buf warnings;                /* likewise: variables that look like an option's and are none */
    unsigned char sources[HEARTH_OPTION_ROWS]; /* enum hearth_option_source, where each row's value comes from */
#define SECTION(title)
#define OPTION(field, type, long_name, names, argument, preset, least, most, help) HEARTH_OPTION_TYPE_##type field;
#include "cli/options.def"
#undef SECTION
#undef OPTION
};

/* What the command line asks for besides its options. */
enum hearth_options_ask { HEARTH_OPTIONS_RUN, HEARTH_OPTIONS_HELP, HEARTH_OPTIONS_VERSION, HEARTH_OPTIONS_DEVICES };

/* Reads defaults, the file of --config, environment and arguments (without the program's and the command's names).
 * Errors: INVALID, IO; `msg` holds one line that names the flag, the variable, or the file and its line. The options
 * are to be finished then, too. */
int hearth_options_parse(struct hearth_options *options, int argc, char *const argv[], enum hearth_options_ask *ask,
                         struct hearth_errmsg *msg);

void hearth_options_finish(struct hearth_options *options);

/* Whether an option, by its long name ("--temp"), was given nowhere. */
bool hearth_option_is_preset(const struct hearth_options *options, const char *name);

/* Tells each option that differs, by its long name ("--port"), and whether a running server can follow (`live`). */
void hearth_options_compare(const struct hearth_options *before, const struct hearth_options *after,
                            void (*each)(void *user, const char *name, bool live), void *user);

/* Appends the text of --help, of docs/options.md, or of docs/llama-server.md. False: out of memory. */
bool hearth_options_help(struct hearth_buf *out);
bool hearth_options_markdown(struct hearth_buf *out);
bool hearth_options_llama_markdown(struct hearth_buf *out);

/* ---- options that were given and change nothing, because of the machine, the model or other options ---- */

/* What the options alone do not tell. */
struct hearth_option_facts {
    bool computes;         /* with a model: the simulated engine has no processors to choose */
    unsigned gpus;         /* that can be used */
    bool pages, snapshots; /* the model's state is stored in them */
    bool disk;             /* state is stored on disk */
    bool sessions;         /* in a file */
    bool local;            /* --host is reached from this machine alone */
};

/* Appends a line for each: "--draft-tokens has no effect: --speculate is off". False: out of memory. */
bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out);

#endif
