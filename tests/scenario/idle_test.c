/* Idle time: under a template that takes the thinking out of earlier turns, a turn costs what is new, in all dialects
 * and on all memory classes, and replies are those of a server that computes nothing ahead. Other requests go first. */
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TURNS 4
#define BEYOND_TOKENS 64 /* more than what is new, at most; in sim most tokens are bytes */

static const char forgets[] =
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}{%- for t in tools %}{{- t | tojson }}{%- endfor %}"
    "{{- '</tools><|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{- m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}{{- '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}"
    "{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{- '}\\n</tool_call>' }}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

#define THOUGHT \
    "<think>\\nThis takes some thought, which nobody will want to read again once it is over.\\n</think>\\n\\n"

/* A question gets a call, its result an answer; a last one is answered by the model. */
static const char script[] =
    "{\"when\": {\"last\": \"weather\"}, \"bytes\": true, \"times\": 0, \"reply\": \"" THOUGHT
    "<tool_call>\\n{\\\"name\\\": \\\"look\\\", \\\"arguments\\\": {\\\"at\\\": \\\"sky\\\"}}\\n</tool_call>\"}\n"
    "{\"when\": {\"last\": \"sunny\"}, \"bytes\": true, \"times\": 0, \"reply\": \"" THOUGHT
    "It is sunny, and it will stay like this for as long as anyone can see from here.\"}\n";

/* The same with long answers. */
#define LONG_REPLY 6000
static char long_script[2 * LONG_REPLY];

static void make_long_script(void) {
    static const char word[] = "sunny ";
    const char *last = strrchr(script, '.');
    size_t len = (size_t)(last - script);
    memcpy(long_script, script, len);
    for (size_t i = 0; i < LONG_REPLY / strlen(word); i++) {
        memcpy(long_script + len, word, strlen(word));
        len += strlen(word);
    }
    strcpy(long_script + len, last);
}

enum dialect { CHAT, MESSAGES, RESPONSES, RESPONSES_STORED };

static const struct {
    const char *path, *history, *prompt, *receipt;
} dialects[] = {
    {"/v1/chat/completions", "messages", "usage.prompt_tokens", "hearth"},
    {"/v1/messages", "messages", NULL, "hearth"},
    {"/v1/responses", "input", "usage.input_tokens", "hearth"},
    {"/v1/responses", "input", "usage.input_tokens", "hearth"},
};

static json_int_t metric(const struct stage *stage, const char *name) {
    struct response response = http_call(stage->port, "GET", "/metrics", NULL, NULL);
    char line[96];
    long long value = -1;
    assert_int_equal(response.status, 200);
    assert_true(hearth_buf_append(&response.body, "", 1));
    snprintf(line, sizeof line, "\n%s ", name);
    const char *found = strstr((const char *)response.body.data, line);
    assert_non_null(found);
    assert_int_equal(sscanf(found + strlen(line), "%lld", &value), 1);
    response_finish(&response);
    return value;
}

static void wait_until_idle(const struct stage *stage) {
    while (metric(stage, "hearth_idle_running") > 0) {
    }
}

static json_t *tools_of(enum dialect dialect) {
    json_t *schema = json_pack("{s:s, s:{s:{s:s}}}", "type", "object", "properties", "at", "type", "string");
    if (dialect == MESSAGES) {
        return json_pack("[{s:s, s:o}]", "name", "look", "input_schema", schema);
    }
    json_t *function = json_pack("{s:s, s:o}", "name", "look", "parameters", schema);
    if (dialect == CHAT) {
        return json_pack("[{s:s, s:o}]", "type", "function", "function", function);
    }
    json_object_set_new(function, "type", json_string("function"));
    return json_pack("[o]", function);
}

