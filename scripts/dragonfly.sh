#!/usr/bin/env bash
# Builds Dragonfly for `make integration-dragonfly` and the bench: scheduler (Go), dfdaemon and
# dfget (Rust).
#
# usage: scripts/dragonfly.sh     prints the directory that holds the three binaries
#
# It builds once, outside the tree (XDG_CACHE_HOME, else ~/.cache), in half an hour or more on two
# cores. Later runs reuse the result. It needs Go 1.25 and a recent stable Rust; root installs the
# Debian packages for the build. D7YFS_DRAGONFLY_BIN names a directory with existing binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

CLIENT=1.5.10
SCHEDULER=2.5.1
PROGRAMS=(scheduler dfdaemon dfget)

complete() {  # DIRECTORY
    local program
    for program in "${PROGRAMS[@]}"; do
        [ -x "$1/$program" ] || return 1
    done
}

needed_packages() {
    command -v cmake >/dev/null || echo cmake
    command -v clang >/dev/null || printf '%s\n' clang libclang-dev
    command -v pkg-config >/dev/null || echo pkg-config
    command -v protoc >/dev/null || echo protobuf-compiler
    [ -e /usr/include/google/protobuf/any.proto ] || echo libprotobuf-dev
}

build_client() {  # TARGET-DIRECTORY
    say "building dfdaemon and dfget $CLIENT"
    # With --target-dir an interrupted build resumes. dfctl is left out: it does not compile with
    # today's dependencies.
    RUSTFLAGS="--cfg tokio_unstable" cargo install dragonfly-client --version "$CLIENT" --bin dfdaemon --bin dfget \
        --root "$1/client" --target-dir "$target.build" --no-track
    mv "$1/client/bin/dfdaemon" "$1/client/bin/dfget" "$1/"
    rm -rf "$1/client" "$target.build"
}

build() {  # TARGET-DIRECTORY
    local missing
    command -v go >/dev/null || die "the scheduler is built with Go, which is not here"
    command -v cargo >/dev/null || die "dfdaemon is built with Rust's cargo, which is not here"
    mapfile -t missing < <(needed_packages)
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
    build_go_program d7y.io/dragonfly/v2 "v$SCHEDULER" cmd/scheduler "$1/scheduler"
    build_client "$1"
    complete "$1" || die "the build has ended without all of: ${PROGRAMS[*]}"
}

if [ -n "${D7YFS_DRAGONFLY_BIN:-}" ]; then
    complete "$D7YFS_DRAGONFLY_BIN" || die "D7YFS_DRAGONFLY_BIN=$D7YFS_DRAGONFLY_BIN lacks one of: ${PROGRAMS[*]}"
    echo "$D7YFS_DRAGONFLY_BIN"
    exit 0
fi

target=$tools/dragonfly-client-$CLIENT-scheduler-$SCHEDULER
install_once "$target" build
echo "$target"
