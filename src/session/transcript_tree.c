/* The transcripts' tree: nodes, replies, their tables and eviction. */
#include "base/assert.h"
#include "session/transcript_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the order of use ---- */

static void unlist_sibling(struct text_node *node) {
    *(node->previous != NULL ? &node->previous->next : &node->parent->child) = node->next;
    if (node->next != NULL) {
        node->next->previous = node->previous;
    }
    node->next = node->previous = NULL;
}

static void list_sibling(struct text_node *node) {
    node->next = node->parent->child;
    if (node->next != NULL) {
        node->next->previous = node;
    }
    node->parent->child = node;
}

void hearth_transcript_touch(struct hearth_transcripts *transcripts, struct text_node *node) {
    for (; node->parent != NULL; node = node->parent) {
        hearth_lru_touch(&transcripts->nodes, &node->lru);
        if (!node->start) {
            unlist_sibling(node);
            list_sibling(node);
        }
    }
}

/* ---- nodes ---- */

static size_t node_bytes(const struct text_node *node) {
    return sizeof *node + node->len + node->token_count * sizeof *node->tokens + node->said_count * sizeof *node->said;
}

struct text_node *hearth_transcript_node(struct hearth_transcripts *transcripts, struct hearth_digest key) {
    return hearth_digest_equal(key, transcripts->root.lru.link.key)
               ? &transcripts->root
               : (struct text_node *)hearth_table_find(&transcripts->nodes.table, key);
}

struct hearth_digest hearth_transcript_start_key(const struct hearth_transcripts *transcripts,
                                                 struct hearth_digest salt) {
    struct hearth_digest key = transcripts->root.lru.link.key;
    return hearth_digest_is_zero(salt) ? key : hearth_digest_chain(key, &salt, sizeof salt);
}

struct text_node *hearth_transcript_known_child(struct hearth_transcripts *transcripts, const struct text_node *parent,
                                                const char *text, size_t len) {
    struct hearth_digest key = hearth_digest_chain(parent->lru.link.key, text, len);
    for (struct hearth_link *link = hearth_table_find(&transcripts->nodes.table, key); link != NULL;
         link = hearth_table_next(link)) {
        struct text_node *node = (struct text_node *)link;
        if (node->parent == parent && !node->start && node->len == len && memcmp(node->text, text, len) == 0) {
            return node;
        }
    }
    return NULL;
}

static void node_free(struct text_node *node) {
    free(node->text);
    free(node->tokens);
    free(node->said);
    free(node);
}

static void *copy_of(const void *bytes, size_t len) {
    void *copy = malloc(len > 0 ? len : 1);
    return copy != NULL && len > 0 ? memcpy(copy, bytes, len) : copy;
}

/* Takes over a node and lists it below its parent, next older than `newer`. NULL: out of memory, and the node is freed.
 */
static struct text_node *insert(struct hearth_transcripts *transcripts, struct text_node *node,
                                struct hearth_lru_entry *newer) {
    if (!hearth_lru_add(&transcripts->nodes, &node->lru, newer)) {
        node_free(node);
        return NULL;
    }
    node->parent->children++;
    if (!node->start) {
        list_sibling(node);
    }
    transcripts->stats.nodes++;
    transcripts->stats.bytes += node_bytes(node);
    return node;
}

struct text_node *hearth_transcript_add_start(struct hearth_transcripts *transcripts, struct hearth_digest key) {
    struct text_node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return NULL;
    }
    node->lru.link.key = key;
    node->parent = &transcripts->root;
    node->start = true;
    return insert(transcripts, node, NULL);
}

