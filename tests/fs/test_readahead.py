from __future__ import annotations

import itertools
import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.fs import readahead
from d7yfs.fs.readahead import (
    BYTES,
    DIRECTORIES,
    FILES,
    FILES_AHEAD,
    SMALL_FILE_BYTES,
    STREAMS,
    Walk,
    small_files,
)
from d7yfs.objects import PART_BYTES, ByteRange, ObjectVersion
from d7yfs.tree.nodes import Directory, File

MIB = 1 << 20
READ = 128 << 10
SIZE = 1 << 30


class Window:
    """A window with one limit for all its plans."""

    def __init__(self, size_bytes: int, *, limit_bytes: int = 64 * MIB) -> None:
        self._window = readahead.Window(size_bytes)
        self._limit_bytes = limit_bytes

    def plan(self, offset: int, size: int) -> ByteRange | None:
        return self._window.plan(offset, size, lambda: self._limit_bytes)


def sequential(window: Window, start: int, stop: int, step: int = READ) -> list[tuple[int, ByteRange]]:
    """Read `[start, stop)` in steps; the plans, each with the end of the read that led to it."""
    plans = ((offset + step, window.plan(offset, step)) for offset in range(start, stop, step))
    return [(end, plan) for end, plan in plans if plan]


def test_a_look_at_the_header_starts_nothing() -> None:
    window = Window(SIZE)
    assert window.plan(0, BYTES.proof) is None  # one read, however large
    window = Window(SIZE)
    assert sequential(window, 0, BYTES.proof - READ) == []
    assert window.plan(8 << 20, READ) is None


def test_grows_from_one_part_to_the_limit_and_stays_there() -> None:
    plans = sequential(Window(SIZE), 0, 256 * MIB)
    assert plans[0] == (BYTES.proof, ByteRange(BYTES.proof, 16 * MIB))
    assert all(a.stop == b.start for (_, a), (_, b) in itertools.pairwise(plans)), "each byte once, no gap"
    ahead = {end: plan.stop - end for end, plan in plans}
    for end, ahead_bytes in ahead.items():
        assert ahead_bytes <= max(PART_BYTES, 2 * end) + PART_BYTES, "not much more than was read so far"
    assert all(plan.stop % PART_BYTES == 0 for _, plan in plans)
    late = [ahead_bytes for end, ahead_bytes in ahead.items() if end > 64 * MIB]
    assert late
    assert all(64 * MIB <= ahead_bytes < 64 * MIB + PART_BYTES for ahead_bytes in late)


@pytest.mark.parametrize("limit_bytes", [8 * MIB, 16 * MIB, 24 * MIB])
def test_the_limit_is_an_argument(limit_bytes: int) -> None:
    plans = sequential(Window(SIZE, limit_bytes=limit_bytes), 0, 128 * MIB)
    assert max(plan.stop - end for end, plan in plans) < limit_bytes + PART_BYTES
    assert max(plan.stop - end for end, plan in plans) >= limit_bytes


def test_limit_zero_turns_it_off() -> None:
    assert sequential(Window(SIZE, limit_bytes=0), 0, 64 * MIB) == []


def test_starts_in_the_middle_too() -> None:
    plans = sequential(Window(SIZE), 100 * MIB, 104 * MIB)
    assert plans[0] == (102 * MIB, ByteRange(102 * MIB, 112 * MIB))


def test_stops_at_the_end_of_the_file() -> None:
    size = 20 * MIB + 5
    window = Window(size)
    plans = sequential(window, 0, size)
    assert plans[-1][1].stop == size
    assert sequential(window, 19 * MIB, 22 * MIB) == []
    assert window.plan(size, READ) is None
    assert window.plan(size + MIB, READ) is None
    assert Window(0).plan(0, READ) is None


def test_random_access_fetches_nothing_ahead() -> None:
    window = Window(100 * SIZE)
    rng = random.Random(7)
    assert [plan for _ in range(5000) if (plan := window.plan(rng.randrange(100 * SIZE), 4096))] == []


