/* The command line: defaults, precedence, and the one line that a mistake gets. */
#include "support/options_stage.h"

static void test_defaults(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_OK);
    assert_null(options.model);
    assert_string_equal(options.host, "127.0.0.1");
    assert_int_equal(options.port, 8080);
    assert_int_equal(options.parallel, 4);
    assert_int_equal(options.cache_ram, -1);
    assert_int_equal(options.grace, 30);
    assert_true(options.temp > 0.79 && options.temp < 0.81);
    assert_true(options.metrics && options.slots && options.mmap && options.jinja);
    assert_false(options.hello);
    assert_false(options.keep_thinking);
    assert_int_equal(options.transcript_bytes, 256 << 20);
    assert_int_equal(options.reasoning_budget, -1);
    assert_int_equal(options.strip_line.n, 0);
    assert_null(options.script);
    assert_int_equal(options.queue, 256);
    assert_int_equal(options.draft_tokens, 8);
    assert_string_equal(options.speculate, "auto");
    assert_true(options.min_decode_tps == 0 && options.request_timeout == 0);
}

static void test_forms(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    assert_int_equal(PARSE(&options, &msg, "-m", "a.gguf", "-c", "4096", "-np", "2", "--port=0", "-ngl", "all",
                           "--no-slots", "-n", "-1", "--temp", "0", "-fa", "auto", "--n-gpu-layers", "7", "--seed",
                           "4294967295", "-cb", "--alias=x=y", "--no-mmap"),
                     HEARTH_OK);
    assert_string_equal(options.model, "a.gguf");
    assert_int_equal(options.ctx_size, 4096);
    assert_int_equal(options.parallel, 2);
    assert_int_equal(options.port, 0);
    assert_int_equal(options.gpu_layers, 7);
    assert_int_equal(options.predict, -1);
    assert_int_equal(options.seed, 4294967295);
    assert_string_equal(options.flash_attn, "auto");
    assert_string_equal(options.alias, "x=y");
    assert_false(options.slots);
    assert_false(options.mmap);
    assert_true(options.metrics);
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {{"0", 0},   {"1000", 1000}, {"64k", 65536}, {"2M", 2 << 20}, {"3G", 3ll << 30},
                 {"-1", -1}, {"M", -1},      {"1.5M", -1},   {"1MB", -1},     {"9999T", -1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg;
        const int err = PARSE(&options, &msg, "--transcript-bytes", cases[i].text);
        assert_int_equal(err, cases[i].bytes < 0 ? HEARTH_ERR_INVALID : HEARTH_OK);
        if (err == HEARTH_OK) {
            assert_int_equal(options.transcript_bytes, cases[i].bytes);
        }
    }
}

/* A list grows with each flag; flags take the place of what the environment says. */
static void test_lists(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    assert_int_equal(setenv("HEARTH_STRIP_LINE", "^Time", 1), 0);
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_OK);
    assert_int_equal(options.strip_line.n, 1);
    assert_string_equal(options.strip_line.v[0], "^Time");
    assert_int_equal(PARSE(&options, &msg, "--strip-line", "^a", "--strip-line=b b"), HEARTH_OK);
    assert_int_equal(options.strip_line.n, 2);
    assert_string_equal(options.strip_line.v[0], "^a");
    assert_string_equal(options.strip_line.v[1], "b b");
    (void)unsetenv("HEARTH_STRIP_LINE");
    const char *many[2 * (HEARTH_OPTION_LIST_MAX + 1)];
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        many[i] = i % 2 == 0 ? "--strip-line" : "x";
    }
    assert_int_equal(parse(&options, COUNT(many), many, &msg), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "--strip-line may be given 32 times at most");
}

