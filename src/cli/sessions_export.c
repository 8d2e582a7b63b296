/* `hearth sessions export` and `import`: a session in one JSON document (described in docs/sessions.md).
 *
 *     {"format": "hearth session", "version": 1, "session": {…}, "configs": […], "turns": [one in a line, oldest
 * first]}
 *
 * A turn has its items, and the tokens that they were for a model, so that a machine with the same model goes on from
 * exactly these. Neither owner nor salt is in it: they are digests of API keys. State (kv export) is not in it either.
 *
 * Import believes nothing. Turns get new ids, and whatever names them within the bodies is changed with them; what was
 * still running has failed. It is a new session, whole or not at all: what was put is deleted when something goes
 * wrong. */
#include "cli/sessions_internal.h"
#include "console/transfer.h"
#include "session/archive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "hearth session"
#define VERSION 1
#define FILE_BYTES_MAX ((size_t)1 << 30)
#define ID_DIGITS 32

/* ---- export ---- */

struct session_export {
    struct sessions *sessions;
    const struct hearth_session *session;
    struct hearth_line line;
    json_t *configs; /* texts of the ones that were met, in their order */
    json_t *places;  /* their ids: index */
};

/* The index of a turn's config among the configs, or null. Only the last turn of a line comes with its config; a
 * deleted one's cannot be read. */
static json_t *place_config(struct session_export *export, const struct hearth_turn *turn) {
    char hex[ID_DIGITS + 1];
    hearth_digest_hex(turn->config_id, hex);
    json_t *known = json_object_get(export->places, hex);
    struct hearth_turn whole = {0};
    if (known || hearth_digest_is_zero(turn->config_id)) {
        return known ? json_incref(known) : json_null();
    }
    json_t *config = hearth_cli_sessions_json(&turn->config);
    if (!config && hearth_turn_get(export->sessions->store, export->session->owner, turn->id, &whole) == HEARTH_OK) {
        config = hearth_cli_sessions_json(&whole.config);
        hearth_turn_finish(&whole);
    }
    if (!config) {
        return json_null();
    }
    json_t *place = json_integer((json_int_t)json_array_size(export->configs));
    (void)json_array_append_new(export->configs, config);
    (void)json_object_set(export->places, hex, place);
    return place;
}

static json_t *tokens_json(const struct hearth_tokens *tokens) {
    json_t *array = json_array();
    for (size_t i = 0; i < tokens->n; i++) {
        (void)json_array_append_new(array, json_integer(tokens->v[i]));
    }
    return array;
}

/* NULL after a complaint. */
static json_t *turn_json(struct session_export *export, const struct hearth_turn *turn) {
    json_t *body = hearth_cli_sessions_json(&turn->body);
    if (!body) {
        (void)hearth_complain(1, "a turn of %s is damaged", hearth_cli_sessions_name(export->session->name).text);
        return NULL;
    }
    json_t *one = json_pack("{s:o, s:s, s:I, s:o, s:o}", "id", hearth_cli_sessions_digest(turn->id), "status",
                            hearth_turn_status_text(turn->status), "created_us", (json_int_t)turn->created_us, "config",
                            place_config(export, turn), "body", body);
    if (one && !hearth_digest_is_zero(turn->model) && turn->tokens.n > 0) {
        (void)json_object_set_new(one, "model", hearth_cli_sessions_digest(turn->model));
        (void)json_object_set_new(one, "base_tokens", json_integer(turn->base_tokens));
        (void)json_object_set_new(one, "tokens", tokens_json(&turn->tokens));
    }
    return one;
}

/* As the server writes JSON: a config is known by its text. */
#define DUMP (JSON_COMPACT | JSON_REAL_PRECISION(10))

/* Appends and frees. */
static bool append_json(struct hearth_buf *out, json_t *value) {
    char *text = value ? json_dumps(value, DUMP | JSON_ENCODE_ANY) : NULL;
    const bool ok = text && hearth_buf_text(out, text);
    free(text);
    json_decref(value);
    return ok;
}

