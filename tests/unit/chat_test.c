/* Chat templates: the text, the marks, tools, and what a template's refusal looks like. The templates here have the
 * shapes of those that models carry: a default system text (SmolLM2), a system text merged into the first turn and
 * alternating roles (Gemma), one that refuses system messages, contents printed as JSON, native tools (Qwen), and calls
 * one at a time (Llama 3). */
#include "chat/chat.h"
#include "support/messages.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Prints the role from the message and adds a system text of its own when there is none. */
static const char *const default_system =
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% "
    "endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Puts the system text in front of the first turn, trims, and wants alternating roles. */
static const char *const merged_system =
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}{% set turns = "
    "messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{{ message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

static const char *const no_system =
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}";

static const char *const as_json =
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] | tojson }}\n{% endfor %}";

/* Knows tools; the arguments of calls are printed as JSON. */
#define NATIVE(calls_check)                                                                            \
    "{% if tools %}[TOOLS]{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}[/TOOLS]{% endif %}" \
    "{% for message in messages %}"                                                                    \
    "{% if message.role == 'tool' %}{{ '<|im_start|>tool\n' + message.content + '<|im_end|>\n' }}"     \
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"                           \
    "{% if message.tool_calls %}" calls_check "{% for call in message.tool_calls %}"                   \
    "{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"                \
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% endif %}"             \
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"                                                      \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

static const char *const native_tools = NATIVE("");
static const char *const one_call =
    NATIVE("{% if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}");

#define TOOL                                                                                                \
    "{'type':'function','function':{'name':'ls','description':'Lists files','parameters':{'type':'object'," \
    "'properties':{'path':{'type':'string'}},'required':['path']}}}"

#define CALL(id, arguments) "{'id':'" id "','type':'function','function':{'name':'ls','arguments':\"" arguments "\"}}"

static struct hearth_chat *make(const char *template_text, const char *bos, bool add_bos) {
    const struct hearth_chat_params params = {
        .template_text = template_text, .bos_text = bos, .eos_text = "</s>", .add_bos = add_bos};
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_create(&params, &chat, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return chat;
}

/* Format and text of a request. The caller finishes `prompt`. */
static int render_request(struct hearth_chat *chat, const struct hearth_chat_request *request,
                          struct hearth_chat_prompt *prompt, struct hearth_errmsg *msg) {
    struct hearth_chat_format *format = NULL;
    memset(prompt, 0, sizeof(*prompt));
    int err = hearth_chat_format_get(chat, request, &format, msg);
    if (err == HEARTH_OK) {
        err = hearth_chat_render(chat, request, format, prompt, msg);
    }
    hearth_chat_format_unref(format);
    return err;
}

static int render(struct hearth_chat *chat, const char *messages, const json_t *tools, const json_t *kwargs,
                  struct hearth_chat_prompt *prompt, struct hearth_errmsg *msg) {
    struct messages list = messages_load(messages);
    const struct hearth_chat_request request = {.messages = list.v,
                                                .message_count = list.n,
                                                .tools = tools,
                                                .tool_choice = HEARTH_TOOLS_AUTO,
                                                .parallel_calls = true,
                                                .thinking = true,
                                                .kwargs = kwargs};
    const int err = render_request(chat, &request, prompt, msg);
    messages_finish(&list);
    return err;
}

static const char *text_of(const struct hearth_chat_prompt *prompt) {
    return (const char *)prompt->text.data;
}

/* What stands behind a mark; "-" for none. */
static const char *behind(const struct hearth_chat_prompt *prompt, size_t mark) {
    if (mark == HEARTH_CHAT_NO_MARK) {
        return "-";
    }
    assert_true(mark <= prompt->text.len);
    return text_of(prompt) + mark;
}

static void assert_begins(const char *text, const char *beginning) {
    if (strncmp(text, beginning, strlen(beginning)) != 0) {
        fail_msg("'%.60s' does not begin with '%s'", text, beginning);
    }
}

/* Renders and compares the text and what stands behind the marks (its beginning is enough). */
static void expect(struct hearth_chat *chat, const char *messages, const char *text, const char *system_end,
                   const char *last_input) {
    struct hearth_chat_prompt prompt;
    struct hearth_errmsg msg = {""};
    if (render(chat, messages, NULL, NULL, &prompt, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    if (text) {
        assert_string_equal(text_of(&prompt), text);
    }
    assert_int_equal(strlen(text_of(&prompt)), prompt.text.len);
    assert_begins(behind(&prompt, prompt.system_end), system_end);
    assert_begins(behind(&prompt, prompt.last_input_start), last_input);
    hearth_chat_prompt_finish(&prompt);
}

static void test_chatml(void **state) {
    (void)state;
    static const char *const messages = "[{'role':'system','content':'Be brief.'},{'role':'user','content':'Hi'},"
                                        "{'role':'assistant','content':'Hello'},{'role':'user','content':'Bye'}]";
    static const char *const text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                    "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                                    "<|im_start|>assistant\n";
    static const char *const names[] = {NULL, "", "chatml"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct hearth_chat *chat = make(names[i], "", false);
        const struct hearth_chat_abilities *can = hearth_chat_abilities(chat);
        assert_false(can->tools || can->thinking || can->form != 0);
        assert_true(can->parallel_calls);
        expect(chat, messages, text, "Hi<|im_end|>", "Bye<|im_end|>");
        assert_non_null(strstr(hearth_chat_template(chat), "<|im_start|>"));
        hearth_chat_destroy(chat);
    }
}

static void test_builtin_format(void **state) {
    (void)state;
    struct hearth_chat *chat = make("llama3", "", false);
    expect(chat, "[{'role':'system','content':'S'},{'role':'user','content':'Question?'}]",
           "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
           "Question?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
           "Question?", "Question?");
    assert_string_equal(hearth_chat_template(chat), "llama3");
    hearth_chat_destroy(chat);
}

static void test_default_system(void **state) {
    (void)state;
    struct hearth_chat *chat = make(default_system, "", false);
    expect(chat, "[{'role':'user','content':'Hi'}]",
           "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
           "Hi<|im_end|>", "Hi<|im_end|>");
    /* The template's own words are no messages. */
    expect(chat, "[{'role':'user','content':'You are SmolLM'}]", NULL,
           "You are SmolLM<|im_end|>\n<|im_start|>assistant", "You are SmolLM<|im_end|>\n<|im_start|>assistant");
    expect(chat,
           "[{'role':'user','content':'Hi'},{'role':'assistant','content':'x'},{'role':'user','content':'assistant'}]",
           NULL, "Hi<|im_end|>", "assistant<|im_end|>\n<|im_start|>assistant\n");
    hearth_chat_destroy(chat);
}

static void test_merged_system(void **state) {
    (void)state;
    struct hearth_chat *chat = make(merged_system, "<bos>", false);
    assert_true(hearth_chat_abilities(chat)->form & HEARTH_CHAT_USERS_JOINED);
    expect(chat, "[{'role':'system','content':'Hi is a greeting.'},{'role':'user','content':'  Hi '}]",
           "<bos><start_of_turn>user\nHi is a greeting.\n\nHi<end_of_turn>\n<start_of_turn>model\n", "Hi<end_of_turn>",
           "Hi<end_of_turn>");
    hearth_chat_destroy(chat);
    /* A BOS that the tokenizer adds is removed, and the marks move with the text. */
    chat = make(merged_system, "<bos>", true);
    expect(chat, "[{'role':'user','content':'A'},{'role':'assistant','content':'B'},{'role':'user','content':'C'}]",
           "<start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_"
           "turn>\n<start_of_turn>model\n",
           "A<end_of_turn>", "C<end_of_turn>");
    hearth_chat_destroy(chat);
}

/* User messages in a row become one turn, and a longer history begins with the text of a shorter one. */
static void test_alternating(void **state) {
    (void)state;
    struct hearth_chat *chat = make(merged_system, "", false);
    expect(chat, "[{'role':'user','content':'One'},{'role':'user','content':'Two'}]",
           "<start_of_turn>user\nOne\n\nTwo<end_of_turn>\n<start_of_turn>model\n", "One\n\nTwo", "Two<end_of_turn>");
    expect(chat,
           "[{'role':'system','content':'S'},{'role':'user','content':'One'},{'role':'user','content':'Two'},"
           "{'role':'user','content':'Three'}]",
           "<start_of_turn>user\nS\n\nOne\n\nTwo\n\nThree<end_of_turn>\n<start_of_turn>model\n", "One\n\nTwo",
           "Three<end_of_turn>");
    hearth_chat_destroy(chat);
    chat = make(default_system, "", false);
    assert_false(hearth_chat_abilities(chat)->form & HEARTH_CHAT_USERS_JOINED);
    hearth_chat_destroy(chat);
}

static void test_without_system_role(void **state) {
    (void)state;
    struct hearth_chat *chat = make(no_system, "", false);
    expect(chat,
           "[{'role':'system','content':'One'},{'role':'developer','content':'Two'},{'role':'user','content':'Three'}]",
           "[user]One\n\nTwo\n\nThree", "Three", "Three");
    expect(chat, "[{'role':'system','content':'Alone'}]", "[user]Alone", "-", "-");
    hearth_chat_destroy(chat);
}

static void test_marks(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    /* Contents that stand in earlier messages; an empty one; white space in front. */
    expect(chat,
           "[{'role':'system','content':'go, go on'},{'role':'user','content':'go'},{'role':'assistant','content':"
           "'go on'},{'role':'user','content':'go'},{'role':'assistant','content':'go'}]",
           NULL, "go<|im_end|>\n<|im_start|>assistant\ngo on", "go<|im_end|>\n<|im_start|>assistant\ngo<|im_end|>");
    expect(chat, "[{'role':'user','content':'\\n lead'}]", NULL, "\n lead", "\n lead");
    expect(chat, "[{'role':'user','content':'x'},{'role':'user','content':' '}]", NULL, "x", "-");
    hearth_chat_destroy(chat);
    /* Printed as JSON: found by its beginning. */
    chat = make(as_json, "", false);
    expect(chat, "[{'role':'user','content':'plain'},{'role':'user','content':'a \\\\ word'}]",
           "user: \"plain\"\nuser: \"a \\\\ word\"\n", "-", "a \\\\ word\"\n");
    hearth_chat_destroy(chat);
}

static void test_generation_mark(void **state) {
    (void)state;
    static const struct {
        const char *template_text, *ending;
    } cases[] = {{NULL, "<|im_start|>assistant\n"},
                 {"llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n"},
                 {merged_system, "<start_of_turn>model\n"},
                 {native_tools, "<|im_start|>assistant\n"},
                 {as_json, ""}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hearth_chat *chat = make(cases[i].template_text, "", false);
        struct hearth_chat_prompt prompt;
        assert_int_equal(render(chat, "[{'role':'user','content':'x'}]", NULL, NULL, &prompt, NULL), HEARTH_OK);
        assert_string_equal(behind(&prompt, prompt.generation_start), cases[i].ending);
        hearth_chat_prompt_finish(&prompt);
        hearth_chat_destroy(chat);
    }
}

static void test_no_generation_prompt(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    struct messages list = messages_load("[{'role':'user','content':'x'}]");
    const struct hearth_chat_request request = {
        .messages = list.v, .message_count = list.n, .thinking = true, .no_generation_prompt = true};
    struct hearth_chat_prompt prompt;
    assert_int_equal(render_request(chat, &request, &prompt, NULL), HEARTH_OK);
    assert_string_equal(text_of(&prompt), "<|im_start|>user\nx<|im_end|>\n");
    assert_true(prompt.generation_start == HEARTH_CHAT_NO_MARK);
    hearth_chat_prompt_finish(&prompt);
    messages_finish(&list);
    hearth_chat_destroy(chat);
}

/* The last message is the assistant's and goes on. */
static void test_continuation(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, merged_system, "chatml", native_tools, "llama3"};
    struct messages list = messages_load("[{'role':'user','content':'Count'},{'role':'assistant','content':'One, '}]");
    struct hearth_chat_request request = {
        .messages = list.v, .message_count = list.n, .thinking = true, .continues = true};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct hearth_chat *chat = make(templates[i], "", false);
        struct hearth_chat_prompt prompt;
        struct hearth_errmsg msg = {""};
        if (render_request(chat, &request, &prompt, &msg) != HEARTH_OK) {
            fail_msg("%s", msg.text);
        }
        assert_string_equal(text_of(&prompt) + prompt.text.len - strlen("One, "), "One, ");
        assert_begins(behind(&prompt, prompt.last_input_start), "Count");
        assert_true(prompt.generation_start < prompt.text.len);
        hearth_chat_prompt_finish(&prompt);
        hearth_chat_destroy(chat);
    }
    struct hearth_chat *chat = make(NULL, "", false);
    struct hearth_chat_prompt prompt;
    struct hearth_errmsg msg = {""};
    request.message_count = 1;
    assert_int_equal(render_request(chat, &request, &prompt, &msg), HEARTH_ERR_INVALID);
    assert_non_null(strstr(msg.text, "assistant"));
    hearth_chat_destroy(chat);
    messages_finish(&list);
}

static void test_kwargs(void **state) {
    (void)state;
    struct hearth_chat *chat =
        make("{{ mood }} {{ enable_thinking }} {{ n + 1 }}{% if add_generation_prompt %}!{% endif %}", "", false);
    struct hearth_chat_prompt prompt;
    static const char *const messages = "[{'role':'user','content':'x'}]";
    json_t *kwargs = messages_json("{'mood':'calm','enable_thinking':false,'n':2}");
    assert_int_equal(render(chat, messages, NULL, kwargs, &prompt, NULL), HEARTH_OK);
    assert_string_equal(text_of(&prompt), "calm False 3!");
    hearth_chat_prompt_finish(&prompt);
    json_decref(kwargs);
    kwargs = json_array();
    struct hearth_errmsg msg = {""};
    assert_int_equal(render(chat, messages, NULL, kwargs, &prompt, &msg), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "template arguments must be an object");
    json_decref(kwargs);
    hearth_chat_destroy(chat);
}

static void test_nul_in_content(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    struct hearth_chat_prompt prompt;
    assert_int_equal(render(chat, "[{'role':'user','content':'a\\u0000b'}]", NULL, NULL, &prompt, NULL), HEARTH_OK);
    assert_int_equal(prompt.text.len, strlen("<|im_start|>user\n") + 3 + strlen("<|im_end|>\n<|im_start|>assistant\n"));
    assert_int_equal(prompt.text.data[prompt.text.len], 0);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_destroy(chat);
}

/* ---- tools ---- */

static const char *const loop_messages =
    "[{'role':'system','content':'S'},{'role':'user','content':'What is here?'},"
    "{'role':'assistant','content':'','tool_calls':[" CALL(
        "a1", "{ \\\"path\\\":\\\"/\\\" }") "]},"
                                            "{'role':'tool','tool_call_id':'a1','content':'bin etc'},"
                                            "{'role':'assistant','content':'Two.'},{'role':'user','content':'And "
                                            "below?'},"
                                            "{'role':'assistant','content':'I look.','tool_calls':[" CALL(
                                                "b1",
                                                "{\\\"path\\\": \\\"/bin\\\"}") "," CALL("b2",
                                                                                         "{\\\"path\\\": "
                                                                                         "\\\"/etc\\\"}") "]},"
                                                                                                          "{'role':'"
                                                                                                          "tool','"
                                                                                                          "tool_call_"
                                                                                                          "id':'b2','"
                                                                                                          "content':'"
                                                                                                          "hosts'},{'"
                                                                                                          "role':'"
                                                                                                          "tool','"
                                                                                                          "tool_call_"
                                                                                                          "id':'b1','"
                                                                                                          "content':'"
                                                                                                          "sh'}]";

static void test_native_tools(void **state) {
    (void)state;
    struct hearth_chat *chat = make(native_tools, "", false);
    assert_true(hearth_chat_abilities(chat)->tools);
    assert_true(hearth_chat_abilities(chat)->parallel_calls);
    json_t *tools = messages_json("[" TOOL "]");
    struct hearth_chat_prompt prompt;
    assert_int_equal(render(chat, loop_messages, tools, NULL, &prompt, NULL), HEARTH_OK);
    assert_begins(text_of(&prompt), "[TOOLS]{\"type\": \"function\", \"function\": {\"name\": \"ls\", \"description\": "
                                    "\"Lists files\", \"parameters\": {\"type\": \"object\"");
    assert_non_null(strstr(text_of(&prompt), "<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \"/\"}}"));
    assert_non_null(strstr(text_of(&prompt), "I look.\n<tool_call>\n"));
    assert_begins(behind(&prompt, prompt.system_end), "What is here?");
    assert_begins(behind(&prompt, prompt.last_input_start), "sh<|im_end|>");
    hearth_chat_prompt_finish(&prompt);
    json_decref(tools);
    hearth_chat_destroy(chat);
}

/* A template that prints one call in a turn gets them one by one, each with its result. */
static void test_one_call_at_a_time(void **state) {
    (void)state;
    struct hearth_chat *chat = make(one_call, "", false);
    assert_true(hearth_chat_abilities(chat)->tools);
    assert_false(hearth_chat_abilities(chat)->parallel_calls);
    json_t *tools = messages_json("[" TOOL "]");
    struct hearth_chat_prompt prompt;
    assert_int_equal(render(chat, loop_messages, tools, NULL, &prompt, NULL), HEARTH_OK);
    static const char *const ending =
        "<|im_start|>assistant\nI look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \"/bin\"}}\n"
        "</tool_call><|im_end|>\n<|im_start|>tool\nsh<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n"
        "{\"name\": \"ls\", \"arguments\": {\"path\": \"/etc\"}}\n</tool_call><|im_end|>\n"
        "<|im_start|>tool\nhosts<|im_end|>\n<|im_start|>assistant\n";
    assert_true(prompt.text.len > strlen(ending));
    assert_string_equal(text_of(&prompt) + prompt.text.len - strlen(ending), ending);
    hearth_chat_prompt_finish(&prompt);
    json_decref(tools);
    hearth_chat_destroy(chat);
}

/* Tools for a template that knows none: in the system text, calls and results as text. */
static void test_generic_tools(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    assert_false(hearth_chat_abilities(chat)->tools);
    json_t *tools = messages_json("[" TOOL "]");
    struct hearth_chat_prompt prompt;
    assert_int_equal(render(chat, loop_messages, tools, NULL, &prompt, NULL), HEARTH_OK);
    assert_begins(text_of(&prompt), "<|im_start|>system\nS\n\n");
    assert_non_null(strstr(text_of(&prompt),
                           "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"ls\", \"description\": "
                           "\"Lists files\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": "
                           "{\"type\": \"string\"}}, \"required\": [\"path\"]}}}\n</tools>\n"));
    /* Arguments as the model wrote them; results of one round in one turn. */
    assert_non_null(strstr(text_of(&prompt), "<|im_start|>assistant\n<tool_call>\n{\"name\": \"ls\", \"arguments\": "
                                             "{ \"path\":\"/\" }}\n</tool_call><|im_end|>\n<|im_start|>user\n"
                                             "<tool_response>\nbin etc\n</tool_response><|im_end|>\n"));
    assert_non_null(strstr(text_of(&prompt),
                           "<|im_start|>assistant\nI look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": "
                           "\"/bin\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": "
                           "\"/etc\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nhosts\n"
                           "</tool_response>\n<tool_response>\nsh\n</tool_response><|im_end|>\n"));
    assert_begins(behind(&prompt, prompt.system_end), "What is here?");
    assert_begins(behind(&prompt, prompt.last_input_start), "sh\n</tool_response><|im_end|>");
    hearth_chat_prompt_finish(&prompt);
    /* Without a system message there is one now. */
    assert_int_equal(render(chat, "[{'role':'user','content':'Hi'}]", tools, NULL, &prompt, NULL), HEARTH_OK);
    assert_begins(text_of(&prompt), "<|im_start|>system\nThese tools");
    assert_begins(behind(&prompt, prompt.system_end), "Hi<|im_end|>");
    hearth_chat_prompt_finish(&prompt);
    json_decref(tools);
    /* A side request: the history has calls, the request has no tools. */
    assert_int_equal(render(chat, loop_messages, NULL, NULL, &prompt, NULL), HEARTH_OK);
    assert_begins(text_of(&prompt), "<|im_start|>system\nS<|im_end|>\n");
    assert_non_null(strstr(text_of(&prompt), "<tool_call>\n{\"name\": \"ls\""));
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_destroy(chat);
}

/* With alternating roles a result and the user's next words are one turn. */
static void test_generic_alternating(void **state) {
    (void)state;
    struct hearth_chat *chat = make(merged_system, "", false);
    json_t *tools = messages_json("[" TOOL "]");
    struct hearth_chat_prompt prompt;
    static const char *const messages =
        "[{'role':'user','content':'Look'},{'role':'assistant','content':'','tool_calls':[" CALL(
            "a1", "{}") "]},"
                        "{'role':'tool','tool_call_id':'a1','content':'bin'},{'role':'user','content':'Stop'}]";
    assert_int_equal(render(chat, messages, tools, NULL, &prompt, NULL), HEARTH_OK);
    assert_begins(text_of(&prompt), "<start_of_turn>user\nThese tools");
    assert_non_null(strstr(text_of(&prompt), "<start_of_turn>user\n<tool_response>\nbin\n</tool_response>\n\n"
                                             "Stop<end_of_turn>\n<start_of_turn>model\n"));
    assert_begins(behind(&prompt, prompt.system_end), "Look<end_of_turn>");
    assert_begins(behind(&prompt, prompt.last_input_start), "Stop<end_of_turn>");
    hearth_chat_prompt_finish(&prompt);
    json_decref(tools);
    hearth_chat_destroy(chat);
}

/* A longer history begins with what a shorter one prints, up to its generation prompt or the end of the last turn. */
static void test_prefixes(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, default_system, merged_system, no_system, native_tools, "llama3"};
    json_t *tools = messages_json("[" TOOL "]");
    struct messages list = messages_load(loop_messages);
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct hearth_chat *chat = make(templates[i], "", false);
        struct hearth_chat_prompt shorter = {0};
        for (size_t n = 2; n <= list.n; n++) {
            struct hearth_chat_request request = {.messages = list.v,
                                                  .message_count = n,
                                                  .tools = tools,
                                                  .tool_choice = (enum hearth_chat_tool_choice)(n % 3),
                                                  .parallel_calls = n % 2 == 0,
                                                  .thinking = true,
                                                  .no_generation_prompt = true};
            struct hearth_chat_prompt prompt;
            struct hearth_errmsg msg = {""};
            if (render_request(chat, &request, &prompt, &msg) != HEARTH_OK) {
                fail_msg("template %zu, %zu messages: %s", i, n, msg.text);
            }
            /* Less what closes a turn: a result may join the one before it. */
            const size_t close = 24;
            if (shorter.text.len > close) {
                assert_memory_equal(shorter.text.data, prompt.text.data, shorter.text.len - close);
            }
            hearth_chat_prompt_finish(&shorter);
            shorter = prompt;
        }
        hearth_chat_prompt_finish(&shorter);
        hearth_chat_destroy(chat);
    }
    messages_finish(&list);
    json_decref(tools);
}

