/* See talk.h. */
#include "support/talk.h"

#include "base/log.h"

#include <glob.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct hearth_digest no_salt;
struct hearth_engine *engine;
char directory[64], path[96];
atomic_int warnings;
int reads_asked;
size_t memory_bytes;

static void count_warnings(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    if (level >= HEARTH_LOG_WARN) {
        warnings++;
    }
    if (getenv("HEARTH_TEST_LOG") != NULL) {
        fprintf(stderr, "%s\n", line);
    }
}

/* ---- opening ---- */

bool on_server(void) {
    return getenv("HEARTH_TEST_PG") != NULL;
}

int64_t server_sql(const char *text) {
    PGconn *conn = PQconnectdb(getenv("HEARTH_TEST_PG"));
    PQclear(PQexec(conn, "SET search_path = hearth_transcripts; SET client_min_messages = warning"));
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK) {
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    }
    const int64_t number = PQntuples(result) > 0 ? strtoll(PQgetvalue(result, 0, 0), NULL, 10) : 0;
    PQclear(result);
    PQfinish(conn);
    return number;
}

struct hearth_transcripts *open_with(const char *at, const struct hearth_seal *seal, uint64_t path_bytes) {
    const struct hearth_transcripts_params params = {.engine = engine,
                                                     .turn_end = "<|im_end|>\n",
                                                     .budget_bytes = memory_bytes,
                                                     .path = at,
                                                     .seal = seal,
                                                     .path_bytes = path_bytes};
    struct hearth_transcripts *transcripts;
    assert_int_equal(hearth_transcripts_create(&params, &transcripts), HEARTH_OK);
    return transcripts;
}

struct hearth_transcripts *open_plain(void) {
    return open_with(path, NULL, 0);
}

void close_checked(struct hearth_transcripts *transcripts) {
    hearth_transcripts_check(transcripts);
    hearth_transcripts_destroy(transcripts);
}

int set_up(void **state) {
    struct hearth_sim_params params;
    struct hearth_errmsg msg;
    (void)state;
    hearth_sim_params_default(&params);
    assert_int_equal(hearth_sim_create(&params, &engine, &msg), HEARTH_OK);
    strcpy(directory, "/tmp/hearth-archive-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/transcripts.db", directory);
    if (on_server()) {
        snprintf(path, sizeof path, "%s", getenv("HEARTH_TEST_PG"));
        (void)server_sql("DROP SCHEMA IF EXISTS hearth_transcripts CASCADE");
    }
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_INFO);
    warnings = 0;
    memory_bytes = 4 << 20;
    return 0;
}

size_t files_like(const char *pattern, bool remove) {
    char full[160];
    glob_t found;
    snprintf(full, sizeof full, "%s/%s", directory, pattern);
    size_t count = glob(full, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    for (size_t i = 0; remove && i < count; i++) {
        unlink(found.gl_pathv[i]);
    }
    globfree(&found);
    return count;
}

int tear_down(void **state) {
    (void)state;
    (void)files_like("*", true);
    rmdir(directory);
    engine->ops->destroy(engine);
    return 0;
}

/* ---- talking ---- */

struct hearth_message *say(enum hearth_role role, const char *content) {
    struct hearth_message *message = hearth_message_create(role);
    assert_non_null(message);
    message->content = strdup(content);
    message->content_len = strlen(content);
    assert_true(hearth_message_seal(message));
    return message;
}

static bool reads_as_content(void *user, const struct hearth_transcript_print *print,
                             const struct hearth_message *message) {
    struct hearth_message *read = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    (void)user;
    reads_asked++;
    read->content = strndup(print->text, print->len);
    read->content_len = print->len;
    assert_true(hearth_message_seal(read));
    bool same = hearth_digest_equal(read->says, message->says);
    hearth_message_unref(read);
    return same;
}

struct hearth_transcript_prompt prompt_of(const char *text, struct hearth_message **messages, size_t count,
                                          struct hearth_digest salt) {
    return (struct hearth_transcript_prompt){.text = text,
                                             .len = strlen(text),
                                             .root = hearth_transcript_root(NULL, NULL, salt),
                                             .messages = messages,
                                             .message_count = count,
                                             .reads = reads_as_content};
}

void finish(struct hearth_transcripts *transcripts, struct hearth_transcript_result *result) {
    hearth_transcript_release(transcripts, result->place);
    hearth_tokens_finish(&result->tokens);
    hearth_transcript_fork_finish(&result->fork);
}

void teach(struct hearth_transcripts *transcripts, const char *question, const char *answer,
           struct hearth_digest salt) {
    struct hearth_message *history[2] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, question)};
    struct hearth_message *reply = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    struct hearth_transcript_result result;
    struct hearth_tokens sampled = {0};
    char text[4096];
    snprintf(text, sizeof text, HEAD "%s" ANSWER, question);
    struct hearth_transcript_prompt prompt = prompt_of(text, history, 2, salt);
    assert_int_equal(hearth_transcripts_tokenize(transcripts, &prompt, &result), HEARTH_OK);
    reply->content = strdup(answer);
    reply->content_len = strlen(answer);
    reply->reasoning = strdup("I think so.");
    assert_true(hearth_message_seal(reply));
    for (const char *byte = answer; *byte != '\0'; byte++) {
        assert_true(hearth_tokens_push(&sampled, *byte));
    }
    hearth_transcripts_remember(transcripts, result.place, reply, sampled.v, sampled.n);
    finish(transcripts, &result);
    hearth_tokens_finish(&sampled);
    for (int i = 0; i < 2; i++) {
        hearth_message_unref(history[i]);
    }
    hearth_message_unref(reply);
}

