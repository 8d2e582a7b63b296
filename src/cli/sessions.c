/* The command line of `hearth sessions`: which command, its options, the database and a session in it.
 *
 * A flag wins over its variable (HEARTH_SESSION_DB, HEARTH_KV_KEY), which wins over the default: the same database that
 * `hearth serve` takes. Only import makes one.
 *
 * Sessions belong to owners: on a server with several API keys two of them may have a session of the same name. --owner
 * tells which is meant. */
#include "cli/sessions.h"

#include "cli/options.h"
#include "console/places.h"
#include "cli/sessions_internal.h"
#include "console/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    {"import", "FILE", "make a session from such a file (- for standard input)", IMPORT, 1, 1},
    {"rm", "NAME…", "remove sessions; turns that others go on from stay", RM, 1, HEARTH_CONSOLE_MANY},
    {"restore", "[NAME…]", "keep sessions that were not used for too long (--all: all of them)", RESTORE, 0,
     HEARTH_CONSOLE_MANY},
    {"backup", "FILE", "write a copy of the database, also while servers use it", BACKUP, 1, 1},
    {"recover", "[FILE]", "save what can be read of a damaged database into another one (--to)", RECOVER, 0, 1},
};

/* Of the command at the same place. */
static int (*const runs[])(struct sessions *sessions) = {
    hearth_sessions_ls, hearth_sessions_show,    hearth_sessions_fork,   hearth_sessions_export, hearth_sessions_import,
    hearth_sessions_rm, hearth_sessions_restore, hearth_sessions_backup, hearth_sessions_recover};

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