static void test_environment(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    assert_int_equal(setenv("HEARTH_CTX_SIZE", "1000", 1), 0);
    assert_int_equal(setenv("HEARTH_METRICS", "off", 1), 0);
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_OK);
    assert_int_equal(options.ctx_size, 1000);
    assert_false(options.metrics);
    assert_null(options.api_key);
    assert_int_equal(PARSE(&options, &msg, "-c", "2000", "--metrics"), HEARTH_OK);
    assert_int_equal(options.ctx_size, 2000);
    assert_true(options.metrics);
    assert_int_equal(setenv("HEARTH_CTX_SIZE", "many", 1), 0);
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "HEARTH_CTX_SIZE: 'many' is not a whole number from 0 to 100000000");
    (void)unsetenv("HEARTH_CTX_SIZE");
    (void)unsetenv("HEARTH_METRICS");
    assert_int_equal(setenv("HEARTH_API_KEY", "", 1), 0);
    assert_int_equal(setenv("HEARTH_CTX_SIZE", "", 1), 0);
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "HEARTH_API_KEY is given and empty (an unset variable?)");
    (void)unsetenv("HEARTH_API_KEY");
    (void)unsetenv("HEARTH_CTX_SIZE");
    assert_int_equal(PARSE(&options, &msg, "--api-key", ""), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "--api-key is given and empty (an unset variable?)");
    assert_int_equal(PARSE(&options, &msg, "--api-key-file="), HEARTH_ERR_INVALID);
}

/* A flag wins over the environment, that over the file, that over the default. */
static void test_config(void **state) {
    (void)state;
    struct hearth_options options;
    struct hearth_errmsg msg;
    write_path("# how it is served here\r\n\r\n  ctx-size = 3000\nport=99\n\ttemp =\t0.25  \nslots = off\n"
               "model = a = b # c\nstrip-line = ^one\nstrip-line = two  three\nalias =\nlog-level = warn");
    assert_int_equal(setenv("HEARTH_PORT", "98", 1), 0);
    assert_int_equal(setenv("HEARTH_CTX_SIZE", "98", 1), 0);
    assert_int_equal(PARSE(&options, &msg, "-c", "97", "--config", path), HEARTH_OK);
    assert_int_equal(options.ctx_size, 97);
    assert_int_equal(options.port, 98);
    assert_true(options.temp == 0.25);
    assert_false(options.slots);
    assert_string_equal(options.model, "a = b # c");
    assert_null(options.alias);
    assert_string_equal(options.log_level, "warn");
    assert_int_equal(options.strip_line.n, 2);
    assert_string_equal(options.strip_line.v[1], "two  three");
    hearth_options_finish(&options);
    (void)unsetenv("HEARTH_PORT");
    (void)unsetenv("HEARTH_CTX_SIZE");
    assert_int_equal(PARSE(&options, &msg, "--config", path, "--strip-line", "other"), HEARTH_OK);
    assert_int_equal(options.port, 99);
    assert_int_equal(options.ctx_size, 3000);
    assert_int_equal(options.strip_line.n, 1);
    hearth_options_finish(&options);
    write_path("ctx-size = 16K\nswa-full = on\nlog-disable = on\nperf =\nverbose = off\n");
    assert_int_equal(PARSE(&options, &msg, "--config", path, "--mlock"), HEARTH_OK);
    assert_int_equal(options.ctx_size, 16384);
    assert_string_equal(options.log_level, "error");
    assert_non_null(strstr((const char *)options.notes.data, ":2: swa-full: accepted, a sliding window"));
    assert_non_null(strstr((const char *)options.notes.data, ":4: perf: accepted, "));
    hearth_options_finish(&options);
    write_path("port = 99\n");
    assert_int_equal(setenv("HEARTH_CONFIG", path, 1), 0);
    assert_int_equal(parse(&options, 0, NULL, &msg), HEARTH_OK);
    assert_int_equal(options.port, 99);
    hearth_options_finish(&options);
    (void)unsetenv("HEARTH_CONFIG");
}

