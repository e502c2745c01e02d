#!/usr/bin/env bash
# Tests the image, built from the Dockerfile: with the commands of docs/operations.md, as a sidecar
# of a reader in another container, and without privilege through the helper. It also checks the
# manifests of deploy/kubernetes against their schemas and each other.
#
# usage: scripts/integration-container.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, with podman and buildah (installed if missing). If no base image can be pulled,
# debootstrap makes one. D7YFS_IMAGE names an existing image. D7YFS_BUILD_OPTIONS go to buildah, for
# example for a registry that needs a proxy or its own authority.
set -euo pipefail
cd "$(dirname "$0")/.."

base=$(sed -n 's/^ARG BASE=//p' Dockerfile)

scripts/setup.sh podman buildah runc debootstrap
scripts/kubernetes-check.sh

if [ -z "${D7YFS_IMAGE:-}" ]; then
    if ! podman image exists "$base" && ! podman pull --quiet "$base" 2>/dev/null; then
        base=docker.io/library/debian:bookworm-slim
    fi
    if ! podman image exists "$base"; then
        root=$(mktemp -d)
        trap 'rm -rf "$root"' EXIT
        echo "integration-container: no $base can be pulled; making one" >&2
        debootstrap --variant=minbase bookworm "$root/base" >/dev/null
        tar -C "$root/base" -c . | podman import --quiet - "$base"
    fi
    D7YFS_IMAGE=localhost/d7yfs:test
    # shellcheck disable=SC2086  # several options
    buildah bud --layers --isolation chroot --network host --format docker --pull-never --build-arg BASE="$base" ${D7YFS_BUILD_OPTIONS:-} \
        -t "$D7YFS_IMAGE" .
fi
D7YFS_TEST_IMAGE=$D7YFS_IMAGE exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/container "$@"
