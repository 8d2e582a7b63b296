/* Transcripts that outlive the process: what was remembered is found again after a restart with exactly the same
 * tokens, also by another process, and never by another tenant or without the key. */
#include "session/archive.h"
#include "session/diagnose.h"
#include "support/random.h"
#include "support/talk.h"

#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- restarts ---- */

static void a_reply_outlives_the_process(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    teach(transcripts, "two", "the second", no_salt);
    close_checked(transcripts);
    for (int i = 0; i < 2; i++) {
        transcripts = open_plain();
        assert_known(ask(transcripts, "one", "the first", no_salt), true);
        assert_known(ask(transcripts, "two", "the second", no_salt), true);
        assert_known(ask(transcripts, "two", "the first", no_salt), false);
        assert_known(ask(transcripts, "three", "the first", no_salt), false);
        close_checked(transcripts);
    }
    struct stat st;
    assert_true(on_server() || (stat(path, &st) == 0 && (st.st_mode & 0777) == 0600));
    assert_int_equal(warnings, 0);
}

static void a_finished_turn_survives_a_kill(void **state) {
    (void)state;
    int sync[2];
    assert_int_equal(pipe(sync), 0);
    pid_t child = fork();
    if (child == 0) {
        struct hearth_transcripts *transcripts = open_plain();
        teach(transcripts, "one", "the first", no_salt);
        bool flushed = hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US);
        teach(transcripts, "two", "the second", no_salt); /* perhaps, perhaps not */
        (void)!write(sync[1], &flushed, 1);
        pause();
    }
    bool flushed = false;
    assert_int_equal(read(sync[0], &flushed, 1), 1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(sync[0]);
    close(sync[1]);
    assert_true(flushed);
    struct hearth_transcripts *transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    assert_true(ask(transcripts, "two", "the second", no_salt).right);
    close_checked(transcripts);
}

/* What a fork is explained with comes back, too. */
static void an_edit_is_seen_after_a_restart(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    close_checked(transcripts);
    transcripts = open_plain();
    struct hearth_message *history[3] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, "one"),
                                         say(HEARTH_ROLE_ASSISTANT, "the last")};
    struct hearth_transcript_prompt prompt = prompt_of(HEAD "one" ANSWER "the last<|im_end|>\n", history, 3, no_salt);
    struct hearth_transcript_result result;
    struct hearth_diagnosis diagnosis;
    assert_int_equal(hearth_transcripts_tokenize(transcripts, &prompt, &result), HEARTH_OK);
    assert_true(result.fork.known);
    assert_string_equal(result.fork.before, "first");
    hearth_diagnose(&result.fork, &prompt, &diagnosis);
    assert_int_equal(diagnosis.cause, HEARTH_CAUSE_EDITED);
    assert_int_equal(diagnosis.message, 2);
    finish(transcripts, &result);
    for (int i = 0; i < 3; i++) {
        hearth_message_unref(history[i]);
    }
    close_checked(transcripts);
}

/* What a text reads as is asked once, whatever happens in between; also where it could be cut within. */
static void a_print_outlives_the_process(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "first <|im_start|> last", no_salt);
    assert_known(ask_and_hear(transcripts, "one", "first <|im_start|> last\f", no_salt, "more"), true);
    close_checked(transcripts);
    transcripts = open_plain();
    reads_asked = 0;
    assert_known(ask(transcripts, "one", "first <|im_start|> last\f", no_salt), true);
    assert_int_equal(reads_asked, 0);
    close_checked(transcripts);
}

/* Rows that something else has taken away are written again, with all that the conversation had. */
static void what_is_lost_is_written_again(void **state) {
    (void)state;
    struct hearth_transcripts_stats stats;
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "the first", no_salt);
    assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    static const char all[] = "DELETE FROM nodes; DELETE FROM replies; DELETE FROM records";
    sqlite3 *db;
    if (on_server()) {
        (void)server_sql(all);
    } else {
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, all, NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    for (int i = 0; i < 2; i++) { /* the first time finds out */
        assert_known(ask_and_hear(transcripts, "one", "the first", no_salt, "more"), true);
        assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    }
    hearth_transcripts_stats(transcripts, &stats);
    assert_true(stats.archive.dropped > 0);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    close_checked(transcripts);
}

