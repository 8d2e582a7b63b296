#!/bin/sh
# Builds everything the tests need and runs them: `make test`, `make test-long`. Closes with "N passed, N failed".
#
#   scripts/test.sh                            every kind of test, each for as long as it needs to find what breaks
#   scripts/test.sh long                       what takes longer: more cases of the same kinds (suite and mark `long`)
#   scripts/test.sh [meson test arguments]     for example: scripts/test.sh --suite unit
#
# Environment: SAN=address or SAN=thread; HEARTH_CACHE; HEARTH_HERMES; HEARTH_WORKERS, the Python tests that run side by
# side (default: one more than there are cores, as some wait). The Python tests (tests/client) run against the program
# that was built, in environments of their own in the cache; they are left out when tests are selected by arguments.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh)
say "models"
BUILD=$dir scripts/models.sh all >/dev/null
HEARTH_MODELS=$HEARTH_CACHE/models
HEARTH_SUITE=$(scripts/deps.sh suite)
HEARTH_BIN=$PWD/$dir/hearth
export HEARTH_MODELS HEARTH_SUITE HEARTH_BIN

# Sanitizers slow everything down, and stop at the first finding. ThreadSanitizer does not see the barriers of ggml's
# threads, which are built without it, so ggml gets one; and it wants addresses that are not randomised.
slower=1 fixed=
case ${SAN:-} in
address)
    slower=6
    export ASAN_OPTIONS="${ASAN_OPTIONS:-abort_on_error=1:detect_stack_use_after_return=1}"
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}"
    ;;
thread)
    slower=6 fixed="setarch $(uname -m) -R"
    export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1:suppressions=$PWD/tests/tsan.supp}" OMP_THREAD_LIMIT=1
    ;;
esac

marks="not long" python_tests=yes
case ${1:-} in
'') set -- --no-suite long ;;
long)
    shift
    marks=long
    set -- --suite long "$@"
    ;;
*) python_tests= ;;
esac

results=$dir/results
rm -rf "$results"
mkdir -p "$results"
# The agents of the client tests are fetched while the tests in C run: that is mostly waiting.
if [ -n "$python_tests" ]; then
    {
        scripts/setup.sh browser || say "no browser: the tests with web pages are left out"
        scripts/programs.sh all >"$results/programs"
    } &
    programs=$!
fi
say "tests of $dir"
$fixed meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier "$slower" "$@" >&2 || true
cp "$dir/meson-logs/testlog.json" "$results/" 2>/dev/null || die "meson ran no tests"

if [ -n "$python_tests" ]; then
    python=$(venv tests/client/requirements.txt venv)/bin/python
    # The agents pin versions of their own. HEARTH_HERMES names an installed hermes-agent.
    wait "$programs" || die "the agents of the client tests could not be installed"
    HEARTH_PROGRAMS=$(cat "$results/programs")
    HEARTH_HERMES=${HEARTH_HERMES:-$(printf '%s\n' "$HEARTH_PROGRAMS" | sed -n 's/^hermes=//p')/bin/hermes}
    HEARTH_TEMPLATES=${HEARTH_TEMPLATES:-$(scripts/deps.sh templates)}
    export HEARTH_PROGRAMS HEARTH_HERMES HEARTH_TEMPLATES
    workers=${HEARTH_WORKERS:-$(($(nproc) + 1))}
    say "tests with Python clients, $workers side by side"
    $fixed "$python" -m pytest -q -n "$workers" --dist worksteal -m "$marks" --junitxml "$results/client.xml" tests/client \
        >&2 || true
    [ -e "$results/client.xml" ] || die "pytest did not run"
fi

python3 scripts/count.py "$results"
