#!/usr/bin/env bash
# Runs the tests against a real Dragonfly: scripts/dragonfly.sh and scripts/dragonfly-manager.sh build
# it, the tests start a scheduler, a seed and two peers, and for some a manager.
#
# usage: scripts/integration-dragonfly.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for mounts. Everything listens on loopback and is gone afterwards. It takes some
# 10 GiB of disk below /var/tmp for a while.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
binaries=$(scripts/dragonfly.sh)
manager=$(scripts/dragonfly-manager.sh)
D7YFS_TEST_DRAGONFLY=$binaries D7YFS_TEST_DRAGONFLY_MANAGER=$manager exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/integration "$@"
