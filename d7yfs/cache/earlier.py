"""Deletes the files that earlier versions of d7yfs have left in the cache directory, once no
process has them open.

Their formats cannot be trusted and are never served (`directory.EARLIER_FORMATS` says why). A
daemon of an earlier version may still run on the directory. So pairs are deleted as eviction does
it, under the lock that no opener leaves room for: files that such a daemon has open stay until it
closes them.

Invariant: only files are deleted that those versions have made, in a directory of this user. A
directory of another user may be named `v1` too.

Called by `Cache` where it evicts and by the command line. Blocks on local files.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from d7yfs.cache.directory import EARLIER_FORMATS, SHARDS, delete_pair, disk_bytes, drop_forgotten, linked_bytes
from d7yfs.cache.pair import INCOMING
from d7yfs.host.ownership import NOTHING, find_fault

_OURS = re.compile(r"[0-9a-f]{64}\.(?:map|data|linkmap|link)")


@dataclass(slots=True)
class Dropped:
    """The result of `drop`: the files that are deleted, and those that are kept."""

    files: int = 0
    disk_bytes: int = 0
    kept: list[Path] = field(default_factory=list)
    """The maps of pairs that some process has open."""


def drop(directory: Path, left: Callable[[int], None] = lambda _size_bytes: None) -> Dropped:
    """Delete all pairs of earlier formats but those in use.

    `left` is told how many bytes remain, first of all of them together.
    """
    dropped = Dropped()
    roots = [root for root in (directory / each for each in EARLIER_FORMATS) if _is_ours(root)]
    found = [(map_path, _pair_bytes(map_path)) for root in roots for map_path in _maps(root)]
    left_bytes = sum(size_bytes for _, size_bytes in found)
    left(left_bytes)
    for map_path, size_bytes in found:
        # A crash left data without a map. The holder of a map's lock owns its name, so make one.
        if delete_pair(map_path, os.O_CREAT) or not map_path.exists():
            dropped.files += 1
            dropped.disk_bytes += size_bytes
            left_bytes -= size_bytes
            left(left_bytes)
        else:
            dropped.kept.append(map_path)
    for root in roots:
        drop_forgotten([*(root / INCOMING).glob("*"), *root.glob(".probe-*")])
        for made in (*(root / each for each in SHARDS), root):
            with contextlib.suppress(OSError):
                made.rmdir()
    return dropped


def _is_ours(root: Path) -> bool:
    try:
        return not find_fault(root.lstat(), (os.geteuid(),), denied=NOTHING)
    except OSError:
        return False


def _maps(root: Path) -> Iterator[Path]:
    """The name of each pair's map, even if the map is gone."""
    yield from sorted({each.with_suffix(".map") for each in root.glob("[0-9a-f]/*") if _OURS.fullmatch(each.name)})


def _pair_bytes(map_path: Path) -> int:
    return disk_bytes(map_path) + disk_bytes(map_path.with_suffix(".data")) + linked_bytes(map_path)
