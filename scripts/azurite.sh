#!/usr/bin/env bash
# Installs Azurite, Microsoft's emulator of Azure Storage, for the tests, and prints the path of its azurite-blob.
#
# Into ~/.cache/d7yfs (XDG_CACHE_HOME), with npm; nothing happens when it is there. Its packages' install scripts are not run.
set -euo pipefail

version=3.37.0
directory="${XDG_CACHE_HOME:-$HOME/.cache}/d7yfs/azurite-$version"

if [ ! -x "$directory/node_modules/.bin/azurite-blob" ]; then
    command -v npm >/dev/null || { echo "azurite: npm is missing (Node.js 20 or newer)" >&2; exit 1; }
    mkdir -p "$(dirname "$directory")"
    partial=$(mktemp -d "$directory.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    npm install --prefix "$partial" --ignore-scripts --no-audit --no-fund --loglevel=error "azurite@$version" >&2
    rm -rf "$directory"
    mv -T "$partial" "$directory"
fi
echo "$directory/node_modules/.bin/azurite-blob"
