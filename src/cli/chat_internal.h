/* What the files of `hearth chat` share. `hearth top` makes its requests by way of it, too.
 *
 *     chat.c         the command line, and what is typed
 *     chat_talk.c    a conversation: what is sent, and the commands
 *     chat_http.c    requests, by libcurl
 *     chat_reply.c   a streamed reply, as it comes in
 *     chat_input.c   lines from the terminal, by libedit
 *     items.c        a conversation as text (also for `hearth sessions`) */
#ifndef HEARTH_CLI_CHAT_INTERNAL_H
#define HEARTH_CLI_CHAT_INTERNAL_H

#include "base/buf.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct chat_options {
    const char *session, *url, *cacert, *model, *key, *system;
    int64_t max_tokens; /* -1: not given */
};

/* ---- signals (chat.c) ---- */

/* Set by Ctrl-C; whoever acts on it calls calm, which clears it. */
extern volatile sig_atomic_t hearth_chat_interrupted;
void hearth_chat_calm(void);
/* A pipe, so that nobody who waits misses a signal: a handler sets its flag and calls wake; who waits for the
 * descriptor drains it before looking at the flags. */
int hearth_chat_wake_fd(void);
void hearth_chat_wake(void);
void hearth_chat_drain(void);
/* Makes the pipe and takes Ctrl-C. False: out of descriptors. */
bool hearth_chat_catch_interrupts(void);

/* ---- a reply as it comes in (chat_reply.c): no terminal, no network ---- */

enum chat_text { CHAT_CONTENT, CHAT_REASONING };

struct chat_reply {
    struct hearth_buf line, data; /* of the event that is coming in */
    struct hearth_buf content, reasoning;
    struct hearth_buf error; /* what the server says that is wrong */
    char finish[24];
    json_t *receipt, *timings;
    int64_t first_us; /* hearth_clock_us() of the first text; 0: none came */
    bool done;        /* the stream came to its end */
    void (*on_text)(void *user, enum chat_text kind, const char *text);
    void *user;
};

void hearth_chat_reply_finish(struct chat_reply *reply);
/* Takes bytes of the stream. False: out of memory, or a line that no server writes. */
bool hearth_chat_reply_feed(struct chat_reply *reply, const char *bytes, size_t len);
/* Appends "reused 1,234 · computed 56 · …", as far as it is known. `begun_us`: when the request was sent; `session` may
 * be NULL. */
bool hearth_chat_reply_status(const struct chat_reply *reply, int64_t begun_us, const char *session,
                              struct hearth_buf *out);
/* Appends the message of a JSON error, or what else a server sent with that status. */
bool hearth_chat_error_text(const char *body, size_t len, long http_status, struct hearth_buf *out);

/* ---- requests (chat_http.c) ---- */

struct chat_client;

#define CHAT_DEFAULT_URL "http://127.0.0.1:8080"
#define CHAT_KEY_BYTES 512

/* Fills in what the command line leaves open: HEARTH_URL or the default, HEARTH_API_KEY (the server's variable; of
 * several the first). `key_room` is what *key then points to. */
void hearth_chat_address(const char **url, const char **key, char key_room[CHAT_KEY_BYTES]);

enum chat_outcome {
    CHAT_DONE,
    CHAT_STOPPED, /* by Ctrl-C */
    CHAT_FAILED,  /* one line on stderr has said why */
};

/* `url`: with or without "/v1" at its end, or unix:PATH. `cacert`: the file of certificates to trust; NULL: what the
 * environment names, or the system's. All are borrowed. NULL after a complaint. */
struct chat_client *hearth_chat_client_create(const char *url, const char *key, const char *cacert);
void hearth_chat_client_destroy(struct chat_client *client);
const char *hearth_chat_client_url(const struct chat_client *client);

/* POST, or GET when `body` is NULL. The bytes of a response with status 200 go to `sink`, those of others to `out`;
 * with no sink all do. A status other than 200 is no failure here. */
enum chat_outcome hearth_chat_request(struct chat_client *client, const char *path, const json_t *body,
                                      bool (*sink)(void *user, const char *bytes, size_t len), void *user,
                                      struct hearth_buf *out, long *http_status);
/* The same for a JSON document. *out: the caller's reference; NULL unless the status is 200 or 201. With `missing` a
 * 404 is no failure and sets it; other statuses are complained of. */
enum chat_outcome hearth_chat_json(struct chat_client *client, const char *path, const json_t *body, json_t **out,
                                   bool *missing);
/* Appends text as a segment of a path. */
bool hearth_chat_escape(struct hearth_buf *out, const char *text);
/* The server's address without what need not be there. NULL: it is none, or out of memory. The caller's to free. */
char *hearth_chat_base_url(const char *url);

/* ---- a conversation (chat_talk.c) ---- */

struct chat_talk {
    const struct chat_options *options;
    struct chat_client *client;
    char *session;    /* NULL: the history is kept here */
    bool begun;       /* the session has turns */
    json_t *messages; /* the history, without a session */
    bool interactive, warned;
};

bool hearth_chat_talk_init(struct chat_talk *talk, const struct chat_options *options, struct chat_client *client,
                           bool interactive);
void hearth_chat_talk_finish(struct chat_talk *talk);
/* Looks whether the server is there, and says who it is. */
enum chat_outcome hearth_chat_talk_greet(struct chat_talk *talk);
/* Goes on in a session, or begins it. `ask`: the server is asked about it. */
enum chat_outcome hearth_chat_talk_enter(struct chat_talk *talk, const char *name, bool ask);
/* Sends a message and prints the reply. */
enum chat_outcome hearth_chat_talk_say(struct chat_talk *talk, const char *text);
/* A line that begins with "/". *quit: it was /quit. */
enum chat_outcome hearth_chat_talk_command(struct chat_talk *talk, const char *line, bool *quit);

/* ---- lines (chat_input.c) ---- */

struct chat_input;

/* NULL: stdin is no terminal, or the terminal cannot be used. */
struct chat_input *hearth_chat_input_create(void);
void hearth_chat_input_destroy(struct chat_input *input);

enum chat_line { CHAT_LINE, CHAT_LINE_DROPPED /* Ctrl-C */, CHAT_LINE_END };

/* The next line in place of what `out` holds, without its end, valid UTF-8. A line that ends with a backslash goes on
 * in the next one. `input` may be NULL: plain lines from stdin. */
enum chat_line hearth_chat_input_read(struct chat_input *input, struct hearth_buf *out);

/* Dim text on a terminal: the sequences that begin and end it, or "". */
const char *hearth_chat_dim(FILE *out);
const char *hearth_chat_plain(FILE *out);

#endif
