#!/usr/bin/env bash
# Tests d7yfs as a wheel installs it: on Debian systems that have Python and nothing else, without a
# compiler and without libfuse. Each Python that is supported mounts a store and reads from it. It
# also tests that each locked dependency has a wheel for musl (Alpine), for the glibc of RHEL 8, and
# for ARM.
#
# usage: scripts/integration-install.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, with debootstrap (installed if missing). A Python that no such system has is taken
# from PATH (python3.12), or from pyenv.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

make_system() {  # SUITE DIRECTORY
    # An older debootstrap knows no newer suite by name; all are made as sid is.
    debootstrap --variant=minbase --include=python3,python3-venv "$1" "$2" '' /usr/share/debootstrap/scripts/sid >/dev/null
    rm -rf "$2"/var/cache/apt/archives/*.deb "$2"/var/lib/apt/lists/*
}

PYFUSE3=no scripts/setup.sh debootstrap
systems=
for suite in bookworm trixie forky; do # Python 3.11, 3.13, 3.14
    install_once "$tools/debian-$suite" make_system "$suite"
    systems+=:$tools/debian-$suite
done

# The wheel is built from the sdist, as an index's users may do.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
.venv/bin/python -m hatchling build -t sdist -d "$place"
.venv/bin/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir "$place" "$place"/d7yfs-*.tar.gz
D7YFS_TEST_PACKAGES=$place D7YFS_TEST_SYSTEMS=${systems#:} \
    .venv/bin/python -m pytest -p tests.plugins.no_skips tests/install "$@"
