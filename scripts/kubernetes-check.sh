#!/usr/bin/env bash
# Checks the manifests of deploy/kubernetes. kustomize builds them. kubeconform compares them with
# the schemas of Kubernetes 1.20 and a current one, of the Prometheus operator and of KServe.
# tests/kubernetes compares them with each other.
#
# Everything comes from ordinary packages (Go modules, PyPI), once, into ~/.cache/d7yfs
# (XDG_CACHE_HOME). It needs .venv (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/install_once.sh

OPERATOR=github.com/prometheus-operator/prometheus-operator@v0.79.2
KSERVE=github.com/kserve/kserve@v0.15.2
OLD=1.20.0 OLD_PACKAGE=1.22.3       # the schemas of a release of Kubernetes, and the kubernetes-validate that carries them
NEW=1.37.0 NEW_PACKAGE=1.37.0

pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check "$@"; }

where() {  # MODULE
    (cd "$modules" && go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
}

make_schemas() {  # TARGET-DIRECTORY
    local scratch=$1/.scratch in_package=kubernetes_validate/kubernetes-json-schema modules=$1/.scratch/modules
    mkdir -p "$modules"
    (cd "$modules" && go mod init scratch 2>/dev/null)
    # Each release of the package has the schemas of its time. Both are needed, neither is run.
    pip install --no-deps --target "$scratch/old" "kubernetes-validate==$OLD_PACKAGE"
    pip install --no-deps --target "$scratch/new" "kubernetes-validate==$NEW_PACKAGE"
    .venv/bin/python scripts/kubernetes_schemas.py "$1" \
        "$scratch/old/$in_package/v$OLD-local-strict" "$scratch/new/$in_package/v$NEW-local-strict" \
        "$(where "$OPERATOR")/example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml" \
        "$(where "$KSERVE")/config/crd/full/serving.kserve.io_inferenceservices.yaml"
    rm -rf "$scratch"
}

directories=$(scripts/go-tool.sh kubeconform kustomize)
export PATH=$directories:$PATH
schemas=$tools/kubernetes-schemas-$(digest scripts/kubernetes-check.sh scripts/kubernetes_schemas.py)
install_once "$schemas" make_schemas

check() {  # VERSION DIRECTORY…
    local version=$1 directory
    shift
    for directory in "$@"; do
        printf '%-50s %s  ' "$directory" "$version"
        kustomize build "$directory" | kubeconform -strict -summary \
            -schema-location "$schemas/v$version-local-strict/{{.ResourceKind}}{{.KindSuffix}}.json" \
            -schema-location "$schemas/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
    done
}

(
    cd deploy/kubernetes
    check "$NEW" overlays/* dragonfly kserve
    check "$OLD" overlays/*-1.20 base/node dragonfly
)
D7YFS_TEST_KUSTOMIZE=$(command -v kustomize) .venv/bin/python -m pytest --quiet -p tests.plugins.no_skips tests/kubernetes
