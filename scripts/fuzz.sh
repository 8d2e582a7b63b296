#!/bin/sh
# Fuzzes what reads strangers' bytes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer: `make fuzz`.
#
#   scripts/fuzz.sh [seconds [target …]]    each target for so long (default 60), as many at once as there are cores
#   scripts/fuzz.sh hours N                 all of them for N hours together: `make fuzz-long`
#   scripts/fuzz.sh merge [target …]        keeps in tests/fuzz/corpus what reaches code that nothing smaller there does
#   scripts/fuzz.sh lines                   how many lines of src/ each corpus reaches
#
# A run starts from the corpus in the tree and from what earlier runs have found, which is kept in $HEARTH_CACHE/fuzz. It
# ends with a table: runs, edges and features reached, inputs found. An input that stops a target is minimised and its
# path printed with the command that plays it; the other targets go on, and the exit status is 1.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

scripts/setup.sh clang
corpus=tests/fuzz/corpus
found=$HEARTH_CACHE/fuzz
mkdir -p "$found"

if [ "${1:-}" = lines ]; then
    dir=$(CC=clang CXX=clang++ SAN=coverage scripts/build.sh tests/fuzz/replay)
    counts=$(mktemp -d "$found/lines.XXXXXX")
    for name in $("$dir/tests/fuzz/replay" --list); do
        LLVM_PROFILE_FILE=$counts/$name.profraw "$dir/tests/fuzz/replay" "$name" "$corpus/$name" >/dev/null ||
            say "$name failed"
        llvm-profdata merge -o "$counts/$name" "$counts/$name.profraw"
        llvm-cov export -summary-only -instr-profile="$counts/$name" "$dir/tests/fuzz/replay" src |
            python3 -c 'import json, sys
lines = json.load(sys.stdin)["data"][0]["totals"]["lines"]
print("%-20s %6d lines of src/" % (sys.argv[1], lines["covered"]))' "$name"
    done
    rm -rf "$counts"
    exit 0
fi

dir=$(CC=clang CXX=clang++ SAN=fuzz scripts/build.sh tests/fuzz/fuzzer)
fuzzer=$PWD/$dir/tests/fuzz/fuzzer
names=$(sed -n "s/^ *X(\(.*\))$/\1/p" tests/fuzz/targets.def)
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:allocator_may_return_null=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}"
jobs=$(nproc 2>/dev/null || echo 2)

if [ "${1:-}" = merge ]; then
    shift
    for name in ${*:-$names}; do
        made=$(mktemp -d "$found/merge.XXXXXX")
        mkdir -p "$found/$name" "$corpus/$name"
        # Without counters: an edge that is taken more often is nothing new.
        HEARTH_FUZZ=$name "$fuzzer" -merge=1 -use_counters=0 -timeout=60 -max_len=4096 "$made" "$corpus/$name" \
            "$found/$name" >"$found/$name.merge" 2>&1 || die "merging failed: $found/$name.merge"
        rm -rf "${corpus:?}/$name"
        mv "$made" "$corpus/$name"
        chmod 755 "$corpus/$name"
        chmod 644 "$corpus/$name"/*
        say "$name: $(ls "$corpus/$name" | wc -l) inputs, $(cat "$corpus/$name"/* | wc -c) bytes"
    done
    exit 0
fi

seconds=${1:-60}
if [ "$seconds" = hours ]; then
    seconds=$((${2:-8} * 3600 * jobs / $(printf '%s\n' "$names" | wc -l)))
    set --
fi
[ $# -lt 2 ] || { shift; names=$*; }

one() { # target, seconds
    out=$found/$1
    mkdir -p "$out" "$corpus/$1"
    rm -f "$out.crash"-*
    set -- "$1" "$2" -max_total_time="$2" -timeout=25 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$out.crash-"
    [ ! -e "tests/fuzz/dict/$1.dict" ] || set -- "$@" -dict="tests/fuzz/dict/$1.dict"
    name=$1
    shift 2
    HEARTH_FUZZ=$name "$fuzzer" "$@" "$out" "$corpus/$name" >"$out.log" 2>&1 ||
        echo "$name: ended early; see $out.log" >"$out.found"
    for crash in "$out.crash"-*; do
        [ -e "$crash" ] || continue
        HEARTH_FUZZ=$name "$fuzzer" -minimize_crash=1 -max_total_time=30 -timeout=10 \
            -exact_artifact_path="$crash-small" "$crash" >"$crash.log" 2>&1 || true
        [ ! -s "$crash-small" ] || crash=$crash-small
        echo "$name: HEARTH_FUZZ=$name $fuzzer $crash" >"$out.found"
        break
    done
}

rm -f "$found"/*.found
say "$(echo $names | wc -w) targets for $seconds s each, $jobs at once"
running=0
for name in $names; do
    one "$name" "$seconds" &
    running=$((running + 1))
    # A round of as many as there are cores; all of a round take the same time.
    [ $((running % jobs)) != 0 ] || wait
done
wait

printf '%-20s %9s %7s %9s %5s\n' target runs edges features new
for name in $names; do
    awk -v name="$name" '
        /^#[0-9]+\t/ { for (i = 1; i < NF; i++) { if ($i == "cov:") edges = $(i + 1); if ($i == "ft:") features = $(i + 1) } }
        /^stat::number_of_executed_units:/ { runs = $2 }
        /^stat::new_units_added:/ { fresh = $2 }
        END { printf "%-20s %9s %7s %9s %5s\n", name, runs, edges, features, fresh }' "$found/$name.log"
done
if cat "$found"/*.found 2>/dev/null; then
    die "what these commands play stops the target"
fi
