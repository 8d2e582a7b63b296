/* Grammars on real vocabularies: the same tokens are allowed as by llama.cpp's own grammars, wherever those can be
 * asked; hostile grammars are refused or harmless; and replies sampled under a grammar follow it. */
#include "models.h"

#include "grammar/grammar.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"tiny", "tiny-gemma", "smollm2", "gemma3-270m"};

static const char json_grammar[] =
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "# white space is short\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

/* ---- against llama.cpp ---- */

static uint64_t rng_state = 4711;

static uint32_t rnd(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* Unfinished and broken characters are judged differently on purpose: hearth asks whether some character can come out
 * of them, llama.cpp is stricter with negated classes and laxer with bytes that cannot go on. */
static bool whole_characters(const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        uint8_t lead = (uint8_t)text[i++];
        int more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : 3;
        if (lead > 0xF4 || (lead >= 0x80 && lead < 0xC2)) {
            return false;
        }
        for (; more > 0; more--) {
            if (i == len || ((uint8_t)text[i++] & 0xC0) != 0x80) {
                return false;
            }
        }
    }
    return len > 0;
}

struct pair {
    struct hearth_engine *engine;
    struct hearth_grammar_vocabulary *vocabulary;
    struct llama_model *model;
    llama_token_data *data;
    uint8_t *allowed;
    bool *whole;
};

static void pair_open(struct pair *p, const char *name) {
    p->engine = real_open(name);
    const struct hearth_grammar_tokens tokens = hearth_engine_grammar_tokens(p->engine);
    p->vocabulary = hearth_grammar_vocabulary_create(&tokens);
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    p->model = llama_model_load_from_file(real_path(name), params);
    uint32_t n = p->engine->caps.vocab_tokens;
    p->data = malloc(n * sizeof *p->data);
    p->allowed = malloc(n);
    p->whole = malloc(n * sizeof *p->whole);
    assert_true(p->vocabulary && p->model && p->data && p->allowed && p->whole);
    for (uint32_t t = 0; t < n; t++) {
        char text[512];
        size_t len = p->engine->ops->token_text(p->engine, (hearth_token)t, true, text, sizeof text);
        p->whole[t] = len <= sizeof text && whole_characters(text, len);
    }
}

static void pair_close(struct pair *p) {
    hearth_grammar_vocabulary_destroy(p->vocabulary);
    llama_model_free(p->model);
    free(p->data);
    free(p->allowed);
    free(p->whole);
    real_close(p->engine);
}

/* Compares the answers for every token; returns one that both allow and is no end, or -1. */
static hearth_token compare_masks(struct pair *p, struct hearth_grammar_constraint *ours, struct llama_sampler *theirs,
                                  const char *grammar, const char *so_far) {
    uint32_t n = p->engine->caps.vocab_tokens;
    for (uint32_t t = 0; t < n; t++) {
        p->data[t] = (llama_token_data){(llama_token)t, 0.0f, 0.0f};
    }
    llama_token_data_array all = {p->data, n, -1, false};
    llama_sampler_apply(theirs, &all);
    size_t count = hearth_grammar_constraint_mask(ours, p->allowed);
    hearth_token chosen = -1;
    uint32_t seen = 0, counted = 0;
    for (uint32_t t = 0; t < n; t++) {
        bool allowed = p->data[t].logit > -1.0f;
        counted += p->allowed[t];
        if (p->whole[t] && allowed != (p->allowed[t] != 0)) {
            char text[64] = "";
            p->engine->ops->token_text(p->engine, (hearth_token)t, true, text, sizeof text - 1);
            fail_msg("token %u \"%s\": llama.cpp says %d\nbehind: %s\ngrammar: %s", t, text, allowed, so_far, grammar);
        }
        if (rnd(16) == 0 && p->whole[t]) {
            assert_int_equal(hearth_grammar_constraint_allows(ours, (hearth_token)t), p->allowed[t]);
        }
        if (allowed && p->whole[t] && !p->engine->ops->token_is_end(p->engine, (hearth_token)t) && rnd(++seen) == 0) {
            chosen = (hearth_token)t;
        }
    }
    assert_int_equal(count, counted);
    return chosen;
}

