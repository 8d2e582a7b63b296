/* Transcripts on sim's tokenizer: text in, exact tokens out. Prompts are written as ChatML by hand; a reply's text
 * "reads as" a message when it is the message's content, white space aside. */
#include "engine/sim.h"
#include "session/diagnose.h"
#include "session/message_cache.h"
#include "session/specials.h"
#include "session/transcript.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct hearth_engine *engine;
    struct hearth_transcripts *transcripts;
};

static void open_with(struct fixture *f, size_t budget_bytes) {
    struct hearth_sim_params params;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&params);
    assert_int_equal(hearth_sim_create(&params, &f->engine, &msg), HEARTH_OK);
    const struct hearth_transcripts_params transcripts = {
        .engine = f->engine, .turn_end = "<|im_end|>\n", .budget_bytes = budget_bytes};
    assert_int_equal(hearth_transcripts_create(&transcripts, &f->transcripts), HEARTH_OK);
}

static void close_all(struct fixture *f) {
    hearth_transcripts_check(f->transcripts);
    hearth_transcripts_destroy(f->transcripts);
    f->engine->ops->destroy(f->engine);
}

static struct hearth_message *say(enum hearth_role role, const char *content) {
    struct hearth_message *message = hearth_message_create(role);
    assert_non_null(message);
    message->content = strdup(content);
    message->content_len = strlen(content);
    assert_true(hearth_message_seal(message));
    return message;
}

static struct hearth_message *call(const char *id, const char *name, const char *arguments) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    assert_non_null(message);
    assert_true(hearth_message_alloc_calls(message, 1));
    message->calls[0].id = strdup(id);
    message->calls[0].name = strdup(name);
    message->calls[0].arguments = strdup(arguments);
    assert_true(hearth_message_seal(message));
    return message;
}

static bool reads_as_content(void *user, const struct hearth_transcript_print *print,
                             const struct hearth_message *message) {
    int *asked = user;
    struct hearth_message *read = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    read->content = strndup(print->text, print->len);
    read->content_len = print->len;
    assert_true(hearth_message_seal(read));
    bool same = hearth_message_equal(read, message);
    hearth_message_unref(read);
    ++*asked;
    return same;
}

static int asked;
static const struct hearth_digest no_salt;

static struct hearth_transcript_result tokenize(struct fixture *f, const char *text, struct hearth_message **messages,
                                                size_t count) {
    struct hearth_transcript_prompt prompt = {
        .text = text,
        .len = strlen(text),
        .root = hearth_transcript_root(NULL, NULL, no_salt),
        .messages = messages,
        .message_count = count,
        .reads = reads_as_content,
        .user = &asked,
        .marks = {strlen(text)},
    };
    struct hearth_transcript_result result;
    assert_int_equal(hearth_transcripts_tokenize(f->transcripts, &prompt, &result), HEARTH_OK);
    return result;
}

static void finish(struct fixture *f, struct hearth_transcript_result *result) {
    hearth_transcript_release(f->transcripts, result->place);
    hearth_tokens_finish(&result->tokens);
    hearth_transcript_fork_finish(&result->fork);
}

static void assert_tokens_of(struct fixture *f, const struct hearth_tokens *tokens, const char *text) {
    struct hearth_tokens own = {0};
    assert_int_equal(f->engine->ops->tokenize(f->engine, text, strlen(text), true, true, &own), HEARTH_OK);
    assert_int_equal(tokens->n, own.n);
    assert_memory_equal(tokens->v, own.v, own.n * sizeof *own.v);
    hearth_tokens_finish(&own);
}

#define HEAD "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
#define ANSWER "<|im_end|>\n<|im_start|>assistant\n"

/* Bytes, one token each: not what the tokenizer makes of them. */
static const hearth_token sampled[] = {' ', 't', 'h', 'e', ' ', 'e', 'n', 'd'};
enum { SAMPLED = sizeof sampled / sizeof sampled[0] };

