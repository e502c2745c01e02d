#!/usr/bin/env bash
# A real Triton server with its Python backend, for `make integration-triton` and `python -m bench.triton`.
#
# usage: scripts/triton.sh     prints the path of a tritonserver that runs as it is
#
# It comes out of a wheel, as requirements/triton.txt pins it, with a Python of its own beside it: into ~/.cache/d7yfs (XDG_CACHE_HOME), or
# for root below /var/cache, so that the server can run as another user too. Nothing happens when it is there. D7YFS_TRITON names a
# tritonserver that is there anyway. Needs x86-64 Linux with glibc 2.35 or newer and a shared libpython 3.9 to 3.12.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=2.51.0  # of the server in the wheel

say() { printf 'triton: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Prints an interpreter, its version and the directory of its libpython (empty: the linker finds it). The system's own comes first: other
# users can run it, and one in root's home they cannot.
find_python() {
    local candidate found version libdir
    for candidate in ${PYTHON:-/usr/bin/python3 python3 python3.12 python3.11 python3.10}; do
        found=$("$candidate" -c 'import sys, sysconfig, venv
print("%d.%d" % sys.version_info[:2], sysconfig.get_config_var("LIBDIR"), sys.executable)' 2>/dev/null) || continue
        read -r version libdir candidate <<<"$found"
        case $version in 3.9 | 3.10 | 3.11 | 3.12) ;; *) continue ;; esac
        if [ -e "$libdir/libpython$version.so.1.0" ]; then
            echo "$candidate $version $libdir"
            return
        elif /sbin/ldconfig -p | grep -q "libpython$version.so.1.0 "; then
            echo "$candidate $version"
            return
        fi
    done
    return 1
}

install_libpython() {
    local package
    package=libpython$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') || return 1
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] || die "the Python backend needs a shared libpython, please run: sudo apt-get install $package"
    say "apt-get install $package"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package"; } >/dev/null
}

if [ -n "${D7YFS_TRITON:-}" ]; then
    [ -x "$D7YFS_TRITON" ] || die "D7YFS_TRITON=$D7YFS_TRITON is no program"
    echo "$D7YFS_TRITON"
    exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
    home=${XDG_CACHE_HOME:-/var/cache}/d7yfs-tools
else
    home=${XDG_CACHE_HOME:-$HOME/.cache}/d7yfs
fi
target=$home/tritonserver-$VERSION

if [ ! -x "$target/tritonserver" ]; then
    python=$(find_python) || { install_libpython && python=$(find_python); } ||
        die "no Python 3.9 to 3.12 with a shared libpython (PYTHON=/path/to/python3 names one)"
    read -r python version libdir <<<"$python"
    say "installing $target, with $python"
    rm -rf "$target"
    mkdir -p "$target"
    # Without pip of its own, which Debian keeps in another package: ours installs into it.
    "$python" -m venv --without-pip "$target"
    .venv/bin/python -m pip --quiet --disable-pip-version-check --python "$target/bin/python" install --no-deps --require-hashes \
        -r requirements/triton.txt
    server=$target/lib/python$version/site-packages/pytriton/tritonserver
    cp "$server/python_backend_stubs/$version/triton_python_backend_stub" "$server/backends/python/"
    cat >"$target/tritonserver.new" <<WRAPPER
#!/bin/sh
# The backend's process finds its Python by the PATH.
PATH='$target/bin':\$PATH LD_LIBRARY_PATH='$libdir'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PATH LD_LIBRARY_PATH
exec '$server/bin/tritonserver' --backend-directory='$server/backends' "\$@"
WRAPPER
    chmod 755 "$target/tritonserver.new"
    # Last: what is there is complete.
    mv "$target/tritonserver.new" "$target/tritonserver"
fi
echo "$target/tritonserver"
