#!/bin/sh
# Measures hearth beside llama-server of the same source and flags: `make bench`.
#
#   scripts/bench.sh [recompute|restart|disk|sessions|throughput|ram|disconnect|prepare|long_reply] [its arguments]   default: all
#
# Each program says at its head what it measures (bench/*.py --help); reports go to bench/report.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh hearth tests/support/make_model)
HEARTH_BIN=${HEARTH_BIN:-$PWD/$dir/hearth}
HEARTH_PEER=${HEARTH_PEER:-$(scripts/deps.sh peer)}
HEARTH_MODELS=$HEARTH_CACHE/models
export HEARTH_BIN HEARTH_PEER HEARTH_MODELS
scripts/models.sh all >/dev/null

failed=0
if [ $# -gt 0 ]; then
    program=$1
    shift
    python3 "bench/$program.py" "$@" || failed=1
else
    for program in recompute restart disk sessions throughput ram disconnect prepare long_reply; do
        say "$program"
        python3 "bench/$program.py" || failed=1
    done
fi
exit $failed
