#!/bin/sh
# Refuses every allocation once, and fails every system call with each error: `make faults`. The tests that scripts/test.sh
# runs try a share of them.
#
#   scripts/faults.sh
#
# Environment: HEARTH_CACHE. HEARTH_FAULTS_TEST='a deletion' chooses scenarios of the first part by a pattern.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh hearth tests/scenario/faults_alloc_test)
HEARTH_FAULTS=all
HEARTH_BIN=$PWD/$dir/hearth
export HEARTH_FAULTS HEARTH_BIN
failed=0
say "every allocation of a request"
"$dir/tests/scenario/faults_alloc_test" || failed=1
say "every allocation of a start, a reload and an end; every system call"
"$(venv tests/client/requirements.txt venv)/bin/python" -m pytest -q tests/client/test_faults.py || failed=1
exit $failed
