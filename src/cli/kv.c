/* The command line of `hearth kv`: which command, its options, and the directory that it is about.
 *
 * The options stand in one table with the commands that take each; so an option that means nothing to a command is
 * refused, and the help texts come from the same lines. A flag wins over its variable (HEARTH_KV_DIR, HEARTH_KV_KEY),
 * which wins over the default: the same directory that `hearth serve` takes. */
#include "cli/kv.h"

#include "cli/kv_dir.h"
#include "cli/kv_internal.h"
#include "cli/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WRONG_USAGE 2

enum {
    LS = 1,
    STAT = 2,
    VERIFY = 4,
    GC = 8,
    RM = 16,
    EXPORT = 32,
    IMPORT = 64,
    ALL = 127,
};

static const struct command {
    const char *name, *arguments, *help;
    int bit, least, most; /* arguments */
    bool makes;           /* the directory, if it is not there */
    int (*run)(struct kv *kv);
} commands[] = {
    {"ls", "", "conversations: size, age, uses, first words", LS, 0, 0, false, hearth_kv_ls},
    {"stat", "", "totals of each model and of the directory", STAT, 0, 0, false, hearth_kv_stat},
    {"verify", "", "read everything; what is damaged is set aside in bad/", VERIFY, 0, 0, false, hearth_kv_verify},
    {"gc", "", "remove what was unused for longest, and leftovers", GC, 0, 0, false, hearth_kv_gc},
    {"rm", "CONVERSATION…", "remove conversations; what others share stays", RM, 0, 1 << 20, false, hearth_kv_rm},
    {"export", "CONVERSATION FILE", "write a conversation into one file (- for standard output)", EXPORT, 2, 2, false,
     hearth_kv_export},
    {"import", "FILE", "take a conversation from such a file (- for standard input)", IMPORT, 1, 1, true,
     hearth_kv_import},
};

enum option_kind { OPTION_TEXT, OPTION_NUMBER, OPTION_SWITCH };

static const struct option {
    const char *name, *argument, *help;
    int commands;
    enum option_kind kind;
    size_t at; /* in struct kv_options */
} options[] = {
    {"--kv-dir", "DIR", "the state directory [HEARTH_KV_DIR, or where hearth serve has it]", ALL, OPTION_TEXT,
     offsetof(struct kv_options, dir)},
    {"--kv-key", "FILE", "the key of encrypted files [HEARTH_KV_KEY]", ALL, OPTION_TEXT,
     offsetof(struct kv_options, key_file)},
    {"--json", "", "output for programs", ALL, OPTION_SWITCH, offsetof(struct kv_options, json)},
    {"--budget", "MiB", "what the directory may take [HEARTH_KV_DISK, or a fifth of what is free or hearth's]",
     STAT | GC, OPTION_NUMBER, offsetof(struct kv_options, budget_mib)},
    {"--all", "", "everything in the directory", RM, OPTION_SWITCH, offsetof(struct kv_options, all)},
    {"--model", "HEX", "everything of one model (ls and stat name them)", RM, OPTION_TEXT,
     offsetof(struct kv_options, model)},
    {"--yes", "", "do not ask", RM, OPTION_SWITCH, offsetof(struct kv_options, yes)},
};

#define COMMANDS (sizeof commands / sizeof commands[0])
#define OPTIONS (sizeof options / sizeof options[0])

/* ---- help ---- */

static int print_help(const struct command *command) {
    if (command) {
        (void)printf("hearth kv %s%s%s [options]: %s\n", command->name, *command->arguments ? " " : "",
                     command->arguments, command->help);
    } else {
        (void)printf("hearth kv COMMAND [options]: the state that hearth keeps on disk. Works while servers use it, "
                     "and without a model.\n\n");
        for (size_t i = 0; i < COMMANDS; i++) {
            char usage[64];
            (void)snprintf(usage, sizeof usage, "%s %s", commands[i].name, commands[i].arguments);
            /* the one character of three bytes that is one column */
            (void)printf("  %-*s %s\n", strstr(usage, "…") ? 28 : 26, usage, commands[i].help);
        }
    }
    (void)printf("\nOptions\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        if (!command || (options[i].commands & command->bit)) {
            char usage[64];
            (void)snprintf(usage, sizeof usage, "%s %s", options[i].name, options[i].argument);
            (void)printf("  %-26s %s\n", usage, options[i].help);
        }
    }
    (void)printf("  %-26s %s\n", "-h, --help", "this text, or a command's");
    return fflush(stdout) == 0 ? 0 : 1;
}

/* ---- parsing ---- */

static bool parse_number(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > INT64_C(1) << 40) {
        return false;
    }
    *out = value;
    return true;
}

static const struct option *find_option(const struct command *command, const char *text, size_t len) {
    for (size_t i = 0; i < OPTIONS; i++) {
        if (strlen(options[i].name) == len && strncmp(options[i].name, text, len) == 0 &&
            (options[i].commands & command->bit)) {
            return &options[i];
        }
    }
    return NULL;
}

static int unknown_option(const struct command *command, const char *text, size_t len) {
    const char *names[OPTIONS];
    char name[64];
    size_t n = 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), text);
    for (size_t i = 0; i < OPTIONS; i++) {
        if (options[i].commands & command->bit) {
            names[n++] = options[i].name;
        }
    }
    const char *near = hearth_nearest(name, names, n);
    return hearth_kv_complain(WRONG_USAGE, "%s has no option %s%s%s%s (see hearth kv %s --help)", command->name, name,
                              near ? ", did you mean " : "", near ? near : "", near ? "?" : "", command->name);
}

