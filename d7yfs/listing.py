"""One directory as its origin lists it: the pages of a delimiter listing, with keys mapped to names. Pure.

Owns the rules for which keys can be shown as names. The filesystem collects pages into a `DirectoryListing` and hands
it to `tree.Tree.apply`; `d7yfs check` and `d7yfs ls` read one directly. What cannot be shown is never dropped silently:
it is counted, and a bounded sample says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from d7yfs.objects import ListingPage, ObjectVersion

NAME_MAX_BYTES = 255
"""Longest name in UTF-8 that Linux programs expect (NAME_MAX in limits.h)."""

HIDDEN_SAMPLE = 100
"""How many hidden keys a listing (and the tree) names; the others are only counted."""


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


class DirectoryListing:
    """The entries under `prefix`, gathered page by page.

    `prefix` is "" (the bucket's top) or ends in "/". Anything else is the key of one object, and then the listing holds
    that object alone, under the last segment of its key: this is how a URL that names one object is mounted.
    """

    __slots__ = ("_directory_prefix", "date_ns", "entries", "hidden", "hidden_count", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._directory_prefix = prefix[: prefix.rfind("/") + 1]
        self.entries: dict[str, ObjectVersion | None] = {}
        """By name, in the origin's order; None is a directory."""
        self.hidden: list[HiddenKey] = []
        self.hidden_count = 0
        self.date_ns = 0
        """The newest page's Date, on the origin's clock."""

    @classmethod
    def collect(cls, prefix: str, pages: Iterable[ListingPage]) -> Self:
        """The listing made of all `pages` of `prefix`."""
        listing = cls(prefix)
        for page in pages:
            listing.add(page)
        return listing

    def add(self, page: ListingPage) -> None:
        """Take one page. Entries may come in any order and on any page: of `a` and `a/b`, the directory wins."""
        self.date_ns = max(self.date_ns, page.date_ns)
        if self.prefix != self._directory_prefix:
            for version in page.objects:
                if version.key == self.prefix:
                    self._add(version.key, version)
            return
        for version in page.objects:
            # A trailing slash makes the key a directory marker, and the key of this very directory no entry at all.
            if version.key != self.prefix:
                self._add(version.key, None if version.key.endswith("/") else version)
        for prefix in page.prefixes:
            self._add(prefix, None)

    def _add(self, key: str, version: ObjectVersion | None) -> None:
        if not key.startswith(self._directory_prefix):
            self._hide(key, "outside the listed prefix")
            return
        name = key[len(self._directory_prefix) :]
        if version is None:
            name = name.removesuffix("/")
        fault = name_fault(name)
        if fault:
            self._hide(key, fault)
            return
        if name in self.entries:
            known = self.entries[name]
            if version is not None and known is None:
                self._hide(key, "a directory has the same name")
                return
            if version is None and known is not None:
                self._hide(known.key, "a directory has the same name")
        self.entries[name] = version

    def _hide(self, key: str, reason: str) -> None:
        self.hidden_count += 1
        if len(self.hidden) < HIDDEN_SAMPLE:
            self.hidden.append(HiddenKey(key, reason))
