"""The file system in plain values: lookup, attributes, directories, open, read. No FUSE binding, no provider.

Joins the tree, what fills it (one `Lister` per repository), the readahead windows and the cache.

Called by the FUSE adapter and by `control_socket`; all methods belong to the trio thread. Failures are `D7yfsError`s with their errno.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.filler import NewFiller
from d7yfs.cache.version import CachedVersion
from d7yfs.config.place import Place
from d7yfs.errors import CacheStalled, D7yfsError, IsADirectory, NotFound, ObjectArchived, VersionGone
from d7yfs.fs.density import Density
from d7yfs.fs.readahead import Window
from d7yfs.fs.walk import SMALL_FILE_BYTES, Walk
from d7yfs.logs import fields_of
from d7yfs.objects import ByteRange, ObjectVersion, StoreIdentity
from d7yfs.stats.load_times import Fullness
from d7yfs.stats.models import Model, Models
from d7yfs.tree.answers import Absent, Changes, Expired, Found
from d7yfs.tree.huge_directory import DirectoryStream, Page, Unseen
from d7yfs.tree.lister import LIMIT, Lister
from d7yfs.tree.nodes import Directory, File, Node
from d7yfs.tree.source import Listings, Mode
from d7yfs.tree.tree import ROOT_INODE, Tree

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """What the file system needs of one repository."""

    url: str
    """How people name its bucket, without secrets."""
    identity: StoreIdentity
    """Part of every cache key."""
    listings: Listings
    new_filler: NewFiller
    listing: Mode = Mode.AUTO
    listing_limit: int = LIMIT
    revalidates: Callable[[str], bool] | None = None
    """Whether the name at this path below the repository's directory is asked for whenever it is used. None: no name is."""
    route: Callable[[ObjectVersion], str] = lambda _: "origin"
    """In a word, by which way a version came, or would come."""
    task_id: Callable[[ObjectVersion], Awaitable[str]] | None = None
    """The id of Dragonfly's task for a version, empty where it has none. None: Dragonfly has no part at all. Raises D7yfsError."""
    models: Models = field(default_factory=Models)
    """Where what readers of each model were given is counted."""


@dataclass(slots=True)
class Served:
    """What readers of one repository were given since start."""

    read_bytes: int = 0
    cache_bytes: int = 0
    """Of these, what was there before they asked, read ahead included."""


@dataclass(slots=True)
class _Handle:
    node: File
    cached: CachedVersion | None
    window: Window
    model: Model
    is_gone: bool = False
    """Whether a read was answered that the version is gone. It stays so, though the same content is uploaded again: or a read(2) that the
    kernel splits could end short and the next one go on."""


@dataclass(slots=True)
class _DirectoryHandle:
    inode: int
    nodes: Mapping[str, Node]
    """What the directory had when it was opened; of a huge one nothing."""
    opened_at: float
    stream: DirectoryStream | None = None
    """Of a huge directory, instead of nodes."""
    page: Page | None = None
    """Where its reader is."""
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(self.nodes)


