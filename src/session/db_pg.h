/* Databases of PostgreSQL servers. */
#ifndef HEARTH_SESSION_DB_PG_H
#define HEARTH_SESSION_DB_PG_H

#include "session/db.h"

/* The path is a URL (postgresql://…) as libpq reads it. Tables are in a schema of their own, the kind's. */
extern const struct hearth_db_driver hearth_db_pg;

/* Whether a path is such a URL. */
bool hearth_db_is_pg(const char *path);
/* The URL without its password, for log lines. NULL: it is malformed, or out of memory. The caller frees it. */
char *hearth_db_pg_name(const char *url);
/* The value of a libpq setting for this URL: from the URL, the environment, or libpq's default. NULL: none. The caller
 * frees it. */
char *hearth_db_pg_setting(const char *url, const char *keyword);

#endif
