#!/usr/bin/env bash
# Runs the contract suite against stores that are too big for `make test`: Ceph's RADOS Gateway,
# MinIO and fake-gcs-server.
#
# usage: scripts/integration.sh [s3-rgw] [s3-minio] [gs-fake] [-- PYTEST-ARGUMENTS…]
#        without a name: all
#
# Ceph comes from Debian's packages, which root installs. scripts/go-tool.sh builds the others,
# once. Everything listens on loopback and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

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

commands=() programs=()
for store in "${stores[@]}"; do
    case $store in
        s3-rgw) commands+=(ceph-mon ceph-osd radosgw) ;;
        s3-minio) programs+=(minio) ;;
        gs-fake) programs+=(fake-gcs-server) ;;
    esac
done
scripts/setup.sh "${commands[@]}"
directories=$(scripts/go-tool.sh "${programs[@]}")

names=$(printf ' or %s' "${stores[@]}")
PATH=${directories:+$directories:}$PATH D7YFS_TEST_STORES="${stores[*]}" exec .venv/bin/python -m pytest -p tests.plugins.no_skips \
    -p tests.plugins.contract_table tests/contract -k "${names# or }" "$@"
