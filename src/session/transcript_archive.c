/* Transcripts and their archive: the tree as rows.
 *
 * Loading is lazy. A node comes in when a walk looks for it, or with a reply that it leads to; its replies come with
 * it, so that a node in memory always has the replies that its rows had when it came. A reply is looked for by what was
 * said; it brings the whole path of its node. After that everything goes on as if it had never been away. The price of
 * a miss is one indexed query, and a prompt has few: one where it leaves what is known, and one for each message of the
 * assistant that is no reply of this server.
 *
 * Saving: a reply takes along what of its path is not written yet (tokenised text, prints of earlier replies, records).
 * A prompt without a reply leaves nothing: tokenising it again gives the same. `stored` says under which generation of
 * the archive something was written; what an earlier one has written may be gone and is put again with the next reply.
 *
 * Keys are chained from the engine's fingerprint and the key's id, so that rows of another model, or of another key,
 * are never found. */
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- payloads: numbers are 32 bits in the machine's order; what is read is checked for its lengths only ---- */

static bool put_number(struct hearth_buf *out, size_t value) {
    uint32_t number = (uint32_t)value;
    return value < UINT32_MAX && hearth_buf_append(out, &number, sizeof number);
}

static bool put_bytes(struct hearth_buf *out, const void *bytes, size_t len) {
    return put_number(out, len) && (len == 0 || hearth_buf_append(out, bytes, len));
}

/* NULL is another thing than "". */
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

static bool pack_node(const struct node *node, struct hearth_buf *out) {
    return put_number(out, node->sampled) && put_tokens(out, node->tokens, node->token_count) &&
           put_bytes(out, node->text, node->len);
}

static bool pack_reply(const struct reply *reply, struct hearth_buf *out) {
    return put_number(out, reply->head_tokens) && put_tokens(out, reply->tokens, reply->head_tokens + reply->sampled) &&
           put_bytes(out, reply->head, reply->head_len) && put_message(out, reply->message) &&
           put_digest(out, reply->root.tools) && put_digest(out, reply->root.arguments);
}

bool hearth_transcript_name_reply(struct reply *reply) {
    struct hearth_buf buf = {0};
    bool ok = pack_reply(reply, &buf);
    struct hearth_digest place =
        hearth_digest_chain(reply->node->lru.link.key, &reply->link.key, sizeof reply->link.key);
    reply->id = hearth_digest_chain(place, buf.data, buf.len);
    hearth_buf_finish(&buf);
    return ok;
}

/* ---- and back; false, NULL: out of memory, or not what was packed ---- */

struct reader {
    const uint8_t *at;
    size_t left;
    bool ok; /* false: the payload is too short */
};

static struct reader reader_of(const struct hearth_buf *buf) {
    return (struct reader){buf->data, buf->len, true};
}

static const uint8_t *get(struct reader *reader, size_t len) {
    const uint8_t *bytes = reader->at;
    reader->ok = reader->ok && len <= reader->left;
    if (!reader->ok) {
        return NULL;
    }
    reader->at += len;
    reader->left -= len;
    return bytes;
}

static size_t get_number(struct reader *reader) {
    uint32_t number = 0;
    const uint8_t *bytes = get(reader, sizeof number);
    if (bytes != NULL) {
        memcpy(&number, bytes, sizeof number);
    }
    return number;
}

