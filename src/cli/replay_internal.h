/* What the files of `hearth replay` share.
 *
 *     replay.c        the command line, and a replay of one box
 *     replay_fleet.c  a replay of several boxes */
#ifndef HEARTH_CLI_REPLAY_INTERNAL_H
#define HEARTH_CLI_REPLAY_INTERNAL_H

#include "replay/fleet.h"

/* ---- values of options ---- */

/* A number with a letter behind it: units of `k`. False: it is none. */
bool hearth_lab_size(const char *text, uint64_t k, uint64_t *out);
/* Bytes a second: "10gbit", or "1.2g" for bytes. False: it is none, or 0. */
bool hearth_lab_rate(const char *text, double *out);
/* Microseconds: a number of seconds, or with us, ms, s, m or h behind it. *end: what follows. False: it is none. */
bool hearth_lab_time(const char *text, char **end, int64_t *out);

/* ---- several boxes ---- */

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
