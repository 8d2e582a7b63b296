/* Making folders. Parents may exist without the right to look into them, so only the last one's failure counts. */
#include "base/folder.h"

#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int make(const char *path, size_t len) {
    char *copy = strndup(path, len);
    if (!copy) {
        errno = ENOMEM;
        return HEARTH_ERR_IO;
    }
    int err = HEARTH_OK, above = 0;
    for (char *end = copy + 1; err == HEARTH_OK; end++) {
        if (*end != '/' && *end != '\0') {
            continue;
        }
        const char was = *end;
        *end = '\0';
        if (mkdir(copy, 0700) == 0) {
            err = chmod(copy, 0700) == 0 ? HEARTH_OK : HEARTH_ERR_IO;
        } else if (errno != EEXIST && was == '\0') {
            err = HEARTH_ERR_IO; /* further up, only the last one tells: it may be there without rights to look */
            errno = errno == ENOENT && above != 0 ? above : errno; /* why what is above it was not made */
        } else if (errno != EEXIST) {
            above = above != 0 ? above : errno;
        }
        *end = was;
        if (was == '\0') {
            break;
        }
    }
    const int saved = errno;
    free(copy);
    errno = saved;
    return err;
}

int hearth_folder_make(const char *path) {
    return make(path, strlen(path));
}

int hearth_folder_make_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash != path ? make(path, (size_t)(slash - path)) : HEARTH_OK;
}
