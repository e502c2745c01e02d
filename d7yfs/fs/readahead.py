"""Readahead: the bytes and the small files to fetch, judged from earlier reads. Pure.

The filesystem asks `plan` at every read and hands the answer to the cache as a prefetch, for which
no reader waits. One `Window` per open handle; per directory one `Walk` over its files, and one over
its subdirectories.

Only a proven sequential run is worth a prefetch: at least two reads, and the scale's `proof` of
them in one place. For a look at a header or one page fault the kernel reads up to its own readahead
size around it: a smaller proof would start a prefetch for every fault of a random reader. From then
on the window grows with the run, to at most twice its length (and at least one part). So a wrong
guess costs little more than the reading before it.

A small file is over before a window on it could open: a prefetch of its neighbours hides its round
trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange
from d7yfs.tree.nodes import File, Node

KERNEL_READAHEAD_BYTES = 1 << 20
"""The mount's `read_ahead_kb`. The kernel keeps up to two such windows in flight, in any order."""

STREAMS = 8
"""The runs followed at once: threads that share a descriptor each load their own part."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of a window, and its thresholds."""

    proof: int
    """A run shorter than this proves nothing."""
    slack: int
    """The distance from a stream's frontier up to which a read still belongs to it."""
    part: int
    """The least to plan; plans end at multiples of it."""


BYTES = Scale(proof=2 * KERNEL_READAHEAD_BYTES, slack=2 * KERNEL_READAHEAD_BYTES, part=PART_BYTES)
"""A run of bytes may be one fault with the kernel's readahead around it."""


class _Stream:
    """One run of reads: `[start, frontier)`, of which `amount` was really asked for."""

    __slots__ = ("amount", "frontier", "planned", "reads", "start")

    def __init__(self, start: int) -> None:
        self.start = self.frontier = self.planned = start
        self.amount = self.reads = 0


class Window:
    """The sequential streams of one handle on an object of `total` units of `scale`."""

    __slots__ = ("_scale", "_streams", "_total")

    def __init__(self, total: int, scale: Scale = BYTES) -> None:
        self._total = total
        self._scale = scale
        self._streams: list[_Stream] = []  # least recently used first

    def plan(self, offset: int, size: int, limit: Callable[[], int]) -> ByteRange | None:
        """Note a read of `size` bytes at `offset`, and return the range to fetch now: at most
        `limit()`, or None.

        `limit` is only called if there is something to plan. Each byte is planned once per stream.
        A plan ends at a multiple of the scale's part, or at the end of the file: it reaches less
        than one part beyond the limit.
        """
        scale = self._scale
        stop = min(offset + size, self._total)
        if stop <= offset:
            return None
        stream = self._stream(offset)
        stream.reads += 1
        stream.amount += stop - offset
        stream.frontier = max(stream.frontier, stop)
        # A reader that strides leaves holes, a repeated read counts twice: neither is a longer run.
        run = min(stream.amount, stream.frontier - stream.start)
        if stream.reads < 2 or run < scale.proof:
            return None
        window = min(scale.part << (run // scale.part).bit_length(), limit())
        if not window:
            return None
        ahead = ByteRange(stream.frontier, stream.frontier + window).aligned(scale.part, self._total)
        start = max(stream.frontier, stream.planned)
        if ahead.stop <= start:
            return None
        stream.planned = ahead.stop
        return ByteRange(start, ahead.stop)

    def _stream(self, offset: int) -> _Stream:
        """The latest stream with its frontier near `offset`, else a new one in the oldest's place."""
        streams, slack = self._streams, self._scale.slack
        for index in range(len(streams) - 1, -1, -1):
            if -slack <= streams[index].frontier - offset <= slack:
                stream = streams.pop(index)
                break
        else:
            stream = _Stream(offset)
            if len(streams) == STREAMS:
                del streams[0]
        streams.append(stream)
        return stream


SMALL_FILE_BYTES = BLOCK_BYTES
"""Files up to this size are fetched ahead."""

FILES_AHEAD = 32
"""The most small files to fetch ahead: they hide a round trip of 25 ms while a reader reads 1000
files a second."""

FILES = Scale(proof=4, slack=16, part=8)
"""The slack is for as many threads, each with the next file in hand."""

DIRECTORIES = Scale(proof=3, slack=16, part=4)
"""The unit is a directory of few small files, as an adapter or a model's configuration is one."""

FEW_FILES = 8
"""The most small files of a directory that a walk over its siblings fetches. A directory of more
proves a walk of its own."""


def small_files(entries: Iterable[Node]) -> list[File]:
    """Those of a directory's entries that are worth fetching ahead."""
    return [entry for entry in entries if isinstance(entry, File) and 0 < entry.size_bytes <= SMALL_FILE_BYTES]


_N = TypeVar("_N", bound=Node)


class Walk(Generic[_N]):
    """The reading of one directory's files, or of its subdirectories, one after the other.

    `entries` are in the order of the directory: a reader that lists it, or sorts the list, reads in
    that order.
    """

    __slots__ = ("_entries", "_positions", "_window")

    def __init__(self, entries: Sequence[_N], scale: Scale) -> None:
        self._entries = entries
        self._positions = {entry.inode: position for position, entry in enumerate(entries)}
        self._window = Window(len(entries), scale)

    def __len__(self) -> int:
        return len(self._entries)

    def plan(self, entry: _N, most: int) -> Sequence[_N]:
        """Note that an entry is read from its beginning; return those to fetch now: about `most`, each
        once.
        """
        position = self._positions.get(entry.inode)
        ahead = None if position is None else self._window.plan(position, 1, lambda: most)
        return self._entries[ahead.start : ahead.stop] if ahead else ()