static void test_config_mistakes(void **state) {
    (void)state;
    static const struct {
        const char *text, *says; /* behind the path and a colon */
    } cases[] = {
        {"port = 1\n\nprot = 2\n", "3: unknown option prot, did you mean port? (see hearth serve --help)"},
        {"# x\nfrobnicate-everything = 2", "2: unknown option frobnicate-everything (see hearth serve --help)"},
        {"--port = 2", "1: unknown option --port, did you mean port? (see hearth serve --help)"},
        {"port 2", "1: a line is an option, '=' and its value"},
        {"metrics", "1: a line is an option, '=' and its value"},
        {"= 2", "1: a line is an option, '=' and its value"},
        {"port = http", "1: port: 'http' is not a whole number from 0 to 65535"},
        {"\n\nmetrics = maybe", "3: metrics: 'maybe' is neither on nor off"},
        {"log-level = loud", "1: log-level: 'loud' is none of debug|info|warn|error"},
        {"config = other", "1: a file cannot name another one (config)"},
        {"ctxsize = 1", "1: unknown option ctxsize, did you mean ctx-size? (see hearth serve --help)"},
        {"slot-save-path = /tmp", "1: slot-save-path: not needed, state is kept in --kv-dir, without being asked to"},
    };
    struct hearth_options options;
    struct hearth_errmsg msg;
    char want[256];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_path(cases[i].text);
        assert_int_equal(PARSE(&options, &msg, "--config", path), HEARTH_ERR_INVALID);
        (void)snprintf(want, sizeof(want), "%s:%s", path, cases[i].says);
        assert_string_equal(msg.text, want);
        hearth_options_finish(&options);
    }
    assert_int_equal(PARSE(&options, &msg, "--config", "/nowhere/at/all"), HEARTH_ERR_IO);
    assert_string_equal(msg.text, "--config: cannot read /nowhere/at/all: No such file or directory");
    hearth_options_finish(&options);
    assert_int_equal(PARSE(&options, &msg, "--config", "/"), HEARTH_ERR_IO);
    hearth_options_finish(&options);
}

static void note(void *user, const char *name, bool live) {
    (void)strcat(strcat(user, name), live ? "! " : " ");
}

static void test_compare(void **state) {
    (void)state;
    struct hearth_options before, after;
    struct hearth_errmsg msg;
    char told[256] = "";
    assert_int_equal(PARSE(&before, &msg, "--queue", "5", "--alias", "a", "--strip-line", "x"), HEARTH_OK);
    assert_int_equal(PARSE(&after, &msg, "--queue", "5", "--alias=a", "--strip-line", "x"), HEARTH_OK);
    hearth_options_compare(&before, &after, note, told);
    assert_string_equal(told, "");
    assert_int_equal(PARSE(&after, &msg, "--queue", "6", "--strip-line", "y", "--log-level", "warn", "--no-slots",
                           "--request-timeout", "1.5", "--api-key", "k"),
                     HEARTH_OK);
    hearth_options_compare(&before, &after, note, told);
    assert_string_equal(told, "--alias --queue! --request-timeout! --strip-line --slots --api-key! --log-level! ");
}

