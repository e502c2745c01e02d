#!/usr/bin/env bash
# Installs a real TorchServe with torch, for `make integration-torchserve` and `python -m
# bench.loaders`.
#
# usage: scripts/torchserve.sh [--installed]     prints the directory that holds torchserve,
#                                                torch-model-archiver and their python
#                                                --installed: print it or exit with 1; install nothing
#
# It installs into ~/.cache/d7yfs (XDG_CACHE_HOME), with the versions of
# requirements/torchserve.txt, and only if that is missing: 1.9 GB to download and 4.3 GB of disk.
# It needs x86-64 Linux, Python 3.10 or newer and Java 17, which root installs. D7YFS_TORCHSERVE_BIN
# names an existing directory of that kind.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

VERSION=0.12.0
PROGRAMS=(torchserve torch-model-archiver python)

complete() {  # DIRECTORY
    local program
    for program in "${PROGRAMS[@]}"; do
        [ -x "$1/$program" ] || return 1
    done
}

has_java() {
    local major
    command -v java >/dev/null || return 1
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ]
}

install_torchserve() {  # TARGET-DIRECTORY
    .venv/bin/python -m venv --without-pip "$1"
    .venv/bin/python -m pip --quiet --disable-pip-version-check --python "$1/bin/python" install \
        --no-deps --compile --require-hashes -r requirements/torchserve.txt
    "$1/bin/python" -c 'import torch; torch.ones(2).sum()' || die "torch does not run here"
    move_environment "$1" "$target"
}

target=$tools/torchserve-$VERSION-$(digest requirements/torchserve.txt scripts/torchserve.sh)
programs=${D7YFS_TORCHSERVE_BIN:-$target/bin}
if [ "${1:-}" = --installed ]; then
    complete "$programs" || exit 1
    echo "$programs"
    exit 0
fi

has_java || install_packages openjdk-17-jre-headless
[ -n "${D7YFS_TORCHSERVE_BIN:-}" ] || install_once "$target" install_torchserve
complete "$programs" || die "$programs lacks one of: ${PROGRAMS[*]}"
echo "$programs"
