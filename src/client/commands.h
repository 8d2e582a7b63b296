/* `hearth chat`, `hearth top`, `hearth why` and `hearth record`: talking to a server in the terminal, watching it,
 * asking it why requests were slow, and recording what it is asked for. */
#ifndef HEARTH_CLIENT_COMMANDS_H
#define HEARTH_CLIENT_COMMANDS_H

/* Run a command (argv begins behind its name). They return the process's exit status: 0; 1 after one line on stderr
 * that says what is wrong; 2 after wrong usage; 130 when Ctrl-C ended a conversation. */
int hearth_client_chat(int argc, char *const argv[]);
int hearth_client_top(int argc, char *const argv[]);
int hearth_client_why(int argc, char *const argv[]);
int hearth_client_record(int argc, char *const argv[]);

#endif
