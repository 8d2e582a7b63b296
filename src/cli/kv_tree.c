/* Conversations, found from nothing but what the headers say.
 *
 * Items with the same base lie in the same block of tokens, each from that block's beginning: sorted by their tokens,
 * an item that another one continues stands right before those that do. So the last in such a run is an end, unless a
 * block follows it, which then has the digest of all its tokens as its base. Every end is a conversation:
 *
 *     base A   [sys][sys tools]──► base B  [hello]                    ends here: one conversation
 *                                          [hello there][hello the..] ends here: two more
 *
 * Walking back from an end, block by block, takes all items whose tokens are a prefix of its own there, and, where the
 * state of some positions is only in a page that goes on differently, that page. What several conversations walk over
 * is shared. Positions that nothing covers were evicted: the conversation is incomplete. */
#include "cli/kv_internal.h"

#include <stdlib.h>
#include <string.h>

static size_t tokens_of(const struct kv_item *item) {
    return hearth_record_tokens(&item->record);
}

static int compare_digests(struct hearth_digest a, struct hearth_digest b) {
    return a.hi != b.hi ? (a.hi < b.hi ? -1 : 1) : a.lo != b.lo ? (a.lo < b.lo ? -1 : 1) : 0;
}

/* Any order of tokens that puts a prefix right before what it begins. */
static int compare_tokens(const struct kv_item *a, const struct kv_item *b) {
    const size_t na = tokens_of(a), nb = tokens_of(b), n = na < nb ? na : nb;
    const size_t common = hearth_tokens_common(a->record.tokens, n, b->record.tokens, n);
    if (common < n) {
        return a->record.tokens[common] < b->record.tokens[common] ? -1 : 1;
    }
    return na != nb ? (na < nb ? -1 : 1) : 0;
}

/* A base has one position; a forged one may not. */
static int compare_bases(const struct hearth_record *a, const struct hearth_record *b) {
    const int order = compare_digests(a->base, b->base);
    return order != 0 ? order : (a->base_pos > b->base_pos) - (a->base_pos < b->base_pos);
}

/* By base and tokens; of those that end at the same point the page that begins first is last. */
static int by_tokens(const void *x, const void *y) {
    const struct kv_item *a = *(struct kv_item *const *)x, *b = *(struct kv_item *const *)y;
    int order = compare_bases(&a->record, &b->record);
    order = order != 0 ? order : compare_tokens(a, b);
    if (order == 0 && a->record.kind != b->record.kind) {
        order = a->record.kind == HEARTH_RECORD_SNAPSHOT ? -1 : 1;
    }
    return order != 0 ? order : a->record.p0 != b->record.p0 ? (a->record.p0 > b->record.p0 ? -1 : 1) : 0;
}

static int by_end(const void *x, const void *y) {
    const struct kv_item *a = *(struct kv_item *const *)x, *b = *(struct kv_item *const *)y;
    return compare_digests(a->end, b->end);
}

static bool same_group(const struct kv_item *a, const struct kv_item *b) {
    return compare_bases(&a->record, &b->record) == 0;
}

static bool is_prefix(const struct kv_item *item, const hearth_token *tokens, size_t n) {
    const size_t len = tokens_of(item);
    return len <= n && hearth_tokens_common(item->record.tokens, len, tokens, len) == len;
}

/* ---- finding ---- */

static int by_base(const void *x, const void *y) {
    return compare_bases((const struct hearth_record *)x, ((const struct kv_group *)y)->of);
}

/* The group of a base; NULL without one. */
static const struct kv_group *find_group(const struct kv_model *model, struct hearth_digest base, int32_t base_pos) {
    const struct hearth_record wanted = {.base = base, .base_pos = base_pos};
    return bsearch(&wanted, model->groups, model->group_n, sizeof *model->groups, by_base);
}

