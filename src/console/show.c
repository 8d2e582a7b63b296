/* Formats numbers, prompts and progress for people. Text of prompts may come from anywhere, so control characters
 * never reach the terminal. */
#include "console/show.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

static char speaker[32] = "hearth";

void hearth_show_as(const char *tool) {
    (void)snprintf(speaker, sizeof speaker, "hearth %s", tool);
}

static char *complaint;
static size_t complaint_cap;

void hearth_complain_into(char *line, size_t cap) {
    complaint = line;
    complaint_cap = cap;
}

int hearth_complain(int status, const char *format, ...) {
    va_list args;
    if (complaint) {
        va_start(args, format);
        (void)vsnprintf(complaint, complaint_cap, format, args);
        va_end(args);
        return status;
    }
    hearth_show_progress_end();
    (void)fprintf(stderr, "%s: ", speaker);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return status;
}

void hearth_show_log(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    (void)level;
    hearth_show_progress_end();
    (void)fprintf(stderr, "%s: %s\n", speaker, line);
}

struct hearth_shown hearth_show_bytes(uint64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    struct hearth_shown out;
    double value = (double)bytes / 1024;
    size_t i = 0;
    while (value >= 1000 && i + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        i++;
    }
    (void)snprintf(out.text, sizeof out.text, "%.*f %s", value < 10 && i > 0 ? 1 : 0, value, units[i]);
    return out;
}

struct hearth_shown hearth_show_count(uint64_t n) {
    struct hearth_shown out;
    char digits[24];
    const int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    size_t at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) {
            out.text[at++] = ',';
        }
        out.text[at++] = digits[i];
    }
    out.text[at] = '\0';
    return out;
}

struct hearth_shown hearth_show_age(int64_t used_us) {
    struct timeval now = {0, 0};
    struct hearth_shown out;
    (void)gettimeofday(&now, NULL);
    int64_t s = now.tv_sec - used_us / 1000000;
    s = s < 0 ? 0 : s;
    if (s < 120) {
        (void)snprintf(out.text, sizeof out.text, "%" PRId64 " s", s);
    } else if (s < 7200) {
        (void)snprintf(out.text, sizeof out.text, "%" PRId64 " min", s / 60);
    } else if (s < 48 * 3600) {
        (void)snprintf(out.text, sizeof out.text, "%" PRId64 " h", s / 3600);
    } else {
        (void)snprintf(out.text, sizeof out.text, "%" PRId64 " d", s / 86400);
    }
    return out;
}

const char *hearth_plural(uint64_t n, const char *one, const char *many) {
    return n == 1 ? one : many;
}

struct hearth_shown hearth_show_number(uint64_t n, const char *one, const char *many) {
    struct hearth_shown out = hearth_show_count(n);
    const size_t len = strlen(out.text);
    (void)snprintf(out.text + len, sizeof out.text - len, " %s", hearth_plural(n, one, many));
    return out;
}

int hearth_show_columns(void) {
    struct winsize size;
    if (isatty(STDOUT_FILENO) != 1) {
        return 100000;
    }
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40 ? size.ws_col : 80;
}

/* The next character of valid UTF-8: its bytes, and how wide it is: 0 for what is not to be printed. */
static size_t next_char(const unsigned char *text, int *width) {
    const size_t len = text[0] < 0x80 ? 1 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    uint32_t code = len == 1 ? text[0] : text[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((text[i] & 0xc0) != 0x80) { /* not valid after all */
            *width = 0;
            return i;
        }
        code = code << 6 | (text[i] & 0x3f);
    }
    /* controls; what turns the direction of writing; what is invisible */
    const bool hidden = code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
                        (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
    const bool wide = (code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xa4d0) ||
                      (code >= 0xac00 && code < 0xd7a4) || (code >= 0xf900 && code < 0xfb00) ||
                      (code >= 0xff00 && code < 0xff61) || (code >= 0x1f300 && code < 0x1fb00) ||
                      (code >= 0x20000 && code < 0x40000);
    *width = hidden ? 0 : wide ? 2 : 1;
    return len;
}

/* Prints as much of a text as is `columns` wide, and returns the width; *whole: that is all of it. `out` NULL: nothing
 * is printed. */
static int show_part(FILE *out, const char *text, int columns, bool *whole) {
    int used = 0;
    bool gap = false;
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        int width;
        const size_t len = next_char(at, &width);
        if (width == 0 || *at == ' ') {
            gap = used > 0; /* any white space is one space, and none at the ends */
        } else if (used + gap + width > columns) {
            *whole = false;
            return used;
        } else {
            if (out) {
                (void)fprintf(out, "%s%.*s", gap ? " " : "", (int)len, (const char *)at);
            }
            used += gap + width;
            gap = false;
        }
        at += len;
    }
    *whole = true;
    return used;
}

int hearth_show_text(FILE *out, const char *text, int columns) {
    bool whole;
    (void)show_part(NULL, text, columns, &whole);
    const int used = show_part(out, text, whole ? columns : columns - 1, &whole);
    if (!whole) {
        (void)fputs("…", out);
    }
    return used + !whole;
}

