/* A path: the pages through which the tokens of a prompt run. A plan owns one. */
#ifndef HEARTH_CACHE_PATH_H
#define HEARTH_CACHE_PATH_H

#include <stddef.h>
#include <stdint.h>

struct hearth_page;

/* Most pieces of a window that are imported for a prompt (cache/tree.h: hearth_path_cover()). */
#define HEARTH_PIECES_MAX 96

/* The pages of a list of tokens: pages[i] is used for [pages[i]->p0, end of i), where the end is the next page's p0, or
 * `matched` for the last page. A path may be matched again; finish it once. */
struct hearth_path {
    struct hearth_page *root; /* NULL: the salt is not known */
    struct hearth_page **pages;
    size_t n, cap;
    int32_t matched;
    size_t visited, compared; /* counts of the last match: pages visited, tokens compared (at most, in each page) */
};

void hearth_path_finish(struct hearth_path *path);

#endif
