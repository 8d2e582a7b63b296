/* `hearth sessions`: its command line, the database, and the commands that stay in it (sessions_export.c carries
 * sessions elsewhere). The JSON objects are described in docs/sessions.md.
 *
 * A flag wins over its variable (HEARTH_SESSION_DB, HEARTH_KV_KEY), which wins over the default: the same database
 * that `hearth serve` takes. Only import creates one. */
#include "cli/commands.h"

#include "base/memory.h"
#include "cli/options.h"
#include "cli/sessions_internal.h"
#include "console/places.h"
#include "console/show_items.h"
#include "console/table.h"
#include "console/tool.h"
#include "session/db_pg.h"
#include "session/store_recover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_COLUMNS 40
#define SEARCH_TURNS 20 /* that are read one by one, from the last one back, for something that a user said */

/* ---- ls ---- */

static char *words_of(const struct hearth_turn *turn) {
    json_t *body = hearth_cli_sessions_json(&turn->body);
    char *text = hearth_show_last_text(json_object_get(body, "input"), "user");
    json_decref(body);
    return text;
}

/* The same by way of the whole line, on which there are turns that were deleted, too. */
static char *last_words_of_line(struct sessions *sessions, const struct hearth_session *session) {
    struct hearth_line line;
    char *text = NULL;
    if (hearth_line_get(sessions->store, session->owner, session->head, &line) != HEARTH_OK) {
        return NULL; /* damaged, which show complains of */
    }
    for (size_t i = line.count; i-- > 0 && !text;) {
        text = words_of(&line.turns[i]);
    }
    hearth_line_finish(&line);
    return text;
}

/* What the user said last; NULL: nothing, or it cannot be read. The caller's to free. Most often the last turn has it,
 * so that not all of the conversation is read. */
static char *last_words(struct sessions *sessions, const struct hearth_session *session) {
    struct hearth_digest id = session->head;
    char *text = NULL;
    for (int i = 0; i < SEARCH_TURNS && !text && !hearth_digest_is_zero(id); i++) {
        struct hearth_turn turn = {0};
        if (hearth_turn_get(sessions->store, session->owner, id, &turn) != HEARTH_OK) {
            return last_words_of_line(sessions, session);
        }
        text = words_of(&turn);
        id = turn.parent;
        hearth_turn_finish(&turn);
    }
    return text || hearth_digest_is_zero(id) ? text : last_words_of_line(sessions, session);
}

static int ls_json(struct sessions *sessions, const struct hearth_session *list, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *one = hearth_cli_sessions_about(&list[i]);
        char *text = last_words(sessions, &list[i]);
        (void)json_object_set_new(one, "text", json_string(text ? text : ""));
        (void)json_array_append_new(array, one);
        free(text);
    }
    return hearth_show_json(json_pack("{s:s, s:o}", "db", sessions->path, "sessions", array));
}

static void add_row(struct hearth_show_table *table, const struct hearth_session *session) {
    char hex[33];
    hearth_digest_hex(session->owner, hex);
    hex[8] = '\0';
    hearth_show_table_add(table, (const char *[]){session->name, hearth_digest_is_zero(session->owner) ? "-" : hex,
                                                  hearth_show_count(session->turns).text,
                                                  session->tokens > 0 ? hearth_show_count(session->tokens).text : "-",
                                                  hearth_show_age(session->used_us).text});
}

static int print_rows(struct sessions *sessions, const struct hearth_session *list, size_t count) {
    struct hearth_show_column columns[] = {
        {"NAME", true, NAME_COLUMNS}, {NULL, true, 0}, {"TURNS", false, 0}, {"TOKENS", false, 0}, {"USED", false, 0}};
    struct hearth_show_table table;
    for (size_t i = 0; i < count; i++) {
        columns[1].title = hearth_digest_equal(list[i].owner, list[0].owner) ? columns[1].title : "OWNER";
    }
    hearth_show_table_init(&table, columns, sizeof columns / sizeof columns[0], "");
    for (size_t i = 0; i < count; i++) {
        add_row(&table, &list[i]);
    }
    (void)hearth_show_table_head(&table, "ASKED LAST");
    for (size_t i = 0; i < count && !table.nomem; i++) {
        char *text = last_words(sessions, &list[i]);
        (void)hearth_show_text(stdout, text ? text : "", hearth_show_table_row(&table, i));
        (void)fputc('\n', stdout);
        free(text);
    }
    return hearth_show_table_end(&table);
}

