/* One flag per thread, and one reserve for all. Reading the flag does not clear it, so that every cache on the way
 * out notices a refused allocation deep inside. */
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE_BLOCKS 16
#define RESERVE_BYTES ((size_t)256 * 1024) /* of each */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *reserve[RESERVE_BLOCKS];
static size_t held;

static _Thread_local bool refused;

void hearth_memory_begin(void) {
    refused = false;
}

void hearth_memory_note(void) {
    refused = true;
}

bool hearth_memory_refused(void) {
    return refused;
}

bool hearth_memory_release(void) {
    void *block = NULL;
    pthread_mutex_lock(&mutex);
    if (held > 0) {
        block = reserve[--held];
    }
    pthread_mutex_unlock(&mutex);
    free(block);
    return block != NULL;
}

bool hearth_memory_refill(void) {
    bool full = true;
    pthread_mutex_lock(&mutex);
    while (full && held < RESERVE_BLOCKS) {
        reserve[held] = hearth_memory_malloc(RESERVE_BYTES);
        full = reserve[held] != NULL;
        held += full;
    }
    pthread_mutex_unlock(&mutex);
    return full;
}

static void *noted(void *block) {
    refused = refused || !block;
    return block;
}

void *hearth_memory_malloc(size_t size) {
    return noted(malloc(size > 0 ? size : 1)); /* NULL means one thing */
}

void *hearth_memory_calloc(size_t count, size_t size) {
    return noted(calloc(count > 0 ? count : 1, size > 0 ? size : 1));
}

void *hearth_memory_realloc(void *block, size_t size) {
    return noted(realloc(block, size > 0 ? size : 1));
}

char *hearth_memory_strdup(const char *text) {
    return noted(strdup(text));
}

void hearth_memory_wipe(char *text) {
    if (text) {
        explicit_bzero(text, strlen(text));
        free(text);
    }
}
