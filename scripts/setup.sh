#!/bin/sh
# Installs what hearth needs to be built and tested, where it is missing and apt is there to do it.
#
#   scripts/setup.sh          compilers, build tools, libraries
#   scripts/setup.sh browser  likewise, and the browser that tests/client/test_browser.py opens pages in
#   scripts/setup.sh servers  likewise, and Redis, PostgreSQL, HAProxy and Prometheus, which tests run on ports of their own; the
#                             services that come with the packages are not started
#   scripts/setup.sh ccache   likewise, and ccache, with which a build of another checkout takes seconds
#   scripts/setup.sh format   likewise, and the clang-format that `make lint` runs
#   scripts/setup.sh clang    and clang with its run-time libraries and tools, for fuzzing and coverage
#
# What is there is found by trying it, so other ways of having installed it are as good. Without the right to install,
# the command to run is printed and the exit status is 1.
set -eu

. "$(dirname "$0")/lib.sh"

has() { command -v "$1" >/dev/null 2>&1; }
has_lib() { has pkg-config && pkg-config --exists "$@" 2>/dev/null; }

missing=
need() { # package, then a command that succeeds when it is there
    package=$1
    shift
    "$@" || missing="$missing $package"
}

compilers() { has cc && has c++ && has make; }
pip_there() { has python3 && python3 -m pip --version >/dev/null 2>&1; }
venv_there() { has python3 && python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

need build-essential compilers
need cmake has cmake
need ninja-build has ninja
need patch has patch
need meson has meson
need pkg-config has pkg-config
need python3 has python3
need python3-pip pip_there
need python3-venv venv_there
need libevent-dev has_lib libevent_core libevent_openssl libevent_pthreads
need libjansson-dev has_lib jansson
need libzmq3-dev has_lib libzmq
need libmsgpack-dev has_lib msgpack
need libxxhash-dev has_lib libxxhash
need libcmocka-dev has_lib cmocka
need libssl-dev has_lib libcrypto libssl
need libzstd-dev has_lib libzstd
need libsqlite3-dev has_lib sqlite3
need libpq-dev has_lib libpq
need liburing-dev has_lib liburing
need libseccomp-dev has_lib libseccomp
need libcurl4-openssl-dev has_lib libcurl
need libedit-dev has_lib libedit
need curl has curl
llvm_tools() { has llvm-profdata && has llvm-cov; }
clang_runs() { # with libFuzzer, AddressSanitizer and counters
    has clang && has clang++ && printf 'int LLVMFuzzerTestOneInput(void) { return 0; }\n' |
        clang -fsanitize=fuzzer,address,undefined -fprofile-instr-generate -x c - -o /dev/null >/dev/null 2>&1
}
if [ "${1:-}" = clang ]; then
    need clang clang_runs
    need libclang-rt-dev clang_runs
    need llvm llvm_tools
fi
[ "${1:-}" != ccache ] || need ccache has ccache
[ "${1:-}" != format ] || need clang-format-19 has clang-format-19
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt

postgres_there() { has postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }
browser() { [ -n "${HEARTH_CHROMIUM:-}" ] || has chromium || has chromium-browser; }
[ "${1:-}" != browser ] || need chromium browser
if [ "${1:-}" = servers ]; then
    need redis-tools has redis-check-rdb # the same program as redis-server, without a service
    need haproxy has haproxy
    need prometheus has promtool
    need postgresql postgres_there
    need pgbouncer has pgbouncer
fi

[ -n "$missing" ] || exit 0

if ! has apt-get; then
    die "these are missing, by their names in Debian:$missing (install them, then run this again)"
fi
root=
if [ "$(id -u)" != 0 ]; then
    if has sudo && sudo -n true 2>/dev/null; then
        root="sudo -n"
    else
        say "missing:$missing"
        die "not allowed to install them; please run: sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends$missing'"
    fi
fi
say "installing with apt:$missing"
$root apt-get update -q >&2 || say "apt-get update failed; trying with the lists that are there"
$root env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 RUNLEVEL=1 apt-get install -y -q --no-install-recommends $missing >&2 ||
    die "apt could not install:$missing"
