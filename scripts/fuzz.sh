#!/bin/sh
# Fuzzes what reads strangers' bytes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer: `make fuzz`.
#
#   scripts/fuzz.sh [seconds for each target, default 60]
#
# What was found to reach new code is kept in $HEARTH_CACHE/fuzz and is where the next run starts. A crash stops the run and
# leaves its input there. A target with a program seeds_… beside it starts from what that makes as well.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

command -v clang >/dev/null 2>&1 && command -v clang++ >/dev/null 2>&1 ||
    die "fuzzing needs clang; please run: sudo apt-get install -y clang"
programs=$(for source in tests/fuzz/fuzz_*.c tests/fuzz/seeds_*.c; do basename "$source" .c; done)
dir=$(CC=clang CXX=clang++ SAN=fuzz scripts/build.sh $(printf 'tests/fuzz/%s ' $programs))
targets=$(for name in $programs; do case $name in fuzz_*) echo "$name" ;; esac; done)
for name in $targets; do
    target=$dir/tests/fuzz/$name
    corpus=$HEARTH_CACHE/fuzz/$name
    seeds=$dir/tests/fuzz/seeds_${name#fuzz_}
    mkdir -p "$corpus"
    [ ! -x "$seeds" ] || "$seeds" "$corpus"
    say "$name for ${1:-60} s"
    "$target" -max_total_time="${1:-60}" -print_final_stats=1 -artifact_prefix="$corpus-" "$corpus" || die "$name found something; its input is $corpus-…"
done
