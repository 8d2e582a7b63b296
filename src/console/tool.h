/* The command lines of `hearth kv`, `hearth sessions` and `hearth chat`. (That of `hearth serve` is options.h.)
 *
 * A tool is two tables. The options stand in one with the commands that take each; so an option that means nothing to a
 * command is refused, and the help texts come from the same lines. */
#ifndef HEARTH_CONSOLE_TOOL_H
#define HEARTH_CONSOLE_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_CONSOLE_USAGE 2 /* the exit status after wrong usage */
#define HEARTH_CONSOLE_MANY (1 << 20)

struct hearth_console_command {
    const char *name, *arguments, *help; /* name "": the tool has no commands, and this is all that it does */
    int bit, least, most;                /* arguments */
};

enum hearth_console_kind {
    HEARTH_CONSOLE_TEXT,   /* const char * */
    HEARTH_CONSOLE_NUMBER, /* int64_t, from 0 */
    HEARTH_CONSOLE_SWITCH, /* bool */
};

struct hearth_console_option {
    const char *name, *argument, *help;
    int commands; /* bits */
    enum hearth_console_kind kind;
    size_t at; /* in the tool's struct of options */
};

struct hearth_console_tool {
    const char *name;  /* "kv" */
    const char *about; /* one line for --help */
    const struct hearth_console_command *commands;
    size_t command_count;
    const struct hearth_console_option *options;
    size_t option_count;
};

/* A tool of two arrays. */
#define HEARTH_CONSOLE_TOOL(name, about, commands, options) \
    {(name), (about), (commands), sizeof(commands) / sizeof *(commands), (options), sizeof(options) / sizeof *(options)}

/* What was asked for. */
struct hearth_console_call {
    const struct hearth_console_command *command; /* NULL: everything is done, `status` is the exit status */
    int status;
    char **args; /* without options: the caller's to free, with texts of argv; ends with NULL */
    int arg_count;
};

/* Reads the arguments behind the tool's name into `options`. Help is printed and mistakes are complained of here. */
void hearth_console_parse(const struct hearth_console_tool *tool, int argc, char *const argv[], void *options,
                          struct hearth_console_call *call);

/* False: no whole number from 0 to 2^40. */
bool hearth_console_number(const char *text, int64_t *out);

#endif
