/* Messages by the bytes they came as. An agent sends the same bytes with every request: what was read once is found
 * again without parsing. Kept apart by salt: how soon a message is read tells no tenant what another one has sent.
 * Bounded by bytes; what was unused for longest goes first. Threads: any. */
#ifndef HEARTH_SESSION_MESSAGE_CACHE_H
#define HEARTH_SESSION_MESSAGE_CACHE_H

#include "base/digest.h"
#include "session/message.h"

struct hearth_message_cache;

/* NULL: out of memory. */
struct hearth_message_cache *hearth_message_cache_create(size_t budget_bytes);
void hearth_message_cache_destroy(struct hearth_message_cache *cache); /* NULL is allowed */

/* A new reference to the message that these bytes were read as, or NULL. */
struct hearth_message *hearth_message_cache_get(struct hearth_message_cache *cache, struct hearth_digest salt,
                                                const char *bytes, size_t len);
/* Remembers what bytes were read as; takes a reference of its own. */
void hearth_message_cache_put(struct hearth_message_cache *cache, struct hearth_digest salt, const char *bytes,
                              size_t len, struct hearth_message *message);

#endif
