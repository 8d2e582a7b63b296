/* The RAM tier, failing on demand: a test that links this with `-Wl,--wrap=hearth_ram_put,--wrap=hearth_ram_view`
 * decides how often storing and reading blobs fail. */
#ifndef HEARTH_TESTS_SHAKY_RAM_H
#define HEARTH_TESTS_SHAKY_RAM_H

#include "support/random.h"

/* From now on one call in so many fails (0: none); `rng` chooses which and has to live as long as the tier is used. */
void shaky_ram_fail(struct rng *rng, uint32_t once_in);

#endif
