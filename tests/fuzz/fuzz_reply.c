/* Fuzzes what comes from a model. Bytes as a reply to a request with tools, fed in pieces, must become a message to
 * which its deltas add up. The first byte chooses the template, the second the size of the pieces. */
#include "fuzz.h"

#include "base/utf8.h"
#include "chat/chat.h"

#define TEMPLATE(call)                                                                                              \
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message.role + " \
    "'\n' }}{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}"     \
    "{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}" call                               \
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"                                                                  \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

static const char *const templates[] = {
    TEMPLATE("{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
             "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"),
    TEMPLATE("{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
             "{% for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\n' }}"
             "{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
             "{{ '</function>\n</tool_call>' }}"),
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}",
};

enum { TEMPLATES = sizeof templates / sizeof templates[0] };

static struct hearth_chat_format *formats[2 * TEMPLATES];

/* Each template twice: calls as the model likes, and calls that must be. */
static void make_formats(void) {
    static const char tools_text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{}},\"required\":[\"a\"]}}}]";
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_USER);
    HEARTH_ASSERT(tools != NULL && message != NULL && hearth_message_seal(message));
    for (size_t i = 0; i < 2 * TEMPLATES; i++) {
        struct hearth_errmsg msg;
        struct hearth_chat *chat;
        const struct hearth_chat_params params = {.template_text = templates[i / 2], .bos_text = "", .eos_text = ""};
        const struct hearth_chat_request request = {.messages = &message,
                                                    .message_count = 1,
                                                    .tools = tools,
                                                    .tool_choice =
                                                        i % 2 == 0 ? HEARTH_TOOLS_AUTO : HEARTH_TOOLS_REQUIRED,
                                                    .parallel_calls = true,
                                                    .thinking = true};
        HEARTH_ASSERT(hearth_chat_create(&params, &chat, &msg) == HEARTH_OK);
        HEARTH_ASSERT(hearth_chat_format_get(chat, &request, &formats[i], &msg) == HEARTH_OK);
        hearth_chat_destroy(chat);
    }
    hearth_message_unref(message);
    json_decref(tools);
}

struct sums {
    size_t reasoning, content, arguments, calls;
};

static void add_up(void *user, const struct hearth_chat_delta *delta) {
    struct sums *sums = user;
    sums->reasoning += delta->reasoning != NULL ? delta->reasoning_len : 0;
    sums->content += delta->content != NULL ? delta->content_len : 0;
    sums->arguments += delta->arguments != NULL ? delta->arguments_len : 0;
    sums->calls += delta->call_id != NULL;
    HEARTH_ASSERT(delta->call_id == NULL || delta->call + 1 == sums->calls);
    HEARTH_ASSERT(delta->content == NULL || hearth_utf8_valid(delta->content, delta->content_len));
}

static void check_reply(struct hearth_chat_format *format, const char *text, size_t len, size_t piece, bool deltas) {
    struct sums sums = {0}, whole = {0};
    struct hearth_message *message;
    struct hearth_errmsg msg;
    bool repaired;
    struct hearth_chat_stream *stream = hearth_chat_stream_create(format, deltas);
    HEARTH_ASSERT(stream != NULL);
    for (size_t at = 0; at < len;) {
        size_t end = at + piece < len ? at + piece : len;
        while (end < len && (text[end] & 0xC0) == 0x80) {
            end++;
        }
        HEARTH_ASSERT(hearth_chat_stream_feed(stream, text + at, end - at, add_up, &sums) == HEARTH_OK);
        at = end;
    }
    HEARTH_ASSERT(hearth_chat_stream_end(stream, piece % 2 == 0, add_up, &sums, &message, &repaired) == HEARTH_OK);
    whole = (struct sums){message->reasoning != NULL ? strlen(message->reasoning) : 0, message->content_len, 0,
                          message->call_count};
    for (size_t i = 0; i < message->call_count; i++) {
        whole.arguments += strlen(message->calls[i].arguments);
    }
    HEARTH_ASSERT(sums.content == whole.content && sums.calls == whole.calls);
    /* A NUL ends the strings, not the deltas. */
    HEARTH_ASSERT(memchr(text, '\0', len) != NULL ||
                  (sums.reasoning == whole.reasoning && sums.arguments == whole.arguments));
    hearth_message_unref(message);
    hearth_chat_stream_destroy(stream);
    if (hearth_chat_parse(format, text, len, &message, &msg) == HEARTH_OK) {
        hearth_message_unref(message);
    }
}

FUZZ_TARGET(reply) {
    struct fuzz_input input = {data, size};
    struct hearth_buf text = {0};
    if (formats[0] == NULL) {
        make_formats();
    }
    const uint8_t which = fuzz_byte(&input), piece = fuzz_byte(&input);
    HEARTH_ASSERT(hearth_utf8_append(&text, (const char *)input.at, input.left));
    check_reply(formats[which % (2 * TEMPLATES)], (char *)text.data, text.len, 1 + piece % 32, piece < 192);
    hearth_buf_finish(&text);
}
