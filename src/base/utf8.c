/* UTF-8, strictly as table 3-7 of the Unicode Standard has it: no overlong forms, no surrogates, nothing above
 * U+10FFFF.
 *
 * One scanner answers for all three functions: how many bytes at the front belong together, and whether they are a
 * character, the beginning of one that the text's end cuts off, or damage. Damage is as long as the bytes that could
 * still have begun a character (the standard's "maximal subpart"), so each such run becomes one U+FFFD. */
#include "base/utf8.h"

#include "base/assert.h"

enum utf8_piece { PIECE_CHARACTER, PIECE_UNFINISHED, PIECE_DAMAGE };

/* What may follow a lead byte: the number of bytes in all and the range of the second one. */
static const struct lead {
    uint8_t first, last, len, second_low, second_high;
} leads[] = {
    {0x00, 0x7F, 1, 0x00, 0x00}, {0xC2, 0xDF, 2, 0x80, 0xBF}, {0xE0, 0xE0, 3, 0xA0, 0xBF},
    {0xE1, 0xEC, 3, 0x80, 0xBF}, {0xED, 0xED, 3, 0x80, 0x9F}, {0xEE, 0xEF, 3, 0x80, 0xBF},
    {0xF0, 0xF0, 4, 0x90, 0xBF}, {0xF1, 0xF3, 4, 0x80, 0xBF}, {0xF4, 0xF4, 4, 0x80, 0x8F},
};

static enum utf8_piece scan(const uint8_t *s, size_t len, size_t *piece_len) {
    HEARTH_ASSERT(len > 0);
    const struct lead *lead = NULL;
    for (size_t i = 0; i < sizeof leads / sizeof leads[0] && !lead; i++) {
        if (s[0] >= leads[i].first && s[0] <= leads[i].last) {
            lead = &leads[i];
        }
    }
    *piece_len = 1;
    if (!lead) {
        return PIECE_DAMAGE;
    }
    for (size_t i = 1; i < lead->len; i++) {
        if (i == len) {
            return PIECE_UNFINISHED;
        }
        uint8_t low = i == 1 ? lead->second_low : 0x80;
        uint8_t high = i == 1 ? lead->second_high : 0xBF;
        if (s[i] < low || s[i] > high) {
            return PIECE_DAMAGE;
        }
        *piece_len = i + 1;
    }
    return PIECE_CHARACTER;
}

size_t hearth_utf8_complete(const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text;
    /* An unfinished character has 1 to 3 bytes: a lead byte and at most two more before the end. The nearest lead
     * byte from the end decides. */
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        size_t at = len - back;
        if ((s[at] & 0xC0) == 0x80) {
            continue;
        }
        size_t piece_len;
        return scan(s + at, back, &piece_len) == PIECE_UNFINISHED ? at : len;
    }
    return len;
}

size_t hearth_utf8_decode(const char *text, size_t len, uint32_t *code) {
    const uint8_t *s = (const uint8_t *)text;
    size_t n = 0;
    if (len == 0 || scan(s, len, &n) != PIECE_CHARACTER) {
        return 0;
    }
    *code = n == 1 ? s[0] : s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        *code = *code << 6 | (s[i] & 0x3Fu);
    }
    return n;
}

bool hearth_utf8_valid(const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text;
    for (size_t i = 0, n; i < len; i += n) {
        if (scan(s + i, len - i, &n) != PIECE_CHARACTER) {
            return false;
        }
    }
    return true;
}

bool hearth_utf8_append(struct hearth_buf *out, const char *text, size_t len) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const uint8_t *s = (const uint8_t *)text;
    size_t len_before = out->len;
    size_t good = 0; /* start of the run of whole characters that is not copied yet */
    bool ok = true;
    for (size_t i = 0, n; i < len && ok; i += n) {
        if (scan(s + i, len - i, &n) != PIECE_CHARACTER) {
            ok = hearth_buf_append(out, s + good, i - good) && hearth_buf_append(out, replacement, 3);
            good = i + n;
        }
    }
    ok = ok && hearth_buf_append(out, s + good, len - good) && hearth_buf_text(out, "");
    if (!ok) {
        out->len = len_before;
    }
    return ok;
}
