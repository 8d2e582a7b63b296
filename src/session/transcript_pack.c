/* Nodes, replies and records as the payloads of rows, and back.
 *
 * Numbers are 32 bits in the machine's order. Only lengths are checked when a payload is read; the archive verifies
 * that it is what was written. A reply's name is the digest of its whole payload. */
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

static bool put_number(struct hearth_buf *out, size_t value) {
    uint32_t number = (uint32_t)value;
    return value < UINT32_MAX && hearth_buf_append(out, &number, sizeof number);
}

static bool put_bytes(struct hearth_buf *out, const void *bytes, size_t len) {
    return put_number(out, len) && (len == 0 || hearth_buf_append(out, bytes, len));
}

/* Writes a text; NULL and "" differ. */
static bool put_text(struct hearth_buf *out, const char *text) {
    return put_number(out, text != NULL) && (text == NULL || put_bytes(out, text, strlen(text)));
}

static bool put_tokens(struct hearth_buf *out, const hearth_token *tokens, size_t count) {
    return put_bytes(out, tokens, count * sizeof *tokens);
}

static bool put_digest(struct hearth_buf *out, struct hearth_digest digest) {
    return hearth_buf_append(out, &digest, sizeof digest);
}

static bool put_message(struct hearth_buf *out, const struct hearth_message *message) {
    bool ok = put_bytes(out, message->content, message->content_len) && put_text(out, message->reasoning) &&
              put_text(out, message->name) && put_number(out, message->call_count);
    for (size_t i = 0; ok && i < message->call_count; i++) {
        const struct hearth_call *call = &message->calls[i];
        ok = put_text(out, call->id) && put_text(out, call->name) && put_text(out, call->arguments);
    }
    return ok;
}

bool hearth_transcript_pack_node(const struct text_node *node, struct hearth_buf *out) {
    return put_number(out, node->sampled) && put_tokens(out, node->tokens, node->token_count) &&
           put_bytes(out, node->text, node->len);
}

bool hearth_transcript_pack_reply(const struct reply *reply, struct hearth_buf *out) {
    return put_number(out, reply->head_tokens) && put_tokens(out, reply->tokens, reply->head_tokens + reply->sampled) &&
           put_bytes(out, reply->head, reply->head_len) && put_message(out, reply->message) &&
           put_digest(out, reply->root.tools) && put_digest(out, reply->root.arguments);
}

bool hearth_transcript_name_reply(struct reply *reply) {
    struct hearth_buf buf = {0};
    bool ok = hearth_transcript_pack_reply(reply, &buf);
    struct hearth_digest place =
        hearth_digest_chain(reply->node->lru.link.key, &reply->link.key, sizeof reply->link.key);
    reply->id = hearth_digest_chain(place, buf.data, buf.len);
    hearth_buf_finish(&buf);
    return ok;
}

/* ---- reading ---- */

struct payload_reader {
    const uint8_t *at;
    size_t left;
    bool ok; /* false: the payload is too short */
};

static struct payload_reader reader_of(const struct hearth_buf *buf) {
    return (struct payload_reader){buf->data, buf->len, true};
}

static const uint8_t *get(struct payload_reader *reader, size_t len) {
    const uint8_t *bytes = reader->at;
    reader->ok = reader->ok && len <= reader->left;
    if (!reader->ok) {
        return NULL;
    }
    reader->at += len;
    reader->left -= len;
    return bytes;
}

static size_t get_number(struct payload_reader *reader) {
    uint32_t number = 0;
    const uint8_t *bytes = get(reader, sizeof number);
    if (bytes != NULL) {
        memcpy(&number, bytes, sizeof number);
    }
    return number;
}

/* A copy with a NUL behind it. NULL: too short, or out of memory. */
static char *get_bytes(struct payload_reader *reader, size_t *len) {
    *len = get_number(reader);
    const uint8_t *bytes = get(reader, *len);
    char *copy = bytes != NULL ? malloc(*len + 1) : NULL;
    reader->ok = copy != NULL;
    if (copy != NULL) {
        memcpy(copy, bytes, *len);
        copy[*len] = '\0';
    }
    return copy;
}

static char *get_text(struct payload_reader *reader) {
    size_t len;
    return get_number(reader) != 0 ? get_bytes(reader, &len) : NULL;
}

static hearth_token *get_tokens(struct payload_reader *reader, size_t *count) {
    size_t len;
    hearth_token *tokens = (hearth_token *)(void *)get_bytes(reader, &len);
    *count = len / sizeof *tokens;
    reader->ok = reader->ok && len % sizeof *tokens == 0;
    return tokens;
}

static struct hearth_digest get_digest(struct payload_reader *reader) {
    struct hearth_digest digest = {0, 0};
    const uint8_t *bytes = get(reader, sizeof digest);
    if (bytes != NULL) {
        memcpy(&digest, bytes, sizeof digest);
    }
    return digest;
}

