"""Decides which way brings the bytes that a reader waits for, when a proxy is configured. Pure.

Many small ranges through dfdaemon's scheduler are its slow way (80 ms to 2 s each), one stream of the whole object its fast one. So: the
object comes as a stream; a reader near the stream's position waits for it; a reader far ahead of it, or one who comes while the stream has
no first byte yet, gets a small range straight from the origin, which dfdaemon would fetch from there anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from d7yfs.fetch.dragonfly import MAX_DIRECT_BYTES
from d7yfs.objects import BLOCK_BYTES, ByteRange

PEEK_BYTES = BLOCK_BYTES
"""A first read inside the first block may be a look at the header: it does not make every peer allocate the whole object."""

PATIENCE_S = 0.5
"""A reader waits for the stream rather than go to the origin if the stream will be there within this time."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream under way: it has brought everything from `start` to `position` and goes on to `stop`."""

    start: int
    position: int
    stop: int
    rate_bytes_s: float
    """0 when it has no byte yet, or has been silent for long."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one reader. Neither: wait for the stream."""

    direct: ByteRange | None = None
    """Fetch this from the origin now."""
    stream_from: int | None = None
    """Start a stream at this offset."""


def plan(size_bytes: int, missing: ByteRange, stream: Stream | None, *, touched: bool) -> Plan:
    """The way for `missing`, an absent run of what a reader waits for, in an object of `size_bytes`.

    `touched` says whether the object was read before (a second miss, or one outside the header).
    """
    direct = ByteRange(missing.start, min(missing.stop, missing.start + MAX_DIRECT_BYTES))
    if stream is None:
        if size_bytes - missing.start <= MAX_DIRECT_BYTES:
            # A small file, or the end of one (a zip's directory, say): one request for all of it, and no task.
            return Plan(direct=ByteRange(missing.start, size_bytes))
        if not touched and missing.stop <= PEEK_BYTES:
            return Plan(direct=direct)
        # Passing over a few bytes that are there already is cheaper than a ranged task.
        return Plan(direct=direct, stream_from=0 if missing.start <= MAX_DIRECT_BYTES else missing.start)
    # What the stream has passed and is missing all the same (a block that was dropped) it will not bring again.
    arriving = max(stream.start, stream.position // BLOCK_BYTES * BLOCK_BYTES)
    reached_in_time = min(stream.position + stream.rate_bytes_s * PATIENCE_S, stream.stop)
    if stream.rate_bytes_s > 0 and arriving <= missing.start < reached_in_time:
        return Plan()
    return Plan(direct=direct)
