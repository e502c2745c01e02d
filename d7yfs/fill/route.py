"""Decides which way brings the bytes that a reader waits for, when a proxy is configured. Pure.

Many small ranges through dfdaemon's scheduler are its slow way (80 ms to 2 s each), one stream of the whole object its fast one. So: the
object comes as a stream; a reader near the stream's position waits for it; a reader far ahead of it, or one who comes while the stream has
no first byte yet, gets a small range straight from the origin, as long as the version's budget for that lasts. Then small ranges come
through the proxy too, or readers wait for the stream where that is quicker. A budget of 0 is how the mode `always` looks here.

A stream costs every peer the whole object, so it takes a reason: a model that is read beyond its header, a sequential run, or that the file
system asks for all of it (which `StreamFiller.fill` sees to). Sparse reads of another file stay ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import BLOCK_BYTES, ByteRange

PEEK_BYTES = BLOCK_BYTES
"""A first read inside the first block may be a look at the header: it does not make every peer allocate the whole object."""

RUN_BYTES = 4 << 20
"""A sequential run this long is worth a stream, however much may still come straight from the origin."""

PATIENCE_S = 0.5
"""A reader waits for the stream rather than go to the origin if the stream will be there within this time."""

RANGE_PATIENCE_S = 2.0
"""The same for one who would have to go through the proxy: what a cold range takes there with a scheduler's default settings."""

BEGINNING_BYTES = 512 << 20
"""What a stream that cannot be judged yet is taken to bring within that time: as much as dfdaemon does, cold or warm (280-760 MB/s)."""

FRONT_BYTES = BEGINNING_BYTES
"""A model's stream begins at the start if the reader is no farther than this: all of it will be read, in whatever order."""

SILENCE_S = 3.0
"""Readers do not wait for a stream that has brought nothing for so long."""


class Reason(StrEnum):
    """Why bytes come otherwise than by a stream, while the proxy works; counted by the fetcher, which has reasons of its own beside."""

    SMALL = "small"
    """The object is no larger than 4 MiB."""
    HEADER = "header"
    TAIL = "tail"
    """The last 4 MiB: the directory of an archive, say."""
    SPARSE = "sparse"
    """Nothing says that all of the object will be read."""
    WAITING = "waiting"
    """A stream runs or begins, and will not be there soon."""
    FILL = "fill"
    """Too little is missing for a stream."""
    UNCACHED = "uncached"
    """The cache has no room for what a stream would bring."""
    NEVER = "never"
    """The user wants none of this file to go through Dragonfly."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream under way: it has brought everything from `start` to `position` and goes on to `stop`."""

    start: int
    position: int
    stop: int
    rate_bytes_s: float
    """0 when it has no byte yet, or has been silent for long."""
    silent_s: float = 0.0
    """Since its last byte, or since it was asked for."""
    begun_s: float = 0.0
    """Since its first byte; 0 while there is none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one reader. No range: it waits for the stream, the one that runs or the one that begins."""

    direct: ByteRange | None = None
    """Fetch this from the origin now."""
    proxied: ByteRange | None = None
    """Fetch this through the proxy now, as a range."""
    stream_from: int | None = None
    """Start a stream at this offset."""
    reason: Reason = Reason.WAITING
    """Of the range."""


def plan(
    size_bytes: int,
    missing: ByteRange,
    stream: Stream | None,
    *,
    touched: bool,
    model: bool,
    run_bytes: int,
    direct_left_bytes: int,
) -> Plan:
    """The way for `missing`, an absent run of what a reader waits for, in an object of `size_bytes`.

    `touched`: the object was read before (a second miss, or one outside the header). `model`: who reads on after the header loads all of
    it. `run_bytes`: how long the sequential run is that `missing` belongs to; 0 for none. `direct_left_bytes`: how much may still come
    straight from the origin.
    """
    left = direct_left_bytes
    if stream is not None:
        if _soon(missing.start, stream, patience_s=PATIENCE_S if left > 0 else RANGE_PATIENCE_S):
            return Plan()
        if left <= 0 and _begins_there(missing.start, stream):
            return Plan()
        return ranged(size_bytes, missing, left, Reason.WAITING)
    if size_bytes - missing.start <= MAX_DIRECT_BYTES:
        # A small file, or the end of one: one request for all of it.
        reason = Reason.SMALL if size_bytes <= MAX_DIRECT_BYTES else Reason.TAIL
        return ranged(size_bytes, ByteRange(missing.start, size_bytes), left, reason)
    if not touched and missing.stop <= PEEK_BYTES:
        return ranged(size_bytes, missing, left, Reason.HEADER)
    if not (model or run_bytes >= RUN_BYTES or (run_bytes and left <= 0)):
        return ranged(size_bytes, missing, left, Reason.SPARSE)
    # Passing over a few bytes that are there already is cheaper than a ranged task.
    stream_from = 0 if missing.start <= (FRONT_BYTES if model else MAX_DIRECT_BYTES) else missing.start
    if left <= 0:
        return Plan(stream_from=stream_from)
    step = ranged(size_bytes, missing, left, Reason.WAITING)
    return Plan(direct=step.direct, stream_from=stream_from, reason=step.reason)


def ranged(size_bytes: int, missing: ByteRange, direct_left_bytes: int, reason: Reason) -> Plan:
    """The beginning of `missing` as a range: straight from the origin as far as that may be, else through the proxy."""
    start = missing.start
    if direct_left_bytes > 0:
        most = min(MAX_DIRECT_BYTES, direct_left_bytes)
        return Plan(direct=ByteRange(start, min(missing.stop, start + most)), reason=reason)
    # To the end of the smallest piece that dfdaemon knows: it fetches all of it anyway.
    piece_stop = (start // MAX_DIRECT_BYTES + 1) * MAX_DIRECT_BYTES
    return Plan(proxied=ByteRange(start, min(piece_stop, size_bytes)), reason=reason)


def _soon(offset: int, stream: Stream, *, patience_s: float) -> bool:
    """Whether the stream will be at `offset` within `patience_s`, by its rate."""
    reached_in_time = min(stream.position + stream.rate_bytes_s * patience_s, stream.stop)
    return stream.rate_bytes_s > 0 and _arriving(stream) <= offset < reached_in_time


def _begins_there(offset: int, stream: Stream) -> bool:
    """Whether `offset` is in what a stream that has no rate yet will bring first."""
    young = stream.begun_s < PATIENCE_S and stream.silent_s < SILENCE_S
    return young and _arriving(stream) <= offset < min(stream.start + BEGINNING_BYTES, stream.stop)


def _arriving(stream: Stream) -> int:
    """The block that the stream brings now. What it has passed, missing or not, it will not bring again."""
    return max(stream.start, stream.position // BLOCK_BYTES * BLOCK_BYTES)
