"""Listings that never end."""

from __future__ import annotations

import pytest

from d7yfs.bounds import paging
from d7yfs.bounds.paging import Paging
from d7yfs.errors import BadReply
from d7yfs.objects import ListingPage, ObjectVersion


def page(key: str, next_token: str) -> ListingPage:
    objects = (ObjectVersion(key, 1, "e", 0),) if key else ()
    return ListingPage(objects, (), next_token, 0)


def test_pages_that_come_round_in_a_circle() -> None:
    pages = Paging("s3://b/m/")
    for number in range(5):
        pages.add_page(page(f"k{number}", f"t{number}"))
    with pytest.raises(BadReply, match=r"s3://b/m/: the listing does not end: its pages come round") as caught:
        pages.add_page(page("k9", "t2"))
    assert caught.value.lasting


@pytest.mark.parametrize("key", ["", "a"])
def test_pages_that_bring_nothing_new(key: str) -> None:
    pages = Paging("s3://b")
    pages.add_page(page("a", "first"))
    for number in range(999):
        pages.add_page(page(key, f"t{number}"))
    with pytest.raises(BadReply, match="1000 pages in a row bring nothing new"):
        pages.add_page(page(key, "last"))


def test_some_pages_may_be_empty() -> None:
    pages = Paging("s3://b")
    for number in range(5000):
        pages.add_page(page(f"k{number}" if number % 900 == 0 else "", f"t{number}"))
    pages.add_page(page("", ""))


def test_new_keys_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "_PAGES_MAX", 50)
    pages = Paging("s3://b")
    for number in range(49):
        pages.add_page(page(f"k{number}", f"t{number}"))
    with pytest.raises(BadReply, match="more than 50 pages"):
        pages.add_page(page("k49", "t49"))


def test_common_prefixes_are_new_too() -> None:
    pages = Paging("s3://b")
    for number in range(2000):
        pages.add_page(ListingPage((), (f"d{number}/",), f"t{number}", 0))
