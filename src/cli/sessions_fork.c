/* `hearth sessions fork`, `rm` and `restore`. */
#include "cli/sessions_internal.h"
#include "console/tool.h"

#include <stdlib.h>
#include <string.h>

int hearth_cli_sessions_fork(struct sessions *sessions) {
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
        const int printed =
            hearth_show_json(json_pack("{s:I, s:I}", "sessions", (json_int_t)removed, "turns", (json_int_t)turns));
        return status != 0 ? status : printed;
    }
    (void)printf("removed %s with %s; their state on disk goes when a server runs or starts with their model\n",
                 hearth_show_number(removed, "session", "sessions").text,
                 hearth_show_number(turns, "turn", "turns").text);
    return status;
}

int hearth_cli_sessions_rm(struct sessions *sessions) {
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

int hearth_cli_sessions_restore(struct sessions *sessions) {
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
