"""Compares whole files with the checksums that the provider recorded at their upload.

A version that was filled while it was open here is compared once all of it is on disk, in a task of
its own. One request gets the recorded CRC32C, which is compared with the one that follows from the
blocks'; no byte is read. A version that was whole when it was opened is not compared again.

dfdaemon and its peers are not believed. So a version of which bytes came through them is compared
whatever its size, without a CRC32C by its CRC64NVME, else its MD5, for which the file is read back.
Where the store has none, pages chosen at random are fetched from it and compared: few bytes, as
every host of a cluster asks for its own. A small version is compared whole. The result is recorded
beside the version (`RecordedProof`), so one that no daemon has compared yet is compared when it is
opened.

Wrong bytes are struck out of the cache, and the kernel's pages of them dropped: the next read
fetches the file again, from the store itself if that may stand in for the proxy. A version that is
wrong for the second time in this process is kept, and the log says so. Then the record is wrong, or
fetching it again would not help either.

The bytes of a version that is served with an edit are compared before they are cached (`find_fault`).

Of all else no reader waits for any of this, and no failure reaches one. With `required` alone, opening a whole
version waits for the comparison that it still lacks. Built by `daemon`, one `Verifier` for each
repository.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from cachetools import LRUCache

from d7yfs.cache.proof import Proof
from d7yfs.cache.version import CachedVersion
from d7yfs.checksum import crc32c, crc64nvme
from d7yfs.errors import D7yfsError, ReadTimeout
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transfer import InMemory, Urgency
from d7yfs.fill.direct import SMALL_BYTES
from d7yfs.logs import fields, fields_of
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange, ObjectVersion
from d7yfs.origins.origin import Checksums

log = logging.getLogger(__name__)

SAMPLED_PAGES = 4
PAGE_BYTES = 4 << 10
"""A version's sample, which is compared where there is no checksum. dfdaemon's mistakes are
whole pieces of 4 MiB and more, so a page finds what a block would."""
SAMPLE = "sample"
"""The reason for these bytes."""

_REMEMBERED = 10_000
"""Versions of which is known that they are counted in this run, the latest ones."""
_MOST_LEFT_OPEN = 64
"""Comparisons under way beyond which no more are begun for what is opened: each keeps files open,
and the record has the rest compared at a later open."""
_COMPARED = frozenset({Proof.PROVED, Proof.SAMPLED})
"""Proofs of an earlier run that stand."""
_AT_ONCE = 2
"""Comparisons at once: few, as they and listings share the origin's worker threads."""


