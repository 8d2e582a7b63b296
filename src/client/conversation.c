/* A conversation with the server.
 *
 * In a session the server has the history, and only the new message is sent. Without a session the history is here,
 * and all of it is sent every time, as chat completions require. A stopped reply stays in this history as far as it
 * was received. A message without a reply does not stay, so that it can be sent again. In a session the server
 * decides what remains of a stopped reply. */
#include "client/client.h"

#include "base/clock.h"
#include "console/interrupt.h"
#include "console/show.h"
#include "console/show_items.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum client_outcome no_memory(void) {
    (void)hearth_complain(1, "out of memory");
    return CLIENT_FAILED;
}

/* A dim line on stderr. */
static void note(const char *text) {
    (void)fprintf(stderr, "%s", hearth_show_dim(stderr));
    (void)hearth_show_text(stderr, text, 100000);
    (void)fprintf(stderr, "%s\n", hearth_show_plain(stderr));
}

bool hearth_client_conversation_init(struct client_conversation *talk, const struct client_options *options,
                                     struct hearth_client *client, bool interactive) {
    *talk = (struct client_conversation){.options = options, .client = client, .interactive = interactive};
    talk->messages = json_array();
    return talk->messages != NULL;
}

void hearth_client_conversation_finish(struct client_conversation *talk) {
    free(talk->session);
    json_decref(talk->messages);
    *talk = (struct client_conversation){0};
}

/* ---- printing a reply ---- */

struct printer {
    enum client_text kind;
    bool interactive, terminal;
    bool fresh;       /* nothing stands on this line yet */
    bool any, unread; /* `unread`: standard output leads nowhere any more */
};

static void on_text(void *user, enum client_text kind, const char *text) {
    struct printer *printer = user;
    if (printer->unread || (kind == CLIENT_REASONING && !printer->terminal)) {
        return; /* a pipe gets the answer alone */
    }
    if (kind != printer->kind) {
        (void)fputs(kind == CLIENT_REASONING ? hearth_show_dim(stdout) : hearth_show_plain(stdout), stdout);
        (void)fputs(printer->any ? "\n\n" : "", stdout);
        printer->kind = kind;
        printer->fresh = true;
        while (printer->any && kind == CLIENT_CONTENT && *text == '\n') {
            text++; /* the empty line is there already */
        }
    }
    printer->any = true;
    if (printer->terminal) {
        hearth_show_lines(stdout, text, "", &printer->fresh);
    } else {
        (void)fputs(text, stdout);
        printer->fresh = *text ? text[strlen(text) - 1] == '\n' : printer->fresh;
    }
    (void)fflush(stdout);
    if (!printer->interactive && ferror(stdout) && hearth_interrupted) {
        clearerr(stdout); /* Ctrl-C came in the middle of a write */
    } else if (!printer->interactive && ferror(stdout)) {
        printer->unread = true;
        hearth_interrupted = 1; /* the request ends as by Ctrl-C */
        hearth_interrupt_wake();
    }
}

static void end_printing(struct printer *printer) {
    if (printer->kind == CLIENT_REASONING) {
        (void)fputs(hearth_show_plain(stdout), stdout);
    }
    if (printer->any && !printer->fresh) {
        (void)fputc('\n', stdout);
    }
    (void)fflush(stdout);
}

/* ---- a message and its reply ---- */

static bool add_message(json_t *messages, const char *role, const char *content) {
    return json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", content)) == 0;
}

/* What is sent; NULL: out of memory. */
static json_t *make_request(const struct client_conversation *talk, const char *text) {
    const struct client_options *options = talk->options;
    json_t *messages = talk->session ? json_array() : json_copy(talk->messages);
    const bool first = talk->session ? !talk->begun : json_array_size(messages) == 0;
    bool ok = !(first && options->system) || add_message(messages, "system", options->system);
    ok = ok && add_message(messages, "user", text);
    if (!ok) {
        json_decref(messages);
        return NULL;
    }
    return json_pack("{s:o, s:b, s:{s:b}, s:s*, s:o*, s:s*}", "messages", messages, "stream", 1, "stream_options",
                     "include_usage", 1, "model", options->model, "max_tokens",
                     options->max_tokens < 0 ? NULL : json_integer(options->max_tokens), "session_id", talk->session);
}

