/* libhearth: prompt state that is computed once.
 *
 *     engine (engine/engine.h)   computes; `sim` without a model (engine/sim.h), `llama` with one (engine/llama.h)
 *     cache (cache/cache.h)      plans, restores, captures, evicts: begin there
 *     ram (tier/ram.h)           where the cache's state lives
 *     disk (tier/disk.h)         where it outlasts the process, if wanted
 *     log (base/log.h)           the library prints nothing; it logs to a sink
 *
 * For C11 and C++. examples/shared_prefix.c is a whole program. Build with: pkg-config --cflags --libs hearth */
#ifndef HEARTH_H
#define HEARTH_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/log.h"
#include "cache/cache.h"
#include "engine/llama.h"
#include "engine/sim.h"
#include "tier/disk.h"

#ifdef __cplusplus
}
#endif

#endif
