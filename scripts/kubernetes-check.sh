#!/usr/bin/env bash
# The manifests of deploy/kubernetes, built by kustomize, compared by kubeconform with the schemas of Kubernetes 1.20 and of a current one, of
# the Prometheus operator and of KServe, and then with each other (tests/kubernetes). Everything comes from ordinary packages (Go modules,
# PyPI), once, into build/kubernetes. Needs .venv (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

KUBECONFORM=github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5@v5.5.0
OPERATOR=github.com/prometheus-operator/prometheus-operator@v0.79.2
KSERVE=github.com/kserve/kserve@v0.15.2
OLD=1.20.0 OLD_PACKAGE=1.22.3       # the schemas of a release of Kubernetes, and the kubernetes-validate that carries them
NEW=1.37.0 NEW_PACKAGE=1.37.0

tools=$PWD/build/kubernetes
bin=$tools/bin
schemas=$tools/schemas

if [ ! -e "$schemas/.complete" ]; then
    command -v go >/dev/null || { echo "kubernetes-check: kubeconform is built with Go, which is not here" >&2; exit 1; }
    rm -rf "$tools"
    mkdir -p "$bin" "$schemas"
    for module in "$KUBECONFORM" "$KUSTOMIZE"; do
        echo "kubernetes-check: building $module" >&2
        GOBIN=$bin go install "$module"
    done
    pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check "$@"; }
    # Each release of the package has the schemas of its time; both are wanted, neither is run.
    pip install --no-deps --target "$tools/old" "kubernetes-validate==$OLD_PACKAGE"
    pip install --no-deps --target "$tools/new" "kubernetes-validate==$NEW_PACKAGE"
    where() { (cd "$(mktemp -d)" && go mod init scratch >/dev/null 2>&1 && go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'); }
    in_package=kubernetes_validate/kubernetes-json-schema
    .venv/bin/python scripts/kubernetes_schemas.py "$schemas" \
        "$tools/old/$in_package/v$OLD-local-strict" "$tools/new/$in_package/v$NEW-local-strict" \
        "$(where "$OPERATOR")/example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml" \
        "$(where "$KSERVE")/config/crd/full/serving.kserve.io_inferenceservices.yaml"
    touch "$schemas/.complete"
fi

check() {  # VERSION DIRECTORY…
    local version=$1 directory
    shift
    for directory in "$@"; do
        printf '%-50s %s  ' "$directory" "$version"
        "$bin/kustomize" build "$directory" | "$bin/kubeconform" -strict -summary \
            -schema-location "$schemas/v$version-local-strict/{{.ResourceKind}}{{.KindSuffix}}.json" \
            -schema-location "$schemas/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
    done
}

(
    cd deploy/kubernetes
    check "$NEW" overlays/* dragonfly kserve
    check "$OLD" overlays/*-1.20 overlays/node dragonfly
)
D7YFS_TEST_KUSTOMIZE=$bin/kustomize .venv/bin/python -m pytest --quiet -p tests.plugins.no_skips tests/kubernetes
