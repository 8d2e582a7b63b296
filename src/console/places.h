/* Where things are stored when no option names a place: `hearth serve` and the other commands agree on it.
 *
 * The caller's to free. NULL: this user has no home, or out of memory. */
#ifndef HEARTH_CONSOLE_PLACES_H
#define HEARTH_CONSOLE_PLACES_H

/* State on disk: $XDG_CACHE_HOME/hearth/kv, or ~/.cache/hearth/kv. */
char *hearth_place_kv(void);
/* The database of sessions: $XDG_DATA_HOME/hearth/hearth.db, or ~/.local/share/hearth/hearth.db. */
char *hearth_place_sessions(void);
/* What was typed in `hearth chat`: chat_history beside that database. */
char *hearth_place_history(void);

#endif
