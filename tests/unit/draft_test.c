/* Drafts: against a naive search of the longest phrase, with texts that repeat themselves more or less, indexed in one
 * piece and in slices. */
#include "sched/draft.h"

#include "support/random.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct hearth_tokens text_of(const char *text) {
    struct hearth_tokens tokens = {0};
    for (const char *c = text; *c != '\0'; c++) {
        assert_true(hearth_tokens_push(&tokens, *c));
    }
    return tokens;
}

/* What is guessed behind a text, as text. */
static void assert_guess(const char *text, const char *want, int want_match) {
    struct hearth_tokens tokens = text_of(text);
    struct hearth_draft draft = {0};
    hearth_token out[16];
    char got[17] = "";
    int match;
    assert_true(hearth_draft_index(&draft, tokens.v, tokens.n, SIZE_MAX));
    size_t n = hearth_draft_find(&draft, tokens.v, tokens.n, out, strlen(want) > 0 ? strlen(want) : 4, &match);
    for (size_t i = 0; i < n; i++) {
        got[i] = (char)out[i];
    }
    assert_string_equal(got, want);
    assert_int_equal(match, want_match);
    hearth_draft_finish(&draft);
    hearth_tokens_finish(&tokens);
}

static void phrases(void **state) {
    (void)state;
    assert_guess("", "", 0);
    assert_guess("ab", "", 0);
    assert_guess("abc", "", 0);
    assert_guess("abcdefg", "", 0);
    assert_guess("abcde-abc", "de-a", 3);
    assert_guess("xabc1.yabc2.xabc", "1.ya", 4); /* the longer phrase */
    assert_guess("xabc1yabc2zabc", "2zab", 3);   /* among equals the last */
    assert_guess("+++++", "++++", 4);            /* a period goes on */
    assert_guess("1,2,3,1,2,3,1,2,", "3,1,2,3,1,", 10);
    assert_guess("ab.ab", "", 0); /* two tokens say nothing */
}

/* The longest phrase before the end that stood before; no bound on how far back. */
static int naive_match(const hearth_token *tokens, size_t n, size_t *at) {
    int best = 0;
    for (size_t i = n - 1; i >= HEARTH_DRAFT_PHRASE; i--) {
        int length = 0;
        while (length < HEARTH_DRAFT_MATCH_MAX && (size_t)length < i &&
               tokens[i - 1 - (size_t)length] == tokens[n - 1 - (size_t)length]) {
            length++;
        }
        if (length > best) {
            best = length;
            *at = i;
        }
    }
    return best >= HEARTH_DRAFT_PHRASE ? best : 0;
}

static void as_a_search_finds(void **state) {
    (void)state;
    struct rng rng = {.state = 7};
    for (int round = 0; round < 40; round++) {
        struct hearth_tokens tokens = {0};
        struct hearth_draft draft = {0};
        uint32_t kinds = 50 + (uint32_t)rng_below(&rng, 2000); /* phrases repeat, and chains are not long */
        for (int i = 0; i < 1500; i++) {
            size_t copy = tokens.n > 40 && rng_below(&rng, 8) == 0 ? 3 + rng_below(&rng, 40) : 0;
            size_t from = copy > 0 && copy < tokens.n ? rng_below(&rng, (uint32_t)(tokens.n - copy)) : 0;
            for (size_t k = 0; k < copy && copy < tokens.n; k++) {
                assert_true(hearth_tokens_push(&tokens, tokens.v[from + k]));
            }
            assert_true(hearth_tokens_push(&tokens, (hearth_token)rng_below(&rng, kinds)));
            bool all = hearth_draft_index(&draft, tokens.v, tokens.n, round % 2 ? SIZE_MAX : 100);
            assert_true(all || round % 2 == 0);
            if (!all || i % 16 != 0 || tokens.n < 5) {
                continue;
            }
            hearth_token out[8];
            int match;
            size_t at = 0, n = hearth_draft_find(&draft, tokens.v, tokens.n, out, 8, &match);
            int want = naive_match(tokens.v, tokens.n, &at);
            assert_true(match <= want);
            assert_true((match > 0) == (want > 0) && (n > 0) == (match > 0));
            if (match == want && n > 0) {
                for (size_t k = 0; k < 8 && at + k < tokens.n; k++) {
                    assert_int_equal(out[k], tokens.v[at + k]);
                }
            }
        }
        hearth_draft_finish(&draft);
        hearth_tokens_finish(&tokens);
    }
}

/* The memory that is stated. */
static void bounded(void **state) {
    (void)state;
    struct hearth_tokens tokens = {0};
    struct hearth_draft draft = {0};
    for (size_t i = 0; i < 100000; i++) {
        assert_true(hearth_tokens_push(&tokens, (hearth_token)(i % 977)));
        (void)hearth_draft_index(&draft, tokens.v, tokens.n, 64);
        assert_true(tokens.n < 1024 || 2 * draft.room * sizeof *draft.prev <= 16 * tokens.n);
    }
    assert_true(hearth_draft_index(&draft, tokens.v, tokens.n, SIZE_MAX));
    hearth_draft_finish(&draft);
    hearth_tokens_finish(&tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phrases),
        cmocka_unit_test(as_a_search_finds),
        cmocka_unit_test(bounded),
    };
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
