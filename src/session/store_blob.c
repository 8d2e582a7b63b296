/* The store's blobs: a body and tokens, packed, and checked or sealed.
 *
 *     blob   = a sealed row (sealed_row.h) of what is packed, about what the blob belongs to (store_about)
 *     packed = body format | tokens format | body length | tokens count | body's packed length | body | tokens
 *
 * The three numbers are LEB128, and so are tokens. Formats say how what follows was made smaller: PLAIN not at all,
 * DICTn by zstd with the nth dictionary, FRAME by zstd without one. A zstd frame stands without its magic number, which
 * is always the same four bytes. New dictionaries get new numbers; an old one is never changed, since rows need it. */
#include "session/sealed_row.h"
#include "session/store_internal.h"

#include <string.h>
#include <zstd.h>

#define MAGIC_BYTES 4
#define PLAIN_MAX ((uint64_t)1 << 30)
#define NUMBER_BYTES_MAX 10

enum format { PLAIN = 0, DICT1 = 1, FRAME = 255 };

/* The texts that bodies are made of, the most frequent last, because zstd writes small distances shorter. */
static const char dictionary_1[] =
    "the quick summary of this project is that there are several files which should be changed before the tests pass. "
    "I'll start by looking at the code to understand how it works. Let me check the current state of the repository "
    "and "
    "see what has to be done. Here is an example of the function: ```python\\ndef main():\\n    for item in items:\\n "
    "       if item is not None:\\n            return result\\n\\nif __name__ == \\\"__main__\\\":\\n    main()\\n``` "
    "#include <stdio.h>\\n\\nint main(void) {\\n    return 0;\\n}\\n const value = await response.json();\\n import "
    "os\\n"
    "import sys\\n class self. = None True False print(f\\\"{name}: {value}\\\") try: except Exception as error: raise "
    "ValueError function export default async git commit -m sudo apt-get install cd /usr/local/bin && ls -la | grep "
    "Traceback (most recent call last):\\n  File \\\"line in module Error: No such file or directory permission denied "
    "However, we could also use a different approach, because it would be better for people who want to know more "
    "about what happened, when it was made, where they were, and why that is not always possible. You can do this with "
    "your own data, for example from the first time that you have used it. If you need anything else, please let me "
    "know! Sure, here are some of the most important things to consider:\\n\\n1. **Name**: \\n2. **Description**: \\n"
    "3. \\n\\n- \\n- \\n\\n## \\n\\n### \\n\\nThank you for your question. Could you please explain what does it mean "
    "and how can I make the other one? Would there be any problem with these? It has been, has to be, into the, of "
    "the, "
    "in the, on the, to the, for the, and the, with the, at the, by the, that the, from the, is the, as well as one of "
    "the {\"type\":\"input_image\",\"image_url\":\"data:image/png;base64,iVBORw0KGgo\",\"detail\":\"auto\"}"
    "{\"type\":\"input_file\",\"filename\":\"\",\"file_data\":\"\"}{\"type\":\"refusal\",\"refusal\":\"\"}"
    "\"encrypted_content\":null,\"error\":null,\"incomplete_details\":{\"reason\":\"max_output_tokens\"},"
    "\"incomplete_details\":null,\"instructions\":null,\"max_output_tokens\":null,\"metadata\":{},\"model\":\"\","
    "\"parallel_tool_calls\":true,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,\"summary\":null},"
    "\"service_tier\":\"default\",\"store\":true,\"temperature\":1.0,\"text\":{\"format\":{\"type\":\"text\"}},"
    "\"tool_choice\":\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"\",\"description\":\"\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"The \"},\"command\":"
    "{\"type\":\"string\"}},\"required\":[\"path\"],\"additionalProperties\":false},\"strict\":true}],\"top_p\":1.0,"
    "\"truncation\":\"disabled\",\"user\":null,\"background\":false,\"stop_reason\":\"end_turn\",\"stop_reason\":"
    "\"tool_use\",\"finish_reason\":\"stop\",\"created_at\":17,\"completed_at\":17,\"object\":\"response\","
    "{\"role\":\"system\",\"role\":\"developer\",{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\","
    "\"text\":\"Okay, the user wants me to \"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"\"}]},"
    "{\"type\":\"function_call\",\"call_id\":\"call_\",\"name\":\"read_file\",\"arguments\":\"{\\\"path\\\":\\\"src/"
    "{\\\"command\\\":\\\"\\\"}\",\"status\":\"completed\"}{\"input\":[{\"type\":\"function_call_output\",\"call_id\":"
    "\"call_\",\"output\":\"{\\\"\"}],\"output\":[{\"type\":\"function_call\",\"status\":\"incomplete\",\"status\":"
    "\"in_progress\",\"conversation\":{\"id\":\"conv_\"},\"id\":\"resp_\",\"id\":\"fc_\",\"id\":\"rs_\",\"id\":\"msg_"
    "\","
    "{\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"\"}]}],"
    "\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{\"type\":"
    "\"output_text\",\"text\":\"\",\"annotations\":[],\"logprobs\":[]}]}],\"response\":{\"status\":\"completed\","
    "\"usage\":{\"input_tokens\":1,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":1,"
    "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":1}}}";

