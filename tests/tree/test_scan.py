"""A flat listing shows what delimiter listings of every directory show, and what it answers on the way stays true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import Answer, DirectoryListing, NoObject
from d7yfs.tree.scan import Scan, Unordered

Shown: TypeAlias = tuple[dict[str, ObjectVersion | None], set[tuple[str, str]], int, list[str], list[str]]

segments = st.sampled_from(["", ".", "..", "a", "b", "a-", "a.b", "é", "\U0001f600", "\uffff", "x" * 256, "0", "N\0L"])
keys = st.lists(segments, min_size=1, max_size=4).map("/".join).filter(bool)
buckets = st.sets(keys, max_size=25)
prefixes = st.sampled_from(["", "a/", "a/b/", "//"])


def version(key: str) -> ObjectVersion:
    return ObjectVersion(key, len(key), f'"{key}"', 5)


def pages(bucket: set[str], prefix: str, size: int, *, delimiter: str = "") -> list[ListingPage]:
    """As S3 lists, and what is passed over on the way of a delimiter listing."""
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
    listing = DirectoryListing.collect(prefix, pages(bucket, prefix, 1000, delimiter="/"))
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
    end = DirectoryListing.collect(prefix, pages(bucket, prefix, 1000, delimiter="/"))
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
