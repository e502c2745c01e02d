"""One directory as its origin lists it: the pages of a delimiter listing, with keys mapped to names. Pure.

Owns the rules for which keys can be shown as names. The filesystem collects pages into a `DirectoryListing` and hands
it to `tree.Tree.apply`; `d7yfs check` and `d7yfs ls` read one directly. What cannot be shown is never dropped silently:
it is counted, and a bounded sample says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeAlias

from d7yfs.objects import ListingPage, ObjectVersion

NAME_MAX_BYTES = 255
"""Longest name in UTF-8 that Linux programs expect (NAME_MAX in limits.h)."""

HIDDEN_SAMPLE = 100
"""How many hidden keys a listing (and the tree) names; the others are only counted."""


class NoObject(Enum):
    """What a name is that is no object."""

    DIRECTORY = "directory"
    ABSENT = "absent"


Answer: TypeAlias = ObjectVersion | NoObject
"""What the origin has under one name."""


@dataclass(frozen=True, slots=True)
class HiddenKey:
    """A key that the mount cannot show, and why in words."""

    key: str
    reason: str


def name_fault(name: str) -> str:
    """Why `name` cannot be one path segment, in words; empty when it can."""
    if name in ("", ".", ".."):
        return "empty path segment" if not name else f"path segment {name!r}"
    if "/" in name or "\0" in name:
        return "slash in the name" if "/" in name else "NUL in the name"
    if name.isascii():
        size_bytes = len(name)
    else:
        try:
            size_bytes = len(name.encode())
        except UnicodeEncodeError:
            return "name is not valid Unicode"
    return f"name of {size_bytes} bytes, over {NAME_MAX_BYTES}" if size_bytes > NAME_MAX_BYTES else ""


class Reached:
    """How far the pages of a listing have come. Keys come in the order of their UTF-8, which is that of str: so what is passed is settled.

    Where they turn out not to come so (S3's directory buckets), nothing is settled before the end. Stores that keep directories (SeaweedFS)
    may list `model/` before `model-2/`, and show it late: so nothing is settled which that order would leave open.
    """

    __slots__ = ("complete", "in_segments", "key", "last_segments", "ordered")

    def __init__(self) -> None:
        self.key = ""
        """The last one in the order of keys."""
        self.ordered = True
        self.last_segments = ""
        """The last one in the order of segments, as `by_segment` has it."""
        self.in_segments = True
        """Whether keys came in that order."""
        self.complete = False

    def add(self, page: ListingPage) -> None:
        """Take note of a page."""
        first, first_segments = self.key, self.last_segments
        for part in ([version.key for version in page.objects], page.prefixes):
            if part:
                segments = [by_segment(key) for key in part]
                self.ordered = self.ordered and part[0] >= first and list(part) == sorted(part)
                self.in_segments = self.in_segments and segments[0] >= first_segments and segments == sorted(segments)
                self.key = max(self.key, part[-1])
                self.last_segments = max(self.last_segments, segments[-1])
        self.complete = not page.next_token

    def beyond(self, prefix: str) -> bool:
        """Whether all that comes before `prefix`, and something behind it, has come: then it is known whether anything lies under it."""
        return self.complete or (self.ordered and self.key > prefix and self.last_segments > by_segment(prefix))


def by_segment(key: str) -> str:
    """By which keys are in the order of their segments."""
    return key.replace("/", "\0")


class DirectoryListing:
    """The entries under `prefix`, gathered page by page.

    `prefix` is "" (the bucket's top) or ends in "/". Anything else is the key of one object, and then the listing holds
    that object alone, under the last segment of its key: this is how a URL that names one object is mounted.
    """

    __slots__ = ("_directory_prefix", "date_ns", "entries", "hidden", "hidden_count", "prefix", "reached", "withheld")

    def __init__(self, prefix: str, reached: Reached | None = None) -> None:
        self.prefix = prefix
        self._directory_prefix = prefix[: prefix.rfind("/") + 1]
        self.reached = reached or Reached()
        """How far its pages have come, or those of the `scan.Scan` that it is cut from."""
        self.entries: dict[str, ObjectVersion | None] = {}
        """By name, in the origin's order; None is a directory."""
        self.hidden: list[HiddenKey] = []
        self.hidden_count = 0
        self.withheld: Counter[str] = Counter()
        """How many of the directory's entries settings hide, by reason (see `visibility`)."""
        self.date_ns = 0
        """The newest page's Date, on the origin's clock."""

    @classmethod
    def collect(cls, prefix: str, pages: Iterable[ListingPage]) -> Self:
        """The listing made of all `pages` of `prefix`."""
        listing = cls(prefix)
        for page in pages:
            listing.add(page)
        return listing

    def answer(self, name: str) -> Answer | None:
        """What `name` is, as far as the pages have come; None while they leave it open."""
        found = self.entries.get(name, NoObject.ABSENT)
        if found is None:
            return NoObject.DIRECTORY
        return found if self.reached.beyond(f"{self._directory_prefix}{name}/") else None

    def add(self, page: ListingPage) -> None:
        """Take one page. Entries may come in any order and on any page: of `a` and `a/b`, the directory wins."""
        self.date_ns = max(self.date_ns, page.date_ns)
        self.reached.add(page)
        self.withheld.update(each.reason for each in page.withheld)
        if self.prefix != self._directory_prefix:
            for version in page.objects:
                if version.key == self.prefix:
                    self.enter(version.key, version)
            return
        for version in page.objects:
            # A trailing slash makes the key a directory marker, and the key of this very directory no entry at all.
            if version.key != self.prefix:
                self.enter(version.key, None if version.key.endswith("/") else version)
        for prefix in page.prefixes:
            self.enter(prefix, None)

    def enter(self, key: str, version: ObjectVersion | None) -> bool:
        """Take one entry: an object, or None for the directory of which `key` is the prefix. Whether it is shown."""
        if not key.startswith(self._directory_prefix):
            self._hide(key, "outside the listed prefix")
            return False
        name = key[len(self._directory_prefix) :]
        if version is None:
            name = name.removesuffix("/")
        fault = name_fault(name)
        if fault:
            self._hide(key, fault)
            return False
        if name in self.entries:
            known = self.entries[name]
            if version is not None and known is None:
                self._hide(key, "a directory has the same name")
                return False
            if version is None and known is not None:
                self._hide(known.key, "a directory has the same name")
        self.entries[name] = version
        return True

    def _hide(self, key: str, reason: str) -> None:
        self.hidden_count += 1
        if len(self.hidden) < HIDDEN_SAMPLE:
            self.hidden.append(HiddenKey(key, reason))