/* A copy with a NUL behind it. NULL: too short, or out of memory. */
static char *get_bytes(struct reader *reader, size_t *len) {
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

static char *get_text(struct reader *reader) {
    size_t len;
    return get_number(reader) != 0 ? get_bytes(reader, &len) : NULL;
}

static hearth_token *get_tokens(struct reader *reader, size_t *count) {
    size_t len;
    hearth_token *tokens = (hearth_token *)(void *)get_bytes(reader, &len);
    *count = len / sizeof *tokens;
    reader->ok = reader->ok && len % sizeof *tokens == 0;
    return tokens;
}

static struct hearth_digest get_digest(struct reader *reader) {
    struct hearth_digest digest = {0, 0};
    const uint8_t *bytes = get(reader, sizeof digest);
    if (bytes != NULL) {
        memcpy(&digest, bytes, sizeof digest);
    }
    return digest;
}

static bool get_calls(struct reader *reader, struct hearth_message *message) {
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

static struct hearth_message *get_message(struct reader *reader) {
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

static bool unpack_node(const struct hearth_buf *body, struct node *node) {
    struct reader reader = reader_of(body);
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

static struct reply *unpack_reply(const struct hearth_buf *body) {
    struct reader reader = reader_of(body);
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

/* What is like an earlier record is not written again: a conversation of n messages has n records. */
struct record_head {
    struct hearth_digest tools, arguments;
    struct hearth_digest base; /* the node with the earlier record, or zero */
    struct hearth_digest like; /* of the entries taken from there */
    uint64_t skip, count;      /* entries taken from there; of all */
};

struct record_entry {
    struct hearth_digest says;
    uint64_t content, role;
};

static struct record_entry entry_of(const struct hearth_said *said) {
    return (struct record_entry){said->says, said->content, (uint64_t)said->role};
}

static struct hearth_digest digest_entries(const struct hearth_said *said, size_t count) {
    struct hearth_digest digest = {0, 0};
    for (size_t i = 0; i < count; i++) {
        struct record_entry entry = entry_of(&said[i]);
        digest = hearth_digest_chain(digest, &entry, sizeof entry);
    }
    return digest;
}

static bool same_said(const struct hearth_said *a, const struct hearth_said *b) {
    return hearth_digest_equal(a->says, b->says) && a->content == b->content && a->role == b->role;
}

static bool pack_record(const struct node *node, const struct node *base, struct hearth_buf *out) {
    struct record_head head = {.tools = node->root.tools, .arguments = node->root.arguments, .count = node->said_count};
    if (base != NULL) {
        while (head.skip < base->said_count && head.skip < node->said_count &&
               same_said(&base->said[head.skip], &node->said[head.skip])) {
            head.skip++;
        }
        head.base = base->lru.link.key;
        head.like = digest_entries(node->said, head.skip);
    }
    bool ok = hearth_buf_append(out, &head, sizeof head);
    for (size_t i = head.skip; ok && i < node->said_count; i++) {
        struct record_entry entry = entry_of(&node->said[i]);
        ok = hearth_buf_append(out, &entry, sizeof entry);
    }
    return ok;
}

static struct hearth_digest record_base(const struct hearth_buf *body) {
    struct record_head head = {.skip = 0};
    if (body->len >= sizeof head) {
        memcpy(&head, body->data, sizeof head);
    }
    return head.base;
}

static struct hearth_said *unpack_record(const struct hearth_buf *body, const struct node *base,
                                         struct hearth_transcript_root *root, size_t *count) {
    struct record_head head;
    if (body->len < sizeof head) {
        return NULL;
    }
    memcpy(&head, body->data, sizeof head);
    size_t own = (body->len - sizeof head) / sizeof(struct record_entry);
    if (head.skip > head.count || head.count - head.skip != own || (head.skip > 0 && base == NULL) ||
        (base != NULL && head.skip > base->said_count) ||
        (head.skip > 0 && !hearth_digest_equal(digest_entries(base->said, head.skip), head.like))) {
        return NULL;
    }
    struct hearth_said *said = calloc(head.count + 1, sizeof *said);
    for (size_t i = 0; said != NULL && i < head.count; i++) {
        struct record_entry entry;
        if (i < head.skip) {
            said[i] = base->said[i];
            continue;
        }
        memcpy(&entry, body->data + sizeof head + (i - head.skip) * sizeof entry, sizeof entry);
        said[i] = (struct hearth_said){entry.says, entry.content, (enum hearth_role)entry.role};
    }
    *root = (struct hearth_transcript_root){.tools = head.tools, .arguments = head.arguments};
    *count = head.count;
    return said;
}

/* ---- loading ---- */

static bool tokens_are_valid(const struct hearth_transcripts *transcripts, const hearth_token *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= transcripts->engine->caps.vocab_tokens) {
            return false;
        }
    }
    return true;
}

static struct reply *find_reply(const struct node *node, struct hearth_digest id) {
    struct reply *reply = node->replies;
    while (reply != NULL && !hearth_digest_equal(reply->id, id)) {
        reply = reply->next;
    }
    return reply;
}

static void take_reply(struct hearth_transcripts *transcripts, struct node *node,
                       const struct hearth_archive_row *row) {
    struct reply *reply = find_reply(node, row->key) == NULL ? unpack_reply(&row->body) : NULL;
    if (reply == NULL) {
        return;
    }
    reply->node = node;
    reply->link.key = row->other;
    reply->stored = hearth_archive_generation(transcripts->archive);
    if (!tokens_are_valid(transcripts, reply->tokens, reply->head_tokens + reply->sampled) ||
        !hearth_transcript_name_reply(reply) || !hearth_digest_equal(reply->id, row->key) ||
        !hearth_transcript_add_raw(transcripts->engine, reply) || !hearth_transcript_add_reply(transcripts, reply)) {
        hearth_transcript_free_reply(reply);
    }
}

/* The lengths of nodes that are prints of the replies here. */
static void take_prints(struct hearth_transcripts *transcripts, struct node *node) {
    struct hearth_archive_row rows[REPLIES_MAX * VARIANTS_MAX];
    size_t count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_PRINTS, node->lru.link.key, rows,
                                       sizeof rows / sizeof rows[0]);
    while (count-- > 0) {
        struct reply *reply = find_reply(node, rows[count].other);
        bool known = reply == NULL || reply->variant_count == VARIANTS_MAX;
        for (size_t i = 0; !known && i < reply->variant_count; i++) {
            known = reply->variants[i] == rows[count].len;
        }
        if (!known) {
            reply->variants[reply->variant_count++] = rows[count].len;
        }
    }
}

/* Takes in the replies of a node that are not there yet, the newest last. */
static void load_replies(struct hearth_transcripts *transcripts, struct node *node) {
    struct hearth_archive_row rows[REPLIES_MAX];
    size_t count =
        hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_REPLIES, node->lru.link.key, rows, REPLIES_MAX);
    for (size_t i = count; i-- > 0;) {
        take_reply(transcripts, node, &rows[i]);
        hearth_archive_row_finish(&rows[i]);
    }
    if (node->replies != NULL) {
        take_prints(transcripts, node);
    }
}

/* ---- nodes ---- */

/* Puts a row's node below its parent. NULL: it does not belong there, or out of memory. */
static struct node *take_node(struct hearth_transcripts *transcripts, struct node *parent,
                              const struct hearth_archive_row *row, const char *text, size_t len) {
    struct node read = {.text = NULL}, *node = NULL;
    if (!hearth_digest_equal(row->parent, parent->lru.link.key) || !unpack_node(&row->body, &read)) {
        return NULL;
    }
    bool same = text == NULL || (read.len == len && memcmp(read.text, text, len) == 0);
    if (same && tokens_are_valid(transcripts, read.tokens, read.token_count) &&
        hearth_digest_equal(hearth_digest_chain(parent->lru.link.key, read.text, read.len), row->key)) {
        node = hearth_transcript_add(transcripts, parent, read.text, read.len, read.tokens, read.token_count,
                                     read.sampled);
    }
    free(read.text);
    free(read.tokens);
    if (node != NULL) {
        node->print_of = row->other;
        node->stored = hearth_archive_generation(transcripts->archive);
        load_replies(transcripts, node);
    }
    return node;
}

struct node *hearth_transcript_child(struct hearth_transcripts *transcripts, struct node *parent, const char *text,
                                     size_t len) {
    struct node *node = hearth_transcript_known_child(transcripts, parent, text, len);
    struct hearth_archive_row row;
    if (node == NULL && transcripts->archive != NULL &&
        hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE,
                            hearth_digest_chain(parent->lru.link.key, text, len), &row, 1) > 0) {
        node = take_node(transcripts, parent, &row, text, len);
        hearth_archive_row_finish(&row);
    }
    return node;
}

