"""When a disk has fallen behind: not for one write that took long, but for waiting that adds up."""

from __future__ import annotations

from d7yfs.cache.pace import FORGIVEN, PATIENCE_S, QUICK_S, REST_S, Pace

MOMENT_S = 0.001


class Writes:
    """Writes that take as long as they are told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pace = Pace()

    def take(self, takes_s: float) -> bool:
        """Whether the disk is slow after a write."""
        self.now_s += takes_s
        self.pace.took(takes_s, self.now_s)
        return self.is_slow

    @property
    def is_slow(self) -> bool:
        return self.pace.is_slow(self.now_s)


def test_a_quick_disk_is_trusted() -> None:
    writes = Writes()
    assert not any(writes.take(QUICK_S * 0.9) for _ in range(1000))


def test_a_busy_machine_is_no_slow_disk() -> None:
    writes = Writes()
    for _ in range(100):
        assert not writes.take(PATIENCE_S / 2)
        writes.now_s += PATIENCE_S / 2 / FORGIVEN
    assert not writes.take(PATIENCE_S / 3)


def test_many_short_waits_are_a_slow_disk() -> None:
    writes, count = Writes(), 1
    while not writes.take(5 * QUICK_S):
        count += 1
    assert PATIENCE_S / (5 * QUICK_S) <= count <= 2 * PATIENCE_S / (5 * QUICK_S)


def test_a_slow_disk_is_not_trusted_for_a_while() -> None:
    writes = Writes()
    assert writes.take(PATIENCE_S + MOMENT_S)
    assert writes.take(0.0), "that the disk was quick once says little"
    writes.now_s += REST_S - MOMENT_S
    assert writes.is_slow
    writes.now_s += 2 * MOMENT_S
    assert not writes.is_slow


def test_another_slow_write_prolongs_it() -> None:
    writes = Writes()
    for _ in range(3):
        assert writes.take(PATIENCE_S + MOMENT_S)
        writes.now_s += REST_S - MOMENT_S