struct text_node *hearth_transcript_add(struct hearth_transcripts *transcripts, struct text_node *parent,
                                        const char *text, size_t len, const hearth_token *tokens, size_t count,
                                        size_t sampled) {
    struct text_node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return NULL;
    }
    node->lru.link.key = hearth_digest_chain(parent->lru.link.key, text, len);
    node->parent = parent;
    node->text = copy_of(text, len);
    node->len = len;
    node->tokens = copy_of(tokens, count * sizeof *tokens);
    node->token_count = count;
    node->sampled = sampled;
    /* Next older than its parent, because a node is never newer than its parent. */
    struct hearth_lru_entry *newer = parent != &transcripts->root ? &parent->lru : NULL;
    if (node->text == NULL || node->tokens == NULL) {
        node_free(node);
        return NULL;
    }
    return insert(transcripts, node, newer);
}

void hearth_transcript_record(struct hearth_transcripts *transcripts, struct text_node *node,
                              struct hearth_transcript_root root, struct hearth_said *said, size_t count) {
    transcripts->stats.bytes += count * sizeof *said;
    transcripts->stats.bytes -= node->said_count * sizeof *said;
    free(node->said);
    node->said = said;
    node->said_count = count;
    node->root = root;
    node->record_stored = 0;
}

/* ---- what finds earlier prompts (transcript_past.c) ---- */

void hearth_transcript_unlist(struct hearth_table *table, struct transcript_entry *entry) {
    if (entry->listed) {
        hearth_table_remove(table, &entry->link);
        entry->listed = false;
    }
}

/* ---- replies ---- */

static size_t reply_bytes(const struct reply *reply) {
    return sizeof *reply + reply->head_len + reply->raw_len +
           (reply->head_tokens + reply->sampled) * sizeof *reply->tokens + reply->message->bytes;
}

void hearth_transcript_free_reply(struct reply *reply) {
    hearth_message_unref(reply->message);
    free(reply->head);
    free(reply->raw);
    free(reply->tokens);
    free(reply);
}

bool hearth_transcript_add_raw(struct hearth_engine *engine, struct reply *reply) {
    struct hearth_buf raw = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < reply->sampled; i++) {
        ok = hearth_engine_append_text(engine, reply->tokens[reply->head_tokens + i], true, &raw);
    }
    if (!ok) {
        hearth_buf_finish(&raw);
        return false;
    }
    reply->raw_len = raw.len;
    reply->raw = (char *)hearth_buf_take(&raw);
    return true;
}

static void drop_reply(struct hearth_transcripts *transcripts, struct reply **at) {
    struct reply *reply = *at;
    *at = reply->next;
    hearth_table_remove(&transcripts->replies, &reply->link);
    hearth_transcript_unlist(&transcripts->echoes, &reply->echo);
    transcripts->stats.replies--;
    transcripts->stats.bytes -= reply_bytes(reply);
    hearth_transcript_free_reply(reply);
}

void hearth_transcript_drop_reply(struct hearth_transcripts *transcripts, struct reply *reply) {
    struct reply **at = &reply->node->replies;
    while (*at != reply) {
        at = &(*at)->next;
    }
    drop_reply(transcripts, at);
}

/* Moves a reply to the head of its list. */
static struct reply *renew_reply(struct hearth_transcripts *transcripts, struct reply **at) {
    struct reply *reply = *at, **head = &reply->node->replies;
    *at = reply->next;
    reply->next = *head;
    *head = reply;
    hearth_table_remove(&transcripts->replies, &reply->link);
    (void)hearth_table_add(&transcripts->replies, &reply->link); /* into the slot that it has just left */
    return reply;
}

struct reply *hearth_transcript_add_reply(struct hearth_transcripts *transcripts, struct reply *reply) {
    for (struct reply **at = &reply->node->replies; *at != NULL; at = &(*at)->next) {
        if (hearth_digest_equal((*at)->id, reply->id)) {
            hearth_transcript_free_reply(reply);
            return renew_reply(transcripts, at);
        }
    }
    if (!hearth_table_add(&transcripts->replies, &reply->link)) {
        return NULL;
    }
    reply->next = reply->node->replies;
    reply->node->replies = reply;
    transcripts->stats.replies++;
    transcripts->stats.bytes += reply_bytes(reply);
    struct reply **at = &reply->node->replies;
    for (size_t i = 0; *at != NULL && i < REPLIES_MAX; i++) {
        at = &(*at)->next;
    }
    while (*at != NULL) {
        drop_reply(transcripts, at);
    }
    return reply;
}

