"""The file system in plain values: lookup, attributes, directories, open, read. No FUSE binding, no provider.

Joins the inode table (`tree`), the readahead windows and the cache. A directory is listed by its repository's `Source`, single flight, in
a task of its own, so that a reader who gives up takes nothing from those who wait for the same listing.

Called by the FUSE adapter and by `control`; all methods belong to the trio thread. Failures are `D7yfsError`s with their errno.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.filler import NewFiller
from d7yfs.cache.version import CachedVersion
from d7yfs.density import Density
from d7yfs.errors import D7yfsError, IsADirectory, NotFound, ObjectArchived, OriginUnavailable
from d7yfs.inodes import Directory, File, Node
from d7yfs.listing import DirectoryListing
from d7yfs.models import Model, Models
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.readahead import Window
from d7yfs.tree import ROOT_INODE, Absent, Expired, Found, Tree
from d7yfs.walk import SMALL_FILE_BYTES, Walk

log = logging.getLogger(__name__)

STALE_RETRY_S = 5.0
"""A listing that failed is tried again after this time; until then the last one is served."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the file system needs of one repository."""

    url: str
    """How people name its bucket, without secrets."""
    identity: str
    """Part of every cache key."""
    list_directory: Callable[[str], Awaitable[DirectoryListing]]
    """All entries under a prefix. Raises D7yfsError."""
    new_filler: NewFiller
    route: Callable[[ObjectVersion], str] = lambda _: "origin"
    """In a word, by which way a version came, or would come."""
    task_id: Callable[[ObjectVersion], Awaitable[str]] | None = None
    """The id of Dragonfly's task for a version, empty where it has none. None: Dragonfly has no part at all. Raises D7yfsError."""
    models: Models = field(default_factory=Models)
    """Where what readers of each model were given is counted."""


@dataclass(slots=True)
class Served:
    """What readers of one repository were given since start, and whether it can be listed."""

    read_bytes: int = 0
    cache_bytes: int = 0
    """Of these, what was there before they asked, read ahead included."""
    unlisted_since: float | None = None
    """Since when each listing has failed (trio's clock); None while they succeed."""


@dataclass(slots=True)
class _Handle:
    node: File
    cached: CachedVersion | None
    window: Window
    model: Model


@dataclass(slots=True)
class _DirectoryHandle:
    inode: int
    names: tuple[str, ...]
    opened_at: float


@dataclass(slots=True)
class _Listing:
    """A listing under way."""

    asked_at: float
    done: trio.Event = field(default_factory=trio.Event)
    error: D7yfsError | None = None


