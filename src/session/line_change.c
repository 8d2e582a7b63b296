/* At the first line in which two texts differ, three explanations are tried: the line was changed, inserted, or
 * removed. The right one leaves the longest equal text behind it. Where none of them fits, some lines in a row differ:
 * the fewest behind which both texts go on alike. Then the search goes on to the next difference. */
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

/* How many of the equal bytes form whole lines. */
static size_t whole_lines(struct side side, size_t n) {
    while (n > 0 && side.at[n - 1] != '\n') {
        n--;
    }
    return n;
}

/* How many lines differ here, in each text; returns how many equal bytes follow, or 0. */
static size_t find_row(struct side a, struct side b, size_t *in_a, size_t *in_b) {
    size_t ends_a[HEARTH_LINE_ROW + 1] = {0}, ends_b[HEARTH_LINE_ROW + 1] = {0};
    for (size_t i = 1; i <= HEARTH_LINE_ROW; i++) {
        ends_a[i] = ends_a[i - 1] + line_len(behind(a, ends_a[i - 1]));
        ends_b[i] = ends_b[i - 1] + line_len(behind(b, ends_b[i - 1]));
    }
    for (size_t both = 1; both <= HEARTH_LINE_ROW; both++) {
        for (size_t i = 0; i <= both; i++) {
            const size_t alike = common(behind(a, ends_a[i]), behind(b, ends_b[both - i]));
            if (alike >= HEARTH_LINE_ROW_ALIKE) {
                *in_a = ends_a[i];
                *in_b = ends_b[both - i];
                return alike;
            }
        }
    }
    return 0;
}

/* How long the difference is in each text; returns how many equal bytes follow, or 0. */
static size_t find_change(struct side a, struct side b, size_t *in_a, size_t *in_b) {
    const size_t la = line_len(a), lb = line_len(b);
    const size_t other = common(behind(a, la), behind(b, lb)), came = common(a, behind(b, lb)),
                 went = common(behind(a, la), b);
    const size_t alike = other >= came && other >= went ? other : came >= went ? came : went;
    *in_a = alike != came || alike == other ? la : 0;
    *in_b = alike != went || alike == other ? lb : 0;
    return alike >= HEARTH_LINE_ALIKE ? alike : find_row(a, b, in_a, in_b);
}

size_t hearth_line_changes(const char *then, size_t then_len, const char *now, size_t now_len,
                           struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX]) {
    struct side a = {then, then_len}, b = {now, now_len};
    size_t n = 0;
    while (n < HEARTH_LINE_CHANGES_MAX && a.left > 0 && b.left > 0) {
        size_t in_a, in_b;
        const size_t alike = find_change(a, b, &in_a, &in_b);
        if (alike == 0) {
            break;
        }
        changes[n] = (struct hearth_line_change){.then = in_a > 0 ? a.at : NULL,
                                                 .then_len = without_end(a.at, in_a),
                                                 .now = in_b > 0 ? b.at : NULL,
                                                 .now_len = without_end(b.at, in_b),
                                                 .behind = b.at + in_b,
                                                 .alike = alike};
        a = behind(a, in_a);
        b = behind(b, in_b);
        if (alike == a.left || alike == b.left) {
            return n + 1; /* one of the texts ends there */
        }
        changes[n].alike = whole_lines(b, alike);
        a = behind(a, changes[n].alike);
        b = behind(b, changes[n].alike);
        n++;
    }
    return n;
}