struct node *hearth_transcript_start(struct hearth_transcripts *transcripts, struct hearth_digest salt) {
    struct node *root = &transcripts->root;
    if (!hearth_digest_is_zero(salt)) {
        struct hearth_digest key = hearth_transcript_start_key(transcripts, salt);
        root = hearth_transcript_node(transcripts, key);
        if (root == NULL) {
            root = hearth_transcript_add_start(transcripts, key);
        }
    }
    if (root != NULL && !root->loaded && transcripts->archive != NULL) {
        load_replies(transcripts, root);
        root->loaded = true;
    }
    return root;
}

/* Appends a row to an array in a buffer. */
static struct hearth_archive_row *add_row(struct hearth_buf *rows, enum hearth_archive_kind kind) {
    const struct hearth_archive_row row = {.kind = kind};
    return hearth_buf_append(rows, &row, sizeof row)
               ? (struct hearth_archive_row *)(void *)(rows->data + rows->len - sizeof row)
               : NULL;
}

/* The node of a key, with all that it hangs on. NULL: it is not there. */
static struct node *load_path(struct hearth_transcripts *transcripts, struct hearth_digest key) {
    struct hearth_buf rows = {0};
    struct node *node = hearth_transcript_node(transcripts, key);
    while (node == NULL && !hearth_digest_is_zero(key)) {
        struct hearth_archive_row *row = add_row(&rows, HEARTH_ARCHIVE_NODE);
        if (row == NULL) {
            break;
        }
        if (hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE, key, row, 1) == 0) {
            rows.len -= sizeof *row;
            break;
        }
        key = row->parent;
        node = hearth_transcript_node(transcripts, key);
    }
    struct hearth_archive_row *v = (struct hearth_archive_row *)(void *)rows.data;
    for (size_t count = rows.len / sizeof *v; count-- > 0;) {
        node = node != NULL ? take_node(transcripts, node, &v[count], NULL, 0) : NULL;
        hearth_archive_row_finish(&v[count]);
    }
    hearth_buf_finish(&rows);
    return node;
}

