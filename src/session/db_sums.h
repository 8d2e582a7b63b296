/* Checksums of a database's pages: an SQLite VFS. Threads: any; a file is used by one at a time. */
#ifndef HEARTH_SESSION_DB_SUMS_H
#define HEARTH_SESSION_DB_SUMS_H

#include <sqlite3.h>

#include <stdbool.h>
#include <stdint.h>

#define HEARTH_DB_VFS "hearth"
#define HEARTH_DB_SUM_BYTES 8 /* at the end of each page */

/* The VFS's name, after it was registered. A connection over it asks for the reserved bytes
 * (SQLITE_FCNTL_RESERVE_BYTES) before it writes into a new file. */
const char *hearth_db_vfs(void);

/* Whether a file that begins like this has checksums. */
bool hearth_db_head_has_sums(const uint8_t head[21]);

/* Checks up to `most` pages of a file from *next on, which becomes 0 after the last page. Returns the number of the
 * first bad page (*next is that less one), 0 if there is none, or -1 (it cannot be opened). */
int64_t hearth_db_find_bad_page(const char *path, uint64_t *next, uint64_t most);

#endif
