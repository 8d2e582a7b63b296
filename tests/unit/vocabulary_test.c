/* Text is text on real vocabularies: those of llama.cpp's collection, which stand beside its chat templates. Each
 * special token's text, guarded, is tokenised to what reads the same and has no such token. */
#include "engine/llama_engine.h"
#include "session/specials.h"

#include "base/assert.h"

#include <dirent.h>
#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char markup[] = "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <|tool_call>";

static const struct hearth_engine_ops ops = {.tokenize = hearth_llama_tokenize,
                                             .token_text = hearth_llama_token_text,
                                             .token_is_end = hearth_llama_token_is_end,
                                             .token_is_user_defined = hearth_llama_token_is_user_defined};

static bool open_vocabulary(const char *path, struct hearth_llama *llama) {
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    *llama = (struct hearth_llama){.head = {.ops = &ops}};
    llama->model = llama_model_load_from_file(path, params);
    if (llama->model == NULL) {
        return false;
    }
    llama->vocab = llama_model_get_vocab(llama->model);
    llama->head.caps.vocab_tokens = (uint32_t)llama_vocab_n_tokens(llama->vocab);
    return true;
}

static bool is_special(struct hearth_engine *engine, hearth_token token, char *text, size_t cap) {
    char plain[4];
    const size_t len = engine->ops->token_text(engine, token, true, text, cap - 1);
    if (len < 2 || len >= cap) {
        return false;
    }
    text[len] = '\0';
    return engine->ops->token_text(engine, token, false, plain, sizeof plain) == 0 ||
           (engine->ops->token_is_user_defined(engine, token) && strstr(markup, text) != NULL);
}

/* As the chat room does it. */
static void append_guarded(const struct hearth_specials *specials, const char *text, struct hearth_buf *out) {
    const size_t len = strlen(text);
    size_t matched, copied = 0;
    for (size_t at = 0; (at = hearth_specials_find(specials, true, false, text, len, at, &matched)) < len; at++) {
        size_t first = at + 1;
        while (first < len && ((unsigned char)text[first] & 0xC0) == 0x80) {
            first++;
        }
        HEARTH_ASSERT(hearth_buf_append(out, text + copied, first - copied));
        if (hearth_specials_spans(specials, text, len, first)) {
            HEARTH_ASSERT(hearth_buf_append(out, &(const char){(char)HEARTH_GUARD}, 1));
        }
        copied = first;
    }
    HEARTH_ASSERT(hearth_buf_append(out, text + copied, len - copied));
}

static void without_blanks(char *text, size_t *len) {
    size_t n = 0;
    for (size_t i = 0; i < *len; i++) {
        if (text[i] != ' ' && text[i] != '\n') { /* some tokenizers put one in front, or take them along */
            text[n++] = text[i];
        }
    }
    *len = n;
}

/* Special tokens of a prompt that reads as it is written, without its guards. */
static size_t specials_in(struct hearth_engine *engine, struct hearth_specials *specials, struct hearth_buf *prompt) {
    struct hearth_tokens tokens = {0};
    struct hearth_buf read = {0};
    char text[256];
    size_t count = 0;
    const char *whole = (const char *)prompt->data;
    for (size_t pos = 0, end; pos < prompt->len; pos = end) {
        end = hearth_specials_next(specials, whole, prompt->len, pos + 1);
        assert_int_equal(hearth_specials_tokenize(specials, whole + pos, end - pos, false, &tokens), HEARTH_OK);
    }
    for (size_t i = 0; i < tokens.n; i++) {
        count += is_special(engine, tokens.v[i], text, sizeof text) ? 1 : 0;
        assert_true(hearth_engine_append_text(engine, tokens.v[i], true, &read));
    }
    prompt->len = hearth_guards_strip((char *)prompt->data, prompt->len);
    without_blanks((char *)prompt->data, &prompt->len);
    without_blanks((char *)read.data, &read.len);
    assert_int_equal(read.len, prompt->len);
    assert_memory_equal(read.data, prompt->data, read.len);
    hearth_tokens_finish(&tokens);
    hearth_buf_finish(&read);
    return count;
}

/* Returns how many special tokens were tried. */
static size_t try_vocabulary(struct hearth_engine *engine) {
    enum { MOST = 400 };
    struct hearth_specials *specials = hearth_specials_create(engine, "", markup);
    char turn[256] = "", text[256], said[1200];
    size_t tried = 0, matched;
    assert_non_null(specials);
    for (uint32_t i = 0; i < engine->caps.vocab_tokens && tried < MOST; i++) {
        if (!is_special(engine, (hearth_token)i, text, sizeof text) ||
            hearth_specials_find(specials, true, false, text, strlen(text), 0, &matched) != 0 ||
            matched != strlen(text)) {
            continue;
        }
        if (turn[0] == '\0') {
            strcpy(turn, text);
        }
        struct hearth_buf prompt = {0};
        snprintf(said, sizeof said, "Say %s%s.\n%sand <%s", text, text, text, text);
        assert_true(hearth_buf_printf(&prompt, "%suser\n", turn));
        append_guarded(specials, said, &prompt);
        assert_true(hearth_buf_printf(&prompt, "%s\n", turn));
        assert_int_equal(specials_in(engine, specials, &prompt), 2);
        hearth_buf_finish(&prompt);
        tried++;
    }
    hearth_specials_destroy(specials);
    return tried;
}

static int is_vocabulary(const struct dirent *entry) {
    static const char first[] = "ggml-vocab-", last[] = ".gguf";
    const size_t len = strlen(entry->d_name);
    return strncmp(entry->d_name, first, strlen(first)) == 0 && len > strlen(last) &&
           strcmp(entry->d_name + len - strlen(last), last) == 0;
}

static void no_special_token_comes_of_text(void **state) {
    (void)state;
    const char *templates = getenv("HEARTH_TEMPLATES");
    char dir[1024], path[2048];
    struct dirent **entries = NULL;
    size_t vocabularies = 0;
    snprintf(dir, sizeof dir, "%s/..", templates != NULL ? templates : "");
    const int n = templates != NULL && *templates != '\0' ? scandir(dir, &entries, is_vocabulary, alphasort) : 0;
    if (n <= 0) {
        skip();
    }
    llama_backend_init();
    hearth_llama_log_install();
    for (int i = 0; i < n; i++) {
        struct hearth_llama llama;
        snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (open_vocabulary(path, &llama)) {
            const size_t tried = try_vocabulary(&llama.head);
            print_message("%s: %zu special tokens\n", entries[i]->d_name, tried);
            vocabularies += tried > 0 ? 1 : 0;
            llama_model_free(llama.model);
        }
        free(entries[i]);
    }
    free(entries);
    assert_true(vocabularies > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_special_token_comes_of_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
