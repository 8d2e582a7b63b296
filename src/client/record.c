/* `hearth record`: what a server is asked for, as a trace for `hearth replay`.
 *
 * The server names each block of 64 tokens by a digest (GET /record). Here the blocks get numbers in the order in which
 * they were first seen, so that a conversation is a few ranges, and the file has neither texts, tokens nor digests:
 *
 *     {"t":0.31,"in":5120,"out":80,"stop":"tool_use","api_time":1.5,"head":4096,"served":{…},"blocks":[[0,79]]}
 *
 * Bounds: --size bytes of file, and BLOCKS_MAX different blocks. */
#include "client/client.h"
#include "client/commands.h"

#include "console/interrupt.h"
#include "console/show.h"
#include "console/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_DEFAULT_MIB 1024
#define LINE_MAX_BYTES ((size_t)64 << 20)
#define BLOCKS_MAX ((size_t)1 << 24) /* 1 G tokens that are new; 256 MiB here */
#define DIGITS 16
#define BLOCK_TOKENS 64

struct record_options {
    struct client_server server;
    int64_t limit, size_mib, block; /* -1: not given */
};

static const struct hearth_console_command commands[] = {
    {"", "[FILE]", "what a running server is asked for, as a trace for hearth replay [standard output]", 1, 0, 1},
};

