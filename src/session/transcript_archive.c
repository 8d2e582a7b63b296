/* Transcripts and their archive: the tree as rows.
 *
 * Loading is lazy. A node is loaded when a walk looks for it, or with a reply that it leads to. Its replies are
 * loaded with it, so a node in memory has all replies that its rows had at that time. A reply is found by its
 * message; it brings the whole path of its node. After that everything goes on as if the node had never been
 * evicted. A miss costs one indexed query, and a prompt has few: one where it leaves what is known, and one for each
 * assistant's message that is no reply of this server.
 *
 * Saving: a reply is saved with everything of its path that is not saved yet (tokenised text, prints of earlier
 * replies, records). A prompt without a reply saves nothing: tokenising it again gives the same. `stored` is the
 * generation of the archive in which something was saved. An earlier generation's rows may be gone and are saved
 * again with the next reply.
 *
 * Keys are chained from the engine's fingerprint and the key's id, so rows of another model or of another key are
 * never found. */
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

static bool tokens_are_valid(const struct hearth_transcripts *transcripts, const hearth_token *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= transcripts->engine->caps.vocab_tokens) {
            return false;
        }
    }
    return true;
}

static struct reply *find_reply(const struct text_node *node, struct hearth_digest id) {
    struct reply *reply = node->replies;
    while (reply != NULL && !hearth_digest_equal(reply->id, id)) {
        reply = reply->next;
    }
    return reply;
}

