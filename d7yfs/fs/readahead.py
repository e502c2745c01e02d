"""What will be read soon, judged from what has been read: one `Window` per open handle. Pure.

The filesystem asks `plan` at every read and hands the answer to the cache as a prefetch, which nobody waits for. What
a reader wants now is not the window's business.

Only a proven sequential run is worth fetching ahead: at least two reads, and the scale's `proof` of them in one place. A look
at a header or one page fault makes the kernel read up to its own readahead size around it, so anything smaller would start
a prefetch for every fault of a random reader. From then on the window grows with the run, to at most twice its length
(and at least one part), so that a wrong guess never costs much more than the reading that led to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from d7yfs.objects import PART_BYTES, ByteRange

KERNEL_READAHEAD_BYTES = 1 << 20
"""`read_ahead_kb` that the mount sets for itself. The kernel keeps up to two such windows in flight, in any order."""

STREAMS = 8
"""Sequential runs followed at once (threads that share a descriptor, each loading its own part of the file)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a window counts in, and what is much of it."""

    proof: int
    """A run shorter than this proves nothing."""
    slack: int
    """How far from a stream's frontier a read still belongs to it."""
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
    """The sequential streams of one handle on an object of `total` bytes, or on whatever `scale` counts."""

    __slots__ = ("_scale", "_streams", "_total")

    def __init__(self, total: int, scale: Scale = BYTES) -> None:
        self._total = total
        self._scale = scale
        self._streams: list[_Stream] = []  # least recently used first

    def plan(self, offset: int, size: int, limit: Callable[[], int]) -> ByteRange | None:
        """Take note of a read of `size` bytes at `offset`; the bytes to fetch ahead now, at most `limit()` of them, or None.

        `limit` is asked only where there is something to plan. Each byte is planned once per stream. A plan ends at a multiple of the
        scale's part (or at the end of the file), and so reaches less than one part beyond the limit.
        """
        scale = self._scale
        read = ByteRange(offset, offset + size).clip(self._total)
        if not read:
            return None
        stream = self._stream(read)
        stream.reads += 1
        stream.amount += read.size
        stream.frontier = max(stream.frontier, read.stop)
        # A reader that strides leaves holes, one that repeats itself counts bytes twice: neither is a longer run.
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

    def _stream(self, read: ByteRange) -> _Stream:
        """The latest stream whose frontier is near `read`, else a new one in place of the least recently used."""
        stream = next((s for s in reversed(self._streams) if abs(read.start - s.frontier) <= self._scale.slack), None)
        if stream:
            self._streams.remove(stream)
        else:
            stream = _Stream(read.start)
            if len(self._streams) == STREAMS:
                del self._streams[0]
        self._streams.append(stream)
        return stream
