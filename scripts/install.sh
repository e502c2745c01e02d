#!/usr/bin/env bash
# Installs d7yfs for the whole host, from the lock: an environment in PREFIX/lib/d7yfs, the command
# in PREFIX/bin, the helper of `mount -t d7yfs` in /sbin, and the systemd unit.
#
# Run it again to upgrade; running mounts keep their version until they restart. It needs no
# compiler. PYFUSE3=yes adds the second FUSE engine, which is built with gcc, pkg-config, libfuse3's
# headers and Python's.
#
# usage: PREFIX=/usr/local scripts/install.sh            (as root; DESTDIR=… stages into another root)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
home=$root$prefix/lib/d7yfs
python=$(find_python)
"$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
locks=(-r requirements/runtime.txt)
[ "${PYFUSE3:-no}" = no ] || locks+=(-r requirements/pyfuse3.txt)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

"$python" -m venv "$build/tools"
"$build/tools/bin/python" -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/build.txt
wheel=("$build/tools/bin/python" -m pip --quiet --disable-pip-version-check wheel --no-build-isolation --wheel-dir "$build")
"${wheel[@]}" --no-deps .
"${wheel[@]}" --require-hashes "${locks[@]}"

"$python" -m venv --clear "$home"
pip=("$home/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --no-index --no-deps "$build"/*.whl

install -d "$root$prefix/bin" "$root/sbin" "$root/etc/d7yfs"
ln -sfn "$prefix/lib/d7yfs/bin/d7yfs" "$root$prefix/bin/d7yfs"
ln -sfn "$prefix/lib/d7yfs/bin/mount.d7yfs" "$root/sbin/mount.d7yfs"
if [ -d "$root/etc/systemd/system" ]; then
    sed "s|/usr/local/bin/|$prefix/bin/|" 'systemd/d7yfs@.service' >"$root/etc/systemd/system/d7yfs@.service"
fi
echo "installed: $prefix/bin/d7yfs, /sbin/mount.d7yfs, $prefix/lib/d7yfs"
