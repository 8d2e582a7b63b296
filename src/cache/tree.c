/* The prefix tree. Design and invariants stand in tree.h.
 *
 * Matching leaves a page where the tokens differ or end, and looks for a child at that offset that begins with the next
 * token. Most of the time would be spent waiting for memory: a tree of a million pages fits no CPU cache, and each page
 * is known only once its parent is. So the match guesses that a page matches wholly, which nearly always holds; then
 * the next page can be found without looking at the tokens. Guesses run ahead of the comparison and prefetch the tokens
 * that it will need; where the tokens differ, the guesses behind are dropped. The distance doubles with every page that
 * matched and starts again at one that did not, so wrong guesses are never more than right ones and a few for each page
 * that is left early: matching stays linear. */
#include "cache/tree.h"

#include "base/assert.h"
#include "cache/children.h"
#include "tier/record.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays of pointers ---- */

/* Makes room for one more entry behind n. An array always has room for the next power of two. */
static bool grow(void **array, uint32_t n) {
    if ((n & (n - 1)) != 0) {
        return true;
    }
    void *grown = realloc(*array, (n ? (size_t)2 * n : 1) * sizeof(void *));
    if (grown) {
        *array = grown;
    }
    return grown != NULL;
}

/* ---- tree ---- */

bool hearth_tree_init(struct hearth_tree *tree, int32_t page_tokens) {
    HEARTH_ASSERT(page_tokens > 0);
    *tree = (struct hearth_tree){.page_tokens = page_tokens};
    tree->block = malloc((size_t)page_tokens * sizeof *tree->block);
    return tree->block != NULL;
}

static void free_page(struct hearth_page *page) {
    hearth_children_finish(page);
    free(page->tokens);
    free(page->snapshots);
    free(page->old);
    free(page->ghosts);
    free(page);
}

static void finish_root(struct hearth_page *root, void (*drop)(void *user, struct hearth_blob *blob), void *user) {
    /* Leaves first, without recursion: a long conversation is a deep tree. */
    struct hearth_page *page = root;
    while (page) {
        for (struct hearth_page *child; (child = hearth_children_next(page, NULL)) != NULL;) {
            page = child;
        }
        struct hearth_page *next = NULL;
        while (page && !next) {
            struct hearth_page *parent = page->parent;
            next = parent ? hearth_children_next(parent, page) : NULL;
            for (uint32_t i = 0; i < page->snapshot_count; i++) {
                if (drop && page->snapshots[i]->item.blob) {
                    drop(user, page->snapshots[i]->item.blob);
                }
                free(page->snapshots[i]);
            }
            if (drop && page->item.blob) {
                drop(user, page->item.blob);
            }
            free_page(page);
            page = parent;
        }
        page = next;
    }
}

void hearth_tree_finish(struct hearth_tree *tree, void (*drop)(void *user, struct hearth_blob *blob), void *user) {
    for (uint32_t i = 0; i < tree->root_count; i++) {
        finish_root(tree->roots[i], drop, user);
    }
    free(tree->roots);
    free(tree->block);
    hearth_table_finish(&tree->ends);
    *tree = (struct hearth_tree){0};
}

/* ---- blocks ---- */

static struct hearth_page *page_of_end(struct hearth_link *link) {
    return (struct hearth_page *)((char *)link - offsetof(struct hearth_page, end));
}

struct hearth_page *hearth_tree_end(const struct hearth_tree *tree, struct hearth_digest digest, int32_t pos) {
    for (struct hearth_link *link = hearth_table_find(&tree->ends, digest); link; link = hearth_table_next(link)) {
        struct hearth_page *page = page_of_end(link);
        if (page->p0 + page->len == pos) {
            return page;
        }
    }
    return NULL;
}

struct hearth_page *hearth_tree_add_root(struct hearth_tree *tree, struct hearth_digest digest) {
    struct hearth_page *root = calloc(1, sizeof *root);
    if (!root || !grow((void **)&tree->roots, tree->root_count)) {
        free(root);
        return NULL;
    }
    root->end.key = digest;
    root->item.pins = 1;
    if (!hearth_table_add(&tree->ends, &root->end)) {
        free(root);
        return NULL;
    }
    tree->roots[tree->root_count++] = root;
    return root;
}

int32_t hearth_tree_block_start(const struct hearth_tree *tree, int32_t pos) {
    return pos == 0 ? 0 : (pos - 1) / tree->page_tokens * tree->page_tokens;
}

