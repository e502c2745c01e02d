"""What the manifests of deploy/kubernetes set exists, and the forms agree with each other; schemas are `make integration-container`'s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.config.schema import OPTIONS
from d7yfs.config.sources import MOUNTPOINT_VARIABLE, SOURCE_VARIABLE

KUBERNETES = Path(__file__).parent.parent / "deploy" / "kubernetes"
VARIABLES = {option.variable: option for option in OPTIONS.values()}


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a document, at whatever depth."""
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
    """Where, variable and value, of every D7YFS_* that is set."""
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


def test_what_is_run_exists() -> None:
    for path, container in containers():
        if "command" in container or "args" in container:
            words = (
                " ".join([*container.get("command", ()), *container.get("args", ())]).rpartition("d7yfs ")[2].split()
            )
            command, *rest = words
            shown = CliRunner().invoke(main, [command, "--help"])
            assert shown.exit_code == 0, path
            assert all(word.split("=")[0] in shown.output for word in rest if word.startswith("--")), path


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_are_asked_where_the_mount_answers(probe: str) -> None:
    asked = [(path, each[probe]) for path, each in containers() if "httpGet" in each.get(probe, {})]
    assert asked
    wanted = "/healthz" if probe == "livenessProbe" else "/readyz"
    for path, each in asked:
        assert each["httpGet"] == {"path": wanted, "port": "d7yfs"}, path
        # A probe's child has 5 s, or 10 (d7yfs.health).
        assert each["timeoutSeconds"] >= (15 if probe == "livenessProbe" else 10), path
    ports = {each["containerPort"] for _, container in containers() for each in container.get("ports", ())}
    assert ports == {int(OPTIONS["metrics_listen"].default.rpartition(":")[2])}


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
        if path.startswith("overlays/unprivileged")
    }
    assert privileged == {"fuse-helper": True, "d7yfs": False}
