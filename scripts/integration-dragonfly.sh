#!/usr/bin/env bash
# Runs the tests against a real Dragonfly: scripts/dragonfly.sh builds it, the tests start a
# scheduler, a seed and two peers.
#
# usage: scripts/integration-dragonfly.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for mounts. Everything listens on loopback and is gone afterwards. It takes some
# 10 GiB of disk below /var/tmp for a while.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
binaries=$(scripts/dragonfly.sh)
D7YFS_TEST_DRAGONFLY=$binaries exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/integration "$@"
