#!/usr/bin/env bash
# Installs d7yfs for the whole host, from the lock: an environment in PREFIX/lib/d7yfs, the command
# in PREFIX/bin, the helper of `mount -t d7yfs` in /sbin, and the systemd unit.
#
# Run it again to upgrade; running mounts keep their version until they restart.
#
# usage: PREFIX=/usr/local scripts/install.sh            (as root; DESTDIR=… stages into another root)
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
home=$root$prefix/lib/d7yfs
python=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

"$python" -m venv --clear "$home"
pip=("$home/bin/python" -m pip --quiet --disable-pip-version-check)
# The locked tools of .venv build pyfuse3 and d7yfs, so they need not be installed here.
.venv/bin/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir "$build" .
.venv/bin/python -m pip --quiet wheel --require-hashes --no-build-isolation --wheel-dir "$build" -r requirements/runtime.txt
"${pip[@]}" install --no-index --no-deps "$build"/*.whl

install -d "$root$prefix/bin" "$root/sbin" "$root/etc/d7yfs"
ln -sfn "$prefix/lib/d7yfs/bin/d7yfs" "$root$prefix/bin/d7yfs"
ln -sfn "$prefix/lib/d7yfs/bin/mount.d7yfs" "$root/sbin/mount.d7yfs"
if [ -d "$root/etc/systemd/system" ]; then
    sed "s|/usr/local/bin/|$prefix/bin/|" 'systemd/d7yfs@.service' >"$root/etc/systemd/system/d7yfs@.service"
fi
echo "installed: $prefix/bin/d7yfs, /sbin/mount.d7yfs, $prefix/lib/d7yfs"
