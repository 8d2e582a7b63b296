/* `hearth kv …`: lists and maintains the state directory, also while servers use it. No model is needed. */
#ifndef HEARTH_CLI_KV_H
#define HEARTH_CLI_KV_H

/* Runs a command (argv begins behind "kv"). Returns the process's exit status: 0; 1 after one line on stderr that says
 * what is wrong; 2 after wrong usage. */
int hearth_kv(int argc, char *const argv[]);

#endif
