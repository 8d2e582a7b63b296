/* Conversations through a client that prints everything anew with every request, against the server on sim.
 *
 * The model's replies are scripted (text, calls, parallel calls, reasoning), half of them sampled as bytes, which is
 * not how their text tokenises. The client keeps what it was told and sends it back in another print each time: keys in
 * another order, other white space, escapes, nulls, content as parts, reasoning left out. Nothing of that may cost a
 * token: what a request computes is what is new since the longest history that it continues. Now and then a reply in
 * the history is really changed; then nothing from the change on may be reused. And now and then the API starts anew,
 * beside a service that has kept its state: what it finds in the transcripts' database has to do as well as its memory.
 *
 *     transcript_model_test [turns]     HEARTH_SEED repeats a run */
#include "sched/service_internal.h"
#include "support/random.h"
#include "support/stage.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#define CONVERSATIONS 6
#define MESSAGES_MAX 40

static struct rng rng;

static void fail(const char *what, json_t *context) {
    char *text = context != NULL ? json_dumps(context, JSON_INDENT(1)) : NULL;
    fprintf(stderr, "%s\n%.6000s\n", what, text != NULL ? text : "");
    exit(1);
}

#define CHECK(condition, context) ((condition) ? (void)0 : fail(#condition, context))

/* ---- values ---- */

static const char *const words[] = {"path",
                                    "the",
                                    "a/b.c",
                                    "\"quoted\"",
                                    "line\nbreak",
                                    "caf\xC3\xA9",
                                    "\xF0\x9F\x94\xA5",
                                    "{}",
                                    "<b>",
                                    "\\",
                                    "end",
                                    "x",
                                    "",
                                    " ",
                                    "tab\t",
                                    "0",
                                    "null",
                                    "true"};

static const char *word(void) {
    return words[rng_below(&rng, sizeof words / sizeof words[0])];
}

static json_t *random_value(int depth) {
    switch (rng_below(&rng, depth > 0 ? 8 : 6)) {
    case 0: return json_integer(rng_range(&rng, -5, 5000));
    case 1: return json_real((double)rng_range(&rng, -40, 40) / 8.0);
    case 2: return json_boolean(rng_once_in(&rng, 2));
    case 3: return json_null();
    case 6: {
        json_t *array = json_array();
        for (uint32_t n = rng_below(&rng, 4); n > 0; n--) {
            json_array_append_new(array, random_value(depth - 1));
        }
        return array;
    }
    case 7: {
        json_t *object = json_object();
        for (uint32_t n = rng_below(&rng, 4); n > 0; n--) {
            char key[32];
            snprintf(key, sizeof key, "k%u", rng_below(&rng, 30));
            json_object_set_new(object, key, random_value(depth - 1));
        }
        return object;
    }
    default: {
        char text[128];
        snprintf(text, sizeof text, "%s %s%s", word(), word(), word());
        return json_string(text);
    }
    }
}

/* ---- printing, each time differently ---- */

static void space(struct hearth_buf *out) {
    static const char *const spaces[] = {"", "", " ", "\n  "};
    hearth_buf_text(out, spaces[rng_below(&rng, 4)]);
}

static void print_string(const char *text, size_t len, struct hearth_buf *out) {
    static const size_t flags[] = {0, JSON_ENSURE_ASCII, JSON_ESCAPE_SLASH};
    json_t *value = json_stringn(text, len);
    char *printed = json_dumps(value, JSON_ENCODE_ANY | flags[rng_below(&rng, 3)]);
    hearth_buf_text(out, printed);
    free(printed);
    json_decref(value);
}

static void print(const json_t *value, struct hearth_buf *out);

static void print_object(json_t *object, struct hearth_buf *out) {
    size_t n = json_object_size(object);
    const char *keys[64];
    json_t *values[64];
    size_t i = 0;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        keys[i] = key;
        values[i++] = value;
    }
    hearth_buf_text(out, "{");
    for (size_t left = n; left > 0; left--) {
        size_t pick = rng_below(&rng, (uint32_t)left);
        space(out);
        print_string(keys[pick], strlen(keys[pick]), out);
        space(out);
        hearth_buf_text(out, ":");
        space(out);
        print(values[pick], out);
        keys[pick] = keys[left - 1];
        values[pick] = values[left - 1];
        hearth_buf_text(out, left > 1 ? "," : "");
    }
    space(out);
    hearth_buf_text(out, "}");
}