void hearth_transcript_load_said(struct hearth_transcripts *transcripts, struct hearth_digest said) {
    struct hearth_archive_row rows[REPLIES_MAX];
    if (transcripts->archive == NULL) {
        return;
    }
    size_t count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_SAID, said, rows, REPLIES_MAX);
    while (count-- > 0) {
        struct node *node = hearth_transcript_node(transcripts, rows[count].parent);
        bool known = node != NULL;
        node = known ? node : load_path(transcripts, rows[count].parent);
        if (node != NULL && known && find_reply(node, rows[count].key) == NULL) {
            load_replies(transcripts, node); /* of another process */
        }
        if (node != NULL) {
            hearth_transcript_touch(transcripts, node);
        }
    }
    struct reply *reply = hearth_transcript_reply(transcripts, said);
    for (; reply != NULL; reply = hearth_transcript_next_reply(reply)) {
        reply->complete = true;
    }
}

/* ---- for forks ---- */

void hearth_transcript_load_children(struct hearth_transcripts *transcripts, struct node *node, size_t max) {
    struct hearth_archive_row *rows, row;
    if (transcripts->archive == NULL || (rows = calloc(max, sizeof *rows)) == NULL) {
        return;
    }
    size_t count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_CHILDREN, node->lru.link.key, rows, max);
    while (count-- > 0) {
        if (hearth_transcript_node(transcripts, rows[count].key) == NULL &&
            hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE, rows[count].key, &row, 1) > 0) {
            (void)take_node(transcripts, node, &row, NULL, 0);
            hearth_archive_row_finish(&row);
        }
    }
    free(rows);
}

bool hearth_transcript_has_children(struct hearth_transcripts *transcripts, const struct node *node,
                                    struct hearth_digest but) {
    struct hearth_archive_row rows[2];
    size_t count = 0;
    bool others = node->children > 0;
    if (!others && transcripts->archive != NULL) {
        count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_CHILDREN, node->lru.link.key, rows, 2);
    }
    while (count-- > 0) {
        others = others || !hearth_digest_equal(rows[count].key, but);
    }
    return others;
}

void hearth_transcript_delete(struct hearth_transcripts *transcripts, enum hearth_archive_kind kind,
                              struct hearth_digest key) {
    struct hearth_archive_row row = {.kind = kind, .gone = true, .key = key};
    if (transcripts->archive != NULL) {
        (void)hearth_archive_put(transcripts->archive, &row, 1);
    }
}

