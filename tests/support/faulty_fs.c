/* A file system that fails when it is told to, for LD_PRELOAD: calls of the C library on paths below one directory are
 * looked at, and some of them fail with an error that a test has chosen. Everything else goes through.
 *
 *     FAULTY_DIR      the directory; only what is in it is looked at
 *     FAULTY_CONTROL  a file of rules. It is read again whenever it is another one, so that a test can break and heal
 *                     the disk of a running process (written beside and renamed, never in place). Without it all is
 *                     well.
 *
 * A rule is a line of a class of calls, an error, the first call of that class that fails (1: the next one), and how
 * many fail from there on (0: all):
 *
 *     write ENOSPC 3 0
 *     sync EIO 1 1
 *
 * Classes are open, read, write, sync, rename, mkdir, unlink, touch (times and attributes), list (directories), stat,
 * map, lock, space (of the file system), close (which closes, and then fails), and any. Instead of an error, SHORT
 * makes reads and writes do half of what they are asked for, and the file system one block away from being full; SLOW
 * makes a call take a tenth of a second longer.
 * Counting begins anew when the rules are read. Each call that failed adds a line with its class to
 * FAULTY_CONTROL.hits.
 *
 * Invariant: nothing here calls what it replaces; its own files go by syscall(). A descriptor's path is asked of /proc
 * each time, which needs no tables and cannot go stale. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#define RULES_MAX 16
#define SHORT (-1)
#define SLOW (-2)
#define SLOW_US 100000

struct rule {
    char class[8];
    int error;
    long first, count, seen;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static size_t rule_count;
static struct stat rules_stat;

static const struct {
    const char *name;
    int error;
} errors[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS},  {"EACCES", EACCES},
              {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"EINTR", EINTR},   {"SHORT", SHORT},  {"SLOW", SLOW},
              {"ENFILE", ENFILE}, {"ELOOP", ELOOP},   {"EFBIG", EFBIG},   {"EXDEV", EXDEV},  {"EPERM", EPERM},
              {"ENOLCK", ENOLCK}, {"EAGAIN", EAGAIN}, {"ENOSYS", ENOSYS}, {"ENODEV", ENODEV}};

static int error_named(const char *name) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (strcmp(errors[i].name, name) == 0) {
            return errors[i].error;
        }
    }
    return EIO;
}

/* ---- rules ---- */

static void read_rules(const char *path) {
    char text[1024];
    rule_count = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long n = fd >= 0 ? syscall(SYS_read, fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        (void)syscall(SYS_close, fd);
    }
    text[n > 0 ? n : 0] = '\0';
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL && rule_count < RULES_MAX;) {
        struct rule *rule = &rules[rule_count];
        char error[16];
        *rule = (struct rule){.first = 1};
        if (sscanf(line, "%7s %15s %ld %ld", rule->class, error, &rule->first, &rule->count) >= 2) {
            rule->error = error_named(error);
            rule_count++;
        }
    }
}

static void note_hit(const char *control, const char *class) {
    char path[PATH_MAX], line[16];
    (void)snprintf(path, sizeof path, "%s.hits", control);
    int len = snprintf(line, sizeof line, "%s\n", class);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)syscall(SYS_write, fd, line, (size_t)len);
        (void)syscall(SYS_close, fd);
    }
}

/* What a call of this class comes to: 0 (go on), SHORT, or an error. */
static int verdict(const char *class) {
    const char *control = getenv("FAULTY_CONTROL");
    struct stat now = {0};
    int error = 0;
    if (control == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&mutex);
    (void)syscall(SYS_newfstatat, AT_FDCWD, control, &now, 0); /* zeroes when it is not there */
    if (now.st_ino != rules_stat.st_ino || now.st_mtim.tv_sec != rules_stat.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != rules_stat.st_mtim.tv_nsec) {
        rules_stat = now;
        read_rules(control);
    }
    for (size_t i = 0; i < rule_count && error == 0; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->class, class) != 0 && strcmp(rule->class, "any") != 0) {
            continue;
        }
        rule->seen++;
        if (rule->seen >= rule->first && (rule->count == 0 || rule->seen < rule->first + rule->count)) {
            error = rule->error;
        }
    }
    if (error != 0) {
        note_hit(control, class);
    }
    (void)pthread_mutex_unlock(&mutex);
    return error;
}

/* ---- paths ---- */

