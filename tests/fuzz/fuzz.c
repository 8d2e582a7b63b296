/* What the targets share; see fuzz.h. */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define X(name) void fuzz_target_##name(const uint8_t *data, size_t size);
#include "targets.def"
#undef X

const struct fuzz_target fuzz_targets[] = {
#define X(name) {#name, fuzz_target_##name},
#include "targets.def"
#undef X
    {NULL, NULL},
};

const struct fuzz_target *fuzz_target_find(const char *name) {
    for (const struct fuzz_target *target = fuzz_targets; target->name != NULL; target++) {
        if (strcmp(target->name, name) == 0) {
            return target;
        }
    }
    return NULL;
}

uint8_t fuzz_byte(struct fuzz_input *input) {
    if (input->left == 0) {
        return 0;
    }
    input->left--;
    return *input->at++;
}

char *fuzz_part(struct fuzz_input *input, size_t *len) {
    const uint8_t *end = input->left > 0 ? memchr(input->at, 0x1E, input->left) : NULL;
    *len = end != NULL ? (size_t)(end - input->at) : input->left;
    char *copy = malloc(*len + 1);
    HEARTH_ASSERT(copy != NULL);
    if (*len > 0) {
        memcpy(copy, input->at, *len);
    }
    copy[*len] = '\0';
    const size_t taken = *len + (end != NULL);
    input->at += taken;
    input->left -= taken;
    return copy;
}

/* ---- files ---- */

static char directory[64];

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    (void)remove(path);
    return 0;
}

void fuzz_remove(const char *path) {
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void remove_directory(void) {
    fuzz_remove(directory);
}

const char *fuzz_directory(void) {
    if (directory[0] == '\0') { /* in memory, if possible: what is synced there costs nothing */
        const char *above = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
        (void)snprintf(directory, sizeof directory, "%s/hearth-fuzz-XXXXXX", above);
        HEARTH_ASSERT(mkdtemp(directory) != NULL && atexit(remove_directory) == 0);
    }
    return directory;
}

const char *fuzz_path(const char *name) {
    static char paths[4][4096];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", fuzz_directory(), name);
    return path;
}

void fuzz_write(const char *path, const void *bytes, size_t len) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    HEARTH_ASSERT(fd >= 0 && (len == 0 || write(fd, bytes, len) == (ssize_t)len) && close(fd) == 0);
}

void fuzz_quiet(bool quiet) {
    static FILE *nowhere, *out, *err;
    if (nowhere == NULL) {
        nowhere = fopen("/dev/null", "w");
        HEARTH_ASSERT(nowhere != NULL);
        out = stdout;
        err = stderr;
    }
    stdout = quiet ? nowhere : out;
    stderr = quiet ? nowhere : err;
}
