"""The settings in the manifests of deploy/kubernetes exist, and the forms agree with each other.

`make integration-container` checks schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.config.schema import METRICS_ADDRESS, OPTIONS
from d7yfs.config.sources import MOUNTPOINT_VARIABLE, SOURCE_VARIABLE

KUBERNETES = Path(__file__).parent.parent / "deploy" / "kubernetes"
VARIABLES = {option.variable: option for option in OPTIONS.values()}


def read(path: str) -> list[Any]:
    """The documents of one file, by its path in deploy/kubernetes."""
    return list(yaml.safe_load_all((KUBERNETES / path).read_text()))


def source_of(directory: str) -> str:
    """The mounted source in a directory's own kustomization."""
    (kustomization,) = read(f"{directory}/kustomization.yaml")
    (found,) = (
        literal.partition("=")[2]
        for generator in kustomization["configMapGenerator"]
        for literal in generator["literals"]
        if literal.startswith(f"{SOURCE_VARIABLE}=")
    )
    return str(found)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a document, at any depth."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects(each)


def documents() -> Iterator[tuple[str, Any]]:
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield str(path.relative_to(KUBERNETES)), document


def containers() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path, each)
        for path, document in documents()
        for each in objects(document)
        if each.get("image") == "d7yfs:latest"
    ]


def settings() -> Iterator[tuple[str, str, str]]:
    """File, variable and value of every D7YFS_* that the manifests set."""
    for path, document in documents():
        for each in objects(document):
            name = each.get("name", "")
            if isinstance(name, str) and name.startswith("D7YFS_"):
                yield path, name, each["value"]
            for literal in each.get("literals", ()):
                yield (path, *literal.split("=", 1))


def test_what_is_set_are_settings() -> None:
    found = list(settings())
    assert len(found) > 10
    for path, name, value in found:
        if name not in (SOURCE_VARIABLE, MOUNTPOINT_VARIABLE):
            assert name in VARIABLES, path
            VARIABLES[name].kind.parse(value.replace("$(HOST_IP)", "10.0.0.1"))


@pytest.mark.parametrize(("name", "value"), [("METRICS_LISTEN", "[::]:7717"), ("PROXY", "http://[$(HOST_IP)]:4001")])
def test_what_is_said_for_ipv6_alone_are_settings(name: str, value: str) -> None:
    assert any(value in path.read_text() for path in KUBERNETES.rglob("kustomization.yaml"))
    value = value.replace("$(HOST_IP)", "fd00::a")
    assert VARIABLES[f"D7YFS_{name}"].kind.parse(value) == value


def test_what_is_run_exists() -> None:
    for path, container in containers():
        if "command" in container or "args" in container:
            words = (
                " ".join([*container.get("command", ()), *container.get("args", ())]).rpartition("d7yfs ")[2].split()
            )
            command, *rest = words
            shown = CliRunner().invoke(main, [command, "--help-all" if command == "mount" else "--help"])
            assert shown.exit_code == 0, path
            assert all(word.split("=")[0] in shown.output for word in rest if word.startswith("--")), path


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_probes_are_asked_where_the_mount_answers(probe: str) -> None:
    asked = [(path, each[probe]) for path, each in containers() if "httpGet" in each.get(probe, {})]
    assert asked
    for path, each in asked:
        assert each["httpGet"] == {"path": "/readyz", "port": "d7yfs"}, path
        # A probe's child has 5 s, or 10 (d7yfs.monitor.probe).
        assert each["timeoutSeconds"] >= 10, path
    ports = {each["containerPort"] for _, container in containers() for each in container.get("ports", ())}
    assert ports == {int(METRICS_ADDRESS.rpartition(":")[2])}


def test_liveness_needs_no_port_that_others_can_fill() -> None:
    asked = [(path, each["livenessProbe"]) for path, each in containers() if "livenessProbe" in each]
    assert len(asked) == 4
    for path, each in asked:
        assert each["exec"] == {"command": ["d7yfs", "health", "--alive"]}, path
        assert each["timeoutSeconds"] >= 15, path


def test_only_monitoring_reaches_the_metrics() -> None:
    (policy,) = read("components/networkpolicy/networkpolicy.yaml")
    metrics, others = policy["spec"]["ingress"]
    port = int(METRICS_ADDRESS.rpartition(":")[2])
    assert [each["port"] for each in metrics["ports"]] == [port]
    assert metrics["from"]
    assert not any(each["port"] <= port <= each["endPort"] for each in others["ports"] if each["protocol"] == "TCP")


def test_overlays_for_kubernetes_before_1_22_have_no_range_of_ports() -> None:
    overlays = {path.split("/")[1]: each["components"] for path, each in documents() if path.startswith("overlays/")}
    assert {name.endswith("-1.20") for name in overlays} == {True, False}
    for name, components in overlays.items():
        assert ("../../components/networkpolicy" in components) != name.endswith("-1.20"), name


