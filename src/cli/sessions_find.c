/* What the commands of `hearth sessions` do with the store: find a session, put one, print its parts.
 *
 * Sessions belong to owners: on a server with several API keys two of them may have a session of the same name. --owner
 * tells which is meant. */
#include "cli/sessions_internal.h"
#include "console/show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int hearth_cli_sessions_complain(int err, const struct hearth_errmsg *msg, const char *what) {
    return msg && *msg->text
               ? hearth_complain(1, "%s", msg->text)
               : hearth_complain(1, "%s: %s", what,
                                 err == HEARTH_ERR_STATE ? "it is damaged, or encrypted with another key (--key FILE)"
                                                         : hearth_err_text(err));
}

int hearth_cli_sessions_add(struct sessions *sessions, const struct hearth_session *session, const char *hint) {
    struct hearth_errmsg msg = {""};
    struct hearth_session there;
    const struct sessions_name name = hearth_cli_sessions_name(session->name);
    const int err = hearth_session_put(sessions->store, session, false, &msg);
    if (err != HEARTH_ERR_INVALID) {
        return err == HEARTH_OK ? 0 : hearth_cli_sessions_complain(err, &msg, name.text);
    }
    if (hearth_session_get(sessions->store, session->owner, session->name, &there) == HEARTH_OK) {
        hearth_session_finish(&there);
        return hearth_complain(1, "there is a session %s already%s", name.text, hint);
    }
    return hearth_complain(1, "%s: %s", name.text, msg.text);
}

/* ---- small things ---- */

struct sessions_name hearth_cli_sessions_name(const char *name) {
    struct sessions_name out = {""};
    FILE *memory = fmemopen(out.text, sizeof out.text, "w");
    if (memory) {
        (void)fputc('\'', memory);
        (void)hearth_show_text(memory, name, 60);
        (void)fputc('\'', memory);
        (void)fclose(memory);
    }
    return out;
}

json_t *hearth_cli_sessions_json(const struct hearth_buf *text) {
    return text->len > 0 ? json_loadb((const char *)text->data, text->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                         : NULL;
}

json_t *hearth_cli_sessions_digest(struct hearth_digest digest) {
    char hex[33];
    hearth_digest_hex(digest, hex);
    return hearth_digest_is_zero(digest) ? json_null() : json_string(hex);
}

bool hearth_cli_sessions_read_digest(const char *hex, struct hearth_digest *out) {
    const bool good = hex && strlen(hex) == 32 && hex[strspn(hex, "0123456789abcdef")] == '\0';
    return good && sscanf(hex, "%16" SCNx64 "%16" SCNx64, &out->hi, &out->lo) == 2;
}

json_t *hearth_cli_sessions_about(const struct hearth_session *session) {
    return json_pack("{s:s, s:o, s:i, s:i, s:I, s:I, s:o*}", "name", session->name, "owner",
                     hearth_cli_sessions_digest(session->owner), "turns", (int)session->turns, "tokens",
                     (int)session->tokens, "created", (json_int_t)(session->created_us / 1000000), "used",
                     (json_int_t)(session->used_us / 1000000), "metadata",
                     hearth_cli_sessions_json(&session->metadata));
}

/* ---- finding sessions ---- */

static bool is_owned(const struct sessions *sessions, const struct hearth_session *session) {
    char hex[33];
    const char *prefix = sessions->options.owner;
    hearth_digest_hex(session->owner, hex);
    return !prefix || strncmp(hex, prefix, strlen(prefix)) == 0;
}

void hearth_cli_sessions_list_free(struct hearth_session *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        hearth_session_finish(&list[i]);
    }
    free(list);
}

bool hearth_cli_sessions_list(struct sessions *sessions, struct hearth_session **list, size_t *count) {
    const struct hearth_session_query query = {.all_owners = true, .expired = true};
    const int err = hearth_session_list(sessions->store, &query, list, count);
    if (err != HEARTH_OK) {
        (void)hearth_cli_sessions_complain(err, NULL, sessions->path);
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (is_owned(sessions, &(*list)[i])) {
            (*list)[kept++] = (*list)[i];
        } else {
            hearth_session_finish(&(*list)[i]);
        }
    }
    *count = kept;
    return true;
}

static int not_found(const char *name, const struct hearth_session *list, size_t count) {
    const char **names = calloc(count + 1, sizeof *names);
    for (size_t i = 0; names && i < count; i++) {
        names[i] = list[i].name;
    }
    const char *near = names ? hearth_show_nearest(name, names, count) : NULL;
    const int status = hearth_complain(1, "there is no session %s%s%s%s (see hearth sessions ls)",
                                       hearth_cli_sessions_name(name).text, near ? ", did you mean " : "",
                                       near ? hearth_cli_sessions_name(near).text : "", near ? "?" : "");
    free(names);
    return status;
}

bool hearth_cli_sessions_find(struct sessions *sessions, const char *name, struct hearth_session *out) {
    struct hearth_session *list;
    size_t count, found = 0, at = 0;
    *out = (struct hearth_session){0};
    if (!hearth_cli_sessions_list(sessions, &list, &count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) == 0) {
            found++;
            at = i;
        }
    }
    if (found == 0) {
        (void)not_found(name, list, count);
    } else if (found > 1) {
        (void)hearth_complain(1,
                              "%zu owners have a session %s: tell which with --owner (hearth sessions ls names them)",
                              found, hearth_cli_sessions_name(name).text);
    } else {
        *out = list[at];
        list[at] = (struct hearth_session){0};
    }
    hearth_cli_sessions_list_free(list, count);
    return found == 1;
}

bool hearth_cli_sessions_line(struct sessions *sessions, const struct hearth_session *session,
                              struct hearth_line *out) {
    *out = (struct hearth_line){0};
    if (hearth_digest_is_zero(session->head)) {
        return true;
    }
    const int err = hearth_line_get(sessions->store, session->owner, session->head, out);
    if (err != HEARTH_OK) {
        (void)hearth_cli_sessions_complain(err, NULL, hearth_cli_sessions_name(session->name).text);
    }
    return err == HEARTH_OK;
}
