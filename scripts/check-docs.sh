#!/bin/sh
# docs/options.md must be what the program generates: check-docs.sh PROGRAM
set -eu

program=$(realpath "$1")
cd "$(dirname "$0")/.."
"$program" options | diff -u docs/options.md - || {
    echo "docs/options.md is out of date; run: build/hearth options > docs/options.md" >&2
    exit 1
}
