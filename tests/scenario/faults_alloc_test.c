/* Every allocation fails once: for n from 1 until nothing fails, the n-th allocation of a request is refused, in
 * whatever thread and library it is made. The server must answer with the reply that another server gives which
 * lacks nothing, or with 503 and Retry-After, or close the connection; then it must answer the same request as the
 * other one does; and at its end nothing may be left allocated.
 *
 * HEARTH_FAULTS=all tries every n (`make faults`); otherwise a share of them, spread over all. HEARTH_FAULTS_ONLY=n
 * tries that one, for finding out what happens there (with FAULTY_ALLOC_TRACE=1). */
#include "base/clock.h"
#include "base/log.h"
#include "support/faulty_alloc.h"
#include "support/stage.h"
#include "tier/disk.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SHARE 30          /* tries of one scenario, unless all are wanted */
#define BURST 3           /* allocations that fail in each second try */
#define STUCK_US 15000000 /* longer than any answer takes, under a sanitizer, too */
#define LEFT 2            /* blocks may stay with the C library, */
#define LEFT_SHARE 32     /* and one more in so many tries */

#define CHAT "/v1/chat/completions"
#define START "{\"temperature\":0,\"seed\":7,"
#define FUNCTION(n)                                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"look_up_" n "\",\"description\":\"Looks it up.\","             \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":{\"enum\":[\"m\"," \
    "\"imperial\"]}},\"required\":[\"city\"],\"additionalProperties\":false}}}"
#define TALK(n)                                                                                                   \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You answer question " n " in few words.\"},"                \
    "{\"role\":\"user\",\"content\":\"What is the weather like in \\u00c5lesund, " n "?\"},"                      \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":" \
    "{\"name\":\"look_up_" n "\",\"arguments\":\"{\\\"city\\\": \\\"\\u00c5lesund\\\"}\"}}]},"                    \
    "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"rain, " n " degrees\"}]"

#define LONG_TEXT                                                                                                     \
    "Of the weather in @ there is much to say: it rains there, it snows there, it is warm and cold and neither, the " \
    "wind comes from the west or from the east, and those who live in @ carry umbrellas, coats, hats and boots, in "  \
    "every season that @ has, which are four, or five for those who count the one in which nothing happens at all."
#define ASK(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define PLAIN(rest) START "\"max_tokens\":24," rest "}"
#define IN_SESSION(text) PLAIN("\"session_id\":\"s@\"," ASK(text))

/* What the same request is to give once memory is there again. */
enum again {
    SAME,  /* what it should have given */
    FRESH, /* it may have been carried out: another one is asked */
    GONE,  /* what it deletes may be gone */
};

/* '@' stands for the number of the try, so that nothing is known from the one before. What comes before the request is
 * asked without a fault: a chat, then one more `between`, which takes all of the RAM that the cache has. */
static const struct scenario {
    const char *name, *path, *body;
    bool streams;
    enum again again;
    const char *method, *before, *between; /* NULL: POST, none */
} scenarios[] = {
    {.name = "chat with a required call",
     .path = CHAT,
     .body = START "\"max_tokens\":40,\"tool_choice\":\"required\",\"tools\":[" FUNCTION("@") "]," TALK("@") "}"},
    {.name = "streamed chat with tools",
     .path = CHAT,
     .body = START "\"max_tokens\":24,\"stream\":true,\"tools\":[" FUNCTION("@") "]," TALK("@") "}",
     .streams = true},
    {.name = "chat with a schema",
     .path = CHAT,
     .body = START "\"max_tokens\":40,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s@\","
                   "\"schema\":{\"type\":\"object\",\"properties\":{\"a@\":{\"type\":\"integer\",\"minimum\":3},\"b\":"
                   "{\"enum\":[\"x\",\"y\"]}},\"required\":[\"a@\",\"b\"]}}}," ASK("Give me @.") "}"},
    {.name = "messages",
     .path = "/v1/messages",
     .body = START "\"max_tokens\":24,\"system\":\"Be kind, @.\",\"messages\":[{\"role\":\"user\",\"content\":["
                   "{\"type\":\"text\",\"text\":\"Hello @, how are you?\"}]}],\"tools\":[{\"name\":\"see_@\","
                   "\"description\":\"d\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":"
                   "\"number\"}}}}]}"},
    {.name = "responses that are stored",
     .path = "/v1/responses",
     .body = "{\"temperature\":0,\"max_output_tokens\":24,\"store\":true,\"instructions\":\"Be kind, @.\","
             "\"metadata\":{\"try\":\"@\"},\"input\":[{\"role\":\"user\",\"content\":\"Hello, this is @.\"}]}"},
    {.name = "a turn of a session",
     .path = CHAT,
     .body = IN_SESSION("And now, @?"),
     .again = FRESH,
     .before = IN_SESSION("Hello, @!")},
    {.name = "a deletion",
     .path = "/v1/sessions/s@",
     .again = GONE,
     .method = "DELETE",
     .before = IN_SESSION("Hello, @!")},
    {.name = "state from the disk",
     .path = CHAT,
     .body = PLAIN(ASK(LONG_TEXT "\"},{\"role\":\"assistant\",\"content\":\"Yes.\"},"
                                 "{\"role\":\"user\",\"content\":\"Well?")),
     .before = PLAIN(ASK(LONG_TEXT)),
     .between = PLAIN(ASK("No. " LONG_TEXT LONG_TEXT LONG_TEXT LONG_TEXT))},
    {.name = "completion", .path = "/completion", .body = START "\"n_predict\":16,\"prompt\":\"One, two, @,\"}"},
};

