/* Fuzzes what the owner of a server gives it: a file of keys, one of options and a command line, of replies, a trace.
 * What is accepted keeps the limits of the tables; what is not is refused with one line. */
#include "fuzz.h"

#include "api/job.h"
#include "cli/keys.h"
#include "engine/sim.h"
#include "replay/oracle.h"
#include "replay/trace.h"

#include <math.h>
#include <stdio.h>

static bool is_one_line(const struct hearth_errmsg *msg) {
    return msg->text[0] != '\0' && strchr(msg->text, '\n') == NULL;
}

/* The value of --api-key, and the file. */
FUZZ_TARGET(keys) {
    struct fuzz_input input = {data, size};
    size_t flag_len, len;
    char *flag = fuzz_part(&input, &flag_len), *text = fuzz_part(&input, &len);
    const char *path = fuzz_path("keys");
    const struct hearth_options options = {.api_key = flag_len > 0 ? flag : NULL, .api_key_file = path};
    struct hearth_key_list list = {0};
    struct hearth_errmsg msg = {""};
    fuzz_write(path, text, len);
    if (hearth_key_list_read(&options, &list, &msg) == HEARTH_OK) {
        HEARTH_ASSERT(list.count > 0);
        for (size_t i = 0; i < list.count; i++) {
            const struct hearth_api_key *key = &list.keys[i];
            HEARTH_ASSERT(key->key[0] != '\0' && (key->weight == 0 || (key->weight >= 0.01 && key->weight <= 1000)));
            HEARTH_ASSERT(key->name == NULL || (key->name[0] != '\0' && strlen(key->name) <= 40));
            for (size_t k = 0; k < i; k++) {
                HEARTH_ASSERT(strcmp(list.keys[k].key, key->key) != 0);
            }
        }
    } else {
        HEARTH_ASSERT(is_one_line(&msg));
    }
    hearth_key_list_finish(&list);
    free(flag);
    free(text);
}

/* Arguments, a line each. Those that name a file of options are left out: there is one already. */
static int cut_arguments(char *text, char **argv, int max) {
    int n = 0;
    char *rest = text, *line;
    while (n < max && (line = strtok_r(rest, "\n", &rest)) != NULL) {
        if (strstr(line, "conf") == NULL) {
            argv[n++] = line;
        }
    }
    return n;
}

static void count_changes(void *user, const char *name, bool live) {
    (void)live;
    HEARTH_ASSERT(strncmp(name, "--", 2) == 0);
    ++*(int *)user;
}

/* The file, and the arguments behind it. */
FUZZ_TARGET(options) {
    struct fuzz_input input = {data, size};
    size_t len, arguments_len;
    char *text = fuzz_part(&input, &len), *arguments = fuzz_part(&input, &arguments_len);
    char flag[] = "--config", path[4096], *argv[36] = {flag, path};
    struct hearth_options options = {0};
    struct hearth_errmsg msg = {""};
    enum hearth_options_ask ask;
    (void)snprintf(path, sizeof path, "%s", fuzz_path("hearth.conf"));
    fuzz_write(path, text, len);
    const int argc = 2 + cut_arguments(arguments, argv + 2, 32);
    const int err = hearth_options_parse(&options, argc, argv, &ask, &msg);
    if (err == HEARTH_OK && ask == HEARTH_OPTIONS_RUN) {
        int changes = 0;
        hearth_options_compare(&options, &options, count_changes, &changes);
        HEARTH_ASSERT(changes == 0);
#define SECTION(title)
#define CHECK_TEXT(value, least, most)
#define CHECK_FILLED(value, least, most)
#define CHECK_CHOICE(value, least, most) HEARTH_ASSERT((value) != NULL);
#define CHECK_LIST(value, least, most) HEARTH_ASSERT((value).n <= HEARTH_OPTION_LIST_MAX);
#define CHECK_WHOLE(value, least, most) \
    HEARTH_ASSERT((double)(value) >= (double)(least) && (double)(value) <= (double)(most));
#define CHECK_TOKENS(value, least, most) CHECK_WHOLE(value, least, most)
#define CHECK_SIZE(value, least, most) CHECK_WHOLE(value, least, most)
#define CHECK_REAL(value, least, most) \
    HEARTH_ASSERT(isfinite(value));    \
    CHECK_WHOLE(value, least, most)
#define CHECK_SWITCH(value, least, most)
#define CHECK_ALWAYS(value, least, most)
#define OPTION(field, type, long_name, names, argument, preset, least, most, help) \
    CHECK_##type(options.field, least, most)
#include "cli/options.def"
#undef SECTION
#undef OPTION
    }
    HEARTH_ASSERT(err == HEARTH_OK || is_one_line(&msg));
    hearth_options_finish(&options);
    free(text);
    free(arguments);
}

