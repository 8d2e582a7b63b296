/* Options and arguments may come in any order; "--" ends the options, "-" is an argument. */
#include "console/tool.h"

#include "console/show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 32

typedef const struct hearth_console_command command;
typedef const struct hearth_console_option option;

/* "kv ls", or the tool alone where it has no commands. */
static struct hearth_shown name_of(const struct hearth_console_tool *tool, command *of) {
    struct hearth_shown out;
    (void)snprintf(out.text, sizeof out.text, "%s%s%s", tool->name, *of->name ? " " : "", of->name);
    return out;
}

/* ---- help ---- */

static void print_usage_line(const char *usage, const char *help) {
    int columns = 0;
    for (const char *at = usage; *at; at++) {
        columns += ((unsigned char)*at & 0xc0) != 0x80;
    }
    (void)printf("  %s%*s %s\n", usage, columns < 26 ? 26 - columns : 0, "", help);
}

static int print_help(const struct hearth_console_tool *tool, command *of) {
    char usage[64];
    if (of) {
        (void)printf("hearth %s%s%s [options]: %s\n", name_of(tool, of).text, *of->arguments ? " " : "", of->arguments,
                     of->help);
    } else {
        (void)printf("hearth %s COMMAND [options]: %s\n\n", tool->name, tool->about);
        for (size_t i = 0; i < tool->command_count; i++) {
            (void)snprintf(usage, sizeof usage, "%s %s", tool->commands[i].name, tool->commands[i].arguments);
            print_usage_line(usage, tool->commands[i].help);
        }
    }
    (void)printf("\nOptions\n");
    for (size_t i = 0; i < tool->option_count; i++) {
        option *one = &tool->options[i];
        if (!of || (one->commands & of->bit)) {
            (void)snprintf(usage, sizeof usage, "%s %s", one->name, one->argument);
            print_usage_line(usage, one->help);
        }
    }
    print_usage_line("-h, --help", tool->command_count > 1 ? "this text, or a command's" : "this text");
    return 0;
}

/* ---- options ---- */

bool hearth_console_number(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > INT64_C(1) << 40) {
        return false;
    }
    *out = value;
    return true;
}

static option *find_option(const struct hearth_console_tool *tool, command *of, const char *text, size_t len) {
    for (size_t i = 0; i < tool->option_count; i++) {
        option *one = &tool->options[i];
        if (strlen(one->name) == len && strncmp(one->name, text, len) == 0 && (one->commands & of->bit)) {
            return one;
        }
    }
    return NULL;
}

static int unknown_option(const struct hearth_console_tool *tool, command *of, const char *text, size_t len) {
    const char *names[OPTIONS_MAX];
    char name[64];
    size_t n = 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), text);
    for (size_t i = 0; i < tool->option_count && n < OPTIONS_MAX; i++) {
        if (tool->options[i].commands & of->bit) {
            names[n++] = tool->options[i].name;
        }
    }
    const char *near = hearth_show_nearest(name, names, n);
    return hearth_complain(HEARTH_CONSOLE_USAGE, "%s has no option %s%s%s%s (see hearth %s --help)",
                           *of->name ? of->name : tool->name, name, near ? ", did you mean " : "", near ? near : "",
                           near ? "?" : "", name_of(tool, of).text);
}

/* Reads one option; *used: how many arguments it took. A status, 0: all is well. */
static int parse_option(const struct hearth_console_tool *tool, command *of, void *out, int argc, char *const argv[],
                        int *used) {
    const char *text = argv[0], *equals = strchr(text, '=');
    const size_t len = equals ? (size_t)(equals - text) : strlen(text);
    option *one = find_option(tool, of, text, len);
    *used = 1;
    if (!one) {
        return unknown_option(tool, of, text, len);
    }
    char *field = (char *)out + one->at;
    if (one->kind == HEARTH_CONSOLE_SWITCH) {
        *(bool *)field = true;
        return equals ? hearth_complain(HEARTH_CONSOLE_USAGE, "%s takes no argument", one->name) : 0;
    }
    const char *value = equals ? equals + 1 : argc > 1 ? argv[1] : NULL;
    *used = equals ? 1 : 2;
    if (!value || *value == '\0') {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "%s needs %s", one->name, one->argument);
    }
    if (one->kind == HEARTH_CONSOLE_TEXT) {
        *(const char **)(void *)field = value;
    } else if (!hearth_console_number(value, (int64_t *)(void *)field)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "%s needs a number of %s, not '%.60s'", one->name, one->argument,
                               value);
    }
    return 0;
}

