/* Makes a state directory without a model, for the tests of `hearth kv`.
 *
 *   make_kv [-k KEY] [-z] [-n] [-p PAGE_TOKENS] [-m MODEL] DIR CONVERSATION…
 *
 * A conversation is words with numbers of tokens, "system*40,alice*30": its tokens follow from the words alone, so
 * conversations that begin alike share what a server would share. Pages are cut as a cache does it: at the ends of
 * blocks, and where a conversation leaves the ones before it. Each ends in a snapshot. Later ones are younger by an
 * hour, and the first was used as many times as there are conversations. -k encrypts, -z compresses, -n says that
 * another version of hearth wrote the files. */
#include "base/seal.h"
#include "tier/directory.h"
#include "tier/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define TOKENS_MAX 65536
#define CONVERSATIONS_MAX 1024

struct maker {
    struct hearth_directory *directory;
    struct hearth_format_params params;
    struct hearth_model_id model;
    struct hearth_digest root;
    hearth_token *known[CONVERSATIONS_MAX];
    int32_t known_n[CONVERSATIONS_MAX];
    int n;
    int64_t used_us;
    bool other_version;
};

/* As docs/disk-format.md has it. */
enum { AT_CHECKSUM = 8, AT_VERSION = 16 };

_Noreturn static void fail(const char *what) {
    (void)fprintf(stderr, "make_kv: %s\n", what);
    exit(1);
}

/* Tokens of "word*count,…"; words[i] is the word that token i comes from. */
static int32_t parse(char *text, hearth_token *tokens, const char **words) {
    int32_t n = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        char *star = strchr(part, '*');
        const int count = star ? atoi(star + 1) : 1;
        if (star) {
            *star = '\0';
        }
        const uint64_t seed = hearth_checksum(part, strlen(part));
        for (int i = 0; i < count && n < TOKENS_MAX; i++) {
            const uint64_t mixed[2] = {seed, (uint64_t)i};
            tokens[n] = (hearth_token)(hearth_checksum(mixed, sizeof mixed) % 32000);
            words[n++] = part;
        }
    }
    return n;
}

static void write_item(struct maker *maker, struct hearth_record *record, uint32_t hits) {
    struct hearth_buf header = {0}, payload = {0};
    record->name = hearth_record_name(record);
    record->state_bytes = record->kind == HEARTH_RECORD_PAGE ? (size_t)(record->p1 - record->p0) * 512 : 10000;
    uint16_t *state = malloc(record->state_bytes);
    for (size_t i = 0; state && i < record->state_bytes / 2; i++) { /* numbers that compress a little, as floats do */
        state[i] = (uint16_t)(0x3c00 + (hearth_checksum(&i, sizeof i) ^ record->name.lo) % 256);
    }
    const struct hearth_file_id id = {.model = maker->model, .name = record->name, .kind = record->kind};
    const struct timespec stamp = hearth_file_stamp(maker->used_us, record->p1, false);
    struct hearth_file_draft draft;
    if (!state ||
        hearth_format_write(&maker->params, record, state, record->state_bytes, &header, &payload) != HEARTH_OK ||
        hearth_file_create(maker->directory, maker->model, &draft) != HEARTH_OK) {
        fail("cannot make an item");
    }
    if (maker->other_version) {
        header.data[AT_VERSION] = HEARTH_FORMAT_VERSION + 1;
        const uint64_t checksum = hearth_checksum(header.data + AT_VERSION, header.len - AT_VERSION);
        memcpy(header.data + AT_CHECKSUM, &checksum, sizeof checksum);
    }
    const void *body = payload.len > 0 ? payload.data : (const void *)state;
    const size_t body_len = payload.len > 0 ? payload.len : record->state_bytes;
    if (write(draft.fd, header.data, header.len) != (ssize_t)header.len ||
        write(draft.fd, body, body_len) != (ssize_t)body_len ||
        hearth_file_publish(maker->directory, &draft, &id, &stamp) != HEARTH_OK ||
        (hits > 0 && hearth_file_touch(maker->directory, &id, &stamp, hits) != HEARTH_OK)) {
        fail("cannot write an item");
    }
    free(state);
    hearth_buf_finish(&header);
    hearth_buf_finish(&payload);
}

