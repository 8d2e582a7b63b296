/* Text: tokens out of text and text out of tokens. Only the vocabulary is touched, which is constant after loading, so
 * every function here may run on any thread. */
#include "engine/llama_engine.h"

#include "base/cancel.h"
#include "base/utf8.h"

#include <limits.h>
#include <stdlib.h>

/* How much text a byte-pair vocabulary gets at once. Some vocabularies split text with regular expressions: their stack
 * grows with the match, by about 400 bytes a letter (threads that tokenise have room for twice a part: api/pool.c), and
 * some look ahead from every digit to the end of the number. Hardly any expression matches from blanks into what
 * follows them, so a part ends there. Text without such a place is cut where it becomes too long, and a number behind
 * 768 digits: three times a power of two, where expressions that take digits by threes end a match, too. */
#define PART_BYTES ((size_t)1 << 20)
#define LINE_BYTES_MAX 65536
#define RUN_BYTES 49152
#define DIGITS_MAX 768
/* A longer text is cut where a control token begins: each piece has so many bytes, and the rest up to the next such
 * token. */
#define CUT_BYTES ((size_t)8192)

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The end of the first run that is longer than allowed; `len`: there is none. */
static size_t run_end(const char *text, size_t len) {
    size_t begin = 0, digits = 0;
    for (size_t i = 0; i < len; i++) {
        if (i > 0 && is_blank(text[i]) != is_blank(text[i - 1])) {
            begin = i;
        }
        if (i - begin == RUN_BYTES) {
            return hearth_utf8_complete(text, i);
        }
        if (text[i] < '0' || text[i] > '9') {
            digits = 0;
        } else if (digits++ == DIGITS_MAX) {
            return i;
        }
    }
    return len;
}

/* The end of the first part of a text: behind a run; if the text is longer than a part, behind the part's last line,
 * unless that is too long, or before a character. */
static size_t part_end(const char *text, size_t len) {
    const size_t most = len < PART_BYTES ? len : PART_BYTES;
    const size_t run = run_end(text, most);
    if (run < most || most == len) {
        return run;
    }
    for (size_t end = most; end > most - LINE_BYTES_MAX; end--) {
        if (text[end - 1] == '\n') {
            return end;
        }
    }
    return hearth_utf8_complete(text, most);
}

static int tokenize_part(const struct hearth_llama *llama, const char *text, size_t len, bool add_special,
                         bool parse_special, struct hearth_tokens *out) {
    /* Text rarely has more tokens than a third of its bytes; if it has, the second attempt knows the number. */
    size_t room = len / 3 + 16;
    for (;;) {
        if (!hearth_tokens_reserve(out, room)) {
            return HEARTH_ERR_NOMEM;
        }
        int32_t n = llama_tokenize(llama->vocab, text, (int32_t)len, out->v + out->n, (int32_t)room, add_special,
                                   parse_special);
        if (n >= 0) {
            out->n += (size_t)n;
            return HEARTH_OK;
        }
        if (n == INT32_MIN || (size_t)-n <= room) {
            return HEARTH_ERR_TOO_LARGE;
        }
        room = (size_t)-n;
    }
}

/* Tokenises text with few or no control tokens. */
static int tokenize_piece(const struct hearth_llama *llama, const char *text, size_t len, bool add_special,
                          bool parse_special, struct hearth_tokens *out) {
    const bool parts = llama_vocab_type(llama->vocab) == LLAMA_VOCAB_TYPE_BPE;
    int err = hearth_cancel_poll();
    size_t part = len;
    while (err == HEARTH_OK && parts && (part = part_end(text, len)) < len &&
           (err = hearth_cancel_check()) == HEARTH_OK) {
        err = tokenize_part(llama, text, part, add_special, parse_special, out);
        add_special = false;
        text += part;
        len -= part;
    }
    return err == HEARTH_OK ? tokenize_part(llama, text, len, add_special, parse_special, out) : err;
}

/* A vocabulary that puts a token (EOS) behind a text gets texts whole, because only the last part may get it. */
static bool can_be_cut(const struct hearth_llama *llama, bool add_special) {
    const enum llama_vocab_type type = llama_vocab_type(llama->vocab);
    return (type == LLAMA_VOCAB_TYPE_BPE || type == LLAMA_VOCAB_TYPE_SPM) &&
           !(add_special && llama_vocab_get_add_eos(llama->vocab));
}

int hearth_llama_tokenize(struct hearth_engine *engine, const char *text, size_t len, bool add_special,
                          bool parse_special, struct hearth_tokens *out) {
    const struct hearth_llama *llama = hearth_llama_of(engine);
    const bool cut = len > CUT_BYTES && can_be_cut(llama, add_special);
    const size_t before = out->n;
    int err = len > INT32_MAX / 2 ? HEARTH_ERR_TOO_LARGE : HEARTH_OK;
    for (size_t at = 0; err == HEARTH_OK && (at < len || at == 0);) {
        const size_t end = cut && len - at > CUT_BYTES
                               ? hearth_llama_cuts_next(llama->cuts, text, len, at + CUT_BYTES, parse_special)
                               : len;
        err = tokenize_piece(llama, text + at, end - at, add_special && at == 0, parse_special, out);
        at = end > at ? end : SIZE_MAX;
    }
    out->n = err == HEARTH_OK ? out->n : before;
    return err;
}

size_t hearth_llama_token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    if (token < 0 || (uint32_t)token >= engine->caps.vocab_tokens) {
        return 0;
    }
    int32_t room = cap < INT32_MAX ? (int32_t)cap : INT32_MAX;
    int32_t n = llama_token_to_piece(llama->vocab, token, out, room, 0, special);
    if (n >= 0) {
        return (size_t)n;
    }
    /* It did not fit, and nothing was written: give the caller what it has room for. */
    size_t len = (size_t)-n;
    char *whole = malloc(len);
    if (whole != NULL) {
        llama_token_to_piece(llama->vocab, token, whole, -n, 0, special);
        for (size_t i = 0; i < cap && i < len; i++) {
            out[i] = whole[i];
        }
        free(whole);
    }
    return len;
}

bool hearth_llama_token_is_end(struct hearth_engine *engine, hearth_token token) {
    return token >= 0 && (uint32_t)token < engine->caps.vocab_tokens &&
           llama_vocab_is_eog(hearth_llama_of(engine)->vocab, token);
}

bool hearth_llama_token_is_user_defined(struct hearth_engine *engine, hearth_token token) {
    return token >= 0 && (uint32_t)token < engine->caps.vocab_tokens &&
           (llama_vocab_get_attr(hearth_llama_of(engine)->vocab, token) & LLAMA_TOKEN_ATTR_USER_DEFINED) != 0;
}

char *hearth_llama_token_string(struct hearth_llama *llama, hearth_token token) {
    size_t len = hearth_llama_token_text(&llama->head, token, true, NULL, 0);
    char *text = calloc(len + 1, 1);
    if (text != NULL && len > 0) {
        hearth_llama_token_text(&llama->head, token, true, text, len);
    }
    return text;
}
