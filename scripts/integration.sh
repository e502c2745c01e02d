#!/usr/bin/env bash
# The contract suite against stores that are too big for `make test`: Ceph's RADOS Gateway, MinIO and fake-gcs-server.
#
# usage: scripts/integration.sh [s3-rgw] [s3-minio] [gs-fake] [-- PYTEST-ARGUMENTS…]     without a name: all
#
# Ceph comes from Debian's packages (root installs them), the others are built as Go modules into build/bin, once, in a few minutes
# (needs Go 1.24 or newer). Everything listens on loopback and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

MINIO=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
FAKE_GCS=github.com/fsouza/fake-gcs-server@v1.56.1

build() {  # COMMAND MODULE
    [ ! -x "build/bin/$1" ] || return 0
    command -v go >/dev/null || { echo "integration: $1 is built with Go, which is not here" >&2; exit 1; }
    echo "integration: building $2" >&2
    GOBIN=$PWD/build/bin go install "$2"
}

stores=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    case $1 in
        s3-rgw | s3-minio | gs-fake) stores+=("$1") ;;
        *) echo "integration: no store $1; there are s3-rgw, s3-minio and gs-fake" >&2; exit 2 ;;
    esac
    shift
done
[ $# -eq 0 ] || shift
[ ${#stores[@]} -gt 0 ] || stores=(s3-rgw s3-minio gs-fake)

commands=()
for store in "${stores[@]}"; do
    case $store in
        s3-rgw) commands+=(ceph-mon ceph-osd radosgw) ;;
        s3-minio) build minio "$MINIO" ;;
        gs-fake) build fake-gcs-server "$FAKE_GCS" ;;
    esac
done
scripts/setup.sh "${commands[@]}"

names=$(printf ' or %s' "${stores[@]}")
PATH=$PWD/build/bin:$PATH D7YFS_TEST_STORES="${stores[*]}" exec .venv/bin/python -m pytest -p tests.plugins.no_skips \
    -p tests.plugins.contract_table tests/contract -k "${names# or }" "$@"
