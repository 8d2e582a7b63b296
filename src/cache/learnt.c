/* Saving what the policy has learnt.
 *
 * A note goes to the backing tier, as that of a shared head does (cache/heads.c): a snapshot like any other under a
 * base that no prompt has. So it is written behind, whole or not at all, and is verified, sealed and evicted as pages
 * are. It has no tokens of any prompt in it.
 *
 *     base      H(root of the model, "learnt")
 *     tokens    two words of the state's digest: a note never changes, and another one replaces it
 *     state     header, numbers of struct hearth_hazard
 *
 * The note that most turns have taught is taken up when it is found at a start, and the others are removed. One that is
 * found later is of another server, which uses the same directory or store: both go on with what they know.
 *
 * The header says how many numbers there are of each kind, and FORM what they mean: what differs is of another version,
 * and is not used. */
#include "cache/learnt.h"

#include "cache/backing.h"

#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define EVERY_TURNS 64 /* turns between two saves */
#define NOTE_WORDS 2
#define SHARE 100                  /* one part in so many of the budget */
#define MAGIC UINT32_C(0x316e726c) /* "lrn1" */
#define FORM 1                     /* changes when hazard.h gives the numbers another meaning */
#define COUNT_MAX 1e6f             /* of any count; counts are halved long before (cache/hazard.c) */

struct header {
    uint32_t magic, form;
    uint32_t awaits, bins, factors, values, spans;
    uint32_t zero;
    uint64_t turns;
};

_Static_assert(sizeof(struct header) + sizeof(struct hearth_hazard) <= HEARTH_LEARNT_BYTES_MAX, "it is bounded");
_Static_assert(sizeof(struct hearth_hazard) % sizeof(float) == 0, "counts and nothing else");

static struct header header_of(uint64_t turns) {
    return (struct header){.magic = MAGIC,
                           .form = FORM,
                           .awaits = HEARTH_AWAITS_COUNT,
                           .bins = HEARTH_HAZARD_BINS,
                           .factors = HEARTH_HAZARD_FACTORS,
                           .values = HEARTH_HAZARD_VALUES,
                           .spans = HEARTH_HAZARD_SPANS,
                           .turns = turns};
}

void hearth_learnt_finish(struct hearth_learnt *learnt) {
    hearth_table_finish_names(&learnt->awaited);
}

bool hearth_learnt_print(const struct hearth_hazard *hazard, uint64_t turns, struct hearth_buf *out) {
    const struct header header = header_of(turns);
    return hearth_buf_append(out, &header, sizeof header) && hearth_buf_append(out, hazard, sizeof *hazard);
}

const char *hearth_learnt_parse(const void *bytes, size_t len, struct hearth_hazard *hazard, uint64_t *turns) {
    struct header header;
    if (len < sizeof header) {
        return "it is cut short";
    }
    memcpy(&header, bytes, sizeof header);
    const struct header want = header_of(header.turns);
    if (memcmp(&header, &want, sizeof header) != 0) {
        return "another version has written it";
    }
    if (len != sizeof header + sizeof *hazard) {
        return "it has another length";
    }
    const uint8_t *at = (const uint8_t *)bytes + sizeof header;
    for (size_t i = 0; i < sizeof *hazard; i += sizeof(float)) {
        float count;
        memcpy(&count, at + i, sizeof count);
        if (!(count >= 0 && count <= COUNT_MAX)) {
            return "it holds what is no count";
        }
    }
    memcpy(hazard, at, sizeof *hazard);
    *turns = header.turns;
    return NULL;
}

/* ---- the backing tier ---- */

struct hearth_digest hearth_learnt_base(const struct hearth_cache *cache) {
    return hearth_digest_chain(hearth_cache_root_digest(cache, (struct hearth_digest){0}), "learnt", 6);
}

static bool is_small(const struct hearth_cache *cache, size_t bytes) {
    return bytes <= (cache->pages.budget_bytes + cache->snapshots.budget_bytes) / SHARE;
}

