#!/usr/bin/env bash
# Runs the tests with a real TorchServe: scripts/torchserve.sh installs it, the tests start it on
# mounts of a real S3 server.
#
# usage: scripts/integration-torchserve.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for mounts. Everything listens on loopback and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
programs=$(scripts/torchserve.sh)
D7YFS_TEST_TORCHSERVE=$programs exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/torchserve "$@"
