/* The prefix tree. Design and invariants stand in tree.h.
 *
 * Matching walks a page token by token and leaves it where the tokens differ or end; then the children at that offset
 * are searched for the next token. Children are few almost everywhere, so they are a sorted array. */
#include "cache/tree.h"

#include "base/assert.h"
#include "tier/record.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays of pointers ---- */

static bool grow(void **array, uint32_t *cap, uint32_t n) {
    if (n < *cap)
        return true;
    uint32_t more = *cap ? *cap * 2 : 2;
    void *grown = realloc(*array, more * sizeof(void *));
    if (!grown)
        return false;
    *array = grown;
    *cap = more;
    return true;
}

/* Place of the child with (offset, first token), or where it would stand. */
static uint32_t child_place(const struct hearth_page *page, int32_t offset, hearth_token first) {
    uint32_t low = 0, high = page->child_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct hearth_page *child = page->children[middle];
        int32_t at = child->p0 - page->p0;
        if (at < offset || (at == offset && child->tokens[0] < first))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct hearth_page *child_find(const struct hearth_page *page, int32_t offset, hearth_token first) {
    uint32_t i = child_place(page, offset, first);
    if (i == page->child_count)
        return NULL;
    struct hearth_page *child = page->children[i];
    return child->p0 - page->p0 == offset && child->tokens[0] == first ? child : NULL;
}

static bool has_child_at(const struct hearth_page *page, int32_t offset) {
    uint32_t i = child_place(page, offset, INT32_MIN);
    return i < page->child_count && page->children[i]->p0 - page->p0 == offset;
}

/* ---- tree ---- */

bool hearth_tree_init(struct hearth_tree *tree, int32_t page_tokens) {
    HEARTH_ASSERT(page_tokens > 0);
    *tree = (struct hearth_tree){.page_tokens = page_tokens};
    tree->block = malloc((size_t)page_tokens * sizeof *tree->block);
    return tree->block != NULL;
}

static void free_page(struct hearth_page *page) {
    free(page->tokens);
    free(page->children);
    free(page->snapshots);
    free(page);
}

static void finish_root(struct hearth_page *root, void (*drop)(void *user, struct hearth_blob *blob), void *user) {
    /* Depth first without recursion: a long conversation is a deep tree. */
    struct hearth_page *page = root;
    while (page) {
        if (page->child_count > 0) {
            page = page->children[--page->child_count];
            continue;
        }
        for (uint32_t i = 0; i < page->snapshot_count; i++) {
            if (drop && page->snapshots[i]->blob)
                drop(user, page->snapshots[i]->blob);
            free(page->snapshots[i]);
        }
        if (drop && page->blob)
            drop(user, page->blob);
        struct hearth_page *parent = page->parent;
        free_page(page);
        page = parent;
    }
}

void hearth_tree_finish(struct hearth_tree *tree, void (*drop)(void *user, struct hearth_blob *blob), void *user) {
    for (uint32_t i = 0; i < tree->root_count; i++)
        finish_root(tree->roots[i], drop, user);
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
        if (page->p0 + page->len == pos)
            return page;
    }
    return NULL;
}

