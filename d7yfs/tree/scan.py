"""A flat listing of all that lies below one prefix, cut into its directories as the pages come. Pure.

Owns the promise that it shows what one delimiter listing per directory would have shown, the same names hidden for the same reasons; and
that what it answers before it is over holds when it is over. Keys come in the order of their UTF-8, so all of a directory comes in one
stretch, and a name is settled once the pages have come past it.

Called by `lister`, page by page.
"""

from __future__ import annotations

from collections.abc import Iterator

from d7yfs.objects import ListingPage
from d7yfs.tree.listing import Answer, DirectoryListing, NoObject, Reached


class Unordered(Exception):
    """Keys do not come in order (S3's directory buckets list so): what was settled may not have been, and the scan is of no use."""


class Scan:
    """What lies below `prefix`, which is "" or ends in a slash."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.objects = 0
        """That were listed, hidden ones included."""
        self.reached = Reached()
        self._date_ns = 0
        self._directories: dict[str, DirectoryListing | None] = {prefix: DirectoryListing(prefix, self.reached)}
        """By prefix, those above before those below; None is one that cannot be shown, and neither can what is below it."""

    def add(self, page: ListingPage) -> None:
        """Take one page. Raises Unordered, and answers nothing any more."""
        self.reached.add(page)
        if not self.reached.ordered:
            self.reached.complete = False
            self._directories.clear()
            raise Unordered(f"keys under {self.prefix!r} are not listed in order")
        self._date_ns = max(self._date_ns, page.date_ns)
        self.objects += len(page.objects) + page.left_out
        folder, listing = self.prefix, self._directories[self.prefix]
        for version in page.objects:
            key = version.key
            cut = key.rfind("/") + 1
            if cut != len(folder) or not key.startswith(folder):
                folder = key[:cut]
                listing = self._directory(folder)
            # A key that ends in a slash is its directory's marker.
            if listing is not None and cut != len(key):
                listing.enter(key, version)
        for key, reason in page.withheld:
            listing = self._directories.get(key[: key.rfind("/", 0, -1) + 1])
            if listing is not None:
                listing.withheld[reason] += 1

    def _directory(self, folder: str) -> DirectoryListing | None:
        """The listing of a directory in which a key has turned up: with that it is an entry of the one above."""
        if folder in self._directories:
            return self._directories[folder]
        if not folder.startswith(self.prefix):
            return None  # nobody asked for it
        above = self._directory(folder[: folder.rfind("/", 0, -1) + 1])
        shown = above is not None and above.enter(folder, None)
        listing = self._directories[folder] = DirectoryListing(folder, self.reached) if shown else None
        return listing

    def answer(self, directory_prefix: str, name: str) -> Answer | None:
        """What `name` in that directory is, as far as the pages have come; None while they leave it open.

        They do so for good where they know of no such directory: who asks has one that is newer than they are, or gone.
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
        """Once all pages have come: every directory, those above before those below."""
        for listing in self._directories.values():
            if listing is not None:
                listing.date_ns = self._date_ns
                yield listing
