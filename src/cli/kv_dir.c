/* See kv_dir.h. A relative path in XDG_CACHE_HOME is no path, as the specification has it.
 * Source: https://specifications.freedesktop.org/basedir-spec/latest/ */
#include "cli/kv_dir.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char *hearth_kv_default_dir(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    if (cache && cache[0] == '/') {
        return asprintf(&path, "%s/hearth/kv", cache) < 0 ? NULL : path;
    }
    if (!home || home[0] != '/') {
        const struct passwd *user = getpwuid(getuid());
        home = user ? user->pw_dir : NULL;
    }
    return !home || asprintf(&path, "%s/.cache/hearth/kv", home) < 0 ? NULL : path;
}