struct hearth_page *hearth_tree_add_root(struct hearth_tree *tree, struct hearth_digest digest) {
    struct hearth_page *root = calloc(1, sizeof *root);
    if (!root || !grow((void **)&tree->roots, &tree->root_cap, tree->root_count)) {
        free(root);
        return NULL;
    }
    root->end.key = digest;
    root->pins = 1;
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

/* Makes a page that ends where a block does findable. False: out of memory. */
static bool note_end(struct hearth_tree *tree, struct hearth_page *page) {
    if (!ends_block(tree, page))
        return true;
    const hearth_token *block = hearth_tree_block(tree, page, page->p0 + page->len);
    page->end.key = hearth_record_next(page->base, block, (size_t)tree->page_tokens);
    return hearth_table_add(&tree->ends, &page->end);
}

/* A page inside of a block has its parent's base; one at its start has what the parent ends with. */
static struct hearth_digest base_behind(const struct hearth_tree *tree, const struct hearth_page *parent, int32_t p0) {
    return p0 % tree->page_tokens == 0 ? parent->end.key : parent->base;
}

/* ---- matching ---- */

void hearth_path_finish(struct hearth_path *path) {
    free(path->pages);
    *path = (struct hearth_path){0};
}

static bool path_push(struct hearth_path *path, struct hearth_page *page) {
    if (path->n == path->cap) {
        size_t cap = path->cap ? path->cap * 2 : 64;
        struct hearth_page **pages = realloc(path->pages, cap * sizeof *pages);
        if (!pages)
            return false;
        path->pages = pages;
        path->cap = cap;
    }
    path->pages[path->n++] = page;
    return true;
}

int32_t hearth_path_end(const struct hearth_path *path, size_t i) {
    HEARTH_ASSERT(i < path->n);
    return i + 1 < path->n ? path->pages[i + 1]->p0 : path->matched;
}

struct hearth_snapshot *hearth_path_snapshot(const struct hearth_path *path, int32_t limit) {
    for (size_t i = path->n; i-- > 0;) {
        const struct hearth_page *page = path->pages[i];
        int32_t end = hearth_path_end(path, i);
        for (uint32_t k = page->snapshot_count; k-- > 0;) {
            struct hearth_snapshot *snapshot = page->snapshots[k];
            if (snapshot->pos <= end && snapshot->pos <= limit)
                return snapshot;
        }
    }
    return NULL;
}

/* Goes on from the end of the path, which is in `page`. */
static bool match_on(struct hearth_page *page, const hearth_token *tokens, size_t n, struct hearth_path *path) {
    for (size_t at = 0; at < n;) {
        struct hearth_page *next = child_find(page, path->matched - page->p0, tokens[at]);
        if (!next)
            break;
        if (!path_push(path, next))
            return false;
        page = next;
        size_t same = hearth_tokens_common(page->tokens, (size_t)page->len, tokens + at, n - at);
        at += same;
        path->matched += (int32_t)same;
    }
    return true;
}

bool hearth_tree_match(struct hearth_page *root, const hearth_token *tokens, size_t n, struct hearth_path *path) {
    path->root = root;
    path->n = 0;
    path->matched = 0;
    return !root || match_on(root, tokens, n, path);
}

bool hearth_tree_match_behind(struct hearth_page *page, const hearth_token *tokens, size_t n,
                              struct hearth_path *path) {
    path->n = 0;
    path->matched = page->p0 + page->len;
    struct hearth_page *at = page;
    for (; at->parent; at = at->parent)
        if (!path_push(path, at))
            return false;
    path->root = at;
    for (size_t i = 0; i < path->n / 2; i++) {
        struct hearth_page *other = path->pages[path->n - 1 - i];
        path->pages[path->n - 1 - i] = path->pages[i];
        path->pages[i] = other;
    }
    return match_on(page, tokens, n, path);
}

enum hearth_tree_edge hearth_tree_edge(const struct hearth_path *path, hearth_token next) {
    const struct hearth_page *page = path->n ? path->pages[path->n - 1] : path->root;
    if (!page)
        return HEARTH_EDGE_END;
    int32_t offset = path->matched - page->p0;
    for (uint32_t i = 0; i < page->ghost_count && i < HEARTH_GHOSTS; i++)
        if (page->ghosts[i].offset == offset && page->ghosts[i].first == next)
            return HEARTH_EDGE_EVICTED;
    return offset < page->len || has_child_at(page, offset) ? HEARTH_EDGE_BRANCH : HEARTH_EDGE_END;
}

/* ---- growing ---- */

int32_t hearth_tree_page_end(const struct hearth_tree *tree, int32_t pos, int32_t n) {
    int64_t end = ((int64_t)pos / tree->page_tokens + 1) * tree->page_tokens;
    return end < n ? (int32_t)end : n;
}

void hearth_tree_forget_ghost(struct hearth_page *parent, int32_t offset, hearth_token first) {
    for (uint32_t i = 0; i < parent->ghost_count && i < HEARTH_GHOSTS; i++)
        if (parent->ghosts[i].offset == offset && parent->ghosts[i].first == first)
            parent->ghosts[i] = (struct hearth_ghost){.offset = -1};
}

struct hearth_page *hearth_tree_add(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens,
                                    int32_t first, int32_t end, struct hearth_blob *blob) {
    int32_t p0 = path->matched;
    HEARTH_ASSERT(end > p0 && first <= p0);
    struct hearth_page *parent = path->n ? path->pages[path->n - 1] : path->root;
    HEARTH_ASSERT(parent && p0 <= parent->p0 + parent->len);
    struct hearth_page *page = calloc(1, sizeof *page);
    if (!page)
        return NULL;
    page->len = end - p0;
    page->tokens = malloc((size_t)page->len * sizeof *page->tokens);
    if (!page->tokens || !grow((void **)&parent->children, &parent->child_cap, parent->child_count) ||
        !path_push(path, page)) {
        free_page(page);
        return NULL;
    }
    memcpy(page->tokens, tokens + (p0 - first), (size_t)page->len * sizeof *page->tokens);
    page->p0 = page->blob_p0 = p0;
    page->parent = parent;
    page->base = base_behind(tree, parent, p0);
    if (!note_end(tree, page)) {
        path->n--;
        free_page(page);
        return NULL;
    }
    page->blob = blob;
    uint32_t at = child_place(parent, p0 - parent->p0, page->tokens[0]);
    memmove(parent->children + at + 1, parent->children + at, (parent->child_count - at) * sizeof *parent->children);
    parent->children[at] = page;
    parent->child_count++;
    hearth_tree_forget_ghost(parent, p0 - parent->p0, page->tokens[0]);
    path->matched = end;
    tree->page_count++;
    return page;
}

bool hearth_tree_can_extend(const struct hearth_tree *tree, const struct hearth_path *path) {
    if (path->n == 0)
        return false;
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
    if (!grown)
        return false;
    memcpy(grown + page->len, tokens + (path->matched - first), (size_t)(len - page->len) * sizeof *grown);
    int32_t before = page->len;
    page->tokens = grown;
    page->len = len;
    if (!note_end(tree, page)) {
        page->len = before;
        return false;
    }
    *old = page->blob;
    page->blob = blob;
    path->matched = end;
    return true;
}

void hearth_tree_remove(struct hearth_tree *tree, struct hearth_page *page) {
    struct hearth_page *parent = page->parent;
    HEARTH_ASSERT(parent && page->child_count == 0 && page->snapshot_count == 0 && page->heap.index == 0);
    HEARTH_ASSERT(page->copy.state == HEARTH_COPY_NONE && page->promise.heap.index == 0);
    int32_t offset = page->p0 - parent->p0;
    uint32_t at = child_place(parent, offset, page->tokens[0]);
    HEARTH_ASSERT(at < parent->child_count && parent->children[at] == page);
    memmove(parent->children + at, parent->children + at + 1,
            (parent->child_count - at - 1) * sizeof *parent->children);
    parent->child_count--;
    parent->ghosts[parent->ghost_count++ % HEARTH_GHOSTS] =
        (struct hearth_ghost){.offset = offset, .first = page->tokens[0]};
    tree->page_count--;
    if (ends_block(tree, page))
        hearth_table_remove(&tree->ends, &page->end);
    free_page(page);
}

/* ---- snapshots ---- */

/* The page of the path that a snapshot at `pos` belongs to. */
static struct hearth_page *snapshot_page(const struct hearth_path *path, int32_t pos) {
    HEARTH_ASSERT(pos > 0 && pos <= path->matched);
    size_t low = 0, high = path->n; /* first page with p0 >= pos */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (path->pages[middle]->p0 < pos)
            low = middle + 1;
        else
            high = middle;
    }
    HEARTH_ASSERT(low > 0);
    return path->pages[low - 1];
}