const hearth_token *hearth_tree_block(struct hearth_tree *tree, const struct hearth_page *page, int32_t pos) {
    HEARTH_ASSERT(page->p0 <= pos && pos <= page->p0 + page->len);
    int32_t start = hearth_tree_block_start(tree, pos), end = pos;
    for (; page->parent && end > start; page = page->parent) {
        int32_t from = page->p0 > start ? page->p0 : start;
        memcpy(tree->block + (from - start), page->tokens + (from - page->p0),
               (size_t)(end - from) * sizeof *tree->block);
        end = from;
    }
    HEARTH_ASSERT(end == start);
    return tree->block;
}

static bool ends_block(const struct hearth_tree *tree, const struct hearth_page *page) {
    return (page->p0 + page->len) % tree->page_tokens == 0;
}

/* A page inside a block has its parent's base; a page at the start of a block has the digest at its parent's end. */
struct hearth_digest hearth_tree_base(const struct hearth_tree *tree, const struct hearth_page *page) {
    while (page->p0 % tree->page_tokens != 0) {
        page = page->parent;
    }
    return page->parent->end.key;
}

/* Enters a page that ends where a block does into the table of ends. False: out of memory. */
static bool note_end(struct hearth_tree *tree, struct hearth_page *page) {
    if (!ends_block(tree, page)) {
        return true;
    }
    const hearth_token *block = hearth_tree_block(tree, page, page->p0 + page->len);
    page->end.key = hearth_record_next(hearth_tree_base(tree, page), block, (size_t)tree->page_tokens);
    return hearth_table_add(&tree->ends, &page->end);
}

/* ---- matching ---- */

void hearth_path_finish(struct hearth_path *path) {
    free(path->pages);
    *path = (struct hearth_path){0};
}

static bool path_push(struct hearth_path *path, struct hearth_page *page) {
    if (!HEARTH_BUF_ROOM(path->pages, path->n, path->cap)) {
        return false;
    }
    path->pages[path->n++] = page;
    return true;
}

int32_t hearth_path_end(const struct hearth_path *path, size_t i) {
    HEARTH_ASSERT(i < path->n);
    return i + 1 < path->n ? path->pages[i + 1]->p0 : path->matched;
}

void hearth_path_revive(const struct hearth_path *path) {
    for (size_t i = 0; i < path->n; i++) {
        struct hearth_page *page = path->pages[i];
        if (page->dead > 0 && hearth_path_end(path, i) > page->dead) {
            page->dead = 0;
        }
    }
}

struct hearth_snapshot *hearth_path_snapshot(const struct hearth_path *path, int32_t limit) {
    for (size_t i = path->n; i-- > 0;) {
        const struct hearth_page *page = path->pages[i];
        int32_t end = hearth_path_end(path, i);
        for (uint32_t k = page->snapshot_count; k-- > 0;) {
            struct hearth_snapshot *snapshot = page->snapshots[k];
            if (snapshot->pos <= end && snapshot->pos <= limit) {
                return snapshot;
            }
        }
    }
    return NULL;
}

/* Index of the path's page that position `pos` - 1 is in. */
static size_t page_before(const struct hearth_path *path, int32_t pos) {
    HEARTH_ASSERT(pos > 0 && pos <= path->matched);
    size_t low = 0, high = path->n; /* first page with p0 >= pos */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (path->pages[middle]->p0 < pos) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    HEARTH_ASSERT(low > 0);
    return low - 1;
}

/* Of two pieces that both hold the position: the one in RAM, else the one that reaches back farther. */
static bool better_piece(const struct hearth_snapshot *a, const struct hearth_snapshot *b) {
    if (!b || (a->item.blob != NULL) != (b->item.blob != NULL)) {
        return !b || a->item.blob;
    }
    return a->p0 < b->p0;
}

/* A piece that holds the positions before `at`, as far as the path goes with it. It hangs on a page of the same block.
 * `ends`: a piece must end at `at`. */
static struct hearth_snapshot *piece_before(const struct hearth_path *path, int32_t at, bool ends,
                                            int32_t page_tokens) {
    const int32_t block_end = ((at - 1) / page_tokens + 1) * page_tokens;
    struct hearth_snapshot *best = NULL;
    for (size_t i = page_before(path, at); i < path->n && path->pages[i]->p0 < block_end; i++) {
        const struct hearth_page *page = path->pages[i];
        if (hearth_path_end(path, i) < at) {
            continue;
        }
        for (uint32_t k = 0; k < page->snapshot_count; k++) {
            struct hearth_snapshot *piece = page->snapshots[k];
            bool holds = piece->p0 < at && (ends ? piece->pos == at : piece->pos >= at);
            if (holds && better_piece(piece, best)) {
                best = piece;
            }
        }
    }
    return best;
}

