/* Loaded into a server: a disk whose reads are slow. Positioned reads, together, get SLOW_DISK_BYTES_PER_S; each waits
 * for those before it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static double free_s; /* when the disk has done what it was asked for */

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Takes as long as a read of so many bytes that began at `since_s`. */
static void take_long(double since_s, ssize_t bytes) {
    const char *speed = getenv("SLOW_DISK_BYTES_PER_S");
    const double bytes_per_s = speed ? strtod(speed, NULL) : 0;
    if (bytes <= 0 || bytes_per_s <= 0) {
        return;
    }
    (void)pthread_mutex_lock(&mutex);
    free_s = (free_s > since_s ? free_s : since_s) + (double)bytes / bytes_per_s;
    const double until_s = free_s;
    (void)pthread_mutex_unlock(&mutex);
    for (double left_s; (left_s = until_s - now_s()) > 0;) {
        const time_t whole = (time_t)left_s;
        const struct timespec wait = {.tv_sec = whole, .tv_nsec = (long)(1e9 * (left_s - (double)whole))};
        (void)nanosleep(&wait, NULL);
    }
}

#define PREADV(name, offset)                                                \
    ssize_t name(int fd, const struct iovec *parts, int count, offset at) { \
        const double since_s = now_s();                                     \
        ssize_t (*read_it)(int, const struct iovec *, int, offset);         \
        *(void **)&read_it = dlsym(RTLD_NEXT, #name);                       \
        const ssize_t bytes = read_it(fd, parts, count, at);                \
        take_long(since_s, bytes);                                          \
        return bytes;                                                       \
    }
PREADV(preadv, off_t)
PREADV(preadv64, off64_t)
