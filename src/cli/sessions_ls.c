/* `hearth sessions ls` and `show`. The JSON objects are described in docs/sessions.md. */
#include "cli/sessions_internal.h"
#include "console/show_items.h"
#include "console/table.h"

#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 40
#define SEARCH_TURNS 20 /* that are read one by one, from the last one back, for something that a user said */

/* ---- ls ---- */

static char *words_of(const struct hearth_turn *turn) {
    json_t *body = hearth_cli_sessions_json(&turn->body);
    char *text = hearth_show_last_text(json_object_get(body, "input"), "user");
    json_decref(body);
    return text;
}

/* The same by way of the whole line, on which there are turns that were deleted, too. */
static char *last_words_of_line(struct sessions *sessions, const struct hearth_session *session) {
    struct hearth_line line;
    char *text = NULL;
    if (hearth_line_get(sessions->store, session->owner, session->head, &line) != HEARTH_OK) {
        return NULL; /* damaged, which show complains of */
    }
    for (size_t i = line.count; i-- > 0 && !text;) {
        text = words_of(&line.turns[i]);
    }
    hearth_line_finish(&line);
    return text;
}

/* What the user said last; NULL: nothing, or it cannot be read. The caller's to free. Most often the last turn has it,
 * so that not all of the conversation is read. */
static char *last_words(struct sessions *sessions, const struct hearth_session *session) {
    struct hearth_digest id = session->head;
    char *text = NULL;
    for (int i = 0; i < SEARCH_TURNS && !text && !hearth_digest_is_zero(id); i++) {
        struct hearth_turn turn = {0};
        if (hearth_turn_get(sessions->store, session->owner, id, &turn) != HEARTH_OK) {
            return last_words_of_line(sessions, session);
        }
        text = words_of(&turn);
        id = turn.parent;
        hearth_turn_finish(&turn);
    }
    return text || hearth_digest_is_zero(id) ? text : last_words_of_line(sessions, session);
}

static int ls_json(struct sessions *sessions, const struct hearth_session *list, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *one = hearth_cli_sessions_about(&list[i]);
        char *text = last_words(sessions, &list[i]);
        (void)json_object_set_new(one, "text", json_string(text ? text : ""));
        (void)json_array_append_new(array, one);
        free(text);
    }
    return hearth_show_json(json_pack("{s:s, s:o}", "db", sessions->path, "sessions", array));
}

static void add_row(struct hearth_show_table *table, const struct hearth_session *session) {
    char hex[33];
    hearth_digest_hex(session->owner, hex);
    hex[8] = '\0';
    hearth_show_table_add(table, (const char *[]){session->name, hearth_digest_is_zero(session->owner) ? "-" : hex,
                                                  hearth_show_count(session->turns).text,
                                                  session->tokens > 0 ? hearth_show_count(session->tokens).text : "-",
                                                  hearth_show_age(session->used_us).text});
}

static int print_rows(struct sessions *sessions, const struct hearth_session *list, size_t count) {
    struct hearth_show_column columns[] = {
        {"NAME", true, NAME_COLUMNS}, {NULL, true, 0}, {"TURNS", false, 0}, {"TOKENS", false, 0}, {"USED", false, 0}};
    struct hearth_show_table table;
    for (size_t i = 0; i < count; i++) {
        columns[1].title = hearth_digest_equal(list[i].owner, list[0].owner) ? columns[1].title : "OWNER";
    }
    hearth_show_table_init(&table, columns, sizeof columns / sizeof columns[0], "");
    for (size_t i = 0; i < count; i++) {
        add_row(&table, &list[i]);
    }
    (void)hearth_show_table_head(&table, "ASKED LAST");
    for (size_t i = 0; i < count && !table.nomem; i++) {
        char *text = last_words(sessions, &list[i]);
        (void)hearth_show_text(stdout, text ? text : "", hearth_show_table_row(&table, i));
        (void)fputc('\n', stdout);
        free(text);
    }
    return hearth_show_table_end(&table);
}

