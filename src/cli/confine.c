/* Confinement of the process: Landlock by its system calls, seccomp by libseccomp.
 *
 * Landlock denies every access to files that no rule allows. Newer kernels can guard more; their ABI version tells
 * how much, and only that is asked for. Reading a file's attributes is never denied. A domain belongs to a thread
 * and to the threads that it starts, so this runs before there are others; from ABI 8 on it covers all of them. The
 * numbers below are the kernel's, because the headers of older systems lack the newer ones.
 *
 * The filter is a list of refusals, not of permissions: libraries (OpenMP, GPU drivers, libc) make calls that depend
 * on their versions, and a call that fails unexpectedly in the middle of a reply is worse than one more permitted
 * call. A refused call fails with EPERM. io_uring makes calls that no filter sees; Landlock guards those as well.
 *
 * Source: https://docs.kernel.org/userspace-api/landlock.html */
#include "cli/confine.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

enum {
    RULESET_VERSION = 1, /* flag of landlock_create_ruleset */
    RULE_PATH = 1,
    RULE_PORT = 2,
    RESTRICT_ALL_THREADS = 1 << 3, /* flag of landlock_restrict_self, from ABI 8 */
};

#define FS_EXECUTE (UINT64_C(1) << 0)
#define FS_WRITE_FILE (UINT64_C(1) << 1)
#define FS_READ_FILE (UINT64_C(1) << 2)
#define FS_READ_DIR (UINT64_C(1) << 3)
#define FS_REMOVE_DIR (UINT64_C(1) << 4)
#define FS_REMOVE_FILE (UINT64_C(1) << 5)
#define FS_MAKE_DIR (UINT64_C(1) << 7)
#define FS_MAKE_REG (UINT64_C(1) << 8)
#define FS_MAKE_SOCK (UINT64_C(1) << 9)
#define FS_ABI_1 ((UINT64_C(1) << 13) - 1)
#define FS_REFER (UINT64_C(1) << 13)     /* ABI 2: rename between directories */
#define FS_TRUNCATE (UINT64_C(1) << 14)  /* ABI 3 */
#define FS_IOCTL_DEV (UINT64_C(1) << 15) /* ABI 5 */
#define FS_OF_FILES (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)
#define NET_BIND_TCP (UINT64_C(1) << 0) /* ABI 4 */
#define NET_CONNECT_TCP (UINT64_C(1) << 1)
#define SCOPE_ABSTRACT_UNIX (UINT64_C(1) << 0) /* ABI 6 */
#define SCOPE_SIGNAL (UINT64_C(1) << 1)

struct ruleset {
    uint64_t fs, net, scoped;
};

struct path_rule {
    uint64_t access;
    int32_t fd;
} __attribute__((packed));

struct port_rule {
    uint64_t access, port;
};

static const uint64_t rights[] = {
    [HEARTH_CONFINE_READ] = FS_READ_FILE | FS_READ_DIR,
    [HEARTH_CONFINE_FETCH] = FS_READ_FILE,
    [HEARTH_CONFINE_WRITE] = FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_REMOVE_FILE | FS_REMOVE_DIR | FS_MAKE_REG |
                             FS_MAKE_DIR | FS_REFER | FS_TRUNCATE,
    [HEARTH_CONFINE_SOCKET] = FS_MAKE_SOCK | FS_REMOVE_FILE,
    [HEARTH_CONFINE_DEVICE] = FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_IOCTL_DEV,
};

/* ---- paths ---- */

void hearth_confine_allow(struct hearth_confine_paths *paths, enum hearth_confine_use use, const char *format, ...) {
    char *path = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&path, format, args) < 0) {
        path = NULL;
    }
    va_end(args);
    if (!path || !HEARTH_BUF_ROOM(paths->v, paths->n, paths->cap)) {
        paths->failed = true;
        free(path);
        return;
    }
    paths->v[paths->n++] = (struct hearth_confine_path){.use = use, .path = path};
}

void hearth_confine_paths_finish(struct hearth_confine_paths *paths) {
    for (size_t i = 0; i < paths->n; i++) {
        free(paths->v[i].path);
    }
    free(paths->v);
    *paths = (struct hearth_confine_paths){0};
}

/* ---- Landlock ---- */

static void miss(struct hearth_confine_report *report, bool broken, const char *what, int error) {
    const size_t len = strlen(report->missing);
    (void)snprintf(report->missing + len, sizeof report->missing - len, "%s%s (%s)", len > 0 ? ", " : "", what,
                   strerror(error));
    report->broken = report->broken || broken;
}

static struct ruleset guarded(int abi) {
    return (struct ruleset){
        .fs = FS_ABI_1 | (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) | (abi >= 5 ? FS_IOCTL_DEV : 0),
        .net = abi >= 4 ? NET_BIND_TCP | NET_CONNECT_TCP : 0,
        .scoped = abi >= 6 ? SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL : 0,
    };
}

/* How much of the struct a kernel of this ABI knows: longer ones are refused. */
static size_t ruleset_bytes(int abi) {
    return abi >= 6 ? sizeof(struct ruleset) : abi >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
}

/* False: with errno. A path that is not there needs no rule. */
static bool add_path(int fd, const struct ruleset *all, const struct hearth_confine_path *path,
                     struct hearth_confine_report *report) {
    struct path_rule rule = {.access = rights[path->use] & all->fs, .fd = open(path->path, O_PATH | O_CLOEXEC)};
    struct stat st;
    if (rule.fd < 0) {
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
    }
    bool ok = fstat(rule.fd, &st) == 0;
    if (ok && !S_ISDIR(st.st_mode)) {
        rule.access &= FS_OF_FILES;
    }
    if (ok && rule.access != 0) {
        ok = syscall(SYS_landlock_add_rule, fd, RULE_PATH, &rule, 0) == 0;
        report->reads += path->use == HEARTH_CONFINE_READ || path->use == HEARTH_CONFINE_FETCH;
        report->writes += path->use != HEARTH_CONFINE_READ && path->use != HEARTH_CONFINE_FETCH;
    }
    const int saved = errno;
    (void)close(rule.fd);
    errno = saved;
    return ok;
}