static void text_is_tokenised_once(void **state) {
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    const char *first = HEAD "one" ANSWER;
    struct hearth_transcript_result a = tokenize(&f, first, NULL, 0);
    assert_tokens_of(&f, &a.tokens, first);
    assert_int_equal(a.known_tokens, 0);
    struct hearth_transcript_result b = tokenize(&f, first, NULL, 0);
    assert_tokens_of(&f, &b.tokens, first);
    assert_true(b.known_tokens > 0 && b.known_tokens < b.tokens.n);
    assert_false(b.fork.known);
    const char *other = HEAD "two" ANSWER;
    struct hearth_transcript_result c = tokenize(&f, other, NULL, 0);
    assert_tokens_of(&f, &c.tokens, other);
    assert_true(c.known_tokens > 0);
    assert_true(c.fork.known);
    assert_int_equal(c.fork.offset, strlen(HEAD));
    assert_int_equal(strncmp(c.fork.before, "one", 3), 0);
    assert_int_equal(strncmp(c.fork.after, "two", 3), 0);
    finish(&f, &a);
    finish(&f, &b);
    finish(&f, &c);
    close_all(&f);
}

/* A prompt, its reply, and what a client makes of it. */
static void converse(struct fixture *f, struct hearth_message **history, struct hearth_message *reply) {
    struct hearth_transcript_result result = tokenize(f, HEAD "one" ANSWER, history, 2);
    hearth_transcripts_remember(f->transcripts, result.place, reply, sampled, SAMPLED);
    finish(f, &result);
}

static void a_reply_keeps_its_tokens(void **state) {
    static const char *const prints[] = {" the end", "the end", "the end \n"};
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    struct hearth_message *reply = say(HEARTH_ROLE_ASSISTANT, " the end");
    struct hearth_message *history[4] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, "one")};
    converse(&f, history, reply);
    for (size_t i = 0; i < 3; i++) {
        char text[400];
        snprintf(text, sizeof text, HEAD "one" ANSWER "%s<|im_end|>\n<|im_start|>user\ngo on" ANSWER, prints[i]);
        history[2] = say(HEARTH_ROLE_ASSISTANT, prints[i]);
        history[3] = say(HEARTH_ROLE_USER, "go on");
        assert_int_equal(
            hearth_transcripts_restore(f.transcripts, hearth_transcript_root(NULL, NULL, no_salt), history, 4, true),
            1);
        assert_ptr_equal(history[2], reply);
        for (int again = 0; again < 2; again++) {
            int before = asked;
            struct hearth_transcript_result result = tokenize(&f, text, history, 4);
            assert_int_equal(result.sampled_tokens, SAMPLED);
            /* The tokens of the first prompt, those sampled, those of the rest. */
            struct hearth_tokens own = {0};
            const char *begin = HEAD "one" ANSWER, *rest = "<|im_end|>\n<|im_start|>user\ngo on" ANSWER;
            f.engine->ops->tokenize(f.engine, begin, strlen(begin), true, true, &own);
            assert_true(hearth_tokens_append(&own, sampled, SAMPLED));
            f.engine->ops->tokenize(f.engine, rest, strlen(rest), false, true, &own);
            assert_int_equal(result.tokens.n, own.n);
            assert_memory_equal(result.tokens.v, own.v, own.n * sizeof *own.v);
            hearth_tokens_finish(&own);
            finish(&f, &result);
            assert_true(again == 0 || asked == before); /* what a print reads as is asked once */
        }
        hearth_message_unref(history[2]);
        hearth_message_unref(history[3]);
    }
    hearth_message_unref(history[0]);
    hearth_message_unref(history[1]);
    hearth_message_unref(reply);
    close_all(&f);
}

static void an_edited_reply_is_text(void **state) {
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    struct hearth_message *reply = say(HEARTH_ROLE_ASSISTANT, " the end");
    struct hearth_message *history[3] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, "one")};
    converse(&f, history, reply);
    history[2] = say(HEARTH_ROLE_ASSISTANT, "the End");
    assert_int_equal(
        hearth_transcripts_restore(f.transcripts, hearth_transcript_root(NULL, NULL, no_salt), history, 3, true), 0);
    const char *text = HEAD "one" ANSWER "the End<|im_end|>\n";
    struct hearth_transcript_result result = tokenize(&f, text, history, 3);
    assert_tokens_of(&f, &result.tokens, text);
    assert_int_equal(result.sampled_tokens, 0);
    assert_true(result.fork.known);
    struct hearth_transcript_prompt prompt = {
        .root = hearth_transcript_root(NULL, NULL, no_salt), .messages = history, .message_count = 3};
    struct hearth_diagnosis diagnosis;
    hearth_diagnose(&result.fork, &prompt, &diagnosis);
    assert_string_equal(result.fork.before, " the end");
    finish(&f, &result);
    for (int i = 0; i < 3; i++) {
        hearth_message_unref(history[i]);
    }
    hearth_message_unref(reply);
    close_all(&f);
}