static void take_reply(struct hearth_transcripts *transcripts, struct text_node *node,
                       const struct hearth_archive_row *row) {
    struct reply *reply = find_reply(node, row->key) == NULL ? hearth_transcript_unpack_reply(&row->body) : NULL;
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

/* Reads the lengths of the nodes that are prints of this node's replies. */
static void take_prints(struct hearth_transcripts *transcripts, struct text_node *node) {
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

/* Loads the replies of a node that are not there yet, the newest last. */
static void load_replies(struct hearth_transcripts *transcripts, struct text_node *node) {
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

/* Adds the node of a row below its parent. NULL: it does not belong there, or out of memory. */
static struct text_node *take_node(struct hearth_transcripts *transcripts, struct text_node *parent,
                                   const struct hearth_archive_row *row, const char *text, size_t len) {
    struct text_node read = {.text = NULL}, *node = NULL;
    if (!hearth_digest_equal(row->parent, parent->lru.link.key) || !hearth_transcript_unpack_node(&row->body, &read)) {
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

struct text_node *hearth_transcript_child(struct hearth_transcripts *transcripts, struct text_node *parent,
                                          const char *text, size_t len) {
    struct text_node *node = hearth_transcript_known_child(transcripts, parent, text, len);
    struct hearth_archive_row row;
    if (node == NULL && hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE,
                                            hearth_digest_chain(parent->lru.link.key, text, len), &row, 1) > 0) {
        node = take_node(transcripts, parent, &row, text, len);
        hearth_archive_row_finish(&row);
    }
    return node;
}

struct text_node *hearth_transcript_start(struct hearth_transcripts *transcripts, struct hearth_digest salt) {
    struct text_node *root = &transcripts->root;
    if (!hearth_digest_is_zero(salt)) {
        struct hearth_digest key = hearth_transcript_start_key(transcripts, salt);
        root = hearth_transcript_node(transcripts, key);
        if (root == NULL) {
            root = hearth_transcript_add_start(transcripts, key);
        }
    }
    if (root != NULL && !root->loaded) {
        load_replies(transcripts, root);
        root->loaded = true;
    }
    return root;
}

struct row_list {
    struct hearth_archive_row *v;
    size_t n, cap;
};

static struct hearth_archive_row *add_row(struct row_list *rows, enum hearth_archive_kind kind) {
    if (!HEARTH_BUF_ROOM(rows->v, rows->n, rows->cap)) {
        return NULL;
    }
    rows->v[rows->n] = (struct hearth_archive_row){.kind = kind};
    return &rows->v[rows->n++];
}

/* Loads the node of a key with its whole path. NULL: it is not there. */
static struct text_node *load_path(struct hearth_transcripts *transcripts, struct hearth_digest key) {
    struct row_list rows = {0};
    struct text_node *node = hearth_transcript_node(transcripts, key);
    while (node == NULL && !hearth_digest_is_zero(key)) {
        struct hearth_archive_row *row = add_row(&rows, HEARTH_ARCHIVE_NODE);
        if (row == NULL) {
            break;
        }
        if (hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE, key, row, 1) == 0) {
            rows.n--;
            break;
        }
        key = row->parent;
        node = hearth_transcript_node(transcripts, key);
    }
    for (size_t i = rows.n; i-- > 0;) {
        node = node != NULL ? take_node(transcripts, node, &rows.v[i], NULL, 0) : NULL;
        hearth_archive_row_finish(&rows.v[i]);
    }
    free(rows.v);
    return node;
}

void hearth_transcript_load_said(struct hearth_transcripts *transcripts, struct hearth_digest said) {
    struct hearth_archive_row rows[REPLIES_MAX];
    size_t count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_SAID, said, rows, REPLIES_MAX);
    while (count-- > 0) {
        struct text_node *node = hearth_transcript_node(transcripts, rows[count].parent);
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

/* Whether the tokens of a node's row are the first of these. */
static bool comes_first(const struct hearth_archive_row *row, const hearth_token *tokens, size_t count) {
    struct text_node read = {.text = NULL};
    const bool first = hearth_transcript_unpack_node(&row->body, &read) && read.token_count <= count &&
                       memcmp(read.tokens, tokens, read.token_count * sizeof *tokens) == 0;
    free(read.text);
    free(read.tokens);
    return first;
}

void hearth_transcript_load_children(struct hearth_transcripts *transcripts, struct text_node *node, size_t max,
                                     const hearth_token *tokens, size_t token_count) {
    struct hearth_archive_row *rows, row;
    if (transcripts->archive == NULL || (rows = calloc(max, sizeof *rows)) == NULL) { /* `max` may be many */
        return;
    }
    size_t count = hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_CHILDREN, node->lru.link.key, rows, max);
    while (count-- > 0) {
        if (hearth_transcript_node(transcripts, rows[count].key) == NULL &&
            hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_NODE, rows[count].key, &row, 1) > 0) {
            if (tokens == NULL || comes_first(&row, tokens, token_count)) {
                (void)take_node(transcripts, node, &row, NULL, 0);
            }
            hearth_archive_row_finish(&row);
        }
    }
    free(rows);
}

bool hearth_transcript_has_children(struct hearth_transcripts *transcripts, const struct text_node *node) {
    struct hearth_archive_row rows[2]; /* of more that are being deleted the archive keeps the node for the others */
    return node->children > 0 ||
           hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_CHILDREN, node->lru.link.key, rows, 2) > 0;
}

bool hearth_transcript_delete(struct hearth_transcripts *transcripts, enum hearth_archive_kind kind,
                              struct hearth_digest key) {
    struct hearth_archive_row row = {.kind = kind, .gone = true, .key = key};
    return transcripts->archive == NULL || hearth_archive_put(transcripts->archive, &row, 1);
}

void hearth_transcript_load_record(struct hearth_transcripts *transcripts, struct text_node *node) {
    struct hearth_archive_row row;
    if (node->said != NULL ||
        hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_GET_RECORD, node->lru.link.key, &row, 1) == 0) {
        return;
    }
    struct hearth_digest key = hearth_transcript_record_base(&row.body);
    struct text_node *base = hearth_digest_is_zero(key) ? NULL : node->parent;
    while (base != NULL && !hearth_digest_equal(base->lru.link.key, key)) {
        base = base->parent;
    }
    if (base != NULL) {
        hearth_transcript_load_record(transcripts, base); /* as deep as the conversation has turns */
    }
    struct hearth_transcript_root root;
    size_t count;
    struct hearth_said *said = hearth_transcript_unpack_record(&row.body, base, &root, &count);
    if (said != NULL) {
        hearth_transcript_record(transcripts, node, root, said, count);
        node->record_stored = hearth_archive_generation(transcripts->archive);
    }
    hearth_archive_row_finish(&row);
}

