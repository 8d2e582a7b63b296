/* The command line of `hearth kv`: the command, its options, and the directory.
 *
 * With --kv-remote it is a store that boxes share instead. A flag wins over its variable (HEARTH_KV_DIR,
 * HEARTH_KV_KEY), which wins over the default: the same directory that `hearth serve` takes. */
#include "cli/commands.h"

#include "cli/kv_internal.h"
#include "console/places.h"
#include "console/tool.h"

#include <stdlib.h>
#include <string.h>

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

static const struct hearth_console_command commands[] = {
    {"ls", "", "conversations: size, age, uses, first words", LS, 0, 0},
    {"stat", "", "totals of each model and of the directory", STAT, 0, 0},
    {"verify", "", "read everything; what is damaged is quarantined in bad/", VERIFY, 0, 0},
    {"gc", "", "remove what was unused for longest, and leftovers", GC, 0, 0},
    {"rm", "CONVERSATION…", "remove conversations; what others share stays", RM, 0, HEARTH_CONSOLE_MANY},
    {"export", "CONVERSATION FILE", "write a conversation into one file (- for standard output)", EXPORT, 2, 2},
    {"import", "FILE", "take a conversation from such a file (- for standard input)", IMPORT, 1, 1},
};

/* The functions of `commands`, in the same order. */
static int (*const runs[])(struct kv *kv) = {hearth_kv_ls, hearth_kv_stat,   hearth_kv_verify, hearth_kv_gc,
                                             hearth_kv_rm, hearth_kv_export, hearth_kv_import};

static const struct hearth_console_option options[] = {
    {"--kv-dir", "DIR", "the state directory [HEARTH_KV_DIR, or where hearth serve has it]", ALL, HEARTH_CONSOLE_TEXT,
     offsetof(struct kv_options, dir)},
    {"--kv-key", "FILE", "the key of encrypted files [HEARTH_KV_KEY]", ALL, HEARTH_CONSOLE_TEXT,
     offsetof(struct kv_options, key_file)},
    {"--kv-remote", "URL", "a store that boxes share instead (-: the one that HEARTH_KV_REMOTE names)",
     LS | STAT | VERIFY | GC | RM, HEARTH_CONSOLE_TEXT, offsetof(struct kv_options, remote)},
    {"--kv-remote-ca", "FILE", "certificates to trust [HEARTH_KV_REMOTE_CA]", LS | STAT | VERIFY | GC | RM,
     HEARTH_CONSOLE_TEXT, offsetof(struct kv_options, remote_ca)},
    {"--json", "", "output for programs", ALL, HEARTH_CONSOLE_SWITCH, offsetof(struct kv_options, json)},
    {"--budget", "MiB", "what the directory may take [HEARTH_KV_DISK, or a fifth of what is free or hearth's]",
     STAT | GC, HEARTH_CONSOLE_NUMBER, offsetof(struct kv_options, budget_mib)},
    {"--all", "", "everything in the directory", RM, HEARTH_CONSOLE_SWITCH, offsetof(struct kv_options, all)},
    {"--model", "HEX", "everything of one model (ls and stat name them)", RM, HEARTH_CONSOLE_TEXT,
     offsetof(struct kv_options, model)},
    {"--yes", "", "do not ask", RM, HEARTH_CONSOLE_SWITCH, offsetof(struct kv_options, yes)},
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL(
    "kv", "the state that hearth keeps on disk. Works while servers use it, and without a model.", commands, options);

/* The variable of the server's budget, so that both agree; "auto" and what is no number leave the default. */
static void read_budget(struct kv_options *out) {
    const char *text = getenv("HEARTH_KV_DISK");
    int64_t mib;
    if (out->budget_mib < 0 && text && hearth_console_number(text, &mib) && mib > 0) {
        out->budget_mib = mib;
    }
}

static int open_remote(struct kv *kv) {
    struct hearth_errmsg msg = {""};
    const char *variable = getenv("HEARTH_KV_REMOTE"), *ca = getenv("HEARTH_KV_REMOTE_CA");
    const bool named = strcmp(kv->options.remote, "-") == 0;
    if (kv->options.dir) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--kv-dir and --kv-remote are two places: name one");
    }
    if (named && !(variable && *variable)) {
        return hearth_complain(1, "--kv-remote -: HEARTH_KV_REMOTE is not set");
    }
    ca = kv->options.remote_ca ? kv->options.remote_ca : ca && *ca ? ca : NULL;
    return hearth_remote_list_open(named ? variable : kv->options.remote, ca, &kv->remote, &msg) == HEARTH_OK
               ? 0
               : hearth_complain(1, "--kv-remote: %s", msg.text);
}

static int open_directory(struct kv *kv, bool make) {
    struct hearth_errmsg msg = {""};
    char *path;
    int status = hearth_place_find("--kv-dir", kv->options.dir, "HEARTH_KV_DIR", hearth_place_kv, &path);
    if (status == 0 && hearth_directory_open(path, make, &kv->directory, &msg) != HEARTH_OK) {
        status = hearth_complain(1, "%s", msg.text);
    }
    free(path);
    return status;
}

static int open_place(struct kv *kv, bool make) {
    struct hearth_errmsg msg = {""};
    int status = kv->options.remote ? open_remote(kv) : open_directory(kv, make);
    const char *key = kv->options.key_file ? kv->options.key_file : getenv("HEARTH_KV_KEY");
    if (status == 0 && key && *key && hearth_seal_create(key, &kv->seal, &msg) != HEARTH_OK) {
        status = hearth_complain(1, "%s", msg.text);
    }
    return status;
}

static int run(const struct hearth_console_call *call, void *user) {
    struct kv *kv = user;
    const int bit = call->command->bit;
    kv->args = call->args;
    kv->arg_count = call->arg_count;
    if (bit == RM && (call->arg_count > 0) + kv->options.all + (kv->options.model != NULL) != 1) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "rm needs conversations (see hearth kv ls), --model HEX or --all");
    }
    hearth_log_set(hearth_show_log, NULL, HEARTH_LOG_INFO);
    int status = open_place(kv, bit == IMPORT);
    read_budget(&kv->options);
    if (status == 0) {
        status = runs[call->command - commands](kv);
        hearth_show_progress_end();
    }
    hearth_directory_close(kv->directory);
    hearth_remote_list_close(kv->remote);
    hearth_seal_destroy(kv->seal);
    return status;
}

int hearth_cli_kv(int argc, char *const argv[]) {
    struct kv kv = {.options = {.budget_mib = -1}};
    return hearth_console_run(&tool, argc, argv, &kv, run);
}