static const struct hearth_console_tool tool = {
    .name = "sessions",
    .about = "the conversations that live in the server's database. Works while servers use it, and without a model.",
    .commands = commands,
    .command_count = sizeof commands / sizeof commands[0],
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* ---- the database ---- */

/* Only import makes a database. What is wrong with one that is there is for the store to tell. */
static int check_file(const char *path, bool make) {
    struct stat st;
    if (stat(path, &st) == 0 || (errno == ENOENT && make)) {
        return 0;
    }
    return errno == ENOENT
               ? hearth_complain(1, "%s: there is no such database (hearth serve makes it; --db names another)", path)
               : hearth_complain(1, "%s: %s", path, strerror(errno));
}

static int open_store(struct sessions *sessions, const struct hearth_console_command *command) {
    struct hearth_errmsg msg = {""};
    const bool make = command->bit == IMPORT;
    const char *path = sessions->options.db ? sessions->options.db : getenv("HEARTH_SESSION_DB");
    if (command->bit == RECOVER && sessions->arg_count > 0) {
        path = sessions->args[0];
    }
    const char *key = sessions->options.key_file ? sessions->options.key_file : getenv("HEARTH_KV_KEY");
    sessions->path = path && *path ? strdup(path) : hearth_place_sessions();
    if (!sessions->path) {
        return hearth_complain(1, "this user has no home: name the database with --db");
    }
    if (strcmp(sessions->path, "none") == 0) {
        return hearth_complain(1, "sessions are turned off (none): name a database with --db");
    }
    if (key && *key && hearth_seal_create(key, &sessions->seal, &msg) != HEARTH_OK) {
        return hearth_complain(1, "%s", msg.text);
    }
    if (command->bit == RECOVER) { /* which does not open it as a store */
        return 0;
    }
    const int status = check_file(sessions->path, make);
    if (status != 0) {
        return status;
    }
    const struct hearth_session_store_params params = {.path = sessions->path, .seal = sessions->seal, .is_tool = true};
    const int err = hearth_session_store_create(&params, &sessions->store, &msg);
    return err == HEARTH_OK ? 0 : hearth_sessions_complain(err, &msg, sessions->path);
}

int hearth_sessions_complain(int err, const struct hearth_errmsg *msg, const char *what) {
    return msg && *msg->text
               ? hearth_complain(1, "%s", msg->text)
               : hearth_complain(1, "%s: %s", what,
                                 err == HEARTH_ERR_STATE ? "it is damaged, or encrypted with another key (--key FILE)"
                                                         : hearth_err_text(err));
}

int hearth_sessions_add(struct sessions *sessions, const struct hearth_session *session, const char *hint) {
    struct hearth_errmsg msg = {""};
    struct hearth_session there;
    const struct sessions_name name = hearth_sessions_name(session->name);
    const int err = hearth_session_put(sessions->store, session, false, &msg);
    if (err != HEARTH_ERR_INVALID) {
        return err == HEARTH_OK ? 0 : hearth_sessions_complain(err, &msg, name.text);
    }
    if (hearth_session_get(sessions->store, session->owner, session->name, &there) == HEARTH_OK) {
        hearth_session_finish(&there);
        return hearth_complain(1, "there is a session %s already%s", name.text, hint);
    }
    return hearth_complain(1, "%s: %s", name.text, msg.text);
}

/* ---- small things ---- */

struct sessions_name hearth_sessions_name(const char *name) {
    struct sessions_name out = {""};
    FILE *memory = fmemopen(out.text, sizeof out.text, "w");
    if (memory) {
        (void)fputc('\'', memory);
        (void)hearth_show_text(memory, name, 60);
        (void)fputc('\'', memory);
        (void)fclose(memory);
    }
    return out;
}

json_t *hearth_sessions_json(const struct hearth_buf *text) {
    return text->len > 0 ? json_loadb((const char *)text->data, text->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                         : NULL;
}

json_t *hearth_sessions_digest(struct hearth_digest digest) {
    char hex[33];
    hearth_digest_hex(digest, hex);
    return hearth_digest_is_zero(digest) ? json_null() : json_string(hex);
}

bool hearth_sessions_read_digest(const char *hex, struct hearth_digest *out) {
    uint64_t halves[2] = {0, 0};
    if (!hex || strlen(hex) != 32) {
        return false;
    }
    for (int i = 0; i < 32; i++) {
        const char *digit = strchr("0123456789abcdef", hex[i]);
        if (!digit) {
            return false;
        }
        halves[i / 16] = halves[i / 16] << 4 | (uint64_t)(digit - "0123456789abcdef");
    }
    *out = (struct hearth_digest){.hi = halves[0], .lo = halves[1]};
    return true;
}

json_t *hearth_sessions_about(const struct hearth_session *session) {
    return json_pack("{s:s, s:o, s:i, s:i, s:I, s:I, s:o*}", "name", session->name, "owner",
                     hearth_sessions_digest(session->owner), "turns", (int)session->turns, "tokens",
                     (int)session->tokens, "created", (json_int_t)(session->created_us / 1000000), "used",
                     (json_int_t)(session->used_us / 1000000), "metadata", hearth_sessions_json(&session->metadata));
}

/* ---- finding sessions ---- */

static bool is_owned(const struct sessions *sessions, const struct hearth_session *session) {
    char hex[33];
    const char *prefix = sessions->options.owner;
    hearth_digest_hex(session->owner, hex);
    return !prefix || strncmp(hex, prefix, strlen(prefix)) == 0;
}

void hearth_sessions_list_free(struct hearth_session *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        hearth_session_finish(&list[i]);
    }
    free(list);
}

/* Those that are used, and behind them those whose time is over. */
static int list_all(struct sessions *sessions, struct hearth_session **list, size_t *count) {
    struct hearth_session_query query = {.all_owners = true};
    struct hearth_session *expired = NULL, *both;
    size_t more = 0;
    int err = hearth_session_list(sessions->store, &query, list, count);
    query.expired = true;
    err = err == HEARTH_OK ? hearth_session_list(sessions->store, &query, &expired, &more) : err;
    if (err == HEARTH_OK && more > 0) {
        both = realloc(*list, (*count + more) * sizeof *both);
        if (both == NULL) {
            hearth_sessions_list_free(expired, more);
            hearth_sessions_list_free(*list, *count);
            return HEARTH_ERR_NOMEM;
        }
        memcpy(both + *count, expired, more * sizeof *both);
        *list = both;
        *count += more;
    }
    free(expired);
    return err;
}

bool hearth_sessions_list(struct sessions *sessions, struct hearth_session **list, size_t *count) {
    const int err = list_all(sessions, list, count);
    if (err != HEARTH_OK) {
        (void)hearth_sessions_complain(err, NULL, sessions->path);
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (is_owned(sessions, &(*list)[i])) {
            (*list)[kept++] = (*list)[i];
        } else {
            hearth_session_finish(&(*list)[i]);
        }
    }
    *count = kept;
    return true;
}

static int not_found(const char *name, const struct hearth_session *list, size_t count) {
    const char **names = calloc(count + 1, sizeof *names);
    for (size_t i = 0; names && i < count; i++) {
        names[i] = list[i].name;
    }
    const char *near = names ? hearth_show_nearest(name, names, count) : NULL;
    const int status =
        hearth_complain(1, "there is no session %s%s%s%s (see hearth sessions ls)", hearth_sessions_name(name).text,
                        near ? ", did you mean " : "", near ? hearth_sessions_name(near).text : "", near ? "?" : "");
    free(names);
    return status;
}

bool hearth_sessions_find(struct sessions *sessions, const char *name, struct hearth_session *out) {
    struct hearth_session *list;
    size_t count, found = 0, at = 0;
    *out = (struct hearth_session){0};
    if (!hearth_sessions_list(sessions, &list, &count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) == 0) {
            found++;
            at = i;
        }
    }
    if (found == 0) {
        (void)not_found(name, list, count);
    } else if (found > 1) {
        (void)hearth_complain(1,
                              "%zu owners have a session %s: tell which with --owner (hearth sessions ls names them)",
                              found, hearth_sessions_name(name).text);
    } else {
        *out = list[at];
        list[at] = (struct hearth_session){0};
    }
    hearth_sessions_list_free(list, count);
    return found == 1;
}

