#!/usr/bin/env bash
# Tests the alert rules, the dashboard and the metrics of a real mount, with a real Prometheus
# (Debian's package).
#
# usage: scripts/integration-monitoring.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for the mount. Everything listens on loopback and is gone afterwards.
# D7YFS_TEST_MONITORING_PLOT=docs/monitoring.png draws the dashboard's panels again, from two
# minutes of a mount in use and in trouble.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh prometheus
D7YFS_TEST_MONITORING=1 exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/monitoring "$@"