static bool add_rules(int fd, const struct ruleset *all, const struct hearth_confine_params *params,
                      struct hearth_confine_report *report) {
    struct port_rule ports[HEARTH_CONFINE_PORTS_MAX + HEARTH_CONFINE_STORES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < params->port_count; i++) {
        ports[n++] = (struct port_rule){.access = NET_BIND_TCP, .port = params->ports[i]};
    }
    for (size_t i = 0; i < params->store_count; i++) {
        ports[n++] = (struct port_rule){.access = NET_CONNECT_TCP, .port = params->stores[i]};
    }
    n = all->net == 0 ? 0 : n;
    bool ok = true;
    for (size_t i = 0; i < params->paths->n && ok; i++) {
        ok = add_path(fd, all, &params->paths->v[i], report);
    }
    for (size_t i = 0; i < n && ok; i++) {
        ok = syscall(SYS_landlock_add_rule, fd, RULE_PORT, &ports[i], 0) == 0;
    }
    return ok;
}

static void landlock(const struct hearth_confine_params *params, struct hearth_confine_report *report) {
    const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);
    if (abi < 1) {
        miss(report, false, "Landlock is not there", abi < 0 ? errno : ENOSYS);
        return;
    }
    const struct ruleset all = guarded((int)abi);
    const int fd = (int)syscall(SYS_landlock_create_ruleset, &all, ruleset_bytes((int)abi), 0);
    const bool ok = fd >= 0 && add_rules(fd, &all, params, report) &&
                    syscall(SYS_landlock_restrict_self, fd, abi >= 8 ? RESTRICT_ALL_THREADS : 0) == 0;
    if (ok) {
        report->landlock_abi = (int)abi;
        report->tcp = all.net != 0;
    } else {
        miss(report, true, "Landlock failed", errno);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* ---- seccomp ---- */

/* What is refused: names, each with a blank behind it. Those that this libseccomp or this machine does not know are
 * left out. */
static const char refused[] =
    /* other programs */
    "execve execveat uselib "
    /* other processes */
    "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp "
    /* mounts and namespaces */
    "mount umount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick "
    "mount_setattr setns unshare "
    /* files past their paths, nodes of devices, quotas */
    "open_by_handle_at mknod mknodat quotactl quotactl_fd fanotify_init acct swapon swapoff "
    /* the kernel itself */
    "bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module finit_module "
    "delete_module create_module reboot syslog iopl ioperm modify_ldt personality vhangup "
    "lookup_dcookie nfsservctl _sysctl sysfs "
    /* keys, clocks, names of the machine */
    "keyctl add_key request_key settimeofday clock_settime clock_adjtime adjtimex sethostname "
    "setdomainname "
    /* another user */
    "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset ";

/* 0, or a negative errno. */
static int refuse(scmp_filter_ctx filter, const char *name, struct hearth_confine_report *report) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) {
        return 0;
    }
    const int rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 0);
    report->refused_calls += rc == 0;
    return rc;
}

/* Sockets of kinds that a server has no use for: it listens on TCP or on a path. */
static int refuse_sockets(scmp_filter_ctx filter) {
    static const int families[] = {AF_INET, AF_INET6};
    static const int types[] = {SOCK_DGRAM, SOCK_RAW};
    int rc = 0;
    for (size_t i = 0; i < 4 && rc == 0; i++) { /* the low four bits are the type, the others are flags */
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 2,
                              SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i / 2], 0),
                              SCMP_A1(SCMP_CMP_MASKED_EQ, 15, (scmp_datum_t)types[i % 2]));
    }
    return rc == 0 ? seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1,
                                      SCMP_A0(SCMP_CMP_EQ, AF_PACKET, 0))
                   : rc;
}

static void filter_calls(const struct hearth_confine_params *params, struct hearth_confine_report *report) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int rc = filter ? seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) : -ENOMEM;
    for (const char *at = refused; *at && rc == 0;) {
        const size_t len = strcspn(at, " ");
        char name[32] = "";
        memcpy(name, at, len < sizeof name ? len : sizeof name - 1);
        rc = refuse(filter, name, report);
        at += len + 1;
    }
    if (rc == 0 && !params->looks_up) {
        rc = refuse(filter, "connect", report);
        rc = rc == 0 ? refuse_sockets(filter) : rc;
    }
    rc = rc == 0 ? seccomp_load(filter) : rc;
    if (rc != 0) {
        report->refused_calls = 0;
        miss(report, rc != -EINVAL && rc != -ENOSYS, "no filter of system calls", -rc);
    }
    seccomp_release(filter);
}

/* ---- all of it ---- */

int hearth_confine(const struct hearth_confine_params *params, struct hearth_confine_report *report,
                   struct hearth_errmsg *msg) {
    *report = (struct hearth_confine_report){0};
    if (params->paths->failed) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    report->no_new_privileges = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
    if (!report->no_new_privileges) {
        miss(report, true, "new privileges are possible", errno);
    }
    landlock(params, report);
    filter_calls(params, report);
    return HEARTH_OK;
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define INSTRUMENTED true
#endif
#endif
#if !defined(INSTRUMENTED) && \
    (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HEARTH_COVERAGE))
#define INSTRUMENTED true
#endif
#ifndef INSTRUMENTED
#define INSTRUMENTED false
#endif

bool hearth_confine_is_instrumented(void) {
    return INSTRUMENTED;
}