/* False after a complaint. */
static bool export_text(struct session_export *export, struct hearth_buf *out) {
    struct hearth_buf turns = {0};
    bool ok = true;
    for (size_t i = 0; i < export->line.count && ok; i++) {
        json_t *turn = turn_json(export, &export->line.turns[i]);
        if (!turn) {
            hearth_buf_finish(&turns);
            return false;
        }
        ok = hearth_buf_text(&turns, i == 0 ? "\n" : ",\n") && append_json(&turns, turn);
    }
    json_t *metadata = hearth_cli_sessions_json(&export->session->metadata);
    json_t *about = json_pack("{s:s, s:I, s:o*}", "name", export->session->name, "created_us",
                              (json_int_t) export->session->created_us, "metadata", metadata);
    ok = ok && hearth_buf_printf(out, "{\"format\": \"" FORMAT "\", \"version\": %d,\n\"session\": ", VERSION);
    ok = append_json(out, about) && ok;
    ok = ok && hearth_buf_text(out, ",\n\"configs\": ") && append_json(out, json_incref(export->configs));
    ok = ok && hearth_buf_text(out, ",\n\"turns\": [") && hearth_buf_append(out, turns.data, turns.len) &&
         hearth_buf_text(out, "\n]}\n");
    hearth_buf_finish(&turns);
    if (!ok) {
        (void)hearth_complain(1, "out of memory");
    }
    return ok;
}

static int export_to(struct session_export *export, const char *path) {
    struct hearth_buf text = {0};
    struct hearth_transfer_out file;
    int status = 1;
    if (export_text(export, &text) && hearth_transfer_create(path, &file) == 0) {
        status = hearth_transfer_write(file.fd, text.data, text.len)
                     ? 0
                     : hearth_complain(1, "cannot write %s: %s", path, strerror(errno));
        status = hearth_transfer_finish(&file, status);
    }
    hearth_buf_finish(&text);
    return status;
}

int hearth_cli_sessions_export(struct sessions *sessions) {
    struct hearth_session session;
    const char *path = sessions->arg_count > 1 ? sessions->args[1] : "-";
    int status = 1;
    if (!hearth_cli_sessions_find(sessions, sessions->args[0], &session)) {
        return 1;
    }
    struct session_export export = {
        .sessions = sessions, .session = &session, .configs = json_array(), .places = json_object()};
    if (hearth_cli_sessions_line(sessions, &session, &export.line)) {
        status = export_to(&export, path);
        if (status == 0) {
            (void)fprintf(hearth_transfer_is_stream(path) ? stderr : stdout, "exported %s with %s\n",
                          hearth_cli_sessions_name(session.name).text,
                          hearth_show_number(export.line.count, "turn", "turns").text);
        }
        hearth_line_finish(&export.line);
    }
    json_decref(export.configs);
    json_decref(export.places);
    hearth_session_finish(&session);
    return status;
}

/* ---- import: reading ---- */

struct session_import {
    struct sessions *sessions;
    const char *path;
    json_t *root;
    const json_t *turns, *configs;
    json_t *ids; /* of the file: new ones */
    const char *name;
    struct hearth_digest owner;
};

static int wrong(const struct session_import *import, const char *what) {
    return hearth_complain(1, "%s: %s", import->path, what);
}

/* False after a complaint. */
static bool read_file(const struct session_import *import, struct hearth_buf *out) {
    struct hearth_transfer_in file;
    if (hearth_transfer_open(import->path, &file) != 0) {
        return false;
    }
    const bool ok = hearth_transfer_append(&file, out, FILE_BYTES_MAX, true);
    if (!ok) {
        (void)hearth_complain(1, "cannot read %s: %s", import->path, errno == EFBIG ? "too long" : strerror(errno));
    }
    hearth_transfer_close(&file);
    return ok;
}

