/* See interrupt.h. The handler sets a flag and also writes to a pipe: a signal between a test of the flag and a wait
 * would otherwise be missed. */
#include "console/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

volatile sig_atomic_t hearth_interrupted;
static int wake[2] = {-1, -1};

void hearth_interrupt_wake(void) {
    const int error = errno;
    const ssize_t ignored = write(wake[1], "", 1); /* a full pipe is readable already */
    (void)ignored;
    errno = error;
}

static void on_interrupt(int number) {
    (void)number;
    hearth_interrupted = 1;
    hearth_interrupt_wake();
}

int hearth_interrupt_fd(void) {
    return wake[0];
}

void hearth_interrupt_drain(void) {
    char bytes[64];
    while (read(wake[0], bytes, sizeof bytes) > 0) {
    }
}

void hearth_interrupt_clear(void) {
    hearth_interrupted = 0;
    hearth_interrupt_drain();
}

bool hearth_interrupt_catch(void) {
    const struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads of lines end */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    return pipe2(wake, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGINT, &action, NULL) == 0 &&
           sigaction(SIGPIPE, &ignore, NULL) == 0;
}
