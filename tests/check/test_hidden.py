"""The kinds of keys that no mount can show."""

from __future__ import annotations

import pytest

from d7yfs.check.hidden import check_hidden
from d7yfs.check.sample import Sample, make_sample
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.visibility import Visibility


@pytest.mark.parametrize(
    ("key", "fault", "kind"),
    [
        ("p/n\ud800", "", "a name that is not valid Unicode"),
        ("p/" + "kkkk/" * 205, "", "a key that is too long"),
        ("p/old", "the store lists a date before 1970", "a size, a date or an ETag that no file can have"),
    ],
)
def test_a_kind_of_key(key: str, fault: str, kind: str) -> None:
    page = ListingPage((ObjectVersion(key, 1, "v", 0, fault=fault),), (), "", 0)
    sample = make_sample([page], "p/", Visibility("p"))
    (found,) = check_hidden("s3://b/p", DirectoryListing("p/"), sample)
    assert found.said.startswith(f"s3://b/p: 1 key cannot be shown, with {kind}: ")
    assert sample.objects == ([] if fault else list(page.objects))


def test_a_key_that_is_outside_of_the_prefix() -> None:
    listing = DirectoryListing("p/")
    listing.add(ListingPage((ObjectVersion("q/x", 1, "v", 0),), (), "", 0))
    (found,) = check_hidden("s3://b/p", listing, Sample([]))
    assert "outside of the listed prefix: 'q/x'" in found.said


def test_keys_in_any_order_are_one_sample() -> None:
    """As in S3's directory buckets, and on two pages."""
    pages = [
        ListingPage(tuple(ObjectVersion(f"p/{name}", 1, "v", 0) for name in names), (), token, 0)
        for names, token in ((("b/2", "a/1"), "more"), (("c", "a/0"), "yet more"))
    ]
    sample = make_sample(pages, "p/", Visibility("p"))
    assert {prefix: list(entries) for prefix, entries in sample.tree.items()} == {
        "p/": ["a", "b", "c"],
        "p/a/": ["0", "1"],
        "p/b/": ["2"],
    }
    assert [sample.knows(prefix) for prefix in ("p/a/", "p/")] == [True, False]
