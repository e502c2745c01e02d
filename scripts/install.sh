#!/usr/bin/env bash
# Installs d7yfs for the whole host, from the lock: an environment in PREFIX/lib/d7yfs, the command
# in PREFIX/bin, its manual in PREFIX/share/man, the helper of `mount -t d7yfs` in /sbin, the systemd
# unit, and /etc/d7yfs/example.toml.
#
# Run it again to upgrade; running mounts keep their version until they restart. It needs no
# compiler. PYFUSE3=yes adds the second FUSE engine, which is built with gcc, pkg-config, libfuse3's
# headers and Python's.
#
# With --remove it removes what it has installed, except for files that were changed since.
#
# usage: PREFIX=/usr/local scripts/install.sh [--remove]    (as root; DESTDIR=… stages into another root)
set -euo pipefail
# Programs get their absolute path, so the stage needs one, too.
root=$(realpath -m -- "${DESTDIR:-/}")
root=${root%/}
cd "$(dirname "$0")/.."
. scripts/install_once.sh

prefix=${PREFIX:-/usr/local}
home=$root$prefix/lib/d7yfs
unit=etc/systemd/system/d7yfs@.service
example=etc/d7yfs/example.toml
# Each link, and the file in the environment that it leads to.
links=(
    "$prefix/bin/d7yfs" bin/d7yfs
    /sbin/mount.d7yfs bin/mount.d7yfs
    "$prefix/share/man/man1/d7yfs.1" share/man/man1/d7yfs.1
    "$prefix/share/man/man8/mount.d7yfs.8" share/man/man8/mount.d7yfs.8
)
# The digests of the files outside the environment, in the form of sha256sum.
digests=$home/installed

if [ "${1:-}" = --remove ]; then
    [ -n "$root" ] || ! grep -q ' fuse\.d7yfs ' /proc/self/mounts || die "there are mounts: d7yfs umount --all"
    [ -f "$digests" ] || die "nothing is installed in $home"
    for ((i = 0; i < ${#links[@]}; i += 2)); do
        link=$root${links[i]}
        [ "$(readlink "$link")" != "$prefix/lib/d7yfs/${links[i + 1]}" ] || rm "$link"
    done
    while read -r line; do
        file=$root/${line#*  }
        if (cd "$root/" && sha256sum --check --status <<<"$line" 2>/dev/null); then
            rm "$file"
        elif [ -e "$file" ]; then
            say "kept, because it was changed: $file"
        fi
    done <"$digests"
    rm -r "$home"
    rmdir --ignore-fail-on-non-empty "$root/etc/d7yfs"
    echo "removed: $prefix/bin/d7yfs, /sbin/mount.d7yfs, $prefix/lib/d7yfs; the cache (/var/cache/d7yfs) stays"
    exit
fi

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
"${pip[@]}" install --no-index --no-deps ${root:+--no-compile} "$build"/*.whl
if [ -n "$root" ]; then
    move_environment "$home" "$prefix/lib/d7yfs"
    # Compiled modules name their sources. Some packages have templates that cannot be compiled.
    "$home/bin/python" -m compileall -q -f -s "$root" -p / "$home/lib" >/dev/null || true
fi

for ((i = 0; i < ${#links[@]}; i += 2)); do
    install -d "$root$(dirname "${links[i]}")"
    ln -sfn "$prefix/lib/d7yfs/${links[i + 1]}" "$root${links[i]}"
done
install -d "$root/etc/d7yfs"
install -m 644 systemd/example.toml "$root/$example"
files=("$example")
if [ -n "$root" ] || [ -d /etc/systemd/system ]; then
    install -d "$root/etc/systemd/system"
    sed "s|/usr/local/bin/|$prefix/bin/|" 'systemd/d7yfs@.service' >"$root/$unit"
    files+=("$unit")
fi
(cd "$root/" && sha256sum "${files[@]}") >"$digests"
echo "installed: $prefix/bin/d7yfs, /sbin/mount.d7yfs, $prefix/lib/d7yfs; man d7yfs; settings: /$example"