/* A whole block that ends where `base` begins, NULL without one. */
static struct kv_item *find_block(const struct kv_model *model, struct hearth_digest base, int32_t base_pos) {
    size_t low = 0, high = model->sorted_n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        const bool less = compare_digests(model->ends[mid]->end, base) < 0;
        low = less ? mid + 1 : low;
        high = less ? high : mid;
    }
    for (; low < model->sorted_n && hearth_digest_equal(model->ends[low]->end, base); low++) {
        struct kv_item *item = model->ends[low];
        if (tokens_of(item) > 0 && item->record.p1 == base_pos) {
            return item;
        }
    }
    return NULL;
}

/* Whether a block follows that has more than a snapshot at its very beginning. */
static bool goes_on(const struct kv_model *model, const struct kv_item *item) {
    const struct kv_group *group = find_group(model, item->end, item->record.p1);
    return group && tokens_of(model->sorted[group->first + group->n - 1]) > 0;
}

static bool is_end(const struct kv_model *model, size_t i) {
    const struct kv_item *item = model->sorted[i], *next = i + 1 < model->sorted_n ? model->sorted[i + 1] : NULL;
    if (item->record.kind == HEARTH_RECORD_SNAPSHOT && item->record.label == HEARTH_RECORD_NOTE) {
        return false;
    }
    if (next && same_group(item, next) && is_prefix(item, next->record.tokens, tokens_of(next))) {
        return false;
    }
    if (tokens_of(item) == 0) { /* a snapshot at the end of the block before, if that is there */
        return !find_block(model, item->record.base, item->record.base_pos);
    }
    return !goes_on(model, item);
}

static bool index_model(struct kv_model *model) {
    const size_t n = model->count[KV_READABLE] > 0 ? model->count[KV_READABLE] : 1;
    model->sorted = malloc(n * sizeof *model->sorted);
    model->ends = malloc(n * sizeof *model->ends);
    model->groups = malloc(n * sizeof *model->groups);
    if (!model->sorted || !model->ends || !model->groups) {
        return false;
    }
    for (size_t i = 0; i < model->n; i++) {
        if (model->items[i].state == KV_READABLE) {
            model->ends[model->sorted_n] = model->sorted[model->sorted_n] = &model->items[i];
            model->sorted_n++;
        }
    }
    qsort(model->sorted, model->sorted_n, sizeof *model->sorted, by_tokens);
    qsort(model->ends, model->sorted_n, sizeof *model->ends, by_end);
    for (size_t i = 0; i < model->sorted_n; i++) {
        if (i == 0 || !same_group(model->sorted[i - 1], model->sorted[i])) {
            model->groups[model->group_n++] = (struct kv_group){.first = i, .of = &model->sorted[i]->record};
        }
        model->groups[model->group_n - 1].n++;
    }
    return true;
}

/* ---- walking ---- */

struct walk {
    struct kv_view *view;
    const struct kv_model *model;
    void (*visit)(void *user, struct kv_item *item);
    void *user;
};

static void take(struct walk *walk, struct kv_item *item, bool whole) {
    if (item->walk != walk->view->walks) {
        item->walk = walk->view->walks;
        item->whole = whole;
        walk->visit(walk->user, item);
    }
}

/* The page of the group through which the state of the position before `pos` can be had that begins first; NULL. */
static struct kv_item *cover(const struct kv_model *model, const struct kv_group *group, const hearth_token *tokens,
                             int32_t pos) {
    struct kv_item *best = NULL;
    for (size_t i = group->first; i < group->first + group->n; i++) {
        struct kv_item *item = model->sorted[i];
        const struct hearth_record *record = &item->record;
        const size_t n = (size_t)(pos - record->base_pos);
        if (record->kind != HEARTH_RECORD_PAGE || record->p0 >= pos || record->p1 < pos ||
            hearth_tokens_common(record->tokens, n, tokens, n) < n) {
            continue;
        }
        /* exactly to `pos` is better than a page that goes on: it is this conversation's, or its beginning's */
        const bool exact = record->p1 == pos, was_exact = best && best->record.p1 == pos;
        if (!best || exact > was_exact || (exact == was_exact && record->p0 < best->record.p0)) {
            best = item;
        }
    }
    return best;
}

