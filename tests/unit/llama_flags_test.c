/* The table of llama-server's flags: that it holds those of the llama.cpp hearth is built on, no fewer and no others,
 * that its verdicts are true, and what the command line answers to each kind. */
#include "cli/options_internal.h"
#include "support/llama_args.h"
#include "support/options_stage.h"

/* Help, versions and devices are no options with a value. */
static bool is_question(const char *name) {
    return hearth_option_has_name("-h --help --usage --version --list-devices", name, strlen(name));
}

/* ---- the table beside llama.cpp ---- */

struct seen {
    unsigned names, wrong;
};

static void check_name(void *user, const char *name, int values, const char *env) {
    struct seen *seen = user;
    const struct hearth_flag *flag = hearth_flag_find(name, strlen(name));
    const char *wrong = NULL;
    seen->names++;
    if (!flag) {
        wrong = "is not in the table";
    } else if (flag->old) {
        wrong = "is no earlier flag";
    } else if (flag->arguments != values) {
        wrong = "takes another number of values";
    } else if (*env && strcmp(flag->env, env) != 0) {
        wrong = "has another variable";
    }
    if (wrong) {
        seen->wrong++;
        print_message("%s %s (%d values, variable '%s')\n", name, wrong, values, env);
    }
}

static void test_every_flag_is_there(void **state) {
    (void)state;
    struct seen seen = {0};
    const unsigned flags = llama_args_each(check_name, &seen);
    assert_int_equal(seen.wrong, 0);
    assert_true(flags >= 250 && seen.names > flags);
}

struct wanted {
    const char *name;
    size_t len;
    unsigned found;
};

static void count_name(void *user, const char *name, int values, const char *env) {
    struct wanted *wanted = user;
    (void)values;
    (void)env;
    wanted->found += strlen(name) == wanted->len && memcmp(name, wanted->name, wanted->len) == 0;
}

/* Every name of the table is llama-server's, once, unless it is one of earlier versions. */
static void test_no_other_flag_is_there(void **state) {
    (void)state;
    for (size_t i = 0; i < hearth_flag_count; i++) {
        const struct hearth_flag *flag = &hearth_flags[i];
        size_t n;
        for (size_t at = 0; !flag->title && (n = hearth_option_next_name(flag->names, &at)) > 0; at += n) {
            struct wanted wanted = {flag->names + at, n, 0};
            (void)llama_args_each(count_name, &wanted);
            if (wanted.found != !flag->old || hearth_flag_find(wanted.name, n) != flag) {
                fail_msg("%.*s is %u times among llama-server's flags", (int)n, wanted.name, wanted.found);
            }
        }
    }
}

/* What is said to be honoured is an option, with a value where llama-server has one; nothing else is. */
static void test_verdicts(void **state) {
    (void)state;
    for (size_t i = 0; i < hearth_flag_count; i++) {
        const struct hearth_flag *flag = &hearth_flags[i];
        size_t n;
        for (size_t at = 0; !flag->title && (n = hearth_option_next_name(flag->names, &at)) > 0; at += n) {
            char name[64];
            bool negated;
            (void)snprintf(name, sizeof(name), "%.*s", (int)n, flag->names + at);
            const struct hearth_option_row *row = hearth_option_find(name, n, &negated);
            if ((row || is_question(name)) != (flag->verdict == HEARTH_FLAG_HONOURED)) {
                fail_msg("%s: the verdict is not true", name);
            }
            const bool valueless =
                row && (row->type == HEARTH_OPTION_IS_SWITCH || row->type == HEARTH_OPTION_IS_ALWAYS);
            const bool either = row && row->argument[0] == '['; /* it may stand alone */
            if (row && !either && valueless != (flag->arguments == 0)) {
                fail_msg("%s: takes a value in one of the two only", name);
            }
        }
        assert_true(flag->title || flag->verdict == HEARTH_FLAG_HONOURED || *flag->text);
    }
}

