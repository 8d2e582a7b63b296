#!/bin/sh
# libhearth as others use it: installed into a folder of its own, found by pkg-config, and nothing else.
#
#   installed.sh BUILD SOURCE LIBDIR [FLAGS]   FLAGS: of the compiler, for a build with sanitizers
set -eu

build=$1 source=$2 libdir=$3 flags=${4:-}
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT

DESTDIR=$to meson install -C "$build" --no-rebuild --tags devel --quiet
prefix=$(find "$to" -name hearth.pc -printf '%h')
prefix=${prefix%/"$libdir"/pkgconfig}
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
hearth() {
    pkg-config --define-variable=prefix="$prefix" "$@" hearth
}

# shellcheck disable=SC2046,SC2086
${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror $flags "$source/examples/shared_prefix.c" -o "$to/shared_prefix" \
    $(hearth --cflags --libs)
printf '#include <hearth.h>\nint main() { hearth_plan plan = {}; hearth_plan_finish(&plan); }\n' >"$to/plan.cpp"
# shellcheck disable=SC2046,SC2086
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror $flags "$to/plan.cpp" -o "$to/plan" $(hearth --cflags --libs)
"$to/plan"
"$to/shared_prefix" | tee "$to/said"

# The second prompt begins with the pages of the first one's system prompt.
[ "$(wc -l <"$to/said")" = 2 ]
grep -q '^[0-9]* tokens: 0 reused, .*(cold)$' "$to/said"
tail -n 1 "$to/said" | grep -qE ': [0-9]{2,} reused, [0-9]{1,2} computed \(diverged\)$'
for private in cache/tree.h cache/store.h cache/planner.h cache/heap.h base/table.h; do
    [ ! -e "$prefix/include/hearth/$private" ]
done
