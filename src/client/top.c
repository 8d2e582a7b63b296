/* `hearth top`: the command line, and one frame after the other.
 *
 * On a terminal the server is asked every few seconds, and between two answers keys change what is shown of the last
 * one. A key also ends a request that the server does not answer, so that keys always work. */
#include "client/commands.h"

#include "base/clock.h"
#include "client/top.h"
#include "console/interrupt.h"
#include "console/tool.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_INTERVAL_S 2
#define MOST_INTERVAL_S 3600
#define REQUEST_TIMEOUT_S 10L
#define STOPPED_US 200000 /* a request that a key has ended is sent again so much later */

struct top_options {
    struct client_server server;
    int64_t interval_s; /* -1: not given */
    bool once, json;
};

static const struct hearth_console_command commands[] = {
    {"", "", "what a server is doing at this moment: lanes, requests that wait, what was reused", 1, 0, 0},
};

static const struct hearth_console_option options[] = {
    CLIENT_SERVER_OPTIONS("--api-key", "its API key [HEARTH_API_KEY]"),
    {"--interval", "S", "seconds between two frames [2]; with --once or --json: over which is measured", 1,
     HEARTH_CONSOLE_NUMBER, offsetof(struct top_options, interval_s)},
    {"--once", "", "one frame, as when standard output is no terminal", 1, HEARTH_CONSOLE_SWITCH,
     offsetof(struct top_options, once)},
    {"--json", "", "one frame for programs", 1, HEARTH_CONSOLE_SWITCH, offsetof(struct top_options, json)},
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL("top", "", commands, options);

/* ---- frames ---- */

static bool wait_s(int64_t seconds) {
    struct pollfd wake = {.fd = hearth_interrupt_fd(), .events = POLLIN};
    if (!hearth_interrupted) {
        (void)poll(&wake, 1, (int)(seconds * 1000));
    }
    return !hearth_interrupted;
}

struct watch {
    struct hearth_client *client;
    struct top_sample before, now; /* `before`: zeroed until there is one */
    struct top_view view;
    char trouble[200];
};

static void draw(struct watch *watch) {
    char *frame = NULL;
    size_t len = 0;
    FILE *memory = open_memstream(&frame, &len);
    hearth_client_screen_size(&watch->view.columns, &watch->view.rows);
    watch->view.keys = hearth_client_screen_keys_fd() >= 0;
    watch->view.trouble = watch->trouble[0] != '\0' ? watch->trouble : NULL;
    if (memory) {
        hearth_client_top_print(memory, hearth_client_url(watch->client),
                                watch->before.at_us > 0 ? &watch->before : NULL, &watch->now, &watch->view);
        (void)fclose(memory);
        hearth_client_screen_draw(frame);
    }
    free(frame);
}

/* Asks the server, and returns when to do so again. One that went away is waited for: it may be starting again, and the
 * last frame stays. */
static int64_t ask(struct watch *watch, int64_t interval_s) {
    struct top_sample next;
    char trouble[sizeof watch->trouble] = "";
    hearth_complain_into(trouble, sizeof trouble);
    hearth_client_limit(watch->client, hearth_client_screen_keys_fd(), REQUEST_TIMEOUT_S);
    const enum client_outcome outcome = hearth_client_top_read(watch->client, &next);
    hearth_complain_into(NULL, 0);
    if (outcome == CLIENT_DONE) {
        hearth_client_top_finish(&watch->before);
        watch->before = watch->now;
        watch->now = next;
        hearth_client_top_follow(&watch->now, &watch->view);
    }
    if (outcome != CLIENT_STOPPED) { /* by a key: what was known of the server still is */
        memcpy(watch->trouble, trouble, sizeof trouble);
    }
    return hearth_clock_us() + (outcome != CLIENT_STOPPED ? interval_s * 1000000 : STOPPED_US);
}

/* False: the program ends. */
static bool act(struct watch *watch, enum top_key key) {
    struct top_view *view = &watch->view;
    switch (key) {
    case TOP_KEY_UP: hearth_client_top_move(&watch->now, view, -1); break;
    case TOP_KEY_DOWN: hearth_client_top_move(&watch->now, view, 1); break;
    case TOP_KEY_OPEN:
        if (view->selected[0] == '\0') {
            hearth_client_top_move(&watch->now, view, 1);
        }
        view->open = !view->open && view->selected[0] != '\0';
        break;
    case TOP_KEY_CLOSE: view->open = false; break;
    case TOP_KEY_SORT: view->sort = (view->sort + 1) % TOP_SORT_COUNT; break;
    case TOP_KEY_NONE:
    case TOP_KEY_QUIT: break;
    }
    return key != TOP_KEY_QUIT && hearth_client_screen_signal() == 0;
}

/* Frames until `q` or a signal. The server must answer the first time. */
static int watch(struct hearth_client *client, int64_t interval_s) {
    struct watch watch = {.client = client};
    const enum client_outcome outcome = hearth_client_top_read(client, &watch.now);
    if (outcome != CLIENT_DONE) {
        return outcome == CLIENT_FAILED;
    }
    hearth_client_screen_enter();
    enum top_key key = TOP_KEY_NONE;
    int64_t due_us = hearth_clock_us() + interval_s * 1000000;
    while (act(&watch, key)) {
        draw(&watch);
        key = hearth_client_screen_key(due_us);
        if (key == TOP_KEY_NONE && hearth_clock_us() >= due_us) {
            due_us = ask(&watch, interval_s);
        }
    }
    hearth_client_screen_leave();
    hearth_client_top_finish(&watch.before);
    hearth_client_top_finish(&watch.now);
    return 0;
}

/* One frame; with an interval the second one of two. */
static int print_once(struct hearth_client *client, const struct top_options *chosen) {
    struct top_sample before = {0}, now = {0};
    const char *url = hearth_client_url(client);
    const bool twice = chosen->interval_s > 0;
    int status = 1;
    if ((!twice || hearth_client_top_read(client, &before) == CLIENT_DONE) && (!twice || wait_s(chosen->interval_s)) &&
        hearth_client_top_read(client, &now) == CLIENT_DONE) {
        if (chosen->json) {
            status = hearth_show_json(hearth_client_top_json(url, twice ? &before : NULL, &now));
        } else {
            const struct top_view view = {.columns = hearth_show_columns()};
            hearth_client_top_print(stdout, url, twice ? &before : NULL, &now, &view);
            status = 0;
        }
    }
    hearth_client_top_finish(&before);
    hearth_client_top_finish(&now);
    return status;
}

static int run(const struct hearth_console_call *call, void *user) {
    const struct top_options *chosen = user;
    struct hearth_client *client;
    (void)call;
    if (chosen->interval_s == 0 || chosen->interval_s > MOST_INTERVAL_S) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--interval needs 1 to %d seconds", MOST_INTERVAL_S);
    }
    int status = hearth_client_create(&chosen->server, "--api-key", &client);
    if (status != 0) {
        return status;
    }
    if (chosen->once || chosen->json || isatty(STDOUT_FILENO) != 1) {
        status = print_once(client, chosen);
    } else {
        status = watch(client, chosen->interval_s > 0 ? chosen->interval_s : DEFAULT_INTERVAL_S);
    }
    hearth_client_destroy(client);
    if (hearth_client_screen_signal() != 0 && hearth_client_screen_signal() != SIGINT) {
        (void)signal(hearth_client_screen_signal(), SIG_DFL);
        (void)raise(hearth_client_screen_signal());
    }
    return status;
}

int hearth_client_top(int argc, char *const argv[]) {
    struct top_options chosen = {.interval_s = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, run);
}
