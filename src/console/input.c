/* Lines that a user types, by libedit: editing, and a history in a file of the user's own (0600), or
 * lines from a pipe.
 *
 * libedit reads characters of the locale. One that is not UTF-8 would lose most of what people type, so C.UTF-8 takes
 * its place.
 *
 * Characters are read here and not by libedit, so that Ctrl-C is waited for at the same time (interrupt.h): a signal
 * that comes just before a read would not interrupt it. Ctrl-C drops the line. A terminal of another size, and coming
 * back after Ctrl-Z, draw it again. */
#include "console/input.h"

#include "base/utf8.h"
#include "console/interrupt.h"
#include "console/places.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 2000

struct hearth_input {
    EditLine *edit;
    History *history;
    char *history_path; /* NULL: nowhere */
    bool goes_on;       /* the prompt of a line that does */
};

static volatile sig_atomic_t redraw;

static void on_redraw(int number) {
    (void)number;
    redraw = 1;
    hearth_interrupt_wake();
}

static void draw_again(EditLine *edit) {
    redraw = 0;
    (void)el_set(edit, EL_PREP_TERM, 1); /* after Ctrl-Z the shell has set it up otherwise */
    el_resize(edit);
    (void)el_set(edit, EL_REFRESH);
}

/* The next byte: 1; 0 at the end; -1 for Ctrl-C and failures. */
static int read_byte(EditLine *edit, char *out) {
    struct pollfd waits[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = hearth_interrupt_fd(), .events = POLLIN}};
    for (;;) {
        const int ready = poll(waits, 2, -1);
        const int error = errno;
        hearth_interrupt_drain();
        if (hearth_interrupted || (ready < 0 && error != EINTR)) {
            return -1;
        }
        if (redraw) {
            draw_again(edit);
        }
        if (ready > 0 && waits[0].revents != 0) {
            const ssize_t n = read(STDIN_FILENO, out, 1);
            if (n >= 0 || (errno != EINTR && errno != EAGAIN)) {
                return (int)n;
            }
        }
    }
}

/* libedit's reader: a character of the locale. Bytes that are none are passed over. */
static int read_character(EditLine *edit, wchar_t *out) {
    mbstate_t state = {0};
    char byte;
    for (;;) {
        const int n = read_byte(edit, &byte);
        if (n <= 0) {
            return n;
        }
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1) { /* it may begin another one */
            state = (mbstate_t){0};
            used = mbrtowc(out, &byte, 1, &state);
        }
        if (used == (size_t)-1) {
            state = (mbstate_t){0};
        } else if (used != (size_t)-2) {
            return 1;
        }
    }
}

static char *prompt(EditLine *edit) {
    static char first[] = "> ", more[] = "… ";
    void *input = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &input);
    return input && ((struct hearth_input *)input)->goes_on ? more : first;
}

/* Makes the file, with its directories, so that only its owner can read it. NULL: there is to be none. */
static char *prepare_history(void) {
    char *path = hearth_place_history();
    for (char *slash = path ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0) {
        free(path);
        return NULL;
    }
    (void)fchmod(fd, 0600);
    (void)close(fd);
    return path;
}

struct hearth_input *hearth_input_create(void) {
    HistEvent event;
    if (isatty(STDIN_FILENO) != 1) {
        return NULL;
    }
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    struct hearth_input *input = calloc(1, sizeof *input);
    if (!input || !(input->edit = el_init("hearth", stdin, stdout, stderr)) || !(input->history = history_init())) {
        hearth_input_destroy(input);
        return NULL;
    }
    (void)history(input->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(input->history, &event, H_SETUNIQUE, 1);
    input->history_path = prepare_history();
    if (input->history_path) {
        (void)history(input->history, &event, H_LOAD, input->history_path);
    }
    (void)el_set(input->edit, EL_CLIENTDATA, input);
    (void)el_set(input->edit, EL_PROMPT, prompt);
    (void)el_set(input->edit, EL_EDITOR, "emacs");
    (void)el_set(input->edit, EL_GETCFN, read_character);
    (void)el_set(input->edit, EL_HIST, history, input->history);
    (void)el_set(input->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(input->edit, NULL); /* ~/.editrc */
    const struct sigaction action = {.sa_handler = on_redraw};
    (void)sigaction(SIGWINCH, &action, NULL);
    (void)sigaction(SIGCONT, &action, NULL);
    return input;
}

void hearth_input_destroy(struct hearth_input *input) {
    if (input) {
        if (input->edit) {
            el_end(input->edit);
        }
        if (input->history) {
            history_end(input->history);
        }
        free(input->history_path);
        free(input);
    }
}

static void remember(struct hearth_input *input, const char *line) {
    HistEvent event;
    if (line[strspn(line, " \t\n")] != '\0') {
        (void)history(input->history, &event, H_ENTER, line);
        if (input->history_path) {
            (void)history(input->history, &event, H_SAVE, input->history_path);
        }
    }
}

/* Appends a line without its end. */
static enum hearth_input_line read_one(struct hearth_input *input, struct hearth_buf *out) {
    char *plain = NULL;
    size_t size = 0;
    int count = 0;
    const char *line;
    errno = 0;
    if (input) {
        line = el_gets(input->edit, &count);
    } else {
        const ssize_t n = getline(&plain, &size, stdin);
        line = n < 0 ? NULL : plain;
        count = (int)n;
    }
    enum hearth_input_line kind = HEARTH_INPUT_LINE;
    if (hearth_interrupted) {
        hearth_interrupt_clear();
        kind = HEARTH_INPUT_DROPPED;
    } else if (!line || count <= 0) {
        kind = HEARTH_INPUT_END;
    } else {
        size_t len = strlen(line); /* a NUL ends what is typed */
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) {
            len--;
        }
        kind = hearth_utf8_append(out, line, len) ? HEARTH_INPUT_LINE : HEARTH_INPUT_END;
    }
    free(plain);
    return kind;
}

enum hearth_input_line hearth_input_read(struct hearth_input *input, struct hearth_buf *out) {
    enum hearth_input_line kind;
    bool more = true;
    out->len = 0;
    while (more) {
        if (input) {
            input->goes_on = out->len > 0;
        }
        const size_t begin = out->len;
        kind = read_one(input, out);
        if (kind == HEARTH_INPUT_END && begin > 0) {
            kind = HEARTH_INPUT_LINE; /* the input ended behind a backslash */
            break;
        }
        more = kind == HEARTH_INPUT_LINE && out->len > begin && out->data[out->len - 1] == '\\';
        if (more) {
            out->data[out->len - 1] = '\n';
        }
    }
    if (kind == HEARTH_INPUT_DROPPED) {
        (void)fputc('\n', stdout);
        (void)fflush(stdout);
    }
    if (kind == HEARTH_INPUT_LINE && !hearth_buf_text(out, "")) {
        return HEARTH_INPUT_END;
    }
    if (kind == HEARTH_INPUT_LINE && input) {
        remember(input, (const char *)out->data);
    }
    return kind;
}