static void walk(struct pair *p, const char *grammar, int steps) {
    struct hearth_errmsg msg = {""};
    struct hearth_grammar_constraint *ours;
    struct hearth_grammar g = {.text = grammar};
    if (hearth_grammar_constraint_create(p->vocabulary, &g, &ours, &msg) != HEARTH_OK) {
        fail_msg("%s\n%s", msg.text, grammar);
    }
    struct llama_sampler *theirs = llama_sampler_init_grammar(llama_model_get_vocab(p->model), grammar, "root");
    assert_non_null(theirs);
    struct hearth_buf text = {0};
    assert_true(hearth_buf_text(&text, ""));
    for (int i = 0; i < steps; i++) {
        hearth_token token = compare_masks(p, ours, theirs, grammar, (const char *)text.data);
        if (token < 0) {
            break;
        }
        char piece[512];
        size_t len = p->engine->ops->token_text(p->engine, token, true, piece, sizeof piece - 1);
        piece[len] = '\0';
        assert_true(hearth_buf_text(&text, piece));
        llama_sampler_accept(theirs, token);
        hearth_grammar_constraint_accept(ours, token);
        assert_true(hearth_grammar_constraint_active(ours));
    }
    hearth_buf_finish(&text);
    llama_sampler_free(theirs);
    hearth_grammar_constraint_destroy(ours);
}

static const char *const grammars[] = {
    json_grammar,
    "root ::= \"yes\" | \"no\" | \"maybe\" [!?]{1,3}",
    "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
    "term ::= ident | num | \"(\" ws expr \")\" ws\n"
    "ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
    "root ::= [^\\n]{3,40} \"\\n\" root?",
    "root ::= \"<\" tag \">\" (text | root)* \"</\" tag \">\"\ntag ::= [a-z]+\ntext ::= [^<>]+",
    "root ::= [あ-んア-ン一-龯]{2,12} [。！？]",
    "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"ab\"", /* ambiguous: short walks only for llama.cpp's sake */
    "root ::= (\"x\" | \"xy\" | \"y\" | \" \")+ \".\"",
    "root ::= item{2,5} (\",\" item)*\nitem ::= \"(\" item* \")\" | [a-f0-9]{4}",
    "root ::= . . . [\\U0001F300-\\U0001FAFF] \"ok\"?",
    "root ::= \"- \" [^\\r\\n]+ \"\\n\" (\"- \" [^\\r\\n]+ \"\\n\")*",
};

/* With HEARTH_SHARE=N about every Nth case. */
static int share(void) {
    const char *text = getenv("HEARTH_SHARE");
    return text != NULL && atoi(text) > 1 ? atoi(text) : 1;
}

static void masks_are_those_of_llama(void **state) {
    struct pair p;
    pair_open(&p, *state);
    const bool large = p.engine->caps.vocab_tokens > 100000;
    const int rounds = large ? 1 : (4 + share() - 1) / share(), steps = large ? 12 / share() : 12;
    for (size_t i = 0; i < sizeof grammars / sizeof grammars[0]; i++) {
        for (int round = 0; round < rounds; round++) {
            walk(&p, grammars[i], strstr(grammars[i], "root \"c\"") != NULL ? 3 : steps);
        }
    }
    pair_close(&p);
}

/* ---- sampling ---- */

/* Computes a prompt and samples up to `most` tokens behind it; their text. Fails when an end token comes before the
 * grammar is complete. */
static size_t generate(struct hearth_engine *engine, const struct hearth_sampling *s, unsigned flags, int most,
                       char *text, size_t room) {
    struct hearth_errmsg msg = {""};
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, s, &msg);
    if (sampler == NULL) {
        fail_msg("%s", msg.text);
    }
    hearth_token prompt[31];
    real_prompt(engine, 40, prompt, 30);
    engine->ops->seq_clear(engine, 0);
    real_decode(engine, 0, prompt, 0, 30);
    size_t len = 0, index = 29;
    for (int i = 0; i < most; i++) {
        hearth_token token = engine->ops->sample(engine, sampler, index, flags, NULL);
        if (engine->ops->token_is_end(engine, token)) {
            break;
        }
        len += engine->ops->token_text(engine, token, true, text + len, room - len - 1);
        struct hearth_batch_item item = {.token = token, .seq = 0, .pos = 30 + i, .output = true};
        assert_int_equal(engine->ops->decode(engine, &item, 1), HEARTH_OK);
        index = 0;
    }
    text[len] = '\0';
    engine->ops->sampler_destroy(engine, sampler);
    return len;
}

