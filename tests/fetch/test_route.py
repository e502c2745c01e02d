"""The table of decisions: who waits for the stream, who gets a small range, and when a stream starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.fetch.dragonfly import MAX_DIRECT_BYTES
from d7yfs.fetch.route import Plan, Stream, plan
from d7yfs.objects import BLOCK_BYTES, ByteRange

MB = BLOCK_BYTES
BIG = 1000 * MB


def span(start: float, stop: float) -> ByteRange:
    return ByteRange(int(start * MB), int(stop * MB))


def direct(start: float, stop: float, stream_from: float | None = None) -> Plan:
    return Plan(span(start, stop), None if stream_from is None else int(stream_from * MB))


WAIT = Plan()


@pytest.mark.parametrize(
    ("size", "missing", "touched", "expected"),
    [
        # Small files never become a task, and come whole.
        (1, span(0, 1), False, direct(0, 1)),
        (4, span(0, 1), False, direct(0, 4)),
        (4, span(2, 3), True, direct(2, 4)),
        (3.5, span(3, 3.5), True, direct(3, 3.5)),
        # A look at the header makes no task; a second miss, or a longer one, does.
        (1000, span(0, 1), False, direct(0, 1)),
        (1000, span(0, 1), True, direct(0, 1, 0)),
        (1000, span(1, 2), True, direct(1, 2, 0)),
        (1000, span(0, 2), False, direct(0, 2, 0)),
        (1000, span(1, 2), False, direct(1, 2, 0)),
        (4.001, span(0, 2), False, direct(0, 2, 0)),
        # What the waiting reader gets at once is at most 4 MiB.
        (1000, span(0, 8), True, direct(0, 4, 0)),
        # A stream begins at the start if that costs little, else where the reader is.
        (1000, span(4, 5), True, direct(4, 5, 0)),
        (1000, span(5, 6), True, direct(5, 6, 5)),
        (1000, span(500, 501), False, direct(500, 501, 500)),
        # The end of a file (a zip's directory) is small, whatever the file is.
        (1000, span(999, 1000), False, direct(999, 1000)),
        (1000, span(996, 997), True, direct(996, 1000)),
        (1000, span(995, 996), True, direct(995, 996, 995)),
    ],
)
def test_no_stream_yet(size: float, missing: ByteRange, touched: bool, expected: Plan) -> None:
    assert plan(int(size * MB), missing, None, touched=touched) == expected


@pytest.mark.parametrize(
    ("stream", "missing", "expected"),
    [
        # No first byte yet.
        (Stream(0, 0, BIG, 0), span(0, 1), direct(0, 1)),
        (Stream(0, 0, BIG, 0), span(2, 10), direct(2, 6)),
        # At the frontier, in the very block that arrives, or within half a second of it.
        (Stream(0, 10 * MB, BIG, 20 * MB), span(10, 11), WAIT),
        (Stream(0, 10 * MB + 5, BIG, 20 * MB), span(10, 11), WAIT),
        (Stream(0, 10 * MB, BIG, 20 * MB), span(19, 20), WAIT),
        (Stream(0, 10 * MB, BIG, 20 * MB), span(20, 21), direct(20, 21)),
        (Stream(0, 10 * MB, BIG, 1), span(10, 11), WAIT),
        # Far ahead.
        (Stream(0, 10 * MB, BIG, 20 * MB), span(500, 501), direct(500, 501)),
        (Stream(0, 10 * MB, BIG, 20 * MB), span(500, 600), direct(500, 504)),
        # Before its start.
        (Stream(500 * MB, 510 * MB, BIG, 20 * MB), span(0, 1), direct(0, 1)),
        (Stream(500 * MB, 510 * MB, BIG, 20 * MB), span(499, 500), direct(499, 500)),
        # Passed, and missing all the same: dropped from memory, or found corrupt. The stream will not come back.
        (Stream(0, 10 * MB, BIG, 20 * MB), span(3, 4), direct(3, 4)),
        (Stream(0, 10 * MB, BIG, 20 * MB), span(9, 10), direct(9, 10)),
        (Stream(0, BIG, BIG, 20 * MB), span(999, 1000), direct(999, 1000)),
    ],
)
def test_beside_a_stream(stream: Stream, missing: ByteRange, expected: Plan) -> None:
    assert plan(BIG, missing, stream, touched=True) == expected


@given(
    st.integers(1, 64), st.integers(0, 63), st.integers(1, 64), st.booleans(),
    st.none() | st.tuples(st.integers(0, 64 * MB), st.integers(0, 64 * MB), st.floats(0, 1e9)),
)  # fmt: skip
def test_nobody_is_left_alone(
    blocks: int, first: int, count: int, touched: bool, under_way: tuple[int, int, float] | None
) -> None:
    """Whoever asks gets a range now that starts with what it lacks, or a stream that is yet to come by there."""
    size = blocks * MB
    missing = ByteRange(min(first, blocks - 1) * MB, min(first + count, blocks) * MB)
    if not missing:
        missing = ByteRange((blocks - 1) * MB, size)
    stream = None
    if under_way is not None:
        start, ahead, rate = min(under_way[0], size) // MB * MB, under_way[1], under_way[2]
        stream = Stream(start, min(start + ahead, size), size, rate)
    step = plan(size, missing, stream, touched=touched)
    if step.direct is None:
        assert stream is not None
        assert stream.position // MB * MB <= missing.start < stream.stop
        assert step.stream_from is None
    else:
        assert step.direct.start == missing.start
        assert 0 < step.direct.size <= MAX_DIRECT_BYTES
        assert step.direct.stop <= size
    if step.stream_from is not None:
        assert stream is None
        assert step.stream_from <= missing.start
        assert step.stream_from % MB == 0
        assert size > MAX_DIRECT_BYTES