class Filesystem:
    """One mount's tree over its repositories, by name. `nursery` runs listings; closing it cancels them."""

    def __init__(self, tree: Tree, sources: Mapping[str, Source], cache: Cache, nursery: trio.Nursery) -> None:
        self.tree = tree
        self._sources = sources
        self._cache = cache
        self._nursery = nursery
        self._listings: dict[int, _Listing] = {}
        self._numbers = itertools.count(1)
        self._handles: dict[int, _Handle] = {}
        self._directory_handles: dict[int, _DirectoryHandle] = {}
        self._densities: WeakKeyDictionary[CachedVersion, Density] = WeakKeyDictionary()
        self._walks: WeakKeyDictionary[Directory, tuple[dict[str, Node], Walk]] = WeakKeyDictionary()
        """By directory, with the children that the walk is about: another listing has others."""
        self.served = {name: Served() for name in sources}
        self.idle = trio.Event()
        """Set while no file is open; replaced when one is opened."""
        self.idle.set()

    # --- names and attributes ---

    async def lookup(self, parent: int, name: str) -> Found | Absent:
        """The entry `name`; when it exists the caller tells the kernel of it and owes a `forget`."""
        answer = await self._ask(parent, name, trio.current_time())
        if isinstance(answer, Found):
            self.tree.remember(answer.node.inode)
        return answer

    async def _ask(self, parent: int, name: str, asked_at: float) -> Found | Absent:
        while True:
            answer = self.tree.lookup(parent, name, trio.current_time(), asked_at=asked_at)
            if not isinstance(answer, Expired):
                return answer
            await self._refresh(answer.directory)

    async def getattr(self, inode: int) -> Node:
        """What an inode stands for; the attributes of a directory that was listed rest on a listing that lives."""
        node = self.tree.get(inode)
        if isinstance(node, Directory) and node.children is not None and not node.fresh(trio.current_time()):
            await self._refresh(node)
        return self.tree.get(inode)

    def forget(self, inode: int, count: int) -> None:
        """The kernel gives back `count` lookups."""
        self.tree.forget(inode, count)

    async def resolve(self, path: str) -> Node:
        """The node at `path`, relative to the mount. Raises NotFound, NotADirectory."""
        asked_at = trio.current_time()
        node = self.tree.get(ROOT_INODE)
        for name in filter(None, path.split("/")):
            answer = await self._ask(node.inode, name, asked_at)
            if isinstance(answer, Absent):
                raise NotFound(f"{path}: no such file or directory")
            node = answer.node
        return node

    async def urls(self, path: str) -> list[str]:
        """Where what is at `path` lies in its store; of the root above repositories, where each of them does. Raises as `resolve`."""
        node = await self.resolve(path)
        nodes = [node]
        if isinstance(node, Directory) and node.repository is None:
            nodes = [*(node.children or {}).values()]
        return [self.describe(each)["url"] for each in nodes]

    # --- directories ---

    async def opendir(self, inode: int) -> int:
        """A handle on the names that the directory has now."""
        asked_at = trio.current_time()
        while not self.tree.listed(inode, asked_at):
            await self._refresh(self.tree.directory(inode))
        handle = next(self._numbers)
        self._directory_handles[handle] = _DirectoryHandle(inode, self.tree.children(inode), asked_at)
        return handle

    async def entries(self, handle: int, start: int) -> tuple[Directory, Iterator[tuple[int, str, Node]]]:
        """An open directory and what it still has of the names from index `start` on, each with its index.

        For use before anything else is awaited. Unlike `lookup` it does not remember: the adapter does, as far as the
        kernel has room for the entries.
        """
        opened = self._directory_handles[handle]
        while not self.tree.listed(opened.inode, opened.opened_at):
            await self._refresh(self.tree.directory(opened.inode))
        return self.tree.directory(opened.inode), self.tree.entries(opened.inode, opened.names, start)

    async def children(self, directory: Directory) -> list[tuple[str, Node]]:
        """The names in a directory now, with what they stand for. What is still wanted of it later must be remembered before awaiting."""
        handle = await self.opendir(directory.inode)
        try:
            _, entries = await self.entries(handle, 0)
            return [(name, node) for _, name, node in entries]
        finally:
            self.releasedir(handle)

    def releasedir(self, handle: int) -> None:
        self._directory_handles.pop(handle, None)

    async def _refresh(self, directory: Directory) -> None:
        """Wait for a listing of `directory` asked for now or under way. Raises its error when nothing older can be served."""
        listing = self._listings.get(directory.inode)
        if listing is None:
            listing = self._listings[directory.inode] = _Listing(trio.current_time())
            self._nursery.start_soon(self._list, directory, listing)
        await listing.done.wait()
        if listing.error is not None:
            raise listing.error

    async def _list(self, directory: Directory, listing: _Listing) -> None:
        assert directory.repository is not None
        source = self._sources[directory.repository]
        try:
            found = await source.list_directory(directory.prefix)
            self.served[directory.repository].unlisted_since = None
            changes = self.tree.apply(directory.inode, found, trio.current_time(), asked_at=listing.asked_at)
            for hidden in changes.hidden:
                log.warning("%s/%s cannot be shown: %s", source.url, hidden.key, hidden.reason)
        except D7yfsError as error:
            self._serve_stale(directory, source, listing, error)
        except Exception as error:
            log.exception("listing %s/%s failed unexpectedly", source.url, directory.prefix)
            failure = OriginUnavailable(f"listing {source.url}/{directory.prefix} failed: {type(error).__name__}")
            self._serve_stale(directory, source, listing, failure)
        finally:
            del self._listings[directory.inode]
            listing.done.set()

    def _serve_stale(self, directory: Directory, source: Source, listing: _Listing, error: D7yfsError) -> None:
        assert directory.repository is not None
        served = self.served[directory.repository]
        if served.unlisted_since is None and not isinstance(error, NotFound):
            served.unlisted_since = trio.current_time()
        try:
            if self.tree.extend_stale(directory.inode, trio.current_time(), STALE_RETRY_S):
                log.warning("%s; serving the last listing of %s/%s", error.message, source.url, directory.prefix)
                return
        except D7yfsError:
            pass  # the directory itself is gone: the listing's error says more
        listing.error = error

    # --- files ---

    def open(self, inode: int) -> int:
        """A handle on the version that `inode` is. Raises IsADirectory, ObjectArchived, VersionGone."""
        node = self.tree.get(inode)
        if isinstance(node, Directory):
            raise IsADirectory(f"inode {inode} is a directory")
        cached = self._open(node)
        if cached is not None and cached not in self._densities:
            self._densities[cached] = Density(node.version.key, node.size_bytes)
        self.tree.remember(inode)
        handle = next(self._numbers)
        model = self._sources[node.repository].models.of(node.version.key)
        model.opens += 1
        self._handles[handle] = _Handle(node, cached, Window(node.size_bytes), model)
        if self.idle.is_set():
            self.idle = trio.Event()
        return handle

    def _open(self, node: File) -> CachedVersion | None:
        """Its version, held for the caller; None when it is empty. Raises ObjectArchived."""
        source = self._sources[node.repository]
        if node.version.archived:
            raise ObjectArchived(
                f"{source.url}/{node.version.key}: lies in the archive storage class {node.version.archived}",
                hint="restore it at the provider, then open it again",
            )
        return self._cache.open(source.identity, node.version, source.new_filler) if node.size_bytes else None

    async def fill(self, node: File) -> None:
        """Have all of a file brought into the cache, behind whatever readers wait for; returns when it is there.

        Raises ObjectArchived, CacheFull, and what `read` does.
        """
        cached = self._open(node)
        if cached is not None:
            try:
                await cached.fill_whole()
            finally:
                cached.drop()

    def cached_bytes(self, node: File) -> int:
        """How much of a file is in the cache."""
        return self._cache.cached_bytes(self._sources[node.repository].identity, node.version)

    @property
    def keepable_bytes(self) -> int:
        """What the cache can take, one file after the other, without evicting the first of them."""
        return self._cache.keepable_bytes

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | bytearray:
        """Exactly the bytes `[offset, offset + size_bytes)`, less only what lies behind the end of the file.

        Raises VersionGone, AccessDenied, OriginUnavailable, ReadTimeout, …; never returns fewer bytes for want of them.
        """
        opened = self._handles[handle]
        wanted = ByteRange(offset, offset + size_bytes).clip(opened.node.size_bytes)
        if not wanted:
            return b""
        cached = opened.cached
        assert cached is not None
        if not wanted.start and opened.node.size_bytes <= SMALL_FILE_BYTES:
            self._fetch_neighbours(opened.node)
        ahead = opened.window.plan(wanted.start, wanted.size, lambda: cached.window_bytes)
        if self._densities[cached].touch(wanted):
            cached.fill()
        was_there = cached.has(wanted)
        data = await cached.read(wanted, ahead)
        assert len(data) == wanted.size
        served = self.served[opened.node.repository]
        cache_bytes = len(data) if was_there else 0
        served.read_bytes += len(data)
        served.cache_bytes += cache_bytes
        opened.model.read_bytes += len(data)
        opened.model.cache_bytes += cache_bytes
        return data

    def _fetch_neighbours(self, node: File) -> None:
        """Have the small files fetched that whoever reads this one will read next, if a directory is being read file by file."""
        walk = self._walk(node)
        for each in walk.plan(node.inode) if walk else ():
            if not each.version.archived:
                source = self._sources[each.repository]
                cached = self._cache.open(source.identity, each.version, source.new_filler)
                cached.fill()
                cached.drop()

    def _walk(self, node: File) -> Walk | None:
        """None while the directory's entries are not known."""
        directory = self.tree.parent(node)
        if directory is None or directory.children is None:
            return None
        children, walk = self._walks.get(directory, (None, None))
        if walk is None or children is not directory.children:
            walk = Walk(directory.children.values())
            self._walks[directory] = (directory.children, walk)
        return walk

    def release(self, handle: int) -> None:
        opened = self._handles.pop(handle, None)
        if opened is None:
            return
        if opened.cached is not None:
            opened.cached.drop()
        self.tree.forget(opened.node.inode)
        if not self._handles:
            self.idle.set()

    @property
    def read_bytes(self) -> int:
        """What readers were given since start."""
        return sum(served.read_bytes for served in self.served.values())

    @property
    def open_files(self) -> int:
        return len(self._handles)

    def describe(self, node: Node) -> dict[str, str]:
        """What d7yfs knows of a file beyond stat(2), without secrets: for `d7yfs stat` and extended attributes."""
        if isinstance(node, Directory):
            source = self._sources.get(node.repository) if node.repository is not None else None
            return {"url": f"{source.url}/{node.prefix}"} if source else {}
        source, version = self._sources[node.repository], node.version
        described = {
            "url": f"{source.url}/{version.key}",
            "etag": version.validator,
            "size": str(version.size_bytes),
            "cached_bytes": str(self.cached_bytes(node)),
            "route": source.route(version),
        }
        return described | _optional(version)

    async def task_id(self, node: Node) -> str:
        """The id of Dragonfly's task for a file, by which dfdaemon's log can be searched; empty where it has none or it cannot be told."""
        if isinstance(node, Directory) or not node.size_bytes:
            return ""
        identify = self._sources[node.repository].task_id
        if identify is None:
            return ""
        try:
            return await identify(node.version)
        except D7yfsError as error:
            log.info("which task %s is cannot be told: %s", node.version.key, error)
            return ""


def _optional(version: ObjectVersion) -> dict[str, str]:
    fields = {"version_id": version.version_id, "archived": version.archived}
    return {name: value for name, value in fields.items() if value}
