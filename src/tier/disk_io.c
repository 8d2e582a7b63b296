/* I/O of the disk tier.
 *
 * Two engines behind one queue: io_uring, tried at run time because kernels and containers may refuse it, and a small
 * pool of threads that make the plain calls. Both end in complete(), which decides whether an operation is over: what
 * was interrupted or moved only some of its bytes is started again for the rest, so callers never see a short write,
 * and a short read only at the end of a file.
 *
 * Invariants: an operation is in exactly one of the queue's lists or in the kernel; `in_flight` counts those between
 * submit and reap. An operation's bytes are moved in the order of its parts. */
#include "tier/disk_io.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef HEARTH_HAVE_URING
#include <liburing.h>
#endif

#define POOL_THREADS 4

STAILQ_HEAD(io_list, hearth_io_op);

struct hearth_io {
    unsigned depth, in_flight;
    bool uring;
    int nice;
#ifdef HEARTH_HAVE_URING
    struct io_uring ring;
#endif
    /* the pool */
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    pthread_t threads[POOL_THREADS];
    unsigned thread_count;
    bool stop;
    struct io_list waiting, ended; /* ended: over, not reaped yet */
};

/* ---- what came of a call ---- */

static int part_count(const struct hearth_io_op *op) {
    return op->parts[1].iov_len > 0 ? 2 : 1;
}

/* Removes `bytes` from the front of the parts. True: nothing is left. */
static bool advance(struct hearth_io_op *op, uint64_t bytes) {
    op->done += bytes;
    while (bytes >= op->parts[0].iov_len) {
        bytes -= op->parts[0].iov_len;
        op->parts[0] = op->parts[1];
        op->parts[1] = (struct iovec){0};
        if (op->parts[0].iov_len == 0) {
            return true;
        }
    }
    op->parts[0].iov_base = (char *)op->parts[0].iov_base + bytes;
    op->parts[0].iov_len -= (size_t)bytes;
    return false;
}

/* `result`: bytes or -errno. False: the call must be made again. */
static bool complete(struct hearth_io_op *op, int64_t result) {
    if (result == -EINTR || result == -EAGAIN) {
        return false;
    }
    if (result < 0) {
        op->error = (int)-result;
        return true;
    }
    if (op->kind == HEARTH_IO_SYNC) {
        return true;
    }
    if (result == 0) {
        op->error = op->kind == HEARTH_IO_WRITE ? EIO : 0; /* nothing moved, without a reason: do not try for ever */
        return true;
    }
    return advance(op, (uint64_t)result) || (op->enough > 0 && op->done >= op->enough);
}

/* ---- threads ---- */

static void run_plain(struct hearth_io_op *op) {
    int64_t result;
    do {
        if (op->kind == HEARTH_IO_SYNC) {
            result = fdatasync(op->fd);
        } else if (op->kind == HEARTH_IO_READ) {
            result = preadv(op->fd, op->parts, part_count(op), (off_t)(op->offset + op->done));
        } else {
            result = pwritev(op->fd, op->parts, part_count(op), (off_t)(op->offset + op->done));
        }
    } while (!complete(op, result < 0 ? -(int64_t)errno : result));
}

static void *pool_main(void *arg) {
    struct hearth_io *io = arg;
    hearth_io_step_back(io->nice);
    (void)pthread_mutex_lock(&io->lock);
    for (;;) {
        struct hearth_io_op *op = STAILQ_FIRST(&io->waiting);
        if (op) {
            STAILQ_REMOVE_HEAD(&io->waiting, next);
            (void)pthread_mutex_unlock(&io->lock);
            run_plain(op);
            (void)pthread_mutex_lock(&io->lock);
            STAILQ_INSERT_TAIL(&io->ended, op, next);
            (void)pthread_cond_signal(&io->news);
        } else if (io->stop) {
            break;
        } else {
            (void)pthread_cond_wait(&io->work, &io->lock);
        }
    }
    (void)pthread_mutex_unlock(&io->lock);
    return NULL;
}