/* ---- another database ---- */

static void copy_all(const char *file, uint64_t *count) {
    const struct hearth_archive_params source = {.path = file, .limit_bytes = UINT64_MAX},
                                       target = {.path = path, .limit_bytes = UINT64_MAX};
    struct hearth_archive *from, *to;
    assert_true(hearth_archive_is(file));
    assert_int_equal(hearth_archive_create(&source, &from), HEARTH_OK);
    assert_int_equal(hearth_archive_create(&target, &to), HEARTH_OK);
    assert_int_equal(hearth_archive_copy(from, to, count), HEARTH_OK);
    hearth_archive_destroy(from);
    hearth_archive_destroy(to);
}

/* What a file has is known from the database that it is put into, which has conversations of its own. */
static void all_of_a_file_goes_into_another_database(void **state) {
    (void)state;
    const struct hearth_digest salt = {7, 7};
    uint64_t first = 0, again = 0;
    char file[128];
    (void)snprintf(file, sizeof file, "%s/file", directory);
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "one", "from here", no_salt);
    close_checked(transcripts);
    transcripts = open_with(file, NULL, 0);
    teach(transcripts, "one", "the first", no_salt);
    teach(transcripts, "one", "another one", no_salt);
    teach(transcripts, "two", "the second", salt);
    assert_known(ask_and_hear(transcripts, "two", "the second", salt, "more"), true);
    close_checked(transcripts);
    copy_all(file, &first);
    copy_all(file, &again);
    assert_true(first > 6 && again == first);
    transcripts = open_plain();
    assert_known(ask(transcripts, "one", "from here", no_salt), true);
    assert_known(ask(transcripts, "one", "the first", no_salt), true);
    assert_known(ask(transcripts, "one", "another one", no_salt), true);
    assert_known(ask(transcripts, "two", "the second", salt), true);
    assert_known(ask(transcripts, "two", "the second", no_salt), false);
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

/* ---- random conversations, with restarts and without ---- */

#define CONVERSATIONS 5
#define MESSAGES_MAX 24

struct talk {
    struct hearth_message *messages[MESSAGES_MAX];
    size_t count;
};

static struct rng rng;

static const char *random_text(char *out, size_t cap) {
    static const char *const words[] = {"alpha", "be", " ", "\n", "caf\xC3\xA9", "delta", "<", "e", "0"};
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t n = 1 + rng_below(&rng, 6); n > 0; n--) {
        len += (size_t)snprintf(out + len, cap - len, "%s", words[rng_below(&rng, sizeof words / sizeof words[0])]);
    }
    return out;
}

/* As a template would print it, with white space around replies that changes. */
static void print_talk(const struct talk *talk, const char *pad, size_t from, char *out, size_t cap) {
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = from; i < talk->count; i++) {
        const struct hearth_message *message = talk->messages[i];
        const char *space = message->role == HEARTH_ROLE_ASSISTANT ? pad : "";
        len += (size_t)snprintf(out + len, cap - len, "<|im_start|>%s\n%s%s<|im_end|>\n",
                                hearth_role_text(message->role), message->content, space);
    }
    snprintf(out + len, cap - len, "<|im_start|>assistant\n");
}

struct turn_result {
    struct hearth_transcript_result result;
    size_t restored;
    struct hearth_message *last; /* as it was sampled */
};

