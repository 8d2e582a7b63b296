#!/bin/sh
# Checks what compilers do not: `make lint`.
#
#   scripts/lint.sh              everything; the call graph comes from the build with clang, or else from build/
#   scripts/lint.sh --quick DIR  without the build with clang (inside `make test`); the call graph comes from DIR
#   scripts/lint.sh --baseline DIR  accepts what scripts/lint.py finds today: writes scripts/lint.baseline
#   scripts/lint.sh --format     prints the code as the rule "format" wants it
#
#   graph     scripts/lint.py: layers, cycles of files, prefixes, tags, persons in comments, files that pages name
#   headers   llama.h belongs to src/engine/llama* and src/chat/*.cpp, the step's state to the step
#   lengths   functions of at most 70 lines, lines of at most 120 columns (a file is one noun with its verbs, as long as
#             that needs)
#   words     nothing unfinished, no paths of one machine, no words that once stood for preempt, quarantine, lease, slot
#   heads     every .c and .cpp opens with a comment
#   format    the code is as clang-format 19 prints it (.clang-format; braces always)
#   promises  every promise in docs/security.md names a test, and every test that it names is there
#   clang     the whole build with clang has no warnings
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

failed=0
complain() {
    printf '%s\n' "$*" >&2
    failed=1
}

# ---- headers that belong to few files
headers() {
    grep -rnlE '#[[:space:]]*include[[:space:]]+[<"](llama|llama-cpp|ggml[a-z-]*|gguf)\.h[>"]' src |
        grep -vE '^src/engine/(llama|fingerprint)|^src/chat/[a-z_]+\.cpp$' | sed 's/$/: includes a header of llama.cpp/'
    grep -rl '"sched/step_private\.h"' src | grep -vE '^src/sched/(step|batch|victim|rank)\.c$' |
        sed "s/$/: sees the step's state: events go in, an action comes out (sched\/step.h)/"
}

# ---- lengths
lengths() {
    find src tests \( -name '*.[ch]' -o -name '*.cpp' \) -print0 | xargs -0 awk '
        FNR == 1 { start = 0 }
        { text = $0; gsub(/[\200-\277]/, "", text); if (length(text) > 120) print FILENAME ":" FNR ": " length(text) " columns, the most is 120" }
        # A function begins with "{" at the end of an unindented line that is no struct, enum, table or namespace.
        /^[a-zA-Z_].*\)[ a-z]*\{$/ || (/^ .*\)[ a-z]*\{$/ && open) { start = FNR }
        /^[a-zA-Z_][^;{}]*\([^;{}]*$/ { open = 1 }
        /[;{}]$/ { open = 0 }
        /^}/ { if (start && FNR - start + 1 > 70) print FILENAME ":" start ": a function of " FNR - start + 1 " lines, the most is 70"; start = 0 }
    '
}

# ---- words: in what is under version control or about to be
words() {
    grep -rnEw 'TODO|FIXME|XXX|HACK|WIP|placeholder|stub|stubs|lorem' src tests bench docs scripts README.md meson.build Makefile 2>/dev/null |
        grep -vE '^scripts/lint\.sh:|^bench/sessions/|__pycache__|\.pyc'
    grep -rnE '(^|[^a-z.~])/(work|root|home/[a-z]+)/' src tests bench docs README.md meson.build Makefile 2>/dev/null |
        grep -vE '^bench/sessions/|__pycache__|\.pyc'
    grep -rnEiw 'set aside|sets? (it|them) aside|far tier|seats?|keeper|ripe|humble|senior|tame|briefer' src docs README.md CHANGELOG.md
}

heads() {
    find src tests \( -name '*.c' -o -name '*.cpp' \) | while read -r file; do
        head -n 1 "$file" | grep -q '^/\*' || echo "$file: does not open with a comment"
    done
}

# ---- promises: origin_test, fuzz_http, test_keys.py, or one test in such a file behind "::"
promises() {
    page=docs/security.md
    sed -n '/^## Promises/,/^## How to report/p' "$page" | grep '^| ' | grep -v '^| Promise ' |
        grep -vE '`(fuzz_[a-z_]+|[a-z_]+_test(::[a-z0-9_]+)?|test_[a-z_]+\.py::[a-z0-9_]+)`[^|]*\|$' |
        sed "s|^|$page: names no test: |"
    grep -oE '`([a-z_]+_test|fuzz_[a-z_]+|test_[a-z_]+\.py)(::[a-z0-9_]+)?`' "$page" | tr -d '`' | sort -u |
        while read -r test; do
            name=${test%%::*}
            path=$(find tests -name "${name%.py}.c" -o -name "${name%.py}.py" | head -n 1)
            if [ -z "$path" ]; then
                echo "$page: there is no test $name"
            elif [ "$name" != "$test" ] &&
                ! grep -qE "^(def|static void) ${test#*::}\(" "$path"; then
                echo "$page: $path has no ${test#*::}"
            fi
        done
}

# ---- format: another version prints some lines otherwise, so it has to be this one
format() {
    find src tests \( -name '*.[ch]' -o -name '*.[ch]pp' \) -print0 | xargs -0 -n 50 -P 2 clang-format-19 "$@" 2>&1
}
formatted() {
    format --dry-run | sed -n 's/: warning: code should be clang-formatted.*/: not as clang-format prints it/p' | head -n 20
}

case ${1:-} in
--format)
    scripts/setup.sh format
    format -i
    exit
    ;;
--baseline)
    exec python3 scripts/lint.py --baseline "${2:-build}"
    ;;
--quick) build=${2:-build} ;;
*)
    scripts/setup.sh format
    build=${BUILD:-build}
    if command -v clang >/dev/null 2>&1 && command -v clang++ >/dev/null 2>&1; then
        build=build-clang
        CC=clang CXX=clang++ BUILD=$build SAN='' scripts/build.sh >/dev/null || complain "the build with clang failed"
    else
        say "clang is not here: its build is left out (apt-get install clang)"
        scripts/build.sh hearth >/dev/null || complain "the build failed"
    fi
    ;;
esac

graph() {
    python3 scripts/lint.py "$build" 2>&1
}

checks="graph headers lengths words heads promises"
if command -v clang-format-19 >/dev/null 2>&1; then
    checks="$checks formatted"
fi
for check in $checks; do
    found=$($check || true)
    [ -z "$found" ] || complain "$found"
done

[ "$failed" = 0 ] || die "lint failed"
say "lint passed"