static int list_sessions(struct sessions *sessions) {
    struct hearth_session *list;
    size_t count;
    int status = 0;
    if (!hearth_cli_sessions_list(sessions, &list, &count)) {
        return 1;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].expired == sessions->options.expired) {
            list[kept++] = list[i];
        } else {
            hearth_session_finish(&list[i]);
        }
    }
    count = kept;
    if (sessions->options.json) {
        status = ls_json(sessions, list, count);
    } else if (count == 0) {
        (void)printf("%s has no %ssessions\n", sessions->path, sessions->options.expired ? "expired " : "");
    } else {
        status = print_rows(sessions, list, count);
    }
    hearth_cli_sessions_list_free(list, count);
    return status;
}

/* ---- show ---- */

static void append_items(json_t *array, const struct hearth_turn *turn) {
    json_t *body = hearth_cli_sessions_json(&turn->body);
    (void)json_array_extend(array, json_object_get(body, "input"));
    (void)json_array_extend(array, json_object_get(body, "output"));
    json_decref(body);
}

static int show_json(const struct hearth_session *session, const struct hearth_line *line) {
    json_t *root = hearth_cli_sessions_about(session), *items = json_array();
    for (size_t i = 0; i < line->count; i++) {
        append_items(items, &line->turns[i]);
    }
    if (line->count > 0) {
        json_t *config = hearth_cli_sessions_json(&line->turns[line->count - 1].config);
        (void)json_object_set_new(root, "config", config ? config : json_null());
    }
    (void)json_object_set_new(root, "items", items);
    return hearth_show_json(root);
}

/* The system text and the tools that hold now. */
static void print_config(struct hearth_show_items *print, const struct hearth_turn *last) {
    json_t *config = hearth_cli_sessions_json(&last->config);
    const json_t *tools = json_object_get(config, "tools"), *tool;
    size_t i;
    hearth_show_items(print, json_object_get(config, "system"));
    if (json_array_size(tools) > 0) {
        (void)fputs("tools\n ", stdout);
        json_array_foreach(tools, i, tool) {
            const char *name = json_string_value(json_object_get(tool, "name"));
            name = name ? name : json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
            (void)fputc(' ', stdout);
            (void)hearth_show_text(stdout, name ? name : "?", 80);
        }
        (void)fputs("\n\n", stdout);
    }
    json_decref(config);
}

static void show_text(const struct hearth_session *session, const struct hearth_line *line) {
    struct hearth_show_items print = {.out = stdout};
    (void)hearth_show_text(stdout, session->name, 1000);
    (void)printf(": %s", hearth_show_number(session->turns, "turn", "turns").text);
    if (session->tokens > 0) {
        (void)printf(", %s tokens", hearth_show_count(session->tokens).text);
    }
    (void)printf(", last used %s ago\n\n", hearth_show_age(session->used_us).text);
    if (line->count > 0) {
        print_config(&print, &line->turns[line->count - 1]);
    }
    for (size_t i = 0; i < line->count; i++) {
        const struct hearth_turn *turn = &line->turns[i];
        json_t *items = json_array();
        append_items(items, turn);
        hearth_show_items(&print, items);
        if (turn->status != HEARTH_TURN_COMPLETED) {
            (void)printf("(%s)\n\n", hearth_turn_status_text(turn->status));
        }
        json_decref(items);
    }
    hearth_show_items_finish(&print);
}

