/* What the fuzz targets share.
 *
 * A target is a function that takes the bytes of a stranger: whatever they are, it ends, and asserts what must be true
 * of what was made of them. All targets are in one program, twice: under libFuzzer (fuzzer.c, `make fuzz`), and with a
 * main function that plays a corpus and a few seconds of simple changes to it (replay.c, in `make test`). Their names
 * stand in targets.def.
 *
 * Where an input has parts, 0x1E stands between them: it occurs in no valid text of any format here, and a corpus of
 * texts stays one. */
#ifndef HEARTH_TESTS_FUZZ_FUZZ_H
#define HEARTH_TESTS_FUZZ_FUZZ_H

#include "base/assert.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* FUZZ_TARGET(name) { … `data` and `size` … } */
#define FUZZ_TARGET(name)                                      \
    void fuzz_target_##name(const uint8_t *data, size_t size); \
    void fuzz_target_##name(const uint8_t *data, size_t size)

struct fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
};

/* Ends with a name that is NULL. */
extern const struct fuzz_target fuzz_targets[];
/* NULL: there is none of that name. */
const struct fuzz_target *fuzz_target_find(const char *name);

/* ---- inputs ---- */

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

/* The next byte; 0 at the end. */
uint8_t fuzz_byte(struct fuzz_input *input);
/* What stands before the next 0x1E, or all that is left: a copy of exactly that size and a NUL, for the sanitizer to
 * see its end. Caller frees. */
char *fuzz_part(struct fuzz_input *input, size_t *len);

/* ---- files ---- */

/* A directory of this process's own, which is gone when it ends. */
const char *fuzz_directory(void);
/* A path in it. Valid until the next call but three. */
const char *fuzz_path(const char *name);
void fuzz_write(const char *path, const void *bytes, size_t len);
/* Removes a file, or a directory with all that is in it. */
void fuzz_remove(const char *path);

/* What is printed on stdout and stderr from here on goes nowhere; and comes through again. For commands. */
void fuzz_quiet(bool quiet);

#endif
