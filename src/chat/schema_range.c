/* Ranges of numbers as GBNF.
 *
 * Design. A bound is a whole number and six decimals. The numbers of each sign between two bounds are written digit
 * by digit: those with the whole part of the lower bound and at least its decimals, those with a whole part between
 * the two, those with the whole part of the upper bound and at most its decimals. Exponents and more than fifteen
 * digits before the point are not offered, although such numbers are valid.
 *
 * Invariants. Every number of the grammar lies in the range, as a decimal and as the nearest double. A text that memory
 * is refused for is noted (base/memory.h), and schema.c drops it. */
#include "chat/schema_internal.h"

#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DECIMALS = 6 };
#define UNIT INT64_C(1000000)
#define WHOLE_MAX INT64_C(999999999999999)
#define EXACT_MAX 9e9 /* below, a double holds the number of units */

/* A number that is not negative: whole + decimals / UNIT. */
struct decimal {
    int64_t whole, decimals;
};

/* ------------------------------------------------------------------------------------------- digits */

static void any_digits(struct hearth_buf *out, size_t from, size_t to) {
    if (to > 0) {
        hearth_buf_printf(out, " [0-9]{%zu,%zu}", from, to);
    }
}

static bool all_are(const char *digits, char digit) {
    return strspn(digits, (char[]){digit, '\0'}) == strlen(digits);
}

/* Digits from `low` to `high`, two texts of one length. `exact`: all of them are printed; else what is left out at the
 * end stands for zeros, and may be left out where that is in the range. */
static void digits(struct hearth_buf *out, const char *low, const char *high, bool exact) {
    if (*low == '\0') {
        return;
    }
    const size_t rest = strlen(low) - 1;
    if (all_are(low, '0') && all_are(high, '9')) {
        any_digits(out, exact ? rest + 1 : 0, rest + 1);
        return;
    }
    char nines[DECIMALS + 16] = "", zeros[DECIMALS + 16] = "";
    memset(nines, '9', rest);
    memset(zeros, '0', rest);
    const bool same = *low == *high;
    const char *between = " (";
    int from = *low, to = *high;
    if (same || !all_are(low + 1, '0')) {
        hearth_buf_printf(out, "%s[%c]", between, *low);
        digits(out, low + 1, same ? high + 1 : nines, exact);
        between = " | ";
        from++;
    }
    if (!same && !all_are(high + 1, '9')) {
        hearth_buf_printf(out, "%s[%c]", between, *high);
        digits(out, zeros, high + 1, exact);
        between = " | ";
        to--;
    }
    if (from <= to) {
        hearth_buf_printf(out, "%s[%c-%c]", between, from, to);
        any_digits(out, exact ? rest : 0, rest);
    }
    hearth_buf_text(out, !exact && all_are(low, '0') ? ")?" : ")"); /* nothing at all stands for zeros */
}

static int64_t power_of_ten(size_t n) {
    int64_t value = 1;
    while (n-- > 0) {
        value *= 10;
    }
    return value;
}

/* Whole numbers, one length of digits after the other; those lengths of which all numbers are in the range at once. */
static void wholes(struct hearth_buf *out, int64_t low, int64_t high) {
    hearth_buf_text(out, "(");
    for (const char *between = ""; low <= high; between = " |") {
        char from[32], to[32];
        snprintf(from, sizeof from, "%" PRId64, low);
        snprintf(to, sizeof to, "%" PRId64, high);
        size_t len = strlen(from), most = strlen(to), longest = most - !all_are(to, '9');
        hearth_buf_text(out, between);
        if (low == power_of_ten(len - 1) && longest >= len) {
            hearth_buf_text(out, " [1-9]");
            any_digits(out, len - 1, longest - 1);
            len = longest;
        } else {
            if (most > len) {
                memset(to, '9', len);
                to[len] = '\0';
            }
            digits(out, from, to, true);
        }
        if (len == most) {
            break;
        }
        low = power_of_ten(len); /* of fewer digits than `high`, so in its type */
    }
    hearth_buf_text(out, ")");
}

/* One whole number and its decimals from `low` to `high`. */
static void part(struct hearth_buf *out, int64_t whole, int64_t low, int64_t high) {
    char from[DECIMALS + 2], to[DECIMALS + 2];
    snprintf(from, sizeof from, "%0*" PRId64, DECIMALS, low % UNIT);
    snprintf(to, sizeof to, "%0*" PRId64, DECIMALS, high % UNIT);
    hearth_buf_printf(out, "\"%" PRId64 "\"", whole);
    if (high == 0) {
        return;
    }
    hearth_buf_text(out, " (\".\""); /* behind a point there is a digit */
    if (low > 0) {
        digits(out, from, to, false);
        hearth_buf_text(out, ")");
        return;
    }
    hearth_buf_printf(out, " ([%c]", to[0]);
    digits(out, "00000", to + 1, false);
    if (to[0] > '0') {
        hearth_buf_printf(out, " | [0-%c] [0-9]{0,%d}", to[0] - 1, DECIMALS - 1);
    }
    hearth_buf_text(out, "))?");
}

