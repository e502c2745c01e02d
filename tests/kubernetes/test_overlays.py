"""Each overlay as applied: its components and patches together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kubernetes.conftest import KUBERNETES, Object, Render

OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
HOST_IP = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, render: Render) -> list[Object]:
    return render(KUBERNETES / "overlays" / request.param)


def only(found: list[Object], *kinds: str) -> Object:
    (one,) = (each for each in found if each["kind"] in kinds)
    return one


def template(found: list[Object]) -> Object:
    """The pods' template."""
    pods: Object = only(found, "Deployment", "DaemonSet")["spec"]["template"]
    return pods


def containers(found: list[Object]) -> list[Object]:
    """The containers in the order in which the kubelet starts them."""
    pod = template(found)["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def daemon(found: list[Object]) -> Object:
    (one,) = (each for each in containers(found) if each["name"] == "d7yfs")
    return one


def test_the_proxy_is_found_by_node_then_by_service(overlay: list[Object], render: Render) -> None:
    variables = daemon(overlay)["env"]
    names = [each["name"] for each in variables]
    assert len(set(names)) == len(names)
    # Kubernetes expands only variables that stand before the value.
    assert variables[names.index("HOST_IP")] == HOST_IP
    assert names.index("HOST_IP") < names.index("D7YFS_PROXY")
    service = only(render(KUBERNETES / "dragonfly"), "Service")
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
    (port,) = (each["port"] for each in service["spec"]["ports"])
    assert variables[names.index("D7YFS_PROXY")]["value"] == f"http://$(HOST_IP):{port},http://{name}:{port}"


def test_prometheus_finds_its_pods(overlay: list[Object]) -> None:
    monitor = only(overlay, "PodMonitor")
    assert monitor["metadata"]["namespace"] == only(overlay, "Deployment", "DaemonSet")["metadata"]["namespace"]
    assert monitor["spec"]["selector"] == {"matchExpressions": [{"key": "d7yfs", "operator": "Exists"}]}
    assert "d7yfs" in template(overlay)["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [each["name"] for each in daemon(overlay)["ports"]]


def test_d7yfs_starts_before_its_reader_and_after_its_helper(overlay: list[Object]) -> None:
    names = [each["name"] for each in containers(overlay)]
    assert names in (["d7yfs"], ["d7yfs", "server"], ["fuse-helper", "d7yfs", "server"])


def test_what_is_named_is_there_once(overlay: list[Object]) -> None:
    maps = [each["metadata"]["name"] for each in overlay if each["kind"] == "ConfigMap"]
    volumes = [each["name"] for each in template(overlay)["spec"]["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in containers(overlay):
        paths = [each["mountPath"] for each in container["volumeMounts"]]
        assert len(set(paths)) == len(paths), "Kubernetes refuses a path that is mounted twice"
        assert {each["name"] for each in container["volumeMounts"]} <= set(volumes)
        named = [each["configMapRef"]["name"] for each in container.get("envFrom", ()) if "configMapRef" in each]
        assert named == (maps if container["name"] == "d7yfs" else [])


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_namespace_is_where_the_secret_is_looked_for(name: str, render: Render) -> None:
    """base/settings and docs/operations.md name this namespace."""
    wanted = "dragonfly-system" if name == "node" else "models"
    assert {each["metadata"]["namespace"] for each in render(KUBERNETES / "overlays" / name)} == {wanted}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_last_line_labels_the_monitor_once_it_is_no_comment(name: str, tmp_path: Path, render: Render) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    changed = tmp_path / "kubernetes" / "overlays" / name
    *lines, last = (changed / "kustomization.yaml").read_text().splitlines()
    assert last.startswith("# patches: ")
    (changed / "kustomization.yaml").write_text("\n".join([*lines, last.removeprefix("# ")]))
    before, after = render(KUBERNETES / "overlays" / name), render(changed)
    different = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    ((old, new),) = different
    assert (old["kind"], new["kind"]) == ("PodMonitor", "PodMonitor")
    assert new["metadata"]["labels"] == {"release": "kube-prometheus-stack"}
