/* Texts, each with a number, and the longest of them that another text begins with: one step for each byte that can
 * begin one. */
#ifndef HEARTH_BASE_TRIE_H
#define HEARTH_BASE_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t value;           /* of the text that ends here, or -1 */
    uint8_t byte;
};

/* Zeroed: no texts. Any thread may read one that is not written. */
struct hearth_trie {
    struct hearth_trie_node *nodes; /* [0] is in front of all texts */
    uint32_t count;
    size_t cap;
    uint32_t first[256]; /* by first byte: its node, or 0 */
};

void hearth_trie_finish(struct hearth_trie *trie);
/* The place of a text's number, which is -1 in a text that was not there; valid until the next call. The text is not
 * empty. NULL: out of memory. */
int32_t *hearth_trie_place(struct hearth_trie *trie, const char *text, size_t len);

/* The node behind one more byte; 0: no text goes on so. Node 0 is in front of all texts. */
static inline uint32_t hearth_trie_next(const struct hearth_trie *trie, uint32_t node, uint8_t byte) {
    uint32_t at = node == 0 ? trie->first[byte] : trie->nodes[node].child;
    while (at != 0 && trie->nodes[at].byte != byte) {
        at = trie->nodes[at].sibling;
    }
    return at;
}

/* The length of the longest text with which the `len` bytes begin, and its number; 0: none. `*open`: a longer one may
 * go on behind them. */
size_t hearth_trie_match(const struct hearth_trie *trie, const char *text, size_t len, int32_t *value, bool *open);

#endif