class Filesystem:
    """One mount's tree over its repositories, by name. `nursery` runs listings; closing it cancels them.

    `changed` hears of each directory whose entries turned out to have changed, at once; it must not block. `forget_names` is to have the
    kernel forget these names of a directory, when it remembers too many.
    """

    def __init__(
        self,
        tree: Tree,
        sources: Mapping[str, Source],
        cache: Cache,
        nursery: trio.Nursery,
        *,
        changed: Callable[[Directory, Changes], None] = lambda _directory, _changes: None,
        forget_names: Callable[[int, Iterable[str]], None] = lambda _inode, _names: None,
    ) -> None:
        self.tree = tree
        self.listers = {
            name: Lister(
                tree,
                name,
                source.listings,
                nursery,
                url=source.url,
                mode=source.listing,
                limit=source.listing_limit,
                changed=self._changed,
            )
            for name, source in sources.items()
        }
        self._sources = sources
        self._cache = cache
        self._nursery = nursery
        self._tell_changed = changed
        self._forget_names = forget_names
        self._numbers = itertools.count(1)
        self._handles: dict[int, _Handle] = {}
        self._directory_handles: dict[int, _DirectoryHandle] = {}
        self._densities: WeakKeyDictionary[CachedVersion, Density] = WeakKeyDictionary()
        self._walks: WeakKeyDictionary[Directory, tuple[dict[str, Node], Walk]] = WeakKeyDictionary()
        """By directory, with the children that the walk is about: another listing has others."""
        self.served = {name: Served() for name in sources}
        self.fullness = {
            name: Fullness(each.models, partial(cache.open_bytes, each.identity), partial(cache.look, each.identity))
            for name, each in sources.items()
        }
        self.idle = trio.Event()
        """Set while no file is open; replaced when one is opened."""
        self.idle.set()

    def _changed(self, directory: Directory, changes: Changes) -> None:
        if names := {*changes.removed, *changes.replaced}:
            self.fullness[directory.repository or ""].forget(directory.prefix, names)
        self._tell_changed(directory, changes)

    # --- names and attributes ---

    async def lookup(self, parent: int, name: str) -> Found | Absent:
        """The entry `name`; when it exists the caller tells the kernel of it and owes a `forget`."""
        asked_at = trio.current_time()
        directory = self.tree.directory(parent)
        revalidates = self.revalidates(directory)
        if revalidates is None or not revalidates(name):
            answer = await self._ask(parent, name, asked_at)
        else:
            await self._revalidate(directory, name)
            answer = await self._ask(parent, name, asked_at)
            answer = Found(answer.node, 0.0) if isinstance(answer, Found) else Absent(0.0)
        if isinstance(answer, Found):
            self.tree.remember(answer.node.inode)
            self._relieve()
        return answer

    def revalidates(self, directory: Directory) -> Callable[[str], bool] | None:
        """Which names in a directory the kernel must ask for whenever they are used; None where there are none, which is the rule."""
        if directory.repository is None or (matches := self._sources[directory.repository].revalidates) is None:
            return None
        path = directory.prefix.removeprefix(self.tree.top(directory.repository).prefix)
        return lambda name: matches(f"{path}{name}")

    async def _revalidate(self, directory: Directory, name: str) -> None:
        """Ask for a name now, and if it has changed for the whole of its directory, which was uploaded with it.

        While the store cannot be asked, what is known is the newest.
        """
        assert directory.repository is not None
        lister, source = self.listers[directory.repository], self._sources[directory.repository]
        try:
            if await lister.refresh_entry(directory, name):
                await lister.refresh(directory)
        except D7yfsError as error:
            shown = f"{source.url}/{directory.prefix}{name}"
            log.warning("%s is shown as it is known: %s", shown, error, extra=fields_of(error, object=shown))

    async def _ask(self, parent: int, name: str, asked_at: float) -> Found | Absent:
        while True:
            now = trio.current_time()
            answer = self.tree.lookup(parent, name, now, asked_at=asked_at)
            if not isinstance(answer, Expired):
                self.tree.use(parent, now)  # not before: it must count as use since the listing that was made for it
                return answer
            await self._lister(answer.directory).lookup(answer.directory, name, asked_at)

    def _lister(self, directory: Directory) -> Lister:
        assert directory.repository is not None, "the root above repositories is never listed"
        return self.listers[directory.repository]

    async def _list(self, inode: int, asked_at: float) -> Directory:
        """The directory of a number once its entries are known, or it is found to be huge."""
        while not self.tree.listed(inode, asked_at):
            directory = self.tree.directory(inode)
            await self._lister(directory).list(directory, asked_at)
            if directory.huge:
                break
        self.tree.use(inode, trio.current_time())
        return self.tree.directory(inode)

    async def getattr(self, inode: int) -> Node:
        """What an inode stands for; the attributes of a directory that was listed rest on a listing that lives."""
        node = self.tree.get(inode)
        if isinstance(node, Directory) and node.children is not None:
            await self._list(inode, trio.current_time())
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

    def _relieve(self) -> None:
        """Have the kernel forget some names if it remembers more than there is room for."""
        if self.tree.crowded:
            opened = {handle.node.inode for handle in self._handles.values()}
            for inode, names in self.tree.surplus(opened).items():
                self._forget_names(inode, names)

    async def places(self, path: str) -> list[Place]:
        """Where what is at `path` lies in its store; of the root above repositories, where each of them does. Raises as `resolve`."""
        node = await self.resolve(path)
        nodes = [node]
        if isinstance(node, Directory) and node.repository is None:
            nodes = [*(node.children or {}).values()]
        return [place for each in nodes if (place := self._place(each)) is not None]

    def _place(self, node: Node) -> Place | None:
        """None of the root above repositories."""
        if isinstance(node, File):
            return Place(self._sources[node.repository].identity, node.version.key)
        source = self._sources.get(node.repository) if node.repository is not None else None
        return Place(source.identity, node.prefix.removesuffix("/")) if source else None

    # --- directories ---

    async def opendir(self, inode: int) -> int:
        """A handle on the names that the directory has now."""
        asked_at = trio.current_time()
        directory = await self._list(inode, asked_at)
        if self.tree.listed(inode, asked_at):
            opened = _DirectoryHandle(inode, directory.children or {}, asked_at)
        else:
            opened = _DirectoryHandle(inode, {}, asked_at, self._lister(directory).stream(directory, asked_at))
        handle = next(self._numbers)
        self._directory_handles[handle] = opened
        return handle

    def opened(self, handle: int) -> int:
        """The number of an open directory."""
        return self._directory_handles[handle].inode

    async def entries(self, handle: int, start: int) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]]:
        """An open directory and what it still has of the names from index `start` on, each with its index. Of a huge one, some of them.

        For use before anything else is awaited. Unlike `lookup` it does not remember: the adapter does, as far as the
        kernel has room for the entries.
        """
        opened = self._directory_handles[handle]
        self._relieve()
        if opened.stream is not None:
            return await self._streamed(opened, opened.stream, start)
        directory = await self._list(opened.inode, opened.opened_at)
        if directory.children is not None:
            return directory, self.tree.entries(opened.inode, opened.names, start)
        # It was found to be huge since it was opened: what it had is dropped name by name.
        return directory, (
            (index, name, directory.entry(name) or Unseen(node.is_directory))
            for index, (name, node) in itertools.islice(enumerate(opened.nodes.items()), start, None)
        )

    async def _streamed(
        self, opened: _DirectoryHandle, stream: DirectoryStream, start: int
    ) -> tuple[Directory, Iterator[tuple[int, str, Unseen]]]:
        directory = self.tree.directory(opened.inode)
        now = trio.current_time()
        self.tree.use(opened.inode, now)
        newest = self._lister(directory).stream(directory, now) if not start else stream
        if newest is not stream:  # rewound
            opened.stream, opened.page, stream = newest, None, newest
        found = await stream.page(start, opened.page)
        if found is None:
            return directory, iter(())
        opened.page, position = found
        return directory, opened.page.shown(position)

    async def children(self, directory: Directory) -> AsyncGenerator[list[tuple[str, Node]], None]:
        """The names in a directory now, with what they stand for: all at once, those of a huge one page by page.

        What is still wanted of them later must be remembered before awaiting.
        """
        handle = await self.opendir(directory.inode)
        try:
            opened = self._directory_handles[handle]
            if opened.stream is None:
                _, entries = await self.entries(handle, 0)
                known = [(name, node) for _, name, node in entries]
                yield [(name, node) for name, node in known if not isinstance(node, Unseen)]
                yield await self._looked_up(directory, [name for name, node in known if isinstance(node, Unseen)])
                return
            index = 0
            while (found := await opened.stream.page(index)) is not None:
                page, _ = found
                index = page.stop
                yield await self._looked_up(directory, page.names)
        finally:
            self.releasedir(handle)

    async def _looked_up(self, directory: Directory, names: Sequence[str]) -> list[tuple[str, Node]]:
        found: list[tuple[str, Node]] = []
        try:
            for name in names:
                answer = await self._ask(directory.inode, name, trio.current_time())
                if isinstance(answer, Found):
                    self.tree.remember(answer.node.inode)  # lest the next one takes its room
                    found.append((name, answer.node))
        finally:
            for _, node in found:
                self.tree.forget(node.inode)
        return found

    def releasedir(self, handle: int) -> None:
        self._directory_handles.pop(handle, None)

    # --- files ---

    async def open(self, inode: int) -> int:
        """A handle on the version that `inode` is. Raises IsADirectory, ObjectArchived, VersionGone."""
        node = self.tree.get(inode)
        if isinstance(node, Directory):
            raise IsADirectory(f"inode {inode} is a directory")
        self.tree.remember(inode)
        try:
            cached = await self._open(node)
        except BaseException:
            self.tree.forget(inode)
            raise
        if cached is not None and cached not in self._densities:
            self._densities[cached] = Density(node.version.key, node.size_bytes)
        handle = next(self._numbers)
        model = self._sources[node.repository].models.of(node.version.key)
        model.opens += 1
        self._handles[handle] = _Handle(node, cached, Window(node.size_bytes), model)
        if cached is not None:
            self._note_open(node, cached)
        if self.idle.is_set():
            self.idle = trio.Event()
        return handle

    async def _open(self, node: File) -> CachedVersion | None:
        """Its version, held for the caller; None when it is empty. Raises ObjectArchived."""
        source = self._sources[node.repository]
        if node.version.archived:
            raise ObjectArchived(
                f"{source.url}/{node.version.key}: lies in the archive storage class {node.version.archived}",
                hint="restore it at the provider, then open it again",
            )
        return await self._cache.open(source.identity, node.version, source.new_filler) if node.size_bytes else None

    def _note_open(self, node: File, cached: CachedVersion) -> None:
        fullness, version = self.fullness[node.repository], node.version
        if fullness.opened(version, trio.current_time(), whole=cached.is_whole):
            cached.when_whole(lambda: fullness.whole(version, trio.current_time()))

    def _drop(self, node: File, cached: CachedVersion) -> None:
        self.fullness[node.repository].closed(node.version, trio.current_time(), cached.cached_bytes)
        cached.drop()

    @asynccontextmanager
    async def held(self, node: File) -> AsyncIterator[CachedVersion | None]:
        """A file's version, open meanwhile; None when it is empty. Raises ObjectArchived."""
        cached = await self._open(node)
        if cached is None:
            yield None
            return
        self._note_open(node, cached)
        try:
            yield cached
        finally:
            self._drop(node, cached)

    async def cached_bytes(self, nodes: Iterable[File]) -> int:
        """How much of these files is in the cache. Raises CacheStalled."""
        versions = defaultdict[StoreIdentity, list[ObjectVersion]](list)
        for node in nodes:
            versions[self._sources[node.repository].identity].append(node.version)
        try:
            return sum([sum(await self._cache.cached_bytes(*each)) for each in versions.items()])
        except OSError as error:
            raise CacheStalled("how much is cached cannot be told: the cache's disk does not answer") from error

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
        name = f"{self._sources[opened.node.repository].url}/{opened.node.version.key}"
        try:
            if opened.is_gone and not was_there:
                raise VersionGone(f"{name}: this version was gone when it was read before")
            data = await cached.read(wanted, ahead)
        except D7yfsError as error:
            opened.is_gone |= isinstance(error, VersionGone)
            error.about(object=name, repository=opened.node.repository)
            raise
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
        wanted = [each for each in walk.plan(node.inode) if not each.version.archived] if walk else []
        if wanted:
            self._nursery.start_soon(self._prefetch, wanted)

    async def _prefetch(self, nodes: Iterable[File]) -> None:
        try:
            for node in nodes:
                source = self._sources[node.repository]
                cached = await self._cache.open(source.identity, node.version, source.new_filler)
                try:
                    cached.fill()
                finally:
                    cached.drop()
        except Exception:  # it must not end the mount
            log.exception("files could not be fetched ahead")

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
            self._drop(opened.node, opened.cached)
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

    async def describe(self, node: Node) -> dict[str, str]:
        """What d7yfs knows of a file beyond stat(2), without secrets: for `d7yfs stat` and extended attributes. Raises CacheStalled."""
        place = self._place(node)
        if isinstance(node, Directory):
            return {"url": f"{place}/"} if place else {}
        source, version = self._sources[node.repository], node.version
        described = {
            "url": str(place),
            "etag": version.validator,
            "size": str(version.size_bytes),
            "cached_bytes": str(await self.cached_bytes([node])),
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