void hearth_transcript_load_record(struct hearth_transcripts *transcripts, struct node *node) {
    struct hearth_archive_row row;
    if (node->said != NULL || transcripts->archive == NULL ||
        hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_RECORD, node->lru.link.key, &row, 1) == 0) {
        return;
    }
    struct hearth_digest key = record_base(&row.body);
    struct node *base = hearth_digest_is_zero(key) ? NULL : node->parent;
    while (base != NULL && !hearth_digest_equal(base->lru.link.key, key)) {
        base = base->parent;
    }
    if (base != NULL) {
        hearth_transcript_load_record(transcripts, base); /* as deep as the conversation has turns */
    }
    struct hearth_transcript_root root;
    size_t count;
    struct hearth_said *said = unpack_record(&row.body, base, &root, &count);
    if (said != NULL) {
        hearth_transcript_record(transcripts, node, root, said, count);
        node->record_stored = hearth_archive_generation(transcripts->archive);
    }
    hearth_archive_row_finish(&row);
}

/* ---- saving ---- */

static bool add_node(struct hearth_buf *rows, const struct node *node) {
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_NODE);
    if (row == NULL) {
        return false;
    }
    row->key = node->lru.link.key;
    row->parent = node->parent != NULL ? node->parent->lru.link.key : row->parent;
    row->other = node->print_of;
    row->len = node->len;
    return pack_node(node, &row->body);
}

static bool add_reply(struct hearth_buf *rows, const struct reply *reply, bool newest) {
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_REPLY);
    if (row == NULL) {
        return false;
    }
    row->key = reply->id;
    row->parent = reply->node->lru.link.key;
    row->other = reply->link.key;
    row->newest = newest;
    return pack_reply(reply, &row->body);
}

static bool add_record(struct hearth_buf *rows, const struct node *node) {
    const struct node *base = node->parent;
    while (base != NULL && (base->said == NULL || base->record_stored == 0)) {
        base = base->parent;
    }
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_RECORD);
    if (row == NULL) {
        return false;
    }
    row->key = node->lru.link.key;
    return pack_record(node, base, &row->body);
}

/* Oldest first. */
static bool add_old_replies(struct hearth_buf *rows, struct reply *reply, const struct reply *but,
                            uint64_t generation) {
    if (reply == NULL) {
        return true;
    }
    bool ok = add_old_replies(rows, reply->next, but, generation);
    if (ok && reply != but && reply->stored != generation) {
        ok = add_reply(rows, reply, false);
        reply->stored = generation;
    }
    return ok;
}

/* From the root on. */
static bool add_path(struct hearth_buf *rows, struct node **path, size_t count, const struct reply *reply,
                     uint64_t generation) {
    bool ok = true;
    while (ok && count-- > 0) {
        struct node *node = path[count];
        if (node->stored != generation) {
            ok = add_node(rows, node);
            node->stored = generation;
        }
        if (ok && node->said != NULL && node->replies != NULL && node->record_stored != generation) {
            ok = add_record(rows, node);
            node->record_stored = generation;
        }
        ok = ok && add_old_replies(rows, node->replies, reply, generation);
    }
    return ok;
}

void hearth_transcript_save(struct hearth_transcripts *transcripts, struct reply *reply) {
    struct hearth_buf rows = {0};
    size_t count = 0;
    if (transcripts->archive == NULL || !hearth_archive_has_room(transcripts->archive)) {
        return; /* what is not `stored` comes along with a later reply */
    }
    for (const struct node *node = reply->node; node != NULL; node = node->parent) {
        count++;
    }
    struct node **path = malloc(count * sizeof *path);
    uint64_t generation = hearth_archive_generation(transcripts->archive);
    bool ok = path != NULL;
    if (ok) {
        count = 0;
        for (struct node *node = reply->node; node != NULL; node = node->parent) {
            path[count++] = node;
        }
        ok = add_path(&rows, path, count, reply, generation) && add_reply(&rows, reply, true);
        reply->stored = generation;
    }
    struct hearth_archive_row *v = (struct hearth_archive_row *)(void *)rows.data;
    const size_t n = rows.len / sizeof *v;
    if (ok) {
        (void)hearth_archive_put(transcripts->archive, v, n);
    } else {
        for (size_t i = 0; i < n; i++) {
            hearth_archive_row_finish(&v[i]);
        }
        hearth_archive_begin_generation(transcripts->archive);
    }
    hearth_buf_finish(&rows);
    free(path);
}
