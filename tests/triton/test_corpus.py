"""`d7yfs check` says what a real Triton does with right and wrong models, and nothing of the right ones.

Each model is loaded for itself, from a local directory. `-s` or `-rP` shows the table.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import Mounter, run
from tests.servers.triton import Triton, TritonError
from tests.triton.conftest import Start
from tests.triton.corpus import CASES, CODE, GOOD, Case, Verdict, ensemble
from tests.triton.models import Models

pytestmark = [pytest.mark.mount, pytest.mark.store]

# A load that hangs keeps one thread of each kind.
THREADS = ["--http-thread-count=64", "--model-load-thread-count=64"]
THROUGH_A_MOUNT = ("good", "leading_zero", "field", "ensemble")


def write(repository: Path, cases: Iterable[Case]) -> Path:
    for case in cases:
        for path, body in case.all_files().items():
            file = repository / case.name / path
            if path.endswith("/"):
                file.mkdir(parents=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        (repository / case.name).mkdir(exist_ok=True)
    return repository


def upload(models: Models, cases: Iterable[Case]) -> None:
    for case in cases:
        for path, body in (case.all_files() or {"": b""}).items():
            models.put(f"{case.name}/{path}", body)


def checked(bucket: Bucket, *urls: str) -> list[Mapping[str, str]]:
    """The findings on models, less the good ones."""
    done = run("check", "--json", *urls, env=bucket.env)
    found: list[Mapping[str, str]] = json.loads(done.stdout)
    assert any(each["probe"] == "triton" for each in found), done.stdout
    return [each for each in found if each["probe"] == "triton" and each["verdict"] != "ok"]


def ours(name: str, findings: Iterable[Mapping[str, str]]) -> str:
    return "; ".join(each["said"] for each in findings if f"/{name}/" in each["said"])


def loaded(triton: Triton, case: Case) -> tuple[Verdict, str]:
    """The verdict of Triton on one model, and all that it says of it."""
    logged = len(triton.log())
    try:
        triton.load(case.name)
    except TritonError as error:
        said = f"{error}\n{triton.log()[logged:]}"
        return (Verdict.PASSES if "unable to find backend library" in said else Verdict.REFUSES), said
    said = triton.log()[logged:]
    part = "leading zeros" in said or "version directory is not present" in said
    return (Verdict.PART if part else Verdict.LOADS), said


def hang(triton: Triton, case: Case) -> None:
    """Have Triton load a model without an end; returns once it has said why."""

    def load() -> None:
        with suppress(TritonError, httpx.HTTPError, RuntimeError):
            triton.load(case.name)

    threading.Thread(target=load, daemon=True).start()

    def has_said() -> bool:
        return any(case.words in line and f"/{case.name}/" in line for line in triton.log().splitlines())

    triton.wait_until(has_said, f"{case.name}: {case.words}")
    assert not triton.is_ready(case.name)


def test_check_says_what_triton_does(models: Models, start: Start, tmp_path: Path) -> None:
    upload(models, CASES)
    findings = checked(models.bucket, models.url)
    triton = start(write(tmp_path / "repository", CASES), mode="explicit", options=THREADS)
    triton.wait_until(triton.is_live, "the server is live")
    wrong = []
    for case in sorted(CASES, key=lambda each: each.triton is Verdict.HANGS):
        if case.triton is Verdict.HANGS:
            hang(triton, case)
            verdict, said = Verdict.HANGS, case.words
        else:
            verdict, said = loaded(triton, case)
        found = ours(case.name, findings)
        print(
            f"{case.name:26} | {verdict.value:24} | {case.words:52} | {found.partition(': ')[2] or case.unknown or '-'}"
        )
        if verdict is not case.triton or case.words not in said:
            wrong.append(f"{case.name}: Triton {verdict.value}, and not {case.triton.value}: {said}")
        if (case.ours not in found) if case.ours else found:
            wrong.append(f"{case.name}: check says {found!r}, and not {case.ours!r}")
        if ("would leave out" in found) != (verdict is Verdict.PART):
            wrong.append(f"{case.name}: Triton {verdict.value}, and check says {found!r}")
    assert not wrong, "\n".join(wrong)


def test_the_table_is_whole() -> None:
    """Every refusal is found, or says why it cannot be; nothing is found of what loads."""
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        refused = case.triton in (Verdict.REFUSES, Verdict.HANGS, Verdict.PART)
        assert bool(case.ours) == (refused != bool(case.unknown)), case.name


def test_a_mount_is_to_triton_what_the_directory_is(mounter: Mounter, models: Models, start: Start) -> None:
    cases = [case for case in CASES if case.name in THROUGH_A_MOUNT]
    upload(models, cases)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    triton = start(mounted.point, mode="explicit", options=THREADS)
    triton.wait_until(triton.is_live, "the server is live")
    for case in cases:
        verdict, said = loaded(triton, case)
        assert (verdict, case.words in said) == (case.triton, True), f"{case.name}: {said}"


def test_a_number_that_is_no_version_ends_triton(models: Models, start: Start, tmp_path: Path) -> None:
    case = Case("m", files={"99999999999999999999/model.py": CODE})
    upload(models, [case])
    (found,) = checked(models.bucket, models.url)
    assert "Triton 2.51 ends with it" in found["said"]
    triton = start(write(tmp_path / "repository", [case]), mode="explicit")
    triton.wait_until(triton.is_live, "the server is live")
    with pytest.raises(httpx.TransportError):
        triton.load("m")
    with pytest.raises(TritonError, match="the server has ended"):
        triton.wait_until(lambda: False, "never")


def test_repositories_of_one_triton(bucket: Bucket, start: Start, tmp_path: Path) -> None:
    """Two have a model of one name, and an ensemble has its step in the other one."""
    sets = {"a": [Case("good"), Case("both"), Case("ens", ensemble("step"), files={"1/": ""})]}
    sets["b"] = [Case("step"), Case("both", GOOD)]
    for name, cases in sets.items():
        upload(Models(bucket, f"corpus-{name}"), cases)
        write(tmp_path / name, cases)
    (found,) = checked(bucket, *(f"{name}={bucket.url(f'corpus-{name}')}" for name in sets))
    assert "two repositories have model 'both'" in found["said"]
    (missing,) = checked(bucket, bucket.url("corpus-a"))
    assert "model 'step' of a step is not there" in missing["said"]
    triton = start(tmp_path / "a", mode="explicit", options=[f"--model-repository={tmp_path / 'b'}"])
    triton.wait_until(triton.is_live, "the server is live")
    triton.load("good")
    triton.load("ens")
    with pytest.raises(TritonError, match="failed to load 'both'"):
        triton.load("both")
