"""Which small files will be read soon, judged from those that have been: one `Walk` per directory that is read from. Pure.

A small file is over before a window on it could open; what hides its round trip is fetching its neighbours. The filesystem asks whenever
the beginning of a file is read, and has the cache fetch the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from d7yfs.fs.readahead import Scale, Window
from d7yfs.objects import BLOCK_BYTES
from d7yfs.tree.nodes import File, Node

SMALL_FILE_BYTES = BLOCK_BYTES
"""Files up to this size are fetched ahead."""

FILES_AHEAD = 32
"""So many of them at most, and a part's worth: enough to hide a round trip of 25 ms behind reading 1000 files a second."""

FILES = Scale(proof=4, slack=16, part=8)
"""The slack is for as many threads, each with the next file in hand."""


class Walk:
    """The reading of one directory's files, one after the other.

    `entries` are in the order in which the directory shows them: who lists it, or sorts what he lists, reads in that order.
    """

    __slots__ = ("_files", "_positions", "_window")

    def __init__(self, entries: Iterable[Node]) -> None:
        self._files = [
            entry for entry in entries if isinstance(entry, File) and 0 < entry.size_bytes <= SMALL_FILE_BYTES
        ]
        self._positions = {entry.inode: position for position, entry in enumerate(self._files)}
        self._window = Window(len(self._files), FILES)

    def plan(self, inode: int) -> Sequence[File]:
        """Take note that the beginning of a file is read; the files to fetch now, each of them once per walk through the directory."""
        position = self._positions.get(inode)
        ahead = None if position is None else self._window.plan(position, 1, lambda: FILES_AHEAD)
        return self._files[ahead.start : ahead.stop] if ahead else ()