static bool on_bytes(void *user, const char *bytes, size_t len) {
    return hearth_client_reply_feed(user, bytes, len);
}

/* The local history grows by what was sent and what came back. */
static bool remember(struct client_conversation *talk, const json_t *request, const struct client_reply *reply) {
    const char *content = reply->content.len > 0 ? (const char *)reply->content.data : "";
    const char *thoughts = reply->reasoning.len > 0 ? (const char *)reply->reasoning.data : NULL;
    json_t *messages = json_copy(json_object_get(request, "messages")), *before = talk->messages;
    const bool ok = json_array_append_new(messages, json_pack("{s:s, s:s, s:s*}", "role", "assistant", "content",
                                                              content, "reasoning_content", thoughts)) == 0;
    talk->messages = ok ? messages : before;
    json_decref(ok ? before : messages);
    return ok;
}

/* An older server takes session_id for one of the fields that mean nothing, and forgets what was said. */
static void warn_without_session(struct client_conversation *talk, const struct client_reply *reply) {
    if (talk->session && reply->receipt && !json_object_get(reply->receipt, "session") && !talk->warned) {
        talk->warned = true;
        (void)hearth_complain(1, "this server keeps no sessions: it does not know what was said before");
    }
}

/* How a reply that came in ended. */
static enum client_outcome conclude(struct client_conversation *talk, const json_t *request,
                                    const struct client_reply *reply, enum client_outcome outcome, int64_t begun_us) {
    struct hearth_buf status = {0};
    const bool any = reply->content.len + reply->reasoning.len > 0;
    if (outcome == CLIENT_STOPPED) {
        if (talk->interactive || !ferror(stdout)) {
            note("stopped");
        }
    } else if (outcome == CLIENT_DONE && reply->error.len > 0) {
        outcome = CLIENT_FAILED;
        (void)hearth_complain(1, "%s", (const char *)reply->error.data);
    } else if (outcome == CLIENT_DONE && !reply->done) {
        outcome = CLIENT_FAILED;
        (void)hearth_complain(1, "the server closed the connection in the middle of the reply");
    } else if (outcome == CLIENT_DONE) {
        talk->begun = true;
        if (!hearth_client_reply_status(reply, begun_us, talk->session, &status)) {
            outcome = no_memory();
        } else if (status.len > 0) {
            note((const char *)status.data);
        }
        warn_without_session(talk, reply);
    }
    if (!talk->session && (any || outcome == CLIENT_DONE) && !remember(talk, request, reply)) {
        outcome = no_memory();
    }
    hearth_buf_finish(&status);
    return outcome;
}

enum client_outcome hearth_client_conversation_say(struct client_conversation *talk, const char *text) {
    struct printer printer = {.kind = CLIENT_CONTENT,
                              .interactive = talk->interactive,
                              .terminal = isatty(STDOUT_FILENO) == 1,
                              .fresh = true};
    struct client_reply reply = {.on_text = on_text, .user = &printer};
    struct hearth_buf other = {0};
    json_t *request = make_request(talk, text);
    const int64_t begun_us = hearth_clock_us();
    long status;
    if (!request) {
        return no_memory();
    }
    enum client_outcome outcome =
        hearth_client_request(talk->client, "/v1/chat/completions", request, on_bytes, &reply, &other, &status);
    end_printing(&printer);
    if (outcome == CLIENT_DONE && status != 200) {
        outcome = CLIENT_FAILED;
        (void)hearth_client_complain(&other, status, " (--key or HEARTH_API_KEY gives one)");
    } else {
        outcome = conclude(talk, request, &reply, outcome, begun_us);
    }
    json_decref(request);
    hearth_buf_finish(&other);
    hearth_client_reply_finish(&reply);
    return outcome;
}

/* ---- sessions ---- */

