/* Reads, writes and syncs of files, many at a time: by io_uring where it works, by a few threads elsewhere. And the
 * small calls on descriptors that the disk tier makes directly.
 *
 * Threads: a queue belongs to one thread. */
#ifndef HEARTH_TIER_DISK_IO_H
#define HEARTH_TIER_DISK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

enum hearth_io_kind { HEARTH_IO_READ, HEARTH_IO_WRITE, HEARTH_IO_SYNC };

/* One operation. The caller fills the first part and keeps it until it is reaped. */
struct hearth_io_op {
    enum hearth_io_kind kind;
    int fd;
    uint64_t offset;       /* position in the file */
    struct iovec parts[2]; /* changed while it runs */
    uint64_t enough;       /* for a read: over once so many bytes came; 0: once all parts are full */
    void *user;
    /* the answer */
    uint64_t done; /* bytes; a read ends early only where the file ends, a write never */
    int error;     /* errno; 0: success */
    /* the queue's own */
    STAILQ_ENTRY(hearth_io_op) next;
};

struct hearth_io;

/* Makes a queue for at most `depth` operations at a time. `nice`: of the threads that it starts. NULL: out of memory or
 * threads. */
struct hearth_io *hearth_io_create(unsigned depth, bool no_uring, int nice);
void hearth_io_destroy(struct hearth_io *io); /* no operation may be in flight; NULL is allowed */
/* Starts an operation; it is answered by hearth_io_reap(). */
void hearth_io_submit(struct hearth_io *io, struct hearth_io_op *op);
/* An operation that has ended. NULL: none has; with `wait`, none is in flight. */
struct hearth_io_op *hearth_io_reap(struct hearth_io *io, bool wait);

/* ---- now, on this thread ---- */

/* Reads as much as there is. Errors: -errno. */
int64_t hearth_io_read_now(int fd, void *bytes, size_t len);
/* The size of a file. Errors: -errno. */
int64_t hearth_io_size(int fd);
/* True when most of the file is in the page cache. Where the kernel cannot tell, its middle decides: beginnings are
 * there from the scan, ends from reading past the cache. */
bool hearth_io_cached(int fd, uint64_t size);
/* Asks the kernel to read a whole file ahead. */
void hearth_io_expect(int fd, uint64_t size);
/* Says that only the beginning of the file will be read. */
void hearth_io_expect_little(int fd);
/* Switches bypassing the page cache on or off; then memory, offsets and lengths must be multiples of 4096. False: this
 * file system cannot. */
bool hearth_io_direct(int fd, bool on);
/* Cuts a file. Errors: -errno. */
int hearth_io_cut(int fd, uint64_t size);
void hearth_io_close(int fd); /* errno stays */
/* Lowers the calling thread's claim on processors and on the disk. */
void hearth_io_step_back(int nice);

#endif
