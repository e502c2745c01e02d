"""The file system without a mount: the real tree and cache over a store in memory."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.config.place import Place
from d7yfs.errors import (
    IsADirectory,
    NotADirectory,
    NotFound,
    ObjectArchived,
    OriginUnavailable,
    ReadTimeout,
    VersionGone,
)
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion, StoreIdentity
from d7yfs.stats.models import OTHER
from d7yfs.tree.lister import STALE_RETRY_S
from d7yfs.tree.nodes import Absent, Found
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.cache.doubles import PromptDisk, few_descriptors
from tests.tree.listings import MemoryListings

TTL_S = 60.0
NEGATIVE_TTL_S = 5.0
READ_TIMEOUT_S = 30.0


class Store(MemoryListings):
    """One repository in memory, and what can go wrong with it."""

    def __init__(self, name: str = "", **files: bytes) -> None:
        super().__init__()
        self.name = name
        self.bodies: dict[tuple[str, str], bytes] = {}
        self.reads: list[ByteRange] = []
        self.aheads: list[ByteRange] = []
        self.fills = 0
        self.filled: list[str] = []
        self.fill_error: Exception | None = None
        self.rate_bytes_s = 100e6
        """The rate at which its bytes are expected to come."""
        self.fill_gate = _open_gate()
        for key, body in files.items():
            self.put(key.replace("__", "/"), body)

    def put(self, key: str, body: bytes, *, archived: str = "") -> None:
        validator = f'"{hash((key, body))}"'
        self.versions[key] = ObjectVersion(key, len(body), validator, 1_700_000_000_000_000_000, archived=archived)
        self.bodies[key, validator] = body

    @property
    def source(self) -> RepositoryBackend:
        return RepositoryBackend(
            f"mem://{self.name}",
            StoreIdentity("s3", "aws", self.name or "bucket"),
            self,
            lambda target: _Filler(self, target),
            expected_s=lambda size_bytes: size_bytes / self.rate_bytes_s,
        )


class _Filler:
    """A filler that brings whole blocks from the store while its gate is open."""

    def __init__(self, store: Store, target: CachedVersion) -> None:
        self._store = store
        self._target = target

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        self._store.reads.append(wanted)
        if ahead:
            self._store.aheads.append(ahead)
        self._target.begin_work()
        trio.lowlevel.spawn_system_task(self._bring, wanted)

    window_bytes = 64 << 20

    def fill(self) -> None:
        self._store.fills += 1
        self._store.filled.append(self._target.version.key)

    def stop_filling(self) -> None:
        raise AssertionError("nobody has asked for it")

    def prefetch(self, ahead: ByteRange) -> None:
        self._store.aheads.append(ahead)

    async def _bring(self, wanted: ByteRange) -> None:
        await self._store.fill_gate.wait()
        target, error = self._target, self._store.fill_error
        if error is None:
            body = self._store.bodies[target.version.key, target.version.validator]
            for run in target.missing(wanted):
                await target.write(run.start, memoryview(body)[run.start : run.stop])
        target.end_transfer(wanted, error)
        target.end_work()


def _open_gate() -> trio.Event:
    gate = trio.Event()
    gate.set()
    return gate


_: type[Filler] = _Filler


@asynccontextmanager
async def mounted(
    tmp_path: Path, *stores: Store, prefix: str = "", open_wait_s: float = 0.0
) -> AsyncIterator[Filesystem]:
    tree = Tree(
        [TreeRoot(store.name, prefix) for store in stores],
        metadata_ttl_s=TTL_S,
        negative_ttl_s=NEGATIVE_TTL_S,
        created_ns=1_600_000_000_000_000_000,
    )
    directory = CacheDirectory(tmp_path / "cache", size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    cache = Cache(
        directory,
        memory_buffer_bytes=16 << 20,
        read_timeout_s=READ_TIMEOUT_S,
        disk=PromptDisk(),
        descriptors=few_descriptors(1),
    )
    async with trio.open_nursery() as nursery:
        sources = {store.name: store.source for store in stores}
        yield Filesystem(tree, sources, cache, nursery, open_wait_s=open_wait_s)
        nursery.cancel_scope.cancel()


async def inode_of(filesystem: Filesystem, path: str) -> int:
    """The inode of a path, as the kernel walks."""
    inode = ROOT_INODE
    for name in path.split("/"):
        answer = await filesystem.lookup(inode, name)
        assert isinstance(answer, Found), path
        inode = answer.node.inode
    return inode


async def timeout_s(filesystem: Filesystem, name: str) -> float:
    answer = await filesystem.lookup(ROOT_INODE, name)
    assert isinstance(answer, Found)
    return answer.entry_timeout_s


async def names(filesystem: Filesystem, inode: int = ROOT_INODE) -> list[str]:
    handle = await filesystem.opendir(inode)
    _, entries = await filesystem.entries(handle, 0)
    filesystem.releasedir(handle)
    return [name for _, name, _ in entries]


# --- names and attributes ---


async def test_attributes_of_files_and_directories(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path, Store(model__a=b"abc", top=b"")) as filesystem:
        file = await filesystem.getattr(await inode_of(filesystem, "model/a"))
        directory = await filesystem.getattr(await inode_of(filesystem, "model"))
        assert (file.is_directory, file.size_bytes, file.nlink) == (False, 3, 1)
        assert file.mtime_ns == 1_700_000_000_000_000_000
        assert directory.is_directory
        assert directory.mtime_ns > 0
        assert file.attributes_timeout_s(trio.current_time()) > 1e6, "a version never changes"
        assert directory.attributes_timeout_s(trio.current_time()) <= TTL_S


async def test_entries_live_as_long_as_what_is_left_of_their_listing(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(file=b"x")
    async with mounted(tmp_path, store) as filesystem:
        assert await timeout_s(filesystem, "file") == pytest.approx(TTL_S)
        await trio.sleep(TTL_S - 10)
        assert await timeout_s(filesystem, "file") == pytest.approx(10)
        asked = len(store.requests)
        assert sorted(store.requests) == ["list ", "scan "]
        await trio.sleep(11)
        assert await timeout_s(filesystem, "file") == pytest.approx(TTL_S)
        assert len(store.requests) == asked + 1


async def test_an_absent_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path, Store(file=b"x")) as filesystem:
        assert await filesystem.lookup(ROOT_INODE, "absent") == Absent(NEGATIVE_TTL_S)
        with pytest.raises(NotADirectory):
            await filesystem.lookup(await inode_of(filesystem, "file"), "below")
        with pytest.raises(VersionGone):
            await filesystem.getattr(4711)
        with pytest.raises(NotFound):
            await filesystem.resolve("no/such/path")


async def test_lookups_at_once_are_one_listing(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(file=b"x")
    store.listing_gate = trio.Event()
    found = []

    async def look(filesystem: Filesystem) -> None:
        found.append(await filesystem.lookup(ROOT_INODE, "file"))

    async with mounted(tmp_path, store) as filesystem, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await look(filesystem)
        assert not found
        for _ in range(10):
            nursery.start_soon(look, filesystem)
        await trio.testing.wait_all_tasks_blocked()
        store.listing_gate.set()
    assert len(found) == 10
    assert all(isinstance(answer, Found) for answer in found)
    assert sorted(store.requests) == ["list ", "scan "], "who gave up took nothing from the others"


async def test_a_lookup_that_is_given_up_at_any_moment_is_counted_if_it_was_answered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    store = Store(file=b"x")
    answers: list[Found | Absent] = []

    async def look(filesystem: Filesystem, scope: trio.CancelScope) -> None:
        with scope:
            answers.append(await filesystem.lookup(ROOT_INODE, "file"))

    async with mounted(tmp_path, store) as filesystem:
        given_up = 0
        for steps in range(20):
            store.listing_gate = trio.Event()
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, filesystem, scope)
                await trio.testing.wait_all_tasks_blocked()
                store.listing_gate.set()
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
            given_up += scope.cancelled_caught
            node = await filesystem.resolve("file")
            assert node.lookups == len(answers)
            await trio.sleep(TTL_S + 1)
        assert 0 < given_up < 20


async def test_a_listing_that_fails(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(file=b"x")
    store.listing_error = OriginUnavailable("mem:// is away")
    async with mounted(tmp_path, store) as filesystem:
        with pytest.raises(OriginUnavailable, match="is away"):
            await filesystem.lookup(ROOT_INODE, "file")
        store.listing_error = None
        inode = await inode_of(filesystem, "file")

        await trio.sleep(TTL_S + 1)
        store.listing_error = OriginUnavailable("mem:// is away")
        assert await inode_of(filesystem, "file") == inode
        assert await timeout_s(filesystem, "file") == pytest.approx(STALE_RETRY_S)
        assert "serving the last listing" in caplog.text

        store.listing_error = None
        store.put("new", b"y")
        assert await names(filesystem) == ["file"]
        await trio.sleep(STALE_RETRY_S + 1)
        assert await names(filesystem) == ["file", "new"]


async def test_a_bug_below_is_an_error_to_one_caller(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(file=b"x")
    store.listing_error = ZeroDivisionError("oops")
    async with mounted(tmp_path, store) as filesystem:
        with pytest.raises(OriginUnavailable, match="ZeroDivisionError"):
            await filesystem.lookup(ROOT_INODE, "file")
        assert "Traceback" in caplog.text
        store.listing_error = None
        assert await names(filesystem) == ["file"]


async def test_repositories_are_directories_and_fail_apart(tmp_path: Path, autojump_clock: MockClock) -> None:
    well, sick = Store("well", file=b"x"), Store("sick", file=b"y")
    sick.listing_error = OriginUnavailable("away")
    async with mounted(tmp_path, well, sick) as filesystem:
        assert await names(filesystem) == ["well", "sick"]
        assert await names(filesystem, await inode_of(filesystem, "well")) == ["file"]
        with pytest.raises(OriginUnavailable):
            await inode_of(filesystem, "sick/file")


async def test_a_stalled_repository_does_not_hold_up_another(tmp_path: Path, autojump_clock: MockClock) -> None:
    well, sick = Store("well", file=b"x"), Store("sick", file=b"y")
    sick.listing_gate = trio.Event()
    async with mounted(tmp_path, well, sick) as filesystem, trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(inode_of, filesystem, "sick/file")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            inode = await inode_of(filesystem, "well/file")
            assert await filesystem.read(await filesystem.open(inode), 0, 10) == b"x"
        nursery.cancel_scope.cancel()


# --- directories ---


async def test_an_open_directory_is_a_snapshot_without_what_is_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(a=b"1", b=b"2", c=b"3")
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.opendir(ROOT_INODE)
        _, entries = await filesystem.entries(handle, 0)
        assert next(entries)[:2] == (0, "a")
        del store.versions["b"]
        store.put("d", b"4")
        await trio.sleep(TTL_S + 1)
        assert await names(filesystem) == ["a", "c", "d"]
        directory, entries = await filesystem.entries(handle, 1)
        assert [(index, name) for index, name, _ in entries] == [(2, "c")]
        assert directory.inode == ROOT_INODE
        assert not list((await filesystem.entries(handle, 3))[1])


async def test_showing_entries_owes_the_kernel_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path, Store(a=b"1")) as filesystem:
        remembered = filesystem.tree.statistics().remembered
        await names(filesystem)
        assert filesystem.tree.statistics().remembered == remembered
        inode = await inode_of(filesystem, "a")
        assert filesystem.tree.statistics().remembered == remembered + 1
        filesystem.forget(inode, 1)
        assert filesystem.tree.statistics().remembered == remembered


async def test_keys_that_cannot_be_shown_are_logged_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with mounted(tmp_path, Store(a=b"1", a__b=b"2")) as filesystem:
        assert await names(filesystem) == ["a"]
        await trio.sleep(TTL_S + 1)
        assert await names(filesystem) == ["a"]
    assert caplog.text.count("mem:///a cannot be shown") == 1


# --- files ---


async def test_reads_end_at_the_end_of_the_file_and_nowhere_else(tmp_path: Path) -> None:
    body = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"tail"
    store = Store(file=body)
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "file"))
        for offset, size in (
            (0, 10),
            (BLOCK_BYTES - 5, 10),
            (len(body) - 4, 100),
            (len(body), 1),
            (1 << 40, 1),
            (0, 0),
        ):
            assert await filesystem.read(handle, offset, size) == body[offset : offset + size], (offset, size)
        assert await filesystem.read(handle, 0, len(body) + 1) == body
        asked = len(store.reads)
        assert await filesystem.read(handle, 0, len(body)) == body
        assert len(store.reads) == asked, "a hit asks nobody"
        assert filesystem.read_bytes > 2 * len(body)


async def test_an_empty_file_has_no_cache_files(tmp_path: Path) -> None:
    async with mounted(tmp_path, Store(empty=b"")) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "empty"))
        assert await filesystem.read(handle, 0, 4096) == b""
        filesystem.release(handle)
    assert list(tmp_path.rglob("*.data")) == []


async def test_what_cannot_be_opened(tmp_path: Path) -> None:
    store = Store(model__a=b"1")
    store.put("cold", b"frozen", archived="DEEP_ARCHIVE")
    async with mounted(tmp_path, store) as filesystem:
        with pytest.raises(IsADirectory):
            await filesystem.open(await inode_of(filesystem, "model"))
        with pytest.raises(ObjectArchived, match=r"mem:///cold.*DEEP_ARCHIVE") as caught:
            await filesystem.open(await inode_of(filesystem, "cold"))
        assert caught.value.errno == errno.EACCES
        assert filesystem.open_files == 0
        assert (await filesystem.getattr(await inode_of(filesystem, "cold"))).size_bytes == 6


async def test_a_version_that_was_gone_once_stays_so_for_that_handle(tmp_path: Path) -> None:
    """Otherwise a read(2) that the kernel splits could end short, and the next one go on."""
    body = bytes(2 * BLOCK_BYTES)
    store = Store(file=body)
    async with mounted(tmp_path, store) as filesystem:
        inode = await inode_of(filesystem, "file")
        handle = await filesystem.open(inode)
        assert await filesystem.read(handle, 0, 5) == body[:5]
        store.fill_error = VersionGone("replaced")
        with pytest.raises(VersionGone, match="replaced"):
            await filesystem.read(handle, BLOCK_BYTES, 5)
        store.fill_error = None
        with pytest.raises(VersionGone, match="was gone when it was read before"):
            await filesystem.read(handle, BLOCK_BYTES, 5)
        assert await filesystem.read(handle, 0, 5) == body[:5], "what is cached can be read"
        assert await filesystem.read(await filesystem.open(inode), BLOCK_BYTES, 5) == body[:5], "the same content again"


async def test_a_fills_error_is_the_readers_and_passes(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(file=b"bytes")
    error = OriginUnavailable("away")
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "file"))
        store.fill_error = error
        with pytest.raises(type(error)) as caught:
            await filesystem.read(handle, 0, 5)
        assert caught.value.errno == error.errno
        store.fill_error = None
        assert await filesystem.read(handle, 0, 5) == b"bytes"


async def test_a_read_that_nothing_comes_for_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(file=b"bytes")
    store.fill_gate = trio.Event()
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "file"))
        began = trio.current_time()
        with pytest.raises(ReadTimeout):
            await filesystem.read(handle, 0, 5)
        assert trio.current_time() - began == pytest.approx(READ_TIMEOUT_S)
        store.fill_gate.set()
        assert await filesystem.read(handle, 0, 5) == b"bytes"


async def test_a_replaced_object_is_another_inode_and_versions_never_mix(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    store = Store(file=b"old bytes")
    async with mounted(tmp_path, store) as filesystem:
        old = await inode_of(filesystem, "file")
        old_handle = await filesystem.open(old)
        store.put("file", b"new bytes, and more")
        assert await inode_of(filesystem, "file") == old, "the listing is fresh"
        await trio.sleep(TTL_S + 1)
        new = await inode_of(filesystem, "file")
        assert new != old
        new_handle = await filesystem.open(new)
        assert await filesystem.read(old_handle, 0, 100) == b"old bytes"
        assert await filesystem.read(new_handle, 0, 100) == b"new bytes, and more"
        assert (await filesystem.getattr(old)).size_bytes == 9

        filesystem.forget(old, 2)
        assert await filesystem.read(old_handle, 0, 3) == b"old", "an open handle keeps its inode"
        filesystem.release(old_handle)
        with pytest.raises(VersionGone):
            await filesystem.getattr(old)


async def test_restored_from_the_archive(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store()
    store.put("cold", b"frozen", archived="GLACIER")
    async with mounted(tmp_path, store) as filesystem:
        inode = await inode_of(filesystem, "cold")
        store.versions["cold"] = replace(store.versions["cold"], archived="")
        await trio.sleep(TTL_S + 1)
        assert await inode_of(filesystem, "cold") == inode, "the same bytes"
        assert await filesystem.read(await filesystem.open(inode), 0, 6) == b"frozen"


async def test_a_sequential_reader_is_read_ahead_for_and_a_random_one_is_not(tmp_path: Path) -> None:
    store = Store(file=bytes(40 * BLOCK_BYTES))
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "file"))
        for offset in (30, 3, 17, 9):
            await filesystem.read(handle, offset * BLOCK_BYTES, 4096)
        assert store.aheads == []
        for offset in range(3):
            await filesystem.read(handle, offset * BLOCK_BYTES, BLOCK_BYTES)
        assert store.aheads
        assert store.aheads[0].start >= 2 * BLOCK_BYTES


async def test_a_model_that_is_read_on_is_filled_whole_and_a_peek_at_its_header_is_not(tmp_path: Path) -> None:
    store = Store()
    store.put("model.safetensors", bytes(40 * BLOCK_BYTES))
    async with mounted(tmp_path, store) as filesystem:
        inode = await inode_of(filesystem, "model.safetensors")
        peek, handle = await filesystem.open(inode), await filesystem.open(inode)
        await filesystem.read(peek, 0, 2 * BLOCK_BYTES)
        assert store.fills == 0
        for offset in (7, 30, 12):
            await filesystem.read(handle, offset * BLOCK_BYTES, BLOCK_BYTES)
        assert store.fills == 1
        await filesystem.read(handle, 20 * BLOCK_BYTES, BLOCK_BYTES)
        assert store.fills == 1


async def test_who_reads_a_directory_file_by_file_finds_the_next_files_on_their_way(tmp_path: Path) -> None:
    store = Store()
    for index in range(100):
        store.put(f"d/{index:03}", bytes(5), archived="GLACIER" if index == 10 else "")
    async with mounted(tmp_path, store) as filesystem:
        for name in ("000", "001", "002"):
            assert await filesystem.read(await filesystem.open(await inode_of(filesystem, f"d/{name}")), 0, 5) == bytes(
                5
            )
        assert store.filled == []
        handle = await filesystem.open(await inode_of(filesystem, "d/003"))
        await filesystem.read(handle, 0, 5)
        assert store.filled == [f"d/{index:03}" for index in range(4, 16) if index != 10]
        await filesystem.read(handle, 0, 5)
        assert len(store.filled) == 11, "each once"


async def test_who_opens_whole_files_one_by_one_finds_the_next_ones_on_their_way_too(tmp_path: Path) -> None:
    """The kernel may read such a file without a word to the daemon."""
    store = Store()
    for index in range(20):
        store.put(f"d/{index:03}", bytes(5))
    async with mounted(tmp_path, store) as filesystem:
        for index in (1, 3, 2, 0):
            await filesystem.read(await filesystem.open(await inode_of(filesystem, f"d/{index:03}")), 0, 5)
        await filesystem._cache.settle()
    store.filled.clear()
    async with mounted(tmp_path, store) as filesystem:
        for index in range(4):
            assert store.filled == []
            await filesystem.open(await inode_of(filesystem, f"d/{index:03}"))
            await wait_all_tasks_blocked()
        assert store.filled[:2] == ["d/004", "d/005"]


async def test_files_that_are_open_and_asleep_are_on_their_way_too(tmp_path: Path) -> None:
    store = Store()
    for index in range(100):
        store.put(f"d/{index:03}", bytes(5))
    async with mounted(tmp_path, store) as filesystem:
        handles = [await filesystem.open(await inode_of(filesystem, f"d/{index:03}")) for index in range(100)]
        for handle in handles[:4]:
            await filesystem.read(handle, 0, 5)
        with trio.fail_after(30):
            while len(store.filled) < 12:
                await trio.lowlevel.checkpoint()
        assert store.filled == [f"d/{index:03}" for index in range(4, 16)]


async def test_a_small_file_that_is_no_entry_any_more_is_read_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    store = Store(a=b"a", b=b"b")
    async with mounted(tmp_path, store) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "a"))
        del store.versions["a"]
        await trio.sleep(TTL_S + 1)
        assert await names(filesystem) == ["b"]
        assert await filesystem.read(handle, 0, 1) == b"a"


async def test_handles_are_counted_and_idle_says_when_none_is_open(tmp_path: Path) -> None:
    async with mounted(tmp_path, Store(file=b"x")) as filesystem:
        assert filesystem.idle.is_set()
        inode = await inode_of(filesystem, "file")
        first, second = await filesystem.open(inode), await filesystem.open(inode)
        assert first != second
        assert (filesystem.open_files, filesystem.idle.is_set()) == (2, False)
        filesystem.release(first)
        assert not filesystem.idle.is_set()
        filesystem.release(first)
        assert not filesystem.idle.is_set(), "released twice counts once"
        filesystem.release(second)
        assert (filesystem.open_files, filesystem.idle.is_set()) == (0, True)


async def test_describe(tmp_path: Path) -> None:
    store = Store(model__a=b"abc")
    async with mounted(tmp_path, store) as filesystem:
        described = await filesystem.describer.describe(await filesystem.resolve("model/a"))
        assert described == {
            "url": "s3://bucket/model/a",
            "etag": store.versions["model/a"].validator,
            "size": "3",
            "cached_bytes": "0",
            "route": "origin",
        }
        handle = await filesystem.open(await inode_of(filesystem, "model/a"))
        await filesystem.read(handle, 0, 1)
        assert (await filesystem.describer.describe(await filesystem.resolve("/model//a")))["cached_bytes"] == "3"
        filesystem.release(handle)
        assert (await filesystem.describer.describe(await filesystem.resolve("model/a")))["cached_bytes"] == "3"
        assert await filesystem.describer.describe(await filesystem.resolve("model")) == {"url": "s3://bucket/model/"}
        root = await filesystem.getattr(ROOT_INODE)
        assert math.isfinite(root.attributes_timeout_s(trio.current_time()))


async def test_places_are_those_of_the_store_and_not_of_its_url(tmp_path: Path) -> None:
    store = Store(model__a=b"abc")
    identity = store.source.identity
    async with mounted(tmp_path, store) as filesystem:
        assert filesystem.describer.places(await filesystem.resolve("model/a")) == [Place(identity, "model/a")]
        assert filesystem.describer.places(await filesystem.resolve("model")) == [Place(identity, "model")]
        assert filesystem.describer.places(await filesystem.resolve("")) == [Place(identity)]


async def test_the_task_of_a_file(tmp_path: Path) -> None:
    store = Store(model__a=b"abc", model__empty=b"")
    told: list[ObjectVersion] = []

    async def task_id(version: ObjectVersion) -> str:
        told.append(version)
        if len(told) > 1:
            raise OriginUnavailable("no credentials today")
        return "f00d"

    async with mounted(tmp_path, store) as filesystem, trio.open_nursery() as nursery:
        assert await filesystem.describer.task_id(await filesystem.resolve("model/a")) == "", (
            "Dragonfly has no part in it"
        )
        backend = replace(store.source, task_id=task_id, route=lambda _: "proxy")
        through = Filesystem(filesystem.tree, {"": backend}, filesystem._cache, nursery)
        node = await through.resolve("model/a")
        assert (await through.describer.describe(node))["route"] == "proxy"
        assert await through.describer.task_id(node) == "f00d"
        assert told == [store.versions["model/a"]]
        assert await through.describer.task_id(node) == "", "who asks gets an answer all the same"
        for path in ("model", "model/empty", ""):
            assert await through.describer.task_id(await through.resolve(path)) == ""
        assert len(told) == 2


async def test_what_was_there_before_it_was_asked_for_is_counted(tmp_path: Path) -> None:
    body = bytes(3 * BLOCK_BYTES)
    left, right = Store("left", file=body), Store("right", file=body)
    async with mounted(tmp_path, left, right) as filesystem:
        handle = await filesystem.open(await inode_of(filesystem, "left/file"))
        for _ in range(3):
            await filesystem.read(handle, 0, BLOCK_BYTES)
            await wait_all_tasks_blocked()  # a reader has the first bytes before the cache does
        total = filesystem._backends["left"].models.total
        assert (total.read_bytes, total.cache_bytes) == (3 * BLOCK_BYTES, 2 * BLOCK_BYTES)
        assert filesystem._backends["right"].models.total.read_bytes == 0
        assert filesystem.read_bytes == 3 * BLOCK_BYTES


async def test_how_full_a_model_is(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(llm__a=bytes(2 * BLOCK_BYTES), llm__b=b"b")
    async with mounted(tmp_path, store) as filesystem:

        def full() -> tuple[int, int, int]:
            found = filesystem.fullness[""].measure(trio.current_time())[OTHER]
            return found.files, found.size_bytes, found.cached_bytes

        inode = await inode_of(filesystem, "llm/a")
        first, second = await filesystem.open(inode), await filesystem.open(inode)
        assert full() == (1, 2 * BLOCK_BYTES, 0)
        await trio.sleep(1)
        await filesystem.read(first, 0, BLOCK_BYTES)
        await wait_all_tasks_blocked()  # a reader has the first bytes before the cache does
        assert full() == (1, 2 * BLOCK_BYTES, BLOCK_BYTES)
        await trio.sleep(2)
        await filesystem.read(second, BLOCK_BYTES, BLOCK_BYTES)
        await wait_all_tasks_blocked()
        filesystem.release(first)
        filesystem.release(second)
        assert full() == (1, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES)
        assert filesystem.fullness[""].measure(trio.current_time())[OTHER].load_s == 3
        store.put("llm/a", b"another")
        await trio.sleep(TTL_S)
        await filesystem.resolve("llm/a")
        assert full() == (0, 0, 0)