static void test_mistakes(void **state) {
    (void)state;
    static const struct {
        const char *argv[3];
        const char *text;
    } cases[] = {
        {{"--prot", "80"}, "unknown option --prot, did you mean --port? (see hearth serve --help)"},
        {{"--cache_ram=5"}, "unknown option --cache_ram, did you mean --cache-ram? (see hearth serve --help)"},
        {{"--no-slot"}, "unknown option --no-slot, did you mean --slots? (see hearth serve --help)"},
        {{"--no-port"}, "unknown option --no-port, did you mean --port? (see hearth serve --help)"},
        {{"--frobnicate-everything"}, "unknown option --frobnicate-everything (see hearth serve --help)"},
        {{"--port"}, "--port needs a value: N"},
        {{"--port", "http"}, "--port: 'http' is not a whole number from 0 to 65535"},
        {{"--port", "65536"}, "--port: '65536' is not a whole number from 0 to 65535"},
        {{"--port", "80x"}, "--port: '80x' is not a whole number from 0 to 65535"},
        {{"--port", ""}, "--port: '' is not a whole number from 0 to 65535"},
        {{"-c", "99999999999999999999"},
         "--ctx-size: '99999999999999999999' is not a whole number from 0 to 100000000"},
        {{"-c", "auto"}, "--ctx-size: 'auto' is not a whole number from 0 to 100000000"},
        {{"--top-p", "1.5"}, "--top-p: '1.5' is not a number from 0 to 1"},
        {{"--top-p", "nan"}, "--top-p: 'nan' is not a number from 0 to 1"},
        {{"--engine", "gpu"}, "--engine: 'gpu' is none of llama|sim"},
        {{"--engine", "llama|sim"}, "--engine: 'llama|sim' is none of llama|sim"},
        {{"--transcript-bytes", "much"}, "--transcript-bytes: 'much' is not a size such as 64M or 2G"},
        {{"--reasoning-format", "loud"}, "--reasoning-format: 'loud' is none of auto|none|deepseek|deepseek-legacy"},
        {{"--metrics=on"}, "--metrics takes no value"},
        {{"-np", "65"}, "--parallel: '65' is not a whole number from -1 to 64"},
        {{"-c", "64kb"}, "--ctx-size: '64kb' is not a whole number from 0 to 100000000"},
        {{"-c", "k"}, "--ctx-size: 'k' is not a whole number from 0 to 100000000"},
        {{"-c", "99999m"}, "--ctx-size: '99999m' is not a whole number from 0 to 100000000"},
        {{"-ngl", "1k"}, "--gpu-layers: '1k' is not a whole number from -1 to 10000"},
        {{"--kv-dir", "off"}, "--kv-dir: 'off' is no path: none turns it off, ./off is a path"},
        {{"--session-db=no"}, "--session-db: 'no' is no path: none turns it off, ./no is a path"},
        {{"model.gguf"}, "unexpected argument 'model.gguf': a model is named with -m (see hearth serve --help)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg;
        int argc = 0;
        while (argc < 3 && cases[i].argv[argc]) {
            argc++;
        }
        assert_int_equal(parse(&options, argc, cases[i].argv, &msg), HEARTH_ERR_INVALID);
        assert_string_equal(msg.text, cases[i].text);
    }
}

static void test_asks(void **state) {
    (void)state;
    struct hearth_options options;
    enum hearth_options_ask ask;
    char help[] = "--help", version[] = "--version", port[] = "--port";
    char *const wants_help[] = {port, help}, *const wants_version[] = {version};
    assert_int_equal(hearth_options_parse(&options, 2, wants_help, &ask, NULL), HEARTH_OK);
    assert_int_equal(ask, HEARTH_OPTIONS_HELP);
    assert_int_equal(hearth_options_parse(&options, 1, wants_version, &ask, NULL), HEARTH_OK);
    assert_int_equal(ask, HEARTH_OPTIONS_VERSION);
}

/* Both texts name every option; no line of the help is too long for a wide terminal. */
static void test_texts(void **state) {
    (void)state;
    static const char *const names[] = {
#define SECTION(title)
#define OPTION(field, type, long_name, other, argument, preset, least, most, help) long_name,
#include "cli/options.def"
#undef SECTION
#undef OPTION
    };
    struct hearth_buf help = {0}, markdown = {0};
    assert_true(hearth_options_help(&help));
    assert_true(hearth_options_markdown(&markdown));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_non_null(strstr((const char *)help.data, names[i]));
        assert_non_null(strstr((const char *)markdown.data, names[i]));
    }
    for (const char *line = (const char *)help.data; *line;) {
        const size_t n = strcspn(line, "\n");
        assert_true(n <= 120);
        line += n + (line[n] == '\n');
    }
    hearth_buf_finish(&help);
    hearth_buf_finish(&markdown);
}

/* Each option that somebody gave and that changes nothing is told once; those that were not given never are. */
static const struct hearth_option_facts
    no_gpu = {.computes = true, .pages = true, .disk = true, .sessions = true},
    gpu = {.computes = true, .gpus = 1, .pages = true, .snapshots = true, .disk = true, .sessions = true},
    gpus = {.computes = true, .gpus = 2, .pages = true}, local = {.computes = true, .local = true}, none = {0};
