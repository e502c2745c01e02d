#!/usr/bin/env bash
# Tests d7yfs as pipx installs it from this tree, with the newest dependencies instead of the locked
# ones, and without a compiler. The commands must exist, and each newly resolved part must load.
#
# All files are in a separate directory, which is removed.
#
# usage: scripts/integration-pipx.sh
set -euo pipefail
cd "$(dirname "$0")/.."

PYFUSE3=no scripts/setup.sh
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/pipx"
"$place/pipx/bin/pip" --quiet --disable-pip-version-check install pipx
export PIPX_HOME=$place/home PIPX_BIN_DIR=$place/bin PIPX_MAN_DIR=$place/man
CC=/bin/false CXX=/bin/false "$place/pipx/bin/pipx" install '.[all]'

"$place/bin/d7yfs" --version
test -x "$place/bin/mount.d7yfs"
"$place/home/venvs/d7yfs/bin/python" -c 'import d7yfs.daemon, d7yfs.monitor.metrics, d7yfs.origins.s3.origin, d7yfs.origins.gs.origin, d7yfs.origins.azure.origin'
mkdir "$place/mnt"
# No store answers there: the check must report that, and no other fault.
"$place/bin/d7yfs" check --json --anonymous --cache-dir "$place/cache" s3://127.0.0.1:1/bucket "$place/mnt" >"$place/said" || true
"$place/home/venvs/d7yfs/bin/python" - "$place/said" <<'END'
import json, sys
findings = {each["probe"]: each["verdict"] for each in json.load(open(sys.argv[1]))}
print(findings)
assert findings["fuse"] != "failed" and findings["cache"] == "ok" and findings["list"] == "failed"
END
echo "integration-pipx: works"