static struct turn_result turn(struct hearth_transcripts *transcripts, const struct talk *talk, const char *text,
                               size_t keep, struct hearth_digest salt) {
    struct hearth_message *messages[MESSAGES_MAX];
    struct turn_result turn = {.restored = 0};
    for (size_t i = 0; i < talk->count; i++) {
        messages[i] = hearth_message_ref(talk->messages[i]);
    }
    struct hearth_transcript_root root = hearth_transcript_root(NULL, NULL, salt);
    turn.restored = hearth_transcripts_restore(transcripts, root, messages, talk->count, true);
    struct hearth_transcript_prompt prompt = prompt_of(text, messages, talk->count, salt);
    prompt.prefix_messages = keep > 0 && messages[keep - 1] != talk->messages[keep - 1] ? keep : 0;
    char tail[8192];
    if (prompt.prefix_messages > 0) {
        print_talk(talk, "", keep, tail, sizeof tail);
        memmove(tail + strlen("<|im_end|>\n"), tail, strlen(tail) + 1);
        memcpy(tail, "<|im_end|>\n", strlen("<|im_end|>\n"));
        prompt.text = tail;
        prompt.len = strlen(tail);
    }
    assert_int_equal(hearth_transcripts_tokenize(transcripts, &prompt, &turn.result), HEARTH_OK);
    for (size_t i = 0; i < talk->count; i++) {
        hearth_message_unref(messages[i]);
    }
    return turn;
}

static void assert_same(const struct turn_result *a, const struct turn_result *b) {
    assert_int_equal(a->restored, b->restored);
    assert_int_equal(a->result.sampled_tokens, b->result.sampled_tokens);
    assert_int_equal(a->result.tokens.n, b->result.tokens.n);
    assert_memory_equal(a->result.tokens.v, b->result.tokens.v, a->result.tokens.n * sizeof(hearth_token));
}

static void one_turn(struct hearth_transcripts *steady, struct hearth_transcripts *restarted, struct talk *talk,
                     struct hearth_digest salt, int *forks, int *same_forks) {
    static const char *const pads[] = {"", "", " ", "\n"};
    char text[8192], words[128];
    while (talk->count + 2 > MESSAGES_MAX || (talk->count > 2 && rng_once_in(&rng, 8))) { /* goes back */
        hearth_message_unref(talk->messages[--talk->count]);
        hearth_message_unref(talk->messages[--talk->count]);
    }
    talk->messages[talk->count++] = say(HEARTH_ROLE_USER, random_text(words, sizeof words));
    print_talk(talk, pads[rng_below(&rng, 4)], 0, text, sizeof text);
    size_t keep = talk->count > 1 && rng_once_in(&rng, 4) ? talk->count - 1 : 0;
    struct turn_result a = turn(steady, talk, text, keep, salt), b = turn(restarted, talk, text, keep, salt);
    assert_same(&a, &b);
    *forks += a.result.fork.known;
    *same_forks += a.result.fork.known && b.result.fork.known && a.result.fork.offset == b.result.fork.offset;
    struct hearth_message *reply = say(HEARTH_ROLE_ASSISTANT, random_text(words, sizeof words));
    struct hearth_tokens sampled = {0};
    for (const char *byte = words; *byte != '\0'; byte++) {
        assert_true(hearth_tokens_push(&sampled, (unsigned char)*byte));
    }
    hearth_transcripts_remember(steady, a.result.place, reply, sampled.v, sampled.n);
    hearth_transcripts_remember(restarted, b.result.place, reply, sampled.v, sampled.n);
    hearth_tokens_finish(&sampled);
    hearth_message_unref(reply);
    talk->messages[talk->count++] = say(HEARTH_ROLE_ASSISTANT, words); /* as the client sends it */
    finish(steady, &a.result);
    finish(restarted, &b.result);
}

/* Of two that are told the same, one keeps all in memory and the other is restarted, or has little memory. */
static void play(bool little) {
    rng.state = seed_announced(20261122);
    struct hearth_transcripts *steady = open_with(NULL, NULL, 0);
    memory_bytes = little ? 30000 : memory_bytes;
    struct hearth_transcripts *restarted = open_with(path, NULL, 64 << 20);
    struct talk talks[CONVERSATIONS] = {{.count = 0}};
    int forks = 0, same_forks = 0, restarts = 0;
    for (int i = 0; i < 400; i++) {
        if (little) { /* what has left memory before it was on disk is lost */
            assert_true(hearth_transcripts_flush(restarted, 20 * (int64_t)SECOND_US));
        } else if (rng_once_in(&rng, 10)) {
            close_checked(restarted);
            restarted = open_with(path, NULL, 64 << 20);
            restarts++;
        }
        uint32_t which = rng_below(&rng, CONVERSATIONS);
        struct hearth_digest salt = {which % 2, 0};
        one_turn(steady, restarted, &talks[which], salt, &forks, &same_forks);
    }
    printf("%d restarts; %d of %d forks are told alike\n", restarts, same_forks, forks);
    struct hearth_transcripts_stats stats;
    hearth_transcripts_stats(restarted, &stats);
    assert_true(little ? stats.evicted > 1000 && stats.bytes <= memory_bytes : restarts > 10 && same_forks > forks / 2);
    for (int i = 0; i < CONVERSATIONS; i++) {
        while (talks[i].count > 0) {
            hearth_message_unref(talks[i].messages[--talks[i].count]);
        }
    }
    close_checked(steady);
    close_checked(restarted);
    assert_int_equal(warnings, 0);
}

