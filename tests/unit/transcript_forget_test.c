/* Deleting a conversation's text: it goes from memory and from the database, and what others need stays. */
#include "support/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tokens of a question as it was taught, then of its answer. */
static struct hearth_tokens path_of(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                                    struct hearth_digest salt, size_t *prompt_tokens) {
    struct hearth_message *history[2] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, question)};
    struct hearth_transcript_result result;
    struct hearth_tokens tokens = {0};
    char text[4096];
    snprintf(text, sizeof text, HEAD "%s" ANSWER, question);
    struct hearth_transcript_prompt prompt = prompt_of(text, history, 2, salt);
    assert_int_equal(hearth_transcripts_tokenize(transcripts, &prompt, &result), HEARTH_OK);
    assert_true(hearth_tokens_append(&tokens, result.tokens.v, result.tokens.n));
    *prompt_tokens = tokens.n;
    for (const char *byte = answer; *byte != '\0'; byte++) {
        assert_true(hearth_tokens_push(&tokens, *byte));
    }
    finish(transcripts, &result);
    hearth_message_unref(history[0]);
    hearth_message_unref(history[1]);
    return tokens;
}

static void forget(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                   struct hearth_digest salt, bool keep_prompt) {
    size_t prompt_tokens;
    struct hearth_tokens tokens = path_of(transcripts, question, answer, salt, &prompt_tokens);
    assert_true(hearth_transcripts_flush(transcripts, 20000000));
    assert_true(hearth_transcripts_forget(transcripts, salt, tokens.v, tokens.n, keep_prompt ? prompt_tokens : 0));
    hearth_transcripts_check(transcripts); /* the database still has it for a while, and finds it no more */
    hearth_tokens_finish(&tokens);
}

/* True when the files of the database hold a text. */
static bool is_written(const char *text) {
    char command[512];
    if (on_server()) {
        snprintf(command, sizeof command,
                 "SELECT (SELECT count(*) FROM replies WHERE position('%s'::bytea IN body) > 0)"
                 " + (SELECT count(*) FROM nodes WHERE position('%s'::bytea IN body) > 0)",
                 text, text);
        return server_sql(command) > 0;
    }
    snprintf(command, sizeof command, "cat %s* | grep -q -a -F '%s'", path, text);
    return system(command) == 0;
}

static void it_is_gone_from_memory(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_with(NULL, NULL, 0);
    struct hearth_transcripts_stats stats;
    teach(transcripts, "one", "the first", no_salt);
    teach(transcripts, "two", "the second", no_salt);
    forget(transcripts, "one", "the first", no_salt, false);
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    assert_known(ask(transcripts, "two", "the second", no_salt), true);
    forget(transcripts, "two", "the second", no_salt, false); /* something hangs on it: what ask() has asked */
    assert_known(ask(transcripts, "two", "the second", no_salt), true);
    forget(transcripts, "nobody has asked", "this", no_salt, false);
    hearth_transcripts_stats(transcripts, &stats);
    assert_int_equal(stats.replies, 1);
    close_checked(transcripts);
}

static void it_is_gone_from_the_database(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first answer", no_salt);
    teach(transcripts, "two", "the second answer", no_salt);
    close_checked(transcripts);
    assert_true(is_written("the first answer") && is_written("the second answer"));
    transcripts = open_plain(); /* found there, not in memory */
    forget(transcripts, "one", "the first answer", no_salt, false);
    close_checked(transcripts);
    assert_false(is_written("the first answer"));
    assert_true(is_written("the second answer"));
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first answer", no_salt), false);
    assert_known(ask(transcripts, "two", "the second answer", no_salt), true);
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

static void what_is_to_be_kept_stays(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    teach(transcripts, "one", "another first", no_salt);
    forget(transcripts, "one", "the first", no_salt, true);
    assert_known(ask(transcripts, "one", "another first", no_salt), true);
    assert_known(ask(transcripts, "one", "the first", no_salt), false);
    close_checked(transcripts);
}

static void other_tenants_keep_theirs(void **state) {
    (void)state;
    const struct hearth_digest salt = {7, 7};
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    teach(transcripts, "one", "the first", salt);
    forget(transcripts, "one", "the first", salt, false);
    assert_known(ask(transcripts, "one", "the first", salt), false);
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
}

/* The way to what is forgotten is looked for in the database; nothing else that hangs there comes into memory. */
static void nothing_else_is_loaded(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    struct hearth_transcripts_stats stats;
    char question[32];
    size_t prompt_tokens;
    for (int i = 0; i < 50; i++) {
        snprintf(question, sizeof question, "number %d", i);
        teach(transcripts, question, "the answer", no_salt);
    }
    struct hearth_tokens tokens = path_of(transcripts, "number 7", "the answer", no_salt, &prompt_tokens);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_true(hearth_transcripts_forget(transcripts, no_salt, tokens.v, tokens.n, 0));
    hearth_transcripts_stats(transcripts, &stats);
    assert_true(stats.nodes < 25);
    assert_known(ask(transcripts, "number 7", "the answer", no_salt), false);
    assert_known(ask(transcripts, "number 8", "the answer", no_salt), true);
    hearth_tokens_finish(&tokens);
    close_checked(transcripts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_gone_from_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_is_gone_from_the_database, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_to_be_kept_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_tenants_keep_theirs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_else_is_loaded, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("forgetting text", tests, NULL, NULL);
}
