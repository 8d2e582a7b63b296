/* Fuzzes what stands in a cache directory that somebody else may have filled, and files of conversations that somebody
 * hands on. `directory` makes files of any names in it: what is listed are items and nothing else, and what is outside
 * stays. `kv_file` imports bytes: what is there afterwards is whole. */
#include "disk_format_input.h"
#include "fuzz.h"

#include "cli/kv_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static struct hearth_directory *open_directory(const char *path) {
    struct hearth_directory *directory;
    struct hearth_errmsg msg;
    HEARTH_ASSERT(hearth_directory_open(path, true, &directory, &msg) == HEARTH_OK);
    return directory;
}

/* ---- names ---- */

static int parent = -1; /* of the directory */

/* Makes a file, or a directory (name+) or a link (name@), below the directory, with the directories on the way. */
static void make_entry(int dir, char *name) {
    char *rest = name, *part = strtok_r(rest, "/", &rest);
    int at = openat(dir, "kv", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int depth = 0; at >= 0 && part != NULL && depth < 4; depth++) {
        char *next = strtok_r(rest, "/", &rest);
        const size_t len = strlen(part);
        if (strcmp(part, "..") == 0 || len > 200) {
            break;
        }
        if (next == NULL && part[len - 1] == '@') {
            part[len - 1] = '\0';
            (void)symlinkat("../outside", at, part);
        } else if (next == NULL && part[len - 1] != '+') {
            const int fd = openat(at, part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
            if (fd >= 0) {
                (void)ftruncate(fd, 4096);
                (void)close(fd);
            }
        } else {
            (void)mkdirat(at, part, 0700);
        }
        const int inner = next != NULL ? openat(at, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : -1;
        (void)close(at);
        at = inner;
        part = next;
    }
    if (at >= 0) {
        (void)close(at);
    }
}

struct seen {
    struct hearth_directory *directory;
    size_t files;
};

static bool see_file(void *user, const struct hearth_file *file) {
    struct seen *seen = user;
    struct hearth_file again;
    uint32_t hits;
    int fd;
    HEARTH_ASSERT(strspn(file->id.model.hex, "0123456789abcdef") == 32);
    const int err = hearth_file_open(seen->directory, &file->id, &fd);
    HEARTH_ASSERT(err == HEARTH_OK || err == HEARTH_ERR_STATE || err == HEARTH_ERR_IO);
    if (err == HEARTH_OK) {
        struct stat info;
        HEARTH_ASSERT(fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && close(fd) == 0);
    }
    (void)hearth_file_stat(seen->directory, &file->id, &again, &hits);
    seen->files++;
    return true;
}

static bool see_model(void *user, struct hearth_model_id model) {
    struct seen *seen = user;
    char about[64];
    hearth_directory_about(seen->directory, model, about, sizeof about);
    (void)hearth_directory_walk(seen->directory, model, -1, see_file, seen);
    return true;
}

/* A name a line. */
FUZZ_TARGET(directory) {
    char *text = malloc(size + 1), *rest = text, *line;
    struct hearth_directory_rest other;
    struct hearth_gc gc = {.budget_bytes = 0};
    HEARTH_ASSERT(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    if (parent < 0) {
        parent = open(fuzz_directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fuzz_write(fuzz_path("outside"), "x", 1);
    }
    fuzz_remove(fuzz_path("kv"));
    struct hearth_directory *directory = open_directory(fuzz_path("kv"));
    for (int i = 0; i < 32 && (line = strtok_r(rest, "\n", &rest)) != NULL; i++) {
        make_entry(parent, line);
    }
    free(text);
    struct seen seen = {.directory = directory};
    HEARTH_ASSERT(hearth_directory_models(directory, see_model, &seen) == HEARTH_OK);
    hearth_directory_rest(directory, &other);
    (void)hearth_directory_gc(directory, &gc);
    (void)hearth_directory_empty_bad(directory);
    seen.files = 0;
    HEARTH_ASSERT(hearth_directory_models(directory, see_model, &seen) == HEARTH_OK && seen.files == gc.files);
    hearth_directory_close(directory);
    struct stat info;
    HEARTH_ASSERT(stat(fuzz_path("outside"), &info) == 0 && info.st_size == 1);
}

/* ---- a file of a conversation ---- */

#define HEAD_BYTES 64
#define SECTION_BYTES 32

static void fix_checksum(uint8_t *bytes, size_t len) {
    const uint64_t checksum = hearth_checksum(bytes, len - 8);
    memcpy(bytes + len - 8, &checksum, sizeof checksum);
}

/* Makes the checksums fit of the file's head, of the sections and of the items in them. */
static void fix_file(uint8_t *bytes, size_t len) {
    size_t at = HEAD_BYTES;
    if (len < HEAD_BYTES) {
        return;
    }
    fix_checksum(bytes, HEAD_BYTES);
    while (len - at >= SECTION_BYTES) {
        uint64_t section;
        memcpy(&section, bytes + at + 16, sizeof section);
        fix_checksum(bytes + at, SECTION_BYTES);
        at += SECTION_BYTES;
        section = section < len - at ? section : len - at;
        if (section > HEARTH_FORMAT_BLOCK) {
            input_fix_rest(bytes + at, HEARTH_FORMAT_BLOCK, bytes + at + HEARTH_FORMAT_BLOCK,
                           section - HEARTH_FORMAT_BLOCK);
            input_fix_header(bytes + at, HEARTH_FORMAT_BLOCK);
        }
        at += section;
    }
}

/* Whether checksums are made to fit; then the file, in which `Z` and a byte n stand for 8 n zeros, to keep it small. */
FUZZ_TARGET(kv_file) {
    struct fuzz_input input = {data, size};
    struct hearth_buf file = {0};
    char path[4096], *args[] = {path};
    const bool fix = (fuzz_byte(&input) & 1) != 0;
    while (input.left > 0) {
        static const uint8_t zeros[8 * 255];
        const uint8_t byte = fuzz_byte(&input);
        HEARTH_ASSERT(byte == 'Z' ? hearth_buf_append(&file, zeros, 8u * fuzz_byte(&input))
                                  : hearth_buf_append(&file, &byte, 1));
    }
    if (fix) {
        fix_file(file.data, file.len);
    }
    (void)snprintf(path, sizeof path, "%s", fuzz_path("file"));
    fuzz_write(path, file.data, file.len);
    hearth_buf_finish(&file);
    fuzz_remove(fuzz_path("imported"));
    struct kv kv = {.options = {.dir = fuzz_path("imported"), .budget_mib = -1},
                    .args = args,
                    .arg_count = 1,
                    .directory = open_directory(fuzz_path("imported"))};
    struct kv_view view;
    fuzz_quiet(true);
    (void)hearth_kv_import(&kv);
    HEARTH_ASSERT(hearth_kv_load(&kv, &view));
    fuzz_quiet(false);
    for (size_t i = 0; i < view.model_n; i++) {
        HEARTH_ASSERT(view.models[i].count[KV_DAMAGED] == 0 && view.models[i].count[KV_READABLE] == view.models[i].n);
    }
    hearth_kv_view_finish(&view);
    hearth_directory_close(kv.directory);
}
