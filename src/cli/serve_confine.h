/* What a server is confined to: the paths that its options name, and what libraries read of the system. */
#ifndef HEARTH_CLI_SERVE_CONFINE_H
#define HEARTH_CLI_SERVE_CONFINE_H

#include "cli/options.h"

/* Confines the process as --confine has it and says in one line what is in force. `kv_dir`, `session_db`: where state
 * and sessions are kept; NULL: nowhere. Before any thread is started. Errors: UNSUPPORTED (--confine on, and
 * something is not in force), NOMEM. */
int hearth_serve_confine(const struct hearth_options *options, const char *kv_dir, const char *session_db,
                         struct hearth_errmsg *msg);

/* Whether files are now out of reach that were not named at the start. */
bool hearth_serve_is_confined(void);

#endif
