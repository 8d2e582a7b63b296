#!/bin/sh
# Hours of traffic with clients that leave, stall and send garbage, and a list of what must be true afterwards: `make soak`.
#
#   scripts/soak.sh [sim] [real] [--minutes N]     default: both, an hour and ten minutes
#
# The program says at its head what it checks (bench/soak.py --help); the report goes to build/soak.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

dir=$(scripts/build.sh hearth)
HEARTH_BIN=${HEARTH_BIN:-$PWD/$dir/hearth}
HEARTH_MODELS=$HEARTH_CACHE/models
export HEARTH_BIN HEARTH_MODELS
case " $* " in
*" real "*) scripts/models.sh smollm2 >/dev/null ;;
*" sim "*) ;; # needs no model
*) scripts/models.sh smollm2 >/dev/null ;;
esac
exec python3 bench/soak.py "$@"
