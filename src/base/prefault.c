/* Prefaulted memory. Design in prefault.h.
 *
 * A short list of blocks, the one returned last first. A caller gets a block that is not much larger than asked for,
 * so that sizes do not mix: nearly all blocks are pages of state, of one size.
 *
 * Invariant: `bytes` is the sum of the blocks' sizes, and at most `limit`. */
#include "base/prefault.h"

#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCKS_MAX 1024
#define BLOCK_MIN ((size_t)512 << 10) /* smaller ones are malloc()'s business */
#define LARGE_PAGE ((size_t)2 << 20)
#define SMALL_PAGE 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *blocks[BLOCKS_MAX];
    size_t count, bytes, limit;
} pool;

/* Bytes of a block that may have been touched: aligned blocks have up to a large page behind them. */
static size_t size_of(void *block) {
    const size_t usable = malloc_usable_size(block);
    return (uintptr_t)block % LARGE_PAGE == 0 && usable > 2 * LARGE_PAGE ? usable - LARGE_PAGE : usable;
}

/* Closely enough the size that was asked for. */
static bool fits(void *block, size_t len) {
    const size_t usable = malloc_usable_size(block);
    return usable >= len && usable - len <= len / 8 + 2 * LARGE_PAGE;
}

/* What is nearly a large page at the end becomes one: a fault for each small page costs more than the copying. */
static void *fresh(size_t len) {
    const size_t rest = len % LARGE_PAGE, whole = len - rest + (rest > LARGE_PAGE / 4 * 3 ? LARGE_PAGE : 0);
    void *bytes = NULL;
    if (len < BLOCK_MIN || whole == 0) {
        return malloc(len > 0 ? len : 1);
    }
    if (posix_memalign(&bytes, LARGE_PAGE, len > whole ? len : whole) != 0) {
        return NULL;
    }
    (void)madvise(bytes, whole, MADV_HUGEPAGE);
    return bytes;
}

/* Takes block `i` out of the list. */
static void *remove_locked(size_t i) {
    void *block = pool.blocks[i];
    pool.bytes -= size_of(block);
    pool.count--;
    for (; i < pool.count; i++) {
        pool.blocks[i] = pool.blocks[i + 1];
    }
    return block;
}

void hearth_prefault_limit(size_t bytes) {
    for (;;) {
        (void)pthread_mutex_lock(&lock);
        pool.limit = bytes;
        void *block = pool.bytes > bytes ? remove_locked(0) : NULL;
        (void)pthread_mutex_unlock(&lock);
        if (!block) {
            return;
        }
        free(block);
    }
}

void *hearth_prefault_take(size_t len) {
    void *block = NULL;
    (void)pthread_mutex_lock(&lock);
    for (size_t i = pool.count; len >= BLOCK_MIN && i-- > 0 && !block;) {
        if (fits(pool.blocks[i], len)) {
            block = remove_locked(i);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return block ? block : fresh(len);
}

/* False: there is no room for it. */
static bool give_back(void *block) {
    const size_t size = size_of(block);
    (void)pthread_mutex_lock(&lock);
    const bool room = size >= BLOCK_MIN && pool.count < BLOCKS_MAX && pool.bytes + size <= pool.limit;
    if (room) {
        pool.blocks[pool.count++] = block;
        pool.bytes += size;
    }
    (void)pthread_mutex_unlock(&lock);
    return room;
}

void hearth_prefault_give(void *block) {
    if (block && !give_back(block)) {
        free(block);
    }
}

bool hearth_prefault_make(size_t len) {
    (void)pthread_mutex_lock(&lock);
    const bool room = len >= BLOCK_MIN && pool.count < BLOCKS_MAX && pool.bytes + len + len / 8 <= pool.limit;
    (void)pthread_mutex_unlock(&lock);
    uint8_t *block = room ? fresh(len) : NULL;
    if (!block) {
        return false;
    }
    for (size_t at = 0; at < len; at += SMALL_PAGE) {
        ((volatile uint8_t *)block)[at] = 0;
    }
    if (give_back(block)) {
        return true;
    }
    free(block); /* another thread was faster */
    return false;
}
