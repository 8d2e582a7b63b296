/* The earlier prompt of the same conversation, for diagnoses: a prompt may have more in common with the one of another
 * client, and what has changed is told by its own.
 *
 * Each node at which a prompt has ended is also found by the program that has sent it, the last message of that prompt
 * and the one before it, if there is one. The earlier prompt of one that comes is that of its newest message by which
 * there is one. Two conversations may have such messages in common: so the first message has to be the same,
 * or some more; and where it is the first one itself, the reply to it or the system text. There is one node per key,
 * the newest. What is not in memory is looked for in the archive; where it is not there either, the diagnosis has what
 * stands next to the prompt in the tree.
 *
 * A client that runs out of context has the conversation summarised, and puts what was replied in the place of its
 * beginning, in whole or without the reply's own frame: so a reply is also found by its longest line. What stands in
 * the history as a reply leads to the prompt that it was given to, where nothing else does; what a first message is
 * made of says that it is a summary. */
#include "session/transcript_internal.h"

#include <stddef.h>
#include <string.h>

static bool is_first(const struct hearth_transcript_prompt *prompt, size_t i) {
    return i == 0 || hearth_role_is_system(prompt->messages[i - 1]->role);
}

/* The key of the prompt's message `i`. False: no prompt is found by this message. */
static bool key_of(const struct hearth_transcript_prompt *prompt, size_t i, struct hearth_digest *key) {
    const struct hearth_message *message = prompt->messages[i];
    if (message->role == HEARTH_ROLE_ASSISTANT || hearth_role_is_system(message->role)) {
        return false;
    }
    const struct hearth_digest before = is_first(prompt, i) ? (struct hearth_digest){0} : prompt->messages[i - 1]->says;
    *key = hearth_digest_chain(prompt->root.salt, &prompt->client, sizeof prompt->client);
    *key = hearth_digest_chain(*key, &before, sizeof before);
    *key = hearth_digest_chain(*key, &message->says, sizeof message->says);
    return true;
}

static struct text_node *node_of(struct hearth_link *link) {
    return link != NULL ? (struct text_node *)(void *)((char *)link - offsetof(struct text_node, past)) : NULL;
}

/* Lists an entry by a key, in the place of an older one. */
static void list(struct hearth_table *table, struct transcript_entry *entry, struct hearth_digest key) {
    hearth_transcript_unlist(table, entry);
    struct transcript_entry *older = (struct transcript_entry *)hearth_table_find(table, key);
    if (older != NULL) {
        hearth_transcript_unlist(table, older);
    }
    entry->link.key = key;
    entry->listed = hearth_table_add(table, &entry->link);
}

void hearth_transcript_note(struct hearth_transcripts *transcripts, struct text_node *node,
                            const struct hearth_transcript_prompt *prompt) {
    struct hearth_digest key;
    if (node->said != NULL && prompt->message_count > 0 && key_of(prompt, prompt->message_count - 1, &key)) {
        list(&transcripts->past, &node->past, key);
    }
}

#define ENOUGH_MESSAGES 4 /* so many equal messages in a row make two prompts one conversation */

/* The first message that is not system text; count: there is none. */
static size_t first_spoken(const struct hearth_said *said, size_t count) {
    size_t i = 0;
    while (i < count && hearth_role_is_system(said[i].role)) {
        i++;
    }
    return i;
}

#define ENOUGH_BYTES 128 /* or fewer equal messages of so many bytes, with a reply among them */

/* Whether the messages up to `i` here and up to the last one there are of one conversation. */
static bool goes_along(const struct hearth_transcript_prompt *prompt, size_t i, const struct text_node *node) {
    const size_t first = first_spoken(node->said, node->said_count);
    size_t alike = 0, now = 0, replies = 0, bytes = 0;
    while (alike <= i && alike < node->said_count &&
           hearth_digest_equal(node->said[node->said_count - 1 - alike].says, prompt->messages[i - alike]->says)) {
        replies += prompt->messages[i - alike]->role == HEARTH_ROLE_ASSISTANT;
        bytes += prompt->messages[i - alike]->content_len;
        alike++;
    }
    while (now < i && hearth_role_is_system(prompt->messages[now]->role)) {
        now++;
    }
    return alike >= ENOUGH_MESSAGES || (replies > 0 && bytes >= ENOUGH_BYTES) ||
           (first < node->said_count && hearth_digest_equal(node->said[first].says, prompt->messages[now]->says));
}

/* Whether this prompt continues the one that ended at the first message's node, or began with the same system text. */
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

/* ---- replies by their longest line ---- */

#define ECHO_BYTES 48 /* a shorter line may stand in any text */

struct echo_line {
    const char *at;
    size_t len;
};