static void write_conversation(struct maker *maker, hearth_token *tokens, const char *const *words, int32_t n,
                               uint32_t hits) {
    const int32_t page = maker->params.page_tokens;
    int32_t common = 0;
    for (int i = 0; i < maker->n; i++) {
        const int32_t with =
            (int32_t)hearth_tokens_common(tokens, (size_t)n, maker->known[i], (size_t)maker->known_n[i]);
        common = with > common ? with : common;
    }
    struct hearth_digest base = maker->root;
    for (int32_t at = 0; at < n; at += page) {
        const int32_t end = at + page < n ? at + page : n;
        struct hearth_record record = {.kind = HEARTH_RECORD_PAGE,
                                       .base = base,
                                       .base_pos = at,
                                       .p0 = at > common ? at : common,
                                       .p1 = end,
                                       .tokens = tokens + at};
        if (common < end) {
            (void)snprintf(record.text, sizeof record.text, "%s says something from token %d on", words[record.p0],
                           record.p0);
            write_item(maker, &record, hits);
        }
        if (end == n) {
            record.kind = HEARTH_RECORD_SNAPSHOT;
            record.p0 = end;
            record.text[0] = '\0';
            write_item(maker, &record, 0);
        } else {
            base = hearth_record_next(base, tokens + at, (size_t)page);
        }
    }
    maker->known[maker->n] = tokens;
    maker->known_n[maker->n++] = n;
}

int main(int argc, char *argv[]) {
    static struct maker maker = {.params = {.page_tokens = 16}};
    struct hearth_errmsg msg = {""};
    struct hearth_seal *seal = NULL;
    struct hearth_digest key = {0, 0};
    const char *model = "test";
    int c;
    while ((c = getopt(argc, argv, "+k:znp:m:")) != -1) {
        switch (c) {
        case 'k':
            if (hearth_seal_create(optarg, &seal, &msg) != HEARTH_OK) {
                fail(msg.text);
            }
            key = hearth_seal_id(seal);
            break;
        case 'z': maker.params.compress = true; break;
        case 'n': maker.other_version = true; break;
        case 'p': maker.params.page_tokens = atoi(optarg); break;
        case 'm': model = optarg; break;
        default: fail("unknown option");
        }
    }
    if (argc - optind < 2 || argc - optind - 1 > CONVERSATIONS_MAX) {
        fail("usage: make_kv [options] DIR CONVERSATION…");
    }
    if (hearth_directory_open(argv[optind], true, &maker.directory, &msg) != HEARTH_OK) {
        fail(msg.text);
    }
    maker.params.seal = seal;
    maker.params.fingerprint = hearth_digest_bytes(model, strlen(model));
    maker.model = hearth_model_id(maker.params.fingerprint, maker.params.page_tokens);
    maker.root = hearth_record_root(maker.params.fingerprint, key, (struct hearth_digest){0, 0});
    if (hearth_directory_add_model(maker.directory, maker.model, model) != HEARTH_OK) {
        fail("cannot add a model");
    }
    struct timeval now = {0, 0};
    (void)gettimeofday(&now, NULL);
    const int count = argc - optind - 1;
    for (int i = 0; i < count; i++) {
        hearth_token *tokens = malloc(TOKENS_MAX * sizeof *tokens);
        const char **words = malloc(TOKENS_MAX * sizeof *words);
        if (!tokens || !words) {
            fail("out of memory");
        }
        const int32_t n = parse(argv[optind + 1 + i], tokens, words);
        maker.used_us = (int64_t)now.tv_sec * 1000000 - (int64_t)(count - i) * 3600 * 1000000;
        write_conversation(&maker, tokens, words, n, (uint32_t)(i == 0 ? count : 0));
        free(words);
    }
    for (int i = 0; i < maker.n; i++) {
        free(maker.known[i]);
    }
    hearth_directory_close(maker.directory);
    hearth_seal_destroy(seal);
    return 0;
}
