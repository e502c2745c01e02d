#!/usr/bin/env bash
# A real TorchServe with torch, for `make integration-torchserve` and `python -m bench.loaders`.
#
# usage: scripts/torchserve.sh     prints the directory that holds torchserve, torch-model-archiver and their python
#
# Into ~/.cache/d7yfs (XDG_CACHE_HOME), as requirements/torchserve.txt pins it: 1.9 GB to download and 4.3 GB of disk, once; nothing happens
# when it is there. Needs x86-64 Linux, Python 3.10 or newer and Java 17, which root installs. D7YFS_TORCHSERVE_BIN names such a directory
# that is there anyway.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=0.12.0
PROGRAMS=(torchserve torch-model-archiver python)

say() { printf 'torchserve: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

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

if ! has_java; then
    command -v apt-get >/dev/null || die "TorchServe needs Java 17 or newer, please install it"
    [ "$(id -u)" -eq 0 ] || die "TorchServe needs Java, please run: sudo apt-get install --no-install-recommends openjdk-17-jre-headless"
    say "apt-get install openjdk-17-jre-headless"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; } >/dev/null
fi

if [ -n "${D7YFS_TORCHSERVE_BIN:-}" ]; then
    complete "$D7YFS_TORCHSERVE_BIN" || die "D7YFS_TORCHSERVE_BIN=$D7YFS_TORCHSERVE_BIN lacks one of: ${PROGRAMS[*]}"
    echo "$D7YFS_TORCHSERVE_BIN"
    exit 0
fi

target=${XDG_CACHE_HOME:-$HOME/.cache}/d7yfs/torchserve-$VERSION
wanted=$(cat requirements/torchserve.txt scripts/torchserve.sh | sha256sum)
if [ "$(cat "$target/.setup" 2>/dev/null)" != "$wanted" ]; then
    say "installing $target"
    rm -rf "$target"
    mkdir -p "$target"
    .venv/bin/python -m venv --without-pip "$target"
    .venv/bin/python -m pip --quiet --disable-pip-version-check --python "$target/bin/python" install \
        --no-deps --compile --require-hashes -r requirements/torchserve.txt
    "$target/bin/python" -c 'import torch; torch.ones(2).sum()' || die "torch does not run here"
    # Last: what is there is complete.
    echo "$wanted" >"$target/.setup"
fi
echo "$target/bin"
