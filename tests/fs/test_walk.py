from __future__ import annotations

import random
from itertools import chain

import pytest

from d7yfs.fs.walk import FILES, FILES_AHEAD, SMALL_FILE_BYTES, Walk
from d7yfs.objects import ObjectVersion
from d7yfs.tree.nodes import Directory, File, Node

FIRST_INODE = 100


def files(count: int, *, size_bytes: int = 4096) -> list[Node]:
    return [
        File(FIRST_INODE + index, "", ObjectVersion(f"{index:05}", size_bytes, '"1"', 1), 1) for index in range(count)
    ]


def planned(walk: Walk, *positions: int) -> list[int]:
    """Positions of the files to fetch after each of `positions` has been read."""
    return [file.inode - FIRST_INODE for position in positions for file in walk.plan(FIRST_INODE + position)]


def test_a_few_files_prove_nothing() -> None:
    assert planned(Walk(files(1000)), 0, 1, 2) == []


def test_files_that_lie_apart_prove_nothing() -> None:
    assert planned(Walk(files(10_000)), *range(0, 10_000, 100)) == []


def test_one_file_read_over_and_over_proves_nothing() -> None:
    assert planned(Walk(files(1000)), *[7] * 100) == []


def test_who_reads_in_order_finds_every_file_fetched_once_and_not_too_early() -> None:
    walk = Walk(files(1000))
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
    walk = Walk(files(1000))
    ahead = planned(walk, *order)
    assert len(ahead) == len(set(ahead))
    assert len(ahead) > 950


def test_threads_that_split_the_directory_are_followed_each() -> None:
    walk = Walk(files(1000))
    order = [start + step for step in range(250) for start in (0, 250, 500, 750)]
    assert len(set(planned(walk, *order))) > 950


def test_only_small_files_are_fetched() -> None:
    large = File(1, "", ObjectVersion("large", SMALL_FILE_BYTES + 1, '"1"', 1), 1)
    empty = File(2, "", ObjectVersion("empty", 0, '"1"', 1), 1)
    walk = Walk([Directory(3, "", "d/", 1), large, empty, *files(20, size_bytes=SMALL_FILE_BYTES)])
    assert walk.plan(1) == walk.plan(2) == walk.plan(3) == ()
    assert planned(walk, 0, 1, 2, 3)[0] == 4
