/* What is printed instead of a history that a template refuses, or loses words of: one small template for each kind. */
#include "chat/chat.h"
#include "support/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define EACH "{% for message in messages %}"
#define PRINT "{{ '[' + message['role'] + ']' + message['content'] }}"
#define CALLS                                                                                                    \
    "{% for call in message['tool_calls'] or [] %}{{ '{' + call['id'] + ':' + call['function']['name'] + ' ' }}" \
    "{{ call['function']['arguments'] | tojson }}{{ '}' }}{% endfor %}"
#define RESULT \
    "{% if message['role'] == 'tool' %}{{ '(' + message['tool_call_id'] + ' ' + message['name'] + ')' }}{% endif %}"
#define TOOLS "{% if tools %}{{ tools | tojson }}{% endif %}"
#define RAISE(text) "{{ raise_exception('" text "') }}"

/* A system message anywhere but first is refused. */
static const char system_first[] =
    EACH "{% if message['role'] == 'system' and not loop.first %}" RAISE("first") "{% endif %}" PRINT "{% endfor %}";
/* It is lost. */
static const char system_lost[] =
    "{% if messages[0]['role'] == 'system' %}[system]{{ messages[0]['content'] }}{% endif %}" EACH
    "{% if message['role'] != 'system' %}" PRINT "{% endif %}{% endfor %}";
/* It moves to the head. */
static const char system_gathered[] = EACH "{% if message['role'] == 'system' %}" PRINT "{% endif %}{% endfor %}" EACH
                                           "{% if message['role'] != 'system' %}" PRINT "{% endif %}{% endfor %}";
/* It takes the place of a text of the template's own. */
static const char system_default[] =
    "{% if messages | selectattr('role', 'equalto', 'system') | list | length == 0 %}[system]Own.{% endif %}" EACH PRINT
    "{% endfor %}";
/* A user must come first. */
static const char user_first[] =
    "{% if messages[0]['role'] == 'assistant' %}" RAISE("user first") "{% endif %}" EACH PRINT "{% endfor %}";
/* Roles alternate but for calls and results; ids have nine letters (Mistral). */
static const char alternating[] = TOOLS
    "{% set ns = namespace(users=true) %}" EACH
    "{% if message['role'] == 'user' or (message['role'] == 'assistant' and not message['tool_calls']) %}"
    "{% if (message['role'] == 'user') != ns.users %}" RAISE(
        "alternate") "{% endif %}"
                     "{% set ns.users = not ns.users %}{% endif %}"
                     "{% for call in message['tool_calls'] or [] %}{% if call['id'] | length != 9 %}" RAISE(
                         "nine") "{% endif %}{% endfor %}"
                                 "{% if message['role'] == 'tool' and message['tool_call_id'] | length != 9 %}" RAISE(
                                     "nine") "{% endif %}" PRINT CALLS RESULT "{% endfor %}";
/* A result needs a call. */
static const char strict_results[] = TOOLS
    "{% set ns = namespace(called=false) %}" EACH "{% if message['tool_calls'] %}{% set ns.called = true %}{% endif %}"
    "{% if message['role'] == 'tool' and not ns.called %}" RAISE("no call") "{% endif %}" PRINT CALLS "{% endfor %}";
/* Words hide a call. */
static const char words_or_calls[] = TOOLS EACH PRINT "{% if not message['content'] %}" CALLS "{% endif %}{% endfor %}";
/* Nothing that is tried at creation shows it: behind many messages, no system message. */
static const char seldom[] =
    EACH "{% if message['role'] == 'system' and loop.index0 > 5 %}" RAISE("so late") "{% endif %}" PRINT "{% endfor %}";

#define USER(text) "{'role':'user','content':'" text "'}"
#define SYSTEM(text) "{'role':'system','content':'" text "'}"
#define REPLY(text) "{'role':'assistant','content':'" text "'}"
#define CALL(id, text)                                                                                                 \
    "{'role':'assistant','content':'" text "','tool_calls':[{'id':'" id "','type':'function','function':{'name':'ls'," \
    "'arguments':'{}'}}]}"
#define ANSWER(id, text) "{'role':'tool','tool_call_id':'" id "','content':'" text "'}"