/* Appends the reply to the history, as a client does, and the result of its call if it has one. True: it has. */
static bool take_reply(enum dialect dialect, json_t *history, json_t *answer) {
    static const char result[] = "The sky is sunny.";
    size_t i;
    json_t *item;
    if (dialect == CHAT) {
        json_t *message = json_at(answer, "choices.0.message"), *call = json_at(message, "tool_calls.0.id");
        json_array_append(history, message);
        if (call != NULL) {
            json_array_append_new(
                history, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id", call, "content", result));
        }
        return call != NULL;
    }
    if (dialect == MESSAGES) {
        json_t *content = json_at(answer, "content");
        json_t *last = json_array_get(content, json_array_size(content) - 1), *id = json_object_get(last, "id");
        json_array_append_new(history, json_pack("{s:s, s:O}", "role", "assistant", "content", content));
        if (id != NULL) {
            json_array_append_new(history, json_pack("{s:s, s:[{s:s, s:O, s:s}]}", "role", "user", "content", "type",
                                                     "tool_result", "tool_use_id", id, "content", result));
        }
        return id != NULL;
    }
    json_t *call = NULL;
    json_array_foreach(json_at(answer, "output"), i, item) {
        json_array_append(history, item);
        call = json_object_get(item, "call_id") != NULL ? json_object_get(item, "call_id") : call;
    }
    if (call != NULL) {
        json_array_append_new(
            history, json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id", call, "output", result));
    }
    return call != NULL;
}

static json_t *ask(const struct stage *stage, enum dialect dialect, json_t *history, json_t *tools) {
    json_t *body = json_pack("{s:O, s:O, s:i}", dialects[dialect].history, history, "tools", tools, "temperature", 0);
    json_object_set_new(body, dialect >= RESPONSES ? "max_output_tokens" : "max_tokens", json_integer(400));
    if (dialect >= RESPONSES) {
        json_object_set_new(body, "store", json_boolean(dialect == RESPONSES_STORED));
    }
    char *text = json_dumps(body, 0);
    json_t *answer = stage_want(stage, "POST", dialects[dialect].path, text, 200);
    free(text);
    json_decref(body);
    return answer;
}

static json_int_t prompt_of(enum dialect dialect, json_t *answer) {
    if (dialects[dialect].prompt != NULL) {
        return json_num(answer, dialects[dialect].prompt);
    }
    const json_int_t created = json_num(answer, "usage.cache_creation_input_tokens");
    return json_num(answer, "usage.input_tokens") + json_num(answer, "usage.cache_read_input_tokens") +
           (created > 0 ? created : 0);
}

/* Questions, calls, results, answers; with idle time between them, or not. Returns what the model said in the end. */
static json_t *converse(enum hearth_engine_class memory_class, enum dialect dialect, uint32_t idle_tokens) {
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.script = script;
    options.api.idle_after_us = 0;
    options.api.idle_tokens = idle_tokens;
    options.chat_template = forgets;
    stage_open(&stage, &options);
    json_t *history = json_array(), *tools = tools_of(dialect);
    json_int_t rewritten = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        char question[96];
        const json_int_t foreground = metric(&stage, "hearth_prompt_computed_tokens_total");
        snprintf(question, sizeof question, "What is the weather like, and was it so %d days ago?", turn);
        json_array_append_new(history, json_pack("{s:s, s:s}", "role", "user", "content", question));
        json_t *answer = ask(&stage, dialect, history, tools);
        wait_until_idle(&stage);
        const json_int_t computed = metric(&stage, "hearth_prompt_computed_tokens_total") - foreground;
        json_t *receipt = json_at(answer, dialects[dialect].receipt);
        rewritten += json_num(receipt, "computed_idle") > 0 ? json_num(receipt, "computed_idle") : 0;
        if (turn > 0 && idle_tokens > 0) {
            assert_true(computed <= (json_int_t)strlen(question) + BEYOND_TOKENS);
            assert_true(json_num(receipt, "computed_idle") > 0);
            assert_true(json_is_null(json_at(receipt, "divergence")));
        }
        assert_true(take_reply(dialect, history, answer));
        json_decref(answer);
        answer = ask(&stage, dialect, history, tools);
        assert_false(take_reply(dialect, history, answer));
        json_decref(answer);
        wait_until_idle(&stage);
    }
    json_array_append_new(history, json_pack("{s:s, s:s}", "role", "user", "content", "Say what you like."));
    json_t *answer = ask(&stage, dialect, history, tools);
    json_t *said = json_pack("{s:I}", "prompt", prompt_of(dialect, answer));
    const char *const places[] = {"choices.0.message.content", "content.0.text", "output.0.content.0.text"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        json_object_set(said, places[i], json_at(answer, places[i]));
    }
    assert_true(idle_tokens > 0 ? metric(&stage, "hearth_idle_tokens_total") >= rewritten && rewritten > 0
                                : metric(&stage, "hearth_idle_tokens_total") == 0 && rewritten == 0);
    json_decref(answer);
    json_decref(history);
    json_decref(tools);
    stage_close(&stage);
    return said;
}

static void turns_cost_what_is_new(void **state) {
    static const enum hearth_engine_class classes[] = {HEARTH_ENGINE_PAGES, HEARTH_ENGINE_PAGES_SNAPSHOT,
                                                       HEARTH_ENGINE_SNAPSHOT, HEARTH_ENGINE_OPAQUE};
    (void)state;
    for (enum dialect dialect = CHAT; dialect <= RESPONSES_STORED; dialect++) {
        for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
            json_t *without = converse(classes[i], dialect, 0), *with = converse(classes[i], dialect, 65536);
            assert_true(json_num(with, "prompt") > 0 && json_equal(without, with));
            json_decref(without);
            json_decref(with);
        }
    }
}

/* One question of `bytes` bytes, its call and its answer; returns the history. */
static json_t *ask_once(const struct stage *stage, size_t bytes, const char *session) {
    json_t *tools = tools_of(CHAT), *history = json_array();
    char *question = malloc(bytes + 16);
    assert_non_null(question);
    memset(question, 'w', bytes);
    strcpy(question + bytes, " weather?");
    json_array_append_new(history, json_pack("{s:s, s:s}", "role", "user", "content", question));
    free(question);
    for (bool calls = true; calls;) {
        json_t *body = json_pack("{s:O, s:O, s:s*}", "messages", history, "tools", tools, "session_id", session);
        char *text = json_dumps(body, 0);
        json_t *answer = stage_want(stage, "POST", dialects[CHAT].path, text, 200);
        calls = take_reply(CHAT, history, answer);
        json_decref(answer);
        json_decref(body);
        free(text);
    }
    json_decref(tools);
    return history;
}

