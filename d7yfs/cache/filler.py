"""The seam between the cache and the fillers: a `Filler` brings the bytes of one `CachedVersion`.

The cache is handed a `NewFiller` and never imports `d7yfs.fill`, which implements `Filler`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from d7yfs.objects import ByteRange

if TYPE_CHECKING:
    from d7yfs.cache.version import CachedVersion


class Filler(Protocol):
    """A filler of one version, single flight: a range under way is fetched once."""

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        """Bring `wanted` (non-empty, some of it missing) for a reader that waits. Never blocks.

        `ahead` will probably be asked for next. Called again for the same reader, also from within
        `CachedVersion.write`, when its first missing byte has moved to a block that is not arriving.

        MUST lead to `CachedVersion.write` of all missing bytes of `wanted`, or to
        `CachedVersion.end_transfer` of a range that holds the first of them.
        """

    @property
    def window_bytes(self) -> int:
        """Bytes that should be under way for a reader that takes all; 0 when more is of no use."""

    def fill(self) -> None:
        """Bring all that is missing, in the background, behind the bytes that readers wait for.

        Asking again while it goes on changes nothing. When it has stopped (no room, or a failure,
        which `CachedVersion.end_transfer` tells), asking again makes it go on.
        """

    def stop_filling(self) -> None:
        """Leave what `fill` has not begun, as no client wants all of it any more. Transfers under
        way, streams too, go on to their end.
        """

    def prefetch(self, ahead: ByteRange) -> None:
        """Bring `ahead`, which no reader waits for yet."""


NewFiller = Callable[["CachedVersion"], Filler]
