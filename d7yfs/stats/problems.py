"""The problems of a mount, in types: a part of its account. Pure.

`monitor.problems` decides which there are; `status`, health, scrapes and the log tell of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STORE_UNREACHABLE = "store-unreachable"
CREDENTIALS_REFUSED = "credentials-refused"
CREDENTIALS_EXPIRED = "credentials-expired"
PROXY_DOWN = "proxy-down"
LISTING_STALE = "listing-stale"
PUBLICATION_UNUSABLE = "publication-unusable"
FILL_GIVES_UP = "fill-gives-up"
VERSION_CHANGED = "version-changed"
NO_ROOM_TO_CACHE = "no-room-to-cache"
CACHE_DISK_FAILING = "cache-disk-failing"

CODES = (
    *(STORE_UNREACHABLE, CREDENTIALS_REFUSED, CREDENTIALS_EXPIRED, PROXY_DOWN, LISTING_STALE),
    *(PUBLICATION_UNUSABLE, FILL_GIVES_UP, VERSION_CHANGED, NO_ROOM_TO_CACHE, CACHE_DISK_FAILING),
)
"""All codes, those with the worst consequences first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemStatus:
    """One problem that the mount has now."""

    code: str
    """Its kind: docs/troubleshooting.md has cause and cure of each."""
    repository: str
    """The name of the repository, or its URL; empty for the cache."""
    since: float
    """When it began."""
    text: str
    """The trouble, its length and its reason, in one line."""
    served: str
    """The part that readers still get."""
    hint: str
    """The remedy."""
    blocks_reads: bool = False
    """True if it fails all large reads of the repository that are not cached, on this host alone."""

    @property
    def line(self) -> str:
        """All of it, in one line."""
        return f"{self.text}: {self.served}; {self.hint}"


def count_by_code(problems: Iterable[ProblemStatus]) -> dict[str, int]:
    """How many problems of each code there are, also of codes without any."""
    counts = dict.fromkeys(CODES, 0)
    for each in problems:
        counts[each.code] += 1
    return counts
