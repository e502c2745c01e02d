"""The knowledge of a cache directory without a look at its disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from d7yfs.cache.census import Census

NAMES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]


def _joined(path: Path, found: Iterable[str] = ()) -> Census:
    census = Census()
    census.join(path / "daemons")
    census.take(found, census.now())
    return census


def test_absent_is_what_no_scan_has_found_and_nobody_has_opened(tmp_path: Path) -> None:
    census = _joined(tmp_path, NAMES[:1])
    assert [census.is_absent(each) for each in NAMES] == [False, True, True]
    census.note(NAMES[1])
    assert [census.is_absent(each) for each in NAMES] == [False, False, True]


def test_nothing_is_known_before_the_first_scan_or_without_having_joined(tmp_path: Path) -> None:
    census = Census()
    census.take((), census.now())
    assert not census.is_absent(NAMES[0])
    census.join(tmp_path / "daemons")
    assert not census.is_absent(NAMES[0])


def test_nothing_is_known_where_the_file_cannot_be_made(tmp_path: Path) -> None:
    assert not _joined(tmp_path / "not there").is_absent(NAMES[0])


def test_a_daemon_that_comes_may_make_files_until_a_scan_after_its_end(tmp_path: Path) -> None:
    census = _joined(tmp_path)
    assert census.is_absent(NAMES[0])
    other = _joined(tmp_path)
    assert not census.is_absent(NAMES[0])
    assert not other.is_absent(NAMES[0])
    census.take((), census.now())
    del other
    assert not census.is_absent(NAMES[0]), "it was there when the scan began"
    census.take((), census.now())
    assert census.is_absent(NAMES[0])


def test_a_daemon_that_came_and_went_unseen_is_noticed(tmp_path: Path) -> None:
    census = _joined(tmp_path)
    _joined(tmp_path)
    assert not census.is_absent(NAMES[0])
