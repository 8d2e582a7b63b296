#!/bin/sh
# Proves export and import of state over every architecture that llama.cpp can make a small model of: `make zoo`.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh)
archs=$(scripts/deps.sh archs)
zoo=$HEARTH_CACHE/zoo
if [ ! -e "$zoo/.complete" ]; then
    say "making one small model of each architecture in $zoo"
    rm -rf "$zoo"
    mkdir -p "$zoo"
    "$archs" -o "$zoo" >"$zoo.log" 2>&1 || say "test-llama-archs reported failures (log: $zoo.log); going on with what it made"
    touch "$zoo/.complete"
fi
exec "$dir/tests/real/zoo" "$zoo"
