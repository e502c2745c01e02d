#!/usr/bin/env bash
# Installs a real Triton server with its Python backend, for `make integration-triton` and `python
# -m bench.triton`.
#
# usage: scripts/triton.sh     prints the path of a tritonserver that runs as it is
#
# It comes from a wheel, in the version of requirements/triton.txt, with its own Python: into
# ~/.cache/d7yfs (XDG_CACHE_HOME). For root it goes below /var/cache, so that the server can run as
# another user too. It is installed only if it is missing. D7YFS_TRITON names an existing
# tritonserver. It needs x86-64 Linux with glibc 2.35 or newer and a shared libpython 3.9 to 3.12.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

VERSION=2.51.0  # of the server in the wheel

# Prints an interpreter, its version and the directory of its libpython (empty: the linker finds
# it). The system's own comes first, because other users cannot run one in root's home.
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
    package=$(/usr/bin/python3 -c 'import sys; print("libpython%d.%d" % sys.version_info[:2])') && install_packages "$package"
}

install_triton() {  # TARGET-DIRECTORY
    local python version libdir server
    python=$(find_python) || { install_libpython && python=$(find_python); } ||
        die "no Python 3.9 to 3.12 with a shared libpython (PYTHON=/path/to/python3 names one)"
    read -r python version libdir <<<"$python"
    # The environment has no pip, which Debian keeps in another package, so .venv's installs into
    # it.
    "$python" -m venv --without-pip "$1"
    .venv/bin/python -m pip --quiet --disable-pip-version-check --python "$1/bin/python" install --no-deps --require-hashes \
        -r requirements/triton.txt
    server=lib/python$version/site-packages/pytriton/tritonserver
    cp "$1/$server/python_backend_stubs/$version/triton_python_backend_stub" "$1/$server/backends/python/"
    cat >"$1/tritonserver" <<WRAPPER
#!/bin/sh
# The backend's process finds its Python by the PATH.
PATH='$target/bin':\$PATH LD_LIBRARY_PATH='$libdir'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PATH LD_LIBRARY_PATH
exec '$target/$server/bin/tritonserver' --backend-directory='$target/$server/backends' "\$@"
WRAPPER
    chmod 755 "$1/tritonserver"
    move_environment "$1" "$target"
}

if [ -n "${D7YFS_TRITON:-}" ]; then
    [ -x "$D7YFS_TRITON" ] || die "D7YFS_TRITON=$D7YFS_TRITON is no program"
    echo "$D7YFS_TRITON"
    exit 0
fi

# Other users cannot enter root's home.
[ "$(id -u)" -ne 0 ] || tools=${XDG_CACHE_HOME:-/var/cache}/d7yfs-tools
target=$tools/tritonserver-$VERSION-$(digest requirements/triton.txt scripts/triton.sh)
install_once "$target" install_triton
echo "$target/tritonserver"
