/* Short conversations with transcripts in a database of their own, for the tests of their archive. One engine and one
 * directory at a time; cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_TALK_H
#define HEARTH_TESTS_SUPPORT_TALK_H

#include "engine/sim.h"
#include "session/transcript.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SECOND_US 1000000
#define HEAD "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
#define ANSWER "<|im_end|>\n<|im_start|>assistant\n"

extern const struct hearth_digest no_salt;
extern struct hearth_engine *engine;
extern char directory[64], path[96]; /* of this test; the database's */
extern atomic_int warnings;          /* lines logged as warnings or worse */
extern size_t memory_bytes;          /* what transcripts are opened with */
extern int reads_asked;              /* how often a text was asked for what it reads as */

/* With HEARTH_TEST_PG, the URL of a PostgreSQL server (tests/client/postgres.py), the database is there, and tests that
 * are about a file are skipped. */
bool on_server(void);
int64_t server_sql(const char *text); /* the first number that it gives */

/* Fixture of every test. */
int set_up(void **state);
int tear_down(void **state);

/* `at` NULL: memory only. */
struct hearth_transcripts *open_with(const char *at, const struct hearth_seal *seal, uint64_t path_bytes);
struct hearth_transcripts *open_plain(void);
/* Destroys, after a check. */
void close_checked(struct hearth_transcripts *transcripts);
/* How many files of the directory are like that. */
size_t files_like(const char *pattern, bool remove);

struct hearth_message *say(enum hearth_role role, const char *content);
struct hearth_transcript_prompt prompt_of(const char *text, struct hearth_message **messages, size_t count,
                                          struct hearth_digest salt);
void finish(struct hearth_transcripts *transcripts, struct hearth_transcript_result *result);

/* Says `answer` to `question`, sampled as its bytes, with reasoning. */
void teach(struct hearth_transcripts *transcripts, const char *question, const char *answer, struct hearth_digest salt);

struct heard {
    size_t restored, sampled;
    bool reasoning, forked;
    char before[64];
    bool right; /* the tokens are those sampled, between those of the text; or all are those of the text */
};

/* Sends the same conversation and one message more, and hears `then` (or nothing). */
struct heard ask_and_hear(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                          struct hearth_digest salt, const char *then);
struct heard ask(struct hearth_transcripts *transcripts, const char *question, const char *answer,
                 struct hearth_digest salt);
/* All was found, or nothing; and the tokens are right. */
void assert_known(struct heard heard, bool known);

#endif
