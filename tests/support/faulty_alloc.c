/* See faulty_alloc.h. The real calls are found by dlsym(), so that a sanitizer's allocator may stand behind this one;
 * what dlsym() itself allocates before they are known comes from a small block that is never freed.
 *
 * FAULTY_ALLOC_TRACE=1 prints a stack for each failure. */
#include "support/faulty_alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EARLY_BYTES 65536
#define FRAMES 40

static struct faulty_alloc own;
static struct faulty_alloc *_Atomic state;
static _Thread_local bool spared, printing;

static _Alignas(16) char early[EARLY_BYTES];
static atomic_size_t early_used;
static _Thread_local bool finding;

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static void (*real_free)(void *);

static bool is_early(const void *block) {
    return (const char *)block >= early && (const char *)block < early + EARLY_BYTES;
}

static void *take_early(size_t size) {
    const size_t rounded = (size + 15) / 16 * 16, at = atomic_fetch_add(&early_used, rounded);
    return at + rounded <= EARLY_BYTES ? early + at : NULL;
}

/* False: the real ones are just being found. */
static bool found(void) {
    if (real_free == NULL) {
        if (finding) {
            return false;
        }
        finding = true;
        *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
        *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
        *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
        *(void **)&real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
        *(void **)&real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
        *(void **)&real_free = dlsym(RTLD_NEXT, "free");
        finding = false;
    }
    return true;
}

/* ---- the state ---- */

static struct faulty_alloc *map_state(void) {
    const char *path = getenv("FAULTY_ALLOC");
    const int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0) {
        close(fd);
    }
    return map != MAP_FAILED ? map : &own;
}

struct faulty_alloc *faulty_alloc_state(void) {
    struct faulty_alloc *now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == NULL) {
        now = environ != NULL ? map_state() : &own;
        if (environ != NULL) {
            atomic_store(&state, now);
        }
    }
    return now;
}

void faulty_alloc_spare(void) {
    spared = true;
}

void faulty_alloc_arm(long n, long count) {
    struct faulty_alloc *now = faulty_alloc_state();
    void *warm[2];
    (void)backtrace(warm, 2); /* its first call loads a library */
    atomic_store(&now->seen, 0);
    atomic_store(&now->hits, 0);
    atomic_store(&now->count, count);
    atomic_store(&now->first, n);
}

long faulty_alloc_disarm(void) {
    struct faulty_alloc *now = faulty_alloc_state();
    atomic_store(&now->first, 0);
    return atomic_load(&now->seen);
}

static void print_stack(void) {
    static const char head[] = "---- an allocation fails:\n";
    void *frames[FRAMES];
    printing = true;
    (void)!write(STDERR_FILENO, head, sizeof head - 1);
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
    printing = false;
}

/* Whether the allocation at hand is to fail. */
static bool fails(void) {
    struct faulty_alloc *now = faulty_alloc_state();
    const long first = atomic_load_explicit(&now->first, memory_order_relaxed);
    if (first == 0 || spared || printing) {
        return false;
    }
    const long n = atomic_fetch_add(&now->seen, 1) + 1;
    if (n < first || n >= first + atomic_load(&now->count)) {
        return false;
    }
    atomic_fetch_add(&now->hits, 1);
    if (getenv("FAULTY_ALLOC_TRACE") != NULL) {
        print_stack();
    }
    errno = ENOMEM;
    return true;
}

static void *counted(void *block) {
    if (block != NULL) {
        atomic_fetch_add_explicit(&faulty_alloc_state()->live, 1, memory_order_relaxed);
    }
    return block;
}

/* ---- the calls ---- */

void *malloc(size_t size) {
    if (!found()) {
        return take_early(size);
    }
    return fails() ? NULL : counted(real_malloc(size));
}

void *calloc(size_t count, size_t size) {
    if (!found()) {
        return take_early(count * size); /* zeroes */
    }
    return fails() ? NULL : counted(real_calloc(count, size));
}

void *realloc(void *block, size_t size) {
    if (!found() || is_early(block)) {
        void *moved = malloc(size);
        if (moved != NULL && block != NULL) {
            const size_t most = (size_t)(early + EARLY_BYTES - (char *)block);
            memcpy(moved, block, size < most ? size : most);
        }
        return moved;
    }
    if (fails()) {
        return NULL;
    }
    void *moved = real_realloc(block, size);
    return block == NULL ? counted(moved) : moved;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    if (!found() || fails()) {
        return ENOMEM;
    }
    const int err = real_posix_memalign(out, alignment, size);
    if (err == 0) {
        (void)counted(*out);
    }
    return err;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return !found() || fails() ? NULL : counted(real_aligned_alloc(alignment, size));
}

void *memalign(size_t alignment, size_t size) {
    return aligned_alloc(alignment, size);
}

void free(void *block) {
    if (block != NULL && !is_early(block) && found()) {
        atomic_fetch_sub_explicit(&faulty_alloc_state()->live, 1, memory_order_relaxed);
        real_free(block);
    }
}