static const struct hearth_console_option options[] = {
    {"--limit", "N", "end after so many requests [when Ctrl-C comes]", 1, HEARTH_CONSOLE_NUMBER,
     offsetof(struct record_options, limit)},
    {"--size", "MIB", "end when the file is so large [1024]", 1, HEARTH_CONSOLE_NUMBER,
     offsetof(struct record_options, size_mib)},
    {"--block", "N", "tokens of a block, a power of two; with 1 a replay does exactly what the server did [64]", 1,
     HEARTH_CONSOLE_NUMBER, offsetof(struct record_options, block)},
    CLIENT_SERVER_OPTIONS("--api-key", "a key with the scope admin [HEARTH_API_KEY]"),
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL(
    "record", "Which prompts begin alike, and when they came; not what they say.", commands, options);

/* The numbers of the blocks: open addressing, a digest of 0 is an empty place. */
struct block_numbers {
    struct block_number {
        uint64_t digest;
        uint32_t number;
    } *v;
    size_t n, room; /* room: a power of two */
};

struct recorder {
    FILE *out;
    struct hearth_buf line;
    struct block_numbers blocks, keys;
    uint64_t requests, tokens, bytes, most_requests, most_bytes;
    bool full, begun;
    const char *failure; /* NULL: none */
};

static struct block_number *find(const struct block_numbers *blocks, uint64_t digest) {
    size_t at = digest & (blocks->room - 1);
    while (blocks->v[at].digest != 0 && blocks->v[at].digest != digest) {
        at = (at + 1) & (blocks->room - 1);
    }
    return &blocks->v[at];
}

static bool grow(struct block_numbers *blocks) {
    if (blocks->n * 2 < blocks->room) {
        return true;
    }
    struct block_numbers grown = {.n = blocks->n, .room = blocks->room > 0 ? blocks->room * 2 : 4096};
    grown.v = calloc(grown.room, sizeof *grown.v);
    if (grown.v == NULL) {
        return false;
    }
    for (size_t i = 0; i < blocks->room; i++) {
        if (blocks->v[i].digest != 0) {
            *find(&grown, blocks->v[i].digest) = blocks->v[i];
        }
    }
    free(blocks->v);
    *blocks = grown;
    return true;
}

/* False: out of memory. */
static bool number_of(struct block_numbers *blocks, uint64_t digest, uint32_t *out) {
    if (!grow(blocks)) {
        return false;
    }
    struct block_number *at = find(blocks, digest | 1);
    if (at->digest == 0) {
        *at = (struct block_number){.digest = digest | 1, .number = (uint32_t)blocks->n++};
    }
    *out = at->number;
    return true;
}

/* ---- lines ---- */

/* The digests as ranges of numbers. NULL: they are none, or out of memory. */
static json_t *ranges_of(struct block_numbers *blocks, const char *digests) {
    json_t *ranges = json_array();
    uint32_t first = 0, last = 0;
    const size_t len = strlen(digests);
    for (size_t i = 0; i < len; i += DIGITS) {
        char digits[DIGITS + 1], *end;
        uint32_t number;
        (void)snprintf(digits, sizeof digits, "%.16s", digests + i);
        const uint64_t digest = strtoull(digits, &end, 16);
        if (end != digits + DIGITS || !number_of(blocks, digest, &number)) {
            json_decref(ranges);
            return NULL;
        }
        if (i > 0 && number == last + 1) {
            last = number;
            continue;
        }
        if (i > 0) {
            (void)json_array_append_new(ranges, json_pack("[I, I]", (json_int_t)first, (json_int_t)last));
        }
        first = last = number;
    }
    if (len > 0) {
        (void)json_array_append_new(ranges, json_pack("[I, I]", (json_int_t)first, (json_int_t)last));
    }
    return ranges;
}

/* Keys get numbers in the order in which they were first seen. False: out of memory. */
static bool take_key(struct recorder *recorder, json_t *json, const char *key) {
    uint32_t number;
    return key == NULL || (number_of(&recorder->keys, strtoull(key, NULL, 16), &number) &&
                           json_object_set_new(json, "key", json_integer((json_int_t)number + 1)) == 0);
}

static bool write_line(struct recorder *recorder, const char *line, size_t len) {
    const bool ok = fprintf(recorder->out, "%.*s\n", (int)len, line) > 0 && fflush(recorder->out) == 0;
    recorder->failure = ok ? recorder->failure : "cannot write what is recorded";
    recorder->bytes += len + 1;
    return ok;
}

/* False: the recording ends. */
static bool take_line(struct recorder *recorder, const char *text, size_t len) {
    json_t *json = json_loadb(text, len, 0, NULL);
    if (json_is_object(json_object_get(json, "server"))) { /* the first line, what the server keeps its state in */
        json_decref(json);
        return write_line(recorder, text, len);
    }
    const char *digests = json_string_value(json_object_get(json, "digests"));
    json_t *ranges = digests != NULL ? ranges_of(&recorder->blocks, digests) : NULL;
    const char *key = json_string_value(json_object_get(json, "key"));
    bool ok = ranges != NULL && take_key(recorder, json, key) && json_object_set_new(json, "blocks", ranges) == 0;
    (void)json_object_del(json, "digests");
    char *line = ok ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (line == NULL) {
        recorder->failure = digests == NULL ? "the server sends no record of requests"
                                            : "out of memory, or the server's line is broken";
    }
    ok = line != NULL && write_line(recorder, line, strlen(line));
    if (ok) {
        recorder->requests++;
        recorder->tokens += (uint64_t)json_integer_value(json_object_get(json, "in"));
        recorder->full = recorder->requests >= recorder->most_requests || recorder->bytes >= recorder->most_bytes ||
                         recorder->blocks.n >= BLOCKS_MAX;
    }
    free(line);
    json_decref(json);
    return ok && !recorder->full;
}

static bool on_bytes(void *user, const char *bytes, size_t len) {
    struct recorder *recorder = user;
    if (!recorder->begun) {
        recorder->begun = true;
        (void)fputs("recording; Ctrl-C ends it\n", stderr);
    }
    bool ok = !recorder->full && recorder->failure == NULL;
    if (ok && (recorder->line.len + len > LINE_MAX_BYTES || !hearth_buf_append(&recorder->line, bytes, len))) {
        recorder->failure = "out of memory, or the server's line is broken";
        ok = false;
    }
    const char *from = (const char *)recorder->line.data, *end = from + recorder->line.len, *at;
    while (ok && (at = memchr(from, '\n', (size_t)(end - from))) != NULL) {
        ok = at == from || take_line(recorder, from, (size_t)(at - from)); /* an empty line keeps the stream open */
        from = at + 1;
    }
    if (!ok) { /* the request ends as by Ctrl-C */
        hearth_interrupted = 1;
        hearth_interrupt_wake();
        return true;
    }
    recorder->line.len = (size_t)(end - from);
    memmove(recorder->line.data, from, recorder->line.len);
    return true;
}

/* ---- the command ---- */

/* The file, which must be new: numbers of blocks begin anew in each. */
static FILE *open_out(const char *path) {
    if (path == NULL || strcmp(path, "-") == 0) {
        return stdout;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        (void)hearth_complain(1, "%s: %s", path, strerror(errno));
    }
    return out;
}

static int finish(struct recorder *recorder, struct hearth_client *client, enum client_outcome outcome,
                  long http_status, const struct hearth_buf *answer) {
    if (recorder->failure != NULL) {
        return ferror(stdout) ? 0 /* hearth_show_end() tells */ : hearth_complain(1, "%s", recorder->failure);
    }
    if (outcome == CLIENT_FAILED) {
        return 1; /* it has been told */
    }
    if (outcome == CLIENT_DONE && http_status != 200) {
        struct hearth_buf text = {0};
        const char *said = hearth_client_error_text((const char *)answer->data, answer->len, http_status, &text)
                               ? (const char *)text.data
                               : "out of memory";
        const int status = hearth_complain(1, "%s: %s", hearth_client_url(client), said);
        hearth_buf_finish(&text);
        return status;
    }
    (void)fprintf(stderr, "%s of %s prompt tokens\n",
                  hearth_show_number(recorder->requests, "request", "requests").text,
                  hearth_show_count(recorder->tokens).text);
    return outcome == CLIENT_DONE && !recorder->full ? hearth_complain(1, "the server has ended the recording") : 0;
}

static int record(const struct hearth_console_call *call, void *user) {
    const struct record_options *chosen = user;
    const char *path = call->args[0];
    struct recorder recorder = {
        .most_requests = chosen->limit >= 0 ? (uint64_t)chosen->limit : UINT64_MAX,
        .most_bytes = (uint64_t)(chosen->size_mib >= 0 ? chosen->size_mib : SIZE_DEFAULT_MIB) << 20,
    };
    struct hearth_buf answer = {0};
    struct hearth_client *client;
    long http_status;
    int status = hearth_client_create(&chosen->server, "--api-key", &client);
    if (status != 0 || (recorder.out = open_out(path)) == NULL) {
        hearth_client_destroy(client);
        return status != 0 ? status : 1;
    }
    char path_of_stream[48];
    (void)snprintf(path_of_stream, sizeof path_of_stream, "/record?block=%lld",
                   (long long)(chosen->block >= 0 ? chosen->block : BLOCK_TOKENS));
    const enum client_outcome outcome =
        hearth_client_request(client, path_of_stream, NULL, on_bytes, &recorder, &answer, &http_status);
    status = finish(&recorder, client, outcome, http_status, &answer);
    const bool own = recorder.out != stdout;
    if (own && fclose(recorder.out) != 0 && status == 0) {
        status = hearth_complain(1, "%s: %s", path, strerror(errno));
    }
    if (own && status != 0 && recorder.bytes == 0) {
        (void)remove(path); /* where it stayed, the next try would be told that it exists */
    }
    free(recorder.blocks.v);
    free(recorder.keys.v);
    hearth_buf_finish(&recorder.line);
    hearth_buf_finish(&answer);
    hearth_client_destroy(client);
    return status;
}

int hearth_client_record(int argc, char *const argv[]) {
    struct record_options chosen = {.limit = -1, .size_mib = -1, .block = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, record);
}