def test_readers_are_given_time_to_end() -> None:
    shutdown_s = {float(value.removesuffix("s")) for _, name, value in settings() if name == "D7YFS_SHUTDOWN_TIMEOUT"}
    grace_s = {
        each["terminationGracePeriodSeconds"]
        for _, document in documents()
        for each in objects(document)
        if "terminationGracePeriodSeconds" in each
    }
    stop_s = {
        float(each["preStop"]["exec"]["command"][1])
        for _, document in documents()
        for each in objects(document)
        if "preStop" in each
    }
    assert max(shutdown_s) + max(stop_s) + 10 <= min(grace_s)


def test_only_the_helper_of_the_unprivileged_form_is_privileged() -> None:
    privileged = {
        container["name"]: container["securityContext"].get("privileged", False)
        for path, container in containers()
        if path.startswith("components/sidecar-unprivileged")
    }
    assert privileged == {"fuse-helper": True, "d7yfs": False}


def test_kserve_reads_what_the_node_mounts() -> None:
    (node,) = read("base/node/daemonset.yaml")
    pod = node["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    (point,) = (each["value"] for each in daemon["env"] if each["name"] == MOUNTPOINT_VARIABLE)
    (shared,) = (each for each in daemon["volumeMounts"] if each.get("mountPropagation") == "Bidirectional")
    (host,) = (each["hostPath"]["path"] for each in pod["volumes"] if each["name"] == shared["name"])
    mounted = PurePath(point).relative_to(shared["mountPath"])
    assert mounted.parts, "the mount point must be below the volume's root"
    source = source_of("overlays/node")
    services = read("kserve/inferenceservices.yaml")
    assert len(services) == 2
    for service in services:
        predictor = service["spec"]["predictor"]
        (server,) = predictor.get("containers") or [predictor["model"]]
        (volume,) = predictor["volumes"]
        assert volume["hostPath"] == {"path": host, "type": "Directory"}
        (mount,) = server["volumeMounts"]
        assert (mount["name"], mount["mountPropagation"]) == (volume["name"], "HostToContainer")
        (path,) = (
            each.partition("=")[2] for each in server["args"] if each.startswith(("--model-repository", "--model_dir"))
        )
        directory = PurePath(path).relative_to(PurePath(mount["mountPath"]) / mounted)
        assert str(directory) == service["metadata"]["name"]
        assert "storageUri" not in server
        if directory.name == "triton":
            assert f"{source}/{directory}" == source_of("base/settings"), (
                "it must be the same source as in the Triton sidecar"
            )
            # KServe adds to a `model:` the arguments of its own runtime, which name a repository
            # that does not exist.
            assert "model" not in predictor


def test_dfdaemon_and_the_node_share_storage_and_socket() -> None:
    (values,) = read("dragonfly/values.yaml")
    client = values["client"]
    (node,) = read("base/node/daemonset.yaml")
    pod = node["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    ours = {each["mountPath"]: each["name"] for each in daemon["volumeMounts"]}
    on_host = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    # From 1.3.3 on, client-daemonset.yaml of the chart always mounts these: its own configuration
    # and the host's socket.
    charts = {"/etc/dragonfly": "config", "/var/run/dragonfly": "socket-dir"}
    theirs = {each["mountPath"]: each["name"] for each in client["extraVolumeMounts"]}
    assert not {path.rstrip("/") for path in theirs} & set(charts), "Kubernetes refuses a path that is mounted twice"
    assert not set(theirs.values()) & set(charts.values()), "Kubernetes refuses two volumes of the same name"
    extra = {each["name"]: each["hostPath"]["path"] for each in client["extraVolumes"]}
    assert set(extra) == set(theirs.values())
    ((path, name),) = theirs.items()
    assert on_host[ours[path]] == extra[name] == path, "both must mount one volume at one path"
    variables = {each["name"]: each.get("value", "") for each in daemon["env"]}
    for inside in (client["config"]["storage"]["dir"], variables["D7YFS_CACHE_DIR"]):
        assert PurePath(inside).is_relative_to(path)
        assert PurePath(inside) != PurePath(path)
    socket = client["config"]["download"]["server"]["socketPath"]
    assert variables["D7YFS_DFDAEMON_SOCKET"] == f"unix://{socket}"
    assert on_host[ours[str(PurePath(socket).parent)]] == str(PurePath(socket).parent)
    assert str(PurePath(socket).parent) in charts


def test_a_changed_secret_reaches_the_file_that_is_read() -> None:
    readers = [(path, each) for path, each in containers() if "envFrom" in each]
    assert len(readers) == 4
    for path, container in readers:
        (document,) = read(path)
        (file,) = (each["value"] for each in container["env"] if each["name"] == "AWS_SHARED_CREDENTIALS_FILE")
        (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == str(PurePath(file).parent))
        assert "subPath" not in mount, "the kubelet does not renew a subPath"
        (volume,) = (each for each in document["spec"]["template"]["spec"]["volumes"] if each["name"] == mount["name"])
        secret = {"secretName": "d7yfs-credentials", "optional": True}
        assert volume["secret"] == secret
        assert {"secretRef": {"name": secret["secretName"], "optional": True}} in container["envFrom"]
