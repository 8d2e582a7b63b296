/* Shared heads.
 *
 * The cache counts how many conversations begin with each head. When that has doubled, a note goes to the backing tier:
 * a snapshot like any other (tier/record.h), under a base that no prompt has, with the head's tokens as its state. So
 * notes are found as pages are, by a scan or a seek, are sealed, expire and are evicted as they are, and boxes that
 * share a store share them.
 *
 *     base      H(root of the model, "heads")
 *     tokens    log2 of the conversations, four words of the head's name
 *     state     magic, conversations, root of the salt, tokens of the head
 *
 * After a start the notes are read first. Then, while there is no request, the pages of one head after the other are,
 * the most shared first: at most WINDOW_BYTES are on their way, so that a request never waits for more than that, and
 * all of them together take no more than a quarter of the budget, and none of it while half is taken. What a note says
 * is believed no further than that its pages are looked for: they are verified as ever.
 *
 * A note holds the tokens of its head. So it is removed when a forget leaves nothing that needs the head's end.
 *
 * Invariant: heads are told apart by name; `n` of them are there, and the one that fewest share makes room. */
#include "cache/heads.h"

#include "cache/backing.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES ((size_t)16 << 20)
#define NOTE_WORDS 5
#define NOTE_MAGIC UINT32_C(0x31646568) /* "hed1" */

struct note_header {
    uint32_t magic, talks;
    struct hearth_digest root;
};

static struct hearth_digest notes_base(const struct hearth_cache *cache) {
    return hearth_digest_chain(hearth_cache_root_digest(cache, (struct hearth_digest){0}), "heads", 5);
}

/* log2 of n, rounded down; 0 for 0 and 1. */
static uint32_t log2_of(uint32_t n) {
    uint32_t bits = 0;
    while (n >>= 1) {
        bits++;
    }
    return bits;
}

/* ---- the list ---- */

static void destroy_head(struct hearth_head *head) {
    if (head) {
        free(head->tokens);
        free(head);
    }
}

void hearth_heads_finish(struct hearth_heads *heads) {
    for (size_t i = 0; i < heads->n; i++) {
        destroy_head(heads->v[i]);
    }
    hearth_table_finish_names(&heads->awaited);
    *heads = (struct hearth_heads){.ended = true};
}

static void remove_note(struct hearth_cache *cache, const struct hearth_head *head) {
    if (head->noted_talks > 0) {
        hearth_copy_remove_name(cache, head->note, HEARTH_RECORD_SNAPSHOT);
    }
}

/* The head with these tokens. A new head takes the place, and the note, of the one that the fewest conversations share.
 * NULL: out of memory. */
static struct hearth_head *head_of(struct hearth_cache *cache, struct hearth_digest root, const hearth_token *tokens,
                                   int32_t n) {
    struct hearth_heads *heads = &cache->heads;
    const size_t bytes = (size_t)n * sizeof *tokens;
    const struct hearth_digest name = hearth_digest_chain(root, tokens, bytes);
    size_t least = 0;
    for (size_t i = 0; i < heads->n; i++) {
        if (hearth_digest_equal(heads->v[i]->name, name)) {
            return heads->v[i];
        }
        least = heads->v[i]->talks < heads->v[least]->talks ? i : least;
    }
    struct hearth_head *head = calloc(1, sizeof *head);
    hearth_token *copy = malloc(bytes);
    if (!head || !copy) {
        free(head);
        free(copy);
        return NULL;
    }
    memcpy(copy, tokens, bytes);
    *head = (struct hearth_head){.name = name, .root = root, .tokens = copy, .n = n};
    if (heads->n < HEARTH_HEADS_MAX) {
        least = heads->n++;
    } else {
        remove_note(cache, heads->v[least]);
        destroy_head(heads->v[least]);
    }
    heads->v[least] = head;
    return head;
}

/* ---- notes ---- */

