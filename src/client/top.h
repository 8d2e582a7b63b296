/* What the files of `hearth top` share.
 *
 *     top.c          the command line, and one frame after the other
 *     top_screen.c   the terminal: its mode, its size, keys
 *     top_read.c     asks the server what it is doing
 *     top_show.c     a frame, as text and as JSON */
#ifndef HEARTH_CLIENT_TOP_H
#define HEARTH_CLIENT_TOP_H

#include "client/client.h"
#include "console/show.h"

/* ---- what the server said (top_read.c) ---- */

/* At one moment. Another version of the server, or another server, may say less: every part may be NULL, and every
 * member of a part may be missing. Owned. */
struct top_sample {
    int64_t at_us;    /* hearth_clock_us() */
    json_t *props;    /* object */
    json_t *health;   /* object */
    json_t *slots;    /* array */
    json_t *queue;    /* object */
    json_t *metrics;  /* object: samples without labels, name to number */
    json_t *requests; /* object: the last ones that have ended */
    json_t *clients;  /* object: what each client lost with those that are kept */
};

void hearth_client_top_finish(struct top_sample *sample);
/* DONE, STOPPED by Ctrl-C, or FAILED after one complaint: the server is not there, refuses the key, or is not a
 * hearth. */
enum client_outcome hearth_client_top_read(struct hearth_client *client, struct top_sample *out);

/* ---- what is to be seen of it ---- */

/* Orders of the lanes: name, member of a slot's `hearth`, +1: the smallest first, -1: the largest. */
#define TOP_SORT_TABLE(X)                          \
    X(LANE, "lane", "", 1)                         \
    X(PROMPT, "prompt", "prompt_tokens", -1)       \
    X(COMPUTED, "computed", "computed_tokens", -1) \
    X(REPLY, "reply", "generated_tokens", -1)      \
    X(RATE, "token/s", "tokens_per_second", 1)

enum top_sort {
#define X(name, text, member, sign) TOP_SORT_##name,
    TOP_SORT_TABLE(X)
#undef X
        TOP_SORT_COUNT
};

struct top_view {
    int columns; /* a line is never wider */
    int rows;    /* lines of a frame, at most; 0: as many as there are */
    bool keys;   /* the last line says what keys do */
    enum top_sort sort;
    char selected[64];   /* the row: "lane 3", or the id of a request that waits; "": none */
    bool open;           /* the selected row is shown in full, in the place of the last requests */
    const char *trouble; /* what stands in the last line; NULL: nothing is wrong */
};

/* Selects the next row (`step` 1) or the one before (-1) in the order of the frame. */
void hearth_client_top_move(const struct top_sample *now, struct top_view *view, int step);
/* A selected request that waits no longer, but has a lane, stays selected. */
void hearth_client_top_follow(const struct top_sample *now, struct top_view *view);

/* A frame. `before`: an earlier sample, from which what has happened since then is told; NULL: there is none. */
void hearth_client_top_print(FILE *out, const char *url, const struct top_sample *before, const struct top_sample *now,
                             const struct top_view *view);
/* The same for programs. NULL: out of memory. The caller's reference. */
json_t *hearth_client_top_json(const char *url, const struct top_sample *before, const struct top_sample *now);

/* ---- the terminal (top_screen.c) ---- */

enum top_key { TOP_KEY_NONE, TOP_KEY_QUIT, TOP_KEY_UP, TOP_KEY_DOWN, TOP_KEY_OPEN, TOP_KEY_CLOSE, TOP_KEY_SORT };

/* Takes the terminal: another screen, no cursor, keys without echo (where stdin is a terminal, too). leave() gives it
 * back. From enter() on SIGINT, SIGTERM, SIGHUP and SIGQUIT end waits and requests, and hearth_client_screen_signal()
 * is the one that came; 0: none. */
void hearth_client_screen_enter(void);
void hearth_client_screen_leave(void);
int hearth_client_screen_signal(void);
/* Where keys come from; -1: there are none. */
int hearth_client_screen_keys_fd(void);
void hearth_client_screen_size(int *columns, int *rows);
/* Writes a frame of lines that are no wider than the screen over the one before. */
void hearth_client_screen_draw(const char *frame);
/* The next key, or NONE after `until_us` (hearth_clock_us()), when the size has changed, or after such a signal. */
enum top_key hearth_client_screen_key(int64_t until_us);

#endif
