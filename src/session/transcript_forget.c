/* Deletes what the transcripts hold of a conversation.
 *
 * A conversation is known by its exact tokens. They lead through the tree: at each node to the child whose tokens come
 * next, at the end to a reply. From there it goes back up: replies of the path go, then nodes on which nothing else
 * hangs, until a node is shared, pinned, or within what is to stay. */
#include "session/transcript_internal.h"

#include <string.h>

#define CHILDREN_MAX 65536 /* most children of one node that are compared */

/* The tokens, and how far the tree has them. */
struct path {
    const hearth_token *tokens;
    size_t count, shared;
    bool lost; /* a deletion found no room on the way to the database */
};

static bool comes_next(const struct path *path, size_t at, const hearth_token *tokens, size_t count) {
    return count > 0 && count <= path->count - at && memcmp(path->tokens + at, tokens, count * sizeof *tokens) == 0;
}

static struct text_node *next_node(struct hearth_transcripts *transcripts, const struct path *path,
                                   struct text_node *node, size_t at) {
    for (int loaded = 0; loaded < 2; loaded++) {
        for (struct text_node *child = node->child; child != NULL; child = child->next) {
            if (comes_next(path, at, child->tokens, child->token_count)) {
                return child;
            }
        }
        if (loaded == 0) {
            hearth_transcript_load_children(transcripts, node, CHILDREN_MAX, path->tokens + at, path->count - at);
        }
    }
    return NULL;
}

/* Drops replies to prompts that end a little behind a node, if they belong to the path alone. */
static void drop_replies(struct hearth_transcripts *transcripts, struct path *path, struct text_node *node, size_t at) {
    for (struct reply *reply = node->replies, *next; reply != NULL; reply = next) {
        const size_t count = reply->head_tokens + reply->sampled;
        next = reply->next;
        if (comes_next(path, at, reply->tokens, count) && at + count > path->shared) {
            path->lost = !hearth_transcript_delete(transcripts, HEARTH_ARCHIVE_REPLY, reply->id) || path->lost;
            hearth_transcript_drop_reply(transcripts, reply);
        }
    }
}

static bool may_go(struct hearth_transcripts *transcripts, const struct text_node *node) {
    return node->parent != NULL && !node->start && node->pins == 0 && node->replies == NULL &&
           !hearth_transcript_has_children(transcripts, node);
}

/* Deletes nodes upwards. `at`: tokens up to the node's end. */
static void go_up(struct hearth_transcripts *transcripts, struct path *path, struct text_node *node, size_t at) {
    drop_replies(transcripts, path, node, at);
    while (at > path->shared && may_go(transcripts, node)) {
        struct text_node *parent = node->parent;
        at -= node->token_count;
        path->lost = !hearth_transcript_delete(transcripts, HEARTH_ARCHIVE_NODE, node->lru.link.key) || path->lost;
        hearth_transcript_drop_node(transcripts, node);
        node = parent;
        drop_replies(transcripts, path, node, at);
    }
}

bool hearth_transcripts_forget(struct hearth_transcripts *transcripts, struct hearth_digest salt,
                               const hearth_token *tokens, size_t count, size_t keep_tokens) {
    struct path path = {tokens, count, keep_tokens, false};
    pthread_mutex_lock(&transcripts->mutex);
    struct text_node *node = hearth_transcript_start(transcripts, salt);
    size_t at = 0;
    for (struct text_node *next = node; next != NULL && at < count;) {
        next = next_node(transcripts, &path, node, at);
        if (next != NULL) {
            at += next->token_count;
            node = next;
        }
    }
    const bool found = node != NULL;
    if (found) {
        go_up(transcripts, &path, node, at);
    }
    hearth_transcript_evict(transcripts);
    pthread_mutex_unlock(&transcripts->mutex);
    return found && !path.lost;
}
