/* The flags of llama-server, as the llama.cpp that hearth is built on has them: a shim over its `common`. */
#ifndef HEARTH_TESTS_LLAMA_ARGS_H
#define HEARTH_TESTS_LLAMA_ARGS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Tells each name of each flag, how many values it takes, and its variable or "". Returns the number of flags. */
unsigned llama_args_each(void (*each)(void *user, const char *name, int values, const char *env), void *user);

#ifdef __cplusplus
}
#endif

#endif