/* Reads one option; *used: how many arguments it took. A status, 0: all is well. */
static int parse_option(const struct command *command, struct kv_options *out, int argc, char *const argv[],
                        int *used) {
    const char *text = argv[0], *equals = strchr(text, '=');
    const size_t len = equals ? (size_t)(equals - text) : strlen(text);
    const struct option *option = find_option(command, text, len);
    *used = 1;
    if (!option) {
        return unknown_option(command, text, len);
    }
    char *field = (char *)out + option->at;
    if (option->kind == OPTION_SWITCH) {
        *(bool *)field = true;
        return equals ? hearth_kv_complain(WRONG_USAGE, "%s takes no argument", option->name) : 0;
    }
    const char *value = equals ? equals + 1 : argc > 1 ? argv[1] : NULL;
    *used = equals ? 1 : 2;
    if (!value || *value == '\0') {
        return hearth_kv_complain(WRONG_USAGE, "%s needs %s", option->name, option->argument);
    }
    if (option->kind == OPTION_TEXT) {
        *(const char **)(void *)field = value;
    } else if (!parse_number(value, (int64_t *)(void *)field)) {
        return hearth_kv_complain(WRONG_USAGE, "%s needs a number of %s, not '%.60s'", option->name, option->argument,
                                  value);
    }
    return 0;
}

/* What is wrong with the arguments that are no options; 0: nothing. */
static int check_arguments(const struct command *command, const struct kv_options *out) {
    if (out->arg_count < command->least || out->arg_count > command->most) {
        return hearth_kv_complain(WRONG_USAGE, "usage: hearth kv %s%s%s [options]", command->name,
                                  *command->arguments ? " " : "", command->arguments);
    }
    if (command->bit == RM && (out->arg_count > 0) + out->all + (out->model != NULL) != 1) {
        return hearth_kv_complain(WRONG_USAGE, "rm needs conversations (see hearth kv ls), --model HEX or --all");
    }
    return 0;
}

/* ---- running ---- */

/* The variable of the server's budget, so that both agree; "auto" and what is no number leave the default. */
static void read_budget(struct kv_options *out) {
    const char *text = getenv("HEARTH_KV_DISK");
    int64_t mib;
    if (out->budget_mib < 0 && text && parse_number(text, &mib) && mib > 0) {
        out->budget_mib = mib;
    }
}

static int open_directory(struct kv *kv, bool make) {
    struct hearth_errmsg msg = {""};
    char *preset = NULL;
    const char *path = kv->options.dir ? kv->options.dir : getenv("HEARTH_KV_DIR");
    if (!path || *path == '\0') {
        path = preset = hearth_kv_default_dir();
    }
    int status = 0;
    if (!path) {
        status = hearth_kv_complain(1, "this user has no home: name the state directory with --kv-dir");
    } else if (strcmp(path, "none") == 0) {
        status = hearth_kv_complain(1, "the state directory is turned off (none): name one with --kv-dir");
    } else if (hearth_directory_open(path, make, &kv->directory, &msg) != HEARTH_OK) {
        status = hearth_kv_complain(1, "%s", msg.text);
    }
    free(preset);
    const char *key = kv->options.key_file ? kv->options.key_file : getenv("HEARTH_KV_KEY");
    if (status == 0 && key && *key && hearth_seal_create(key, &kv->seal, &msg) != HEARTH_OK) {
        status = hearth_kv_complain(1, "%s", msg.text);
    }
    return status;
}

static int run(const struct command *command, struct kv *kv) {
    int status = open_directory(kv, command->makes);
    read_budget(&kv->options);
    if (status == 0) {
        status = command->run(kv);
        hearth_kv_progress_end();
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        status = hearth_kv_complain(1, "cannot write to standard output");
    }
    hearth_directory_close(kv->directory);
    hearth_seal_destroy(kv->seal);
    return status;
}

static int unknown_command(const char *name) {
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
    }
    const char *near = hearth_nearest(name, names, COMMANDS);
    return hearth_kv_complain(WRONG_USAGE, "unknown command '%.60s'%s%s%s (see hearth kv --help)", name,
                              near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static bool asks_help(const char *text) {
    return strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0;
}

int hearth_kv(int argc, char *const argv[]) {
    const struct command *command = NULL;
    struct kv kv = {.options = {.budget_mib = -1}};
    if (argc > 0 && (asks_help(argv[0]) || strcmp(argv[0], "help") == 0)) {
        return print_help(NULL);
    }
    if (argc == 0) {
        return hearth_kv_complain(WRONG_USAGE, "which command? ls, stat, verify, gc, rm, export or import "
                                               "(see hearth kv --help)");
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        command = strcmp(argv[0], commands[i].name) == 0 ? &commands[i] : command;
    }
    if (!command) {
        return unknown_command(argv[0]);
    }
    char **args = calloc((size_t)argc, sizeof *args);
    int status = args ? 0 : hearth_kv_complain(1, "out of memory");
    bool options_end = false, help = false;
    kv.options.args = args;
    for (int i = 1, used = 1; i < argc && status == 0; i += used) {
        used = 1;
        if (options_end || argv[i][0] != '-' || argv[i][1] == '\0') { /* "-" is a file */
            args[kv.options.arg_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (asks_help(argv[i])) {
            help = true;
        } else {
            status = parse_option(command, &kv.options, argc - i, argv + i, &used);
        }
    }
    if (status == 0 && help) {
        status = print_help(command);
    } else if (status == 0 && (status = check_arguments(command, &kv.options)) == 0) {
        hearth_log_set(hearth_kv_log, NULL, HEARTH_LOG_INFO);
        status = run(command, &kv);
    }
    free(args);
    return status;
}
