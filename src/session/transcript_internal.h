/* Inside the transcripts: the tree. transcript.c walks it, transcript_tree.c has its nodes and replies,
 * transcript_archive.c loads and saves them, as transcript_pack.c writes them, transcript_past.c finds a conversation's
 * earlier prompt, transcript_fork.c says where a prompt leaves what was known, transcript_forget.c deletes.
 *
 * The tree has one start for prompts without a salt, its root, and one for each salt: a node below the root that has no
 * text, is found by its key alone and is not among the root's children, so that no prompt and no fork gets there from
 * another start.
 *
 * Invariants. A node's key is its parent's chained with its text, and its text is compared before it is used. A node
 * with children, pins, or that is the root is never evicted. The LRU list holds every node but the root; a path is
 * touched from its end to the root, so the list's end is a leaf unless it is pinned. `bytes` is the sum over nodes,
 * their replies and their records. Everything is under the store's mutex. */
#ifndef HEARTH_SESSION_TRANSCRIPT_INTERNAL_H
#define HEARTH_SESSION_TRANSCRIPT_INTERNAL_H

#include "base/lru.h"
#include "session/specials.h"
#include "session/transcript.h"

#include <pthread.h>

#define REPLIES_MAX HEARTH_ARCHIVE_REPLIES_MAX /* of one node */
#define VARIANTS_MAX 4                         /* texts that one reply was printed as */

/* Of a node or a reply, in a table that has one for each key, the newest (transcript_past.c). */
struct transcript_entry {
    struct hearth_link link; /* first, so that it converts */
    bool listed;
};

struct text_node {
    struct hearth_lru_entry lru; /* first, so that it converts */
    struct text_node *parent;
    struct text_node *child;           /* the most recently used child, or NULL; its siblings follow by use: */
    struct text_node *next, *previous; /* siblings used before and after this node */
    size_t children, pins;
    char *text;
    size_t len;
    hearth_token *tokens;
    size_t token_count;
    size_t sampled;                     /* how many of its last tokens were sampled; 0: all were tokenised */
    struct reply *replies;              /* to prompts that end a little behind this node, the newest first */
    struct hearth_transcript_root root; /* of the prompt that ended here */
    struct hearth_said *said;           /* messages of that prompt, or NULL */
    size_t said_count;
    bool start;                     /* it is the start of a salt */
    bool loaded;                    /* for a start: its replies are loaded */
    struct hearth_digest print_of;  /* the reply of which this node is a print, or zero */
    uint64_t stored, record_stored; /* generation of the archive in which it was stored; 0: none */
    struct transcript_entry past;   /* by the last message of the prompt that ended here */
};

struct reply {
    struct hearth_link link; /* by the chain up to and including the reply */
    struct hearth_digest id; /* digest of the whole reply: equal ids mean equal replies */
    uint64_t stored;         /* as for a node */
    bool complete;           /* all of the archive's replies with this key are loaded */
    struct reply *next;
    struct text_node *node;
    struct hearth_transcript_root root; /* of the prompt, but for the salt */
    struct hearth_message *message;
    char *head; /* text of the prompt behind the node */
    size_t head_len;
    char *raw; /* text of the sampled tokens, special ones printed */
    size_t raw_len;
    hearth_token *tokens; /* head, then sampled */
    size_t head_tokens, sampled;
    size_t variants[VARIANTS_MAX]; /* lengths of child nodes that stand for head + reply */
    size_t variant_count;
    struct transcript_entry echo; /* by its longest line */
};

struct hearth_transcripts {
    struct hearth_engine *engine;
    struct hearth_specials *specials;
    struct hearth_archive *archive; /* or NULL */
    size_t budget_bytes;
    pthread_mutex_t mutex;
    struct hearth_lru nodes;
    struct hearth_table replies;
    struct hearth_table past, echoes;
    struct text_node root;
    struct hearth_transcripts_stats stats;
};