/* Checks the document's frame. A status. */
static int read_document(struct session_import *import) {
    struct hearth_buf text = {0};
    int status = 1;
    if (read_file(import, &text)) {
        import->root = text.len > 0 ? json_loadb((const char *)text.data, text.len, JSON_ALLOW_NUL, NULL) : NULL;
        const char *format = json_string_value(json_object_get(import->root, "format"));
        const json_int_t version = json_integer_value(json_object_get(import->root, "version"));
        const char *name = json_string_value(json_object_get(json_object_get(import->root, "session"), "name"));
        import->turns = json_object_get(import->root, "turns");
        import->configs = json_object_get(import->root, "configs");
        import->name = import->sessions->options.as ? import->sessions->options.as : name;
        if (!format || strcmp(format, FORMAT) != 0) {
            status = wrong(import, "not an exported session");
        } else if (version != VERSION) {
            status = wrong(import, "written by another version of hearth");
        } else if (!import->name || !json_is_array(import->turns)) {
            status = wrong(import, "the session has no name, or no turns");
        } else {
            status = 0;
        }
    }
    hearth_buf_finish(&text);
    return status;
}

/* A new id for each turn of the file. */
static int make_ids(struct session_import *import) {
    const json_t *turn;
    size_t i;
    json_array_foreach(import->turns, i, turn) {
        const char *old = json_string_value(json_object_get(turn, "id"));
        struct hearth_digest digest;
        if (!hearth_cli_sessions_read_digest(old, &digest) || json_object_get(import->ids, old)) {
            return wrong(import, "a turn has no id, or another one's");
        }
        (void)json_object_set_new(import->ids, old, hearth_cli_sessions_digest(hearth_turn_new_id()));
    }
    return 0;
}

/* ---- ids within bodies: "resp_" and the like with a turn's id in it ---- */

static void change_ids(const struct session_import *import, json_t *string) {
    char *text = strdup(json_string_value(string)), old[ID_DIGITS + 1];
    bool changed = false;
    for (char *at = text; at && strlen(at) >= ID_DIGITS; at++) {
        if (strspn(at, "0123456789abcdef") < ID_DIGITS) {
            continue;
        }
        memcpy(old, at, ID_DIGITS);
        old[ID_DIGITS] = '\0';
        const char *new = json_string_value(json_object_get(import->ids, old));
        if (new) {
            memcpy(at, new, ID_DIGITS);
            at += ID_DIGITS - 1;
            changed = true;
        }
    }
    if (changed) {
        (void)json_string_set(string, text);
    }
    free(text);
}

/* In all members that are named "id" or "…_id": nowhere else, so that text stays what was said. Jansson's limit on the
 * depth of what it reads is the limit of this recursion. */
static void change_ids_below(const struct session_import *import, json_t *value) {
    const char *name;
    json_t *member;
    size_t i;
    if (json_is_array(value)) {
        json_array_foreach(value, i, member) {
            change_ids_below(import, member);
        }
    }
    json_object_foreach(value, name, member) {
        const size_t len = strlen(name);
        if (json_is_string(member) && (strcmp(name, "id") == 0 || (len > 3 && strcmp(name + len - 3, "_id") == 0))) {
            change_ids(import, member);
        } else {
            change_ids_below(import, member);
        }
    }
}

/* ---- import: writing ---- */

static bool read_status(const char *text, enum hearth_turn_status *out) {
    enum hearth_turn_status status = 0;
    while (text && status <= HEARTH_TURN_CANCELLED && strcmp(text, hearth_turn_status_text(status)) != 0) {
        status++;
    }
    *out = status == HEARTH_TURN_QUEUED || status == HEARTH_TURN_IN_PROGRESS ? HEARTH_TURN_FAILED : status;
    return text && status <= HEARTH_TURN_CANCELLED;
}

/* Tokens are taken if they are all there; without them the turn is rendered when it is used. False: they are no
 * tokens. */
