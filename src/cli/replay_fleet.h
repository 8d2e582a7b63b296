/* `hearth replay --boxes`: a trace over several boxes. Inside the command. */
#ifndef HEARTH_CLI_REPLAY_FLEET_H
#define HEARTH_CLI_REPLAY_FLEET_H

#include "replay/fleet.h"

struct replay_fleet_options {
    const char *boxes;  /* "2" or "2,8,32" */
    const char *router; /* NULL: affinity. Several: with commas */
    const char *remote, *network, *lose;
};

/* Runs every number of boxes with every router, and prints a table or JSON. `choice`: its concurrency is of one box.
 * Returns an exit status, after a complaint where it is not 0. */
int hearth_lab_fleet(const struct replay_fleet_options *chosen, const struct hearth_replay_params *machine,
                     const struct hearth_trace_choice *choice, char *const paths[], size_t path_count, bool json);

#endif