static void calls_are_compared_by_value(void **state) {
    static const struct {
        const char *id, *name, *arguments;
        bool found;
    } rows[] = {
        {"call_1", "read", "{\"path\": \"a\", \"n\": 1}", true},
        {"call_1", "read", "{\"n\":1,\"path\":\"a\"}", true},
        {"call_1", "read", "{\"n\":1,\"path\":\"\\u0061\"}", true},
        {"call_1", "read", "{\"n\":2,\"path\":\"a\"}", false},
        {"call_1", "read", "{\"n\":\"1\",\"path\":\"a\"}", false},
        {"call_1", "read", "{\"path\":\"a\"}", false},
        {"call_1", "write", "{\"n\":1,\"path\":\"a\"}", false},
        {"call_2", "read", "{\"n\":1,\"path\":\"a\"}", false},
    };
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    struct hearth_message *reply = call("call_1", "read", "{\"path\": \"a\", \"n\": 1}");
    struct hearth_message *history[3] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, "one")};
    converse(&f, history, reply);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        history[2] = call(rows[i].id, rows[i].name, rows[i].arguments);
        assert_int_equal(
            hearth_transcripts_restore(f.transcripts, hearth_transcript_root(NULL, NULL, no_salt), history, 3, true),
            rows[i].found);
        hearth_message_unref(history[2]);
    }
    /* Ids that are not printed do not matter. */
    history[2] = call("call_2", "read", "{\"n\":1,\"path\":\"a\"}");
    assert_int_equal(
        hearth_transcripts_restore(f.transcripts, hearth_transcript_root(NULL, NULL, no_salt), history, 3, false), 1);
    for (int i = 0; i < 3; i++) {
        hearth_message_unref(history[i]);
    }
    hearth_message_unref(reply);
    close_all(&f);
}

/* Remembers a reply that was thought of differently under other tools. */
static void think(struct fixture *f, struct hearth_message **history, struct hearth_transcript_root root,
                  const char *tools, const char *thought) {
    char text[200];
    snprintf(text, sizeof text, "<|im_start|>system\n%s" HEAD "one" ANSWER, tools);
    struct hearth_transcript_prompt prompt = {.text = text,
                                              .len = strlen(text),
                                              .root = root,
                                              .messages = history,
                                              .message_count = 2,
                                              .reads = reads_as_content,
                                              .user = &asked};
    struct hearth_message *reply = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    struct hearth_transcript_result result;
    reply->content = strdup(" the end");
    reply->content_len = strlen(reply->content);
    reply->reasoning = strdup(thought);
    assert_true(hearth_message_seal(reply));
    assert_int_equal(hearth_transcripts_tokenize(f->transcripts, &prompt, &result), HEARTH_OK);
    hearth_transcripts_remember(f->transcripts, result.place, reply, sampled, SAMPLED);
    hearth_message_unref(reply);
    finish(f, &result);
}

/* A reply is found whatever tools its request had; of several, the one that had those of this request. */
static void a_reply_is_found_under_other_tools(void **state) {
    static const char *const tools[] = {"one tool", "two tools", "three tools"};
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    struct hearth_message *history[3] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, "one")};
    for (int i = 0; i < 3; i++) {
        json_t *of[] = {json_string(tools[0]), json_string(tools[1]), json_string(tools[2])};
        if (i < 2) {
            think(&f, history, hearth_transcript_root(of[i], NULL, no_salt), tools[i], tools[i]);
        }
        for (int k = 0; k < 3; k++) {
            history[2] = say(HEARTH_ROLE_ASSISTANT, " the end");
            const struct hearth_transcript_root root = hearth_transcript_root(of[k], NULL, no_salt);
            assert_int_equal(hearth_transcripts_restore(f.transcripts, root, history, 3, true), 1);
            const int newest = i < 1 ? 0 : 1;
            assert_string_equal(history[2]->reasoning, tools[k <= newest ? k : newest]);
            hearth_message_unref(history[2]);
            json_decref(of[k]);
        }
    }
    hearth_message_unref(history[0]);
    hearth_message_unref(history[1]);
    close_all(&f);
}

