/* Nodes, replies and records as the payloads of rows, and back.
 *
 * What a node or a reply consists of is said once, by functions that either write it or read it. Numbers are 32 bits in
 * the machine's order. Only lengths are checked when a payload is read; the archive verifies that it is what was
 * written. A reply's name is the digest of its whole payload. */
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

/* A payload that is written or read. */
struct payload {
    struct hearth_buf *out; /* NULL: it is read, and what is carried is filled in; else that is left as it is */
    const uint8_t *at;      /* what is still to be read */
    size_t left;
    bool ok; /* false: out of memory, or it is not what was written */
};

static struct payload reading(const struct hearth_buf *body) {
    return (struct payload){.at = body->data, .left = body->len, .ok = true};
}

static void carry(struct payload *payload, void *bytes, size_t len) {
    if (payload->out != NULL) {
        payload->ok = payload->ok && hearth_buf_append(payload->out, bytes, len);
        return;
    }
    payload->ok = payload->ok && len <= payload->left;
    if (payload->ok) {
        memcpy(bytes, payload->at, len);
        payload->at += len;
        payload->left -= len;
    }
}

static void carry_number(struct payload *payload, size_t *value) {
    uint32_t number = (uint32_t)*value;
    if (payload->out != NULL) {
        payload->ok = payload->ok && *value < UINT32_MAX;
        carry(payload, &number, sizeof number);
    } else {
        carry(payload, &number, sizeof number);
        *value = payload->ok ? number : 0;
    }
}

/* Bytes; when they are read, a copy with a NUL behind it. */
static void carry_bytes(struct payload *payload, char **bytes, size_t *len) {
    carry_number(payload, len);
    if (payload->out == NULL) {
        *bytes = payload->ok && *len <= payload->left ? malloc(*len + 1) : NULL;
        payload->ok = *bytes != NULL;
        *len = payload->ok ? *len : 0;
    }
    if (payload->ok && *len > 0) {
        carry(payload, *bytes, *len);
    }
    if (payload->ok && payload->out == NULL) {
        (*bytes)[*len] = '\0';
    }
}

/* A text; NULL and "" differ. */
static void carry_text(struct payload *payload, char **text) {
    size_t there = *text != NULL, len = *text != NULL ? strlen(*text) : 0;
    carry_number(payload, &there);
    if (there != 0) {
        carry_bytes(payload, text, &len);
    }
}

static void carry_tokens(struct payload *payload, hearth_token **tokens, size_t *count) {
    char *bytes = (char *)*tokens;
    size_t len = *count * sizeof **tokens;
    carry_bytes(payload, &bytes, &len);
    if (payload->out == NULL) {
        *tokens = (hearth_token *)(void *)bytes;
        *count = len / sizeof **tokens;
        payload->ok = payload->ok && len % sizeof **tokens == 0;
    }
}

/* A reply's message, which is to be sealed when it was read. */
static void carry_message(struct payload *payload, struct hearth_message *message) {
    size_t count = message->call_count;
    carry_bytes(payload, &message->content, &message->content_len);
    carry_text(payload, &message->reasoning);
    carry_text(payload, &message->name);
    carry_number(payload, &count);
    if (payload->out == NULL && count > 0) {
        payload->ok = count <= payload->left && hearth_message_alloc_calls(message, count);
    }
    for (size_t i = 0; payload->ok && i < count; i++) {
        struct hearth_call *call = &message->calls[i];
        carry_text(payload, &call->id);
        carry_text(payload, &call->name);
        carry_text(payload, &call->arguments);
        payload->ok = payload->ok && call->name != NULL && call->arguments != NULL;
    }
}

static void carry_node(struct payload *payload, struct text_node *node) {
    carry_number(payload, &node->sampled);
    carry_tokens(payload, &node->tokens, &node->token_count);
    carry_bytes(payload, &node->text, &node->len);
}

/* Head and sampled tokens are one array, of which the former count is written. */
static void carry_reply(struct payload *payload, struct reply *reply) {
    size_t count = reply->head_tokens + reply->sampled;
    carry_number(payload, &reply->head_tokens);
    carry_tokens(payload, &reply->tokens, &count);
    carry_bytes(payload, &reply->head, &reply->head_len);
    carry_message(payload, reply->message);
    carry(payload, &reply->root.tools, sizeof reply->root.tools);
    carry(payload, &reply->root.arguments, sizeof reply->root.arguments);
    if (payload->out == NULL) {
        payload->ok = payload->ok && reply->head_tokens <= count;
        reply->sampled = count - reply->head_tokens;
    }
}

bool hearth_transcript_pack_node(const struct text_node *node, struct hearth_buf *out) {
    struct payload payload = {.out = out, .ok = true};
    carry_node(&payload, (struct text_node *)(uintptr_t)node);
    return payload.ok;
}

bool hearth_transcript_unpack_node(const struct hearth_buf *body, struct text_node *node) {
    struct payload payload = reading(body);
    carry_node(&payload, node);
    if (!payload.ok || payload.left > 0 || node->sampled > node->token_count) {
        free(node->text);
        free(node->tokens);
        node->text = NULL;
        node->tokens = NULL;
        return false;
    }
    return true;
}

bool hearth_transcript_pack_reply(const struct reply *reply, struct hearth_buf *out) {
    struct payload payload = {.out = out, .ok = true};
    carry_reply(&payload, (struct reply *)(uintptr_t)reply);
    return payload.ok;
}

struct reply *hearth_transcript_unpack_reply(const struct hearth_buf *body) {
    struct payload payload = reading(body);
    struct reply *reply = calloc(1, sizeof *reply);
    if (reply == NULL || (reply->message = hearth_message_create(HEARTH_ROLE_ASSISTANT)) == NULL) {
        free(reply);
        return NULL;
    }
    carry_reply(&payload, reply);
    if (!payload.ok || payload.left > 0 || !hearth_message_seal(reply->message)) {
        hearth_transcript_free_reply(reply);
        return NULL;
    }
    return reply;
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