FUZZ_TARGET(script) {
    static struct hearth_engine *engine;
    struct hearth_errmsg msg = {""};
    struct hearth_script *script;
    if (engine == NULL) {
        struct hearth_sim_params sim;
        hearth_sim_params_default(&sim);
        HEARTH_ASSERT(hearth_sim_create(&sim, &engine, &msg) == HEARTH_OK);
    }
    const char *path = fuzz_path("script");
    fuzz_write(path, data, size);
    if (hearth_script_load(path, &script, &msg) == HEARTH_OK) {
        struct hearth_api api = {.engine = engine, .script = script};
        struct hearth_job job = {.api = &api};
        struct hearth_api_rendered rendered = {0};
        struct hearth_api_error error;
        hearth_api_phases_begin(&job);
        HEARTH_ASSERT(hearth_script_render(&job, &rendered, &error));
        HEARTH_ASSERT(rendered.scripted == (rendered.script.n > 0));
        hearth_tokens_finish(&rendered.script);
        hearth_script_destroy(script);
    } else {
        HEARTH_ASSERT(script == NULL && is_one_line(&msg));
    }
}

/* A trace: what is read is in order, and its parts add up. The oracle is asked about those that are short. */
FUZZ_TARGET(trace) {
    const struct hearth_trace_choice choice = {.of = 1, .concurrency = 2};
    char path[4096], *paths[] = {path};
    struct hearth_trace trace;
    struct hearth_errmsg msg = {""};
    (void)snprintf(path, sizeof path, "%s", fuzz_path("trace"));
    fuzz_write(path, data, size);
    if (hearth_trace_read(paths, 1, &choice, &trace, &msg) != HEARTH_OK) {
        HEARTH_ASSERT(is_one_line(&msg) && trace.count == 0);
        return;
    }
    uint64_t tokens = 0, blocks = 0;
    for (size_t i = 0; i < trace.count; i++) {
        const struct hearth_trace_request *request = &trace.requests[i];
        uint64_t of_runs = 0;
        HEARTH_ASSERT(i == 0 || trace.requests[i - 1].at_us <= request->at_us);
        HEARTH_ASSERT((size_t)request->run + request->run_count <= trace.run_count && request->prompt_tokens >= 1);
        for (uint32_t k = 0; k < request->run_count; k++) {
            of_runs += trace.runs[request->run + k].count;
        }
        HEARTH_ASSERT(request->blocks >= 0 && of_runs == (uint64_t)request->blocks);
        HEARTH_ASSERT(request->head_blocks >= 0 && request->head_blocks <= request->blocks);
        tokens += (uint64_t)request->prompt_tokens;
        blocks += of_runs;
    }
    HEARTH_ASSERT(trace.count > 0 && tokens == trace.prompt_tokens);
    struct hearth_oracle oracle;
    if (blocks < 4096 && hearth_oracle_make(&trace, &oracle, &msg) == HEARTH_OK) {
        HEARTH_ASSERT(oracle.new_tokens <= tokens);
        HEARTH_ASSERT(hearth_oracle_belady(&trace, &oracle, UINT64_MAX, 0) == oracle.new_tokens);
        HEARTH_ASSERT(hearth_oracle_belady(&trace, &oracle, 3, 1) >= oracle.new_tokens);
        hearth_oracle_finish(&oracle);
    }
    hearth_trace_finish(&trace);
}
