/* What a confined process can still do, and what it cannot. Each case runs in a process of its own, as confinement is
 * never taken back. Landlock and seccomp depend on the kernel: where one of them is not in force, its cases are
 * skipped, and the report has to say so. */
#include "cli/confine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct stage {
    char root[64], inside[96], outside[96], listed[96], moved[128];
};

enum needs { NOTHING, LANDLOCK, LANDLOCK_TCP, SECCOMP };

static struct stage stage;

static void write_file(const char *directory, const char *name) {
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "text", 4) == 4);
    (void)close(fd);
}

static int set_up(void **state) {
    (void)state;
    (void)snprintf(stage.root, sizeof stage.root, "/tmp/hearth-confine-XXXXXX");
    assert_non_null(mkdtemp(stage.root));
    (void)snprintf(stage.inside, sizeof stage.inside, "%s/inside", stage.root);
    (void)snprintf(stage.outside, sizeof stage.outside, "%s/outside", stage.root);
    (void)snprintf(stage.listed, sizeof stage.listed, "%s/readable", stage.root);
    assert_true(mkdir(stage.inside, 0700) == 0 && mkdir(stage.outside, 0700) == 0 && mkdir(stage.listed, 0700) == 0);
    write_file(stage.outside, "key");
    write_file(stage.listed, "model");
    return 0;
}

static int tear_down(void **state) {
    static const char *const names[] = {"outside/key",  "outside/new", "readable/model",
                                        "readable/new", "outside",     "readable",
                                        "inside/sub",   "inside",      ""};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", stage.root, names[i]);
        (void)remove(path);
    }
    return 0;
}

/* ---- what is tried: each returns 0, or the errno that it failed with ---- */

static int open_in(const char *directory, const char *name, int flags) {
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    return fd < 0 ? errno : close(fd);
}

static int read_outside(void) {
    return open_in(stage.outside, "key", O_RDONLY);
}

static int list_outside(void) {
    return open_in(stage.outside, "", O_RDONLY | O_DIRECTORY);
}

static int make_outside(void) {
    return open_in(stage.outside, "new", O_WRONLY | O_CREAT);
}

static int remove_outside(void) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/key", stage.outside);
    return unlink(path) == 0 ? 0 : errno;
}

static int follow_a_link_outside(void) {
    char link[256], path[256];
    (void)snprintf(link, sizeof link, "%s/link", stage.inside);
    (void)snprintf(path, sizeof path, "%s/key", stage.outside);
    const int rc = open(link, O_RDONLY | O_CLOEXEC);
    return rc < 0 ? errno : 0;
}

static int read_listed(void) {
    const int error = open_in(stage.listed, "model", O_RDONLY);
    return error ? error : open_in(stage.listed, "", O_RDONLY | O_DIRECTORY);
}

static int write_listed(void) {
    return open_in(stage.listed, "model", O_WRONLY);
}

static int make_in_listed(void) {
    return open_in(stage.listed, "new", O_WRONLY | O_CREAT);
}

/* What a tier does: directories, files, renames between directories, truncation, removal. */
static int work_inside(void) {
    char sub[256], from[300], to[256];
    (void)snprintf(sub, sizeof sub, "%s/sub", stage.inside);
    (void)snprintf(from, sizeof from, "%s/draft", sub);
    (void)snprintf(to, sizeof to, "%s/page", stage.inside);
    if (mkdir(sub, 0700) != 0 || open_in(sub, "draft", O_RDWR | O_CREAT | O_EXCL) != 0 || rename(from, to) != 0 ||
        truncate(to, 0) != 0 || unlink(to) != 0 || rmdir(sub) != 0) {
        return errno ? errno : EIO;
    }
    return 0;
}

static void *read_outside_thread(void *error) {
    *(int *)error = read_outside();
    return NULL;
}

static int read_outside_in_a_thread(void) {
    pthread_t thread;
    int error = 0;
    if (pthread_create(&thread, NULL, read_outside_thread, &error) != 0) {
        return EAGAIN;
    }
    (void)pthread_join(thread, NULL);
    return error;
}

static int run_a_program(void) {
    char *const argv[] = {(char *)(uintptr_t)"true", NULL};
    (void)execv("/bin/true", argv);
    return errno;
}

static int run_a_descriptor(void) {
    char *const argv[] = {(char *)(uintptr_t)"true", NULL};
    const int fd = open("/usr/bin/true", O_PATH | O_CLOEXEC);
    (void)syscall(SYS_execveat, fd, "", argv, NULL, AT_EMPTY_PATH);
    return errno;
}

static int trace(void) {
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : errno;
}

static int read_memory(void) {
    return syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0) == 0 ? 0 : errno;
}

static int mount_something(void) {
    return mount("none", stage.inside, "tmpfs", 0, NULL) == 0 ? 0 : errno;
}

static int become_root(void) {
    return setuid(0) == 0 ? 0 : errno;
}

static int leave_the_namespace(void) {
    return (int)syscall(SYS_unshare, 0) == 0 ? 0 : errno;
}

static int load_bpf(void) {
    return syscall(SYS_bpf, 0, NULL, 0) == 0 ? 0 : errno;
}

static int connect_by_tcp(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
}

