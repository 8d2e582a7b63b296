/* Where state is kept on disk when nothing else is said: `hearth serve` and `hearth kv` agree on it. */
#ifndef HEARTH_CLI_KV_DIR_H
#define HEARTH_CLI_KV_DIR_H

/* $XDG_CACHE_HOME/hearth/kv, or ~/.cache/hearth/kv. The caller's to free. NULL: this user has no home, or out of
 * memory. */
char *hearth_kv_default_dir(void);

#endif
