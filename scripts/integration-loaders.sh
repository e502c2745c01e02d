#!/usr/bin/env bash
# Runs the tests with the loaders of models: scripts/loaders.sh installs them, the tests run them on
# mounts of a real S3 server.
#
# usage: scripts/integration-loaders.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for mounts. Everything listens on loopback and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
python=$(scripts/loaders.sh)
D7YFS_TEST_LOADERS=$python exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/loaders "$@"
