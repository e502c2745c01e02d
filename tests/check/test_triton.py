"""The dry run finds the models that Triton would refuse. What it takes for such is in `tests/triton/corpus.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from d7yfs.check import dry_run, model_repositories, triton
from d7yfs.check.dry_run import check
from d7yfs.check.findings import Finding, Severity
from tests.check.test_dry_run import settings_for
from tests.servers import faults
from tests.servers.s3_faults import S3Faults
from tests.triton.corpus import CASES

PLAIN = b'backend: "python"\n'
ASKING = PLAIN + b'model_repository_agents { agents [ { name: "dragonfly" } ] }\n'


@pytest.fixture
async def store() -> AsyncIterator[S3Faults]:
    objects = {"b/models/a/config.pbtxt": PLAIN, "b/models/a/1/model.py": b"pass", "b/models/top": b"t"}
    async with S3Faults(objects).running() as running:
        yield running


async def triton_findings(store: S3Faults, tmp_path: Path, prefix: str = "models", **flags: object) -> list[Finding]:
    found = check(settings_for(store, tmp_path, prefix, **flags))
    return [finding async for finding in found if finding.probe == "triton"]


def put_models(store: S3Faults, configs: dict[str, bytes]) -> None:
    """Put models by their name; a path is a configuration of that name."""
    for name, config in configs.items():
        store.put(f"b/models/{name}" if "/" in name else f"b/models/{name}/config.pbtxt", config)
        store.put(f"b/models/{name.partition('/')[0]}/1/model.py", b"pass")


async def test_each_model_that_asks_for_the_agent_is_named(store: S3Faults, tmp_path: Path) -> None:
    put_models(store, {"b": ASKING, "c/configs/gpu.pbtxt": b"# \xff\n" + ASKING, "d": ASKING.replace(b"\n", b" ")})
    found = await triton_findings(store, tmp_path)
    assert [each.verdict for each in found] == [Severity.WARNING] * 3
    assert "b/models/b/config.pbtxt: asks for" in found[0].said
    assert "b/models/c/configs/gpu.pbtxt: asks for" in found[1].said
    assert found[0].hint == "remove line 2, model_repository_agents with all in it; see docs/migration.md"
    assert found[1].hint == "remove line 3, model_repository_agents with all in it; see docs/migration.md"
    assert "remove from line 1 only the part from model_repository_agents to its closing bracket" in found[2].hint


async def test_none_asks_for_it(store: S3Faults, tmp_path: Path) -> None:
    found, models = await triton_findings(store, tmp_path)
    assert {found.verdict, models.verdict} == {Severity.OK}
    assert "1 model configuration, none asks" in found.said
    assert "1 model, nothing found" in models.said


async def test_what_is_no_repository_of_tritons_is_not_spoken_of(store: S3Faults, tmp_path: Path) -> None:
    del store.objects["b/models/a/config.pbtxt"]
    del store.objects["b/models/a/1/model.py"]
    store.put("b/models/llm/model.safetensors", b"w")
    store.put("b/models/tf/1/saved_model.pb", b"w")
    assert await triton_findings(store, tmp_path) == []


async def test_without_configurations_the_files_of_a_version_tell(store: S3Faults, tmp_path: Path) -> None:
    del store.objects["b/models/a/config.pbtxt"]
    store.put("b/models/b/1/weights.bin", b"w")
    (found,) = await triton_findings(store, tmp_path)
    assert "models/b/: Triton would refuse it: it names no backend, and 1/ has no file" in found.said
    assert found.hint == "set backend in b/config.pbtxt"


async def test_each_model_of_the_corpus(store: S3Faults, tmp_path: Path) -> None:
    """`tests/triton/test_corpus.py` shows that a real Triton agrees."""
    store.objects.clear()
    for case in CASES:
        for path, body in (case.all_files() or {"": b""}).items():
            store.put(f"b/models/{case.name}/{path}", body)
    found = [each for each in await triton_findings(store, tmp_path) if each.hint]
    said = {case.name: "; ".join(each.said for each in found if f"/{case.name}/" in each.said) for case in CASES}
    wrong = {case.name: said[case.name] for case in CASES if bool(case.ours) != bool(said[case.name])}
    assert not wrong
    for case in CASES:
        assert case.ours in said[case.name]


async def test_repositories_below_the_url(store: S3Faults, tmp_path: Path) -> None:
    """The directories next to a model are models, those elsewhere are not; and the URL may be a model's."""
    store.put("b/data/x/1.bin", b"w")
    store.put("b/models/b/2.bin", b"w")
    found = [each for each in await triton_findings(store, tmp_path, prefix="") if each.verdict is not Severity.OK]
    assert ["models/b/" in each.said for each in found] == [True]
    store.put("b/models/a/config.pbtxt", PLAIN + b'name: "a"')
    files, models = await triton_findings(store, tmp_path, prefix="models/a")
    assert {files.verdict, models.verdict} == {Severity.OK}, "the mount may have any name"


async def test_what_the_mount_hides_is_not_there(store: S3Faults, tmp_path: Path) -> None:
    found = [each for each in await triton_findings(store, tmp_path, exclude="model.py") if each.hint]
    assert "version 1 has no model.py" in found[0].said
    store.put("b/models/z/config.pbtxt", b'backend: "python"')
    assert len([each for each in await triton_findings(store, tmp_path) if each.hint]) == 1
    assert not [each for each in await triton_findings(store, tmp_path, exclude="z") if each.hint]


async def test_a_model_that_was_not_read_to_its_end_is_not_judged(
    store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "_SAMPLE_PAGES", 1)
    put_models(store, {f"m{number:03}": PLAIN for number in range(600)})
    store.put("b/models/b/config.pbtxt", PLAIN)
    found = [each for each in await triton_findings(store, tmp_path) if "would refuse it" in each.said]
    assert ["models/b/" in each.said for each in found] == [True], "1000 keys end within a model"


async def test_no_more_models_than_so_many_are_named(
    store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_repositories, "_MAX_FINDINGS", 2)
    for number in range(5):
        store.put(f"b/models/z{number}/config.pbtxt", PLAIN)
    found = [each for each in await triton_findings(store, tmp_path) if each.hint]
    assert len(found) == 3
    assert "3 more models have faults" in found[-1].said


async def test_a_configuration_that_cannot_be_read_leaves_the_others(store: S3Faults, tmp_path: Path) -> None:
    store.put("b/models/b/config.pbtxt", b"model {")
    store.put("b/models/c/config.pbtxt", ASKING)
    store.put("b/models/d/config.pbtxt", b"#" * (1 << 20))
    store.script(faults.status(403), key="b/models/a/config.pbtxt", forever=True)
    store.put("b/models/c/1/model.py", b"pass")
    refused, broken, asking, *unread = await triton_findings(store, tmp_path)
    assert unread == []
    assert refused.verdict is Severity.FAILED
    assert "a/config.pbtxt" in refused.said
    assert "b/config.pbtxt: line 1" in broken.said
    assert "c/config.pbtxt" in asking.said
    assert not store.data_requests("b/models/d/config.pbtxt"), "no configuration has a megabyte"


async def test_no_more_than_so_many_are_read(store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "_MAX_FILES", 3)
    for number in range(5):
        put_models(store, {f"z{number}": ASKING})
    found = await triton_findings(store, tmp_path)
    assert ["models/z0/config.pbtxt" in found[0].said, "models/z1/config.pbtxt" in found[1].said] == [True, True]
    assert len(found) == 3
    assert "only the first 3 model configurations" in found[-1].said
