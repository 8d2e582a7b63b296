/* The stage of the state directory's tests: a directory of its own for each, ways to look at it from outside, and a
 * process for what should die. */
#ifndef HEARTH_TESTS_DIRECTORY_STAGE_H
#define HEARTH_TESTS_DIRECTORY_STAGE_H

#include "base/log.h"
#include "tier/directory.h"

#include <setjmp.h>
#include <stdarg.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define T0 INT64_C(1700000000000000) /* some time, in microseconds */

static char root[64];
static int lines;
static char last_line[1024];

static inline void note_line(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    lines += level >= HEARTH_LOG_WARN;
    (void)snprintf(last_line, sizeof last_line, "%s", line);
}

static inline int set_up(void **state) {
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/hearth-directory-XXXXXX");
    lines = 0;
    hearth_log_set(note_line, NULL, HEARTH_LOG_DEBUG);
    return mkdtemp(root) ? 0 : -1;
}

static inline int tear_down(void **state) {
    (void)state;
    char command[256];
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    (void)snprintf(command, sizeof command, "chmod -R u+rwx %s && rm -rf %s", root, root);
    return system(command);
}

static inline const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *at(const char *format, ...) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ & 3];
    const int n = snprintf(path, PATH_MAX, "%s/", root);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(path + n, (size_t)(PATH_MAX - n), format, args);
    va_end(args);
    return path;
}

static inline struct hearth_directory *open_at(const char *path) {
    struct hearth_directory *directory;
    struct hearth_errmsg msg = {""};
    const int err = hearth_directory_open(path, true, &directory, &msg);
    if (err != HEARTH_OK) {
        print_error("%s\n", msg.text);
    }
    assert_int_equal(err, HEARTH_OK);
    return directory;
}

static inline struct hearth_directory *open_root(void) {
    return open_at(at("kv"));
}

static inline int mode_of(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

static inline bool there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static inline int entries(const char *path) {
    DIR *stream = opendir(path);
    int n = 0;
    for (const struct dirent *entry; stream && (entry = readdir(stream)) != NULL;) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    if (stream) {
        (void)closedir(stream);
    }
    return n;
}

static inline struct hearth_model_id model(int i) {
    return hearth_model_id((struct hearth_digest){.lo = (uint64_t)i, .hi = 7}, 256);
}

static inline struct hearth_file_id item(int m, uint64_t i) {
    return (struct hearth_file_id){.model = model(m),
                                   .name = hearth_digest_bytes(&i, sizeof i),
                                   .kind = i % 3 == 0 ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE};
}

static inline const char *file_path(const struct hearth_file_id *id) {
    char hex[33];
    hearth_digest_hex(id->name, hex);
    return at("kv/%s/%.2s/%s.%s", id->model.hex, hex, hex + 2, id->kind == HEARTH_RECORD_PAGE ? "page" : "snap");
}

static inline int publish(struct hearth_directory *directory, const struct hearth_file_id *id, size_t bytes,
                          int64_t stamp_us) {
    struct hearth_file_draft draft;
    const struct timespec stamp = hearth_file_stamp(stamp_us, 0, false);
    int err = hearth_file_create(directory, id->model, &draft);
    if (err != HEARTH_OK) {
        return err;
    }
    if (ftruncate(draft.fd, (off_t)bytes) != 0) {
        return HEARTH_ERR_IO;
    }
    err = hearth_file_publish(directory, &draft, id, &stamp);
    return err == HEARTH_OK ? hearth_file_sync_shard(directory, id) : err;
}

static inline bool count_file(void *user, const struct hearth_file *file) {
    (void)file;
    ++*(int *)user;
    return true;
}

static inline int files_of(struct hearth_directory *directory, int m) {
    int n = 0;
    assert_int_equal(hearth_directory_walk(directory, model(m), -1, count_file, &n), HEARTH_OK);
    return n;
}

/* Runs `body` in a process of its own; its exit status. */
static inline int in_child(void (*body)(void)) {
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
