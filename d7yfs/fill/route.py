"""Decides by which way the bytes come that a reader waits for, when a proxy is configured. Pure.

Many small ranges through dfdaemon's scheduler are its slow way (80 ms to 2 s each), one stream of
the whole object its fast one. So the object comes as a stream, and a reader near the stream's
position waits for it. A reader far ahead of it, or before the stream's first byte, gets a small
range straight from the origin, while the version's budget lasts. After that small ranges come
through the proxy too, or readers wait for the stream if that is quicker. The mode `always` is a
budget of 0 here.

A stream costs every peer the whole object, so it takes a reason: a model that is read beyond its
header, a sequential run, or the file system's wish for all of it (`StreamFiller.fill`). Sparse
reads of another file stay ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import BLOCK_BYTES, ByteRange

PEEK_BYTES = BLOCK_BYTES
"""A first read inside the first block may be of the header only: within the budget it starts no
stream."""

RUN_BYTES = 4 << 20
"""A sequential run this long is worth a stream, for any budget."""

PATIENCE_S = 0.5
"""Seconds within which the stream must reach a reader, or it goes to the origin."""

RANGE_PATIENCE_S = 2.0
"""The same for a reader that would go through the proxy: the time of a cold range there with a
scheduler's default settings."""

BEGINNING_BYTES = 512 << 20
"""Bytes that a stream without a rate is taken to bring within that time: dfdaemon's rate, cold or
warm (280-760 MB/s)."""

PASSED_BYTES = 64 << 20
"""Bytes at the front that are there, and that a stream passes over all the same."""

FRONT_BYTES = BEGINNING_BYTES
"""A model's stream begins at the start for a reader within this: all of it will be read."""


class Reason(StrEnum):
    """The reason why bytes come by no stream while the proxy works. The fetcher counts by it, and
    has reasons of its own.
    """

    SMALL = "small"
    """The object is no larger than 4 MiB."""
    HEADER = "header"
    TAIL = "tail"
    """The last 4 MiB: the directory of an archive, say."""
    SPARSE = "sparse"
    """No sign that all of the object will be read."""
    WAITING = "waiting"
    """A stream runs or begins, and will not be there soon."""
    FILL = "fill"
    """Too little is missing for a stream."""
    UNCACHED = "uncached"
    """The cache has no room for a stream."""
    NEVER = "never"
    """The user wants none of this file to go through Dragonfly."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream under way: it has brought `start` to `position` and goes on to `stop`."""

    start: int
    position: int
    stop: int
    rate_bytes_s: float
    """0 when it has no byte yet, or has been silent for long."""
    silent_s: float = 0.0
    """Seconds since its last byte, or since it was asked for."""
    begun_s: float = 0.0
    """Seconds since its first byte; 0 while there is none."""
    patience_s: float = 3.0
    """Seconds of silence after which readers do not wait for it."""

    @property
    def is_silent(self) -> bool:
        """True if readers do not wait for it now."""
        return self.silent_s >= self.patience_s


@dataclass(frozen=True, slots=True)
class Step:
    """The next step for one reader. Without a range it waits for the stream that runs or begins."""

    direct: ByteRange | None = None
    """Fetch this from the origin now."""
    proxied: ByteRange | None = None
    """Fetch this through the proxy now, as a range."""
    stream_from: int | None = None
    """Start a stream at this offset."""
    reason: Reason = Reason.WAITING
    """The reason of the range."""


def plan(
    size_bytes: int,
    missing: ByteRange,
    stream: Stream | None,
    *,
    touched: bool,
    model: bool,
    run_bytes: int,
    direct_left_bytes: int,
    front: int = 0,
    prompt: bool = False,
) -> Step:
    """Decide the way for `missing`, an absent run that a reader waits for, in an object of
    `size_bytes`.

    `touched`: the object was read before (a second miss, or one outside the header). `model`: a
    client that reads on after the header loads all of it. `run_bytes`: length of the sequential run
    that `missing` belongs to; 0 for none. `direct_left_bytes`: how much may still come straight
    from the origin. `front`: the object's first absent block. `prompt`: streams begin soon, so
    that a reader waits for one even with bytes left.
    """
    left = direct_left_bytes
    if stream is not None:
        if is_soon(missing.start, stream, patience_s=PATIENCE_S if left > 0 else RANGE_PATIENCE_S):
            return Step()
        if (left <= 0 or prompt) and _begins_there(missing.start, stream):
            return Step()
        return ranged(size_bytes, missing, left, Reason.WAITING)
    if size_bytes - missing.start <= MAX_DIRECT_BYTES:
        # A small file, or the end of one: one request for all of it.
        reason = Reason.SMALL if size_bytes <= MAX_DIRECT_BYTES else Reason.TAIL
        return ranged(size_bytes, ByteRange(missing.start, size_bytes), left, reason)
    # Past the budget a header by itself would be a task of its own, which costs the cluster more than
    # it saves: dfdaemon takes the task for finished with it (docs/dragonfly-facts.md).
    is_whole_at_once = model and left <= 0
    if not touched and missing.stop <= PEEK_BYTES and not is_whole_at_once:
        return ranged(size_bytes, missing, left, Reason.HEADER)
    if not (model or run_bytes >= RUN_BYTES or (run_bytes and left <= 0)):
        return ranged(size_bytes, missing, left, Reason.SPARSE)
    stream_from = stream_start(missing.start, front, model=model)
    if left <= 0 or prompt:
        return Step(stream_from=stream_from)
    step = ranged(size_bytes, missing, left, Reason.WAITING)
    return Step(direct=step.direct, stream_from=stream_from, reason=step.reason)


def stream_start(offset: int, front: int, *, model: bool) -> int:
    """The start of a stream for a reader at `offset`, where all before `front` is there.

    To pass over bytes that are there is cheaper than a ranged task. A long stream that has broken
    off goes on where it was.
    """
    start = front if front > PASSED_BYTES else 0
    return start if offset - start <= (FRONT_BYTES if model else MAX_DIRECT_BYTES) else offset


def is_soon(offset: int, stream: Stream, *, patience_s: float) -> bool:
    """True if the stream will be at `offset` within `patience_s`, by its rate."""
    reached_in_time = min(stream.position + stream.rate_bytes_s * patience_s, stream.stop)
    return stream.rate_bytes_s > 0 and _arriving(stream) <= offset < reached_in_time


def ranged(size_bytes: int, missing: ByteRange, direct_left_bytes: int, reason: Reason) -> Step:
    """Take the beginning of `missing` as a range: straight from the origin within the budget, else
    through the proxy.
    """
    start = missing.start
    if direct_left_bytes > 0:
        most = min(MAX_DIRECT_BYTES, direct_left_bytes)
        return Step(direct=ByteRange(start, min(missing.stop, start + most)), reason=reason)
    # To the end of the smallest piece that dfdaemon knows: it fetches all of it anyway.
    piece_stop = (start // MAX_DIRECT_BYTES + 1) * MAX_DIRECT_BYTES
    return Step(proxied=ByteRange(start, min(piece_stop, size_bytes)), reason=reason)


def _begins_there(offset: int, stream: Stream) -> bool:
    """True if a stream that has no rate yet will bring `offset` first."""
    young = stream.begun_s < PATIENCE_S and not stream.is_silent
    return young and _arriving(stream) <= offset < min(stream.start + BEGINNING_BYTES, stream.stop)


def _arriving(stream: Stream) -> int:
    """The block that the stream brings now. Blocks that it has passed it brings no more."""
    return max(stream.start, stream.position // BLOCK_BYTES * BLOCK_BYTES)