size_t hearth_path_cover(const struct hearth_path *path, int32_t n, int32_t window, int32_t page_tokens,
                         struct hearth_snapshot *pieces[HEARTH_PIECES_MAX]) {
    if (n <= 0 || n > path->matched) {
        return 0;
    }
    if (window == 0) {
        pieces[0] = hearth_path_snapshot(path, n);
        return pieces[0] && pieces[0]->pos == n;
    }
    const int32_t from = n > window ? n - window : 0;
    size_t count = 0;
    for (int32_t at = n; at > from; at = pieces[count++]->p0) {
        if (count == HEARTH_PIECES_MAX || !(pieces[count] = piece_before(path, at, at < n, page_tokens))) {
            return 0;
        }
    }
    for (size_t i = 0; i < count / 2; i++) {
        struct hearth_snapshot *other = pieces[count - 1 - i];
        pieces[count - 1 - i] = pieces[i];
        pieces[i] = other;
    }
    return count;
}

#define AHEAD_MAX 16 /* pages guessed ahead of the comparison: enough to hide the latency of memory */
#define CPU_LINE 64

/* Prefetches the tokens of a page, and what a plan reads of its copy. */
static void prefetch(const struct hearth_page *page) {
    if (!page->item.blob) {
        __builtin_prefetch(&page->item.copy.p0);
    }
    for (const char *at = (const char *)page->tokens, *end = (const char *)(page->tokens + page->len); at < end;
         at += CPU_LINE) {
        __builtin_prefetch(at);
    }
}

/* The progress of a match. The guesses are the path's pages from path->n to `guessed`; the last guess ends at `end`. */
struct matching {
    const hearth_token *tokens; /* tokens of positions from `start` on */
    size_t n;
    int32_t start, end;
    size_t guessed, ahead;
    struct hearth_page *last;
};

/* Guesses up to `ahead` pages. False: out of memory. */
static bool guess(struct matching *m, struct hearth_path *path) {
    while (m->guessed - path->n < m->ahead && (size_t)(m->end - m->start) < m->n) {
        struct hearth_page *next = hearth_children_find(m->last, m->end - m->last->p0, m->tokens[m->end - m->start]);
        path->visited++;
        if (!next) {
            return true;
        }
        if (!HEARTH_BUF_ROOM(path->pages, m->guessed, path->cap)) {
            return false;
        }
        prefetch(next);
        path->pages[m->guessed++] = next;
        m->last = next;
        m->end = next->p0 + next->len;
    }
    return true;
}

/* Continues a match from the end of the path, which is in `page`. */
static bool match_on(struct hearth_page *page, const hearth_token *tokens, size_t n, struct hearth_path *path) {
    struct matching m = {.tokens = tokens,
                         .n = n,
                         .start = path->matched,
                         .end = path->matched,
                         .guessed = path->n,
                         .ahead = 1,
                         .last = page};
    path->visited = path->compared = 0;
    for (;;) {
        if (!guess(&m, path)) {
            return false;
        }
        if (m.guessed == path->n) {
            return true;
        }
        page = path->pages[path->n++];
        size_t at = (size_t)(path->matched - m.start);
        size_t same = hearth_tokens_common(page->tokens, (size_t)page->len, tokens + at, n - at);
        path->matched += (int32_t)same;
        path->compared += (size_t)page->len;
        if ((int32_t)same == page->len) {
            m.ahead = m.ahead < AHEAD_MAX ? 2 * m.ahead : AHEAD_MAX;
            continue;
        }
        m.guessed = path->n;
        m.ahead = 1;
        m.last = page;
        m.end = path->matched;
    }
}

bool hearth_tree_match(struct hearth_page *root, const hearth_token *tokens, size_t n, struct hearth_path *path) {
    path->root = root;
    path->n = path->visited = path->compared = 0;
    path->matched = 0;
    return !root || match_on(root, tokens, n, path);
}

bool hearth_tree_match_behind(struct hearth_page *page, const hearth_token *tokens, size_t n,
                              struct hearth_path *path) {
    path->root = page->parent ? NULL : page;
    path->n = 0;
    path->matched = page->p0 + page->len;
    return (!page->parent || path_push(path, page)) && match_on(page, tokens, n, path);
}