static void restarts_change_no_token(void **state) {
    (void)state;
    play(false);
}

static void little_memory_changes_no_token(void **state) {
    (void)state;
    play(true);
}

/* ---- several at once ---- */

static void two_processes_share(void **state) {
    (void)state;
    struct hearth_transcripts *a = open_plain(), *b = open_plain();
    assert_known(ask(b, "one", "the first", no_salt), false);
    teach(a, "one", "the first", no_salt);
    assert_true(hearth_transcripts_flush(a, 20 * (int64_t)SECOND_US));
    teach(b, "two", "the second", no_salt);
    assert_true(hearth_transcripts_flush(b, 20 * (int64_t)SECOND_US));
    assert_true(ask(b, "one", "the first", no_salt).right);
    assert_int_equal(ask(b, "one", "the first", no_salt).restored, 1);
    assert_known(ask(a, "two", "the second", no_salt), true);
    close_checked(a);
    assert_known(ask(b, "two", "the second", no_salt), true);
    close_checked(b);
    assert_int_equal(warnings, 0);
}

/* ---- at the same time ---- */

enum { WRITERS = 3, TAUGHT = 40 };

static void teach_many(struct hearth_transcripts *transcripts, int writer) {
    char question[32];
    for (int i = 0; i < TAUGHT; i++) {
        snprintf(question, sizeof question, "%d of %d", i, i % 4 == 0 ? 0 : writer);
        teach(transcripts, question, "the same", no_salt);
        assert_known(ask(transcripts, question, "the same", no_salt), true);
    }
}

static void assert_taught(void) {
    char question[32];
    struct hearth_transcripts *transcripts = open_plain();
    for (int writer = 1; writer <= WRITERS; writer++) {
        for (int i = 0; i < TAUGHT; i++) {
            snprintf(question, sizeof question, "%d of %d", i, i % 4 == 0 ? 0 : writer);
            assert_known(ask(transcripts, question, "the same", no_salt), true);
        }
    }
    close_checked(transcripts);
    assert_int_equal(warnings, 0);
}

struct writer {
    pthread_t thread;
    struct hearth_transcripts *transcripts;
    int number;
};

static void *write_as_thread(void *user) {
    struct writer *writer = user;
    teach_many(writer->transcripts, writer->number);
    return NULL;
}

static void threads_write_at_once(void **state) {
    (void)state;
    struct hearth_transcripts *transcripts = open_plain();
    struct writer writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.transcripts = transcripts, .number = i + 1};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_as_thread, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
    }
    close_checked(transcripts);
    assert_taught();
}

static void processes_write_at_once(void **state) {
    (void)state;
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct hearth_transcripts *transcripts = open_plain(); /* all of them begin the database */
            teach_many(transcripts, i + 1);
            close_checked(transcripts);
            _exit(warnings != 0);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_taught();
}

/* ---- tenants ---- */

static void tenants_see_nothing_of_each_other(void **state) {
    (void)state;
    const struct hearth_digest salts[] = {{0, 0}, {1, 2}, {2, 1}};
    struct hearth_transcripts *transcripts = open_plain();
    for (int restart = 0; restart < 3; restart++) {
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 3; j++) {
                char question[16];
                snprintf(question, sizeof question, "%d", i);
                if (i == j && restart == 0) {
                    teach(transcripts, question, "the first", salts[j]);
                }
                if (restart > 0) {
                    struct heard heard = ask(transcripts, question, "the first", salts[j]);
                    assert_known(heard, i == j);
                    /* What it is compared with is the tenant's own. */
                    assert_true(!heard.forked || i != j);
                    assert_null(i != j ? strchr(heard.before, (char)('0' + i)) : NULL);
                }
            }
        }
        close_checked(transcripts);
        transcripts = open_plain();
    }
    close_checked(transcripts);
}

