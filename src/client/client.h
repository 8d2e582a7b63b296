/* What the files of `hearth chat`, `top`, `why` and `record` share. They use the server's HTTP API only, as any client
 * does.
 *
 *     chat.c          hearth chat: the command line, and what is typed
 *     conversation.c  a conversation: what is sent, and its commands
 *     client.c        requests, by libcurl
 *     reply.c         a streamed reply, as it comes in
 *     top.h           hearth top
 *     why.c           hearth why: the server's verdicts, in sentences
 *     record.c        hearth record: a trace of the requests to a server */
#ifndef HEARTH_CLIENT_CLIENT_H
#define HEARTH_CLIENT_CLIENT_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The server of a command: the first member of its options. NULL: not given. */
struct client_server {
    const char *url, *cacert, *key;
};

#define CLIENT_DEFAULT_URL "http://127.0.0.1:8080"

/* The rows of these in a command's table of options. */
#define CLIENT_SERVER_OPTIONS(key_option, key_help)                                                  \
    {"--url",                                                                                        \
     "URL",                                                                                          \
     "the server [HEARTH_URL, or " CLIENT_DEFAULT_URL "]; unix:PATH: a socket",                      \
     1,                                                                                              \
     HEARTH_CONSOLE_TEXT,                                                                            \
     offsetof(struct client_server, url)},                                                           \
        {"--cacert",                                                                                 \
         "FILE",                                                                                     \
         "whose certificates to trust, PEM [HEARTH_CACERT, or the system's]",                        \
         1,                                                                                          \
         HEARTH_CONSOLE_TEXT,                                                                        \
         offsetof(struct client_server, cacert)},                                                    \
    {                                                                                                \
        (key_option), "KEY", (key_help), 1, HEARTH_CONSOLE_TEXT, offsetof(struct client_server, key) \
    }

struct client_options {
    struct client_server server;
    const char *session, *model, *system;
    int64_t max_tokens; /* -1: not given */
};

/* ---- a reply as it comes in (reply.c): no terminal, no network ---- */

enum client_text { CLIENT_CONTENT, CLIENT_REASONING };

struct client_reply {
    struct hearth_buf line, data; /* of the event that is coming in */
    struct hearth_buf content, reasoning;
    struct hearth_buf error; /* what the server says that is wrong */
    char finish[24];
    json_t *receipt, *timings;
    int64_t first_us; /* hearth_clock_us() of the first text; 0: none came */
    bool done;        /* the stream came to its end */
    void (*on_text)(void *user, enum client_text kind, const char *text);
    void *user;
};

void hearth_client_reply_finish(struct client_reply *reply);
/* Takes bytes of the stream. False: out of memory, or a line that no server writes. */
bool hearth_client_reply_feed(struct client_reply *reply, const char *bytes, size_t len);
/* Appends "reused 1,234 · computed 56 · …", as far as it is known. `begun_us`: when the request was sent; `session` may
 * be NULL. */
bool hearth_client_reply_status(const struct client_reply *reply, int64_t begun_us, const char *session,
                                struct hearth_buf *out);
/* Appends the message of a JSON error, or what else a server sent with that status. */
bool hearth_client_error_text(const char *body, size_t len, long http_status, struct hearth_buf *out);

/* ---- requests (client.c) ---- */

struct hearth_client;

/* "02:11:03" of a server's "2026-11-25T02:11:03.000Z" and so many milliseconds later, on this machine's clock. */
const char *hearth_client_local_time(const char *at, double later_ms, char out[16]);

enum client_outcome {
    CLIENT_DONE,
    CLIENT_STOPPED, /* by Ctrl-C, or as hearth_client_limit() says */
    CLIENT_FAILED,  /* one line on stderr has told the cause */
};

/* A client of the server that the options name, or else the environment (HEARTH_URL, HEARTH_CACERT, HEARTH_API_KEY: of
 * several keys the first one), or else the default; the URL has "/v1" at its end or not. From now on Ctrl-C ends
 * requests. `key_option`: the name of the option that gives the key. Texts are borrowed. Returns an exit status after a
 * complaint, else 0. */
int hearth_client_create(const struct client_server *server, const char *key_option, struct hearth_client **out);
void hearth_client_destroy(struct hearth_client *client);
const char *hearth_client_url(const struct hearth_client *client);
/* From now on a request ends as STOPPED also when there is input on `fd` (-1: none), and fails when it takes
 * `timeout_s` (0: never). */
void hearth_client_limit(struct hearth_client *client, int fd, long timeout_s);

/* POST, or GET when `body` is NULL. The bytes of a response with status 200 go to `sink`, those of others to `out`;
 * with no sink all do. A status other than 200 is no failure here. */
enum client_outcome hearth_client_request(struct hearth_client *client, const char *path, const json_t *body,
                                          bool (*sink)(void *user, const char *bytes, size_t len), void *user,
                                          struct hearth_buf *out, long *http_status);
/* The same for a JSON document. *out: the caller's reference; NULL unless the status is 200 or 201. With `missing` a
 * 404 is no failure and sets it; other statuses are complained of. */
enum client_outcome hearth_client_json(struct hearth_client *client, const char *path, const json_t *body, json_t **out,
                                       bool *missing);
/* Complains of an answer with another status than 200, in the server's words; `key_hint` stands behind them if a key is
 * missing. Returns 1. */
int hearth_client_complain(const struct hearth_buf *answer, long http_status, const char *key_hint);
/* Appends text as a segment of a path. */
bool hearth_client_escape(struct hearth_buf *out, const char *text);
/* A path with `name` as a segment in it. NULL: out of memory. The caller's to free. */
char *hearth_client_path(const char *before, const char *name, const char *behind);

/* ---- a conversation (conversation.c) ---- */

struct client_conversation {
    const struct client_options *options;
    struct hearth_client *client;
    char *session;    /* NULL: the history is in `messages` */
    bool begun;       /* the session has turns */
    json_t *messages; /* the history, without a session */
    bool interactive, warned;
};

bool hearth_client_conversation_init(struct client_conversation *talk, const struct client_options *options,
                                     struct hearth_client *client, bool interactive);
void hearth_client_conversation_finish(struct client_conversation *talk);
/* Asks whether the server is there, and prints its model. */
enum client_outcome hearth_client_conversation_greet(struct client_conversation *talk);
/* Goes on in a session, or begins it. `ask`: the server is asked about it. */
enum client_outcome hearth_client_conversation_enter(struct client_conversation *talk, const char *name, bool ask);
/* Sends a message and prints the reply. */
enum client_outcome hearth_client_conversation_say(struct client_conversation *talk, const char *text);
/* A line that begins with "/". *quit: it was /quit. */
enum client_outcome hearth_client_conversation_command(struct client_conversation *talk, const char *line, bool *quit);

#endif
