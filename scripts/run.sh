#!/bin/sh
# Builds hearth, fetches the default model, and serves it: `make run`.
#
# Environment: MODEL (a GGUF file; default: SmolLM2, fetched once), PORT (default 8080), ARGS (further options),
# HEARTH_BIN (a program that is built already), HEARTH_CTX_SIZE and all other variables of docs/options.md.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

# Whether so many KiB can still be used, in this container, too.
has_memory() {
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
    free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
    [ "${free:-0}" -gt "$1" ] && { [ "$limit" = max ] || [ $((limit / 1024)) -gt "$1" ]; }
}

program=${HEARTH_BIN:-$(scripts/build.sh hearth)/hearth}
if [ -z "${MODEL:-}" ]; then
    MODEL=$(scripts/models.sh smollm2)
    set -- --alias smollm2
    # Agents send 10,000 tokens and more at once, and some ask for 64,000. SmolLM2 was trained with 8,192: what it says
    # up to there is the same, and agents can be tried. The context takes 1.4 GiB.
    if has_memory 6000000; then
        export HEARTH_CTX_SIZE="${HEARTH_CTX_SIZE:-65536}"
    fi
fi
say "starting the server (Ctrl-C ends it)"
# ARGS holds several options.
exec "$program" serve --model "$MODEL" --port "${PORT:-8080}" --hello "$@" ${ARGS:-}