int hearth_cli_sessions_ls(struct sessions *sessions) {
    struct hearth_session *list;
    size_t count;
    int status = 0;
    if (!hearth_cli_sessions_list(sessions, &list, &count)) {
        return 1;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].expired == sessions->options.expired) {
            list[kept++] = list[i];
        } else {
            hearth_session_finish(&list[i]);
        }
    }
    count = kept;
    if (sessions->options.json) {
        status = ls_json(sessions, list, count);
    } else if (count == 0) {
        (void)printf("%s has no %ssessions\n", sessions->path, sessions->options.expired ? "expired " : "");
    } else {
        status = print_rows(sessions, list, count);
    }
    hearth_cli_sessions_list_free(list, count);
    return status;
}

/* ---- show ---- */

static void append_items(json_t *array, const struct hearth_turn *turn) {
    json_t *body = hearth_cli_sessions_json(&turn->body);
    (void)json_array_extend(array, json_object_get(body, "input"));
    (void)json_array_extend(array, json_object_get(body, "output"));
    json_decref(body);
}

static int show_json(const struct hearth_session *session, const struct hearth_line *line) {
    json_t *root = hearth_cli_sessions_about(session), *items = json_array();
    for (size_t i = 0; i < line->count; i++) {
        append_items(items, &line->turns[i]);
    }
    if (line->count > 0) {
        json_t *config = hearth_cli_sessions_json(&line->turns[line->count - 1].config);
        (void)json_object_set_new(root, "config", config ? config : json_null());
    }
    (void)json_object_set_new(root, "items", items);
    return hearth_show_json(root);
}

/* The system text and the tools that hold now. */
static void print_config(struct hearth_show_items *print, const struct hearth_turn *last) {
    json_t *config = hearth_cli_sessions_json(&last->config);
    const json_t *tools = json_object_get(config, "tools"), *tool;
    size_t i;
    hearth_show_items(print, json_object_get(config, "system"));
    if (json_array_size(tools) > 0) {
        (void)fputs("tools\n ", stdout);
        json_array_foreach(tools, i, tool) {
            const char *name = json_string_value(json_object_get(tool, "name"));
            name = name ? name : json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
            (void)fputc(' ', stdout);
            (void)hearth_show_text(stdout, name ? name : "?", 80);
        }
        (void)fputs("\n\n", stdout);
    }
    json_decref(config);
}

static void show_text(const struct hearth_session *session, const struct hearth_line *line) {
    struct hearth_show_items print = {.out = stdout};
    (void)hearth_show_text(stdout, session->name, 1000);
    (void)printf(": %s", hearth_show_number(session->turns, "turn", "turns").text);
    if (session->tokens > 0) {
        (void)printf(", %s tokens", hearth_show_count(session->tokens).text);
    }
    (void)printf(", last used %s ago\n\n", hearth_show_age(session->used_us).text);
    if (line->count > 0) {
        print_config(&print, &line->turns[line->count - 1]);
    }
    for (size_t i = 0; i < line->count; i++) {
        const struct hearth_turn *turn = &line->turns[i];
        json_t *items = json_array();
        append_items(items, turn);
        hearth_show_items(&print, items);
        if (turn->status != HEARTH_TURN_COMPLETED) {
            (void)printf("(%s)\n\n", hearth_turn_status_text(turn->status));
        }
        json_decref(items);
    }
    hearth_show_items_finish(&print);
}

int hearth_cli_sessions_show(struct sessions *sessions) {
    struct hearth_session session;
    struct hearth_line line;
    int status = 1;
    if (!hearth_cli_sessions_find(sessions, sessions->args[0], &session)) {
        return 1;
    }
    if (hearth_cli_sessions_line(sessions, &session, &line)) {
        status = 0;
        if (sessions->options.json) {
            status = show_json(&session, &line);
        } else {
            show_text(&session, &line);
        }
        hearth_line_finish(&line);
    }
    hearth_session_finish(&session);
    return status;
}