/* One block: what is on the way to the end of `tokens`. False: positions are missing. */
static bool walk_block(struct walk *walk, const struct kv_group *group, const hearth_token *tokens, size_t n) {
    const struct kv_model *model = walk->model;
    const int32_t base_pos = model->sorted[group->first]->record.base_pos;
    for (size_t i = group->first; i < group->first + group->n; i++) {
        if (is_prefix(model->sorted[i], tokens, n)) {
            take(walk, model->sorted[i], true);
        }
    }
    int32_t pos = base_pos + (int32_t)n;
    while (pos > base_pos) {
        struct kv_item *page = cover(model, group, tokens, pos);
        if (!page) {
            return false;
        }
        take(walk, page, false); /* no news if it is whole */
        pos = page->record.p0;
    }
    return true;
}

bool hearth_kv_walk(struct kv_view *view, const struct kv_conversation *conversation,
                    void (*visit)(void *user, struct kv_item *item), void *user) {
    const struct kv_model *model = &view->models[conversation->model];
    struct walk walk = {.view = view, .model = model, .visit = visit, .user = user};
    const struct kv_item *at = conversation->leaf;
    bool complete = true;
    view->walks++;
    const struct kv_group *behind = find_group(model, at->end, at->record.p1);
    if (behind && tokens_of(at) > 0) { /* snapshots that stand at its very end */
        (void)walk_block(&walk, behind, NULL, 0);
    }
    for (;;) {
        const struct hearth_record *record = &at->record;
        const struct kv_group *group = find_group(model, record->base, record->base_pos);
        complete = walk_block(&walk, group, record->tokens, tokens_of(at)) && complete;
        if (record->base_pos == 0) {
            return complete;
        }
        at = find_block(model, record->base, record->base_pos);
        if (!at) {
            return false;
        }
    }
}

void hearth_kv_list_add(void *user, struct kv_item *item) {
    struct kv_list *list = user;
    if (!HEARTH_BUF_ROOM(list->items, list->n, list->cap)) {
        list->nomem = true;
        return;
    }
    list->items[list->n++] = item;
    list->bytes += item->file.bytes;
}

/* ---- conversations ---- */

static void count_use(void *user, struct kv_item *item) {
    (void)user;
    item->uses++;
}

struct conversation_totals {
    struct kv_conversation *conversation;
    const struct kv_item *first, *first_own;
};

static void add_up(void *user, struct kv_item *item) {
    struct conversation_totals *totals = user;
    struct kv_conversation *conversation = totals->conversation;
    const bool page = item->record.kind == HEARTH_RECORD_PAGE;
    conversation->files++;
    *(page ? &conversation->pages : &conversation->snapshots) += 1;
    if (page && item->whole && item->record.p0 == 0 && (!totals->first || item->record.p1 > totals->first->record.p1)) {
        totals->first = item;
    }
    if (item->uses > 1) {
        conversation->shared_bytes += item->file.bytes;
    } else {
        conversation->own_bytes += item->file.bytes;
    }
    /* What is shared says nothing of this one; but its end does, even if another one goes on from inside that page. */
    if (item->uses > 1 && item != conversation->leaf) {
        return;
    }
    const int64_t used_us = item->file.stamp_us + item->record.p1;
    conversation->used_us = used_us > conversation->used_us ? used_us : conversation->used_us;
    conversation->hits = item->hits > conversation->hits ? item->hits : conversation->hits;
    if (page && item->uses == 1 && (!totals->first_own || item->record.p0 < totals->first_own->record.p0)) {
        totals->first_own = item;
    }
}