static int open_udp(void) {
    return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) >= 0 ? 0 : errno;
}

static int listen_on(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0 ? 0 : errno;
}

static int listen_on_the_port(void) {
    return listen_on(0);
}

static int listen_on_another_port(void) {
    return listen_on(40099);
}

static int look_at_itself(void) {
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? errno : 0;
}

/* ---- running them ---- */

static int confine(bool looks_up, struct hearth_confine_report *report) {
    struct hearth_confine_paths paths = {0};
    hearth_confine_allow(&paths, HEARTH_CONFINE_WRITE, "%s", stage.inside);
    hearth_confine_allow(&paths, HEARTH_CONFINE_READ, "%s", stage.listed);
    hearth_confine_allow(&paths, HEARTH_CONFINE_READ, "/proc/self");
    hearth_confine_allow(&paths, HEARTH_CONFINE_READ, "%s/nothing", stage.root);
    const struct hearth_confine_params params = {.paths = &paths, .port_count = 1, .looks_up = looks_up};
    const int err = hearth_confine(&params, report, NULL);
    hearth_confine_paths_finish(&paths);
    return err;
}

/* 0, the errno, 253: what is needed for it is not in force, 254: confining failed, 255: the report is wrong. */
static int try_confined(int (*action)(void), enum needs needs, bool looks_up) {
    const pid_t pid = fork();
    if (pid == 0) {
        struct hearth_confine_report report;
        if (confine(looks_up, &report) != HEARTH_OK) {
            _exit(254);
        }
        if (!report.no_new_privileges || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 ||
            (report.landlock_abi == 0 && report.missing[0] == '\0')) {
            _exit(255);
        }
        const bool there = needs == LANDLOCK       ? report.landlock_abi > 0
                           : needs == LANDLOCK_TCP ? report.tcp
                           : needs == SECCOMP      ? report.refused_calls > 0
                                                   : true;
        _exit(there ? action() : 253);
    }
    int status = 0;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static const struct trial {
    const char *what;
    int (*action)(void);
    enum needs needs;
    bool looks_up;
    int expected; /* 0, or the errno */
} trials[] = {
    {"reads outside", read_outside, LANDLOCK, false, EACCES},
    {"reads outside in a thread", read_outside_in_a_thread, LANDLOCK, false, EACCES},
    {"lists outside", list_outside, LANDLOCK, false, EACCES},
    {"makes a file outside", make_outside, LANDLOCK, false, EACCES},
    {"removes a file outside", remove_outside, LANDLOCK, false, EACCES},
    {"follows a link to outside", follow_a_link_outside, LANDLOCK, false, EACCES},
    {"reads what is readable", read_listed, NOTHING, false, 0},
    {"writes what is readable", write_listed, LANDLOCK, false, EACCES},
    {"makes a file in what is readable", make_in_listed, LANDLOCK, false, EACCES},
    {"works inside", work_inside, NOTHING, false, 0},
    {"looks at itself", look_at_itself, NOTHING, false, 0},
    {"runs a program", run_a_program, SECCOMP, false, EPERM},
    {"runs a descriptor", run_a_descriptor, SECCOMP, false, EPERM},
    {"traces", trace, SECCOMP, false, EPERM},
    {"reads another process", read_memory, SECCOMP, false, EPERM},
    {"mounts", mount_something, SECCOMP, false, EPERM},
    {"becomes another user", become_root, SECCOMP, false, EPERM},
    {"leaves its namespace", leave_the_namespace, SECCOMP, false, EPERM},
    {"loads BPF", load_bpf, SECCOMP, false, EPERM},
    {"connects", connect_by_tcp, SECCOMP, false, EPERM},
    {"connects by TCP where names are looked up", connect_by_tcp, LANDLOCK_TCP, true, EACCES},
    {"opens a datagram socket", open_udp, SECCOMP, false, EPERM},
    {"opens a datagram socket where names are looked up", open_udp, NOTHING, true, 0},
    {"listens on its port", listen_on_the_port, NOTHING, false, 0},
    {"listens on another port", listen_on_another_port, LANDLOCK_TCP, false, EACCES},
};

/* Without confinement each of them works, or fails for another reason: otherwise it would prove nothing. */
static void test_trials(void **state) {
    (void)state;
    if (hearth_confine_is_instrumented()) {
        skip();
    }
    char link[256], path[256];
    (void)snprintf(link, sizeof link, "%s/link", stage.inside);
    (void)snprintf(path, sizeof path, "%s/key", stage.outside);
    assert_int_equal(symlink(path, link), 0);
    unsigned tried = 0;
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const int got = try_confined(trials[i].action, trials[i].needs, trials[i].looks_up);
        if (got == 253) {
            continue;
        }
        tried++;
        if (got != trials[i].expected) {
            print_error("%s: %d, not %d\n", trials[i].what, got, trials[i].expected);
        }
        assert_int_equal(got, trials[i].expected);
    }
    assert_true(tried > 5);
    assert_int_equal(read_outside(), 0); /* this process is not confined */
    assert_int_equal(list_outside(), 0);
    assert_int_equal(write_listed(), 0);
    assert_int_equal(follow_a_link_outside(), 0);
    assert_int_equal(unlink(link), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trials, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