/* ---- what the command line says ---- */

/* Each flag that is accepted takes its values with it and is told in one line; each that is refused says so. */
static void test_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < hearth_flag_count; i++) {
        const struct hearth_flag *flag = &hearth_flags[i];
        size_t n;
        for (size_t at = 0; !flag->title && (n = hearth_option_next_name(flag->names, &at)) > 0; at += n) {
            struct hearth_options options;
            struct hearth_errmsg msg;
            char name[64], line[256];
            (void)snprintf(name, sizeof(name), "%.*s", (int)n, flag->names + at);
            const char *argv[] = {name, "-7", "--port", "99"};
            if (flag->arguments == 0) {
                memmove(argv + 1, argv + 2, 2 * sizeof(argv[0]));
            }
            if (flag->verdict == HEARTH_FLAG_HONOURED || flag->arguments > 1) {
                continue;
            }
            const int err = parse(&options, 3 + flag->arguments, argv, &msg);
            if (flag->verdict == HEARTH_FLAG_REFUSED) {
                assert_int_equal(err, HEARTH_ERR_INVALID);
                (void)snprintf(line, sizeof(line), "%s: %s", name, flag->text);
                assert_string_equal(msg.text, line);
            } else {
                assert_int_equal(err, HEARTH_OK);
                assert_int_equal(options.port, 99);
            }
            if (flag->verdict == HEARTH_FLAG_ACCEPTED) {
                (void)snprintf(line, sizeof(line), "%s: accepted, %s\n", name, flag->text);
                assert_string_equal((const char *)options.notes.data, line);
            }
            hearth_options_finish(&options);
        }
    }
}

/* A command line as people have it for llama-server. */
static void test_command_line(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    assert_int_equal(PARSE(&options, &msg, "-m", "a.gguf", "-c", "64k", "-fa", "-np", "auto", "-ngl", "99", "--no-mmap",
                           "--mlock", "--jinja", "--no-webui", "-v", "--cache-reuse", "256", "--swa-full", "-nkvo",
                           "-ot", "exps=CPU", "-ot", "ffn=CPU", "--n-cpu-moe", "3", "-ts", "3,1", "--numa",
                           "distribute", "--spec-draft-n-max", "32", "-b", "4k", "-ub", "1K", "--no-context-shift"),
                     HEARTH_OK);
    assert_int_equal(options.ctx_size, 65536);
    assert_int_equal(options.batch_size, 4096);
    assert_int_equal(options.ubatch_size, 1024);
    assert_int_equal(options.parallel, -1);
    assert_int_equal(options.draft_tokens, 32);
    assert_string_equal(options.flash_attn, "on");
    assert_string_equal(options.ui, "off");
    assert_string_equal(options.log_level, "debug");
    assert_true(options.mlock && !options.mmap && !options.kv_offload);
    assert_int_equal(options.override_tensor.n, 2);
    assert_string_equal(options.override_tensor.v[1], "ffn=CPU");
    assert_int_equal(options.n_cpu_moe, 3);
    assert_string_equal(options.numa, "distribute");
    assert_string_equal((const char *)options.notes.data,
                        "--cache-reuse: accepted, reused text stays at its position, where it is exact; the longest "
                        "known beginning is found without it\n"
                        "--swa-full: accepted, a sliding window has its true size, and snapshots bring older cells "
                        "back\n"
                        "--no-context-shift: accepted, tokens are never shifted out of a context\n");
    hearth_options_finish(&options);
}

