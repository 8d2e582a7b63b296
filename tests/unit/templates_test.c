/* Every template of llama.cpp's collection takes every history that a well-behaved client builds, and no word of it is
 * lost, whatever the template itself would refuse: see src/chat/history_form.cpp. */
#include "chat/chat.h"
#include "support/messages.h"
#include "support/templates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MESSAGE(role, content) "{'role':'" role "','content':'" content "'}"
#define SYSTEM(content) MESSAGE("system", content)
#define DEVELOPER(content) MESSAGE("developer", content)
#define USER(content) MESSAGE("user", content)
#define REPLY(content) MESSAGE("assistant", content)
#define CALL(id, place) \
    "{'id':'" id "','type':'function','function':{'name':'read','arguments':'{\"path\": \"" place "\"}'}}"
#define CALLS(words)                        \
    "{'role':'assistant','content':'" words \
    "','tool_calls':[" CALL("toolu_01AbCdEfGhIjKlMnOpQrStUv", "zqa1") "," CALL("call_2", "zqa2") "]}"
#define RESULT(id, content) "{'role':'tool','tool_call_id':'" id "','content':'" content "'}"
#define RESULTS RESULT("toolu_01AbCdEfGhIjKlMnOpQrStUv", "zqr1") "," RESULT("call_2", "zqr2")
#define ROUND "{'role':'assistant','content':'','tool_calls':[" CALL("toolu_3", "zqa3") "]}," RESULT("toolu_3", "zqr3")

/* In contents, words of four letters that begin with zq must all be in the prompt; those that begin with zqb stand
 * beside calls, and may be left out. */
static const struct {
    const char *name, *messages;
} histories[] = {
    {"a question", USER("zqu1")},
    {"system text", SYSTEM("zqs1") "," USER("zqu1")},
    {"system text alone", SYSTEM("zqs1")},
    {"a developer", DEVELOPER("zqd1") "," USER("zqu1")},
    {"two system messages", SYSTEM("zqs1") "," SYSTEM("zqs2") "," USER("zqu1")},
    {"a late system message", USER("zqu1") "," REPLY("zqx1") "," SYSTEM("zqs1") "," USER("zqu2")},
    {"system messages everywhere", SYSTEM("zqs1") "," USER("zqu1") "," SYSTEM("zqs2") "," REPLY("zqx1") "," SYSTEM(
                                       "zqs3") "," USER("zqu2") "," SYSTEM("zqs4") "," SYSTEM("zqs5")},
    {"two questions", USER("zqu1") "," USER("zqu2")},
    {"two replies", USER("zqu1") "," REPLY("zqx1") "," REPLY("zqx2") "," USER("zqu2")},
    {"an empty reply", USER("zqu1") "," REPLY("") "," USER("zqu2")},
    {"begins with a reply", REPLY("zqx1") "," USER("zqu1")},
    {"begins with a reply, behind system text", SYSTEM("zqs1") "," REPLY("zqx1") "," USER("zqu1")},
    {"ends with a reply", USER("zqu1") "," REPLY("zqx1")},
    {"calls", USER("zqu1") "," CALLS("") "," RESULTS},
    {"calls with words", USER("zqu1") "," CALLS("zqb1") "," RESULTS},
    {"calls and an answer", USER("zqu1") "," CALLS("") "," RESULTS "," REPLY("zqx1") "," USER("zqu2")},
    {"a question behind results", USER("zqu1") "," CALLS("") "," RESULTS "," USER("zqu2")},
    {"a system message behind results", SYSTEM("zqs1") "," USER("zqu1") "," CALLS("") "," RESULTS "," SYSTEM("zqs2")},
    {"a system message in a tool loop",
     USER("zqu1") "," CALLS("") "," RESULTS "," SYSTEM("zqs2") "," ROUND "," SYSTEM("zqs3") "," REPLY("zqx1")},
    {"calls without results", USER("zqu1") "," CALLS("") "," USER("zqu2")},
    {"one result of two", USER("zqu1") "," CALLS("") "," RESULT("call_2", "zqr2") "," USER("zqu2")},
    {"a reply behind calls", USER("zqu1") "," CALLS("") "," REPLY("zqx1") "," USER("zqu2")},
    {"a result without a call", USER("zqu1") "," RESULT("call_9", "zqr1")},
    {"a result behind a reply", USER("zqu1") "," REPLY("zqx1") "," RESULT("call_9", "zqr1") "," USER("zqu2")},
    {"a result first", RESULT("call_9", "zqr1") "," USER("zqu1")},
    {"a result too many", USER("zqu1") "," CALLS("") "," RESULTS "," RESULT("call_9", "zqr3")},
    {"a system message between calls and results",
     USER("zqu1") "," CALLS("") "," SYSTEM("zqs1") "," RESULTS "," REPLY("zqx1")},
    {"Claude Code", SYSTEM("zqs1") "," USER("zqu1") "," CALLS("zqb1") "," RESULTS "," USER("zqu2") "," SYSTEM(
                        "zqs2") "," REPLY("zqx2") "," USER("zqu3") "," SYSTEM("zqs3")},
    {"Codex", SYSTEM("zqs1") "," DEVELOPER("zqd1") "," DEVELOPER("zqd2") "," USER("zqu1") "," USER("zqu2") "," REPLY(
                  "zqb1") "," CALLS("") "," RESULTS "," DEVELOPER("zqd3") "," REPLY("zqx3") "," USER("zqu3")},
    {"Hermes", SYSTEM("zqs1") "," USER("zqu1") "," CALLS("zqb1") "," RESULTS "," REPLY("zqx2") "," USER(
                   "[System: zqu2]") "," USER("zqu3")},
};

