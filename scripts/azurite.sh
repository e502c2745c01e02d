#!/usr/bin/env bash
# Installs Azurite, Microsoft's emulator of Azure Storage, for the tests, and prints the path of its
# azurite-blob.
#
# usage: scripts/azurite.sh [--installed]     --installed: print it or exit with 1; install nothing
#
# It installs into ~/.cache/d7yfs (XDG_CACHE_HOME), with the versions of
# requirements/azurite/package-lock.json, and only if that is missing. It does not run the packages'
# install scripts. It needs npm and Node.js 20 or newer; root installs Debian's.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

install_azurite() {  # TARGET-DIRECTORY
    cp requirements/azurite/package.json requirements/azurite/package-lock.json "$1"
    npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --loglevel=error
    [ -x "$1/node_modules/.bin/azurite-blob" ] || die "npm has ended without an azurite-blob"
}

target=$tools/azurite-$(digest requirements/azurite/package.json requirements/azurite/package-lock.json scripts/azurite.sh)
program=$target/node_modules/.bin/azurite-blob
if [ "${1:-}" = --installed ]; then
    [ -x "$program" ] || exit 1
    echo "$program"
    exit 0
fi

command -v npm >/dev/null || [ -d "$target" ] || install_packages npm
command -v node >/dev/null || install_packages nodejs
node=$(node -p process.versions.node)
[ "${node%%.*}" -ge 20 ] || die "Azurite needs Node.js 20 or newer, and node is $node here: please install a newer one (nodejs.org)"
install_once "$target" install_azurite
echo "$program"
