/* Options that were given and change nothing, because of the machine, the model or other options. */
#ifndef HEARTH_CLI_OPTIONS_MOOT_H
#define HEARTH_CLI_OPTIONS_MOOT_H

#include "cli/options.h"

/* What the options alone do not tell. */
struct hearth_option_facts {
    bool computes;         /* with a model: the simulated engine has no processors to choose */
    unsigned gpus;         /* that can be used */
    bool pages, snapshots; /* the model's state is stored in them */
    bool disk;             /* state is stored on disk */
    bool sessions;         /* in a file */
    bool local;            /* --host is reached from this machine alone */
};

/* Appends a line for each: "--draft-tokens has no effect: --speculate is off". False: out of memory. */
bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out);

#endif
