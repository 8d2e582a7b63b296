/* Ctrl-C, for programs that wait for several things at once. One pipe serves the process. */
#ifndef HEARTH_CONSOLE_INTERRUPT_H
#define HEARTH_CONSOLE_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

/* Set by Ctrl-C; the code that acts on it calls clear. */
extern volatile sig_atomic_t hearth_interrupted;
void hearth_interrupt_clear(void);
/* The pipe's end that is readable after a signal, so that a wait misses none: a handler sets its flag and calls wake;
 * a wait ends, drains the pipe and then reads the flags. */
int hearth_interrupt_fd(void);
void hearth_interrupt_wake(void);
void hearth_interrupt_drain(void);
/* Makes the pipe, takes Ctrl-C and ignores SIGPIPE. False: out of descriptors. */
bool hearth_interrupt_catch(void);

#endif
