/* Replies come back as they were sampled, with every template of llama.cpp's collection: a reply, as the template
 * itself would print it, is "sampled" (by a script), given back as a client of each dialect gives it back, and nothing
 * of it is computed again. Where a template leaves something out on purpose, that is told apart, and --keep-thinking
 * keeps it.
 *
 * The outcome is a table, which stands in docs/models.md (HEARTH_PAGE): compared with it, or, with HEARTH_WRITE,
 * written there. HEARTH_ONLY tries the templates alone whose names hold a text, and HEARTH_VERBOSE says more of each
 * reply. */
#include "support/markers.h"
#include "support/messages.h"
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

#define THOUGHTS "zqthoughts, and a line.\nThen another one."
#define WORDS "zqwords: **one**, \\'two\\' and é.\n\n- three"
#define AWKWARD                                                                                                      \
    "{\"path\": \"a \\\"b\\\" \\\\ c/d.txt\", \"text\": \"zqtext é 日本\\n\\tline <b>two</b>\", \"count\": 3, "   \
    "\"ratio\": 0.1, \"whole\": 1.0, \"yes\": true, \"no\": false, \"nothing\": null, \"list\": [1, [], {}, null], " \
    "\"object\": {\"z\": {\"b\": 1, \"a\": [true, null]}}, \"empty\": \"\"}"
#define BIG "{\"path\": \"x\", \"count\": 12345678901234567890123}"

struct reply {
    const char *name, *thoughts, *words, *arguments[2];
    bool compact; /* arguments are spaced otherwise than the template does it */
};

static const struct reply replies[] = {
    {"words", NULL, WORDS, {NULL, NULL}, false},
    {"thoughts, words", THOUGHTS, WORDS, {NULL, NULL}, false},
    {"a call", NULL, "", {AWKWARD, NULL}, false},
    {"a call, compact", NULL, "", {AWKWARD, NULL}, true},
    {"a big number", NULL, "", {BIG, NULL}, false},
    {"words, two calls", NULL, WORDS, {"{}", AWKWARD}, false},
    {"thoughts, words, two calls", THOUGHTS, WORDS, {AWKWARD, "{\"path\": \"y\"}"}, false},
};

enum { REPLIES = sizeof replies / sizeof replies[0], DIALECTS = 3 };

static const char tools_text[] =
    "[{'type':'function','function':{'name':'read','description':'Reads a file','parameters':{'type':'object',"
    "'properties':{'path':{'type':'string'},'text':{'type':'string'},'count':{'type':'integer'},'ratio':{'type':"
    "'number'},'whole':{'type':'number'},'yes':{'type':'boolean'},'no':{'type':'boolean'},'nothing':{},'list':{'type':"
    "'array'},'object':{'type':'object'},'empty':{'type':'string'}}}}}]";

/* ---- what is sampled ---- */

static struct hearth_message *make_reply(const struct reply *reply) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    message->content = strdup(reply->words);
    message->content_len = strlen(reply->words);
    message->reasoning = reply->thoughts != NULL ? strdup(reply->thoughts) : NULL;
    size_t calls = reply->arguments[0] == NULL ? 0 : reply->arguments[1] == NULL ? 1 : 2;
    HEARTH_ASSERT(calls == 0 || hearth_message_alloc_calls(message, calls));
    for (size_t i = 0; i < calls; i++) {
        message->calls[i] = (struct hearth_call){strdup(i == 0 ? "aaaaaaaa1" : "aaaaaaaa2"), strdup("read"),
                                                 strdup(reply->arguments[i]), NULL};
    }
    HEARTH_ASSERT(hearth_message_seal(message));
    return message;
}

static bool render(struct hearth_chat *chat, struct hearth_message **messages, size_t count, const json_t *tools,
                   bool ends, struct hearth_chat_format **format, struct hearth_chat_prompt *out) {
    const struct hearth_chat_request request = {.messages = messages,
                                                .message_count = count,
                                                .tools = tools,
                                                .tool_choice = HEARTH_TOOLS_AUTO,
                                                .parallel_calls = true,
                                                .thinking = true,
                                                .no_generation_prompt = ends};
    struct hearth_errmsg msg = {""};
    bool ok = hearth_chat_format_get(chat, &request, format, &msg) == HEARTH_OK &&
              hearth_chat_render(chat, &request, *format, out, &msg) == HEARTH_OK;
    if (!ok) {
        print_error("not printed: %s\n", msg.text);
    }
    return ok;
}

static bool reads_as(const struct hearth_chat_format *format, const char *text, size_t len,
                     const struct hearth_message *message) {
    struct hearth_message *read = NULL;
    struct hearth_errmsg msg;
    bool same =
        hearth_chat_parse(format, text, len, &read, &msg) == HEARTH_OK && hearth_message_is_print(read, message);
    hearth_message_unref(read);
    return same;
}