static const struct {
    const struct hearth_option_facts *facts;
    const char *flags[4];
    const char *said; /* "": nothing */
} moot[] = {
    {&no_gpu, {"-ngl", "99"}, "--gpu-layers has no effect: there is no GPU"},
    {&no_gpu, {"-ngl", "0"}, ""},
    {&no_gpu, {"--deterministic"}, ""},
    {&none, {"--deterministic"}, "--deterministic has no effect: the simulated engine always is"},
    {&no_gpu, {"-ngl", "auto"}, ""},
    {&gpu, {"-ngl", "99"}, ""},
    {&none, {"-ngl", "99"}, "--gpu-layers has no effect: the simulated engine computes nothing"},
    {&none, {"--mlock"}, "--mlock has no effect: the simulated engine computes nothing"},
    {&none, {"--cache-type-k", "q8_0"}, "--cache-type-k has no effect: the simulated engine computes nothing"},
    {&no_gpu, {"--no-kv-offload"}, "--kv-offload has no effect: there is no GPU"},
    {&no_gpu, {"--n-cpu-moe", "3"}, "--n-cpu-moe has no effect: there is no GPU"},
    {&gpu, {"--no-kv-offload"}, ""},
    {&gpu, {"--cpu-strict", "1"}, "--cpu-strict has no effect: there is neither --cpu-mask nor --cpu-range"},
    {&gpu, {"--cpu-strict", "1", "--cpu-mask", "f"}, ""},
    {&gpu, {"--rope-scaling", "none", "--rope-scale", "2"}, "--rope-scale has no effect: --rope-scaling is none"},
    {&gpu, {"--cache-ram", "0", "--page-tokens", "64"}, "--page-tokens has no effect: --cache-ram is 0"},
    {&gpu, {"--main-gpu", "0"}, "--main-gpu has no effect: there are not several GPUs"},
    {&gpus, {"--main-gpu", "0"}, ""},
    {&no_gpu, {"--snapshot-interval", "64"}, "--snapshot-interval has no effect: this model"},
    {&gpu, {"--snapshot-interval", "64"}, ""},
    {&none, {"--page-tokens", "64"}, "--page-tokens has no effect: "},
    {&none, {"--kv-disk", "100"}, "--kv-disk has no effect: "},
    {&none, {"--kv-disk", "100", "--cache-ram", "0"}, "--kv-disk has no effect: --cache-ram is 0"},
    {&none, {"--kv-disk", "0"}, ""},
    {&none, {"--kv-dir", "none"}, ""},
    {&none, {"--kv-dir", "/x", "--kv-disk", "0"}, "--kv-dir has no effect: "},
    {&none, {"--kv-key", "/x"}, "--kv-key has no effect: "},
    {&none, {"--session-ttl", "3"}, "--session-ttl has no effect: "},
    {&gpu, {"--host-mode", "0666"}, "--host-mode has no effect: --host is no unix:PATH"},
    {&gpu, {"--host-mode", "0666", "--host", "unix:/x"}, ""},
    {&gpu, {"--port", "8081", "--host", "unix:/x"}, "--port has no effect: --host is a socket"},
    {&gpu, {"--insecure", "--api-key", "k"}, "--insecure has no effect: there is a key"},
    {&gpu, {"--insecure"}, ""},
    {&local, {"--insecure"}, "--insecure has no effect: --host is of this machine alone"},
    {&gpu, {"--allow-host", "llm.lan", "--api-key", "k"}, "--allow-host has no effect: there is a key"},
    {&gpu, {"--allow-host", "llm.lan"}, ""},
    {&gpu, {"--lora-scale", "2"}, "--lora-scale has no effect: there is no --lora"},
    {&gpu, {"--lora-scale", "2", "--lora", "x"}, ""},
    {&gpu, {"--draft-tokens", "2", "--speculate", "off"}, "--draft-tokens has no effect: --speculate is off"},
    {&gpu, {"--mlock", "--load-mode", "none"}, "--mlock has no effect: --load-mode"},
    {&gpu, {"--chat-template", "x", "--chat-template-file", "y"}, "--chat-template has no effect: "},
    {&gpu, {"--rope-scaling", "linear", "--yarn-ext-factor", "1"}, "--yarn-ext-factor has no effect: "},
};

static void test_without_effect(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(moot) / sizeof(moot[0]); i++) {
        struct hearth_options options;
        struct hearth_errmsg msg = {""};
        struct hearth_buf lines = {0};
        int count = 0;
        while (count < 4 && moot[i].flags[count]) {
            count++;
        }
        assert_int_equal(parse(&options, count, moot[i].flags, &msg), HEARTH_OK);
        assert_true(hearth_options_moot(&options, moot[i].facts, &lines));
        const char *text = lines.data ? (const char *)lines.data : "";
        assert_memory_equal(text, moot[i].said, strlen(moot[i].said));
        assert_int_equal(*text == '\0', *moot[i].said == '\0');
        assert_int_equal(strcspn(text, "\n") + (*text != '\0'), lines.len); /* one line, or none */
        hearth_buf_finish(&lines);
        hearth_options_finish(&options);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),        cmocka_unit_test(test_forms),   cmocka_unit_test(test_environment),
        cmocka_unit_test(test_mistakes),        cmocka_unit_test(test_asks),    cmocka_unit_test(test_texts),
        cmocka_unit_test(test_sizes),           cmocka_unit_test(test_lists),   cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_mistakes), cmocka_unit_test(test_compare), cmocka_unit_test(test_without_effect),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