/* Takes a name. False: out of memory. */
static bool set_session(struct client_conversation *talk, const char *name, bool begun) {
    char *copy = strdup(name);
    if (copy) {
        free(talk->session);
        talk->session = copy;
        talk->begun = begun;
        (void)json_array_clear(talk->messages);
    }
    return copy != NULL;
}

static void note_session(const struct client_conversation *talk, const json_t *session) {
    struct hearth_buf text = {0};
    const json_int_t turns = json_integer_value(json_object_get(session, "turns"));
    const json_int_t tokens = json_integer_value(json_object_get(session, "tokens"));
    bool ok = hearth_buf_printf(&text, "session %s", talk->session);
    if (!talk->begun) {
        ok = ok && hearth_buf_text(&text, ", new");
    } else {
        ok = ok && hearth_buf_printf(&text, ": %s", hearth_show_number((uint64_t)turns, "turn", "turns").text) &&
             (tokens <= 0 || hearth_buf_printf(&text, ", %s tokens", hearth_show_count((uint64_t)tokens).text));
    }
    if (ok) {
        note((const char *)text.data);
    }
    hearth_buf_finish(&text);
}

enum client_outcome hearth_client_conversation_enter(struct client_conversation *talk, const char *name, bool ask) {
    bool missing = true;
    json_t *session = NULL;
    enum client_outcome outcome = CLIENT_DONE;
    if (ask) {
        char *path = hearth_client_path("/v1/sessions/", name, "");
        outcome = path ? hearth_client_json(talk->client, path, NULL, &session, &missing) : no_memory();
        free(path);
    }
    if (outcome == CLIENT_DONE) {
        const bool begun = !missing && json_integer_value(json_object_get(session, "turns")) > 0;
        if (!set_session(talk, name, begun)) {
            outcome = no_memory();
        } else if (talk->interactive) {
            note_session(talk, session);
        }
    }
    json_decref(session);
    return outcome;
}

enum client_outcome hearth_client_conversation_greet(struct client_conversation *talk) {
    json_t *models = NULL;
    struct hearth_buf text = {0};
    enum client_outcome outcome = hearth_client_json(talk->client, "/v1/models", NULL, &models, NULL);
    const json_t *model = json_array_get(json_object_get(models, "data"), 0);
    const char *name = talk->options->model ? talk->options->model : json_string_value(json_object_get(model, "id"));
    if (outcome == CLIENT_DONE && hearth_buf_printf(&text, "%s at %s · /help lists the commands",
                                                    name ? name : "a model", hearth_client_url(talk->client))) {
        note((const char *)text.data);
    }
    json_decref(models);
    hearth_buf_finish(&text);
    return outcome;
}

static enum client_outcome fork_session(struct client_conversation *talk, const char *name) {
    if (!talk->session) {
        (void)hearth_complain(1, "there is no session to fork: /session NAME begins one");
        return CLIENT_FAILED;
    }
    json_t *session = NULL, *body = json_pack("{s:s}", "name", name);
    char *path = hearth_client_path("/v1/sessions/", talk->session, "/fork");
    enum client_outcome outcome =
        path && body ? hearth_client_json(talk->client, path, body, &session, NULL) : no_memory();
    if (outcome == CLIENT_DONE) {
        outcome = hearth_client_conversation_enter(talk, name, true);
    }
    json_decref(session);
    json_decref(body);
    free(path);
    return outcome;
}

/* ---- /history ---- */

/* A page of the session's items behind `*after`, which becomes the last one's id, or NULL: there are no more. */
static enum client_outcome print_page(struct client_conversation *talk, struct hearth_show_items *print, char **after) {
    json_t *page = NULL;
    bool missing = false;
    char *query = *after ? hearth_client_path("/items?order=asc&limit=100&after=", *after, "")
                         : strdup("/items?order=asc&limit=100");
    char *path = query ? hearth_client_path("/v1/conversations/", talk->session, query) : NULL;
    enum client_outcome outcome = path ? hearth_client_json(talk->client, path, NULL, &page, &missing) : no_memory();
    free(*after);
    *after = NULL;
    if (outcome == CLIENT_DONE && !missing) {
        const char *last = json_string_value(json_object_get(page, "last_id"));
        hearth_show_items(print, json_object_get(page, "data"));
        if (json_is_true(json_object_get(page, "has_more")) && last) {
            *after = strdup(last);
        }
    }
    json_decref(page);
    free(query);
    free(path);
    return outcome;
}

