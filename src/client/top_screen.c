/* The terminal of `hearth top`.
 *
 * Invariants: what enter() changes, leave() changes back; a signal that ends the program does so by way of the main
 * loop, so that leave() runs. A handler only notes its signal and wakes the wait (console/interrupt.h). Keys come as
 * bytes: arrows as ESC [ A or ESC O A, and an ESC with nothing behind it is the key itself. */
#include "client/top.h"

#include "base/clock.h"
#include "console/interrupt.h"

#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ESC_US 50000 /* how long the rest of a key's bytes may take, over a slow line */

static struct termios found; /* how the terminal was */
static bool has_keys, ended; /* `ended`: its end has been read */
static volatile sig_atomic_t signal_taken, resized;

static void on_end(int number) {
    signal_taken = number;
    hearth_interrupted = 1;
    hearth_interrupt_wake();
}

static void on_resize(int number) {
    (void)number;
    resized = 1;
    hearth_interrupt_wake();
}

void hearth_client_screen_enter(void) {
    const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = on_end};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        (void)sigaction(ends[i], &action, NULL);
    }
    action.sa_handler = on_resize;
    (void)sigaction(SIGWINCH, &action, NULL);
    has_keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &found) == 0;
    if (has_keys) {
        struct termios keys = found;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        keys.c_cc[VMIN] = 1;
        keys.c_cc[VTIME] = 0;
        keys.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped program would leave the terminal as it is */
        has_keys = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
    }
    (void)fputs("\033[?1049h\033[?25l\033[2J", stdout);
    (void)fflush(stdout);
}

void hearth_client_screen_leave(void) {
    (void)fputs("\033[?25h\033[?1049l", stdout);
    (void)fflush(stdout);
    if (has_keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &found);
    }
}

int hearth_client_screen_signal(void) {
    return signal_taken;
}

int hearth_client_screen_keys_fd(void) {
    return has_keys && !ended ? STDIN_FILENO : -1;
}

void hearth_client_screen_size(int *columns, int *rows) {
    struct winsize size;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    *columns = known && size.ws_col >= 20 ? size.ws_col : 80;
    *rows = known && size.ws_row >= 4 ? size.ws_row : 24;
}

void hearth_client_screen_draw(const char *frame) {
    (void)fputs("\033[H", stdout);
    while (*frame != '\0') {
        const size_t len = strcspn(frame, "\n");
        /* erased first: behind a full line there is no column left to erase from */
        (void)fputs("\033[K", stdout);
        (void)fwrite(frame, 1, len, stdout);
        frame += len + (frame[len] == '\n');
        (void)fputs(*frame != '\0' ? "\n" : "", stdout);
    }
    (void)fputs("\033[J", stdout);
    (void)fflush(stdout);
}

/* ---- keys ---- */

/* Whether there is a byte to be read; false after that time, or when something else woke the wait. */
static bool wait_byte(int64_t until_us) {
    struct pollfd waits[] = {{.fd = hearth_interrupt_fd(), .events = POLLIN},
                             {.fd = hearth_client_screen_keys_fd(), .events = POLLIN}};
    const int64_t left_us = until_us - hearth_clock_us();
    const int ready = poll(waits, 2, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
    if (waits[0].revents != 0) {
        hearth_interrupt_drain();
        return false;
    }
    return ready > 0 && waits[1].revents != 0;
}

static bool read_byte(char *out) {
    ended = ended || read(STDIN_FILENO, out, 1) != 1;
    return !ended;
}

/* Behind an ESC. */
static enum top_key read_sequence(void) {
    char byte = '\0';
    do {
        if (!wait_byte(hearth_clock_us() + ESC_US) || !read_byte(&byte)) {
            return TOP_KEY_CLOSE;
        }
    } while (byte == '\033'); /* the one before it was the key itself */
    if (byte != '[' && byte != 'O') {
        return TOP_KEY_NONE;
    }
    do {
        if (!wait_byte(hearth_clock_us() + ESC_US) || !read_byte(&byte)) {
            return TOP_KEY_NONE;
        }
    } while (byte < '@'); /* parameters */
    return byte == 'A' ? TOP_KEY_UP : byte == 'B' ? TOP_KEY_DOWN : TOP_KEY_NONE;
}

static enum top_key read_key(void) {
    char byte;
    if (!read_byte(&byte)) {
        return TOP_KEY_NONE;
    }
    switch (byte) {
    case '\033': return read_sequence();
    case 'q': return TOP_KEY_QUIT;
    case 'k': return TOP_KEY_UP;
    case 'j': return TOP_KEY_DOWN;
    case '\r':
    case '\n': return TOP_KEY_OPEN;
    case 's': return TOP_KEY_SORT;
    default: return TOP_KEY_NONE;
    }
}

enum top_key hearth_client_screen_key(int64_t until_us) {
    enum top_key key = TOP_KEY_NONE;
    do {
        key = wait_byte(until_us) ? read_key() : TOP_KEY_NONE;
    } while (key == TOP_KEY_NONE && signal_taken == 0 && !resized && hearth_clock_us() < until_us);
    resized = 0;
    return key;
}
