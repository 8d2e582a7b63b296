/* A path: where the tokens of a prompt run through what is stored. A plan owns one. */
#ifndef HEARTH_CACHE_PATH_H
#define HEARTH_CACHE_PATH_H

#include <stddef.h>
#include <stdint.h>

struct hearth_page;

/* Most pieces of a window that are imported for a prompt (cache/tree.h: hearth_path_cover()). */
#define HEARTH_PIECES_MAX 96

/* The pages that a token list runs through: pages[i] is used for [pages[i]->p0, end of i), where the end is the next
 * page's p0, or `matched` for the last one. Reused between matches; finish it once. */
struct hearth_path {
    struct hearth_page *root; /* NULL: nothing is known by this salt */
    struct hearth_page **pages;
    size_t n, cap;
    int32_t matched;
    size_t visited, compared; /* by the last match: pages looked at, tokens compared (at most, in each page) */
};

void hearth_path_finish(struct hearth_path *path);

#endif
