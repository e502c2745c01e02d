"""Compares whole files with the checksums that the provider recorded at their upload.

A version that was filled while it was open here is compared once all of it is on disk, in a task of
its own. One request gets the recorded CRC32C, which is compared with the one that follows from the
blocks'; no byte is read. A version that was whole when it was opened is not compared again.

Wrong bytes are struck out of the cache, and the kernel's pages of them dropped: the next read
fetches the file again, from the store itself if that may stand in for the proxy. A version that is
wrong for the second time in this process is kept, and the log says so. Then the record is wrong, or
fetching it again would not help either.

No reader waits for any of this, and no failure reaches one. Built by `daemon`, one `Verifier` for
each repository.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from d7yfs.cache.version import CachedVersion
from d7yfs.errors import D7yfsError
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fill.direct import SMALL_BYTES
from d7yfs.logs import fields, fields_of
from d7yfs.objects import PART_BYTES, ByteRange, ObjectVersion

log = logging.getLogger(__name__)

_AT_ONCE = 2
"""Comparisons at once: few, as they and listings share the origin's worker threads."""


class Verifier:
    """The verifier of one repository's versions.

    `full`: also small versions, whose request costs as much as they do, and by MD5 where there is
    no CRC32C. `forget_pages` has the kernel drop its cached pages of a version; it may wait for
    running reads.
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
        self._comparisons = trio.CapacityLimiter(_AT_ONCE)

    def compare(self, target: CachedVersion) -> None:
        """Compare `target`, which has come whole, unless it is small."""
        if self._full or target.version.size_bytes > SMALL_BYTES:
            self._nursery.start_soon(self._verify, target)
            target.hold()

    async def _verify(self, target: CachedVersion) -> None:
        name = self._fetcher.name(target.version)
        try:
            async with self._comparisons:
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

    async def _difference(self, target: CachedVersion) -> str:
        """The difference in words; empty when there is none, or nothing to compare. Raises the
        origin's errors, and OSError.
        """
        recorded = await self._fetcher.origin.checksums(target.version)
        if recorded.crc32c is not None:
            crc = await trio.to_thread.run_sync(target.backing.whole_crc32c)
            if crc is not None and crc != recorded.crc32c:
                return f"its CRC32C is {crc:08x}, the store recorded {recorded.crc32c:08x}"
        elif recorded.md5 is not None and self._full:
            md5 = await _md5(target)
            if md5 != recorded.md5:
                return f"its MD5 is {md5}, the store recorded {recorded.md5}"
        return ""

    async def _distrust(self, target: CachedVersion, name: str, difference: str) -> None:
        said, facts = f"{name}: {difference}", fields({"object": name})
        version, suspects = target.version, self._fetcher.suspects
        known = version.identity in suspects
        suspects.add(version.identity)
        await target.record_mismatch(strike_out=not known)
        if known:
            log.error("%s, again: kept as it is: fetching it a third time would not help", said, extra=facts)
            return
        done = "dropped from the cache, the next read fetches it again; a client that has read it has wrong bytes"
        log.error("%s: %s", said, done, extra=facts)
        target.call_when_whole(partial(self.compare, target))
        await self._forget_pages(version)


async def _md5(target: CachedVersion) -> str:
    """The MD5 of all bytes as they lie on disk, in hex. Raises OSError.

    Read in pieces, so that the end of the mount need not wait for a large file.
    """
    md5 = hashlib.md5(usedforsecurity=False)

    def add(piece: ByteRange) -> None:
        md5.update(target.backing.read_back(piece))

    for piece in target.version.whole.split(PART_BYTES):
        await trio.to_thread.run_sync(add, piece)
    return md5.hexdigest()
