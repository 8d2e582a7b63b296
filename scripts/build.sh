#!/bin/sh
# Builds hearth: installs what is missing, builds llama.cpp once, then compiles into a build directory and prints its path.
#
#   scripts/build.sh [target …]
#
# Environment: SAN=address (with UBSan) or SAN=thread builds with sanitizers into build-address, build-thread, SAN=fuzz
# for libFuzzer and SAN=coverage with counters (both with CC=clang CXX=clang++) into build-fuzz, build-coverage; CC and
# CXX, for which BUILD names the directory (build-clang); HEARTH_LLAMA, HEARTH_CUDA, HEARTH_CACHE as in deps.sh.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

case ${SAN:-} in
'') dir=${BUILD:-build} options= ;;
address) dir=build-address options="-Db_sanitize=address,undefined -Db_lundef=false -Dbuildtype=debugoptimized" ;;
thread) dir=build-thread options="-Db_sanitize=thread -Db_lundef=false -Dbuildtype=debugoptimized" ;;
fuzz) dir=build-fuzz options="-Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false -Dbuildtype=debugoptimized" ;;
coverage) dir=build-coverage options="-Dcoverage=true -Doptimization=1 -Ddebug=false" ;;
*) die "SAN=$SAN: there are SAN=address and SAN=thread" ;;
esac

make_cache
scripts/setup.sh
# Meson compiles through ccache where that is installed: what was compiled once is not compiled again in another checkout.
export CCACHE_DIR="${CCACHE_DIR:-$HEARTH_CACHE/ccache}" CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"
llama=$(scripts/deps.sh llama)
common=$(scripts/deps.sh common)
templates=$(scripts/deps.sh templates)
llhttp=$(scripts/deps.sh llhttp)
hiredis=$(scripts/deps.sh hiredis)

# Configured for another llama.cpp (an upgrade, HEARTH_CUDA): start over.
want="$llama $common $templates $llhttp $hiredis $options"
if [ ! -e "$dir/build.ninja" ] || [ "$(cat "$dir/.configured" 2>/dev/null)" != "$want" ]; then
    say "configuring hearth in $dir"
    rm -rf "$dir"
    log=$HEARTH_CACHE/meson-setup.log
    meson setup "$dir" -Dllama="$llama" -Dllama_common="$common" -Dtemplates="$templates" -Dllhttp="$llhttp" -Dhiredis="$hiredis" \
        $options >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        die "configuring failed (log: $log)"
    }
    printf '%s' "$want" >"$dir/.configured"
fi
say "building hearth in $dir"
ninja -C "$dir" "$@" >&2 || die "building hearth failed"
echo "$dir"
