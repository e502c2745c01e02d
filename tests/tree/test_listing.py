from __future__ import annotations

import pytest

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import HIDDEN_SAMPLE, DirectoryListing


def version(key: str) -> ObjectVersion:
    return ObjectVersion(key, 1, '"e"', mtime_ns=5)


def page(*keys: str, prefixes: tuple[str, ...] = (), date_ns: int = 7) -> ListingPage:
    return ListingPage(tuple(version(key) for key in keys), prefixes, "", date_ns)


def names(listing: DirectoryListing) -> dict[str, str]:
    return {name: "directory" if entry is None else "file" for name, entry in listing.entries.items()}


def test_keys_become_names_over_all_pages() -> None:
    listing = DirectoryListing.collect(
        "p/", [page("p/a", prefixes=("p/d/",), date_ns=9), page("p/ünï", "p/a b\n", date_ns=8)]
    )
    assert names(listing) == {"a": "file", "d": "directory", "ünï": "file", "a b\n": "file"}
    assert listing.entries["a"] == version("p/a")
    assert listing.date_ns == 9
    assert listing.hidden_count == 0


def test_the_marker_of_the_directory_itself_is_no_entry_but_a_marker_below_is_a_directory() -> None:
    listing = DirectoryListing.collect("p/", [page("p/", "p/empty/")])
    assert names(listing) == {"empty": "directory"}
    assert listing.hidden_count == 0


@pytest.mark.parametrize(
    "pages",
    [
        [page("a", prefixes=("a/",))],
        [page("a"), page("a-b"), page(prefixes=("a/",))],
        [page(prefixes=("a/",)), page("a")],
        [page("a", "a/")],
    ],
)
def test_of_an_object_and_a_directory_the_directory_wins(pages: list[ListingPage]) -> None:
    listing = DirectoryListing.collect("", pages)
    assert listing.entries["a"] is None
    assert [(hidden.key, hidden.reason) for hidden in listing.hidden] == [("a", "a directory has the same name")]
    assert listing.hidden_count == 1


def test_a_directory_seen_twice_hides_nothing() -> None:
    listing = DirectoryListing.collect("", [page("a/", prefixes=("a/",)), page(prefixes=("a/",))])
    assert names(listing) == {"a": "directory"}
    assert listing.hidden_count == 0


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("p/.", "path segment '.'"),
        ("p/..", "path segment '..'"),
        ("p/../", "path segment '..'"),
        ("p//", "empty path segment"),
        ("p/a/b", "slash in the name"),
        ("p/a\0b", "NUL in the name"),
        ("p/" + "x" * 256, "name of 256 bytes, over 255"),
        ("p/" + "é" * 128, "name of 256 bytes, over 255"),
        ("p/" + "é" * 128 + "/", "name of 256 bytes, over 255"),
        ("p/\udc80", "name is not valid Unicode"),
        ("q/a", "outside the listed prefix"),
    ],
)
def test_hides_what_cannot_be_a_name(key: str, reason: str) -> None:
    shown = page() if key.endswith("/") else page(key)
    listing = DirectoryListing.collect("p/", [shown, page("p/fine", prefixes=(key,) if key.endswith("/") else ())])
    assert names(listing) == {"fine": "file"}
    assert [(hidden.key, hidden.reason) for hidden in listing.hidden] == [(key, reason)]


def test_names_of_exactly_255_bytes_are_shown() -> None:
    listing = DirectoryListing.collect("", [page("x" * 255, "é" * 127)])
    assert len(listing.entries) == 2


def test_the_sample_of_hidden_keys_is_bounded_and_the_count_is_not() -> None:
    listing = DirectoryListing.collect("", [page(*(f"{'x' * 300}{i}" for i in range(HIDDEN_SAMPLE + 5)))])
    assert len(listing.hidden) == HIDDEN_SAMPLE
    assert listing.hidden_count == HIDDEN_SAMPLE + 5


def test_a_key_as_prefix_lists_that_object_alone() -> None:
    listing = DirectoryListing.collect(
        "p/model.bin", [page("p/model.bin", "p/model.bin.old", prefixes=("p/model.bin/", "p/model.bin.d/"))]
    )
    assert listing.entries == {"model.bin": version("p/model.bin")}
    assert listing.hidden_count == 0
    assert DirectoryListing.collect("top", [page("top")]).entries == {"top": version("top")}
    assert DirectoryListing.collect("p/gone", [page("p/gone2")]).entries == {}
