"""What a handle will read soon, judged from what it has read: one `Window` per open handle. Pure.

The filesystem asks `plan` at every read and hands the answer to the cache as a prefetch, which nobody waits for. Bytes
that a reader wants now are not the window's business.

Only a proven sequential run is worth fetching ahead: at least two reads, and PROOF_BYTES of them in one place. A look at
a header or one page fault makes the kernel read up to its own readahead size around it, so anything smaller would start
a prefetch for every fault of a random reader. From then on the window grows with the run, to at most twice its length
(and at least one part), so that a wrong guess never costs much more than the reading that led to it.
"""

from __future__ import annotations

from d7yfs.objects import PART_BYTES, ByteRange

KERNEL_READAHEAD_BYTES = 1 << 20
"""`read_ahead_kb` that the mount sets for itself. The kernel keeps up to two such windows in flight, in any order."""

PROOF_BYTES = 2 * KERNEL_READAHEAD_BYTES
"""A run shorter than this may be one fault with the kernel's readahead around it."""

SLACK_BYTES = 2 * KERNEL_READAHEAD_BYTES
"""How far from a stream's frontier a read still belongs to it."""

STREAMS = 8
"""Sequential runs followed on one handle (threads that share a descriptor, each loading its own part of the file)."""


class _Stream:
    """One run of reads: `[start, frontier)`, of which `read_bytes` were really asked for."""

    __slots__ = ("frontier", "planned", "read_bytes", "reads", "start")

    def __init__(self, start: int) -> None:
        self.start = self.frontier = self.planned = start
        self.read_bytes = 0
        self.reads = 0


class Window:
    """The sequential streams of one handle on an object of `size_bytes`."""

    __slots__ = ("_size_bytes", "_streams")

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._streams: list[_Stream] = []  # least recently used first

    def plan(self, offset: int, size: int, limit_bytes: int) -> ByteRange | None:
        """Take note of a read of `size` bytes at `offset`; the bytes to fetch ahead now, at most `limit_bytes` of them, or None.

        Each byte is planned once per stream. A plan ends at a multiple of PART_BYTES (or at the end of the file), and
        so reaches less than one part beyond the limit.
        """
        read = ByteRange(offset, offset + size).clip(self._size_bytes)
        if not read:
            return None
        stream = self._stream(read)
        stream.reads += 1
        stream.read_bytes += read.size
        stream.frontier = max(stream.frontier, read.stop)
        # A reader that strides leaves holes, one that repeats itself counts bytes twice: neither is a longer run.
        run_bytes = min(stream.read_bytes, stream.frontier - stream.start)
        if stream.reads < 2 or run_bytes < PROOF_BYTES or not limit_bytes:
            return None
        window_bytes = min(PART_BYTES << (run_bytes // PART_BYTES).bit_length(), limit_bytes)
        ahead = ByteRange(stream.frontier, stream.frontier + window_bytes).aligned(PART_BYTES, self._size_bytes)
        start = max(stream.frontier, stream.planned)
        if ahead.stop <= start:
            return None
        stream.planned = ahead.stop
        return ByteRange(start, ahead.stop)

    def _stream(self, read: ByteRange) -> _Stream:
        """The latest stream whose frontier is near `read`, else a new one in place of the least recently used."""
        stream = next((s for s in reversed(self._streams) if abs(read.start - s.frontier) <= SLACK_BYTES), None)
        if stream:
            self._streams.remove(stream)
        else:
            stream = _Stream(read.start)
            if len(self._streams) == STREAMS:
                del self._streams[0]
        self._streams.append(stream)
        return stream