struct hearth_transcript_place {
    struct text_node *node; /* pinned */
    char *head;
    size_t head_len;
    struct hearth_tokens tokens; /* of the head */
    struct hearth_digest said;   /* the chain over the prompt's messages */
    struct hearth_transcript_root root;
};

/* What a record holds of a message. */
static inline struct hearth_said hearth_transcript_said_of(const struct hearth_message *message) {
    return (struct hearth_said){message->says, hearth_checksum(message->content, message->content_len), message->role,
                                hearth_message_printed(message)};
}

/* ---- transcript_tree.c ---- */

/* The child of `parent` with this text that is in memory, or NULL. */
struct text_node *hearth_transcript_known_child(struct hearth_transcripts *transcripts, const struct text_node *parent,
                                                const char *text, size_t len);
/* The node of a key (the root's, too) if it is in memory, or NULL. */
struct text_node *hearth_transcript_node(struct hearth_transcripts *transcripts, struct hearth_digest key);
/* The key of a salt's start, and a node for it; NULL: out of memory. */
struct hearth_digest hearth_transcript_start_key(const struct hearth_transcripts *transcripts,
                                                 struct hearth_digest salt);
struct text_node *hearth_transcript_add_start(struct hearth_transcripts *transcripts, struct hearth_digest key);
/* Adds a child that is not there yet; copies text and tokens. NULL: out of memory. */
struct text_node *hearth_transcript_add(struct hearth_transcripts *transcripts, struct text_node *parent,
                                        const char *text, size_t len, const hearth_token *tokens, size_t count,
                                        size_t sampled);
/* Marks a path as used now. */
void hearth_transcript_touch(struct hearth_transcripts *transcripts, struct text_node *node);
/* Replaces the record of the prompt that ends at a node; `said` is taken over. */
void hearth_transcript_record(struct hearth_transcripts *transcripts, struct text_node *node,
                              struct hearth_transcript_root root, struct hearth_said *said, size_t count);
/* Puts a reply at the head of its node's list, which drops the oldest beyond the limit. Takes the reply; if one of the
 * same id is there, that one is moved to the head. NULL: out of memory, nothing was taken. */
struct reply *hearth_transcript_add_reply(struct hearth_transcripts *transcripts, struct reply *reply);
void hearth_transcript_free_reply(struct reply *reply);
/* Fills `raw` from the sampled tokens. False: out of memory. */
bool hearth_transcript_add_raw(struct hearth_engine *engine, struct reply *reply);
/* The first reply of a chain digest; further ones by `link.next` with the same key. */
struct reply *hearth_transcript_reply(struct hearth_transcripts *transcripts, struct hearth_digest said);
struct reply *hearth_transcript_next_reply(const struct reply *reply);
/* Frees a reply; and a leaf that is not pinned, with all that it has. */
void hearth_transcript_drop_reply(struct hearth_transcripts *transcripts, struct reply *reply);
void hearth_transcript_drop_node(struct hearth_transcripts *transcripts, struct text_node *node);
/* Takes an entry out of its table, if it is listed. */
void hearth_transcript_unlist(struct hearth_table *table, struct transcript_entry *entry);
/* Evicts until the budget is kept. */
void hearth_transcript_evict(struct hearth_transcripts *transcripts);

/* ---- transcript_archive.c; everything in memory only without an archive ---- */

/* The child of `parent` with this text, from memory or the archive, or NULL. */
struct text_node *hearth_transcript_child(struct hearth_transcripts *transcripts, struct text_node *parent,
                                          const char *text, size_t len);
/* Where prompts of a salt (zero: none) start. NULL: out of memory. */
struct text_node *hearth_transcript_start(struct hearth_transcripts *transcripts, struct hearth_digest salt);
/* Loads the archive's replies of a chain digest, with their paths. */
void hearth_transcript_load_said(struct hearth_transcripts *transcripts, struct hearth_digest said);
/* Loads the most recently used children, at most so many; with `tokens`, those of them that these begin with. */
void hearth_transcript_load_children(struct hearth_transcripts *transcripts, struct text_node *node, size_t max,
                                     const hearth_token *tokens, size_t token_count);