static struct stage faulty, sound;
static struct hearth_backing *backing; /* of the first */
static char dir[] = "/tmp/hearth-faults-XXXXXX";
static int wrong;  /* findings of a scenario: all are printed */
static long tried; /* likewise */

/* ---- what an answer says ---- */

static const char *const fleeting[] = {
    "id",      "created",         "created_at", "completed_at",  "system_fingerprint", "timings", "hearth",     "usage",
    "item_id", "sequence_number", "id_slot",    "tokens_cached", "tokens_evaluated",   "call_id", "obfuscation"};

static void drop_fleeting(json_t *value) {
    const char *key;
    json_t *member;
    size_t i;
    for (size_t k = 0; k < sizeof fleeting / sizeof fleeting[0]; k++) {
        json_object_del(value, fleeting[k]);
    }
    json_object_foreach(value, key, member) {
        drop_fleeting(member);
    }
    json_array_foreach(value, i, member) {
        drop_fleeting(member);
    }
}

/* What a client of a stream puts together: text, names and arguments of calls. An error event: NULL. */
static json_t *joined(json_t *events) {
    struct hearth_buf text = {0};
    size_t i;
    json_t *event;
    bool failed = false;
    json_array_foreach(events, i, event) {
        const char *parts[] = {"choices.0.delta.content", "choices.0.delta.tool_calls.0.function.name",
                               "choices.0.delta.tool_calls.0.function.arguments", "choices.0.finish_reason"};
        failed = failed || json_object_get(event, "error") != NULL;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            assert_true(hearth_buf_text(&text, json_str(event, parts[k])));
        }
    }
    json_t *value = failed ? NULL : json_stringn(text.len > 0 ? (const char *)text.data : "", text.len);
    hearth_buf_finish(&text);
    return value;
}

/* ---- one try ---- */

static void fill(char *out, size_t cap, const char *format, const char *number) {
    size_t len = 0;
    for (const char *at = format; *at != '\0'; at++) {
        len += (size_t)snprintf(out + len, cap - len, "%.*s", *at == '@' ? (int)strlen(number) : 1,
                                *at == '@' ? number : at);
        assert_true(len < cap);
    }
}

static long current; /* the allocation that fails */

