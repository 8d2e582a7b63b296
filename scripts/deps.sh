#!/bin/sh
# Fetches what no distribution packages, builds llama.cpp once, in a cache outside the tree, and prints where it is.
#
#   scripts/deps.sh llama     libllama + libllama-common; prints the prefix on stdout
#   scripts/deps.sh llhttp    the source of llhttp, the HTTP parser, which meson compiles; prints its directory
#   scripts/deps.sh hiredis   the source of hiredis, the client of Redis and Valkey; likewise
#   scripts/deps.sh common    prints where the headers of llama.cpp's `common` are
#   scripts/deps.sh peer      llama-server from the same source and flags; prints its path
#   scripts/deps.sh archs     test-llama-archs from the same source; prints its path
#   scripts/deps.sh suite     the JSON-Schema-Test-Suite, for tests; prints the folder of draft 2020-12, or nothing
#   scripts/deps.sh templates prints where its collection of chat templates is; nothing where there is no source
#
# Environment: HEARTH_CACHE (default ~/.cache/hearth), HEARTH_LLAMA (an installed prefix to use
# instead), HEARTH_CUDA=1, HEARTH_JOBS (default: the number of cores).
#
# llama.cpp is built with what is in patches/llama.cpp. The cache is keyed by version, patches, flags, compiler and,
# because native code is used, by the CPU's feature flags. Progress goes to stderr.
set -eu

. "$(dirname "$0")/lib.sh"

VERSION=0.3.36
LLHTTP_VERSION=0.9.0 # of httptools, which holds llhttp 9.4.3
HIREDIS_VERSION=3.5.0 # of its Python package, which holds hiredis 1.5.0
SUITE_VERSION=4.26.0 # of jsonschema, which holds the suite
PATCHES=$(dirname "$0")/../patches/llama.cpp
CACHE=$HEARTH_CACHE
JOBS=${HEARTH_JOBS:-$(nproc 2>/dev/null || echo 2)}

# AMX can be advertised by a virtual machine that then refuses the instructions: run one.
amx_flags() {
    grep -qw amx_tile /proc/cpuinfo 2>/dev/null || return 0
    probe=$(mktemp -d)
    cat >"$probe/amx.c" <<'C'
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */)) return 1;
    struct { unsigned char palette, start, pad[14]; unsigned short colsb[16]; unsigned char rows[16]; } cfg = {.palette = 1};
    for (int i = 0; i < 3; i++) { cfg.colsb[i] = 64; cfg.rows[i] = 16; }
    _tile_loadconfig(&cfg);
    _tile_zero(0);
    _tile_dpbssd(0, 1, 2);
    _tile_release();
    return 0;
}
C
    if cc -O1 -mamx-tile -mamx-int8 "$probe/amx.c" -o "$probe/amx" 2>/dev/null && "$probe/amx" 2>/dev/null; then
        :
    else
        echo "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    fi
    rm -rf "$probe"
}

fetch_source() {
    src=$CACHE/src/llama-cpp-python-$VERSION
    [ -e "$src/.complete" ] && return 0
    say "fetching llama.cpp (the source inside llama-cpp-python $VERSION, 73 MiB)"
    mkdir -p "$CACHE/src"
    tmp=$(mktemp -d "$CACHE/src/fetch.XXXXXX")
    # pip looks at the metadata of what it downloads and fetches a small build backend for that; only the package
    # itself has to come as source.
    pip_cmd download --progress-bar off --no-deps --no-binary llama-cpp-python -d "$tmp" "llama-cpp-python==$VERSION" >&2 ||
        die "could not download llama-cpp-python $VERSION with pip"
    say "unpacking"
    tar -xzf "$tmp"/llama_cpp_python-*.tar.gz -C "$tmp"
    rm -rf "$src"
    mkdir -p "$src"
    mv "$tmp"/llama_cpp_python-*/vendor/llama.cpp "$src/llama.cpp"
    rm -rf "$tmp"
    touch "$src/.complete"
}