static void test_locate(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    struct messages list = messages_load(loop_messages);
    const struct hearth_chat_request request = {.messages = list.v, .message_count = list.n, .thinking = true};
    struct hearth_chat_prompt prompt;
    assert_int_equal(render_request(chat, &request, &prompt, NULL), HEARTH_OK);
    size_t offsets[16];
    hearth_chat_locate(&request, &prompt, offsets);
    static const char *const at[] = {"S<|",        "What",    "ls\"",  "bin etc", "Two.",
                                     "And below?", "I look.", "hosts", "sh\n"};
    for (size_t i = 0; i < list.n; i++) {
        assert_begins(behind(&prompt, offsets[i]), at[i]);
    }
    hearth_chat_prompt_finish(&prompt);
    messages_finish(&list);
    hearth_chat_destroy(chat);
}

/* ---- threads, refusals ---- */

struct renderer {
    struct hearth_chat *chat;
    struct messages *list;
    unsigned bad;
};

static void *render_many(void *arg) {
    struct renderer *renderer = arg;
    for (int i = 0; i < 50; i++) {
        json_t *kwargs = json_pack("{s:i}", "n", i % 40);
        const struct hearth_chat_request request = {
            .messages = renderer->list->v, .message_count = renderer->list->n, .thinking = true, .kwargs = kwargs};
        struct hearth_chat_prompt prompt;
        const int err = render_request(renderer->chat, &request, &prompt, NULL);
        renderer->bad += err != HEARTH_OK || strstr(text_of(&prompt), "user\nHi<|im_end|>") == NULL;
        hearth_chat_prompt_finish(&prompt);
        json_decref(kwargs);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct renderer renderers[4];
    pthread_t threads[4];
    struct hearth_chat *chat = make(default_system, "", false);
    struct messages list = messages_load("[{'role':'user','content':'Hi'}]");
    for (size_t i = 0; i < 4; i++) {
        renderers[i] = (struct renderer){.chat = chat, .list = &list};
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, &renderers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(renderers[i].bad, 0);
    }
    messages_finish(&list);
    hearth_chat_destroy(chat);
}

/* A refusal in the template's own words, in one line. */
static void test_refusals(void **state) {
    (void)state;
    struct hearth_chat *chat =
        make("{% if messages[0]['content'] == 'A' %}{{ raise_exception('Not\n A') }}{% endif %}", "", false);
    struct hearth_chat_prompt prompt;
    struct hearth_errmsg msg = {""};
    assert_int_equal(render(chat, "[{'role':'user','content':'A'}]", NULL, NULL, &prompt, &msg), HEARTH_ERR_TEMPLATE);
    assert_string_equal(msg.text, "Not A");
    assert_int_equal(prompt.text.len, 0);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_destroy(chat);
}

static void test_bad_templates(void **state) {
    (void)state;
    static const char *const bad[] = {"no-such-template", "{% for x in %}", "{{ 'open", "{% if true %}{{ 1 }}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct hearth_chat_params params = {.template_text = bad[i], .bos_text = "", .eos_text = ""};
        struct hearth_chat *chat = (struct hearth_chat *)&params;
        struct hearth_errmsg msg = {""};
        assert_int_equal(hearth_chat_create(&params, &chat, &msg), HEARTH_ERR_TEMPLATE);
        assert_null(chat);
        assert_true(msg.text[0] != '\0');
        assert_null(strchr(msg.text, '\n'));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_builtin_format),
        cmocka_unit_test(test_default_system),
        cmocka_unit_test(test_merged_system),
        cmocka_unit_test(test_alternating),
        cmocka_unit_test(test_without_system_role),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_generation_mark),
        cmocka_unit_test(test_no_generation_prompt),
        cmocka_unit_test(test_continuation),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_nul_in_content),
        cmocka_unit_test(test_native_tools),
        cmocka_unit_test(test_one_call_at_a_time),
        cmocka_unit_test(test_generic_tools),
        cmocka_unit_test(test_generic_alternating),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_locate),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
