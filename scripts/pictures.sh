#!/bin/sh
# Takes the pictures of the page for README.md and docs/page.md, with Chromium, from a load that is played on the simulated
# engine (tests/client/pictures.py): `make pictures`. They are in docs/ afterwards.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

scripts/setup.sh browser
HEARTH_BIN=${HEARTH_BIN:-$PWD/$(scripts/build.sh hearth)/hearth}
export HEARTH_BIN
exec "$(venv tests/client/requirements.txt venv)/bin/python" tests/client/pictures.py docs
