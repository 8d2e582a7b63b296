/* Fuzzes what templates make of a conversation: `arguments` gives template arguments (chat_template_kwargs) and texts
 * of messages to templates that read them, `template` gives messages to any text as a template. What is rendered is the
 * same every time, its marks lie in it, and what is refused is refused with words. */
#include "fuzz.h"

#include "chat/chat.h"

static const char *const templates[] = {
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "{{ a }}{{ b | tojson }}{% if c is defined %}{% for x in c %}{{ x }}{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message.role + ': ' + message.content | trim + '\n' }}{% endfor %}"
    "{% if reasoning_effort %}{{ 'effort ' + reasoning_effort }}{% endif %}",
    "{% for k, v in (a or {}) | items %}{{ k }}={{ v }};{% endfor %}{% if b in (c or []) %}in{% endif %}"
    "{% for message in messages %}{% if message.tool_calls %}{{ message.tool_calls | tojson(indent=2) }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}{{ (d or '')[1:3] | upper }}",
};

#define TEMPLATES (sizeof templates / sizeof templates[0])

static struct hearth_message *make_message(enum hearth_role role, const char *text, size_t len) {
    struct hearth_message *message = hearth_message_create(role);
    struct hearth_buf content = {0};
    HEARTH_ASSERT(message != NULL && hearth_buf_append(&content, text, len) && hearth_buf_append(&content, "", 1));
    message->content_len = len;
    message->content = (char *)hearth_buf_take(&content);
    HEARTH_ASSERT(hearth_message_seal(message));
    return message;
}

static void check_prompt(const struct hearth_chat_prompt *prompt) {
    const size_t marks[] = {prompt->system_end, prompt->last_input_start, prompt->generation_start};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        HEARTH_ASSERT(marks[i] == HEARTH_CHAT_NO_MARK || marks[i] <= prompt->text.len);
    }
    HEARTH_ASSERT(prompt->head_count <= HEARTH_CHAT_HEAD_MAX);
    for (size_t i = 0; i < prompt->head_count; i++) {
        HEARTH_ASSERT(prompt->head[i] <= prompt->text.len && (i == 0 || prompt->head[i - 1] <= prompt->head[i]));
    }
}

static void render(struct hearth_chat *chat, const json_t *kwargs, const char *text, size_t len) {
    struct hearth_message *messages[] = {
        make_message(HEARTH_ROLE_SYSTEM, "Be brief.", 9), make_message(HEARTH_ROLE_USER, text, len),
        make_message(HEARTH_ROLE_ASSISTANT, "Yes.", 4), make_message(HEARTH_ROLE_USER, text, len)};
    const struct hearth_chat_request request = {
        .messages = messages, .message_count = 4, .parallel_calls = true, .thinking = true, .kwargs = kwargs};
    struct hearth_chat_format *format;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_format_get(chat, &request, &format, &msg) == HEARTH_OK) {
        struct hearth_chat_prompt once = {0}, again = {0};
        const int err = hearth_chat_render(chat, &request, format, &once, &msg);
        HEARTH_ASSERT(err == hearth_chat_render(chat, &request, format, &again, &msg));
        HEARTH_ASSERT(err == HEARTH_OK || msg.text[0] != '\0');
        if (err == HEARTH_OK) {
            size_t offsets[4];
            check_prompt(&once);
            HEARTH_ASSERT(once.text.len == again.text.len);
            HEARTH_ASSERT(memcmp(once.text.data, again.text.data, once.text.len) == 0);
            hearth_chat_locate(&request, &once, offsets);
        }
        hearth_chat_prompt_finish(&once);
        hearth_chat_prompt_finish(&again);
        hearth_chat_format_unref(format);
    } else {
        HEARTH_ASSERT(msg.text[0] != '\0');
    }
    for (size_t i = 0; i < 4; i++) {
        hearth_message_unref(messages[i]);
    }
}

/* Which template, and an object; behind it the text of messages. */
FUZZ_TARGET(arguments) {
    static struct hearth_chat *chats[TEMPLATES];
    struct fuzz_input input = {data, size};
    size_t len;
    const size_t which = fuzz_byte(&input) % TEMPLATES;
    if (chats[which] == NULL) {
        const struct hearth_chat_params params = {.template_text = templates[which], .bos_text = "", .eos_text = ""};
        struct hearth_errmsg msg;
        HEARTH_ASSERT(hearth_chat_create(&params, &chats[which], &msg) == HEARTH_OK);
    }
    char *text = fuzz_part(&input, &len);
    json_t *kwargs = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    free(text);
    text = fuzz_part(&input, &len);
    if (json_is_object(kwargs) && json_dumpb(kwargs, NULL, 0, JSON_COMPACT) < 4096) {
        json_t *string = json_stringn(text, len); /* messages are UTF-8 */
        render(chats[which], kwargs, string != NULL ? text : "", string != NULL ? len : 0);
        json_decref(string);
    }
    json_decref(kwargs);
    free(text);
}

/* A template as it comes with a model. */
FUZZ_TARGET(template) {
    struct fuzz_input input = {data, size};
    size_t len;
    struct hearth_chat *chat;
    struct hearth_errmsg msg = {""};
    char *text = fuzz_part(&input, &len);
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "<s>", .eos_text = "</s>"};
    if (hearth_chat_create(&params, &chat, &msg) == HEARTH_OK) {
        render(chat, NULL, "Hello", 5);
        hearth_chat_destroy(chat);
    } else {
        HEARTH_ASSERT(chat == NULL && msg.text[0] != '\0');
    }
    free(text);
}
