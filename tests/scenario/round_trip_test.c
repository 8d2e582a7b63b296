/* Replies come back as they were sampled, with every template of llama.cpp's collection: a reply, as the template
 * itself would print it, is "sampled" (by a script), given back as a client of each dialect gives it back, and nothing
 * of it is computed again. Where a template leaves something out on purpose, that is told apart, and --keep-thinking
 * keeps it.
 *
 * What is computed again for such a template is computed ahead, in idle time: then a turn costs what is new.
 *
 * The outcome is a table, which stands in docs/models.md (HEARTH_PAGE): compared with it, or, with HEARTH_WRITE,
 * written there. HEARTH_ONLY tries the templates alone whose names hold a text, and HEARTH_VERBOSE says more of each
 * reply. */
#include "support/markers.h"
#include "support/messages.h"
#include "support/samples.h"
#include "support/stage.h"
#include "support/templates.h"

#include "base/assert.h"
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { REPLIES = SAMPLES_REPLIES, DIALECTS = 3 };

/* Prints a page of instructions behind every last message, which is new each time. */
static const char instructs_again[] = "CohereForAI-c4ai-command-r-plus-tool_use";

static const char tools_text[] =
    "[{'type':'function','function':{'name':'read','description':'Reads a file','parameters':{'type':'object',"
    "'properties':{'path':{'type':'string'},'text':{'type':'string'},'count':{'type':'integer'},'ratio':{'type':"
    "'number'},'whole':{'type':'number'},'yes':{'type':'boolean'},'no':{'type':'boolean'},'nothing':{},'list':{'type':"
    "'array'},'object':{'type':'object'},'empty':{'type':'string'}}}}}]";

/* ---- requests ---- */

static json_t *tools_for(int dialect, const json_t *tools) {
    const json_t *function = json_object_get(json_array_get(tools, 0), "function");
    json_t *name = json_object_get(function, "name"), *schema = json_object_get(function, "parameters");
    return dialect == 0   ? json_deep_copy(tools)
           : dialect == 1 ? json_pack("[{s:O, s:O}]", "name", name, "input_schema", schema)
                          : json_pack("[{s:s, s:O, s:O, s:b}]", "type", "function", "name", name, "parameters", schema,
                                      "strict", 0);
}

/* What a client of the dialect appends to its history for an answer, and the next message. */
static void go_on(int dialect, json_t *answer, json_t *messages) {
    size_t i;
    json_t *item;
    if (dialect == 0) {
        json_t *message = json_at(answer, "choices.0.message");
        json_array_append(messages, message);
        json_array_foreach(json_object_get(message, "tool_calls"), i, item) {
            json_array_append_new(messages, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                                      json_object_get(item, "id"), "content", "The result."));
        }
        if (json_array_size(json_object_get(message, "tool_calls")) > 0) {
            return;
        }
    } else if (dialect == 1) {
        json_t *content = json_object_get(answer, "content"), *results = json_array();
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "assistant", "content", content));
        json_array_foreach(content, i, item) {
            if (strcmp(json_str(item, "type"), "tool_use") == 0) {
                json_array_append_new(results, json_pack("{s:s, s:O, s:s}", "type", "tool_result", "tool_use_id",
                                                         json_object_get(item, "id"), "content", "The result."));
            }
        }
        if (json_array_size(results) > 0) {
            json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", results));
            return;
        }
        json_decref(results);
    } else {
        bool called = false;
        json_array_foreach(json_object_get(answer, "output"), i, item) {
            json_array_append(messages, item);
        }
        json_array_foreach(json_object_get(answer, "output"), i, item) {
            if (strcmp(json_str(item, "type"), "function_call") == 0) {
                json_array_append_new(messages, json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id",
                                                          json_object_get(item, "call_id"), "output", "The result."));
                called = true;
            }
        }
        if (called) {
            return;
        }
    }
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "And now?"));
}

static json_t *ask(const struct stage *stage, int dialect, json_t *messages, const json_t *tools) {
    static const char *const paths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses"};
    int status;
    json_t *body =
        json_pack("{s:O, s:o}", dialect == 2 ? "input" : "messages", messages, "tools", tools_for(dialect, tools));
    json_object_set_new(body, dialect == 2 ? "max_output_tokens" : "max_tokens", json_integer(4000));
    char *text = json_dumps(body, 0);
    json_t *answer = stage_call(stage, "POST", paths[dialect], text, &status);
    if (status != 200) {
        print_error("%s: %d: %s\n", paths[dialect], status, json_str(answer, "error.message"));
        json_decref(answer);
        answer = NULL;
    }
    free(text);
    json_decref(body);
    return answer;
}

