/* Which clients reach the server without a key: checked before it listens. */
#ifndef HEARTH_CLI_SERVE_DOORS_H
#define HEARTH_CLI_SERVE_DOORS_H

#include "cli/options.h"

/* Refuses a network address without a key (unless --insecure), every origin without a key, and words of --cors-origin
 * and --allow-host that say nothing. Errors: INVALID, with one line that says what to set. */
int hearth_serve_doors_check(const struct hearth_options *options, size_t key_count, struct hearth_errmsg *msg);

/* True when only this machine reaches what is listened on: a loopback address, a name of one, or a socket in a file. */
bool hearth_serve_doors_is_local(const char *host);

#endif
