/* `hearth top`: what a server is doing at this moment. */
#ifndef HEARTH_CLI_TOP_H
#define HEARTH_CLI_TOP_H

/* Runs it (argv begins behind "top"). Returns the process's exit status: 0, also after Ctrl-C; 1 after one line on
 * stderr that says what is wrong; 2 after wrong usage. */
int hearth_top(int argc, char *const argv[]);

#endif
