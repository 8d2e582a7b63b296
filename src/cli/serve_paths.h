/* The paths that a server is given, checked before anything is loaded. */
#ifndef HEARTH_CLI_SERVE_PATHS_H
#define HEARTH_CLI_SERVE_PATHS_H

#include "cli/options.h"

/* Checks every file that an option names (flag, environment or --config) and that is to be read. Errors: IO, with the
 * option, the path and the reason. */
int hearth_serve_paths_check(const struct hearth_options *options, struct hearth_errmsg *msg);

/* Where sessions are stored, in *out (the caller's to free); its directory is made. NULL: nowhere; that a default place
 * cannot be used is told. Errors: IO (--session-db names a place that cannot be used), NOMEM. */
int hearth_serve_paths_sessions(const struct hearth_options *options, char **out, struct hearth_errmsg *msg);

/* After a failure: names the option that a path in the message is of, unless the message begins with one. `path` may be
 * NULL. Returns `err`. */
int hearth_serve_paths_name(const char *option, const char *path, int err, struct hearth_errmsg *msg);

#endif