enum hearth_tree_edge hearth_tree_edge(const struct hearth_path *path, const hearth_token *tokens, size_t n) {
    const struct hearth_page *page = path->n ? path->pages[path->n - 1] : path->root;
    if (!page) {
        return HEARTH_EDGE_END;
    }
    int32_t offset = path->matched - page->p0;
    if (hearth_ghost_find(page, offset, tokens, n)) {
        return HEARTH_EDGE_EVICTED;
    }
    return offset < page->len || page->tail_count > 0 ? HEARTH_EDGE_BRANCH : HEARTH_EDGE_END;
}

/* ---- growing ---- */

int32_t hearth_tree_page_end(const struct hearth_tree *tree, int32_t pos, int32_t n) {
    int64_t end = ((int64_t)pos / tree->page_tokens + 1) * tree->page_tokens;
    return end < n ? (int32_t)end : n;
}

struct hearth_page *hearth_tree_add(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens,
                                    int32_t first, int32_t end, struct hearth_blob *blob) {
    int32_t p0 = path->matched;
    HEARTH_ASSERT(end > p0 && first <= p0);
    struct hearth_page *parent = path->n ? path->pages[path->n - 1] : path->root;
    HEARTH_ASSERT(parent && p0 <= parent->p0 + parent->len);
    struct hearth_page *page = calloc(1, sizeof *page);
    if (!page) {
        return NULL;
    }
    page->len = end - p0;
    page->tokens = malloc((size_t)page->len * sizeof *page->tokens);
    if (!page->tokens || !HEARTH_BUF_ROOM(path->pages, path->n, path->cap)) {
        free_page(page);
        return NULL;
    }
    memcpy(page->tokens, tokens + (p0 - first), (size_t)page->len * sizeof *page->tokens);
    page->p0 = page->blob_p0 = p0;
    page->first = page->tokens[0];
    page->parent = parent;
    page->item.owner = parent->item.owner;
    if (!hearth_children_add(parent, page)) {
        free_page(page);
        return NULL;
    }
    if (!note_end(tree, page)) {
        hearth_children_remove(parent, page);
        free_page(page);
        return NULL;
    }
    page->item.blob = blob;
    page->item.used = tree->now;
    path->pages[path->n++] = page;
    hearth_ghost_forget(parent, p0 - parent->p0, page->first);
    path->matched = end;
    tree->page_count++;
    return page;
}

bool hearth_tree_can_extend(const struct hearth_tree *tree, const struct hearth_path *path) {
    if (path->n == 0) {
        return false;
    }
    const struct hearth_page *page = path->pages[path->n - 1];
    int32_t end = page->p0 + page->len;
    return path->matched == end && end % tree->page_tokens != 0;
}

bool hearth_tree_extend(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens, int32_t first,
                        int32_t end, struct hearth_blob *blob, struct hearth_blob **old) {
    HEARTH_ASSERT(hearth_tree_can_extend(tree, path) && end > path->matched);
    struct hearth_page *page = path->pages[path->n - 1];
    int32_t len = end - page->p0;
    hearth_token *grown = realloc(page->tokens, (size_t)len * sizeof *grown);
    if (!grown) {
        return false;
    }
    memcpy(grown + page->len, tokens + (path->matched - first), (size_t)(len - page->len) * sizeof *grown);
    int32_t before = page->len;
    page->tokens = grown;
    page->len = len;
    if (!note_end(tree, page)) {
        page->len = before;
        return false;
    }
    page->tail_count = 0; /* what stood behind the end now branches off inside */
    *old = page->item.blob;
    page->item.blob = blob;
    page->item.used = tree->now;
    hearth_ghost_forget(page, before, page->tokens[before]);
    path->matched = end;
    return true;
}

/* ---- dividing ---- */

/* Makes a page of the end of a page, behind `pos`, that nothing leads to yet. NULL: out of memory. */
static struct hearth_page *copy_end(const struct hearth_page *page, int32_t pos) {
    struct hearth_page *back = calloc(1, sizeof *back);
    const int32_t offset = pos - page->p0;
    if (!back) {
        return NULL;
    }
    back->p0 = back->blob_p0 = pos;
    back->len = page->len - offset;
    back->tokens = malloc((size_t)back->len * sizeof *back->tokens);
    bool ok = back->tokens != NULL;
    if (ok) {
        memcpy(back->tokens, page->tokens + offset, (size_t)back->len * sizeof *back->tokens);
        back->first = back->tokens[0];
    }
    for (uint32_t i = 0; ok && i < page->snapshot_count; i++) {
        if (page->snapshots[i]->pos > pos) {
            ok = grow((void **)&back->snapshots, back->snapshot_count);
            if (ok) {
                back->snapshots[back->snapshot_count++] = page->snapshots[i];
            }
        }
    }
    for (struct hearth_page *child = NULL; ok && (child = hearth_children_next(page, child)) != NULL;) {
        ok = child->p0 <= pos || hearth_children_add(back, child);
    }
    back->item.owner = page->item.owner;
    back->item.used = page->item.used;
    back->item.hits = page->item.hits;
    if (!ok) {
        free_page(back);
    }
    return ok ? back : NULL;
}

