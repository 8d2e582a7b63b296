/* Where the machine's power comes from. */
#ifndef HEARTH_BASE_POWER_H
#define HEARTH_BASE_POWER_H

#include <stdbool.h>

#define HEARTH_POWER_DIRECTORY "/sys/class/power_supply"

/* Whether the machine runs on a battery: one of its own is discharging, and no mains or USB supply is online. False
 * where that cannot be told. Reads a few small files, some of which firmware answers: not for a loop.
 * Threads: any. Source: Documentation/ABI/testing/sysfs-class-power of the Linux kernel. */
bool hearth_power_on_battery(const char *directory);

#endif