static enum client_outcome print_history(struct client_conversation *talk) {
    struct hearth_show_items print = {.out = stdout};
    enum client_outcome outcome = CLIENT_DONE;
    char *after = NULL;
    if (!talk->session) {
        hearth_show_items(&print, talk->messages);
    } else {
        do {
            outcome = print_page(talk, &print, &after);
        } while (outcome == CLIENT_DONE && after);
    }
    (void)fflush(stdout);
    free(after);
    hearth_show_items_finish(&print);
    return outcome;
}

/* ---- commands ---- */

static enum client_outcome new_conversation(struct client_conversation *talk) {
    free(talk->session);
    talk->session = NULL;
    (void)json_array_clear(talk->messages);
    note("a new conversation, without a session");
    return CLIENT_DONE;
}

static const struct {
    const char *name, *argument, *help;
} commands[] = {
    {"/new", "", "begin a new conversation (a session stays as it is)"},
    {"/session", "NAME", "go on in a session, or begin it; without NAME: which one this is"},
    {"/fork", "NAME", "go on in a copy of this session; this one stays as it is"},
    {"/history", "", "what was said"},
    {"/help", "", "this text"},
    {"/quit", "", "leave, as Ctrl-D does"},
};
enum { NEW, SESSION, FORK, HISTORY, HELP, QUIT, COMMANDS };

static enum client_outcome print_commands(void) {
    for (size_t i = 0; i < COMMANDS; i++) {
        (void)printf("  %-9s %-5s %s\n", commands[i].name, commands[i].argument, commands[i].help);
    }
    (void)printf("\nCtrl-C stops a reply. A line that ends with \\ goes on in the next one; // begins a message that "
                 "begins with /.\n");
    (void)fflush(stdout);
    return CLIENT_DONE;
}

static enum client_outcome run_command(struct client_conversation *talk, int which, const char *argument, bool *quit) {
    switch (which) {
    case NEW: return new_conversation(talk);
    case SESSION:
        if (*argument) {
            return hearth_client_conversation_enter(talk, argument, true);
        }
        note(talk->session ? talk->session : "no session: the history is kept here");
        return CLIENT_DONE;
    case FORK: return fork_session(talk, argument);
    case HISTORY: return print_history(talk);
    case QUIT: *quit = true; return CLIENT_DONE;
    default: return print_commands();
    }
}

enum client_outcome hearth_client_conversation_command(struct client_conversation *talk, const char *line, bool *quit) {
    const size_t len = strcspn(line, " \t\n");
    char argument[1024];
    const char *begin = line + len + strspn(line + len, " \t\n");
    size_t n = strlen(begin);
    while (n > 0 && strchr(" \t\n", begin[n - 1])) {
        n--;
    }
    (void)snprintf(argument, sizeof argument, "%.*s", (int)(n < sizeof argument ? n : sizeof argument - 1), begin);
    for (int i = 0; i < COMMANDS; i++) {
        if (strlen(commands[i].name) != len || strncmp(commands[i].name, line, len) != 0) {
            continue;
        }
        if ((*argument != '\0') != (*commands[i].argument != '\0') && !(i == SESSION && !*argument)) {
            (void)hearth_complain(1, "%s %s", commands[i].name,
                                  *commands[i].argument ? "needs a name" : "takes nothing behind it");
            return CLIENT_FAILED;
        }
        return run_command(talk, i, argument, quit);
    }
    (void)hearth_complain(1, "there is no command %.*s (/help lists them; // begins a message that begins with /)",
                          (int)(len < 60 ? len : 60), line);
    return CLIENT_FAILED;
}