enum { HISTORIES = sizeof histories / sizeof histories[0] };

static const char tools_text[] =
    "[{'type':'function','function':{'name':'read','description':'Reads a file','parameters':{'type':'object',"
    "'properties':{'path':{'type':'string'}},'required':['path']}}}]";

/* One history, loaded: arguments are JSON within JSON here, whose quotes must be told apart from the others. */
static struct messages load(const char *messages) {
    char text[8192] = "[";
    size_t n = 1;
    bool inside = false;
    for (const char *c = messages; *c != '\0'; c++) {
        inside = inside ? !(c[0] == '\'' && c[1] == '}') : strncmp(c, "'{\"", 3) == 0;
        if (inside && *c == '"') {
            text[n++] = '\\';
        }
        text[n++] = inside && *c == '"' ? '"' : *c;
        assert_true(n + 4 < sizeof text);
    }
    text[n++] = ']';
    text[n] = '\0';
    return messages_load(text);
}

static struct hearth_chat *make(const char *text) {
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "<s>", .eos_text = "</s>"};
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_create(&params, &chat, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return chat;
}

/* The caller finishes the prompt. False: refused, which is said. */
static bool render(struct hearth_chat *chat, struct messages *list, size_t count, const json_t *tools,
                   struct hearth_chat_prompt *prompt, const char *name) {
    const struct hearth_chat_request request = {.messages = list->v,
                                                .message_count = count,
                                                .tools = tools,
                                                .tool_choice = HEARTH_TOOLS_AUTO,
                                                .parallel_calls = true,
                                                .thinking = true};
    struct hearth_chat_format *format = NULL;
    struct hearth_errmsg msg = {""};
    *prompt = (struct hearth_chat_prompt){.text = {0}};
    int err = hearth_chat_format_get(chat, &request, &format, &msg);
    if (err == HEARTH_OK) {
        err = hearth_chat_render(chat, &request, format, prompt, &msg);
    }
    hearth_chat_format_unref(format);
    if (err != HEARTH_OK) {
        print_error("%s: refused: %s\n", name, msg.text);
    }
    return err == HEARTH_OK;
}

static size_t lost_words(const char *history, const char *prompt, const char *name) {
    size_t lost = 0;
    for (const char *at = strstr(history, "zq"); at != NULL; at = strstr(at + 1, "zq")) {
        char word[5] = {at[0], at[1], at[2], at[3], '\0'};
        if (word[2] != 'b' && strstr(prompt, word) == NULL) {
            print_error("%s: %s is lost\n", name, word);
            lost++;
        }
    }
    return lost;
}

static size_t check_words(struct hearth_chat *chat, const char *template_name, const json_t *tools) {
    size_t bad = 0;
    for (size_t i = 0; i < HISTORIES; i++) {
        char name[256];
        struct messages list = load(histories[i].messages);
        struct hearth_chat_prompt prompt;
        snprintf(name, sizeof name, "%s, %s%s", template_name, histories[i].name, tools != NULL ? "" : ", no tools");
        bad += render(chat, &list, list.n, tools, &prompt, name)
                   ? lost_words(histories[i].messages, (const char *)prompt.text.data, name)
                   : 1;
        hearth_chat_prompt_finish(&prompt);
        messages_finish(&list);
    }
    return bad;
}

/* These print the tools with the last question: they were trained so. */
static bool moves_tools(const char *name) {
    return strstr(name, "Mistral-Nemo") != NULL || strstr(name, "Mistral-Small-3.2") != NULL;
}

/* Whether a reply was made behind `count` messages, and the template has no reason to print them otherwise later: with
 * a new question, thoughts go. */
static bool is_prompt(const struct hearth_chat *chat, const struct messages *list, size_t count) {
    if (list->v[count]->role != HEARTH_ROLE_ASSISTANT || list->v[count - 1]->role == HEARTH_ROLE_ASSISTANT) {
        return false;
    }
    for (size_t i = count; i < list->n && hearth_chat_abilities(chat)->thinking; i++) {
        if (list->v[i]->role != HEARTH_ROLE_ASSISTANT && list->v[i]->role != HEARTH_ROLE_TOOL) {
            return false;
        }
    }
    return true;
}

