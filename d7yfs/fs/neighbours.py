"""Prefetches of small files, while a reader goes through their directory file by file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import ReadTimeout, TooManyOpenFiles
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.readahead import Walk
from d7yfs.tree.nodes import Directory, File, Node
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

_HELD_S = 0.5
"""Seconds for which a file that was fetched ahead stays open: a reader that comes for it meanwhile
has it at once."""


class Neighbours:
    """The walks through one mount's directories. `nursery` runs the prefetches."""

    def __init__(
        self, tree: Tree, backends: Mapping[str, RepositoryBackend], cache: Cache, nursery: trio.Nursery
    ) -> None:
        self._tree = tree
        self._backends = backends
        self._cache = cache
        self._nursery = nursery
        self._walks: WeakKeyDictionary[Directory, tuple[dict[str, Node], Walk]] = WeakKeyDictionary()
        """By directory, with the children that the walk is about: another listing has others."""

    def fetch_ahead(self, node: File) -> None:
        """Note that the beginning of a file is read; fetch the files that its reader reads next."""
        walk = self._walk(node)
        wanted = [each for each in walk.plan(node.inode) if not each.version.archived] if walk else []
        if wanted:
            self._nursery.start_soon(self._prefetch, wanted)

    async def _prefetch(self, nodes: Iterable[File]) -> None:
        held: list[CachedVersion] = []
        try:
            for node in nodes:
                backend = self._backends[node.repository]
                held.append(await self._cache.open(backend.identity, node.version, backend.new_filler))
                if held[-1].is_asleep:
                    await held[-1].wake()
                held[-1].fill()
            await trio.sleep(_HELD_S)
        except (TooManyOpenFiles, ReadTimeout):
            return  # readers go first
        except Exception:  # it must not end the mount
            log.exception("files could not be fetched ahead")
        finally:
            for cached in held:
                cached.drop()

    def _walk(self, node: File) -> Walk | None:
        """The walk of a file's directory; None while its entries are not known."""
        directory = self._tree.parent(node)
        if directory is None or directory.children is None:
            return None
        children, walk = self._walks.get(directory, (None, None))
        if walk is None or children is not directory.children:
            walk = Walk(directory.children.values())
            self._walks[directory] = (directory.children, walk)
        return walk