class Verifier:
    """The verifier of one repository's versions.

    `full`: also small versions, whose request costs as much as they do, and by CRC64NVME or MD5
    where there is no CRC32C. `required`: drop what came through Dragonfly and cannot be compared.
    `forget_pages` has the kernel drop its cached pages of a version; it may wait for running reads.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        *,
        full: bool,
        required: bool = False,
        forget_pages: Callable[[ObjectVersion], Awaitable[None]],
    ) -> None:
        self._fetcher = fetcher
        self._nursery = nursery
        self._full = full
        self._required = required
        self._forget_pages = forget_pages
        self._comparisons = trio.CapacityLimiter(_AT_ONCE)
        self._under_way: dict[CachedVersion, trio.Event] = {}
        """Set at the end of the version's latest comparison."""
        self._counted: LRUCache[tuple[str, str, int], bool] = LRUCache(_REMEMBERED)

    def compare(self, target: CachedVersion) -> None:
        """Compare `target`, which has come whole, unless it is small and came from the store."""
        if self._full or self._came_by_p2p(target) or target.version.size_bytes > SMALL_BYTES:
            self._begin(target)

    async def admit(self, target: CachedVersion) -> None:
        """Compare `target`, which is being opened, if it is whole and its record says that this is
        still to be done; where an earlier run could not prove it, once in this run.

        With `required` it returns after the comparison. Raises ReadTimeout when that takes longer
        than readers wait.
        """
        proof = target.proof.value
        if proof is None or not target.is_whole:
            return
        if target not in self._under_way and (self._required or len(self._under_way) < _MOST_LEFT_OPEN):
            if proof is Proof.PENDING or not (proof in _COMPARED or self._is_counted(target)):
                self._begin(target)
            elif not self._is_counted(target):
                self._count(target, proof)
        if self._required:
            await self._wait(target)

    async def _wait(self, target: CachedVersion) -> None:
        with trio.move_on_after(self._fetcher.read_timeout_s) as scope:
            while (ended := self._under_way.get(target)) is not None:
                await ended.wait()
        if scope.cancelled_caught:
            raise ReadTimeout(
                f"{self._fetcher.name(target.version)}: is still being compared with the store",
                hint="it came through Dragonfly, and --p2p-verify required lets nobody read it before; try again",
            )

    def _is_counted(self, target: CachedVersion) -> bool:
        return target.version.identity in self._counted

    def _count(self, target: CachedVersion, proof: Proof) -> None:
        self._counted[target.version.identity] = True
        self._fetcher.counters.count_proof(proof)

    def _begin(self, target: CachedVersion) -> None:
        self._under_way[target] = ended = trio.Event()
        self._nursery.start_soon(self._verify, target, ended)
        target.begin_work()
        target.begin_comparison()

    async def _verify(self, target: CachedVersion, ended: trio.Event) -> None:
        name = self._fetcher.name(target.version)
        try:
            proof, difference = await self._compare(target, name)
            if proof is not Proof.PENDING and self._came_by_p2p(target):
                target.proof.record(proof)
                self._count(target, proof)
                if proof is Proof.NOT_PROVABLE and self._required:
                    await self._refuse(target, name)
            if difference:
                await self._distrust(target, name, difference)
        except Exception:
            log.exception("%s: comparing it with its checksum failed unexpectedly", name)
        finally:
            target.end_comparison()
            ended.set()
            if self._under_way.get(target) is ended:
                del self._under_way[target]
            target.end_work()

    async def _compare(self, target: CachedVersion, name: str) -> tuple[Proof, str]:
        """The result of `_prove`, NOT_PROVABLE where that fails."""
        try:
            async with self._comparisons:
                return await self._prove(target)
        except (D7yfsError, OSError) as error:
            facts = fields_of(error.about(object=name)) if isinstance(error, D7yfsError) else fields({"object": name})
            log.info("%s could not be compared with its checksum: %s", name, error, extra=facts)
            return Proof.NOT_PROVABLE, ""

    def _came_by_p2p(self, target: CachedVersion) -> bool:
        return target.proof.value is not None

    async def _prove(self, target: CachedVersion) -> tuple[Proof, str]:
        """The proof, and the difference in words, which is empty unless the proof is WRONG. Raises
        the origin's errors, and OSError.
        """
        version, p2p = target.version, self._came_by_p2p(target)
        try:
            recorded = await self._fetcher.origin.checksums(version)
        except D7yfsError as error:
            if not p2p:
                raise
            log.info("%s: its checksum cannot be had: %s", self._fetcher.name(version), error)
            recorded = Checksums()
        if recorded.crc32c is not None:
            crc = await trio.to_thread.run_sync(target.backing.whole_crc32c)
            if crc is None:
                return Proof.PENDING, ""
            return _judge("CRC32C", f"{crc:08x}", f"{recorded.crc32c:08x}")
        if (self._full or p2p) and (recorded.crc64nvme is not None or recorded.md5 is not None):
            return await _read_back(target, recorded)
        return await self._sample(target) if p2p else (Proof.PENDING, "")

    async def _sample(self, target: CachedVersion) -> tuple[Proof, str]:
        """Compare blocks with the store's own. Raises the fetcher's errors, and OSError."""
        version = target.version
        is_small = version.size_bytes <= SMALL_BYTES
        pieces = version.whole.split(BLOCK_BYTES) if is_small else _pages_at_random(version.size_bytes)
        for piece in pieces:
            stores = await self._fetch_again(version, piece)
            if not target.is_whole:
                return Proof.PENDING, ""
            if await trio.to_thread.run_sync(target.backing.read_back, piece) != stores:
                return Proof.WRONG, f"its bytes {piece} are not the store's"
        return Proof.PROVED if is_small else Proof.SAMPLED, ""

    async def _fetch_again(self, version: ObjectVersion, piece: ByteRange) -> bytearray:
        """A piece, straight from the store. Raises the fetcher's errors."""
        stores = InMemory(piece)
        await self._fetcher.fetch(version, piece, stores, urgency=Urgency(urgent=False), reason=SAMPLE)
        return stores.data

    async def find_fault(self, version: ObjectVersion, data: bytes, *, p2p: bool) -> str:
        """Compare all bytes of a small version, of which the cache will hold others, with the store's
        checksum. Returns the difference in words; empty for none, and where none is to be looked for.
        """
        if not (p2p or self._full):
            return ""
        try:
            recorded = await self._fetcher.origin.checksums(version)
            proof, difference = _judge_bytes(data, recorded)
            if p2p and proof is Proof.PENDING:
                same = data == await self._fetch_again(version, version.whole)
                proof, difference = (Proof.PROVED, "") if same else (Proof.WRONG, "its bytes are not the store's")
        except D7yfsError as error:
            log.info("%s could not be compared with its checksum: %s", self._fetcher.name(version), error)
            proof, difference = Proof.NOT_PROVABLE, ""
        if p2p:
            self._fetcher.counters.count_proof(proof)
            if proof is Proof.NOT_PROVABLE and self._required:
                return "it came through Dragonfly, and nothing proves it"
        return difference

    async def _refuse(self, target: CachedVersion, name: str) -> None:
        """Drop a version that cannot be proved, once: it comes from the store then."""
        suspects = self._fetcher.suspects
        if target.version.identity in suspects:
            return
        suspects.add(target.version.identity)
        log.warning("%s came through Dragonfly, and nothing proves it: dropped, it comes from the store", name)
        await target.backing.strike_out()
        await self._forget_pages(target.version)

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


