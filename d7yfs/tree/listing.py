"""Listings as an origin gives them, page by page, with keys mapped to names. Pure.

`DirectoryListing` gathers one directory; `Scan` cuts a flat listing of all below a prefix into its
directories. Both go to `tree.Tree.apply`. Owns the rules for which keys can be shown as names: a
key that cannot be shown is counted, and a bounded sample says why.

A `Scan` shows the same names as one delimiter listing per directory, with the same names hidden for
the same reasons. Its answers on the way hold when it is over: keys come in the order of their
UTF-8, so all of a directory comes in one stretch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from d7yfs.objects import ListingPage, ObjectVersion

NAME_MAX_BYTES = 255
"""The longest name in UTF-8 that Linux programs expect (NAME_MAX in limits.h)."""

HIDDEN_SAMPLE = 100
"""The most hidden keys that a listing (and the tree) names; the others are only counted."""


KEY_MAX_CHARACTERS = 1024
"""The longest key: that of every provider."""

KEY_MAX_DIRECTORIES = 256
"""The most directories on the path to an entry."""


class NoObject(Enum):
    """The meaning of a name that is no object."""

    DIRECTORY = "directory"
    ABSENT = "absent"


Answer: TypeAlias = ObjectVersion | NoObject
"""The meaning of one name at the origin."""


@dataclass(frozen=True, slots=True)
class HiddenKey:
    """A key that the mount cannot show, and the reason in words."""

    key: str
    reason: str


def name_fault(name: str) -> str:
    """The reason why `name` cannot be one path segment, in words; empty when it can."""
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


def key_fault(key: str) -> str:
    """The reason why no path can lead to `key`, in words; empty when one can."""
    if len(key) > KEY_MAX_CHARACTERS:
        return f"key of {len(key)} characters, over {KEY_MAX_CHARACTERS}"
    depth = key.count("/")
    return f"in {depth} directories, over {KEY_MAX_DIRECTORIES}" if depth > KEY_MAX_DIRECTORIES else ""


class Reached:
    """The last key that the pages of a listing have reached.

    Keys come in the order of their UTF-8, which is that of str: all keys before it are settled. If
    pages break that order (S3's directory buckets), nothing is settled before the end. Stores that
    keep directories (SeaweedFS) may list `model/` before `model-2/`: a name is settled only where
    that order settles it too.
    """

    __slots__ = ("complete", "in_segments", "key", "last_segments", "ordered")

    def __init__(self) -> None:
        self.key = ""
        """The last key in the order of keys."""
        self.ordered = True
        self.last_segments = ""
        """The last key in the order of segments, as `by_segment` has it."""
        self.in_segments = True
        """True if keys came in that order."""
        self.complete = False

    def add(self, page: ListingPage) -> None:
        """Add a page."""
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
        """True if the pages have passed `prefix`: it is known whether anything lies under it."""
        return self.complete or (self.ordered and self.key > prefix and self.last_segments > by_segment(prefix))


def by_segment(key: str) -> str:
    """The sort key that puts keys in the order of their segments."""
    return key.replace("/", "\0")


class DirectoryListing:
    """The entries under `prefix`, gathered page by page.

    `prefix` is "" (the bucket's top) or ends in "/". Anything else is the key of one object: then
    the listing holds that object alone, under the last segment of its key. So a URL that names one
    object is mounted.
    """

    __slots__ = (
        *("_directory_prefix", "_most_hidden", "date_ns", "entries"),
        *("hidden", "hidden_count", "prefix", "reached", "withheld"),
    )

    def __init__(self, prefix: str, reached: Reached | None = None, most_hidden: float = HIDDEN_SAMPLE) -> None:
        """`most_hidden` bounds the hidden keys that it names."""
        self.prefix = prefix
        self._most_hidden = most_hidden
        self._directory_prefix = prefix[: prefix.rfind("/") + 1]
        self.reached = reached or Reached()
        """The progress of its pages, or that of the `Scan` that it is cut from."""
        self.entries: dict[str, ObjectVersion | None] = {}
        """By name, in the origin's order; None is a directory."""
        self.hidden: list[HiddenKey] = []
        self.hidden_count = 0
        self.withheld: Counter[str] = Counter()
        """The number of the directory's entries that settings hide, by reason."""
        self.date_ns = 0
        """The newest page's Date, on the origin's clock."""

    def answer(self, name: str) -> Answer | None:
        """The meaning of `name`, as far as the pages have come; None while they leave it open."""
        found = self.entries.get(name, NoObject.ABSENT)
        if found is None:
            return NoObject.DIRECTORY
        return found if self.reached.beyond(f"{self._directory_prefix}{name}/") else None

    def add(self, page: ListingPage) -> None:
        """Add one page. Entries may come in any order and on any page: of `a` and `a/b`, the
        directory wins."""
        self.date_ns = max(self.date_ns, page.date_ns)
        self.reached.add(page)
        self.withheld.update(each.reason for each in page.withheld)
        is_lone = self.prefix != self._directory_prefix
        for version in page.objects:
            # A trailing slash makes the key a directory marker; the key of this directory is no
            # entry.
            if (version.key == self.prefix) == is_lone:
                self.enter(version.key, None if version.key.endswith("/") else version)
        for prefix in () if is_lone else page.prefixes:
            self.enter(prefix, None)

    def enter(self, key: str, version: ObjectVersion | None) -> bool:
        """Add one entry: an object, or None for the directory of which `key` is the prefix. True if
        it is shown."""
        if not key.startswith(self._directory_prefix):
            self._hide(key, "outside the listed prefix")
            return False
        name = key[len(self._directory_prefix) :]
        if version is None:
            name = name.removesuffix("/")
        fault = name_fault(name) or key_fault(key) or (version.fault if version is not None else "")
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
        if len(self.hidden) < self._most_hidden:
            self.hidden.append(HiddenKey(key[:KEY_MAX_CHARACTERS], reason))


class Unordered(Exception):
    """Keys out of order, as in S3's directory buckets: earlier answers may be wrong, and the scan
    is of no use."""

    reason: ClassVar = "its keys do not come in order"


class TooLarge(Exception):
    """More objects and directories than may be kept."""

    reason: ClassVar = "it has more objects and directories than --max-inodes"


class Scan:
    """A flat listing of all below `prefix`, which is "" or ends in a slash."""

    def __init__(self, prefix: str, most_entries: float = math.inf, most_hidden: float = HIDDEN_SAMPLE) -> None:
        """`most_entries` bounds its objects and directories together, `most_hidden` the hidden keys that
        each directory names."""
        self.prefix = prefix
        self._most_hidden = most_hidden
        self._most_entries = most_entries
        self.objects = 0
        """The number of listed objects, including hidden ones."""
        self.reached = Reached()
        self._date_ns = 0
        self._directories: dict[str, DirectoryListing | None] = {
            prefix: DirectoryListing(prefix, self.reached, most_hidden)
        }
        """Directories by prefix, parents first; None is one that cannot be shown, and nor can any
        below it."""

    def add(self, page: ListingPage) -> None:
        """Add one page. Raises Unordered or TooLarge; the scan then answers nothing any more."""
        self.reached.add(page)
        if not self.reached.ordered:
            self._give_up()
            raise Unordered(f"keys under {self.prefix!r} are not listed in order")
        self._date_ns = max(self._date_ns, page.date_ns)
        # A flat listing has no common prefixes; a store that sends them must come to an end too.
        self.objects += len(page.objects) + page.left_out + len(page.prefixes)
        self._check_size()
        folder, listing = self.prefix, self._directories[self.prefix]
        for version in page.objects:
            key = version.key
            cut = key.rfind("/") + 1
            if cut != len(folder) or not key.startswith(folder):
                folder = key[:cut]
                listing = self._directory(folder)
                self._check_size()
            # A key that ends in a slash is its directory's marker.
            if listing is not None and cut != len(key):
                listing.enter(key, version)
        for key, reason in page.withheld:
            listing = self._directories.get(key[: key.rfind("/", 0, -1) + 1])
            if listing is not None:
                listing.withheld[reason] += 1

    def _check_size(self) -> None:
        if self.objects + len(self._directories) > self._most_entries:
            self._give_up()
            raise TooLarge(f"more than {self._most_entries} objects and directories under {self.prefix!r}")

    def _give_up(self) -> None:
        self.reached.complete = False
        self._directories.clear()

    def _directory(self, folder: str) -> DirectoryListing | None:
        """The listing of a directory in which a key has come; it is an entry of its parent now."""
        if folder in self._directories:
            return self._directories[folder]
        if not folder.startswith(self.prefix):
            return None  # no reader asked for it
        listing, stop = self._directories[self.prefix], len(self.prefix)
        while listing is not None and stop < len(folder):
            stop = folder.index("/", stop) + 1
            each = folder[:stop]
            if each not in self._directories:
                shown = listing.enter(each, None)
                self._directories[each] = DirectoryListing(each, self.reached, self._most_hidden) if shown else None
            listing = self._directories[each]
        return listing

    def answer(self, directory_prefix: str, name: str) -> Answer | None:
        """The meaning of `name` in that directory, as far as the pages have come; None while they
        leave it open.

        It stays None for a directory that they do not have: the reader's directory is newer than
        the pages, or gone.
        """
        listing = self._directories.get(directory_prefix)
        if listing is not None:
            return listing.answer(name)
        return NoObject.ABSENT if directory_prefix in self._directories else None

    def listing(self, prefix: str) -> DirectoryListing | None:
        """A directory of which all has come; None before, and where there is none."""
        passed = self.reached.complete or (self.reached.key > prefix and not self.reached.key.startswith(prefix))
        listing = self._directories.get(prefix) if passed else None
        if listing is not None:
            listing.date_ns = self._date_ns
        return listing

    def listings(self) -> Iterator[DirectoryListing]:
        """Every directory once all pages have come, parents first."""
        for listing in self._directories.values():
            if listing is not None:
                listing.date_ns = self._date_ns
                yield listing