static void put_note(struct hearth_cache *cache, struct hearth_head *head) {
    const struct note_header header = {.magic = NOTE_MAGIC, .talks = head->talks, .root = head->root};
    hearth_token words[NOTE_WORDS] = {(hearth_token)log2_of(head->talks), (hearth_token)(head->name.lo >> 33),
                                      (hearth_token)(head->name.lo << 31 >> 33), (hearth_token)(head->name.hi >> 33),
                                      (hearth_token)(head->name.hi << 31 >> 33)};
    struct hearth_record record = {.kind = HEARTH_RECORD_SNAPSHOT,
                                   .label = HEARTH_RECORD_NOTE,
                                   .base = notes_base(cache),
                                   .p0 = NOTE_WORDS,
                                   .p1 = NOTE_WORDS,
                                   .tokens = words};
    struct hearth_buf bytes = {0};
    record.name = hearth_record_name(&record);
    if (hearth_copy_is_removed(cache, record.name)) {
        return; /* out of memory: the next conversation with this head puts it */
    }
    if (!hearth_buf_append(&bytes, &header, sizeof header) ||
        !hearth_buf_append(&bytes, head->tokens, (size_t)head->n * sizeof *head->tokens)) {
        hearth_buf_finish(&bytes);
        return;
    }
    (void)snprintf(record.text, sizeof record.text, "(a head that %" PRIu32 " conversations share)", head->talks);
    record.state_bytes = bytes.len;
    struct hearth_blob *blob = hearth_ram_put(cache->ram, &bytes, NULL);
    if (!blob) {
        return;
    }
    const struct hearth_digest old = head->note;
    const bool replaces = head->noted_talks > 0 && !hearth_digest_equal(old, record.name);
    if (cache->backing->ops->put(cache->backing, &record, blob, replaces ? &old : NULL)) {
        head->note = record.name;
        head->noted_talks = head->talks;
    }
    hearth_ram_drop(cache->ram, blob);
}

void hearth_cache_head(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t n) {
    if (!cache->backing || prompt->cache_off || cache->tree.page_tokens < NOTE_WORDS || n < cache->tree.page_tokens ||
        n > HEARTH_HEAD_TOKENS_MAX || (size_t)n > prompt->n) {
        return;
    }
    struct hearth_head *head = head_of(cache, hearth_cache_root_digest(cache, prompt->salt), prompt->tokens, n);
    if (!head) {
        return;
    }
    head->talks += head->talks < UINT32_MAX;
    if (log2_of(head->talks) > log2_of(head->noted_talks)) { /* a head that one conversation has is shared by none */
        put_note(cache, head);
    } else if (head->noted_talks > 0) {
        const struct hearth_backing_touch touch = {.name = head->note, .pos = NOTE_WORDS};
        cache->backing->ops->touch(cache->backing, &touch, 1);
    }
}

static void read_note(struct hearth_cache *cache, const struct hearth_backing_event *event) {
    const size_t len = event->bytes.len;
    struct note_header header;
    if (event->err != HEARTH_OK || len <= sizeof header || (len - sizeof header) % sizeof(hearth_token) != 0 ||
        len - sizeof header > HEARTH_HEAD_TOKENS_MAX * sizeof(hearth_token)) {
        return;
    }
    memcpy(&header, event->bytes.data, sizeof header);
    const int32_t n = (int32_t)((len - sizeof header) / sizeof(hearth_token));
    hearth_token *tokens = malloc((size_t)n * sizeof *tokens);
    if (!tokens || header.magic != NOTE_MAGIC || n < cache->tree.page_tokens) {
        free(tokens);
        return;
    }
    memcpy(tokens, event->bytes.data + sizeof header, (size_t)n * sizeof *tokens);
    struct hearth_head *head = head_of(cache, header.root, tokens, n);
    free(tokens);
    if (head && header.talks > head->noted_talks) {
        head->talks = head->talks > header.talks ? head->talks : header.talks;
        head->noted_talks = header.talks;
        head->note = event->name;
    }
}

void hearth_heads_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t stop) {
    struct hearth_heads *heads = &cache->heads;
    const struct hearth_digest root = hearth_cache_root_digest(cache, prompt->salt);
    for (size_t i = heads->n; i-- > 0;) {
        struct hearth_head *head = heads->v[i];
        if (head->n > stop && (size_t)head->n <= prompt->n && hearth_digest_equal(head->root, root) &&
            memcmp(head->tokens, prompt->tokens, (size_t)head->n * sizeof *head->tokens) == 0) {
            remove_note(cache, head);
            destroy_head(head);
            heads->v[i] = heads->v[--heads->n];
        }
    }
}

bool hearth_heads_take(struct hearth_cache *cache, struct hearth_backing_event *event) {
    bool read;
    const bool taken = hearth_copies_take_note(cache, notes_base(cache), &cache->heads.awaited, event, true, &read);
    if (read) {
        read_note(cache, event);
    }
    return taken;
}

/* ---- prefetch at the start ---- */

