/* Fuzzes the small readers: JSON in canonical form, UTF-8, queries, the header traceparent, addresses of a store, and
 * what clients keep for the server under its seal. */
#include "fuzz.h"

#include "api/anthropic/anthropic.h"
#include "api/responses/responses.h"
#include "base/utf8.h"
#include "tier/remote.h"

/* What is canonical stays as it is, and means the same. */
FUZZ_TARGET(json) {
    json_t *value = hearth_json_parse((const char *)data, size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    if (value == NULL) {
        return;
    }
    char *once = hearth_json_canonical(value);
    HEARTH_ASSERT(once != NULL && hearth_utf8_valid(once, strlen(once)));
    json_t *again = hearth_json_parse(once, strlen(once), JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    HEARTH_ASSERT(again != NULL && (json_typeof(again) == json_typeof(value) ||
                                    (json_is_integer(again) && json_is_real(value)))); /* 1.0 is 1 */
    char *twice = hearth_json_canonical(again);
    HEARTH_ASSERT(twice != NULL && strcmp(once, twice) == 0);
    free(once);
    free(twice);
    json_decref(value);
    json_decref(again);
}

FUZZ_TARGET(utf8) {
    const char *text = (const char *)data;
    struct hearth_buf repaired = {0}, again = {0};
    HEARTH_ASSERT(hearth_utf8_append(&repaired, text, size));
    HEARTH_ASSERT(hearth_utf8_valid((char *)repaired.data, repaired.len) && repaired.data[repaired.len] == '\0');
    HEARTH_ASSERT(!hearth_utf8_valid(text, size) ||
                  (repaired.len == size && (size == 0 || memcmp(repaired.data, text, size) == 0)));
    HEARTH_ASSERT(hearth_utf8_append(&again, (char *)repaired.data, repaired.len) && again.len == repaired.len);
    /* Whatever the pieces, whole characters are handed on. */
    const size_t whole = hearth_utf8_complete(text, size);
    HEARTH_ASSERT(whole <= size && size - whole <= 3);
    HEARTH_ASSERT(hearth_utf8_complete((char *)repaired.data, repaired.len) == repaired.len);
    /* Jansson, which is given such text, is of the same mind. */
    json_t *string = json_stringn(text, size);
    HEARTH_ASSERT((string != NULL) == hearth_utf8_valid(text, size));
    json_decref(string);
    hearth_buf_finish(&repaired);
    hearth_buf_finish(&again);
}

/* A text that came back from a client, and the text that a signature is for. Only what was handed out is taken. */
FUZZ_TARGET(sealed) {
    static struct hearth_api api = {.secret = {1, 2, 3}};
    struct fuzz_input input = {data, size};
    size_t len, text_len;
    char *given = fuzz_part(&input, &len), *text = fuzz_part(&input, &text_len);
    char signature[HEARTH_SIGNATURE_CHARS + 1];
    for (int kind = HEARTH_SEALED_REASONING; kind <= (int)HEARTH_SEALED_SUMMARY; kind++) {
        char *opened = hearth_api_sealed_open(&api, (enum hearth_api_sealed_kind)kind, given);
        if (opened != NULL) {
            char *closed = hearth_api_sealed_close(&api, (enum hearth_api_sealed_kind)kind, opened, strlen(opened));
            char *again =
                closed != NULL ? hearth_api_sealed_open(&api, (enum hearth_api_sealed_kind)kind, closed) : NULL;
            HEARTH_ASSERT(again != NULL && strcmp(again, opened) == 0 && strlen(closed) <= strlen(given));
            free(closed);
            free(again);
        }
        free(opened);
    }
    HEARTH_ASSERT(hearth_signature_make(&api, text, text_len, signature));
    HEARTH_ASSERT(hearth_signature_check(&api, text, text_len, signature) == HEARTH_SIGNATURE_VALID);
    HEARTH_ASSERT((hearth_signature_check(&api, text, text_len, given) == HEARTH_SIGNATURE_VALID) ==
                  (strcmp(signature, given) == 0));
    free(given);
    free(text);
}

FUZZ_TARGET(query) {
    static const char *const names[] = {"session", "limit", "", "a=", "%"};
    struct fuzz_input input = {data, size};
    size_t len;
    char *query = fuzz_part(&input, &len);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *value = hearth_api_query(query, names[i]);
        HEARTH_ASSERT(value == NULL || (strlen(value) <= len && strstr(query, names[i]) != NULL));
        free(value);
    }
    free(query);
}

/* What is taken is the trace of a header that is put together from it. */
FUZZ_TARGET(traceparent) {
    struct fuzz_input input = {data, size};
    char trace[HEARTH_TRACE_ID_BYTES], again[HEARTH_TRACE_ID_BYTES], made[64];
    size_t len;
    char *header = fuzz_part(&input, &len);
    if (hearth_traceparent_read(header, trace)) {
        HEARTH_ASSERT(strlen(trace) == 32 && memcmp(header + 3, trace, 32) == 0 && len >= 55);
        (void)snprintf(made, sizeof made, "00-%s-00000000000000a0-01", trace);
        HEARTH_ASSERT(hearth_traceparent_read(made, again) && strcmp(trace, again) == 0);
    } else {
        HEARTH_ASSERT(trace[0] == '\0');
    }
    free(header);
}

FUZZ_TARGET(address) {
    struct fuzz_input input = {data, size};
    struct hearth_remote_address address;
    struct hearth_errmsg msg = {""};
    size_t len;
    char *url = fuzz_part(&input, &len);
    if (hearth_remote_address_parse(url, &address, &msg) == HEARTH_OK) {
        HEARTH_ASSERT((address.host != NULL) != (address.path != NULL) && address.label[0] != '\0');
        HEARTH_ASSERT(address.path != NULL ? address.path[0] != '\0' && address.password == NULL && !address.tls
                                           : address.host[0] != '\0' && address.port >= 1 && address.port <= 65535);
        HEARTH_ASSERT(address.db >= 0 && (address.user == NULL || address.password != NULL));
        hearth_remote_address_finish(&address);
    } else {
        HEARTH_ASSERT(msg.text[0] != '\0' && address.host == NULL && address.path == NULL && address.password == NULL);
    }
    free(url);
}
