/* Numbers with units. */
#include "cli/replay_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number at the beginning of a text, times the unit behind it. NULL: it is none. */
static char *read_number(const char *text, double k, double *value) {
    static const char letters[] = "kmgt";
    char *end;
    *value = strtod(text, &end);
    const char *letter = *end ? strchr(letters, *end | 0x20) : NULL;
    if (end == text || !(*value >= 0)) {
        return NULL;
    }
    *value *= letter ? pow(k, (double)(letter - letters + 1)) : 1;
    return *value < 0x1p60 ? end + (letter != NULL) : NULL;
}

bool hearth_lab_size(const char *text, uint64_t k, uint64_t *out) {
    double value;
    const char *end = read_number(text, (double)k, &value);
    *out = end ? (uint64_t)value : 0;
    return end && *end == '\0';
}

bool hearth_lab_rate(const char *text, double *out) {
    const char *end = read_number(text, 1000, out);
    const bool bits = end && strcmp(end, "bit") == 0;
    *out /= bits ? 8 : 1;
    return end && (bits || *end == '\0') && *out > 0;
}

bool hearth_lab_time(const char *text, char **end, int64_t *out) {
    static const struct {
        const char *name;
        double us;
    } units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
    double value = strtod(text, end);
    double unit_us = 1e6;
    if (*end == text || !(value >= 0)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t len = strlen(units[i].name);
        if (strncmp(*end, units[i].name, len) == 0) {
            unit_us = units[i].us;
            *end += len;
            break;
        }
    }
    *out = (int64_t)(value * unit_us);
    return value * unit_us < 0x1p60;
}