static void found(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void found(const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_error("allocation %ld: %s\n", current, text);
    wrong++;
}

/* What the server says, as far as it lasts; NULL: an error, which is 503 in the API's shape and says when to come
 * again, or a closed connection. */
static json_t *ask(const struct stage *stage, const struct scenario *scenario, const char *number, int *status) {
    char retry[16], path[128], body[8192];
    const int64_t begun_us = hearth_clock_us();
    fill(path, sizeof path, scenario->path, number);
    fill(body, sizeof body, scenario->body != NULL ? scenario->body : "", number);
    struct response response = http_call(stage->port, scenario->method != NULL ? scenario->method : "POST", path, NULL,
                                         scenario->body != NULL ? body : NULL);
    if (hearth_clock_us() - begun_us > STUCK_US) {
        found("%s: no answer, and no end", scenario->name);
        if (getenv("HEARTH_FAULTS_STOP") != NULL) { /* for a debugger */
            abort();
        }
    }
    json_t *value = NULL;
    *status = response.status;
    if (response.status == 200 && response.complete) {
        const char *text = (const char *)response.body.data;
        json_t *whole = scenario->streams ? sse_events(text) : json_loads(text, JSON_ALLOW_NUL, NULL);
        if (whole == NULL) {
            found("%s: 200 with %s", scenario->name, text);
        }
        value = scenario->streams ? joined(whole) : json_incref(whole);
        drop_fleeting(value);
        json_decref(whole);
    } else if (response.status == 503) {
        json_t *error = json_loads((const char *)response.body.data, 0, NULL);
        if (json_object_get(error, "error") == NULL ||
            !response_header(&response, "Retry-After", retry, sizeof retry)) {
            found("%s: %s%s", scenario->name, response.head, (const char *)response.body.data);
        }
        json_decref(error);
    } else if (response.status != 0 && response.status != 200 && !(response.status == 404 && scenario->again == GONE)) {
        found("%s: %d: %s", scenario->name, response.status, (const char *)response.body.data);
    }
    response_finish(&response);
    return value;
}

static void expect_same(const struct scenario *scenario, json_t *got, json_t *want) {
    if (json_equal(got, want) != 1) {
        char *a = got != NULL ? json_dumps(got, JSON_ENCODE_ANY) : NULL, *b = json_dumps(want, JSON_ENCODE_ANY);
        found("%s: %s instead of %s", scenario->name, a != NULL ? a : "an error", b);
        free(a);
        free(b);
    }
}

static void ask_before(const struct scenario *scenario, const char *number) {
    const struct stage *const stages[] = {&sound, &faulty};
    const char *const bodies[] = {scenario->before, scenario->between};
    char body[8192];
    for (size_t i = 0; i < 4; i++) {
        if (bodies[i % 2] != NULL) {
            fill(body, sizeof body, bodies[i % 2], number);
            json_decref(stage_want(stages[i / 2], "POST", CHAT, body, 200));
        }
    }
}

/* The next request of that kind, when the faults are over. */
static void ask_again(const struct scenario *scenario, const char *number, json_t *want) {
    char other[32];
    int status;
    snprintf(other, sizeof other, "%s0", number);
    if (scenario->again == FRESH) {
        ask_before(scenario, other);
        want = ask(&sound, scenario, other, &status);
    }
    json_t *got = ask(&faulty, scenario, scenario->again == FRESH ? other : number, &status);
    if (scenario->again != GONE || status != 404) {
        expect_same(scenario, got, want);
    }
    json_decref(got);
    if (scenario->again == FRESH) {
        json_decref(want);
    }
}

/* Returns how many allocations there were. */
static long try_one(const struct scenario *scenario, long n, long count, int *errors) {
    static long serial;
    char number[24];
    int status;
    snprintf(number, sizeof number, "%ld", 100000 + serial++); /* as long in every try */
    current = n;
    tried++;
    ask_before(scenario, number);
    json_t *want = ask(&sound, scenario, number, &status);
    assert_non_null(want);
    faulty_alloc_arm(n, count);
    json_t *got = ask(&faulty, scenario, number, &status);
    const long seen = faulty_alloc_disarm();
    if (got != NULL) {
        expect_same(scenario, got, want);
    } else {
        if (n > seen) {
            found("%s: an error without a reason", scenario->name);
        }
        ++*errors;
    }
    json_decref(got);
    ask_again(scenario, number, want);
    json_decref(want);
    return seen;
}

static void try_all(const struct scenario *scenario) {
    const char *only = getenv("HEARTH_FAULTS_ONLY"), *all = getenv("HEARTH_FAULTS");
    int errors = 0, tries = 0;
    if (only != NULL) {
        (void)try_one(scenario, atol(only), 1, &errors);
        return;
    }
    (void)try_one(scenario, LONG_MAX, 1, &errors);
    const long total = try_one(scenario, LONG_MAX, 1, &errors);
    const long step = all != NULL ? 1 : total / SHARE + 1;
    for (long n = 1, seen = total; n <= seen + step; n += step) {
        seen = try_one(scenario, n, tries++ % 2 == 0 ? 1 : BURST, &errors);
    }
    print_message("%s: %ld allocations, %d tries, %d errors\n", scenario->name, total, tries, errors);
}

/* ---- all of them ---- */

/* Small, so that state goes to the disk and comes from there. */
static void open_stages(void) {
    struct stage_options options;
    stage_options_default(&options);
    options.sim.ctx_tokens = 8192;
    options.sim.lanes = 1;
    options.sim.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT;
    options.service.page_tokens = 32;
    options.service.cache_bytes = 64 * 1024;
    stage_open(&sound, &options);
    struct hearth_disk_params disk = {.dir = dir,
                                      .fingerprint = sound.engine->caps.fingerprint,
                                      .page_tokens = 32,
                                      .about = "sim",
                                      .budget_bytes = (uint64_t)1 << 28};
    assert_int_equal(hearth_disk_create(&disk, &backing, NULL), HEARTH_OK);
    options.service.backing = options.api.disk = backing;
    options.service.backing_min_tokens = 0;
    stage_open(&faulty, &options);
}

static void close_stages(void) {
    stage_close(&faulty);
    stage_close(&sound);
    backing->ops->destroy(backing);
}

static void a_refused_allocation_is_an_answer(void **state) {
    const struct scenario *scenario = *state;
    int errors = 0;
    open_stages();
    (void)try_one(scenario, LONG_MAX, 1, &errors); /* what is made once and stays is made */
    close_stages();
    const long before = atomic_load(&faulty_alloc_state()->live);
    wrong = 0;
    tried = 0;
    open_stages();
    try_all(scenario);
    close_stages();
    const long left = atomic_load(&faulty_alloc_state()->live) - before;
    if (left > LEFT + tried / LEFT_SHARE) {
        found("%s: %ld blocks are left", scenario->name, left);
    }
    assert_int_equal(wrong, 0);
}

int main(void) {
    const size_t count = sizeof scenarios / sizeof scenarios[0];
    struct CMUnitTest tests[sizeof scenarios / sizeof scenarios[0]];
    faulty_alloc_spare();
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < count; i++) {
        tests[i] = (struct CMUnitTest){.name = scenarios[i].name,
                                       .test_func = a_refused_allocation_is_an_answer,
                                       .initial_state = (void *)(uintptr_t)&scenarios[i]};
    }
    cmocka_set_test_filter(getenv("HEARTH_FAULTS_TEST"));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) == 0 ? failed : 1;
}
