"""The rule by which owner and mode of a path are judged, in all its combinations."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.host.ownership import ANYTHING, NOTHING, find_fault


def found(mode: int, uid: int = 7, gid: int = 7) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (stat.S_IFDIR | 0o755, ""),
        (stat.S_IFLNK | 0o777, "is a link, or no directory"),
        (stat.S_IFREG | 0o600, "is a link, or no directory"),
        (stat.S_IFDIR | 0o775, "can be written by other users (mode 775)"),
        (stat.S_IFDIR | 0o1777, "can be written by other users (mode 1777)"),
    ],
)
def test_a_directory(mode: int, said: str) -> None:
    assert find_fault(found(mode), (0, 7)) == said


def test_each_difference() -> None:
    shared, sticky, entered = (found(stat.S_IFDIR | mode) for mode in (0o775, 0o1777, 0o711))
    assert "uid 7" in find_fault(shared, (0,))
    assert find_fault(shared, (7,))
    assert not find_fault(shared, (7,), groups=(7,))
    assert find_fault(found(stat.S_IFDIR | 0o777), (7,), groups=(7,)), "everybody, too"
    assert find_fault(sticky, (7,))
    assert not find_fault(sticky, (7,), sticky=True)
    assert find_fault(shared, (7,), sticky=True), "without that bit"
    assert "entered" in find_fault(entered, (7,), denied=ANYTHING)
    assert not find_fault(found(stat.S_IFDIR | 0o777), (7,), denied=NOTHING)
    assert find_fault(entered, (7,), kind=stat.S_IFREG) == "is no regular file"


@given(st.integers(0, 0o7777), st.booleans(), st.booleans())
def test_what_a_stranger_could_have_made_or_can_change_has_a_fault(mode: int, mine: bool, sticky: bool) -> None:
    fault = find_fault(found(stat.S_IFDIR | mode, uid=7 if mine else 8), (7,), sticky=sticky)
    is_protected = sticky and bool(mode & stat.S_ISVTX)
    assert bool(fault) is not (mine and (is_protected or not mode & 0o022))
