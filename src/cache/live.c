/* Sequences that live in the engine (cache/live.h): their tokens, and how long each begins like a prompt.
 *
 * Two lanes of agents that share a system prompt would each be compared with all of it. What two sequences share is
 * therefore learnt once (struct hearth_twin). Example: A and B share 9000 tokens, and a prompt has been compared with
 * A:
 *
 *     the prompt leaves A at 500      it leaves B at 500 too: B is not read
 *     the prompt leaves A at 9500     B is compared from 9000 on
 *
 * Invariant: `version` changes whenever tokens are dropped or replaced, and no two sequences have the same one. */
#include "cache/store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- pins ---- */

/* Keeps the pins in (after, to]. */
static void select_pins(struct hearth_live *live, int32_t after, int32_t to) {
    int pins = live->pin_count;
    live->pin_count = 0;
    for (int i = 0; i < pins; i++) {
        if (live->pins[i].position > after && live->pins[i].position <= to) {
            live->pins[live->pin_count++] = live->pins[i];
        }
    }
}

void hearth_live_drop_pins(struct hearth_live *live, int32_t stored) {
    select_pins(live, stored, INT32_MAX);
}

void hearth_live_pin(struct hearth_live *live, const struct hearth_pin *pin) {
    int at = 0;
    while (at < live->pin_count && live->pins[at].position != pin->position) {
        at++;
    }
    if (at < live->pin_count) {
        live->pins[at].ttl_us = live->pins[at].ttl_us > pin->ttl_us ? live->pins[at].ttl_us : pin->ttl_us;
        return;
    }
    if (live->pin_count == HEARTH_PINS_MAX) { /* an earlier prompt's pin is needed less */
        memmove(live->pins, live->pins + 1, (HEARTH_PINS_MAX - 1) * sizeof *live->pins);
        live->pin_count--;
    }
    live->pins[live->pin_count++] = *pin;
}

/* ---- life ---- */

static uint64_t next_version(void) {
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

void hearth_live_init(struct hearth_live *live, int32_t seq) {
    memset(live, 0, sizeof *live);
    live->seq = seq;
    live->version = next_version();
}

bool hearth_live_append(struct hearth_live *live, const hearth_token *tokens, size_t n) {
    live->dirty = live->dirty || n > 0;
    return hearth_tokens_append(&live->tokens, tokens, n);
}

void hearth_live_truncate(struct hearth_cache *cache, struct hearth_live *live, int32_t n) {
    while (live->snapshot_count > 0 && live->snapshots[live->snapshot_count - 1].pos > n) {
        struct hearth_blob *blob = live->snapshots[--live->snapshot_count].blob;
        cache->snapshots.used_bytes -= hearth_blob_bytes(blob);
        hearth_ram_drop(cache->ram, blob);
    }
    live->version = next_version();
    if ((size_t)n < live->tokens.n) {
        live->tokens.n = (size_t)n;
    }
    select_pins(live, 0, n);
    live->windowed = live->windowed < n ? live->windowed : n;
    live->expected_until_us = 0;
    live->dirty = live->snapshot_count > 0;
}

void hearth_live_clear(struct hearth_cache *cache, struct hearth_live *live) {
    hearth_live_truncate(cache, live, 0);
    cache->engine->ops->seq_clear(cache->engine, live->seq);
}

void hearth_live_finish(struct hearth_cache *cache, struct hearth_live *live) {
    hearth_live_clear(cache, live);
    hearth_tokens_finish(&live->tokens);
}

/* ---- comparing ---- */

int32_t hearth_live_common(const struct hearth_live *live, const hearth_token *tokens, size_t n,
                           struct hearth_digest salt) {
    if (!hearth_digest_equal(live->salt, salt)) {
        return 0;
    }
    return (int32_t)hearth_tokens_common(tokens, n, live->tokens.v, live->tokens.n);
}

static bool reserve_measures(struct hearth_cache *cache, size_t count) {
    if (count <= cache->measure_cap) {
        return true;
    }
    int32_t *measures = realloc(cache->measures, 2 * count * sizeof *measures);
    cache->measures = measures ? measures : cache->measures;
    struct hearth_twin *twins = measures ? realloc(cache->twins, count * sizeof *twins) : NULL;
    if (!twins) {
        return false;
    }
    for (size_t i = cache->measure_cap; i < count; i++) {
        twins[i] = (struct hearth_twin){0};
    }
    cache->twins = twins;
    cache->measure_cap = count;
    return true;
}

/* How many tokens sequence i has in common with the prompt's beginning, once that is known of the sequences before it.
 */
static int32_t common_with_prompt(const struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                                  const struct hearth_live *const *lives, const int32_t *commons, size_t i) {
    const struct hearth_live *live = lives[i];
    const struct hearth_twin *twin = &cache->twins[i];
    if (twin->version == 0 || twin->version != live->version || twin->base_version != lives[twin->base]->version ||
        !hearth_digest_equal(live->salt, prompt->salt) || !hearth_digest_equal(lives[twin->base]->salt, prompt->salt)) {
        return hearth_live_common(live, prompt->tokens, prompt->n, prompt->salt);
    }
    if (commons[twin->base] < twin->shared) {
        return commons[twin->base];
    }
    size_t from = (size_t)twin->shared;
    return (int32_t)(from + hearth_tokens_common(prompt->tokens + from, prompt->n - from, live->tokens.v + from,
                                                 live->tokens.n - from));
}

bool hearth_live_measure(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t count) {
    if (!reserve_measures(cache, count)) {
        return false;
    }
    int32_t *commons = cache->measures + count;
    size_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hearth_live *live = lives[i];
        struct hearth_twin *twin = &cache->twins[i];
        cache->measures[i] = cache->engine->ops->seq_rewind_floor(cache->engine, live->seq, (int32_t)live->tokens.n);
        commons[i] = prompt->cache_off ? 0 : common_with_prompt(cache, prompt, lives, commons, i);
        bool known = twin->version == live->version && twin->base_version == lives[twin->base]->version;
        int32_t shared = commons[i] < commons[longest] ? commons[i] : commons[longest];
        bool named = live->version != 0 && lives[longest]->version != 0;
        if (i > 0 && shared > 0 && named && (!known || shared > twin->shared)) {
            *twin = (struct hearth_twin){live->version, lives[longest]->version, longest, shared};
        }
        if (commons[i] > commons[longest]) {
            longest = i;
        }
    }
    return true;
}
