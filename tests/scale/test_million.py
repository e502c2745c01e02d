"""A directory with a million entries, with the default limits of d7yfs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.mount.huge_directory import Running, huge_store, mount
from tests.mount.mounted import Mounted, Mounter, in_background, until, within

COUNT = 1_000_000
MIB = 1 << 20
TIMEOUT_S = 600.0


@pytest.fixture
def store() -> Iterator[Running]:
    with huge_store(COUNT) as running:
        yield running


@pytest.fixture
def mounted(mounter: Mounter, store: Running) -> Mounted:
    return mount(mounter, store)


def scan(path: Path, stop: int, *, attributes: bool) -> tuple[int, int]:
    """The number of entries and of distinct names in a directory, up to `stop` entries."""
    entries = 0
    numbers = bytearray(COUNT)
    with os.scandir(path) as each:
        for entry in islice(each, stop):
            if attributes:
                assert entry.stat().st_size == len("huge/") + len(entry.name)
            numbers[int(entry.name[6:13])] = 1
            entries += 1
    return entries, sum(numbers)


@pytest.mark.parametrize(("stop", "attributes"), [(COUNT + 1, False), (300_000, True)])
def test_a_million_entries(mounted: Mounted, store: Running, stop: int, attributes: bool) -> None:
    """All names alone, or as many with their attributes as exceed the kernel's limit."""
    assert mounted.read("small.txt") == b"small.txt"
    within(TIMEOUT_S, (mounted.point / "huge").stat)
    before = mounted.status()
    began_at = time.monotonic()
    reading = in_background(lambda: scan(mounted.point / "huge", stop, attributes=attributes))
    reads = 0
    while not reading.done():
        assert mounted.read_anew("small.txt") == b"small.txt"
        reads += 1
    count = min(stop, COUNT)
    assert reading.result() == (count, count)
    assert reads > 10
    after = mounted.status()
    # Names alone leave a few pages and a token per page. With attributes the daemon knows
    # --max-inodes and an eighth more, at 1 KiB each.
    bound = 225_000 << 10 if attributes else 32 * MIB
    assert after["rss_bytes"] - before["rss_bytes"] < bound
    until(lambda: mounted.status()["tree"]["remembered"] <= 150_001, "the kernel to forget inodes")
    print(
        f"{count} entries in {time.monotonic() - began_at:.0f} s, {len(store.server.listings())} listings, "
        f"{len(store.server.looked_up())} lookups, {reads} reads meanwhile, "
        f"{(after['rss_bytes'] - before['rss_bytes']) / MIB:.1f} MiB more"
    )
