#!/bin/sh
# docs/options.md and docs/llama-server.md must be what the program generates: check-docs.sh PROGRAM
set -eu

program=$(realpath "$1")
cd "$(dirname "$0")/.."
check() { # page, arguments of the program
    page=$1
    shift
    "$program" "$@" | diff -u "$page" - || {
        echo "$page is out of date; run: build/hearth $* > $page" >&2
        exit 1
    }
}
check docs/options.md options
check docs/llama-server.md options --llama-server
