/* Ids: a prefix for the kind, 32 hexadecimal digits for a turn, and four more for an item's place in the turn. */
#include "api/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_hex(const char *text, size_t digits, uint64_t *out) {
    char copy[17] = "";
    memcpy(copy, text, digits);
    *out = strtoull(copy, NULL, 16);
    return strspn(copy, "0123456789abcdef") == digits;
}

bool hearth_api_id_parse(const char *text, struct hearth_digest *out, int *index) {
    const size_t len = strlen(text);
    const size_t prefix = strcspn(text, "_-") + 1;
    const size_t digits = prefix < len ? len - prefix : 0;
    uint64_t place = 0;
    if ((digits != 32 && digits != 36) || !read_hex(text + prefix, 16, &out->hi) ||
        !read_hex(text + prefix + 16, 16, &out->lo) || !read_hex(text + prefix + 32, digits - 32, &place)) {
        return false;
    }
    *index = digits == 36 ? (int)place : -1;
    return true;
}

void hearth_api_id_print(char *out, size_t cap, const char *prefix, struct hearth_digest turn, int index) {
    char hex[33];
    hearth_digest_hex(turn, hex);
    snprintf(out, cap, index >= 0 ? "%s%s%04x" : "%s%s", prefix, hex, (unsigned)index);
}

void hearth_api_id_name(struct hearth_job *job) {
    char hex[33];
    hearth_digest_hex(job->id_bits, hex);
    snprintf(job->id, sizeof job->id, "%s%s", job->dialect->id_prefix, hex);
}

void hearth_api_id_show(const struct hearth_job *job, struct hearth_http_exchange *exchange) {
    if (strncmp(job->id, "resp_", 5) == 0 || strncmp(job->id, "conv_", 5) == 0) {
        hearth_http_set_header(exchange, "X-Hearth-Id", job->id);
    }
}
