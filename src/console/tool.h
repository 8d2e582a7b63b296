/* The command lines of all commands except `hearth serve` (cli/options.h).
 *
 * A tool is two tables: commands, and options with the commands that take each. An option that a command does not take
 * is refused. The help texts come from the same tables. */
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

/* What the arguments ask for. */
struct hearth_console_call {
    const struct hearth_console_command *command; /* NULL: nothing is left to do, `status` is the exit status */
    int status;
    char **args; /* without options: the caller's to free, with texts of argv; ends with NULL */
    int arg_count;
};

/* Runs a tool with the arguments behind its name: reads them into `options`, then calls `run` unless they ask for help
 * or are wrong. Returns the exit status. */
int hearth_console_run(const struct hearth_console_tool *tool, int argc, char *const argv[], void *options,
                       int (*run)(const struct hearth_console_call *call, void *options));
/* Only reads the arguments. Help is printed and mistakes are complained of here. */
void hearth_console_parse(const struct hearth_console_tool *tool, int argc, char *const argv[], void *options,
                          struct hearth_console_call *call);

/* False: no whole number from 0 to 2^40. */
bool hearth_console_number(const char *text, int64_t *out);

#endif