static void test_flash_attention(void **state) {
    (void)state;
    static const struct {
        const char *argv[4];
        const char *want; /* NULL: refused */
    } cases[] = {{{"-fa"}, "on"},           {{"-fa", "--mlock"}, "on"}, {{"-fa", "1"}, "on"},
                 {{"-fa", "true"}, "on"},   {{"-fa", "0"}, "off"},      {{"-fa", "off"}, "off"},
                 {{"-fa=off"}, "off"},      {{"-fa", "auto"}, "auto"},  {{"-fa", "maybe"}, NULL},
                 {{"-fa", "on|off"}, NULL}, {{"--flash-attn"}, "on"}};
    for (int i = 0; i < COUNT(cases); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg;
        int argc = 0;
        while (argc < 4 && cases[i].argv[argc]) {
            argc++;
        }
        const int err = parse(&options, argc, cases[i].argv, &msg);
        assert_int_equal(err, cases[i].want ? HEARTH_OK : HEARTH_ERR_INVALID);
        if (cases[i].want) {
            assert_string_equal(options.flash_attn, cases[i].want);
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *argv[3];
        const char *text;
    } cases[] = {
        {{"--slot-save-path", "x"}, "--slot-save-path: not needed, state is kept in --kv-dir, without being asked to"},
        {{"--slot-save-path=x"}, "--slot-save-path: not needed, state is kept in --kv-dir, without being asked to"},
        {{"-hf", "a/b"}, "-hf: hearth fetches nothing: download the GGUF file and name it with -m"},
        {{"--cache-reuse"}, "--cache-reuse needs a value"},
        {{"--no-webui=1"}, "--no-webui takes no value"},
        {{"--no-mlok"}, "unknown option --no-mlok, did you mean --mlock? (see hearth serve --help)"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg;
        int argc = 0;
        while (argc < 3 && cases[i].argv[argc]) {
            argc++;
        }
        assert_int_equal(parse(&options, argc, cases[i].argv, &msg), HEARTH_ERR_INVALID);
        assert_string_equal(msg.text, cases[i].text);
        hearth_options_finish(&options);
    }
}

/* ---- variables ---- */

static void test_variables(void **state) {
    (void)state;
    static const struct {
        const char *name, *says; /* NULL: nothing */
    } cases[] = {
        {"HEARTH_CTXSIZE", "environment: HEARTH_CTXSIZE is not an option: did you mean HEARTH_CTX_SIZE?\n"},
        {"HEARTH_FROBNICATE_ALL", "environment: HEARTH_FROBNICATE_ALL is not an option (docs/options.md lists them)\n"},
        {"HEARTH_PORT", NULL},
        {"HEARTH_CACERT", NULL},
        {"HEARTH_CACHE", NULL},
        {"HEARTH_CUDA", NULL},
        {"HEARTH_PROGRAMS", NULL}, /* these three are set where scripts/test.sh runs this test */
        {"HEARTH_SUITE", NULL},
        {"HEARTH_TEMPLATES", NULL},
        {"LLAMA_ARG_CTX_SIZE", "environment: LLAMA_ARG_CTX_SIZE is not read: set HEARTH_CTX_SIZE\n"},
        {"LLAMA_API_KEY", "environment: LLAMA_API_KEY is not read: set HEARTH_API_KEY\n"},
        {"LLAMA_ARG_N_GPU_LAYERS", "environment: LLAMA_ARG_N_GPU_LAYERS is not read: set HEARTH_GPU_LAYERS\n"},
        {"LLAMA_ARG_SWA_FULL", "environment: LLAMA_ARG_SWA_FULL is not read: hearth has options of its own\n"},
        {"LLAMA_ARG_NOTHING", "environment: LLAMA_ARG_NOTHING is not read: hearth has options of its own\n"},
        {"LLAMA_CACHE", NULL},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg;
        assert_int_equal(setenv(cases[i].name, "4096", 1), 0);
        assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_OK);
        const char *said = (const char *)options.warnings.data;
        if (cases[i].says) {
            assert_non_null(said);
            assert_non_null(strstr(said, cases[i].says));
        } else {
            assert_true(!said || !strstr(said, cases[i].name));
        }
        hearth_options_finish(&options);
        (void)unsetenv(cases[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flag_is_there),
        cmocka_unit_test(test_no_other_flag_is_there),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_flash_attention),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
