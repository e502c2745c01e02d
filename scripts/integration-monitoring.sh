#!/usr/bin/env bash
# Tests the alert rules, the dashboard and the metrics of a real mount, with a real Prometheus, and its
# status page in a headless Chromium (Debian's packages).
#
# usage: scripts/integration-monitoring.sh [PYTEST-ARGUMENTS…]
#
# Run it as root, for the mount. Everything listens on loopback and is gone afterwards.
# D7YFS_TEST_MONITORING_PLOT=docs/monitoring.png draws the dashboard's panels again, from two
# minutes of a mount in use and in trouble. D7YFS_TEST_STATUS_PAGE=docs/status-page.png draws the
# status page again, likewise.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh prometheus chromium
D7YFS_TEST_MONITORING=1 exec .venv/bin/python -m pytest -p tests.plugins.no_skips tests/monitoring "$@"