/* Two tenants that say the same: the second is told nothing. */
static void a_tenant_is_not_told_of_a_fork(void **state) {
    (void)state;
    const struct hearth_digest salt = {7, 7};
    struct hearth_transcripts *transcripts = open_plain();
    teach(transcripts, "a secret", "kept", no_salt);
    struct heard heard = ask(transcripts, "a guess", "kept", salt);
    assert_false(heard.forked);
    assert_string_equal(heard.before, "");
    close_checked(transcripts);
    transcripts = open_plain();
    heard = ask(transcripts, "a guess", "kept", salt);
    assert_false(heard.forked);
    heard = ask(transcripts, "a guess", "kept", no_salt);
    assert_true(heard.forked);
    close_checked(transcripts);
}

/* ---- keys ---- */

static struct hearth_seal *key_of(const char *name, const char *bytes) {
    char file[128];
    struct hearth_seal *seal;
    struct hearth_errmsg msg;
    snprintf(file, sizeof file, "%s/%s", directory, name);
    FILE *f = fopen(file, "w");
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    fprintf(f, "%s", bytes);
    fclose(f);
    assert_int_equal(hearth_seal_create(file, &seal, &msg), HEARTH_OK);
    return seal;
}

static bool file_holds(const char *file, const char *text) {
    FILE *f = fopen(file, "r");
    if (f == NULL) {
        return false;
    }
    static char bytes[1 << 20];
    size_t len = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return memmem(bytes, len, text, strlen(text)) != NULL;
}

static void with_a_key_nothing_can_be_read(void **state) {
    (void)state;
    struct hearth_seal *key = key_of("key", "0123456789abcdef0123456789abcdef");
    struct hearth_seal *other = key_of("other", "0123456789abcdef0123456789abcdeF");
    struct hearth_transcripts *transcripts = open_with(path, key, 0);
    char wal[128];
    snprintf(wal, sizeof wal, "%s-wal", path);
    teach(transcripts, "a plain question", "an answer in clear words", no_salt);
    assert_true(hearth_transcripts_flush(transcripts, 20 * (int64_t)SECOND_US));
    assert_false(file_holds(wal, "question") || file_holds(wal, "clear words") || file_holds(wal, "brief"));
    close_checked(transcripts);
    assert_false(file_holds(path, "question") || file_holds(path, "clear words") || file_holds(path, "brief"));
    transcripts = open_with(path, other, 0);
    assert_known(ask(transcripts, "a plain question", "an answer in clear words", no_salt), false);
    close_checked(transcripts);
    transcripts = open_plain();
    assert_known(ask(transcripts, "a plain question", "an answer in clear words", no_salt), false);
    teach(transcripts, "a plain question", "an answer in clear words", no_salt);
    close_checked(transcripts);
    assert_true(on_server() || file_holds(path, "clear words"));
    transcripts = open_with(path, key, 0);
    assert_known(ask(transcripts, "a plain question", "an answer in clear words", no_salt), true);
    close_checked(transcripts);
    hearth_seal_destroy(key);
    hearth_seal_destroy(other);
    assert_int_equal(warnings, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_reply_outlives_the_process),
        TEST(a_finished_turn_survives_a_kill),
        TEST(an_edit_is_seen_after_a_restart),
        TEST(a_print_outlives_the_process),
        TEST(what_is_lost_is_written_again),
        TEST(all_of_a_file_goes_into_another_database),
        TEST(restarts_change_no_token),
        TEST(little_memory_changes_no_token),
        TEST(two_processes_share),
        TEST(threads_write_at_once),
        TEST(processes_write_at_once),
        TEST(tenants_see_nothing_of_each_other),
        TEST(a_tenant_is_not_told_of_a_fork),
        TEST(with_a_key_nothing_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
