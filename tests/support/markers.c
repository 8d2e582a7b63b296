/* See markers.h. The engine's own operations are called for everything between markers. */
#include "support/markers.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

enum { MARKERS_MOST = 256 };

static struct {
    struct hearth_engine_ops ops;
    const struct hearth_engine_ops *own;
    hearth_token first;
    char *texts[MARKERS_MOST];
    size_t n, control; /* the first so many are control tokens */
} markers;

static int tokenize(struct hearth_engine *engine, const char *text, size_t len, bool add_special, bool parse_special,
                    struct hearth_tokens *out) {
    size_t begin = 0, at = 0;
    const size_t first = parse_special ? 0 : markers.control;
    while (first < markers.n && at < len) {
        size_t best = markers.n;
        for (size_t i = first; i < markers.n; i++) {
            size_t n = strlen(markers.texts[i]);
            if (n <= len - at && memcmp(text + at, markers.texts[i], n) == 0 &&
                (best == markers.n || n > strlen(markers.texts[best]))) {
                best = i;
            }
        }
        if (best == markers.n) {
            at++;
            continue;
        }
        int err = markers.own->tokenize(engine, text + begin, at - begin, false, parse_special, out);
        if (err < 0 || !hearth_tokens_push(out, markers.first + (hearth_token)best)) {
            return err < 0 ? err : HEARTH_ERR_NOMEM;
        }
        begin = at += strlen(markers.texts[best]);
    }
    return markers.own->tokenize(engine, text + begin, len - begin, add_special, parse_special, out);
}

static size_t token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    if (token < markers.first) {
        return markers.own->token_text(engine, token, special, out, cap);
    }
    const size_t which = (size_t)(token - markers.first);
    const char *text = special || which >= markers.control ? markers.texts[which] : "";
    size_t len = strlen(text), copied = len < cap ? len : cap;
    if (copied > 0) {
        memcpy(out, text, copied);
    }
    return len;
}

static void add(const char *text, size_t len) {
    for (size_t i = 0; i < markers.n; i++) {
        if (strlen(markers.texts[i]) == len && memcmp(markers.texts[i], text, len) == 0) {
            return;
        }
    }
    if (markers.n < MARKERS_MOST) {
        markers.texts[markers.n++] = strndup(text, len);
    }
}

static bool is_user_defined(struct hearth_engine *engine, hearth_token token) {
    (void)engine;
    return token >= markers.first + (hearth_token)markers.control;
}

static void add_forms(const char *const *forms, size_t count, const char *template_text) {
    for (size_t i = 0; i < count; i++) {
        regex_t form;
        regmatch_t found;
        if (regcomp(&form, forms[i], REG_EXTENDED) != 0) {
            abort();
        }
        for (const char *at = template_text; regexec(&form, at, 1, &found, 0) == 0; at += found.rm_eo) {
            add(at + found.rm_so, (size_t)(found.rm_eo - found.rm_so));
        }
        regfree(&form);
    }
}

static void add_to(struct hearth_engine *engine, const char *template_text, bool words) {
    static const char *const forms[] = {
        "<\\|[A-Za-z_/-]+\\|>", "<\\|[a-z_\"]+>",          "<[a-z_]+\\|>", "<\xEF\xBD\x9C[^<>{}' ]{1,40}\xEF\xBD\x9C>",
        "\\[/?[A-Z_]{3,24}\\]", "<(start|end)_of_[a-z]+>", "</?s>",        "<SPECIAL_[0-9]+>"};
    static const char *const word_forms[] = {"</?(tool|think)[a-z_]*>"};
    markers_finish();
    markers.own = engine->ops;
    markers.ops = *engine->ops;
    markers.first = (hearth_token)engine->caps.vocab_tokens;
    add_forms(forms, sizeof forms / sizeof forms[0], template_text);
    markers.control = markers.n;
    if (words) {
        add_forms(word_forms, 1, template_text);
    }
    markers.ops.tokenize = tokenize;
    markers.ops.token_text = token_text;
    markers.ops.token_is_user_defined = is_user_defined;
    engine->ops = &markers.ops;
    engine->caps.vocab_tokens += (uint32_t)markers.n;
}

void markers_add(struct hearth_engine *engine, const char *template_text) {
    add_to(engine, template_text, false);
}

void markers_add_words(struct hearth_engine *engine, const char *template_text) {
    add_to(engine, template_text, true);
}

size_t markers_count(bool words) {
    return words ? markers.n : markers.control;
}

const char *markers_text(size_t i) {
    return markers.texts[i];
}

bool markers_is(hearth_token token) {
    return token >= markers.first;
}

void markers_finish(void) {
    for (size_t i = 0; i < markers.n; i++) {
        free(markers.texts[i]);
    }
    markers.n = 0;
}
