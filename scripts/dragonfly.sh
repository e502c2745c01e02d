#!/usr/bin/env bash
# Dragonfly itself, for `make integration-dragonfly` and the bench: scheduler (Go), dfdaemon and dfget (Rust).
#
# usage: scripts/dragonfly.sh     prints the directory that holds the three binaries
#
# Built once, outside the tree (XDG_CACHE_HOME, else ~/.cache), in half an hour or more on two cores; later runs find them there. Needs Go
# 1.25 and a recent stable Rust; root installs the Debian packages that the build needs. D7YFS_DRAGONFLY_BIN names a directory that has
# the binaries already.
set -euo pipefail

CLIENT=1.5.10
SCHEDULER=2.5.1
PROGRAMS=(scheduler dfdaemon dfget)

say() { printf 'dragonfly: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

complete() {  # DIRECTORY
    local program
    for program in "${PROGRAMS[@]}"; do
        [ -x "$1/$program" ] || return 1
    done
}

install_packages() {
    local missing=()
    command -v cmake >/dev/null || missing+=(cmake)
    command -v clang >/dev/null || missing+=(clang libclang-dev)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v protoc >/dev/null || missing+=(protobuf-compiler)
    [ -e /usr/include/google/protobuf/any.proto ] || missing+=(libprotobuf-dev)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "the build needs what these Debian packages hold, please install it: ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || die "the build needs packages, please run: sudo apt-get install --no-install-recommends ${missing[*]}"
    say "apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build_scheduler() {  # TARGET-DIRECTORY
    local module
    module=$(mktemp -d)
    say "building scheduler $SCHEDULER"
    (
        cd "$module"
        export GOFLAGS=-mod=mod
        go mod init scratch
        go mod edit -require="d7y.io/dragonfly/v2@v$SCHEDULER"
        go mod download d7y.io/dragonfly/v2
        # Its own sums: with them nothing is resolved anew.
        cat "$(go list -m -f '{{.Dir}}' d7y.io/dragonfly/v2)/go.sum" >>go.sum
        go build -o "$1/scheduler" d7y.io/dragonfly/v2/cmd/scheduler
    ) >&2
    rm -rf "$module"
}

build_client() {  # TARGET-DIRECTORY
    say "building dfdaemon and dfget $CLIENT"
    # Without --target-dir an interrupted build would begin anew. dfctl is left out: it does not compile against today's dependencies.
    RUSTFLAGS="--cfg tokio_unstable" cargo install dragonfly-client --version "$CLIENT" --bin dfdaemon --bin dfget \
        --root "$1/client" --target-dir "$1/build" --no-track >&2
    mv "$1/client/bin/dfdaemon" "$1/client/bin/dfget" "$1/"
    rm -rf "$1/client" "$1/build"
}

if [ -n "${D7YFS_DRAGONFLY_BIN:-}" ]; then
    complete "$D7YFS_DRAGONFLY_BIN" || die "D7YFS_DRAGONFLY_BIN=$D7YFS_DRAGONFLY_BIN lacks one of: ${PROGRAMS[*]}"
    echo "$D7YFS_DRAGONFLY_BIN"
    exit 0
fi

target=${XDG_CACHE_HOME:-$HOME/.cache}/d7yfs/dragonfly-$CLIENT-$SCHEDULER
if ! complete "$target"; then
    command -v go >/dev/null || die "the scheduler is built with Go, which is not here"
    command -v cargo >/dev/null || die "dfdaemon is built with Rust's cargo, which is not here"
    install_packages
    mkdir -p "$target"
    [ -x "$target/scheduler" ] || build_scheduler "$target"
    { [ -x "$target/dfdaemon" ] && [ -x "$target/dfget" ]; } || build_client "$target"
    complete "$target" || die "the build has ended without all of: ${PROGRAMS[*]}"
fi
echo "$target"
