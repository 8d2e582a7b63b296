#!/bin/sh
# Says which lines of src/ the tests reach: `make coverage`.
#
#   scripts/coverage.sh            build with counters, run all tests, and print the table
#   scripts/coverage.sh quick      the tests in C, and the Python tests that need neither an agent nor a real model
#   scripts/coverage.sh c          the tests in C alone
#   scripts/coverage.sh report     only the table, of what was counted before
#
# Environment: LEAST=N makes less than N per cent of src/ an error; KEEP=1 adds to what was counted before.
#
# The counters are clang's, and lie in a file that every process of a program shares: what a process did counts also
# when it is killed, as the crash tests do, and when it may not open files any more at its end. A failed test is not an
# error here.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

what=${1:-all}
case $what in all | quick | c | report) ;; *) die "there are all, quick, c and report" ;; esac
scripts/setup.sh clang
dir=build-coverage
if [ "$what" != report ]; then
    dir=$(CC=clang CXX=clang++ SAN=coverage scripts/build.sh)
    [ -n "${KEEP:-}" ] || rm -rf "$dir/counts"
    mkdir -p "$dir/counts"
    LLVM_PROFILE_FILE=$PWD/$dir/counts/%c%m.profraw
    export LLVM_PROFILE_FILE
    BUILD=$dir scripts/models.sh all >/dev/null
    HEARTH_MODELS=$HEARTH_CACHE/models
    HEARTH_SUITE=$(scripts/deps.sh suite)
    HEARTH_BIN=$PWD/$dir/hearth
    export HEARTH_MODELS HEARTH_SUITE HEARTH_BIN
    say "inputs of the fuzz targets"
    for name in $("$dir/tests/fuzz/replay" --list); do
        "$dir/tests/fuzz/replay" "$name" "tests/fuzz/corpus/$name" >&2 || say "$name failed"
    done
    say "tests in C"
    scripts/check-docs.sh "$HEARTH_BIN" >&2 || say "the pages about options are old"
    meson test -C "$dir" --no-rebuild --no-suite lint --no-suite fuzz --timeout-multiplier 4 >&2 || say "some failed"
fi
if [ "$what" = all ] || [ "$what" = quick ]; then
    python=$(venv tests/client/requirements.txt venv)/bin/python
    HEARTH_TEMPLATES=${HEARTH_TEMPLATES:-$(scripts/deps.sh templates)}
    export HEARTH_TEMPLATES
    if [ "$what" = all ]; then
        HEARTH_PROGRAMS=$(scripts/programs.sh all)
        HEARTH_HERMES=${HEARTH_HERMES:-$(printf '%s\n' "$HEARTH_PROGRAMS" | sed -n 's/^hermes=//p')/bin/hermes}
        export HEARTH_PROGRAMS HEARTH_HERMES
    fi
    say "tests with Python clients"
    # Quick: on the simulated engine what can be, and neither agents nor long sessions on real models.
    set -- tests/client
    [ "$what" = all ] || set -- --engine sim tests/client --ignore-glob='*test_programs*' --ignore-glob='*hermes*' \
        --ignore-glob='*test_readme*' --ignore-glob='*test_sessions.py' --ignore-glob='*test_restart*' \
        --ignore-glob='*test_cache*' --ignore-glob='*test_figures*'
    "$python" -m pytest -q "$@" >&2 || say "some failed"
fi

llvm-profdata merge --sparse -o "$dir/counts/all.profdata" "$dir"/counts/*.profraw ||
    die "nothing was counted in $dir/counts"
set -- "$dir/hearth"
for program in "$dir"/tests/*/*; do
    [ ! -f "$program" ] || [ ! -x "$program" ] || set -- "$@" -object "$program"
done
llvm-cov export -instr-profile="$dir/counts/all.profdata" -skip-expansions "$@" src >"$dir/counts/all.json"
python3 scripts/coverage.py "$dir/counts/all.json" "${LEAST:-0}" "$PWD"