struct reply *hearth_transcript_reply(struct hearth_transcripts *transcripts, struct hearth_digest said) {
    return (struct reply *)hearth_table_find(&transcripts->replies, said);
}

struct reply *hearth_transcript_next_reply(const struct reply *reply) {
    return (struct reply *)hearth_table_next(&reply->link);
}

/* ---- eviction ---- */

void hearth_transcript_drop_node(struct hearth_transcripts *transcripts, struct text_node *node) {
    HEARTH_ASSERT(node->children == 0 && node->pins == 0);
    while (node->replies != NULL) {
        drop_reply(transcripts, &node->replies);
    }
    if (!node->start) {
        unlist_sibling(node);
    }
    node->parent->children--;
    hearth_transcript_unlist(&transcripts->past, &node->past);
    hearth_lru_remove(&transcripts->nodes, &node->lru);
    transcripts->stats.nodes--;
    transcripts->stats.bytes -= node_bytes(node);
    node_free(node);
}

void hearth_transcript_evict(struct hearth_transcripts *transcripts) {
    struct text_node *node = (struct text_node *)transcripts->nodes.oldest;
    while (node != NULL && transcripts->stats.bytes > transcripts->budget_bytes) {
        struct text_node *newer = (struct text_node *)node->lru.newer;
        if (node->children > 0 || node->pins > 0) {
            node = newer;
            continue;
        }
        /* Its parent was touched after it, so it stands nearer to the newest. */
        hearth_transcript_drop_node(transcripts, node);
        transcripts->stats.evicted++;
        node = newer;
    }
    /* The root's own replies and record are not in the list. */
    while (transcripts->stats.bytes > transcripts->budget_bytes && transcripts->root.replies != NULL) {
        struct reply **at = &transcripts->root.replies;
        while ((*at)->next != NULL) {
            at = &(*at)->next;
        }
        drop_reply(transcripts, at);
    }
}

/* ---- life ---- */

/* The key of the root: texts that are cut or tokenised differently, or encrypted with another key, have other keys. */
static struct hearth_digest root_key(const struct hearth_transcripts_params *params) {
    const struct hearth_digest none = {0, 0}, id = params->seal != NULL ? hearth_seal_id(params->seal) : none;
    const struct hearth_digest *fingerprint = &params->engine->caps.fingerprint;
    return hearth_digest_chain(hearth_digest_chain(id, fingerprint, sizeof *fingerprint), params->turn_end,
                               strlen(params->turn_end));
}

