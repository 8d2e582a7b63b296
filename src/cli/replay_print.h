/* What `hearth replay` found, and its three forms. Inside the command. */
#ifndef HEARTH_CLI_REPLAY_PRINT_H
#define HEARTH_CLI_REPLAY_PRINT_H

#include "replay/replay.h"

#define REPLAY_POLICIES_MAX 8

struct replay_report {
    const struct hearth_trace *trace;
    const struct hearth_replay_params *params;
    struct hearth_oracle oracle;
    struct replay_row {
        const char *name;
        struct hearth_replay_result result;
    } rows[REPLAY_POLICIES_MAX];
    size_t row_count;
    struct hearth_replay_bound belady;
};

/* Each returns an exit status, after a complaint where it is not 0. */
int hearth_lab_print_table(const struct replay_report *report);
int hearth_lab_print_json(const struct replay_report *report);
int hearth_lab_print_svg(const struct replay_report *report, const char *path);

#endif
