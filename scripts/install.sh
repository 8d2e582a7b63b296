#!/bin/sh
# Installs the program, the library and its headers: `make install PREFIX=/usr/local`. DESTDIR is put in front, as usual.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

prefix=${1:-/usr/local}
to=${DESTDIR:-}$prefix
mkdir -p "$to" 2>/dev/null && [ -w "$to" ] ||
    die "cannot write to $to; please run: sudo make install HEARTH_CACHE=$HEARTH_CACHE, or make install PREFIX=\$HOME/.local"
log=$HEARTH_CACHE/install.log
# What is installed is built, and nothing else: no tests.
{ meson configure build -Dprefix="$prefix" -Dlibdir=lib && ninja -C build hearth libhearth.a &&
    meson install -C build --no-rebuild; } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "installing failed (log: $log)"
}
say "installed $to/bin/hearth, $to/lib/libhearth.a and $to/include/hearth.h"