bool hearth_sessions_line(struct sessions *sessions, const struct hearth_session *session, struct hearth_line *out) {
    *out = (struct hearth_line){0};
    if (hearth_digest_is_zero(session->head)) {
        return true;
    }
    const int err = hearth_line_get(sessions->store, session->owner, session->head, out);
    if (err != HEARTH_OK) {
        (void)hearth_sessions_complain(err, NULL, hearth_sessions_name(session->name).text);
    }
    return err == HEARTH_OK;
}

/* ---- running ---- */

static int check_options(const struct sessions_options *chosen, const struct hearth_console_command *command) {
    const char *owner = chosen->owner;
    struct hearth_digest digest;
    if (owner && (strspn(owner, "0123456789abcdef") != strlen(owner) || strlen(owner) > 32)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--owner needs up to 32 lower-case hex digits, not '%.60s'",
                               owner);
    }
    if (owner && command->bit == IMPORT && !hearth_sessions_read_digest(owner, &digest)) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "import needs all 32 digits of --owner");
    }
    return 0;
}

static int run(const struct hearth_console_command *command, struct sessions *sessions) {
    int status = check_options(&sessions->options, command);
    if (status == 0) {
        status = open_store(sessions, command);
    }
    if (status == 0) {
        status = runs[command - commands](sessions);
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        status = hearth_complain(1, "cannot write to standard output");
    }
    hearth_session_store_destroy(sessions->store);
    hearth_seal_destroy(sessions->seal);
    free(sessions->path);
    return status;
}

int hearth_sessions(int argc, char *const argv[]) {
    struct sessions sessions = {0};
    struct hearth_console_call call;
    hearth_show_as("hearth sessions");
    hearth_console_parse(&tool, argc, argv, &sessions.options, &call);
    int status = call.status;
    sessions.args = call.args;
    sessions.arg_count = call.arg_count;
    if (call.command) {
        hearth_log_set(hearth_show_log, NULL, HEARTH_LOG_WARN);
        status = run(call.command, &sessions);
    }
    free(call.args);
    return status;
}
