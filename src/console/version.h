/* hearth's version; the build passes it. */
#ifndef HEARTH_CONSOLE_VERSION_H
#define HEARTH_CONSOLE_VERSION_H

#ifndef HEARTH_VERSION
#define HEARTH_VERSION "unknown"
#endif

#endif
