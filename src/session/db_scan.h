/* Reads the rows of a damaged database, page by page, without its trees. */
#ifndef HEARTH_SESSION_DB_SCAN_H
#define HEARTH_SESSION_DB_SCAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_DB_CELLS_MAX 16

enum hearth_db_cell_type { HEARTH_DB_NULL, HEARTH_DB_NUMBER, HEARTH_DB_BYTES, HEARTH_DB_REAL };

struct hearth_db_row {
    int64_t id;   /* 0: the row is of an index, or of a table without ids */
    size_t count; /* cells; rows with more are left out */
    struct {
        enum hearth_db_cell_type type;
        int64_t number;
        const uint8_t *bytes; /* blob or text */
        size_t len;
    } cells[HEARTH_DB_CELLS_MAX];
};

/* Calls `take` for each row that a page of the file or of the log beside it seems to hold; what is damaged is left out,
 * and what a page says is not checked: the caller's rows vouch for themselves. `take` returns false to stop. Errors:
 * IO, NOMEM. Source: https://www.sqlite.org/fileformat2.html */
int hearth_db_scan(const char *path, bool (*take)(void *user, const struct hearth_db_row *row), void *user,
                   struct hearth_errmsg *msg);

#endif