static bool read_tokens(const json_t *value, struct hearth_turn *turn) {
    const json_t *tokens = json_object_get(value, "tokens"), *token;
    const json_int_t base = json_integer_value(json_object_get(value, "base_tokens"));
    size_t i;
    if (!tokens) {
        return true;
    }
    if (!json_is_array(tokens) || base < 0 || base > INT32_MAX || json_array_size(tokens) > INT32_MAX ||
        !hearth_cli_sessions_read_digest(json_string_value(json_object_get(value, "model")), &turn->model)) {
        return false;
    }
    turn->base_tokens = (uint32_t)base;
    json_array_foreach(tokens, i, token) {
        const json_int_t number = json_integer_value(token);
        if (!json_is_integer(token) || number < 0 || number > INT32_MAX ||
            !hearth_tokens_push(&turn->tokens, (hearth_token)number)) {
            return false;
        }
    }
    return true;
}

/* Fills in a turn from its object. What is wrong with it, or NULL. */
static const char *read_turn(struct session_import *import, json_t *value, struct hearth_turn *turn) {
    const char *id = json_string_value(json_object_get(import->ids, json_string_value(json_object_get(value, "id"))));
    json_t *body = json_object_get(value, "body"), *place = json_object_get(value, "config");
    const json_int_t created_us = json_integer_value(json_object_get(value, "created_us"));
    turn->created_us = created_us > 0 ? created_us : 0;
    (void)hearth_cli_sessions_read_digest(id, &turn->id);
    if (!read_status(json_string_value(json_object_get(value, "status")), &turn->status)) {
        return "a turn has no status that is known";
    }
    if (!json_is_array(json_object_get(body, "input")) || !json_is_array(json_object_get(body, "output"))) {
        return "a turn has no items";
    }
    change_ids_below(import, body);
    if (!append_json(&turn->body, json_incref(body))) {
        return "out of memory";
    }
    if (json_is_integer(place)) {
        json_t *config = json_array_get(import->configs, (size_t)json_integer_value(place));
        if (!config || !append_json(&turn->config, json_incref(config))) {
            return "a turn's config is not there";
        }
    }
    return read_tokens(value, turn) ? NULL : "a turn's tokens are none";
}

/* The tokens up to and with a turn, and how many turns of the file they are of. */
struct import_path {
    struct hearth_tokens tokens;
    struct hearth_digest model;
    size_t turns;
};

/* Goes on to the turn at `index`, and names its path if its tokens are known. False: out of memory. */
static bool follow(struct session_import *import, struct import_path *path, struct hearth_turn *turn, size_t index) {
    const bool follows =
        path->turns == index && turn->base_tokens <= path->tokens.n && hearth_digest_equal(path->model, turn->model);
    if (hearth_digest_is_zero(turn->model) || (turn->base_tokens > 0 && !follows)) {
        return true;
    }
    path->tokens.n = turn->base_tokens;
    if (!hearth_tokens_append(&path->tokens, turn->tokens.v, turn->tokens.n)) {
        return false;
    }
    path->model = turn->model;
    path->turns = index + 1;
    turn->path = hearth_turn_path_id(import->sessions->store, turn->model, turn->salt, path->tokens.v, path->tokens.n);
    return true;
}

static int put_turns(struct session_import *import, struct hearth_digest *head) {
    struct hearth_errmsg msg = {""};
    struct import_path path = {0};
    json_t *value;
    size_t i;
    int status = 0;
    json_array_foreach(import->turns, i, value) {
        char *name = strdup(import->name);
        struct hearth_turn turn = {.owner = import->owner, .parent = *head, .salt = import->owner, .session = name};
        const char *what = name ? read_turn(import, value, &turn) : "out of memory";
        what = what || follow(import, &path, &turn, i) ? what : "out of memory";
        const int err = what ? HEARTH_ERR_INVALID : hearth_turn_put(import->sessions->store, &turn, &msg);
        if (what) {
            status = wrong(import, what);
        } else if (err != HEARTH_OK) {
            status = hearth_cli_sessions_complain(err, &msg, import->sessions->path);
        }
        *head = turn.id;
        hearth_turn_finish(&turn);
        if (status != 0) {
            break;
        }
    }
    hearth_tokens_finish(&path.tokens);
    return status;
}

