"""A published tree is what was listed, or nothing: whatever the bytes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import DirectoryListing, Scan
from d7yfs.tree.published import POINTER_MAX_BYTES, Damaged, Pointer, PublishedTree, encode_listings, snapshot_key
from d7yfs.tree.reserved import hide_reserved, is_reserved

names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=6)
keys = st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), min_size=1, max_size=30)


def scan_of(prefix: str, listed: set[str]) -> Scan:
    scan = Scan(prefix)
    versions = tuple(ObjectVersion(prefix + key, len(key), f'"{key}"', 7) for key in sorted(listed))
    scan.add(ListingPage(versions, (), "", 0))
    return scan


def published(prefix: str, scan: Scan) -> tuple[bytes, Pointer]:
    data, entries, directories, files = encode_listings(prefix, scan.listings(), zlib.Z_BEST_SPEED)
    return data, pointer_to(data, entries=entries, directories=directories, files=files)


def pointer_to(data: bytes, *, entries: int = 0, directories: int = 0, files: int = 0) -> Pointer:
    return Pointer(
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        entries=entries,
        directories=directories,
        files=files,
        published_at=100.0,
    )


def opened(prefix: str, *listed: str) -> PublishedTree:
    return PublishedTree.open(*published(prefix, scan_of(prefix, {*listed})), prefix, 200.0)


def listings_of(tree: PublishedTree, prefix: str) -> dict[str, Mapping[str, ObjectVersion | None]]:
    found: dict[str, Mapping[str, ObjectVersion | None]] = {}
    waiting = [prefix]
    while waiting:
        listing = DirectoryListing(waiting.pop())
        for page in tree.pages(listing.prefix):
            listing.add(page)
        found[listing.prefix] = listing.entries
        waiting += [f"{listing.prefix}{name}/" for name, version in listing.entries.items() if version is None]
    return found


@given(keys, st.sampled_from(["", "a/b/"]))
def test_it_lists_what_was_listed(listed: set[str], prefix: str) -> None:
    scan = scan_of(prefix, listed)
    expected = {each.prefix: each.entries for each in scan.listings()}
    tree = PublishedTree.open(*published(prefix, scan), prefix, 200.0)
    assert listings_of(tree, prefix) == expected
    for directory, entries in expected.items():
        assert tree.has_directory(directory)
        for name, version in entries.items():
            assert tree.find(directory + name) == version
    assert tree.find(f"{prefix}absent/x") is None
    assert not tree.has_directory(f"{prefix}absent-for-sure/")


@given(keys)
def test_the_same_names_make_the_same_bytes(listed: set[str]) -> None:
    assert published("", scan_of("", listed)) == published("", scan_of("", listed))


def test_large_directories_come_in_pages_and_nothing_is_left_out() -> None:
    listed = [f"huge/{at:05}" for at in range(5000)] + [f"huge/{at:05}/x" for at in range(5000, 5100)]
    tree = opened("", "before", "hugely/x", *listed)
    pages = [*tree.pages("huge/")]
    assert len(pages) > 2
    shown = [key for page in pages for key in [*(each.key for each in page.objects), *page.prefixes]]
    assert sorted(shown) == sorted(
        [f"huge/{at:05}" for at in range(5000)] + [f"huge/{at:05}/" for at in range(5000, 5100)]
    )
    assert all(max(map(_last, pages[:at])) < _first(pages[at]) for at in range(1, len(pages)))


def _first(page: ListingPage) -> str:
    return min([*(each.key for each in page.objects), *page.prefixes])


def _last(page: ListingPage) -> str:
    return max([*(each.key for each in page.objects), *page.prefixes])


@given(st.data())
def test_no_altered_byte_is_believed(data: st.DataObject) -> None:
    whole, pointer = published("", scan_of("", {"a/b", "c"}))
    at = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with pytest.raises(Damaged):
        PublishedTree.open(altered, pointer, "", 200.0)
    with suppress(Damaged):  # the digest is right, and what it is of is not: nothing else is raised
        listings_of(PublishedTree.open(altered, pointer_to(altered, entries=3, directories=2, files=2), "", 200.0), "")


def test_a_whole_snapshot_of_another_digest_is_refused() -> None:
    _, pointer = published("", scan_of("", {"a", "b"}))
    other, _ = published("", scan_of("", {"a", "c"}))
    same_size = replace(pointer, size_bytes=len(other))
    with pytest.raises(Damaged, match="not those that were published"):
        PublishedTree.open(other, same_size, "", 200.0)


def test_a_tree_of_something_else_is_refused() -> None:
    data, pointer = published("a/", scan_of("a/", {"x"}))
    for prefix in ("", "b/", "a/x/"):
        with pytest.raises(Damaged, match="of the prefix"):
            PublishedTree.open(data, pointer, prefix, 200.0)


def test_directories_outside_of_the_prefix_are_refused() -> None:
    """As a writer of snapshots could make them."""
    outside = DirectoryListing("secret/")
    outside.entries["key"] = ObjectVersion("secret/key", 1, '"e"', 1)
    top = DirectoryListing("a/")
    data, entries, directories, files = encode_listings("a/", iter([top, outside]), 1)
    with pytest.raises(Damaged, match="outside of its prefix"):
        PublishedTree.open(data, pointer_to(data, entries=entries, directories=directories, files=files), "a/", 2.0)


def test_what_becomes_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d7yfs.tree.published._LEAST_UNPACKED_BYTES", 1000)
    monkeypatch.setattr("d7yfs.tree.published._UNPACKED", 1)
    with pytest.raises(Damaged, match="larger than any tree"):
        opened("", *(f"{'a' * 200}-{at}" for at in range(3000)))


def test_a_pointer_comes_back_as_it_was() -> None:
    _, pointer = published("", scan_of("", {"a"}))
    assert Pointer.decode(pointer.encode()) == pointer
    more = json.loads(pointer.encode()) | {"later": "field"}
    assert Pointer.decode(json.dumps(more).encode()) == pointer
    assert pointer.snapshot == snapshot_key(pointer.sha256)


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": ".d7yfs/tree/../../secret"},
        {"sha256": "A" * 64},
        {"sha256": "../" * 21 + "x"},
        {"sha256": 1},
        {"size_bytes": -1},
        {"size_bytes": 1 << 40},
        {"size_bytes": True},
        {"entries": 1 << 40},
        {"files": "many"},
        {"published_at": None},
        {"published_at": float("inf")},
        {"publisher": 3},
        {"publisher": "x" * 1000},
        {"format": 2},
        {"format": None},
    ],
    ids=str,
)
def test_no_other_pointer_is_believed(changes: dict[str, object]) -> None:
    _, pointer = published("", scan_of("", {"a"}))
    with pytest.raises(Damaged):
        Pointer.decode(json.dumps(json.loads(pointer.encode()) | changes).encode())


@given(st.binary(max_size=200) | st.sampled_from([b"[" * POINTER_MAX_BYTES, b" " * (POINTER_MAX_BYTES + 1)]))
def test_anything_else_is_no_pointer(data: bytes) -> None:
    with pytest.raises(Damaged):
        Pointer.decode(data)


@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        (".d7yfs/", True),
        (".d7yfs/published", True),
        ("a/.d7yfs/tree/x", True),
        (".d7yfs", False),
        ("a.d7yfs/x", False),
        ("x/.d7yfs-old/", False),
    ],
)
def test_what_is_reserved(path: str, reserved: bool) -> None:
    assert is_reserved(path) == reserved
    page = ListingPage((ObjectVersion(f"p/{path}", 0, "", 0),), (f"p/{path}",), "", 0)
    assert bool(hide_reserved(page, "p/").objects) == (not reserved)
    assert bool(hide_reserved(page, "p/").prefixes) == (not reserved)
