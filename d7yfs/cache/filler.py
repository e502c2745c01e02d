"""The seam between the cache and whatever brings bytes: a `Filler` fills one object version into a `FillTarget`.

The cache implements `FillTarget` and is handed a `NewFiller`; `d7yfs.fetch` implements `Filler`. Neither imports the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from d7yfs.cache.leases import Leases
from d7yfs.objects import ByteRange, ObjectVersion


class FillTarget(Protocol):
    """What a filler, and who checks its work, may do with the version it fills. Called from the trio thread."""

    @property
    def version(self) -> ObjectVersion: ...

    @property
    def keeps(self) -> bool:
        """Whether bytes that nobody waits for are kept (the disk has room). Else a filler brings only what is asked for."""

    @property
    def has_readers(self) -> bool:
        """Whether somebody waits for bytes of it now."""

    @property
    def leases(self) -> Leases:
        """Which of the daemons on this cache directory brings what."""

    @property
    def taken_over_blocks(self) -> int:
        """How many blocks of this version other daemons have brought while it was open here."""

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Block-aligned runs within (and around) `wanted` that are not there yet, arriving blocks included."""

    async def write(self, offset: int, data: memoryview) -> None:
        """`data` has arrived at `offset`; wakes the readers that it completes. `data` must stay as it is until this returns.

        MUST be called contiguously from a block's start on. Bytes that are there already are skipped, so a transfer may pass over
        what another has brought; bytes behind a gap are ignored.
        """

    def retract(self, wanted: ByteRange) -> int:
        """What was written of `wanted` is not to be believed: its blocks are absent from now on, for other daemons too.

        Returns the start of its first block.
        """

    def ended(self, tried: ByteRange, error: Exception | None) -> None:
        """A transfer of `tried` is over: readers that still lack bytes inside it get `error`, or ask again when it is None."""

    def new_link_path(self) -> Path | None:
        """Where dfdaemon may hard-link its own file of this version; None while nothing is kept on disk."""

    async def adopt_link(self, incoming: Path) -> None:
        """Take that file as the version's second store: of what it held before, only what is in the same file is still there.

        Raises OSError when it is not there, not for us to read, no link, or not as long as the object.
        """

    def clear_link_path(self, incoming: Path) -> None:
        """Delete what is still at a `new_link_path`."""

    def check_linked(self, piece: ByteRange, crc32: int | None) -> list[int] | None:
        """What `land_linked` wants to know of `piece` (whole blocks); None when its CRC32 is another. Without `crc32` it is believed.

        For any thread, while held. Raises OSError.
        """

    def land_linked(self, piece: ByteRange, crcs: list[int]) -> None:
        """`piece` is there, in the adopted file; wakes the readers that it completes."""

    def drop_link(self) -> None:
        """The adopted file is not what it should be: what it held is missing again."""

    def when_whole(self, tell: Callable[[], None]) -> None:
        """Call `tell`, once, when the last block that lacks lands on disk, whoever has brought it."""

    def whole_crc32c(self) -> int | None:
        """CRC32C of the object as it lies on disk; None when not all of it does. For a worker thread, while held."""

    def read_back(self, piece: ByteRange) -> bytearray:
        """Bytes that lie on disk. For a worker thread, while held. Raises OSError."""

    async def mismatched(self, *, strike_out: bool) -> None:
        """What lies on disk is not what the provider says it is: counted and, if so told, forgotten, so that it is fetched again."""

    def hold(self) -> None:
        """Keep the version open although its last reader may leave; balanced by `drop`."""

    def drop(self) -> None:
        """End a `hold`."""


class Filler(Protocol):
    """Brings the missing bytes of one version, single flight: asked twice for a range under way, it fetches it once."""

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        """A reader waits for `wanted` (non-empty, some of it missing); `ahead` will probably be asked for next. Never blocks.

        Asked again for the same reader when its first missing byte has moved to a block that is not arriving, also from within
        `FillTarget.write`.

        MUST lead to `FillTarget.write` of all missing bytes of `wanted`, or to `FillTarget.ended` of a range that holds the first of them.
        """

    @property
    def window_bytes(self) -> int:
        """How much should be under way for a reader that takes all it can get; 0 when asking for more makes no sense."""

    def fill(self) -> None:
        """Bring all that is missing, in the background, behind whatever readers wait for. Once is enough: while it goes on, asking again
        changes nothing. When it has stopped (for want of room, or because something failed, of which `FillTarget.ended` tells), asking
        again makes it go on.
        """

    def relent(self) -> None:
        """Nobody wants all of it any more: what `fill` has not begun is left. What is under way, streams too, comes to its end."""

    def prefetch(self, ahead: ByteRange) -> None:
        """As `request`, with nobody waiting."""


NewFiller = Callable[[FillTarget], Filler]
