/* The earlier prompt of the same conversation, for diagnoses: a prompt may have more in common with the one of another
 * client, and what has changed is told by its own.
 *
 * Each node at which a prompt has ended is also found by the last message of that prompt and the one before it, or, for
 * a first message, by the program that has sent it. The earlier prompt of one that comes is that of its newest message
 * by which there is one. Two conversations may have such messages in common: so the first message has to be the same,
 * or some more; and where it is the first one itself, the reply to it or the system text. There is one node per key,
 * the newest. What left memory is not found: then the diagnosis has what stands next to the prompt in the tree. */
#include "session/transcript_internal.h"

#include <stddef.h>

static bool is_system(enum hearth_role role) {
    return role == HEARTH_ROLE_SYSTEM || role == HEARTH_ROLE_DEVELOPER;
}

static bool is_first(const struct hearth_transcript_prompt *prompt, size_t i) {
    return i == 0 || is_system(prompt->messages[i - 1]->role);
}

/* False: no prompt is found by this message. */
static bool key_of(const struct hearth_transcript_prompt *prompt, size_t i, struct hearth_digest *key) {
    const struct hearth_message *message = prompt->messages[i];
    if (message->role == HEARTH_ROLE_ASSISTANT || is_system(message->role)) {
        return false;
    }
    const struct hearth_digest before = is_first(prompt, i) ? prompt->client : prompt->messages[i - 1]->says;
    *key = hearth_digest_chain(prompt->root.salt, &before, sizeof before);
    *key = hearth_digest_chain(*key, &message->says, sizeof message->says);
    return true;
}

static struct text_node *node_of(struct hearth_link *link) {
    return link != NULL ? (struct text_node *)(void *)((char *)link - offsetof(struct text_node, past)) : NULL;
}

void hearth_transcript_unnote(struct hearth_transcripts *transcripts, struct text_node *node) {
    if (node->noted) {
        hearth_table_remove(&transcripts->past, &node->past);
        node->noted = false;
    }
}

void hearth_transcript_note(struct hearth_transcripts *transcripts, struct text_node *node,
                            const struct hearth_transcript_prompt *prompt) {
    struct hearth_digest key;
    if (node->said == NULL || prompt->message_count == 0 || !key_of(prompt, prompt->message_count - 1, &key)) {
        return;
    }
    hearth_transcript_unnote(transcripts, node);
    struct text_node *older = node_of(hearth_table_find(&transcripts->past, key));
    if (older != NULL) {
        hearth_transcript_unnote(transcripts, older);
    }
    node->past.key = key;
    node->noted = hearth_table_add(&transcripts->past, &node->past);
}

#define ENOUGH_MESSAGES 4 /* that two prompts have in a row, to be of one conversation */

/* The first message that is no system text; count: there is none. */
static size_t first_spoken(const struct hearth_said *said, size_t count) {
    size_t i = 0;
    while (i < count && is_system(said[i].role)) {
        i++;
    }
    return i;
}

/* Up to message `i` here and the last one there, both are of one conversation. */
static bool goes_along(const struct hearth_transcript_prompt *prompt, size_t i, const struct text_node *node) {
    const size_t first = first_spoken(node->said, node->said_count);
    size_t alike = 0, now = 0;
    while (alike <= i && alike < node->said_count &&
           hearth_digest_equal(node->said[node->said_count - 1 - alike].says, prompt->messages[i - alike]->says)) {
        alike++;
    }
    while (now < i && is_system(prompt->messages[now]->role)) {
        now++;
    }
    return alike >= ENOUGH_MESSAGES ||
           (first < node->said_count && hearth_digest_equal(node->said[first].says, prompt->messages[now]->says));
}

/* The prompt that ended at the node with the first message goes on in this one, or began with the same system text. */
static bool begins_alike(const struct hearth_transcript_prompt *prompt, size_t i, const struct text_node *node) {
    for (const struct reply *reply = node->replies; reply != NULL && i + 1 < prompt->message_count;
         reply = reply->next) {
        if (hearth_digest_equal(reply->message->says, prompt->messages[i + 1]->says)) {
            return true;
        }
    }
    bool same = node->said_count == i + 1;
    for (size_t s = 0; same && s < i; s++) {
        same = hearth_digest_equal(node->said[s].says, prompt->messages[s]->says);
    }
    return same;
}

struct text_node *hearth_transcript_past(struct hearth_transcripts *transcripts,
                                         const struct hearth_transcript_prompt *prompt) {
    for (size_t i = prompt->message_count; i-- > 0;) {
        struct hearth_digest key;
        struct text_node *node = key_of(prompt, i, &key) ? node_of(hearth_table_find(&transcripts->past, key)) : NULL;
        if (node != NULL && node->said != NULL &&
            (is_first(prompt, i) ? begins_alike(prompt, i, node) : goes_along(prompt, i, node))) {
            return node;
        }
    }
    return NULL;
}

static size_t depth_of(const struct text_node *node) {
    size_t depth = 0;
    for (; node->parent != NULL; node = node->parent) {
        depth++;
    }
    return depth;
}

static bool append_path(const struct text_node *from, const struct text_node *to, struct hearth_buf *out) {
    return to == from || (append_path(from, to->parent, out) && hearth_buf_append(out, to->text, to->len));
}

bool hearth_transcript_past_parts(const struct text_node *past, const struct text_node *at, size_t pos, size_t *from,
                                  struct hearth_buf *then) {
    size_t deep = depth_of(past), here = depth_of(at);
    const struct text_node *node = past;
    while (node != at) {
        if (deep >= here) {
            node = node->parent;
            deep--;
        } else if (at->len > pos) {
            return false; /* it lies in front of the text */
        } else {
            pos -= at->len;
            at = at->parent;
            here--;
        }
    }
    *from = pos;
    return append_path(at, past, then) && past != at;
}
