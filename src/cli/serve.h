/* `hearth serve`: engine, service, chat, API and HTTP put together, from start to signal. */
#ifndef HEARTH_CLI_SERVE_H
#define HEARTH_CLI_SERVE_H

#include "cli/options.h"

/* Serves until SIGTERM or SIGINT; a second one ends the process at once. On SIGHUP the options are read again (argc and
 * argv: without the program's and the command's names) and taken over as far as they can be (serve_live.h). Returns the
 * process's exit status: 0 after an orderly end, 1 after one line on stderr that says what is wrong. */
int hearth_serve(const struct hearth_options *options, int argc, char *const argv[]);

#endif
