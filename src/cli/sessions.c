/* The command line of `hearth sessions`: the command, its options, the database.
 *
 * A flag wins over its variable (HEARTH_SESSION_DB, HEARTH_KV_KEY), which wins over the default: the same database
 * that `hearth serve` takes. Only import creates one. */
#include "cli/commands.h"

#include "base/memory.h"
#include "cli/options.h"
#include "console/places.h"
#include "cli/sessions_internal.h"
#include "console/tool.h"
#include "session/db_pg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    LS = 1,
    SHOW = 2,
    FORK = 4,
    EXPORT = 8,
    IMPORT = 16,
    RM = 32,
    RESTORE = 64,
    BACKUP = 128,
    RECOVER = 256,
    ALL = 511,
};

static const struct hearth_console_command commands[] = {
    {"ls", "", "sessions: turns, tokens, age, what was asked last", LS, 0, 0},
    {"show", "NAME", "the conversation as text", SHOW, 1, 1},
    {"fork", "NAME NEW", "a new session that stands where NAME stands; nothing is copied", FORK, 2, 2},
    {"export", "NAME [FILE]", "write a session as JSON into a file (without one or with -: standard output)", EXPORT, 1,
     2},
    {"import", "FILE", "make a session from such a file (- for standard input), or add a server's transcripts.db",
     IMPORT, 1, 1},
    {"rm", "NAME…", "remove sessions; turns that others go on from stay", RM, 1, HEARTH_CONSOLE_MANY},
    {"restore", "[NAME…]", "keep sessions that were not used for too long (--all: all of them)", RESTORE, 0,
     HEARTH_CONSOLE_MANY},
    {"backup", "FILE", "write a copy of the database, also while servers use it", BACKUP, 1, 1},
    {"recover", "[FILE]", "save what can be read of a damaged database into another one (--to)", RECOVER, 0, 1},
};

/* Of the command at the same place. */
static int (*const runs[])(struct sessions *sessions) = {
    hearth_cli_sessions_ls,      hearth_cli_sessions_show,   hearth_cli_sessions_fork,
    hearth_cli_sessions_export,  hearth_cli_sessions_import, hearth_cli_sessions_rm,
    hearth_cli_sessions_restore, hearth_cli_sessions_backup, hearth_cli_sessions_recover};