struct hearth_page *hearth_tree_divide(struct hearth_tree *tree, struct hearth_page *page, int32_t pos) {
    HEARTH_ASSERT(pos > page->p0 && pos < page->p0 + page->len);
    HEARTH_ASSERT(!page->item.blob && page->item.copy.state == HEARTH_COPY_NONE && !page->old && page->dead == 0);
    struct hearth_page *back = copy_end(page, pos);
    if (!back || !hearth_children_add(page, back)) {
        if (back) {
            free_page(back);
        }
        return NULL;
    }
    back->parent = page;
    if (ends_block(tree, page)) {
        back->end.key = page->end.key;
        if (!hearth_table_add(&tree->ends, &back->end)) {
            hearth_children_remove(page, back);
            free_page(back);
            return NULL;
        }
        hearth_table_remove(&tree->ends, &page->end);
    }
    for (struct hearth_page *child = NULL; (child = hearth_children_next(back, child)) != NULL; child->parent = back) {
        hearth_children_remove(page, child);
    }
    for (uint32_t i = 0; i < back->snapshot_count; i++) {
        back->snapshots[i]->page = back;
    }
    page->snapshot_count -= back->snapshot_count;
    page->len = pos - page->p0;
    page->tail_count = 0;
    for (struct hearth_page *child = NULL; (child = hearth_children_next(page, child)) != NULL;) {
        page->tail_count += child->p0 == pos;
    }
    tree->page_count++;
    return back;
}

void hearth_tree_remove(struct hearth_tree *tree, struct hearth_page *page, size_t bytes) {
    struct hearth_page *parent = page->parent;
    struct hearth_ghost ghost = {.offset = page->p0 - parent->p0,
                                 .end = page->p0 + page->len,
                                 .used = page->item.used,
                                 .gone = tree->now,
                                 .page_bytes = bytes};
    HEARTH_ASSERT(parent && page->child_count == 0 && page->snapshot_count == 0);
    HEARTH_ASSERT(page->item.copy.state == HEARTH_COPY_NONE && page->item.lease.heap.index == 0);
    hearth_children_remove(parent, page);
    hearth_ghost_describe(&ghost, page->tokens, page->len);
    hearth_ghost_leave(parent, &ghost, page->ghosts);
    tree->page_count--;
    if (ends_block(tree, page)) {
        hearth_table_remove(&tree->ends, &page->end);
    }
    free_page(page);
}

/* ---- snapshots ---- */

/* The page of the path that a snapshot at `pos` belongs to. */
static struct hearth_page *snapshot_page(const struct hearth_path *path, int32_t pos) {
    return path->pages[page_before(path, pos)];
}

static uint32_t snapshot_place(const struct hearth_page *page, int32_t pos) {
    uint32_t i = 0;
    while (i < page->snapshot_count && page->snapshots[i]->pos < pos) {
        i++;
    }
    return i;
}

bool hearth_tree_has_snapshot(const struct hearth_path *path, int32_t pos) {
    if (pos <= 0 || pos > path->matched) {
        return false;
    }
    const struct hearth_page *page = snapshot_page(path, pos);
    uint32_t i = snapshot_place(page, pos);
    return i < page->snapshot_count && page->snapshots[i]->pos == pos;
}

