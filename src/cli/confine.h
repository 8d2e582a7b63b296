/* Confinement of a process to what it needs: no new privileges, Landlock rules on files and TCP ports, and a seccomp
 * filter that refuses system calls which a server never makes. It cannot be taken back, and what the process starts
 * inherits it. */
#ifndef HEARTH_CLI_CONFINE_H
#define HEARTH_CLI_CONFINE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What may be done with a path and, where it is a directory, with everything below it. */
enum hearth_confine_use {
    HEARTH_CONFINE_READ,   /* files are read, directories are listed */
    HEARTH_CONFINE_FETCH,  /* files are read; directories are not listed */
    HEARTH_CONFINE_WRITE,  /* files and directories come, change and go */
    HEARTH_CONFINE_SOCKET, /* sockets come and go in a directory */
    HEARTH_CONFINE_DEVICE, /* devices are read, written and controlled (ioctl) */
};

/* The paths that stay open. Zeroed: none. */
struct hearth_confine_paths {
    struct hearth_confine_path {
        enum hearth_confine_use use;
        char *path;
    } *v;
    size_t n, cap;
    bool failed; /* out of memory: something is missing */
};

/* Adds a path. What is not there when the process is confined is left out. */
void hearth_confine_allow(struct hearth_confine_paths *paths, enum hearth_confine_use use, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hearth_confine_paths_finish(struct hearth_confine_paths *paths);

#define HEARTH_CONFINE_PORTS_MAX 3
#define HEARTH_CONFINE_STORES_MAX 8

struct hearth_confine_params {
    const struct hearth_confine_paths *paths;
    uint16_t ports[HEARTH_CONFINE_PORTS_MAX]; /* TCP ports that may be listened on; 0: one that the kernel chooses */
    size_t port_count;
    uint16_t stores[HEARTH_CONFINE_STORES_MAX]; /* TCP ports that may be connected to */
    size_t store_count;
    bool looks_up; /* names of hosts are still to be resolved: datagrams and connect() stay possible, TCP does not */
};

/* What came of it. */
struct hearth_confine_report {
    bool no_new_privileges;
    int landlock_abi;       /* 0: not in force */
    bool tcp;               /* Landlock guards TCP, too */
    unsigned reads, writes; /* paths that may be read, or written as well */
    unsigned refused_calls; /* 0: there is no filter */
    char missing[256];      /* what is not in force, with its cause; "": nothing */
    bool broken;            /* something of that the kernel has, and it failed all the same */
};

/* Confines the process as far as the kernel lets it: this thread and those that it starts from now on; the seccomp
 * filter holds for the others as well. Errors: NOMEM. */
int hearth_confine(const struct hearth_confine_params *params, struct hearth_confine_report *report,
                   struct hearth_errmsg *msg);

/* Whether this program is instrumented (sanitizers, coverage): its runtime traces threads, starts programs and writes
 * files of its own, so it is not to be confined. */
bool hearth_confine_is_instrumented(void);

#endif
