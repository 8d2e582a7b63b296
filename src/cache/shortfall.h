/* How much room would have kept what a prompt has to compute again. Inside the cache but for the value. */
#ifndef HEARTH_CACHE_SHORTFALL_H
#define HEARTH_CACHE_SHORTFALL_H

#include <stdbool.h>
#include <stdint.h>

/* Zeros: nothing was lost. Units: bytes. */
struct hearth_shortfall {
    int32_t end;     /* the last position of what was lost; 0: not known */
    uint64_t budget; /* what RAM may take */
    uint64_t ram;    /* with so much nothing would have been lost since it was last used */
    uint64_t disk;   /* so much more of a disk would have kept all of that; 0: there is none */
    bool store;      /* a store that boxes share had told of it, and did not have it any more */
};

#endif
