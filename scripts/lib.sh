# Shared by the scripts; to be sourced. Messages go to stderr, results to stdout.
#
# HEARTH_CACHE is where everything lives that is fetched or built once: llama.cpp, models, Python environments.

HEARTH_CACHE=${HEARTH_CACHE:-${HOME:-/root}/.cache/hearth}
export HEARTH_CACHE

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'hearth: %s\n' "$*" >&2
    exit 1
}

# pip, whatever this machine's settings say about where packages come from and go to. Certificates, proxies and an index
# of one's own (PIP_CERT, PIP_INDEX_URL) are kept.
pip_cmd() {
    env -u PIP_FIND_LINKS -u PIP_NO_BINARY -u PIP_ONLY_BINARY -u PIP_REQUIRE_VIRTUALENV -u PIP_USER -u PIP_TARGET \
        -u PIP_PREFIX -u PIP_CONSTRAINT -u PIP_REQUIREMENT PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "${HEARTH_PYTHON:-python3}" -m pip "$@"
}

# A Python environment with the packages of a requirements file, made once; prints its directory. Of several processes
# that want it one makes it and the others wait. Byte code is made when a program runs: most of what is installed never
# does.
venv() { # file, name, Python
    hash=$( (cat "$1"; "${3:-python3}" --version) | sha256sum | cut -c1-12)
    made=$HEARTH_CACHE/$2-$hash
    if [ ! -e "$made/.complete" ]; then
        (
            flock 7
            [ -e "$made/.complete" ] || make_venv "$made" "$1" "${3:-python3}"
        ) 7>"$HEARTH_CACHE/.$2-$hash.lock" || exit 1
    fi
    echo "$made"
}

make_venv() { # directory, file, Python
    say "making a Python environment for $2"
    rm -rf "$1"
    "$3" -m venv "$1" >&2 || die "python3 -m venv failed"
    HEARTH_PYTHON=$1/bin/python pip_cmd install --quiet --progress-bar off --no-compile -r "$2" >&2 ||
        die "pip could not install $2"
    touch "$1/.complete"
}

make_cache() { mkdir -p "$HEARTH_CACHE" || die "cannot write to $HEARTH_CACHE (set HEARTH_CACHE)"; }

# Only one process builds or fetches into the cache at a time; the others wait and then find it done.
lock_cache() {
    make_cache
    exec 9>"$HEARTH_CACHE/.lock"
    flock -n 9 || {
        say "waiting for another hearth build"
        flock 9
    }
}
