"""The table of decisions: who waits for the stream, who gets a range and by which way, and when a
stream starts.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config.p2p import P2p
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.fill.p2p_budget import DIRECT_HOSTS, Policy
from d7yfs.fill.route import FRONT_BYTES, Reason, Step, Stream, plan
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion

MB = BLOCK_BYTES
BIG = 1000 * MB
SMALL, HEADER, TAIL = Reason.SMALL, Reason.HEADER, Reason.TAIL
SPARSE, WAITING = Reason.SPARSE, Reason.WAITING


def span(start: float, stop: float) -> ByteRange:
    return ByteRange(int(start * MB), int(stop * MB))


def direct(reason: Reason, start: float, stop: float, stream_from: float | None = None) -> Step:
    return Step(
        direct=span(start, stop), stream_from=None if stream_from is None else int(stream_from * MB), reason=reason
    )


def proxied(reason: Reason, start: float, stop: float) -> Step:
    return Step(proxied=span(start, stop), reason=reason)


def stream(start: float) -> Step:
    return Step(stream_from=int(start * MB))


WAIT = Step()


@pytest.mark.parametrize(
    ("size", "missing", "touched", "left", "expected"),
    [
        # Small files never become a stream, and come whole.
        (1, span(0, 1), False, 1, direct(SMALL, 0, 1)),
        (4, span(0, 1), False, 4, direct(SMALL, 0, 4)),
        (4, span(2, 3), True, 4, direct(SMALL, 2, 4)),
        (3.5, span(3, 3.5), True, 3.5, direct(SMALL, 3, 3.5)),
        (4, span(0, 1), False, 0, proxied(SMALL, 0, 4)),
        (3.5, span(1, 2), True, 0, proxied(SMALL, 1, 3.5)),
        # A look at the header makes no stream; a second miss, or a longer one, does.
        (1000, span(0, 1), False, 4, direct(HEADER, 0, 1)),
        (63, span(0, 1), False, 1, direct(HEADER, 0, 1)),
        # Past the budget the header of a model comes with the whole.
        (1000, span(0, 1), False, 0, stream(0)),
        (1000, span(0, 1), True, 4, direct(WAITING, 0, 1, 0)),
        (1000, span(1, 2), True, 4, direct(WAITING, 1, 2, 0)),
        (1000, span(0, 2), False, 4, direct(WAITING, 0, 2, 0)),
        (1000, span(1, 2), False, 4, direct(WAITING, 1, 2, 0)),
        (4.001, span(0, 2), False, 4, direct(WAITING, 0, 2, 0)),
        # What the waiting reader gets at once is at most 4 MiB, and no more than the budget has
        # left.
        (1000, span(0, 8), True, 9, direct(WAITING, 0, 4, 0)),
        (1000, span(0, 8), True, 3, direct(WAITING, 0, 3, 0)),
        (1000, span(0, 8), True, 0.5, direct(WAITING, 0, 0.5, 0)),
        (1000, span(0, 8), True, 0, stream(0)),
        (1000, span(0, 8), True, -1, stream(0)),
        # A stream begins at the start if that costs little, else where the reader is.
        (1000, span(4, 5), True, 4, direct(WAITING, 4, 5, 0)),
        (1000, span(512, 513), True, 4, direct(WAITING, 512, 513, 0)),
        (1000, span(513, 514), False, 4, direct(WAITING, 513, 514, 513)),
        (1000, span(4, 5), True, 0, stream(0)),
        (1000, span(512, 513), False, 0, stream(0)),
        (1000, span(513, 514), False, 0, stream(513)),
        # The end of a file (a zip's directory) is small, for any file.
        (1000, span(999, 1000), False, 4, direct(TAIL, 999, 1000)),
        (1000, span(996, 997), True, 4, direct(TAIL, 996, 1000)),
        (1000, span(996, 997), True, 2, direct(TAIL, 996, 998)),
        (1000, span(995, 996), True, 4, direct(WAITING, 995, 996, 995)),
        (1000, span(999, 1000), False, 0, proxied(TAIL, 999, 1000)),
    ],
)
def test_a_model_without_a_stream_yet(
    size: float, missing: ByteRange, touched: bool, left: float, expected: Step
) -> None:
    step = plan(
        int(size * MB), missing, None, touched=touched, model=True, run_bytes=0, direct_left_bytes=int(left * MB)
    )
    assert step == expected


@pytest.mark.parametrize(
    ("missing", "run", "left", "expected"),
    [
        # Sparse reads, past the header and anywhere: ranges, first from the origin, then through
        # the proxy, a piece at a time.
        (span(0, 2), 0, 4, direct(SPARSE, 0, 2)),
        (span(500, 501), 0, 4, direct(SPARSE, 500, 501)),
        (span(500, 501), 0, 0, proxied(SPARSE, 500, 504)),
        (span(503, 504), 0, 0, proxied(SPARSE, 503, 504)),
        (span(501, 600), 0, 0, proxied(SPARSE, 501, 504)),
        (span(995, 996), 0, 0, proxied(SPARSE, 995, 996)),
        (span(999, 1000), 9, 4, direct(TAIL, 999, 1000)),
        # A sequential run: as soon as it is long, or the budget is spent.
        (span(500, 501), 3, 4, direct(SPARSE, 500, 501)),
        (span(500, 501), 4, 9, direct(WAITING, 500, 501, 500)),
        (span(500, 501), 1, 0, stream(500)),
        (span(4, 5), 2, 0, stream(0)),
        (span(5, 6), 2, 0, stream(5)),
    ],
)
def test_another_file_without_a_stream_yet(missing: ByteRange, run: int, left: int, expected: Step) -> None:
    step = plan(BIG, missing, None, touched=True, model=False, run_bytes=run * MB, direct_left_bytes=left * MB)
    assert step == expected


@pytest.mark.parametrize(
    ("front", "missing", "model", "expected"),
    [
        # A stream that has broken off goes on where it was, and does not begin again.
        (300, span(300, 301), True, 300),
        (300, span(700, 701), True, 300),
        (300, span(900, 901), True, 900),
        (300, span(303, 304), False, 300),
        (300, span(305, 306), False, 305),
        # What a few reads have brought is less than a ranged task costs.
        (64, span(64, 65), True, 0),
        (65, span(65, 66), True, 65),
        (64, span(64, 65), False, 64),
    ],
)
def test_a_stream_begins_at_what_is_absent(front: int, missing: ByteRange, model: bool, expected: int) -> None:
    step = plan(
        BIG, missing, None, touched=True, model=model, run_bytes=4 * MB, direct_left_bytes=0, front=front * MB
    )  # fmt: skip
    assert step == stream(expected)


def test_a_reader_waits_for_a_stream_that_begins_soon() -> None:
    """Where lately each began soon. Once it is late, the budget is there."""
    asked = {"touched": True, "model": True, "run_bytes": 0, "direct_left_bytes": 4 * MB, "prompt": True}
    assert plan(BIG, span(0, 1), None, **asked) == stream(0)  # type: ignore[arg-type]
    assert plan(BIG, span(0, 1), Stream(0, 0, BIG, 0, 0.9, patience_s=1), **asked) == WAIT  # type: ignore[arg-type]
    late = Stream(0, 0, BIG, 0, 1, patience_s=1)
    assert plan(BIG, span(0, 1), late, **asked) == direct(WAITING, 0, 1)  # type: ignore[arg-type]


FAST = Stream(0, 10 * MB, BIG, 20 * MB, 0, 1)
YOUNG = Stream(0, MB + 5, BIG, 1, 0, 0.1)


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize(
    ("under_way", "missing", "expected", "expected_without_budget"),
    [
        # No first byte yet: who has no budget waits where it will come first, but not for ever.
        (Stream(0, 0, BIG, 0), span(0, 1), direct(WAITING, 0, 1), WAIT),
        (Stream(0, 0, BIG, 0), span(2, 10), direct(WAITING, 2, 6), WAIT),
        (Stream(0, 0, BIG, 0), span(511, 512), direct(WAITING, 511, 512), WAIT),
        (Stream(0, 0, BIG, 0), span(512, 513), direct(WAITING, 512, 513), proxied(WAITING, 512, 516)),
        (Stream(0, 0, BIG, 0, silent_s=3), span(0, 1), direct(WAITING, 0, 1), proxied(WAITING, 0, 4)),
        (Stream(500 * MB, 500 * MB, BIG, 0), span(501, 502), direct(WAITING, 501, 502), WAIT),
        (Stream(500 * MB, 500 * MB, BIG, 0), span(499, 500), direct(WAITING, 499, 500), proxied(WAITING, 499, 500)),
        # Its first bytes: no rate to be judged by.
        (YOUNG, span(1, 2), WAIT, WAIT),
        (YOUNG, span(5, 6), direct(WAITING, 5, 6), WAIT),
        (YOUNG, span(512, 513), direct(WAITING, 512, 513), proxied(WAITING, 512, 516)),
        (YOUNG, span(0, 1), direct(WAITING, 0, 1), proxied(WAITING, 0, 4)),
        # At the frontier, in the very block that arrives, or within half a second of it; two where
        # the other way is the proxy.
        (FAST, span(10, 11), WAIT, WAIT),
        (Stream(0, 10 * MB + 5, BIG, 20 * MB), span(10, 11), WAIT, WAIT),
        (FAST, span(19, 20), WAIT, WAIT),
        (FAST, span(20, 21), direct(WAITING, 20, 21), WAIT),
        (FAST, span(49, 50), direct(WAITING, 49, 50), WAIT),
        (FAST, span(50, 51), direct(WAITING, 50, 51), proxied(WAITING, 50, 52)),
        (Stream(0, 10 * MB, BIG, 1), span(10, 11), WAIT, WAIT),
        # Far ahead.
        (FAST, span(500, 501), direct(WAITING, 500, 501), proxied(WAITING, 500, 504)),
        (FAST, span(500, 600), direct(WAITING, 500, 504), proxied(WAITING, 500, 504)),
        # Fallen silent.
        (Stream(0, 10 * MB, BIG, 0, 5), span(10, 11), direct(WAITING, 10, 11), proxied(WAITING, 10, 12)),
        # Before its start.
        (Stream(500 * MB, 510 * MB, BIG, 20 * MB), span(0, 1), direct(WAITING, 0, 1), proxied(WAITING, 0, 4)),
        (
            Stream(500 * MB, 510 * MB, BIG, 9 * MB),
            span(499, 500),
            direct(WAITING, 499, 500),
            proxied(WAITING, 499, 500),
        ),
        # Behind its stop: it fills a gap.
        (Stream(0, 10 * MB, 20 * MB, 90 * MB), span(20, 21), direct(WAITING, 20, 21), proxied(WAITING, 20, 24)),
        # Passed, and missing all the same: dropped from memory, or found corrupt. The stream will
        # not come back.
        (FAST, span(3, 4), direct(WAITING, 3, 4), proxied(WAITING, 3, 4)),
        (FAST, span(9, 10), direct(WAITING, 9, 10), proxied(WAITING, 9, 12)),
        (Stream(0, BIG, BIG, 20 * MB), span(999, 1000), direct(WAITING, 999, 1000), proxied(WAITING, 999, 1000)),
    ],
)
def test_beside_a_stream(
    under_way: Stream, missing: ByteRange, expected: Step, expected_without_budget: Step, model: bool
) -> None:
    for left, each in ((4 * MB, expected), (0, expected_without_budget)):
        step = plan(BIG, missing, under_way, touched=True, model=model, run_bytes=0, direct_left_bytes=left)
        assert step == each


@given(
    st.integers(1, 64), st.integers(0, 63), st.integers(1, 64), st.booleans(), st.booleans(),
    st.integers(0, 64 * MB), st.integers(-MB, 64 * MB),
    st.none() | st.tuples(
        st.integers(0, 64 * MB), st.integers(0, 64 * MB), st.floats(0, 1e9), st.floats(0, 5), st.floats(0, 2)
    ),
)  # fmt: skip
def test_nobody_is_left_alone(
    blocks: int,
    first: int,
    count: int,
    touched: bool,
    model: bool,
    run_bytes: int,
    left: int,
    under_way: tuple[int, int, float, float, float] | None,
) -> None:
    """Each reader gets a range now that starts with what it lacks, or a stream that is yet to come
    by there.
    """
    size = blocks * MB
    missing = ByteRange(min(first, blocks - 1) * MB, min(first + count, blocks) * MB)
    if not missing:
        missing = ByteRange((blocks - 1) * MB, size)
    stream = None
    if under_way is not None:
        start, ahead = min(under_way[0], size) // MB * MB, under_way[1]
        stream = Stream(start, min(start + ahead, size), size, *under_way[2:])
    step = plan(
        size, missing, stream, touched=touched, model=model, run_bytes=run_bytes, direct_left_bytes=left
    )  # fmt: skip
    assert step.direct is None or step.proxied is None
    if span := step.direct or step.proxied:
        assert span.start == missing.start
        assert 0 < span.size <= MAX_DIRECT_BYTES
        assert span.stop <= size
    elif stream is not None:
        assert stream.position // MB * MB <= missing.start < stream.stop
    else:
        assert step.stream_from is not None
    if step.direct:
        assert step.direct.size <= left
    if step.stream_from is not None:
        assert stream is None
        assert 0 <= missing.start - step.stream_from <= (FRONT_BYTES if model else MAX_DIRECT_BYTES)
        assert step.stream_from % MB == 0
        assert size > MAX_DIRECT_BYTES


# --- the budget ---


def version(key: str, size_bytes: int) -> ObjectVersion:
    return ObjectVersion(key, size_bytes, '"e"', 0)


@pytest.mark.parametrize(
    ("size", "percent", "budget"),
    [
        # A file of less than 64 MiB is there so soon that nothing is to come beside its stream.
        *((5 * MB, 0.4, 0), (63 * MB, 0.4, 0), (64 * MB, 0.4, MB), (250 * MB, 0.4, MB), (10 * MB, 100, 10 * MB)),
        *((BIG, 0.4, 4 * MB), (10_000 * MB, 0.4, 40 * MB), (BIG, 0, 0), (BIG, 100, BIG)),
    ],
)
def test_the_budget(size: int, percent: float, budget: int) -> None:
    policy = Policy(P2p(), prefix="", direct_percent=percent)
    assert policy.budget_bytes(size) == budget
    one, other = version("one", size), version("other", size)
    assert policy.direct_left_bytes(one, required=False) == budget
    policy.spend(one, MB)
    policy.spend(one, 2 * MB)
    assert policy.direct_left_bytes(one, required=False) == budget - 3 * MB
    assert policy.direct_left_bytes(other, required=False) == budget
    assert policy.direct_left_bytes(one, required=True) == 0


@pytest.mark.parametrize("hosts", [0, 1, 3])
def test_each_host_of_few_or_of_nobody_knows_how_many_has_the_budget(hosts: int) -> None:
    policy = Policy(hosts=hosts, chance=lambda: 1.0)
    assert policy.direct_left_bytes(version("one", BIG), required=False) == 4 * MB


def test_of_many_hosts_about_three_have_the_budget_of_a_version() -> None:
    hosts, versions = 300, 50
    chance = random.Random(7).random
    policies = [Policy(hosts=hosts, chance=chance) for _ in range(hosts)]
    reads = [version(str(number), BIG) for number in range(versions)]
    drawn = [sum(policy.direct_left_bytes(read, required=False) > 0 for policy in policies) for read in reads]
    assert 0.8 * DIRECT_HOSTS < sum(drawn) / versions < 1.2 * DIRECT_HOSTS
    # Another version has other hosts, and asking again draws no other lot.
    assert len(set(drawn)) > 1
    assert drawn == [sum(policy.direct_left_bytes(read, required=False) > 0 for policy in policies) for read in reads]


@pytest.mark.parametrize(("hosts", "patience_s"), [(0, 0), (3, 0.09), (100, 3), (500, 15), (10_000, 15)])
def test_hosts_of_a_large_cluster_are_patient(hosts: int, patience_s: float) -> None:
    assert Policy(hosts=hosts).patience_s("f") == pytest.approx(patience_s)
    assert Policy(P2p.parse("always"), hosts=hosts).patience_s("f") == pytest.approx(max(patience_s, 3))


def test_small_files_have_no_budget_and_need_none() -> None:
    policy = Policy(P2p.parse("*.json=always"), prefix="", direct_percent=0.4)
    small = version("small", 4 * MB)
    for _ in range(3):
        assert policy.direct_left_bytes(small, required=False) == 4 * MB
        policy.spend(small, 4 * MB)
    assert policy.direct_left_bytes(small, required=True) == 4 * MB
    assert policy.direct_left_bytes(version("small.json", 10), required=False) == 0


def test_what_was_spent_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d7yfs.fill.p2p_budget._REMEMBERED", 2)
    policy = Policy(P2p(), prefix="", direct_percent=0.4)
    for key in ("a", "b", "a", "c"):
        policy.spend(version(key, BIG), MB)
    assert [policy.direct_left_bytes(version(key, BIG), required=False) // MB for key in "acb"] == [2, 3, 4]


@pytest.mark.parametrize(
    ("prefix", "key", "path"),
    [
        ("", "a/b.bin", "a/b.bin"),
        ("a", "a/b.bin", "b.bin"),
        ("a/b", "a/b/c/d.bin", "c/d.bin"),
        ("a/b.bin", "a/b.bin", "b.bin"),
    ],
)
def test_modes_go_by_the_path_in_the_mount(prefix: str, key: str, path: str) -> None:
    policy = Policy(P2p.parse(f"/{path}=always,never"), prefix=prefix, direct_percent=0.4)
    assert policy.mode_of(key).value == "always"
    assert policy.mode_of(f"{key}.other").value == "never"


READS = st.lists(
    st.tuples(
        st.integers(0, 1 << 31), st.integers(1, 2 * MB), st.integers(0, 8 * MB),
        st.none() | st.tuples(st.integers(0, 1 << 31), st.floats(0, 1e9), st.floats(0, 5), st.floats(0, 2)),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "always"])
@given(st.integers(4 * MB + 1, 1 << 31), st.booleans(), READS)
def test_what_comes_past_the_proxy_is_bounded(
    mode: str,
    size: int,
    model: bool,
    reads: list[tuple[int, int, int, tuple[int, float, float, float] | None]],
) -> None:
    """For any reads in any order, with any stream, and even if nothing of it stays cached."""
    policy = Policy(P2p.parse(mode), prefix="", direct_percent=0.4)
    read, came = version("f", size), 0
    for index, (offset, length, run, under_way) in enumerate(reads):
        wanted = ByteRange(offset % size, offset % size + length).clip(size).aligned(BLOCK_BYTES, size)
        stream = None
        if under_way is not None:
            stream = Stream(0, under_way[0] % size, size, *under_way[1:])
        left = policy.direct_left_bytes(read, required=False)
        step = plan(size, wanted, stream, touched=index > 0, model=model, run_bytes=run, direct_left_bytes=left)
        if step.direct is not None:
            # In whole blocks, as the filler fetches.
            fetched = step.direct.aligned(BLOCK_BYTES, size).size
            policy.spend(read, fetched)
            came += fetched
    budget = policy.budget_bytes(size)
    assert came <= (budget + BLOCK_BYTES if mode == "auto" and budget else 0)