# A copy of the source with patches/llama.cpp: its files beside ggml-cpu.c, and its patches applied.
patch_source() {
    fetch_source
    patches=$(cat "$PATCHES"/* | sha256sum | cut -c1-12)
    patched=$CACHE/src/llama.cpp-$VERSION-$patches
    [ -e "$patched/.complete" ] && return 0
    rm -rf "$patched"
    mkdir -p "$patched"
    tar -C "$src/llama.cpp" --exclude=./docs --exclude=./models -cf - . | tar -C "$patched" -xf -
    cp "$PATCHES"/*.[ch] "$patched/ggml/src/ggml-cpu/"
    for patch in "$PATCHES"/*.patch; do
        patch -d "$patched" -p1 --batch --fuzz=0 <"$patch" >&2 || die "$patch does not apply to llama.cpp"
    done
    touch "$patched/.complete"
}

# fetch_vendored LIBRARY PACKAGE VERSION: the source of a C library inside a Python package; sets `vendored`.
fetch_vendored() {
    vendored=$CACHE/src/$1-$3
    [ -e "$vendored/.complete" ] && return 0
    say "fetching $1 (the source inside $2 $3)"
    mkdir -p "$CACHE/src"
    tmp=$(mktemp -d "$CACHE/src/fetch.XXXXXX")
    pip_cmd download --quiet --progress-bar off --no-deps --no-binary "$2" -d "$tmp" "$2==$3" >&2 ||
        die "could not download $2 $3 with pip"
    tar -xzf "$tmp/$2-$3.tar.gz" -C "$tmp"
    rm -rf "$vendored"
    mv "$tmp/$2-$3/vendor/$1" "$vendored"
    rm -rf "$tmp"
    touch "$vendored/.complete"
}

# Only a test needs it: where it cannot be fetched, that test is skipped.
fetch_suite() {
    suite=$CACHE/src/json-schema-test-suite-$SUITE_VERSION
    [ -e "$suite/.complete" ] && return 0
    say "fetching the JSON-Schema-Test-Suite (inside the source of jsonschema $SUITE_VERSION)"
    mkdir -p "$CACHE/src"
    tmp=$(mktemp -d "$CACHE/src/fetch.XXXXXX")
    if pip_cmd download --quiet --progress-bar off --no-deps --no-binary jsonschema -d "$tmp" \
        "jsonschema==$SUITE_VERSION" >&2 && tar -xzf "$tmp"/jsonschema-*.tar.gz -C "$tmp"; then
        rm -rf "$suite"
        mv "$tmp"/jsonschema-*/json "$suite"
        touch "$suite/.complete"
    else
        say "could not download jsonschema $SUITE_VERSION with pip: its test is left out"
        suite=
    fi
    rm -rf "$tmp"
}

configure() {
    patch_source
    AMX=$(amx_flags)
    CUDA=OFF
    [ "${HEARTH_CUDA:-0}" = 1 ] && CUDA=ON
    cpu=$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || uname -m)
    key=$(printf '%s|%s|%s|%s|%s|%s' "$VERSION" "$patches" "$AMX" "$CUDA" "$(cc --version | head -n 1)" "$cpu" | sha256sum | cut -c1-12)
    build=$CACHE/llama-$VERSION-$key/build
    prefix=$CACHE/llama-$VERSION-$key/prefix
    if [ ! -e "$build/build.ninja" ]; then
        mkdir -p "$build"
        say "configuring llama.cpp in $build"
        cmake -S "$patched" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
            -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
            -DCMAKE_C_FLAGS="$AMX" -DCMAKE_CXX_FLAGS="$AMX" -DGGML_NATIVE=ON -DGGML_CUDA=$CUDA \
            -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=ON \
            -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
            -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF >"$build.log" 2>&1 ||
            { tail -n 30 "$build.log" >&2; rm -rf "$build"; die "configuring llama.cpp failed (log: $build.log)"; }
    fi
}

# Ninja prints its own progress ("[12/340] …"); it belongs on stderr because stdout is the result.
ninja_target() {
    say "building $* (once; kept in $CACHE)"
    ninja -C "$build" -j "$JOBS" "$@" >&2 || die "building $* failed"
}

# An installed llama.cpp must be the version whose `common` hearth is written for.
use_installed() {
    [ -e "$HEARTH_LLAMA/include/llama.h" ] || die "HEARTH_LLAMA=$HEARTH_LLAMA has no include/llama.h"
    [ -e "$HEARTH_LLAMA/include/llama-common/chat.h" ] && return 0
    lock_cache
    fetch_source
    cmp -s "$HEARTH_LLAMA/include/llama.h" "$src/llama.cpp/include/llama.h" ||
        die "HEARTH_LLAMA=$HEARTH_LLAMA is another version of llama.cpp than the one in llama-cpp-python $VERSION"
}

case ${1:-} in
llama)
    if [ -n "${HEARTH_LLAMA:-}" ]; then
        use_installed
        echo "$HEARTH_LLAMA"
        exit 0
    fi
    lock_cache
    configure
    if [ ! -e "$prefix/.complete" ] || [ ! -e "$prefix/include/llama-cpp.h" ]; then
        ninja_target llama llama-common
        rm -rf "$prefix"
        mkdir -p "$prefix/include/llama-common" "$prefix/lib"
        s=$patched
        cp "$s"/include/*.h "$s"/ggml/include/*.h "$prefix/include/"
        (cd "$s/common" && find . -name '*.h' -exec cp --parents {} "$prefix/include/llama-common/" \;)
        cp -r "$s/vendor/nlohmann" "$prefix/include/llama-common/"
        find "$build" -name '*.a' -exec cp {} "$prefix/lib/" \;
        touch "$prefix/.complete"
    fi
    echo "$prefix"
    ;;
llhttp) # its C is generated from TypeScript; the package holds it as it was released
    lock_cache
    fetch_vendored llhttp httptools "$LLHTTP_VERSION"
    echo "$vendored"
    ;;
hiredis) # Debian's is too old for TLS
    lock_cache
    fetch_vendored hiredis hiredis "$HIREDIS_VERSION"
    echo "$vendored"
    ;;
common)
    if [ -n "${HEARTH_LLAMA:-}" ]; then
        use_installed
        if [ -e "$HEARTH_LLAMA/include/llama-common/chat.h" ]; then
            echo "$HEARTH_LLAMA/include/llama-common"
        else
            echo "$src/llama.cpp/common"
        fi
    else
        lock_cache
        configure
        echo "$prefix/include/llama-common"
    fi
    ;;
peer)
    lock_cache
    configure
    [ -x "$build/bin/llama-server" ] || ninja_target llama-server
    echo "$build/bin/llama-server"
    ;;
archs)
    lock_cache
    configure
    [ -x "$build/bin/test-llama-archs" ] || ninja_target test-llama-archs
    echo "$build/bin/test-llama-archs"
    ;;
suite)
    lock_cache
    fetch_suite
    [ -z "$suite" ] || echo "$suite/tests/draft2020-12"
    ;;
templates)
    dir=$CACHE/src/llama-cpp-python-$VERSION/llama.cpp/models/templates
    [ ! -d "$dir" ] || echo "$dir"
    ;;
*)
    sed -n '2,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
