/* The targets under libFuzzer. HEARTH_FUZZ names the one that runs. */
#include "fuzz.h"

#include <stdio.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("HEARTH_FUZZ");
    (void)argc, (void)argv;
    target = name != NULL ? fuzz_target_find(name) : NULL;
    if (target == NULL) {
        (void)fputs("HEARTH_FUZZ must name a target:", stderr);
        for (const struct fuzz_target *one = fuzz_targets; one->name != NULL; one++) {
            (void)fprintf(stderr, " %s", one->name);
        }
        (void)fputc('\n', stderr);
        exit(2);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    target->run(data, size);
    return 0;
}