static const struct hearth_console_option options[] = {
    {"--db", "FILE", "the database [HEARTH_SESSION_DB, or where hearth serve has it]", ALL, HEARTH_CONSOLE_TEXT,
     offsetof(struct sessions_options, db)},
    {"--key", "FILE", "the key of an encrypted database, the server's --kv-key [HEARTH_KV_KEY]", ALL,
     HEARTH_CONSOLE_TEXT, offsetof(struct sessions_options, key_file)},
    {"--owner", "HEX", "only sessions of this owner (ls names them, where there are several)", ALL, HEARTH_CONSOLE_TEXT,
     offsetof(struct sessions_options, owner)},
    {"--json", "", "output for programs", LS | SHOW | FORK | IMPORT | RM | RESTORE | RECOVER, HEARTH_CONSOLE_SWITCH,
     offsetof(struct sessions_options, json)},
    {"--as", "NAME", "the session's name, instead of the one in the file", IMPORT, HEARTH_CONSOLE_TEXT,
     offsetof(struct sessions_options, as)},
    {"--yes", "", "do not ask", RM, HEARTH_CONSOLE_SWITCH, offsetof(struct sessions_options, yes)},
    {"--expired", "", "those that were not used for too long, and go soon", LS, HEARTH_CONSOLE_SWITCH,
     offsetof(struct sessions_options, expired)},
    {"--all", "", "all that were not used for too long, responses too", RESTORE, HEARTH_CONSOLE_SWITCH,
     offsetof(struct sessions_options, all)},
    {"--to", "FILE", "the new database, which must not be there", RECOVER, HEARTH_CONSOLE_TEXT,
     offsetof(struct sessions_options, to)},
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL(
    "sessions",
    "the conversations that live in the server's database. Works while servers use it, and without a model.", commands,
    options);

/* ---- the database ---- */

/* Only import makes a database. What is wrong with one that is there is for the store to tell. */
static int check_file(const char *path, bool make) {
    struct stat st;
    if (hearth_db_is_pg(path) || stat(path, &st) == 0 || (errno == ENOENT && make)) {
        return 0;
    }
    return errno == ENOENT
               ? hearth_complain(1, "%s: there is no such database (hearth serve makes it; --db names another)", path)
               : hearth_complain(1, "%s: %s", path, strerror(errno));
}

/* A URL is told without its password. NULL: `url` is none, or it cannot be read, which opening it says. */
static char *name_of(const char *url) {
    return hearth_db_is_pg(url) ? hearth_db_pg_name(url) : NULL;
}

static int open_store(struct sessions *sessions, const struct hearth_console_command *command) {
    struct hearth_errmsg msg = {""};
    const bool make = command->bit == IMPORT;
    const char *key = sessions->options.key_file ? sessions->options.key_file : getenv("HEARTH_KV_KEY");
    const bool named = command->bit == RECOVER && sessions->arg_count > 0;
    int status = hearth_place_find("--db", named ? sessions->args[0] : sessions->options.db, "HEARTH_SESSION_DB",
                                   hearth_place_sessions, &sessions->path);
    if (status != 0) {
        return status;
    }
    if (key && *key && hearth_seal_create(key, &sessions->seal, &msg) != HEARTH_OK) {
        return hearth_complain(1, "%s", msg.text);
    }
    if (command->bit == RECOVER && hearth_db_is_pg(sessions->path)) {
        return hearth_complain(1, "recover reads a database that is a file; a server's is its own to repair");
    }
    if (command->bit == RECOVER) { /* which does not open it as a store */
        return 0;
    }
    status = check_file(sessions->path, make);
    if (status != 0) {
        return status;
    }
    const struct hearth_session_store_params params = {.path = sessions->path, .seal = sessions->seal, .is_tool = true};
    const int err = hearth_session_store_create(&params, &sessions->store, &msg);
    char *name = name_of(sessions->path);
    if (name) {
        sessions->url = sessions->path;
        sessions->path = name;
    }
    return err == HEARTH_OK ? 0 : hearth_cli_sessions_complain(err, &msg, sessions->path);
}

/* ---- running ---- */

static int check_options(const struct sessions_options *chosen, const struct hearth_console_command *command) {
    const char *owner = chosen->owner;
    struct hearth_digest digest;
    if (owner && (strspn(owner, "0123456789abcdef") != strlen(owner) || strlen(owner) > 32)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--owner needs up to 32 lower-case hex digits, not '%.60s'",
                               owner);
    }
    if (owner && command->bit == IMPORT && !hearth_cli_sessions_read_digest(owner, &digest)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "import needs all 32 digits of --owner");
    }
    return 0;
}

static int run(const struct hearth_console_call *call, void *user) {
    struct sessions *sessions = user;
    sessions->args = call->args;
    sessions->arg_count = call->arg_count;
    hearth_log_set(hearth_show_log, NULL, HEARTH_LOG_WARN);
    int status = check_options(&sessions->options, call->command);
    if (status == 0) {
        status = open_store(sessions, call->command);
    }
    if (status == 0) {
        status = runs[call->command - commands](sessions);
    }
    hearth_session_store_destroy(sessions->store);
    hearth_seal_destroy(sessions->seal);
    free(sessions->path);
    hearth_memory_wipe(sessions->url); /* it may hold a password */
    return status;
}

int hearth_cli_sessions(int argc, char *const argv[]) {
    struct sessions sessions = {0};
    return hearth_console_run(&tool, argc, argv, &sessions, run);
}
