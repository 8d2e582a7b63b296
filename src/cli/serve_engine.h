/* What computes for a server: the engine that the options describe. */
#ifndef HEARTH_CLI_SERVE_ENGINE_H
#define HEARTH_CLI_SERVE_ENGINE_H

#include "cli/options.h"
#include "engine/engine.h"

/* Loads the model, with progress on stderr, or makes the simulated engine. Errors: those of hearth_llama_create(). */
int hearth_serve_engine_create(const struct hearth_options *options, struct hearth_engine **out,
                               struct hearth_errmsg *msg);

#endif