/* ---- numbers ---- */

static bool put_number(struct hearth_buf *out, uint64_t number) {
    uint8_t bytes[NUMBER_BYTES_MAX];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)((number & 0x7F) | (number > 0x7F ? 0x80 : 0));
        number >>= 7;
    } while (number > 0);
    return hearth_buf_append(out, bytes, n);
}

static bool get_number(const uint8_t **at, const uint8_t *end, uint64_t *number) {
    *number = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *number |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* ---- parts ---- */

/* Appends bytes in their smallest form; *format says which. */
static bool put_part(struct hearth_db *db, const void *bytes, size_t len, bool text, uint8_t *format,
                     struct hearth_buf *out) {
    enum { SMALL = 16 * 1024, LEVEL_SMALL = 15, LEVEL = 4 };
    *format = PLAIN;
    if (len == 0) {
        return true;
    }
    db->pack = db->pack != NULL ? db->pack : ZSTD_createCCtx();
    if (db->pack == NULL || !hearth_buf_reserve(out, len + MAGIC_BYTES + 64)) {
        return false;
    }
    int level = len <= SMALL ? LEVEL_SMALL : LEVEL;
    uint8_t *to = out->data + out->len;
    size_t n = text ? ZSTD_compress_usingDict(db->pack, to, len + MAGIC_BYTES, bytes, len, dictionary_1,
                                              sizeof dictionary_1 - 1, level)
                    : ZSTD_compressCCtx(db->pack, to, len + MAGIC_BYTES, bytes, len, level);
    if (ZSTD_isError(n) || n >= len + MAGIC_BYTES) {
        return hearth_buf_append(out, bytes, len);
    }
    *format = text ? DICT1 : FRAME;
    memmove(to, to + MAGIC_BYTES, n - MAGIC_BYTES);
    out->len += n - MAGIC_BYTES;
    return true;
}

/* The plain bytes of a part: `plain` of them, or for tokens at most so many. */
static int get_part(struct hearth_db *db, uint8_t format, const uint8_t *bytes, size_t len, size_t plain,
                    struct hearth_buf *out) {
    static const uint8_t magic[MAGIC_BYTES] = {0x28, 0xB5, 0x2F, 0xFD};
    struct hearth_buf frame = {0};
    out->len = 0;
    db->unpack = db->unpack != NULL ? db->unpack : ZSTD_createDCtx();
    if (db->unpack == NULL || !hearth_buf_reserve(out, plain + 1)) {
        return HEARTH_ERR_NOMEM;
    }
    if (format == PLAIN) {
        if (len > plain) {
            return HEARTH_ERR_STATE;
        }
        (void)hearth_buf_append(out, bytes, len); /* there is room */
    } else {
        if (!hearth_buf_append(&frame, magic, sizeof magic) || !hearth_buf_append(&frame, bytes, len)) {
            hearth_buf_finish(&frame);
            return HEARTH_ERR_NOMEM;
        }
        size_t n = format == DICT1 || format == FRAME
                       ? ZSTD_decompress_usingDict(db->unpack, out->data, plain, frame.data, frame.len, dictionary_1,
                                                   format == DICT1 ? sizeof dictionary_1 - 1 : 0)
                       : (size_t)-1;
        hearth_buf_finish(&frame);
        if (ZSTD_isError(n)) {
            return HEARTH_ERR_STATE;
        }
        out->len = n;
    }
    out->data[out->len] = '\0';
    return HEARTH_OK;
}

static bool pack_parts(struct hearth_db *db, const struct hearth_buf *body, const struct hearth_tokens *tokens,
                       struct hearth_buf *out) {
    struct hearth_buf numbers = {0}, packed_body = {0}, packed_tokens = {0};
    uint8_t formats[2];
    bool ok = true;
    for (size_t i = 0; ok && tokens != NULL && i < tokens->n; i++) {
        ok = put_number(&numbers, (uint32_t)tokens->v[i]);
    }
    ok = ok &&
         put_part(db, body != NULL ? body->data : NULL, body != NULL ? body->len : 0, true, &formats[0], &packed_body);
    ok = ok && put_part(db, numbers.data, numbers.len, false, &formats[1], &packed_tokens);
    ok = ok && hearth_buf_append(out, formats, sizeof formats) && put_number(out, body != NULL ? body->len : 0) &&
         put_number(out, tokens != NULL ? tokens->n : 0) && put_number(out, packed_body.len) &&
         hearth_buf_append(out, packed_body.data, packed_body.len) &&
         hearth_buf_append(out, packed_tokens.data, packed_tokens.len);
    hearth_buf_finish(&numbers);
    hearth_buf_finish(&packed_body);
    hearth_buf_finish(&packed_tokens);
    return ok;
}

static int get_tokens(struct hearth_db *db, uint8_t format, const uint8_t *bytes, size_t len, size_t count,
                      struct hearth_tokens *tokens) {
    enum { TOKEN_BYTES_MAX = 5 };
    struct hearth_buf plain = {0};
    int err = get_part(db, format, bytes, len, count * TOKEN_BYTES_MAX, &plain);
    const uint8_t *at = plain.data, *end = plain.data + plain.len;
    tokens->n = 0;
    if (err == HEARTH_OK && !hearth_tokens_reserve(tokens, count)) {
        err = HEARTH_ERR_NOMEM;
    }
    for (size_t i = 0; err == HEARTH_OK && i < count; i++) {
        uint64_t number;
        err = get_number(&at, end, &number) && number <= UINT32_MAX ? HEARTH_OK : HEARTH_ERR_STATE;
        if (err == HEARTH_OK) {
            (void)hearth_tokens_push(tokens, (hearth_token)(uint32_t)number); /* there is room */
        }
    }
    err = err == HEARTH_OK && at != end ? HEARTH_ERR_STATE : err;
    hearth_buf_finish(&plain);
    return err;
}

static int unpack_parts(struct hearth_db *db, const uint8_t *bytes, size_t len, struct hearth_buf *body,
                        struct hearth_tokens *tokens) {
    const uint8_t *at = bytes + 2, *end = bytes + len;
    uint64_t body_len, count, packed_len;
    if (len < 2 || !get_number(&at, end, &body_len) || !get_number(&at, end, &count) ||
        !get_number(&at, end, &packed_len) || body_len > PLAIN_MAX || count > PLAIN_MAX / 5 ||
        packed_len > (uint64_t)(end - at)) {
        return HEARTH_ERR_STATE;
    }
    int err = HEARTH_OK;
    if (body != NULL) {
        err = get_part(db, bytes[0], at, (size_t)packed_len, (size_t)body_len, body);
        err = err == HEARTH_OK && body->len != body_len ? HEARTH_ERR_STATE : err;
    }
    at += packed_len;
    if (err == HEARTH_OK && tokens != NULL) {
        err = get_tokens(db, bytes[1], at, (size_t)(end - at), (size_t)count, tokens);
    }
    return err;
}

/* ---- blobs ---- */

int hearth_session_pack(struct hearth_db *db, const struct store_about *about, const struct hearth_buf *body,
                        const struct hearth_tokens *tokens, struct hearth_buf *out) {
    out->len = 0;
    return pack_parts(db, body, tokens, out) ? hearth_sealed_row_close(db->seal, about, sizeof *about, out)
                                             : HEARTH_ERR_NOMEM;
}

int hearth_session_unpack(struct hearth_db *db, const struct store_about *about, const void *bytes, size_t len,
                          struct hearth_buf *body, struct hearth_tokens *tokens) {
    struct hearth_buf row = {0};
    if (!hearth_buf_append(&row, bytes, len)) {
        return HEARTH_ERR_NOMEM;
    }
    const int err = hearth_sealed_row_open(db->seal, about, sizeof *about, row.data, &row.len)
                        ? unpack_parts(db, row.data, row.len, body, tokens)
                        : HEARTH_ERR_STATE;
    hearth_buf_finish(&row);
    return err;
}