/* The key of a record; other models and other encryption keys have other keys. */
static struct hearth_digest past_key(const struct hearth_transcripts *transcripts, struct hearth_digest key) {
    return hearth_digest_chain(transcripts->root.lru.link.key, &key, sizeof key);
}

struct text_node *hearth_transcript_load_past(struct hearth_transcripts *transcripts, struct hearth_digest key) {
    struct hearth_archive_row row;
    if (hearth_archive_read(transcripts->archive, HEARTH_ARCHIVE_PAST, past_key(transcripts, key), &row, 1) == 0) {
        return NULL;
    }
    struct text_node *node = load_path(transcripts, row.key);
    if (node != NULL) {
        hearth_transcript_load_record(transcripts, node);
        hearth_transcript_touch(transcripts, node);
    }
    return node;
}

/* ---- saving ---- */

static bool add_node(struct row_list *rows, const struct text_node *node) {
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_NODE);
    if (row == NULL) {
        return false;
    }
    row->key = node->lru.link.key;
    row->parent = node->parent != NULL ? node->parent->lru.link.key : row->parent;
    row->other = node->print_of;
    row->len = node->len;
    return hearth_transcript_pack_node(node, &row->body);
}

static bool add_reply(struct row_list *rows, const struct reply *reply, bool newest) {
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_REPLY);
    if (row == NULL) {
        return false;
    }
    row->key = reply->id;
    row->parent = reply->node->lru.link.key;
    row->other = reply->link.key;
    row->newest = newest;
    return hearth_transcript_pack_reply(reply, &row->body);
}

static bool add_record(const struct hearth_transcripts *transcripts, struct row_list *rows,
                       const struct text_node *node) {
    const struct text_node *base = node->parent;
    while (base != NULL && (base->said == NULL || base->record_stored == 0)) {
        base = base->parent;
    }
    struct hearth_archive_row *row = add_row(rows, HEARTH_ARCHIVE_RECORD);
    if (row == NULL) {
        return false;
    }
    row->key = node->lru.link.key;
    row->other = node->past.listed ? past_key(transcripts, node->past.link.key) : row->other;
    return hearth_transcript_pack_record(node, base, &row->body);
}

/* Adds a node's older replies, the oldest first. */
static bool add_old_replies(struct row_list *rows, struct reply *reply, const struct reply *but, uint64_t generation) {
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

/* Adds the nodes of a path, the root first. */
static bool add_path(const struct hearth_transcripts *transcripts, struct row_list *rows, struct text_node **path,
                     size_t count, const struct reply *but, uint64_t generation) {
    bool ok = true;
    while (ok && count-- > 0) {
        struct text_node *node = path[count];
        if (node->stored != generation) {
            ok = add_node(rows, node);
            node->stored = generation;
        }
        if (ok && node->said != NULL && node->replies != NULL && node->record_stored != generation) {
            ok = add_record(transcripts, rows, node);
            node->record_stored = generation;
        }
        ok = ok && add_old_replies(rows, node->replies, but, generation);
    }
    return ok;
}

void hearth_transcript_save(struct hearth_transcripts *transcripts, struct reply *reply) {
    struct row_list rows = {0};
    struct text_node **path = NULL; /* no recursion: a path may have more nodes than the stack has room for */
    size_t count = 0, cap = 0;
    bool ok = true;
    if (transcripts->archive == NULL || !hearth_archive_has_room(transcripts->archive)) {
        return; /* nodes that are not `stored` are saved with a later reply */
    }
    for (struct text_node *node = reply->node; ok && node != NULL; node = node->parent) {
        ok = HEARTH_BUF_ROOM(path, count, cap);
        if (ok) {
            path[count++] = node;
        }
    }
    const uint64_t generation = hearth_archive_generation(transcripts->archive);
    ok = ok && add_path(transcripts, &rows, path, count, reply, generation) && add_reply(&rows, reply, true);
    reply->stored = generation;
    if (ok) {
        (void)hearth_archive_put(transcripts->archive, rows.v, rows.n);
    } else {
        for (size_t i = 0; i < rows.n; i++) {
            hearth_archive_row_finish(&rows.v[i]);
        }
        hearth_archive_begin_generation(transcripts->archive);
    }
    free(rows.v);
    free(path);
}
