#!/bin/sh
# Measures hearth beside llama-server of the same source and flags: `make bench`.
#
#   scripts/bench.sh                   the whole record, two to three hours on two cores, into bench/report
#   scripts/bench.sh --quick           less of everything, about 20 minutes, into build/bench
#   scripts/bench.sh CASE … [options]  a selection; --list says what there is (docs/benchmarks.md)
#
# Python's standard library is all that is needed besides what builds hearth.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

case " $* " in
*" --list "* | *" --help "* | *" -h "*) exec python3 bench/bench.py "$@" ;;
esac
if [ -z "${HEARTH_BIN:-}" ]; then
    dir=$(scripts/build.sh hearth tests/support/make_model bench/micro/hearth-micro)
    HEARTH_BIN=$PWD/$dir/hearth
fi
HEARTH_PEER=${HEARTH_PEER:-$(scripts/deps.sh peer)}
HEARTH_MODELS=$HEARTH_CACHE/models
export HEARTH_BIN HEARTH_PEER HEARTH_MODELS
scripts/models.sh all >/dev/null
exec python3 bench/bench.py "$@"