/* Where there is nothing to gain, nothing is computed: no more than the budget, none of it where a session knows the
 * exact tokens, where thinking is kept, or where the template rewrites nothing. */
static void a_turn_has_a_budget(void **state) {
    enum { BUDGET = 90 };
    static const struct {
        uint32_t tokens;
        bool keep_thinking, other_template;
        const char *session;
        json_int_t computed;
    } cases[] = {{BUDGET, false, false, NULL, BUDGET},
                 {65536, false, false, "s", 0},
                 {65536, true, false, NULL, 0},
                 {65536, false, true, NULL, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stage_options options;
        struct stage stage;
        stage_options_default(&options);
        options.script = script;
        options.api.idle_after_us = 0;
        options.api.idle_tokens = cases[i].tokens;
        options.api.keep_thinking = cases[i].keep_thinking;
        options.chat_template = cases[i].other_template ? NULL : forgets;
        stage_open(&stage, &options);
        json_decref(ask_once(&stage, 100, cases[i].session));
        wait_until_idle(&stage);
        assert_int_equal(metric(&stage, "hearth_idle_tokens_total"), cases[i].computed);
        assert_int_equal(metric(&stage, "hearth_requests_total"), 2);
        stage_close(&stage);
    }
}

static void real_time(struct stage_options *options, uint32_t idle_tokens) {
    options->sim.lanes = 1;
    options->sim.real_time = true;
    options->sim.prefill_tokens_per_s = 3000;
    options->sim.decode_tokens_per_s = 1e6;
    options->sim.reply_tokens = 8;
    options->script = long_script;
    options->api.idle_after_us = 0;
    options->api.idle_tokens = idle_tokens;
    options->chat_template = forgets;
}

/* The next turn comes while it is computed ahead: it goes on from there, and says what it would say in any case. */
static void a_turn_may_come_early(void **state) {
    char *said[2] = {NULL};
    (void)state;
    for (int idle = 0; idle < 2; idle++) {
        struct stage_options options;
        struct stage stage;
        stage_options_default(&options);
        real_time(&options, idle ? 65536 : 0);
        stage_open(&stage, &options);
        json_t *history = ask_once(&stage, 100, NULL), *tools = tools_of(CHAT);
        while (idle && metric(&stage, "hearth_idle_tokens_total") == 0) {
        }
        json_array_append_new(history, json_pack("{s:s, s:s}", "role", "user", "content", "Say what you like."));
        json_t *answer = ask(&stage, CHAT, history, tools);
        said[idle] = strdup(json_str(answer, "choices.0.message.content"));
        assert_true(json_num(answer, "hearth.computed") > 0);
        json_decref(answer);
        json_decref(history);
        json_decref(tools);
        stage_close(&stage);
    }
    assert_string_equal(said[0], said[1]);
    free(said[0]);
    free(said[1]);
}

/* In real time: a long history is computed ahead when another request comes, which is answered meanwhile, on the only
 * lane; what was begun goes on behind it. At the end of the server it is cancelled. */
static void others_go_first(void **state) {
    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        struct stage_options options;
        struct stage stage;
        stage_options_default(&options);
        real_time(&options, 65536);
        stage_open(&stage, &options);
        json_decref(ask_once(&stage, 100, NULL));
        assert_true(metric(&stage, "hearth_idle_running") >= 1);
        json_t *answer = stage_want(&stage, "POST", "/v1/chat/completions",
                                    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":4}", 200);
        assert_true(metric(&stage, "hearth_idle_running") >= 1);
        json_decref(answer);
        if (ends == 0) {
            wait_until_idle(&stage);
            assert_true(metric(&stage, "hearth_idle_tokens_total") > LONG_REPLY / 2);
        }
        stage_close(&stage);
    }
}

/* The next turn comes before anything was begun: nothing is computed ahead of it any more. What still waits at the end
 * of the server is dropped. */
static void a_turn_may_come_at_once(void **state) {
    struct stage_options options;
    struct stage stage;
    (void)state;
    stage_options_default(&options);
    options.script = script;
    options.api.idle_after_us = INT64_C(3600) * 1000000;
    options.api.idle_tokens = 65536;
    options.chat_template = forgets;
    stage_open(&stage, &options);
    json_decref(ask_once(&stage, 100, NULL)); /* a call, and the answer behind its result */
    assert_int_equal(metric(&stage, "hearth_idle_running"), 1);
    json_decref(ask_once(&stage, 200, NULL));
    assert_int_equal(metric(&stage, "hearth_idle_running"), 2);
    assert_int_equal(metric(&stage, "hearth_idle_tokens_total"), 0);
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns_cost_what_is_new), cmocka_unit_test(a_turn_has_a_budget),
                                       cmocka_unit_test(others_go_first), cmocka_unit_test(a_turn_may_come_at_once),
                                       cmocka_unit_test(a_turn_may_come_early)};
    make_long_script();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
