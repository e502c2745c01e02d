#!/usr/bin/env bash
# Makes .venv, the Python environment with every locked dependency and d7yfs itself, editable, so
# that .venv/bin/d7yfs runs this tree.
#
# usage: scripts/setup.sh [COMMAND…]     further commands, each in the Debian package of the same name
#                                        (s3fs, curl), or PACKAGE:COMMAND
#
# As root it installs missing Debian/Ubuntu packages; otherwise it prints the line that installs
# them. It does nothing if nothing changed. A second run in the same tree waits for the first.
# PYTHON=… chooses the interpreter. PYFUSE3=no leaves out the second FUSE engine, the only part that
# needs a compiler; a later run without that adds it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

# Prints one Debian package per line for each thing that this machine lacks. It tests the things
# themselves, so that a compiler or a Python from another source counts too.
missing_packages() {
    local python=$1 version command
    shift
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$version-venv"
    if [ "$engines" = both ]; then
        command -v gcc >/dev/null || echo gcc
        [ -e /usr/include/stdio.h ] || echo libc6-dev
        command -v pkg-config >/dev/null || echo pkg-config
        pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
        "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
            echo "$version-dev"
    fi
    [ "$(id -u)" -eq 0 ] && [ "$engines" = ours ] || command -v fusermount3 >/dev/null || echo fuse3
    for command in "$@"; do
        command -v "${command#*:}" >/dev/null || echo "${command%%:*}"
    done
}

exec 9<. # the tree's directory is the lock
flock 9
python=$(find_python)
engines=both
[ "${PYFUSE3:-yes}" != no ] || engines=ours
mapfile -t missing < <(missing_packages "$python" "$@")
if [ ${#missing[@]} -gt 0 ]; then
    install_packages "${missing[@]}"
fi

# The tree's path counts too: a virtual environment cannot be moved.
wanted=$({ cat requirements/*.txt pyproject.toml scripts/setup.sh; echo "$PWD $python"; } | sha256sum)
pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check install)
if [ "$(cat .venv/.setup 2>/dev/null)" != "$wanted" ]; then
    say "building .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
    # The build tools come first, also from the lock: with build isolation pip would fetch them
    # without hashes.
    "${pip[@]}" --require-hashes -r requirements/build.txt
    "${pip[@]}" --require-hashes --no-build-isolation -r requirements/dev.txt
    "${pip[@]}" --no-deps --no-build-isolation --editable .
    echo "$wanted" >.venv/.setup
    say "done: .venv/bin/d7yfs"
fi
if [ "$engines" = both ] && [ ! -e .venv/.pyfuse3 ]; then
    say "building pyfuse3, the second FUSE engine"
    "${pip[@]}" --require-hashes --no-build-isolation --no-deps -r requirements/pyfuse3.txt
    .venv/bin/python -c 'import pyfuse3' # fails without its shared library
    touch .venv/.pyfuse3
fi
