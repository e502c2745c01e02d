"""docs/status.md names every field that commands print with `--json`, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from d7yfs.check.findings import Finding
from d7yfs.servers import torchserve
from d7yfs.stats.repository_status import HandoverStatus
from d7yfs.stats.status import ReloadStatus
from tests.mount.conftest import Bucket
from tests.mount.mounted import Mounter, run

pytestmark = [pytest.mark.mount, pytest.mark.store]

PAGE = Path(__file__).parent.parent.parent / "docs" / "status.md"

BY_NAME = {
    *("settings", "changed", "refused", "failures", "calls", "errors", "latency"),
    *("retries", "direct_bytes_by_reason", "p2p_versions", "models"),
}
"""Fields whose keys are names; their values have keys again."""


def documented() -> dict[str, dict[str, set[str]]]:
    """The words in backticks by section and field: those of the field's row, and of the rows below
    its own heading.
    """
    found: dict[str, dict[str, set[str]]] = {}
    section = above = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section, above = line[3:], ""
        elif line.startswith("### "):
            above = line.strip("#` ").partition(".")[0]
        elif line.startswith("| `"):
            words = set(re.findall(r"`(\w+)`", line))
            if above:
                found[section][above] |= words
                continue
            for name in re.findall(r"`(\w+)`", line.split("|")[1]):
                found.setdefault(section, {})[name] = words
    return found


def keys_below(name: str, value: object) -> set[str]:
    """The keys of all objects in a field."""
    below = (
        value
        if isinstance(value, list)
        else [*value.values()]
        if name in BY_NAME and isinstance(value, dict)
        else [value]
    )
    keys: set[str] = set()
    for each in below:
        if isinstance(each, dict):
            keys |= each.keys()
            for key, further in each.items():
                keys |= keys_below(key, further)
    return keys


def check(section: str, told: Mapping[str, Any]) -> None:
    """Check that a section's fields are those of `told`, and that their rows name the keys below
    them.
    """
    known = documented()[section]
    assert told.keys() == known.keys(), section
    for name, value in told.items():
        elsewhere = (
            {"repositories", "cache", "tree", "fuse", "warm_ups", "last_reload"} if section == "A mount" else set()
        )
        if name not in elsewhere:
            assert keys_below(name, value) <= known[name], f"{section}: {name}"


def the_one(*arguments: str | Path) -> dict[str, Any]:
    """The one object that a command prints, alone or in a list or line of one."""
    done = run(*arguments)
    told = json.loads(done.stdout)
    (one,) = told if isinstance(told, list) else [told]
    assert isinstance(one, dict)
    assert one["schema"] == 1
    return one


def test_every_field_is_documented(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", "--metrics-listen", "none", env=bucket.env)
    mounted.read("models/one.bin")
    mounted.read("models/twenty.bin")
    check("reload", the_one("reload", mounted.point, "--json"))
    check("log-level", the_one("log-level", "info", mounted.point, "--json"))
    assert the_one("health", "--json", mounted.point).keys() == documented()["health"].keys()
    active = the_one("top", "--once", "--json", "--interval", "0.2s", mounted.point)
    assert active.keys() == documented()["top"].keys()
    warmed = run("warm", "--json", mounted.point / "models/model").stdout.splitlines()
    for line in warmed:
        check("warm", json.loads(line))
    check("refresh", the_one("refresh", "--json", mounted.point))

    status = the_one("status", "--json", mounted.point)
    check("A mount", status)
    (repository,) = status["repositories"]
    assert repository["fills"]
    assert repository["models"]
    check("repositories", repository)
    for section in ("cache", "tree", "fuse"):
        check(section, status[section])

    where = {"schema", "mountpoint", "path", "directory", "url"}
    file = the_one("stat", "--json", mounted.point / "models/one.bin")
    assert file.keys() == documented()["stat"].keys() - {"version_id", "archived", "p2p_proof", "served", "task_id"}
    assert the_one("stat", "--json", mounted.point / "models").keys() == where
    assert isinstance(file["size_bytes"], int)

    cache = ("--cache-dir", str(mounted.cache_dir))
    check("cache ls", the_one("cache", "ls", "--json", *cache))
    for row in json.loads(run("cache", "verify", "--json", *cache).stdout):
        check("cache verify", row)
    check("cache drop", the_one("cache", "drop", "--json", mounted.point / "models/one.bin"))
    check("cache drop", the_one("cache", "drop", "--json", "--all", *cache))
    for row in json.loads(run("check", bucket.url("library"), "--json", *cache).stdout):
        check("check", row)


def test_every_field_of_what_is_not_always_there_is_documented() -> None:
    known = documented()
    assert {each.name for each in fields(HandoverStatus)} <= known["repositories"]["handover"]
    assert {each.name for each in fields(ReloadStatus)} | {"schema", "mountpoint"} == known["reload"].keys()
    for section, kind in {
        "check": Finding,
        "torchserve list": torchserve.Registered,
        "torchserve register, torchserve unregister": torchserve.ModelOutcome,
    }.items():
        assert {each.name for each in fields(kind)} | {"schema"} == known[section].keys()
