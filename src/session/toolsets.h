/* Which tools the prompts of a conversation describe, and where: in their head, or in a message that came later.
 *
 * Clients keep sending the tools that they have now. A tool that has come since the conversation began would change the
 * head of the prompt and so everything behind it; none at all (a compaction) would, too. So what a prompt described is
 * remembered with each reply to it, under the chain of what the client has sent up to and with that reply, and the next
 * request can be printed on from there. In memory only, bounded by bytes; what was unused for longest goes first.
 *
 * Tenants: the chain begins with a salt. Threads: any. */
#ifndef HEARTH_SESSION_TOOLSETS_H
#define HEARTH_SESSION_TOOLSETS_H

#include "base/table.h"
#include "session/message.h"

/* Immutable once it is shared; counted. */
struct hearth_toolset {
    struct hearth_link link; /* first, so that it converts; by what it says, to the letter; toolsets.c's, as is: */
    size_t held;             /* entries that hold it */
    size_t refs;             /* atomic */
    size_t bytes;            /* about how much memory it takes */
    json_t *head;            /* array of tools */
    json_t *late;            /* array of [index of the message that describes them, [tools]], by index */
};

/* Takes references of both. NULL: out of memory. */
struct hearth_toolset *hearth_toolset_create(json_t *head, json_t *late);
struct hearth_toolset *hearth_toolset_ref(struct hearth_toolset *set);
void hearth_toolset_unref(struct hearth_toolset *set); /* NULL is allowed */

struct hearth_toolsets;

/* NULL: out of memory. */
struct hearth_toolsets *hearth_toolsets_create(size_t budget_bytes);
void hearth_toolsets_destroy(struct hearth_toolsets *toolsets); /* NULL is allowed */

/* The chain over no messages; hearth_message_chain() adds a message. */
struct hearth_digest hearth_toolsets_begin(struct hearth_digest salt);

/* A new reference to the set of the prompt whose reply ends this chain, or NULL. */
struct hearth_toolset *hearth_toolsets_get(struct hearth_toolsets *toolsets, struct hearth_digest said);
/* Remembers the set in place of an earlier one; takes a reference of its own. */
void hearth_toolsets_put(struct hearth_toolsets *toolsets, struct hearth_digest said, struct hearth_toolset *set);

#endif
