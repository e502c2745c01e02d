#!/usr/bin/env bash
# Builds Go programs of other projects, each once, and prints their directories in the form of PATH.
#
# usage: PATH=$(scripts/go-tool.sh minio):$PATH …     any of minio, fake-gcs-server, kubeconform,
#                                                     kustomize
#
# It builds into ~/.cache/d7yfs (XDG_CACHE_HOME), in a few minutes, and only missing programs. It
# needs Go 1.24 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

declare -A MODULES=(
    [minio]=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
    [fake-gcs-server]=github.com/fsouza/fake-gcs-server@v1.56.1
    [kubeconform]=github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
    [kustomize]=sigs.k8s.io/kustomize/kustomize/v5@v5.5.0
)

build() {  # MODULE TARGET-DIRECTORY
    command -v go >/dev/null || die "$1 is built with Go, which is not here"
    GOBIN=$2 go install "$1"
}

directories=()
for command in "$@"; do
    module=${MODULES[$command]:-}
    [ -n "$module" ] || die "no program $command; there are: ${!MODULES[*]}"
    directories+=("$tools/$command-${module##*@}")
    install_once "${directories[-1]}" build "$module"
done
(IFS=: && echo "${directories[*]}")