static uint32_t snapshot_place(const struct hearth_page *page, int32_t pos) {
    uint32_t i = 0;
    while (i < page->snapshot_count && page->snapshots[i]->pos < pos)
        i++;
    return i;
}

bool hearth_tree_has_snapshot(const struct hearth_path *path, int32_t pos) {
    if (pos <= 0 || pos > path->matched)
        return false;
    const struct hearth_page *page = snapshot_page(path, pos);
    uint32_t i = snapshot_place(page, pos);
    return i < page->snapshot_count && page->snapshots[i]->pos == pos;
}

struct hearth_snapshot *hearth_tree_add_snapshot(struct hearth_tree *tree, const struct hearth_path *path, int32_t pos,
                                                 struct hearth_blob *blob, enum hearth_snapshot_kind kind) {
    struct hearth_page *page = snapshot_page(path, pos);
    uint32_t at = snapshot_place(page, pos);
    if (at < page->snapshot_count && page->snapshots[at]->pos == pos)
        return NULL;
    struct hearth_snapshot *before = hearth_path_snapshot(path, pos - 1);
    struct hearth_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot || !grow((void **)&page->snapshots, &page->snapshot_cap, page->snapshot_count)) {
        free(snapshot);
        return NULL;
    }
    *snapshot = (struct hearth_snapshot){
        .page = page, .blob = blob, .pos = pos, .kind = kind, .saved_tokens = pos - (before ? before->pos : 0)};
    snapshot->copy.is_snapshot = true;
    memmove(page->snapshots + at + 1, page->snapshots + at, (page->snapshot_count - at) * sizeof *page->snapshots);
    page->snapshots[at] = snapshot;
    page->snapshot_count++;
    tree->snapshot_count++;
    return snapshot;
}

