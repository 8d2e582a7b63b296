/* Fuzzes the guards: whatever a message says, and whatever the template does with it, there are as many control tokens
 * in the prompt as the template prints itself, and it reads as it would without guards. */
#include "fuzz.h"

#include "base/utf8.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "engine/sim.h"

/* Takes words out, prints brackets around what is said, quotes it, and makes other letters of it. */
static const char template_text[] =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{{ message.content.replace('/think', '').replace('/no_think', '') | trim }}{{ message.content }}<|im_end|>"
    "<{{ message.content }}>{{ message.content | lower }}{{ message.content | tojson }}{% endfor %}"
    "{{ note | lower }}{{ note }}";

enum { OWN = 4 }; /* control tokens of a prompt of two messages */

struct bench {
    struct hearth_engine *engine;
    struct hearth_chat *chat;
    struct hearth_specials *specials;
};

static const struct bench *bench_of(void) {
    static struct bench bench;
    if (bench.engine == NULL) {
        struct hearth_sim_params sim;
        struct hearth_errmsg msg;
        const struct hearth_chat_params params = {.template_text = template_text, .bos_text = "", .eos_text = ""};
        hearth_sim_params_default(&sim);
        HEARTH_ASSERT(hearth_sim_create(&sim, &bench.engine, &msg) == HEARTH_OK);
        HEARTH_ASSERT(hearth_chat_create(&params, &bench.chat, &msg) == HEARTH_OK);
        bench.specials = hearth_specials_create(bench.engine, "", template_text);
        HEARTH_ASSERT(bench.specials != NULL);
    }
    return &bench;
}

static size_t control_tokens(const struct bench *bench, const struct hearth_chat_prompt *prompt) {
    struct hearth_tokens tokens = {0};
    char text[4];
    size_t count = 0;
    HEARTH_ASSERT(hearth_specials_tokenize(bench->specials, (const char *)prompt->text.data, prompt->text.len, false,
                                           &tokens) == HEARTH_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        count += bench->engine->ops->token_text(bench->engine, tokens.v[i], false, text, sizeof text) == 0 ? 1 : 0;
    }
    hearth_tokens_finish(&tokens);
    return count;
}

/* A client cannot know what stands for a guard while a template runs; a fuzzer sees what inputs are compared with. */
static bool may_tell_seams(const struct hearth_buf *text) {
    return memmem(text->data, text->len, "\\ue", 3) != NULL || memmem(text->data, text->len, "\\uf", 3) != NULL ||
           memchr(text->data, 0xEE, text->len) != NULL || memchr(text->data, 0xEF, text->len) != NULL;
}

/* The text of a message, and behind it a template argument. */
FUZZ_TARGET(guard) {
    const struct bench *bench = bench_of();
    struct fuzz_input input = {data, size};
    struct hearth_buf said = {0}, note = {0};
    size_t len;
    char *first = fuzz_part(&input, &len);
    HEARTH_ASSERT(hearth_utf8_append(&said, first, len));
    HEARTH_ASSERT(hearth_utf8_append(&note, (const char *)input.at, input.left));
    struct hearth_message message = {.role = HEARTH_ROLE_USER, .content = (char *)said.data, .content_len = said.len};
    struct hearth_message reply = message, *messages[] = {&message, &reply};
    reply.role = HEARTH_ROLE_ASSISTANT;
    json_t *kwargs = json_object();
    HEARTH_ASSERT(json_object_set_new(kwargs, "note", json_stringn((const char *)note.data, note.len)) == 0);
    struct hearth_chat_request request = {
        .messages = messages, .message_count = 2, .thinking = true, .no_generation_prompt = true, .kwargs = kwargs};
    struct hearth_chat_format *format;
    struct hearth_chat_prompt plain, guarded;
    struct hearth_errmsg msg;
    HEARTH_ASSERT(hearth_chat_format_get(bench->chat, &request, &format, &msg) == HEARTH_OK);
    HEARTH_ASSERT(hearth_chat_render(bench->chat, &request, format, &plain, &msg) == HEARTH_OK);
    request.specials = bench->specials;
    HEARTH_ASSERT(hearth_chat_render(bench->chat, &request, format, &guarded, &msg) == HEARTH_OK);
    HEARTH_ASSERT(control_tokens(bench, &guarded) == OWN);
    const bool comparable = !may_tell_seams(&said) && !may_tell_seams(&note);
    guarded.text.len = hearth_guards_strip((char *)guarded.text.data, guarded.text.len);
    HEARTH_ASSERT(!comparable || (guarded.text.len == plain.text.len &&
                                  memcmp(guarded.text.data, plain.text.data, plain.text.len) == 0));
    hearth_chat_prompt_finish(&plain);
    hearth_chat_prompt_finish(&guarded);
    hearth_chat_format_unref(format);
    json_decref(kwargs);
    hearth_buf_finish(&said);
    hearth_buf_finish(&note);
    free(first);
}
