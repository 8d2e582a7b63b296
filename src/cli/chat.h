/* `hearth chat`: talking to a server in the terminal. */
#ifndef HEARTH_CLI_CHAT_H
#define HEARTH_CLI_CHAT_H

/* Runs it (argv begins behind "chat"). Returns the process's exit status: 0; 1 after one line on stderr that says what
 * is wrong; 2 after wrong usage; 130 when Ctrl-C ended it. */
int hearth_chat_run(int argc, char *const argv[]);

#endif
