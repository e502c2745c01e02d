"""Keys become names, and a flat listing shows the same as one delimiter listing per directory.

Its answers on the way stay true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import (
    HIDDEN_SAMPLE,
    KEY_MAX_CHARACTERS,
    KEY_MAX_DIRECTORIES,
    Answer,
    DirectoryListing,
    HiddenKey,
    NoObject,
    Scan,
    TooLarge,
    Unordered,
)
from tests.tree.listings import collect

Shown: TypeAlias = tuple[dict[str, ObjectVersion | None], set[tuple[str, str]], int, list[str], list[str]]

segments = st.sampled_from(["", ".", "..", "a", "b", "a-", "a.b", "é", "\U0001f600", "\uffff", "x" * 256, "0", "N\0L"])
keys = st.lists(segments, min_size=1, max_size=4).map("/".join).filter(bool)
buckets = st.sets(keys, max_size=25)
prefixes = st.sampled_from(["", "a/", "a/b/", "//"])


def version(key: str) -> ObjectVersion:
    return ObjectVersion(key, len(key), f'"{key}"', 5)


def pages(bucket: set[str], prefix: str, size: int, *, delimiter: str = "") -> list[ListingPage]:
    """Pages as S3 lists them, with the keys that a delimiter listing passes over."""
    found: dict[str, bool] = {}
    for key in sorted(bucket, key=str.encode):
        if key.startswith(prefix):
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            found[prefix + head + cut if cut else key] = bool(cut)
    names = list(found)
    return [
        ListingPage(
            tuple(version(key) for key in names[start : start + size] if not found[key]),
            tuple(key for key in names[start : start + size] if found[key]),
            "more" if start + size < len(names) else "",
            start + 1,
        )
        for start in range(0, max(len(names), 1), size)
    ]


def shown(listing: DirectoryListing) -> Shown:
    files = [name for name, each in listing.entries.items() if each is not None]
    directories = [name for name, each in listing.entries.items() if each is None]
    hidden = {(each.key, each.reason) for each in listing.hidden}
    return dict(listing.entries), hidden, listing.hidden_count, files, sorted(directories)


def listed(bucket: set[str], prefix: str) -> Iterator[DirectoryListing]:
    """Delimiter listings of every directory from `prefix` on."""
    listing = collect(prefix, pages(bucket, prefix, 1000, delimiter="/"))
    yield listing
    for name, each in listing.entries.items():
        if each is None:
            yield from listed(bucket, f"{prefix}{name}/")


def scanned(bucket: set[str], prefix: str, size: int) -> Scan:
    scan = Scan(prefix)
    for page in pages(bucket, prefix, size):
        scan.add(page)
    return scan


@given(bucket=buckets, prefix=prefixes, size=st.integers(1, 5))
def test_it_shows_what_listings_of_every_directory_show(bucket: set[str], prefix: str, size: int) -> None:
    scan = scanned(bucket, prefix, size)
    found = list(scan.listings())
    assert {each.prefix: shown(each) for each in found} == {each.prefix: shown(each) for each in listed(bucket, prefix)}
    assert scan.objects == sum(key.startswith(prefix) for key in bucket)
    assert all(scan.listing(each.prefix) is each for each in found)
    known: set[str] = set()
    for listing in found:
        above = listing.prefix[: listing.prefix.rfind("/", 0, -1) + 1]
        assert listing.prefix == prefix or above in known, "those above come first"
        known.add(listing.prefix)


def final(listing: DirectoryListing | None, name: str) -> Answer:
    found = listing.entries.get(name, NoObject.ABSENT) if listing is not None else NoObject.ABSENT
    return NoObject.DIRECTORY if found is None else found


@given(bucket=buckets, prefix=prefixes, size=st.integers(1, 5), asked=st.lists(keys, min_size=1, max_size=5))
def test_what_it_answers_on_the_way_is_what_it_answers_in_the_end(
    bucket: set[str], prefix: str, size: int, asked: list[str]
) -> None:
    end = {each.prefix: each for each in listed(bucket, prefix)}
    questions = [f"{prefix}{each}".rpartition("/") for each in [*asked, *bucket]]
    scan = Scan(prefix)
    answered: set[tuple[str, str]] = set()
    for page in pages(bucket, prefix, size):
        scan.add(page)
        for directory in end:
            listing = scan.listing(directory)
            assert listing is None or shown(listing) == shown(end[directory])
        for above, slash, name in questions:
            directory = above + slash
            answer = scan.answer(directory, name)
            if answer is None:
                assert page.next_token or directory not in end, "all is settled in the end"
                assert (directory, name) not in answered
            elif directory.startswith(prefix):
                assert answer == final(end.get(directory), name)
                answered.add((directory, name))


@given(bucket=buckets, prefix=prefixes, size=st.integers(1, 5), name=segments)
def test_a_listing_of_one_directory_answers_on_the_way_too(bucket: set[str], prefix: str, size: int, name: str) -> None:
    end = collect(prefix, pages(bucket, prefix, 1000, delimiter="/"))
    listing = DirectoryListing(prefix)
    for page in pages(bucket, prefix, size, delimiter="/"):
        listing.add(page)
        assert listing.answer(name) in ((final(end, name),) if not page.next_token else (None, final(end, name)))


def test_a_name_is_settled_once_the_pages_have_come_past_it() -> None:
    scan = Scan("")
    first, second = (
        ListingPage(tuple(version(key) for key in page), (), "more", 1) for page in (["a", "b"], ["b/c", "d"])
    )
    scan.add(first)
    assert scan.answer("", "0") is NoObject.ABSENT
    assert scan.answer("", "a") == version("a"), "a/ would have come before b"
    assert scan.answer("", "b") is None, "b/ may be on the next page"
    assert scan.answer("a/", "x") is None, "whoever knows of a directory a/ knows something newer"
    assert scan.answer("b/", "c") is None
    scan.add(second)
    assert scan.answer("", "b") is NoObject.DIRECTORY, "of an object and a directory the directory wins"
    assert scan.answer("b/", "c") == version("b/c")
    assert scan.answer("", "e") is None


def test_a_store_that_lists_segment_by_segment_settles_nothing_too_early() -> None:
    scan = Scan("")
    scan.add(ListingPage((version("model/1/weights"),), (), "more", 1))
    assert scan.answer("", "model-2") is None, "SeaweedFS lists model-2/ behind model/"
    assert scan.answer("", "model.old") is None
    assert scan.answer("", "modal") is NoObject.ABSENT
    with pytest.raises(Unordered):
        scan.add(ListingPage((version("model-2/1/weights"),), (), "", 1))


@pytest.mark.parametrize("bad", [[["b", "a"]], [["a", "b"], ["a/c"]]])
def test_keys_out_of_order_are_refused(bad: list[list[str]]) -> None:
    scan = Scan("")
    pages = [ListingPage(tuple(version(key) for key in page), (), "more", 1) for page in bad]
    for page in pages[:-1]:
        scan.add(page)
    with pytest.raises(Unordered):
        scan.add(replace(pages[-1], next_token=""))
    assert scan.answer("", "a") is None, "it was the last page, and it is of no use"
    assert scan.answer("", "z") is None
    assert scan.listing("") is None
    assert not [*scan.listings()]


def test_a_listing_out_of_order_settles_nothing_before_its_end() -> None:
    listing = DirectoryListing("")
    listing.add(ListingPage((version("c"), version("b")), (), "more", 1))
    assert listing.answer("a") is None
    listing.add(ListingPage((version("a"),), (), "", 1))
    assert listing.answer("a") == version("a")
    assert listing.answer("z") is NoObject.ABSENT


def page(*keys: str, prefixes: tuple[str, ...] = (), date_ns: int = 7) -> ListingPage:
    return ListingPage(tuple(version(key) for key in keys), prefixes, "", date_ns)


def names(listing: DirectoryListing) -> dict[str, str]:
    return {name: "directory" if entry is None else "file" for name, entry in listing.entries.items()}


def test_keys_become_names_over_all_pages() -> None:
    listing = collect("p/", [page("p/a", prefixes=("p/d/",), date_ns=9), page("p/ünï", "p/a b\n", date_ns=8)])
    assert names(listing) == {"a": "file", "d": "directory", "ünï": "file", "a b\n": "file"}
    assert listing.entries["a"] == version("p/a")
    assert listing.date_ns == 9
    assert listing.hidden_count == 0


def test_the_marker_of_the_directory_itself_is_no_entry_but_a_marker_below_is_a_directory() -> None:
    listing = collect("p/", [page("p/", "p/empty/")])
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
    listing = collect("", pages)
    assert listing.entries["a"] is None
    assert [(hidden.key, hidden.reason) for hidden in listing.hidden] == [("a", "a directory has the same name")]
    assert listing.hidden_count == 1


def test_a_directory_seen_twice_hides_nothing() -> None:
    listing = collect("", [page("a/", prefixes=("a/",)), page(prefixes=("a/",))])
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
    listing = collect("p/", [shown, page("p/fine", prefixes=(key,) if key.endswith("/") else ())])
    assert names(listing) == {"fine": "file"}
    assert [(hidden.key, hidden.reason) for hidden in listing.hidden] == [(key, reason)]


def test_names_of_exactly_255_bytes_are_shown() -> None:
    listing = collect("", [page("x" * 255, "é" * 127)])
    assert len(listing.entries) == 2


def test_the_sample_of_hidden_keys_is_bounded_and_the_count_is_not() -> None:
    listing = collect("", [page(*(f"{'x' * 300}{i}" for i in range(HIDDEN_SAMPLE + 5)))])
    assert len(listing.hidden) == HIDDEN_SAMPLE
    assert listing.hidden_count == HIDDEN_SAMPLE + 5


def test_a_key_as_prefix_lists_that_object_alone() -> None:
    listing = collect(
        "p/model.bin", [page("p/model.bin", "p/model.bin.old", prefixes=("p/model.bin/", "p/model.bin.d/"))]
    )
    assert listing.entries == {"model.bin": version("p/model.bin")}
    assert listing.hidden_count == 0
    assert collect("top", [page("top")]).entries == {"top": version("top")}
    assert collect("p/gone", [page("p/gone2")]).entries == {}


def test_an_object_that_cannot_be_hides_itself_alone_in_both_ways_of_listing() -> None:
    bad = ObjectVersion("d/bad", 0, "", 0, fault="the store lists a size that no object has: '9'")
    good = ObjectVersion("d/good", 1, '"e"', 0)
    scan = Scan("")
    scan.add(ListingPage((bad, good), (), "", 1))
    flat = scan.listing("d/")
    listed = DirectoryListing("d/")
    listed.add(ListingPage((bad, good), (), "", 1))
    for listing in (flat, listed):
        assert listing is not None
        assert listing.entries == {"good": good}
        assert listing.hidden == [HiddenKey("d/bad", bad.fault)]
        assert listing.hidden_count == 1


def test_keys_that_no_path_can_lead_to_cost_nothing() -> None:
    """Directories that only such keys have would cost a megabyte for each key."""
    deep, long = "d/" * 100_000 + "x", "k" * 1_000_000
    scan = Scan("", 1000)
    scan.add(ListingPage(tuple(ObjectVersion(key, 1, '"e"', 0) for key in (deep, long)), (), "", 1))
    top = scan.listing("")
    assert top is not None
    assert list(top.entries) == ["d"]
    assert sum(1 for _ in scan.listings()) == KEY_MAX_DIRECTORIES + 1
    (hidden,) = top.hidden
    assert (len(hidden.key), hidden.reason) == (KEY_MAX_CHARACTERS, "name of 1000000 bytes, over 255")


def test_more_objects_and_directories_than_may_be_kept_end_a_scan() -> None:
    keys = [f"{number:04}/" + "d/" * 200 + "x" for number in range(1000)]
    scan = Scan("", 5000)
    with pytest.raises(TooLarge, match="more than 5000"):
        scan.add(ListingPage(tuple(ObjectVersion(key, 1, '"e"', 0) for key in keys), (), "next", 1))
    assert scan.answer("", "0000") is None