/* Loads the record of a node that has none. */
void hearth_transcript_load_record(struct hearth_transcripts *transcripts, struct text_node *node);
/* Whether a node has children, in memory or in the archive. */
bool hearth_transcript_has_children(struct hearth_transcripts *transcripts, const struct text_node *node);
/* Has the archive delete a reply, or a node without children. False: its queue has no room. */
bool hearth_transcript_delete(struct hearth_transcripts *transcripts, enum hearth_archive_kind kind,
                              struct hearth_digest key);
/* Queues a reply, and the part of its path that the archive lacks. */
void hearth_transcript_save(struct hearth_transcripts *transcripts, struct reply *reply);

/* The node, with its record, where the prompt with this key ended. NULL: there is none. */
struct text_node *hearth_transcript_load_past(struct hearth_transcripts *transcripts, struct hearth_digest key);

/* ---- transcript_past.c ---- */

/* Enters the prompt that ended at a node, by its last message. */
void hearth_transcript_note(struct hearth_transcripts *transcripts, struct text_node *node,
                            const struct hearth_transcript_prompt *prompt);
/* Enters a reply, by its longest line. */
void hearth_transcript_note_reply(struct hearth_transcripts *transcripts, struct reply *reply);
/* Whether the first message that is not system text contains a reply to a longer prompt: a summary of that prompt. */
bool hearth_transcript_is_summary(const struct hearth_transcripts *transcripts,
                                  const struct hearth_transcript_prompt *prompt);
/* Where the earlier prompt of the same conversation ended, or NULL. */
struct text_node *hearth_transcript_past(struct hearth_transcripts *transcripts,
                                         const struct hearth_transcript_prompt *prompt);
/* Whether the path to `past` leaves the path to `at`, which stands for the first `pos` bytes of a prompt's text: at
 * byte `*from`, with the text `then` from there on. False also if it leaves it before the text, or out of memory. */
bool hearth_transcript_past_parts(const struct text_node *past, const struct text_node *at, size_t pos, size_t *from,
                                  struct hearth_buf *then);

/* ---- transcript_fork.c ---- */

/* Finds where a prompt leaves what is known: its walk ended at a node, at byte `pos` of its text. */
void hearth_transcript_find_fork(struct hearth_transcripts *transcripts, const struct hearth_transcript_prompt *prompt,
                                 struct text_node *at, size_t pos, struct hearth_transcript_fork *fork);

/* ---- transcript_pack.c; false, NULL: out of memory, or not what was packed ---- */

bool hearth_transcript_pack_node(const struct text_node *node, struct hearth_buf *out);
bool hearth_transcript_pack_reply(const struct reply *reply, struct hearth_buf *out);
/* `base`: a node further up from whose record the beginning may be copied, or NULL. */
bool hearth_transcript_pack_record(const struct text_node *node, const struct text_node *base, struct hearth_buf *out);
/* Fills text and tokens, which the caller owns, and `sampled`. */
bool hearth_transcript_unpack_node(const struct hearth_buf *body, struct text_node *node);
/* A reply without node, key, id and raw. */
struct reply *hearth_transcript_unpack_reply(const struct hearth_buf *body);
/* The key of the node that a record was packed against, or zero. */
struct hearth_digest hearth_transcript_record_base(const struct hearth_buf *body);
struct hearth_said *hearth_transcript_unpack_record(const struct hearth_buf *body, const struct text_node *base,
                                                    struct hearth_transcript_root *root, size_t *count);
/* Computes the id of a reply with node and key set. False: out of memory. */
bool hearth_transcript_name_reply(struct reply *reply);

#endif