void hearth_tree_remove_snapshot(struct hearth_tree *tree, struct hearth_snapshot *snapshot) {
    struct hearth_page *page = snapshot->page;
    uint32_t at = snapshot_place(page, snapshot->pos);
    HEARTH_ASSERT(at < page->snapshot_count && page->snapshots[at] == snapshot && snapshot->heap.index == 0);
    HEARTH_ASSERT(snapshot->copy.state == HEARTH_COPY_NONE && snapshot->promise.heap.index == 0);
    memmove(page->snapshots + at, page->snapshots + at + 1,
            (page->snapshot_count - at - 1) * sizeof *page->snapshots);
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
        HEARTH_ASSERT(hearth_digest_equal(page->base, base_behind(tree, page->parent, page->p0)));
        HEARTH_ASSERT(page->blob_p0 <= page->p0 && (page->copy.state == HEARTH_COPY_NONE || page->copy.p0 <= page->p0));
    } else {
        HEARTH_ASSERT(page->p0 == 0 && page->len == 0 && page->copy.state == HEARTH_COPY_NONE);
    }
    HEARTH_ASSERT(!ends_block(tree, page) || hearth_tree_end(tree, page->end.key, end) == page);
    for (uint32_t i = 0; i < page->child_count; i++) {
        const struct hearth_page *child = page->children[i];
        HEARTH_ASSERT(child->parent == page);
        if (i > 0) {
            const struct hearth_page *before = page->children[i - 1];
            HEARTH_ASSERT(before->p0 < child->p0 || (before->p0 == child->p0 && before->tokens[0] < child->tokens[0]));
        }
    }
    for (uint32_t i = 0; i < page->snapshot_count; i++) {
        const struct hearth_snapshot *snapshot = page->snapshots[i];
        HEARTH_ASSERT(snapshot->page == page && snapshot->pos > page->p0 && snapshot->pos <= end);
        HEARTH_ASSERT(i == 0 || page->snapshots[i - 1]->pos < snapshot->pos);
    }
}

/* Pages and snapshots from a root on. */
static void check_root(const struct hearth_tree *tree, const struct hearth_page *page, size_t *pages,
                       size_t *snapshots) {
    /* Pre-order without recursion or extra memory: climb until a next sibling exists. */
    for (;;) {
        check_page(tree, page);
        *pages += page->parent != NULL;
        *snapshots += page->snapshot_count;
        if (page->child_count > 0) {
            page = page->children[0];
            continue;
        }
        while (page->parent) {
            const struct hearth_page *parent = page->parent;
            uint32_t next = child_place(parent, page->p0 - parent->p0, page->tokens[0]) + 1;
            if (next < parent->child_count) {
                page = parent->children[next];
                break;
            }
            page = parent;
        }
        if (!page->parent)
            return;
    }
}

void hearth_tree_check(const struct hearth_tree *tree) {
    size_t pages = 0, snapshots = 0;
    for (uint32_t i = 0; i < tree->root_count; i++)
        check_root(tree, tree->roots[i], &pages, &snapshots);
    HEARTH_ASSERT(pages == tree->page_count && snapshots == tree->snapshot_count);
}