def test_a_page_fault_with_the_kernels_readahead_around_it_is_not_a_run() -> None:
    window = Window(100 * SIZE)
    rng = random.Random(7)
    for _ in range(500):
        start = rng.randrange(100 * SIZE // MIB) * MIB
        assert sequential(window, start, start + MIB) == []


def test_a_stride_is_no_longer_a_run_than_what_it_reads() -> None:
    window = Window(SIZE)
    plans = [plan for offset in range(0, 256 * MIB, MIB) if (plan := window.plan(offset, 4096))]
    assert plans == []


def test_repeating_the_same_bytes_is_not_a_run() -> None:
    window = Window(SIZE)
    assert [plan for _ in range(200) if (plan := window.plan(0, READ))] == []


@given(st.randoms(use_true_random=False))
def test_kernel_readahead_out_of_order_is_still_sequential(rng: random.Random) -> None:
    offsets = list(range(0, 96 * MIB, READ))
    per_window = BYTES.slack // READ
    shuffled: list[int] = []
    for i in range(0, len(offsets), per_window):
        batch = offsets[i : i + per_window]
        rng.shuffle(batch)
        shuffled += batch
    window = Window(SIZE)
    plans = [plan for offset in shuffled if (plan := window.plan(offset, READ))]
    assert all(a.stop <= b.start for a, b in itertools.pairwise(plans))
    assert plans[-1].stop >= 96 * MIB + 64 * MIB - BYTES.slack
    assert plans[0].stop <= 24 * MIB


def test_interleaved_streams_each_get_their_window() -> None:
    window = Window(100 * SIZE)
    starts = [i * SIZE for i in range(STREAMS)]
    furthest = dict.fromkeys(starts, 0)
    for step in range(0, 48 * MIB, READ):
        for start in starts:
            plan = window.plan(start + step, READ)
            if plan:
                furthest[start] = plan.stop - start
    assert set(furthest.values()) == {112 * MIB}


def test_a_seek_back_does_not_disturb_the_run_it_left() -> None:
    window = Window(SIZE)
    sequential(window, 512 * MIB, 600 * MIB)
    assert window.plan(0, READ) is None
    assert window.plan(64 * MIB, READ) is None
    plans = sequential(window, 600 * MIB, 616 * MIB)
    assert plans
    assert all(plan.stop - end >= 64 * MIB for end, plan in plans)


def test_streams_are_bounded_and_the_oldest_gives_way() -> None:
    window = Window(100 * SIZE)
    sequential(window, 0, 32 * MIB)
    for i in range(1, STREAMS + 1):
        window.plan(i * SIZE, READ)
    assert sequential(window, 32 * MIB, 32 * MIB + BYTES.proof - READ) == [], "it has to prove itself again"


@given(
    st.integers(0, 40 * MIB),
    st.sampled_from([0, PART_BYTES, 3 * PART_BYTES]),
    st.lists(st.tuples(st.integers(0, 48 * MIB), st.integers(0, 4 * MIB), st.integers(1, 12)), max_size=30),
)
def test_plans_are_inside_the_file_ahead_of_the_reader_and_bounded(
    size_bytes: int, limit_bytes: int, runs: list[tuple[int, int, int]]
) -> None:
    window = Window(size_bytes, limit_bytes=limit_bytes)
    for start, step, count in runs:
        for i in range(count):
            plan = window.plan(start + i * step, step)
            if plan:
                end = start + (i + 1) * step
                assert plan
                assert plan.stop <= size_bytes
                assert plan.start >= min(end, size_bytes)
                assert plan.stop <= end + BYTES.slack + 4 * MIB + limit_bytes + PART_BYTES


FIRST_INODE = 100


def files(count: int, *, size_bytes: int = 4096) -> list[File]:
    return [
        File(FIRST_INODE + index, "", ObjectVersion(f"{index:05}", size_bytes, '"1"', 1), 1) for index in range(count)
    ]


def walk_of(count: int) -> Walk[File]:
    return Walk(files(count), FILES)


def planned(walk: Walk[File], *positions: int) -> list[int]:
    """Positions of the files to fetch after each of `positions` has been read."""
    readers = files(max(positions) + 1)
    return [file.inode - FIRST_INODE for position in positions for file in walk.plan(readers[position], FILES_AHEAD)]


def test_a_few_files_prove_nothing() -> None:
    assert planned(walk_of(1000), 0, 1, 2) == []


def test_files_that_lie_apart_prove_nothing() -> None:
    assert planned(walk_of(10_000), *range(0, 10_000, 100)) == []


def test_one_file_read_over_and_over_proves_nothing() -> None:
    assert planned(walk_of(1000), *[7] * 100) == []


def test_who_reads_in_order_finds_every_file_fetched_once_and_not_too_early() -> None:
    walk = walk_of(1000)
    ahead: list[int] = []
    for position in range(1000):
        ahead += planned(walk, position)
        beyond = max(ahead, default=0) - position
        assert beyond <= max(FILES.part, 2 * (position + 1)) + FILES.part, "not much more than was read so far"
        assert beyond <= FILES_AHEAD + FILES.part
    assert ahead == list(range(4, 1000))


@pytest.mark.parametrize("seed", range(5))
def test_threads_that_share_the_work_read_in_order_as_a_whole(seed: int) -> None:
    rng = random.Random(seed)
    groups = [range(start, start + 8) for start in range(0, 1000, 8)]
    order = chain.from_iterable(rng.sample(group, len(group)) for group in groups)
    walk = walk_of(1000)
    ahead = planned(walk, *order)
    assert len(ahead) == len(set(ahead))
    assert len(ahead) > 950


def test_threads_that_split_the_directory_are_followed_each() -> None:
    walk = walk_of(1000)
    order = [start + step for step in range(250) for start in (0, 250, 500, 750)]
    assert len(set(planned(walk, *order))) > 950


def test_only_small_files_are_fetched() -> None:
    large = File(1, "", ObjectVersion("large", SMALL_FILE_BYTES + 1, '"1"', 1), 1)
    empty = File(2, "", ObjectVersion("empty", 0, '"1"', 1), 1)
    entries: list[Directory | File] = [Directory(3, "", "d/", 1), large, empty, *files(20, size_bytes=SMALL_FILE_BYTES)]
    assert [each.inode for each in small_files(entries)] == list(range(FIRST_INODE, FIRST_INODE + 20))
    assert list(Walk(files(20), FILES).plan(large, FILES_AHEAD)) == []


def test_directories_of_few_files_are_walked_as_files_are() -> None:
    directories = [Directory(FIRST_INODE + index, "", f"{index}/", 1) for index in range(100)]
    walk = Walk(directories, DIRECTORIES)
    ahead = [each for directory in directories for _ in range(2) for each in walk.plan(directory, 16)]
    assert ahead == directories[3:], "each once, although each directory has two files"
