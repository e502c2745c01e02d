# shellcheck shell=bash
# The shared installer of the scripts: it fetches or builds the tools of tests and benches once for
# all trees of a user. Those scripts source this file.
#
# Each installation is a directory below $tools. Its name contains the versions, or a digest of the
# files that lock it. It appears complete, by one rename. No script changes or removes it
# afterwards, because servers may run from it.

tools=${XDG_CACHE_HOME:-$HOME/.cache}/d7yfs

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
die() { say "$@"; exit 1; }

# Prints the interpreter: $PYTHON, or the first that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        # Version managers leave shims that exist and fail, so the script runs each candidate.
        "$candidate" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 11) else sys.exit(1)' 2>/dev/null && return
    done
    die "no Python 3.11 or newer among: ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11} (PYTHON=/path/to/python3 make setup names another)"
}

# Prints the part of a directory's name that stands for the contents of these files.
digest() {  # FILE…
    cat "$@" | sha256sum | cut -c 1-16
}

# Returns when the directory is there. If it is not, the command makes it: its last argument is a
# directory to fill, with another name until it is complete. A second caller waits, and then uses
# the first one's result.
install_once() {  # DIRECTORY COMMAND [ARGUMENT…]
    local target=$1
    shift
    [ ! -d "$target" ] || return 0
    mkdir -p "$(dirname "$target")"
    (
        # The command's processes inherit the lock. While one of them outlives a killed shell, no
        # other caller begins.
        exec 9>"$target.lock"
        flock 9
        [ ! -d "$target" ] || exit 0
        rm -rf "$target.partial" # from a killed run
        trap 'rm -rf "$target.partial"' EXIT
        mkdir "$target.partial"
        say "installing $target"
        "$@" "$target.partial" >&2
        mv -nT "$target.partial" "$target"
    )
}

# Writes the later name of a virtual environment into its programs, which have its path in their
# first lines.
move_environment() {  # FROM TO
    grep -rlZ --binary-files=without-match --fixed-strings "$1" "$1/bin" "$1/pyvenv.cfg" | xargs -0r sed -i "s|$1|$2|g"
}

# Installs Debian packages if root runs the script; otherwise the script ends and prints the command
# that installs them.
install_packages() {  # PACKAGE…
    command -v apt-get >/dev/null || die "this machine lacks what these Debian packages hold, please install it: $*"
    [ "$(id -u)" -eq 0 ] || die "system packages are missing, please run: sudo apt-get install --no-install-recommends $*"
    say "apt-get install $*"
    export DEBIAN_FRONTEND=noninteractive
    # A service that a package starts must not inherit a lock.
    apt-get update -qq >&2 9>&-
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 9>&-
}

# Builds one program of a Go module. The module's own sums fix all versions.
build_go_program() {  # MODULE VERSION PACKAGE TARGET-FILE
    local scratch
    scratch=$(mktemp -d)
    say "building $(basename "$3") $2"
    (
        cd "$scratch"
        export GOFLAGS=-mod=mod
        go mod init scratch
        go mod edit -require="$1@$2"
        go mod download "$1"
        cat "$(go list -m -f '{{.Dir}}' "$1")/go.sum" >>go.sum
        go build -o "$4" "$1/$3"
    )
    rm -rf "$scratch"
}