static int put_session(struct session_import *import) {
    struct hearth_buf metadata = {0};
    struct hearth_digest head = {0, 0};
    const json_t *about = json_object_get(import->root, "session");
    json_t *given = json_object_get(about, "metadata");
    const json_int_t created_us = json_integer_value(json_object_get(about, "created_us"));
    if (given && !json_is_null(given) && !append_json(&metadata, json_incref(given))) {
        return hearth_complain(1, "out of memory");
    }
    struct hearth_session session = {.name = strdup(import->name),
                                     .owner = import->owner,
                                     .metadata = metadata,
                                     .created_us = created_us > 0 ? created_us : 0};
    int status = session.name ? hearth_cli_sessions_add(import->sessions, &session, " (--as gives it another name)")
                              : hearth_complain(1, "out of memory");
    if (status == 0 && (status = put_turns(import, &head)) != 0) {
        (void)hearth_session_delete(import->sessions->store, import->owner, import->name);
    }
    hearth_session_finish(&session);
    return status;
}

/* ---- import: transcripts ---- */

static struct hearth_archive *open_archive(const struct sessions *sessions, const char *path) {
    const struct hearth_archive_params params = {.path = path, .seal = sessions->seal, .limit_bytes = UINT64_MAX};
    struct hearth_archive *archive = NULL;
    (void)hearth_archive_create(&params, &archive);
    return archive;
}

/* The transcripts beside a server's state (--kv-dir), into the database that boxes share. */
static int import_transcripts(struct sessions *sessions) {
    if (!sessions->url) {
        return hearth_complain(1, "%s: transcripts go to the database that boxes share: --db postgresql://…",
                               sessions->args[0]);
    }
    struct hearth_archive *from = open_archive(sessions, sessions->args[0]),
                          *to = open_archive(sessions, sessions->url);
    uint64_t count = 0;
    const int err = from && to ? hearth_archive_copy(from, to, &count) : HEARTH_ERR_NOMEM;
    hearth_archive_destroy(from);
    hearth_archive_destroy(to);
    if (err != HEARTH_OK) {
        return hearth_complain(1, "%s: %s", sessions->path, hearth_err_text(err));
    }
    if (sessions->options.json) {
        return hearth_show_json(json_pack("{s:I}", "transcripts", (json_int_t)count));
    }
    (void)printf("imported %s\n", hearth_show_number(count, "row of transcripts", "rows of transcripts").text);
    return 0;
}

int hearth_cli_sessions_import(struct sessions *sessions) {
    if (strcmp(sessions->args[0], "-") != 0 && hearth_archive_is(sessions->args[0])) {
        return import_transcripts(sessions);
    }
    struct session_import import = {.sessions = sessions, .path = sessions->args[0], .ids = json_object()};
    (void)hearth_cli_sessions_read_digest(sessions->options.owner, &import.owner);
    int status = read_document(&import);
    status = status == 0 ? make_ids(&import) : status;
    status = status == 0 ? put_session(&import) : status;
    const size_t turns = json_array_size(import.turns);
    if (status == 0 && sessions->options.json) {
        status = hearth_show_json(json_pack("{s:s, s:I}", "name", import.name, "turns", (json_int_t)turns));
    } else if (status == 0) {
        (void)printf("imported %s with %s\n", hearth_cli_sessions_name(import.name).text,
                     hearth_show_number(turns, "turn", "turns").text);
    }
    json_decref(import.root);
    json_decref(import.ids);
    return status;
}
