/* See samples.h.
 *
 * A reply is printed by the template behind a question; what the prompt for that question begins with already is not
 * part of it. The rest, with one of a few beginnings that templates leave out of what they print, and without the end
 * of the turn, is a sample if it reads as the reply. Where none does, the words (and thoughts) go in front of what the
 * template prints for the calls alone. Models whose replies are nothing of the kind have a form of their own. */
#include "support/samples.h"

#include "support/messages.h"

#include "base/assert.h"
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THOUGHTS "zqthoughts, and a line.\nThen another one."
#define WORDS "zqwords: **one**, \\'two\\' and é.\n\n- three"
#define AWKWARD                                                                                                      \
    "{\"path\": \"a \\\"b\\\" \\\\ c/d.txt\", \"text\": \"zqtext é 日本\\n\\tline <b>two</b>\", \"count\": 3, "      \
    "\"ratio\": 0.1, \"whole\": 1.0, \"yes\": true, \"no\": false, \"nothing\": null, \"list\": [1, [], {}, null], " \
    "\"object\": {\"z\": {\"b\": 1, \"a\": [true, null]}}, \"empty\": \"\"}"
#define PLAIN                                                                                                   \
    "{\"path\": \"a \\\"b\\\" \\\\ c/d.txt\", \"text\": \"zqtext é 日本\\n\\tline <b>two</b>\", \"count\": 3, " \
    "\"ratio\": 0.1, \"whole\": 1.0, \"yes\": true, \"no\": false}"
#define BIG "{\"path\": \"x\", \"count\": 12345678901234567890123}"
#define SHORT "{\"path\": \"y\"}"

struct reply {
    const char *thoughts, *words, *arguments[2];
    bool compact; /* arguments are spaced otherwise than the template does it */
};

const char *const samples_names[SAMPLES_REPLIES] = {"words",
                                                    "thoughts, words",
                                                    "a call",
                                                    "a call, compact",
                                                    "a big number",
                                                    "words, two calls",
                                                    "thoughts, words, two calls"};

static const struct reply replies[SAMPLES_REPLIES] = {{NULL, WORDS, {NULL, NULL}, false},
                                                      {THOUGHTS, WORDS, {NULL, NULL}, false},
                                                      {NULL, "", {AWKWARD, NULL}, false},
                                                      {NULL, "", {AWKWARD, NULL}, true},
                                                      {NULL, "", {BIG, NULL}, false},
                                                      {NULL, WORDS, {"{}", AWKWARD}, false},
                                                      {THOUGHTS, WORDS, {AWKWARD, SHORT}, false}};

/* Forms of replies, by the beginning of the template's name: thoughts (NULL: none can be read), words, arguments. */
static const struct hand {
    const char *template_name, *thoughts, *words, *call;
} hands[] = {
    {"openai-gpt-oss", "<|channel|>analysis<|message|>%s<|end|><|start|>assistant",
     "<|channel|>commentary<|message|>%s<|end|><|start|>assistant",
     "<|channel|>commentary to=functions.read <|constrain|>json<|message|>%s"},
    {"CohereForAI-c4ai-command-r-plus", NULL, "%s",
     "<tool_call>\n{\"name\": \"read\", \"arguments\": %s}\n</tool_call>"}, /* it is told of no other form */
};

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
        fprintf(stderr, "not printed: %s\n", msg.text);
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

/* Values that a template prints as Python does, as a model writes them; or the other way round. */
static char *as_json(const char *text) {
    static const char *const words[][2] = {
        {">True<", ">true<"},
        {">False<", ">false<"},
        {">None<", ">null<"},
        {"\nTrue\n", "\ntrue\n"},
        {"\nFalse\n", "\nfalse\n"},
        {"\nNone\n", "\nnull\n"},
        {"[1, [], {}, None]", "[1, [], {}, null]"},
        {"{'z': {'b': 1, 'a': [True, None]}}", "{\"z\": {\"b\": 1, \"a\": [true, null]}}"},
        {"={\"z\": {\"b\": 1, \"a\": [true, null]}}", "={'z': {'b': 1, 'a': [True, None]}}"}};
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
    char *once = replaced(text, spaced, with), *made = replaced(once, message->calls[0].arguments, with);
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
        if (reply->compact && message->call_count > 0) {
            char *other = compact(text, message);
            free(text);
            text = other;
        }
        if (reads_as(format, text, strlen(text), message)) {
            return text;
        }
        if (getenv("HEARTH_VERBOSE") != NULL) {
            printf("not read: %s\n", text);
        }
        free(text);
    }
    return NULL;
}

/* What the template prints for a reply behind a question; NULL: nothing. Where the prompt ends inside of a mark that
 * the reply has otherwise, the whole mark is the reply's. */
