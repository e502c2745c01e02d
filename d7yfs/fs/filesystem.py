"""The file system in plain values: lookup, open, read and readdir. No FUSE binding, no provider.

Joins the tree, one `Lister` and `Refresher` per repository, the readahead windows and the cache.

Called by the FUSE adapter and by `control_socket`; all methods belong to the trio thread. Failures
are `D7yfsError`s with their errno.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from d7yfs.cache.cache import Cache
from d7yfs.errors import D7yfsError, NotFound
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.description import NodeDescriber
from d7yfs.fs.open_files import OpenFiles
from d7yfs.logs import fields_of
from d7yfs.objects import ObjectVersion
from d7yfs.tree.huge_directory import DirectoryPage, DirectoryStream, Unseen
from d7yfs.tree.lister import Lister
from d7yfs.tree.nodes import Absent, Directory, Expired, Found, NameChanges, Node
from d7yfs.tree.refresher import Refresher
from d7yfs.tree.tree import ROOT_INODE, Tree

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _DirectoryHandle:
    inode: int
    nodes: Mapping[str, Node]
    """The nodes that the directory had when it was opened; none of a huge one."""
    opened_at: float
    stream: DirectoryStream | None = None
    """The stream of a huge directory, instead of nodes."""
    page: DirectoryPage | None = None
    """The page where its reader is."""
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(self.nodes)


class Filesystem(OpenFiles):
    """The file system of one mount, over its repositories by name. `nursery` runs listings.

    `changed` gets the changes of each directory, at once; it must not block. `forget_names` has the
    kernel forget names of a directory, when it remembers too many. `told` returns once the kernel knows
    of changes, or after a while.
    """

    def __init__(
        self,
        tree: Tree,
        backends: Mapping[str, RepositoryBackend],
        cache: Cache,
        nursery: trio.Nursery,
        *,
        changed: Callable[[Directory, NameChanges], None] = lambda _directory, _changes: None,
        forget_names: Callable[[int, Iterable[str]], None] = lambda _inode, _names: None,
        told: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        open_wait_s: float = 0.0,
    ) -> None:
        super().__init__(tree, backends, cache, nursery, open_wait_s)
        self.listers = {
            name: Lister(
                tree,
                name,
                backend.listings,
                nursery,
                url=backend.url,
                mode=backend.listing,
                limit=backend.listing_limit,
                changed=self._changed,
                failing=backend.failures.names,
                published=backend.published,
            )
            for name, backend in backends.items()
        }
        self.refreshers = {name: Refresher(tree, name, lister) for name, lister in self.listers.items()}
        self.describer = NodeDescriber(backends, cache)
        self.version_gone = self._note_gone
        self._tell_changed = changed
        self._forget_names = forget_names
        self._told = told
        self._directory_handles: dict[int, _DirectoryHandle] = {}

    def _changed(self, directory: Directory, changes: NameChanges) -> None:
        if names := {*changes.removed, *changes.replaced}:
            self.fullness[directory.repository or ""].forget(directory.prefix, names)
        self._tell_changed(directory, changes)

    def _note_gone(self, repository: str, version: ObjectVersion) -> None:
        self.refreshers[repository].note_gone(version)

    # --- names and attributes ---

    async def lookup(self, parent: int, name: str) -> Found | Absent:
        """The entry `name`; if it exists, the caller tells the kernel of it and owes a `forget`."""
        asked_at = trio.current_time()
        if (known := self.lookup_at_once(parent, name)) is not None:
            return known
        directory = self.tree.directory(parent)
        revalidates = self.revalidates(directory)
        if revalidates is not None and revalidates(name):
            await self._revalidate(directory, name)
            answer = await self._ask(parent, name, asked_at)
            answer = Found(answer.node, 0.0) if isinstance(answer, Found) else Absent(0.0)
        else:
            answer = await self._ask(parent, name, asked_at)
            if self._may_have_come(directory, answer):
                await self._revalidate(directory, name)
                answer = await self._ask(parent, name, asked_at)
                answer = answer if isinstance(answer, Found) else Absent(0.0)
        if isinstance(answer, Found):
            self._remember(answer.node)
        return answer

    def lookup_at_once(self, parent: int, name: str) -> Found | Absent | None:
        """`lookup`, if it waits for nothing: the name is known, and is not to be revalidated."""
        answer = self.tree.lookup(parent, name, self._now())
        if isinstance(answer, Expired):
            return None
        directory = self.tree.directory(parent)
        revalidates = self.revalidates(directory)
        if revalidates is not None and (revalidates(name) or self._may_have_come(directory, answer)):
            return None
        if isinstance(answer, Found):
            self._remember(answer.node)
        return answer

    def _may_have_come(self, directory: Directory, answer: Found | Absent) -> bool:
        """True if a name that is absent at the top is to be asked for: as a new model, whose files would
        be asked for at every use, it would have to be found."""
        name = directory.repository
        return (
            isinstance(answer, Absent)
            and name is not None
            and self._backends[name].revalidates is not None
            and directory is self.tree.top(name)
        )

    def _remember(self, node: Node) -> None:
        self.tree.remember(node.inode)
        self._trim_kernel_names()

    def revalidates(self, directory: Directory) -> Callable[[str], bool] | None:
        """A test for names that the kernel must ask for at every use; None: no such name."""
        if directory.repository is None or (matches := self._backends[directory.repository].revalidates) is None:
            return None
        path = directory.prefix.removeprefix(self.tree.top(directory.repository).prefix)
        return lambda name: matches(f"{path}{name}")

    async def _revalidate(self, directory: Directory, name: str) -> None:
        """Ask for a name now; if it has changed, for its whole directory, which was uploaded with
        it.

        While the store cannot be asked, the known entries are the newest.
        """
        assert directory.repository is not None
        refresher, backend = self.refreshers[directory.repository], self._backends[directory.repository]
        try:
            if backend.published.is_followed:
                await refresher.follow()
            elif await refresher.refresh_entry(directory, name):
                await refresher.refresh(directory)
        except D7yfsError as error:
            shown = f"{backend.url}/{directory.prefix}{name}"
            log.warning("%s is shown as it is known: %s", shown, error, extra=fields_of(error, object=shown))

    def _is_asked_for(self, inode: int) -> bool:
        """True if a directory is asked for whenever it is opened: it has a file of which that is so."""
        directory = self.tree.directory(inode)
        revalidates = self.revalidates(directory)
        return revalidates is not None and any(map(revalidates, directory.children or ()))

    async def _refresh_opened(self, directory: Directory) -> None:
        """Ask for a directory that is being opened, and for all below it, as at an explicit load. While
        the store cannot be asked, the known entries are the newest.
        """
        assert directory.repository is not None
        try:
            await self.refreshers[directory.repository].refresh(directory)
        except D7yfsError as error:
            shown = f"{self._backends[directory.repository].url}/{directory.prefix}"
            log.warning("%s is shown as it is known: %s", shown, error, extra=fields_of(error, object=shown))
        # Else its reader could get the attributes of files that it has just been shown from the kernel.
        await self._told()

    async def _ask(self, parent: int, name: str, asked_at: float) -> Found | Absent:
        answer = self.tree.lookup(parent, name, trio.current_time(), asked_at=asked_at)
        if isinstance(answer, Expired):
            return await self._lister(answer.directory).lookup(answer.directory, name, asked_at)
        return answer

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
        directory = self.tree.directory(inode)
        directory.used_at = trio.current_time()
        return directory

    async def getattr(self, inode: int) -> Node:
        """The node of a number; a listed directory's attributes rest on a live listing."""
        if (known := self.getattr_at_once(inode)) is not None:
            return known
        await self._list(inode, trio.current_time())
        return self.tree.get(inode)

    def getattr_at_once(self, inode: int) -> Node | None:
        """`getattr`, if it waits for nothing."""
        node = self.tree.get(inode)
        if isinstance(node, Directory) and node.children is not None:
            now = trio.current_time()
            if not node.fresh(now):
                return None
            node.used_at = now
        return node

    def forget(self, inode: int, count: int) -> None:
        """Give back `count` lookups of the kernel."""
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

    def _trim_kernel_names(self) -> None:
        """Have the kernel forget some names if it remembers too many."""
        if self.tree.is_crowded:
            for inode, names in self.tree.pick_names_to_forget(self.open_inodes).items():
                self._forget_names(inode, names)

    # --- directories ---

    async def opendir(self, inode: int) -> int:
        """A handle on the names that the directory has now."""
        if (known := self.opendir_at_once(inode)) is not None:
            return known
        asked_at = trio.current_time()
        if self._is_asked_for(inode):
            await self._refresh_opened(self.tree.directory(inode))
        directory = await self._list(inode, asked_at)
        if self.tree.listed(inode, asked_at):
            return self._add(_DirectoryHandle(inode, directory.children or {}, asked_at))
        stream = self._lister(directory).streams.open(directory, asked_at)
        return self._add(_DirectoryHandle(inode, {}, asked_at, stream))

    def opendir_at_once(self, inode: int) -> int | None:
        """`opendir`, if it waits for nothing: the directory is listed, the listing lives, and it is not
        to be asked for."""
        now = trio.current_time()
        if not self.tree.listed(inode, now) or self._is_asked_for(inode):
            return None
        directory = self.tree.directory(inode)
        directory.used_at = now
        return self._add(_DirectoryHandle(inode, directory.children or {}, now))

    def has_directory(self, handle: int) -> bool:
        """True if this process knows the handle of a directory."""
        return handle in self._directory_handles

    async def adopt_directory(self, handle: int, inode: int, told: Sequence[str]) -> None:
        """Make `handle`, which an earlier process gave out, one on the names that the directory has
        now. `told` are those that its reader has had: none comes again, and no other is left out.
        """
        number = await self.opendir(inode)
        opened = self._directory_handles.pop(number)
        if told and opened.stream is None:
            had = frozenset(told)
            opened.names = (*told, *(name for name in opened.names if name not in had))
        self._directory_handles.setdefault(handle, opened)

    def shown_names(self, handle: int) -> tuple[str, ...]:
        """The names that an open directory shows, as far as it still has them; none of a huge one."""
        return self._directory_handles[handle].names

    def _add(self, opened: _DirectoryHandle) -> int:
        handle = next(self._numbers)
        self._directory_handles[handle] = opened
        return handle

    def inode_of_handle(self, handle: int) -> int:
        """The inode of an open directory."""
        return self._directory_handles[handle].inode

    def names_of_handle(self, handle: int) -> int:
        """How many names an open directory remembers."""
        return len(self._directory_handles[handle].names)

    async def entries(self, handle: int, start: int) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]]:
        """An open directory, and what is left of its names from index `start` on; some of them if
        it is huge.

        The caller must use them before it awaits. Unlike `lookup` this does not remember: the
        adapter does, as far as the kernel has room for the entries.
        """
        if (known := self.entries_at_once(handle, start)) is not None:
            return known
        opened = self._directory_handles[handle]
        if opened.stream is not None:
            return await self._read_stream(opened, opened.stream, start)
        directory = await self._list(opened.inode, opened.opened_at)
        if directory.children is not None:
            return directory, self.tree.entries(opened.inode, opened.names, start)
        # It was found to be huge since it was opened: its former names are dropped one by one.
        return directory, (
            (index, name, directory.entry(name) or Unseen(node.is_directory))
            for index, (name, node) in itertools.islice(enumerate(opened.nodes.items()), start, None)
        )

    def entries_at_once(
        self, handle: int, start: int
    ) -> tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]] | None:
        """`entries`, if it waits for nothing, and the handle is known."""
        opened = self._directory_handles.get(handle)
        self._trim_kernel_names()
        if opened is None or opened.stream is not None or not self.tree.listed(opened.inode, opened.opened_at):
            return None
        directory = self.tree.directory(opened.inode)
        directory.used_at = trio.current_time()
        return directory, self.tree.entries(opened.inode, opened.names, start)

    async def _read_stream(
        self, opened: _DirectoryHandle, stream: DirectoryStream, start: int
    ) -> tuple[Directory, Iterator[tuple[int, str, Unseen]]]:
        directory = self.tree.directory(opened.inode)
        directory.used_at = now = trio.current_time()
        newest = self._lister(directory).streams.open(directory, now) if not start else stream
        if newest is not stream:  # rewound
            opened.stream, opened.page, stream = newest, None, newest
        found = await stream.page(start, opened.page)
        if found is None:
            return directory, iter(())
        opened.page, position = found
        return directory, opened.page.shown(position)

    async def children(self, directory: Directory) -> AsyncGenerator[list[tuple[str, Node]], None]:
        """The names and nodes of a directory now: all at once, or page by page if it is huge.

        The caller must remember nodes for later before it awaits.
        """
        handle = await self.opendir(directory.inode)
        try:
            opened = self._directory_handles[handle]
            if opened.stream is None:
                _, entries = await self.entries(handle, 0)
                known = [(name, node) for _, name, node in entries]
                yield [(name, node) for name, node in known if not isinstance(node, Unseen)]
                yield await self._look_up_names(directory, [name for name, node in known if isinstance(node, Unseen)])
                return
            index = 0
            while (found := await opened.stream.page(index)) is not None:
                page, _ = found
                index = page.stop
                yield await self._look_up_names(directory, page.names)
        finally:
            self.releasedir(handle)

    async def _look_up_names(self, directory: Directory, names: Sequence[str]) -> list[tuple[str, Node]]:
        found: list[tuple[str, Node]] = []
        try:
            for name in names:
                answer = await self._ask(directory.inode, name, trio.current_time())
                if isinstance(answer, Found):
                    self.tree.remember(answer.node.inode)  # so that the next one does not take its room
                    found.append((name, answer.node))
        finally:
            for _, node in found:
                self.tree.forget(node.inode)
        return found

    def releasedir(self, handle: int) -> None:
        self._directory_handles.pop(handle, None)

    @property
    def open_directories(self) -> int:
        return len(self._directory_handles)