static int newest_first(const void *x, const void *y) {
    const struct kv_conversation *a = x, *b = y;
    if (a->used_us != b->used_us) {
        return a->used_us > b->used_us ? -1 : 1;
    }
    return compare_digests(a->leaf->record.name, b->leaf->record.name);
}

static bool add_conversation(struct kv_view *view, size_t model, struct kv_item *leaf) {
    if (!HEARTH_BUF_ROOM(view->conversations, view->conversation_n, view->conversation_cap)) {
        return false;
    }
    view->models[model].totals.conversations++;
    view->conversations[view->conversation_n++] =
        (struct kv_conversation){.leaf = leaf, .model = model, .text = "", .own_text = ""};
    return true;
}

static int by_name(const void *x, const void *y) {
    return compare_digests(*(const struct hearth_digest *)x, *(const struct hearth_digest *)y);
}

/* Digits that tell all of them apart; 8 at least. */
static bool measure_ids(struct kv_view *view) {
    const size_t n = view->conversation_n;
    struct hearth_digest *names = malloc((n > 0 ? n : 1) * sizeof *names);
    if (!names) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        names[i] = view->conversations[i].leaf->record.name;
    }
    qsort(names, n, sizeof *names, by_name);
    view->id_digits = 8;
    for (size_t i = 0; i + 1 < n; i++) {
        char a[33], b[33];
        int common = 0;
        hearth_digest_hex(names[i], a);
        hearth_digest_hex(names[i + 1], b);
        while (common < 31 && a[common] == b[common]) {
            common++;
        }
        view->id_digits = common + 1 > view->id_digits ? common + 1 : view->id_digits;
    }
    free(names);
    return true;
}

bool hearth_kv_find_conversations(struct kv_view *view) {
    for (size_t m = 0; m < view->model_n; m++) {
        struct kv_model *model = &view->models[m];
        if (!index_model(model)) {
            return false;
        }
        for (size_t i = 0; i < model->sorted_n; i++) {
            if (is_end(model, i) && !add_conversation(view, m, model->sorted[i])) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < view->conversation_n; i++) {
        view->conversations[i].complete = hearth_kv_walk(view, &view->conversations[i], count_use, NULL);
    }
    for (size_t i = 0; i < view->conversation_n; i++) {
        struct conversation_totals totals = {.conversation = &view->conversations[i]};
        (void)hearth_kv_walk(view, &view->conversations[i], add_up, &totals);
        /* An end that another one goes on from is not its own, and still has words that the beginning has not. */
        const struct kv_item *own = totals.first_own ? totals.first_own : totals.conversation->leaf;
        totals.conversation->text = totals.first ? totals.first->record.text : "";
        totals.conversation->own_text = own != totals.first ? own->record.text : "";
    }
    if (view->conversation_n > 0) {
        qsort(view->conversations, view->conversation_n, sizeof *view->conversations, newest_first);
    }
    return measure_ids(view);
}

void hearth_kv_id(const struct kv_view *view, const struct kv_conversation *conversation, char out[33]) {
    hearth_digest_hex(conversation->leaf->record.name, out);
    out[view->id_digits] = '\0';
}

struct kv_conversation *hearth_kv_find(struct kv_view *view, const char *id) {
    struct kv_conversation *found = NULL;
    const size_t len = strlen(id);
    size_t matches = 0;
    for (size_t i = 0; i < view->conversation_n && len > 0; i++) {
        char name[33];
        hearth_digest_hex(view->conversations[i].leaf->record.name, name);
        if (len <= 32 && strncmp(name, id, len) == 0) {
            found = &view->conversations[i];
            matches++;
        }
    }
    if (matches == 1) {
        return found;
    }
    if (matches == 0) {
        (void)hearth_complain(1, "there is no conversation '%.40s' (see hearth kv ls)", id);
    } else {
        (void)hearth_complain(1, "%zu conversations begin with '%.40s': give more digits", matches, id);
    }
    return NULL;
}
