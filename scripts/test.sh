#!/bin/sh
# Builds everything the tests need and runs them: `make test`, `make test-long`. Closes with "N passed, N failed".
#
#   scripts/test.sh                            every kind of test, each for as long as it needs to find what breaks
#   scripts/test.sh long                       what takes longer: more cases of the same kinds (suite and mark `long`)
#   scripts/test.sh [meson test arguments]     for example: scripts/test.sh --suite unit
#
# Environment: SAN=address or SAN=thread; HEARTH_CACHE; HEARTH_HERMES; HEARTH_WORKERS, the Python tests that run side by
# side (default: two for each core and one more, as most of them wait; with a sanitizer one more than there are cores).
# The Python tests (tests/client) run against the program that was built, in environments of their own in the cache,
# beside the tests in C; they are left out when tests are selected by arguments.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

scripts/setup.sh ccache || say "no ccache: everything is compiled anew"
dir=$(scripts/build.sh)
say "models"
BUILD=$dir scripts/models.sh all >/dev/null
HEARTH_MODELS=$HEARTH_CACHE/models
HEARTH_SUITE=$(scripts/deps.sh suite)
HEARTH_BIN=$PWD/$dir/hearth
export HEARTH_MODELS HEARTH_SUITE HEARTH_BIN

# Sanitizers slow everything down, and stop at the first finding. ThreadSanitizer does not see the barriers of ggml's
# threads, which are built without it, so ggml gets one; and it wants addresses that are not randomised.
#
# Without one everything runs side by side: time limits are for tests that hang, and threads that wait for each other
# sleep. The tests in C get half of the cores, so that they take about as long as the Python tests do.
slower=3 fixed= beside=yes workers=$(($(nproc) * 2 + 1))
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
case ${SAN:-} in
address)
    slower=6 beside= workers=$(($(nproc) + 1))
    export ASAN_OPTIONS="${ASAN_OPTIONS:-abort_on_error=1:detect_stack_use_after_return=1}"
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}"
    ;;
thread)
    slower=6 beside= workers=$(($(nproc) + 1)) fixed="setarch $(uname -m) -R"
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
c_tests() {
    $fixed meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier "$slower" "$@" >&2 || true
}
if [ -z "$python_tests" ]; then
    say "tests of $dir"
    c_tests "$@"
else
    scripts/setup.sh servers || say "no Redis, PostgreSQL, HAProxy or Prometheus: their tests are left out"
    # Their output follows that of the Python tests where they run beside them.
    say "tests in C of $dir"
    if [ -n "$beside" ]; then
        c_tests --num-processes $((($(nproc) + 1) / 2)) "$@" 2>"$results/c.log" &
    else
        c_tests "$@"
    fi
    scripts/setup.sh browser || say "no browser: the tests with web pages are left out"
    # The agents pin versions of their own. HEARTH_HERMES names an installed hermes-agent.
    HEARTH_PROGRAMS=$(scripts/programs.sh all) || { wait; die "the agents of the client tests could not be installed"; }
    python=$(venv tests/client/requirements.txt venv)/bin/python
    HEARTH_HERMES=${HEARTH_HERMES:-$(printf '%s\n' "$HEARTH_PROGRAMS" | sed -n 's/^hermes=//p')/bin/hermes}
    HEARTH_TEMPLATES=${HEARTH_TEMPLATES:-$(scripts/deps.sh templates)}
    export HEARTH_PROGRAMS HEARTH_HERMES HEARTH_TEMPLATES
    workers=${HEARTH_WORKERS:-$workers}
    say "tests with Python clients, $workers side by side"
    $fixed "$python" -m pytest -q -n "$workers" --dist worksteal -m "$marks" --junitxml "$results/client.xml" \
        tests/client >&2 || true
    wait
    [ -z "$beside" ] || cat "$results/c.log" >&2
    [ -e "$results/client.xml" ] || die "pytest did not run"
fi
cp "$dir/meson-logs/testlog.json" "$results/" 2>/dev/null || die "meson ran no tests"

python3 scripts/count.py "$results"
