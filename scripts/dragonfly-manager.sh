#!/usr/bin/env bash
# Builds Dragonfly's manager (Go) for `make integration-dragonfly`, and installs the MariaDB and the
# Redis that it needs, as Debian packages.
#
# usage: scripts/dragonfly-manager.sh     prints the path of the program
#
# It builds once, outside the tree (XDG_CACHE_HOME, else ~/.cache), in some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

VERSION=2.5.1

build() {  # TARGET-DIRECTORY
    command -v go >/dev/null || die "the manager is built with Go, which is not here"
    build_go_program d7y.io/dragonfly/v2 "v$VERSION" cmd/manager "$1/manager"
}

missing=()
command -v mariadbd >/dev/null || missing+=(mariadb-server)
command -v redis-server >/dev/null || missing+=(redis-server)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"

target=$tools/dragonfly-manager-$VERSION
install_once "$target" build
echo "$target/manager"
