/* Transcripts: the exact tokens of conversations.
 *
 * A prompt comes as text that a template printed from what the client sent. The transcripts turn it into tokens. They
 * save work twice: text that was seen before in this place is not tokenised again, and where a reply of this server
 * stands in the history, its sampled tokens are used, however template and client print it now.
 *
 *     root ── "<|im_start|>system\n…" ── "<|im_end|>\n" ── "<|im_start|>user\n…" ── "<|im_end|>\n" ──┬── …
 *                                                                                                    └─ reply
 *
 * Known text is a tree. A node is a stretch of text that begins where the tokenizer cuts anyway (session/specials.h),
 * with its tokens; a path from the root is the beginning of a prompt. Conversations share what they have in common.
 * A prompt ends a little behind a node (with "<|im_start|>assistant\n"), and there the replies to it are stored:
 * message, tokens, text. The next prompt of the conversation has other text in this place: the reply as the template
 * prints it. If that text *reads* as the same message (the caller's parser decides), it becomes a node with the sampled
 * tokens. A template that leaves something out on purpose (thinking) prints a text that reads differently, and
 * wins: its text is tokenised as it stands.
 *
 * Replies are also found by what the messages before them say (a digest chain), so that a history comes back complete:
 * hearth_transcripts_restore() puts the message as it was sampled in the place of what the client made of it
 * (arguments re-printed, reasoning dropped). Tools and template arguments are no part of the chain: a reply was said,
 * whatever the next request may call.
 *
 * Memory is bounded by bytes; what was unused for longest goes first, leaves before what they hang on. With a path,
 * what is remembered is also stored in a database (session/archive.h) and found there again: after a restart, and after
 * it had to leave memory.
 *
 * Tenants: what was said under one salt is never found, nor shown in a fork, under another. Threads: any. */
#ifndef HEARTH_SESSION_TRANSCRIPT_H
#define HEARTH_SESSION_TRANSCRIPT_H

#include "engine/engine.h"
#include "session/archive.h"
#include "session/message.h"
#include "session/specials.h"

struct hearth_transcripts;

struct hearth_transcripts_params {
    struct hearth_engine *engine; /* borrowed; its text operations are used */
    const char *turn_end; /* what the template prints behind a message of the assistant ("<|im_end|>\n"); "": unknown */
    const char *template_text;      /* of the chat template, or NULL: see hearth_specials_create() */
    size_t budget_bytes;            /* of memory */
    const char *path;               /* database; its directory exists. NULL: memory only */
    const struct hearth_seal *seal; /* encrypts the database; borrowed; NULL: it is not encrypted */
    uint64_t path_bytes;            /* limit of the database; 0: 4 * budget_bytes */
};

/* Strings are copied. A database that cannot be opened is no error: it is logged and tried again. Errors: NOMEM. */
int hearth_transcripts_create(const struct hearth_transcripts_params *params, struct hearth_transcripts **out);
/* Destroys the transcripts. Every place must have been released. Writes what the database lacks. */
void hearth_transcripts_destroy(struct hearth_transcripts *transcripts);
/* Waits until everything is in the database. False: it could not be written, or took too long. True without a path. */
bool hearth_transcripts_flush(struct hearth_transcripts *transcripts, int64_t timeout_us);

/* ---- what was said ---- */

/* What besides the messages decides what is printed. Only the salt is part of the chain: a template may print tools and
 * arguments behind the messages or nowhere, so the text decides what changing them costs. The root tells apart replies
 * to the same messages, and a diagnosis names the part that has changed. */
struct hearth_transcript_root {
    struct hearth_digest tools, arguments;
    struct hearth_digest salt; /* keeps tenants apart */
};

/* Either value may be NULL; the salt zero. */
struct hearth_transcript_root hearth_transcript_root(const json_t *tools, const json_t *template_arguments,
                                                     struct hearth_digest salt);

/* Replaces each assistant message that says the same as a remembered reply in this place by that reply's message; of
 * several replies, one under the same tools and arguments. With `ids`, its calls must also have the same ids (if either
 * has any), for templates that print ids. Owns: replaced references are exchanged. Returns how many messages are
 * replies of this server. */
size_t hearth_transcripts_restore(struct hearth_transcripts *transcripts, struct hearth_transcript_root root,
                                  struct hearth_message **messages, size_t count, bool ids);

/* ---- a prompt ---- */

#define HEARTH_TRANSCRIPT_MARKS_MAX 24

/* A reply's text as a template printed it, without guards, and the end of the prompt to which it replied (perhaps not
 * all of it, but everything with which the template begins a reply). */
struct hearth_transcript_print {
    const char *head;
    size_t head_len;
    const char *text;
    size_t len;
};

/* Whether the text reads as `message`. */
typedef bool hearth_transcript_reads_fn(void *user, const struct hearth_transcript_print *print,
                                        const struct hearth_message *message);

