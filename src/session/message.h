/* A chat message, in the one form that all rooms behind the API use.
 *
 * Messages are immutable once made and shared by reference: between a request, the transcripts that remember it, and
 * the next request that brings it again. Differences without a meaning are removed: content parts are one string, there
 * are five roles, nulls are absent, arguments are parsed.
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

/* Whether it is system text: a developer's is, too. */
static inline bool hearth_role_is_system(enum hearth_role role) {
    return role == HEARTH_ROLE_SYSTEM || role == HEARTH_ROLE_DEVELOPER;
}
const char *hearth_role_text(enum hearth_role role);
/* False: no such role. */
bool hearth_role_from_text(const char *text, enum hearth_role *out);

/* A call of a tool by the model. Strings are NUL-terminated UTF-8 and never NULL but for `id`. */
struct hearth_call {
    char *id; /* or NULL */
    char *name;
    char *arguments; /* JSON text, as the model wrote it or as the client sent it */
    json_t *parsed;  /* the arguments as a value; NULL: they are not JSON (a call that was cut short) */
};

struct hearth_message {
    size_t refs; /* atomic */
    enum hearth_role role;
    char *content; /* never NULL; `content_len` bytes and a NUL */
    size_t content_len;
    char *reasoning;    /* or NULL */
    char *unseen;       /* content that is not text, for which notes stand in the content: one line each; or NULL */
    char *name;         /* of a tool or a participant, or NULL */
    char *tool_call_id; /* tool results, or NULL */
    struct hearth_call *calls;
    size_t call_count;
    /* What the message says: role, content without white space around it, calls by name and canonical arguments.
     * Not: ids, names, reasoning. Filled by hearth_message_seal(). */
    struct hearth_digest says;
    size_t bytes; /* about how much memory it takes; hearth_message_seal() fills it */
};

/* An empty message with one reference. Fill it, then seal it. NULL: out of memory. */
struct hearth_message *hearth_message_create(enum hearth_role role);
/* Room for calls, zeroed. False: out of memory. */
bool hearth_message_alloc_calls(struct hearth_message *message, size_t count);
/* Whether there is nothing to print: no text, in a role that has nothing else. An assistant's message is never empty,
 * because a reply may have been empty: it is printed as it was sampled. Nor is a tool's result. Before or after
 * sealing. */
bool hearth_message_is_empty(const struct hearth_message *message);
/* Parses `arguments`, and computes `says` and `bytes`; a content of NULL becomes "". The message is immutable from here
 * on. False: out of memory. */
bool hearth_message_seal(struct hearth_message *message);
struct hearth_message *hearth_message_ref(struct hearth_message *message);
void hearth_message_unref(struct hearth_message *message); /* NULL is allowed */

/* Parses JSON text; `flags` are jansson's, and `error` may be NULL. Integers beyond 64 bits are no error: they become
 * reals, and every other number stays what it is. Nor is half of a surrogate pair (\ud83d alone): it becomes U+FFFD. */
json_t *hearth_json_parse(const char *text, size_t len, size_t flags, json_error_t *error);

/* Canonical JSON: compact, keys sorted, 1.0 as 1, reals with 15 digits, so that equal values are equal text. NULL: out
 * of memory. Caller frees. */
char *hearth_json_canonical(const json_t *value);

/* A checksum of the arguments of its calls as they are written, which `says` does not include; 0: it has no calls. */
uint32_t hearth_message_printed(const struct hearth_message *message);

/* The digest of a conversation up to and including a message, from the digest of what came before. */
struct hearth_digest hearth_message_chain(struct hearth_digest said, const struct hearth_message *message);

/* Text without white space at both ends. */
const char *hearth_message_trim(const char *text, size_t *len);

/* Whether two texts are equal without white space at both ends, which templates strip. */
bool hearth_message_alike(const char *a, size_t na, const char *b, size_t nb);

/* True when two messages say the same (see `says`), and the same reasoning where both have some. */
bool hearth_message_equal(const struct hearth_message *a, const struct hearth_message *b);

/* Whether `print`, parsed from what a template printed, is a print of `message`: it says the same, except that
 * templates print numbers with six digits, and other values as texts for them ("None"). Missing reasoning was not
 * printed; words in front of a call may be printed as reasoning (gpt-oss). */
bool hearth_message_is_print(const struct hearth_message *print, const struct hearth_message *message);

#endif
