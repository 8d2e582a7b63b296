/* How much room would have kept what a prompt has to compute again. Inside the cache but for the value. */
#ifndef HEARTH_CACHE_SHORTFALL_H
#define HEARTH_CACHE_SHORTFALL_H

#include <stdbool.h>
#include <stdint.h>

/* Zeros: nothing was lost. Units: bytes. */
struct hearth_shortfall {
    int32_t end;     /* the last position of the lost state; 0: unknown */
    uint64_t budget; /* bytes that RAM may take now */
    uint64_t ram;    /* with a budget of so many bytes nothing would have been lost since the state was last used */
    uint64_t disk;   /* with so many more bytes of disk nothing would have been lost, either; 0: there is no disk */
    bool store;      /* a shared store had reported the state and did not have it any more */
};

#endif
