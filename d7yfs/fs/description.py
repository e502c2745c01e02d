"""A description of a node beyond stat(2), for `d7yfs stat` and extended attributes. No secrets."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

from d7yfs.cache.cache import Cache
from d7yfs.config.place import Place
from d7yfs.errors import CacheStalled, D7yfsError
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.tree.nodes import Directory, File, Node
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)


class NodeDescriber:
    """The descriptions of one mount's nodes, by repository name."""

    def __init__(self, backends: Mapping[str, RepositoryBackend], cache: Cache) -> None:
        self._backends = backends
        self._cache = cache

    def places(self, node: Node) -> list[Place]:
        """The place of a node in its store; all places for the root above repositories."""
        if isinstance(node, File):
            return [Place(self._backends[node.repository].identity, node.version.key)]
        if node.repository is None:
            return [place for each in node.entries for place in self.places(each)]
        return [Place(self._backends[node.repository].identity, node.prefix.removesuffix("/"))]

    async def cached_bytes(self, nodes: Iterable[File]) -> int:
        """The number of these files' bytes that are in the cache. Raises CacheStalled."""
        versions = defaultdict[StoreIdentity, list[ObjectVersion]](list)
        for node in nodes:
            versions[self._backends[node.repository].identity].append(node.version)
        try:
            return sum([sum(await self._cache.cached_bytes(*each)) for each in versions.items()])
        except OSError as error:
            raise CacheStalled("how much is cached cannot be told: the cache's disk does not answer") from error

    async def _proof(self, node: File) -> str:
        try:
            return await self._cache.proof(self._backends[node.repository].identity, node.version) or ""
        except OSError as error:
            raise CacheStalled("how far it is proved cannot be told: the cache's disk does not answer") from error

    async def describe(self, node: Node) -> dict[str, str]:
        """The facts about a node; none for the root above repositories. Raises CacheStalled."""
        if isinstance(node, Directory):
            return {"url": f"{self.places(node)[0]}/"} if node.repository is not None else {}
        backend, version = self._backends[node.repository], node.version
        described = {
            "url": str(self.places(node)[0]),
            "etag": version.validator,
            "size": str(version.size_bytes),
            "cached_bytes": str(await self.cached_bytes([node])),
            "route": backend.route(version),
        }
        optional = {
            "version_id": version.version_id,
            "archived": version.archived,
            "p2p_proof": await self._proof(node),
            "served": version.edit.strip(),
        }
        return described | {name: value for name, value in optional.items() if value}

    async def task_id(self, node: Node) -> str:
        """The id of Dragonfly's task for a file, as dfdaemon logs it; empty if there is none."""
        if isinstance(node, Directory) or not node.size_bytes:
            return ""
        identify = self._backends[node.repository].task_id
        if identify is None:
            return ""
        try:
            return await identify(node.version)
        except D7yfsError as error:
            log.info("which task %s is cannot be told: %s", node.version.key, error)
            return ""


def path_of(tree: Tree, inode: int) -> str:
    """The path of a node relative to the mount; its number if it is not known any more."""
    node = tree.nodes.get(inode)
    if node is None:
        return f"inode {inode}"
    if node.repository is None:
        return "."
    key = node.prefix if isinstance(node, Directory) else node.version.key
    top = tree.top(node.repository)
    name = key.rpartition("/")[2] if top.is_lone else key.removeprefix(top.prefix).rstrip("/")
    return "/".join(filter(None, (node.repository, name))) or "."
