#!/bin/sh
# Installs the agents that hearth is tried with, from PyPI, each into a Python environment of its own, once.
#
#   scripts/programs.sh claude          prints claude=DIRECTORY, or nothing where its Python is missing
#   scripts/programs.sh all             all of tests/client/programs, two at a time
#
# A line "# python: 3.12" in a requirements file asks for at least that Python, "# program: FILE" names a program inside
# the packages, which is linked into bin.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

requirements=tests/client/programs
said() { sed -n "s/^# $2: //p" "$requirements/$1.txt"; }

# A Python of at least this version, also one that pyenv keeps.
python_of() { # version
    for python in python3 python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        if "$python" -c "import sys, venv; sys.exit(sys.version_info < tuple(map(int, '$1'.split('.'))))" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

one() { # name
    wanted=$(said "$1" python)
    python=$(python_of "${wanted:-3.9}")
    if [ -z "$python" ]; then
        say "$1 needs Python $wanted, which is not here: its tests are left out"
        return
    fi
    made=$(venv "$requirements/$1.txt" "program-$1" "$python")
    program=$(said "$1" program)
    [ -z "$program" ] || ln -sf "$made"/lib/python3.*/site-packages/"$program" "$made/bin/"
    echo "$1=$made"
}

[ $# -gt 0 ] || die "which program? (see the head of scripts/programs.sh)"
if [ "$1" = all ]; then
    ls "$requirements" | sed -n 's/\.txt$//p' | xargs -P 2 -n 1 "$0" || die "not all programs could be installed"
else
    for name in "$@"; do
        [ -e "$requirements/$name.txt" ] || die "no such program: $name"
        one "$name"
    done
fi