/* Cuts the end of the turn off: control tokens at the end without which the text says what it should. */
static void cut_end(const struct hearth_chat_format *format, char *text, const struct hearth_message *message) {
    size_t len = strlen(text), best = len;
    for (size_t at = len, tried = 0; at > 0 && tried < 8; at--) {
        const char *end = text + at - 1;
        if (strncmp(end, "</t", 3) == 0 || strncmp(end, "</param", 7) == 0 || strncmp(end, "</fun", 5) == 0) {
            break; /* of a call, or of thoughts */
        }
        if (*end == '<' || *end == '[') {
            best = reads_as(format, text, at - 1, message) ? at - 1 : best;
            tried++;
        }
    }
    text[best] = '\0';
}

static char *replaced(const char *text, const char *what, const char *with) {
    struct hearth_buf out = {0};
    for (const char *at; (at = strstr(text, what)) != NULL; text = at + strlen(what)) {
        HEARTH_ASSERT(hearth_buf_append(&out, text, (size_t)(at - text)) &&
                      hearth_buf_append(&out, with, strlen(with)));
    }
    HEARTH_ASSERT(hearth_buf_append(&out, text, strlen(text) + 1));
    return (char *)hearth_buf_take(&out);
}

/* Values that a template prints as Python does, as a model writes them. */
static char *as_json(const char *text) {
    static const char *const words[][2] = {{">True<", ">true<"},       {">False<", ">false<"},
                                           {">None<", ">null<"},       {"\nTrue\n", "\ntrue\n"},
                                           {"\nFalse\n", "\nfalse\n"}, {"\nNone\n", "\nnull\n"}};
    char *made = strdup(text);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char *next = replaced(made, words[i][0], words[i][1]);
        free(made);
        made = next;
    }
    return made;
}

static char *compact(const char *text, const struct hearth_message *message) {
    char *with = json_dumps(message->calls[0].parsed, JSON_COMPACT);
    char *spaced = json_dumps(message->calls[0].parsed, 0);
    char *once = replaced(text, spaced, with), *made = replaced(once, AWKWARD, with);
    free(once);
    free(with);
    free(spaced);
    return made;
}

/* Beginnings that a template leaves out of what it prints: the end of thoughts that the generation prompt began, or all
 * of the thoughts. */
static char *with_beginning(int which, const struct reply *reply, const struct hearth_chat_format_info *info,
                            const char *rest) {
    struct hearth_buf made = {0};
    const char *end = info->thinking_end_count > 0 ? info->thinking_ends[0] : "";
    const char *thoughts = reply->thoughts != NULL ? reply->thoughts : "";
    const char *start = info->thinking_start;
    bool ok = which == 0   ? hearth_buf_printf(&made, "%s", rest)
              : which == 1 ? hearth_buf_printf(&made, "%s\n%s\n\n%s", thoughts, end, rest)
              : which == 2 ? hearth_buf_printf(&made, "%s\n%s\n%s\n\n%s", start, thoughts, end, rest)
              : which == 3 ? hearth_buf_printf(&made, "%s%s%s", thoughts, end, rest)
                           : hearth_buf_printf(&made, "%s%s%s%s", start, thoughts, end, rest);
    HEARTH_ASSERT(ok);
    return (char *)hearth_buf_take(&made);
}

/* The first of the candidates that reads as the reply; NULL: none does. */
static char *first_that_reads(const struct hearth_chat_format *format, const struct reply *reply, const char *rest,
                              const struct hearth_message *message) {
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    for (int i = 0; i < 10; i++) {
        char *begun = with_beginning(i % 5, reply, info, rest);
        char *text = i < 5 ? strdup(begun) : as_json(begun);
        free(begun);
        cut_end(format, text, message);
        if (reply->compact) {
            char *other = compact(text, message);
            free(text);
            text = other;
        }
        if (reads_as(format, text, strlen(text), message)) {
            return text;
        }
        if (getenv("HEARTH_VERBOSE") != NULL) {
            printf("not read (%s): %s\n", reply->name, text);
        }
        free(text);
    }
    return NULL;
}

/* What a model would have sampled for a reply; NULL: nothing that the parser reads as this reply. */
static char *sampled_text(struct hearth_chat *chat, const struct reply *reply, const json_t *tools) {
    struct messages list = messages_load("[{'role':'user','content':'Hello'}]");
    struct hearth_message *messages[] = {list.v[0], make_reply(reply)};
    struct hearth_chat_prompt prompt = {.text = {0}}, whole = {.text = {0}};
    struct hearth_chat_format *format = NULL, *ended = NULL;
    char *text = NULL;
    if (render(chat, messages, 1, tools, false, &format, &prompt) &&
        render(chat, messages, 2, tools, true, &ended, &whole)) {
        const char *a = (const char *)prompt.text.data, *b = (const char *)whole.text.data;
        size_t n = 0;
        while (a[n] != '\0' && a[n] == b[n]) {
            n++;
        }
        text = first_that_reads(format, reply, b + n, messages[1]);
    }
    hearth_chat_format_unref(format);
    hearth_chat_format_unref(ended);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_prompt_finish(&whole);
    hearth_message_unref(messages[1]);
    messages_finish(&list);
    return text;
}

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

