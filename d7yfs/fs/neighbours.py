"""Prefetches of small files, while a reader goes through their directory file by file, or through a
directory of directories that hold a few each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakKeyDictionary

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import ReadTimeout, TooManyOpenFiles
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.readahead import DIRECTORIES, FEW_FILES, FILES, FILES_AHEAD, Walk, small_files
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
        self._files: WeakKeyDictionary[Directory, tuple[dict[str, Node], Walk[File]]] = WeakKeyDictionary()
        """By directory, with the children that the walk is about: another listing has others."""
        self._siblings: WeakKeyDictionary[Directory, tuple[dict[str, Node], Walk[Directory]]] = WeakKeyDictionary()
        """Likewise, by the directory above."""

    def fetch_ahead(self, node: File) -> None:
        """Note that the beginning of a file is read; fetch the files that its reader reads next."""
        directory = self._tree.parent(node)
        if directory is None or (children := directory.children) is None:
            return
        known, walk = self._files.get(directory, (None, None))
        if walk is None or children is not known:
            walk = Walk(small_files(children.values()), FILES)
            self._files[directory] = (children, walk)
        ahead = list(walk.plan(node, FILES_AHEAD))
        if 0 < len(walk) <= FEW_FILES:
            ahead += self._beside(directory, FILES_AHEAD // len(walk))
        wanted = [each for each in ahead if not each.version.archived]
        if wanted:
            self._nursery.start_soon(self._prefetch, wanted)

    def _beside(self, directory: Directory, most: int) -> Iterator[File]:
        """The small files of the directories, about `most`, that a reader of `directory` comes to next.
        Nothing is listed for it.
        """
        above = self._tree.above(directory)
        if above is None or (children := above.children) is None:
            return
        known, walk = self._siblings.get(above, (None, None))
        if walk is None or children is not known:
            walk = Walk([each for each in children.values() if isinstance(each, Directory)], DIRECTORIES)
            self._siblings[above] = (children, walk)
        for sibling in walk.plan(directory, most):
            files = small_files(sibling.children.values()) if sibling.children else []
            if len(files) <= FEW_FILES:
                yield from files

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
