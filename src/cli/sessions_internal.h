/* What the files of `hearth sessions` share.
 *
 *     sessions.c         the command line, the database, and the other commands
 *     sessions_find.c    finding a session, and its parts as JSON
 *     sessions_export.c  export, import */
#ifndef HEARTH_CLI_SESSIONS_INTERNAL_H
#define HEARTH_CLI_SESSIONS_INTERNAL_H

#include "console/show.h"
#include "session/store.h"

struct sessions_options {
    const char *db, *key_file, *owner, *as;
    const char *to;
    bool json, yes, expired, all;
};

struct sessions {
    struct sessions_options options; /* first: the command line is read into it */
    char *const *args;
    int arg_count;
    char *path;               /* as it is told: without a password */
    char *url;                /* of a database server; NULL: it is a file */
    struct hearth_seal *seal; /* NULL: no key was given */
    struct hearth_session_store *store;
};

int hearth_cli_sessions_export(struct sessions *sessions);
int hearth_cli_sessions_import(struct sessions *sessions);

/* All sessions (or with --owner its own), newest first. False after a complaint. */
bool hearth_cli_sessions_list(struct sessions *sessions, struct hearth_session **list, size_t *count);
void hearth_cli_sessions_list_free(struct hearth_session *list, size_t count);
/* The session of that name. False after a complaint; else `out` is to be finished. */
bool hearth_cli_sessions_find(struct sessions *sessions, const char *name, struct hearth_session *out);
/* Its turns, oldest first; none if nothing was said yet. False after a complaint; else `out` is to be finished. */
bool hearth_cli_sessions_line(struct sessions *sessions, const struct hearth_session *session, struct hearth_line *out);
/* Puts a new session. A status; `hint` is said behind a complaint that there is one of this name. */
int hearth_cli_sessions_add(struct sessions *sessions, const struct hearth_session *session, const char *hint);
/* What went wrong with the store. Returns 1. */
int hearth_cli_sessions_complain(int err, const struct hearth_errmsg *msg, const char *what);

/* A name, quoted, with nothing in it that a terminal would obey; for one line. */
struct sessions_name {
    char text[HEARTH_SESSION_NAME_MAX + 8];
};
struct sessions_name hearth_cli_sessions_name(const char *name);

/* JSON text, as far as it is some; NULL: none. The caller's reference. */
json_t *hearth_cli_sessions_json(const struct hearth_buf *text);
/* 32 hex digits, or null for zero. */
json_t *hearth_cli_sessions_digest(struct hearth_digest digest);
bool hearth_cli_sessions_read_digest(const char *hex, struct hearth_digest *out);
/* Name, owner, turns, tokens, times and metadata. */
json_t *hearth_cli_sessions_about(const struct hearth_session *session);

#endif
