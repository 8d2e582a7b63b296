/* `hearth top`: the command line, and one frame after the other.
 *
 * On a terminal a frame is written over the one before it: the cursor goes home, each line is erased behind its end,
 * and so is what is left below. A server that goes away while it is watched is waited for: it may be starting again. */
#include "client/commands.h"

#include "base/buf.h"
#include "client/client.h"
#include "console/interrupt.h"
#include "console/show.h"
#include "console/tool.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define DEFAULT_INTERVAL_S 2
#define MOST_INTERVAL_S 3600

struct top_options {
    const char *url, *key, *cacert;
    int64_t interval_s; /* -1: not given */
    bool once, json;
};

static const struct hearth_console_command commands[] = {
    {"", "", "what a server is doing at this moment: lanes, requests that wait, what was reused", 1, 0, 0},
};

static const struct hearth_console_option options[] = {
    {"--url", "URL", "the server [HEARTH_URL, or " CLIENT_DEFAULT_URL "]; unix:PATH: a socket", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct top_options, url)},
    {"--cacert", "FILE", "whose certificates to trust, PEM [HEARTH_CACERT, or the system's]", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct top_options, cacert)},
    {"--api-key", "KEY", "its API key [HEARTH_API_KEY]", 1, HEARTH_CONSOLE_TEXT, offsetof(struct top_options, key)},
    {"--interval", "S", "seconds between two frames [2]; with --once or --json: over which is measured", 1,
     HEARTH_CONSOLE_NUMBER, offsetof(struct top_options, interval_s)},
    {"--once", "", "one frame, as when standard output is no terminal", 1, HEARTH_CONSOLE_SWITCH,
     offsetof(struct top_options, once)},
    {"--json", "", "one frame for programs", 1, HEARTH_CONSOLE_SWITCH, offsetof(struct top_options, json)},
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL("top", "", commands, options);

/* ---- the terminal ---- */

static int terminal_rows(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row >= 4 ? size.ws_row : 24;
}

/* Bytes of the first `columns` characters of a line. */
static size_t cut(const char *line, size_t len, int columns) {
    size_t at = 0;
    for (int used = 0; at < len; at++) {
        if (((unsigned char)line[at] & 0xC0) != 0x80 && used++ == columns) {
            break;
        }
    }
    return at;
}

/* Writes a frame over the one before it: as much of it as there is room for. */
static void overwrite(const char *frame) {
    const int columns = hearth_show_columns();
    (void)fputs("\033[H", stdout);
    for (int row = 1, rows = terminal_rows(); *frame && row < rows; row++) {
        const size_t len = strcspn(frame, "\n");
        (void)fwrite(frame, 1, cut(frame, len, columns), stdout);
        (void)fputs("\033[K\n", stdout);
        frame += len + (frame[len] == '\n');
    }
    (void)fputs("\033[J", stdout);
    (void)fflush(stdout);
}

/* False: Ctrl-C. */
static bool wait_s(int64_t seconds) {
    struct pollfd wake = {.fd = hearth_interrupt_fd(), .events = POLLIN};
    if (!hearth_interrupted) {
        (void)poll(&wake, 1, (int)(seconds * 1000));
    }
    return !hearth_interrupted;
}

/* ---- frames ---- */

/* Frames until Ctrl-C. The server must answer the first time. */
static int watch(struct hearth_client *client, int64_t interval_s) {
    struct top_sample before = {0}, now;
    bool begun = false;
    int status = 0;
    (void)fputs("\033[?25l\033[2J", stdout); /* no cursor, no text */
    for (bool goes_on = true; goes_on; goes_on = goes_on && wait_s(interval_s)) {
        char *frame = NULL;
        size_t len = 0;
        if (begun) {
            (void)fputs("\033[?25l", stdout);
        }
        const enum client_outcome outcome = hearth_client_top_read(client, &now);
        FILE *memory = outcome == CLIENT_DONE ? open_memstream(&frame, &len) : NULL;
        if (memory) {
            hearth_client_top_print(memory, hearth_client_url(client), begun ? &before : NULL, &now);
            (void)fclose(memory);
            overwrite(frame);
            hearth_client_top_finish(&before);
            before = now;
            begun = true;
        } else if (outcome == CLIENT_DONE) {
            hearth_client_top_finish(&now);
        }
        free(frame);
        goes_on = outcome == CLIENT_DONE || (outcome == CLIENT_FAILED && begun);
        status = outcome == CLIENT_FAILED && !begun;
    }
    (void)fputs("\033[?25h", stdout);
    (void)fflush(stdout);
    hearth_client_top_finish(&before);
    return status;
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
            hearth_client_top_print(stdout, url, twice ? &before : NULL, &now);
            status = 0;
        }
    }
    hearth_client_top_finish(&before);
    hearth_client_top_finish(&now);
    status = hearth_show_end(status);
    return status;
}

static int run(struct top_options *chosen) {
    struct hearth_client *client;
    int status;
    if (chosen->interval_s == 0 || chosen->interval_s > MOST_INTERVAL_S) {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--interval needs 1 to %d seconds", MOST_INTERVAL_S);
    }
    if (chosen->key[strcspn(chosen->key, "\r\n")] != '\0') {
        return hearth_complain(HEARTH_CONSOLE_USAGE, "--api-key needs a key of one line");
    }
    if (!hearth_interrupt_catch()) {
        return hearth_complain(1, "out of descriptors");
    }
    if (!(client = hearth_client_create(chosen->url, chosen->key, chosen->cacert))) {
        return 1;
    }
    if (chosen->once || chosen->json || isatty(STDOUT_FILENO) != 1) {
        status = print_once(client, chosen);
    } else {
        status = watch(client, chosen->interval_s > 0 ? chosen->interval_s : DEFAULT_INTERVAL_S);
    }
    hearth_client_destroy(client);
    return status;
}

int hearth_client_top(int argc, char *const argv[]) {
    struct top_options chosen = {.interval_s = -1};
    struct hearth_console_call call;
    char key[CLIENT_KEY_BYTES];
    hearth_show_as("hearth top");
    hearth_console_parse(&tool, argc, argv, &chosen, &call);
    int status = call.status;
    if (call.command) {
        hearth_client_address(&chosen.url, &chosen.key, key);
        status = run(&chosen);
    }
    free(call.args);
    return status;
}
