/* Checks the paths of the options. If a path was given and cannot be used, the start fails. If a default path cannot
 * be used, the log and /health say so, and the server runs without it.
 *
 * Files are checked, not opened: some are pipes, whose content can be read only once. */
#include "cli/serve_internal.h"

#include "base/folder.h"
#include "base/health.h"
#include "cli/options_internal.h"
#include "console/places.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a file is read for decides what it may be: text may come from a pipe, or from a terminal. */
static bool must_be_plain(const struct hearth_option_row *row) {
    return strcmp(row->long_name, "--model") == 0 || strcmp(row->long_name, "--lora") == 0 ||
           strcmp(row->long_name, "--kv-key") == 0 || strncmp(row->long_name, "--ssl-", 6) == 0;
}

/* What keeps a file from being read; NULL: nothing. */
static const char *fault(const char *path, bool plain) {
    struct stat st;
    if (stat(path, &st) != 0) {
        return strerror(errno);
    }
    if (S_ISDIR(st.st_mode)) {
        return strerror(EISDIR);
    }
    if (S_ISSOCK(st.st_mode) || (plain && !S_ISREG(st.st_mode))) {
        return "it is not a regular file";
    }
    return faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0 ? NULL : strerror(errno);
}

/* Files that are written, and those of the simulated engine's model, are never read. */
static bool is_read(const struct hearth_option_row *row, const struct hearth_options *options) {
    const bool of_model = strcmp(row->long_name, "--model") == 0 || strcmp(row->long_name, "--lora") == 0;
    const bool written = strcmp(row->long_name, "--session-db") == 0 || strcmp(row->long_name, "--trace") == 0;
    return !written && (!of_model || strcmp(options->engine, "llama") == 0);
}

int hearth_serve_paths_check(const struct hearth_options *options, struct hearth_errmsg *msg) {
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        const char *path = hearth_option_path(row, options, "FILE");
        const char *cause = path && is_read(row, options) ? fault(path, must_be_plain(row)) : NULL;
        if (cause) {
            return hearth_fail(msg, HEARTH_ERR_IO, "%s: cannot read %s: %s", row->long_name, path, cause);
        }
    }
    return HEARTH_OK;
}

int hearth_serve_paths_sessions(const struct hearth_options *options, char **out, struct hearth_errmsg *msg) {
    *out = NULL;
    if (options->session_db && strcmp(options->session_db, "none") == 0) {
        return HEARTH_OK;
    }
    char *path = options->session_db ? strdup(options->session_db) : hearth_place_sessions();
    if (path && (strstr(path, "://") || hearth_folder_make_parent(path) == HEARTH_OK)) {
        *out = path;
        return HEARTH_OK;
    }
    const char *cause = path ? strerror(errno) : "this user has no home";
    int err = HEARTH_OK;
    if (options->session_db) {
        err = hearth_fail(msg, path ? HEARTH_ERR_IO : HEARTH_ERR_NOMEM, "--session-db: cannot use %s: %s",
                          options->session_db, cause);
    } else {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                            "sessions: cannot use %s: %s: they are kept in memory only "
                            "(--session-db names another file, none is silent)",
                            path ? path : "a file", cause);
    }
    free(path);
    return err;
}

int hearth_serve_paths_name(const char *option, const char *path, int err, struct hearth_errmsg *msg) {
    enum { END = 40 }; /* a long line has lost its middle */
    const size_t len = path ? strlen(path) : 0;
    const char *end = len > END ? path + len - END : path;
    const bool is_in = path && strncmp(msg->text, "--", 2) != 0 && strstr(msg->text, end);
    return is_in ? hearth_fail_of(msg, err, option) : err;
}
