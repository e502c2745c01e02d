"""The files of one mount that are open: handles, each on one version, and the reads through them.

A read goes on to the cache, and tells it what to fetch ahead: by the handle's window, the version's
density, and the neighbours of a small file. What can be answered without waiting has a method of its
own (`…_at_once`), which returns None where it would wait.

Base of `Filesystem`. Trio thread only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.room import Room
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied, D7yfsError, IsADirectory, ObjectArchived, VersionGone
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.density import Density
from d7yfs.fs.neighbours import Neighbours
from d7yfs.fs.patience import Patience
from d7yfs.fs.readahead import SMALL_FILE_BYTES, Window
from d7yfs.fs.rights import Rights
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.stats.load_times import Fullness
from d7yfs.stats.repository_status import ModelStatus
from d7yfs.tree.nodes import Directory, File
from d7yfs.tree.tree import Tree


@dataclass(slots=True)
class _Handle:
    node: File
    cached: CachedVersion | None
    window: Window
    model: ModelStatus
    rights: Rights | None
    density: Density | None
    """The density of the version's reads, which its handles share; None of an empty file."""
    is_gone: bool = False
    """True once a read found the version gone. It stays so, even if the same content is uploaded
    again: of a read(2) that the kernel splits, one part could end short and the next one go on."""
    epoch: object = None
    """The `Rights.epoch` in which the credentials were seen to be granted the version."""