/* ------------------------------------------------------------------------------------------- ranges */

/* Numbers from `low` to `high`, none of them negative. */
static void positive(struct hearth_buf *out, struct decimal low, struct decimal high) {
    if (low.whole == high.whole) {
        part(out, low.whole, low.decimals, high.decimals);
        return;
    }
    const char *between = "";
    if (low.decimals > 0) {
        part(out, low.whole++, low.decimals, UNIT - 1);
        between = " | ";
    }
    if (high.decimals < UNIT - 1) {
        hearth_buf_text(out, between);
        part(out, high.whole--, 0, high.decimals);
        between = " | ";
    }
    if (low.whole <= high.whole) {
        hearth_buf_text(out, between);
        wholes(out, low.whole, high.whole);
        hearth_buf_printf(out, " (\".\" [0-9]{1,%d})?", DECIMALS);
    }
}

/* The least number of six decimals at or above a bound; `up` false: the greatest at or below. The bounds themselves are
 * doubles, so a step of one unit is taken where the product is not exact, and one back where that went too far. */
static struct decimal bound(double value, bool open, bool up) {
    double whole = floor(value), scaled = (value - whole) * (double)UNIT;
    int64_t decimals = (int64_t)(up ? ceil(scaled - 1e-4) : floor(scaled + 1e-4));
    struct decimal out = {(int64_t)whole, decimals};
    const double nearest = ((double)out.whole * (double)UNIT + (double)out.decimals) / (double)UNIT;
    const bool outside = value < EXACT_MAX && (up ? nearest < value : nearest > value);
    if (outside || (open && fabs(scaled - round(scaled)) < 1e-3)) {
        out.decimals += up ? 1 : -1;
    }
    if (out.decimals >= UNIT) {
        out.whole++;
        out.decimals -= UNIT;
    } else if (out.decimals < 0) {
        out.whole--;
        out.decimals += UNIT;
    }
    return out;
}

static bool less(struct decimal a, struct decimal b) {
    return a.whole < b.whole || (a.whole == b.whole && a.decimals < b.decimals);
}

static double clamp(double value) {
    return fmax(fmin(value, (double)WHOLE_MAX), -(double)WHOLE_MAX);
}

/* One sign: numbers from `low` to `high`, none of them negative; false: there are none, and nothing is printed. */
static bool side(struct hearth_buf *out, const char *sign, double low, bool open_low, double high, bool open_high) {
    struct decimal from = bound(clamp(low), open_low && fabs(low) < (double)WHOLE_MAX, true);
    struct decimal to = bound(clamp(high), open_high && fabs(high) < (double)WHOLE_MAX, false);
    if (high >= (double)WHOLE_MAX) {
        to.decimals = UNIT - 1;
    }
    if (low >= (double)WHOLE_MAX || high < 0 || to.whole < 0 || less(to, from)) {
        return false;
    }
    hearth_buf_printf(out, "%s(", sign);
    positive(out, from, to);
    hearth_buf_text(out, ")");
    return true;
}

bool hearth_schema_range(double low, bool open_low, double high, bool open_high, struct hearth_buf *out) {
    bool below = false, above = false;
    hearth_buf_text(out, "(");
    if (low < 0) { /* -0 is left to the other side */
        below = side(out, "\"-\" ", high < 0 ? -high : 0, high >= 0 || open_high, -low, open_low);
    }
    if (high >= 0) {
        above = side(out, below ? " | " : "", low > 0 ? low : 0, low >= 0 && open_low, high, open_high);
    }
    hearth_buf_text(out, ")");
    return below || above;
}

void hearth_schema_whole_range(int64_t low, int64_t high, struct hearth_buf *out) {
    HEARTH_ASSERT(low <= high && low > INT64_MIN);
    hearth_buf_text(out, "(");
    if (low < 0) {
        hearth_buf_text(out, "\"-\" ");
        wholes(out, high < 0 ? -high : 1, -low);
    }
    if (high >= 0) {
        hearth_buf_text(out, low < 0 ? " | " : "");
        wholes(out, low > 0 ? low : 0, high);
    }
    hearth_buf_text(out, ")");
}