/* Where the words of a message end in a prompt; 0: it has none there. */
static size_t end_of_words(const struct hearth_message *message, const char *prompt) {
    const char *word = strstr(message->content, "zq");
    const char *at = NULL;
    for (const char *next = word != NULL ? strstr(prompt, word) : NULL; next != NULL; next = strstr(next + 1, word)) {
        at = next;
    }
    return at != NULL ? (size_t)(at - prompt) + strlen(word) : 0;
}

/* What a reply was made from is the beginning of every later prompt, up to the end of its last message's words. */
static size_t check_beginnings(struct hearth_chat *chat, const char *template_name, const json_t *tools,
                               size_t history) {
    struct messages list = load(histories[history].messages);
    struct hearth_chat_prompt whole, part;
    size_t bad = 0;
    assert_true(render(chat, &list, list.n, tools, &whole, template_name));
    for (size_t n = 1; n < list.n; n++) {
        if (!is_prompt(chat, &list, n)) {
            continue;
        }
        assert_true(render(chat, &list, n, tools, &part, template_name));
        const char *a = (const char *)part.text.data, *b = (const char *)whole.text.data;
        size_t same = 0;
        while (a[same] != '\0' && a[same] == b[same]) {
            same++;
        }
        if (same < end_of_words(list.v[n - 1], a)) {
            print_error("%s, %s: message %zu is printed otherwise: '%.40s' and '%.40s'\n", template_name,
                        histories[history].name, n, a + same, b + same);
            bad++;
        }
        hearth_chat_prompt_finish(&part);
    }
    hearth_chat_prompt_finish(&whole);
    messages_finish(&list);
    return bad;
}

/* docs/models.md says of how many templates this is true. */
static void check_page(size_t count) {
    char sentence[96];
    char *page = templates_read(getenv("HEARTH_PAGE"));
    snprintf(sentence, sizeof sentence, "All %zu templates in llama.cpp's `models/templates` take", count);
    if (strstr(page, sentence) == NULL) {
        fail_msg("docs/models.md does not say: %s", sentence);
    }
    free(page);
}

static void every_template_takes_every_history(void **state) {
    (void)state;
    struct templates all = templates_load_share();
    if (all.n == 0) {
        skip();
    }
    json_t *tools = messages_json(tools_text);
    size_t bad = 0;
    for (size_t t = 0; t < all.n; t++) {
        struct hearth_chat *chat = make(all.texts[t]);
        assert_null(hearth_chat_abilities(chat)->failure);
        size_t worse = check_words(chat, all.names[t], tools) + check_words(chat, all.names[t], NULL);
        for (size_t i = 0; i < HISTORIES && worse == 0; i++) {
            bad += check_beginnings(chat, all.names[t], moves_tools(all.names[t]) ? NULL : tools, i);
        }
        bad += worse;
        hearth_chat_destroy(chat);
    }
    const size_t count = all.all;
    json_decref(tools);
    templates_finish(&all);
    assert_int_equal(bad, 0);
    check_page(count);
}

/* The end token, which this one prints behind calls as behind words, is no part of a call. */
static void a_call_ends_before_the_end_token(void **state) {
    (void)state;
    struct templates all = templates_load();
    size_t t = 0;
    while (t < all.n && strstr(all.names[t], "Mistral-Small-3.2") == NULL) {
        t++;
    }
    if (t == all.n) {
        templates_finish(&all);
        skip();
    }
    struct hearth_chat *chat = make(all.texts[t]);
    struct messages list = load(USER("zqu1"));
    json_t *tools = messages_json(tools_text);
    const struct hearth_chat_request request = {
        .messages = list.v, .message_count = list.n, .tools = tools, .tool_choice = HEARTH_TOOLS_AUTO};
    static const char reply[] = "[TOOL_CALLS]read[CALL_ID]abcDEF123[ARGS]{\"path\": \"/tmp\"}";
    struct hearth_chat_format *format = NULL;
    struct hearth_message *message = NULL;
    struct hearth_errmsg msg;
    assert_int_equal(hearth_chat_format_get(chat, &request, &format, &msg), HEARTH_OK);
    assert_int_equal(hearth_chat_parse(format, reply, strlen(reply), &message, &msg), HEARTH_OK);
    assert_int_equal(message->call_count, 1);
    assert_string_equal(message->calls[0].name, "read");
    hearth_message_unref(message);
    hearth_chat_format_unref(format);
    hearth_chat_destroy(chat);
    json_decref(tools);
    messages_finish(&list);
    templates_finish(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_template_takes_every_history),
                                       cmocka_unit_test(a_call_ends_before_the_end_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
