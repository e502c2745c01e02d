#!/usr/bin/env bash
# Installs loaders of models: transformers, peft, vLLM, SGLang's reader of weights, Run:ai's
# streamer, fastsafetensors and llama.cpp. `make integration-loaders` and `python -m bench.loaders`
# use them.
#
# usage: scripts/loaders.sh [--installed]     prints a Python that has them
#                                             --installed: print it or exit with 1; install nothing
#
# It installs into ~/.cache/d7yfs (XDG_CACHE_HOME), with the versions of requirements/loaders.txt,
# and only if that is missing: 2.8 GB to download and 7 GB of disk. It needs x86-64 Linux with
# AVX2, glibc 2.35 or newer and Python 3.11 to 3.14. D7YFS_LOADERS_PYTHON names an existing Python.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

install_loaders() {  # TARGET-DIRECTORY
    .venv/bin/python -m venv --without-pip "$1"
    .venv/bin/python -m pip --quiet --disable-pip-version-check --python "$1/bin/python" install \
        --no-deps --require-hashes -r requirements/loaders.txt
    "$1/bin/python" -c 'import torch; torch.ones(2).sum()' || die "torch does not run here"
    move_environment "$1" "$target"
}

target=$tools/loaders-$(digest requirements/loaders.txt scripts/loaders.sh)
python=${D7YFS_LOADERS_PYTHON:-$target/bin/python}
if [ "${1:-}" = --installed ]; then
    [ -x "$python" ] || exit 1
    echo "$python"
    exit 0
fi
[ -n "${D7YFS_LOADERS_PYTHON:-}" ] || install_once "$target" install_loaders
[ -x "$python" ] || die "$python is no program"
echo "$python"