static const struct {
    const char *text;
    bool tools;
    const char *messages, *printed;
} cases[] = {
    {system_first, false, SYSTEM("A") "," SYSTEM("B") "," USER("C"), "[system]A\n\nB[user]C"},
    {system_first, false, SYSTEM("A") "," USER("B") "," SYSTEM("C") "," REPLY("D"),
     "[system]A[user]B[user]<system-reminder>\nC\n</system-reminder>[assistant]D"},
    {system_first, false, USER("B") "," SYSTEM("  ") "," SYSTEM("<system-reminder>C</system-reminder>"),
     "[user]B[user]<system-reminder>C</system-reminder>"},
    {system_lost, false, USER("A") "," REPLY("B") "," SYSTEM("C"),
     "[user]A[assistant]B[user]<system-reminder>\nC\n</system-reminder>"},
    {system_gathered, false, SYSTEM("A") "," USER("B") "," SYSTEM("C"),
     "[system]A[user]B[user]<system-reminder>\nC\n</system-reminder>"},
    {system_default, false, USER("B") "," SYSTEM("C"),
     "[system]Own.[user]B[user]<system-reminder>\nC\n</system-reminder>"},
    {user_first, false, REPLY("A") "," USER("B"), "[user]Begin.[assistant]A[user]B"},
    {alternating, false, USER("A") "," USER("B") "," REPLY("C") "," REPLY("D") "," USER("E"),
     "[user]A\n\nB[assistant]C\n\nD[user]E"},
    {alternating, true, USER("A") "," CALL("abc123XYZ", "") "," ANSWER("abc123XYZ", "B") "," USER("C") "," REPLY("D"),
     "[user]A[assistant]{abc123XYZ:ls {}}[tool]B\n\n<user-message>\nC\n</user-message>(abc123XYZ ls)[assistant]D"},
    {alternating, true, USER("A") "," CALL("abc123XYZ", "") "," USER("C") "," REPLY("D"),
     "[user]A[assistant]{abc123XYZ:ls {}}[tool]<user-message>\nC\n</user-message>(abc123XYZ ls)[assistant]D"},
    {strict_results, true, USER("A") "," ANSWER("x", "B") "," USER("C"),
     "[user]A[user]<tool_response>\nB\n</tool_response>[user]C"},
    {words_or_calls, true, USER("A") "," CALL("x", "B") "," ANSWER("x", "C"),
     "[user]A[assistant]B[assistant]{x:ls {}}[tool]C"},
    {seldom, false, SYSTEM("A") "," USER("B") "," REPLY("C") "," USER("D") "," REPLY("E") "," SYSTEM("F") "," USER("G"),
     "[system]A[user]B[assistant]C[user]D[assistant]E[system]F[user]G"},
    {seldom, false, SYSTEM("A") "," USER("B") "," REPLY("C") "," USER("D") "," REPLY("E") "," USER("F") "," SYSTEM("G"),
     "[system]A[user]B[assistant]C[user]D[assistant]E[user]F\n\n<system-reminder>\nG\n</system-reminder>"},
};

static struct hearth_chat *make(const char *text) {
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "", .eos_text = ""};
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_create(&params, &chat, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return chat;
}

/* The text behind the tools; the caller frees it. */
static char *print(struct hearth_chat *chat, const char *messages, bool tools) {
    char text[2048];
    snprintf(text, sizeof text, "[%s]", messages);
    struct messages list = messages_load(text);
    json_t *offered =
        tools ? messages_json("[{'type':'function','function':{'name':'ls','description':'Lists','parameters':{}}}]")
              : NULL;
    const struct hearth_chat_request request = {.messages = list.v,
                                                .message_count = list.n,
                                                .tools = offered,
                                                .tool_choice = HEARTH_TOOLS_AUTO,
                                                .thinking = true};
    struct hearth_chat_format *format = NULL;
    struct hearth_chat_prompt prompt = {.text = {0}};
    struct hearth_errmsg msg = {""};
    if (hearth_chat_format_get(chat, &request, &format, &msg) != HEARTH_OK ||
        hearth_chat_render(chat, &request, format, &prompt, &msg) != HEARTH_OK) {
        fail_msg("%s: %s", messages, msg.text);
    }
    const char *printed = (const char *)prompt.text.data;
    char *copy = strdup(tools ? strstr(printed, "}]") + 2 : printed);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_format_unref(format);
    json_decref(offered);
    messages_finish(&list);
    return copy;
}

static void another_form(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_chat *chat = make(cases[i].text);
        assert_int_equal(hearth_chat_abilities(chat)->tools, cases[i].tools || cases[i].text == alternating);
        char *printed = print(chat, cases[i].messages, cases[i].tools);
        assert_string_equal(printed, cases[i].printed);
        free(printed);
        hearth_chat_destroy(chat);
    }
}

