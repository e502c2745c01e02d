"""`d7yfs cache drop PATH`: delete what is cached of files of a running mount, and have the kernel forget their pages too.

As `d7yfs cache drop URL` does on the directory alone: all versions at and below a path, the present and older ones, but for those that some
process has open. Owns nothing. Called by `commands`, for the control socket.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from d7yfs.cache import inspection
from d7yfs.cache.inspection import Stored
from d7yfs.config.place import Place
from d7yfs.control.control_socket import paths_of
from d7yfs.fs.filesystem import Filesystem
from d7yfs.tree.nodes import File

log = logging.getLogger(__name__)

_NAMED = 100
"""Of what was kept; the others are counted."""


async def drop(
    request: Mapping[str, Any], filesystem: Filesystem, directory: Path, forget_pages: Callable[[int], Awaitable[None]]
) -> dict[str, Any]:
    """Drop what `request` names (`paths`, relative to the mount), in the cache `directory`. Raises NotFound, UsageError, CacheUnusable."""
    paths = paths_of(request, "cache drop")
    places = [place for path in paths for place in await filesystem.places(path)]
    gone, kept = await trio.to_thread.run_sync(_drop, directory, places)
    dropped = {(each.map.key, each.map.validator, each.map.size_bytes) for each in gone}
    known = [
        node for node in filesystem.tree.remembered() if isinstance(node, File) and node.version.identity in dropped
    ]
    for file in known:
        await forget_pages(file.inode)
    freed_bytes = sum(each.disk_bytes for each in gone)
    log.info("cache drop: %d files, %d bytes; %d kept", len(gone), freed_bytes, len(kept))
    return {
        "files": len(gone),
        "disk_bytes": freed_bytes,
        "kept_files": len(kept),
        "kept": [each.name for each in kept[:_NAMED]],
    }


def _drop(directory: Path, places: list[Place]) -> tuple[list[Stored], list[Stored]]:
    stored = inspection.stored(directory)
    return inspection.drop(each for each in stored if any(each.map.lies_in(place) for place in places))
