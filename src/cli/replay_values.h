/* Values of the options of `hearth replay`. */
#ifndef HEARTH_CLI_REPLAY_VALUES_H
#define HEARTH_CLI_REPLAY_VALUES_H

#include <stdbool.h>
#include <stdint.h>

/* A number with a letter behind it: units of `k`. False: it is none. */
bool hearth_lab_size(const char *text, uint64_t k, uint64_t *out);
/* Bytes a second: "10gbit", or "1.2g" for bytes. False: it is none, or 0. */
bool hearth_lab_rate(const char *text, double *out);
/* Microseconds: a number of seconds, or with us, ms, s, m or h behind it. *end: what follows. False: it is none. */
bool hearth_lab_time(const char *text, char **end, int64_t *out);

#endif