void hearth_show_lines(FILE *out, const char *text, const char *indent, bool *fresh) {
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        int width;
        const size_t len = next_char(at, &width);
        if (*at == '\n') {
            (void)fputc('\n', out);
            *fresh = true;
        } else if (width > 0 || *at == '\t') {
            (void)fputs(*fresh ? indent : "", out);
            (void)fwrite(at, 1, len, out);
            *fresh = false;
        }
        at += len;
    }
}

static bool has_styles(FILE *out) {
    const char *terminal = getenv("TERM"), *plain = getenv("NO_COLOR");
    return isatty(fileno(out)) == 1 && terminal && strcmp(terminal, "dumb") != 0 && (!plain || *plain == '\0');
}

const char *hearth_show_dim(FILE *out) {
    return has_styles(out) ? "\033[2m" : "";
}

const char *hearth_show_plain(FILE *out) {
    return has_styles(out) ? "\033[0m" : "";
}

json_t *hearth_show_members(const struct hearth_show_member *members, size_t count) {
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++) {
        (void)json_object_set_new(object, members[i].name, json_integer((json_int_t)members[i].value));
    }
    return object;
}

int hearth_show_json_to(FILE *out, json_t *root) {
    const bool ok = root && (json_dumpf(root, out, JSON_INDENT(2)) == 0 || ferror(out));
    (void)fputc('\n', out);
    json_decref(root);
    return ok ? 0 : hearth_complain(1, "out of memory");
}

int hearth_show_json(json_t *root) {
    return hearth_show_json_to(stdout, root);
}

int hearth_show_end(int status) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return status;
    }
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) { /* a pipe that nothing reads any more */
        (void)signal(SIGPIPE, SIG_DFL);
        (void)raise(SIGPIPE);
    }
    return status != 0 ? status : hearth_complain(1, "cannot write to standard output");
}

bool hearth_show_asked(const char *format, ...) {
    char answer[16] = "";
    va_list args;
    if (isatty(STDIN_FILENO) != 1) {
        return true;
    }
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputs(" [y/N] ", stderr);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* ---- words ---- */

static size_t least_of_3(size_t a, size_t b, size_t c) {
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Edits (insert, delete, replace a byte, exchange two neighbours) between two words of at most 63 bytes. */
static size_t edits(const char *a, const char *b) {
    const size_t na = strlen(a), nb = strlen(b);
    size_t lines[3][64]; /* of i - 2, i - 1 and i, in turn */
    if (na > 63 || nb > 63) {
        return 64;
    }
    for (size_t j = 0; j <= nb; j++) {
        lines[0][j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        const size_t *above = lines[(i - 1) % 3], *two_above = lines[(i + 1) % 3];
        size_t *line = lines[i % 3];
        line[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            line[j] = least_of_3(above[j] + 1, line[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_above[j - 2] + 1 < line[j]) {
                line[j] = two_above[j - 2] + 1;
            }
        }
    }
    return lines[na % 3][nb];
}

const char *hearth_show_nearest(const char *word, const char *const *list, size_t n) {
    const char *best = NULL;
    size_t best_edits = strlen(word) / 3 + 2; /* farther away than this is no misspelling */
    for (size_t i = 0; i < n; i++) {
        const size_t d = edits(word, list[i]);
        if (d < best_edits) {
            best_edits = d;
            best = list[i];
        }
    }
    return best;
}

/* ---- progress ---- */

static bool shown;
static int shown_permille = -1;

void hearth_show_progress(const char *what, uint64_t done, uint64_t total, bool bytes) {
    enum { CELLS = 30 };
    static int terminal = -1;
    if (terminal < 0) {
        terminal = isatty(STDERR_FILENO) == 1;
    }
    if (!terminal) {
        return;
    }
    const int permille = total > 0 ? (int)(done >= total ? 1000 : done * 1000 / total) : (int)(done / 512 % 1000);
    if (shown && permille == shown_permille) {
        return;
    }
    shown = true;
    shown_permille = permille;
    if (total == 0) {
        (void)fprintf(stderr, "\r\033[K%s %s", what, hearth_show_count(done).text);
    } else {
        char bar[CELLS + 1];
        for (int i = 0; i < CELLS; i++) {
            bar[i] = i * 1000 < permille * CELLS ? '#' : '.';
        }
        bar[CELLS] = '\0';
        (void)fprintf(stderr, "\r\033[K%s [%s] %3d %%  %s of %s", what, bar, permille / 10,
                      bytes ? hearth_show_bytes(done).text : hearth_show_count(done).text,
                      bytes ? hearth_show_bytes(total).text : hearth_show_count(total).text);
    }
    (void)fflush(stderr);
}

void hearth_show_progress_end(void) {
    if (shown) {
        (void)fputs("\r\033[K", stderr);
        (void)fflush(stderr);
        shown = false;
    }
}
