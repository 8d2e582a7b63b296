/* See places.h. A relative path in a variable is no path, as the specification has it.
 * Source: https://specifications.freedesktop.org/basedir-spec/latest/ */
#include "console/places.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *place(const char *variable, const char *below_home, const char *name) {
    const char *base = getenv(variable), *home = getenv("HOME");
    char *path = NULL;
    if (base && base[0] == '/') {
        return asprintf(&path, "%s/hearth/%s", base, name) < 0 ? NULL : path;
    }
    if (!home || home[0] != '/') {
        const struct passwd *user = getpwuid(getuid());
        home = user ? user->pw_dir : NULL;
    }
    return !home || asprintf(&path, "%s/%s/hearth/%s", home, below_home, name) < 0 ? NULL : path;
}

char *hearth_place_kv(void) {
    return place("XDG_CACHE_HOME", ".cache", "kv");
}

char *hearth_place_sessions(void) {
    return place("XDG_DATA_HOME", ".local/share", "hearth.db");
}

char *hearth_place_history(void) {
    return place("XDG_DATA_HOME", ".local/share", "chat_history");
}