static struct hearth_io_op *pool_reap(struct hearth_io *io, bool wait) {
    (void)pthread_mutex_lock(&io->lock);
    struct hearth_io_op *op;
    while (!(op = STAILQ_FIRST(&io->ended)) && wait && io->in_flight > 0) {
        (void)pthread_cond_wait(&io->news, &io->lock);
    }
    if (op) {
        STAILQ_REMOVE_HEAD(&io->ended, next);
    }
    (void)pthread_mutex_unlock(&io->lock);
    return op;
}

static void pool_submit(struct hearth_io *io, struct hearth_io_op *op) {
    (void)pthread_mutex_lock(&io->lock);
    STAILQ_INSERT_TAIL(&io->waiting, op, next);
    (void)pthread_cond_signal(&io->work);
    (void)pthread_mutex_unlock(&io->lock);
}

/* ---- io_uring ---- */

#ifdef HEARTH_HAVE_URING
static void ring_submit(struct hearth_io *io, struct hearth_io_op *op) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    HEARTH_ASSERT(sqe != NULL); /* the ring has `depth` places */
    if (op->kind == HEARTH_IO_SYNC) {
        io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
    } else if (op->kind == HEARTH_IO_READ) {
        io_uring_prep_readv(sqe, op->fd, op->parts, (unsigned)part_count(op), op->offset + op->done);
    } else {
        io_uring_prep_writev(sqe, op->fd, op->parts, (unsigned)part_count(op), op->offset + op->done);
    }
    io_uring_sqe_set_data(sqe, op);
    int rc;
    do {
        rc = io_uring_submit(&io->ring);
    } while (rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
    HEARTH_ASSERT(rc >= 0); /* the kernel knows the ring: any other answer is misuse */
}

static struct hearth_io_op *ring_reap(struct hearth_io *io, bool wait) {
    while (io->in_flight > 0) {
        struct io_uring_cqe *cqe = NULL;
        const int rc = wait ? io_uring_wait_cqe(&io->ring, &cqe) : io_uring_peek_cqe(&io->ring, &cqe);
        if (rc == -EINTR || (wait && rc == -EAGAIN)) {
            continue;
        }
        if (rc < 0 || !cqe) {
            return NULL;
        }
        struct hearth_io_op *op = io_uring_cqe_get_data(cqe);
        const int64_t result = cqe->res;
        io_uring_cqe_seen(&io->ring, cqe);
        if (complete(op, result)) {
            return op;
        }
        ring_submit(io, op);
    }
    return NULL;
}
#endif

/* ---- the queue ---- */

struct hearth_io *hearth_io_create(unsigned depth, bool no_uring, int nice) {
    struct hearth_io *io = calloc(1, sizeof *io);
    if (!io) {
        return NULL;
    }
    io->depth = depth;
    io->nice = nice;
    STAILQ_INIT(&io->ended);
    STAILQ_INIT(&io->waiting);
    HEARTH_ASSERT(pthread_mutex_init(&io->lock, NULL) == 0 && pthread_cond_init(&io->work, NULL) == 0 &&
                  pthread_cond_init(&io->news, NULL) == 0);
#ifdef HEARTH_HAVE_URING
    io->uring = !no_uring && io_uring_queue_init(depth, &io->ring, 0) == 0;
#else
    (void)no_uring;
#endif
    while (!io->uring && io->thread_count < POOL_THREADS &&
           pthread_create(&io->threads[io->thread_count], NULL, pool_main, io) == 0) {
        io->thread_count++;
    }
    if (!io->uring && io->thread_count == 0) {
        hearth_io_destroy(io);
        return NULL;
    }
    return io;
}