static void print(const json_t *value, struct hearth_buf *out) {
    if (json_is_object(value)) {
        print_object((json_t *)(uintptr_t)value, out);
    } else if (json_is_string(value)) {
        print_string(json_string_value(value), json_string_length(value), out);
    } else if (json_is_array(value)) {
        hearth_buf_text(out, "[");
        for (size_t i = 0; i < json_array_size(value); i++) {
            hearth_buf_text(out, i > 0 ? "," : "");
            space(out);
            print(json_array_get(value, i), out);
        }
        hearth_buf_text(out, "]");
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        hearth_buf_text(out, text);
        free(text);
    }
}

static char *printed(const json_t *value) {
    struct hearth_buf out = {0};
    print(value, &out);
    hearth_buf_append(&out, "", 1);
    return (char *)hearth_buf_take(&out);
}

/* ---- the script ---- */

static void print_call(struct hearth_buf *out) {
    json_t *arguments = json_object();
    for (uint32_t n = rng_below(&rng, 4); n > 0; n--) {
        char key[16];
        snprintf(key, sizeof key, "arg%u", rng_below(&rng, 6));
        json_object_set_new(arguments, key, random_value(2));
    }
    char *text = printed(arguments);
    hearth_buf_printf(out, "<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>",
                      rng_once_in(&rng, 2) ? "read" : "write", text);
    free(text);
    json_decref(arguments);
}

/* The reply to the prompt whose last message holds "#turn#". */
static json_t *script_entry(int turn, bool thinks) {
    struct hearth_buf reply = {0};
    char marker[24];
    snprintf(marker, sizeof marker, "#%d#", turn);
    if (thinks) {
        hearth_buf_printf(&reply, "<think>\nabout %d: %s %s\n</think>\n\n", turn, word(),
                          rng_once_in(&rng, 2) ? "hm" : "oh");
    }
    uint32_t calls = rng_below(&rng, 3);
    if (calls == 0 || rng_once_in(&rng, 2)) {
        hearth_buf_printf(&reply, "Reply %d, %s and %s.%s", turn, word(), word(), rng_once_in(&rng, 3) ? "\n" : "");
    }
    for (uint32_t i = 0; i < calls; i++) {
        hearth_buf_text(&reply, reply.len > 0 ? "\n" : "");
        print_call(&reply);
    }
    json_t *entry = json_pack("{s:{s:s}, s:s%, s:i, s:b}", "when", "last", marker, "reply", (const char *)reply.data,
                              reply.len, "times", 0, "bytes", (int)rng_once_in(&rng, 2));
    hearth_buf_finish(&reply);
    return entry;
}

static void write_script(const char *path, int turns, bool thinks) {
    FILE *file = fopen(path, "w");
    assert(file != NULL);
    for (int i = 0; i < turns; i++) {
        json_t *entry = script_entry(i, thinks);
        json_dumpf(entry, file, JSON_COMPACT);
        fputc('\n', file);
        json_decref(entry);
    }
    fclose(file);
}

/* ---- the client ---- */

struct conversation {
    json_t *messages;
    long tokens[MESSAGES_MAX + 2]; /* by number of messages: what the server's state holds after that reply; 0: none */
};

