/* A chat message in the one form that everything behind the API knows.
 *
 * Messages are immutable once made and shared by reference: between a request, the transcripts that remember it, and
 * the next request that brings it again. What a client may print differently without meaning something else is already
 * undone here: content parts are one string, roles are five, nulls are absent, arguments are parsed.
 *
 * Threads: immutable, so any; the reference count is atomic. */
#ifndef HEARTH_SESSION_MESSAGE_H
#define HEARTH_SESSION_MESSAGE_H

#include "base/digest.h"
#include "base/err.h"
#include "session/json_memory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define HEARTH_ROLE_TABLE(X)  \
    X(SYSTEM, "system")       \
    X(DEVELOPER, "developer") \
    X(USER, "user")           \
    X(ASSISTANT, "assistant") \
    X(TOOL, "tool")

enum hearth_role {
#define X(name, text) HEARTH_ROLE_##name,
    HEARTH_ROLE_TABLE(X)
#undef X
};

const char *hearth_role_text(enum hearth_role role);
/* False: no such role. */
bool hearth_role_from_text(const char *text, enum hearth_role *out);

/* A call of a tool by the model. Strings are NUL-terminated UTF-8 and never NULL but for `id`. */
struct hearth_call {
    char *id; /* or NULL */
    char *name;
    char *arguments; /* JSON text, as the model wrote it or as the client sent it */
    json_t *parsed;  /* the same as a value; NULL when it is not JSON (a call that was cut short) */
};

struct hearth_message {
    size_t refs; /* atomic */
    enum hearth_role role;
    char *content; /* never NULL; `content_len` bytes and a NUL */
    size_t content_len;
    char *reasoning;    /* or NULL */
    char *unseen;       /* what was no text, and stands in the content as a note: a line each; or NULL */
    char *name;         /* of a tool or a participant, or NULL */
    char *tool_call_id; /* tool results, or NULL */
    struct hearth_call *calls;
    size_t call_count;
    /* What the message says: role, content without white space around it, calls by name and canonical arguments.
     * Not: ids, names, reasoning. Filled by hearth_message_seal(). */
    struct hearth_digest says;
    size_t bytes; /* memory it takes, about; filled by hearth_message_seal() */
};

/* An empty message with one reference. Fill it, then seal it. NULL: out of memory. */
struct hearth_message *hearth_message_create(enum hearth_role role);
/* Room for calls, zeroed. False: out of memory. */
bool hearth_message_alloc_calls(struct hearth_message *message, size_t count);
/* True when there is nothing to print: no text, of a role that has nothing else. An assistant's message is never empty,
 * for a reply may have been: it is printed as it was sampled. Nor is the result of a tool. Before or after sealing. */
bool hearth_message_is_empty(const struct hearth_message *message);
/* Parses what `arguments` hold, computes `says` and `bytes`; content may still be NULL and becomes "". From here on it
 * is immutable. False: out of memory. */
bool hearth_message_seal(struct hearth_message *message);
struct hearth_message *hearth_message_ref(struct hearth_message *message);
void hearth_message_unref(struct hearth_message *message); /* NULL is allowed */

/* Parses JSON text; `flags` are jansson's, and `error` may be NULL. Integers beyond 64 bits are no error: they become
 * reals, and every other number stays what it is. Nor is half of a surrogate pair (\ud83d alone): it becomes U+FFFD. */
json_t *hearth_json_parse(const char *text, size_t len, size_t flags, json_error_t *error);

/* Canonical JSON: compact, keys sorted, 1.0 as 1, reals with 15 digits, so that equal values are equal text. NULL: out
 * of memory. Caller frees. */
char *hearth_json_canonical(const json_t *value);

/* A checksum of the arguments of its calls as they are written, which `says` has no part of; 0: it has no calls. */
uint32_t hearth_message_printed(const struct hearth_message *message);

/* The digest of what was said up to and with a message, from that of what was said before. */
struct hearth_digest hearth_message_chain(struct hearth_digest said, const struct hearth_message *message);

/* Text without white space at both ends. */
const char *hearth_message_trim(const char *text, size_t *len);

/* True when two messages say the same (see `says`), and the same reasoning where both have some. */
bool hearth_message_equal(const struct hearth_message *a, const struct hearth_message *b);

/* True when `print`, read from what a template printed, is a print of `message`: the same, but that templates print
 * numbers with six digits, and other values than texts as texts that mean them ("None"). Reasoning that is missing is
 * not printed; words in front of a call may be printed as reasoning where there is none (gpt-oss). */
bool hearth_message_is_print(const struct hearth_message *print, const struct hearth_message *message);

#endif
