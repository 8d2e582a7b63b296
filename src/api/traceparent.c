/* The header traceparent, which connects an agent's own trace with the request here.
 *
 *     VERSION-TRACE-PARENT-FLAGS: 2, 32, 16 and 2 lower-case hexadecimal digits
 *
 * Version ff is invalid. Version 00 ends after the flags; later versions may continue behind another dash. A trace or
 * parent of zeros is invalid. An invalid header is no error: the request then has no trace.
 * Source: W3C Trace Context, section 3.2. */
#include "api/job.h"

#include <string.h>

static bool is_hex(const char *text, size_t len) {
    return strspn(text, "0123456789abcdef") >= len;
}

static bool is_zero(const char *text, size_t len) {
    return strspn(text, "0") >= len;
}

bool hearth_traceparent_read(const char *header, char trace[HEARTH_TRACE_ID_BYTES]) {
    trace[0] = '\0';
    if (header == NULL || !is_hex(header, 2) || header[2] != '-' || !is_hex(header + 3, 32) || header[35] != '-' ||
        !is_hex(header + 36, 16) || header[52] != '-' || !is_hex(header + 53, 2)) {
        return false;
    }
    const bool later = strncmp(header, "00", 2) != 0;
    if (strncmp(header, "ff", 2) == 0 || is_zero(header + 3, 32) || is_zero(header + 36, 16) ||
        (header[55] != '\0' && !(later && header[55] == '-'))) {
        return false;
    }
    memcpy(trace, header + 3, 32);
    trace[32] = '\0';
    return true;
}
