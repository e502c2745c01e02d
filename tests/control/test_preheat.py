"""Preheats without a mount: which tasks the manager is asked for, and what is said of those that do not arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from d7yfs.config.sources import load_settings
from d7yfs.control import preheat
from d7yfs.control.preheat import Preheats
from d7yfs.errors import ConfigError, D7yfsError, ManagerError, NotFound, UsageError
from d7yfs.origins.origin import ReadRequest
from d7yfs.repository.repository import Repository, open_repositories
from tests.control.test_warm import WarmStore, mounted
from tests.servers import fake_manager
from tests.servers.fake_manager import FakeManager


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "5ecre7")


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeManager]:
    monkeypatch.setattr(preheat, "_LOOK_PERIOD_S", 0.01)
    with fake_manager.running(FakeManager()) as served:
        yield served


class Preheated:
    """One repository with files, and preheats of it."""

    def __init__(self, preheats: Preheats, repository: Repository, store: WarmStore) -> None:
        self._preheats = preheats
        self.repository = repository
        self.store = store

    async def preheat(self, *paths: str, scope: str = "single_seed_peer") -> dict[str, Any]:
        """The last report."""
        async with aclosing(self._preheats.report({"paths": list(paths or ("",)), "scope": scope})) as reports:
            *_, last = [report async for report in reports]
        assert last["state"] == "done"
        return last

    async def task_id(self, name: str) -> str:
        return await self.repository.task_id(self.store.versions[name])


@asynccontextmanager
async def opened(
    tmp_path: Path, url: str, *names: str, version_id: str = "v1", **options: Any
) -> AsyncIterator[Preheated]:
    """A mount of the files `names`, whose versions the store names, at the manager with address `url`."""
    token = tmp_path / "token"
    token.write_text("5ecre7-t0ken\n")
    token.chmod(0o600)
    flags = {
        "cache_dir": tmp_path / "cache",
        "p2p": "always",
        "proxy": "http://127.0.0.1:1",
        "versioned": bool(version_id),
        "dragonfly_manager": url,
        "dragonfly_manager_token_file": token,
        **options,
    }
    settings = load_settings(flags, ["s3://127.0.0.1:9/bucket"], None, {}, None)
    (repository,) = open_repositories(settings)
    store = WarmStore()
    for name in names:
        store.put(name, name.encode() * 100)
        store.versions[name] = replace(store.versions[name], version_id=version_id)

    class Reload:
        pass

    reloader: Any = Reload()
    reloader.settings = settings
    async with mounted(tmp_path, store) as mount:
        preheats = Preheats(mount.filesystem, [repository], reloader, mount.nursery)
        yield Preheated(preheats, repository, store)
    await repository.aclose()


async def test_the_manager_is_asked_for_the_tasks_that_mounts_ask_for(tmp_path: Path, manager: FakeManager) -> None:
    names = [f"m/{number:02}" for number in range(20)]
    options = {"p2p_tag": "llm", "p2p_application": "triton", "p2p_piece_length": "8MiB"}
    async with opened(tmp_path, manager.url, *names, **options) as mount:
        report = await mount.preheat("m")
        assert sorted(manager.tasks) == sorted([await mount.task_id(name) for name in names])
    assert (report["files"], report["files_done"], report["files_failed"]) == (20, 20, 0)
    assert report["done_bytes"] == report["size_bytes"] == 20 * 400
    assert report["hosts"] == {"seed-1": 20}
    assert sorted(report["jobs"]) == [1, 2, 3]
    for job in manager.requests:
        assert len(job["args"]["urls"]) <= 8
        assert (job["args"]["scope"], job["args"]["piece_length"]) == ("single_seed_peer", 8 << 20)
        assert not any(name.lower() in ("if-match", "authorization") for name in job["args"]["headers"])


async def test_urls_are_signed_for_minutes(tmp_path: Path, manager: FakeManager) -> None:
    async with opened(tmp_path, manager.url, "a") as mount:
        await mount.preheat()
    (url,) = manager.requests[0]["args"]["urls"]
    assert "X-Amz-Signature=" in url
    assert "X-Amz-Expires=900" in url


async def test_only_the_named_paths(tmp_path: Path, manager: FakeManager) -> None:
    async with opened(tmp_path, manager.url, "a/1", "b/1", "b/2") as mount:
        report = await mount.preheat("b", scope="all_peers")
        assert report["files"] == 2
        assert manager.requests[0]["args"]["scope"] == "all_peers"
        with pytest.raises(NotFound):
            await mount.preheat("c")
        with pytest.raises(UsageError, match="no scope"):
            await mount.preheat("b", scope="everywhere")


async def test_versions_that_only_a_content_id_names_are_left_out(tmp_path: Path, manager: FakeManager) -> None:
    async with opened(tmp_path, manager.url, "a", "b", version_id="") as mount:
        report = await mount.preheat()
    assert manager.requests == []
    assert (report["files"], report["files_left_out"]) == (0, 2)
    assert "--versioned" in report["left_out"]["a"]
    assert "d7yfs warm on one host" in report["left_out"]["b"]


async def test_with_a_p2p_secret_nothing_can_be_named(tmp_path: Path, manager: FakeManager) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    async with opened(tmp_path, manager.url, "a", p2p_secret_file=secret) as mount:
        report = await mount.preheat()
    assert manager.requests == []
    assert "p2p_secret_file" in report["left_out"]["a"]


async def test_versions_that_the_tag_names_are_jobs_of_their_own(tmp_path: Path, manager: FakeManager) -> None:
    """A proxy that is known to ignore content ids gets the version in the tag, and so does the manager."""
    async with opened(tmp_path, manager.url, "a", "b", version_id="") as mount:
        assert mount.repository.fetcher.proxy is not None
        for proxy in mount.repository.fetcher.proxy.all:
            proxy.binds_content_ids = False
        report = await mount.preheat()
        assert sorted(manager.tasks) == sorted([await mount.task_id("a"), await mount.task_id("b")])
    assert len(manager.requests) == report["files_done"] == 2


async def test_files_that_mounts_fetch_from_the_store_are_only_counted(tmp_path: Path, manager: FakeManager) -> None:
    async with opened(tmp_path, manager.url, "a.json", "b.bin", "c", p2p="*.json=never,*.bin=always,auto") as mount:
        report = await mount.preheat()
    assert (report["files"], report["files_direct"], report["files_left_out"]) == (1, 2, 0)


async def test_a_repository_without_dragonfly_says_so(tmp_path: Path, manager: FakeManager) -> None:
    async with opened(tmp_path, manager.url, "a", proxy="none") as mount:
        report = await mount.preheat()
    assert "--proxy" in report["left_out"]["a"]


@pytest.mark.parametrize("allowed", [False, True])
async def test_no_bearer_token_goes_to_the_manager(tmp_path: Path, manager: FakeManager, allowed: bool) -> None:
    async with opened(tmp_path, manager.url, "a", p2p_tokens=allowed) as mount:

        async def read_request(*_: object, **__: object) -> ReadRequest:
            return ReadRequest("http://127.0.0.1:9/bucket/a?versionId=v1", {"Authorization": "Bearer 5ecre7"}, 1e12)

        mount.repository.origin.read_request = read_request  # type: ignore[method-assign]
        report = await mount.preheat()
    assert manager.requests == []
    assert "cannot sign URLs" in report["left_out"]["a"]


async def test_a_seed_that_fails_is_noticed_although_the_job_succeeds(tmp_path: Path, manager: FakeManager) -> None:
    def bring(url: str, _args: dict[str, Any]) -> str:
        if "/b?" in url:
            raise OSError("no")
        return "seed-1"

    manager.bring = bring
    async with opened(tmp_path, manager.url, "a", "b") as mount:
        report = await mount.preheat()
    assert (report["files_done"], report["files_failed"]) == (1, 1)
    assert "no host" in report["failures"]["b"]


@pytest.mark.parametrize("names", [("a", "b"), ("b",)], ids=["some fail", "all fail"])
async def test_what_hosts_say_of_failures_is_told_without_signatures(
    tmp_path: Path, manager: FakeManager, names: tuple[str, ...]
) -> None:
    def bring(url: str, _args: dict[str, Any]) -> str:
        if "/b?" in url:
            raise OSError("status 403")
        return "peer-1"

    manager.bring, manager.clusters = bring, 2
    async with opened(tmp_path, manager.url, *names) as mount:
        report = await mount.preheat(scope="all_peers")
    assert report["files_done"] == len(names) - 1
    assert "/bucket/b…" in report["failures"]["b"]
    assert "status 403" in report["failures"]["b"]
    assert "X-Amz" not in report["failures"]["b"]


async def test_a_manager_that_restarts_is_waited_for(
    tmp_path: Path, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.missed_looks = 8  # each look is three requests
    async with opened(tmp_path, manager.url, "a") as mount:
        assert (await mount.preheat())["files_done"] == 1
        manager.missed_looks, manager.looks = 1000, 2
        monkeypatch.setattr(preheat, "_MISSED_LOOKS", 1)
        report = await mount.preheat()
    assert report["files_failed"] == 1
    assert "broke off" in report["failures"]["a"]


async def test_a_job_without_end(tmp_path: Path, manager: FakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.looks = 1_000_000
    monkeypatch.setattr(preheat, "_JOB_TIMEOUT_S", 0.1)
    async with opened(tmp_path, manager.url, "a") as mount:
        report = await mount.preheat()
    assert "job 1 has not ended" in report["failures"]["a"]


async def test_without_a_manager_it_says_what_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path, "", "a") as mount:
        with pytest.raises(ConfigError, match="no manager") as caught:
            await mount.preheat()
    assert "d7yfs reload" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b'{"message": "Unauthorized"}', "401: Unauthorized"),
        (403, b"", "403"),
        (500, b'{"message": "candidate schedulers not found"}', "candidate schedulers not found"),
        (200, b"<html>", "not its API's"),
        (200, b'{"id": "x"}', "not its API's"),
        (200, b"[" * 100_000, "not its API's"),
    ],
)
async def test_a_manager_that_refuses(
    tmp_path: Path, manager: FakeManager, status: int, body: bytes, said: str
) -> None:
    manager.status, manager.body = status, body or b"x"
    async with opened(tmp_path, manager.url, "a") as mount:
        with pytest.raises(ManagerError, match=said) as caught:
            await mount.preheat()
    assert "5ecre7" not in str(caught.value)


async def test_a_manager_that_is_away(tmp_path: Path) -> None:
    async with opened(tmp_path, "http://127.0.0.1:9", "a") as mount:
        with pytest.raises(ManagerError, match="cannot be reached") as caught:
            await mount.preheat()
    assert "dragonfly_manager" in caught.value.hint


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff\xfe", b"t" * 5000])
async def test_a_token_that_is_none(tmp_path: Path, manager: FakeManager, content: bytes | None) -> None:
    file = tmp_path / "bad"
    if content is not None:
        file.write_bytes(content)
    async with opened(tmp_path, manager.url, "a", dragonfly_manager_token_file=file) as mount:
        with pytest.raises(D7yfsError, match="dragonfly_manager_token_file"):
            await mount.preheat()


def test_a_token_that_others_may_read_is_a_warning(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("5ecre7-t0ken\n")
    token.chmod(0o644)
    flags = {"cache_dir": tmp_path, "dragonfly_manager_token_file": token}
    settings = load_settings(flags, ["s3://b"], None, {}, None)
    assert any(str(token) in each for each in settings.warnings)
    assert "5ecre7" not in repr(settings.explain())