/* ---- a template ---- */

struct outcome {
    bool sampled; /* there is such a reply */
    bool same;    /* nothing of it was computed again, in any dialect */
    bool kept;    /* that at least with --keep-thinking */
};

static json_int_t reused(json_t *answer) {
    return json_num(answer, "hearth.reused.live") + json_num(answer, "hearth.reused.ram") +
           json_num(answer, "hearth.reused.disk");
}

static bool turn(const struct stage *stage, int dialect, size_t reply, const json_t *tools) {
    char question[64];
    snprintf(question, sizeof question, "Question #%zu.%d#", reply, dialect);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", question);
    json_t *answer = ask(stage, dialect, messages, tools), *next = NULL;
    bool same = false;
    if (answer != NULL) {
        go_on(dialect, answer, messages);
        next = ask(stage, dialect, messages, tools);
    }
    if (next != NULL) {
        json_t *usage = json_object_get(answer, "usage");
        json_int_t out = json_num(usage, dialect == 0 ? "completion_tokens" : "output_tokens");
        json_int_t state = reused(answer) + json_num(answer, "hearth.computed") + out - 1;
        same = reused(next) >= state;
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
static char *make_script(const char *text, const json_t *tools, struct outcome *outcomes) {
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg;
    struct hearth_buf script = {0};
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "<s>", .eos_text = "<|im_end|>"};
    HEARTH_ASSERT(hearth_chat_create(&params, &chat, &msg) == HEARTH_OK);
    for (size_t i = 0; i < REPLIES; i++) {
        char *reply = sampled_text(chat, &replies[i], tools), when[32];
        outcomes[i].sampled = reply != NULL;
        if (reply != NULL) {
            snprintf(when, sizeof when, "#%zu.", i);
            json_t *line = json_pack("{s:{s:s}, s:s, s:i}", "when", "last", when, "reply", reply, "times", 0);
            char *dump = json_dumps(line, 0);
            HEARTH_ASSERT(hearth_buf_printf(&script, "%s\n", dump));
            free(dump);
            json_decref(line);
        }
        free(reply);
    }
    HEARTH_ASSERT(hearth_buf_append(&script, "", 1));
    hearth_chat_destroy(chat);
    return (char *)hearth_buf_take(&script);
}

/* Of the replies, those that have not come back yet. */
static void try_replies(const char *text, const char *script, bool keep, const json_t *tools,
                        struct outcome *outcomes) {
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.chat_template = text;
    options.script = script;
    options.api.keep_thinking = keep;
    options.sim.ctx_tokens = 65536;
    options.markers = markers_add;
    stage_open(&stage, &options);
    for (size_t i = 0; i < REPLIES; i++) {
        bool whole = outcomes[i].sampled;
        for (int dialect = 0; dialect < DIALECTS && whole; dialect++) {
            whole = turn(&stage, dialect, i, tools);
        }
        outcomes[i].same = whole && !keep ? true : outcomes[i].same;
        outcomes[i].kept = whole;
    }
    stage_close(&stage);
}

static const char *cell(const struct outcome *outcome) {
    return !outcome->sampled ? "–" : outcome->same ? "yes" : outcome->kept ? "keep" : "no";
}

static void try_template(const char *name, const char *text, const json_t *tools, struct hearth_buf *table) {
    struct outcome outcomes[REPLIES] = {{0}};
    char *script = make_script(text, tools, outcomes);
    bool all = true, some = false;
    for (size_t i = 0; i < REPLIES; i++) {
        some = some || outcomes[i].sampled;
    }
    if (some) {
        try_replies(text, script, false, tools, outcomes);
        for (size_t i = 0; i < REPLIES; i++) {
            all = all && (outcomes[i].same || !outcomes[i].sampled);
        }
        if (!all) {
            try_replies(text, script, true, tools, outcomes);
        }
    }
    HEARTH_ASSERT(hearth_buf_printf(table, "| %s |", name));
    for (size_t i = 0; i < REPLIES; i++) {
        HEARTH_ASSERT(hearth_buf_printf(table, " %s |", cell(&outcomes[i])));
    }
    HEARTH_ASSERT(hearth_buf_append(table, "\n", 1));
    free(script);
}

static void start_table(struct hearth_buf *table) {
    HEARTH_ASSERT(hearth_buf_printf(table, "| template |"));
    for (size_t i = 0; i < REPLIES; i++) {
        HEARTH_ASSERT(hearth_buf_printf(table, " %s |", replies[i].name));
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

static void every_reply_of_every_template(void **state) {
    (void)state;
    struct templates all = templates_load();
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