static int show(struct sessions *sessions) {
    struct hearth_session session;
    struct hearth_line line;
    int status = 1;
    if (!hearth_cli_sessions_find(sessions, sessions->args[0], &session)) {
        return 1;
    }
    if (hearth_cli_sessions_line(sessions, &session, &line)) {
        status = 0;
        if (sessions->options.json) {
            status = show_json(&session, &line);
        } else {
            show_text(&session, &line);
        }
        hearth_line_finish(&line);
    }
    hearth_session_finish(&session);
    return status;
}

/* ---- fork ---- */

static int fork_session(struct sessions *sessions) {
    struct hearth_session session;
    if (!hearth_cli_sessions_find(sessions, sessions->args[0], &session)) {
        return 1;
    }
    const struct hearth_session fork = {.name = sessions->args[1], .owner = session.owner, .head = session.head};
    int status = hearth_cli_sessions_add(sessions, &fork, "");
    if (status == 0 && sessions->options.json) {
        status = hearth_show_json(
            json_pack("{s:s, s:s, s:i}", "name", fork.name, "forked", session.name, "turns", (int)session.turns));
    } else if (status == 0) {
        (void)printf("%s stands where %s does, after %s\n", hearth_cli_sessions_name(fork.name).text,
                     hearth_cli_sessions_name(session.name).text,
                     hearth_show_number(session.turns, "turn", "turns").text);
    }
    hearth_session_finish(&session);
    return status;
}

/* ---- rm ---- */

static bool is_named_before(char *const *args, int at) {
    for (int i = 0; i < at; i++) {
        if (strcmp(args[i], args[at]) == 0) {
            return true;
        }
    }
    return false;
}

/* Deletes what was found. A status. */
static int remove_all(struct sessions *sessions, const struct hearth_session *found, size_t count) {
    struct hearth_session_store_stats before = {0}, after = {0};
    size_t removed = 0;
    int status = 0;
    (void)hearth_session_store_stats(sessions->store, &before);
    for (size_t i = 0; i < count && status == 0; i++) {
        const int err = hearth_session_delete(sessions->store, found[i].owner, found[i].name);
        removed += err == HEARTH_OK;
        if (err != HEARTH_OK && err != HEARTH_ERR_NOT_FOUND) { /* NOT_FOUND: a server was faster */
            status = hearth_cli_sessions_complain(err, NULL, hearth_cli_sessions_name(found[i].name).text);
        }
    }
    (void)hearth_session_store_stats(sessions->store, &after);
    const uint64_t had = before.turns + before.hidden, have = after.turns + after.hidden;
    const uint64_t turns = had > have ? had - have : 0;
    if (sessions->options.json) {
        const int printed = hearth_show_json(HEARTH_SHOW_MEMBERS({"sessions", removed}, {"turns", turns}));
        return status != 0 ? status : printed;
    }
    (void)printf("removed %s with %s; their state on disk goes when a server runs or starts with their model\n",
                 hearth_show_number(removed, "session", "sessions").text,
                 hearth_show_number(turns, "turn", "turns").text);
    return status;
}

static int remove_sessions(struct sessions *sessions) {
    struct hearth_session *found = calloc((size_t)sessions->arg_count, sizeof *found);
    size_t count = 0;
    uint64_t turns = 0;
    int status = found ? 0 : hearth_complain(1, "out of memory");
    for (int i = 0; i < sessions->arg_count && status == 0; i++) {
        if (is_named_before(sessions->args, i)) {
            continue;
        }
        if (hearth_cli_sessions_find(sessions, sessions->args[i], &found[count])) {
            turns += found[count++].turns;
        } else {
            status = 1;
        }
    }
    if (status == 0 && !sessions->options.yes &&
        !hearth_show_asked("remove %s with %s (what others go on from stays)?",
                           hearth_show_number(count, "session", "sessions").text,
                           hearth_show_number(turns, "turn", "turns").text)) {
        status = hearth_complain(1, "nothing was removed");
    } else if (status == 0) {
        status = remove_all(sessions, found, count);
    }
    hearth_cli_sessions_list_free(found, count);
    return status;
}

/* ---- restore ---- */

