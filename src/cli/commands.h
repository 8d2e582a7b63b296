/* The commands of the program. Each takes the arguments behind its name and returns the process's exit status: 0; 1
 * after one line on stderr that says what is wrong; 2 after wrong usage. */
#ifndef HEARTH_CLI_COMMANDS_H
#define HEARTH_CLI_COMMANDS_H

#include "cli/options.h"

/* `hearth serve`: engine, service, chat, API and HTTP put together. Serves until SIGTERM or SIGINT; a second one ends
 * the process at once. On SIGHUP the options are read again from argc and argv and taken over as far as they can be. */
int hearth_cli_serve(const struct hearth_options *options, int argc, char *const argv[]);
/* `hearth keys`: makes keys, and hashes them. */
int hearth_cli_keys(int argc, char *const argv[]);
/* `hearth kv`: lists and maintains the state directory, also while servers use it. No model is needed. */
int hearth_cli_kv(int argc, char *const argv[]);
/* `hearth sessions`: lists the conversations in the server's database, and carries them elsewhere, also while a server
 * runs. No model is needed. */
int hearth_cli_sessions(int argc, char *const argv[]);
/* `hearth replay`: what policies would have computed of recorded requests. No model is needed. */
int hearth_cli_replay(int argc, char *const argv[]);

#endif