/* An assistant message as the client sends it back. `faithful`: reasoning stays. */
static json_t *returned(const json_t *message, bool faithful) {
    static const char *const extras[] = {"refusal", "audio", "function_call", "annotations", "logprobs"};
    json_t *copy = json_deep_copy(message);
    for (size_t i = 0; i < 5; i++) {
        if (rng_once_in(&rng, 3)) {
            json_object_set_new(copy, extras[i], json_null());
        }
    }
    json_t *content = json_object_get(copy, "content");
    if (json_is_string(content) && rng_once_in(&rng, 3)) {
        json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", content);
        json_object_set_new(copy, "content", json_pack("[o]", part));
    }
    if (!faithful && rng_once_in(&rng, 2)) {
        json_object_del(copy, "reasoning_content");
    }
    json_t *calls = json_object_get(copy, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        json_t *arguments = json_loads(json_str(function, "arguments"), JSON_DECODE_ANY, NULL);
        CHECK(arguments != NULL, copy);
        char *text = printed(arguments);
        json_object_set_new(function, "arguments", json_string(text));
        free(text);
        json_decref(arguments);
    }
    return copy;
}

static char *request_body(const struct conversation *conversation, bool faithful) {
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"read\",\"description\":\"Reads.\",\"parameters\":{\"type\":"
        "\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"write\",\"parameters\":{\"type\":\"object\"}}}]";
    json_t *messages = json_array();
    size_t i;
    json_t *message;
    json_array_foreach(conversation->messages, i, message) {
        bool assistant = strcmp(json_str(message, "role"), "assistant") == 0;
        json_array_append_new(messages, assistant ? returned(message, faithful) : json_incref(message));
    }
    json_t *body = json_pack("{s:o, s:o, s:i, s:b}", "messages", messages, "tools", json_loads(tools, 0, NULL),
                             "max_tokens", 4000, "parallel_tool_calls", 1);
    struct hearth_buf out = {0};
    /* Tools keep the order of their keys: the template prints them as they come. */
    json_t *given = json_incref(json_object_get(body, "tools"));
    json_object_del(body, "tools");
    char *rest = printed(body), *declared = json_dumps(given, JSON_COMPACT);
    hearth_buf_printf(&out, "{\"tools\":%s,%s", declared, rest + 1);
    hearth_buf_append(&out, "", 1);
    free(rest);
    free(declared);
    json_decref(given);
    json_decref(body);
    return (char *)hearth_buf_take(&out);
}

/* The next message of the client: results of the calls, or a question; it holds the marker of its turn. */
static void speak(struct conversation *conversation, int turn) {
    size_t n = json_array_size(conversation->messages);
    json_t *last = n > 0 ? json_array_get(conversation->messages, n - 1) : NULL;
    json_t *calls = json_object_get(last, "tool_calls");
    char text[128];
    for (size_t i = 0; i < json_array_size(calls); i++) {
        bool final = i + 1 == json_array_size(calls);
        snprintf(text, sizeof text, "result %zu %s", i, word());
        if (final) {
            snprintf(text, sizeof text, "result #%d#", turn);
        }
        json_array_append_new(conversation->messages,
                              json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                        json_object_get(json_array_get(calls, i), "id"), "content", text));
    }
    if (json_array_size(calls) == 0) {
        snprintf(text, sizeof text, "Question %s #%d#", word(), turn);
        json_array_append_new(conversation->messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    }
}

static void begin(struct conversation *conversation, int which) {
    char text[64];
    json_decref(conversation->messages);
    memset(conversation->tokens, 0, sizeof conversation->tokens);
    snprintf(text, sizeof text, "You are number %d.", which);
    conversation->messages = json_pack("[{s:s, s:s}]", "role", "system", "content", text);
}

/* Back to an earlier reply, whose state is known. */
static void rewind_some(struct conversation *conversation) {
    size_t n = json_array_size(conversation->messages);
    size_t to = 1 + rng_below(&rng, (uint32_t)n);
    while (to > 1 && conversation->tokens[to] == 0) {
        to--;
    }
    while (json_array_size(conversation->messages) > to) {
        json_array_remove(conversation->messages, json_array_size(conversation->messages) - 1);
    }
    for (size_t i = to + 1; i < MESSAGES_MAX + 2; i++) {
        conversation->tokens[i] = 0;
    }
}

/* ---- turns ---- */

static long known_tokens(const struct conversation *conversation) {
    for (size_t i = json_array_size(conversation->messages); i > 0; i--) {
        if (conversation->tokens[i] > 0) {
            return conversation->tokens[i];
        }
    }
    return 0;
}

