/* Guessed tokens on real models: computed together they give the logits that they give alone, to the bit, also in a
 * context in which attention is divided among threads and across the step at which it grows; taken back, the state is
 * what it was; and whole replies are the same with guesses and without, with what was cached afterwards, too.
 *
 * HEARTH_REAL_TOKENS: how many tokens each model generates (default 1,000, in replies of 250). */
#include "models.h"

#include "base/assert.h"
#include "engine/checkpoint.h"
#include "sched/service.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODELS = 4 };
static const char *const names[] = {"tiny", "tiny-window", "tiny-hybrid"};
static const char *const longer[MODELS] = {"smollm2", "gemma3-270m", "hybrid", "mamba"};

#define PROMPT 762 /* the seventh token behind it crosses 768 cells */
#define AHEAD 9

/* ---- the engine ---- */

/* With more than one thread, among which attention is divided. */
static struct hearth_engine *open_divided(const char *name) {
    struct hearth_llama_params params;
    real_params(&params, name);
    params.threads = 2;
    return real_open_with(&params);
}

/* Logits of the tokens behind the prompt, computed in batches of `step`. */
static float *logits_of(struct hearth_engine *engine, const hearth_token *tokens, int32_t step) {
    size_t vocab = engine->caps.vocab_tokens;
    float *rows = malloc(AHEAD * vocab * sizeof *rows);
    assert_non_null(rows);
    for (int32_t at = 0; at < AHEAD; at += step) {
        struct hearth_batch_item items[AHEAD];
        for (int32_t i = 0; i < step; i++) {
            items[i] =
                (struct hearth_batch_item){.token = tokens[PROMPT + at + i], .pos = PROMPT + at + i, .output = true};
        }
        assert_int_equal(engine->ops->decode(engine, items, (size_t)step), HEARTH_OK);
        for (int32_t i = 0; i < step; i++) {
            memcpy(rows + (size_t)(at + i) * vocab, engine->ops->logits(engine, (size_t)i), vocab * sizeof *rows);
        }
    }
    return rows;
}

static void assert_rows_equal(struct hearth_engine *engine, float *want, float *got) {
    size_t row = engine->caps.vocab_tokens;
    for (size_t i = 0; i < AHEAD; i++) {
        if (memcmp(want + i * row, got + i * row, row * sizeof *want) != 0) {
            fail_msg("row %zu differs by up to %g", i, (double)real_difference(engine, want + i * row, got + i * row));
        }
    }
    free(got);
}

static void together_is_alone(void **state) {
    struct hearth_engine *engine = open_divided(*state);
    hearth_token tokens[PROMPT + AHEAD];
    real_prompt(engine, 3, tokens, PROMPT + AHEAD);
    assert_true(engine->caps.batch_exact);
    real_decode(engine, 0, tokens, 0, PROMPT);
    float *alone = logits_of(engine, tokens, 1);

    engine->ops->seq_clear(engine, 0);
    real_decode(engine, 0, tokens, 0, PROMPT);
    struct hearth_checkpoint checkpoint = {0};
    bool needed = hearth_checkpoint_needed(&engine->caps, AHEAD);
    assert_int_equal(needed, strstr(*state, "hybrid") != NULL || strcmp(*state, "mamba") == 0);
    if (needed) {
        assert_int_equal(hearth_checkpoint_take(&checkpoint, engine, 0, PROMPT), HEARTH_OK);
    }
    assert_rows_equal(engine, alone, logits_of(engine, tokens, AHEAD));

    /* Back, computed with other tokens, and back again: nothing of them is left. */
    for (int i = 0; i < 3; i++) {
        int32_t keep = needed ? PROMPT : PROMPT + i, pos = PROMPT + AHEAD;
        assert_int_equal(hearth_checkpoint_return(&checkpoint, engine, 0, pos, keep), keep);
        hearth_token others[PROMPT + AHEAD];
        memcpy(others, tokens, sizeof others);
        for (int32_t k = keep; k < PROMPT + AHEAD; k++) {
            others[k] = tokens[k - PROMPT + 100];
        }
        real_decode(engine, 0, others, keep, PROMPT + AHEAD);
        assert_int_equal(hearth_checkpoint_return(&checkpoint, engine, 0, pos, keep), keep);
        if (keep > PROMPT) {
            assert_int_equal(hearth_checkpoint_return(&checkpoint, engine, 0, keep, PROMPT), PROMPT);
        }
        assert_rows_equal(engine, alone, logits_of(engine, tokens, AHEAD));
    }
    free(alone);
    hearth_checkpoint_finish(&checkpoint);
    real_close(engine);
}

/* ---- the service ---- */

struct reply {
    struct hearth_tokens tokens;
    uint32_t drafted, accepted;
    struct hearth_receipt receipt;
    bool done;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static void deliver(void *user, struct hearth_event *event) {
    struct reply *reply = user;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < event->sampled_count; i++) {
        HEARTH_ASSERT(hearth_tokens_push(&reply->tokens, event->sampled[i].token));
    }
    HEARTH_ASSERT(event->type != HEARTH_EVENT_FAILED);
    if (event->type == HEARTH_EVENT_DONE) {
        reply->drafted = event->drafted_tokens;
        reply->accepted = event->accepted_tokens;
        reply->receipt = event->receipt;
        reply->done = true;
        pthread_cond_signal(&ended);
    }
    pthread_mutex_unlock(&mutex);
    hearth_event_destroy(event);
}