/* Every path of the choice: greedy, greedy with penalties, top-k, the whole vocabulary, biases against the grammar. */
static void replies_follow(void **state) {
    struct hearth_engine *engine = real_open(*state);
    struct hearth_grammar grammar = {.text = "root ::= \"{\\\"n\\\": \" number \", \\\"s\\\": \\\"\" word \"\\\"}\"\n"
                                             "number ::= [1-9] [0-9]{0,3}\nword ::= [a-zé]{2,12}"};
    const struct hearth_logit_bias away[] = {{100, 50.0f}, {engine->caps.end_token, 1000.0f}};
    const int step = engine->caps.vocab_tokens > 100000 ? share() : 1;
    for (int variant = 0; variant < 12; variant += step) {
        struct hearth_sampling s;
        hearth_sampling_default(&s);
        s.grammar = &grammar;
        s.seed = (uint32_t)variant;
        s.temperature = variant % 4 == 0 ? 0.0f : 1.5f;
        s.top_k = variant % 4 == 1 ? 0 : variant % 4 == 2 ? 5 : 40;
        s.penalty_repeat = variant % 3 == 1 ? 1.3f : 1.0f;
        s.logit_bias = away;
        s.logit_biases = variant >= 8 ? 2 : 0;
        s.ignore_eos = variant == 11;
        char text[512], word[64] = "", end[8] = "";
        int number = 0;
        generate(engine, &s, 0, 60, text, sizeof text);
        if (sscanf(text, "{\"n\": %d, \"s\": \"%60[^\"]%4s", &number, word, end) != 3 || strcmp(end, "\"}") != 0 ||
            number < 1 || number > 9999 || strlen(word) < 2) {
            fail_msg("variant %d: %s", variant, text);
        }
    }
    /* Free of the grammar the reply is what it is without one. */
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.grammar = &grammar;
    s.temperature = 0.0f;
    char unruled[512], plain[512];
    generate(engine, &s, HEARTH_SAMPLE_FREE, 20, unruled, sizeof unruled);
    s.grammar = NULL;
    generate(engine, &s, 0, 20, plain, sizeof plain);
    assert_string_equal(unruled, plain);
    real_close(engine);
}

static void flags_of_accept(void **state) {
    struct hearth_engine *engine = real_open(*state);
    struct hearth_grammar grammar = {.text = "root ::= \"abc\" \"d\"+"};
    hearth_token prompt[30];
    real_prompt(engine, 40, prompt, 30);
    real_decode(engine, 0, prompt, 0, 30);
    struct hearth_tokens abc = {0};
    assert_int_equal(engine->ops->tokenize(engine, "abc", 3, false, false, &abc), HEARTH_OK);
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    s.grammar = &grammar;
    static const unsigned unseen[] = {HEARTH_SAMPLE_PROMPT, HEARTH_SAMPLE_FREE};
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, &s, NULL);
    assert_non_null(sampler);
    for (size_t i = 0; i < 2; i++) {
        engine->ops->sampler_accept(engine, sampler, prompt[5], unseen[i]);
    }
    for (size_t i = 0; i < abc.n; i++) {
        engine->ops->sampler_accept(engine, sampler, abc.v[i], i == 0 ? HEARTH_SAMPLE_GRAMMAR : 0);
    }
    char text[64] = "";
    hearth_token token = engine->ops->sample(engine, sampler, 29, 0, NULL);
    engine->ops->token_text(engine, token, true, text, sizeof text - 1);
    assert_int_equal(text[0], 'd');
    engine->ops->sampler_destroy(engine, sampler);
    hearth_tokens_finish(&abc);
    real_close(engine);
}

static void grammars_are_checked(void **state) {
    struct hearth_engine *engine = real_open(*state);
    static const char *const bad[] = {"", "root ::= (", "root ::= x", "root ::= \"a\"{5,2}",
                                      "root ::= <no such token>"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hearth_errmsg msg = {""}, check = {""};
        struct hearth_grammar grammar = {.text = bad[i]};
        struct hearth_sampling s;
        hearth_sampling_default(&s);
        s.grammar = &grammar;
        assert_null(engine->ops->sampler_create(engine, &s, &msg));
        assert_int_equal(engine->ops->grammar_check(engine, bad[i], &check), HEARTH_ERR_INVALID);
        assert_string_equal(msg.text, check.text);
        assert_true(strlen(msg.text) > 0);
    }
    char text[128];
    snprintf(text, sizeof text, "root ::= \"a\" %s", engine->caps.eos_text);
    assert_int_equal(engine->ops->grammar_check(engine, text, NULL), HEARTH_OK);
    /* Behind a letter any token may come but one: llama.cpp's own grammars throw here (see grammar/gbnf.h). */
    struct hearth_grammar grammar = {.text = "root ::= \"a\" !<[5]> !<[5]>"};
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.grammar = &grammar;
    assert_true(generate(engine, &s, 0, 10, text, sizeof text) > 0);
    assert_int_equal(text[0], 'a');
    real_close(engine);
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}

/* With "long": those that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        ON(masks_are_those_of_llama, "tiny"),
        ON(replies_follow, "tiny"),
        ON(flags_of_accept, "tiny"),
        ON(grammars_are_checked, "tiny"),
        ON(masks_are_those_of_llama, "tiny-gemma"),
        ON(replies_follow, "tiny-gemma"),
    };
    const struct CMUnitTest longer[] = {
        ON(masks_are_those_of_llama, "smollm2"),
        ON(replies_follow, "smollm2"),
        ON(masks_are_those_of_llama, "gemma3-270m"),
        ON(replies_follow, "gemma3-270m"),
    };
    const int failed = whole ? cmocka_run_group_tests(longer, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    return real_exit(failed, names, sizeof names / sizeof names[0]);
}