struct hearth_transcript_prompt {
    const char *text; /* with guards (session/specials.h) */
    size_t len;
    struct hearth_transcript_root root;
    struct hearth_digest client;            /* identifies the program that sent it, for diagnoses; zero: unknown */
    bool names_previous;                    /* the client says that the earlier prompt is of the same conversation */
    struct hearth_message *const *messages; /* restored; without an assistant message that is to be continued */
    size_t message_count;
    /* Not 0: replies stay as they were sampled, whatever the template prints: messages[prefix_messages - 1] is the last
     * reply of this server, and `text` is only what follows it. 0: `text` is the whole prompt. */
    size_t prefix_messages;
    hearth_transcript_reads_fn *reads;
    void *user;
    size_t marks[HEARTH_TRANSCRIPT_MARKS_MAX]; /* byte offsets into text, ascending; those beyond `len` are
                                                  left out */
    size_t mark_count;
};

/* A message, as a record of an earlier prompt describes it; this is also how it is stored. */
struct hearth_said {
    struct hearth_digest says;
    uint64_t content; /* checksum of the content */
    enum hearth_role role;
    uint32_t printed; /* hearth_message_printed(); also 0: unknown */
};

/* Where a stretch of the prompt's text begins in its tokens. */
struct hearth_transcript_stretch {
    size_t offset, token;
};

/* Where a prompt left an earlier one, and what stood there then: the earlier prompt of its own conversation if that is
 * known, otherwise the one that agrees for longest. The caller finishes it. */
struct hearth_transcript_fork {
    bool known;                         /* false: the prompt continues something known, or nothing like it is known */
    bool own;                           /* the earlier prompt is of the same conversation */
    bool summary;                       /* the prompt begins with a reply to a longer one */
    size_t offset;                      /* byte of the prompt's text where the two differ */
    size_t reach;                       /* byte up to which text is known, from any conversation; at least `offset` */
    int32_t token;                      /* token of the prompt that contains this byte */
    char before[512], after[512];       /* text from there on, then and now; whole characters, NUL-terminated */
    struct hearth_transcript_root root; /* of the earlier prompt */
    struct hearth_said *said;           /* its messages */
    size_t said_count;
    struct hearth_transcript_stretch *stretches; /* of the new part of the prompt, and one for its end */
    size_t stretch_count;
    char *then; /* the earlier prompt's text from there on, as far as it is in memory */
    size_t then_len;
};

/* About how many tokens of the prompt stand in front of a byte of its text; exact at the beginning of a stretch. */
double hearth_transcript_fork_tokens(const struct hearth_transcript_fork *fork, size_t offset);
/* Frees what it has. */
void hearth_transcript_fork_finish(struct hearth_transcript_fork *fork);

/* A prompt's place in the tree. It is pinned until released. */
struct hearth_transcript_place;

struct hearth_transcript_result {
    struct hearth_tokens tokens;                /* the caller's to finish */
    int32_t marks[HEARTH_TRANSCRIPT_MARKS_MAX]; /* token positions, ascending, inside the prompt */
    size_t mark_count;
    int32_t placed[HEARTH_TRANSCRIPT_MARKS_MAX]; /* where each of the prompt's marks is (several may coincide); 0:
                                                    nowhere */
    size_t known_tokens;                         /* tokens found without tokenising */
    size_t sampled_tokens;                       /* tokens that were sampled here */
    struct hearth_transcript_fork fork;
    struct hearth_transcript_place *place;
};

/* Tokenises a prompt. On failure there is nothing to release. Errors: NOMEM, those of the tokenizer, and STATE if the
 * reply with which the prompt begins is gone (restore and try again). */
int hearth_transcripts_tokenize(struct hearth_transcripts *transcripts, const struct hearth_transcript_prompt *prompt,
                                struct hearth_transcript_result *result);
/* The last place before `end` at which the text may be cut: the text in front of it has the same tokens whatever
 * follows. 0: there is none. */
size_t hearth_transcripts_cut(struct hearth_transcripts *transcripts, const char *text, size_t len, size_t end);
/* The control tokens of the vocabulary. Borrowed, as long as the transcripts. */
const struct hearth_specials *hearth_transcripts_specials(const struct hearth_transcripts *transcripts);
void hearth_transcript_release(struct hearth_transcripts *transcripts, struct hearth_transcript_place *place);

/* Remembers a reply to the prompt at `place`: what it says, and the tokens that were sampled (without the end token).
 * Takes a reference of the message. */
void hearth_transcripts_remember(struct hearth_transcripts *transcripts, const struct hearth_transcript_place *place,
                                 struct hearth_message *message, const hearth_token *sampled, size_t count);

/* Deletes texts, replies and records along a path of exact tokens under a salt, from its end backwards to where
 * something else hangs on, or to the first `keep_tokens`; in memory at once, in the database once that is flushed.
 * Places in use stay. False: the database still has some of it, or out of memory; it is to be asked again. */
bool hearth_transcripts_forget(struct hearth_transcripts *transcripts, struct hearth_digest salt,
                               const hearth_token *tokens, size_t count, size_t keep_tokens);

struct hearth_transcripts_stats {
    size_t nodes, replies, bytes;
    uint64_t evicted;                    /* nodes, since the start */
    struct hearth_archive_stats archive; /* all zero without a path */
};
void hearth_transcripts_stats(struct hearth_transcripts *transcripts, struct hearth_transcripts_stats *stats);
/* Asserts every invariant. Linear. */
void hearth_transcripts_check(struct hearth_transcripts *transcripts);

#endif