struct totals {
    long computed, ideal, sampled, edits;
};

static json_t *ask(const struct stage *stage, const struct conversation *conversation, bool faithful) {
    char *body = request_body(conversation, faithful);
    int status;
    json_t *reply = stage_call(stage, "POST", "/v1/chat/completions", body, &status);
    if (status != 200) {
        fprintf(stderr, "%s\n", body);
    }
    CHECK(status == 200, reply);
    free(body);
    return reply;
}

static void turn(const struct stage *stage, struct conversation *conversation, int number, bool faithful,
                 struct totals *totals) {
    if (json_array_size(conversation->messages) > MESSAGES_MAX - 8) {
        begin(conversation, number % CONVERSATIONS);
    }
    if (rng_once_in(&rng, 6)) {
        rewind_some(conversation);
    }
    long known = known_tokens(conversation);
    speak(conversation, number);
    json_t *reply = ask(stage, conversation, faithful);
    long prompt = (long)json_num(reply, "usage.prompt_tokens"), computed = (long)json_num(reply, "hearth.computed");
    CHECK(computed <= prompt - known, reply);
    totals->computed += computed;
    totals->ideal += prompt - known;
    totals->sampled += (long)json_num(reply, "hearth.sampled");
    json_array_append(conversation->messages, json_at(reply, "choices.0.message"));
    /* The end token is never computed, nor is a last one that was cut off. */
    conversation->tokens[json_array_size(conversation->messages)] =
        prompt + (long)json_num(reply, "usage.completion_tokens") - 1;
    json_decref(reply);
}

/* Changes what a reply in the history says, in one of several small ways, to something it never said before. */
static void edit(json_t *message, int number) {
    json_t *calls = json_object_get(message, "tool_calls");
    size_t n = json_array_size(calls);
    if (n > 0 && rng_once_in(&rng, 2)) {
        json_t *function = json_object_get(json_array_get(calls, rng_below(&rng, (uint32_t)n)), "function");
        json_t *arguments = json_loads(json_str(function, "arguments"), JSON_DECODE_ANY, NULL);
        json_object_set_new(arguments, "arg0", json_integer(777000 + number));
        char *text = json_dumps(arguments, JSON_COMPACT);
        json_object_set_new(function, "arguments", json_string(text));
        free(text);
        json_decref(arguments);
    } else {
        char text[4096];
        snprintf(text, sizeof text, "%s%d", json_str(message, "content"), number);
        json_object_set_new(message, "content", json_string(text));
    }
}

/* The same history with one reply changed: nothing behind the change is reused. The conversation goes on unchanged. */
static void edited_turn(const struct stage *stage, struct conversation *conversation, int number, bool faithful,
                        struct totals *totals) {
    size_t n = json_array_size(conversation->messages);
    size_t at = n > 2 ? 2 + rng_below(&rng, (uint32_t)(n - 2)) : 0;
    while (at > 0 && strcmp(json_str(json_array_get(conversation->messages, at), "role"), "assistant") != 0) {
        at--;
    }
    struct conversation changed = *conversation;
    changed.messages = json_deep_copy(conversation->messages);
    long before = 0;
    for (size_t i = 1; i < at; i++) {
        before = conversation->tokens[i] > 0 ? conversation->tokens[i] : before;
    }
    if (at > 0) {
        edit(json_array_get(changed.messages, at), number);
        speak(&changed, number);
        json_t *reply = ask(stage, &changed, faithful);
        long reused = (long)json_num(reply, "hearth.reused.live") + (long)json_num(reply, "hearth.reused.ram");
        CHECK(json_is_object(json_at(reply, "hearth.divergence")), reply);
        CHECK(reused <= json_num(reply, "hearth.divergence.token"), reply);
        CHECK(json_num(reply, "hearth.divergence.message") == (json_int_t)at, reply);
        CHECK(reused >= before, reply);
        totals->edits++;
        json_decref(reply);
    }
    json_decref(changed.messages);
}