static void remember(struct hearth_transcripts *transcripts, const struct hearth_transcript_place *place,
                     const char *answer) {
    struct hearth_message *reply = say(HEARTH_ROLE_ASSISTANT, answer);
    const hearth_token sampled[] = {(unsigned char)answer[0]};
    hearth_transcripts_remember(transcripts, place, reply, sampled, 1);
    hearth_message_unref(reply);
}

struct heard ask_and_hear(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                          struct hearth_digest salt, const char *then) {
    static const char rest[] = "<|im_end|>\n<|im_start|>user\ngo on" ANSWER;
    struct hearth_message *history[4] = {say(HEARTH_ROLE_SYSTEM, "Be brief."), say(HEARTH_ROLE_USER, question),
                                         say(HEARTH_ROLE_ASSISTANT, answer), say(HEARTH_ROLE_USER, "go on")};
    struct hearth_transcript_result result;
    struct hearth_tokens own = {0};
    struct heard heard = {0};
    char text[4096];
    snprintf(text, sizeof text, HEAD "%s" ANSWER "%s%s", question, answer, rest);
    heard.restored =
        hearth_transcripts_restore(transcripts, hearth_transcript_root(NULL, NULL, salt), history, 4, true);
    heard.reasoning = history[2]->reasoning != NULL && strcmp(history[2]->reasoning, "I think so.") == 0;
    struct hearth_transcript_prompt prompt = prompt_of(text, history, 4, salt);
    assert_int_equal(hearth_transcripts_tokenize(transcripts, &prompt, &result), HEARTH_OK);
    heard.sampled = result.sampled_tokens;
    heard.forked = result.fork.known;
    memcpy(heard.before, result.fork.before, sizeof heard.before - 1);
    if (heard.sampled > 0) {
        size_t begin = strlen(text) - sizeof rest + 1 - strlen(answer);
        assert_int_equal(engine->ops->tokenize(engine, text, begin, true, true, &own), HEARTH_OK);
        for (const char *byte = answer; *byte != '\0' && *byte != '\f'; byte++) {
            assert_true(hearth_tokens_push(&own, *byte));
        }
        assert_int_equal(engine->ops->tokenize(engine, rest, sizeof rest - 1, false, true, &own), HEARTH_OK);
    } else {
        assert_int_equal(engine->ops->tokenize(engine, text, strlen(text), true, true, &own), HEARTH_OK);
    }
    heard.right = own.n == result.tokens.n && memcmp(own.v, result.tokens.v, own.n * sizeof *own.v) == 0;
    if (then != NULL) {
        remember(transcripts, result.place, then);
    }
    finish(transcripts, &result);
    hearth_tokens_finish(&own);
    for (int i = 0; i < 4; i++) {
        hearth_message_unref(history[i]);
    }
    return heard;
}

struct heard ask(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                 struct hearth_digest salt) {
    return ask_and_hear(transcripts, question, answer, salt, NULL);
}

void assert_known(struct heard heard, bool known) {
    assert_true(heard.right);
    assert_int_equal(heard.restored, known);
    assert_int_equal(heard.sampled > 0, known);
    assert_int_equal(heard.reasoning, known);
}