static int restore(struct sessions *sessions) {
    const struct hearth_digest no_owner = {0, 0};
    int count = 0, status = 0;
    if ((sessions->arg_count == 0) != sessions->options.all) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "restore needs the names of sessions, or --all");
    }
    if (sessions->options.all) {
        count = hearth_session_restore(sessions->store, no_owner, NULL);
        status = count < 0 ? hearth_cli_sessions_complain(count, NULL, sessions->path) : 0;
    }
    for (int i = 0; i < sessions->arg_count && status == 0; i++) {
        struct hearth_session session;
        if (!hearth_cli_sessions_find(sessions, sessions->args[i], &session)) {
            return 1;
        }
        const int restored = hearth_session_restore(sessions->store, session.owner, session.name);
        count += restored > 0 ? restored : 0;
        status = restored < 0 ? hearth_cli_sessions_complain(restored, NULL, sessions->path) : 0;
        hearth_session_finish(&session);
    }
    if (status == 0 && sessions->options.json) {
        status = hearth_show_json(json_pack("{s:i}", "sessions", count));
    } else if (status == 0) {
        (void)printf("restored %s\n", hearth_show_number((uint64_t)count, "session", "sessions").text);
    }
    return status;
}

/* ---- backup, recover ---- */

static int backup(struct sessions *sessions) {
    struct hearth_errmsg msg = {""};
    const int err = hearth_session_store_backup(sessions->store, sessions->args[0], &msg);
    if (err != HEARTH_OK) {
        return hearth_cli_sessions_complain(err, &msg, sessions->args[0]);
    }
    (void)printf("%s is a copy of %s\n", sessions->args[0], sessions->path);
    return 0;
}

static int recover(struct sessions *sessions) {
    const char *from = sessions->arg_count > 0 ? sessions->args[0] : sessions->path;
    const struct hearth_recovery_params params = {.from = from, .to = sessions->options.to, .seal = sessions->seal};
    struct hearth_recovery found;
    struct hearth_errmsg msg = {""};
    if (!params.to) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "recover needs --to FILE, where what can be read is written");
    }
    const int err = hearth_session_recover(&params, &found, &msg);
    if (err != HEARTH_OK) {
        return hearth_cli_sessions_complain(err, &msg, from);
    }
    if (sessions->options.json) {
        return hearth_show_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "to", params.to, "turns",
                                          (json_int_t)found.turns, "sessions", (json_int_t)found.sessions, "lost_turns",
                                          (json_int_t)found.lost_turns, "lost_sessions",
                                          (json_int_t)found.lost_sessions, "shorter", (json_int_t)found.shorter));
    }
    (void)printf("%s has %s and %s of %s\n", params.to, hearth_show_number(found.sessions, "session", "sessions").text,
                 hearth_show_number(found.turns, "turn", "turns").text, from);
    if (found.lost_turns + found.lost_sessions + found.shorter > 0) {
        (void)printf("lost: %s, %s; %s at an earlier turn now\n",
                     hearth_show_number(found.lost_turns, "turn", "turns").text,
                     hearth_show_number(found.lost_sessions, "session", "sessions").text,
                     hearth_show_number(found.shorter, "session stands", "sessions stand").text);
    }
    return 0;
}

/* ---- the command line ---- */

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

/* The functions of `commands`, in the same order. */
static int (*const runs[])(struct sessions *sessions) = {
    list_sessions, show,   fork_session, hearth_cli_sessions_export, hearth_cli_sessions_import, remove_sessions,
    restore,       backup, recover};

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

/* Complains if there is no database, unless it is to be made. Other faults are found when it is opened. */
static int check_file(const char *path, bool make) {
    struct stat st;
    if (hearth_db_is_pg(path) || stat(path, &st) == 0 || (errno == ENOENT && make)) {
        return 0;
    }
    return errno == ENOENT
               ? hearth_complain(1, "%s: there is no such database (hearth serve makes it; --db names another)", path)
               : hearth_complain(1, "%s: %s", path, strerror(errno));
}

/* A URL without its password. NULL: `url` is none, or it is malformed, which opening it reports. */
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
