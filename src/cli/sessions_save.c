/* `hearth sessions backup` and `recover`. */
#include "cli/sessions_internal.h"
#include "console/tool.h"

#include "session/store_recover.h"

int hearth_cli_sessions_backup(struct sessions *sessions) {
    struct hearth_errmsg msg = {""};
    const int err = hearth_session_store_backup(sessions->store, sessions->args[0], &msg);
    if (err != HEARTH_OK) {
        return hearth_cli_sessions_complain(err, &msg, sessions->args[0]);
    }
    (void)printf("%s is a copy of %s\n", sessions->args[0], sessions->path);
    return 0;
}

int hearth_cli_sessions_recover(struct sessions *sessions) {
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