/* Random weights do not repeat themselves by themselves: they get three words to choose from. */
static const struct hearth_logit_bias words[] = {{100, 100}, {200, 100}, {300, 100}};
static bool few_words;

static struct reply generate(struct hearth_service *service, const struct hearth_tokens *prompt, int32_t tokens,
                             bool cached) {
    struct reply reply = {0};
    struct hearth_errmsg msg;
    struct hearth_request request = {.prompt = prompt->v,
                                     .prompt_tokens = prompt->n,
                                     .max_tokens = tokens,
                                     .cache_off = !cached,
                                     .deliver = deliver,
                                     .user = &reply};
    hearth_sampling_default(&request.sampling);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    if (few_words) {
        request.sampling.logit_bias = words;
        request.sampling.logit_biases = sizeof words / sizeof words[0];
    }
    HEARTH_ASSERT(hearth_service_submit(service, &request, &msg) > 0);
    pthread_mutex_lock(&mutex);
    while (!reply.done) {
        pthread_cond_wait(&ended, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    return reply;
}

static const char *const texts[] = {
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
    "    return area(width, height) * depth\n\nThe same file with types:\n\ndef area(width: int, height: int):\n",
    "[{\"id\": 1, \"name\": \"apple\", \"price\": 3}, {\"id\": 2, \"name\": \"pear\", \"price\": 4}, "
    "{\"id\": 3, \"name\":",
    "The fox said to the crow: sing. The crow said to the fox: no. The fox said to the crow:",
    "1. First, wash the pot.\n2. Then, dry the pot.\n3. First, wash the pan.\n4. Then, dry the pan.\n5. First,",
};

static void assert_same(const struct reply *want, const struct reply *got, const char *what) {
    size_t common = hearth_tokens_common(want->tokens.v, want->tokens.n, got->tokens.v, got->tokens.n);
    if (common != want->tokens.n || common != got->tokens.n) {
        fail_msg("%s: differs at token %zu of %zu", what, common, want->tokens.n);
    }
}

static struct hearth_service *open_service(struct hearth_engine *engine, enum hearth_speculate speculate) {
    struct hearth_service_params params;
    struct hearth_service *service;
    struct hearth_errmsg msg;
    hearth_service_params_default(&params);
    params.page_tokens = 64;
    params.speculate = speculate;
    assert_int_equal(hearth_service_create(engine, &params, &service, &msg), HEARTH_OK);
    return service;
}

static void replies_are_the_same(void **state) {
    const char *most = getenv("HEARTH_REAL_TOKENS");
    int32_t each = (most ? atoi(most) : 1000) / 4;
    struct hearth_engine *engine = open_divided(*state);
    uint32_t drafted = 0, accepted = 0;
    few_words = strcmp(*state, "smollm2") != 0 && strcmp(*state, "gemma3-270m") != 0;
    for (size_t i = 0; i < 4; i++) {
        struct hearth_tokens prompt = {0};
        assert_int_equal(engine->ops->tokenize(engine, texts[i], strlen(texts[i]), true, false, &prompt), HEARTH_OK);
        struct hearth_service *service = open_service(engine, HEARTH_SPECULATE_OFF);
        struct reply plain = generate(service, &prompt, each, false);
        hearth_service_destroy(service);

        service = open_service(engine, HEARTH_SPECULATE_ON);
        struct reply guessed = generate(service, &prompt, each, true);
        assert_same(&plain, &guessed, texts[i]);
        assert_int_equal(plain.drafted, 0);
        drafted += guessed.drafted;
        accepted += guessed.accepted;

        /* The next turn goes on from what is cached of the reply, as far as it goes. */
        assert_true(hearth_tokens_append(&prompt, guessed.tokens.v, guessed.tokens.n));
        struct reply next = generate(service, &prompt, 8, true);
        assert_true(next.receipt.reused_live_tokens + 1 >= prompt.n);
        hearth_tokens_finish(&next.tokens);
        hearth_service_destroy(service);
        hearth_tokens_finish(&plain.tokens);
        hearth_tokens_finish(&guessed.tokens);
        hearth_tokens_finish(&prompt);
    }
    print_message("%s: %u tokens guessed, %u kept\n", (const char *)*state, drafted, accepted);
    assert_true(drafted > 0);
    real_close(engine);
}

/* With "long": on the models that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const char *const *models = whole ? longer : names;
    const size_t n = whole ? MODELS : sizeof names / sizeof names[0];
    struct CMUnitTest tests[2 * MODELS];
    for (size_t i = 0; i < n; i++) {
        void *name = (void *)(uintptr_t)models[i];
        tests[i] = (struct CMUnitTest){.name = models[i], .test_func = together_is_alone, .initial_state = name};
        tests[n + i] = (struct CMUnitTest){.name = models[i], .test_func = replies_are_the_same, .initial_state = name};
    }
    return real_exit(_cmocka_run_group_tests("speculate", tests, 2 * n, NULL, NULL), models, n);
}