/* Thinking is printed throughout; calls as JSON in tags. */
static const char thinker[] =
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- '# Tools\\n<tools>' "
    "}}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
    "{{- '\\n</tools>\\nFor each call return <tool_call>\\n{\"name\": <name>, \"arguments\": <object>}\\n' }}"
    "{{- '</tool_call><|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if message.reasoning_content %}"
    "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{%- if message.content %}{{- message.content }}{%- endif %}"
    "{%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}"
    "{%- if (loop.first and message.content) or (not loop.first) %}{{- '\\n' }}{%- endif %}"
    "{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}"
    "{{- '<tool_call>\\n{\"name\": \"' + tool_call.name + '\", \"arguments\": ' }}"
    "{%- if tool_call.arguments is string %}{{- tool_call.arguments }}"
    "{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}"
    "{{- '}\\n</tool_call>' }}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/* A new API, with nothing in memory. */
static void restart(struct stage *stage, const struct stage_options *options) {
    struct hearth_errmsg msg;
    struct hearth_api_params params = options->api;
    params.engine = stage->engine;
    params.chat = stage->chat;
    params.service = stage->service;
    params.lanes = options->sim.lanes;
    hearth_api_destroy(stage->api);
    pthread_mutex_lock(&stage->service->mutex); /* it was drained: it goes on */
    stage->service->draining = false;
    pthread_mutex_unlock(&stage->service->mutex);
    CHECK(hearth_api_create(&params, &stage->api, &msg) == HEARTH_OK, NULL);
    stage->port = hearth_api_port(stage->api);
}

static void remove_database(const char *path) {
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    char name[96];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        unlink(name);
    }
}

static void run(enum hearth_engine_class memory_class, bool thinks, int turns) {
    char path[] = "/tmp/hearth-script-XXXXXX";
    int fd = mkstemp(path);
    assert(fd >= 0);
    close(fd);
    write_script(path, turns, thinks);
    char database[64];
    snprintf(database, sizeof database, "%s.db", path);
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.sim.ctx_tokens = 32768;
    options.sim.lanes = 4;
    options.service.cache_bytes = 1u << 30;
    options.api.script_path = path;
    options.api.transcripts_path = database;
    options.chat_template = thinks ? thinker : NULL;
    stage_open(&stage, &options);
    struct conversation conversations[CONVERSATIONS] = {{0}};
    struct totals totals = {0};
    for (int i = 0; i < CONVERSATIONS; i++) {
        begin(&conversations[i], i);
    }
    int restarts = 0;
    for (int i = 0; i < turns; i++) {
        if (rng_once_in(&rng, 12)) {
            restart(&stage, &options);
            restarts++;
        }
        struct conversation *conversation = &conversations[rng_below(&rng, CONVERSATIONS)];
        if (rng_once_in(&rng, 8)) {
            edited_turn(&stage, conversation, i, !thinks, &totals);
        } else {
            turn(&stage, conversation, i, !thinks, &totals);
        }
    }
    printf("%s%s: %ld tokens computed, %ld had to be: ratio %.4f; %ld sampled tokens kept, %ld edits "
           "noticed, %d restarts\n",
           hearth_engine_class_text(memory_class), thinks ? ", thinking" : "", totals.computed, totals.ideal,
           (double)totals.computed / (double)totals.ideal, totals.sampled, totals.edits, restarts);
    CHECK(totals.computed <= totals.ideal && totals.sampled > 0 && totals.edits > 0, NULL);
    for (int i = 0; i < CONVERSATIONS; i++) {
        json_decref(conversations[i].messages);
    }
    stage_close(&stage);
    unlink(path);
    remove_database(database);
}

int main(int argc, char **argv) {
    int turns = argc > 1 ? atoi(argv[1]) : 300;
    rng.state = seed_announced(20261121);
    run(HEARTH_ENGINE_PAGES, false, turns);
    run(HEARTH_ENGINE_PAGES_SNAPSHOT, false, turns);
    run(HEARTH_ENGINE_PAGES, true, turns);
    run(HEARTH_ENGINE_SNAPSHOT, true, turns);
    return 0;
}
