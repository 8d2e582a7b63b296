/* `hearth kv …`: looking at the state directory and caring for it, whether servers use it or not. No model is needed.
 */
#ifndef HEARTH_CLI_KV_H
#define HEARTH_CLI_KV_H

/* Runs a command (argv begins behind "kv"). Returns the process's exit status: 0; 1 after one line on stderr that says
 * what is wrong; 2 after wrong usage. */
int hearth_kv(int argc, char *const argv[]);

#endif
