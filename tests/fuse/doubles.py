"""The file system below an engine, for tests: a real tree, and methods that fail or wait when a
test says so.

Lookup counts are the real tree's. `test_adapter.py` compares the methods' signatures with those of
the real file system.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import trio

from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.appearance import Appearance
from d7yfs.fuse.notices import Invalidator
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.stats.status import TreeStatus
from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import Absent, Directory, Expired, File, Found, Node
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.tree.listings import DATE_NS, collect, names_in

TTL_S = 60.0
NEGATIVE_TTL_S = 5.0
DEADLINE_S = 20.0
UNKNOWN = 4711
"""No inode, and no handle."""
APPEARANCE = Appearance(
    uid=11, gid=12, file_mode=0o440, dir_mode=0o550, xattr=True, is_executable=lambda key: key.endswith(".sh")
)


class FakeFilesystem:
    """One repository whose top directory holds `files` and `directories`.

    Each file has as many bytes as its name has letters.
    """

    def __init__(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        self.calls: list[tuple[object, ...]] = []
        """Each call's method and arguments."""
        self.failures: dict[str, BaseException] = {}
        """The exception that a method raises, by the method's name."""
        self.gates: dict[str, trio.Event] = {}
        """The event that a method waits for, by the method's name."""
        self.known: set[str] = set()
        """The questions that are answered at once: `lookup`, `read`, …"""
        self.whole_fd: int | None = None
        """The descriptor of every open file's data, where the kernel may read it by itself."""
        self.is_filling = False
        """True if every file is expected to be whole soon."""
        self.on_disk = False
        """True if all bytes of every file are on disk, whether they may yet prove wrong or not."""
        self.became_whole: Callable[[int], None] = lambda _inode: None
        self.ungranted = False
        """True if the credentials have to be granted every file before the kernel reads it."""
        self.answering: Callable[[], None] = lambda: None
        """Runs just before a lookup or readdir has its answer."""
        self.unseen: list[tuple[int, str, Unseen]] = []
        """Index, name and kind of the entries that an open directory shows and the tree does not know."""
        self.revalidated: frozenset[str] | None = None
        self.description = {"url": "mem://b", "etag": '"e"'}
        self.task = "7a5b"
        self.tree = _Tree(self)
        self.describer = self
        """Part of the same double."""
        self.show(files, directories)
        self._numbers = itertools.count(1)
        self._directories: dict[int, tuple[int, tuple[str, ...]]] = {}

    def show(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """Make these the top directory's entries, listed now."""
        objects = tuple(ObjectVersion(name, len(name), '"e"', DATE_NS) for name in files)
        page = ListingPage(objects, tuple(f"{name}/" for name in directories), "", DATE_NS)
        now = trio.current_time()
        self.tree.apply(ROOT_INODE, collect("", [page]), now, asked_at=now)

    def node(self, name: str) -> File | Directory:
        found = self.tree.resolve(name)
        assert found is not None, name
        return found

    def begin(self, method: str, *arguments: object) -> None:
        self.calls.append((method, *arguments))
        if method in self.failures:
            raise self.failures[method]

    async def begin_waiting(self, method: str, *arguments: object) -> None:
        await trio.lowlevel.checkpoint()
        if method in self.gates:
            await self.gates[method].wait()
        self.begin(method, *arguments)

    def _knows(self, method: str, *arguments: object) -> bool:
        if method in self.known:
            self.begin(f"{method}_at_once", *arguments)
        return method in self.known

    # --- what the engines call ---

    async def lookup(self, parent: int, name: str) -> Found | Absent:
        await self.begin_waiting("lookup", parent, name)
        answer = self.tree.lookup(parent, name, trio.current_time())
        assert isinstance(answer, Found | Absent), "the test let the listing expire"
        if isinstance(answer, Found):
            self.tree.remember(answer.node.inode)
        self.answering()
        return answer

    def lookup_at_once(self, parent: int, name: str) -> Found | Absent | None:
        if not self._knows("lookup", parent, name):
            return None
        answer = self.tree.lookup(parent, name, trio.current_time())
        if isinstance(answer, Expired):
            return None
        if isinstance(answer, Found):
            self.tree.remember(answer.node.inode)
        return answer

    async def getattr(self, inode: int) -> Node:
        await self.begin_waiting("getattr", inode)
        return self.tree.get(inode)

    def getattr_at_once(self, inode: int) -> Node | None:
        return self.tree.get(inode) if self._knows("getattr", inode) else None

    def forget(self, inode: int, count: int) -> None:
        if inode == UNKNOWN:
            raise KeyError(inode)
        self.begin("forget", inode, count)
        self.tree.forget(inode, count)

    async def opendir(self, inode: int) -> int:
        await self.begin_waiting("opendir", inode)
        return self._open_directory(inode)

    def opendir_at_once(self, inode: int) -> int | None:
        return self._open_directory(inode) if self._knows("opendir", inode) else None

    def _open_directory(self, inode: int) -> int:
        handle = next(self._numbers)
        self._directories[handle] = (inode, names_in(self.tree, inode))
        return handle

    def inode_of_handle(self, handle: int) -> int:
        return self._directories[handle][0]

    def names_of_handle(self, handle: int) -> int:
        return len(self._directories[handle][1])

    async def entries(self, handle: int, start: int) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]]:
        await self.begin_waiting("entries", handle, start)
        return self._entries(handle, start)

    def entries_at_once(
        self, handle: int, start: int
    ) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]] | None:
        return self._entries(handle, start) if self._knows("entries", handle, start) else None

    def _entries(self, handle: int, start: int) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]]:
        inode, names = self._directories[handle]
        known = self.tree.entries(inode, names, start)
        self.answering()
        return self.tree.directory(inode), itertools.chain(known, (each for each in self.unseen if each[0] >= start))

    def revalidates(self, directory: Directory) -> Callable[[str], bool] | None:
        return self.revalidated.__contains__ if self.revalidated is not None else None

    def releasedir(self, handle: int) -> None:
        self.begin("releasedir", handle)
        del self._directories[handle]

    async def open(self, inode: int) -> int:
        await self.begin_waiting("open", inode)
        return next(self._numbers)

    def open_at_once(self, inode: int) -> int | None:
        return next(self._numbers) if self._knows("open", inode) else None

    def awaits_grant(self, handle: int, *, only_whole: bool = False) -> bool:
        return self.ungranted

    async def claim(self, handle: int) -> None:
        await self.begin_waiting("claim", handle)
        self.ungranted = False

    def is_soon_whole(self, handle: int) -> bool:
        return self.is_filling and self.whole_fd is None

    async def complete(self, handle: int) -> None:
        await self.begin_waiting("complete", handle)

    def is_whole(self, handle: int) -> bool:
        return self.on_disk

    def whole_file(self, handle: int) -> int | None:
        return None if self.ungranted else self.whole_fd

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | bytearray:
        await self.begin_waiting("read", handle, offset, size_bytes)
        return bytes(size_bytes)

    def read_at_once(self, handle: int, offset: int, into: memoryview) -> int | None:
        if not self._knows("read", handle, offset, len(into)):
            return None
        into[:] = b"x" * len(into)
        return len(into)

    def release(self, handle: int) -> None:
        self.begin("release", handle)

    async def describe(self, node: Node) -> dict[str, str]:
        await self.begin_waiting("describe", node.inode)
        return self.description

    async def task_id(self, node: Node) -> str:
        await self.begin_waiting("task_id", node.inode)
        return self.task


class _Tree(Tree):
    """The real tree, with a method that fails as the file system's do."""

    def __init__(self, filesystem: FakeFilesystem) -> None:
        super().__init__(
            [TreeRoot("", "")],
            metadata_ttl_s=TTL_S,
            negative_ttl_s=NEGATIVE_TTL_S,
            created_ns=1_600_000_000_000_000_000,
        )
        self._filesystem = filesystem

    def statistics(self) -> TreeStatus:
        self._filesystem.begin("statistics")
        return super().statistics()


def adapter_of(
    filesystem: FakeFilesystem,
    invalidator: Invalidator | None = None,
    *,
    appearance: Appearance = APPEARANCE,
    deadline_s: float = DEADLINE_S,
) -> Adapter:
    """The real adapter over a fake file system."""
    return Adapter(
        cast(Filesystem, filesystem), invalidator or Invalidator(tell_nobody), appearance, deadline_s=deadline_s
    )


def tell_nobody(directory: int, names: Sequence[bytes]) -> int:
    raise AssertionError("nobody runs the invalidator")
