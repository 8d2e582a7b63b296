/* At the first line in which two texts differ, three explanations are tried: the line was changed, inserted, or
 * removed. The right one leaves the longest equal text behind it. Then the search goes on to the next difference. */
#include "session/line_change.h"

#include <string.h>

struct side {
    const char *at;
    size_t left;
};

/* Bytes of the line, with its end. */
static size_t line_len(struct side side) {
    const char *end = memchr(side.at, '\n', side.left);
    return end != NULL ? (size_t)(end - side.at) + 1 : side.left;
}

static struct side behind(struct side side, size_t len) {
    return (struct side){side.at + len, side.left - len};
}

static size_t common(struct side a, struct side b) {
    size_t n = 0;
    while (n < a.left && n < b.left && a.at[n] == b.at[n]) {
        n++;
    }
    return n;
}

static size_t without_end(const char *line, size_t len) {
    return len > 0 && line[len - 1] == '\n' ? len - 1 : len;
}

/* How many of the bytes that both have end with a line. */
static size_t whole_lines(struct side side, size_t n) {
    while (n > 0 && side.at[n - 1] != '\n') {
        n--;
    }
    return n;
}

size_t hearth_line_changes(const char *then, size_t then_len, const char *now, size_t now_len,
                           struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX]) {
    struct side a = {then, then_len}, b = {now, now_len};
    size_t n = 0;
    while (n < HEARTH_LINE_CHANGES_MAX && a.left > 0 && b.left > 0) {
        const size_t la = line_len(a), lb = line_len(b);
        const size_t other = common(behind(a, la), behind(b, lb)), came = common(a, behind(b, lb)),
                     went = common(behind(a, la), b);
        const size_t alike = other >= came && other >= went ? other : came >= went ? came : went;
        if (alike < HEARTH_LINE_ALIKE) {
            break;
        }
        const bool in_then = alike != came || alike == other, in_now = alike != went || alike == other;
        struct hearth_line_change *change = &changes[n++];
        *change = (struct hearth_line_change){.alike = alike};
        if (in_then) {
            change->then = a.at;
            change->then_len = without_end(a.at, la);
            a = behind(a, la);
        }
        if (in_now) {
            change->now = b.at;
            change->now_len = without_end(b.at, lb);
            b = behind(b, lb);
        }
        if (alike == a.left || alike == b.left) {
            break; /* one of them ends there */
        }
        const size_t whole = whole_lines(b, alike);
        change->alike = whole;
        a = behind(a, whole);
        b = behind(b, whole);
    }
    return n;
}