int hearth_transcripts_create(const struct hearth_transcripts_params *params, struct hearth_transcripts **out) {
    *out = NULL;
    struct hearth_transcripts *transcripts = calloc(1, sizeof *transcripts);
    if (transcripts == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    const struct hearth_archive_params archive = {
        .path = params->path,
        .seal = params->seal,
        .limit_bytes = params->path_bytes > 0 ? params->path_bytes : 4 * (uint64_t)params->budget_bytes};
    transcripts->specials = hearth_specials_create(params->engine, params->turn_end, params->template_text);
    if (transcripts->specials == NULL ||
        (params->path != NULL && hearth_archive_create(&archive, &transcripts->archive) != HEARTH_OK)) {
        hearth_specials_destroy(transcripts->specials);
        free(transcripts);
        return HEARTH_ERR_NOMEM;
    }
    transcripts->engine = params->engine;
    transcripts->budget_bytes = params->budget_bytes;
    transcripts->root.lru.link.key = root_key(params);
    pthread_mutex_init(&transcripts->mutex, NULL);
    *out = transcripts;
    return HEARTH_OK;
}

bool hearth_transcripts_flush(struct hearth_transcripts *transcripts, int64_t timeout_us) {
    return transcripts->archive == NULL || hearth_archive_flush(transcripts->archive, timeout_us);
}

void hearth_transcripts_destroy(struct hearth_transcripts *transcripts) {
    if (transcripts == NULL) {
        return;
    }
    hearth_archive_destroy(transcripts->archive);
    transcripts->archive = NULL;
    transcripts->budget_bytes = 0;
    hearth_transcript_record(transcripts, &transcripts->root, transcripts->root.root, NULL, 0);
    hearth_transcript_unlist(&transcripts->past, &transcripts->root.past);
    hearth_transcript_evict(transcripts);
    HEARTH_ASSERT(transcripts->stats.nodes == 0 && transcripts->stats.replies == 0 && transcripts->stats.bytes == 0);
    HEARTH_ASSERT(transcripts->root.pins == 0);
    hearth_lru_finish(&transcripts->nodes);
    hearth_table_finish(&transcripts->replies);
    hearth_table_finish(&transcripts->past);
    hearth_table_finish(&transcripts->echoes);
    hearth_specials_destroy(transcripts->specials);
    pthread_mutex_destroy(&transcripts->mutex);
    free(transcripts);
}

void hearth_transcripts_stats(struct hearth_transcripts *transcripts, struct hearth_transcripts_stats *stats) {
    pthread_mutex_lock(&transcripts->mutex);
    *stats = transcripts->stats;
    pthread_mutex_unlock(&transcripts->mutex);
    if (transcripts->archive != NULL) {
        hearth_archive_stats(transcripts->archive, &stats->archive);
    }
}

/* ---- check ---- */

static size_t check_replies(struct hearth_transcripts *transcripts, struct text_node *node, size_t *bytes) {
    size_t count = 0;
    for (struct reply *reply = node->replies; reply != NULL; reply = reply->next) {
        HEARTH_ASSERT(reply->node == node);
        struct reply *found = hearth_transcript_reply(transcripts, reply->link.key);
        while (found != reply) {
            HEARTH_ASSERT(found != NULL);
            found = hearth_transcript_next_reply(found);
        }
        *bytes += reply_bytes(reply);
        count++;
    }
    HEARTH_ASSERT(count <= REPLIES_MAX);
    return count;
}

void hearth_transcripts_check(struct hearth_transcripts *transcripts) {
    pthread_mutex_lock(&transcripts->mutex);
    size_t nodes = 0, children = transcripts->root.children, noted = transcripts->root.past.listed;
    size_t bytes = transcripts->root.said_count * sizeof *transcripts->root.said;
    size_t replies = check_replies(transcripts, &transcripts->root, &bytes);
    for (struct hearth_lru_entry *entry = transcripts->nodes.newest; entry != NULL; entry = entry->older) {
        struct text_node *node = (struct text_node *)entry;
        HEARTH_ASSERT((node->start
                           ? hearth_transcript_node(transcripts, node->lru.link.key)
                           : hearth_transcript_known_child(transcripts, node->parent, node->text, node->len)) == node);
        HEARTH_ASSERT(entry->older != NULL ? entry->older->newer == entry : transcripts->nodes.oldest == entry);
        size_t siblings = 0;
        for (const struct text_node *child = node->child; child != NULL; child = child->next) {
            HEARTH_ASSERT(child->parent == node && (child->next == NULL || child->next->previous == child));
            siblings++;
        }
        HEARTH_ASSERT(siblings == node->children);
        replies += check_replies(transcripts, node, &bytes);
        bytes += node_bytes(node);
        noted += node->past.listed;
        children += node->children;
        nodes++;
    }
    HEARTH_ASSERT(nodes == transcripts->stats.nodes && nodes == transcripts->nodes.table.count && nodes == children);
    HEARTH_ASSERT(replies == transcripts->stats.replies && replies == transcripts->replies.count);
    HEARTH_ASSERT(bytes == transcripts->stats.bytes && noted == transcripts->past.count);
    pthread_mutex_unlock(&transcripts->mutex);
}
