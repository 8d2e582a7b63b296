/* Where things are stored when no option names a place: `hearth serve` and the other commands agree on it.
 *
 * The caller's to free. NULL: this user has no home, or out of memory. */
#ifndef HEARTH_CONSOLE_PLACES_H
#define HEARTH_CONSOLE_PLACES_H

#include <stdbool.h>

/* The user's home; borrowed, NULL: none. */
const char *hearth_place_home(void);
/* State on disk: $XDG_CACHE_HOME/hearth/kv, or ~/.cache/hearth/kv. */
char *hearth_place_kv(void);
/* The database of sessions: $XDG_DATA_HOME/hearth/hearth.db, or ~/.local/share/hearth/hearth.db. */
char *hearth_place_sessions(void);
/* What was typed in `hearth chat`: chat_history beside that database. */
char *hearth_place_history(void);

/* A word that was meant to turn a place off ("off", "no", "false", "0"), for which the word is none. */
bool hearth_place_is_off(const char *path);
/* What is said of it: the option and the word twice. */
#define HEARTH_PLACE_OFF "%s: '%s' is no path: none turns it off, ./%s is a path"
/* The place of an option of a command: what was given, or the text of its variable, or the default. *out is the
 * caller's to free. Returns an exit status after a complaint, else 0. */
int hearth_place_find(const char *option, const char *given, const char *variable, char *(*preset)(void), char **out);

#endif
