"""The record, beside a cached version, of how far bytes that came through Dragonfly are proved.

dfdaemon and its peers are trusted to bring bytes, not with which bytes these are. So a version that
has bytes of theirs counts as proved when all of it was compared with a checksum of the store's, or
with the store's own bytes.

The record is one byte in the header of the pair's map, and a single byte is never torn. It is 0
where no byte came through Dragonfly, as in maps of other releases. PENDING is written before the
first such block's entry, in the same order to the disk. So a daemon that is killed leaves no such
block without it. A byte of which nothing is known counts as PENDING, and so does a linked file of
dfdaemon's without a record.

Trio thread, except for `read_proof`.
"""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from functools import partial

from d7yfs.cache.disk import Disk
from d7yfs.cache.pair import PROOF_OFFSET, VersionFiles

log = logging.getLogger(__name__)


class Proof(StrEnum):
    """How far the bytes of a version that came through Dragonfly are proved."""

    PENDING = "not compared yet"
    PROVED = "proved"
    SAMPLED = "sampled"
    """Blocks chosen at random are the store's; it has no checksum of the whole."""
    NOT_PROVABLE = "not provable"
    """Neither a checksum nor blocks could be had from the store."""
    WRONG = "wrong"


_STORED = {
    Proof.PENDING: b"?",
    Proof.PROVED: b"=",
    Proof.SAMPLED: b"~",
    Proof.NOT_PROVABLE: b"-",
    Proof.WRONG: b"!",
}
_PROOFS = {stored: proof for proof, stored in _STORED.items()}


def read_proof(map_fd: int) -> Proof | None:
    """The record in an open map; None without one. Raises OSError."""
    return _parse(os.pread(map_fd, 1, PROOF_OFFSET))


class RecordedProof:
    """The record of one open version; without `files` it lasts as long as the version is open."""

    def __init__(self, files: VersionFiles | None, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self._own: Proof | None = None
        """The last record of this process: its write may still be under way. Without files, the
        last that was known."""

    def rest(self, known: Proof | None) -> None:
        """Do without the files, which are closed until `use`; `known` was the value before."""
        self._own, self._files = known, None

    def use(self, files: VersionFiles | None) -> None:
        """Go by the record in `files`, which were opened again."""
        self._own = None if files is not None else self._own
        self._files = files

    @property
    def value(self) -> Proof | None:
        """How far the version is proved; None if no byte of it came through Dragonfly.

        Other daemons write the record, too, so it is read again.
        """
        if self._own is not None or self._files is None:
            return self._own
        stored = bytearray(1)
        self._disk.read_fresh(self._files.map_fd, PROOF_OFFSET, memoryview(stored))
        return _parse(stored) or self._files.proof

    def record(self, proof: Proof) -> None:
        """Record the result of a comparison, or PENDING before bytes come through Dragonfly."""
        self._own = proof
        if self._files is not None:
            self._disk.run_soon(partial(_write, self._files.map_fd, proof, self._files.map_path.name))


def _parse(stored: bytes | bytearray) -> Proof | None:
    return _PROOFS.get(bytes(stored), Proof.PENDING) if any(stored) else None


def _write(map_fd: int, proof: Proof, name: str) -> None:
    try:
        os.pwrite(map_fd, _STORED[proof], PROOF_OFFSET)
    except OSError as error:
        log.warning("cache: how far %s is proved could not be recorded: %s", name, error.strerror)
