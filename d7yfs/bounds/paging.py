"""The end of a listing: pages that come round in a circle, or bring nothing, are an error. Pure.

A store chooses how many pages a listing has. One that never ends would keep d7yfs asking for ever.
Used wherever page after page is asked for.
"""

from __future__ import annotations

from d7yfs.errors import BadReply
from d7yfs.objects import ListingPage

_IDLE_PAGES_MAX = 1000
"""Pages in a row without a new entry. Stores send empty ones where many deleted objects lie."""
_PAGES_MAX = 100_000
"""Pages of one listing: a hundred million objects."""


class Paging:
    """The pages of one listing so far; `name` is the listed prefix as people know it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pages = self._idle_pages = 0
        self._tokens: set[int] = set()
        self._marks: set[int] = set()
        """Hashes of a key of each page, and of each token."""

    def add_page(self, page: ListingPage) -> None:
        """Count a page of a store. Raises BadReply."""
        first = next((version.key for version in page.objects), "") or next(iter(page.prefixes), "")
        self.add(first, page.next_token)

    def add(self, mark: str, next_token: str) -> None:
        """Count a page by one of its keys ("" without any). Raises BadReply if the listing need not
        end."""
        if not next_token:
            return
        self._pages += 1
        self._idle_pages = 0 if mark and hash(mark) not in self._marks else self._idle_pages + 1
        if hash(next_token) in self._tokens:
            raise self._endless("its pages come round in a circle")
        if self._idle_pages >= _IDLE_PAGES_MAX:
            raise self._endless(f"{self._idle_pages} pages in a row bring nothing new")
        if self._pages >= _PAGES_MAX:
            raise self._endless(f"it has more than {_PAGES_MAX:,} pages")
        self._tokens.add(hash(next_token))
        self._marks.add(hash(mark))

    def _endless(self, reason: str) -> BadReply:
        return BadReply(
            f"{self._name}: the listing does not end: {reason}",
            hint="does the endpoint speak the store's protocol? --listing exact lists nothing",
            lasting=True,
        )
