/* Inside the transcripts: the tree. transcript.c walks it, transcript_tree.c keeps it.
 *
 * Invariants. A node's key is its parent's chained with its text, and its text is compared before it is used. A node
 * with children, pins, or that is the root is never evicted. The LRU list holds every node but the root; a path is
 * touched from its end to the root, so the list's end is a leaf unless it is pinned. `bytes` is the sum over nodes,
 * their replies and their records. Everything is under the store's mutex. */
#ifndef HEARTH_SESSION_TRANSCRIPT_INTERNAL_H
#define HEARTH_SESSION_TRANSCRIPT_INTERNAL_H

#include "base/table.h"
#include "session/specials.h"
#include "session/transcript.h"

#include <pthread.h>

#define REPLIES_MAX 16 /* of one node */
#define VARIANTS_MAX 4 /* texts that one reply was printed as */

struct node {
    struct hearth_link link; /* first, so that it converts */
    struct node *parent;
    struct node *newer, *older; /* LRU list */
    struct node *child;         /* the child used last, or NULL; then by use: */
    struct node *next, *previous; /* siblings used before and after this one */
    size_t children, pins;
    char *text;
    size_t len;
    hearth_token *tokens;
    size_t token_count;
    size_t sampled; /* of its tokens, the last so many were sampled; 0: tokenised */
    struct reply *replies; /* newest first: to prompts that end a little behind this node */
    struct hearth_transcript_root root; /* of the prompt that ended here */
    struct hearth_said *said;  /* its messages, or NULL */
    size_t said_count;
};

struct reply {
    struct hearth_link link; /* by what was said up to and with it */
    struct reply *next;
    struct node *node;
    struct hearth_message *message;
    char *head; /* text of the prompt behind the node */
    size_t head_len;
    char *raw; /* text of the sampled tokens, special ones printed */
    size_t raw_len;
    hearth_token *tokens; /* head, then sampled */
    size_t head_tokens, sampled;
    size_t variants[VARIANTS_MAX]; /* lengths of child nodes that stand for head + reply */
    size_t variant_count;
};

struct hearth_transcripts {
    struct hearth_engine *engine;
    struct hearth_specials *specials;
    size_t budget_bytes;
    pthread_mutex_t mutex;
    struct hearth_table nodes, replies;
    struct node root;
    struct node *newest, *oldest;
    struct hearth_transcripts_stats stats;
};

struct hearth_transcript_place {
    struct node *node; /* pinned */
    char *head;
    size_t head_len;
    struct hearth_tokens tokens; /* of the head */
    struct hearth_digest said;   /* the chain over the prompt's messages */
};

/* One prompt on its way through the tree. */
struct walk {
    struct hearth_transcripts *transcripts;
    const struct hearth_transcript_prompt *prompt;
    struct hearth_transcript_result *result;
    struct node *at;
    size_t pos;  /* byte of the text */
    bool starts; /* the text is the beginning of the prompt */
};

/* What is new of a prompt, from one control token to the next. */
struct piece {
    size_t pos, end, first, count; /* bytes of the text, tokens of the result */
};

struct pieces {
    struct piece *v;
    size_t n, cap;
};

/* ---- transcript.c ---- */

/* Tokens of a tokenised piece that begins at byte `pos` and that end at or before byte `offset`. */
size_t hearth_transcript_tokens_before(const struct walk *walk, const hearth_token *tokens, size_t count, size_t pos,
                                       size_t offset);

struct hearth_said hearth_transcript_said(const struct hearth_message *message);

/* ---- transcript_fork.c ---- */

/* The walk has ended in front of text that is new here. */
void hearth_transcript_find_fork(const struct walk *walk);
/* The token of the prompt that the fork's byte is in; after everything is tokenised. */
void hearth_transcript_find_fork_token(const struct walk *walk, const struct pieces *pieces);

/* ---- transcript_tree.c ---- */

/* The child of `parent` with this text, or NULL. */
struct node *hearth_transcript_child(struct hearth_transcripts *transcripts, const struct node *parent,
                                     const char *text, size_t len);
/* Adds a child that is not there; text and tokens are copied. NULL: out of memory. */
struct node *hearth_transcript_add(struct hearth_transcripts *transcripts, struct node *parent, const char *text,
                                   size_t len, const hearth_token *tokens, size_t count, size_t sampled);
/* Marks a path as used just now. */
void hearth_transcript_touch(struct hearth_transcripts *transcripts, struct node *node);
/* Replaces the record of the prompt that ends at a node; `said` is taken over. */
void hearth_transcript_record(struct hearth_transcripts *transcripts, struct node *node,
                              struct hearth_transcript_root root, struct hearth_said *said, size_t count);
/* Puts a reply at the head of its node's list; the oldest of too many goes. The reply is taken over. False: out of
 * memory, nothing taken. */
bool hearth_transcript_add_reply(struct hearth_transcripts *transcripts, struct reply *reply);
void hearth_transcript_free_reply(struct reply *reply);
/* First reply of a chain digest; then `link.next` of the same key. */
struct reply *hearth_transcript_reply(struct hearth_transcripts *transcripts, struct hearth_digest said);
struct reply *hearth_transcript_next_reply(const struct reply *reply);
/* Evicts down to the budget. */
void hearth_transcript_evict(struct hearth_transcripts *transcripts);

#endif