/* Puts a note with the buffer's bytes, which it takes over. */
static void put(struct hearth_cache *cache, struct hearth_buf *bytes, uint64_t turns) {
    struct hearth_learnt *learnt = &cache->learnt;
    const struct hearth_digest digest = hearth_digest_bytes(bytes->data, bytes->len);
    hearth_token words[NOTE_WORDS] = {(hearth_token)(digest.lo >> 33), (hearth_token)(digest.hi >> 33)};
    struct hearth_record record = {.kind = HEARTH_RECORD_SNAPSHOT,
                                   .label = HEARTH_RECORD_NOTE,
                                   .base = hearth_learnt_base(cache),
                                   .p0 = NOTE_WORDS,
                                   .p1 = NOTE_WORDS,
                                   .tokens = words,
                                   .state_bytes = bytes->len};
    record.name = hearth_record_name(&record);
    if (hearth_copy_is_removed(cache, record.name)) {
        return; /* a later save replaces it */
    }
    (void)snprintf(record.text, sizeof record.text, "(what %" PRIu64 " turns have taught the policy)", turns);
    struct hearth_blob *blob = hearth_ram_put(cache->ram, bytes, NULL);
    const struct hearth_digest old = learnt->note;
    const bool replaces = !hearth_digest_is_zero(old) && !hearth_digest_equal(old, record.name);
    if (blob && cache->backing->ops->put(cache->backing, &record, blob, replaces ? &old : NULL)) {
        learnt->note = record.name;
        learnt->saved = true;
    }
    hearth_ram_drop(cache->ram, blob);
}

void hearth_cache_save(struct hearth_cache *cache) {
    struct hearth_learnt *learnt = &cache->learnt;
    struct hearth_returns *returns = cache->returns;
    struct hearth_buf bytes = {0};
    if (!cache->backing || !cache->policy->worth || returns->turns == learnt->saved_turns ||
        cache->tree.page_tokens < NOTE_WORDS) {
        return;
    }
    const uint64_t turns = learnt->turns + returns->turns;
    learnt->saved_turns = returns->turns;
    hearth_returns_learn_waiting(returns, cache->engine->ops->now_us(cache->engine));
    if (hearth_learnt_print(&returns->hazard, turns, &bytes) && is_small(cache, bytes.len)) {
        put(cache, &bytes, turns);
    }
    hearth_buf_finish(&bytes);
}

void hearth_learnt_turn(struct hearth_cache *cache) {
    if (cache->returns->turns - cache->learnt.saved_turns >= EVERY_TURNS) {
        hearth_cache_save(cache);
    }
}

static void remove_note(struct hearth_cache *cache, struct hearth_digest name) {
    if (!hearth_digest_is_zero(name)) {
        hearth_copy_remove_name(cache, name, HEARTH_RECORD_SNAPSHOT);
    }
}

static void take_up(struct hearth_cache *cache, const struct hearth_backing_event *event) {
    struct hearth_learnt *learnt = &cache->learnt;
    struct hearth_hazard hazard;
    uint64_t turns = 0;
    if (event->err != HEARTH_OK || learnt->saved) {
        return;
    }
    const char *why = hearth_learnt_parse(event->bytes.data, event->bytes.len, &hazard, &turns);
    if (why) {
        hearth_log(HEARTH_LOG_WARN, "cache: what the policy had learnt is not used: %s", why);
        return;
    }
    if (turns <= learnt->turns) {
        remove_note(cache, event->name);
        return;
    }
    remove_note(cache, learnt->note);
    hearth_returns_teach(cache->returns, &hazard);
    learnt->note = event->name;
    learnt->turns = turns;
    hearth_log(HEARTH_LOG_INFO, "cache: the policy knows again what %" PRIu64 " turns have taught it", turns);
}

bool hearth_learnt_take(struct hearth_cache *cache, struct hearth_backing_event *event) {
    struct hearth_learnt *learnt = &cache->learnt;
    bool read;
    const bool taken =
        hearth_copies_take_note(cache, hearth_learnt_base(cache), &learnt->awaited, event, !learnt->saved, &read);
    if (read) {
        take_up(cache, event);
    }
    return taken;
}