/* The next head to read: of those noted before this start, the one that most conversations share. NULL: none. */
static struct hearth_head *next_head(const struct hearth_heads *heads) {
    struct hearth_head *next = NULL;
    for (size_t i = 0; i < heads->n; i++) {
        struct hearth_head *head = heads->v[i];
        if (!head->prefetched && head->noted_talks > 0 && (!next || head->talks > next->talks)) {
            next = head;
        }
    }
    return next;
}

/* Asks a shared store what it has of the head. False: the answer has not come yet. */
static bool seek(struct hearth_cache *cache, struct hearth_head *head) {
    if (!head->sought) {
        head->sought = true;
        head->ticket = hearth_cache_seek_from(cache, head->root, head->tokens, (size_t)head->n);
    }
    return hearth_cache_sought(cache, head->ticket);
}

static struct hearth_page *root_of(struct hearth_cache *cache, struct hearth_digest digest) {
    struct hearth_page *root = hearth_tree_end(&cache->tree, digest, 0);
    if (!root && hearth_table_find(&cache->orphans, digest)) {
        root = hearth_tree_add_root(&cache->tree, digest);
        if (root) {
            hearth_arrive_behind(cache, root);
        }
    }
    return root;
}

static bool fits(const struct hearth_cache *cache, size_t bytes) {
    const size_t budget = cache->pages.budget_bytes + cache->snapshots.budget_bytes;
    return cache->heads.prefetched_bytes + bytes <= budget / 4 &&
           cache->pages.used_bytes + cache->snapshots.used_bytes + bytes <= budget / 2;
}

/* Reads what RAM lacks of a head. True: reading is under way; false: nothing is left to read. */
static bool read_head(struct hearth_cache *cache, struct hearth_head *head) {
    struct hearth_path *path = &cache->scratch;
    if (!hearth_tree_match(root_of(cache, head->root), head->tokens, (size_t)head->n, path) || path->n == 0) {
        return false;
    }
    const bool needs = hearth_caps_needs_snapshot(&cache->engine->caps);
    const int32_t window = cache->engine->caps.window_tokens, page = cache->tree.page_tokens;
    struct hearth_snapshot *snapshots[HEARTH_PIECES_MAX];
    size_t count = needs ? hearth_path_cover(path, path->matched, window, page, snapshots) : 0;
    struct hearth_snapshot *last = needs && count == 0 ? hearth_path_snapshot(path, path->matched) : NULL;
    if (last) {
        count = hearth_path_cover(path, last->pos, window, page, snapshots);
    }
    const int32_t end = !needs      ? hearth_cache_store_usable(cache, path)
                        : last      ? (count > 0 ? last->pos : 0)
                        : count > 0 ? path->matched
                                    : 0;
    const size_t bytes = hearth_copies_missing(cache, path, 0, end, snapshots, count);
    if (bytes > 0 && fits(cache, bytes) && head->tries++ <= (uint32_t)path->n + 1 &&
        hearth_copies_fetch(cache, path, 0, end, snapshots, count, WINDOW_BYTES) > 0) {
        return true;
    }
    if (end > 0 && head->tries > 0) {
        cache->heads.prefetched_heads++;
        cache->heads.prefetched_tokens += (uint64_t)end;
        cache->heads.prefetched_bytes += (size_t)end * cache->engine->caps.page_bytes_per_token;
    }
    return false;
}

static void end(struct hearth_cache *cache) {
    struct hearth_heads *heads = &cache->heads;
    heads->ended = true;
    if (heads->prefetched_heads > 0) {
        hearth_log(HEARTH_LOG_INFO,
                   "cache: prefetched: %" PRIu32 " shared head%s, %" PRIu64 " tokens, of %s are in RAM again",
                   heads->prefetched_heads, heads->prefetched_heads == 1 ? "" : "s", heads->prefetched_tokens,
                   cache->backing->name);
    }
}

void hearth_cache_prefetch_heads(struct hearth_cache *cache) {
    struct hearth_heads *heads = &cache->heads;
    if (!cache->backing || heads->ended || !cache->backing_scanned) {
        return;
    }
    if (!heads->asked) {
        heads->asked = true;
        const struct hearth_backing_place places[] = {{.base = notes_base(cache)}, {.base = hearth_learnt_base(cache)}};
        heads->ticket = cache->backing->ops->seek ? cache->backing->ops->seek(cache->backing, places, 2) : 0;
    }
    if (!hearth_cache_sought(cache, heads->ticket) || heads->awaited.count > 0) {
        return;
    }
    for (struct hearth_head *head; (head = next_head(heads)) != NULL;) {
        if (!seek(cache, head) || read_head(cache, head)) {
            return;
        }
        head->prefetched = true;
    }
    end(cache);
}