/* What the next request may cost: its new messages, each with what a template prints around it, and a little. */
static json_int_t most_tokens(const json_t *messages) {
    enum { MESSAGE_TOKENS = 34, BEYOND_TOKENS = 64 }; /* most of sim's tokens are bytes */
    json_int_t fresh = 0;
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        const char *type = json_string_value(json_object_get(message, "type"));
        const json_t *content = json_object_get(message, "content");
        if ((role != NULL && strcmp(role, "assistant") == 0) || (type != NULL && strcmp(type, "function_call") == 0)) {
            break;
        }
        fresh += json_is_array(content) ? (json_int_t)json_array_size(content) : 1;
    }
    return fresh * MESSAGE_TOKENS + BEYOND_TOKENS;
}

/* ---- a template ---- */

struct outcome {
    bool sampled;    /* there is such a reply */
    bool plain, one; /* see struct sample */
    bool same;       /* nothing of it was computed again, in any dialect */
    bool kept;       /* that at least with --keep-thinking */
    bool cheap;      /* with idle time between two turns, the next one costs no more than what is new and a little */
};

static json_int_t reused(json_t *answer) {
    return json_num(answer, "hearth.reused.live") + json_num(answer, "hearth.reused.ram") +
           json_num(answer, "hearth.reused.disk");
}

/* Waits until nothing is computed ahead any more. */
static void pass_idle_time(const struct stage *stage) {
    for (bool runs = true; runs;) {
        struct response response = http_call(stage->port, "GET", "/metrics", NULL, NULL);
        HEARTH_ASSERT(response.status == 200 && hearth_buf_append(&response.body, "", 1));
        runs = strstr((const char *)response.body.data, "\nhearth_idle_running 0\n") == NULL;
        response_finish(&response);
    }
}

/* True: nothing of the reply was computed again; `idle`: when what is new was asked for, no more than that and a
 * little was. */
static bool turn(const struct stage *stage, int dialect, size_t reply, const json_t *tools, bool idle) {
    char question[64];
    snprintf(question, sizeof question, "Question #%zu.%d#", reply, dialect);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", question);
    json_t *answer = ask(stage, dialect, messages, tools), *next = NULL;
    bool same = false;
    if (answer != NULL) {
        go_on(dialect, answer, messages);
        pass_idle_time(stage);
        next = ask(stage, dialect, messages, tools);
    }
    if (next != NULL) {
        json_t *usage = json_object_get(answer, "usage");
        json_int_t out = json_num(usage, dialect == 0 ? "completion_tokens" : "output_tokens");
        json_int_t state = reused(answer) + json_num(answer, "hearth.computed") + out - 1;
        same = reused(next) >= state;
        if (idle) {
            same = same || json_num(next, "hearth.computed") <= most_tokens(messages);
        }
        if (getenv("HEARTH_VERBOSE") != NULL && !same) {
            char *dump = json_dumps(json_object_get(next, "hearth"), 0);
            printf("%zu.%d: %lld of %lld: %s\n", reply, dialect, (long long)reused(next), (long long)state, dump);
            free(dump);
        }
    }
    json_decref(answer);
    json_decref(next);
    json_decref(messages);
    return same;
}

/* A script with a reply for each question that there can be one for. */
static char *make_script(const char *name, const char *text, const json_t *tools, struct outcome *outcomes) {
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg;
    struct hearth_buf script = {0};
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "<s>", .eos_text = "<|im_end|>"};
    HEARTH_ASSERT(hearth_chat_create(&params, &chat, &msg) == HEARTH_OK);
    for (size_t i = 0; i < REPLIES; i++) {
        const struct sample sample = sample_make(chat, name, i, tools);
        char when[32];
        outcomes[i] = (struct outcome){.sampled = sample.text != NULL, .plain = sample.plain, .one = sample.one};
        if (sample.text != NULL) {
            snprintf(when, sizeof when, "#%zu.", i);
            json_t *line = json_pack("{s:{s:s}, s:s, s:i}", "when", "last", when, "reply", sample.text, "times", 0);
            char *dump = json_dumps(line, 0);
            HEARTH_ASSERT(hearth_buf_printf(&script, "%s\n", dump));
            free(dump);
            json_decref(line);
        }
        free(sample.text);
    }
    HEARTH_ASSERT(hearth_buf_append(&script, "", 1));
    hearth_chat_destroy(chat);
    return (char *)hearth_buf_take(&script);
}

enum manner { AS_IT_IS, KEEP_THINKING, IDLE_TIME };

/* Of the replies, those that have not come back yet. */
static void try_replies(const char *text, const char *script, enum manner manner, const json_t *tools,
                        struct outcome *outcomes) {
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.chat_template = text;
    options.script = script;
    options.api.keep_thinking = manner == KEEP_THINKING;
    options.api.idle_after_us = 0;
    options.api.idle_tokens = manner == IDLE_TIME ? 65536 : 0;
    options.sim.ctx_tokens = 65536;
    options.markers = markers_add;
    stage_open(&stage, &options);
    for (size_t i = 0; i < REPLIES; i++) {
        bool whole = outcomes[i].sampled;
        for (int dialect = 0; dialect < DIALECTS && whole; dialect++) {
            whole = turn(&stage, dialect, i, tools, manner == IDLE_TIME);
        }
        outcomes[i].same = whole && manner == AS_IT_IS ? true : outcomes[i].same;
        outcomes[i].kept = manner == KEEP_THINKING ? whole : outcomes[i].kept;
        outcomes[i].cheap = whole;
    }
    stage_close(&stage);
}