class OpenFiles:
    """The open files over the repositories of `backends`; `nursery` runs what is fetched ahead. A file is
    waited for when it is opened, if it is expected to be whole within `open_wait_s`.
    """

    def __init__(
        self,
        tree: Tree,
        backends: Mapping[str, RepositoryBackend],
        cache: Cache,
        nursery: trio.Nursery,
        open_wait_s: float = 0.0,
    ) -> None:
        self.tree = tree
        self._backends = backends
        self._cache = cache
        self._now = trio.lowlevel.current_clock().current_time
        """`trio.current_time`, in a quarter of the time."""
        self._numbers = itertools.count(1)
        self._handles: dict[int, _Handle] = {}
        self._patience = {name: Patience(open_wait_s) for name in backends}
        self._densities: WeakKeyDictionary[CachedVersion, Density] = WeakKeyDictionary()
        self._neighbours = Neighbours(tree, backends, cache, nursery)
        self.fullness = {
            name: Fullness(each.models, partial(cache.open_bytes, each.identity), partial(cache.look, each.identity))
            for name, each in backends.items()
        }
        self.became_whole: Callable[[int], None] = lambda _inode: None
        """Told of each file that becomes whole in the cache after it was opened."""
        self.version_gone: Callable[[str, ObjectVersion], None] = lambda _repository, _version: None
        """Told of each version that a read found gone, and of its repository."""
        self.idle = trio.Event()
        """An event that is set while no file is open; replaced when one is opened."""
        self.idle.set()

    async def open(self, inode: int) -> int:
        """A handle on the version of `inode`. Raises IsADirectory, ObjectArchived, VersionGone."""
        node = self._openable(inode)
        self.tree.remember(inode)
        try:
            cached = await self._open(node)
        except BaseException:
            self.tree.forget(inode)
            raise
        return self._make_handle(node, cached)

    def open_at_once(self, inode: int) -> int | None:
        """`open`, if it waits for nothing."""
        node = self._openable(inode)
        backend = self._backends[node.repository]
        cached = None
        if node.size_bytes:
            cached = self._cache.open_at_once(
                backend.identity, node.version, backend.new_filler, blank=backend.fills_blank
            )
            if cached is None:
                return None
            if cached.is_asleep or (backend.admit is not None and cached.proof.value is not None):
                cached.drop()
                return None
        self.tree.remember(inode)
        return self._make_handle(node, cached)

    def number_from(self, first: int) -> None:
        """Give out handles from `first` on; an earlier process gave out lower ones."""
        self._numbers = itertools.count(first)

    def has_file(self, handle: int) -> bool:
        """True if this process knows the handle of a file."""
        return handle in self._handles

    async def adopt(self, handle: int, inode: int) -> None:
        """Make `handle`, which an earlier process gave out, a handle on the version of `inode`.
        Raises as `open`."""
        number = await self.open(inode)
        if handle in self._handles:  # another read was faster
            self.release(number)
        else:
            self._handles[handle] = self._handles.pop(number)

    def _openable(self, inode: int) -> File:
        """The file of a number. Raises IsADirectory, ObjectArchived, VersionGone."""
        node = self.tree.get(inode)
        if isinstance(node, Directory):
            raise IsADirectory(f"inode {inode} is a directory")
        if node.version.archived:
            raise ObjectArchived(
                f"{self._name(node)}: lies in the archive storage class {node.version.archived}",
                hint="restore it at the provider, then open it again",
            )
        return node

    def _make_handle(self, node: File, cached: CachedVersion | None) -> int:
        density = None
        if cached is not None and (density := self._densities.get(cached)) is None:
            density = self._densities[cached] = Density(node.version.key, node.size_bytes)
        handle = next(self._numbers)
        backend = self._backends[node.repository]
        model = backend.models.of(node.version.key)
        model.opens += 1
        self._handles[handle] = _Handle(node, cached, Window(node.size_bytes), model, backend.rights, density)
        if cached is not None:
            self._note_open(node, cached)
            if node.size_bytes <= SMALL_FILE_BYTES and cached.is_whole:
                self._neighbours.fetch_ahead(node)  # the kernel may read it without a word to us
        if self.idle.is_set():
            self.idle = trio.Event()
        return handle

    async def _open(self, node: File) -> CachedVersion | None:
        """The file's version, opened for the caller; None if it is empty."""
        if not node.size_bytes:
            return None
        backend = self._backends[node.repository]
        cached = await self._cache.open(backend.identity, node.version, backend.new_filler)
        try:
            if cached.is_asleep:
                await cached.wake()
            if backend.admit is not None:
                await backend.admit(cached)
        except BaseException:
            cached.drop()
            raise
        return cached

    def _note_open(self, node: File, cached: CachedVersion) -> None:
        fullness, version = self.fullness[node.repository], node.version
        if fullness.opened(version, trio.current_time(), whole=cached.is_whole):
            cached.call_when_whole(lambda: fullness.whole(version, trio.current_time()))
            cached.call_when_whole(lambda: self.became_whole(node.inode))

    def _drop(self, node: File, cached: CachedVersion) -> None:
        self.fullness[node.repository].closed(node.version, trio.current_time(), cached.cached_bytes)
        cached.drop()

    @asynccontextmanager
    async def held(self, node: File) -> AsyncIterator[CachedVersion | None]:
        """A file's version, open meanwhile; None when it is empty. Raises ObjectArchived."""
        cached = await self._open(self._openable(node.inode))
        if cached is None:
            yield None
            return
        self._note_open(node, cached)
        try:
            yield cached
        finally:
            self._drop(node, cached)

    @property
    def room(self) -> Room:
        """The room of the cache."""
        return self._cache.room

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | bytearray:
        """Exactly the bytes `[offset, offset + size_bytes)`, up to the end of the file.

        Raises VersionGone, AccessDenied, OriginUnavailable, ReadTimeout, …; never returns fewer
        bytes instead.
        """
        opened = self._handles[handle]
        wanted = ByteRange(offset, offset + size_bytes).clip(opened.node.size_bytes)
        if not wanted:
            return b""
        cached, density = opened.cached, opened.density
        assert cached is not None
        assert density is not None
        if cached.is_asleep:
            await cached.wake()
        if not wanted.start and opened.node.size_bytes <= SMALL_FILE_BYTES:
            self._neighbours.fetch_ahead(opened.node)
        ahead = opened.window.plan(wanted.start, wanted.size, lambda: cached.window_bytes)
        if density.touch(wanted.start, wanted.size):
            cached.fill()
        was_there = cached.has(wanted)
        rights = opened.rights
        try:
            if opened.is_gone and not was_there:
                raise VersionGone(f"{self._name(opened.node)}: this version was gone when it was read before")
            data = await cached.read(wanted, ahead)
            # Afterwards, as bytes that came from the store have brought the grant with them.
            if rights is not None and opened.epoch is not rights.epoch:
                opened.epoch = await rights.claim(cached)
        except D7yfsError as error:
            if isinstance(error, VersionGone):
                opened.is_gone = True
                self.version_gone(opened.node.repository, opened.node.version)
            if rights is not None and isinstance(error, AccessDenied):
                rights.deny(cached)
            error.about(object=self._name(opened.node), repository=opened.node.repository)
            self._backends[opened.node.repository].failures.note_read(error, time.time())
            raise
        assert len(data) == wanted.size
        opened.model.read_bytes += len(data)
        opened.model.cache_bytes += len(data) if was_there else 0
        return data

    def read_at_once(self, handle: int, offset: int, into: memoryview) -> int | None:
        """Fill `into` with the bytes from `offset` on, as `read`, if they can be had without
        waiting; returns how many it has up to the end of the file. None, too, for the handle of an
        earlier process.
        """
        opened = self._handles.get(handle)
        if opened is None:
            return None
        node, cached, density, rights = opened.node, opened.cached, opened.density, opened.rights
        size_bytes = min(len(into), node.size_bytes - offset)
        if size_bytes <= 0:
            return 0
        if cached is None or density is None or (rights is not None and opened.epoch is not rights.epoch):
            return None
        if not cached.read_at_once(offset, into[:size_bytes]):
            return None
        if not offset and node.size_bytes <= SMALL_FILE_BYTES:
            self._neighbours.fetch_ahead(node)
        if not cached.is_complete:
            if ahead := opened.window.plan(offset, size_bytes, lambda: cached.window_bytes):
                cached.prefetch(ahead)
            if density.touch(offset, size_bytes):
                cached.fill()
        opened.model.read_bytes += size_bytes
        opened.model.cache_bytes += size_bytes
        return size_bytes

    def whole_file(self, handle: int) -> int | None:
        """The descriptor of a file with all bytes of an open version, for the kernel to read by
        itself; None where there is none, or its credentials are not seen to be granted it.
        """
        opened = self._handles.get(handle)
        return (
            None if opened is None or opened.cached is None or self.awaits_grant(handle) else opened.cached.whole_file
        )

    def is_soon_whole(self, handle: int) -> bool:
        """True if it is worth waiting until an open version is whole, compared and on disk."""
        opened = self._handles[handle]
        cached, size_bytes = opened.cached, opened.node.size_bytes
        patience = self._patience[opened.node.repository]
        if not patience.bound_s or cached is None or size_bytes <= SMALL_FILE_BYTES:
            return False
        if cached.whole_file is not None or not cached.keeps:
            return False
        backend = self._backends[opened.node.repository]
        return patience.is_worth_it(backend.expected_s(size_bytes - cached.cached_bytes), trio.current_time())

    async def complete(self, handle: int) -> None:
        """Have an open version filled, and wait for that as long as the patience allows. A failure is
        left to its readers."""
        opened = self._handles[handle]
        cached, patience = opened.cached, self._patience[opened.node.repository]
        assert cached is not None
        came = False
        with trio.move_on_after(patience.bound_s):
            cached.fill()  # it goes on if this is too short
            with suppress(D7yfsError):
                await cached.fill_whole()
                await cached.compared()
                came = True
        if not came:
            patience.disappoint(trio.current_time())

    def is_whole(self, handle: int) -> bool:
        """True if all bytes of an open version are on disk, to be compared with the store's or not."""
        opened = self._handles.get(handle)
        return opened is not None and opened.cached is not None and opened.cached.is_whole

    def awaits_grant(self, handle: int, *, only_whole: bool = False) -> bool:
        """True if the credentials have to be granted an open version before it is read; with
        `only_whole` only if it is whole.
        """
        opened = self._handles[handle]
        rights, cached = opened.rights, opened.cached
        if rights is None or cached is None or opened.epoch is rights.epoch:
            return False
        if only_whole and cached.whole_file is None:
            return False
        if (granted := rights.claim_at_once(cached)) is not None:
            opened.epoch = granted
        return granted is None

    async def claim(self, handle: int) -> None:
        """Have the store grant an open version to its credentials. Raises as `Rights.claim`."""
        opened = self._handles[handle]
        assert opened.rights is not None
        assert opened.cached is not None
        try:
            opened.epoch = await opened.rights.claim(opened.cached)
        except D7yfsError as error:
            error.about(object=self._name(opened.node), repository=opened.node.repository)
            raise

    def release(self, handle: int) -> None:
        opened = self._handles.pop(handle, None)
        if opened is None:
            return
        if opened.cached is not None:
            self._drop(opened.node, opened.cached)
        self.tree.forget(opened.node.inode)
        if not self._handles:
            self.idle.set()

    @property
    def read_bytes(self) -> int:
        """The bytes that readers were given since start."""
        return sum(backend.models.total.read_bytes for backend in self._backends.values())

    @property
    def open_inodes(self) -> set[int]:
        """The inodes of the files that are open."""
        return {handle.node.inode for handle in self._handles.values()}

    def inode_of_file(self, handle: int) -> int:
        """The inode of an open file."""
        return self._handles[handle].node.inode

    def _name(self, node: File) -> str:
        return f"{self._backends[node.repository].url}/{node.version.key}"

    @property
    def open_files(self) -> int:
        return len(self._handles)