def _pages_at_random(size_bytes: int) -> list[ByteRange]:
    """SAMPLED_PAGES different pages of an object that is larger than these."""
    chosen = secrets.SystemRandom().sample(range(-(-size_bytes // PAGE_BYTES)), SAMPLED_PAGES)
    return [ByteRange(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size_bytes)) for page in chosen]


def _judge(kind: str, ours: str, recorded: str) -> tuple[Proof, str]:
    if ours == recorded:
        return Proof.PROVED, ""
    return Proof.WRONG, f"its {kind} is {ours}, the store recorded {recorded}"


def _judge_bytes(data: bytes, recorded: Checksums) -> tuple[Proof, str]:
    """The proof of all bytes of a version; PENDING if nothing is recorded that could prove them."""
    if recorded.crc32c is not None:
        return _judge("CRC32C", f"{crc32c(data):08x}", f"{recorded.crc32c:08x}")
    if recorded.crc64nvme is not None:
        return _judge("CRC64NVME", f"{crc64nvme(data):016x}", f"{recorded.crc64nvme:016x}")
    if recorded.md5 is not None:
        return _judge("MD5", hashlib.md5(data, usedforsecurity=False).hexdigest(), recorded.md5)
    return Proof.PENDING, ""


async def _read_back(target: CachedVersion, recorded: Checksums) -> tuple[Proof, str]:
    """Compare a version by a checksum for which all of it is read. Raises OSError."""
    if recorded.crc64nvme is not None:
        result = _judge("CRC64NVME", f"{await _crc64nvme(target):016x}", f"{recorded.crc64nvme:016x}")
    else:
        result = _judge("MD5", await _md5(target), recorded.md5 or "")
    # Else blocks were given up meanwhile, and read as zeros.
    return result if target.is_whole else (Proof.PENDING, "")


async def _crc64nvme(target: CachedVersion) -> int:
    """The CRC64NVME of all bytes as they lie on disk. Raises OSError."""
    crc = 0

    def add(data: bytearray) -> None:
        nonlocal crc
        crc = crc64nvme(data, crc)

    await _add_all(target, add)
    return crc


async def _md5(target: CachedVersion) -> str:
    """The MD5 of all bytes as they lie on disk, in hex. Raises OSError."""
    md5 = hashlib.md5(usedforsecurity=False)
    await _add_all(target, md5.update)
    return md5.hexdigest()


async def _add_all(target: CachedVersion, add: Callable[[bytearray], None]) -> None:
    """Read `target` back and `add` its bytes, in threads. Raises OSError.

    In pieces, so that the end of the mount need not wait for a large file.
    """

    def add_piece(piece: ByteRange) -> None:
        add(target.backing.read_back(piece))

    for piece in target.version.whole.split(PART_BYTES):
        await trio.to_thread.run_sync(add_piece, piece)
