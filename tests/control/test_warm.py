"""Warming up without a mount: the walk, the arithmetic, and what comes of files that fail or do not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory, footprint_bytes
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.control.warm import WarmUps, outermost, walk
from d7yfs.errors import D7yfsError, NotFound, OriginUnavailable, UsageError, VersionGone
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import BLOCK_BYTES, ByteRange, StoreIdentity
from d7yfs.tree.tree import Tree, TreeRoot
from tests.cache.doubles import PromptDisk
from tests.fs.test_filesystem import Store


class WarmStore(Store):
    """A repository whose fillers bring whole files when they are told to, each from `gate` on."""

    def __init__(self, name: str = "", **files: bytes) -> None:
        super().__init__(name, **files)
        self.gate = trio.Event()
        self.gate.set()
        self.refused: dict[str, D7yfsError] = {}
        self.at_once = self.most_at_once = 0

    @property
    def source(self) -> RepositoryBackend:
        return RepositoryBackend(
            f"mem://{self.name}", StoreIdentity("mem", "", self.name), self, lambda each: _Filler(self, each)
        )


class _Filler:
    def __init__(self, store: WarmStore, target: CachedVersion) -> None:
        self._store = store
        self._target = target
        self._busy = False

    window_bytes = 0

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        raise AssertionError("nobody reads")

    def stop_filling(self) -> None:
        """Let requests under way come to their end."""

    def prefetch(self, ahead: ByteRange) -> None:
        raise AssertionError("nobody reads")

    def fill(self) -> None:
        if not self._busy:
            self._busy = True
            self._target.hold()
            trio.lowlevel.spawn_system_task(self._bring)

    async def _bring(self) -> None:
        store, target = self._store, self._target
        store.filled.append(target.version.key)
        store.at_once += 1
        store.most_at_once = max(store.most_at_once, store.at_once)
        await store.gate.wait()
        error = store.refused.get(target.version.key)
        if error is None:
            body = store.bodies[target.version.key, target.version.validator]
            for run in target.missing(target.version.whole):
                await target.write(run.start, memoryview(body)[run.start : run.stop])
        store.at_once -= 1
        self._busy = False
        target.end_transfer(target.version.whole, error)
        target.drop()


_: type[Filler] = _Filler


class Mount:
    def __init__(self, filesystem: Filesystem, warm_ups: WarmUps, cache: Cache, nursery: trio.Nursery) -> None:
        self.filesystem = filesystem
        self.nursery = nursery
        self.warm_ups = warm_ups
        self.cache = cache

    async def warm(self, *paths: str, background: bool = False) -> list[dict[str, Any]]:
        """All reports of a warm-up."""
        reports = self.warm_ups.report({"paths": list(paths), "background": background})
        async with aclosing(reports):
            return [report async for report in reports]


@asynccontextmanager
async def mounted(
    tmp_path: Path, *stores: WarmStore, limit_bytes: int = 1 << 30, max_entries: int = 200_000
) -> AsyncIterator[Mount]:
    tree = Tree(
        [TreeRoot(store.name, "") for store in stores],
        metadata_ttl_s=60.0,
        negative_ttl_s=5.0,
        created_ns=1_600_000_000_000_000_000,
        max_entries=max_entries,
    )
    directory = CacheDirectory(tmp_path / "cache", size_limit_bytes=limit_bytes, min_free_bytes=0)
    directory.prepare()
    cache = Cache(directory, memory_buffer_bytes=16 << 20, read_timeout_s=30.0, disk=PromptDisk())
    async with trio.open_nursery() as nursery:
        filesystem = Filesystem(tree, {store.name: store.source for store in stores}, cache, nursery)
        yield Mount(filesystem, WarmUps(filesystem, nursery), cache, nursery)
        nursery.cancel_scope.cancel()


# --- planning ---


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        (["a", "a/b", "ab"], ("a", "ab")),
        (["b", "a", "b"], ("a", "b")),
        (["/a/", "a//b"], ("a",)),
        (["", "a"], ("",)),
        (["."], ("",)),
    ],
)
def test_what_lies_below_another_path_counts_once(paths: list[str], kept: tuple[str, ...]) -> None:
    assert outermost(paths) == kept


def test_a_path_that_leaves_the_mount_is_refused() -> None:
    with pytest.raises(UsageError):
        outermost(["a/../../b"])


def test_a_plan_counts_what_files_take_on_disk() -> None:
    taken_bytes = sum(map(footprint_bytes, [10 * BLOCK_BYTES, 1, 0]))
    assert taken_bytes >= 10 * BLOCK_BYTES + 3 * 4096 + 4096, "each has a map, and disks have blocks"


async def _paths(filesystem: Filesystem, *paths: str) -> tuple[list[str], list[str]]:
    failed: list[str] = []
    async with aclosing(walk(filesystem, paths, lambda path, _: failed.append(path))) as files:
        return [path async for path, _ in files], failed


async def test_the_walk_finds_every_file_once(tmp_path: Path) -> None:
    store = WarmStore(top=b"1", a__x=b"2", a__b__y=b"3", a__b__z=b"4", c__w=b"5")
    async with mounted(tmp_path, store) as mount:
        found, failed = await _paths(mount.filesystem, "")
        assert sorted(found) == ["a/b/y", "a/b/z", "a/x", "c/w", "top"]
        assert sorted((await _paths(mount.filesystem, "a/b", "c/w"))[0]) == ["a/b/y", "a/b/z", "c/w"]
        assert failed == []
        with pytest.raises(NotFound):
            await _paths(mount.filesystem, "nowhere")


async def test_the_walk_leaves_nothing_behind(tmp_path: Path) -> None:
    """The tree may be smaller than what is walked through, and a walk that is broken off gives back what it held."""
    files = {f"d{n}__f{m}": b"x" for n in range(20) for m in range(20)}
    async with mounted(tmp_path, WarmStore("", **files), max_entries=50) as mount:
        tree = mount.filesystem.tree
        remembered = tree.statistics().remembered
        found, failed = await _paths(mount.filesystem, "")
        assert len(set(found)) == len(found) == 400
        assert failed == []
        assert tree.statistics().remembered == remembered
        assert tree.statistics().inodes < 150
        async with aclosing(walk(mount.filesystem, [""], lambda *_: None)) as walked:
            await anext(walked)
        assert tree.statistics().remembered == remembered


async def test_a_directory_that_cannot_be_listed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    store = WarmStore(a__x=b"2", c__w=b"5")
    store.errors |= {"scan": OriginUnavailable("away"), "list a/": OriginUnavailable("away")}
    async with mounted(tmp_path, store) as mount:
        last = (await mount.warm(""))[-1]
    assert (last["files_done"], last["files_failed"], last["failures"]) == (1, 1, {"a": "away"})


# --- bringing ---


async def test_all_files_are_brought_once(tmp_path: Path) -> None:
    body = bytes(range(256)) * (3 * BLOCK_BYTES // 256) + b"tail"
    store = WarmStore(model__weights=body, model__config=b"tiny", empty=b"")
    async with mounted(tmp_path, store) as mount:
        last = (await mount.warm(""))[-1]
        assert last["state"] == "done"
        assert (last["files"], last["files_done"], last["files_failed"], last["files_left_out"]) == (3, 3, 0, 0)
        assert last["size_bytes"] == last["missing_bytes"] == last["fetched_bytes"] == len(body) + 4
        assert sorted(store.filled) == ["model/config", "model/weights"]
        assert mount.warm_ups.describe_running() == []

        again = (await mount.warm("model", "model/config"))[-1]
        assert (again["files"], again["files_done"], again["missing_bytes"], again["fetched_bytes"]) == (2, 2, 0, 0)
        assert len(store.filled) == 2, "nothing is fetched twice"


async def test_what_fails_is_named_and_the_rest_is_brought(tmp_path: Path) -> None:
    store = WarmStore(a=b"1", b=b"2", c=b"3")
    store.put("d", b"frozen", archived="GLACIER")
    store.refused["b"] = VersionGone("mem:///b was replaced")
    async with mounted(tmp_path, store) as mount:
        last = (await mount.warm(""))[-1]
    assert (last["state"], last["files_done"], last["files_failed"]) == ("done", 2, 2)
    assert "was replaced" in last["failures"]["b"]
    assert "GLACIER" in last["failures"]["d"]


async def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    async with mounted(tmp_path, WarmStore(a=b"1")) as mount:
        with pytest.raises(NotFound, match="nowhere"):
            await mount.warm("a", "nowhere")
        for paths in ([], "a", [1], None):
            with pytest.raises(UsageError):
                await anext(mount.warm_ups.report({"paths": paths}))
        assert mount.warm_ups.describe_running() == []


async def test_what_does_not_fit_is_said_first_and_left_out(tmp_path: Path) -> None:
    files = {f"f{n}": bytes([n]) * BLOCK_BYTES for n in range(10)}
    store = WarmStore("", **files)
    store.gate = trio.Event()
    async with mounted(tmp_path, store, limit_bytes=8 * BLOCK_BYTES) as mount:
        reports = mount.warm_ups.report({"paths": [""]})
        async with aclosing(reports):
            async for report in reports:
                if report["state"] == "running":
                    break
            assert not report["fits"]
            assert report["room_bytes"] < report["size_bytes"]
            store.gate.set()
            async for report in reports:
                last = report
        fitting = mount.filesystem.room.keepable_bytes // footprint_bytes(BLOCK_BYTES)
        assert 4 <= fitting < 8
        assert (last["state"], last["files_done"], last["files_left_out"]) == ("done", fitting, 10 - fitting)
        assert mount.cache.statistics().evicted_files == 0


async def test_many_small_files_or_few_large_ones_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    small = WarmStore("small", **{f"s{n:03}": b"x" for n in range(100)})
    large = WarmStore("large", **{f"l{n}": bytes(9 << 20) for n in range(8)})
    small.gate, large.gate = trio.Event(), trio.Event()
    async with mounted(tmp_path, small, large) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.warm, "small")
        nursery.start_soon(mount.warm, "large")
        await trio.sleep(10)
        assert (small.at_once, large.at_once) == (32, 4)
        assert len(mount.warm_ups.describe_running()) == 2
        small.gate.set()
        large.gate.set()
    assert (len(small.filled), len(large.filled)) == (100, 8)
    assert (small.most_at_once, large.most_at_once) == (32, 4)


async def test_progress_while_it_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = WarmStore(file=bytes(5 * BLOCK_BYTES))
    store.gate = trio.Event()
    async with mounted(tmp_path, store) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.warm, "")
        await trio.sleep(2)
        (report,) = mount.warm_ups.describe_running()
        assert (report.state, report.fetched_bytes, report.eta_s) == ("running", 0, None)
        cached = await mount.cache.open(
            StoreIdentity("mem", "", ""), store.versions["file"], lambda target: _Filler(store, target)
        )
        await cached.write(0, memoryview(bytes(BLOCK_BYTES)))
        await trio.sleep(2)
        (report,) = mount.warm_ups.describe_running()
        assert report.fetched_bytes == BLOCK_BYTES
        assert report.rate_bytes_s == pytest.approx(BLOCK_BYTES / 4, rel=0.01)
        assert report.eta_s == pytest.approx(16, rel=0.01)
        cached.drop()
        store.gate.set()


async def test_who_leaves_stops_it_and_what_has_come_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = WarmStore("", **{f"s{n:03}": b"x" for n in range(100)})
    store.gate = trio.Event()
    async with mounted(tmp_path, store) as mount:
        reports = mount.warm_ups.report({"paths": [""]})
        async with aclosing(reports):
            async for report in reports:
                if report["state"] == "running":
                    break
            await trio.sleep(1)
        await trio.sleep(1)
        assert mount.warm_ups.describe_running() == []
        begun = len(store.filled)
        store.gate.set()
        await trio.sleep(10)
        assert len(store.filled) == begun == 32
        last = (await mount.warm(""))[-1]
        assert (last["files_done"], last["missing_bytes"]) == (100, 68)


async def test_in_the_background_it_goes_on_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = WarmStore("", **{f"s{n:03}": b"x" for n in range(100)})
    store.gate = trio.Event()
    async with mounted(tmp_path, store) as mount:
        last = (await mount.warm("", background=True))[-1]
        assert (last["state"], last["files"]) == ("running", 100)
        assert mount.warm_ups.describe_running()[0].background
        store.gate.set()
        await trio.sleep(10)
        assert mount.warm_ups.describe_running() == []
        assert len(store.filled) == 100