static bool get_calls(struct payload_reader *reader, struct hearth_message *message) {
    size_t count = get_number(reader);
    if (!reader->ok || count > reader->left || (count > 0 && !hearth_message_alloc_calls(message, count))) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct hearth_call *call = &message->calls[i];
        call->id = get_text(reader);
        call->name = get_text(reader);
        call->arguments = get_text(reader);
        if (call->name == NULL || call->arguments == NULL) {
            return false;
        }
    }
    return reader->ok;
}

static struct hearth_message *get_message(struct payload_reader *reader) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    if (message == NULL) {
        return NULL;
    }
    message->content = get_bytes(reader, &message->content_len);
    message->reasoning = get_text(reader);
    message->name = get_text(reader);
    if (!reader->ok || !get_calls(reader, message) || !hearth_message_seal(message)) {
        if (message->content == NULL) {
            message->content_len = 0;
        }
        hearth_message_unref(message);
        return NULL;
    }
    return message;
}

bool hearth_transcript_unpack_node(const struct hearth_buf *body, struct text_node *node) {
    struct payload_reader reader = reader_of(body);
    node->sampled = get_number(&reader);
    node->tokens = get_tokens(&reader, &node->token_count);
    node->text = get_bytes(&reader, &node->len);
    if (!reader.ok || reader.left > 0 || node->sampled > node->token_count) {
        free(node->text);
        free(node->tokens);
        node->text = NULL;
        node->tokens = NULL;
        return false;
    }
    return true;
}

struct reply *hearth_transcript_unpack_reply(const struct hearth_buf *body) {
    struct payload_reader reader = reader_of(body);
    struct reply *reply = calloc(1, sizeof *reply);
    if (reply == NULL) {
        return NULL;
    }
    size_t count;
    reply->head_tokens = get_number(&reader);
    reply->tokens = get_tokens(&reader, &count);
    reply->head = get_bytes(&reader, &reply->head_len);
    reply->message = get_message(&reader);
    reply->root.tools = get_digest(&reader);
    reply->root.arguments = get_digest(&reader);
    if (reply->message == NULL || !reader.ok || reader.left > 0 || reply->head_tokens > count) {
        hearth_transcript_free_reply(reply);
        return NULL;
    }
    reply->sampled = count - reply->head_tokens;
    return reply;
}

/* ---- records ---- */

/* What equals an earlier record is not written again, since a conversation of n messages has n records. Its entries are
 * struct hearth_said as it is. */
struct record_head {
    struct hearth_digest tools, arguments;
    struct hearth_digest base; /* the node with the earlier record, or zero */
    struct hearth_digest like; /* digest of the entries taken from there */
    uint64_t skip, count;      /* entries taken from there; all entries */
};

_Static_assert(sizeof(struct hearth_said) == 32, "a record has no gaps");

static struct hearth_digest digest_entries(const struct hearth_said *said, size_t count) {
    struct hearth_digest digest = {0, 0};
    for (size_t i = 0; i < count; i++) {
        digest = hearth_digest_chain(digest, &said[i], sizeof said[i]);
    }
    return digest;
}

bool hearth_transcript_pack_record(const struct text_node *node, const struct text_node *base, struct hearth_buf *out) {
    struct record_head head = {.tools = node->root.tools, .arguments = node->root.arguments, .count = node->said_count};
    if (base != NULL) {
        while (head.skip < base->said_count && head.skip < node->said_count &&
               memcmp(&base->said[head.skip], &node->said[head.skip], sizeof *node->said) == 0) {
            head.skip++;
        }
        head.base = base->lru.link.key;
        head.like = digest_entries(node->said, head.skip);
    }
    return hearth_buf_append(out, &head, sizeof head) &&
           hearth_buf_append(out, node->said + head.skip, (node->said_count - head.skip) * sizeof *node->said);
}

struct hearth_digest hearth_transcript_record_base(const struct hearth_buf *body) {
    struct record_head head = {.skip = 0};
    if (body->len >= sizeof head) {
        memcpy(&head, body->data, sizeof head);
    }
    return head.base;
}

struct hearth_said *hearth_transcript_unpack_record(const struct hearth_buf *body, const struct text_node *base,
                                                    struct hearth_transcript_root *root, size_t *count) {
    struct record_head head;
    if (body->len < sizeof head) {
        return NULL;
    }
    memcpy(&head, body->data, sizeof head);
    size_t own = (body->len - sizeof head) / sizeof(struct hearth_said);
    if (head.skip > head.count || head.count - head.skip != own || (head.skip > 0 && base == NULL) ||
        (base != NULL && head.skip > base->said_count) ||
        (head.skip > 0 && !hearth_digest_equal(digest_entries(base->said, head.skip), head.like))) {
        return NULL;
    }
    struct hearth_said *said = calloc(head.count + 1, sizeof *said);
    if (said != NULL && head.skip > 0) {
        memcpy(said, base->said, head.skip * sizeof *said);
    }
    if (said != NULL) {
        memcpy(said + head.skip, body->data + sizeof head, own * sizeof *said);
    }
    *root = (struct hearth_transcript_root){.tools = head.tools, .arguments = head.arguments};
    *count = head.count;
    return said;
}