void hearth_io_destroy(struct hearth_io *io) {
    if (!io) {
        return;
    }
    HEARTH_ASSERT(io->in_flight == 0);
    (void)pthread_mutex_lock(&io->lock);
    io->stop = true;
    (void)pthread_cond_broadcast(&io->work);
    (void)pthread_mutex_unlock(&io->lock);
    for (unsigned i = 0; i < io->thread_count; i++) {
        (void)pthread_join(io->threads[i], NULL);
    }
#ifdef HEARTH_HAVE_URING
    if (io->uring) {
        io_uring_queue_exit(&io->ring);
    }
#endif
    (void)pthread_cond_destroy(&io->news);
    (void)pthread_cond_destroy(&io->work);
    (void)pthread_mutex_destroy(&io->lock);
    free(io);
}

void hearth_io_submit(struct hearth_io *io, struct hearth_io_op *op) {
    HEARTH_ASSERT(io->in_flight < io->depth);
    op->done = 0;
    op->error = 0;
    if (op->parts[0].iov_len == 0) { /* the first part is empty only if both are */
        op->parts[0] = op->parts[1];
        op->parts[1] = (struct iovec){0};
    }
    io->in_flight++;
#ifdef HEARTH_HAVE_URING
    if (io->uring) {
        ring_submit(io, op);
        return;
    }
#endif
    pool_submit(io, op);
}

struct hearth_io_op *hearth_io_reap(struct hearth_io *io, bool wait) {
    struct hearth_io_op *op;
#ifdef HEARTH_HAVE_URING
    op = io->uring ? ring_reap(io, wait) : pool_reap(io, wait);
#else
    op = pool_reap(io, wait);
#endif
    if (op) {
        io->in_flight--;
    }
    return op;
}

/* ---- now, on this thread ---- */

int64_t hearth_io_read_now(int fd, void *bytes, size_t len) {
    struct hearth_io_op op = {.kind = HEARTH_IO_READ, .fd = fd, .parts = {{.iov_base = bytes, .iov_len = len}}};
    run_plain(&op);
    return op.error ? -(int64_t)op.error : (int64_t)op.done;
}

int64_t hearth_io_size(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? (int64_t)st.st_size : -(int64_t)errno;
}

/* Linux 6.5 counts a file's pages in the cache; the headers that this is built with may be older.
 * Source: cachestat(2). */
static int64_t cached_pages(int fd, uint64_t size) {
    enum { CACHESTAT = 451 }; /* on every architecture */
    const struct {
        uint64_t offset, len;
    } range = {.len = size};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } answer = {0};
    return syscall(CACHESTAT, fd, &range, &answer, 0U) == 0 ? (int64_t)answer.cached : -1;
}

bool hearth_io_cached(int fd, uint64_t size) {
    const int64_t pages = cached_pages(fd, size);
    if (pages >= 0) {
        return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) >= size / 2;
    }
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    return size == 0 || preadv2(fd, &part, 1, (off_t)(size / 2), RWF_NOWAIT) == 1;
}

void hearth_io_expect(int fd, uint64_t size) {
    (void)posix_fadvise(fd, 0, (off_t)size, POSIX_FADV_WILLNEED);
}

void hearth_io_expect_little(int fd) {
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

bool hearth_io_direct(int fd, bool on) {
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

int hearth_io_cut(int fd, uint64_t size) {
    int rc;
    do {
        rc = ftruncate(fd, (off_t)size);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : -errno;
}

void hearth_io_close(int fd) {
    const int saved = errno;
    (void)close(fd);
    errno = saved;
}

void hearth_io_step_back(int nice) {
    enum { WHO_PROCESS = 1, CLASS_BEST_EFFORT = 2, CLASS_SHIFT = 13, LOWEST = 7 };
    if (nice <= 0) {
        return;
    }
    /* On Linux both priorities belong to a thread, in spite of the names. Where they are refused, it is only a little
     * slower. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
    (void)syscall(SYS_ioprio_set, WHO_PROCESS, 0, CLASS_BEST_EFFORT << CLASS_SHIFT | LOWEST);
}
