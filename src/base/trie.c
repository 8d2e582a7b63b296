/* A trie with lists of siblings: nodes are numbers in one array, so nothing is freed one by one. */
#include "base/trie.h"

#include "base/buf.h"

#include <stdlib.h>

void hearth_trie_finish(struct hearth_trie *trie) {
    free(trie->nodes);
    *trie = (struct hearth_trie){0};
}

static uint32_t add_node(struct hearth_trie *trie, uint8_t byte, uint32_t sibling) {
    if (!HEARTH_BUF_ROOM(trie->nodes, trie->count, trie->cap)) {
        return 0;
    }
    trie->nodes[trie->count] = (struct hearth_trie_node){.sibling = sibling, .value = -1, .byte = byte};
    return trie->count++;
}

int32_t *hearth_trie_place(struct hearth_trie *trie, const char *text, size_t len) {
    uint32_t at = 0;
    bool ok = trie->count > 0 || (add_node(trie, 0, 0), trie->count > 0);
    for (size_t i = 0; i < len && ok; i++) {
        const uint8_t byte = (uint8_t)text[i];
        uint32_t next = hearth_trie_next(trie, at, byte);
        if (next == 0) {
            next = add_node(trie, byte, at > 0 ? trie->nodes[at].child : 0);
            *(at > 0 ? &trie->nodes[at].child : &trie->first[byte]) = next;
            ok = next > 0;
        }
        at = next;
    }
    return ok ? &trie->nodes[at].value : NULL;
}

size_t hearth_trie_match(const struct hearth_trie *trie, const char *text, size_t len, int32_t *value, bool *open) {
    size_t best = 0;
    uint32_t node = 0;
    *open = false;
    for (size_t end = 1; end <= len && (node = hearth_trie_next(trie, node, (uint8_t)text[end - 1])) != 0; end++) {
        if (trie->nodes[node].value >= 0) {
            *value = trie->nodes[node].value;
            best = end;
        }
        *open = end == len && trie->nodes[node].child != 0;
    }
    return best;
}
