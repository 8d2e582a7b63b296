/* See places.h. A relative path in a variable is no path, as the specification has it.
 * Source: https://specifications.freedesktop.org/basedir-spec/latest/ */
#include "console/places.h"

#include "console/show.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *hearth_place_home(void) {
    const char *home = getenv("HOME");
    const struct passwd *user = home && home[0] == '/' ? NULL : getpwuid(getuid());
    return home && home[0] == '/' ? home : user ? user->pw_dir : NULL;
}

static char *place(const char *variable, const char *below_home, const char *name) {
    const char *base = getenv(variable), *home = hearth_place_home();
    char *path = NULL;
    if (base && base[0] == '/') {
        return asprintf(&path, "%s/hearth/%s", base, name) < 0 ? NULL : path;
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

bool hearth_place_is_off(const char *path) {
    static const char *const words[] = {"off", "no", "false", "0", "disabled"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(path, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

int hearth_place_find(const char *option, const char *given, const char *variable, char *(*preset)(void), char **out) {
    const char *path = given ? given : getenv(variable);
    *out = NULL;
    if (path && strcmp(path, "none") == 0) {
        return hearth_complain(1, "nothing is stored (none): name a place with %s", option);
    }
    if (path && hearth_place_is_off(path)) {
        return hearth_complain(1, HEARTH_PLACE_OFF, given ? option : variable, path, path);
    }
    *out = path && *path ? strdup(path) : preset();
    return *out ? 0 : hearth_complain(1, "this user has no home: name a place with %s", option);
}
