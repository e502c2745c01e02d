"""What is asked for ahead of its expiry: what was used, when it is due, by the cheaper way, and nothing when nobody looks."""

from __future__ import annotations

import math

import pytest

from d7yfs.objects import ObjectVersion
from d7yfs.tree.freshness import Plan, plan
from d7yfs.tree.nodes import Directory, File, Node

TTL_S = 60.0


def listed(
    name: str, *, asked_at: float = 0.0, used_at: float = 1.0, life_s: float = TTL_S, entries: int = 1
) -> Directory:
    directory = Directory(hash(name), "", f"{name}/", 1)
    node: Node = File(1, "", ObjectVersion("k", 1, "v", 1), 1)
    directory.children = dict.fromkeys(map(str, range(entries)), node)
    directory.asked_at, directory.used_at, directory.expires_at = asked_at, used_at, asked_at + life_s
    return directory


def test_what_was_used_is_due_at_four_fifths_of_its_life() -> None:
    used = listed("used")
    assert not plan([used], 47.9, None)
    assert plan([used], 48.0, None) == Plan(False, (used,))
    assert plan([used], 59.9, None) == Plan(False, (used,))


def test_a_slow_listing_lives_longer_and_is_due_later() -> None:
    slow = listed("slow", life_s=250.0, used_at=200.0)
    assert not plan([slow], 199.9, None)
    assert plan([slow], 200.0, None)


def test_what_nobody_has_used_since_it_was_listed_is_left_alone() -> None:
    unused = listed("unused", asked_at=10.0, used_at=9.0)
    assert not plan([unused], 60.0, None)
    unused.used_at = 60.0
    assert plan([unused], 60.0, None), "the moment somebody does, it is"


def test_late_is_better_than_never_but_not_for_long() -> None:
    late = listed("late", used_at=50.0)
    assert plan([late], 70.0, None), "the refresher was at rest when it expired"
    assert plan([late], 109.9, None)
    assert not plan([late], 110.0, None), "nobody has looked for as long as a listing lives"


@pytest.mark.parametrize("life_s", [0.0, math.inf])
def test_what_is_always_or_never_asked_for_is_no_matter_of_time(life_s: float) -> None:
    assert not plan([listed("d", life_s=life_s, used_at=50.0)], 55.0, 1)


def test_a_directory_without_entries_known_is_nothing_to_keep() -> None:
    dropped = listed("dropped")
    dropped.children = None
    assert not plan([dropped], 50.0, None)


def test_what_was_used_last_comes_first() -> None:
    names = {name: listed(name, used_at=at) for name, at in (("a", 20.0), ("b", 40.0), ("c", 30.0))}
    assert plan(names.values(), 50.0, None).directories == (names["b"], names["c"], names["a"])


def test_whichever_way_takes_fewer_requests() -> None:
    directories = [listed(str(number)) for number in range(10)]
    assert plan(directories, 50.0, 10).whole, "equal: the flat listing knows more afterwards"
    assert not plan(directories, 50.0, 11).whole
    assert not plan(directories, 50.0, None).whole
    assert plan([listed("large", entries=5001)], 50.0, 6).whole
    assert not plan([listed("large", entries=5000)], 50.0, 6).whole


def test_what_will_be_due_soon_counts_for_the_choice() -> None:
    due, later = listed("due"), [listed(str(number), asked_at=30.0, used_at=25.0) for number in range(5)]
    assert plan([due, *later], 50.0, 6) == Plan(True, (due,))
    assert plan([due, *later], 50.0, 7) == Plan(False, (due,))


def test_a_flat_listing_is_not_made_for_nothing() -> None:
    assert not plan([], 50.0, 0)
    assert not plan([listed("fresh", asked_at=40.0, used_at=45.0)], 50.0, 1)
