/* Makes the seed corpus of fuzz_disk_format: a file of each kind, in the clear, compressed, sealed and both, for each
 * way in which the target reads it.
 *
 *     seeds_disk_format DIRECTORY */
#include "disk_format_input.h"

#include "tier/format.h"

#include <stdio.h>

static bool write_seed(const char *dir, int number, uint8_t how, const struct hearth_buf *header, const void *payload,
                       size_t payload_len) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/seed-%03d-%u", dir, number, how);
    size_t content = header->len;
    while (content > 0 && header->data[content - 1] == 0) {
        content--;
    }
    const uint8_t head[INPUT_HEAD_BYTES] = {how, (uint8_t)content, (uint8_t)(content >> 8)};
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        perror(path);
        return false;
    }
    bool ok = fwrite(head, 1, sizeof head, f) == sizeof head && fwrite(header->data, 1, content, f) == content &&
              (payload_len == 0 || fwrite(payload, 1, payload_len, f) == payload_len);
    return fclose(f) == 0 && ok;
}

static bool make(const char *dir, int number, const struct hearth_seal *key, enum hearth_record_kind kind,
                 int32_t tokens, size_t state_bytes, bool compress) {
    const struct hearth_format_params params = {
        .fingerprint = {1, 2}, .page_tokens = 64, .seal = key, .compress = compress};
    hearth_token token[64];
    static uint8_t state[2048];
    struct hearth_buf header = {0}, payload = {0};
    for (int32_t i = 0; i < 64; i++) {
        token[i] = 1000 + i * i;
    }
    for (size_t i = 0; i < sizeof state; i++) {
        state[i] = (uint8_t)(i % 2 == 0 ? i * 37 : 60);
    }
    struct hearth_record record = {.kind = kind,
                                   .label = 1,
                                   .base = {3, 4},
                                   .base_pos = 128,
                                   .p0 = kind == HEARTH_RECORD_PAGE ? 128 + tokens / 2 : 128 + tokens,
                                   .p1 = 128 + tokens,
                                   .tokens = token,
                                   .state_bytes = state_bytes,
                                   .text = "the first words \xC3\xA9"};
    record.name = hearth_record_name(&record);
    if (hearth_format_write(&params, &record, state, state_bytes, &header, &payload) != HEARTH_OK) {
        return false;
    }
    bool ok = true;
    const void *stored = payload.len > 0 ? payload.data : state;
    size_t stored_len = payload.len > 0 ? payload.len : state_bytes;
    const uint8_t hows[] = {0, INPUT_FIX, INPUT_FIX | INPUT_FIX_ALL};
    for (size_t i = 0; i < sizeof hows; i++) {
        ok = ok && write_seed(dir, number, hows[i], &header, stored, stored_len);
        ok = ok && write_seed(dir, number, hows[i] | INPUT_KEY, &header, stored, stored_len);
    }
    hearth_buf_finish(&header);
    hearth_buf_finish(&payload);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    struct hearth_seal *key = input_key();
    bool ok = key != NULL;
    static const int32_t tokens[] = {0, 1, 17, 64};
    static const size_t sizes[] = {0, 101, 2048};
    int number = 0;
    for (size_t t = 0; t < 4 && ok; t++) {
        for (size_t s = 0; s < 3 && ok; s++) {
            for (int how = 0; how < 8 && ok; how++) {
                enum hearth_record_kind kind = how & 4 || tokens[t] == 0 ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE;
                ok = make(argv[1], number++, how & 1 ? key : NULL, kind, tokens[t], sizes[s], (how & 2) != 0);
            }
        }
    }
    hearth_seal_destroy(key);
    return ok ? 0 : 1;
}
