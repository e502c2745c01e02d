"""Compares whole files with the checksums that the provider recorded at their upload.

A version that was filled here (by this daemon, or by others while it was open here) is compared once all of it is on disk, in a task of
its own: one request for what the provider recorded, whose CRC32C is held against the one that follows from the blocks', without a look at
a byte. A version that was whole when it was opened is not compared again.

Wrong bytes are struck out of the cache, and the kernel's pages of them dropped: the next read fetches the file again, from the store
itself where that may stand in for the proxy. A version that comes out wrong for the second time in this process is kept, and the log says
so: then the record is wrong, or fetching it for ever would not mend it either.

No reader waits for any of this, and no failure reaches one. Built by `daemon`, one `Verifier` for each repository.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import D7yfsError
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fill.direct import SMALL_BYTES
from d7yfs.logs import fields, fields_of
from d7yfs.objects import PART_BYTES, ByteRange, ObjectVersion

log = logging.getLogger(__name__)

_AT_ONCE = 2
"""Comparisons under way: few, because their requests take the same worker threads of the origin as listings."""


class Verifier:
    """Checks what comes of one repository.

    `full`: also small versions, whose request costs as much as they do, and by MD5 where there is no CRC32C. `forget_pages` has the kernel
    drop what it has cached of a version; it may wait for running reads.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        *,
        full: bool,
        forget_pages: Callable[[ObjectVersion], Awaitable[None]],
    ) -> None:
        self._fetcher = fetcher
        self._nursery = nursery
        self._full = full
        self._forget_pages = forget_pages
        self._turns = trio.CapacityLimiter(_AT_ONCE)

    def watch(self, target: FillTarget) -> None:
        """Compare `target` once it is whole."""
        if self._full or target.version.size_bytes > SMALL_BYTES:
            target.when_whole(lambda: self._begin(target))

    def _begin(self, target: FillTarget) -> None:
        self._nursery.start_soon(self._verify, target)
        target.hold()

    async def _verify(self, target: FillTarget) -> None:
        name = self._fetcher.name(target.version)
        try:
            async with self._turns:
                difference = await self._difference(target)
            if difference:
                await self._distrust(target, name, difference)
        except (D7yfsError, OSError) as error:
            facts = fields_of(error.about(object=name)) if isinstance(error, D7yfsError) else fields({"object": name})
            log.info("%s could not be compared with its checksum: %s", name, error, extra=facts)
        except Exception:
            log.exception("%s: comparing it with its checksum failed unexpectedly", name)
        finally:
            target.drop()

    async def _difference(self, target: FillTarget) -> str:
        """In words; empty when there is none, or nothing to compare. Raises what the origin does, and OSError."""
        recorded = await self._fetcher.origin.checksums(target.version)
        if recorded.crc32c is not None:
            crc = await trio.to_thread.run_sync(target.whole_crc32c)
            if crc is not None and crc != recorded.crc32c:
                return f"its CRC32C is {crc:08x}, the store recorded {recorded.crc32c:08x}"
        elif recorded.md5 is not None and self._full:
            md5 = await _md5(target)
            if md5 != recorded.md5:
                return f"its MD5 is {md5}, the store recorded {recorded.md5}"
        return ""

    async def _distrust(self, target: FillTarget, name: str, difference: str) -> None:
        said, facts = f"{name}: {difference}", fields({"object": name})
        version, suspects = target.version, self._fetcher.suspects
        known = version.identity in suspects
        suspects.add(version.identity)
        await target.mismatched(strike_out=not known)
        if known:
            log.error("%s, again: kept as it is, for fetching it a third time would not help", said, extra=facts)
            return
        done = "dropped from the cache, the next read fetches it again; who has read it has wrong bytes"
        log.error("%s: %s", said, done, extra=facts)
        self.watch(target)
        await self._forget_pages(version)


async def _md5(target: FillTarget) -> str:
    """Of all bytes as they lie on disk, in hex. In pieces, so that the end of the mount need not wait for a large file. Raises OSError."""
    md5 = hashlib.md5(usedforsecurity=False)

    def add(piece: ByteRange) -> None:
        md5.update(target.read_back(piece))

    for piece in target.version.whole.split(PART_BYTES):
        await trio.to_thread.run_sync(add, piece)
    return md5.hexdigest()
