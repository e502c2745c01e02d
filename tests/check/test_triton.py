"""The dry run finds the models that still ask for Dragonfly's repository agent, and says what to remove."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from d7yfs.check import triton
from d7yfs.check.dry_run import check
from d7yfs.check.findings import Finding, Severity
from tests.check.test_dry_run import settings_for
from tests.servers import faults
from tests.servers.s3_faults import S3Faults

PLAIN = b'backend: "python"\n'
ASKING = PLAIN + b'model_repository_agents { agents [ { name: "dragonfly" } ] }\n'


@pytest.fixture
async def store() -> AsyncIterator[S3Faults]:
    objects = {"b/models/a/config.pbtxt": PLAIN, "b/models/a/1/model.py": b"pass", "b/models/top": b"t"}
    async with S3Faults(objects).running() as running:
        yield running


async def triton_findings(store: S3Faults, tmp_path: Path) -> list[Finding]:
    return [finding async for finding in check(settings_for(store, tmp_path)) if finding.probe == "triton"]


async def test_each_model_that_asks_for_the_agent_is_named(store: S3Faults, tmp_path: Path) -> None:
    store.put("b/models/b/config.pbtxt", ASKING)
    store.put("b/models/c/configs/gpu.pbtxt", b"\xef\xbb\xbf# \xff\n" + ASKING)
    store.put("b/models/d/config.pbtxt", ASKING.replace(b"\n", b" "))
    found = await triton_findings(store, tmp_path)
    assert [each.verdict for each in found] == [Severity.WARNING] * 3
    assert "b/models/b/config.pbtxt: asks for" in found[0].said
    assert "b/models/c/configs/gpu.pbtxt: asks for" in found[1].said
    assert found[0].hint == "remove line 2, model_repository_agents with all in it; see docs/migration.md"
    assert found[1].hint == "remove line 3, model_repository_agents with all in it; see docs/migration.md"
    assert "remove from line 1 only the part from model_repository_agents to its closing bracket" in found[2].hint


async def test_none_asks_for_it(store: S3Faults, tmp_path: Path) -> None:
    (found,) = await triton_findings(store, tmp_path)
    assert found.verdict is Severity.OK
    assert "1 model configuration, none asks" in found.said


async def test_what_is_no_repository_of_tritons_is_not_spoken_of(store: S3Faults, tmp_path: Path) -> None:
    del store.objects["b/models/a/config.pbtxt"]
    assert await triton_findings(store, tmp_path) == []


async def test_a_configuration_that_cannot_be_read_leaves_the_others(store: S3Faults, tmp_path: Path) -> None:
    store.put("b/models/b/config.pbtxt", b"model {")
    store.put("b/models/c/config.pbtxt", ASKING)
    store.put("b/models/d/config.pbtxt", b"#" * (1 << 20))
    store.script(faults.status(403), key="b/models/a/config.pbtxt", forever=True)
    refused, broken, asking = await triton_findings(store, tmp_path)
    assert refused.verdict is Severity.FAILED
    assert "a/config.pbtxt" in refused.said
    assert "b/config.pbtxt: line 1" in broken.said
    assert "c/config.pbtxt" in asking.said
    assert not store.data_requests("b/models/d/config.pbtxt"), "no configuration has a megabyte"


async def test_no_more_than_so_many_are_read(store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "_MAX_FILES", 3)
    for number in range(5):
        store.put(f"b/models/z{number}/config.pbtxt", ASKING)
    found = await triton_findings(store, tmp_path)
    assert ["models/z0/config.pbtxt" in found[0].said, "models/z1/config.pbtxt" in found[1].said] == [True, True]
    assert len(found) == 3
    assert "only the first 3 model configurations" in found[-1].said