/* ---- commands ---- */

static bool asks_help(const char *text) {
    return strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0;
}

static int no_command(const struct hearth_console_tool *tool) {
    char names[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < tool->command_count && at < sizeof names; i++) {
        const char *before = i == 0 ? "" : i + 1 < tool->command_count ? ", " : " or ";
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", before, tool->commands[i].name);
    }
    return hearth_complain(HEARTH_CONSOLE_USAGE, "which command? %s (see hearth %s --help)", names, tool->name);
}

static int unknown_command(const struct hearth_console_tool *tool, const char *name) {
    const char *names[OPTIONS_MAX];
    size_t n = 0;
    for (; n < tool->command_count && n < OPTIONS_MAX; n++) {
        names[n] = tool->commands[n].name;
    }
    const char *near = hearth_show_nearest(name, names, n);
    return hearth_complain(HEARTH_CONSOLE_USAGE, "unknown command '%.60s'%s%s%s (see hearth %s --help)", name,
                           near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "", tool->name);
}

static int parse_arguments(const struct hearth_console_tool *tool, command *of, int argc, char *const argv[],
                           void *options, struct hearth_console_call *call) {
    bool options_end = false, help = false;
    int status = 0;
    for (int i = 0, used = 1; i < argc && status == 0; i += used) {
        used = 1;
        if (options_end || argv[i][0] != '-' || argv[i][1] == '\0') {
            call->args[call->arg_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (asks_help(argv[i])) {
            help = true;
        } else {
            status = parse_option(tool, of, options, argc - i, argv + i, &used);
        }
    }
    if (status == 0 && help) {
        status = print_help(tool, of);
    } else if (status == 0 && (call->arg_count < of->least || call->arg_count > of->most)) {
        status = hearth_complain(HEARTH_CONSOLE_USAGE, "usage: hearth %s%s%s [options]", name_of(tool, of).text,
                                 *of->arguments ? " " : "", of->arguments);
    } else if (status == 0) {
        call->command = of;
    }
    return status;
}

void hearth_console_parse(const struct hearth_console_tool *tool, int argc, char *const argv[], void *options,
                          struct hearth_console_call *call) {
    command *found = *tool->commands[0].name ? NULL : &tool->commands[0];
    *call = (struct hearth_console_call){0};
    if (!found) {
        if (argc == 0) {
            call->status = no_command(tool);
            return;
        }
        if (asks_help(argv[0]) || strcmp(argv[0], "help") == 0) {
            call->status = print_help(tool, NULL);
            return;
        }
        for (size_t i = 0; i < tool->command_count; i++) {
            found = strcmp(argv[0], tool->commands[i].name) == 0 ? &tool->commands[i] : found;
        }
        if (!found) {
            call->status = unknown_command(tool, argv[0]);
            return;
        }
        argc--;
        argv++;
    }
    call->args = calloc((size_t)argc + 1, sizeof *call->args);
    call->status =
        call->args ? parse_arguments(tool, found, argc, argv, options, call) : hearth_complain(1, "out of memory");
    if (!call->command) {
        free(call->args);
        call->args = NULL;
    }
}

int hearth_console_run(const struct hearth_console_tool *tool, int argc, char *const argv[], void *options,
                       int (*run)(const struct hearth_console_call *call, void *options)) {
    struct hearth_console_call call;
    hearth_show_as(tool->name);
    hearth_console_parse(tool, argc, argv, options, &call);
    const int status = call.command ? run(&call, options) : call.status;
    free(call.args);
    return status;
}