struct hearth_snapshot *hearth_tree_add_snapshot(struct hearth_tree *tree, const struct hearth_path *path, int32_t pos,
                                                 struct hearth_blob *blob, enum hearth_snapshot_kind kind) {
    struct hearth_page *page = snapshot_page(path, pos);
    uint32_t at = snapshot_place(page, pos);
    if (at < page->snapshot_count && page->snapshots[at]->pos == pos) {
        return NULL;
    }
    struct hearth_snapshot *before = hearth_path_snapshot(path, pos - 1);
    while (before && before->kind == HEARTH_SNAPSHOT_HEAD) {
        before = hearth_path_snapshot(path, before->pos - 1);
    }
    struct hearth_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot || !grow((void **)&page->snapshots, page->snapshot_count)) {
        free(snapshot);
        return NULL;
    }
    *snapshot = (struct hearth_snapshot){.page = page,
                                         .item = {.blob = blob, .owner = page->item.owner, .is_snapshot = true},
                                         .pos = pos,
                                         .p0 = pos,
                                         .kind = kind,
                                         .saved_tokens = pos - (before ? before->pos : 0)};
    memmove(page->snapshots + at + 1, page->snapshots + at, (page->snapshot_count - at) * sizeof *page->snapshots);
    snapshot->item.used = tree->now;
    page->snapshots[at] = snapshot;
    hearth_ghost_forget_snapshot(page, pos);
    page->snapshot_count++;
    tree->snapshot_count++;
    return snapshot;
}

void hearth_tree_remove_snapshot(struct hearth_tree *tree, struct hearth_snapshot *snapshot) {
    struct hearth_page *page = snapshot->page;
    uint32_t at = snapshot_place(page, snapshot->pos);
    HEARTH_ASSERT(at < page->snapshot_count && page->snapshots[at] == snapshot);
    HEARTH_ASSERT(snapshot->item.copy.state == HEARTH_COPY_NONE && snapshot->item.lease.heap.index == 0);
    memmove(page->snapshots + at, page->snapshots + at + 1, (page->snapshot_count - at - 1) * sizeof *page->snapshots);
    page->snapshot_count--;
    tree->snapshot_count--;
    free(snapshot);
}

/* ---- checking ---- */

static void check_page(const struct hearth_tree *tree, const struct hearth_page *page) {
    int32_t end = page->p0 + page->len;
    if (page->parent) {
        HEARTH_ASSERT(page->len > 0 && page->len <= tree->page_tokens);
        HEARTH_ASSERT(page->p0 / tree->page_tokens == (end - 1) / tree->page_tokens);
        int32_t offset = page->p0 - page->parent->p0;
        HEARTH_ASSERT(offset >= 0 && offset <= page->parent->len);
        HEARTH_ASSERT(offset == page->parent->len || page->parent->tokens[offset] != page->tokens[0]);
        HEARTH_ASSERT(page->first == page->tokens[0]);
        HEARTH_ASSERT(page->blob_p0 <= page->p0);
        HEARTH_ASSERT(page->item.copy.state == HEARTH_COPY_NONE || page->item.copy.p0 <= page->p0);
    } else {
        HEARTH_ASSERT(page->p0 == 0 && page->len == 0 && page->item.copy.state == HEARTH_COPY_NONE);
    }
    HEARTH_ASSERT(!ends_block(tree, page) || hearth_tree_end(tree, page->end.key, end) == page);
    uint32_t children = 0, tail = 0;
    for (struct hearth_page *child = NULL; (child = hearth_children_next(page, child)) != NULL; children++) {
        HEARTH_ASSERT(child->parent == page);
        HEARTH_ASSERT(hearth_children_find(page, child->p0 - page->p0, child->first) == child);
        tail += child->p0 == end;
    }
    HEARTH_ASSERT(children == page->child_count && tail == page->tail_count);
    for (uint32_t i = 0; i < page->snapshot_count; i++) {
        const struct hearth_snapshot *snapshot = page->snapshots[i];
        HEARTH_ASSERT(snapshot->page == page && snapshot->pos > page->p0 && snapshot->pos <= end);
        HEARTH_ASSERT(snapshot->p0 >= 0 && snapshot->p0 <= snapshot->pos);
        HEARTH_ASSERT(i == 0 || page->snapshots[i - 1]->pos < snapshot->pos);
    }
}

const struct hearth_page *hearth_tree_next(const struct hearth_page *page) {
    const struct hearth_page *next = hearth_children_next(page, NULL);
    while (!next && page->parent) {
        next = hearth_children_next(page->parent, page);
        page = page->parent;
    }
    return next;
}

void hearth_tree_check(const struct hearth_tree *tree) {
    size_t pages = 0, snapshots = 0;
    for (uint32_t i = 0; i < tree->root_count; i++) {
        for (const struct hearth_page *page = tree->roots[i]; page; page = hearth_tree_next(page)) {
            check_page(tree, page);
            pages += page->parent != NULL;
            snapshots += page->snapshot_count;
        }
    }
    HEARTH_ASSERT(pages == tree->page_count && snapshots == tree->snapshot_count);
}
