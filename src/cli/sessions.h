/* `hearth sessions …`: lists the conversations in the server's database, and carries them elsewhere, also while a
 * server runs. No model is needed. */
#ifndef HEARTH_CLI_SESSIONS_H
#define HEARTH_CLI_SESSIONS_H

/* Runs a command (argv begins behind "sessions"). Returns the process's exit status: 0; 1 after one line on stderr that
 * says what is wrong; 2 after wrong usage. */
int hearth_cli_sessions(int argc, char *const argv[]);

#endif