static char *printed(struct hearth_chat *chat, struct hearth_message *reply, const json_t *tools,
                     struct hearth_chat_format **format) {
    struct messages list = messages_load("[{'role':'user','content':'Hello'}]");
    struct hearth_message *messages[] = {list.v[0], reply};
    struct hearth_chat_prompt prompt = {.text = {0}}, whole = {.text = {0}};
    struct hearth_chat_format *ended = NULL;
    char *rest = NULL;
    if (render(chat, messages, 1, tools, false, format, &prompt) &&
        render(chat, messages, 2, tools, true, &ended, &whole)) {
        const char *a = (const char *)prompt.text.data, *b = (const char *)whole.text.data;
        size_t n = 0, mark;
        while (a[n] != '\0' && a[n] == b[n]) {
            n++;
        }
        for (mark = n; a[n] != '\0' && mark > 0 && n - mark < 24 && strchr("<>\n", b[mark - 1]) == NULL; mark--) {
        }
        n = a[n] != '\0' && mark > 0 && b[mark - 1] == '<' ? mark - 1 : n;
        rest = strdup(b + n);
    }
    hearth_chat_format_unref(ended);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_prompt_finish(&whole);
    messages_finish(&list);
    return rest;
}

/* Words in front of what is printed for the calls alone. */
static char *words_and_calls(struct hearth_chat *chat, const struct reply *reply, struct hearth_message *message,
                             const json_t *tools, struct hearth_chat_format *format) {
    static const char *const gaps[] = {"", "\n", "\n\n"};
    struct reply calls = *reply;
    calls.words = "";
    calls.thoughts = NULL;
    struct hearth_message *silent = make_reply(&calls);
    struct hearth_chat_format *same = NULL;
    char *rest = printed(chat, silent, tools, &same), *text = NULL;
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    const char *end = rest != NULL && info->thinking_end_count > 0 ? strstr(rest, info->thinking_ends[0]) : NULL;
    const char *part = end != NULL ? end + strlen(info->thinking_ends[0]) : rest;
    while (part != NULL && *part == '\n') {
        part++;
    }
    for (size_t i = 0; part != NULL && text == NULL && i < sizeof gaps / sizeof gaps[0]; i++) {
        struct hearth_buf made = {0};
        HEARTH_ASSERT(hearth_buf_printf(&made, "%s%s%s", reply->words, gaps[i], part));
        text = first_that_reads(format, reply, (const char *)made.data, message);
        hearth_buf_finish(&made);
    }
    free(rest);
    hearth_chat_format_unref(same);
    hearth_message_unref(silent);
    return text;
}

static void fill(struct hearth_buf *out, const char *form, const char *text) {
    const char *at = strstr(form, "%s");
    HEARTH_ASSERT(hearth_buf_printf(out, "%.*s%s%s", (int)(at - form), form, text, at + 2));
}

static char *by_hand(const char *name, const struct reply *reply, const struct hearth_message *message,
                     const struct hearth_chat_format *format) {
    for (size_t i = 0; i < sizeof hands / sizeof hands[0]; i++) {
        struct hearth_buf made = {0};
        if (strncmp(name, hands[i].template_name, strlen(hands[i].template_name)) != 0) {
            continue;
        }
        if (reply->thoughts != NULL && hands[i].thoughts == NULL) {
            continue;
        }
        if (reply->thoughts != NULL) {
            fill(&made, hands[i].thoughts, reply->thoughts);
        }
        if (reply->words[0] != '\0') {
            fill(&made, hands[i].words, reply->words);
        }
        for (size_t call = 0; call < message->call_count; call++) {
            fill(&made, hands[i].call, reply->arguments[call]);
        }
        char *text = (char *)hearth_buf_take(&made);
        if (getenv("HEARTH_VERBOSE") != NULL) {
            printf("by hand: %s\n", text);
        }
        if (reads_as(format, text, strlen(text), message)) {
            return text;
        }
        free(text);
    }
    return NULL;
}

static char *sampled_text(struct hearth_chat *chat, const char *name, const struct reply *reply, const json_t *tools) {
    struct hearth_message *message = make_reply(reply);
    struct hearth_chat_format *format = NULL;
    char *rest = printed(chat, message, tools, &format);
    char *text = rest != NULL ? first_that_reads(format, reply, rest, message) : NULL;
    if (text == NULL && rest != NULL) {
        text = by_hand(name, reply, message, format);
    }
    if (text == NULL && rest != NULL && message->call_count > 0 && reply->words[0] != '\0') {
        text = words_and_calls(chat, reply, message, tools, format);
    }
    hearth_chat_format_unref(format);
    hearth_message_unref(message);
    free(rest);
    return text;
}

/* Parallel calls first: a reply with one says less. */
struct sample sample_make(struct hearth_chat *chat, const char *template_name, size_t which, const json_t *tools) {
    struct sample sample = {NULL, false, false};
    for (int i = 0; i < 4 && sample.text == NULL; i++) {
        struct reply reply = replies[which];
        bool plain = false;
        sample.one = i >= 2;
        sample.plain = i % 2 == 1;
        if (sample.one && reply.arguments[1] == NULL) {
            break;
        }
        if (sample.one) {
            reply.arguments[0] = strcmp(reply.arguments[0], "{}") == 0 ? reply.arguments[1] : reply.arguments[0];
            reply.arguments[1] = NULL;
        }
        for (int call = 0; call < 2 && sample.plain; call++) {
            const char *arguments = reply.arguments[call];
            const bool awkward = arguments != NULL && (strcmp(arguments, AWKWARD) == 0 || strcmp(arguments, "{}") == 0);
            reply.arguments[call] = !awkward ? arguments : arguments[1] == '}' ? SHORT : PLAIN;
            plain = plain || awkward;
        }
        if (plain == sample.plain) {
            sample.text = sampled_text(chat, template_name, &reply, tools);
        }
    }
    return sample;
}