/* An id of another form becomes nine letters and digits: the same ones in the call, the result, and every turn. */
static void ids(void **state) {
    (void)state;
    struct hearth_chat *chat = make(alternating);
    assert_true(hearth_chat_abilities(chat)->form & HEARTH_CHAT_IDS_SHORT);
    char *shorter = print(chat, USER("A") "," CALL("toolu_01X", "") "," ANSWER("toolu_01X", "B"), true);
    char *longer = print(chat,
                         USER("A") "," CALL("toolu_01X", "") "," ANSWER("toolu_01X", "B") "," CALL(
                             "toolu_01Y", "") "," ANSWER("toolu_01Y", "C"),
                         true);
    char id[10] = "", again[10] = "", other[10] = "";
    assert_int_equal(sscanf(shorter, "[user]A[assistant]{%9[0-9A-Za-z]:ls {}}[tool]B(%9[0-9A-Za-z] ls)", id, again), 2);
    assert_string_equal(id, again);
    assert_memory_equal(longer, shorter, strlen(shorter));
    assert_int_equal(sscanf(longer + strlen(shorter), "[assistant]{%9[0-9A-Za-z]:ls", other), 1);
    assert_string_not_equal(id, other);
    free(shorter);
    free(longer);
    hearth_chat_destroy(chat);
}

/* Types that schemas leave out are filled in for a template that cannot print them, and for no other one. */
static void schemas(void **state) {
    (void)state;
    static const char strict[] =
        "{% for tool in tools or [] %}{{ tool['function']['name'] + tool['function']['description'] + ' ' }}{% for "
        "name, p in tool['function']['parameters']['properties'].items() %}"
        "{{ name + ':' + p['type'] + (p['items']['type'] if p['type'] == 'array' else '') + ' ' }}{% endfor %}"
        "{% endfor %}" EACH PRINT CALLS "{% endfor %}";
    static const char *const templates[] = {strict, TOOLS EACH PRINT CALLS "{% endfor %}"};
    json_t *tools = messages_json(
        "[{'type':'function','function':{'name':'ls','description':'Lists','parameters':{'type':'object','properties':"
        "{'a':{},'b':{'anyOf':[{'type':'null'},{'type':'integer'}]},'c':{'type':'array'},'d':{'enum':[true]}}}}}]");
    for (size_t i = 0; i < 2; i++) {
        struct hearth_chat *chat = make(templates[i]);
        assert_int_equal((hearth_chat_abilities(chat)->form & HEARTH_CHAT_SCHEMAS_FILLED) != 0, i == 0);
        struct messages list = messages_load("[{'role':'user','content':'A'}]");
        const struct hearth_chat_request request = {
            .messages = list.v, .message_count = 1, .tools = tools, .tool_choice = HEARTH_TOOLS_AUTO};
        struct hearth_chat_format *format = NULL;
        struct hearth_chat_prompt prompt = {.text = {0}};
        assert_int_equal(hearth_chat_format_get(chat, &request, &format, NULL), HEARTH_OK);
        assert_int_equal(hearth_chat_render(chat, &request, format, &prompt, NULL), HEARTH_OK);
        const char *text = (const char *)prompt.text.data;
        if (i == 0) {
            assert_string_equal(text, "lsLists a:string b:integer c:arraystring d:boolean [user]A");
        } else {
            assert_non_null(strstr(text, "\"a\": {}"));
        }
        hearth_chat_prompt_finish(&prompt);
        hearth_chat_format_unref(format);
        messages_finish(&list);
        hearth_chat_destroy(chat);
    }
    json_decref(tools);
}

/* Nothing is changed for a template that takes everything. */
static void the_history_itself(void **state) {
    (void)state;
    struct hearth_chat *chat = make(EACH PRINT "{% endfor %}");
    assert_int_equal(hearth_chat_abilities(chat)->form, 0);
    char *printed = print(chat, REPLY("A") "," SYSTEM("B") "," SYSTEM("C") "," USER("D") "," USER("E"), false);
    assert_string_equal(printed, "[assistant]A[system]B[system]C[user]D[user]E");
    free(printed);
    hearth_chat_destroy(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_form), cmocka_unit_test(ids), cmocka_unit_test(schemas),
                                       cmocka_unit_test(the_history_itself)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