/* The next line, without blanks around it. False: there is none. */
static bool next_line(struct echo_line *rest, struct echo_line *line) {
    if (rest->len == 0) {
        return false;
    }
    const char *end = memchr(rest->at, '\n', rest->len);
    *line = (struct echo_line){rest->at, end != NULL ? (size_t)(end - rest->at) : rest->len};
    const size_t step = line->len + (end != NULL);
    *rest = (struct echo_line){rest->at + step, rest->len - step};
    while (line->len > 0 && strchr(" \t\r", line->at[0]) != NULL) {
        *line = (struct echo_line){line->at + 1, line->len - 1};
    }
    while (line->len > 0 && strchr(" \t\r", line->at[line->len - 1]) != NULL) {
        line->len--;
    }
    return true;
}

static struct echo_line longest_line(const struct hearth_message *message) {
    struct echo_line rest = {message->content, message->content_len}, line, longest = {NULL, 0};
    while (next_line(&rest, &line)) {
        longest = line.len > longest.len ? line : longest;
    }
    return longest;
}

static struct hearth_digest echo_key(struct hearth_digest salt, struct echo_line line) {
    return hearth_digest_chain(salt, line.at, line.len);
}

static struct reply *reply_of(struct hearth_link *link) {
    return link != NULL ? (struct reply *)(void *)((char *)link - offsetof(struct reply, echo)) : NULL;
}

void hearth_transcript_note_reply(struct hearth_transcripts *transcripts, struct reply *reply) {
    const struct echo_line line = longest_line(reply->message);
    if (line.len >= ECHO_BYTES) {
        list(&transcripts->echoes, &reply->echo, echo_key(reply->root.salt, line));
    }
}

static const struct reply *find_echo(const struct hearth_transcripts *transcripts, struct hearth_digest salt,
                                     struct echo_line line) {
    return line.len >= ECHO_BYTES ? reply_of(hearth_table_find(&transcripts->echoes, echo_key(salt, line))) : NULL;
}

/* Whether half of the reply stands in the text, or half of the text is from the reply. */
static bool holds(const struct hearth_message *text, const struct hearth_message *reply) {
    struct echo_line rest = {reply->content, reply->content_len}, line;
    size_t found = 0;
    while (next_line(&rest, &line)) {
        found += line.len > 0 && memmem(text->content, text->content_len, line.at, line.len) != NULL ? line.len : 0;
    }
    return found * 2 >= reply->content_len || found * 2 >= text->content_len;
}

bool hearth_transcript_is_summary(const struct hearth_transcripts *transcripts,
                                  const struct hearth_transcript_prompt *prompt) {
    size_t first = 0;
    while (first < prompt->message_count && hearth_role_is_system(prompt->messages[first]->role)) {
        first++;
    }
    if (first == prompt->message_count || prompt->messages[first]->role != HEARTH_ROLE_USER) {
        return false;
    }
    const struct hearth_message *message = prompt->messages[first];
    struct echo_line rest = {message->content, message->content_len}, line;
    while (next_line(&rest, &line)) {
        const struct reply *reply = find_echo(transcripts, prompt->root.salt, line);
        if (reply != NULL && reply->node->said_count > prompt->message_count && reply->node->said_count > 2 &&
            holds(message, reply->message)) {
            return true;
        }
    }
    return false;
}

/* The prompt to which a reply of the history was given. */
static struct text_node *by_reply(const struct hearth_transcripts *transcripts, struct hearth_digest salt,
                                  const struct hearth_message *message) {
    const struct reply *reply = find_echo(transcripts, salt, longest_line(message));
    return reply != NULL && reply->node->said != NULL && hearth_digest_equal(reply->message->says, message->says)
               ? reply->node
               : NULL;
}

#define ASKED_MOST 8 /* most keys that the archive is asked for: those of the newest messages, and of the first */

static struct text_node *find_past(struct hearth_transcripts *transcripts, struct hearth_digest key, bool ask) {
    struct text_node *node = node_of(hearth_table_find(&transcripts->past, key));
    return node == NULL && ask ? hearth_transcript_load_past(transcripts, key) : node;
}

struct text_node *hearth_transcript_past(struct hearth_transcripts *transcripts,
                                         const struct hearth_transcript_prompt *prompt) {
    size_t asked = 0;
    for (size_t i = prompt->message_count; i-- > 0;) {
        struct hearth_digest key;
        if (prompt->messages[i]->role == HEARTH_ROLE_ASSISTANT) {
            struct text_node *there = by_reply(transcripts, prompt->root.salt, prompt->messages[i]);
            if (there != NULL) {
                return there;
            }
            continue;
        }
        const bool ask = asked++ < ASKED_MOST || is_first(prompt, i);
        struct text_node *node = key_of(prompt, i, &key) ? find_past(transcripts, key, ask) : NULL;
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
            return false; /* the difference lies in front of the text */
        } else {
            pos -= at->len;
            at = at->parent;
            here--;
        }
    }
    *from = pos;
    return append_path(at, past, then) && past != at;
}