static bool below(const char *path) {
    const char *dir = getenv("FAULTY_DIR");
    size_t len = dir != NULL ? strlen(dir) : 0;
    return len > 0 && strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static bool fd_path(int fd, char *out, size_t cap) {
    char link[32];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static bool fd_watched(int fd) {
    char path[PATH_MAX];
    int saved = errno;
    bool found = fd_path(fd, path, sizeof path) && below(path);
    errno = saved;
    return found;
}

static bool path_watched(int dirfd, const char *path) {
    if (path == NULL) {
        return false;
    }
    if (path[0] == '/') {
        return below(path);
    }
    if (dirfd != AT_FDCWD) {
        return fd_watched(dirfd);
    }
    char cwd[PATH_MAX];
    return syscall(SYS_getcwd, cwd, sizeof cwd) > 0 && below(cwd);
}

/* True when the call is to fail; errno is set. `*count`, if not NULL, is what it is asked for. */
static bool fails(bool watched, const char *class, size_t *count) {
    int error = watched ? verdict(class) : 0;
    if (error == SLOW) {
        (void)usleep(SLOW_US);
        return false;
    }
    if (error == SHORT) {
        if (count != NULL && *count > 1) {
            *count /= 2;
        }
        return false;
    }
    if (error != 0) {
        errno = error;
    }
    return error != 0;
}

/* The C library's own. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- calls ---- */

#define OPEN_MODE(mode, flags, last)                                 \
    mode_t mode = 0;                                                 \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list args;                                                \
        va_start(args, last);                                        \
        mode = va_arg(args, mode_t);                                 \
        va_end(args);                                                \
    }

#define OPEN(name)                                                                                     \
    int name(const char *path, int flags, ...) {                                                       \
        OPEN_MODE(mode, flags, flags)                                                                  \
        return fails(path_watched(AT_FDCWD, path), "open", NULL) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENAT(name)                                                                                 \
    int name(int fd, const char *path, int flags, ...) {                                             \
        OPEN_MODE(mode, flags, flags)                                                                \
        return fails(path_watched(fd, path), "open", NULL) ? -1 : REAL(name)(fd, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *bytes, size_t n) {
    return fails(fd_watched(fd), "read", &n) ? -1 : REAL(read)(fd, bytes, n);
}

ssize_t write(int fd, const void *bytes, size_t n) {
    return fails(fd_watched(fd), "write", &n) ? -1 : REAL(write)(fd, bytes, n);
}

#define PREAD(name, offset)                                                           \
    ssize_t name(int fd, void *bytes, size_t n, offset at) {                          \
        return fails(fd_watched(fd), "read", &n) ? -1 : REAL(name)(fd, bytes, n, at); \
    }
#define PWRITE(name, offset)                                                           \
    ssize_t name(int fd, const void *bytes, size_t n, offset at) {                     \
        return fails(fd_watched(fd), "write", &n) ? -1 : REAL(name)(fd, bytes, n, at); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* The first part alone stands for a short one. */
#define VECTOR(name, class)                                                           \
    ssize_t name(int fd, const struct iovec *parts, int count) {                      \
        size_t n = (size_t)count;                                                     \
        return fails(fd_watched(fd), class, &n) ? -1 : REAL(name)(fd, parts, (int)n); \
    }
#define PVECTOR(name, class, offset)                                                      \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at) {               \
        size_t n = (size_t)count;                                                         \
        return fails(fd_watched(fd), class, &n) ? -1 : REAL(name)(fd, parts, (int)n, at); \
    }
VECTOR(readv, "read")
VECTOR(writev, "write")
PVECTOR(preadv, "read", off_t)
PVECTOR(preadv64, "read", off64_t)
PVECTOR(pwritev, "write", off_t)
PVECTOR(pwritev64, "write", off64_t)

int ftruncate(int fd, off_t size) {
    return fails(fd_watched(fd), "write", NULL) ? -1 : REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    return fails(fd_watched(fd), "write", NULL) ? -1 : REAL(ftruncate64)(fd, size);
}

int fallocate(int fd, int mode, off_t at, off_t size) {
    return fails(fd_watched(fd), "write", NULL) ? -1 : REAL(fallocate)(fd, mode, at, size);
}

int fallocate64(int fd, int mode, off64_t at, off64_t size) {
    return fails(fd_watched(fd), "write", NULL) ? -1 : REAL(fallocate64)(fd, mode, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fails(fd_watched(fd), "write", NULL) ? errno : REAL(posix_fallocate64)(fd, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    return fails(fd_watched(fd), "write", NULL) ? errno : REAL(posix_fallocate)(fd, at, size);
}

int fsync(int fd) {
    return fails(fd_watched(fd), "sync", NULL) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd) {
    return fails(fd_watched(fd), "sync", NULL) ? -1 : REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
    return fails(path_watched(AT_FDCWD, to), "rename", NULL) ? -1 : REAL(rename)(from, to);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    return fails(path_watched(to_fd, to), "rename", NULL) ? -1 : REAL(renameat)(from_fd, from, to_fd, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    return fails(path_watched(to_fd, to), "rename", NULL) ? -1 : REAL(renameat2)(from_fd, from, to_fd, to, flags);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    return fails(path_watched(to_fd, to), "rename", NULL) ? -1 : REAL(linkat)(from_fd, from, to_fd, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    return fails(path_watched(AT_FDCWD, path), "mkdir", NULL) ? -1 : REAL(mkdir)(path, mode);
}

int mkdirat(int fd, const char *path, mode_t mode) {
    return fails(path_watched(fd, path), "mkdir", NULL) ? -1 : REAL(mkdirat)(fd, path, mode);
}

int unlink(const char *path) {
    return fails(path_watched(AT_FDCWD, path), "unlink", NULL) ? -1 : REAL(unlink)(path);
}

int unlinkat(int fd, const char *path, int flags) {
    return fails(path_watched(fd, path), "unlink", NULL) ? -1 : REAL(unlinkat)(fd, path, flags);
}

int futimens(int fd, const struct timespec times[2]) {
    return fails(fd_watched(fd), "touch", NULL) ? -1 : REAL(futimens)(fd, times);
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags) {
    return fails(path_watched(fd, path), "touch", NULL) ? -1 : REAL(utimensat)(fd, path, times, flags);
}

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags) {
    return fails(fd_watched(fd), "touch", NULL) ? -1 : REAL(fsetxattr)(fd, name, value, size, flags);
}

DIR *opendir(const char *path) {
    return fails(path_watched(AT_FDCWD, path), "list", NULL) ? NULL : REAL(opendir)(path);
}

DIR *fdopendir(int fd) {
    return fails(fd_watched(fd), "list", NULL) ? NULL : REAL(fdopendir)(fd);
}

int fstat(int fd, struct stat *out) {
    return fails(fd_watched(fd), "stat", NULL) ? -1 : REAL(fstat)(fd, out);
}

int fstat64(int fd, struct stat64 *out) {
    return fails(fd_watched(fd), "stat", NULL) ? -1 : REAL(fstat64)(fd, out);
}

#define STAT(name, type)                                                                       \
    int name(const char *path, struct type *out) {                                             \
        return fails(path_watched(AT_FDCWD, path), "stat", NULL) ? -1 : REAL(name)(path, out); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

int fstatat(int fd, const char *path, struct stat *out, int flags) {
    return fails(path_watched(fd, path), "stat", NULL) ? -1 : REAL(fstatat)(fd, path, out, flags);
}

int fstatat64(int fd, const char *path, struct stat64 *out, int flags) {
    return fails(path_watched(fd, path), "stat", NULL) ? -1 : REAL(fstatat64)(fd, path, out, flags);
}

/* SHORT: there is little room left. */
#define SPACE(name, type, argument, watched)                        \
    int name(argument, struct type *out) {                          \
        size_t blocks = 2;                                          \
        if (fails(watched, "space", &blocks)) {                     \
            return -1;                                              \
        }                                                           \
        int rc = REAL(name)(at, out);                               \
        out->f_bavail = rc == 0 && blocks == 1 ? 1 : out->f_bavail; \
        return rc;                                                  \
    }
SPACE(statvfs, statvfs, const char *at, path_watched(AT_FDCWD, at))
SPACE(statvfs64, statvfs64, const char *at, path_watched(AT_FDCWD, at))
SPACE(fstatvfs, statvfs, int at, fd_watched(at))
SPACE(fstatvfs64, statvfs64, int at, fd_watched(at))

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return fails(fd >= 0 && fd_watched(fd), "map", NULL) ? MAP_FAILED
                                                         : REAL(mmap)(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    return fails(fd >= 0 && fd_watched(fd), "map", NULL) ? MAP_FAILED
                                                         : REAL(mmap64)(at, size, protection, flags, fd, offset);
}

int flock(int fd, int operation) {
    return fails(fd_watched(fd), "lock", NULL) ? -1 : REAL(flock)(fd, operation);
}

static bool locks(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

#define FCNTL(name)                                                                                            \
    int name(int fd, int command, ...) {                                                                       \
        va_list args;                                                                                          \
        va_start(args, command);                                                                               \
        void *argument = va_arg(args, void *);                                                                 \
        va_end(args);                                                                                          \
        return locks(command) && fails(fd_watched(fd), "lock", NULL) ? -1 : REAL(name)(fd, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int close(int fd) {
    const bool failed = fails(fd_watched(fd), "close", NULL);
    const int error = errno, result = REAL(close)(fd);
    if (failed) {
        errno = error;
    }
    return failed ? -1 : result;
}