static const char *cell(const struct outcome *outcome) {
    return !outcome->sampled ? "–" : outcome->same ? "yes" : outcome->kept ? "keep" : "no";
}

static void try_template(const char *name, const char *text, const json_t *tools, struct hearth_buf *table) {
    struct outcome outcomes[REPLIES] = {{0}};
    char *script = make_script(name, text, tools, outcomes);
    bool all = true, some = false;
    for (size_t i = 0; i < REPLIES; i++) {
        some = some || outcomes[i].sampled;
    }
    if (some) {
        try_replies(text, script, AS_IT_IS, tools, outcomes);
        for (size_t i = 0; i < REPLIES; i++) {
            all = all && (outcomes[i].same || !outcomes[i].sampled);
        }
        if (!all) {
            try_replies(text, script, KEEP_THINKING, tools, outcomes);
            try_replies(text, script, IDLE_TIME, tools, outcomes);
            for (size_t i = 0; i < REPLIES; i++) {
                if (outcomes[i].sampled && !outcomes[i].cheap && strcmp(name, instructs_again) != 0) {
                    fail_msg("%s, %s: computed again, though there was idle time", name, samples_names[i]);
                }
            }
        }
    }
    HEARTH_ASSERT(hearth_buf_printf(table, "| %s |", name));
    for (size_t i = 0; i < REPLIES; i++) {
        const struct outcome *outcome = &outcomes[i];
        HEARTH_ASSERT(hearth_buf_printf(table, " %s%s%s |", cell(outcome),
                                        outcome->sampled && outcome->one ? ", one call" : "",
                                        outcome->sampled && outcome->plain ? ", plain" : ""));
    }
    HEARTH_ASSERT(hearth_buf_append(table, "\n", 1));
    free(script);
}

static void start_table(struct hearth_buf *table) {
    HEARTH_ASSERT(hearth_buf_printf(table, "| template |"));
    for (size_t i = 0; i < REPLIES; i++) {
        HEARTH_ASSERT(hearth_buf_printf(table, " %s |", samples_names[i]));
    }
    HEARTH_ASSERT(hearth_buf_printf(table, "\n|---|"));
    for (size_t i = 0; i < REPLIES; i++) {
        HEARTH_ASSERT(hearth_buf_printf(table, "---|"));
    }
    HEARTH_ASSERT(hearth_buf_append(table, "\n", 1));
}

/* The page's table is `table`; or becomes it. */
static void check_page(const char *table) {
    const char *path = getenv("HEARTH_PAGE");
    char *page = templates_read(path);
    char *begin = strstr(page, "| template | words |"), *end = begin != NULL ? strstr(begin, "\n\n") : NULL;
    assert_non_null(end);
    if (getenv("HEARTH_WRITE") != NULL) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fprintf(file, "%.*s%s%s", (int)(begin - page), page, table, end + 1);
        fclose(file);
    } else if (strncmp(begin, table, strlen(table)) != 0) {
        fail_msg("docs/models.md has another table; if this one is right, run the test with HEARTH_WRITE=1:\n%s",
                 table);
    }
    free(page);
}

/* Each line of `table`, which is of a share of the templates, stands in the page. */
static void check_lines(char *table) {
    char *page = templates_read(getenv("HEARTH_PAGE")), *rest = NULL;
    for (char *line = strtok_r(table, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strstr(page, line) == NULL) {
            fail_msg("docs/models.md has another line than this:\n%s", line);
        }
    }
    free(page);
}

static void every_reply_of_every_template(void **state) {
    (void)state;
    struct templates all = templates_load_share();
    if (all.n == 0) {
        skip();
    }
    json_t *tools = messages_json(tools_text);
    const char *only = getenv("HEARTH_ONLY");
    struct hearth_buf table = {0};
    start_table(&table);
    for (size_t t = 0; t < all.n; t++) {
        if (only == NULL || strstr(all.names[t], only) != NULL) {
            try_template(all.names[t], all.texts[t], tools, &table);
        }
    }
    HEARTH_ASSERT(hearth_buf_append(&table, "", 1));
    if (only != NULL) {
        printf("%s", (const char *)table.data);
    } else if (all.n < all.all) {
        check_lines((char *)table.data);
    } else {
        check_page((const char *)table.data);
    }
    hearth_buf_finish(&table);
    json_decref(tools);
    templates_finish(&all);
    markers_finish();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_reply_of_every_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