static void memory_is_bounded(void **state) {
    struct fixture f;
    (void)state;
    open_with(&f, 20000);
    struct hearth_message *reply = say(HEARTH_ROLE_ASSISTANT, " the end");
    for (int i = 0; i < 300; i++) {
        char text[200];
        snprintf(text, sizeof text, HEAD "question %d" ANSWER, i);
        struct hearth_message *history[2] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, text)};
        struct hearth_transcript_result result = tokenize(&f, text, history, 2);
        assert_tokens_of(&f, &result.tokens, text);
        hearth_transcripts_remember(f.transcripts, result.place, reply, sampled, SAMPLED);
        finish(&f, &result);
        struct hearth_transcripts_stats stats;
        hearth_transcripts_stats(f.transcripts, &stats);
        assert_true(stats.bytes <= 20000);
        hearth_message_unref(history[0]);
        hearth_message_unref(history[1]);
        hearth_transcripts_check(f.transcripts);
    }
    hearth_message_unref(reply);
    close_all(&f);
}

static void control_tokens_are_found(void **state) {
    struct fixture f;
    (void)state;
    open_with(&f, 1 << 20);
    struct hearth_specials *specials = hearth_specials_create(f.engine, "<|im_end|>", NULL);
    assert_non_null(specials);
    const char *text = "a < b <|im_ <|im_end|><|im_start|>x";
    size_t len = strlen(text);
    assert_int_equal(hearth_specials_next(specials, text, len, 0), 12);
    assert_int_equal(hearth_specials_next(specials, text, len, 13), 22);
    assert_int_equal(hearth_specials_next(specials, text, len, 23), len);
    assert_int_equal(hearth_specials_turn_end(specials, text, len, 0), 12);
    assert_int_equal(hearth_specials_turn_end(specials, text, len, 13), len);
    hearth_specials_destroy(specials);
    close_all(&f);
}

static void messages_are_found_by_their_bytes(void **state) {
    (void)state;
    const struct hearth_digest salt = {1, 2}, other = {1, 3};
    struct hearth_message_cache *message_cache = hearth_message_cache_create(4000);
    struct hearth_message *message = say(HEARTH_ROLE_USER, "hello");
    assert_null(hearth_message_cache_get(message_cache, salt, "bytes", 5));
    hearth_message_cache_put(message_cache, salt, "bytes", 5, message);
    struct hearth_message *found = hearth_message_cache_get(message_cache, salt, "bytes", 5);
    assert_ptr_equal(found, message);
    hearth_message_unref(found);
    assert_null(hearth_message_cache_get(message_cache, salt, "byte", 4));
    assert_null(hearth_message_cache_get(message_cache, other, "bytes", 5)); /* of another tenant */
    struct hearth_message *theirs = say(HEARTH_ROLE_USER, "hello");
    hearth_message_cache_put(message_cache, other, "bytes", 5, theirs);
    found = hearth_message_cache_get(message_cache, other, "bytes", 5);
    assert_ptr_equal(found, theirs);
    hearth_message_unref(found);
    found = hearth_message_cache_get(message_cache, salt, "bytes", 5);
    assert_ptr_equal(found, message);
    hearth_message_unref(found);
    hearth_message_unref(theirs);
    for (int i = 0; i < 100; i++) {
        char bytes[16];
        snprintf(bytes, sizeof bytes, "%d", i);
        hearth_message_cache_put(message_cache, salt, bytes, strlen(bytes), message);
    }
    assert_null(hearth_message_cache_get(message_cache, salt, "bytes", 5));
    found = hearth_message_cache_get(message_cache, salt, "99", 2);
    assert_ptr_equal(found, message);
    hearth_message_unref(found);
    hearth_message_unref(message);
    hearth_message_cache_destroy(message_cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_tokenised_once),
        cmocka_unit_test(a_reply_keeps_its_tokens),
        cmocka_unit_test(an_edited_reply_is_text),
        cmocka_unit_test(calls_are_compared_by_value),
        cmocka_unit_test(a_reply_is_found_under_other_tools),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(control_tokens_are_found),
        cmocka_unit_test(messages_are_found_by_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
