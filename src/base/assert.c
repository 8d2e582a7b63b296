/* Ends the process after a misuse.
 *
 * The message goes directly to standard error and not through the log sink: the sink may take a lock that this
 * thread holds, and the process is about to stop. */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void hearth_assert_failed(const char *file, int line, const char *expression) {
    dprintf(STDERR_FILENO, "hearth: %s:%d: assertion failed: %s\n", file, line, expression);
    abort();
}
