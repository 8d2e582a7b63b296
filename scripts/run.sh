#!/bin/sh
# Builds hearth, fetches the default model, and serves it: `make run`.
#
# Environment: MODEL (a GGUF file; default: SmolLM2, fetched once), PORT (default 8080), ARGS (further options).
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh hearth)
if [ -z "${MODEL:-}" ]; then
    MODEL=$(scripts/models.sh smollm2)
    set -- --alias smollm2
fi
say "starting the server (Ctrl-C ends it)"
# ARGS holds several options.
exec "$dir/hearth" serve --model "$MODEL" --port "${PORT:-8080}" --hello "$@" ${ARGS:-}
